//! The promises of the lock, each as one test that runs on every store.

mod blocking;
mod exclusion;
mod fair;
mod fenced;
mod holding;
mod input;
mod lanes;
mod latch;
mod leaving;
mod looking;
mod multi;
mod non_reentrant;
mod permits;
mod rate;
mod read_write;
mod redisson;
mod redisson_counters;
mod redisson_fair;
mod redisson_read_write;
mod semaphore;
mod spin;

/// Expands each test over the stores, for one kind of lock.
macro_rules! contracts {
    (@store $face:ident $store:ident { $($module:ident :: { $($name:ident),* })* }) => {
        mod $store {
            $(mod $module {
                use crate::{contract::$module, fixture::Fixture, kinds::Face, limit};
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    limit::within(Fixture::$store().of(Face::$face), $module::$name).await;
                })*
            })*
        }
    };
    ($face:ident $($module:ident :: { $($name:ident),* $(,)? })*) => {
        contracts!(@store $face memory { $($module :: { $($name),* })* });
        contracts!(@store $face local { $($module :: { $($name),* })* });
        contracts!(@store $face redis { $($module :: { $($name),* })* });
        contracts!(@store $face strict { $($module :: { $($name),* })* });
    };
}

/// The promises of every lock.
macro_rules! of_every_lock {
    ($kind:ident $face:ident { $($more:tt)* }) => {
        mod $kind {
            contracts! {
                $face
                exclusion::{
                    a_held_lock_is_busy_for_everybody_else,
                    a_release_wakes_a_waiter_of_another_client,
                    a_wait_ends_when_its_time_is_up,
                    a_counter_guarded_by_the_lock_never_slips,
                    many_locks_are_held_at_once,
                    names_are_bytes_and_differ_by_case,
                }
                lanes::{
                    a_lock_that_was_forced_free_is_not_kept_from_its_own_process,
                    a_lock_that_is_handed_to_a_task_that_is_not_polled_goes_on,
                    an_owner_that_gives_up_what_it_was_handed_gets_a_hold_of_its_own,
                    a_release_that_is_not_polled_does_not_stop_its_line,
                    a_hold_that_was_extended_is_not_passed_on_for_longer_than_asked,
                    an_owner_that_has_a_guard_here_is_not_adopted,
                }
                leaving::{
                    a_dropped_guard_releases,
                    a_guard_may_be_dropped_on_any_thread,
                    a_panic_releases,
                    a_dropped_wait_leaves_nothing_behind,
                    unlocking_a_lost_lock_says_so,
                    shutting_down_releases_and_tells,
                    a_detached_hold_goes_on_and_is_adopted,
                    a_hold_that_is_left_for_a_time_lasts_no_longer,
                    releasing_what_is_not_held_is_an_error,
                    a_dropped_client_leaves_its_guards_alone,
                }
                $($more)*
            }
        }
    };
    ($kind:ident $face:ident reentrant { $($more:tt)* }) => {
        of_every_lock! {
            $kind $face {
                holding::{
                    a_fixed_lease_ends_and_its_holder_is_told,
                    renewal_holds_a_lock_for_many_leases,
                    renewal_stops_with_the_guard,
                    the_same_owner_enters_again,
                    one_owner_of_two_processes_holds_twice,
                    a_hold_that_was_entered_elsewhere_is_not_shortened,
                    an_owner_value_enters_from_another_task,
                    a_short_inner_hold_does_not_cut_the_outer_one,
                    a_forced_unlock_is_announced_to_the_holder,
                    the_holder_learns_at_once_who_forced_its_lock_free_and_why,
                    a_forced_unlock_of_the_shown_owner_only,
                    extending_moves_the_deadline,
                    a_renewal_does_not_cut_an_extension_short,
                    loss_cancels_the_token,
                }
                $($more)*
            }
        }
    };
}

