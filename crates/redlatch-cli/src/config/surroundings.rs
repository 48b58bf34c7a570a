//! What settings are read from besides the command line: the environment, and the usual files.

use std::{env, ffi::OsString, path::PathBuf};

use super::URL_ENV;
use crate::exit::Failure;

/// The variables that say where the locks are. An empty one, such as a script makes of a variable that it lacks, is a mistake.
const SAY_WHERE: [&str; 4] = [URL_ENV, "REDLATCH_CONTEXT", "REDLATCH_CONFIG", "REDLATCH_REDISSON_YAML"];

/// Looks up an environment variable.
type Env = Box<dyn Fn(&str) -> Option<OsString>>;

/// The places outside the command line, so that tests can give their own.
pub(crate) struct Surroundings {
    /// The environment.
    pub(crate) env: Env,
    /// The files read without being asked for, first wins.
    pub(crate) files: Vec<PathBuf>,
}

impl Surroundings {
    /// The process environment and the usual files.
    pub(crate) fn of_process() -> Self {
        let user = env::var_os("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .filter(|dir| dir.is_absolute())
            .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
        let mut files: Vec<_> = user.map(|dir| dir.join("redlatch/config.toml")).into_iter().collect();
        files.push(PathBuf::from("/etc/redlatch/config.toml"));
        Surroundings { env: Box::new(|name| env::var_os(name)), files }
    }

    /// A variable, as bytes.
    ///
    /// # Errors
    ///
    /// Configuration: it says where the locks are and is empty.
    pub(super) fn raw(&self, name: &'static str) -> Result<Option<OsString>, Failure> {
        let value = (self.env)(name);
        if SAY_WHERE.contains(&name) && value.as_ref().is_some_and(|value| value.is_empty()) {
            return Err(Failure::config(format!("{name} is set and empty; give it a value, or unset it")));
        }
        // Any other empty variable counts as unset, as it does for most programs.
        Ok(value.filter(|value| !value.is_empty()))
    }

    /// A variable as text.
    ///
    /// # Errors
    ///
    /// As [`Surroundings::raw`], and for what is not valid UTF-8.
    pub(super) fn text(&self, name: &'static str) -> Result<Option<String>, Failure> {
        match self.raw(name)?.map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(_)) => Err(Failure::config(format!("{name} is not valid UTF-8"))),
        }
    }
}
