use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use redlatch_testkit::fake_server::{FakeReply, FakeServer};

use super::*;
use crate::{client::Client, config::url::StoreUrl, scripts, store::Call};

async fn link(server: &FakeServer) -> Arc<Link> {
    let url = server.url();
    let StoreUrl::Redis(addr) = StoreUrl::parse(&url).unwrap() else { panic!("{url}") };
    let config = Client::builder().url(&url).config().clone();
    let dial = Dial::new(addr, &config, &Handle::current()).unwrap();
    Link::open(&dial, &Arc::default(), Box::new(|| {})).await.unwrap()
}

/// A connection over which changes may be told, to a server that answers a question for the newer protocol with that, by its number.
async fn tells(hello: impl Fn(usize) -> FakeReply + Send + Sync + 'static) -> bool {
    let hellos = std::sync::atomic::AtomicUsize::new(0);
    let server = FakeServer::start(move |request| match &request[0][..] {
        b"HELLO" => hello(hellos.fetch_add(1, Ordering::SeqCst)),
        _ => FakeReply::Default,
    })
    .unwrap();
    let url = server.url();
    let StoreUrl::Redis(addr) = StoreUrl::parse(&url).unwrap() else { panic!("{url}") };
    let config = Client::builder().url(&url).config().clone();
    let dial = Dial::new(addr, &config, &Handle::current()).unwrap().telling_changes();
    let link = Link::open_telling(&dial, &Arc::default(), Box::new(|| {})).await.unwrap();
    link.tells().await.unwrap().is_some()
}

/// Sentinels end all connections to a server as they promote it, and a server that is full refuses some. One that was just logging in was taken for the
/// sign of a server that knows the older protocol only, and nobody was told of changes for as long as the next one lived.
#[tokio::test]
async fn a_connection_that_is_refused_while_others_are_not_is_no_sign_of_the_older_protocol() {
    let full = || FakeReply::Error("ERR max number of clients reached".into());
    for refused in [0, 1] {
        assert!(
            tells(move |n| if n < refused { FakeReply::Close } else { FakeReply::Default }).await,
            "after {refused} ends"
        );
        assert!(
            tells(move |n| if n < refused { full() } else { FakeReply::Default }).await,
            "after {refused} refusals"
        );
    }
    // One that always does that is worth no more.
    assert!(!tells(|_| FakeReply::Close).await);
    assert!(!tells(|_| FakeReply::Error("ERR unknown command 'HELLO'".into())).await);
}

