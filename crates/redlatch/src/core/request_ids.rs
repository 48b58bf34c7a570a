//! The number with which a reply begins: it shows that the reply belongs to the request (decision D16).
//!
//! What builds a call names the number of its owner or batch, and reads the reply by it. On the wire each request has a number of its
//! own in its place: an owner that is used again sends many, and the reply to one of them must not pass for that to another.

use std::sync::atomic::{AtomicI64, Ordering};

use futures_util::FutureExt;

use crate::{
    call::{Arg, Call, Reply},
    randomness,
    store::Fault,
};

/// Numbers begin below this, because a server reads and writes short ones faster. They end at 2^53: scripts count in floating point, which has
/// every integer up to there.
const FIRST_MAX: u64 = 1 << 31;

/// The numbers of one client's requests. They begin anywhere, so that a reply to another client is told as well.
pub(super) struct RequestIds(AtomicI64);

/// A number that was named, and the one that was sent in its place.
#[derive(Clone, Copy)]
pub(super) struct RequestId {
    named: i64,
    sent: i64,
}

impl Default for RequestIds {
    fn default() -> Self {
        RequestIds(AtomicI64::new((randomness::number() % FIRST_MAX) as i64))
    }
}

impl RequestIds {
    /// Gives a call its number, if its reply begins with one.
    pub(super) fn assign(&self, call: &mut Call) -> Option<RequestId> {
        let Some(Arg::Int(number)) = call.args.first_mut().filter(|_| call.numbered) else { return None };
        let sent = self.0.fetch_add(1, Ordering::Relaxed);
        Some(RequestId { named: std::mem::replace(number, sent), sent })
    }
}

impl RequestId {
    /// Has a reply begin with the number that was named if it began with the one that was sent, and with another one otherwise.
    fn read(self, reply: &mut Reply) {
        if let Reply::Array(items) = reply
            && let Some(Reply::Int(number)) = items.first_mut()
        {
            *number = if *number == self.sent { self.named } else { self.named.wrapping_add(1) };
        }
    }

    pub(super) fn awaited<T: 'static>(
        request_id: Option<RequestId>,
        run: impl Future<Output = Result<T, Fault>> + Send + Unpin + 'static,
        reply: fn(&mut T) -> &mut Reply,
    ) -> impl Future<Output = Result<T, Fault>> + Send + Unpin + 'static {
        run.map(move |outcome| {
            outcome.map(|mut answer| {
                if let Some(request_id) = request_id {
                    request_id.read(reply(&mut answer));
                }
                answer
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripts;

    #[test]
    fn only_the_reply_to_this_very_request_begins_with_the_number_that_was_named() {
        let request_ids = RequestIds::default();
        let mut call = Call::new(&scripts::ACQUIRE).request_number(7);
        let (first, second) =
            (request_ids.assign(&mut call.clone()).unwrap(), request_ids.assign(&mut call).unwrap());
        let read = |request_id: RequestId, number| {
            let mut reply = Reply::Array([number, 1].map(Reply::Int).into_iter().collect());
            request_id.read(&mut reply);
            reply.array().unwrap()[0].int().unwrap()
        };
        assert_eq!(read(second, second.sent), 7);
        // The reply to the request before it, one that names the owner, and one to another client.
        for other in [first.sent, 7, second.sent + 1, 1] {
            assert_ne!(read(second, other), 7, "{other}");
        }
        assert!(matches!(call.args[0], Arg::Int(number) if number == second.sent));
        // Calls without a number stay as they are.
        let mut plain = Call::new(&scripts::SELL).int(3);
        assert!(request_ids.assign(&mut plain).is_none() && matches!(plain.args[0], Arg::Int(3)));
    }
}
