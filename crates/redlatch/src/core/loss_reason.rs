//! Holds that the server no longer has: how they ended, and telling their holders.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::{Core, lease::HeldLease};
use crate::{
    catch_panic::catch_panic,
    error::{Error, ErrorKind, LossReason},
    keys::KeyKind,
    name::LockName,
    owner::Owner,
    recipes::Record,
    scripts,
    store::{Call, Fault, Reply},
};

/// How long the look for the reason may take. After that the guards are told without one. They are invalid from the start.
const LIMIT: Duration = Duration::from_millis(500);
/// The most fields of one hash that are looked through for another owner.
const FIELDS_MAX: i64 = 16;

impl Core {
    /// As [`all_gone`](Self::all_gone), for one hold.
    pub(crate) fn end_as_gone(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
    ) -> impl Future<Output = ()> + Send + use<> {
        self.all_gone(std::slice::from_ref(lease))
    }

    /// The server no longer has these holds, which are of one kind and slot: from this call on they are not valid. How they ended is found
    /// out, and told to the holders, whether the caller waits for that or not.
    pub(crate) fn all_gone(
        self: &Arc<Self>,
        leases: &[Arc<HeldLease>],
    ) -> impl Future<Output = ()> + Send + use<> {
        // One of them may have been passed on while it was looked for.
        let held: Vec<_> = leases.iter().filter_map(|lease| self.lanes.end_gone(lease)).collect();
        let is_told = (!held.is_empty()).then(|| {
            // Nothing else would tell their holders before their deadlines.
            let (core, (told, is_told)) = (self.clone(), oneshot::channel());
            self.keeper.handle().spawn(async move {
                core.tell_ends(held).await;
                let _ = told.send(());
            });
            is_told
        });
        async move {
            if let Some(is_told) = is_told {
                let _ = is_told.await;
            }
        }
    }

    /// Waits while it is being found out how a hold ended.
    pub(super) async fn wait_until_end_known(&self, lease: &Arc<HeldLease>) {
        let limit = self.keeper.sleep(2 * LIMIT);
        tokio::select! {
            biased;
            _ = lease.clone().ended() => {}
            () = limit => {}
        }
    }

    /// Looks how a hold ended that is over.
    pub(super) async fn how_it_ended(&self, lease: &Arc<HeldLease>) -> Option<LossReason> {
        let limit = self.keeper.sleep(LIMIT);
        let found = tokio::select! {
            biased;
            found = self.ends(std::slice::from_ref(lease)) => found.ok(),
            () = limit => None,
        };
        found.and_then(|reasons| reasons.into_iter().next().flatten())
    }

    /// Finds out how holds ended that are over, and tells their holders, though a log may panic.
    async fn tell_ends(self: Arc<Self>, held: Vec<Arc<HeldLease>>) {
        let ends = AssertUnwindSafe(self.ends(&held)).catch_unwind();
        let found = tokio::time::timeout(LIMIT, ends).await;
        let found = found.ok().and_then(Result::ok).and_then(Result::ok);
        let mut reasons = found.unwrap_or_default().into_iter();
        for lease in &held {
            let reason = reasons.next().flatten().unwrap_or_else(|| lease.reason_if_missing(self.now_ms()));
            // It may have been passed on while its end was looked for.
            if let Some(held) = self.lanes.present(lease) {
                // It was told before it was logged.
                catch_panic(|| self.lose(&held, reason));
            }
        }
    }

    /// How holds ended, as far as that is to be seen on the server.
    pub(super) async fn ends(&self, leases: &[Arc<HeldLease>]) -> Result<Vec<Option<LossReason>>, Fault> {
        let number = self.fresh_number();
        let ask = |each: i64| {
            let call = Call::new(&scripts::LOST).request_number(number).int(each).int(FIELDS_MAX);
            leases.iter().fold(call, |call, lease| {
                let call = call.key(&lease.keys.key).bytes(&field(lease));
                if each == 2 { call.key(&Record::key(&lease.keys)) } else { call }
            })
        };
        // Nobody forces permits free: they have ids, and a process that knows one may give it back.
        let each = if leases[0].keys.kind == KeyKind::Permits { 1 } else { 2 };
        let reply = match self.query_as_keeper(ask(each)).await {
            // An account without a right to the records is still told who has the lock.
            Err(Fault::Server(error)) if error.kind() == ErrorKind::Permission => {
                self.query_as_keeper(ask(1)).await?
            }
            outcome => outcome?,
        };
        let items = match reply.array() {
            Some([Reply::Int(echoed), items @ ..]) if *echoed == number => items,
            _ => &[],
        };
        let now_ms = self.now_ms();
        Ok(leases.iter().zip(items.chunks_exact(3)).map(|(lease, end)| reason(lease, end, now_ms)).collect())
    }
}

