//! Who all replicas are that are to confirm a grant: those that the master has in sync, and those that may become the next master.
//!
//! The two accounts come from different servers, and each may have replicas that the other one lacks. One that only the master knows must not
//! stand in for one that it has lost: that one may be promoted all the same, without the grant.

use std::net::IpAddr;

use crate::config::addr::Addr;

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
    /// They were asked themselves, under addresses of which their master may know nothing.
    Asked {
        /// That have a connection to this master, or say nothing.
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
    // A form of address that both accounts use is told by both in the same way. One that only one of them uses may stand for any of the other's, at
    // the same port.
    let told: Vec<Form> = in_sync.iter().flatten().filter_map(form).collect();
    let listed: Vec<Form> = listed.iter().flatten().filter_map(form).collect();
    let may_be = |one: &Addr, other: &Addr| match (form(one), form(other)) {
        (Some(one_form), Some(other_form)) => {
            port(one) == port(other)
                && one_form != other_form
                && (!told.contains(&one_form) || !listed.contains(&other_form))
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
        let cut = Listed::Asked { linked: 1, cut: 1 };
        for (known, wanted) in [(&[1][..], 2), (&[1, 3], 3), (&[], 2)] {
            assert_eq!(cut.all(&in_sync(known)), wanted, "{known:?}");
        }
        assert_eq!((Listed::Count(2).all(&in_sync(&[1])), Listed::Count(1).all(&in_sync(&[1, 2]))), (2, 2));
    }

    /// One server that is told in two ways would be missing for ever.
    #[test]
    fn a_replica_that_is_told_in_two_ways_is_one() {
        let listed = |host: &str| Listed::Servers(vec![vec![at("10.0.0.1", 1)], vec![at(host, 2)]]);
        for host in ["10.0.0.1", "replica.example", "[fe80::1]", "fe80::1"] {
            assert_eq!(listed(host).all(&in_sync(&[2, 1])), 2, "{host}");
        }
        assert_eq!(listed("10.0.0.2").all(&in_sync(&[2, 1])), 3);
        assert_eq!(listed("replica.example").all(&in_sync(&[3, 1])), 3, "another port");
        assert_eq!(listed("10.0.0.1").all(&vec![None, None]), 2, "what cannot be read may be any");
        // The former master, that the sentinels know by the name that they were given.
        let twice = Listed::Servers(vec![vec![at("d0.test", 2), at("10.0.0.1", 2)], vec![at("10.0.0.1", 1)]]);
        assert_eq!(twice.all(&in_sync(&[1, 2])), 2);
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
