//! What was found out about a store, and what to do about it.

use std::fmt;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// Locks are at risk, or do not work.
    Problem,
}

/// One thing that was found out about the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What was looked at, in one or two words.
    pub subject: &'static str,
    /// What was found.
    pub text: String,
    /// What to do about it.
    pub remedy: Option<&'static str>,
}

impl Finding {
    pub(crate) fn new(severity: Severity, subject: &'static str, text: impl Into<String>) -> Self {
        Finding { severity, subject, text: text.into(), remedy: None }
    }

    /// The same about one of several servers.
    pub(crate) fn at(mut self, server: &str) -> Self {
        self.text = format!("{server}: {}", self.text);
        self
    }

    pub(crate) fn remedy(mut self, remedy: &'static str) -> Self {
        self.remedy = Some(remedy);
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.text)?;
        match self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}
