//! Finding the request that a frame from the server answers.

use std::collections::{HashSet, VecDeque};

use super::rule::{Action, RuleId};
use crate::resp;

/// A request that was written to the server and has not been answered in full.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) command: String,
    /// Arguments behind the name; subscribe commands are answered once for each.
    pub(super) arg_count: usize,
    pub(super) action: Option<(RuleId, Action)>,
    remaining: Option<usize>,
}

impl Pending {
    pub(super) fn new(command: String, arg_count: usize, action: Option<(RuleId, Action)>) -> Self {
        Self { command, arg_count, action, remaining: None }
    }
}

/// What a frame from the server is.
#[derive(Debug)]
pub(super) enum Frame {
    /// A message, or an answer to nothing: passes as it is.
    Unasked,
    /// The first (or only) frame of an answer, with the action for it.
    First(Option<(RuleId, Action)>),
    /// A further frame of an answer of several; `true` when an action has taken the first one away.
    Further(bool),
}

/// The open requests of one connection, and what decides how replies are counted.
#[derive(Debug, Default)]
pub(super) struct Matcher {
    open: VecDeque<Pending>,
    resp3: bool,
    subscribed: [HashSet<Vec<u8>>; 3],
}

/// Which set a pub/sub word belongs to, and whether it adds to it.
fn pubsub_word(word: &[u8]) -> Option<(usize, bool)> {
    let word = word.to_ascii_lowercase();
    Some(match word.as_slice() {
        b"subscribe" => (0, true),
        b"unsubscribe" => (0, false),
        b"psubscribe" => (1, true),
        b"punsubscribe" => (1, false),
        b"ssubscribe" => (2, true),
        b"sunsubscribe" => (2, false),
        _ => return None,
    })
}

pub(super) fn subscribes(command: &str) -> bool {
    matches!(pubsub_word(command.as_bytes()), Some((_, true)))
}

impl Matcher {
    /// Must be called before the bytes of the request are written.
    pub(super) fn sent(&mut self, pending: Pending) {
        self.open.push_back(pending);
    }

    pub(super) fn received(&mut self, frame: &[u8]) -> Frame {
        let is_push = frame.first() == Some(&b'>');
        let in_pubsub_mode = !self.resp3 && self.subscribed.iter().any(|set| !set.is_empty());
        let confirmable = self.open.front().is_some_and(|p| pubsub_word(p.command.as_bytes()).is_some());
        if is_push || (frame.first() == Some(&b'*') && (in_pubsub_mode || confirmable)) {
            let items = resp::items(frame);
            let word = items.first().copied().unwrap_or_default();
            if let Some((set, adds)) = pubsub_word(word) {
                return self.confirmed(word, set, adds, items.get(1).copied().unwrap_or_default());
            }
            if is_push || [&b"message"[..], b"pmessage", b"smessage"].contains(&word) {
                return Frame::Unasked;
            }
        }
        let Some(pending) = self.open.pop_front() else { return Frame::Unasked };
        match (pending.command.as_str(), frame.first()) {
            ("HELLO", Some(b'%')) => self.resp3 = true,
            ("HELLO", Some(b'*')) => self.resp3 = false,
            ("RESET", Some(b'+')) => {
                self.resp3 = false;
                self.subscribed = Default::default();
            }
            _ => {}
        }
        Frame::First(pending.action)
    }

    fn confirmed(&mut self, word: &[u8], set: usize, adds: bool, channel: &[u8]) -> Frame {
        let subscribed = self.subscribed[set].len();
        if adds {
            self.subscribed[set].insert(channel.to_vec());
        } else {
            self.subscribed[set].remove(channel);
        }
        let asked = self.open.front_mut().filter(|p| p.command.as_bytes().eq_ignore_ascii_case(word));
        // A server takes subscriptions away unasked, when a slot moves for example.
        let Some(pending) = asked else { return Frame::Unasked };
        let first = pending.remaining.is_none();
        let expected = match pending.arg_count {
            // Without arguments, every subscription is ended and confirmed, or there is one empty answer.
            0 => subscribed.max(1),
            count => count,
        };
        let remaining = pending.remaining.unwrap_or(expected).saturating_sub(1);
        pending.remaining = Some(remaining);
        let taken = matches!(pending.action, Some((_, Action::SkipReply | Action::ReplaceReply(_))));
        let action = pending.action.clone();
        if remaining == 0 {
            self.open.pop_front();
        }
        if first { Frame::First(action) } else { Frame::Further(taken) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(command: &str, arg_count: usize, id: u64) -> Pending {
        Pending::new(command.to_owned(), arg_count, Some((RuleId(id), Action::DropReply)))
    }

    fn first_id(frame: Frame) -> Option<u64> {
        match frame {
            Frame::First(action) => action.map(|(id, _)| id.0),
            _ => None,
        }
    }

    fn event(mark: char, word: &str, channel: &str) -> Vec<u8> {
        let frames = [resp::bulk(word), resp::bulk(channel), resp::integer(1)];
        if mark == '>' { resp::push(&frames) } else { resp::array(&frames) }
    }

    #[test]
    fn pushes_between_replies_do_not_count_as_replies() {
        let mut matcher = Matcher { resp3: true, ..Matcher::default() };
        matcher.sent(marked("SUBSCRIBE", 2, 1));
        matcher.sent(marked("GET", 1, 2));
        assert_eq!(first_id(matcher.received(&event('>', "subscribe", "a"))), Some(1));
        assert!(matches!(matcher.received(&event('>', "message", "a")), Frame::Unasked));
        assert!(matches!(matcher.received(&event('>', "subscribe", "b")), Frame::Further(false)));
        assert!(matches!(matcher.received(&event('>', "message", "b")), Frame::Unasked));
        assert_eq!(first_id(matcher.received(b"$1\r\nv\r\n")), Some(2));
    }

    #[test]
    fn resp2_messages_and_a_list_that_looks_like_one() {
        let mut matcher = Matcher::default();
        matcher.sent(marked("LRANGE", 3, 1));
        assert_eq!(first_id(matcher.received(&event('*', "message", "a"))), Some(1));
        matcher.sent(marked("SUBSCRIBE", 2, 2));
        assert_eq!(first_id(matcher.received(&event('*', "subscribe", "a"))), Some(2));
        assert!(matches!(matcher.received(&event('*', "message", "a")), Frame::Unasked));
        assert!(matches!(matcher.received(&event('*', "subscribe", "b")), Frame::Further(_)));
        // All at once: two confirmations, because two channels are subscribed when it is answered.
        matcher.sent(marked("UNSUBSCRIBE", 0, 3));
        matcher.sent(marked("PING", 0, 4));
        assert_eq!(first_id(matcher.received(&event('*', "unsubscribe", "a"))), Some(3));
        assert!(matches!(matcher.received(&event('*', "unsubscribe", "b")), Frame::Further(_)));
        assert_eq!(first_id(matcher.received(b"+PONG\r\n")), Some(4));
    }

    #[test]
    fn a_refused_subscription_is_one_answer_and_an_unasked_end_is_none() {
        let mut matcher = Matcher::default();
        matcher.sent(marked("SUBSCRIBE", 3, 1));
        matcher.sent(marked("GET", 1, 2));
        assert_eq!(first_id(matcher.received(b"-NOPERM no\r\n")), Some(1));
        assert!(matches!(matcher.received(&event('>', "sunsubscribe", "x")), Frame::Unasked));
        assert_eq!(first_id(matcher.received(b"$-1\r\n")), Some(2));
    }
}
