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

use futures_util::future::join_all;
use tokio::time::timeout;

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

/// The replicas in sync, as the master tells them: each by the address that it was told, or by none if that cannot be read.
pub(super) type InSync = Vec<Names>;

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
    /// How many are in the one account or the other. Where the addresses are not the same ones, names are looked up, within a time.
    pub(super) async fn all<F>(
        &self,
        in_sync: &InSync,
        look_up: impl Fn(String) -> F,
        within: Duration,
    ) -> u32
    where
        F: Future<Output = Vec<IpAddr>>,
    {
        let count = u32::try_from(in_sync.len()).unwrap_or(u32::MAX);
        let missing = match self {
            Listed::Count(listed) => listed.saturating_sub(count),
            Listed::Servers(listed) if unmatched(in_sync, listed).0.is_empty() => 0,
            Listed::Servers(listed) => {
                let looked_up = async {
                    tokio::join!(with_addresses(in_sync, &look_up), with_addresses(listed, &look_up))
                };
                match timeout(within, looked_up).await {
                    Ok((in_sync, listed)) => missing(&in_sync, &listed),
                    Err(_) => missing(in_sync, listed),
                }
            }
        };
        count.saturating_add(missing)
    }
}

/// The listed ones that are not in sync under one of their addresses, and those in sync that are not listed.
fn unmatched<'a>(in_sync: &'a InSync, listed: &'a [Names]) -> (Vec<&'a Names>, Vec<&'a Names>) {
    let mut others: Vec<&Names> = in_sync.iter().collect();
    let is_other =
        |names: &&Names| match others.iter().position(|other| other.iter().any(|one| names.contains(one))) {
            Some(at) => {
                others.swap_remove(at);
                false
            }
            None => true,
        };
    (listed.iter().filter(is_other).collect(), others)
}

/// How many of these are not in sync.
fn missing(in_sync: &InSync, listed: &[Names]) -> u32 {
    let (left, mut others) = unmatched(in_sync, listed);
    // A server is told in the same way by both accounts in a form of address that both use. Where each uses a form that the other one does not, any
    // server may be any other one at the same port.
    let told: Vec<Form> = in_sync.iter().flatten().filter_map(form).collect();
    let listed: Vec<Form> = listed.iter().flatten().filter_map(form).collect();
    let may_be = |one: &Addr, other: &Addr| match (form(one), form(other)) {
        (Some(one_form), Some(other_form)) => {
            port(one) == port(other) && !told.contains(&one_form) && !listed.contains(&other_form)
        }
        _ => false,
    };
    let is_missing = |names: &&Names| {
        let may_stand = |other: &&Names| {
            other.is_empty() || other.iter().any(|other| names.iter().any(|name| may_be(name, other)))
        };
        match others.iter().position(may_stand) {
            Some(at) => {
                others.swap_remove(at);
                false
            }
            None => true,
        }
    };
    u32::try_from(left.into_iter().filter(is_missing).count()).unwrap_or(u32::MAX)
}

