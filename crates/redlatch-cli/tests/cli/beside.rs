//! On a terminal, a run that a shell became which had started something else before (`server & exec redlatch run …`).

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{GRACE, LEASE, Place, Running, eventually, is_alive, on_a_terminal};

/// A run of `job.sh` beside another process of the same group and parent; `job.sh` has to write `job.pid`.
fn run_beside_another(place: &Place, script: &str) -> (Running, i32) {
    fs::write(place.path("job.sh"), script).unwrap();
    // The end of the session would end the other one.
    let shell = format!(
        "trap '' HUP; sleep 300 > /dev/null 2>&1 & echo $! > other.pid; trap - HUP; \
         exec redlatch run job --lease {LEASE} --grace {GRACE} -- sh job.sh"
    );
    fs::write(place.path("shell.sh"), shell).unwrap();
    let terminal = Running::spawn(on_a_terminal(place, "sh shell.sh"));
    place.pid("job");
    (terminal, place.pid("other"))
}

/// Whether the other one was left alone. It ends here.
fn was_left_alone(other: i32) -> bool {
    let alive = is_alive(other);
    _ = kill_process(Pid::from_raw(other).unwrap(), Signal::KILL);
    alive
}

#[test]
fn a_run_beside_another_child_of_its_shell_waits_for_what_its_command_leaves_behind() {
    let place = Place::local();
    let script = "(exec sh -c 'echo $$ > job.pid; while [ -e job.pid -a ! -e job.end ]; do sleep 0.02; done') > /dev/null 2>&1 & \
                  while [ ! -s job.pid ]; do sleep 0.02; done; exit 4";
    let (mut terminal, other) = run_beside_another(&place, script);
    terminal.until_printed("others of its process group");
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75, "it was granted beside what was left");
    place.end("job");
    // The other one is not waited for.
    let code = terminal.finish().status.code();
    assert!(was_left_alone(other));
    assert_eq!(code, Some(4));
    assert_eq!(place.show("job")["kind"], "free");
}

#[test]
fn a_loss_beside_another_child_of_the_shell_ends_what_the_command_left_behind_and_nothing_else() {
    let place = Place::local();
    let script = "(trap '' HUP TERM; exec sh -c 'echo $$ > job.pid; while [ -e job.pid ]; do sleep 0.05; done') > /dev/null 2>&1 & \
                  while [ ! -s job.pid ]; do sleep 0.02; done; exit 4";
    let (mut terminal, other) = run_beside_another(&place, script);
    let left = place.pid("job");
    terminal.until_printed("others of its process group");
    let owner = place.show("job")["holders"][0]["owner"].as_str().unwrap().to_owned();
    assert_eq!(place.code(["force-unlock", "job", "--owner", &owner, "--reason", "test", "--yes"]), 0);
    assert_eq!(terminal.finish().status.code(), Some(80));
    assert!(!is_alive(left), "it works on without the lock");
    assert!(was_left_alone(other));
}

#[test]
fn a_loss_beside_another_child_of_the_shell_ends_what_has_emptied_its_environment_while_the_command_is_there()
{
    let place = Place::local();
    let script = "env -i PATH=\"$PATH\" sh -c 'echo $$ > job.pid; while [ -e job.pid ]; do sleep 0.05; done' > /dev/null 2>&1 & wait";
    let (terminal, other) = run_beside_another(&place, script);
    let left = place.pid("job");
    let owner = place.show("job")["holders"][0]["owner"].as_str().unwrap().to_owned();
    assert_eq!(place.code(["force-unlock", "job", "--owner", &owner, "--reason", "test", "--yes"]), 0);
    assert_eq!(terminal.finish().status.code(), Some(80));
    eventually("it ends", || (!is_alive(left)).then_some(()));
    assert!(was_left_alone(other));
}
