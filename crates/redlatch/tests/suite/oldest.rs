//! What Redis 6.2 lacks, the oldest server that is supported: found out by asking it, and told with what helps. That everything
//! else is as on newer ones is for the contracts to say, which run on it, too.

use redlatch::{
    ClientBuilder, ErrorKind, ScriptMode, Severity, ShardedPubSub, Unlocked,
    acl::{Kind, Rights},
};
use redlatch_testkit::{
    server::{RedisServer, RedisServerBuilder, ServerProgram},
    topology::RedisCluster,
};

use crate::fixture::{ms, quiet, soon};

fn oldest() -> RedisServerBuilder {
    RedisServer::builder().program(ServerProgram::Redis62)
}

/// Two masters without replicas.
fn cluster() -> RedisCluster {
    let cluster =
        RedisCluster::builder().program(ServerProgram::Redis62).master_count(2).replicas_per_master(0);
    cluster.start().unwrap()
}

/// A waiter waits for the lock of another client and gets it by a plain message.
async fn a_waiter_is_woken(cluster: &RedisCluster, client: ClientBuilder, name: &str) {
    cluster.nodes().iter().for_each(|node| node.reset_command_counts().unwrap());
    let (holding, waiting) = (client.clone().connect().await.unwrap(), client.connect().await.unwrap());
    let guard = holding.lock(name).lock().await.unwrap();
    let waiter = {
        let lock = waiting.lock(name);
        tokio::spawn(async move { lock.lock().await })
    };
    let channel = format!("redisson_lock__channel:{{{name}}}").into_bytes();
    soon(&format!("the subscription for {name}"), async {
        while !cluster.nodes().iter().any(|node| node.subscriber_channels().unwrap().contains(&channel)) {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    let guard = soon("the waiter's turn", waiter).await.unwrap().unwrap();
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    let published = |node: &RedisServer| node.command_count("publish").unwrap();
    assert!(cluster.nodes().iter().map(published).sum::<u64>() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_are_refused_with_what_to_use_instead() {
    let server = oldest().start().unwrap();
    let functions = |builder: ClientBuilder| builder.scripts(ScriptMode::Functions);
    let error = functions(quiet().url(server.url())).connect().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FunctionMissing, "{error}");
    assert!(error.to_string().contains("use scripts, or Redis 7.0 or later"), "{error}");
    let client = quiet().url(server.url()).connect().await.unwrap();
    let error = client.load_functions().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FunctionMissing, "{error}");
    assert!(error.to_string().contains("Redis 7.0"), "{error}");
    client.lock("x").lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_cluster_are_plain_and_sharded_ones_are_refused() {
    let cluster = cluster();
    let builder = |sharded| quiet().url(cluster.url()).sharded(sharded);
    for (sharded, name) in
        [(ShardedPubSub::Auto, "auto"), (ShardedPubSub::Off, "off"), (ShardedPubSub::Compat, "compat")]
    {
        a_waiter_is_woken(&cluster, builder(sharded), name).await;
    }
    let error = builder(ShardedPubSub::On).connect().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains("use Redis 7.0 or later"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_of_a_cluster_does_without_the_rights_to_sharded_messages() {
    let cluster = cluster();
    let rules = |sharded| Rights::of(&[Kind::Lock], "app:").cluster(true).sharded(sharded).rules();
    for node in cluster.nodes() {
        let set = |rules: &str| {
            let words: Vec<&str> =
                ["ACL", "SETUSER", "app", "on", ">pw"].into_iter().chain(rules.split(' ')).collect();
            node.cmd(&words)
        };
        assert!(set(&rules(true)).is_err(), "it takes no rules with commands that it does not know");
        set(&rules(false)).unwrap();
    }
    let client = quiet().url(cluster.url()).username("app").password("pw");
    a_waiter_is_woken(&cluster, client.clone(), "app:x").await;
    let client = client.connect().await.unwrap();
    let problems = async |what: &str| {
        let findings = client.diagnose_rights(&[Kind::Lock], "app:").await.unwrap();
        assert_eq!(findings.len(), 2, "{what}: {findings:?}");
        let bad = findings.into_iter().filter(|finding| finding.severity == Severity::Problem);
        bad.map(|finding| finding.text).collect::<Vec<_>>()
    };
    // Such a server does not say what an account may, so each right is tried. It must not ask for what it would refuse.
    cluster.nodes().iter().for_each(|node| drop(node.cmd(&["ACL", "SETUSER", "app", "-hmget"]).unwrap()));
    let missing = problems("without a command").await;
    assert!(missing.iter().all(|text| text.ends_with("lacks +hmget")) && missing.len() == 2, "{missing:?}");
    cluster.nodes().iter().for_each(|node| drop(node.cmd(&["ACL", "SETUSER", "app", "+hmget"]).unwrap()));
    assert_eq!(problems("with all").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_of_an_account_are_found_by_trying() {
    let rights = Rights::of(&Kind::ALL, "app:").rules();
    let server = oldest().acl("default off").acl(&format!("app on >pw {rights}")).start().unwrap();
    let client = quiet().url(server.url()).username("app").password("pw");
    let problems = async || {
        let client = client.clone().connect().await.unwrap();
        let findings = client.diagnose_rights(&Kind::ALL, "app:").await.unwrap();
        assert_eq!(findings.len(), Kind::ALL.len(), "{findings:?}");
        let bad = findings.into_iter().filter(|finding| finding.severity == Severity::Problem);
        bad.map(|finding| finding.text).collect::<Vec<_>>()
    };
    assert_eq!(problems().await, Vec::<String>::new());
    assert!(server.keys_dump().unwrap().is_empty(), "the trial leaves nothing behind");
    for lacks in ["publish", "hincrby", "evalsha", "subscribe"] {
        server.cmd(&["ACL", "SETUSER", "app", &format!("-{lacks}")]).unwrap();
        let found = problems().await;
        assert!(
            !found.is_empty() && found.iter().all(|text| text.ends_with(&format!("lacks +{lacks}"))),
            "{found:?}"
        );
        server.cmd(&["ACL", "SETUSER", "app", &format!("+{lacks}")]).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_says_that_it_is_supported_and_what_it_lacks() {
    let server = oldest().start().unwrap();
    let client = quiet().url(server.url()).connect().await.unwrap();
    let findings = client.diagnose().await.unwrap();
    let version = findings.iter().find(|finding| finding.subject == "version").unwrap();
    assert_eq!(version.severity, Severity::Good, "{version}");
    assert!(version.text.starts_with("Redis 6.2.") && version.text.contains("no functions"), "{version}");
    assert!(findings.iter().all(|finding| finding.severity != Severity::Problem), "{findings:?}");
}
