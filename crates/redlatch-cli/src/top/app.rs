//! What `top` shows and what a key does to it, as plain values: without a terminal, a server or a clock.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use redlatch::{ClientRecord, LockName};

use super::{
    force::{Force, Step},
    typed::edit,
};
use crate::snapshot::{
    Snapshot,
    alarms::{Alarm, alarms},
    blocking::{self, Line},
    lock_row::LockRow,
    order::{self, Sort},
};

/// How far a key for a page goes.
const PAGE: isize = 10;

/// What fills the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum View {
    /// All names.
    Locks,
    /// The trees of waits.
    Blocking,
    /// Who the clients are.
    Clients,
    /// What is wrong.
    Alarms,
    /// One name.
    Detail(LockName),
    /// The keys.
    Help,
}

/// What the terminal or the server has to do after a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Deed {
    None,
    Quit,
    /// Stop this process, as a shell does.
    Suspend,
    /// Look at the server now.
    Look,
    /// Draw everything anew.
    Redraw,
    /// Take the name from its holder.
    Force {
        name: LockName,
        owner: String,
        reason: String,
    },
}

/// Everything that is shown.
#[derive(Debug)]
pub(super) struct App {
    /// Where the locks are. Safe to print.
    pub(super) place: String,
    pub(super) view: View,
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    /// Only names, kinds and clients that contain this are shown.
    pub(super) filter: String,
    pub(super) types_filter: bool,
    pub(super) force: Option<Force>,
    /// What became of the last deed. Safe to print.
    pub(super) message: Option<String>,
    /// Why the last look failed. Safe to print.
    pub(super) trouble: Option<String>,
    pub(super) snapshot: Option<Snapshot>,
    /// What is wrong in it.
    pub(super) alarms: Vec<Alarm>,
    /// The lease of locks of which nobody says otherwise.
    lease: Duration,
    /// The selected name: the selection stays with it when lines move.
    selected: Option<LockName>,
    /// The selected line where lines have no names, or how far a text is scrolled.
    pub(super) at: usize,
    before: View,
}

impl App {
    pub(super) fn new(place: String, lease: Duration) -> Self {
        App {
            place,
            view: View::Locks,
            sort: Sort::Waiters,
            is_reversed: false,
            filter: String::new(),
            types_filter: false,
            force: None,
            message: None,
            trouble: None,
            snapshot: None,
            alarms: Vec::new(),
            lease,
            selected: None,
            at: 0,
            before: View::Locks,
        }
    }

    /// A look has succeeded, or has failed for this reason.
    pub(super) fn looked(&mut self, looked: Result<Snapshot, String>) {
        match looked {
            Ok(snapshot) => {
                self.alarms = alarms(&snapshot, self.lease);
                (self.snapshot, self.trouble) = (Some(snapshot), None);
            }
            Err(trouble) => self.trouble = Some(trouble),
        }
    }

    /// The names that are shown, in their order.
    pub(super) fn rows(&self) -> Vec<&LockRow> {
        let Some(snapshot) = &self.snapshot else { return Vec::new() };
        order::shown(&snapshot.rows, &self.filter, self.sort, self.is_reversed)
    }

    /// Which of these is selected: the first one if what was selected is gone.
    pub(super) fn selected_row(&self, rows: &[&LockRow]) -> Option<usize> {
        let found = rows.iter().position(|row| Some(&row.key) == self.selected.as_ref());
        found.or(if rows.is_empty() { None } else { Some(0) })
    }

    pub(super) fn lines(&self) -> Vec<Line> {
        self.snapshot.as_ref().map(|snapshot| blocking::lines(&snapshot.why)).unwrap_or_default()
    }

    pub(super) fn clients(&self) -> &[ClientRecord] {
        self.snapshot.as_ref().map_or(&[], |snapshot| &snapshot.clients)
    }

    pub(super) fn row(&self, name: &LockName) -> Option<&LockRow> {
        self.snapshot.as_ref()?.rows.iter().find(|row| row.key == *name)
    }

