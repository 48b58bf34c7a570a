//! Servers that want every key of a script declared.

use redlatch::{Client, ErrorKind};

use crate::fixture::ms;

/// A store of its own that refuses keys that were not declared.
async fn strict(name: &str) -> Client {
    Client::connect(&format!("memory:{name}-{}?strict_keys", std::process::id())).await.unwrap()
}

#[tokio::test]
async fn a_read_write_lock_is_refused_before_anything_has_changed() {
    let client = strict("refused").await;
    let lock = client.read_write_lock("rw");
    let error = lock.read().try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UndeclaredKey, "{error}");
    assert!(error.to_string().contains("allow-undeclared-keys"), "{error}");
    assert!(!client.lock("rw").is_locked().await.unwrap(), "nothing is left");
}

#[tokio::test]
async fn everything_else_is_listed_and_shown() {
    let client = strict("listed").await;
    let _lock = client.lock("lock").lock().await.unwrap();
    let _fenced = client.fenced_lock("fenced").lock().await.unwrap();
    let _fair = client.fair_lock("fair").lock().await.unwrap();
    assert!(client.fair_lock("fair").lock_for(ms(20)).await.unwrap().is_none());
    client.semaphore("free").set_if_absent(2, None).await.unwrap();
    client.permit_semaphore("permits").set_if_absent(1).await.unwrap();
    let _permit = client.permit_semaphore("permits").acquire().await.unwrap();
    let states = client.list(None, 10).await.unwrap();
    let names: Vec<String> = states.iter().map(|state| state.name.to_string()).collect();
    assert_eq!(names, ["fair", "fenced", "lock", "permits"]);
    assert!(states.iter().all(|state| state.findings.is_empty()), "{states:?}");
    assert!(states[1].token.is_some());
    assert_eq!(states[3].permits_in_use, 1);
}

#[tokio::test]
async fn an_engine_without_the_suffix_is_another_one_and_not_strict() {
    let name = format!("loose-{}", std::process::id());
    let strict = Client::connect(&format!("memory:{name}?strict_keys")).await.unwrap();
    let loose = Client::connect(&format!("memory:{name}")).await.unwrap();
    let _guard = loose.read_write_lock("rw").read().lock().await.unwrap();
    assert!(!strict.lock("rw").is_locked().await.unwrap());
    assert!(Client::connect("memory:a?b").await.is_err());
}
