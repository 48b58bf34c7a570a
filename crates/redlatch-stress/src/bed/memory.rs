//! The engine inside one process, whose clients share it.

use std::time::Duration;

use super::{Bed, Outcome};
use crate::{record::Log, rng::Rng, worker::Order};

pub(super) struct Memory;

impl Bed for Memory {
    fn address(&self, _: usize, order: &mut Order) {
        order.url = "memory:stress".to_owned();
        order.clients = 3;
    }

    fn trouble(&mut self, _: &mut Rng, _: &Log, _: Duration) -> Outcome<()> {
        Ok(())
    }

    fn heal(&mut self, _: &Log) -> Outcome<()> {
        Ok(())
    }

    fn left(&self) -> Outcome<Vec<String>> {
        Ok(Vec::new())
    }

    fn is_one_process(&self) -> bool {
        true
    }
}
