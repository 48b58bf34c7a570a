//! A hold that another client ends is told at once: leases here are so long that no renewal could have found out.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redlatch::{
    Client, ClientBuilder, Guard, Lease, LossReason, Severity,
    acl::{Kind, Rights},
    blocking,
};
use redlatch_testkit::{
    proxy::{Action, Gate, Match, Proxy},
    server::{RedisServer, ServerProgram},
    topology::{RedisCluster, SentinelSet},
};

use crate::fixture::{RENEWED, SOON, ms, quiet, renewed, soon};

/// Its renewal comes after more than three minutes.
const LONG: Duration = Duration::from_secs(600);

async fn client(builder: ClientBuilder) -> Client {
    builder.watchdog_lease(LONG).connect().await.unwrap()
}

async fn hold(client: &Client, names: impl IntoIterator<Item = String>) -> Vec<Guard> {
    let mut guards = Vec::new();
    for name in names {
        guards.push(client.lock(name).lock().await.unwrap());
    }
    guards
}

fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|n| format!("watched{n}"))
}

/// How many keys a server would tell a client of.
fn watched(server: &RedisServer) -> u64 {
    let info: String = redis::from_redis_value(server.cmd(&["INFO", "stats"]).unwrap()).unwrap();
    let count = info.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

pub(crate) async fn until_watched(servers: &[&RedisServer], count: u64) {
    soon("the watching of all holds", async {
        while servers.iter().map(|server| watched(server)).sum::<u64>() < count {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

async fn all_lost(guards: &[Guard]) {
    for reason in soon("the losses", join_all(guards.iter().map(Guard::lost))).await {
        assert_eq!(reason, LossReason::Deleted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_holder_learns_of_a_foreign_delete_long_before_its_renewal() {
    for (program, count) in ServerProgram::ALL.into_iter().zip([300, 20, 20, 20]) {
        let server = RedisServer::builder().program(program).start().unwrap();
        let client = client(quiet().url(server.url())).await;
        let guards = hold(&client, names(count)).await;
        until_watched(&[&server], count as u64).await;
        for guard in &guards {
            server.cmd(&["DEL", &guard.name().to_string()]).unwrap();
        }
        all_lost(&guards).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_holder_learns_of_a_flush_long_before_its_renewal() {
    let server = RedisServer::start().unwrap();
    let client = client(quiet().url(server.url())).await;
    let guards = hold(&client, names(300)).await;
    let side = client.read_write_lock("sides");
    let permits = client.permit_semaphore("permits");
    permits.set_if_absent(3).await.unwrap();
    let reader = side.read().lock().await.unwrap();
    let permit = permits.acquire().await.unwrap();
    until_watched(&[&server], 302).await;
    server.flush_all().unwrap();
    all_lost(&guards).await;
    soon("the loss of a read hold", reader.lost()).await;
    soon("the loss of a permit", permit.lost()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_ended_before_it_was_watched_is_told_as_soon() {
    let server = RedisServer::start().unwrap();
    let client = client(quiet().url(server.url())).await;
    let guard = client.lock("early").lock().await.unwrap();
    server.cmd(&["DEL", "early"]).unwrap();
    server.cmd(&["HSET", "early", "somebody", "1"]).unwrap();
    let reason = soon("the loss", guard.lost()).await;
    assert_eq!(reason, LossReason::TakenOver { by: "somebody".into() });
}

/// What takes another hold off the same hash runs where the watching is, and ended it without a word: the end of a sister that had
/// expired, and the undoing of one whose task was dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_watched_on_when_another_one_of_the_same_hash_has_gone() {
    for sister in ["expires", "is dropped"] {
        let server = RedisServer::start().unwrap();
        let proxy = Proxy::start(&server.url()).unwrap();
        let client = client(quiet().url(proxy.url()).response_timeout(SOON)).await;
        let lock = client.read_write_lock("both");
        let reader = lock.read().acquire().lease(Lease::Fixed(LONG)).await.unwrap().unwrap();
        until_watched(&[&server], 1).await;
        if sister == "expires" {
            let short = lock.read().lock_with_lease(ms(600)).await.unwrap();
            soon("its end", short.lost()).await;
        } else {
            let slow = Match::script().arg_contains(redlatch::scripts::READ_ACQUIRE.sha1()).nth(1);
            let gate = Gate::new();
            let slow = proxy.rule(slow, Action::HoldReplyUntilReleased(gate.clone()));
            let taking = lock.read();
            tokio::select! {
                _ = taking.lock() => panic!("the answer is on its way"),
                fired = proxy.wait_fired(slow, 1, SOON) => fired.unwrap(),
            }
            gate.release();
        }
        soon("the end of the other one", async {
            while server.cmd(&["HLEN", "both"]).unwrap() != redis::Value::Int(2) {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        until_watched(&[&server], 1).await;
        assert!(client.read_write_lock("both").read().is_locked().await.unwrap() && reader.is_valid());
        server.cmd(&["DEL", "both"]).unwrap();
        assert_eq!(soon("the loss", reader.lost()).await, LossReason::Deleted, "the other one {sister}");
    }
}

/// Calls of blocking threads go over the connection that watches.
#[test]
fn a_hold_of_a_thread_is_watched_on_when_another_thread_has_taken_and_given_back_one_of_the_same_hash() {
    let server = RedisServer::start().unwrap();
    let client = blocking::Client::build(quiet().url(server.url()).watchdog_lease(LONG)).unwrap();
    let reader =
        client.read_write_lock("both").read().acquire().lease(Lease::Fixed(LONG)).run().unwrap().unwrap();
    let until_watched = || {
        let begin = Instant::now();
        while watched(&server) < 1 {
            assert!(begin.elapsed() < SOON, "it is not watched");
            std::thread::sleep(ms(5));
        }
    };
    until_watched();
    let other = client.clone();
    std::thread::spawn(move || other.read_write_lock("both").read().lock().unwrap().unlock().unwrap())
        .join()
        .unwrap();
    until_watched();
    server.cmd(&["DEL", "both"]).unwrap();
    assert_eq!(reader.lost_within(SOON).unwrap(), Some(LossReason::Deleted));
}

/// Calls about permits by name and id ended it without a word: the permit could be given back from elsewhere, and its holder, whose lease
/// is not renewed, was told at its deadline. On one thread they go over the connection that watches; without a runtime all calls do.
#[test]
fn a_permit_is_watched_on_when_its_client_gives_another_one_back_by_its_id() {
    let server = RedisServer::start().unwrap();
    let blocking_client = blocking::Client::build(quiet().url(server.url()).watchdog_lease(LONG)).unwrap();
    let semaphore = blocking_client.permit_semaphore("by-id");
    semaphore.set_if_absent(3).unwrap();
    let until_watched = || {
        let begin = Instant::now();
        while watched(&server) < 1 {
            assert!(begin.elapsed() < SOON, "it is not watched");
            std::thread::sleep(ms(5));
        }
    };
    let permit = semaphore.request().lease(Lease::Fixed(LONG)).run().unwrap().unwrap();
    let other = semaphore.request().lease(Lease::Fixed(LONG)).run().unwrap().unwrap().detach();
    until_watched();
    semaphore.release(&other[0]).unwrap();
    until_watched();
    server.cmd(&["DEL", "{by-id}:timeout"]).unwrap();
    assert!(permit.lost_within(SOON).unwrap().is_some());
}

/// A task that no runtime polls works with the connection that watches, too.
#[test]
fn a_hold_is_watched_on_when_a_task_outside_any_runtime_has_extended_it() {
    let server = RedisServer::start().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(client(quiet().url(server.url())));
    let lock = client.lock("outside");
    let guard = runtime.block_on(async { lock.acquire().lease(Lease::Fixed(LONG)).await }).unwrap().unwrap();
    runtime.block_on(until_watched(&[&server], 1));
    outside(guard.extend(LONG)).unwrap();
    runtime.block_on(until_watched(&[&server], 1));
    server.cmd(&["DEL", "outside"]).unwrap();
    assert_eq!(runtime.block_on(soon("the loss", guard.lost())), LossReason::Deleted);
}

/// Polls a future on this thread, which is in no runtime.
fn outside<T>(work: impl Future<Output = T>) -> T {
    struct Thread(std::thread::Thread);
    impl std::task::Wake for Thread {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::task::Waker::from(std::sync::Arc::new(Thread(std::thread::current())));
    let mut work = std::pin::pin!(work);
    loop {
        match work.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(done) => return done,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

/// Each hold that was dropped put the watching of the others off for a second more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_watched_though_others_of_the_same_hash_go_all_the_time() {
    let server = RedisServer::start().unwrap();
    let client = client(quiet().url(server.url())).await;
    let lock = client.read_write_lock("both");
    let reader = lock.read().acquire().lease(Lease::Fixed(LONG)).await.unwrap().unwrap();
    until_watched(&[&server], 1).await;
    let others = tokio::spawn(async move {
        loop {
            drop(lock.read().lock().await.unwrap());
            tokio::time::sleep(ms(300)).await;
        }
    });
    tokio::time::sleep(ms(2_000)).await;
    server.cmd(&["DEL", "both"]).unwrap();
    for _ in 0..6 {
        tokio::time::sleep(ms(500)).await;
        println!(
            "{:?} watched {} valid {} owner {}",
            server.cmd(&["HGETALL", "both"]).unwrap(),
            watched(&server),
            reader.is_valid(),
            reader.owner().to_text()
        );
        println!(
            "{:?}",
            server
                .command_counts()
                .unwrap()
                .iter()
                .filter(|(k, _)| ["exists", "evalsha", "client|caching", "hdel"].contains(&&***k))
                .collect::<Vec<_>>()
        );
    }
    others.abort();
    soon("the loss", reader.lost()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_holds_cost_two_commands_and_long_ones_two_more_for_each_renewal() {
    let server = RedisServer::start().unwrap();
    let client = client(quiet().url(server.url())).await;
    let lock = client.lock("pair");
    for _ in 0..3 {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
    server.reset_command_counts().unwrap();
    let start = Instant::now();
    for _ in 0..500 {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
    let counts = server.command_counts().unwrap();
    assert_eq!(counts.get("evalsha"), Some(&1_000), "{counts:?}");
    // Only a hold that lasted as long as that may have been watched.
    if start.elapsed() < ms(250) {
        assert_eq!(counts.get("exists"), None, "{counts:?}");
    }

    let brisk = quiet().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let guards = hold(&brisk, names(100)).await;
    until_watched(&[&server], 100).await;
    // Renewals that are apart at first fall into step.
    renewed(2, async || guards[0].remaining()).await;
    server.reset_command_counts().unwrap();
    renewed(3, async || guards[0].remaining()).await;
    let counts = server.command_counts().unwrap();
    let of = |name: &str| counts.get(name).copied().unwrap_or(0);
    let renewals = of("evalsha");
    assert!((3..=8).contains(&renewals), "{counts:?}");
    // The last one may have been counted before what follows it.
    for more in [of("exists"), of("client|caching")] {
        assert!(more.abs_diff(renewals) <= 1, "{counts:?}");
    }
    assert_eq!(of("client|tracking"), 0, "asked for once a connection: {counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_change_all_the_time_costs_little_and_its_loss_is_told_all_the_same() {
    let server = RedisServer::start().unwrap();
    let (holder, other) =
        (client(quiet().url(server.url())).await, quiet().url(server.url()).connect().await);
    let reader = holder.read_write_lock("busy").read().lock().await.unwrap();
    until_watched(&[&server], 1).await;
    server.reset_command_counts().unwrap();
    let (start, others) = (Instant::now(), other.unwrap().read_write_lock("busy"));
    while start.elapsed() < ms(3_000) {
        others.read().lock().await.unwrap().unlock().await.unwrap();
    }
    let counts = server.command_counts().unwrap();
    let watches = counts.get("exists").copied().unwrap_or(0);
    let seconds = start.elapsed().as_secs() + 1;
    assert!((1..=2 * seconds + 2).contains(&watches), "{watches} in {seconds} s");
    assert!(reader.is_valid());
    // The last change has been told, or is told now.
    server.cmd(&["DEL", "busy"]).unwrap();
    soon("the loss", reader.lost()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_are_watched_anew_after_a_connection_ended() {
    let server = RedisServer::start().unwrap();
    let client = client(quiet().url(server.url())).await;
    let mut guards = hold(&client, names(20)).await;
    // One that is not renewed, too.
    let fixed = client.lock("fixed").acquire().lease(Lease::Fixed(LONG)).await.unwrap().unwrap();
    guards.push(fixed);
    until_watched(&[&server], 21).await;
    for _ in 0..3 {
        server.reset_command_counts().unwrap();
        server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
        // Those that are renewed on this occasion, and the one that is not.
        soon("the watching anew", async {
            while server.command_count("exists").unwrap() < 2 || watched(&server) < 21 {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
    }
    for guard in &guards {
        server.cmd(&["DEL", &guard.name().to_string()]).unwrap();
    }
    all_lost(&guards).await;
}

/// An account without the rights is told by its renewals, as ever, and finds out why from `doctor`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_it_is_refused_renewals_tell_and_doctor_says_so() {
    let missing = ["client|tracking", "client|caching", "exists"];
    for without in missing {
        let rights = Rights::of(&[Kind::Lock], "");
        assert!(rights.commands().contains(&without));
        let builder = RedisServer::builder().acl("default off");
        let server = builder.acl(&format!("app on >pw {rights} +info -{without}")).start().unwrap();
        let builder = quiet().url(server.url()).username("app").password("pw");
        let client = builder.watchdog_lease(RENEWED).connect().await.unwrap();
        let guard = client.lock("x").lock().await.unwrap();
        renewed(2, async || guard.remaining()).await;
        server.cmd(&["DEL", "x"]).unwrap();
        assert_eq!(soon("the loss", guard.lost()).await, LossReason::Deleted);
        let counts = server.command_counts().unwrap();
        assert!(counts.get(without).copied().unwrap_or(0) <= 2, "asked again and again: {counts:?}");

        let findings = client.diagnose().await.unwrap();
        let loss = findings.iter().find(|finding| finding.subject == "loss").unwrap();
        assert_eq!(loss.severity, Severity::Note, "{loss}");
        assert!(loss.text.contains("renewal") && loss.remedy.unwrap().contains(without), "{loss}");
        let findings = client.diagnose_rights(&[Kind::Lock], "").await.unwrap();
        assert!(findings[0].text.contains(&format!("+{without}")), "{findings:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_says_that_losses_are_told() {
    let server = RedisServer::start().unwrap();
    let client = quiet().url(server.url()).connect().await.unwrap();
    let findings = client.diagnose().await.unwrap();
    let loss = findings.iter().find(|finding| finding.subject == "loss").unwrap();
    assert_eq!(loss.severity, Severity::Good, "{loss}");
    // A server that has no room for what it is to watch tells of some changes only.
    let guards = hold(&client, names(3)).await;
    until_watched(&[&server], 3).await;
    server.cmd(&["CONFIG", "SET", "tracking-table-max-keys", "3"]).unwrap();
    let findings = client.diagnose().await.unwrap();
    let loss = findings.iter().find(|finding| finding.subject == "loss").unwrap();
    assert_eq!(loss.severity, Severity::Problem, "{loss}");
    assert!(
        loss.text.contains("3 keys") && loss.remedy.unwrap().contains("tracking-table-max-keys"),
        "{loss}"
    );
    drop(guards);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_sentinels_and_after_a_failover_every_holder_learns_of_a_delete() {
    let set = SentinelSet::start().unwrap();
    let client = client(quiet().url(set.url())).await;
    let guards = hold(&client, names(40)).await;
    let master = &set.nodes()[set.master().unwrap()];
    until_watched(&[master], 40).await;
    for guard in &guards[..20] {
        master.cmd(&["DEL", &guard.name().to_string()]).unwrap();
    }
    all_lost(&guards[..20]).await;
    let master = &set.nodes()[set.failover().unwrap()];
    until_watched(&[master], 20).await;
    for guard in &guards[20..] {
        master.cmd(&["DEL", &guard.name().to_string()]).unwrap();
    }
    all_lost(&guards[20..]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_of_a_cluster_tells_of_its_own_keys() {
    let cluster = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    let client = client(quiet().url(cluster.url())).await;
    let guards = hold(&client, names(60)).await;
    let nodes: Vec<&RedisServer> = cluster.nodes().iter().collect();
    until_watched(&nodes, 60).await;
    for node in &nodes {
        assert!(watched(node) > 0);
        node.flush_all().unwrap();
    }
    all_lost(&guards).await;
}

/// One key that was overwritten made the server refuse the renewal of all that were in the same call, and the look at them: they ended one
/// after the other with their leases, untouched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_overwritten_takes_no_other_hold_along_and_its_holder_is_told() {
    let server = RedisServer::builder().start().unwrap();
    let client = quiet().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    type Loss = Box<dyn Fn() -> Option<LossReason>>;
    let mut untouched: Vec<(&str, Loss)> = Vec::new();
    macro_rules! of_each_kind {
        ($($kind:literal, $each:ident => $take:expr;)*) => {$({
            let mut guards = Vec::new();
            for n in 0..7 {
                let $each = format!("{}{n}", $kind);
                guards.push($take);
            }
            // What are taken of permits is beside their number.
            let key = if $kind == "permit" { "{permit3}:timeout".to_owned() } else { format!("{}3", $kind) };
            server.cmd(&["SET", &key, "of another program"]).unwrap();
            soon("the loss of what was overwritten", guards.remove(3).lost()).await;
            for guard in guards {
                untouched.push(($kind, Box::new(move || guard.loss())));
            }
        })*};
    }
    of_each_kind! {
        "plain", name => client.lock(name).lock().await.unwrap();
        "fair", name => client.fair_lock(name).lock().await.unwrap();
        "read", name => client.read_write_lock(name).read().lock().await.unwrap();
        "write", name => client.read_write_lock(name).write().lock().await.unwrap();
        "permit", name => {
            let permits = client.permit_semaphore(name);
            permits.set(1).await.unwrap();
            permits.request().await.unwrap().unwrap()
        };
    }
    // Each has to be renewed a few times.
    tokio::time::sleep(RENEWED * 3).await;
    for (kind, loss) in untouched {
        assert_eq!(loss(), None, "{kind}");
    }
}

/// The same for an account that loses the right to some of the names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_withdrawn_for_some_names_takes_no_other_hold_along() {
    let server = RedisServer::builder().start().unwrap();
    server.cmd(&["ACL", "SETUSER", "app", "on", ">app", "~*", "&*", "+@all"]).unwrap();
    let url = server.url().replace("redis://", "redis://app:app@");
    let client = quiet().url(url).watchdog_lease(RENEWED).connect().await.unwrap();
    let guards = hold(&client, (0..8).map(|n| format!("{}{n}", if n % 3 == 0 { "b" } else { "a" }))).await;
    server.cmd(&["ACL", "SETUSER", "app", "resetkeys", "~a*", "~redlatch*"]).unwrap();
    tokio::time::sleep(RENEWED * 4).await;
    for guard in guards {
        let name = guard.name().to_string();
        assert_eq!(guard.is_valid(), name.starts_with('a'), "{name}: {:?}", guard.loss());
    }
}

/// Another client may have the lock by then. Why it was lost is found out later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_was_seen_to_be_gone_is_not_valid_while_its_end_is_looked_for() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = client(quiet().url(proxy.url())).await;
    let guard = client.lock("gone").lock().await.unwrap();
    until_watched(&[&server], 1).await;
    let looks = Match::script().arg_contains(redlatch::scripts::LOST.sha1());
    let rule = proxy.rule(looks, Action::DelayReply(ms(450)));
    server.cmd(&["DEL", "gone"]).unwrap();
    proxy.wait_fired(rule, 1, SOON).await.unwrap();
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    let reason = guard.loss();
    assert_eq!(reason, Some(LossReason::Deleted));
    assert_eq!(guard.check().unwrap_err().kind(), redlatch::ErrorKind::Lost);
    assert_eq!(guard.unlock().await.unwrap(), redlatch::Unlocked::AlreadyLost(LossReason::Deleted));
}

/// What finds it out is not the caller's to drop: nothing else would tell the holder before the deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_an_extension_has_found_is_told_though_its_caller_gives_up() {
    let server =
        RedisServer::builder().acl("default on nopass ~* &* +@all -client|tracking").start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = client(quiet().url(proxy.url())).await;
    let guard = client.lock("gone").lock().await.unwrap();
    server.cmd(&["DEL", "gone"]).unwrap();
    let looks = Match::script().arg_contains(redlatch::scripts::LOST.sha1());
    let rule = proxy.rule(looks, Action::DelayReply(ms(450)));
    tokio::select! {
        extended = guard.extend(LONG) => panic!("its end is looked for: {extended:?}"),
        fired = proxy.wait_fired(rule, 1, SOON) => fired.unwrap(),
    }
    assert!(!guard.is_valid());
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::Deleted);
}

/// Its next renewal is ten minutes away, and nothing tells of what another client does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_is_renewed_rarely_is_looked_at_where_no_change_is_told() {
    let server =
        RedisServer::builder().acl("default on nopass ~* &* +@all -client|tracking").start().unwrap();
    let client = quiet().url(server.url()).watchdog_lease(3 * LONG).connect().await.unwrap();
    let guard = client.lock("gone").lock().await.unwrap();
    let scripts = || server.command_count("evalsha").unwrap() + server.command_count("eval").unwrap();
    let granted = scripts();
    soon("the look with which its watching begins", async {
        while scripts() == granted {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    server.cmd(&["DEL", "gone"]).unwrap();
    let told = tokio::time::timeout(ms(60_000), guard.lost()).await;
    assert_eq!(told.expect("the loss"), LossReason::Deleted);
}

/// The holder gives it back while that is being found out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_was_forced_free_is_said_to_be_so_by_a_release_that_comes_at_once() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = client(quiet().url(proxy.url())).await;
    let guard = client.lock("gone").lock().await.unwrap();
    until_watched(&[&server], 1).await;
    let looks = Match::script().arg_contains(redlatch::scripts::LOST.sha1());
    let rule = proxy.rule(looks, Action::DelayReply(ms(200)));
    let direct = quiet().url(server.url()).connect().await.unwrap();
    direct.lock("gone").force(redlatch::Force::new().by("ops").reason("stuck")).await.unwrap();
    proxy.wait_fired(rule, 1, SOON).await.unwrap();
    let outcome = guard.unlock().await.unwrap();
    let expected = LossReason::Forced { by: "ops".into(), reason: Some("stuck".into()) };
    assert_eq!(outcome, redlatch::Unlocked::AlreadyLost(expected));
}
