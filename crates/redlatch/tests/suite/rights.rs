//! The rights of an account: each kind runs with what the library says it needs, and with nothing else; with scripts and with
//! functions.

use redis::Value;
use redlatch::{
    Client, ClientBuilder, ErrorKind, LossReason, MultiLock, Presence, Rate, ScriptMode, Unlocked, Wait,
    acl::{Kind, Rights},
    scripts,
};
use redlatch_testkit::server::RedisServer;

use crate::{
    fixture::{RENEWED, ms, renewed, soon},
    kinds::{AnyLock, Face},
};

/// What a look at a lost lock tries with `pcall` and does without.
const SPARED: [&str; 2] = ["llen", "get"];

struct Account {
    server: RedisServer,
    mode: ScriptMode,
}

impl Account {
    /// A server with one account for these kinds and names that begin with `app:`.
    fn of(kinds: &[Kind], mode: ScriptMode) -> Self {
        let rights = Rights::of(kinds, "app:").functions(mode == ScriptMode::Functions);
        let builder = RedisServer::builder().acl("default off").acl(&format!("app on >pw {rights}"));
        let server = builder.start().unwrap();
        if mode == ScriptMode::Functions {
            server.cmd(&["FUNCTION", "LOAD", &scripts::library()]).unwrap();
        }
        Account { server, mode }
    }

    /// One for each way to run scripts.
    fn both(kinds: &[Kind]) -> [Self; 2] {
        [ScriptMode::Eval, ScriptMode::Functions].map(|mode| Self::of(kinds, mode))
    }

    async fn client(&self) -> Client {
        let builder =
            Client::builder().url(self.server.url()).username("app").password("pw").scripts(self.mode);
        builder.presence(Presence::untold()).watchdog_lease(RENEWED).connect().await.unwrap()
    }

    /// A client that tells what it holds.
    async fn telling(&self) -> Client {
        let builder = Client::builder().url(self.server.url()).username("app").password("pw");
        builder.scripts(self.mode).connect().await.unwrap()
    }

    /// Whether the server was asked to run a command, which it may have refused.
    fn has_run(&self, command: &str) -> bool {
        let stats = self.server.cmd(&["INFO", "commandstats"]).unwrap();
        redis::from_redis_value::<String>(stats).unwrap().contains(&format!("cmdstat_{command}:"))
    }

    /// Commands, keys and channels that the server has refused.
    fn refused(&self) -> Vec<String> {
        let Value::Array(entries) = self.server.cmd(&["ACL", "LOG", "128"]).unwrap() else {
            panic!("a list")
        };
        let object = |entry: &Value| {
            let Value::Array(fields) = entry else { panic!("a list of fields") };
            let text = |value: &Value| match value {
                Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                _ => String::new(),
            };
            let at = fields.iter().position(|field| text(field) == "object").expect("an object");
            text(&fields[at + 1])
        };
        entries.iter().map(object).collect()
    }

    /// How often the server has refused something.
    fn refusals(&self) -> i64 {
        let Value::Array(entries) = self.server.cmd(&["ACL", "LOG", "128"]).unwrap() else {
            panic!("a list")
        };
        let count = |entry: &Value| {
            let Value::Array(fields) = entry else { panic!("a list of fields") };
            let is_count = |field: &Value| matches!(field, Value::BulkString(name) if name == b"count");
            let at = fields.iter().position(is_count).expect("a count");
            let Value::Int(count) = fields[at + 1] else { panic!("a number") };
            count
        };
        entries.iter().map(count).sum()
    }

    fn assert_nothing_was_refused(&self) {
        let refused = self.refused();
        assert!(refused.iter().all(|what| SPARED.contains(&what.as_str())), "{:?} {refused:?}", self.mode);
    }
}

