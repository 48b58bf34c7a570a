//! The library's own hand-overs between threads, in orders chosen by `shuttle`: at random, and with few changes of the thread that runs, which
//! finds orders that chance hardly does. A thread that sleeps for ever is found as well. Orders of memory weaker than sequential consistency are
//! not tried.

use redlatch_threads::threads as cases;

const RUNS: usize = 10_000;
/// How often the running thread is changed against its will.
const CHANGES: usize = 3;

fn in_every_order(case: fn()) {
    shuttle::check_random(case, RUNS);
    shuttle::check_pct(case, RUNS, CHANGES);
}

#[test]
fn a_lock_goes_from_task_to_task() {
    in_every_order(cases::a_lock_goes_from_task_to_task);
}

#[test]
fn a_lock_goes_past_tasks_that_give_up() {
    in_every_order(cases::a_lock_goes_past_tasks_that_give_up);
}

#[test]
fn a_hold_ends_once() {
    in_every_order(cases::a_hold_ends_once);
}

#[test]
fn a_lease_has_one_last_guard() {
    in_every_order(cases::a_lease_has_one_last_guard);
}

#[test]
fn an_offer_is_taken_or_taken_back() {
    in_every_order(cases::an_offer_is_taken_or_taken_back);
}

#[test]
fn no_lease_is_slept_through() {
    in_every_order(cases::no_lease_is_slept_through);
}

#[test]
fn shutting_down_waits_for_all_work() {
    in_every_order(cases::shutting_down_waits_for_all_work);
}

#[test]
fn no_call_goes_unseen_by_a_keeper_that_stops_ticking() {
    in_every_order(cases::no_call_goes_unseen_by_a_keeper_that_stops_ticking);
}

#[test]
fn an_owner_asks_when_nothing_takes_its_holds_away() {
    in_every_order(cases::an_owner_asks_when_nothing_takes_its_holds_away);
}

#[test]
fn one_task_asks_at_a_time_and_none_sleeps_on() {
    in_every_order(cases::one_task_asks_at_a_time_and_none_sleeps_on);
}

#[test]
fn no_change_is_slept_through() {
    in_every_order(cases::no_change_is_slept_through);
}