of_every_lock! { fair_lock Fair reentrant {
    fair::{
        grants_come_in_the_order_of_asking,
        try_lock_never_overtakes,
        a_waiter_that_gives_up_leaves_the_queue,
        a_head_that_is_cancelled_after_the_release_passes_the_lock_on,
        a_release_hands_over_within_the_process,
        tasks_of_two_processes_take_turns,
    }
    redisson::{
        auto_expire,
        hold_count,
        lock_unlock,
        concurrency_single_instance,
        concurrency_loop_multi_instance,
        concurrency_multi_instance,
        lock_reentrant_renew,
    }
    redisson_fair::{
        lease_timeout,
        multiple_locks,
        wait_timeout_drift,
        lock_acquired_timeout_drift,
        try_lock_non_delayed,
    }
} }
of_every_lock! { fenced_lock Fenced reentrant {
    fenced::{
        every_grant_draws_a_token_and_a_reentry_keeps_it,
        who_adopts_a_hold_draws_its_token,
        tokens_grow_after_the_counter_is_lost,
        a_lock_that_is_passed_on_draws_its_token_from_the_counter,
        test_token_increase,
    }
} }
of_every_lock! { spin_lock Spin reentrant {
    redisson::{
        auto_expire,
        hold_count,
        is_locked,
        lock_unlock,
        concurrency_single_instance,
        concurrency_loop_multi_instance,
        concurrency_multi_instance,
    }
    spin::{
        test_try_lock_async,
        test_timed_try_lock_async,
        test_try_lock_async_wait_time,
        test_try_lock_async_failed,
        test_try_lock_async_succeed,
    }
} }
of_every_lock! { write_lock Write reentrant {} }
of_every_lock! { non_reentrant_lock NonReentrant {
    non_reentrant::{
        test_same_thread_reacquire_throws,
        test_contending_thread_blocks_and_acquires_on_release,
    }
} }
of_every_lock! { non_reentrant_fair_lock NonReentrantFair {
    non_reentrant::{
        test_same_thread_reacquire_throws,
        test_contending_thread_blocks_and_acquires_on_release,
    }
} }

