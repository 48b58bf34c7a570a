//! The client's end of its lifeline: a connection to the local engine that tells it, by ending, that this process is gone.
//!
//! The kernel ends it when the last process that has it open is gone, so nothing has to be sent, and a process that is killed
//! tells as surely as one that returns. A client that goes in order says goodbye first, and then its end means nothing.

use std::{
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use redlatch_engine::daemon::permit_mark;

use crate::{fork, owner::Identity, recipes::members};

/// How long the engine may take to make room for a word that must not be lost.
const WORD_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Lifeline {
    identity: Identity,
    socket: PathBuf,
    pid: u64,
    state: Mutex<State>,
}

enum State {
    /// Not opened yet, or closed by the engine. The owners from this number on are new to it.
    Closed {
        from: i64,
    },
    Open(UnixStream),
    /// The processes of a command have another end, which nobody could give them again.
    Shared(UnixStream),
    Over,
}

/// One request as it goes over the wire.
fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len() + 1).into_bytes();
    for word in ["REDLATCH"].iter().chain(words) {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

/// Whether the engine has closed it. It answers nothing to a lifeline, unless it refuses it.
fn is_closed(mut stream: &UnixStream) -> bool {
    match stream.read(&mut [0; 256]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
    }
}

/// Writes all of it, or nothing that counts.
fn say(mut stream: &UnixStream, words: &[&str]) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WORD_TIMEOUT))?;
    let said = stream.write_all(&request(words));
    stream.set_nonblocking(true)?;
    said
}

impl Lifeline {
    pub(super) fn new(identity: Identity, socket: PathBuf) -> Self {
        let state = Mutex::new(State::Closed { from: 0 });
        Lifeline { identity, socket, pid: fork::here(), state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has to be opened before the next connection to the engine, which may be another one than the last.
    pub(super) fn is_wanted(&self) -> bool {
        let mut state = self.state();
        match &*state {
            State::Open(stream) if is_closed(stream) => {
                *state = State::Closed { from: self.identity.next_number() };
                true
            }
            State::Closed { .. } => true,
            _ => false,
        }
    }

    /// Opens it unless it is open. Without a lifeline leases end what this process leaves, so a failure is none.
    pub(super) fn open(&self) {
        if self.is_wanted() {
            self.open_on(UnixStream::connect(&self.socket));
        }
    }

    /// Opens it on a new connection, unless another task has opened it meanwhile.
    pub(super) fn open_on(&self, stream: io::Result<UnixStream>) {
        let mut state = self.state();
        let State::Closed { from } = *state else { return };
        // What was held before may have been used by others, and the next engine would not know.
        *state = State::Closed { from: self.identity.next_number() };
        let opened = stream.and_then(|stream| {
            let next = self.identity.next_number();
            say(&stream, &["LIFELINE", &self.identity.id, &from.to_string(), &next.to_string()])?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => *state = State::Open(stream),
            Err(error) => tracing::debug!(%error, "no lifeline: leases end what this process leaves"),
        }
    }

    /// An end for the processes of a command: what this client holds stays held until they are gone, too. It closes with the last
    /// of them that has it, and with the value that is returned. Nothing if there is no engine that could see it, or if there is one already.
    pub(super) fn share(&self) -> Option<OwnedFd> {
        let mut state = self.state();
        let State::Open(own) = &*state else { return None };
        // From here on the engine frees nothing without having seen the end of the other one.
        say(own, &["COMMAND"]).ok()?;
        if let State::Open(own) = std::mem::replace(&mut *state, State::Over) {
            *state = State::Shared(own);
        }
        let shared = UnixStream::connect(&self.socket).and_then(|stream| {
            say(&stream, &["LIFELINE", &self.identity.id, "COMMAND"])?;
            Ok(stream)
        });
        Some(shared.ok()?.into())
    }

    /// The holds of this owner, or these permits, are to outlive this process.
    pub(super) fn spare(&self, owner: &str) {
        let number = owner.strip_prefix(&*self.identity.id).and_then(|rest| rest.strip_prefix(':'));
        let numbers = number.map_or_else(|| self.permits(owner), |number| vec![number.to_owned()]);
        for number in numbers {
            if let State::Open(stream) | State::Shared(stream) = &*self.state()
                && let Err(error) = say(stream, &["SPARE", &number])
                && !is_closed(stream)
            {
                tracing::warn!(%error, owner, "the engine could not be told of a hold that is to outlive this process");
            }
        }
    }

    /// The numbers of those permits that are this client's.
    fn permits(&self, ids: &str) -> Vec<String> {
        let Some(mark) = permit_mark(self.identity.id.as_bytes()) else { return Vec::new() };
        let own = |id: &[u8]| {
            let number = id.strip_prefix(&mark)?.try_into().ok().map(i64::from_be_bytes)?;
            Some(number.to_string())
        };
        members(ids).chunks_exact(2 * mark.len()).filter_map(own).collect()
    }

    /// Says goodbye: nothing is freed on account of this end.
    pub(super) fn end(&self) {
        // A forked child has a copy, and says nothing for its parent.
        if fork::here() != self.pid {
            return;
        }
        let last = std::mem::replace(&mut *self.state(), State::Over);
        if let State::Open(stream) | State::Shared(stream) = last
            && say(&stream, &["GOODBYE"]).is_err()
            && !is_closed(&stream)
        {
            // Closed without a word it would free what others of this process may still count on.
            std::mem::forget(stream);
        }
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        self.end();
    }
}
