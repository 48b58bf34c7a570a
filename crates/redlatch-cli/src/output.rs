//! Data on stdout: a table on a terminal, tab-separated columns in a pipe, or JSON.
//!
//! JSON documents carry `"schema": 1`, whole milliseconds and RFC 3339 times; fields are only ever added.

use std::{
    env, io,
    io::{IsTerminal, Write, stdout},
};

use serde::Serialize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::{
    args::{Format, Output},
    config::Settings,
    escape,
    exit::Failure,
};

/// No column of a table gets narrower than this.
const WIDTH_MIN: usize = 6;

/// The version of the JSON documents.
pub(crate) const SCHEMA: u32 = 1;

/// One record of a listing.
pub(crate) trait Record: Serialize {
    /// Titles of the columns, the usual ones first.
    const COLUMNS: &'static [&'static str];
    /// How many of the columns the narrow table has.
    const NARROW: usize;
    /// The cells, escaped by the caller of [`Record::cells`]; an empty cell is shown as `-`.
    fn cells(&self) -> Vec<String>;
    /// What `-o name` prints.
    fn name(&self) -> String;
}

#[derive(Serialize)]
struct List<'a, T> {
    schema: u32,
    items: &'a [T],
}

#[derive(Serialize)]
struct One<'a, T> {
    schema: u32,
    #[serde(flatten)]
    item: &'a T,
}

/// The format in force: the flag, else the configuration.
pub(crate) fn format(output: Output, settings: &Settings) -> Format {
    output.format.unwrap_or(settings.output)
}

/// Prints a list.
///
/// # Errors
///
/// Internal, when stdout cannot be written.
pub(crate) fn list<T: Record>(format: Format, items: &[T]) -> Result<(), Failure> {
    emit(&listed(format, items)?)
}

/// A list as text.
///
/// # Errors
///
/// Internal, when it cannot be written as JSON.
pub(crate) fn listed<T: Record>(format: Format, items: &[T]) -> Result<String, Failure> {
    Ok(match format {
        Format::Json => json(&List { schema: SCHEMA, items })?,
        Format::Ndjson => {
            let lines = items.iter().map(|item| json(&One { schema: SCHEMA, item }));
            lines.collect::<Result<String, _>>()?
        }
        Format::Name => items.iter().map(|item| format!("{}\n", escape::text(&item.name()))).collect(),
        Format::Table => table::<T>(items, T::NARROW),
        Format::Wide => table::<T>(items, T::COLUMNS.len()),
    })
}

/// Prints one record, as [`rendered`].
///
/// # Errors
///
/// Internal, when stdout cannot be written.
pub(crate) fn one<T: Record>(format: Format, item: &T) -> Result<(), Failure> {
    emit(&rendered(format, item)?)
}

/// One record: as JSON, its name, or one line with title and value for each column.
///
/// # Errors
///
/// Internal, when it cannot be written as JSON.
pub(crate) fn rendered<T: Record>(format: Format, item: &T) -> Result<String, Failure> {
    Ok(match format {
        Format::Json | Format::Ndjson => json(&One { schema: SCHEMA, item })?,
        Format::Name => format!("{}\n", escape::text(&item.name())),
        Format::Table | Format::Wide => {
            let width = T::COLUMNS.iter().map(|title| title.len()).max().unwrap_or(0);
            let lines = T::COLUMNS.iter().zip(item.cells()).filter(|(_, cell)| !cell.is_empty());
            lines
                .map(|(title, cell)| format!("{:width$}  {}\n", title.to_lowercase(), escape::text(&cell)))
                .collect()
        }
    })
}

/// A document as one line.
///
/// # Errors
///
/// Internal, when it cannot be written as JSON.
pub(crate) fn json<T: Serialize>(document: &T) -> Result<String, Failure> {
    let text = serde_json::to_string(document)
        .map_err(|error| Failure::internal(format!("cannot write JSON: {error}")))?;
    Ok(escape::json(&text) + "\n")
}

fn table<T: Record>(items: &[T], columns: usize) -> String {
    let terminal = stdout().is_terminal();
    let rows: Vec<Vec<String>> = items
        .iter()
        .map(|item| {
            let cells = item.cells().into_iter().take(columns);
            cells
                .map(|cell| if cell.is_empty() { "-".into() } else { escape::text(&cell).to_string() })
                .collect()
        })
        .collect();
    if !terminal {
        return rows.iter().map(|row| row.join("\t") + "\n").collect();
    }
    aligned(&T::COLUMNS[..columns], &rows, is_colored(), terminal_width())
}

/// How many columns the terminal has.
fn terminal_width() -> usize {
    let width = rustix::termios::tcgetwinsize(stdout()).map_or(0, |size| usize::from(size.ws_col));
    if width == 0 { usize::MAX } else { width }
}

