use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;

fn server(text: &str) -> Server {
    match StoreUrl::parse(text).unwrap() {
        StoreUrl::Redis(server) => server,
        other => panic!("{other:?}"),
    }
}

fn sentinels(text: &str) -> Sentinels {
    match StoreUrl::parse(text).unwrap() {
        StoreUrl::Sentinel(sentinels) => sentinels,
        other => panic!("{other:?}"),
    }
}

fn nodes(text: &str) -> Nodes {
    match StoreUrl::parse(text).unwrap() {
        StoreUrl::Cluster(nodes) | StoreUrl::Replicated(nodes) => nodes,
        other => panic!("{other:?}"),
    }
}

fn tcp(host: &str, port: u16) -> Addr {
    Addr::Tcp { host: host.into(), port }
}

fn login(access: &Access) -> (Option<&str>, Option<&str>) {
    (access.username.as_deref(), access.password.0.as_deref())
}

#[test]
fn each_scheme_is_understood() {
    assert_eq!(StoreUrl::parse("local:").unwrap(), StoreUrl::Local { name: None, dir: None });
    for empty in ["", "  "] {
        let error = StoreUrl::parse(empty).unwrap_err();
        assert!(error.to_string().contains("empty"), "{error}");
    }
    assert_eq!(StoreUrl::parse("local:ci").unwrap(), StoreUrl::Local { name: Some("ci".into()), dir: None });
    for url in ["local:///run/redlatch", "local:/run/redlatch", "local:///run/re%64latch"] {
        let dir = Some("/run/redlatch".into());
        let read = StoreUrl::parse(url).unwrap();
        assert_eq!(read, StoreUrl::Local { name: None, dir }, "{url}");
        assert_eq!(read.to_string(), "local:///run/redlatch");
    }
    assert!(StoreUrl::parse("local:///run/redlatch?name=x").is_err());
    assert_eq!(StoreUrl::parse("memory:").unwrap(), StoreUrl::Memory { name: None });
    let one = server("redis://alice:p%40ss@db.example:7000/3");
    assert_eq!(one.addr, tcp("db.example", 7000));
    assert_eq!((login(&one.access), one.access.database), ((Some("alice"), Some("p@ss")), 3));
    let one = server("rediss://secret@[::1]");
    assert!(one.access.tls);
    assert_eq!((&one.addr, login(&one.access)), (&tcp("::1", 6379), (None, Some("secret"))));
    assert!(server("valkeys://h").access.tls && !server("valkey://h").access.tls);
    let one = server("unix:///run/redis.sock?db=2&user=u&pass=p");
    assert_eq!(one.addr, Addr::Unix("/run/redis.sock".into()));
    assert_eq!((login(&one.access), one.access.database), ((Some("u"), Some("p")), 2));
}

#[test]
fn sentinels_are_named_with_their_master_and_both_logins() {
    let all = sentinels(
        "redis-sentinel://app:s%3Acret@h1,h2:7001,[::1]:7002/my%2Fmaster/4?sentinel_username=watch&sentinel_password=p%26q+r",
    );
    assert_eq!(all.sentinels.addrs, [tcp("h1", 26379), tcp("h2", 7001), tcp("::1", 7002)]);
    assert_eq!((all.master.as_str(), all.access.database), ("my/master", 4));
    assert_eq!(login(&all.access), (Some("app"), Some("s:cret")));
    assert_eq!(login(&all.sentinels.access), (Some("watch"), Some("p&q+r")));
    assert_eq!(all.sentinels.access.database, 0);
    assert!(!all.access.tls && !all.sentinels.access.tls);
    // Without credentials of their own sentinels get none: the data's password is none of their business.
    let all = sentinels("rediss-sentinel://secret@h/m?db=1");
    assert_eq!((login(&all.access), login(&all.sentinels.access)), ((None, Some("secret")), (None, None)));
    assert!(all.access.tls && all.sentinels.access.tls);
    assert_eq!(all.access.database, 1);
    assert_eq!(sentinels("valkey-sentinel://h/m"), sentinels("redis-sentinel://h/m"));
    assert_eq!(sentinels("valkeys-sentinel://h/m"), sentinels("rediss-sentinel://h/m"));
}

