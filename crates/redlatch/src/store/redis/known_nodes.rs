//! Who belongs together: the memory of the ids of a cluster's nodes, or of a set of sentinels.
//!
//! An address is not a server. When a machine or a pod ends, another may get its address, and that one may belong to another
//! cluster, with the same password or none. It would name servers that know of none of our locks. So a picture is believed only if
//! nodes are in it that were in the last one, and this is the only place that remembers which were. One alone does not do: a
//! node keeps its id when it is taken to another cluster (`CLUSTER RESET SOFT`), and so does a sentinel that is told to watch over another master. So
//! where it is known which id is a server's own, only the others that it names say to which set it belongs.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    config::addr::Addr,
    error::{Error, ErrorKind},
};

#[derive(Default)]
pub(super) struct KnownNodes {
    /// The ids of those in the last picture that was believed; none before the first.
    known: Mutex<BTreeSet<String>>,
    /// Addresses whose servers were found to be strangers when they were last connected to.
    strangers: Mutex<BTreeSet<String>>,
}

/// Whether two sets of ids are of the same servers: half of the smaller one are in the other.
fn is_kin(one: &BTreeSet<String>, other: &BTreeSet<String>) -> bool {
    let wanted = one.len().min(other.len()).div_ceil(2).max(1);
    one.intersection(other).count() >= wanted
}

/// The id of a server, and the ids of the others that it knows.
#[derive(Default)]
pub(super) struct Ids {
    /// Its own id, where it is known which that is.
    pub(super) own: Option<String>,
    pub(super) others: BTreeSet<String>,
}

impl Ids {
    pub(super) fn all(&self) -> BTreeSet<String> {
        self.others.iter().chain(&self.own).cloned().collect()
    }

    /// Whether two servers say that they belong together: both of them, because one that has left is still listed by those that it has left.
    fn belong_with(&self, other: &Ids) -> bool {
        let (mine, its) = (self.all(), other.all());
        if mine.is_empty() || its.is_empty() {
            return mine.is_empty() && its.is_empty();
        }
        let is_same = self.own.is_some() && self.own == other.own;
        is_same || is_kin(&self.others, &its) && is_kin(&other.others, &mine)
    }
}

/// Divides what several servers say into groups of those that belong together, and returns the largest groups. Those without ids are one
/// group. There is more than one where nobody can tell who is a stranger.
pub(super) fn largest_groups<T>(said: Vec<T>, ids: impl Fn(&T) -> Ids) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<(Ids, T)>> = Vec::new();
    for one in said {
        let its = ids(&one);
        let belongs = |group: &mut Vec<(Ids, T)>| group.iter().any(|(other, _)| its.belong_with(other));
        let mut members: Vec<_> = groups.extract_if(.., belongs).flatten().collect();
        members.push((its, one));
        groups.push(members);
    }
    let most = groups.iter().map(Vec::len).max().unwrap_or(0);
    groups.retain(|members| members.len() == most);
    groups.into_iter().map(|members| members.into_iter().map(|(_, one)| one).collect()).collect()
}

impl KnownNodes {
    /// Whether a picture is of those that are known. Where nobody gives ids there is nothing to compare.
    pub(super) fn knows(&self, ids: &BTreeSet<String>) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.is_empty() || is_kin(&known, ids)
    }

    /// Whether a server is one of those that are known, by the others that it knows. The only one that is known is told by its own id.
    pub(super) fn knows_one(&self, ids: &Ids) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_only_one = || known.len() == 1 && ids.own.as_ref().is_some_and(|own| known.contains(own));
        known.is_empty() || is_kin(&known, &ids.others) || is_only_one()
    }

    /// Whether a server that knows no others is one of those that are known. A server keeps its id also when it is taken elsewhere, so this counts
    /// only where nobody else is heard who is known.
    pub(super) fn knows_lone(&self, ids: &Ids) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        ids.others.is_empty() && ids.own.as_ref().is_some_and(|own| known.contains(own))
    }

    /// Takes those in a picture for the ones that are known from now on. `false`: they are strangers, and nothing changes.
    pub(super) fn admit(&self, ids: &BTreeSet<String>) -> bool {
        let known = self.knows(ids);
        if known && !ids.is_empty() {
            self.known.lock().unwrap_or_else(PoisonError::into_inner).clone_from(ids);
        }
        known
    }

    /// Takes those in a picture of some for known, besides those who are.
    pub(super) fn admit_more(&self, ids: &BTreeSet<String>) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).extend(ids.iter().cloned());
    }

    /// Takes these for the ones that are known from now on, because something else has shown that they are.
    pub(super) fn replace(&self, ids: &BTreeSet<String>) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone_from(ids);
    }

    /// Notes whose side the server at an address is on, as a new connection has shown.
    pub(super) fn note(&self, addr: &Addr, is_stranger: bool) {
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        if is_stranger {
            strangers.insert(addr.to_string());
        } else if !strangers.is_empty() {
            strangers.remove(&addr.to_string());
        }
    }

    /// Whether the server at an address was a stranger when it was last connected to.
    pub(super) fn is_stranger(&self, addr: &Addr) -> bool {
        let strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        !strangers.is_empty() && strangers.contains(&addr.to_string())
    }

    /// Whether there is anything to compare with.
    pub(super) fn is_empty(&self) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// Whether a connection may be used, as far as its server's side goes. One that was made before any picture was believed could not ask for it.
pub(super) struct Trust {
    /// The memory that was empty then.
    empty: Option<Arc<KnownNodes>>,
    is_given: AtomicBool,
}

