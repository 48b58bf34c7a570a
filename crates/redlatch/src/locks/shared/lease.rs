//! How long a hold lasts, as it is asked for.

use std::time::Duration;

use crate::{
    config::{Config, WATCHDOG_LEASE_MIN, lease_ms},
    error::{Error, ErrorKind},
    recipes::LeaseTerm,
};

/// How long a hold lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Lease {
    /// As long as its guard: the client's watchdog lease, renewed every third of it.
    #[default]
    Renewed,
    /// As [`Renewed`](Self::Renewed), with a lease of its own (150 ms to 100 years).
    RenewedEvery(Duration),
    /// At most this long (2 ms to 100 years), never renewed.
    Fixed(Duration),
}

impl Lease {
    pub(crate) fn lease_term(self, config: &Config) -> Result<LeaseTerm, Error> {
        match self {
            Lease::Renewed => Ok(LeaseTerm { lease_ms: lease_ms(config.watchdog_lease)?, renewed: true }),
            Lease::RenewedEvery(lease) if lease < WATCHDOG_LEASE_MIN => Err(Error::new(
                ErrorKind::InvalidOption,
                format!("a renewed lease of {lease:?} is under {WATCHDOG_LEASE_MIN:?}"),
            )
            .remedy("a lease that short would be lost to a single slow reply")),
            Lease::RenewedEvery(lease) => Ok(LeaseTerm { lease_ms: lease_ms(lease)?, renewed: true }),
            Lease::Fixed(lease) => Ok(LeaseTerm { lease_ms: lease_ms(lease)?, renewed: false }),
        }
    }
}
