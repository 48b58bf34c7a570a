//! Taking a name from its holder: from which one, why, and whether that is meant.

use ratatui::crossterm::event::KeyCode;
use redlatch::LockName;

use super::typed::edit;

/// What has to be typed.
pub(super) const YES: &str = "yes";

/// A question that is open.
#[derive(Debug)]
pub(super) struct Force {
    pub(super) name: LockName,
    /// Owners or permits, each with what its client tells.
    pub(super) holders: Vec<(String, String)>,
    pub(super) at: usize,
    pub(super) asks: Asks,
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// Which holder.
    Holder,
    /// Why.
    Reason(String),
    /// Whether it is meant.
    Yes { reason: String, typed: String },
}

/// What a key did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Stay,
    Leave,
    Do { owner: String, reason: String },
}

impl Force {
    pub(super) fn new(name: LockName, holders: Vec<(String, String)>) -> Self {
        let asks = if holders.len() > 1 { Asks::Holder } else { Asks::Reason(String::new()) };
        Force { name, holders, at: 0, asks }
    }

    /// The holder that is chosen.
    pub(super) fn holder(&self) -> (&str, &str) {
        self.holders.get(self.at).map_or(("", ""), |(owner, told)| (owner, told))
    }

    pub(super) fn key(&mut self, code: KeyCode) -> Step {
        if code == KeyCode::Esc {
            return Step::Leave;
        }
        match (&mut self.asks, code) {
            (Asks::Holder, KeyCode::Up) => self.at = self.at.saturating_sub(1),
            (Asks::Holder, KeyCode::Down) => self.at = (self.at + 1).min(self.holders.len() - 1),
            (Asks::Holder, KeyCode::Enter) => self.asks = Asks::Reason(String::new()),
            (Asks::Holder, _) => {}
            // The holder is told it, so it may not be empty.
            (Asks::Reason(reason), KeyCode::Enter) if !reason.trim().is_empty() => {
                self.asks = Asks::Yes { reason: std::mem::take(reason), typed: String::new() };
            }
            (Asks::Reason(reason), code) => edit(reason, code),
            (Asks::Yes { reason, typed }, KeyCode::Enter) => {
                if typed.trim() != YES {
                    return Step::Leave;
                }
                let reason = std::mem::take(reason);
                return Step::Do { owner: self.holder().0.to_owned(), reason };
            }
            (Asks::Yes { typed, .. }, code) => edit(typed, code),
        }
        Step::Stay
    }
}
