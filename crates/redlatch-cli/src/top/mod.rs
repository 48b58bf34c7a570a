//! `redlatch top`: the locks on a whole terminal, looked at again and again.

mod app;
mod draw;
mod force;
mod screen;
#[cfg(test)]
mod tests;
mod typed;

use std::{
    thread,
    time::{Duration, Instant},
};

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use redlatch::{Client, LockName};
use signal_hook::{
    consts::{SIGCONT, SIGTSTP},
    low_level::emulate_default_handler,
};
use tokio::{sync::mpsc, task::JoinHandle};

use self::{
    app::{App, Deed},
    draw::Palette,
    screen::Screen,
};
use crate::{
    child, escape,
    exit::{self, Failure},
    forcing,
    signals::{Received, Signals},
    snapshot::{Scope, Snapshot},
};

/// How many keys may wait.
const KEYS_MAX: usize = 256;

/// What `top` is told.
pub(crate) struct Options {
    /// Where the locks are. Safe to print.
    pub(crate) place: String,
    pub(crate) scope: Scope,
    /// How long after one look the next one begins.
    pub(crate) interval: Duration,
    pub(crate) is_colored: bool,
    /// The lease of locks of which nobody says otherwise.
    pub(crate) lease: Duration,
    /// Who a holder is told has taken its lock.
    pub(crate) by: String,
}

/// Shows the locks until a key or a signal ends it.
///
/// # Errors
///
/// Internal, when the terminal cannot be used. A server that fails is shown on the screen.
pub(crate) async fn run(client: &Client, options: &Options) -> Result<u8, Failure> {
    let internal = |what: &'static str| move |error| Failure::internal(format!("{what}: {error}"));
    let mut signals = Signals::install().map_err(internal("cannot catch signals"))?;
    let mut screen = Screen::open().map_err(internal("cannot use the terminal"))?;
    let mut keys = read_keys().map_err(internal("cannot read keys"))?;
    let palette = Palette { is_colored: options.is_colored };
    let mut app = App::new(options.place.clone(), options.lease);
    let mut top = Looks { client, options, look: None, forced: None, looked_at: None };
    let due = tokio::time::sleep(Duration::ZERO);
    tokio::pin!(due);
    loop {
        let age = top.looked_at.map(|at| at.elapsed());
        screen.draw(|frame| draw::draw(frame, &app, age, palette)).map_err(internal("cannot draw"))?;
        tokio::select! {
            event = keys.recv() => match event {
                // A terminal that is gone.
                None => return Ok(exit::OK),
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => match app.key(key) {
                    Deed::None => {}
                    Deed::Quit => return Ok(exit::OK),
                    Deed::Suspend => stop(&mut screen)?,
                    Deed::Look => top.begin(),
                    Deed::Redraw => screen.clear().map_err(internal("cannot draw"))?,
                    Deed::Force { name, owner, reason } => {
                        app.message = Some(top.force(name, owner, reason).into());
                    }
                },
                // A changed size is seen when it is drawn.
                Some(_) => {}
            },
            () = &mut due, if top.look.is_none() => top.begin(),
            looked = finished(&mut top.look) => {
                if looked.is_ok() {
                    top.looked_at = Some(Instant::now());
                }
                app.looked(looked);
                due.as_mut().reset(tokio::time::Instant::now() + options.interval);
            }
            told = finished(&mut top.forced) => {
                app.message = Some(told);
                top.begin();
            }
            Received { signal, .. } = signals.next() => match signal {
                SIGTSTP => stop(&mut screen)?,
                SIGCONT => screen.clear().map_err(internal("cannot draw"))?,
                _ if (Received { signal, by_kernel: true }).asks_to_end() => {
                    drop(screen);
                    // It ends as any program does that the signal ends.
                    _ = emulate_default_handler(signal);
                    return Ok(exit::OK);
                }
                _ => {}
            },
        }
    }
}

/// Stops this process as a shell does, if there is one that could let it go on.
fn stop(screen: &mut Screen) -> Result<(), Failure> {
    if child::is_orphaned() {
        return Ok(());
    }
    screen.stop().map_err(|error| Failure::internal(format!("cannot give the terminal back: {error}")))
}

/// What goes on at the server.
struct Looks<'a> {
    client: &'a Client,
    options: &'a Options,
    look: Option<JoinHandle<Result<Snapshot, String>>>,
    forced: Option<JoinHandle<String>>,
    looked_at: Option<Instant>,
}

impl Looks<'_> {
    /// Begins to look unless a look is under way.
    fn begin(&mut self) {
        let (client, scope) = (self.client.clone(), self.options.scope.clone());
        self.look.get_or_insert_with(|| {
            tokio::spawn(async move {
                Snapshot::take(&client, &scope)
                    .await
                    .map_err(|error| escape::text(&error.to_string()).to_string())
            })
        });
    }

    /// Begins to take a name from that holder, and says so.
    fn force(&mut self, name: LockName, owner: String, reason: String) -> &'static str {
        if self.forced.is_some() {
            return "another one is being taken; nothing was changed";
        }
        let (client, by) = (self.client.clone(), self.options.by.clone());
        self.forced =
            Some(tokio::spawn(
                async move { forcing::force(&client, &name, &owner, &by, &reason).await.told },
            ));
        "taking it…"
    }
}

/// Waits for the end of a task, for ever if there is none.
async fn finished<T: Ended>(task: &mut Option<JoinHandle<T>>) -> T {
    let Some(running) = task else { return std::future::pending().await };
    let ended = running.await;
    *task = None;
    ended.unwrap_or_else(|error| T::broken(error.to_string()))
}

/// What a task returns, also where it has not come to its end.
trait Ended {
    fn broken(why: String) -> Self;
}

impl Ended for String {
    fn broken(why: String) -> Self {
        why
    }
}

impl Ended for Result<Snapshot, String> {
    fn broken(why: String) -> Self {
        Err(why)
    }
}

/// Reads keys on a thread of its own, because that blocks; it ends with the process.
fn read_keys() -> std::io::Result<mpsc::Receiver<Event>> {
    let (sender, keys) = mpsc::channel(KEYS_MAX);
    thread::Builder::new().name("keys".into()).spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(keys)
}