/// Everything that a lock with one holder does.
async fn exercise(kinds: &[Kind], face: Face) {
    for account in Account::both(kinds) {
        let (client, other) = (account.client().await, account.client().await);
        for name in ["app:plain", "app:{tag}:x"] {
            let (lock, others) = (AnyLock::new(face, &client, name), AnyLock::new(face, &other, name));
            let guard = lock.lock().await.unwrap();
            assert!(others.try_lock().await.unwrap().is_none());
            if !matches!(face, Face::NonReentrant | Face::NonReentrantFair) {
                let inner = guard.reenter().await.unwrap();
                assert_eq!(inner.unlock().await.unwrap(), Unlocked::StillHeld(1));
            }
            assert_eq!(lock.hold_count(guard.owner()).await.unwrap(), 1);
            let waiter = tokio::spawn(async move { others.lock().await.unwrap() });
            // By then the waiter waits, too.
            renewed(1, async || guard.remaining()).await;
            // Another owner of this client, which the lock may be passed on to.
            let owner = client.owner();
            let next = lock.clone();
            let recipient = tokio::spawn(async move {
                let next = next.acquire().owner(&owner).wait(Wait::Forever).await;
                next.unwrap().unwrap()
            });
            tokio::time::sleep(ms(100)).await;
            guard.extend(ms(30_000)).await.unwrap();
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
            let one = async { soon("a grant", waiter).await.unwrap().unlock().await.unwrap() };
            let two = async { soon("a grant", recipient).await.unwrap().unlock().await.unwrap() };
            tokio::join!(one, two);

            let lost = lock.lock().await.unwrap();
            let thief = AnyLock::new(face, &other, name);
            assert!(thief.force_unlock().await.unwrap());
            let held = thief.lock().await.unwrap();
            let reason = soon("the loss", lost.lost()).await;
            assert!(matches!(reason, LossReason::Forced { .. }), "{reason:?}");
            held.unlock().await.unwrap();
        }
        account.assert_nothing_was_refused();
    }
}

macro_rules! locks {
    ($($name:ident: $face:ident with $($kind:ident)*;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            exercise(&[$(Kind::$kind),*], Face::$face).await;
        }
    )*};
}