#[test]
fn clusters_and_replicated_servers_are_lists_of_nodes() {
    let all = nodes("redis-cluster://u:p@H1,h2:7001/0");
    assert_eq!(all.addrs, [tcp("h1", 6379), tcp("h2", 7001)]);
    assert_eq!(login(&all.access), (Some("u"), Some("p")));
    assert!(matches!(StoreUrl::parse("redis-cluster://h").unwrap(), StoreUrl::Cluster(_)));
    assert!(matches!(StoreUrl::parse("redis-replicated://h").unwrap(), StoreUrl::Replicated(_)));
    assert_eq!(nodes("redis-replicated://h1,h2/5").access.database, 5);
    for (plain, twin) in [
        ("redis-cluster://h", "valkey-cluster://h"),
        ("rediss-cluster://h", "valkeys-cluster://h"),
        ("redis-replicated://h", "valkey-replicated://h"),
        ("rediss-replicated://h", "valkeys-replicated://h"),
    ] {
        assert_eq!(StoreUrl::parse(plain).unwrap(), StoreUrl::parse(twin).unwrap());
        assert_eq!(nodes(plain).access.tls, plain.starts_with("rediss"));
    }
}

#[test]
fn a_user_without_password_waits_for_one_from_elsewhere() {
    assert_eq!(login(&server("redis://alice:@h").access), (Some("alice"), None));
    assert_eq!(login(&server("redis://:secret@h").access), (None, Some("secret")));
    assert_eq!(login(&server("redis://a:b:c@h").access), (Some("a"), Some("b:c")));
    // The last @ ends the credentials, so that one in a password is no other host.
    let one = server("redis://:p@ss@h");
    assert_eq!((&one.addr, login(&one.access)), (&tcp("h", 6379), (None, Some("p@ss"))));
}

#[test]
fn options_of_the_client_are_read_from_every_network_scheme() {
    for form in
        ["redis://h", "unix:///s", "redis-sentinel://h/m", "redis-cluster://h", "redis-replicated://h"]
    {
        let (_, options) =
            StoreUrl::parse_with_options(&format!("{form}?sharded=compat&scripts=functions")).unwrap();
        assert_eq!(options.sharded, Some(ShardedPubSub::Compat), "{form}");
        assert_eq!(options.scripts, Some(ScriptMode::Functions), "{form}");
        assert_eq!(StoreUrl::parse_with_options(form).unwrap().1, UrlOptions::default());
    }
}

#[test]
fn what_is_shown_of_a_url_is_all_but_its_secrets() {
    for (text, shown) in [
        ("redis://u:hunter2@h/1", "redis://h:6379 database 1"),
        ("rediss://u:hunter2@[::1]", "rediss://[::1]:6379"),
        (
            "redis-sentinel://hunter2@a,b:1/m/2?sentinel_password=hunter2",
            "redis-sentinel://a:26379,b:1/m database 2",
        ),
        ("rediss-cluster://hunter2@a,b", "rediss-cluster://a:6379,b:6379"),
        ("valkey-replicated://hunter2@a", "redis-replicated://a:6379"),
        ("unix:///s?pass=hunter2", "unix:///s"),
    ] {
        let url = StoreUrl::parse(text).unwrap();
        assert_eq!(url.to_string(), shown);
        assert!(!format!("{url:?}").contains("hunter2"), "{url:?}");
    }
}

