use redlatch_testkit::fake_server::{FakeReply, FakeServer};

use super::{
    super::{finder::ANSWER_GRACE, following::FollowingStore},
    *,
};
use crate::{client::Client, store::StoreUrl};

const LIMIT: Duration = Duration::from_secs(20);

/// How far the master's data have gone with a grant.
const GRANT: u64 = 70;

/// What a server says of itself.
#[derive(Clone, Copy)]
struct Says {
    role: &'static str,
    run: &'static str,
    /// Its history, and the one that it has gone on from.
    history: (&'static str, &'static str),
    /// How far its data have gone.
    offset: u64,
    /// How far away it is; `None`: it says nothing.
    after: Option<Duration>,
    /// Instead of saying nothing it ends the connection.
    ends: bool,
}

fn says(role: &'static str, run: &'static str) -> Says {
    Says { role, run, history: ("aa", ""), offset: GRANT, after: Some(Duration::ZERO), ends: false }
}

/// A server that says this at the time.
fn server(says: &Arc<Mutex<Says>>) -> FakeServer {
    let says = says.clone();
    let bulk = |text: String| FakeReply::Raw(format!("${}\r\n{text}\r\n", text.len()).into_bytes());
    FakeServer::start(move |request| {
        let Says { role, run, history: (id, before), offset, after, ends } = *says.lock().unwrap();
        let words: Vec<_> = request.iter().map(|word| word.to_ascii_lowercase()).collect();
        if !matches!(&words[0][..], b"role" | b"info") {
            return FakeReply::Default;
        }
        let Some(after) = after else {
            return if ends { FakeReply::Close } else { FakeReply::Silence };
        };
        std::thread::sleep(after);
        match &words[..] {
            [_] => FakeReply::Raw(match role {
                "master" => b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_vec(),
                _ => b"*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:1\r\n$9\r\nconnected\r\n:0\r\n".to_vec(),
            }),
            [_, part] if part == b"server" => bulk(format!("run_id:{run}\r\n")),
            _ => bulk(format!(
                "role:{role}\r\nmaster_replid:{id}\r\nmaster_replid2:{before}\r\n{role}_repl_offset:{offset}\r\n"
            )),
        }
    })
    .unwrap()
}

struct Set {
    says: [Arc<Mutex<Says>>; 3],
    servers: [FakeServer; 3],
    nodes: Nodes,
    finder: Replicated,
    look: Arc<Look>,
}

/// Three servers, the first of which is the master.
fn set() -> Set {
    let says = [("master", "aa11"), ("slave", "bb22"), ("slave", "cc33")]
        .map(|(role, run)| Arc::new(Mutex::new(says(role, run))));
    let servers = says.each_ref().map(server);
    let addrs = servers.each_ref().map(|server| server.url().replace("redis://", "")).join(",");
    let url = format!("redis-replicated://{addrs}");
    let StoreUrl::Replicated(nodes) = StoreUrl::parse(&url).unwrap() else { panic!("{url}") };
    let config = Client::builder().url(&url).config().clone();
    let finder = Replicated::new(&nodes, &config, &Handle::current()).unwrap();
    let look = Arc::new(Look::default());
    finder.listen(&look);
    Set { says, servers, nodes, finder, look }
}

impl Set {
    fn say(&self, at: usize, change: impl FnOnce(&mut Says)) {
        change(&mut self.says[at].lock().unwrap());
    }

    /// How many lack a grant of that one when they are asked once.
    async fn lack(&self, master: usize) -> u32 {
        self.finder.lack(&self.nodes.addrs[master], GRANT, &mut SeededSet::default(), LIMIT).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_promoted_is_missing_among_all_and_has_a_look_taken() {
    let set = set();
    // A look has met it as a replica, or a count has.
    for is_found in [true, false] {
        if is_found {
            set.finder.find(&Memory::default(), LIMIT).await.unwrap();
        } else {
            assert_eq!(set.lack(0).await, 0);
        }
        set.say(1, |says| says.role = "master");
        assert_eq!(set.lack(0).await, 1, "found: {is_found}");
        tokio::time::timeout(LIMIT, set.look.wanted.notified()).await.expect("a look is wanted");
        // Once it is followed, the master that it has gone on from is not counted; any other one is.
        assert_eq!(set.lack(1).await, 1);
        for at in [1, 2] {
            set.say(at, |says| says.history = ("bb", "aa"));
        }
        assert_eq!(set.lack(1).await, 0);
        set.say(1, |says| says.role = "slave");
        for at in [1, 2] {
            set.say(at, |says| says.history = ("aa", ""));
        }
    }
}

/// An unnamed replica of our master confirmed in its place, and it was promoted by hand when both masters had gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_copies_another_master_lacks_what_ours_grants() {
    let set = set();
    assert_eq!(set.lack(0).await, 0);
    set.say(2, |says| says.history = ("zz", ""));
    assert_eq!(set.lack(0).await, 1);
    // Of a master that does not tell its history, nothing is had for certain.
    for at in [0, 1, 2] {
        set.say(at, |says| says.history = ("", ""));
    }
    assert_eq!(set.lack(0).await, 2);
}

/// A replica that had lost its master and did not know it was counted as linked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_says_itself_whether_it_has_a_grant() {
    let set = set();
    set.say(2, |says| says.offset = GRANT - 1);
    assert_eq!(set.lack(0).await, 1);
    let master = &set.nodes.addrs[0];
    assert_eq!(set.finder.lack_at_last(master, GRANT, ANSWER_GRACE).await, 1);
    let asked = set.servers[2].count("INFO");
    let (lacking, ()) = tokio::join!(set.finder.lack_at_last(master, GRANT, LIMIT), async {
        // It was asked more than once by then.
        while set.servers[2].count("INFO") < asked + 6 {
            tokio::task::yield_now().await;
        }
        set.say(2, |says| says.offset = GRANT + 1);
    });
    assert_eq!(lacking, 0);
    // One that has said so once is not missed when it says nothing any more.
    let mut have = SeededSet::default();
    assert_eq!(set.finder.lack(master, GRANT, &mut have, LIMIT).await, 0);
    set.say(2, |says| says.after = None);
    assert_eq!(set.finder.lack(master, GRANT, &mut have, LIMIT).await, 0);
    assert_eq!(set.lack(0).await, 1);
}

