//! The daemon behind `local:`: this program stands in for the `redlatch` command, so that one build measures all.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use redlatch_engine::{
    connect::{LocalPaths, READY_LINE},
    daemon::{self, DaemonConfig},
};

use crate::outcome::Outcome;

/// A daemon whose benchmark was killed goes by itself after this time.
const IDLE_EXIT: Duration = Duration::from_secs(20);
/// How long it may take to answer that it ends.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

pub(crate) fn run(dir: &Path) -> Outcome<()> {
    let paths = LocalPaths::in_dir(dir.to_owned(), None)?;
    let mut config = DaemonConfig::new(paths.socket, paths.dir, redlatch::scripts::EPOCH);
    config.allowed_scripts =
        redlatch::scripts::ALL.iter().map(|script| (script.name(), script.source())).collect();
    config.undertaker = Some(Box::new(redlatch::store::DeadClientCleanup));
    config.idle_exit = Some(IDLE_EXIT);
    config.detach = true;
    config.ready = Some(Box::new(|| {
        let mut out = std::io::stdout();
        // The process that started it may have gone meanwhile.
        let _ = out.write_all(READY_LINE.as_bytes()).and_then(|()| out.flush());
    }));
    daemon::run(config)?;
    Ok(())
}

/// The process of the daemon in a directory.
pub(crate) fn pid(dir: &Path) -> Outcome<u32> {
    let stream = UnixStream::connect(LocalPaths::in_dir(dir.to_owned(), None)?.socket)?;
    Ok(rustix::net::sockopt::socket_peercred(&stream)?.pid.as_raw_nonzero().get().unsigned_abs())
}

/// Ends the daemon in a directory, whatever it holds. Nothing happens when there is none.
pub(crate) fn stop(dir: &Path) -> Outcome<()> {
    let paths = LocalPaths::in_dir(dir.to_owned(), None)?;
    let Ok(mut stream) = UnixStream::connect(paths.socket) else { return Ok(()) };
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.write_all(b"*3\r\n$8\r\nREDLATCH\r\n$8\r\nSHUTDOWN\r\n$5\r\nFORCE\r\n")?;
    // Its end closes the connection, with or without an answer before.
    let _answer = stream.read_to_end(&mut Vec::new());
    Ok(())
}