    /// A key was pressed.
    pub(super) fn key(&mut self, key: KeyEvent) -> Deed {
        self.message = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return Deed::Quit,
                KeyCode::Char('z') => return Deed::Suspend,
                KeyCode::Char('l') => return Deed::Redraw,
                _ => return Deed::None,
            }
        }
        if self.force.is_some() {
            return self.key_of_force(key.code);
        }
        if self.types_filter {
            self.key_of_filter(key.code);
            return Deed::None;
        }
        self.key_of_view(key.code)
    }

    fn key_of_force(&mut self, code: KeyCode) -> Deed {
        let Some(force) = &mut self.force else { return Deed::None };
        match force.key(code) {
            Step::Stay => Deed::None,
            Step::Leave => {
                self.force = None;
                self.message = Some("nothing was changed".into());
                Deed::None
            }
            Step::Do { owner, reason } => {
                let name = force.name.clone();
                self.force = None;
                Deed::Force { name, owner, reason }
            }
        }
    }

    fn key_of_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.types_filter = false,
            KeyCode::Esc => (self.types_filter, self.filter) = (false, String::new()),
            _ => edit(&mut self.filter, code),
        }
    }

    fn key_of_view(&mut self, code: KeyCode) -> Deed {
        match code {
            KeyCode::Char('q') => return Deed::Quit,
            KeyCode::Esc if self.view == View::Locks => self.filter.clear(),
            KeyCode::Esc => self.go(if self.view == View::Help { self.before.clone() } else { View::Locks }),
            KeyCode::Char('?' | 'h') if self.view != View::Help => {
                self.before = self.view.clone();
                self.go(View::Help);
            }
            KeyCode::Char('1') => self.go(View::Locks),
            KeyCode::Char('2') => self.go(View::Blocking),
            KeyCode::Char('3') => self.go(View::Clients),
            KeyCode::Char('4') => self.go(View::Alarms),
            KeyCode::Tab => self.go(match self.view {
                View::Locks => View::Blocking,
                View::Blocking => View::Clients,
                View::Clients => View::Alarms,
                _ => View::Locks,
            }),
            KeyCode::Char('/') => (self.view, self.types_filter) = (View::Locks, true),
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char(' ') => return Deed::Look,
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-PAGE),
            KeyCode::PageDown => self.step(PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.step(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.step(isize::MAX),
            KeyCode::Enter => {
                if let Some(name) = self.selected_name() {
                    self.selected = Some(name.clone());
                    self.go(View::Detail(name));
                }
            }
            KeyCode::Char('f') => self.begin_force(),
            _ => {}
        }
        Deed::None
    }

    fn go(&mut self, view: View) {
        (self.view, self.at) = (view, 0);
    }

    /// The name that a key is about.
    fn selected_name(&self) -> Option<LockName> {
        match &self.view {
            View::Locks => {
                let rows = self.rows();
                self.selected_row(&rows).map(|at| rows[at].key.clone())
            }
            View::Blocking => {
                let lines = self.lines();
                let last = lines.len().checked_sub(1)?;
                lines[self.at.min(last)].name.clone()
            }
            View::Detail(name) => Some(name.clone()),
            View::Alarms => {
                let last = self.alarms.len().checked_sub(1)?;
                self.alarms[self.at.min(last)].name.clone()
            }
            View::Clients | View::Help => None,
        }
    }

    fn step(&mut self, by: isize) {
        let move_in = |at: usize, count: usize| at.saturating_add_signed(by).min(count.saturating_sub(1));
        match self.view {
            View::Locks => {
                let rows = self.rows();
                let at = move_in(self.selected_row(&rows).unwrap_or(0), rows.len());
                self.selected = rows.get(at).map(|row| row.key.clone());
            }
            View::Blocking => self.at = move_in(self.at, self.lines().len()),
            View::Clients => self.at = move_in(self.at, self.clients().len()),
            View::Alarms => self.at = move_in(self.at, self.alarms.len()),
            // The text is as long as the drawing makes it, and that sets this right.
            View::Detail(_) | View::Help => self.at = move_in(self.at, usize::from(u16::MAX)),
        }
    }

    fn begin_force(&mut self) {
        let row = self.selected_name().and_then(|name| self.row(&name));
        match row.map(|row| (row.key.clone(), row.takeable())) {
            Some((name, holders)) if !holders.is_empty() => self.force = Some(Force::new(name, holders)),
            Some(_) => self.message = Some("nobody holds it".into()),
            None => self.message = Some("no name is selected".into()),
        }
    }
}
