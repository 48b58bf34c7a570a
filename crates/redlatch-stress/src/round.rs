//! One round: processes work on a store for some time while things happen to them, and then their logs are judged.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use redlatch_testkit::process::ChildProcess;

use crate::{
    bed::{self, Bed, Outcome, Round},
    judge::{self, Expect, Verdict, Violation},
    mix::{Mix, Numbers},
    record::Log,
    rng::Rng,
    worker::{Order, kind::CAPACITY},
};

/// How often something may happen.
const STEP: Duration = Duration::from_millis(5);
/// How long processes may take to connect.
const READY_MAX: Duration = Duration::from_secs(90);
/// How long the tasks may take to end what they do: each call has a limit of its own.
const DONE_MAX: Duration = Duration::from_secs(60);
/// How much later than its lease a lock may be free when nobody is there.
const FREE_LATE: Duration = Duration::from_secs(3);
/// The longest lease that is not renewed, and the longest that is renewed on request.
const LEASE_MAX: Duration = Duration::from_secs(2);

struct Process {
    child: ChildProcess,
    generation: u32,
    /// It is stopped until then.
    stopped: Option<Instant>,
}

/// Runs a round; its logs stay in the folder.
pub(crate) fn run(round: &Round, dir: &Path) -> Outcome<Verdict> {
    let numbers = round.mix.numbers().spread(round.spread);
    let mut bed = bed::start(round, &numbers, dir)?;
    let log = Log::create(&dir.join("faults.log"))?;
    std::fs::create_dir_all(dir.join("left"))?;
    let mut rng = Rng::new(round.seed);
    let count = if bed.is_one_process() { 1 } else { round.processes };
    let mut processes = Vec::new();
    for at in 0..count {
        processes.push(spawn(round, dir, bed.as_ref(), at, 0)?);
    }
    for process in &processes {
        process.child.read_until("ready", READY_MAX)?;
    }
    let begin = Instant::now();
    while begin.elapsed() < round.time {
        std::thread::sleep(STEP);
        bed.trouble(&mut rng, &log, begin.elapsed())?;
        if numbers.processes && !bed.is_one_process() {
            to_processes(round, &numbers, dir, bed.as_ref(), &mut processes, &mut rng, &log)?;
        }
    }
    for (at, process) in processes.iter_mut().enumerate() {
        if process.stopped.take().is_some() {
            log.fault(format!("process {at} goes on"));
            process.child.resume()?;
        }
    }
    bed.heal(&log)?;
    log.fault("it is over");
    let mut violations = Vec::new();
    for process in &mut processes {
        process.child.write_line("stop")?;
    }
    for (at, process) in processes.iter_mut().enumerate() {
        if process.child.read_until("done", DONE_MAX).is_err() {
            let story = format!("process {at}: some call has not ended {DONE_MAX:?} after the end");
            violations.push(Violation { kind: "a call without an end", story });
            process.child.kill9();
        } else if process.child.wait(DONE_MAX).is_err() {
            process.child.kill9();
        }
    }
    let ended = Instant::now();
    let limit = Duration::from_millis(numbers.lease_ms).max(LEASE_MAX) + FREE_LATE;
    loop {
        let left = bed.left()?;
        if left.is_empty() {
            break;
        }
        if ended.elapsed() > limit {
            let story = format!("{limit:?} after everybody has ended: {left:?}");
            violations.push(Violation { kind: "a lock that nobody has and nobody gets", story });
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let expect = Expect {
        capacity: CAPACITY,
        nothing_expires: round.mix == Mix::Slow,
        nothing_vanishes: bed.keeps_data() && !numbers.processes,
        excuses: Vec::new(),
        counted_late: Vec::new(),
    };
    let mut verdict = judge::judge(&[dir.to_owned()], &expect)?;
    verdict.violations.extend(violations);
    Ok(verdict)
}

fn spawn(round: &Round, dir: &Path, bed: &dyn Bed, at: usize, generation: u32) -> Outcome<Process> {
    let process = format!("p{at}g{generation}");
    let mut order = Order {
        log: dir.join(format!("{process}.log")),
        process,
        url: String::new(),
        members: Vec::new(),
        mix: round.mix,
        seed: round.seed.wrapping_mul(31).wrapping_add(at as u64 * 7 + u64::from(generation) * 1_009),
        tasks: round.tasks,
        spread: round.spread,
        clients: 1,
        engine_dir: None,
        engine_binary: None,
        acknowledged: round.mix.numbers().acknowledged,
    };
    bed.address(at, &mut order);
    let path: PathBuf = dir.join(format!("{}.json", order.process));
    std::fs::write(&path, serde_json::to_vec(&order)?)?;
    let args = ["worker".into(), path.into_os_string()];
    let child = ChildProcess::start(std::env::current_exe()?, args, std::iter::empty())?;
    Ok(Process { child, generation, stopped: None })
}

/// Processes are killed and stopped, and go on or are replaced.
fn to_processes(
    round: &Round,
    numbers: &Numbers,
    dir: &Path,
    bed: &dyn Bed,
    processes: &mut [Process],
    rng: &mut Rng,
    log: &Log,
) -> Outcome<()> {
    for (at, process) in processes.iter_mut().enumerate() {
        if process.stopped.is_some_and(|until| Instant::now() >= until) {
            process.stopped = None;
            log.fault(format!("process {at} goes on"));
            process.child.resume()?;
        }
    }
    let at = rng.below(processes.len() as u64) as usize;
    let process = &mut processes[at];
    match rng.below(1_000) {
        0..4 => {
            log.fault(format!("process {at} is killed"));
            process.child.kill9();
            *process = spawn(round, dir, bed, at, process.generation + 1)?;
        }
        4..12 if process.stopped.is_none() => {
            let lease = numbers.lease_ms;
            let time = if rng.percent(60) { rng.ms(20, lease / 2) } else { rng.ms(lease, lease * 2) };
            log.fault(format!("process {at} is stopped for {time:?}"));
            process.child.pause()?;
            process.stopped = Some(Instant::now() + time);
        }
        _ => {}
    }
    Ok(())
}
