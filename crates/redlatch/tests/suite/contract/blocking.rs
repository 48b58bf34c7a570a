use redlatch::{CancellationToken, ErrorKind, Unlocked, Wait, blocking};

use crate::fixture::{Fixture, IN_VAIN, ms};

/// Runs blocking code on a thread that knows no runtime.
pub(super) async fn aside(work: impl FnOnce() + Send + 'static) {
    let (tell, done) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = tell.send(());
    });
    let finished = done.await.is_ok();
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
    assert!(finished);
}

pub(crate) async fn threads_exclude_each_other_and_enter_again(on: Fixture) {
    let (builder, name) = (on.builder(), on.name("x"));
    aside(move || {
        let client = blocking::Client::build(builder).unwrap();
        let lock = client.lock(name.as_str());
        let outer = lock.lock().unwrap();
        let inner = lock.lock().unwrap();
        assert_eq!(lock.hold_count().unwrap(), 2, "a thread enters its own lock");
        assert!(lock.is_held_by_current_thread().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(lock.try_lock().unwrap().is_none(), "another thread does not");
                assert!(!lock.is_held_by_current_thread().unwrap());
                assert!(lock.lock_for(IN_VAIN).unwrap().is_none());
            });
        });
        assert_eq!(inner.unlock().unwrap(), Unlocked::StillHeld(1));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| lock.lock().unwrap().unlock().unwrap());
            std::thread::sleep(ms(50));
            assert_eq!(outer.unlock().unwrap(), Unlocked::Released);
            assert_eq!(waiter.join().unwrap(), Unlocked::Released);
        });
        assert!(!lock.is_locked().unwrap());
        client.shutdown(ms(1_000)).unwrap();
    })
    .await;
}

pub(crate) async fn an_acquire_that_was_built_before_is_the_thread_that_runs_it(on: Fixture) {
    let (builder, name) = (on.builder(), on.name("x"));
    aside(move || {
        let client = blocking::Client::build(builder).unwrap();
        let (lock, other) = (client.lock(name.as_str()), client.lock(format!("{name}other")));
        let built = lock.acquire();
        // The thread is another owner afterwards.
        other.lock().unwrap().unlock().unwrap();
        let outer = lock.lock().unwrap();
        let inner = built.run().unwrap().expect("the thread enters its own lock");
        assert_eq!(inner.unlock().unwrap(), Unlocked::StillHeld(1));
        let built = lock.acquire();
        std::thread::scope(|scope| {
            let ran = scope.spawn(|| built.run().unwrap().is_none());
            assert!(ran.join().unwrap(), "another thread does not");
        });
        outer.unlock().unwrap();
        client.shutdown(ms(1_000)).unwrap();
    })
    .await;
}

/// A guard that had been sent away left its hold with the thread that took it, which entered it beside the other one's work.
pub(crate) async fn a_hold_that_was_taken_to_be_sent_is_no_threads(on: Fixture) {
    let (builder, name) = (on.builder(), on.name("x"));
    aside(move || {
        let client = blocking::Client::build(builder).unwrap();
        let (lock, readers) = (client.lock(name.as_str()), client.read_write_lock(format!("{name}rw")));
        let guard = lock.acquire().run_to_send().unwrap().expect("it is free");
        assert!(lock.try_lock().unwrap().is_none(), "its thread does not enter it");
        assert!(!lock.is_held_by_current_thread().unwrap());
        let pair =
            blocking::MultiLock::new([client.lock(format!("{name}1")), client.lock(format!("{name}2"))]);
        let pair = pair.unwrap();
        let both = pair.acquire().run_to_send().unwrap().expect("both are free");
        assert!(pair.try_lock().unwrap().is_none(), "nor a set");
        let writing = readers.write().acquire().run_to_send().unwrap().expect("it is free");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                assert!(guard.is_valid() && both.is_valid());
                let reading = writing.downgrade().unwrap();
                assert_eq!(reading.unlock().unwrap(), Unlocked::Released);
                both.unlock().unwrap().into_result().unwrap();
                assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
            });
        });
        // The guard of a thread's hold makes none that could be sent.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (held, writing) = (lock.lock().unwrap(), readers.write().lock().unwrap());
        let refused = runtime.block_on(held.as_async().reenter()).map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidOption);
        let refused = runtime.block_on(writing.as_async().read()).map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidOption);
        // Nor does another thread with a reference to it make one.
        let refused = std::thread::scope(|scope| scope.spawn(|| writing.read().map(drop)).join().unwrap());
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidOption);
        writing.read().unwrap().unlock().unwrap();
        held.unlock().unwrap();
        writing.unlock().unwrap();
        let own = client.owner();
        let refused = lock.acquire().owner(&own).run_to_send().map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidOption);
        let refused = pair.acquire().owner(&own).run_to_send().map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidOption);
        let passed = lock.acquire().owner(&client.as_async().owner()).run_to_send().unwrap();
        passed.expect("it is free").unlock().unwrap();
        client.shutdown(ms(1_000)).unwrap();
    })
    .await;
}

pub(crate) async fn a_blocking_wait_can_be_cancelled(on: Fixture) {
    let (builder, name) = (on.builder(), on.name("x"));
    let other = on.client().await;
    let _held = other.lock(name.as_str()).lock().await.unwrap();
    aside(move || {
        let client = blocking::Client::build(builder).unwrap();
        let lock = client.lock(name.as_str());
        let token = CancellationToken::new();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| lock.acquire().wait(Wait::Forever).cancel(&token).run().map(|_| ()));
            std::thread::sleep(ms(50));
            token.cancel();
            assert_eq!(waiter.join().unwrap().map(|_| ()).unwrap_err().kind(), ErrorKind::Cancelled);
        });
    })
    .await;
}

pub(crate) async fn blocking_calls_refuse_to_run_inside_a_runtime(on: Fixture) {
    let error = blocking::Client::build(on.builder()).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InsideRuntime);
    assert!(error.to_string().contains("async"), "{error}");
}
