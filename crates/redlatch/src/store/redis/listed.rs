//! Who all replicas are that are to confirm a grant: those that the master has in sync, and those that may become the next master.
//!
//! The two accounts come from different servers, and each may have replicas that the other one lacks. One that only the master knows must not
//! stand in for one that it has lost: that one may be promoted all the same, without the grant.

use std::{
    future::{Future, ready},
    net::IpAddr,
    pin::Pin,
    time::Duration,
};

use crate::config::addr::Addr;

/// Those who know of replicas that the master itself may have lost sight of. They are asked only when a grant is to be confirmed by all, on the background
/// thread.
pub(super) trait Listing: Send + Sync {
    /// The replicas that they list, asked for within a time; `None` where they say nothing.
    fn listed(&self, within: Duration) -> Pin<Box<dyn Future<Output = Option<Listed>> + Send + '_>>;

    /// How many of the replicas lack what the master had done by this point of its history, as they say themselves. Those that lack it are asked again
    /// until it is none, or the time is over.
    fn lacking(&self, _offset: u64, _within: Duration) -> Pin<Box<dyn Future<Output = u32> + Send + '_>> {
        Box::pin(ready(0))
    }
}

/// The replicas in sync, as the master tells them: each by the address that it was told, if that can be read.
pub(super) type InSync = Vec<Option<Addr>>;

/// A replica by all addresses under which it is listed.
pub(super) type Names = Vec<Addr>;

/// The replicas that may become the next master, by those who know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Listed {
    /// By the addresses that they have told their master, too.
    Servers(Vec<Names>),
    /// So many, and none of those that the master has in sync is another one.
    Count(u32),
}

impl Listed {
    /// How many are in the one account or the other.
    pub(super) fn all(&self, in_sync: &InSync) -> u32 {
        let count = u32::try_from(in_sync.len()).unwrap_or(u32::MAX);
        match self {
            Listed::Count(listed) => count.max(*listed),
            Listed::Servers(listed) => count.saturating_add(missing(in_sync, listed)),
        }
    }
}

/// How many of these are not in sync.
fn missing(in_sync: &InSync, listed: &[Names]) -> u32 {
    let mut others: Vec<Option<&Addr>> = in_sync.iter().map(Option::as_ref).collect();
    let mut take = |is_it: &dyn Fn(Option<&Addr>) -> bool| {
        let found = others.iter().position(|other| is_it(*other));
        found.map(|at| others.swap_remove(at)).is_some()
    };
    let is_exact = |names: &Names, other: Option<&Addr>| other.is_some_and(|other| names.contains(other));
    let left: Vec<&Names> = listed.iter().filter(|names| !take(&|other| is_exact(names, other))).collect();
    // A server is told in the same way by both accounts in a form of address that both use. Where each uses a form that the other one does not, any
    // server may be any other one at the same port.
    let told: Vec<Form> = in_sync.iter().flatten().filter_map(form).collect();
    let listed: Vec<Form> = listed.iter().flatten().filter_map(form).collect();
    let may_be = |one: &Addr, other: &Addr| match (form(one), form(other)) {
        (Some(one_form), Some(other_form)) => {
            port(one) == port(other)
                && one_form != other_form
                && !told.contains(&one_form)
                && !listed.contains(&other_form)
        }
        _ => false,
    };
    let left = left.into_iter().filter(|names| {
        !take(&|other| other.is_none_or(|other| names.iter().any(|name| may_be(name, other))))
    });
    u32::try_from(left.count()).unwrap_or(u32::MAX)
}

/// How an address tells a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Name,
    V4,
    V6,
}

fn form(addr: &Addr) -> Option<Form> {
    let Addr::Tcp { host, .. } = addr else { return None };
    let ip: Result<IpAddr, _> = host.trim_start_matches('[').trim_end_matches(']').parse();
    Some(match ip {
        Ok(IpAddr::V4(_)) => Form::V4,
        Ok(IpAddr::V6(_)) => Form::V6,
        Err(_) => Form::Name,
    })
}

fn port(addr: &Addr) -> Option<u16> {
    match addr {
        Addr::Tcp { port, .. } => Some(*port),
        Addr::Unix(_) => None,
    }
}

