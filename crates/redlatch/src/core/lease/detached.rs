//! A hold that another process left, from which a lease is taken up.

use std::sync::Arc;

use crate::{
    keys::Keys,
    owner::Owner,
    recipes::{LeaseTerm, Recipe},
};

/// A hold that was left, and what is wanted of it. It is no lease of this process.
pub(crate) struct HoldToAdopt {
    pub(crate) keys: Arc<Keys>,
    pub(crate) recipe: &'static dyn Recipe,
    pub(crate) owner: Owner,
    pub(crate) lease_term: LeaseTerm,
    pub(crate) fenced: bool,
}
