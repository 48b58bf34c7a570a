//! One lock, two languages: redlatch and the real Redisson on the same Redis, with both releases of Redisson.
//!
//! Java and Maven are required; without them every test fails and says how to install them.

#[path = "interop/bed.rs"]
mod bed;
#[path = "interop/both_ways.rs"]
mod both_ways;
#[path = "interop/cluster.rs"]
mod cluster;
#[path = "interop/contention.rs"]
mod contention;
#[path = "interop/control.rs"]
mod control;
#[path = "interop/expiry.rs"]
mod expiry;
#[path = "interop/fair.rs"]
mod fair;
#[path = "interop/fenced.rs"]
mod fenced;
#[path = "interop/golden.rs"]
mod golden;
#[path = "interop/holding.rs"]
mod holding;
#[path = "interop/kinds.rs"]
mod kinds;
#[path = "interop/latch.rs"]
mod latch;
#[path = "interop/meeting.rs"]
mod meeting;
#[path = "interop/multi.rs"]
mod multi;
#[path = "interop/non_reentrant.rs"]
mod non_reentrant;
#[path = "interop/permits.rs"]
mod permits;
#[path = "interop/rate.rs"]
mod rate;
#[path = "interop/read_write.rs"]
mod read_write;
#[path = "interop/read_write_contention.rs"]
mod read_write_contention;
#[path = "interop/read_write_expiry.rs"]
mod read_write_expiry;
#[path = "interop/read_write_golden.rs"]
mod read_write_golden;
#[path = "interop/read_write_model.rs"]
mod read_write_model;
#[path = "interop/read_write_schedule.rs"]
mod read_write_schedule;
#[path = "interop/read_write_waking.rs"]
mod read_write_waking;
#[path = "interop/rights.rs"]
mod rights;
#[path = "interop/semaphore.rs"]
mod semaphore;
#[path = "interop/semaphore_contention.rs"]
mod semaphore_contention;
#[path = "interop/sentinel.rs"]
mod sentinel;
#[path = "interop/spin.rs"]
mod spin;
#[path = "interop/staying.rs"]
mod staying;
#[path = "interop/turns.rs"]
mod turns;
#[path = "interop/waking.rs"]
mod waking;

