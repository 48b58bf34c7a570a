//! What `doctor` says of slots: names that keep their keys together, and names that would not.

use redlatch_testkit::{server::RedisServer, topology::RedisCluster};
use serde_json::Value;

use crate::support::{Place, both};

/// The owner of a lock, as Java writes it.
const JAVA: &str = "1b671a64-40d5-491e-99b0-da01ff1f3341:31";

/// What `doctor` says of the layout, with its remedies, and its exit code.
fn layout(place: &Place, arguments: &[&str]) -> (Vec<[String; 3]>, i32) {
    let output = place.output([&["doctor", "-o", "json"], arguments].concat());
    let document: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", both(&output)));
    let rows = document["items"].as_array().unwrap().iter().filter(|row| row["check"] == "slot layout");
    let rows = rows.map(|row| {
        ["result", "detail", "remedy"].map(|field| row[field].as_str().unwrap_or_default().to_owned())
    });
    (rows.collect(), output.status.code().unwrap())
}

#[track_caller]
fn says(rows: &[[String; 3]], result: &str, detail: &str, remedy: &str) {
    let found = rows.iter().any(|[its, text, help]| {
        its == result
            && text.contains(detail)
            && help.contains(remedy)
            && help.is_empty() == remedy.is_empty()
    });
    assert!(found, "{result}: {detail}: {remedy} in {rows:#?}");
}

#[test]
fn names_are_explained_on_a_store_without_slots() {
    let place = Place::local();
    let (rows, code) =
        layout(&place, &["order:7", "a{tag}:x", "--kind", "lock,fair,fenced,read-write,permits"]);
    assert_eq!(code, 0, "{rows:?}");
    // As CLUSTER KEYSLOT says.
    says(&rows, "good", "\"order:7\" and the 10 keys and channels beside it share slot 6368", "");
    says(&rows, "good", "\"a{tag}:x\" and the 10 keys and channels beside it share slot 8338", "");
    for (name, elsewhere, remedy) in [
        ("a}b", "redisson_lock_queue:{a}b}\\\" to ", "leave out the }"),
        ("a{b", "redisson_lock_queue:a{b\\\" to ", "close the brace"),
        ("{}x", "redisson_lock_queue:{}x\\\" to ", "put something between"),
    ] {
        let (rows, code) = layout(&place, &[name, "--kind", "fair"]);
        assert_eq!(code, 78, "{name}: {rows:?}");
        says(&rows, "problem", &elsewhere.replace('\\', ""), remedy);
        assert_eq!(place.code(["run", name, "--", "true"]), 64, "and is refused");
    }
    // Latches put braces around everything.
    let (rows, code) = layout(&place, &["{tag}x", "--kind", "latch"]);
    assert_eq!(code, 78);
    says(
        &rows,
        "problem",
        "redisson_countdownlatch__channel__{{tag}x}",
        "leave braces out of the names of latches",
    );
    let (rows, code) = layout(&place, &["{tag}x"]);
    assert_eq!(code, 0, "a user of locks by that name loses nothing: {rows:?}");
    says(&rows, "note", "but for latch", "latches");
    says(
        &rows,
        "good",
        "(lock, fenced, fair, spin, read-write, semaphore, permits, rate-limiter, stock)",
        "",
    );
    // Redisson reads this tag in another way than servers do.
    let (rows, code) = layout(&place, &["a}b{c}", "--kind", "lock"]);
    assert_eq!(code, 0, "no cluster, no problem");
    says(&rows, "note", "looks for the lock at another node", "leave out the }");
    assert_eq!(place.code(["doctor", "--kind", "lock"]), 64, "kinds of what?");
}

