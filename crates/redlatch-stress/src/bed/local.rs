//! The local engine, with a directory of its own.

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use redlatch::blocking;
use redlatch_testkit::{dir, process::ChildProcess};
use tempfile::TempDir;

use super::{Bed, Outcome};
use crate::{record::Log, rng::Rng, worker::Order};

pub(super) struct Local {
    dir: TempDir,
    binary: PathBuf,
    daemon: ChildProcess,
    next: Instant,
}

/// How long the daemon lives at least between two kills.
const LIFE: Duration = Duration::from_secs(2);

fn daemon(binary: &Path, dir: &TempDir) -> Outcome<ChildProcess> {
    let mut daemon = Command::new(binary);
    daemon.args(["engine", "run", "--dir"]).arg(dir.path()).stderr(Stdio::null());
    Ok(ChildProcess::spawn(daemon)?)
}

impl Local {
    pub(super) fn start() -> Outcome<Self> {
        let binary = std::env::current_exe()?.with_file_name("redlatch");
        if !binary.is_file() {
            return Err(format!("{} is missing: build the whole workspace", binary.display()).into());
        }
        let dir = dir::for_sockets("redlatch-stress-")?;
        // The engine refuses a place that others could reach.
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700))?;
        Ok(Local { daemon: daemon(&binary, &dir)?, dir, binary, next: Instant::now() + LIFE })
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // Clients may have started the last one. It would end by itself some time after its last lock.
        let mut stop = Command::new(&self.binary);
        stop.args(["engine", "stop", "--force", "--dir"]).arg(self.dir.path());
        let _ = stop.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

impl Bed for Local {
    fn address(&self, _: usize, order: &mut Order) {
        order.url = "local:".to_owned();
        order.engine_dir = Some(self.dir.path().to_owned());
        order.engine_binary = Some(self.binary.clone());
    }

    fn trouble(&mut self, rng: &mut Rng, log: &Log, _: Duration) -> Outcome<()> {
        if Instant::now() >= self.next {
            // What it has written is there when it comes back, whatever it had not finished. A client may be the first to start
            // it again; then this one ends.
            log.fault("the engine is killed");
            self.daemon.kill9();
            self.daemon = daemon(&self.binary, &self.dir)?;
            self.next = Instant::now() + LIFE + rng.ms(0, 3_000);
        }
        Ok(())
    }

    fn heal(&mut self, _: &Log) -> Outcome<()> {
        Ok(())
    }

    fn left(&self) -> Outcome<Vec<String>> {
        let builder = redlatch::Client::builder().url("local:").engine_dir(self.dir.path());
        let client = blocking::Client::build(builder.engine_binary(&self.binary))?;
        let held = client.list(None, 1_000)?;
        Ok(held.iter().filter(|state| !state.holders.is_empty()).map(|state| format!("{state:?}")).collect())
    }
}
