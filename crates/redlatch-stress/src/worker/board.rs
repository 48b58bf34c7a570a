//! Where tasks leave holds and owners to tasks of other processes.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::sync::Notify;

use super::kind::Kind;
use crate::rng::Rng;

/// A hold that was left without a guard, or the owner of one that has a guard.
#[derive(Debug, Clone)]
pub(crate) struct Left {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// The owner in the log.
    pub(super) label: String,
    /// The owner as text.
    pub(super) owner: String,
    /// Where others come in while the hold has a guard; `None` for one without, which others take up.
    pub(super) door: Option<Arc<Door>>,
}

/// Others may ask in the name of an owner while its own process holds: not after that, because they would take a free lock.
#[derive(Debug, Default)]
pub(crate) struct Door {
    /// Its own process gives the hold back at this moment, and one may come in.
    closes: bool,
    shut: AtomicBool,
    asking: AtomicUsize,
    gone: Notify,
}

impl Door {
    /// One through which another process may come in while the hold is on its way back.
    pub(super) fn closing() -> Self {
        Door { closes: true, ..Door::default() }
    }

    /// The right to ask, until dropped.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Visit> {
        if self.shut.fetch_or(self.closes, Ordering::SeqCst) {
            return None;
        }
        self.asking.fetch_add(1, Ordering::SeqCst);
        Some(Visit(self.clone()))
    }

    /// Lets no more in, and waits for those who ask.
    pub(super) async fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
        loop {
            let gone = self.gone.notified();
            if self.asking.load(Ordering::SeqCst) == 0 {
                return;
            }
            gone.await;
        }
    }
}

/// Shuts the door, also when its process is killed: nobody holds then any more.
pub(super) struct Keeper(pub(super) Arc<Door>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.shut.store(true, Ordering::SeqCst);
    }
}

pub(super) struct Visit(Arc<Door>);

impl Visit {
    /// Whether the visitor has to look if it came in before the hold was gone.
    pub(super) fn is_late(&self) -> bool {
        self.0.closes
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::SeqCst);
        self.0.gone.notify_waiters();
    }
}

/// The kinds whose holds are left.
const KINDS: [(&str, Kind); 4] =
    [("plain", Kind::Plain), ("fair", Kind::Fair), ("read", Kind::Read), ("write", Kind::Write)];

#[derive(Debug, Clone)]
pub(crate) enum Board {
    /// Of real processes: a file for each hold that was left.
    Folder(PathBuf),
    /// Of simulated ones.
    Shared(Arc<Mutex<Vec<Left>>>),
}

impl Board {
    pub(crate) fn shared() -> Board {
        Board::Shared(Arc::default())
    }

    /// Whether others come in through doors.
    pub(super) fn has_doors(&self) -> bool {
        matches!(self, Board::Shared(_))
    }

    /// Hangs something up. A door is for simulated processes, which see each other.
    pub(super) fn put(&self, left: Left) {
        match self {
            Board::Shared(all) => all.lock().unwrap_or_else(PoisonError::into_inner).push(left),
            Board::Folder(folder) => {
                let kind =
                    KINDS.iter().find(|(_, kind)| *kind == left.kind).map_or("plain", |(word, _)| word);
                let file = folder.join(format!("{kind} {} {}", left.name, left.label));
                // A file that is seen is whole.
                let unseen = folder.join(format!(".{}", left.label));
                std::fs::write(&unseen, left.owner)
                    .and_then(|()| std::fs::rename(&unseen, &file))
                    .expect("the folder of the round is there");
            }
        }
    }

    /// Takes a hold that was left. Only one of those who see it gets it; `own` is a word that no other uses.
    pub(super) fn take(&self, rng: &mut Rng, own: &str) -> Option<Left> {
        match self {
            Board::Shared(all) => {
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                let at: Vec<_> = (0..all.len()).filter(|at| all[*at].door.is_none()).collect();
                (!at.is_empty()).then(|| all.swap_remove(*rng.of(&at)))
            }
            Board::Folder(folder) => {
                let files = std::fs::read_dir(folder).ok()?;
                let visible =
                    |name: &std::ffi::OsString| name.to_str().is_some_and(|name| !name.starts_with('.'));
                let file = files.flatten().map(|file| file.file_name()).find(visible)?;
                let mut words = file.to_str()?.splitn(3, ' ').map(str::to_owned);
                let (word, name, label) = (words.next()?, words.next()?, words.next()?);
                let kind = KINDS.iter().find(|(known, _)| *known == word)?.1;
                let mine = folder.join(format!(".{own} {label}"));
                // Only one of those who have seen it can rename it.
                std::fs::rename(folder.join(&file), &mine).ok()?;
                let owner = std::fs::read_to_string(&mine).ok()?;
                Some(Left { kind, name, label, owner, door: None })
            }
        }
    }

    /// An owner whose process holds at this moment, and the right to ask in its name.
    pub(super) fn visit(&self, rng: &mut Rng) -> Option<(Left, Visit)> {
        let Board::Shared(all) = self else { return None };
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|left| left.door.as_ref().is_none_or(|door| !door.shut.load(Ordering::SeqCst)));
        let open: Vec<_> = all.iter().filter(|left| left.door.is_some()).collect();
        if open.is_empty() {
            return None;
        }
        let left = (*rng.of(&open)).clone();
        let visit = left.door.as_ref()?.enter()?;
        Some((left, visit))
    }
}
