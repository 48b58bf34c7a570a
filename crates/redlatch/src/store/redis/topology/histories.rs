//! A master that lost its slots between two pictures and has got them back is the same in both. Its data went another way meanwhile, and it
//! tells of that itself: each promotion gives them a new name. So does a restart, of which its connections tell as well.

use std::sync::{Arc, PoisonError};

use futures_util::future::join_all;

use super::{
    super::role::{self, Role},
    Member, SCAN_TIMEOUT, SLOTS, Topology,
};

impl Topology {
    /// Asks the masters that are in use for the history of their data, after each look at the whole picture.
    pub(super) async fn watch_histories(self: Arc<Self>) {
        let mut looks = self.looks.subscribe();
        loop {
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                looked = looks.changed() => if looked.is_err() { return },
            }
            let masters = self.masters().into_iter().map(|(_, member)| member);
            let used: Vec<Arc<Member>> = masters.filter(|member| member.node.is_connected()).collect();
            let asked = used.into_iter().map(|member| async move {
                let is_new = tokio::time::timeout(SCAN_TIMEOUT, member.is_anew()).await;
                is_new.unwrap_or(false).then_some(member)
            });
            for member in join_all(asked).await.into_iter().flatten() {
                self.begins_anew(&member);
            }
        }
    }

    /// What this master has answered before may be unknown to it now.
    fn begins_anew(&self, member: &Arc<Member>) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let is_its = |slot: &u16| table.owner(*slot).is_some_and(|owner| Arc::ptr_eq(owner, member));
        let its: Vec<u16> = (0..SLOTS as u16).filter(is_its).collect();
        for slot in &its {
            *table.eras.entry(*slot).or_default() += 1;
        }
        drop(table);
        self.changed();
        tracing::debug!(addr = %member.addr, slots = its.len(), "a master has a new history");
    }
}

impl Member {
    /// Whether its data have another history than when it was asked last. One that is a replica just now is asked again.
    async fn is_anew(&self) -> bool {
        let Ok(answer) = self.node.send(&role::question(role::QUESTIONS[1])).await else { return false };
        if role::of(&answer) == Some(Role::Replica) {
            return false;
        }
        let Some(history) = role::history(&answer) else { return false };
        let mut known = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.replace(history.id).or_else(|| self.dial.baseline().cloned());
        before.is_some() && before != *known
    }
}
