//! Lock names: bytes on the wire, text where they are shown.

use std::{fmt, sync::Arc};

/// The name of a lock: 1 to 4,096 bytes, any bytes, usually text.
///
/// Names are bytes on the wire and are never normalised. A name that contains `{` is used as it is by the derived keys,
/// as Redisson does; it is refused when that would put the derived keys into another cluster slot, because such a lock
/// could be taken but not released.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Arc<[u8]>);

impl LockName {
    pub(crate) fn unchecked(name: &[u8]) -> Self {
        LockName(Arc::from(name))
    }

    pub(crate) fn bytes(&self) -> &Arc<[u8]> {
        &self.0
    }

    /// The name as bytes, exactly as it is on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The name as text, if it is valid UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl fmt::Display for LockName {
    /// Text as it is; control characters, invisible direction marks and bytes that are not UTF-8 escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                let hidden =
                    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
                if c.is_control() || hidden || c == '\\' || c == '"' {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    write!(f, "{c}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockName(\"{self}\")")
    }
}

macro_rules! from_bytes {
    ($($t:ty),*) => {$(
        impl From<$t> for LockName {
            /// Converts without checking; an invalid name is reported by the first operation on the lock.
            fn from(name: $t) -> Self {
                LockName(Arc::from(AsRef::<[u8]>::as_ref(&name)))
            }
        }
    )*};
}
from_bytes!(&str, String, &String, &[u8], Vec<u8>);

impl From<&LockName> for LockName {
    fn from(name: &LockName) -> Self {
        name.clone()
    }
}
