//! A Redisson file among the other sources: its values stand where the file is named. What is said in the same place, or in one
//! that comes before, wins; what is said in a later place does not.

use std::path::PathBuf;

use redlatch::config::RedissonYaml;

use super::{Key, Origin, Shown};
use crate::{escape, exit::Failure};

/// What begins a URL that names such a file.
const URL_SCHEME: &str = "redisson-yaml:";

/// A value, where it came from, and the rank of that place: lower comes first.
pub(super) type Found = (Option<String>, Origin, usize);

/// The file, read, with its rank.
pub(super) struct Source {
    pub(super) file: RedissonYaml,
    pub(super) path: String,
    pub(super) rank: usize,
}

impl Source {
    /// Whether a Redisson file says where the locks live; `None` when none is named, or the URL comes before it.
    ///
    /// # Errors
    ///
    /// Both are given in the same place, or the file cannot be used.
    pub(super) fn find(url: &Found, named: &Found) -> Result<Option<Source>, Failure> {
        let in_url = url.0.as_deref().and_then(|url| url.trim().strip_prefix(URL_SCHEME));
        let (path, origin, rank) = match (in_url, &named.0) {
            (Some(path), Some(_)) if url.2 <= named.2 => (path, &url.1, url.2),
            (Some(path), None) => (path, &url.1, url.2),
            (_, Some(path)) if named.2 < url.2 => (path.as_str(), &named.1, named.2),
            (_, Some(_)) if named.2 == url.2 => {
                return Err(Failure::config(format!(
                    "url and redisson_yaml (both from {}) say where the locks live; give one of them",
                    named.1
                )));
            }
            _ => return Ok(None),
        };
        let file = RedissonYaml::read(path).map_err(|error| {
            Failure::config(format!("redisson_yaml (from {origin}): {}", escape::text(&error.to_string())))
        })?;
        Ok(Some(Source { file, path: path.to_owned(), rank }))
    }

    /// The file's value of a setting, unless another place comes before it.
    pub(super) fn value(&self, key: &Key, found: &Found) -> Option<Found> {
        let name = match key.name {
            "lease" => "watchdog_lease",
            "tls_any_host_name" => "tls_danger_accept_any_host_name",
            "tls_insecure" => "tls_danger_accept_any_certificate",
            name => name,
        };
        if found.2 <= self.rank && key.name != "url" {
            return None;
        }
        let value = self.file.values().iter().find(|value| value.setting == name)?;
        Some((Some(value.value.clone()), self.origin(&value.key), self.rank))
    }

    /// Whether the file gives this password, and where.
    pub(super) fn secret(&self, setting: &str) -> Option<Origin> {
        let value = self.file.values().iter().find(|value| value.setting == setting)?;
        Some(self.origin(&value.key))
    }

    fn origin(&self, key: &str) -> Origin {
        Origin::Redisson(PathBuf::from(&self.path), key.to_owned())
    }

    /// What the file says and is not followed, as lines of `config show`.
    pub(super) fn notices(&self) -> impl Iterator<Item = Shown> {
        self.file.notices().iter().map(|notice| Shown {
            key: "notice",
            value: Some(escape::text(&notice.text).to_string()),
            origin: Origin::Redisson(
                PathBuf::from(&self.path),
                if notice.key.is_empty() {
                    format!("line {}", notice.line)
                } else {
                    format!("line {}, {}", notice.line, notice.key)
                },
            ),
        })
    }
}
