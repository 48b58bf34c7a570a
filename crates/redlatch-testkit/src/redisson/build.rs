//! Building the driver with Maven, once per change of its sources.

use super::wire::{JavaError, JavaErrorKind};
use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long one Maven run may take; the first one on a machine downloads some 40 MB.
const BUILD_TIMEOUT: Duration = Duration::from_secs(480);

/// How often a running Maven, or the lock of another process, is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// What happened to each profile in this process, so that one failure is not repeated by every test.
static BUILT: Mutex<Option<HashMap<&'static str, Result<String, JavaError>>>> = Mutex::new(None);

/// Gives the class path of the driver built with this profile, after building it if its sources have changed.
pub(super) fn classpath(profile: &'static str) -> Result<String, JavaError> {
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    built.get_or_insert_default().entry(profile).or_insert_with(|| build(profile)).clone()
}

pub(super) fn java_program() -> PathBuf {
    match std::env::var_os("JAVA_HOME") {
        Some(home) if !home.is_empty() => Path::new(&home).join("bin/java"),
        _ => PathBuf::from("java"),
    }
}

/// Says what to do about a program that does not start.
pub(super) fn tool_error(tool: &str, error: &io::Error) -> JavaError {
    if error.kind() == io::ErrorKind::NotFound {
        let message = format!(
            "{tool} is not installed: run ./scripts/install-test-tools, or on Debian and Ubuntu \
             apt-get install -y --no-install-recommends default-jdk-headless maven"
        );
        JavaError::new(JavaErrorKind::MissingTool, message)
    } else {
        JavaError::new(JavaErrorKind::Build, format!("{tool} does not start: {error}"))
    }
}

fn build(profile: &str) -> Result<String, JavaError> {
    let project = project_folder()?;
    let target = project.join("target").join(profile);
    fs::create_dir_all(&target).map_err(|error| io_error("create", &target, &error))?;
    // Released when the file is closed, also by the death of this process.
    let _lock = lock(&target.join("build.lock"))?;

    let stamp_path = target.join("built-from");
    let sources = fingerprint(&project)?;
    if fs::read_to_string(&stamp_path).is_ok_and(|stamp| stamp == sources)
        && let Some(classpath) = read_classpath(&target)
    {
        return Ok(classpath);
    }
    // Gone before Maven begins, so that a build that is cut off is not taken for a finished one.
    match fs::remove_file(&stamp_path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_error("remove", &stamp_path, &error)),
    }
    run_maven(&project, profile, &target.join("build.log"))?;
    let classpath = read_classpath(&target).ok_or_else(|| {
        JavaError::new(JavaErrorKind::Build, format!("Maven left no classes in {}", target.display()))
    })?;
    fs::write(&stamp_path, sources).map_err(|error| io_error("write", &stamp_path, &error))?;
    Ok(classpath)
}

fn project_folder() -> Result<PathBuf, JavaError> {
    let project = match std::env::var_os("REDLATCH_INTEROP_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop"),
    };
    if project.join("pom.xml").is_file() {
        return Ok(project);
    }
    let message = format!(
        "there is no Maven project in {}: set REDLATCH_INTEROP_DIR to the folder interop of a checkout",
        project.display()
    );
    Err(JavaError::new(JavaErrorKind::Build, message))
}

fn lock(path: &Path) -> Result<File, JavaError> {
    let file = File::create(path).map_err(|error| io_error("create", path, &error))?;
    let deadline = Instant::now() + BUILD_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
            Err(TryLockError::WouldBlock) => {
                let message = format!("another process holds {} for {BUILD_TIMEOUT:?}", path.display());
                return Err(JavaError::new(JavaErrorKind::Build, message));
            }
            Err(TryLockError::Error(error)) => return Err(io_error("lock", path, &error)),
        }
    }
}

/// The class path if the driver and every jar are there; a cleaned Maven cache must lead to a new build.
fn read_classpath(target: &Path) -> Option<String> {
    let classes = target.join("classes");
    if !classes.join("redlatch/interop/Driver.class").is_file() {
        return None;
    }
    let jars = fs::read_to_string(target.join("classpath")).ok()?;
    let jars = jars.trim();
    if jars.is_empty() || !jars.split(':').all(|jar| Path::new(jar).is_file()) {
        return None;
    }
    Some(format!("{}:{jars}", classes.to_str()?))
}

/// A number that changes with any change of the sources, unlike their times, which a checkout or a cache resets.
fn fingerprint(project: &Path) -> Result<String, JavaError> {
    let mut hasher = DefaultHasher::new();
    let mut open = vec![project.join("pom.xml"), project.join("src")];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
            let entries = entries.map_err(|error| io_error("read", &path, &error))?;
            let mut inside: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
            inside.sort();
            open.extend(inside);
        } else {
            let content = fs::read(&path).map_err(|error| io_error("read", &path, &error))?;
            let name = path.strip_prefix(project).unwrap_or(&path);
            for part in [name.as_os_str().as_encoded_bytes(), content.as_slice()] {
                hasher.write_usize(part.len());
                hasher.write(part);
            }
        }
    }
    Ok(format!("{:016x}\n", hasher.finish()))
}

fn run_maven(project: &Path, profile: &str, log_path: &Path) -> Result<(), JavaError> {
    let log = File::create(log_path).map_err(|error| io_error("create", log_path, &error))?;
    let log_too = log.try_clone().map_err(|error| io_error("open", log_path, &error))?;
    let mut maven = Command::new("mvn")
        .args(["--quiet", "--batch-mode", "-Dstyle.color=never", "--activate-profiles", profile, "compile"])
        .current_dir(project)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too)
        .spawn()
        .map_err(|error| tool_error("mvn", &error))?;
    let deadline = Instant::now() + BUILD_TIMEOUT;
    let outcome = loop {
        match maven.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => break format!("Maven failed with {status}"),
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                let _ = maven.kill();
                let _ = maven.wait();
                break format!("Maven did not end within {BUILD_TIMEOUT:?}");
            }
            Err(error) => break format!("Maven cannot be waited for: {error}"),
        }
    };
    let output = fs::read_to_string(log_path).unwrap_or_default();
    Err(JavaError::new(JavaErrorKind::Build, format!("{outcome}; its output:\n{output}")))
}

fn io_error(verb: &str, path: &Path, error: &io::Error) -> JavaError {
    JavaError::new(JavaErrorKind::Build, format!("cannot {verb} {}: {error}", path.display()))
}
