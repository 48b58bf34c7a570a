use super::*;
use crate::config::WATCHDOG_LEASE;

const FILE: &str = "lockWatchdogTimeout: 20000\npassword: of-file\nclusterServersConfig:\n  nodeAddresses: [redis://h:1]\n\
                    \x20 shardedSubscriptionMode: OFF\n  timeout: 1500\n";

fn settled(mut builder: ClientBuilder) -> Config {
    builder.settle().unwrap();
    builder.config
}

#[test]
fn the_builder_wins_over_file_and_url_in_whatever_order() {
    let ms = Duration::from_millis;
    let before =
        Client::builder().password("of-builder").response_timeout(ms(700)).redisson_yaml_str(FILE).unwrap();
    let after =
        Client::builder().redisson_yaml_str(FILE).unwrap().response_timeout(ms(700)).password("of-builder");
    for builder in [before, after] {
        let config = settled(builder);
        assert_eq!(config.url, "redis-cluster://h:1");
        assert_eq!((config.response_timeout, config.watchdog_lease), (ms(700), ms(20_000)));
        assert_eq!(config.password.0.as_deref(), Some("of-builder"));
        assert_eq!(config.sharded, ShardedPubSub::Off);
    }
    let url = "redis-cluster://h?sharded=off&scripts=functions";
    let config = settled(Client::builder().url(url));
    assert_eq!((config.sharded, config.scripts), (ShardedPubSub::Off, ScriptMode::Functions));
    let config = settled(Client::builder().url(url).sharded(ShardedPubSub::Compat).scripts(ScriptMode::Eval));
    assert_eq!((config.sharded, config.scripts), (ShardedPubSub::Compat, ScriptMode::Eval));
    let config = settled(Client::builder());
    assert_eq!((config.sharded, config.watchdog_lease), (ShardedPubSub::Auto, WATCHDOG_LEASE));
}

#[test]
fn only_one_source_says_where_the_locks_live() {
    let mut both = Client::builder().url("redis://elsewhere").redisson_yaml_str(FILE).unwrap();
    assert_eq!(both.settle().unwrap_err().kind(), ErrorKind::InvalidOption);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redisson.yaml");
    std::fs::write(&path, FILE).unwrap();
    let url = format!("redisson-yaml:{}", path.display());
    let config = settled(Client::builder().url(&url));
    assert_eq!((config.url.as_str(), config.password.0.as_deref()), ("redis-cluster://h:1", Some("of-file")));
    let mut both = Client::builder().url(&url).redisson_yaml_str(FILE).unwrap();
    assert_eq!(both.settle().unwrap_err().kind(), ErrorKind::InvalidOption);
    std::fs::remove_file(&path).unwrap();
    assert!(Client::builder().url(&url).settle().unwrap_err().to_string().contains("redisson.yaml"));
}

#[test]
fn a_builder_shows_no_secret() {
    let builder = Client::builder()
        .url("redis://u:hush@h")
        .password("hush")
        .sentinel_password("hush")
        .redisson_yaml_str("password: hush\nsingleServerConfig: { address: 'redis://u:hush@h:1' }")
        .unwrap();
    assert!(!format!("{builder:?}").contains("hush"), "{builder:?}");
}
