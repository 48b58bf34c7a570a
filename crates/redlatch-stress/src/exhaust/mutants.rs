//! The list of lines that are changed on purpose, and the model that has to find each.

use super::scripts::Mutant;

/// `model || script || text || text instead` in each line. The script has the text exactly once; `(nothing)` takes it away.
const LIST: &str = include_str!("mutants.txt");

/// # Errors
///
/// When a line of the list cannot be read.
pub(super) fn list() -> Result<Vec<Mutant>, String> {
    let lines = LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mutant = |(at, line): (usize, &str)| {
        let parts: Vec<_> = line.split(" || ").map(str::trim).collect();
        let [model, script, before, after] = parts[..] else {
            return Err(format!("`{line}` is no mutant: model || script || text || text instead"));
        };
        let after = if after == "(nothing)" { "" } else { after };
        let [model, script, before, after] = [model, script, before, after].map(str::to_owned);
        Ok(Mutant { number: at + 1, script, before, after, model })
    };
    lines.enumerate().map(mutant).collect()
}
