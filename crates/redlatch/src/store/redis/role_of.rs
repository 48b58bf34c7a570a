//! Asking a server for its role, in the way that the account may.

use std::sync::Arc;

use super::{
    node::Node,
    role::{self, Role},
};
use crate::{
    error::{Error, ErrorKind},
    store::{Fault, Reply},
};

/// The answer of a server that tells its role.
pub(super) async fn told_role(node: &Arc<Node>) -> Result<(Role, Reply), Error> {
    let mut refused = None;
    for question in role::QUESTIONS {
        match node.send(&role::question(question)).await.map_err(Fault::from) {
            Ok(answer) => {
                if let Some(role) = role::of(&answer) {
                    return Ok((role, answer));
                }
            }
            Err(Fault::Server(error)) => refused = Some(error),
            Err(fault) => return Err(fault.into_error()),
        }
    }
    Err(match refused {
        Some(error) if error.kind() == ErrorKind::Permission => {
            error.remedy("give the account the right to role, or to info")
        }
        Some(error) => error,
        None => Error::new(ErrorKind::Protocol, "the server does not say whether it is a master"),
    })
}

pub(super) async fn role_of(node: &Arc<Node>) -> Result<Role, Error> {
    told_role(node).await.map(|(role, _)| role)
}