/// A replica that was started anew and promoted at once is another process than the one that was the replica. It counted as nothing, and all of the others had
/// confirmed what it granted, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_started_anew_and_promoted_is_missing_among_all() {
    let set = set();
    assert_eq!(set.lack(0).await, 0);
    set.say(1, |says| (says.role, says.run, says.history) = ("master", "dd44", ("bb", "aa")));
    assert_eq!(set.lack(0).await, 1);
    tokio::time::timeout(LIMIT, set.look.wanted.notified()).await.expect("a look is wanted");
    // The master by another name is no other one.
    set.say(1, |says| (says.run, says.history) = ("aa11", ("aa", "")));
    assert_eq!(set.lack(0).await, 0);
}

/// A look ended 200 ms after the master that had been superseded: a server that is farther away was never heard, and two were granted the same
/// for as long as the old one went on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_server_that_is_far_away_is_heard_beside_a_near_master_that_it_has_superseded() {
    let set = set();
    for at in [1, 2] {
        set.say(at, |says| says.after = Some(2 * ANSWER_GRACE));
    }
    set.say(1, |says| (says.role, says.history) = ("master", ("bb", "aa")));
    let mut memory = Memory::default();
    let heard = async {
        loop {
            let said = set.finder.find(&memory, LIMIT).await.unwrap();
            memory.judge(&said, Instant::now());
            if memory.present().unwrap().addr == set.nodes.addrs[1] {
                return;
            }
            // What comes late has a look taken.
            set.look.wanted.notified().await;
        }
    };
    tokio::time::timeout(LIMIT, heard).await.expect("the promoted one is followed");
    // From then on it is heard each time, and a server that hangs delays nobody for long.
    set.say(2, |says| says.after = None);
    for _ in 0..2 {
        let said = set.finder.find(&memory, LIMIT).await.unwrap();
        assert_eq!((said.claims.len(), said.answered), (2, 2));
    }
}

/// Replicas that did not answer in time counted as none, so that all of none confirmed what a superseded master granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_do_not_answer_are_missing_among_all() {
    let set = set();
    assert_eq!(set.lack(0).await, 0);
    for at in [1, 2] {
        set.say(at, |says| says.after = None);
    }
    assert_eq!(set.lack(0).await, 2);
    let remembers = |server: &Arc<Asked>| server.silent_replica().is_some();
    assert_eq!(set.finder.servers.iter().filter(|server| remembers(server)).count(), 2);
    for server in &set.finder.servers[1..] {
        server.copy().as_mut().unwrap().at -= REPLICA_MEMORY;
    }
    assert_eq!(set.lack(0).await, 0, "after so long they are gone");
}

/// To a new client they were none as well, and so were those whose connections end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_a_new_client_has_never_heard_are_missing_among_all() {
    for ends in [false, true] {
        let set = set();
        for at in [1, 2] {
            set.say(at, |says| (says.after, says.ends) = (None, ends));
        }
        assert_eq!(set.lack(0).await, 2, "ends: {ends}");
    }
}

/// A client that connected while the master hung waited for that one until its time was up, though a replica had been promoted meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_connects_while_the_master_hangs_finds_the_one_that_takes_its_place() {
    let set = set();
    set.say(0, |says| says.after = None);
    let url = StoreUrl::Replicated(set.nodes.clone()).to_string();
    let config = Client::builder().url(&url).config().clone();
    let promoted = async {
        while set.servers[1].count("ROLE") == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        set.say(1, |says| (says.role, says.history) = ("master", ("bb", "aa")));
    };
    let background = Handle::current();
    let opened = FollowingStore::of_replicated(&set.nodes, &config, &background);
    let (store, ()) = tokio::join!(opened, promoted);
    let store = store.unwrap();
    assert!(store.describe().ends_with(&set.nodes.addrs[1].to_string()), "{}", store.describe());
    store.close();
}
