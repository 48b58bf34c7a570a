//! Fenced resources as `docs/fencing.md` shows them: a holder is paused past its lease, the next one writes, and then the
//! first one's write arrives and is refused.

#[path = "fencing/postgres.rs"]
mod postgres;

use std::{sync::Mutex, time::Duration};

use postgres::Postgres;
use redlatch::{Client, FencedGuard, FencedLock, Lease, LossReason, Unlocked, Wait};
use redlatch_testkit::server::RedisServer;
use rusqlite::Connection;

const TABLE: &str = include_str!("../recipes/fenced_table.sql");
const UPDATE: &str = include_str!("../recipes/fenced_update.sql");
const UPSERT: &str = include_str!("../recipes/fenced_upsert.sql");
const REDIS: &str = include_str!("../recipes/fenced_write.lua");

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(30);

/// How the first holder loses its lock while it is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Expired,
    Forced,
}

/// Databases keep the token as a signed number of 64 bits, which is large enough for 292,000 years of microseconds.
fn column(token: u64) -> i64 {
    i64::try_from(token).expect("a token fits")
}

/// A holder whose lock was lost while it was paused, and the holder that came next.
async fn overtaken(first: &FencedLock, next: &FencedLock, loss: Loss) -> (FencedGuard, FencedGuard) {
    let lease = if loss == Loss::Expired { Duration::from_millis(300) } else { LIMIT };
    let paused = first.acquire().lease(Lease::Fixed(lease)).await.unwrap().expect("a free lock");
    assert!(next.try_lock().await.unwrap().is_none(), "it is held");
    if loss == Loss::Forced {
        assert!(next.force_unlock().await.unwrap());
    }
    let heir = next.acquire().wait(Wait::AtMost(LIMIT)).await.unwrap().expect("the first hold has ended");
    assert!(heir.token() > paused.token());
    (paused, heir)
}

/// The whole story, told to a resource: `write` says whether it accepted, `read` who wrote last.
async fn story(
    server: &RedisServer,
    name: &str,
    write: impl AsyncFn(u64, &str) -> bool,
    read: impl AsyncFn() -> String,
) {
    let clients =
        [Client::connect(&server.url()).await.unwrap(), Client::connect(&server.url()).await.unwrap()];
    for loss in [Loss::Expired, Loss::Forced] {
        let (first, next) = (clients[0].fenced_lock(name), clients[1].fenced_lock(name));
        let (paused, heir) = overtaken(&first, &next, loss).await;
        assert!(write(heir.token(), "heir").await, "{loss:?}: a fresh write");
        // The paused holder goes on with its next instruction, which is the write.
        assert!(!write(paused.token(), "paused").await, "{loss:?}: a stale write was accepted");
        assert_eq!(read().await, "heir", "{loss:?}");
        assert!(write(heir.token(), "heir again").await, "{loss:?}: a hold may write more than once");
        assert!(!write(paused.token(), "paused").await, "{loss:?}");
        assert_eq!(read().await, "heir again", "{loss:?}");
        assert_eq!(heir.unlock().await.unwrap(), Unlocked::Released);
        // Nobody holds the lock now, and the late write is as stale as before.
        assert!(!write(paused.token(), "paused").await, "{loss:?}: accepted because the lock is free");
        assert_eq!(read().await, "heir again", "{loss:?}");
        let reason = match paused.unlock().await.unwrap() {
            Unlocked::AlreadyLost(reason) => reason,
            other => panic!("{loss:?}: {other:?}"),
        };
        let is_told = match loss {
            Loss::Expired => matches!(reason, LossReason::Expired | LossReason::Deleted),
            Loss::Forced => matches!(reason, LossReason::Forced { .. }),
        };
        assert!(is_told, "{loss:?}: {reason:?}");
        // Holders that overtake nobody write in turn.
        for client in &clients {
            let guard = client.fenced_lock(name).lock().await.unwrap();
            assert!(write(guard.token(), client.id()).await);
            assert_eq!(read().await, client.id());
            guard.unlock().await.unwrap();
        }
    }
}

/// A database in a file, so that each holder has a connection of its own.
struct Sqlite {
    dir: tempfile::TempDir,
}

impl Sqlite {
    fn new() -> Self {
        let sqlite = Sqlite { dir: tempfile::tempdir().unwrap() };
        sqlite.connect().execute(TABLE, ()).unwrap();
        sqlite
    }

    fn connect(&self) -> Connection {
        let connection = Connection::open(self.dir.path().join("ledger.db")).unwrap();
        connection.busy_timeout(LIMIT).unwrap();
        connection
    }

    fn owner(&self) -> String {
        let row = self.connect().query_one("SELECT owner FROM account WHERE id = 1", (), |row| row.get(0));
        row.unwrap()
    }
}

#[tokio::test]
async fn sqlite_refuses_a_stale_update() {
    let (server, sqlite) = (RedisServer::start().unwrap(), Sqlite::new());
    sqlite.connect().execute("INSERT INTO account (id, owner) VALUES (1, 'nobody')", ()).unwrap();
    let write =
        async |token, owner: &str| sqlite.connect().execute(UPDATE, (owner, column(token), 1)).unwrap() == 1;
    story(&server, "account:1", write, async || sqlite.owner()).await;
}

#[tokio::test]
async fn sqlite_refuses_a_stale_upsert() {
    let (server, sqlite) = (RedisServer::start().unwrap(), Sqlite::new());
    let write =
        async |token, owner: &str| sqlite.connect().execute(UPSERT, (1, owner, column(token))).unwrap() == 1;
    story(&server, "account:1", write, async || sqlite.owner()).await;
}

