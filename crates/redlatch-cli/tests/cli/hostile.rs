//! A server that means harm: it answers with what never ends, or says that more comes than any memory holds. That costs an error, and no more
//! memory than a bound.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::process::ExitStatusExt as _,
    thread,
};

use redlatch_testkit::server::RedisServer;

use crate::support::{Place, both, finish};

/// The address space of the command, in KiB: the allocator reserves some for each thread. An endless reply fills it within the time that a
/// server may take to answer.
const SPACE_KIB: u64 = 1 << 20;

/// What such a server sends: first this, and then this for ever, if it is anything.
///
/// The smallest values take 14 times their bytes in memory, and lists of one value 70 times.
const ANSWERS: [(&str, &[u8], &[u8]); 12] = [
    ("a line without an end", b"+", b"xxxxxxxxxxxxxxxx"),
    ("a text of two gigabytes", b"$2000000000\r\n", b"xxxxxxxxxxxxxxxx"),
    (
        "a list of texts without an end",
        b"*2000000000\r\n",
        b"$120\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n",
    ),
    ("a list of numbers without an end", b"*2000000000\r\n", b":1\r\n"),
    ("lists of lists that say little", b"", b"*8\r\n*0\r\n*0\r\n*0\r\n*0\r\n*0\r\n*0\r\n*0\r\n"),
    ("maps of one pair", b"*349525\r\n", b"%1\r\n:1\r\n:1\r\n"),
    ("messages of many values without an end", b"", b">8\r\n+message\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n"),
    ("lists in lists", b"", b"*1\r\n"),
    ("a list that does not come", b"*2000000000\r\n", b""),
    ("a message that does not come", b">2000000000\r\n", b""),
    ("a number that is none", b":nonsense\r\n", b""),
    ("no protocol", b"\0\xff\xfe", b"\0\xff\xfe\r\n"),
];

/// A server that answers well until it meets this word, and then as told.
fn hostile(server: &RedisServer, word: &'static [u8], first: &'static [u8], ever: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let behind = server.port();
    // It ends with the process of the test; each of its connections ends with the command.
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || answer(client, behind, word, first, ever));
        }
    });
    url
}

fn answer(mut client: TcpStream, behind: u16, word: &[u8], first: &[u8], ever: &[u8]) -> Option<()> {
    let mut server = TcpStream::connect(("127.0.0.1", behind)).ok()?;
    let (mut replies, mut to_client) = (server.try_clone().ok()?, client.try_clone().ok()?);
    let good = thread::spawn(move || std::io::copy(&mut replies, &mut to_client));
    let mut request = vec![0; 1 << 16];
    loop {
        let read = client.read(&mut request).ok().filter(|read| *read > 0)?;
        if request[..read].windows(word.len()).any(|part| part == word) {
            break;
        }
        server.write_all(&request[..read]).ok()?;
    }
    server.shutdown(std::net::Shutdown::Both).ok()?;
    drop(good.join());
    client.write_all(first).ok()?;
    if ever.is_empty() {
        // Until the client goes.
        while client.read(&mut request).ok()? > 0 {}
        return Some(());
    }
    let many: Vec<u8> = ever.iter().copied().cycle().take(ever.len() * (1 << 16)).collect();
    loop {
        client.write_all(&many).ok()?;
    }
}

fn costs_an_error(
    place: &Place,
    server: &RedisServer,
    word: &'static [u8],
    (what, first, ever): (&str, &'static [u8], &'static [u8]),
) {
    let url = hostile(server, word, first, ever);
    let program = env!("CARGO_BIN_EXE_redlatch");
    let line = format!("ulimit -v {SPACE_KIB}; exec {program} --url {url} run x -n -- touch ran");
    let output = finish(place.shell(&line));
    let (told, at) = (both(&output), String::from_utf8_lossy(word));
    assert_eq!(output.status.signal(), None, "{what}, after {at}: {told}");
    assert_eq!(output.status.code(), Some(69), "{what}, after {at}: {told}");
    assert!(!told.contains("panic") && told.contains("redlatch: "), "{what}, after {at}: {told}");
    assert!(!place.path("ran").exists(), "{what}, after {at}: the command ran");
}

#[test]
fn a_hostile_server_costs_an_error_and_no_more_memory_than_a_bound() {
    let place = Place::local();
    let server = RedisServer::start().unwrap();
    // From the first request, and from the first script.
    for word in [&b"*"[..], b"EVAL"] {
        for some in ANSWERS.chunks(4) {
            thread::scope(|scope| {
                for answer in some {
                    scope.spawn(|| costs_an_error(&place, &server, word, *answer));
                }
            });
        }
    }
}
