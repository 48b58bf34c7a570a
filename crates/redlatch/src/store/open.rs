//! From the configuration to the store that it names.

use std::sync::Arc;

use super::{Store, lazy, local, memory, redis};
use crate::{
    config::{Config, url::StoreUrl},
    error::Error,
};

/// Whether the store that the configuration names has nothing to connect to.
pub(crate) fn is_at_hand(config: &Config) -> bool {
    matches!(StoreUrl::parse(&config.url), Ok(StoreUrl::Memory { .. }))
}

/// The store that the configuration names, which its first call opens. `memory:` has nothing to wait for.
pub(crate) fn open_lazily(
    config: &Config,
    background: &tokio::runtime::Handle,
) -> Result<Arc<dyn Store>, Error> {
    match StoreUrl::parse(&config.url)? {
        StoreUrl::Memory { name } => memory::open(name.as_deref(), config),
        url => Ok(Arc::new(lazy::LazyStore::new(url, config, background))),
    }
}

/// Opens the store that the configuration names.
pub(crate) async fn open(
    config: &Config,
    background: &tokio::runtime::Handle,
) -> Result<Arc<dyn Store>, Error> {
    let url = StoreUrl::parse(&config.url)?;
    match &url {
        StoreUrl::Memory { name } => memory::open(name.as_deref(), config),
        StoreUrl::Local { name, dir } => {
            local::open(name.as_deref(), dir.as_deref(), config, background).await
        }
        StoreUrl::Redis(server) => Ok(redis::RedisStore::open(server.clone(), config, background).await?),
        StoreUrl::Sentinel(sentinels) => {
            Ok(redis::FollowingStore::of_sentinels(sentinels, config, background).await?)
        }
        StoreUrl::Replicated(nodes) => {
            Ok(redis::FollowingStore::of_replicated(nodes, config, background).await?)
        }
        StoreUrl::Cluster(nodes) => redis::ClusterStore::open(nodes.clone(), config, background).await,
    }
}