/// A call whose caller goes away as soon as the server has it.
async fn left(server: &FakeServer, link: &Link) {
    let before = server.count("LOST");
    let cmd = redis::cmd("LOST");
    let mut call = std::pin::pin!(link.ask(&cmd));
    while server.count("LOST") == before {
        tokio::select! {
            outcome = &mut call => panic!("{outcome:?}"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_is_still_owed_an_answer() {
    let silent = AtomicBool::new(false);
    let server = FakeServer::start(move |request| {
        if request[0] == b"LOST" || silent.load(Ordering::SeqCst) {
            silent.store(true, Ordering::SeqCst);
            return FakeReply::Silence;
        }
        FakeReply::Default
    })
    .unwrap();
    let link = link(&server).await;
    left(&server, &link).await;
    assert!(link.is_waiting());
    link.check_stall(1_000, 500);
    link.check_stall(1_499, 500);
    assert!(!link.is_dead(), "the time is not up");
    link.check_stall(1_500, 500);
    assert!(link.is_dead(), "nothing has come for as long as that");
}

/// What a task queued while the driver came to its end stayed in the queue, and the task waited for ever: the driver empties its queue once,
/// and a sender may be about to write into it.
#[tokio::test]
async fn what_is_queued_while_the_driver_ends_is_not_waited_for() {
    type Waits = Pin<Box<dyn Future<Output = Result<(), RedisError>> + Send>>;
    // Nothing answers what is queued here.
    let waits = |work: &Arc<DriverWork>| {
        let work = work.clone();
        Box::pin(async move { work.heard(pin!(std::future::pending())).await }) as Waits
    };
    let (mut cx, soon) = (Context::from_waker(std::task::Waker::noop()), Duration::from_secs(20));

    // In the middle of the last time that it is polled, by another thread.
    let queued: Arc<Mutex<Option<Waits>>> = Arc::default();
    let ending = queued.clone();
    let work = Arc::new(DriverWork::new(std::future::poll_fn(move |cx| {
        let mut queued = ending.lock().unwrap();
        let waits = queued.as_mut().unwrap();
        assert!(waits.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })));
    *queued.lock().unwrap() = Some(waits(&work));
    assert!(work.poll(&mut cx).is_ready());
    let waits_on = queued.lock().unwrap().take().unwrap();
    tokio::time::timeout(soon, waits_on).await.expect("it ends").unwrap_err();

    // After that, and after it was dropped from outside.
    tokio::time::timeout(soon, waits(&work)).await.expect("it ends").unwrap_err();
    let work = Arc::new(DriverWork::new(std::future::pending()));
    let mut before = waits(&work);
    assert!(work.poll(&mut cx).is_pending());
    assert!(before.as_mut().poll(&mut cx).is_pending(), "it is at rest, and sees what is queued");
    work.end();
    tokio::time::timeout(soon, waits(&work)).await.expect("it ends").unwrap_err();
}

/// The same with everything that is real. It needs two threads at one moment, so it proves little when it is green.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn calls_on_a_connection_that_is_cut_come_to_their_end() {
    let server = FakeServer::start(|_| FakeReply::Default).unwrap();
    for _ in 0..200 {
        let link = link(&server).await;
        let calls: Vec<_> = (0..6)
            .map(|_| {
                let link = link.clone();
                tokio::spawn(async move { while link.ask(&redis::cmd("PING")).await.is_ok() {} })
            })
            .collect();
        tokio::task::yield_now().await;
        link.cut();
        for call in calls {
            tokio::time::timeout(Duration::from_secs(20), call).await.expect("it ends").unwrap();
        }
    }
}

/// A thread stood still for half a second between the announcement of a call and its sending, by when the keeper had stopped looking:
/// an unlock waited for ever for a server that had died.
#[tokio::test]
async fn what_is_sent_is_watched_though_nothing_announces_it() {
    let server = FakeServer::start(|request| match &request[0].to_ascii_uppercase()[..] {
        b"EVALSHA" => FakeReply::Silence,
        _ => FakeReply::Default,
    })
    .unwrap();
    let timeout = Duration::from_millis(200);
    let client = Client::builder().url(server.url()).response_timeout(timeout).connect().await.unwrap();
    let call = Call::new(&scripts::QUERY).key(&Arc::from(&b"x"[..])).text(&"".into());
    let answer = client.core.store.run(call);
    let fault = tokio::time::timeout(Duration::from_secs(20), answer).await.expect("it ends").unwrap_err();
    assert!(fault.is_unknown(), "{fault}");
}

/// Each future that was moved into another one was in it twice: a call took 6,872 bytes, and pairs of a thousand tasks a third more
/// processor time, because they no longer fitted into its cache.
#[tokio::test]
async fn a_call_is_not_in_memory_twice() {
    let server = FakeServer::start(|_| FakeReply::Default).unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let call = Call::new(&scripts::QUERY).key(&Arc::from(&b"x"[..])).text(&"".into());
    let answer = client.core.store.run(call);
    let bytes = size_of_val(&*answer);
    assert!(bytes < 3_000, "{bytes} bytes");
}

/// Its answer is there, and the server has nothing else to answer: the connection was given up.
#[tokio::test]
async fn a_call_whose_caller_is_not_polled_leaves_its_connection_alone() {
    let silent = Arc::new(AtomicBool::new(false));
    let hangs = silent.clone();
    let server = FakeServer::start(move |request| match &request[0][..] {
        _ if hangs.load(Ordering::SeqCst) => FakeReply::Silence,
        b"PING" => FakeReply::Error("NOPERM not you".into()),
        _ => FakeReply::Default,
    })
    .unwrap();
    let link = link(&server).await;
    let cmd = redis::cmd("ECHO");
    let mut call = std::pin::pin!(link.ask(&cmd));
    assert!(futures_util::poll!(&mut call).is_pending());
    for n in 0..3 {
        link.check_stall(1_000 * n, 500);
        // Most answers come before that, and are not asked after.
        link.check_stall(1_000 * n + 250, 500);
        let answered = async {
            while link.tally.reached.load(Ordering::Relaxed) <= n {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), answered).await.expect("a refusal is an answer");
        assert!(link.is_waiting(), "its caller has not seen it");
    }
    // From here on nothing is answered, and the time counts as ever.
    silent.store(true, Ordering::SeqCst);
    link.check_stall(5_000, 500);
    link.check_stall(5_499, 500);
    assert!(!link.is_dead(), "the time is not up");
    link.check_stall(5_500, 500);
    assert!(link.is_dead());
    let _ = call.await;
}

#[tokio::test]
async fn an_answer_to_a_later_question_settles_what_nobody_waits_for() {
    // It is slow, and refuses to be pinged, which is an answer.
    let late = AtomicBool::new(false);
    let server = FakeServer::start(move |request| match &request[0][..] {
        b"LOST" => {
            late.store(true, Ordering::SeqCst);
            FakeReply::Silence
        }
        b"PING" if late.swap(false, Ordering::SeqCst) => {
            FakeReply::Raw(b"+OK\r\n-NOPERM not you\r\n".to_vec())
        }
        _ => FakeReply::Default,
    })
    .unwrap();
    let link = link(&server).await;
    for n in 0..3 {
        left(&server, &link).await;
        let settled = async {
            while link.is_waiting() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), settled).await.expect("it is settled");
        link.check_stall(10_000 * n, 500);
        link.check_stall(10_000 * n + 5_000, 500);
        assert!(!link.is_dead());
    }
}
