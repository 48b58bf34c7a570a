use super::{read::is_seen, *};

#[test]
fn a_replica_that_has_gone_is_not_counted() {
    let replica = |flags: &str, quiet_ms: &str| {
        let words = ["ip", "h", "flags", flags, "last-ok-ping-reply", quiet_ms];
        Reply::Array(words.map(|word| Reply::Bytes(word.into())).into())
    };
    for (flags, quiet_ms, seen) in [
        ("slave", "90000", true),
        ("slave,promoted", "1", true),
        ("slave,s_down", "1", false),
        ("slave,disconnected", "2000", false),
        ("slave,disconnected", "?", false),
        // A sentinel that has just changed masters is about to connect to all of them, and listed none for as long.
        ("slave,disconnected", "1999", true),
        ("s_down,slave,disconnected", "1", false),
    ] {
        assert_eq!(is_seen(&replica(flags, quiet_ms)), seen, "{flags} {quiet_ms}");
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
    assert_eq!(replicas_of(&addr(1), &addr(2), &superseded, |addr| addr), Some(vec![(None, addr(2))]));
    for (master, named, ports) in [
        (1, 1, Some(&[2, 3][..])),
        (2, 1, Some(&[3, 1])),
        (2, 2, Some(&[3, 2])),
        (4, 1, None),
        (4, 4, Some(&[2, 3])),
        (1, 2, None),
    ] {
        let told = replicas_of(&addr(master), &addr(named), &listed, |addr| addr);
        let wanted = ports.map(|ports| ports.iter().map(|port| (None, addr(*port))).collect());
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