#[test]
fn faults_are_named_and_secrets_are_not() {
    for (text, fault) in [
        ("redis://user:hunter2@", "no host"),
        ("redis://user:hunter2@host:notaport", "not a number"),
        ("redis://:hunter2@host:", "not between"),
        ("redis://:hunter2@host:0", "not between"),
        ("redis://:hunter2@host:65536", "not between"),
        ("nonsense", "no scheme"),
        ("http://user:hunter2@h", "scheme is not known"),
        ("redis:hunter2@h", "lacks the //"),
        ("redis://h/hunter2", "database"),
        ("redis://h/+1", "database"),
        ("redis://h/1/2", "database"),
        ("redis://h/1?db=1", "twice"),
        ("unix:relative?pass=hunter2", "absolute"),
        ("redis://:hunter2%zz@h", "hexadecimal"),
        ("redis://:hunter2%+5@h", "hexadecimal"),
        ("redis://:hunter2%ff@h", "UTF-8"),
        ("redis://:hunter2#x@h", "%23"),
        ("local:../hunter2", "engine name"),
        ("redis://h/0?pw=hunter2", "parameter"),
        ("redis://h?password=hunter2", "before the host"),
        ("redis://h?sentinel_password=hunter2", "names none"),
        ("unix:///s?sentinel_password=hunter2", "names none"),
        ("redis://hunter2@h1,h2", "several"),
        ("redis://h?sharded=hunter2", "sharded"),
        ("redis://h?scripts=hunter2", "scripts"),
        ("redis://h?db=1&db=2", "twice"),
        ("redis-sentinel://hunter2@h", "master"),
        ("redis-sentinel://hunter2@h//1", "master"),
        ("redis-sentinel://hunter2@h1,H1:26379/m", "host twice"),
        ("redis-cluster://hunter2@h1,,h2", "host name"),
        ("redis-cluster://hunter2@h1/1", "only database 0"),
        ("redis-cluster://hunter2@h1?db=1", "only database 0"),
        ("redis-replicated://[::1,h", "without a ]"),
        ("redis-replicated://[nonsense]", "IPv6"),
        ("redis-replicated://[::1]7000", "port"),
        ("redis-replicated://::1", "must stand in []"),
        ("redis-replicated://a%20b", "malformed"),
    ] {
        let error = StoreUrl::parse(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{text}");
        assert!(error.to_string().contains(fault), "{text}: {error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}

fn encode(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text: String) {
        let _ = StoreUrl::parse(&text);
        for scheme in ["redis", "rediss-sentinel", "valkey-cluster", "redis-replicated", "unix"] {
            let _ = StoreUrl::parse(&format!("{scheme}://{text}"));
            let _ = StoreUrl::parse(&format!("{scheme}://h/{text}"));
            let _ = StoreUrl::parse(&format!("{scheme}://h/m?{text}"));
        }
    }

    #[test]
    fn whatever_is_encoded_comes_back(
        user in "\\PC{1,20}", password in "\\PC{1,20}", master in "\\PC{1,20}", own in "\\PC{1,20}",
        database in 0i64..1000, ports in prop::collection::hash_set(1u16.., 1..6),
    ) {
        let hosts: Vec<_> = ports.iter().map(|port| format!("[::1]:{port}")).collect();
        let url = format!(
            "redis-sentinel://{}:{}@{}/{}/{database}?sentinel_password={}",
            encode(&user), encode(&password), hosts.join(","), encode(&master), encode(&own),
        );
        let all = sentinels(&url);
        prop_assert_eq!(login(&all.access), (Some(user.as_str()), Some(password.as_str())));
        prop_assert_eq!(login(&all.sentinels.access), (None, Some(own.as_str())));
        prop_assert_eq!(all.master, master);
        prop_assert_eq!(all.access.database, database);
        prop_assert_eq!(all.sentinels.addrs.len(), ports.len());
    }

    #[test]
    fn no_error_repeats_a_password(password in "[a-zA-Z0-9%#/?&=:@,\\[\\] ]{0,6}hunter2[a-zA-Z0-9%#/?&=:@,\\[\\] ]{0,6}") {
        for text in [
            format!("redis://u:{password}@h"), format!("redis://h?{password}"), format!("redis-sentinel://h/m?sentinel_password={password}"),
            format!("redis-cluster://u:{password}@h/9"), password.clone(),
        ] {
            if let Err(error) = StoreUrl::parse(&text) {
                prop_assert!(!format!("{error} {error:?}").contains("hunter2"), "{}", error);
            }
        }
    }
}