#[test]
fn prefixes_are_explained_and_hopeless_ones_are_not_tried() {
    let place = Place::local();
    let (rows, code) = layout(&place, &["--prefix", "app:"]);
    assert_eq!(code, 0, "{rows:?}");
    says(&rows, "good", "names that begin with \"app:\" keep what is beside them in their slot", "");
    let (rows, code) = layout(&place, &["--prefix", "app:{"]);
    assert_eq!(code, 0, "the trials close the brace: {rows:?}");
    says(&rows, "note", "\"app:{\" opens a brace", "go on with a tag");
    let (rows, code) = layout(&place, &["--prefix", "{app}:"]);
    assert_eq!(code, 0, "{rows:?}");
    says(&rows, "good", "all names that begin with \"{app}:\" have slot", "");
    says(&rows, "note", "no prefix for latches", "without braces");
    for (prefix, remedy) in [("{}", "put something between"), ("app}", "leave out the }")] {
        let output = place.output(["doctor", "--prefix", prefix]);
        assert_eq!(output.status.code(), Some(78), "{}", both(&output));
        let (rows, _) = layout(&place, &["--prefix", prefix]);
        says(&rows, "problem", "names that begin with it are refused", remedy);
        assert!(!both(&output).contains("wake-up"), "{}", both(&output));
    }
}

#[test]
fn names_that_java_holds_on_one_server_and_would_not_in_a_cluster_are_told() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    server.cmd(&["HSET", "app:a}b", JAVA, "1"]).unwrap();
    server.cmd(&["PEXPIRE", "app:a}b", "3600000"]).unwrap();
    server.cmd(&["RPUSH", "redisson_lock_queue:app:q{", JAVA]).unwrap();
    server.cmd(&["ZADD", "redisson_lock_timeout:app:q{", "9000000000000", JAVA]).unwrap();
    server.cmd(&["SET", "app:{}s", "3"]).unwrap();
    server.cmd(&["SET", "text}", "3"]).unwrap();
    let (rows, code) = layout(&place, &["--prefix", "app:"]);
    assert_eq!(code, 0, "{rows:?}");
    says(&rows, "note", "\"app:a}b\" is in use (lock)", "leave out the }");
    says(&rows, "note", "\"app:q{\" is in use (fair)", "close the brace");
    says(&rows, "note", "\"app:{}s\" is in use (semaphore)", "put something between");
    assert!(rows.iter().all(|[_, text, _]| !text.contains("text}")), "no counter of others: {rows:?}");
    server.flush_all().unwrap();
    let (rows, _) = layout(&place, &["--prefix", "app:"]);
    says(&rows, "good", "0 names in use", "");
}

#[test]
fn a_cluster_makes_a_problem_of_what_lies_apart() {
    let cluster = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    let mut place = Place::local();
    place.set_url(&cluster.url());
    let (rows, code) = layout(&place, &["order:7", "--prefix", "{app}:", "--kind", "fair,permits"]);
    assert_eq!(code, 0, "{rows:?}");
    says(&rows, "good", "\"order:7\" and the 7 keys and channels beside it share slot 6368", "");
    says(&rows, "note", "in a cluster one master has them all", "");
    let (rows, code) = layout(&place, &["a}b{c}", "--kind", "lock"]);
    assert_eq!(code, 78, "Java looks elsewhere: {rows:?}");
    says(&rows, "problem", "looks for the lock at another node", "leave out the }");
    // Java takes this lock and cannot release it.
    let name = "app:a}b";
    let home = cluster.node(cluster.owner_of(cluster.slot_of(name)).unwrap());
    home.cmd(&["HSET", name, JAVA, "1"]).unwrap();
    home.cmd(&["PEXPIRE", name, "3600000"]).unwrap();
    let (rows, code) = layout(&place, &["--prefix", "app:"]);
    assert_eq!(code, 78, "{rows:?}");
    says(&rows, "problem", "its holder cannot release it", "leave out the }");
    // A user who lists sees it, too.
    let listed = place.output(["ls", "-o", "name"]);
    assert_eq!(both(&listed).trim(), name, "{}", both(&listed));
}
