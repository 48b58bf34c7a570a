//! The local engine, with a directory of its own.

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use redlatch::blocking;
use redlatch_testkit::{dir, process::ChildProcess};
use tempfile::TempDir;

use super::{Bed, Outcome};
use crate::{record::Log, rng::Rng, worker::Order};

pub(super) struct Local {
    dir: TempDir,
    binary: PathBuf,
    _daemon: ChildProcess,
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
        let mut daemon = Command::new(&binary);
        daemon.args(["engine", "run", "--dir"]).arg(dir.path()).stderr(Stdio::null());
        Ok(Local { _daemon: ChildProcess::spawn(daemon)?, dir, binary })
    }
}

impl Bed for Local {
    fn address(&self, _: usize, order: &mut Order) {
        order.url = "local:".to_owned();
        order.engine_dir = Some(self.dir.path().to_owned());
        order.engine_binary = Some(self.binary.clone());
    }

    fn trouble(&mut self, _: &mut Rng, _: &Log, _: Duration) -> Outcome<()> {
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