locks! {
    a_lock_needs_no_more: Plain with Lock;
    a_fenced_lock_needs_no_more: Fenced with Fenced;
    a_fair_lock_needs_no_more: Fair with Fair;
    a_spin_lock_needs_no_more: Spin with Spin;
    a_non_reentrant_lock_needs_no_more: NonReentrant with Lock;
    a_non_reentrant_fair_lock_needs_no_more: NonReentrantFair with Fair;
    a_write_lock_needs_no_more: Write with ReadWrite;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_other_kinds_need_the_rights_to_tokens_besides() {
    for (face, kind) in [(Face::Fair, Kind::Fair), (Face::Write, Kind::ReadWrite), (Face::Plain, Kind::Lock)]
    {
        let account = Account::of(&[kind, Kind::Fenced], ScriptMode::Eval);
        let client = account.client().await;
        let guard = AnyLock::new(face, &client, "app:x").acquire().fenced().await.unwrap().unwrap();
        assert!(guard.token().is_some());
        guard.unlock().await.unwrap();
        account.assert_nothing_was_refused();

        let account = Account::of(&[kind], ScriptMode::Eval);
        let client = account.client().await;
        let lock = AnyLock::new(face, &client, "app:x");
        let error = lock.acquire().fenced().await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
        assert!(!lock.is_locked().await.unwrap(), "nothing is left half done");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_need_no_more() {
    for account in Account::both(&[Kind::ReadWrite]) {
        let client = account.client().await;
        for name in ["app:rw", "app:{tag}:rw"] {
            let lock = client.read_write_lock(name);
            let write = lock.write().lock().await.unwrap();
            let nested = write.read().await.unwrap();
            let waiting = lock.clone();
            let reader = tokio::spawn(async move { waiting.read().lock().await.unwrap() });
            renewed(1, async || write.remaining()).await;
            let read = write.downgrade().await.unwrap();
            let again = read.reenter().await.unwrap();
            let beside = soon("the reader", reader).await.unwrap();
            assert_eq!(nested.unlock().await.unwrap(), Unlocked::StillHeld(2));
            again.unlock().await.unwrap();
            read.unlock().await.unwrap();
            renewed(1, async || beside.remaining()).await;
            assert!(beside.is_valid());
            assert!(lock.read().force_unlock().await.unwrap());
        }
        account.assert_nothing_was_refused();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sets_of_locks_need_what_their_members_need() {
    for account in Account::both(&[Kind::Lock]) {
        let client = account.client().await;
        let set = MultiLock::new([client.lock("app:a"), client.lock("app:b")]).unwrap();
        let guard = set.lock().await.unwrap();
        assert!(set.try_lock().await.unwrap().is_none());
        assert!(guard.unlock().await.is_clean());
        account.assert_nothing_was_refused();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_needs_no_more() {
    for account in Account::both(&[Kind::Semaphore]) {
        let client = account.client().await;
        for name in ["app:s", "app:{tag}:s"] {
            let semaphore = client.semaphore(name);
            assert!(semaphore.set_if_absent(2, Some(ms(60_000))).await.unwrap());
            semaphore.acquire(2).await.unwrap();
            let waiting = semaphore.clone();
            let waiter = tokio::spawn(async move { waiting.acquire(1).await.unwrap() });
            tokio::time::sleep(ms(100)).await;
            semaphore.release(1).await.unwrap();
            soon("the permit", waiter).await.unwrap();
            semaphore.add(3).await.unwrap();
            assert_eq!(semaphore.available().await.unwrap(), 3);
            semaphore.drain().await.unwrap();
            assert!(semaphore.release_if_exists(1).await.unwrap());
            assert!(semaphore.delete().await.unwrap());
        }
        account.assert_nothing_was_refused();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_permits_need_no_more() {
    for account in Account::both(&[Kind::Permits]) {
        let client = account.client().await;
        for name in ["app:p", "app:{tag}:p"] {
            let permits = client.permit_semaphore(name);
            assert!(permits.set_if_absent(1).await.unwrap());
            assert!(permits.expire(ms(60_000)).await.unwrap());
            let guard = permits.acquire().await.unwrap();
            let waiting = permits.clone();
            let waiter = tokio::spawn(async move { waiting.acquire().await.unwrap() });
            renewed(1, async || guard.remaining()).await;
            guard.release().await.unwrap();
            let lost = soon("the permit", waiter).await.unwrap();
            assert_eq!((permits.acquired().await.unwrap(), permits.total().await.unwrap()), (1, 1));
            permits.set(2).await.unwrap();
            permits.add(1).await.unwrap();
            assert!(permits.delete().await.unwrap());
            assert_eq!(soon("the loss", lost.lost()).await, LossReason::Deleted);
        }
        account.assert_nothing_was_refused();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_needs_no_more() {
    for account in Account::both(&[Kind::Latch]) {
        let client = account.client().await;
        let latch = client.count_down_latch("app:l");
        assert!(latch.set_if_absent(2).await.unwrap());
        let waiting = latch.clone();
        let waiter = tokio::spawn(async move { waiting.wait().await.unwrap() });
        // A waiter that has waited for a moment has the server report changes of the key.
        soon("the watch", async {
            while !account.has_run("client|tracking") {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
        assert_eq!(latch.count_down().await.unwrap(), 1);
        assert_eq!(latch.count().await.unwrap(), 1);
        assert_eq!(latch.count_down().await.unwrap(), 0);
        soon("the gate", waiter).await.unwrap();
        assert!(latch.set_if_absent(1).await.unwrap() && latch.delete().await.unwrap());
        account.assert_nothing_was_refused();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_limiter_needs_no_more() {
    for account in Account::both(&[Kind::RateLimiter]) {
        let client = account.client().await;
        for name in ["app:r", "app:{tag}:r"] {
            let limiter = client.rate_limiter(name);
            assert!(limiter.set_if_absent(Rate::per(5, ms(200)).keep_alive(ms(60_000))).await.unwrap());
            limiter.acquire(5).await.unwrap();
            soon("the interval", limiter.acquire(2)).await.unwrap();
            assert_eq!(limiter.release(1).await.unwrap(), 1);
            assert!(limiter.update(Rate::per(6, ms(3_600_000))).await.unwrap());
            assert!(limiter.available().await.unwrap() > 0);
            limiter.set(Rate::per(1, ms(1)).per_client()).await.unwrap();
            limiter.acquire(1).await.unwrap();
            assert!(limiter.config().await.unwrap().is_some() && limiter.delete().await.unwrap());
        }
        account.assert_nothing_was_refused();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stock_needs_no_more() {
    for account in Account::both(&[Kind::Stock]) {
        let client = account.client().await;
        client.set_stock("app:n", 3).await.unwrap();
        assert_eq!(client.take_stock("app:n", 2).await.unwrap(), Some(1));
        assert_eq!(client.stock("app:n").await.unwrap(), Some(1));
        client.remove_stock("app:n").await.unwrap();
        account.assert_nothing_was_refused();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_tells_needs_its_own_right_and_no_more() {
    for account in Account::both(&[Kind::Lock, Kind::Presence]) {
        let client = account.telling().await;
        let _guard = client.lock("app:x").lock().await.unwrap();
        let key = format!("redlatch:client:{{{}}}", client.id());
        soon("the record", async {
            while account.server.cmd(&["EXISTS", &key]).unwrap() == Value::Int(0) {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
        account.assert_nothing_was_refused();
    }
    for account in Account::both(&[Kind::Lock]) {
        let client = account.telling().await;
        let guard = client.lock("app:x").lock().await.unwrap();
        soon("the refusal", async {
            while account.refused().is_empty() {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
        let refused = account.refusals();
        // It does not try again, whatever changes.
        let _other = client.lock("app:y").lock().await.unwrap();
        tokio::time::sleep(ms(2_500)).await;
        assert_eq!(account.refusals(), refused);
        guard.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_only_looks_sees_everything_and_changes_nothing() {
    for account in Account::both(&[Kind::Look]) {
        let all = Rights::of(&Kind::ALL, "").functions(account.mode == ScriptMode::Functions);
        let mut setuser: Vec<String> = ["ACL", "SETUSER", "worker", "on", ">pw"].map(String::from).into();
        setuser.extend(all.rules().split(' ').map(String::from));
        account.server.cmd(&setuser).unwrap();
        let worker = Client::builder().url(account.server.url()).username("worker").password("pw");
        let worker = worker.scripts(account.mode).connect().await.unwrap();
        let held = worker.fenced_lock("app:held").lock().await.unwrap();
        let _fair = worker.fair_lock("app:fair").lock().await.unwrap();
        let _read = worker.read_write_lock("app:rw").read().lock().await.unwrap();
        worker.semaphore("app:s").set_if_absent(2, None).await.unwrap();
        let _other = worker.lock("other:lock").lock().await.unwrap();
        let queueing = worker.fair_lock("app:fair");
        let waiter = tokio::spawn(async move { queueing.lock().await.map(drop) });

        let client = account.client().await;
        let state = client.inspect("app:held").await.unwrap();
        assert_eq!((state.token, state.findings.len()), (Some(held.token()), 0));
        assert_eq!(state.listening, Some(0));
        soon("the queue", async {
            while client.inspect("app:fair").await.unwrap().waiting == 0 {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
        let names: Vec<String> = client
            .list(Some("app:*"), 10)
            .await
            .unwrap()
            .iter()
            .map(|state| state.name.to_string())
            .collect();
        assert_eq!(names, ["app:fair", "app:held", "app:rw"]);
        soon("who holds", async {
            while client.why("app:held").await.unwrap().names[0].blockers[0].client.is_none() {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
        account.assert_nothing_was_refused();

        let everything = client.list(None, 10).await.unwrap();
        assert_eq!(everything.len(), 3, "names of others are left out: {everything:?}");
        let error = client.lock("app:free").try_lock().await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
        let error = client.lock("app:held").force_unlock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
        assert!(worker.lock("app:held").is_locked().await.unwrap());
        waiter.abort();
    }
}

fn as_operator(server: &RedisServer) -> ClientBuilder {
    Client::builder().url(server.url()).username("operator").password("pw")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_library_is_named_with_its_remedy_and_an_operator_loads_it() {
    let rights = Rights::of(&[Kind::Lock], "app:").functions(true);
    let server = RedisServer::builder()
        .acl(&format!("app on >pw {rights}"))
        .acl("operator on >pw -@all +ping +function|load")
        .start()
        .unwrap();
    let app =
        Client::builder().url(server.url()).username("app").password("pw").scripts(ScriptMode::Functions);
    let error = app.clone().connect().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FunctionMissing, "{error}");
    assert!(error.to_string().contains("redlatch functions load"), "{error}");

    let operator = as_operator(&server).connect().await.unwrap();
    operator.load_functions().await.unwrap();
    let client = app.clone().connect().await.unwrap();
    assert_eq!(client.load_functions().await.unwrap_err().kind(), ErrorKind::Permission);
    let guard = client.lock("app:x").lock().await.unwrap();
    // Loading again while a client works does no harm, and neither does the library of another version.
    operator.load_functions().await.unwrap();
    let older =
        "#!lua name=redlatch_1\nredis.register_function('redlatch_1_acquire', function() return 1 end)";
    server.cmd(&["FUNCTION", "LOAD", older]).unwrap();
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);

    server.cmd(&["FUNCTION", "DELETE", scripts::library_name()]).unwrap();
    let error = client.lock("app:x").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FunctionMissing, "{error}");
    assert!(error.to_string().contains("app:x"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_functions_is_told_from_one_without_the_library() {
    let server =
        RedisServer::builder().arg("rename-command", "FCALL \"\"").arg("rename-command", "FUNCTION \"\"");
    let server = server.start().unwrap();
    let functions = Client::builder().url(server.url()).scripts(ScriptMode::Functions);
    let error = functions.connect().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FunctionMissing, "{error}");
    assert!(error.to_string().contains("Redis 7.0"), "{error}");
    let client = Client::connect(&server.url()).await.unwrap();
    assert_eq!(client.load_functions().await.unwrap_err().kind(), ErrorKind::FunctionMissing);
    let memory = Client::builder().url("memory:").scripts(ScriptMode::Functions).connect().await.unwrap();
    assert_eq!(memory.load_functions().await.unwrap_err().kind(), ErrorKind::InvalidOption);
    memory.lock("x").lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_refuses_grants_and_takes_everything_back_with_functions() {
    let account = Account::of(&Kind::ALL, ScriptMode::Functions);
    let client = account.client().await;
    let plain = client.lock("app:plain").lock().await.unwrap();
    let inner = plain.reenter().await.unwrap();
    let fair = client.fair_lock("app:fair").lock().await.unwrap();
    let write = client.read_write_lock("app:rw").write().lock().await.unwrap();
    let nested = write.read().await.unwrap();
    let semaphore = client.semaphore("app:s");
    semaphore.set_if_absent(1, None).await.unwrap();
    semaphore.acquire(1).await.unwrap();
    let permits = client.permit_semaphore("app:p");
    permits.set(1).await.unwrap();
    let permit = permits.acquire().await.unwrap();
    account.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();

    let error = client.lock("app:more").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    // So many renewals take longer than a lease, so everything is renewed.
    renewed(4, async || plain.remaining()).await;
    assert_eq!(inner.unlock().await.unwrap(), Unlocked::StillHeld(1));
    assert_eq!(plain.unlock().await.unwrap(), Unlocked::Released);
    assert_eq!(fair.unlock().await.unwrap(), Unlocked::Released);
    assert_eq!(write.unlock().await.unwrap(), Unlocked::Released);
    assert_eq!(nested.unlock().await.unwrap(), Unlocked::Released);
    assert_eq!(permit.release().await.unwrap(), Unlocked::Released);
    semaphore.release(1).await.unwrap();
}
