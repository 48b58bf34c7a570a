//! Whose replica a server is that was taken for the master.
//!
//! Sources that are heard may be behind the times, and a replica is never: those that know better have told it which server to copy. So it is followed only
//! to a server that both it and a source call the master.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::timeout};

use super::super::{
    Dial,
    node::{InterruptionHooks, Node},
    role,
};
use crate::config::{Config, addr::Addr};

/// The master that a replica names, by the address at which it is reached from here. `None` if the server is none, or says nothing in time.
pub(super) async fn master_of(
    addr: &Addr,
    dial: &Dial,
    config: &Config,
    background: &Handle,
    limit: Duration,
) -> Option<Addr> {
    let dial = Arc::new(dial.at(addr.clone()).for_any_role());
    let node = Node::new(dial.clone(), config, background, Arc::new(InterruptionHooks::default()));
    let asked = async {
        for words in role::QUESTIONS {
            if let Ok(answer) = node.send(&role::question(words)).await
                && role::of(&answer).is_some()
            {
                return role::master(&answer);
            }
        }
        None
    };
    let master = timeout(limit, asked).await.ok().flatten();
    node.close();
    Some(dial.reachable(master?))
}
