//! Temporary directories in which sockets have room.

use std::io;
use std::os::unix::ffi::OsStrExt as _;

use tempfile::{Builder, TempDir};

/// How long the path of a directory may be in which a test binds a socket: systems allow fewer than 104 or 108 bytes in all.
const PATH_BYTES_MAX: usize = 64;
/// What the directories lie in when the usual place has a path that is too long.
const SHORT_PLACE: &str = "/tmp";

/// A directory of its own for a test that binds sockets in it: where temporary files usually lie, or in `/tmp` if that path is
/// too long for a socket.
///
/// # Errors
///
/// As [`tempfile::tempdir`].
pub fn for_sockets(prefix: &str) -> io::Result<TempDir> {
    let mut settings = Builder::new();
    settings.prefix(prefix);
    let usual = std::env::temp_dir();
    // What is drawn at random has six characters.
    let length = usual.as_os_str().as_bytes().len() + "/".len() + prefix.len() + 6;
    if length <= PATH_BYTES_MAX { settings.tempdir_in(usual) } else { settings.tempdir_in(SHORT_PLACE) }
}