/// The same servers, with the addresses that their names stand for here.
async fn with_addresses<F>(servers: &[Names], look_up: &impl Fn(String) -> F) -> Vec<Names>
where
    F: Future<Output = Vec<IpAddr>>,
{
    let looked_up = servers.iter().map(|names| async move {
        let mut all = names.clone();
        for name in names.iter().filter(|name| form(name) == Some(Form::Name)) {
            let Addr::Tcp { host, port } = name else { continue };
            let found = look_up(host.clone()).await.into_iter();
            all.extend(found.map(|found| Addr::Tcp { host: found.to_string(), port: *port }));
        }
        all
    });
    join_all(looked_up).await
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
        ports.iter().map(|port| vec![at("10.0.0.1", *port)]).collect()
    }

    /// Where one name is known.
    fn all(listed: &Listed, in_sync: &InSync) -> u32 {
        let look_up = async |host: String| match &host[..] {
            "known.test" => vec![[10, 0, 0, 7].into(), [0_u16; 8].into()],
            _ => Vec::new(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(listed.all(in_sync, look_up, Duration::from_secs(20)))
    }

    #[test]
    fn a_replica_that_only_the_master_knows_does_not_stand_in_for_one_that_it_has_lost() {
        let listed = Listed::Servers(vec![vec![at("10.0.0.1", 1)], vec![at("10.0.0.1", 2)]]);
        for (known, wanted) in
            [(&[1, 2][..], 2), (&[1], 2), (&[], 2), (&[1, 3], 3), (&[3], 3), (&[1, 2, 3], 3)]
        {
            assert_eq!(all(&listed, &in_sync(known)), wanted, "{known:?}");
        }
        assert_eq!(
            (all(&Listed::Count(2), &in_sync(&[1])), all(&Listed::Count(1), &in_sync(&[1, 2]))),
            (2, 2)
        );
    }

    /// One server that is told in two ways would be missing for ever.
    #[test]
    fn a_replica_that_is_told_in_two_ways_is_one() {
        let listed = |hosts: [&str; 2]| Listed::Servers(vec![vec![at(hosts[0], 1)], vec![at(hosts[1], 2)]]);
        let known = in_sync(&[2, 1]);
        for host in ["replica.example", "[fe80::1]", "fe80::1"] {
            assert_eq!(all(&listed([host, host]), &known), 2, "{host}");
            assert_eq!(all(&listed([host, host]), &in_sync(&[3, 1])), 3, "{host}: another port");
        }
        assert_eq!(all(&listed(["10.0.0.1"; 2]), &known), 2);
        assert_eq!(all(&listed(["10.0.0.1", "10.0.0.2"]), &known), 3);
        assert_eq!(
            all(&listed(["10.0.0.1"; 2]), &vec![Vec::new(), Vec::new()]),
            2,
            "what cannot be read may be any"
        );
        // The former master, that the sentinels know by the name that they were given.
        let twice = Listed::Servers(vec![vec![at("d0.test", 2), at("10.0.0.1", 2)], vec![at("10.0.0.1", 1)]]);
        assert_eq!(all(&twice, &known), 2);
    }

    /// The former master is listed by the name that the sentinels were given, and by its address. Its name stood in for the address of a replica that only the
    /// master knew, so that one that had been cut off was not missed.
    #[test]
    fn a_name_stands_for_no_address_where_both_tell_addresses() {
        for former in [vec![at("d0.test", 1), at("10.0.0.1", 1)], vec![at("d0.test", 1)]] {
            let listed = Listed::Servers(vec![former.clone(), vec![at("10.0.0.2", 1)]]);
            let known = |hosts: &[&str]| -> InSync { hosts.iter().map(|host| vec![at(host, 1)]).collect() };
            assert_eq!(all(&listed, &known(&["10.0.0.2", "10.0.0.9"])), 3, "{former:?}");
            assert_eq!(all(&listed, &known(&["10.0.0.9"])), 3, "{former:?}");
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
            let known: InSync = names(known).into_iter().map(|name| vec![name]).collect();
            assert_eq!(all(&listed, &known), wanted, "{known:?}");
        }
        // Where one account has names alone, and the other one addresses alone, nothing but the number tells.
        let known: InSync = names(&["10.0.0.1", "10.0.0.3"]).into_iter().map(|name| vec![name]).collect();
        assert_eq!(all(&listed, &known), 2);
    }

    /// Sentinels list the addresses of the names that replicas announce, unless they are told otherwise. Where another replica announced nothing, all were never met
    /// after that: addresses were compared with addresses, and a name was none of them.
    #[test]
    fn a_name_is_looked_up_where_the_other_account_has_its_address() {
        let [named, plain, hidden] = [at("known.test", 1), at("10.0.0.2", 1), at("10.0.0.9", 1)];
        let one = |addr: &Addr| vec![addr.clone()];
        let address = vec![at("10.0.0.7", 1)];
        for (told, listed) in [(one(&named), address.clone()), (address, one(&named))] {
            let listed = Listed::Servers(vec![listed, one(&plain)]);
            assert_eq!(all(&listed, &vec![told, one(&plain)]), 2, "{listed:?}");
            assert_eq!(all(&listed, &vec![one(&hidden), one(&plain)]), 3, "{listed:?}");
        }
        // Though one account has names alone, and the other one addresses.
        let listed = Listed::Servers(vec![one(&named)]);
        assert_eq!(all(&listed, &vec![one(&at("10.0.0.7", 1))]), 1);
        assert_eq!(all(&listed, &vec![one(&hidden)]), 2);
    }
}