/// What stands for a hold in the hash.
fn field(lease: &HeldLease) -> Arc<[u8]> {
    let own = lease.owner.field().as_bytes();
    if lease.keys.kind == KeyKind::Write { [own, WRITE].concat().into() } else { own.into() }
}

/// How one hold ended, if it was forced free, which counts more than who came after, or taken over.
fn reason(lease: &HeldLease, end: &[Reply], now_ms: u64) -> Option<LossReason> {
    let seen_for_ms = now_ms.saturating_sub(lease.last_proof_sent_ms());
    if let Some(record) = end[1].bytes().and_then(Record::read)
        && is_of_the_hold(end[2].int(), seen_for_ms)
    {
        return Some(record);
    }
    let pairs = end[0].array().unwrap_or_default().chunks_exact(2);
    let taken = pairs.filter_map(|pair| pair[0].bytes()).find(|field| took_over(lease, field));
    taken.map(|field| {
        let owner = field.strip_suffix(WRITE).unwrap_or(field);
        LossReason::TakenOver { by: String::from_utf8_lossy(owner).into_owned() }
    })
}

/// Whether a record is no older than the last request that found the hold there. An older one is of a hold that its owner had before.
/// Records without a time are believed.
fn is_of_the_hold(age_ms: Option<i64>, seen_for_ms: u64) -> bool {
    // Two clocks count in whole milliseconds, at slightly different rates.
    let most_ms = seen_for_ms.saturating_add(seen_for_ms / 100 + 2);
    age_ms.and_then(|age_ms| u64::try_from(age_ms).ok()).is_none_or(|age_ms| age_ms <= most_ms)
}

/// What the field of a write hold ends with, after its owner.
const WRITE: &[u8] = b":write";

/// Whether a field of the hash is a holder that shuts this hold out: another owner's, and of a side that does.
fn took_over(lease: &HeldLease, field: &[u8]) -> bool {
    shuts_out(lease.keys.kind, lease.owner.field().as_bytes(), field)
}

fn shuts_out(kind: KeyKind, own: &[u8], field: &[u8]) -> bool {
    let writer = field.strip_suffix(WRITE);
    if field == b"mode" || field == own || writer == Some(own) {
        return false;
    }
    kind != KeyKind::Read || writer.is_some()
}

/// Why a hold ended, for callers that only have the error of a failed operation.
pub(crate) fn lost_error(name: &LockName, owner: &Owner, reason: &LossReason) -> Error {
    Error::new(ErrorKind::Lost, format!("the hold was lost: {reason}"))
        .on(name)
        .by(owner)
        .remedy("stop the work, or make its effects check the fencing token")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_record_is_of_an_earlier_hold() {
        for (age_ms, is_believed) in [
            (Some(0), true),
            (Some(1_000), true),
            (Some(1_012), true),
            (Some(1_013), false),
            (Some(-1), true),
        ] {
            assert_eq!(is_of_the_hold(age_ms, 1_000), is_believed, "{age_ms:?}");
        }
    }

    #[test]
    fn only_another_owner_takes_a_lock_over() {
        let fields: [&[u8]; 5] = [b"mode", b"me", b"me:write", b"you", b"you:write"];
        let shut_out = |kind| fields.map(|field| shuts_out(kind, b"me", field));
        assert_eq!(shut_out(KeyKind::Read), [false, false, false, false, true]);
        for kind in [KeyKind::Lock, KeyKind::Fair, KeyKind::Write] {
            assert_eq!(shut_out(kind), [false, false, false, true, true], "{kind:?}");
        }
    }
}
