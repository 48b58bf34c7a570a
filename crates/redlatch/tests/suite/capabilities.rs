//! What the locks can do without: commands that a provider has taken away or an account may not use.

use futures_util::future::join_all;
use redlatch::{Client, ClientBuilder, ErrorKind, Unlocked};
use redlatch_testkit::server::RedisServer;

use crate::fixture::{RENEWED, ms, renewed, soon};

/// A server on which a command is unknown, or known and forbidden to the only account that works.
fn without(command: &str, renamed: bool) -> (RedisServer, ClientBuilder) {
    let server = if renamed {
        RedisServer::builder().arg("rename-command", &format!("{command} \"\""))
    } else {
        RedisServer::builder().acl("default off").acl(&format!("app on >pw ~* &* +@all -{command}"))
    };
    let server = server.start().unwrap();
    let builder = Client::builder().url(server.url()).watchdog_lease(RENEWED);
    let builder = if renamed { builder } else { builder.username("app").password("pw") };
    (server, builder)
}

/// Lock, wait, wake-up, renewal, several at once, looking, and the findings about the server.
async fn smoke(builder: &ClientBuilder, what: &str) -> Client {
    let (client, other) =
        (builder.clone().connect().await.unwrap(), builder.clone().connect().await.unwrap());
    let (lock, others) = (client.lock("x"), other.lock("x"));
    let guard = lock.lock().await.unwrap();
    assert!(others.try_lock().await.unwrap().is_none(), "{what}");
    let waiter = tokio::spawn(async move { others.lock().await.unwrap() });
    renewed(1, async || guard.remaining()).await;
    assert!(guard.is_valid() && lock.is_locked().await.unwrap(), "{what}");
    let state = client.inspect("x").await.unwrap();
    assert_eq!(state.holders[0].owner, guard.owner().to_text(), "{what}");
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released, "{what}");
    let next = soon("the next grant", waiter).await.unwrap();
    next.unlock().await.unwrap();
    assert!(client.list(None, 10).await.unwrap().is_empty(), "{what}");
    let fenced = client.fenced_lock("f").lock().await.unwrap();
    fenced.unlock().await.unwrap();
    client.diagnose().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    client
}

/// The same without each of these commands: all at once, because most of it is waiting.
async fn smoke_without(commands: &[&str]) {
    for renamed in [true, false] {
        let each = commands.iter().map(async |command| {
            let (_server, builder) = without(command, renamed);
            smoke(&builder, &format!("{command} renamed: {renamed}")).await;
        });
        join_all(each).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_locks_can_do_without() {
    smoke_without(&[
        "WAIT",
        "INFO",
        "CLUSTER",
        "SCRIPT",
        "CLIENT",
        "HELLO",
        "SELECT",
        "PING",
        "PUBSUB",
        "ROLE",
        "CONFIG",
        "COMMAND",
        "ACL",
        "FCALL",
        "FUNCTION",
        "SSUBSCRIBE",
        "SPUBLISH",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_messages_waiters_look_for_themselves() {
    smoke_without(&["SUBSCRIBE", "PUBLISH", "UNSUBSCRIBE"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_are_not_counted_where_that_is_not_allowed() {
    let (_server, builder) = without("PUBSUB", false);
    let client = builder.connect().await.unwrap();
    let _guard = client.lock("x").lock().await.unwrap();
    assert_eq!(client.inspect("x").await.unwrap().listening, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_cannot_be_selected_is_an_error_that_names_it() {
    for renamed in [true, false] {
        let (server, builder) = without("SELECT", renamed);
        let builder = builder.url(format!("{}/3", server.url()));
        let error = soon("the error", builder.connect()).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permission, "{renamed}: {error}");
        assert!(error.to_string().contains("database 3"), "{error}");
    }
}

async fn outlives_a_refused_ping(renamed: bool) {
    let (server, builder) = without("PING", renamed);
    let (client, other) = (builder.clone().connect().await.unwrap(), builder.connect().await.unwrap());
    let guard = client.lock("x").lock().await.unwrap();
    let waiting = other.lock("x");
    let waiter = tokio::spawn(async move { waiting.lock().await.unwrap() });
    // The connection that is subscribed, and what it has asked last.
    let listening = || {
        let clients = server.clients().unwrap();
        let client = clients.into_iter().find(|client| client.subscriptions > 0)?;
        Some((client.id, client.last_command))
    };
    let until = async |what: &str, holds: &dyn Fn() -> bool| {
        soon(what, async {
            while !holds() {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
    };
    until("the subscription", &|| listening().is_some()).await;
    let subscribed = listening().unwrap();
    // It asks for a sign of life every five seconds. The server calls a command that it does not know NULL.
    until("a refusal", &|| listening().as_ref() != Some(&subscribed)).await;
    // Time in which the connection would end.
    tokio::time::sleep(ms(300)).await;
    let asked = if renamed { "NULL" } else { "ping" };
    assert_eq!(listening(), Some((subscribed.0, asked.to_owned())), "renamed: {renamed}");
    guard.unlock().await.unwrap();
    soon("the grant", waiter).await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_lives_on_where_ping_is_refused() {
    tokio::join!(outlives_a_refused_ping(true), outlives_a_refused_ping(false));
}
