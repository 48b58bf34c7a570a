//! Certificates, keys and passwords that are replaced on disk while a client lives: each new connection uses what is there by
//! then.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redlatch::{CancellationToken, Client, ErrorKind, Lock, TlsOptions, Unlocked};
use redlatch_testkit::{
    server::{RedisServer, TlsFiles},
    topology::{RedisCluster, SentinelSet},
};

use crate::{
    address_map::listened_to,
    fixture::{RENEWED, renewed, soon},
};

const FILES: [&str; 3] = ["ca.pem", "client.pem", "client.key"];

/// Puts files in the place of others as those do who renew certificates: each whole, one after the other.
fn replace(from: &TlsFiles, to: &Path, which: &[&str]) {
    for (file, name) in [&from.ca_cert, &from.client_cert, &from.client_key].into_iter().zip(FILES) {
        if which.contains(&name) {
            fs::copy(file, to.join("next")).unwrap();
            fs::rename(to.join("next"), to.join(name)).unwrap();
        }
    }
}

fn options(dir: &Path) -> TlsOptions {
    let mut tls = TlsOptions::default();
    tls.ca_file = Some(dir.join(FILES[0]));
    (tls.cert_file, tls.key_file) = (Some(dir.join(FILES[1])), Some(dir.join(FILES[2])));
    tls
}

async fn works(lock: &Lock) {
    soon("a lock", async {
        lock.lock().await.unwrap().unlock().await.unwrap();
    })
    .await;
}

/// Ends every connection of others at the server.
fn disconnect(server: &RedisServer) {
    for kind in ["normal", "pubsub"] {
        server.cmd(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).unwrap();
    }
}

