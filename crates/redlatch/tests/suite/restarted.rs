//! A server that is started anew in place has the data that it could save: what was counted since is missing.

use redlatch::{Client, ErrorKind, Guard, Owner, Severity, Unlocked, Wait};
use redlatch_testkit::server::RedisServer;

use crate::{
    fixture::{SOON, soon},
    kinds::{AnyLock, Face},
};

const FACES: [Face; 4] = [Face::Plain, Face::Fair, Face::Fenced, Face::Write];
/// An account that may not ask which process the server is.
const WITHOUT_INFO: &str = "default on nopass ~* &* +@all -info";

fn count(server: &RedisServer, field: &str) -> i64 {
    let count = server.cmd(&["HGET", "n", field]).unwrap();
    redis::from_redis_value::<Option<i64>>(count).unwrap().unwrap_or(0)
}

async fn enter(face: Face, client: &Client, owner: &Owner) -> Guard {
    let text: Owner = owner.to_text().parse().unwrap();
    AnyLock::new(face, client, "n").acquire().owner(&text).wait(Wait::No).await.unwrap().unwrap()
}

/// What the second process entered is missing after the restart. Its release counted down the hold of the first.
async fn nobody_loses_a_hold(server: &RedisServer, face: Face) {
    let connect = async || Client::connect(&server.url()).await.unwrap();
    let (one, two, stranger) = (connect().await, connect().await, connect().await);
    let owner = one.owner();
    let field = if face == Face::Write { format!("{}:write", owner.to_text()) } else { owner.to_text() };
    let held = AnyLock::new(face, &one, "n").acquire().owner(&owner).await.unwrap().unwrap();
    server.cmd(&["SAVE"]).unwrap();
    let entered = enter(face, &two, &owner).await;
    assert_eq!(count(server, &field), 2, "{face:?}");
    tokio::task::block_in_place(|| server.restart().unwrap());
    assert_eq!(count(server, &field), 1, "{face:?}: it has what it saved");
    // Behind what is missing, more is entered that the new process counts.
    let again = soon("an entry", entered.reenter()).await.unwrap();
    assert_eq!(count(server, &field), 2, "{face:?}");
    for gone in [again, entered] {
        let unlocked = soon("a release", gone.unlock()).await.unwrap();
        assert!(matches!(unlocked, Unlocked::StillHeld(_)), "{face:?}: {unlocked:?}");
    }
    assert_eq!(count(server, &field), 2, "{face:?}: what is counted too often ends with its lease");
    let taken = AnyLock::new(face, &stranger, "n").try_lock().await.unwrap();
    assert!(taken.is_none() && held.is_valid(), "{face:?}: two valid holders");
    for client in [one, two, stranger] {
        client.shutdown(SOON).await;
    }
    server.cmd(&["FLUSHALL"]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_release_of_an_entry_that_a_restart_lost_takes_no_other_hold() {
    let server = tokio::task::block_in_place(|| RedisServer::start().unwrap());
    for face in FACES {
        nobody_loses_a_hold(&server, face).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_may_not_ask_for_the_process_loses_no_hold_by_a_restart() {
    let server = tokio::task::block_in_place(|| RedisServer::builder().acl(WITHOUT_INFO).start().unwrap());
    for face in FACES {
        nobody_loses_a_hold(&server, face).await;
    }
}

/// As long as the process stays the same, a connection that ends costs no count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_is_counted_down_after_its_connection_was_lost() {
    let server = tokio::task::block_in_place(|| RedisServer::start().unwrap());
    let connect = async || Client::connect(&server.url()).await.unwrap();
    let (one, two) = (connect().await, connect().await);
    let held = AnyLock::new(Face::Plain, &one, "n").acquire().owner(&one.owner()).await.unwrap().unwrap();
    let owner = held.owner().clone();
    let entered = enter(Face::Plain, &two, &owner).await;
    server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    let lock = two.lock("n");
    soon("a connection", async { while lock.is_locked().await.is_err() {} }).await;
    let unlocked = soon("a release", entered.unlock()).await.unwrap();
    assert_eq!(unlocked, Unlocked::StillHeld(1));
    assert_eq!(count(&server, &owner.to_text()), 1);
    drop(held);
}

/// Uses a client once in a runtime of its own, which is not driven after that.
fn use_elsewhere(client: &Client) -> tokio::runtime::Runtime {
    let client = client.clone();
    let used = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { client.lock("other").is_locked().await.unwrap() });
        runtime
    });
    used.join().unwrap()
}

