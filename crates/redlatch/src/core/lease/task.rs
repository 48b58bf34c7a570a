//! Which task was granted a lease, for those who ask what a holder waits for.

use super::HeldLease;

impl HeldLease {
    /// The task that runs now was granted it.
    pub(in crate::core) fn note_task(&self) {
        if let Some(task) = tokio::task::try_id() {
            _ = self.task.set(task);
        }
    }

    /// The task that was granted it.
    pub(in crate::core) fn task(&self) -> Option<tokio::task::Id> {
        self.task.get().copied()
    }
}