fn client_of(server: &RedisServer, tls: TlsOptions) -> redlatch::ClientBuilder {
    let builder = Client::builder().url(format!("rediss://127.0.0.1:{}", server.port())).tls(tls);
    builder.outage_tolerance(Duration::from_secs(60))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_authority_certificate_and_key_are_used_by_the_next_connection() {
    let (old_dir, new_dir, used) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (old, new) = (TlsFiles::create(old_dir.path()).unwrap(), TlsFiles::create(new_dir.path()).unwrap());
    replace(&old, used.path(), &FILES);
    let server = RedisServer::builder().mutual_tls(&old).start().unwrap();
    let client = client_of(&server, options(used.path())).connect().await.unwrap();
    let lock = client.lock("encrypted");
    works(&lock).await;

    // The server changes its authority, and so must we. Certificate and key are checked against each other, so they come in one
    // step.
    let path = |file: &Path| file.to_str().unwrap().to_owned();
    let (cert, key, ca) = (path(&new.server_cert), path(&new.server_key), path(&new.ca_cert));
    server
        .cmd(&["CONFIG", "SET", "tls-cert-file", &cert, "tls-key-file", &key, "tls-ca-cert-file", &ca])
        .unwrap();
    disconnect(&server);
    let error = lock.try_lock().await.map(drop).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Tls | ErrorKind::Unreachable),
        "the old files do not do: {error}"
    );
    replace(&new, used.path(), &FILES);
    works(&lock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_files_leave_the_last_good_ones_in_use_until_they_are_mended() {
    let (dir, other_dir, used) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (files, other) = (TlsFiles::create(dir.path()).unwrap(), TlsFiles::create(other_dir.path()).unwrap());
    replace(&files, used.path(), &FILES);
    let server = RedisServer::builder().mutual_tls(&files).start().unwrap();
    let client = client_of(&server, options(used.path())).connect().await.unwrap();
    let lock = client.lock("encrypted");
    works(&lock).await;
    // Half of a file, a certificate without its key, no file at all, a file of nothing.
    let breaks: [fn(&Path, &TlsFiles); 4] = [
        |used, _| fs::write(used.join("client.pem"), "-----BEGIN CERTIFICATE-----\nMIIB").unwrap(),
        |used, other| replace(other, used, &["client.pem"]),
        |used, _| fs::remove_file(used.join("ca.pem")).unwrap(),
        |used, _| fs::write(used.join("client.key"), "").unwrap(),
    ];
    for (at, break_it) in breaks.into_iter().enumerate() {
        break_it(used.path(), &other);
        let before = server.clients().unwrap().iter().map(|client| client.id).max();
        disconnect(&server);
        works(&lock).await;
        let after = server.clients().unwrap().iter().map(|client| client.id).max();
        assert!(after > before, "break {at}: by another connection");
        let fresh = client_of(&server, options(used.path())).connect().await.map(drop).unwrap_err();
        assert_eq!(
            fresh.kind(),
            ErrorKind::InvalidOption,
            "break {at}: who comes now has none that is good: {fresh}"
        );
        replace(&files, used.path(), &FILES);
        disconnect(&server);
        works(&lock).await;
    }
}

/// Sets the password of the account, and forgets the one before.
fn set_password(server: &RedisServer, password: &str) {
    server
        .cmd(&["ACL", "SETUSER", "app", "on", "resetpass", &format!(">{password}"), "~*", "&*", "+@all"])
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_in_a_file_is_read_again_when_it_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    let server = RedisServer::start().unwrap();
    set_password(&server, "first");
    fs::write(&file, "first\n").unwrap();
    let builder = || Client::builder().url(server.url()).username("app").password_file(&file);
    let (client, other) = (builder().connect().await.unwrap(), builder().connect().await.unwrap());
    let lock = client.lock("behind a password");
    works(&lock).await;

    set_password(&server, "second");
    disconnect(&server);
    let error = lock.try_lock().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth, "the file has not changed: {error}");
    assert!(!error.to_string().contains("first"), "{error}");
    fs::write(&file, "second\n").unwrap();
    works(&lock).await;
    // Subscriptions, too: a waiter is woken, and does not only look.
    let guard = lock.lock().await.unwrap();
    let waiting = other.lock("behind a password");
    let waiter = tokio::spawn(async move { waiting.lock().await.unwrap() });
    listened_to(&server).await;
    guard.unlock().await.unwrap();
    soon("the lock", waiter).await.unwrap().unlock().await.unwrap();

    // A file that is gone or empty costs nothing as long as its last password is taken.
    fs::remove_file(&file).unwrap();
    disconnect(&server);
    works(&lock).await;
    let error = builder().connect().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains("password file"), "{error}");
    // Refused once more without a file to ask.
    set_password(&server, "third");
    disconnect(&server);
    assert_eq!(lock.try_lock().await.map(drop).unwrap_err().kind(), ErrorKind::Auth);
    fs::write(&file, "third").unwrap();
    works(&lock).await;
    fs::write(&file, "wrong").unwrap();
    assert_eq!(builder().connect().await.map(drop).unwrap_err().kind(), ErrorKind::Auth);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_clusters_take_passwords_from_files() {
    let dir = tempfile::tempdir().unwrap();
    let (data, sentinel) = (dir.path().join("data"), dir.path().join("sentinel"));
    fs::write(&data, "old\n").unwrap();
    fs::write(&sentinel, "sentinels\n").unwrap();

    let cluster = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    cluster.nodes().iter().for_each(|node| set_password(node, "old"));
    let builder = || Client::builder().url(cluster.url()).username("app").password_file(&data);
    let (client, other) = (builder().connect().await.unwrap(), builder().connect().await.unwrap());
    for n in 0..10 {
        works(&client.lock(format!("spread-{n}"))).await;
    }
    cluster.nodes().iter().for_each(|node| set_password(node, "new"));
    fs::write(&data, "new\n").unwrap();
    cluster.nodes().iter().for_each(disconnect);
    let guard = client.lock("waited for").lock().await.unwrap();
    let waiting = other.lock("waited for");
    let waiter = tokio::spawn(async move { waiting.lock().await.unwrap() });
    let lock_home = cluster.owner_of(cluster.slot_of("waited for")).unwrap();
    listened_to(cluster.node(lock_home)).await;
    guard.unlock().await.unwrap();
    soon("the lock", waiter).await.unwrap().unlock().await.unwrap();
    for n in 0..10 {
        works(&client.lock(format!("spread-{n}"))).await;
    }

    let set = SentinelSet::builder().replica_count(1).start().unwrap();
    set.nodes().iter().for_each(|node| set_password(node, "new"));
    for node in set.sentinels() {
        node.cmd(&["ACL", "SETUSER", "default", "resetpass", ">sentinels"]).unwrap();
    }
    let builder = Client::builder().url(set.url()).username("app").password_file(&data);
    let client = builder.sentinel_password_file(&sentinel).connect().await.unwrap();
    works(&client.lock("watched over")).await;
    set.nodes().iter().for_each(|node| set_password(node, "newer"));
    fs::write(&data, "newer\n").unwrap();
    set.nodes().iter().for_each(disconnect);
    works(&client.lock("watched over")).await;
}

