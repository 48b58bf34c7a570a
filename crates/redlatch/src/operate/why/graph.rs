//! Cycles in a graph of who waits for what.
//!
//! Three colours tell a cycle from waits that meet: a node that is met again counts only while the search is still below it.

#[derive(Clone, Copy, PartialEq, Eq)]
enum Colour {
    /// Not met yet.
    White,
    /// On the way that is being searched.
    Grey,
    /// Searched: whatever lies behind it leads into no cycle that is not known.
    Black,
}

/// Cycles, each as the nodes in their order: one for each edge that leads back into the way on which it was found. A graph has none exactly if this is empty.
/// `edges[a]` are the nodes that `a` leads to.
pub(super) fn cycles(edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut colours = vec![Colour::White; edges.len()];
    let mut found = Vec::new();
    for start in 0..edges.len() {
        if colours[start] != Colour::White {
            continue;
        }
        colours[start] = Colour::Grey;
        // The way, each node with how many of its edges were followed. Not by recursion: a chain may be as long as it likes.
        let mut way = vec![(start, 0)];
        while let Some((node, followed)) = way.last_mut() {
            let Some(&next) = edges[*node].get(*followed) else {
                colours[*node] = Colour::Black;
                way.pop();
                continue;
            };
            *followed += 1;
            match colours[next] {
                Colour::White => {
                    colours[next] = Colour::Grey;
                    way.push((next, 0));
                }
                Colour::Grey => {
                    let from = way.iter().position(|(node, _)| *node == next).unwrap_or_default();
                    found.push(way[from..].iter().map(|(node, _)| *node).collect());
                }
                Colour::Black => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_cycles_of_their_length() {
        for length in [1, 2, 3, 5, 10_000] {
            let edges: Vec<Vec<usize>> = (0..length).map(|at| vec![(at + 1) % length]).collect();
            assert_eq!(cycles(&edges), [(0..length).collect::<Vec<_>>()]);
        }
    }

    #[test]
    fn waits_that_meet_are_no_cycle() {
        assert!(cycles(&[vec![1, 2], vec![3], vec![3], vec![]]).is_empty());
        assert!(cycles(&[vec![3], vec![3, 3], vec![0, 1], vec![]]).is_empty());
    }

    #[test]
    fn two_cycles_that_share_a_node_are_both_found() {
        let mut found = cycles(&[vec![1], vec![0, 2], vec![1]]);
        found.sort();
        assert_eq!(found, [vec![0, 1], vec![1, 2]]);
    }

    /// Takes nodes away that nothing leads to, until none is left or all that are left are led to: another way to see whether there is a cycle.
    fn has_cycle(edges: &[Vec<usize>]) -> bool {
        let mut led_to = vec![0; edges.len()];
        edges.iter().flatten().for_each(|to| led_to[*to] += 1);
        let mut free: Vec<usize> = (0..edges.len()).filter(|node| led_to[*node] == 0).collect();
        let mut taken = 0;
        while let Some(node) = free.pop() {
            taken += 1;
            for &to in &edges[node] {
                led_to[to] -= 1;
                if led_to[to] == 0 {
                    free.push(to);
                }
            }
        }
        taken < edges.len()
    }

    #[test]
    fn ten_thousand_random_graphs_have_the_cycles_that_are_found_and_no_others() {
        let mut state = 1_u64;
        let mut roll = |sides: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % sides
        };
        let (mut with, mut without) = (0, 0);
        for _ in 0..10_000 {
            let nodes = 1 + roll(12);
            let mut edges = vec![Vec::new(); nodes];
            for _ in 0..roll(nodes + 2) {
                let from = roll(nodes);
                edges[from].push(roll(nodes));
            }
            let found = cycles(&edges);
            assert_eq!(found.is_empty(), !has_cycle(&edges), "{edges:?}");
            for cycle in &found {
                for (at, node) in cycle.iter().enumerate() {
                    assert!(edges[*node].contains(&cycle[(at + 1) % cycle.len()]), "{edges:?} {cycle:?}");
                }
            }
            if found.is_empty() { without += 1 } else { with += 1 }
        }
        assert!(with > 1_000 && without > 1_000, "{with} {without}");
    }
}
