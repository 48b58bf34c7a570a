//! What a local engine says while it grants nothing because its journal was damaged.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use redlatch::store::StoreUrl;
use redlatch_engine::connect::LocalPaths;

use crate::{
    config::Settings,
    door::{self, Answer},
    durations::human,
};

/// The longest lease is 100 years; what takes longer has no end.
const LEFT_MS_MAX: u64 = 101 * 366 * 24 * 60 * 60 * 1000;

/// The engine waits until whatever it has lost is over.
pub(crate) struct Recovery {
    pub(crate) left_ms: u64,
}

/// The socket of the local engine that these settings are about.
pub(crate) fn socket(settings: &Settings) -> Option<PathBuf> {
    let Ok(StoreUrl::Local { name, dir }) = StoreUrl::parse(&settings.url) else { return None };
    if settings.redisson.is_some() {
        return None;
    }
    let paths = match dir {
        Some(dir) => LocalPaths::in_dir(dir, name.as_deref()),
        None => LocalPaths::for_name(name.as_deref()),
    };
    paths.ok().map(|paths| paths.socket)
}

impl Recovery {
    /// As the status of an engine says.
    pub(crate) fn of(status: &Answer) -> Option<Recovery> {
        let left_ms = status.number("recovering_ms").and_then(|left_ms| u64::try_from(left_ms).ok())?;
        (left_ms > 0).then_some(Recovery { left_ms })
    }

    /// That of the engine at a socket. Of one that does not answer another error tells.
    pub(crate) fn at(socket: &Path) -> Option<Recovery> {
        Recovery::of(&door::ask(socket, &["REDLATCH", "STATUS"]).ok()??)
    }

    /// That of the engine behind these settings.
    pub(crate) fn behind(settings: &Settings) -> Option<Recovery> {
        Recovery::at(&socket(settings)?)
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the local engine found its journal damaged, and what is missing may be a hold; nothing is granted ",
        )?;
        match self.left_ms {
            ..LEFT_MS_MAX => write!(f, "for {} more", human(Duration::from_millis(self.left_ms))),
            _ => f.write_str(
                "until the engine is stopped and its files are removed, because nobody knows how long",
            ),
        }
    }
}
