//! Wire facts of the rate limiter: keys, members and times to live after each step (`docs/protocol.md`, rate limiter).

use redlatch::{Client, ErrorKind, Rate};
use redlatch_testkit::{
    assert_keyspace,
    server::{KeyContent, RedisServer},
};

use crate::{
    fixture::{ms, soon},
    wire::{alone, heard},
};

const HOUR_MS: u64 = 3_600_000;

fn settings(rate: &str, interval: &str, kind: &str, keep_alive: &str) -> KeyContent {
    KeyContent::hash([("rate", rate), ("interval", interval), ("type", kind), ("keepAliveTime", keep_alive)])
}

/// What a set of grants holds: permits and time of each, after a look at the form of the members.
fn grants(server: &RedisServer, key: &str) -> Vec<(u32, u64)> {
    let dump = server.keys_dump().unwrap();
    let Some(KeyContent::SortedSet(members)) = dump.get(key.as_bytes()).map(|dump| dump.content.clone())
    else {
        return Vec::new();
    };
    let grants = members.iter().map(|(member, score)| {
        assert_eq!((member.len(), member[0]), (21, 16), "a length, 16 bytes, 4 bytes: {member:?}");
        let permits = u32::from_le_bytes(member[17..].try_into().unwrap());
        (permits, String::from_utf8(score.clone()).unwrap().parse().expect("whole milliseconds"))
    });
    grants.collect()
}

/// The set as it is, for comparing whole keyspaces.
fn set_of(server: &RedisServer, key: &str) -> KeyContent {
    server.keys_dump().unwrap()[key.as_bytes()].content.clone()
}

fn server_ms(server: &RedisServer) -> u64 {
    let redis::Value::Array(time) = server.cmd(&["TIME"]).unwrap() else { panic!() };
    let [seconds, micros] = [&time[0], &time[1]].map(|part| {
        let redis::Value::BulkString(text) = part else { panic!() };
        std::str::from_utf8(text).unwrap().parse::<u64>().unwrap()
    });
    seconds * 1_000 + micros / 1_000
}

fn member(permits: u32, id: u8) -> Vec<u8> {
    [&[16][..], &[id; 16], &permits.to_le_bytes()].concat()
}

