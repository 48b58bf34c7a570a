//! What operators look at: who holds what, whether a store suits locks, and the atomic stock.

mod clients;
pub(crate) mod doctor;
pub(crate) mod inspect;
pub(crate) mod stock;
pub(crate) mod why;