/// How many locks are held all the time.
const HELD: usize = 50;

/// Those who rotate in order let both the old and the new count for a while: nothing is refused and no hold is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_and_certificates_are_rotated_under_load() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [old, new] = [0, 1].map(|at| TlsFiles::create(dirs[at].path()).unwrap());
    let used = dirs[2].path();
    let password = used.join("password");
    let both = used.join("both.pem");
    let bundle = [&old, &new].map(|files| fs::read_to_string(&files.ca_cert).unwrap()).concat();
    fs::write(&both, bundle).unwrap();
    replace(&old, used, &FILES);
    fs::write(&password, "first").unwrap();
    let server = RedisServer::builder().mutual_tls(&old).start().unwrap();
    set_password(&server, "first");
    let builder =
        || client_of(&server, options(used)).username("app").password_file(&password).watchdog_lease(RENEWED);
    let (holding, busy) = (builder().connect().await.unwrap(), builder().connect().await.unwrap());
    let mut held = Vec::new();
    for n in 0..HELD {
        held.push(holding.lock(format!("held-{n}")).lock().await.unwrap());
    }
    let (inside, stop) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
    let workers: Vec<_> = [&holding, &busy, &busy]
        .map(|client| {
            let (lock, inside, stop) = (client.lock("contended"), inside.clone(), stop.clone());
            tokio::spawn(async move {
                let mut turns = 0;
                while !stop.is_cancelled() {
                    let guard = lock.lock().await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two hold it");
                    tokio::task::yield_now().await;
                    assert!(guard.is_valid());
                    inside.store(false, Ordering::SeqCst);
                    guard.unlock().await.unwrap();
                    turns += 1;
                }
                turns
            })
        })
        .into();

    let path = |file: &Path| file.to_str().unwrap().to_owned();
    let set_tls = |files: &TlsFiles, ca: &Path| {
        let (cert, key, ca) = (path(&files.server_cert), path(&files.server_key), path(ca));
        server
            .cmd(&["CONFIG", "SET", "tls-cert-file", &cert, "tls-key-file", &key, "tls-ca-cert-file", &ca])
            .unwrap();
    };
    let acl = |change: &str| server.cmd(&["ACL", "SETUSER", "app", change]).unwrap();
    let steps: [&dyn Fn(); 6] = [
        &|| drop(acl(">second")),
        &|| fs::write(&password, "second").unwrap(),
        &|| drop(acl("<first")),
        &|| {
            set_tls(&old, &both);
            fs::copy(&both, used.join("next")).unwrap();
            fs::rename(used.join("next"), used.join(FILES[0])).unwrap();
        },
        &|| replace(&new, used, &FILES[1..]),
        &|| set_tls(&new, &new.ca_cert),
    ];
    for step in steps {
        step();
        disconnect(&server);
        // A renewal has come through on a connection that was made with what is there now.
        renewed(1, async || held[0].remaining()).await;
        assert!(held.iter().all(|guard| guard.is_valid()), "{held:?}");
    }
    stop.cancel();
    for worker in workers {
        assert!(soon("the end of a worker", worker).await.unwrap() > 0);
    }
    for guard in held {
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}
