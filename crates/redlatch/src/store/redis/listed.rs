//! Who all replicas are that are to confirm a grant: those that the master has in sync, and those that may become the next master.
//!
//! The two accounts come from different servers, and each may have replicas that the other one lacks. One that only the master knows must not
//! stand in for one that it has lost: that one may be promoted all the same, without the grant.

use std::net::IpAddr;

use crate::config::addr::Addr;

/// The replicas in sync, as the master tells them: each by the address that it was told, if that can be read.
pub(super) type InSync = Vec<Option<Addr>>;

/// The replicas that may become the next master, by those who know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Listed {
    /// By the addresses that they have told their master, too.
    Addrs(Vec<Addr>),
    /// So many, and none of those that the master has in sync is another one.
    Count(u32),
    /// They were asked themselves, under addresses of which their master may know nothing.
    Asked {
        /// That have a connection to their master, or say nothing.
        linked: u32,
        /// That have none, so they are not among those in sync.
        cut: u32,
    },
}

impl Listed {
    /// How many are in the one account or the other.
    pub(super) fn all(&self, in_sync: &InSync) -> u32 {
        let count = u32::try_from(in_sync.len()).unwrap_or(u32::MAX);
        match self {
            Listed::Count(listed) => count.max(*listed),
            Listed::Asked { linked, cut } => count.max(*linked).saturating_add(*cut),
            Listed::Addrs(listed) => count.saturating_add(missing(in_sync, listed)),
        }
    }
}

/// How many of these are not in sync.
fn missing(in_sync: &InSync, listed: &[Addr]) -> u32 {
    let mut others: Vec<Option<&Addr>> = in_sync.iter().map(Option::as_ref).collect();
    let mut take = |is_it: &dyn Fn(Option<&Addr>) -> bool| {
        let found = others.iter().position(|other| is_it(*other));
        found.map(|at| others.swap_remove(at)).is_some()
    };
    let left: Vec<&Addr> = listed.iter().filter(|addr| !take(&|other| other == Some(*addr))).collect();
    let left = left.into_iter().filter(|addr| !take(&|other| other.is_none_or(|other| may_be(addr, other))));
    u32::try_from(left.count()).unwrap_or(u32::MAX)
}

/// Whether two addresses may be of one server: a name and an address, two names, or two families of addresses, at the same port.
fn may_be(one: &Addr, other: &Addr) -> bool {
    match hosts(one, other) {
        Some((Some(one), Some(other))) => one.is_ipv4() != other.is_ipv4(),
        Some(_) => true,
        None => false,
    }
}

/// Whether two addresses may be of one server that is told by its name once, and once by its address.
pub(super) fn is_told_otherwise(one: &Addr, other: &Addr) -> bool {
    hosts(one, other).is_some_and(|(one, other)| one.is_some() != other.is_some())
}

/// The two hosts, `None` for a name, if the ports are the same.
fn hosts(one: &Addr, other: &Addr) -> Option<(Option<IpAddr>, Option<IpAddr>)> {
    let (Addr::Tcp { host, port }, Addr::Tcp { host: other_host, port: other_port }) = (one, other) else {
        return None;
    };
    let ip = |host: &str| host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
    (port == other_port).then(|| (ip(host), ip(other_host)))
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
        let listed = Listed::Addrs(vec![at("10.0.0.1", 1), at("10.0.0.1", 2)]);
        for (known, wanted) in
            [(&[1, 2][..], 2), (&[1], 2), (&[], 2), (&[1, 3], 3), (&[3], 3), (&[1, 2, 3], 3)]
        {
            assert_eq!(listed.all(&in_sync(known)), wanted, "{known:?}");
        }
        let cut = Listed::Asked { linked: 1, cut: 1 };
        for (known, wanted) in [(&[1][..], 2), (&[1, 3], 3), (&[], 2)] {
            assert_eq!(cut.all(&in_sync(known)), wanted, "{known:?}");
        }
        assert_eq!((Listed::Count(2).all(&in_sync(&[1])), Listed::Count(1).all(&in_sync(&[1, 2]))), (2, 2));
    }

    /// One server that is told in two ways would be missing for ever.
    #[test]
    fn a_replica_that_is_told_in_two_ways_is_one() {
        let listed = |host: &str| Listed::Addrs(vec![at("10.0.0.1", 1), at(host, 2)]);
        for host in ["10.0.0.1", "replica.example", "[fe80::1]", "fe80::1"] {
            assert_eq!(listed(host).all(&in_sync(&[2, 1])), 2, "{host}");
        }
        assert_eq!(listed("10.0.0.2").all(&in_sync(&[2, 1])), 3);
        assert_eq!(listed("replica.example").all(&in_sync(&[3, 1])), 3, "another port");
        assert_eq!(listed("10.0.0.1").all(&vec![None, None]), 2, "what cannot be read may be any");
    }
}
