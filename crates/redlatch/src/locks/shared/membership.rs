//! Which members a quorum has: the same ones for everybody who takes the lock, or there could be two majorities.
//!
//! The members of another process cannot be seen. Those of this process are compared when a [`QuorumLock`](crate::QuorumLock) is put
//! together, with all that are in use: handles, and guards.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use crate::{
    core::Origin,
    error::{Error, ErrorKind},
    fork::PerProcess,
    locks::shared::{lock_handle::LockHandle, members::share},
};

/// The members, by each of their names.
type InUse = HashMap<Arc<[u8]>, Vec<Weak<[LockHandle]>>>;

static IN_USE: PerProcess<Mutex<InUse>> = PerProcess::new();

/// From how many names on those that nobody uses are looked for.
const SWEEP_FROM: usize = 1_024;

/// Notes these members, unless this process has them already, and refuses them where they cannot make a majority that everybody agrees on.
pub(crate) fn enter(members: &Arc<[LockHandle]>) -> Result<(), Error> {
    if let Some(dialled) = members.iter().find(|member| member.core.origin == Origin::Connected) {
        return Err(Error::new(
            ErrorKind::InvalidOption,
            "a member of a quorum counts also while its server is down, and this client had to reach it first",
        )
        .on(dialled.name())
        .remedy("make the clients of all members with connect_lazy, and leave none out"));
    }
    distinct(members)?;
    let mut in_use = IN_USE.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    let is_noted = |noted: &Weak<[LockHandle]>| std::ptr::addr_eq(noted.as_ptr(), Arc::as_ptr(members));
    let first = members.first().and_then(|member| in_use.get(&member.keys.key));
    if first.is_some_and(|all| all.iter().any(is_noted)) {
        // What has come to be known of their servers since is no news of others.
        return Ok(());
    }
    let known = |key| in_use.get(key).into_iter().flatten().filter_map(Weak::upgrade);
    let others: Vec<Arc<[LockHandle]>> = members.iter().flat_map(|member| known(&member.keys.key)).collect();
    for other in others {
        let meets = members.iter().any(|one| other.iter().any(|other| is_same(one, other)));
        let agrees = members.len() == other.len()
            && members.iter().all(|one| other.iter().any(|other| is_same(one, other)));
        if meets && !agrees {
            let (ours, theirs) = (members.len(), other.len());
            return Err(Error::new(
                ErrorKind::InvalidOption,
                format!("the lock is in use here as a quorum of {theirs} other members than these {ours}: two majorities could hold it"),
            )
            .on(members[0].name())
            .remedy("give every quorum lock of a name the same members, those whose servers are down included"));
        }
    }
    if in_use.len() >= SWEEP_FROM && in_use.len().is_power_of_two() {
        in_use.retain(|_, all| all.iter().any(|members| members.strong_count() > 0));
    }
    for member in members.iter() {
        let all = in_use.entry(member.keys.key.clone()).or_default();
        all.retain(|members| members.strong_count() > 0);
        if !all.iter().any(is_noted) {
            all.push(Arc::downgrade(members));
        }
    }
    Ok(())
}

/// Refuses two members on one server, as far as that can be told by now.
pub(crate) fn distinct(members: &[LockHandle]) -> Result<(), Error> {
    let (mut clients, mut stores) = (HashSet::new(), HashSet::new());
    let (mut places, mut processes) = (HashSet::new(), HashSet::new());
    for one in members {
        let core = &one.core;
        let is_new = clients.insert(Arc::as_ptr(core).addr())
            && stores.insert(Arc::as_ptr(&core.store).addr())
            && core.store.place().is_none_or(|place| places.insert(place))
            && core.store.process().is_none_or(|process| processes.insert(process));
        if !is_new {
            return Err(Error::new(ErrorKind::InvalidOption, "two members of a quorum are on one server")
                .on(one.name())
                .remedy("give each member a server of its own, or use a MultiLock"));
        }
    }
    Ok(())
}

/// Whether both are one lock.
fn is_same(one: &LockHandle, other: &LockHandle) -> bool {
    one.keys.key == other.keys.key && share(&one.core, &other.core)
}
