use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    resp,
};

use super::{
    super::listed::Listed,
    read::{Sight, Told, replicas_of, sight},
    *,
};
use crate::{client::Client, store::StoreUrl};

#[test]
fn a_replica_that_has_gone_is_not_counted() {
    let replica = |flags: &str, quiet_ms: &str| {
        let words = ["ip", "h", "flags", flags, "last-ok-ping-reply", quiet_ms];
        Reply::Array(words.map(|word| Reply::Bytes(word.into())).into())
    };
    for (flags, quiet_ms, wanted) in [
        ("slave", "90000", Sight::Seen),
        ("slave,promoted", "1", Sight::Seen),
        ("slave,s_down", "1", Sight::Down),
        ("slave,disconnected", "2000", Sight::Lost),
        ("slave,disconnected", "?", Sight::Lost),
        // A sentinel that has just changed masters is about to connect to all of them, and listed none for as long.
        ("slave,disconnected", "1999", Sight::Seen),
        ("s_down,slave,disconnected", "1", Sight::Down),
    ] {
        assert_eq!(sight(&replica(flags, quiet_ms)), wanted, "{flags} {quiet_ms}");
    }
}

/// What was just being promoted had no replica yet, so that a grant there was confirmed by all of none.
#[test]
fn a_replica_that_is_promoted_is_to_have_the_others_and_the_former_master() {
    let replica = |port: &str| {
        let words = ["ip", "h", "port", port, "flags", "slave"];
        Reply::Array(words.map(|word| Reply::Bytes(word.into())).into())
    };
    let addr = |port: u16| Addr::Tcp { host: "h".into(), port };
    let listed = [replica("2"), replica("3")];
    // A superseded master, which the sentinel does not see, has no less than its successor.
    let words = ["ip", "h", "port", "1", "flags", "slave,s_down"];
    let superseded = [Reply::Array(words.map(|word| Reply::Bytes(word.into())).into())];
    let seen = |addr| Told { run: None, addr, sight: Sight::Seen };
    assert_eq!(replicas_of(&addr(1), &addr(2), &superseded, |addr| addr), Some(vec![seen(addr(2))]));
    for (master, named, ports) in [
        (1, 1, Some(&[2, 3][..])),
        (2, 1, Some(&[3, 1])),
        (2, 2, Some(&[3, 2])),
        (4, 1, None),
        (4, 4, Some(&[2, 3])),
        (1, 2, None),
    ] {
        let told = replicas_of(&addr(master), &addr(named), &listed, |addr| addr);
        let wanted = ports.map(|ports| ports.iter().map(|port| seen(addr(*port))).collect());
        assert_eq!(told, wanted, "{master} where {named} is named");
    }
}

#[test]
fn host_names_and_ipv6_addresses_are_addresses() {
    let bulk = |text: &str| Reply::Bytes(text.as_bytes().to_vec());
    assert_eq!(address(&bulk("fe80::1"), &bulk("6379")).unwrap().to_string(), "[fe80::1]:6379");
    assert_eq!(address(&bulk("db.example"), &bulk("7000")).unwrap().to_string(), "db.example:7000");
    assert_eq!(address(&bulk(""), &bulk("7000")), None);
    assert_eq!(address(&bulk("h"), &bulk("0")), None);
}

/// A sentinel gives up a connection over which nothing comes, and makes another one: the replica was left out meanwhile, and was the next master a second later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_a_sentinel_is_connecting_to_again_counts_unless_no_process_listens_there() {
    let replica = FakeServer::start(|_| FakeReply::Silence).unwrap();
    let port = |server: &FakeServer| server.url().rsplit(':').next().unwrap().to_owned();
    let nobody = redlatch_testkit::net::ReservedPort::new(0).unwrap();
    let ports = [port(&replica), nobody.port().to_string()];
    let sentinel = FakeServer::start(move |request| {
        match request.get(1).map(|word| word.to_ascii_lowercase()).as_deref() {
            Some(b"get-master-addr-by-name") => {
                FakeReply::Reply(resp::array(&[resp::bulk("127.0.0.1"), resp::bulk("1")]))
            }
            Some(b"replicas") => {
                let listed = ports.each_ref().map(|port| {
                    let words = [
                        "ip",
                        "127.0.0.1",
                        "port",
                        port,
                        "flags",
                        "slave,disconnected",
                        "last-ok-ping-reply",
                        "6100",
                    ];
                    resp::array(&words.map(resp::bulk))
                });
                FakeReply::Reply(resp::array(&listed))
            }
            _ => FakeReply::Default,
        }
    })
    .unwrap();
    let url = format!("redis-sentinel://127.0.0.1:{}/m", port(&sentinel));
    let StoreUrl::Sentinel(sentinels) = StoreUrl::parse(&url).unwrap() else { panic!("{url}") };
    let config = Client::builder().url(&url).config().clone();
    let set = SentinelSet::new(&sentinels, &config, &Handle::current()).unwrap();
    let at = |port: &str| Addr::Tcp { host: "127.0.0.1".into(), port: port.parse().unwrap() };
    let listed = set.replicas_of(&at("1"), Duration::from_secs(20)).await;
    assert_eq!(listed, Some(Listed::Servers(vec![vec![at(&port(&replica))]])));
}
