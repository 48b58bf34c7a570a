use redlatch_testkit::fake_server::{FakeReply, FakeServer};

use super::*;
use crate::{client::Client, config::url::StoreUrl};

async fn until(what: &str, happened: impl Fn() -> bool) {
    let happens = async {
        while !happened() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), happens).await.expect(what);
}

fn dial(server: &FakeServer) -> Arc<Dial> {
    let url = server.url();
    let StoreUrl::Redis(addr) = StoreUrl::parse(&url).unwrap() else { panic!("{url}") };
    let config = Client::builder().url(&url).config().clone();
    Arc::new(Dial::new(addr, &config, &Handle::current()).unwrap())
}

fn add(task: &mut Task, sink: &PubSubSink, channel: &Channel) -> oneshot::Receiver<Result<(), Fault>> {
    let (confirm, confirmed) = oneshot::channel();
    let listener: Listener = Arc::new(|_| {});
    task.note(Order::Add { channel: channel.clone(), id: 1, listener, confirm });
    task.request(sink, channel.clone());
    confirmed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_each_connection_is_connected_to_with_pauses() {
    let server = FakeServer::start(|request| match &request[0][..] {
        b"SUBSCRIBE" => FakeReply::Close,
        _ => FakeReply::Default,
    })
    .unwrap();
    let hub = Hub::start(dial(&server), &Handle::current());
    let _subscribing = hub.subscribe(b"c"[..].into(), Arc::new(|_| {}));
    let began = std::time::Instant::now();
    until("another connection", || server.connections_accepted() > 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (connections, seconds) = (server.connections_accepted(), began.elapsed().as_secs_f64());
    assert!(connections as f64 <= 15.0 * seconds, "{connections} connections in {seconds} s");
    hub.close();
}

/// Each request was sent by a task of its own, and on a runtime of several threads the one that ended the old subscription went out
/// behind the one that began the new one: nothing was heard of the channel any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_that_is_wanted_again_as_it_is_left_is_subscribed_last() {
    let server = FakeServer::start(|_| FakeReply::Default).unwrap();
    let (orders, mut inbox) = mpsc::unbounded_channel();
    let mut task = Task::new(dial(&server), false, orders.downgrade());
    // On a thread of the runtime, as the hub.
    let left_and_wanted = tokio::spawn(async move {
        let (mut sink, stream) = task.connect(&mut inbox).await.unwrap();
        for n in 0..50 {
            let channel: Channel = format!("c{n}").into_bytes().into();
            let _confirmed = add(&mut task, &sink, &channel);
            until("the first subscription", || server.count("SUBSCRIBE") == 2 * n + 1).await;
            task.note(Order::Remove { channel: channel.clone(), id: 1 });
            task.linger[0].0 = Instant::now();
            task.leave(&mut sink);
            let _confirmed = add(&mut task, &sink, &channel);
            until("the end of it", || server.count("UNSUBSCRIBE") == n + 1).await;
            until("the second one", || server.count("SUBSCRIBE") == 2 * n + 2).await;
        }
        drop((stream, orders));
        server.requests()
    });
    let requests = left_and_wanted.await.unwrap();
    let verbs = requests.iter().map(|request| String::from_utf8_lossy(&request[0]).to_ascii_uppercase());
    let verbs: Vec<_> = verbs.filter(|verb| verb.ends_with("SUBSCRIBE")).collect();
    for (n, verbs) in verbs.chunks(3).enumerate() {
        assert_eq!(verbs, ["SUBSCRIBE", "UNSUBSCRIBE", "SUBSCRIBE"], "channel {n}");
    }
}

/// Names that are waited for once piled up for as long as an outage lasted.
#[tokio::test]
async fn channels_that_nobody_waits_for_do_not_pile_up_while_there_is_no_connection() {
    let server = FakeServer::start(|_| FakeReply::Default).unwrap();
    let (orders, _inbox) = mpsc::unbounded_channel();
    let mut task = Task::new(dial(&server), false, orders.downgrade());
    for n in 0..1_000 {
        let channel: Channel = format!("c{n}").into_bytes().into();
        let (confirm, _confirmed) = oneshot::channel();
        let listener: Listener = Arc::new(|_| {});
        task.note(Order::Add { channel: channel.clone(), id: n, listener, confirm });
        assert_eq!(task.channels.len(), 1);
        task.note(Order::Remove { channel, id: n });
    }
    assert_eq!((task.channels.len(), task.linger.len()), (0, 0));
}

/// What the server said of an earlier request was taken for its answer to the later one, before it had subscribed again.
#[tokio::test]
async fn a_late_answer_to_an_earlier_request_confirms_nothing() {
    let server = FakeServer::start(|_| FakeReply::Default).unwrap();
    let (orders, mut inbox) = mpsc::unbounded_channel();
    let mut task = Task::new(dial(&server), false, orders.downgrade());
    let (mut sink, _stream) = task.connect(&mut inbox).await.unwrap();
    let channel: Channel = b"c"[..].into();
    let _confirmed = add(&mut task, &sink, &channel);
    task.note(Order::Remove { channel: channel.clone(), id: 1 });
    task.linger[0].0 = Instant::now();
    task.leave(&mut sink);
    let mut confirmed = add(&mut task, &sink, &channel);
    for is_last in [false, true] {
        let answer = tokio::time::timeout(Duration::from_secs(20), inbox.recv()).await.expect("an answer");
        let Some(Order::Confirmed { channel, request, outcome }) = answer else { panic!("it confirms") };
        task.confirmed(&channel, request, outcome);
        assert_eq!(confirmed.try_recv().is_ok(), is_last);
    }
}

/// The whole connection was made anew, so for a moment no channel was heard, and each was asked for once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_that_is_refused_in_passing_is_asked_for_again_alone() {
    let refusals = AtomicU64::new(0);
    let server =
        FakeServer::start(move |request| match (&request[0][..], request.get(1).map(|name| &name[..])) {
            (b"SUBSCRIBE", Some(b"refused")) if refusals.fetch_add(1, Ordering::SeqCst) < 3 => {
                FakeReply::Error("BUSY Redis is busy running a script".to_owned())
            }
            _ => FakeReply::Default,
        })
        .unwrap();
    let hub = Hub::start(dial(&server), &Handle::current());
    let interruptions = Arc::new(AtomicU64::new(0));
    let told = interruptions.clone();
    let listener: Listener = Arc::new(move |_| _ = told.fetch_add(1, Ordering::SeqCst));
    let _other = hub.subscribe(b"other"[..].into(), listener).await.unwrap_or_else(|fault| panic!("{fault}"));
    let refused = hub.subscribe(b"refused"[..].into(), Arc::new(|_| {}));
    let limit = Duration::from_secs(20);
    let refused = tokio::time::timeout(limit, refused).await.expect("it is asked for again");
    let _refused = refused.unwrap_or_else(|fault| panic!("{fault}"));
    let asked = |channel: &[u8]| {
        let requests = server.requests();
        requests.iter().filter(|request| request[0] == b"SUBSCRIBE" && request[1] == channel).count()
    };
    assert_eq!((asked(b"refused"), asked(b"other"), server.connections_accepted()), (4, 1, 1));
    assert!(hub.is_subscribed(b"other") && hub.is_subscribed(b"refused"));
    assert_eq!(interruptions.load(Ordering::SeqCst), 0);
    hub.close();
}