/// One module of tests per release, so that a failure names the release.
macro_rules! with_release {
    ($module:ident, $version:expr, $($part:ident :: $test:ident),* $(,)?) => {
        mod $module {
            use redlatch_testkit::redisson::RedissonVersion;
            $(#[test] fn $test() { super::$part::$test($version); })*
        }
    };
}

macro_rules! with_both_releases {
    ($($part:ident :: $test:ident),* $(,)?) => {
        with_release!(redisson_3_15_1, RedissonVersion::Old3_15_1, $($part::$test),*);
        with_release!(redisson_newest, RedissonVersion::Newest, $($part::$test),*);
    };
}

with_both_releases!(
    cluster::a_fair_lock_has_one_queue_in_a_cluster,
    cluster::counters_wake_the_other_language_in_a_cluster,
    cluster::forced_unlocks_and_downgrades_are_seen_in_a_cluster,
    cluster::holds_exclude_and_are_counted_in_a_cluster,
    cluster::names_in_all_slots_are_one_lock_in_a_cluster,
    cluster::releases_wake_peers_of_either_kind_in_a_cluster,
    cluster::releases_wake_the_other_language_in_a_cluster,
    contention::owners_of_both_languages_never_overlap,
    contention::owners_of_a_fair_lock_never_overlap,
    control::a_client_that_writes_other_bytes_is_found_out,
    control::a_release_with_other_bytes_wakes_nobody,
    expiry::a_fixed_lease_of_java_ends_and_its_late_unlock_frees_nobody,
    expiry::a_fixed_lease_of_ours_ends_and_its_late_unlock_frees_nobody,
    expiry::a_killed_java_holder_is_followed_when_its_lease_ends,
    expiry::a_killed_rust_holder_is_followed_when_its_lease_ends,
    expiry::either_watchdog_keeps_the_other_language_out_for_three_leases,
    expiry::holds_counted_twice_by_a_retry_end_with_their_lease,
    fair::a_fair_release_by_java_wakes_us_at_once,
    fair::a_fair_release_by_us_wakes_java_at_once,
    fair::a_forced_unlock_of_a_fair_lock_tells_the_next_of_the_other_language,
    fair::a_killed_java_holder_of_a_fair_lock_is_followed_in_order,
    fair::a_killed_java_waiter_is_passed_over,
    fair::a_waiter_of_ours_that_is_cancelled_lets_java_through,
    fair::both_languages_are_served_in_the_order_of_asking,
    fair::either_watchdog_keeps_a_fair_lock_for_three_leases,
    fair::holds_of_a_fair_lock_are_counted_by_both,
    fair::waits_of_java_that_time_out_let_us_through,
    golden::every_step_leaves_and_says_the_same,
    holding::names_of_any_shape_are_one_lock,
    holding::re_entries_of_java_keep_us_out_until_the_last_unlock,
    holding::re_entries_of_ours_keep_java_out_until_the_last_unlock,
    holding::strangers_cannot_unlock_and_change_nothing,
    kinds::fencing_tokens_grow_across_both_languages,
    kinds::latch_keys_of_java_are_left_alone,
    kinds::the_spin_lock_is_the_same_lock,
    kinds::waits_and_leases_are_limited_in_both_languages,
    latch::a_count_of_zero_set_by_java_is_an_open_latch,
    latch::a_count_that_expires_opens_the_latch_for_us,
    latch::both_languages_count_down_and_both_get_through,
    latch::every_step_of_a_latch_leaves_and_says_the_same,
    latch::our_delete_lets_java_through_and_javas_lets_us_through,
    latch::the_last_step_of_java_wakes_us_at_once,
    latch::the_last_step_of_ours_wakes_java_at_once,
    semaphore::a_deleted_semaphore_ends_our_waits_and_javas_go_on,
    semaphore::a_message_tells_the_total_so_that_the_right_waiter_wakes,
    semaphore::a_release_only_if_it_exists_creates_nothing,
    semaphore::a_time_to_live_outlasts_our_changes_and_ends_for_both,
    semaphore::every_step_of_a_semaphore_leaves_and_says_the_same,
    semaphore::every_way_to_more_permits_wakes_java,
    semaphore::java_takes_permits_below_zero_and_we_wait_them_out,
    semaphore::one_message_wakes_as_many_java_threads_as_there_are_permits,
    semaphore::permits_go_from_one_language_to_the_other,
    semaphore::permits_put_in_by_java_wake_us_at_once,
    semaphore::permits_put_in_by_us_wake_java_at_once,
    semaphore::permits_that_are_owed_do_not_break_a_java_waiter,
    semaphore_contention::no_permit_is_made_or_lost_between_the_languages,
    permits::permits_of_java_are_seen_prolonged_and_given_back_by_us,
    permits::permits_of_ours_are_seen_by_java_and_given_back_by_the_newest,
    permits::a_permit_given_back_wakes_the_other_language_at_once,
    permits::a_permit_that_runs_out_goes_to_the_other_language,
    permits::eight_thousand_and_one_permits_of_the_other_language_run_out,
    permits::each_step_with_permits_leaves_the_same,
    multi::a_quorum_of_either_language_keeps_the_other_out,
    multi::either_language_waits_for_the_set_of_the_other,
    multi::leases_of_sets_end_for_both_languages,
    multi::one_member_is_enough_to_keep_the_set_of_the_other_out,
    rights::java_needs_no_more_than_the_printed_rights,
    rights::java_needs_no_more_than_the_printed_rights_in_a_cluster,
    rights::java_needs_no_more_than_the_printed_rights_under_sentinels,
    sentinel::a_fair_lock_has_one_queue_under_sentinels,
    sentinel::counters_wake_the_other_language_under_sentinels,
    sentinel::forced_unlocks_and_downgrades_are_seen_under_sentinels,
    sentinel::holds_exclude_and_are_counted_under_sentinels,
    sentinel::releases_wake_the_other_language_under_sentinels,
    spin::a_spin_lock_leaves_what_javas_leaves,
    spin::a_waiter_of_another_kind_is_not_told_and_finds_out,
    spin::looks_are_as_rare_as_the_backoff_says,
    spin::nothing_is_published_and_nothing_subscribed,
    spin::spin_locks_and_plain_locks_of_both_languages_exclude,
    read_write::readers_share_and_writers_keep_everybody_out,
    read_write::holds_of_java_are_counted_by_us,
    read_write::holds_of_ours_keep_java_out_until_the_last_one_goes,
    read_write::strangers_to_a_read_write_lock_change_nothing,
    read_write::each_side_is_freed_by_force_from_the_other_language,
    read_write_contention::readers_never_meet_a_writer_and_writers_meet_nobody,
    read_write_expiry::killed_holders_of_java_are_followed_when_their_lease_ends,
    read_write_expiry::killed_holders_of_ours_are_followed_when_their_lease_ends,
    read_write_expiry::dead_readers_of_java_do_not_outlast_our_living_ones,
    read_write_expiry::dead_readers_of_ours_do_not_outlast_javas_living_ones,
    read_write_expiry::a_reader_of_one_language_neither_cuts_nor_prolongs_that_of_the_other,
    read_write_expiry::two_readers_of_the_other_language_follow_a_write_lease,
    read_write_expiry::watchdogs_of_either_side_keep_the_other_language_out_for_three_leases,
    read_write_expiry::late_unlocks_of_a_read_write_lock_free_nobody,
    read_write_golden::every_step_of_a_read_write_lock_leaves_and_says_the_same,
    read_write_golden::where_a_read_write_lock_is_different_on_purpose,
    read_write_schedule::random_schedules_of_both_languages_do_what_the_model_says,
    read_write_waking::our_writer_lets_all_readers_of_java_in_at_once,
    read_write_waking::javas_writer_lets_all_our_readers_in_at_once,
    read_write_waking::the_last_reader_lets_a_writer_of_the_other_language_in_at_once,
    read_write_waking::a_writer_lets_a_writer_of_the_other_language_in_at_once,
    read_write_waking::the_silent_downgrade_of_java_is_found_at_the_next_look,
    waking::a_forced_unlock_by_java_wakes_us_and_tells_our_holder,
    waking::a_forced_unlock_by_us_wakes_java_and_tells_its_holder,
    waking::a_release_by_java_wakes_us_at_once,
    waking::a_release_by_us_wakes_java_at_once,
);

// The two releases keep rates in forms that exclude each other; ours is that of the newer one.
with_release!(
    rate_of_redisson_newest,
    RedissonVersion::Newest,
    rate::both_sides_together_never_exceed_the_rate,
    rate::each_side_waits_for_the_others_permits,
    rate::each_step_leaves_the_same_keys,
    rate::the_settings_are_seen_from_both_sides,
    rate::what_one_side_takes_the_other_misses,
);
with_release!(rate_of_redisson_3_15_1, RedissonVersion::Old3_15_1, rate::what_another_form_leaves_is_refused,);

// Kinds of lock that 3.15.1 does not have.
with_release!(
    kinds_of_redisson_newest,
    RedissonVersion::Newest,
    cluster::fencing_tokens_grow_in_a_cluster,
    cluster::sharded_messages_that_are_asked_for_wake_both_languages_in_a_cluster,
    fenced::a_counter_that_java_deletes_does_not_lower_our_tokens,
    fenced::a_key_without_end_is_a_grant_to_java_and_none_to_us,
    fenced::a_release_wakes_the_other_language_with_a_higher_token,
    fenced::each_language_goes_on_from_the_others_token,
    fenced::our_tokens_grow_over_a_flush_and_javas_start_again,
    fenced::test_token_increase,
    fenced::tokens_grow_over_a_mixed_schedule,
    non_reentrant::a_non_reentrant_lock_leaves_what_javas_leaves,
    non_reentrant::a_second_acquire_of_java_is_refused_and_leaves_everything,
    non_reentrant::a_second_acquire_of_ours_is_refused_and_leaves_javas_hold,
    non_reentrant::both_languages_keep_each_other_out,
    non_reentrant::waiters_of_both_languages_are_served_in_the_order_of_asking,
    rights::each_rule_for_java_in_a_cluster_is_missed_when_it_is_gone,
    rights::each_rule_that_is_added_for_java_is_missed_when_it_is_gone,
    sentinel::fencing_tokens_grow_under_sentinels,
);

/// What concerns both releases at once.
mod both_releases {
    #[test]
    fn a_failover_in_a_cluster_keeps_holds_and_waiters_of_both_languages() {
        super::cluster::a_failover_keeps_holds_and_waiters_of_both_languages();
    }

    #[test]
    fn a_failover_under_sentinels_keeps_holds_and_waiters_of_both_languages() {
        super::sentinel::a_failover_keeps_holds_and_waiters_of_both_languages();
    }

    #[test]
    fn one_release_of_ours_in_a_cluster_wakes_both_releases_of_redisson_and_us() {
        super::cluster::one_release_of_ours_wakes_both_releases_of_redisson_and_us();
    }
}