/// A connection that nobody drives was taken for the proof that the process is still the same, for as long as its client lived.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_not_driven_is_no_proof_of_the_same_process() {
    let server = tokio::task::block_in_place(|| RedisServer::builder().acl(WITHOUT_INFO).start().unwrap());
    let connect = async || Client::connect(&server.url()).await.unwrap();
    for stays in [true, false] {
        let (one, two, stranger) = (connect().await, connect().await, connect().await);
        let elsewhere = use_elsewhere(&two);
        let kept = match stays {
            true => Some(elsewhere),
            false => {
                elsewhere.shutdown_background();
                None
            }
        };
        let owner = one.owner();
        let held =
            AnyLock::new(Face::Plain, &one, "n").acquire().owner(&owner).await.unwrap().expect("it is free");
        server.cmd(&["SAVE"]).unwrap();
        let entered = enter(Face::Plain, &two, &owner).await;
        tokio::task::block_in_place(|| server.restart().unwrap());
        assert_eq!(count(&server, &owner.to_text()), 1);
        let unlocked = soon("a release", entered.unlock()).await;
        let taken = AnyLock::new(Face::Plain, &stranger, "n").try_lock().await.unwrap();
        assert!(taken.is_none() && held.is_valid(), "two valid holders after {unlocked:?}");
        if let Some(runtime) = kept {
            runtime.shutdown_background();
        }
        drop(held);
        server.cmd(&["FLUSHALL"]).unwrap();
    }
}

/// A proxy that sends each connection to the next one of some servers.
fn spread(servers: &[&RedisServer]) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut ports = servers.iter().map(|server| server.port()).collect::<Vec<_>>().into_iter().cycle();
    // It ends with the runtime of its test.
    tokio::spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        while let Ok((mut client, _)) = listener.accept().await {
            let port = ports.next().unwrap();
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    port
}

/// Each connection was taken for one to a server that had been started anew, and cut those to the other one, for as long as anybody connected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_answer_in_turn_at_one_address_are_refused() {
    let servers = tokio::task::block_in_place(|| [(); 2].map(|()| RedisServer::start().unwrap()));
    let port = spread(&[&servers[0], &servers[1]]);
    let client = Client::connect(&format!("redis://127.0.0.1:{port}")).await.unwrap();
    let findings = client.diagnose().await;
    let is_named = match &findings {
        Ok(findings) => findings.iter().any(|finding| {
            finding.severity == Severity::Problem
                && finding.text.contains("2 servers answered at this address")
        }),
        Err(error) => error.kind() == ErrorKind::InvalidUrl,
    };
    assert!(is_named, "{findings:?}");
    // Each thread has a connection of its own.
    let refused = (0..20).find_map(|_| {
        let client = client.clone();
        let used = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { client.lock("n").is_locked().await })
        });
        tokio::task::block_in_place(|| used.join().unwrap())
            .err()
            .filter(|error| error.kind() == ErrorKind::InvalidUrl)
    });
    let error = refused.expect("it is refused").to_string();
    assert!(
        error.contains("in turn") && error.contains("have the proxy send all connections to one"),
        "{error}"
    );
    // Nothing is granted by either, and a task that waits is told.
    let error = soon("an answer", client.lock("n").lock()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{error}");
}
