//! What the fuzzer calls: the readers of what servers and sentinels reply.

use super::{census::Census, failure, redirect::Redirect, role, sentinel, server_process, slots::Layout};
use crate::{call::Reply, config::addr::Addr};

/// The bytes that a server has sent, as the answer to each question that is ever asked.
pub(crate) fn answers(bytes: &[u8]) {
    let Ok(value) = redis::parse_redis_value(bytes) else { return };
    let asked = Addr::Tcp { host: "h".into(), port: 1 };
    let answer = match failure::reply(value) {
        Ok(answer) => answer,
        Err(refused) => {
            _ = refused.is_of_a_replica();
            return;
        }
    };
    _ = (
        role::of(&answer),
        role::history(&answer),
        role::is_in_sync(&answer),
        server_process::process(&answer),
    );
    for census in [Census::Role, Census::Info] {
        _ = census.read(&answer);
    }
    if let Some(layout) = Layout::read(&answer, &asked) {
        _ = layout.clone().with_epochs(&answer);
    }
    _ = Layout::default().with_epochs(&answer);
    sentinel::reads(&answer, &asked);
    if let Some(text) = answer.bytes() {
        let text = String::from_utf8_lossy(text);
        let (code, detail) = text.split_once(' ').unwrap_or((&text, ""));
        _ = Redirect::read_as_told(code, detail, &asked);
    }
    _ = (answer.int(), Reply::array(&answer));
}
