//! Reading the logs.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::Path,
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

impl Logs {
    /// Reads every file of the folder that ends in `.log`; its name is that of the process.
    pub(crate) fn read(dir: &Path) -> io::Result<Self> {
        let mut paths: Vec<_> = fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let mut files = Vec::new();
        for path in paths.iter().filter(|path| path.extension().is_some_and(|end| end == "log")) {
            let process = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            files.push((process, String::from_utf8_lossy(&fs::read(path)?).into_owned()));
        }
        Ok(Logs::of(files))
    }

    /// The logs of these processes.
    pub(crate) fn of(files: Vec<(String, String)>) -> Self {
        let mut logs = Logs { begin_ns: u64::MAX, ..Logs::default() };
        for (process, text) in files {
            // A process that was killed may have left half a line.
            logs.file(&process, text.rfind('\n').map_or("", |end| &text[..end]));
        }
        if logs.begin_ns == u64::MAX {
            logs.begin_ns = 0;
        }
        logs.intervals.sort_by_key(|interval| interval.start_ns);
        logs.deeds.sort_by_key(|deed| deed.ns);
        logs.faults.sort_by_key(|(ns, _)| *ns);
        logs
    }

    fn file(&mut self, process: &str, text: &str) {
        let mut at: HashMap<u64, usize> = HashMap::new();
        for line in text.lines() {
            if self.line(process, line, &mut at).is_none() {
                // Nothing but the library's own output gets here by mistake, and a line that is skipped hides a hold.
                panic!("{process}: no line of a log: {line:?}");
            }
        }
    }

    fn line(&mut self, process: &str, line: &str, at: &mut HashMap<u64, usize>) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        match words[0] {
            "G" => {
                let start_ns = number(9)?;
                self.begin_ns = self.begin_ns.min(start_ns);
                at.insert(number(1)?, self.intervals.len());
                self.intervals.push(Interval {
                    process: process.to_owned(),
                    task: words[2].to_owned(),
                    name: words[3].to_owned(),
                    mode: Mode::of_letter(words[4])?,
                    weight: u32::try_from(number(5)?).ok()?,
                    owner: words[6].to_owned(),
                    token: number(7),
                    term: words[8].to_owned(),
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
                let (process, task) = (process.to_owned(), words[1].to_owned());
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