contracts! {
    Plain
    exclusion::{
        a_held_lock_is_busy_for_everybody_else,
        a_release_wakes_a_waiter_of_another_client,
        a_wait_ends_when_its_time_is_up,
        a_counter_guarded_by_the_lock_never_slips,
        many_locks_are_held_at_once,
        names_are_bytes_and_differ_by_case,
    }
    holding::{
        a_fixed_lease_ends_and_its_holder_is_told,
        a_waker_that_panics_costs_no_other_holder_its_lock,
        renewal_holds_a_lock_for_many_leases,
        renewal_stops_with_the_guard,
        the_same_owner_enters_again,
        one_owner_of_two_processes_holds_twice,
        a_hold_that_was_entered_elsewhere_is_not_shortened,
        an_owner_value_enters_from_another_task,
        a_short_inner_hold_does_not_cut_the_outer_one,
        a_forced_unlock_is_announced_to_the_holder,
        a_forced_unlock_of_the_shown_owner_only,
        tokens_grow_with_every_grant,
        extending_moves_the_deadline,
        a_renewal_does_not_cut_an_extension_short,
        work_is_stopped_when_the_lock_is_lost,
        loss_cancels_the_token,
    }
    leaving::{
        a_dropped_guard_releases,
        a_guard_may_be_dropped_on_any_thread,
        a_panic_releases,
        a_dropped_wait_leaves_nothing_behind,
        unlocking_a_lost_lock_says_so,
        shutting_down_releases_and_tells,
        a_detached_hold_goes_on_and_is_adopted,
        a_hold_that_is_left_for_a_time_lasts_no_longer,
        releasing_what_is_not_held_is_an_error,
        a_dropped_client_leaves_its_guards_alone,
    }
    lanes::{
        waiters_of_one_process_are_served_in_order,
        a_waiter_with_a_token_of_its_own_is_handed_the_lock,
        a_known_owner_is_never_passed_on,
        another_process_gets_its_turn,
        waiters_that_give_up_do_not_stop_the_line,
        a_lock_that_was_passed_on_is_renewed_like_any_other,
        waits_that_are_over_leave_the_line,
        a_waker_may_run_its_task_at_once,
        a_leader_that_is_not_polled_does_not_stop_its_line,
        a_guard_goes_on_when_another_one_of_its_hold_is_detached,
        what_is_being_released_is_not_adopted,
        a_hold_that_was_extended_is_not_passed_on_for_longer_than_asked,
        an_owner_that_has_a_guard_here_is_not_adopted,
        a_lock_that_was_forced_free_is_not_kept_from_its_own_process,
    }
    looking::{
        state_shows_holder_and_ttl,
        a_listing_finds_locks_by_pattern,
        numbers_are_listed_only_when_they_are_asked_for,
        listening_clients_are_counted,
        a_fair_queue_is_shown,
        a_stock_is_never_oversold,
    }
    input::{
        bad_names_are_refused,
        bad_leases_are_refused,
        a_key_of_another_type_is_left_alone,
    }
    blocking::{
        threads_exclude_each_other_and_enter_again,
        a_blocking_wait_can_be_cancelled,
        an_acquire_that_was_built_before_is_the_thread_that_runs_it,
        a_hold_that_was_taken_to_be_sent_is_no_threads,
        blocking_calls_refuse_to_run_inside_a_runtime,
    }
    multi::{
        a_multi_lock_holds_all_members_or_none,
        a_multi_lock_waits_for_the_member_that_is_busy,
        losing_one_member_loses_the_multi_lock,
        members_have_the_final_lease_from_the_start,
        an_owner_enters_a_multi_lock_again,
        a_detached_multi_lock_is_released_by_its_owner,
        sets_that_make_no_sense_are_refused,
        sets_that_overlap_never_meet_and_never_stop,
        a_dropped_wait_for_several_locks_leaves_nothing,
        threads_hold_several_locks_at_once,
        test_lock_unlock,
        test_wait_and_lease_timeouts,
        test_multi_threads,
    }
    semaphore::{
        permits_are_taken_and_put_back,
        a_semaphore_without_permits_is_an_error_until_a_release,
        a_waiter_gets_its_permits_when_there_are_enough,
        a_wait_for_permits_ends_when_its_time_is_up,
        permits_may_be_owed,
        one_permit_excludes,
        a_dropped_acquire_gives_its_permits_back,
        numbers_out_of_range_are_refused,
        permits_that_expire_end_the_wait,
        a_waiter_that_is_not_polled_does_not_hold_up_the_others,
        deleting_ends_the_wait,
        shutting_down_ends_the_wait,
        a_blocking_semaphore_and_latch,
    }
    permits::{
        a_permit_has_an_id_and_its_release_wakes_a_waiter,
        several_permits_are_taken_together_or_not_at_all,
        leases_are_read_and_set_by_id,
        permits_that_nobody_set_are_an_error,
        counts_follow_leases_that_run_out,
        a_semaphore_that_expires_is_gone_with_its_permits,
        a_waiter_gets_a_permit_when_its_lease_runs_out,
        the_number_is_set_once_resized_and_changed,
        permits_are_given_back_by_id_all_or_none,
        permits_that_a_guard_has_are_not_given_back_by_their_ids,
        a_guard_is_over_when_its_client_has_deleted_the_permits,
        permits_that_ran_out_come_back_once_however_many_look,
        one_leased_permit_excludes,
        tasks_that_want_one_and_two_of_two_all_get_them,
        permits_of_one_process_are_held_and_renewed_side_by_side,
        a_guard_is_told_when_its_permits_are_gone,
        one_message_wakes_all_who_can_be_served,
        a_dropped_request_gives_its_permits_back,
        numbers_leases_and_ids_out_of_range_are_refused,
        shutting_down_gives_permits_back,
        a_blocking_permit_semaphore,
    }
    latch::{
        a_latch_opens_at_zero,
        a_wait_for_a_latch_ends_when_its_time_is_up,
        deleting_lets_everybody_through,
        a_latch_of_zero_and_names_with_braces_are_refused,
        a_key_that_is_no_counter_is_left_alone,
    }
    redisson::{
        auto_expire,
        hold_count,
        is_held_by_current_thread,
        is_locked,
        lock_unlock,
        concurrency_single_instance,
        concurrency_loop_multi_instance,
        concurrency_multi_instance,
        remain_time_to_live,
        remain_time_to_live_2,
        concurrency_try_lock_unlock,
        lock_reentrant_renew,
        lock_unlock_heavy,
        try_lock_unlock_heavy,
    }
    redisson_counters::{
        acquire_after_add_permits,
        try_n_acquire,
        concurrency_multi_instance_1_permits,
        concurrency_loop_multi_instance,
        concurrency_loop_max_multi_instance,
        single_count_down_await_single_instance,
    }
    rate::{
        permits_come_free_when_their_interval_is_over,
        a_wait_that_cannot_succeed_ends_at_once,
        numbers_out_of_range_are_refused,
        without_a_rate_requests_are_errors,
        takers_of_all_clients_together_keep_to_the_rate,
        waiters_are_all_served_in_time_and_not_before,
        the_rate_in_force_is_seen_by_all,
        setting_a_rate_forgets_what_was_taken,
        updating_a_rate_remembers_what_was_taken,
        what_is_given_back_is_free_once_and_never_more_than_the_rate,
        a_rate_for_each_client_is_each_ones_own,
        a_rate_for_each_client_that_another_one_changes_counts_from_the_next_request,
        a_rate_limiter_without_requests_is_forgotten,
        a_deleted_rate_limiter_ends_its_waiters,
        a_waiter_learns_of_a_new_rate,
        a_dropped_acquire_gives_its_permits_back,
        shutting_down_ends_the_wait,
        a_name_of_something_else_is_left_alone,
        a_blocking_rate_limiter,
    }
}

