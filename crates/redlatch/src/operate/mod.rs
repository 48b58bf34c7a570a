//! What operators look at: who holds what, whether a store suits locks, and the atomic stock.

pub(crate) mod doctor;
pub(crate) mod inspect;
pub(crate) mod stock;
