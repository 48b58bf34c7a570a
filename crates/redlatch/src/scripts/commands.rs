//! Which commands a script calls, read from its text.

use std::collections::BTreeSet;

/// The commands that are called by name: `redis.call('name'`, `redis.pcall('name'`, and calls of a wrapper, a local function that
/// passes all its arguments on.
pub(super) fn named_in(source: &'static str) -> BTreeSet<&'static str> {
    let lines = || source.lines().map(|line| line.split("--").next().unwrap_or_default());
    let mut callers = vec!["redis.call", "redis.pcall"];
    callers.extend(lines().filter_map(|line| line.strip_prefix("local function ")?.strip_suffix("(...)")));
    let mut commands = BTreeSet::new();
    for line in lines() {
        for caller in &callers {
            for (at, _) in line.match_indices(caller) {
                let quoted = line[at + caller.len()..].strip_prefix("('");
                commands.extend(quoted.and_then(|rest| rest.split_once('\'')).map(|(name, _)| name));
            }
        }
    }
    commands
}
