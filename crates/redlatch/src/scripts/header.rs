//! What a script says of itself in lines of its header.

/// What a second run of the same request does: the rest of the line that begins with `-- Repeat:`; empty if there is none.
pub(super) fn repeat(source: &'static str) -> &'static str {
    line(source, "-- Repeat: ")
}

/// What the engine may do with it while holds may be missing from the journal: the rest of the line `-- Recovering:`.
#[cfg(test)]
pub(super) fn recovering(source: &'static str) -> &'static str {
    line(source, "-- Recovering: ")
}

fn line(source: &'static str, begins: &str) -> &'static str {
    source.lines().find_map(|line| line.strip_prefix(begins)).unwrap_or_default()
}
