//! The library's tests at its public face: contracts on every store, wire facts, faults, cancellation, Java.

mod address_map;
mod awaited;
mod cancel;
mod capabilities;
mod chaos;
mod clocks;
mod cluster;
mod contract;
mod demoted;
mod dialer;
mod differential;
mod errors;
mod errors_told;
mod events;
mod fair_bound;
mod faults;
mod faults_rw;
mod fixture;
mod forced;
mod forms;
mod herd;
mod idle;
mod kept;
mod kinds;
mod late_grants;
mod late_leases;
mod lazy;
mod lengths;
mod limit;
mod local;
mod model_rw;
mod observed;
mod oldest;
mod other_kinds;
mod owners;
mod panics;
mod panics_stores;
mod permits_faults;
mod places;
mod presence;
mod quorum;
mod random_faults;
mod rate_faults;
mod rate_model;
mod redisson;
mod replicas;
mod replicas_moving;
mod replicas_shared;
mod replicated;
mod restarted;
mod resumed;
mod review;
mod review_lanes;
mod rights;
mod rotation;
mod semaphore_faults;
mod sentinel;
mod sentinel_fakes;
mod sentinel_memory;
mod sentinel_memory_real;
mod servers;
mod shared_owners;
mod shutdown_moments;
mod silence;
mod slow_renewals;
mod strict_keys;
mod subscribing;
mod tls;
mod topology_faults;
mod traps;
mod traps_fair;
mod under_test;
mod unpolled;
mod watched;
mod wire;
mod wire_fair;
mod wire_fair_java;
mod wire_latch;
mod wire_looking;
mod wire_multi;
mod wire_permits;
mod wire_rate;
mod wire_rw;
mod wire_rw_traps;
mod wire_semaphore;
mod wire_spin;

fn main_bounds<T: Send + Sync + 'static>() {}

fn shared<T: Sync + 'static>() {}

/// What users rely on at compile time.
#[test]
fn handles_and_guards_move_between_threads() {
    main_bounds::<redlatch::Client>();
    main_bounds::<redlatch::Lock>();
    main_bounds::<redlatch::Guard>();
    main_bounds::<redlatch::ReadWriteLock>();
    main_bounds::<redlatch::ReadGuard>();
    main_bounds::<redlatch::WriteGuard>();
    main_bounds::<redlatch::Owner>();
    main_bounds::<redlatch::PermitSemaphore>();
    main_bounds::<redlatch::PermitGuard>();
    main_bounds::<redlatch::Error>();
    main_bounds::<redlatch::MultiLock>();
    main_bounds::<redlatch::MultiGuard>();
    main_bounds::<redlatch::QuorumLock>();
    main_bounds::<redlatch::QuorumGuard>();
    main_bounds::<redlatch::blocking::Client>();
    main_bounds::<redlatch::blocking::SendGuard>();
    main_bounds::<redlatch::blocking::MultiGuard<redlatch::blocking::OfNoThread>>();
    shared::<redlatch::blocking::Guard>();
    shared::<redlatch::blocking::QuorumGuard>();
    main_bounds::<redlatch::blocking::PermitGuard>();
}
