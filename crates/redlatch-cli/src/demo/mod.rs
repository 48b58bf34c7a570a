//! The flash sale: many processes sell a few items, protected in two ways and in none.

pub(crate) mod progress;
pub(crate) mod sale;
pub(crate) mod worker;