/// Puts a grant there as another client would.
fn grant(server: &RedisServer, key: &str, permits: u32, at_ms: u64) {
    static NEXT: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(1);
    let id = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let at = at_ms.to_string();
    server.cmd(&[b"ZADD", key.as_bytes(), at.as_bytes(), &member(permits, id)]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_step_of_a_rate_limiter_leaves_the_documented_keys() {
    let (server, client) = alone().await;
    let limiter = client.rate_limiter("r");
    let messages = heard(&server, async {
        assert!(limiter.set_if_absent(Rate::per(10, ms(HOUR_MS))).await.unwrap());
        assert_keyspace!(server, tolerance_ms = 0, [("r", settings("10", "3600000", "0", "0"), None)]);
        let before = server_ms(&server);
        limiter.acquire(3).await.unwrap();
        limiter.acquire(1).await.unwrap();
        let taken = grants(&server, "{r}:permits");
        let mut counts: Vec<u32> = taken.iter().map(|(permits, _)| *permits).collect();
        counts.sort_unstable();
        assert_eq!(counts, [1, 3]);
        assert!(taken.iter().all(|(_, at)| (before..=server_ms(&server)).contains(at)), "the server's clock");
        assert_keyspace!(
            server,
            tolerance_ms = 0,
            [
                ("r", settings("10", "3600000", "0", "0"), None),
                ("{r}:value", KeyContent::string("6"), None),
                ("{r}:permits", set_of(&server, "{r}:permits"), None),
            ]
        );
        assert!(!limiter.try_acquire(7).await.unwrap());
        assert_eq!(limiter.release(2).await.unwrap(), 2);
        assert_eq!(grants(&server, "{r}:permits").iter().map(|(permits, _)| permits).sum::<u32>(), 2);
        assert!(limiter.update(Rate::per(5, ms(HOUR_MS))).await.unwrap());
        assert_keyspace!(
            server,
            tolerance_ms = 0,
            [
                ("r", settings("5", "3600000", "0", "0"), None),
                ("{r}:value", KeyContent::string("3"), None),
                ("{r}:permits", set_of(&server, "{r}:permits"), None),
            ]
        );
        limiter.set(Rate::per(7, ms(1_000)).per_client()).await.unwrap();
        assert_keyspace!(server, tolerance_ms = 0, [("r", settings("7", "1000", "1", "0"), None)]);
        assert!(limiter.delete().await.unwrap());
    })
    .await;
    assert_eq!(messages, [], "no step tells anybody");
    assert_keyspace!(server, tolerance_ms = 0, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_for_each_client_is_kept_under_its_identity() {
    let (server, client) = alone().await;
    for (name, prefix) in [("c", "{c}"), ("a{b}c", "a{b}c")] {
        let limiter = client.rate_limiter(name);
        limiter.set(Rate::per(4, ms(HOUR_MS)).per_client().keep_alive(ms(2 * HOUR_MS))).await.unwrap();
        limiter.acquire(3).await.unwrap();
        let permits = format!("{prefix}:permits:{}", client.id());
        assert_eq!(grants(&server, &permits).len(), 1);
        assert_keyspace!(
            server,
            tolerance_ms = 2_000,
            [
                (name, settings("4", "3600000", "1", "7200000"), Some(2 * HOUR_MS)),
                // Three of four are taken: a number without the rate follows every change of it.
                (format!("{prefix}:value:{}", client.id()), KeyContent::string("-3"), Some(2 * HOUR_MS)),
                (permits, set_of(&server, &permits), Some(2 * HOUR_MS)),
            ]
        );
        assert!(limiter.delete().await.unwrap());
        assert_keyspace!(server, tolerance_ms = 0, []);
    }
}

/// A client whose own keys kept an old time to live forgot what it had taken, and took more than its rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keep_alive_time_that_another_client_takes_away_ends_no_clients_own_keys() {
    let (server, client) = alone().await;
    let other = Client::connect(&server.url()).await.unwrap();
    let (limiter, others) = (client.rate_limiter("k"), other.rate_limiter("k"));
    let rate = Rate::per(4, ms(60_000)).per_client();
    limiter.set(rate.keep_alive(ms(90_000))).await.unwrap();
    others.acquire(1).await.unwrap();
    let ttls = || {
        let dump = server.keys_dump().unwrap();
        ["value", "permits"]
            .map(|part| dump[format!("{{k}}:{part}:{}", other.id()).as_bytes()].pttl_ms.is_some())
    };
    assert_eq!(ttls(), [true; 2]);
    limiter.set(rate).await.unwrap();
    others.acquire(1).await.unwrap();
    assert_eq!(ttls(), [false; 2], "the settings have none");
    assert!(limiter.update(rate.keep_alive(ms(90_000))).await.unwrap());
    assert!(!others.try_acquire(3).await.unwrap());
    assert_eq!(ttls(), [true; 2], "a refusal, too, goes by the settings");
    assert!(limiter.update(rate).await.unwrap());
    assert!(!others.try_acquire(3).await.unwrap());
    assert_eq!(ttls(), [false; 2]);
}

/// [testKeepAliveTime, testExpire, testExpire2]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_helper_keys_follow_the_time_to_live() {
    let (server, client) = alone().await;
    let limiter = client.rate_limiter("t");
    let ttls = || {
        let dump = server.keys_dump().unwrap();
        ["t", "{t}:value", "{t}:permits"].map(|key| dump.get(key.as_bytes()).and_then(|dump| dump.pttl_ms))
    };
    let near = |ttl: Option<u64>, want: u64| ttl.is_some_and(|ttl| ttl <= want && ttl + 2_000 >= want);
    limiter.set(Rate::per(5, ms(1_000)).keep_alive(ms(60_000))).await.unwrap();
    assert!(near(ttls()[0], 60_000), "before anybody asks, too: {:?}", ttls());
    server.cmd(&["PEXPIRE", "t", "20000"]).unwrap();
    limiter.acquire(5).await.unwrap();
    assert!(ttls().iter().all(|ttl| near(*ttl, 60_000)), "each request keeps it alive: {:?}", ttls());
    server.cmd(&["PEXPIRE", "t", "20000"]).unwrap();
    assert!(!limiter.try_acquire(5).await.unwrap());
    assert!(ttls().iter().all(|ttl| near(*ttl, 60_000)), "one that is refused too: {:?}", ttls());
    assert!(limiter.update(Rate::per(6, ms(1_000)).keep_alive(ms(90_000))).await.unwrap());
    assert!(ttls().iter().all(|ttl| near(*ttl, 90_000)), "{:?}", ttls());
    assert!(limiter.update(Rate::per(7, ms(1_000))).await.unwrap());
    assert_eq!(ttls(), [None; 3], "a keep-alive time that is taken away ends nothing any more");
    // A time to live that another client gives is left alone, and handed on.
    server.cmd(&["PEXPIRE", "t", "30000"]).unwrap();
    limiter.acquire(1).await.unwrap();
    assert!(ttls().iter().all(|ttl| near(*ttl, 30_000)), "{:?}", ttls());
    assert!(limiter.update(Rate::per(8, ms(1_000))).await.unwrap());
    assert!(ttls().iter().all(|ttl| near(*ttl, 30_000)), "{:?}", ttls());
    limiter.set(Rate::per(8, ms(1_000))).await.unwrap();
    assert!(near(ttls()[0], 30_000), "{:?}", ttls());
    limiter.acquire(1).await.unwrap();
    server.cmd(&["PEXPIRE", "t", "150"]).unwrap();
    limiter.acquire(1).await.unwrap();
    soon("the end of all three", async {
        while !server.keys_dump().unwrap().is_empty() {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    assert_eq!(limiter.try_acquire(1).await.unwrap_err().kind(), ErrorKind::NotInitialised);
}

/// [testRateValue]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_set_never_holds_more_than_the_rate() {
    let (server, client) = alone().await;
    let limiter = client.rate_limiter("v");
    limiter.set(Rate::per(20, ms(100))).await.unwrap();
    let mut takers = Vec::new();
    for _ in 0..100 {
        let limiter = limiter.clone();
        takers.push(tokio::spawn(async move { limiter.acquire(1).await.unwrap() }));
    }
    while takers.iter().any(|taker| !taker.is_finished()) {
        assert!(grants(&server, "{v}:permits").len() <= 20);
        tokio::time::sleep(ms(5)).await;
    }
    for taker in takers {
        soon("each permit", taker).await.unwrap();
    }
    assert_eq!(server.subscriber_channels().unwrap().len(), 0, "nobody listens to anything");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_leave_behind_is_reckoned_with() {
    let (server, client) = alone().await;
    let limiter = client.rate_limiter("o");
    limiter.set(Rate::per(5, ms(HOUR_MS))).await.unwrap();
    let now = server_ms(&server);
    // Grants without a number: the set alone says what is free.
    grant(&server, "{o}:permits", 2, now - 1_000);
    assert_eq!(limiter.available().await.unwrap(), 3);
    assert!(!limiter.try_acquire(4).await.unwrap());
    assert_keyspace!(
        server,
        tolerance_ms = 0,
        [
            ("o", settings("5", "3600000", "0", "0"), None),
            ("{o}:value", KeyContent::string("3"), None),
            ("{o}:permits", set_of(&server, "{o}:permits"), None),
        ]
    );
    // A number above the rate, as a client leaves it that adds up twice.
    server.cmd(&["SET", "{o}:value", "500"]).unwrap();
    assert_eq!(limiter.available().await.unwrap(), 3);
    assert!(!limiter.try_acquire(4).await.unwrap());
    // Old grants come free, and only they.
    grant(&server, "{o}:permits", 1, now - HOUR_MS - 1);
    grant(&server, "{o}:permits", 1, now - 2 * HOUR_MS);
    server.cmd(&["SET", "{o}:value", "1"]).unwrap();
    assert_eq!(limiter.available().await.unwrap(), 3);
    limiter.acquire(3).await.unwrap();
    assert_eq!(grants(&server, "{o}:permits").len(), 2);
    // A number that has lost permits is mended when nothing is taken.
    server.cmd(&["DEL", "{o}:permits"]).unwrap();
    assert_eq!(limiter.available().await.unwrap(), 5);
    limiter.acquire(5).await.unwrap();
    // Settings of a Redisson that knew no keep-alive time.
    server.cmd(&["HDEL", "o", "keepAliveTime"]).unwrap();
    assert!(!limiter.try_acquire(1).await.unwrap());
    assert_eq!(limiter.config().await.unwrap(), Some(Rate::per(5, ms(HOUR_MS))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_from_the_future_blocks_for_an_interval_only() {
    let (server, client) = alone().await;
    let limiter = client.rate_limiter("f");
    limiter.set(Rate::per(1, ms(200))).await.unwrap();
    let now = server_ms(&server);
    grant(&server, "{f}:permits", 1, now + HOUR_MS);
    server.cmd(&["SET", "{f}:value", "0"]).unwrap();
    assert!(!limiter.try_acquire(1).await.unwrap());
    let (_, at) = grants(&server, "{f}:permits")[0];
    assert!((now..=server_ms(&server)).contains(&at), "{at}: it was granted by now at the latest");
    soon("the interval", limiter.acquire(1)).await.unwrap();
    assert!(server_ms(&server) >= at + 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_delay_is_that_of_the_grant_that_matters() {
    let (server, client) = alone().await;
    let limiter = client.rate_limiter("d");
    limiter.set(Rate::per(400, ms(HOUR_MS))).await.unwrap();
    let now = server_ms(&server);
    for n in 0..150 {
        grant(&server, "{d}:permits", 2, now - HOUR_MS + 60_000 + n * 1_000);
    }
    server.cmd(&["SET", "{d}:value", "100"]).unwrap();
    let delay = |permits: &str| {
        let script = redlatch::scripts::RATE_TAKE.source();
        let keys = ["d", "{d}:value", "x", "{d}:permits", "y"];
        let args = [&["EVAL", script, "5"][..], &keys, &["7", permits, "id"]].concat();
        let redis::Value::Array(reply) = server.cmd(&args).unwrap() else { panic!() };
        assert_eq!(reply[..2], [redis::Value::Int(7), redis::Value::Int(0)]);
        let redis::Value::Int(delay) = reply[2] else { panic!() };
        // Some time has passed since the grants were put there.
        (u64::try_from(delay).unwrap() + server_ms(&server) - now) / 1_000
    };
    assert_eq!(delay("101"), 60);
    assert_eq!(delay("102"), 60);
    assert_eq!(delay("103"), 61);
    assert_eq!(delay("120"), 69);
    assert_eq!(delay("400"), 60 + 99, "the hundredth; then is time to look again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_another_form_are_refused_and_kept() {
    let (server, client) = alone().await;
    let limiter = client.rate_limiter("w");
    // Redisson below 3.17: a floating-point number and the permits.
    let old = [0.5_f32.to_le_bytes(), 1_u32.to_le_bytes()].concat();
    for (bad, at) in
        [(old.as_slice(), 0), (old.as_slice(), 1_000), (b"".as_slice(), 0), (b"\x10short".as_slice(), 0)]
    {
        limiter.set(Rate::per(5, ms(HOUR_MS))).await.unwrap();
        let at = (server_ms(&server) - HOUR_MS / 2 - at * HOUR_MS).to_string();
        server.cmd(&[b"ZADD".as_slice(), b"{w}:permits", at.as_bytes(), bad]).unwrap();
        server.cmd(&["SET", "{w}:value", "4"]).unwrap();
        let before = server.keys_dump().unwrap();
        for error in [limiter.try_acquire(1).await.unwrap_err(), limiter.available().await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
            assert!(error.to_string().contains("another format"), "{error}");
        }
        if at.parse::<u64>().unwrap() + HOUR_MS > server_ms(&server) {
            assert_eq!(limiter.release(1).await.unwrap_err().kind(), ErrorKind::WrongType);
            let rate = Rate::per(6, ms(HOUR_MS));
            assert_eq!(limiter.update(rate).await.unwrap_err().kind(), ErrorKind::WrongType);
        }
        assert_eq!(server.keys_dump().unwrap(), before, "nothing was changed");
    }
    limiter.set(Rate::per(5, ms(HOUR_MS))).await.unwrap();
    assert!(limiter.try_acquire(5).await.unwrap(), "a new start helps");
    server.cmd(&["SET", "{w}:value", "text"]).unwrap();
    for error in [limiter.try_acquire(1).await.unwrap_err(), limiter.release(1).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    }
    server.cmd(&["HSET", "w", "rate", "text"]).unwrap();
    assert_eq!(limiter.try_acquire(1).await.unwrap_err().kind(), ErrorKind::WrongLockKind);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_is_undone_once_and_by_its_id() {
    let (server, client) = alone().await;
    let limiter = client.rate_limiter("u");
    limiter.set(Rate::per(5, ms(HOUR_MS))).await.unwrap();
    limiter.acquire(2).await.unwrap();
    let id = [b'i'; 16];
    let call = |script: &str, permits: &str| {
        let keys = ["u", "{u}:value", "x", "{u}:permits", "y"];
        let text = [&["EVAL", script, "5"][..], &keys, &["7", permits]].concat();
        let mut words: Vec<&[u8]> = text.iter().map(|word| word.as_bytes()).collect();
        words.push(&id);
        let redis::Value::Array(reply) = server.cmd(&words).unwrap() else { panic!() };
        reply
            .iter()
            .map(|item| if let redis::Value::Int(n) = item { *n } else { panic!() })
            .collect::<Vec<_>>()
    };
    use redlatch::scripts::{RATE_RELEASE, RATE_TAKE};
    assert_eq!(call(RATE_RELEASE.source(), "3"), [7, 1, 0], "before it was granted there is nothing to undo");
    assert_eq!(call(RATE_TAKE.source(), "3"), [7, 1, 0]);
    assert_eq!(call(RATE_RELEASE.source(), "3"), [7, 1, 3]);
    assert_eq!(call(RATE_RELEASE.source(), "3"), [7, 1, 0]);
    assert_eq!(limiter.available().await.unwrap(), 3, "the other grant stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rights_are_enough() {
    let commands = "evalsha eval ping hmget hget hset exists get set incrby decrby zrange zrangebyscore zrem \
                    zremrangebyscore zadd zcard pttl pexpire persist del time";
    let allowed: String = commands.split_whitespace().map(|command| format!(" +{command}")).collect();
    let server = RedisServer::builder()
        .acl(&format!("limiter on >pw ~r ~{{r}}:* resetchannels -@all{allowed}"))
        .start()
        .unwrap();
    let builder = redlatch::Client::builder().url(server.url()).username("limiter").password("pw");
    let client = builder.connect().await.unwrap();
    let limiter = client.rate_limiter("r");
    assert!(limiter.set_if_absent(Rate::per(5, ms(200)).keep_alive(ms(60_000))).await.unwrap());
    limiter.acquire(5).await.unwrap();
    soon("the interval", limiter.acquire(2)).await.unwrap();
    assert_eq!(limiter.release(1).await.unwrap(), 1);
    assert!(limiter.update(Rate::per(6, ms(HOUR_MS))).await.unwrap());
    grant(&server, "{r}:permits", 1, server_ms(&server) + HOUR_MS);
    server.cmd(&["DEL", "{r}:value"]).unwrap();
    assert!(!limiter.try_acquire(6).await.unwrap());
    assert!(limiter.available().await.unwrap() > 0);
    limiter.set(Rate::per(1, ms(1)).per_client()).await.unwrap();
    limiter.acquire(1).await.unwrap();
    assert!(limiter.config().await.unwrap().is_some() && limiter.delete().await.unwrap());
}