/// Narrows the widest columns until all fit, down to a few characters each.
fn fit(widths: &mut [usize], limit: usize) {
    let gaps = 2 * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > limit {
        match widths.iter_mut().max() {
            Some(widest) if *widest > WIDTH_MIN => *widest -= 1,
            _ => return,
        }
    }
}

/// A cell in so many characters; an ellipsis says that there is more.
fn cut(cell: &str, width: usize) -> String {
    if cell.width() <= width {
        return cell.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = cell.chars().take_while(|c| {
        let width = c.width().unwrap_or(0);
        let fits = width <= left;
        left = left.saturating_sub(width);
        fits
    });
    fits.chain(['…']).collect()
}

/// A cell followed by as many blanks as its column needs.
fn padded(cell: &str, width: usize) -> String {
    let cut = cut(cell, width);
    let blanks = width.saturating_sub(cut.width());
    cut + &" ".repeat(blanks)
}

/// How many of the columns fit at their narrowest; the first one is shown in any case.
fn shown(widths: &[usize], limit: usize) -> usize {
    let mut used = 0;
    let fits = widths.iter().take_while(|width| {
        used += WIDTH_MIN.min(**width) + if used == 0 { 0 } else { 2 };
        used <= limit
    });
    fits.count().max(1)
}

/// Columns of equal width under a header, in lines that are no longer than `limit`. What does not fit at all is left out, last columns
/// first.
fn aligned(titles: &[&str], rows: &[Vec<String>], colored: bool, limit: usize) -> String {
    let width_of = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width());
        cells.chain([titles[column].len()]).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..titles.len()).map(width_of).collect();
    widths.truncate(shown(&widths, limit));
    fit(&mut widths, limit);
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<_> = cells.zip(&widths).map(|(cell, width)| padded(cell, *width)).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let header = line(&mut titles.iter().copied());
    let header = if colored { format!("\x1b[1m{header}\x1b[0m") } else { header };
    let body = rows.iter().map(|row| line(&mut row.iter().map(String::as_str)) + "\n");
    header + "\n" + &body.collect::<String>()
}

/// Whether the terminal is to have colours: `NO_COLOR` and a terminal that knows none say no.
pub(crate) fn is_colored() -> bool {
    let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Writes data to stdout.
///
/// # Errors
///
/// Internal, when stdout cannot be written. A closed pipe is not an error: see [`quiet_end`].
pub(crate) fn emit(text: &str) -> Result<(), Failure> {
    match try_emit(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => quiet_end(),
        Err(error) => Err(Failure::internal(format!("cannot write to stdout: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes data to stdout, for callers who must clean up when nobody reads it.
///
/// # Errors
///
/// Those of the write, a closed pipe included.
pub(crate) fn try_emit(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Ends as a program ends whose reader went away (`redlatch ls | head -1`): by SIGPIPE, without a word.
///
/// Rust programs start with that signal ignored, so the write fails instead of ending the process. That is what a command
/// that holds a lock needs, which is why the signal is not restored at the start.
pub(crate) fn quiet_end() -> Result<(), Failure> {
    _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".to_owned(), "2".to_owned()], vec!["läng".to_owned(), "-".to_owned()]];
        assert_eq!(aligned(&["NAME", "TTL"], &rows, false, 80), "NAME  TTL\na     2\nläng  -\n");
        assert!(aligned(&["NAME"], &[], true, 80).starts_with("\x1b[1mNAME"));
        let long = vec![vec!["x".repeat(50), "y".repeat(20), "z".into()]];
        let text = aligned(&["NAME", "OWNER", "TTL"], &long, false, 30);
        assert_eq!(text.lines().map(|line| line.chars().count()).max(), Some(30), "{text}");
        assert!(text.contains("x…  y") && text.ends_with("…  z\n"), "{text}");
        // Six columns are the least for a name; what stands behind it has no room.
        let narrow = aligned(&["NAME", "OWNER", "TTL"], &long, false, 15);
        assert_eq!(narrow, "NAME     OWNER\nxxxxxx…  yyyyy…\n");
        assert_eq!(aligned(&["NAME", "OWNER"], &long, false, 3), "NAME\nxxxxx…\n");
    }

    #[test]
    fn characters_of_two_columns_count_as_two() {
        let rows =
            vec![vec!["錠前".to_owned(), "2".to_owned()], vec!["錠前錠前錠前".to_owned(), "3".to_owned()]];
        assert_eq!(
            aligned(&["NAME", "N"], &rows, false, 80),
            "NAME          N\n錠前          2\n錠前錠前錠前  3\n"
        );
        assert_eq!(aligned(&["NAME", "N"], &rows, false, 10), "NAME     N\n錠前     2\n錠前錠…  3\n");
    }
}
