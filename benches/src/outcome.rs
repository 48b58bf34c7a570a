//! How a part of a benchmark ends.

/// Every failure of a benchmark ends the run with its text.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
