//! Reading the logs.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::PathBuf,
};

use crate::record::Mode;

/// A hold, from the first to the last moment at which it was certainly valid.
#[derive(Debug, Clone)]
pub(crate) struct Interval {
    pub(crate) process: String,
    pub(crate) task: String,
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) weight: u32,
    pub(crate) owner: String,
    pub(crate) token: Option<u64>,
    pub(crate) term: String,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) how: String,
    pub(crate) untold_ns: Option<u64>,
    pub(crate) back_ns: Option<u64>,
    pub(crate) vanished: Option<(u64, String)>,
}

/// Something that a task did.
#[derive(Debug, Clone)]
pub(crate) struct Deed {
    pub(crate) process: String,
    pub(crate) task: String,
    pub(crate) ns: u64,
    pub(crate) text: String,
}

/// All logs of a round.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    pub(crate) intervals: Vec<Interval>,
    pub(crate) deeds: Vec<Deed>,
    pub(crate) faults: Vec<(u64, String)>,
    /// When answers were waited for that came late.
    pub(crate) late: Vec<(u64, u64)>,
    pub(crate) begin_ns: u64,
}

/// What reads no history says where it is.
fn misread(process: &str, number: usize, line: &str) -> io::Error {
    let text = format!("{process}, line {number}: no line of a history: {line:?}");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Logs {
    /// Reads these files, and of folders every file that ends in `.log`. The name of a file is that of its process.
    pub(crate) fn read(places: &[PathBuf]) -> io::Result<Self> {
        let mut paths = Vec::new();
        for place in places {
            if place.is_dir() {
                let listed = fs::read_dir(place)?.flatten().map(|entry| entry.path());
                paths.extend(listed.filter(|path| path.extension().is_some_and(|end| end == "log")));
            } else {
                paths.push(place.clone());
            }
        }
        paths.sort();
        paths.dedup();
        let mut files = Vec::new();
        for path in paths {
            let text = fs::read(&path)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
            // Two folders may have processes of one name.
            let process =
                if places.len() > 1 { path.as_os_str() } else { path.file_stem().unwrap_or_default() };
            files.push((process.to_string_lossy().into_owned(), String::from_utf8_lossy(&text).into_owned()));
        }
        Logs::of(files)
    }

    /// The logs of these processes.
    pub(crate) fn of(files: Vec<(String, String)>) -> io::Result<Self> {
        let mut logs = Logs { begin_ns: u64::MAX, ..Logs::default() };
        for (process, text) in files {
            let mut at = HashMap::new();
            // A process that was killed may have left half a line.
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            for (number, line) in whole.lines().enumerate() {
                // A line that is skipped may hide a hold.
                logs.line(&process, line, &mut at).ok_or_else(|| misread(&process, number + 1, line))?;
            }
        }
        if logs.begin_ns == u64::MAX {
            logs.begin_ns = 0;
        }
        logs.intervals.sort_by_key(|interval| interval.start_ns);
        logs.deeds.sort_by_key(|deed| deed.ns);
        logs.faults.sort_by_key(|(ns, _)| *ns);
        Ok(logs)
    }

    fn line(&mut self, process: &str, line: &str, at: &mut HashMap<u64, usize>) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        let word = |at: usize| words.get(at).map(|word| (*word).to_owned());
        match words[0] {
            "G" => {
                let start_ns = number(9)?;
                self.begin_ns = self.begin_ns.min(start_ns);
                at.insert(number(1)?, self.intervals.len());
                self.intervals.push(Interval {
                    process: process.to_owned(),
                    task: word(2)?,
                    name: word(3)?,
                    mode: Mode::of_letter(words.get(4)?)?,
                    weight: u32::try_from(number(5)?).ok()?,
                    owner: word(6)?,
                    token: if word(7)? == "-" { None } else { Some(number(7)?) },
                    term: word(8)?,
                    start_ns,
                    end_ns: start_ns,
                    how: "unfinished".to_owned(),
                    untold_ns: None,
                    back_ns: None,
                    vanished: None,
                });
            }
            "S" | "E" | "U" | "V" | "A" => {
                let (at, ns) = (*at.get(&number(1)?)?, number(2)?);
                let interval = &mut self.intervals[at];
                match words[0] {
                    "S" => interval.end_ns = interval.end_ns.max(ns),
                    "U" => interval.untold_ns = Some(ns),
                    "V" => interval.back_ns = Some(ns),
                    "A" => interval.vanished = Some((ns, words.get(3..)?.join(" "))),
                    _ => {
                        interval.end_ns = interval.end_ns.max(ns);
                        interval.how = words.get(3..)?.join(" ");
                    }
                }
            }
            "O" => {
                let ns = number(2)?;
                self.begin_ns = self.begin_ns.min(ns);
                let (process, task) = (process.to_owned(), word(1)?);
                self.deeds.push(Deed { process, task, ns, text: words.get(3..)?.join(" ") });
            }
            "L" => self.late.push((number(1)?, number(2)?)),
            "F" => self.faults.push((number(1)?, words.get(2..)?.join(" "))),
            _ => return None,
        }
        Some(())
    }

    pub(crate) fn operations(&self) -> usize {
        self.deeds.len()
    }

    /// The intervals of each name, in the order of their beginnings.
    pub(crate) fn by_name(&self) -> BTreeMap<&str, Vec<&Interval>> {
        let mut names: BTreeMap<&str, Vec<&Interval>> = BTreeMap::new();
        for interval in &self.intervals {
            names.entry(&interval.name).or_default().push(interval);
        }
        names
    }
}