mod read_write_lock {
    contracts! {
        Plain
        multi::{ members_may_be_of_any_kind_and_client }
        redisson_read_write::{
            test_force_unlock,
            test_auto_expire,
            test_get_hold_count,
            test_is_held_and_is_locked_by_thread,
            test_unlock_fail,
            test_lock_unlock,
            test_reentrancy,
            test_concurrency_single_instance,
            test_concurrency_loop_multi_instance,
            test_read_lock_expiration,
            test_read_lock_is_locked,
            test_read_lock_expiration_renewal,
            test_name,
            test_write_lock_expiration,
            test_read_lock_lease_timeout_diff_threads_wrr,
            test_read_lock_lease_timeout_diff_threads_rrw,
            test_read_lock_lease_timeout,
            test_wr,
            test_write_read,
            test_write_read_reentrancy,
            test_write_lock,
            test_multi_read,
            test_read_write_ttl,
            test_expire_read_and_write,
            test_multi_instance_read_lock_zombie_cleanup,
            test_multi_instance_zombie_read_lock_performance,
        }
        read_write::{
            a_writer_turns_into_a_reader_and_nobody_writes_in_between,
            a_downgrade_of_a_hold_that_was_extended_lasts_as_long,
            a_lost_write_hold_cannot_be_downgraded,
            a_reentry_beside_a_guard_that_goes_is_counted,
            a_write_hold_with_a_read_hold_beside_is_not_passed_on,
            a_reader_that_asks_to_write_is_refused,
            waiting_writers_go_first_where_that_is_asked_for,
            writers_that_hand_the_lock_on_let_readers_of_the_same_client_in,
            readers_of_one_client_are_many_leases_and_each_is_told,
            both_sides_are_released_by_a_shutdown,
            a_detached_read_hold_is_adopted_elsewhere,
                a_read_hold_that_is_left_for_less_keeps_writers_out_no_longer,
        }
    }
}