impl Trust {
    /// For a connection that is about to ask.
    pub(super) fn of(known_nodes: Option<&Arc<KnownNodes>>) -> Trust {
        Trust {
            empty: known_nodes.filter(|known| known.is_empty()).cloned(),
            is_given: AtomicBool::new(false),
        }
    }

    /// What the server has said over it is believed.
    pub(super) fn give(&self) {
        self.is_given.store(true, Ordering::Release);
    }

    /// Not once it is known whose side servers are on, unless its own server has said so.
    pub(super) fn lasts(&self) -> bool {
        let Some(known_nodes) = &self.empty else { return true };
        self.is_given.load(Ordering::Acquire) || known_nodes.is_empty()
    }
}

/// What is said of a server whose picture has nobody in it that is known.
pub(super) fn stranger(who: &impl std::fmt::Display) -> Error {
    let text = format!("{who} belongs to another cluster than the one that this client has been using");
    Error::new(ErrorKind::Unreachable, text).remedy(
        "if the whole cluster was replaced, make a new client; if not, another server has got that address",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &str) -> BTreeSet<String> {
        ids.chars().map(String::from).collect()
    }

    #[test]
    fn a_picture_is_believed_if_a_server_in_it_is_known() {
        let known_nodes = KnownNodes::default();
        assert!(known_nodes.is_empty() && known_nodes.knows(&ids("xyz")));
        assert!(known_nodes.admit(&ids("abc")) && !known_nodes.is_empty());
        assert!(
            !known_nodes.admit(&ids("xyz")) && !known_nodes.admit(&ids("")),
            "strangers, and a picture that names no node"
        );
        // One after the other may be replaced.
        for picture in ["bcd", "cde", "dex", "fx", "fxyz"] {
            assert!(known_nodes.admit(&ids(picture)), "{picture}");
        }
        assert!(!known_nodes.knows(&ids("abc")));
    }

    /// It told of the other cluster, and took the clients of its former one along.
    #[test]
    fn a_node_that_went_to_another_cluster_with_its_id_is_a_stranger() {
        let known_nodes = KnownNodes::default();
        assert!(known_nodes.admit(&ids("abcdef")));
        assert!(!known_nodes.admit(&ids("fuvwxyz")) && !known_nodes.admit(&ids("uvf")));
        // Clusters grow and shrink, and a node that has just joined knows few.
        for picture in ["abcdefghijkl", "abcdef", "an", "abcdefn", "abc", "abcxyz"] {
            assert!(known_nodes.admit(&ids(picture)), "{picture}");
        }
    }

    #[test]
    fn those_belong_together_who_know_half_of_each_other() {
        let of_one = |said: &&'static str| Ids { own: None, others: ids(said) };
        let groups = |said: &[&'static str]| largest_groups(said.to_vec(), of_one);
        assert_eq!(groups(&["abc", "xyz", "abd"]), [["abc", "abd"]]);
        // One that went to another cluster with its id brings the two no nearer to each other.
        assert_eq!(groups(&["fuv", "abcf", "abcf"]), [["abcf", "abcf"]]);
        assert_eq!(groups(&["abc", "xyz"]), [["abc"], ["xyz"]]);
        // A third one may show that two are of one.
        assert_eq!(groups(&["ab", "cd", "abcd"]), [["ab", "cd", "abcd"]]);
        assert_eq!(groups(&["", "ab", ""]), [["", ""]]);
    }

    fn ids_of(own: &str, others: &str) -> Ids {
        Ids { own: Some(own.into()), others: ids(others) }
    }

    /// It met one of the other set first, and of these two half were known.
    #[test]
    fn a_sentinel_that_went_to_another_set_with_its_id_is_a_stranger() {
        let known_nodes = KnownNodes::default();
        assert!(known_nodes.admit(&ids("abc")));
        for others in ["", "x", "xy", "xyz"] {
            assert!(!known_nodes.knows_one(&ids_of("c", others)), "{others}");
        }
        assert!(!known_nodes.knows_one(&ids_of("x", "cyz")), "nor is one of that set that knows it");
        for (own, others) in [("c", "ab"), ("d", "bc"), ("d", "c"), ("a", "bcdef"), ("d", "bcef")] {
            assert!(known_nodes.knows_one(&ids_of(own, others)), "{own}: {others}");
        }
        // The only one may have got others since it was last heard.
        known_nodes.replace(&ids("a"));
        assert!(known_nodes.knows_one(&ids_of("a", "")) && known_nodes.knows_one(&ids_of("a", "b")));
        assert!(!known_nodes.knows_one(&ids_of("b", "")));
    }

    #[test]
    fn sentinels_belong_together_that_name_each_other_or_the_same_others() {
        let groups = |said: &[(&'static str, &'static str)]| {
            let groups = largest_groups(said.to_vec(), |(own, others)| ids_of(own, others));
            let owns = |group: Vec<(&'static str, _)>| group.iter().map(|(own, _)| *own).collect::<String>();
            groups.into_iter().map(owns).collect::<Vec<_>>()
        };
        assert_eq!(groups(&[("a", "bc"), ("c", "x"), ("b", "ac")]), ["ab"]);
        assert_eq!(groups(&[("a", "bc"), ("c", "x")]), ["a", "c"], "which of them is ours nobody can tell");
        assert_eq!(groups(&[("a", "b"), ("b", "a")]), ["ab"]);
        assert_eq!(groups(&[("a", ""), ("a", "")]), ["aa"], "by two addresses");
        assert_eq!(groups(&[("a", ""), ("b", "")]), ["a", "b"], "they have just started");
    }
}
