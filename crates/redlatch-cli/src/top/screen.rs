//! The whole terminal, which is given back in every case: at the end, when the process is stopped, and at a panic.

use std::io::{self, Write, stdout};

use ratatui::{
    DefaultTerminal, Frame, Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor, execute,
        terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen},
    },
};
use signal_hook::{consts::SIGTSTP, low_level::emulate_default_handler};

/// The terminal, while it is ours.
#[derive(Debug)]
pub(super) struct Screen(DefaultTerminal);

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    ///
    /// Those of the terminal.
    pub(super) fn open() -> io::Result<Self> {
        ratatui::try_init().map(Screen)
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(draw).map(drop)
    }

    /// Draws everything anew next time: another program has written over it.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        // `Terminal::clear` asks the terminal where its cursor is, and the thread that reads the keys takes the answer.
        execute!(stdout(), Clear(ClearType::All))?;
        self.0 = Terminal::new(CrosstermBackend::new(stdout()))?;
        Ok(())
    }

    /// Gives the terminal back, stops this process until the shell lets it go on, and takes the terminal again.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        give_back()?;
        _ = emulate_default_handler(SIGTSTP);
        terminal::enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen, cursor::Hide)?;
        self.clear()
    }
}

fn give_back() -> io::Result<()> {
    terminal::disable_raw_mode()?;
    execute!(stdout(), LeaveAlternateScreen, cursor::Show)?;
    stdout().flush()
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is nobody to tell.
        _ = give_back();
    }
}
