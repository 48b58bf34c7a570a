//! One call of a task: what it does, and how it is left unpolled.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use redlatch::{AnyGuard, Error, Owner, Unlocked};

use super::{network::locked, program::EXTENDED};
use crate::worker::kind::OneGuard;

/// Lets a call be left unpolled.
#[derive(Default)]
pub(super) struct Gate {
    shut: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

pub(super) struct Gated<F> {
    inner: Pin<Box<F>>,
    gate: Arc<Gate>,
}

impl Gate {
    /// Leaves the call unpolled, or goes on polling it.
    pub(super) fn set_polled(&self, polled: bool) {
        self.shut.store(!polled, Ordering::SeqCst);
        if polled && let Some(waker) = locked(&self.waker).take() {
            waker.wake();
        }
    }

    pub(super) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::SeqCst)
    }
}

impl<F: Future> Gated<F> {
    pub(super) fn new(inner: F, gate: &Arc<Gate>) -> Self {
        Gated { inner: Box::pin(inner), gate: gate.clone() }
    }
}

impl<F: Future> Future for Gated<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        *locked(&self.gate.waker) = Some(cx.waker().clone());
        if self.gate.shut.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        self.inner.as_mut().poll(cx)
    }
}

/// What a call came to.
pub(super) enum Ended {
    Granted(OneGuard),
    Busy,
    Unlocked(Unlocked),
    Done,
    Failed(Error),
}

pub(super) type Call = Pin<Box<dyn Future<Output = Ended> + Send>>;

/// The text of a guard's owner. Asking the guard itself would tell it that its owner is known elsewhere.
pub(super) fn owner_of(held: &OneGuard) -> String {
    let text = format!("{held:?}");
    let owner = text.split("Owner(").nth(1).and_then(|rest| rest.split(')').next());
    owner.unwrap_or_default().to_owned()
}

/// Leaves a hold without a guard; its owner.
pub(super) fn detach(held: OneGuard) -> Option<Owner> {
    let left = match held {
        OneGuard::One(guard) => guard.detach(),
        OneGuard::Read(guard) => guard.detach(),
        OneGuard::Write(guard) => guard.detach(),
        // The other one ends with its lease.
        OneGuard::Multi(guard) => guard.detach().into_iter().next()?,
        other => {
            drop(other);
            return None;
        }
    };
    Some(left.owner)
}

pub(super) async fn unlock(held: OneGuard) -> Ended {
    let unlocked = match held {
        OneGuard::One(guard) => guard.unlock().await,
        OneGuard::Read(guard) => guard.unlock().await,
        OneGuard::Write(guard) => guard.unlock().await,
        OneGuard::Multi(guard) => guard.unlock().await.into_result().map(|()| Unlocked::Released),
        _ => return Ended::Done,
    };
    unlocked.map_or_else(Ended::Failed, Ended::Unlocked)
}

pub(super) async fn downgrade(held: OneGuard) -> Ended {
    let OneGuard::Write(guard) = held else { return Ended::Done };
    guard.downgrade().await.map_or_else(Ended::Failed, |guard| Ended::Granted(OneGuard::Read(guard)))
}

pub(super) async fn read_beside(held: Arc<OneGuard>) -> Ended {
    let OneGuard::Write(guard) = &*held else { return Ended::Done };
    guard.read().await.map_or_else(Ended::Failed, |guard| Ended::Granted(OneGuard::Read(guard)))
}

pub(super) async fn reenter(held: Arc<OneGuard>) -> Ended {
    match held.reenter().await {
        Some(Ok(held)) => Ended::Granted(held),
        Some(Err(error)) => Ended::Failed(error),
        None => Ended::Done,
    }
}

pub(super) async fn extend(held: Arc<OneGuard>) -> Ended {
    let extended = match (&*held, held.guard()) {
        (OneGuard::Multi(guard), _) => guard.extend(EXTENDED).await,
        (_, Some(guard)) => guard.as_guard().extend(EXTENDED).await,
        _ => return Ended::Done,
    };
    extended.map_or_else(Ended::Failed, |()| Ended::Done)
}