/// Whether two addresses may be of one server that is told by its name once, and once by its address.
pub(super) fn is_told_otherwise(one: &Addr, other: &Addr) -> bool {
    let is_name = |addr| form(addr).map(|form| form == Form::Name);
    port(one) == port(other)
        && matches!((is_name(one), is_name(other)), (Some(one), Some(other)) if one != other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Addr {
        Addr::Tcp { host: host.into(), port }
    }

    fn in_sync(ports: &[u16]) -> InSync {
        ports.iter().map(|port| Some(at("10.0.0.1", *port))).collect()
    }

    #[test]
    fn a_replica_that_only_the_master_knows_does_not_stand_in_for_one_that_it_has_lost() {
        let listed = Listed::Servers(vec![vec![at("10.0.0.1", 1)], vec![at("10.0.0.1", 2)]]);
        for (known, wanted) in
            [(&[1, 2][..], 2), (&[1], 2), (&[], 2), (&[1, 3], 3), (&[3], 3), (&[1, 2, 3], 3)]
        {
            assert_eq!(listed.all(&in_sync(known)), wanted, "{known:?}");
        }
        assert_eq!((Listed::Count(2).all(&in_sync(&[1])), Listed::Count(1).all(&in_sync(&[1, 2]))), (2, 2));
    }

    /// One server that is told in two ways would be missing for ever.
    #[test]
    fn a_replica_that_is_told_in_two_ways_is_one() {
        let listed = |hosts: [&str; 2]| Listed::Servers(vec![vec![at(hosts[0], 1)], vec![at(hosts[1], 2)]]);
        let known = in_sync(&[2, 1]);
        for host in ["replica.example", "[fe80::1]", "fe80::1"] {
            assert_eq!(listed([host, host]).all(&known), 2, "{host}");
            assert_eq!(listed([host, host]).all(&in_sync(&[3, 1])), 3, "{host}: another port");
        }
        assert_eq!(listed(["10.0.0.1"; 2]).all(&known), 2);
        assert_eq!(listed(["10.0.0.1", "10.0.0.2"]).all(&known), 3);
        assert_eq!(listed(["10.0.0.1"; 2]).all(&vec![None, None]), 2, "what cannot be read may be any");
        // The former master, that the sentinels know by the name that they were given.
        let twice = Listed::Servers(vec![vec![at("d0.test", 2), at("10.0.0.1", 2)], vec![at("10.0.0.1", 1)]]);
        assert_eq!(twice.all(&known), 2);
    }

    /// The former master is listed by the name that the sentinels were given, and by its address. Its name stood in for the address of a replica that only the
    /// master knew, so that one that had been cut off was not missed.
    #[test]
    fn a_name_stands_for_no_address_where_both_tell_addresses() {
        for former in [vec![at("d0.test", 1), at("10.0.0.1", 1)], vec![at("d0.test", 1)]] {
            let listed = Listed::Servers(vec![former.clone(), vec![at("10.0.0.2", 1)]]);
            let known = |hosts: &[&str]| -> InSync { hosts.iter().map(|host| Some(at(host, 1))).collect() };
            assert_eq!(listed.all(&known(&["10.0.0.2", "10.0.0.9"])), 3, "{former:?}");
            assert_eq!(listed.all(&known(&["10.0.0.9"])), 3, "{former:?}");
        }
    }

    /// In a set whose servers all go by names, at one port, any replica was taken for any other.
    #[test]
    fn of_two_names_each_is_a_server_of_its_own() {
        let names = |hosts: &[&str]| hosts.iter().map(|host| at(host, 6379)).collect::<Vec<_>>();
        let listed =
            Listed::Servers(names(&["d1.test", "d2.test"]).into_iter().map(|name| vec![name]).collect());
        for (known, wanted) in
            [(&["d1.test", "d2.test"][..], 2), (&["d1.test", "d3.test"], 3), (&["d1.test"], 2)]
        {
            let known: InSync = names(known).into_iter().map(Some).collect();
            assert_eq!(listed.all(&known), wanted, "{known:?}");
        }
        // Where one account has names alone, and the other one addresses alone, nothing but the number tells.
        let known: InSync = names(&["10.0.0.1", "10.0.0.3"]).into_iter().map(Some).collect();
        assert_eq!(listed.all(&known), 2);
    }
}
