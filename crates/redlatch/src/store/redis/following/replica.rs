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
    role_of::told_role,
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
    let told = timeout(limit, told_role(&node)).await.ok().and_then(Result::ok);
    node.close();
    let (_, answer) = told?;
    Some(dial.reachable(role::master(&answer)?))
}
