//! Import cycles between files, except those of a module and its own children.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::{Path, PathBuf},
};

use crate::imports::Imports;

/// A cycle: files, each of which imports the next and the last the first.
pub(crate) type Cycle = Vec<PathBuf>;

/// For each import that closes a cycle the shortest such cycle, each cycle once.
///
/// A parent and its child may import each other, and through their parent siblings may. So an import between parent and child begins
/// no search; one between siblings goes on among siblings only; and any other import goes on everywhere.
pub(crate) fn cycles(imports: &Imports) -> BTreeSet<Cycle> {
    let mut found = BTreeSet::new();
    for (from, all) in &imports.edges {
        for to in all.keys() {
            let parent = |file: &PathBuf| imports.parents.get(file);
            if parent(from) == Some(to) || parent(to) == Some(from) {
                continue;
            }
            let siblings = parent(from).is_some() && parent(from) == parent(to);
            let back = way(imports, to, from, |file| !siblings || parent(file) == parent(from));
            // A way outside of the family has an import of its own that is neither, and is found there.
            if let Some(way) = back {
                found.insert(from_smallest(way));
            }
        }
    }
    found
}

/// The shortest way of imports between two files.
fn way(
    imports: &Imports,
    from: &Path,
    to: &Path,
    may_pass: impl Fn(&PathBuf) -> bool,
) -> Option<Vec<PathBuf>> {
    let mut came_from: BTreeMap<&Path, &Path> = BTreeMap::new();
    let mut queue = VecDeque::from([from]);
    while let Some(file) = queue.pop_front() {
        if file == to {
            let mut way = vec![file.to_owned()];
            let mut at = file;
            while at != from {
                at = came_from[at];
                way.push(at.to_owned());
            }
            way.reverse();
            return Some(way);
        }
        for next in imports.edges.get(file).into_iter().flat_map(BTreeMap::keys) {
            if next != from && !came_from.contains_key(next.as_path()) && may_pass(next) {
                came_from.insert(next, file);
                queue.push_back(next);
            }
        }
    }
    None
}

fn from_smallest(mut cycle: Cycle) -> Cycle {
    let smallest = (0..cycle.len()).min_by_key(|&i| &cycle[i]).unwrap_or(0);
    cycle.rotate_left(smallest);
    cycle
}
