//! An atomic stock: take some of what is left, or nothing.
//!
//! Not a lock, but the other half of the classic flash sale: what fits into one script needs no lock at all.

use std::sync::Arc;

use crate::{
    client::Client,
    error::{Error, ErrorKind},
    name::LockName,
    scripts,
    store::{Call, Fault, protocol_error},
};

impl Client {
    /// Takes `amount` items from the stock under `key`, all or none; answers how many are left, or `None` when too few were.
    ///
    /// # Cancel safety
    ///
    /// Once started it may happen or not. The request is sent once.
    ///
    /// # Errors
    ///
    /// A stock that was never set ([`ErrorKind::InvalidOption`]); a server that is unreachable or refuses.
    pub async fn take_stock(&self, key: impl Into<LockName>, amount: u32) -> Result<Option<u64>, Error> {
        let key = key.into();
        let call = Call::new(&scripts::SELL).key(&Arc::from(key.as_bytes())).int(amount.into());
        match self.stock_call(&key, call).await? {
            -2 => Err(Error::new(ErrorKind::InvalidOption, "there is no such stock")
                .on(&key)
                .remedy("set the stock first")),
            left => Ok(u64::try_from(left).ok()),
        }
    }

    /// Sets the stock under `key`.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn set_stock(&self, key: impl Into<LockName>, amount: u32) -> Result<(), Error> {
        let key = key.into();
        let call = Call::new(&scripts::STOCK).key(&Arc::from(key.as_bytes())).int(amount.into());
        self.stock_call(&key, call).await.map(|_| ())
    }

    /// Removes the stock under `key`.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn remove_stock(&self, key: impl Into<LockName>) -> Result<(), Error> {
        let key = key.into();
        let call = Call::new(&scripts::STOCK).key(&Arc::from(key.as_bytes())).constant("none");
        self.stock_call(&key, call).await.map(|_| ())
    }

    /// Reads the stock under `key`; `None` if it was never set.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn stock(&self, key: impl Into<LockName>) -> Result<Option<u64>, Error> {
        let key = key.into();
        let call = Call::new(&scripts::STOCK).key(&Arc::from(key.as_bytes())).constant("");
        self.stock_call(&key, call).await.map(|left| u64::try_from(left).ok())
    }

    async fn stock_call(&self, key: &LockName, call: Call) -> Result<i64, Error> {
        self.core.check_open()?;
        key.check()?;
        self.core.keeper.note_call();
        let name = call.script.name();
        let reply = self.core.run(call).await.map_err(Fault::into_error).map_err(|error| error.on(key))?;
        reply.int().ok_or_else(|| protocol_error(name, &reply).on(key))
    }
}
