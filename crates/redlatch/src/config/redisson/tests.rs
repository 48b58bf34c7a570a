use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::config::ShardedPubSub;

fn parse(text: &str) -> RedissonYaml {
    RedissonYaml::parse(text, |_| None).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn refused(text: &str) -> String {
    let error = RedissonYaml::parse(text, |_| None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    error.to_string()
}

/// The notices as `key: text`.
fn told(file: &RedissonYaml) -> Vec<String> {
    file.notices().iter().map(|notice| format!("{}: {}", notice.key, notice.text)).collect()
}

#[test]
fn each_section_is_a_url() {
    for (text, url) in [
        ("singleServerConfig: { address: 'redis://h:6380', database: 3 }", "redis://h:6380/3"),
        ("singleServerConfig: { address: 'rediss://[::1]:6380/' }", "rediss://[::1]:6380"),
        ("singleServerConfig: { address: 'valkeys://H:1' }", "rediss://h:1"),
        ("singleServerConfig: { address: 'valkey://h:1' }", "redis://h:1"),
        (
            "singleServerConfig: { address: 'redis+uds:///run/a b.sock', database: 2 }",
            "unix:///run/a%20b.sock?db=2",
        ),
        (
            "masterSlaveServersConfig:\n  masterAddress: redis://m:1\n  slaveAddresses: [redis://a:2, 'redis://b:3']\n  database: 1",
            "redis-replicated://m:1,a:2,b:3/1",
        ),
        ("masterSlaveServersConfig: { masterAddress: 'redis://m:1' }", "redis-replicated://m:1"),
        (
            "sentinelServersConfig:\n  sentinelAddresses:\n  - redis://a:26379\n  - redis://b:26380\n  masterName: my/master",
            "redis-sentinel://a:26379,b:26380/my%2Fmaster",
        ),
        (
            "sentinelServersConfig: { sentinelAddresses: [rediss://a:1], masterName: m, database: 7 }",
            "rediss-sentinel://a:1/m/7",
        ),
        (
            "clusterServersConfig: { nodeAddresses: [redis://a:1, redis://b:2], database: 0 }",
            "redis-cluster://a:1,b:2",
        ),
        ("clusterServersConfig: { nodeAddresses: rediss://a:1 }", "rediss-cluster://a:1"),
        (
            "replicatedServersConfig: { nodeAddresses: [redis://a:1, redis://a:1], database: 2 }",
            "redis-replicated://a:1/2",
        ),
        ("{\"singleServerConfig\": {\"address\": \"redis://h:6379\"}}", "redis://h:6379"),
    ] {
        assert_eq!(parse(text).url(), url, "{text}");
    }
}

#[test]
fn the_first_section_of_several_counts_and_null_is_none() {
    let file = parse(
        "replicatedServersConfig: { nodeAddresses: [redis://r:1] }\n\
         clusterServersConfig: { nodeAddresses: [redis://c:1] }\n\
         sentinelServersConfig: { sentinelAddresses: [redis://s:1], masterName: m }\n\
         singleServerConfig: { address: 'redis://h:1' }\n\
         masterSlaveServersConfig: null\n",
    );
    assert_eq!(file.url(), "redis://h:1");
    assert_eq!(
        told(&file),
        [
            "replicatedServersConfig: not used: singleServerConfig comes first",
            "clusterServersConfig: not used: singleServerConfig comes first",
            "sentinelServersConfig: not used: singleServerConfig comes first",
        ]
    );
    let file = parse(
        "singleServerConfig: { address: 'redis://h:1', password: null, timeout: ~, database: }\nlockWatchdogTimeout:\n",
    );
    assert_eq!(
        (file.settings.password.0, file.settings.response_timeout, file.settings.watchdog_lease),
        (None, None, None)
    );
    assert!(file.notices.is_empty());
}

#[test]
fn settings_of_locks_are_taken_with_their_place() {
    let file = parse(
        "lockWatchdogTimeout: 20_000\nlockWatchdogBatchSize: 500\nfairLockWaitTimeout: '60000'\n\
         clusterServersConfig:\n  nodeAddresses:\n  - redis://a:1\n  timeout: 1500\n  connectTimeout: 99999999\n  clientName: app-1\n\
         \x20 shardedSubscriptionMode: OFF\n  password: hunter2\n  username: app\n",
    );
    let settings = &file.settings;
    let ms = Duration::from_millis;
    assert_eq!(settings.watchdog_lease, Some(ms(20_000)));
    assert_eq!((settings.renewal_batch, settings.redisson_fair_wait), (Some(100), Some(ms(60_000))));
    assert_eq!((settings.response_timeout, settings.connect_timeout), (Some(ms(1_500)), Some(ms(3_600_000))));
    assert_eq!(
        (settings.client_name.as_deref(), settings.sharded),
        (Some("app-1"), Some(ShardedPubSub::Off))
    );
    assert_eq!(
        (settings.username.as_deref(), settings.password.0.as_deref()),
        (Some("app"), Some("hunter2"))
    );
    let values: Vec<_> =
        file.values().iter().map(|v| (v.setting, v.value.as_str(), v.key.as_str(), v.line)).collect();
    assert!(
        values.contains(&("url", "redis-cluster://a:1", "clusterServersConfig.nodeAddresses", 5)),
        "{values:?}"
    );
    for value in [
        ("password", "***", "clusterServersConfig.password", 11),
        ("username", "app", "clusterServersConfig.username", 12),
        ("watchdog_lease", "20000ms", "lockWatchdogTimeout", 1),
        ("renewal_batch", "100", "lockWatchdogBatchSize", 2),
        ("redisson_fair_wait", "60000ms", "fairLockWaitTimeout", 3),
        ("response_timeout", "1500ms", "clusterServersConfig.timeout", 7),
        ("sharded", "off", "clusterServersConfig.shardedSubscriptionMode", 10),
    ] {
        assert!(values.contains(&value), "{value:?}: {values:?}");
    }
    assert_eq!(
        told(&file),
        [
            "lockWatchdogBatchSize: counts as between 1 and 100",
            "clusterServersConfig.connectTimeout: counts as one hour"
        ]
    );
}

#[test]
fn credentials_come_from_address_root_and_section_in_this_order() {
    let login = |text: &str| {
        let settings = parse(text).settings;
        (settings.username, settings.password.0)
    };
    let some = |text: &str| Some(text.to_owned());
    let single = |address: &str, more: &str, root: &str| {
        login(&format!("singleServerConfig:\n  address: '{address}'\n{more}{root}"))
    };
    let section = "  username: su\n  password: sp\n";
    let root = "username: ru\npassword: rp\n";
    assert_eq!(single("redis://h:1", section, ""), (some("su"), some("sp")));
    assert_eq!(single("redis://h:1", section, root), (some("ru"), some("rp")));
    assert_eq!(single("redis://au:a%40p@h:1", section, root), (some("au"), some("a@p")));
    assert_eq!(single("redis://ap@h:1", section, root), (some("ru"), some("ap")));
    assert_eq!(single("redis://h:1", "", "password: 123\n"), (None, some("123")));
    assert_eq!(single("redis://h:1", "  password: ''\n", ""), (None, None));

    let file = parse(
        "password: data\nsentinelServersConfig:\n  sentinelAddresses: ['redis://x:own@a:1', 'redis://b:2']\n  masterName: m\n\
         \x20 sentinelUsername: w\n  sentinelPassword: other\n  username: app\n",
    );
    let settings = &file.settings;
    assert_eq!((settings.username.as_deref(), settings.password.0.as_deref()), (Some("app"), Some("data")));
    assert_eq!(
        (settings.sentinel_username.as_deref(), settings.sentinel_password.0.as_deref()),
        (Some("x"), Some("own"))
    );
    assert_eq!(
        told(&file),
        [
            "sentinelServersConfig.sentinelAddresses: addresses differ in their credentials; the first one's count for all"
        ]
    );
    assert!(!file.url().contains("own"));
}

#[test]
fn variables_come_from_outside() {
    let text = "singleServerConfig:\n  address: \"${URL:-redis://127.0.0.1:6379}\"\n  password: ${SECRET}\n  clientName: ${UNSET}\n";
    let with = |url: Option<&str>| {
        RedissonYaml::parse(text, |name| match name {
            "URL" => url.map(str::to_owned),
            "SECRET" => Some("hunter2".into()),
            _ => None,
        })
        .unwrap()
    };
    assert_eq!(with(None).url(), "redis://127.0.0.1:6379");
    let file = with(Some("rediss://db.example:6380"));
    assert_eq!(file.url(), "rediss://db.example:6380");
    assert_eq!(file.settings.password.0.as_deref(), Some("hunter2"));
    assert_eq!(file.settings.client_name.as_deref(), Some("${UNSET}"));
    assert_eq!(
        file.notices()[0].to_string(),
        "line 4: a variable has neither a value nor a default and stays as it is written"
    );
}

#[test]
fn tls_is_checked_as_the_file_asks() {
    let tls = |more: &str| {
        let file = parse(&format!("singleServerConfig:\n  address: rediss://h:1\n{more}"));
        (file.settings.tls.clone(), file)
    };
    assert!(tls("").0.is_none());
    let (strict, _) = tls("sslVerificationMode: STRICT\n");
    let strict = strict.unwrap();
    assert!(!strict.danger_accept_any_host_name && !strict.danger_accept_any_certificate);
    for text in ["sslVerificationMode: CA_ONLY\n", "  sslEnableEndpointIdentification: false\n"] {
        let options = tls(text).0.unwrap();
        assert!(options.danger_accept_any_host_name && !options.danger_accept_any_certificate, "{text}");
    }
    let options = tls("  sslVerificationMode: ca_only\nsslVerificationMode: NONE\n").0.unwrap();
    assert!(options.danger_accept_any_certificate && !options.danger_accept_any_host_name);

    let (options, file) =
        tls("  sslTruststore: file:///etc/ca.pem\n  sslKeystore: file:/etc/me.p12\n  sslKeystoreType: PEM\n");
    let options = options.unwrap();
    assert_eq!(options.ca_file, Some("/etc/ca.pem".into()));
    assert_eq!(
        (options.cert_file, options.key_file),
        (Some("/etc/me.p12".into()), Some("/etc/me.p12".into()))
    );
    file.check_stores(None).unwrap();

    let (_, file) = tls("  sslTruststore: file:/etc/trust.jks\n  sslTruststorePassword: hunter2\n");
    let error = file.check_stores(None).unwrap_err().to_string();
    assert!(
        error.contains("line 3: sslTruststore is a Java key store") && error.contains("keytool"),
        "{error}"
    );
    let mut given = TlsOptions { ca_file: Some("/etc/ca.pem".into()), ..TlsOptions::default() };
    file.check_stores(Some(&given)).unwrap();
    let (_, file) = tls("sslKeystore: file:/etc/key.jks\n");
    assert!(file.check_stores(Some(&given)).unwrap_err().to_string().contains("sslKeystore"));
    given.cert_file = Some("/etc/me.pem".into());
    file.check_stores(Some(&given)).unwrap();

    let file = parse("singleServerConfig: { address: 'redis://h:1', sslTruststore: 'file:/etc/trust.jks' }");
    file.check_stores(None).unwrap();
    assert!(told(&file)[0].contains("not encrypted"));
}

#[test]
fn classes_that_change_names_are_refused_and_others_are_told() {
    for key in ["nameMapper", "commandMapper", "credentialsResolver"] {
        for text in [
            format!("{key}: !<com.example.Mine> {{}}\nsingleServerConfig: {{ address: 'redis://h:1' }}"),
            format!(
                "singleServerConfig:\n  address: redis://h:1\n  {key}: !<com.example.Mine> {{ prefix: hunter2 }}"
            ),
            format!(
                "singleServerConfig:\n  address: redis://h:1\n  {key}: !!com.example.DefaultNameMapper {{}}"
            ),
            format!("singleServerConfig:\n  address: redis://h:1\n  {key}: anything"),
        ] {
            let error = refused(&text);
            assert!(
                error.contains(key) && error.contains("your own code") && !error.contains("hunter2"),
                "{error}"
            );
        }
    }
    let file = parse(
        "nameMapper: !<org.redisson.api.DefaultNameMapper> {}\ncommandMapper: !<org.redisson.config.DefaultCommandMapper> {}\n\
         credentialsResolver: !<org.redisson.config.DefaultCredentialsResolver> {}\ncodec: !<org.redisson.codec.Kryo5Codec> {}\n\
         clusterServersConfig:\n  nodeAddresses: [redis://h:1]\n  loadBalancer: !<com.example.RoundRobinLoadBalancer> {}\n\
         \x20 retryDelay: !<org.redisson.config.EqualJitterDelay> {baseDelay: PT1S, maxDelay: PT3S}\n\
         \x20 reconnectionDelay: !<org.redisson.config.EqualJitterDelay> {baseDelay: 1S}\n",
    );
    assert_eq!(
        told(&file),
        [
            "codec: an object of Java, which is not needed here",
            "clusterServersConfig.loadBalancer: an object of Java, which is not needed here",
            "clusterServersConfig.retryDelay: not used (half random, 1s to 3s): pauses between attempts are our own",
            "clusterServersConfig.reconnectionDelay: not used, and not to be understood: a duration in it is not like PT1S or PT0.1S",
        ]
    );
}

#[test]
fn unknown_keys_twice_given_keys_and_other_letters_are_told() {
    let file = parse(
        "lockWatchDogTimeout: 10000\nfrobnicate: hunter2\n'a b': hunter2\nthreads: 16\nsingleServerConfig:\n  address: redis://h:1\n\
         \x20 adress: x\n  timeout: 1\n  timeout: 2\n  nodeAddresses: []\n",
    );
    assert_eq!(file.settings.watchdog_lease, Some(Duration::from_secs(10)));
    assert_eq!(file.settings.response_timeout, Some(Duration::from_millis(2)));
    assert_eq!(
        told(&file),
        [
            "lockWatchdogTimeout: read although its capital letters differ",
            ": a key that Redisson does not have here",
            ": a key that Redisson does not have here",
            "singleServerConfig: a key that Redisson does not have here",
            "singleServerConfig.timeout: given twice; the last one counts",
            "singleServerConfig.nodeAddresses: Redisson has no such setting here",
        ]
    );
}

/// Commas end unquoted values in a `{}`: what follows is a key for YAML, and may be the rest of a password.
#[test]
fn the_rest_of_a_value_that_became_a_key_is_not_shown() {
    for value in ["redis://,Hunter2Secret", "a,Hunter2Secret: 1", "a,Hunter2Secret"] {
        let text = format!("singleServerConfig: {{ address: 'redis://h:1', password: {value} }}");
        let file = parse(&text);
        let seen = format!("{file:?} {:?}", told(&file));
        assert!(!seen.contains("Hunter2") && seen.contains("singleServerConfig"), "{text}: {seen}");
        let root = format!("{{ password: {value}, singleServerConfig: {{ address: 'redis://h:1' }} }}");
        let file = parse(&root);
        let seen = format!("{file:?} {:?}", told(&file));
        assert!(!seen.contains("Hunter2"), "{root}: {seen}");
    }
}

#[test]
fn files_as_redisson_writes_them_need_no_words() {
    let file = parse(include_str!("tests/redisson-3.15.1.yaml"));
    assert_eq!(file.url(), "redis-sentinel://127.0.0.1:26379,127.0.0.1:26380/mymaster");
    assert_eq!(told(&file), [""; 0]);
    let file = parse(include_str!("tests/redisson-4.7.0.yaml"));
    assert_eq!(file.url(), "redis-cluster://127.0.0.1:7000,127.0.0.1:7001");
    assert_eq!(told(&file), [""; 0]);
    assert_eq!(
        (file.settings.sharded, file.settings.watchdog_lease),
        (Some(ShardedPubSub::Auto), Some(Duration::from_secs(30)))
    );
    let changed = include_str!("tests/redisson-4.7.0.yaml").replace("retryAttempts: 4", "retryAttempts: 9");
    assert!(told(&parse(&changed))[0].contains("outage tolerance"));
}

#[test]
fn faults_are_refused_with_line_and_key() {
    for (text, words) in [
        ("", "no section says where"),
        ("[a, b]", "not a map"),
        ("threads: 4", "no section says where"),
        ("singleServerConfig: x", "not a map"),
        ("singleServerConfig: {}", "singleServerConfig.address: this is missing"),
        (
            "\nsingleServerConfig: { address: [redis://h:1] }",
            "line 2, singleServerConfig.address: this is not a single value",
        ),
        ("singleServerConfig: { address: 'redis://h' }", "needs a port"),
        ("singleServerConfig: { address: 'h:6379' }", "scheme"),
        ("singleServerConfig: { address: 'redis://h:6379/2' }", "neither path"),
        ("singleServerConfig: { address: '${HOST}:6379' }", "scheme"),
        ("singleServerConfig: { address: 'redis://${HOST}:6379' }", "malformed"),
        ("singleServerConfig: { address: 'memory:' }", "not an address"),
        (
            "singleServerConfig: { address: 'redis://h:1', database: -1 }",
            "database: this is not a whole number",
        ),
        (
            "singleServerConfig: { address: 'redis://h:1', timeout: soon }",
            "timeout: this is not a whole number",
        ),
        ("singleServerConfig: { address: 'redis://h:1', clientName: 'a b' }", "clientName"),
        ("singleServerConfig: { address: 'redis://h:1', password: '{aes}abc' }", "encrypted"),
        ("singleServerConfig: { address: '{aes}abc' }", "encrypted"),
        ("masterSlaveServersConfig: { slaveAddresses: [redis://h:1] }", "masterAddress: this is missing"),
        ("masterSlaveServersConfig: { masterAddress: 'redis+uds:///s' }", "single server only"),
        ("sentinelServersConfig: { sentinelAddresses: [redis://h:1] }", "masterName: this is missing"),
        ("sentinelServersConfig: { masterName: m, sentinelAddresses: [] }", "no address"),
        ("sentinelServersConfig: { masterName: m, sentinelAddresses: [{a: 1}] }", "not a single value"),
        ("clusterServersConfig: { nodeAddresses: [redis://h:1], database: 1 }", "only database 0"),
        ("clusterServersConfig: { nodeAddresses: [redis://h:1, rediss://i:1] }", "encrypted and others"),
        (
            "clusterServersConfig: { nodeAddresses: [redis://h:1], shardedSubscriptionMode: MAYBE }",
            "none of AUTO, ON, OFF",
        ),
        (
            "singleServerConfig: { address: 'redis://h:1' }\nsslVerificationMode: SOME",
            "none of STRICT, CA_ONLY, NONE",
        ),
        ("singleServerConfig: { address: 'redis://h:1' }\nfairLockWaitTimeout: 86400001", "over a day"),
        ("proxyServersConfig: { addresses: [redis://h:1] }", "commercial edition"),
        ("multiSentinelServersConfig: {}", "commercial edition"),
        ("singleServerConfig: {\n  address: 'redis://h:1'\n", "not YAML"),
        ("a: &x 1\nb: *x", "aliases"),
    ] {
        let error = refused(text);
        assert!(error.contains(words), "{text}: {error}");
        assert!(error.starts_with("Redisson's file, line "), "{error}");
    }
}

#[test]
fn files_are_read_with_a_limit_and_named_in_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redisson.yaml");
    assert!(RedissonYaml::read(&path).unwrap_err().to_string().contains("redisson.yaml"));
    fs::write(&path, "singleServerConfig: { address: 'redis://h:1' }").unwrap();
    assert_eq!(RedissonYaml::read(&path).unwrap().url(), "redis://h:1");
    fs::write(&path, "threads: 1").unwrap();
    assert!(RedissonYaml::read(&path).unwrap_err().to_string().contains("redisson.yaml, line 1"));
    fs::write(&path, " ".repeat(1024 * 1024 + 1)).unwrap();
    assert!(RedissonYaml::read(&path).unwrap_err().to_string().contains("over 1 MiB"));
}

#[test]
fn a_nat_mapper_is_told_with_what_does_the_same_here() {
    for text in [
        "clusterServersConfig: { nodeAddresses: [redis://h:1], natMapper: !<com.example.Nat> {} }",
        "sentinelServersConfig: { sentinelAddresses: [redis://h:1], masterName: m, natMap: { 'a:1': 'b:1' } }",
        "replicatedServersConfig: { nodeAddresses: [redis://h:1], natMapper: !<com.example.Nat> {} }",
    ] {
        let file = RedissonYaml::parse(text, |_| None).unwrap();
        let notices = told(&file);
        assert!(
            notices.iter().any(|notice| notice.contains("natMap") && notice.contains("address_map")),
            "{notices:?}"
        );
    }
    // Redisson's own, which changes nothing, needs no word.
    let text = "clusterServersConfig: { nodeAddresses: [redis://h:1], natMapper: !<org.redisson.api.DefaultNatMapper> {} }";
    assert_eq!(told(&RedissonYaml::parse(text, |_| None).unwrap()), Vec::<String>::new());
}

/// Every place of a file that a text can stand at.
const PLACES: [&str; 26] = [
    "singleServerConfig: { address: $ }",
    "singleServerConfig: { address: 'redis://h:1', password: $ }",
    "singleServerConfig: { address: 'redis://h:1', username: $ }",
    "singleServerConfig: { address: 'redis://h:1', clientName: $ }",
    "singleServerConfig: { address: 'redis://h:1', timeout: $ }",
    "singleServerConfig: { address: 'redis://h:1', database: $ }",
    "singleServerConfig: { address: 'redis://h:1', nameMapper: $ }",
    "singleServerConfig: { address: 'redis://h:1', retryDelay: !<org.redisson.config.ConstantDelay> {delay: $} }",
    "singleServerConfig: { address: 'redis://h:1', sslTruststore: $, sslTruststorePassword: $ }",
    "singleServerConfig: { address: 'rediss://h:1', sslTruststore: $, sslKeystore: $, sslKeystorePassword: $ }",
    "singleServerConfig: { address: 'rediss://h:1', sslVerificationMode: $ }",
    "singleServerConfig: { address: 'redis://h:1', natMapper: $ }",
    "masterSlaveServersConfig: { masterAddress: 'redis://h:1', slaveAddresses: [$] }",
    "sentinelServersConfig: { sentinelAddresses: [$], masterName: m }",
    "sentinelServersConfig: { sentinelAddresses: [redis://h:1], masterName: $ }",
    "sentinelServersConfig: { sentinelAddresses: [redis://h:1], masterName: m, sentinelPassword: $ }",
    "clusterServersConfig: { nodeAddresses: [redis://h:1], shardedSubscriptionMode: $ }",
    "clusterServersConfig: { nodeAddresses: [redis://h:1], loadBalancer: $ }",
    "singleServerConfig: $",
    "secretKey: $\nsingleServerConfig: { address: 'redis://h:1' }",
    "registrationKey: $\nsingleServerConfig: { address: 'redis://h:1' }",
    "lockWatchdogTimeout: $\nsingleServerConfig: { address: 'redis://h:1' }",
    "lockWatchdogBatchSize: $\nsingleServerConfig: { address: 'redis://h:1' }",
    "codec: !<$> {a: $}\nsingleServerConfig: { address: 'redis://h:1' }",
    "unknown: $\nsingleServerConfig: { address: 'redis://h:1' }",
    "proxyServersConfig: $",
];

proptest! {
    #[test]
    fn no_value_appears_in_errors_notices_and_debug_output(
        place in 0..PLACES.len(),
        around in ("[ -~]{0,4}", "[ -~]{0,4}"),
        form in prop::sample::select(vec!["$", "'$'", "redis://:$@h:1", "redis://$", "redis://u:$@h", "\"redis://u:$@h:1/9\"", "${$}", "{aes}$"]),
    ) {
        let secret = format!("{}Hunter2Secret{}", around.0, around.1);
        let text = PLACES[place].replace('$', &form.replace('$', &secret));
        let seen = match RedissonYaml::parse(&text, |_| None) {
            Err(error) => format!("{error} {error:?}"),
            Ok(file) => {
                let stores = file.check_stores(None).map_or_else(|error| error.to_string(), |()| String::new());
                format!("{file:?} {:?} {stores}", told(&file))
            }
        };
        prop_assert!(!seen.to_lowercase().contains("hunter2"), "{}\n{}", text, seen);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[a-zA-Z:{}\\[\\]!<>$'\" \n&*#|-]{0,80}") {
        let _ = RedissonYaml::parse(&text, |name| Some(name.to_owned()));
        let _ = RedissonYaml::parse(&format!("singleServerConfig:\n  address: redis://h:1\n  {text}"), |_| None);
    }
}

#[test]
fn a_tab_is_told_as_such() {
    let error = refused("singleServerConfig:\n\taddress: 'redis://h:1'\n");
    assert!(error.contains("line 2: a tab indents this line"), "{error}");
    let error = refused("singleServerConfig:\n  address: 'redis://h:1\n  x: y\n");
    assert!(error.contains("not YAML"), "{error}");
}

#[test]
fn a_forgotten_variable_is_named_as_the_cause_of_a_refusal() {
    for text in [
        "singleServerConfig:\n  address: redis://${REDIS_HOST}:6379\n",
        "singleServerConfig:\n  address: redis://h:1\n  timeout: ${TIMEOUT}\n",
    ] {
        let error = refused(text);
        assert!(error.contains("a variable on this line has neither a value nor a default"), "{error}");
    }
    let error = refused("singleServerConfig:\n  clientName: ${NAME}\n  address: redis://h\n");
    assert!(!error.contains("variable"), "another line: {error}");
}