/// What the others are compared with: the lock alone does not stop the write.
#[tokio::test]
async fn without_a_fence_the_stale_write_wins() {
    let (server, sqlite) = (RedisServer::start().unwrap(), Sqlite::new());
    sqlite.connect().execute("INSERT INTO account (id, owner) VALUES (1, 'nobody')", ()).unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let lock = client.fenced_lock("account:1");
    let (paused, heir) = overtaken(&lock, &lock, Loss::Expired).await;
    let (condition, _) = UPDATE.split_once(" AND fence").unwrap();
    for (owner, token) in [("heir", heir.token()), ("paused", paused.token())] {
        assert_eq!(sqlite.connect().execute(condition, (owner, column(token), 1)).unwrap(), 1);
    }
    assert_eq!(sqlite.owner(), "paused");
}

#[tokio::test]
async fn postgresql_refuses_a_stale_write() {
    let (server, postgres) = (RedisServer::start().unwrap(), Postgres::start().await);
    let (first, second) = (postgres.connect().await, postgres.connect().await);
    first.batch_execute(TABLE).await.unwrap();
    first.batch_execute("INSERT INTO account (id, owner) VALUES (1, 'nobody')").await.unwrap();
    let read = async || -> String {
        second.query_one("SELECT owner FROM account WHERE id = 1", &[]).await.unwrap().get(0)
    };
    let update = async |token, owner: &str| {
        first.execute(UPDATE, &[&owner, &column(token), &1_i64]).await.unwrap() == 1
    };
    story(&server, "account:1", update, read).await;
    first.batch_execute("DELETE FROM account").await.unwrap();
    let upsert = async |token, owner: &str| {
        first.execute(UPSERT, &[&1_i64, &owner, &column(token)]).await.unwrap() == 1
    };
    story(&server, "account:1 of the upsert", upsert, read).await;
}

/// Both writes are under way at once: the stale one waits for the row, and the condition is judged by what the fresh one has
/// committed.
#[tokio::test]
async fn postgresql_judges_a_stale_write_that_had_to_wait() {
    let (server, postgres) = (RedisServer::start().unwrap(), Postgres::start().await);
    let (mut first, second, watch) =
        (postgres.connect().await, postgres.connect().await, postgres.connect().await);
    first.batch_execute(TABLE).await.unwrap();
    first.batch_execute("INSERT INTO account (id, owner) VALUES (1, 'nobody')").await.unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let lock = client.fenced_lock("account:1");
    let (paused, heir) = overtaken(&lock, &lock, Loss::Expired).await;
    let fresh = first.transaction().await.unwrap();
    assert_eq!(fresh.execute(UPDATE, &[&"heir", &column(heir.token()), &1_i64]).await.unwrap(), 1);
    let token = column(paused.token());
    let stale = tokio::spawn(async move { second.execute(UPDATE, &[&"paused", &token, &1_i64]).await });
    let waits = async || -> i64 {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        watch.query_one(sql, &[]).await.unwrap().get(0)
    };
    let waiting = async {
        while waits().await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, waiting).await.expect("the stale write reaches the row");
    fresh.commit().await.unwrap();
    assert_eq!(stale.await.unwrap().unwrap(), 0, "judged by what it saw before it had to wait");
    let owner: String = watch.query_one("SELECT owner FROM account", &[]).await.unwrap().get(0);
    assert_eq!(owner, "heir");
}

#[tokio::test]
async fn redis_refuses_a_stale_write() {
    let server = RedisServer::start().unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let connection = Mutex::new(client.get_connection().unwrap());
    let last = Mutex::new(0);
    let write = async |token: u64, value: &str| {
        let mut call = redis::cmd("EVAL");
        call.arg(REDIS).arg(1).arg("account:1:data").arg(token).arg(value);
        let accepted: i64 = call.query(&mut connection.lock().unwrap()).unwrap();
        if accepted == 1 {
            *last.lock().unwrap() = token;
        }
        accepted == 1
    };
    let read = async || {
        let mut connection = connection.lock().unwrap();
        let (value, fence): (String, String) = redis::cmd("HMGET")
            .arg("account:1:data")
            .arg(&["value", "fence"])
            .query(&mut connection)
            .unwrap();
        assert_eq!(fence, last.lock().unwrap().to_string(), "stored digit for digit");
        value
    };
    story(&server, "account:1", write, read).await;
}

/// The server's files are not for others, and nothing of it is left.
#[tokio::test]
async fn a_postgresql_of_a_test_ends_with_it() {
    let postgres = Postgres::start().await;
    let dir = postgres.dir().to_owned();
    let pid = std::fs::read_to_string(dir.join("data/postmaster.pid")).unwrap();
    let pid: i32 = pid.lines().next().unwrap().parse().unwrap();
    drop(postgres);
    assert!(!dir.exists());
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    assert!(rustix::process::test_kill_process(pid).is_err(), "still running");
}

#[test]
fn the_document_shows_what_is_run() {
    let document = include_str!("../../docs/fencing.md");
    for recipe in [TABLE, UPDATE, UPSERT, REDIS] {
        assert!(document.contains(recipe.trim_end()), "not in docs/fencing.md:\n{recipe}");
    }
    let tests = include_str!("fencing.rs");
    let named: Vec<&str> =
        document.split('`').filter_map(|words| words.strip_prefix("fencing.rs::")).collect();
    assert!(named.len() >= 5, "{named:?}");
    for test in named {
        assert!(tests.contains(&format!("fn {test}(")), "no test {test}");
    }
}
