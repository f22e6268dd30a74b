//! The screen: taken, and given back whatever happens.

use std::{
    io::{self, Stdout, stdout},
    process::{Command, ExitStatus},
    sync::Once,
};

use crossterm::{
    cursor::Show,
    execute,
    terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
};
use ratatui::{Frame, Terminal, backend::CrosstermBackend};
use rustix::process::{Signal, getpid, kill_process};

use crate::cli::terminal;

/// What leaves the alternate screen and shows the cursor (xterm, DEC private modes).
const LEAVE: &[u8] = b"\x1b[?1049l\x1b[?25h";

/// Gives the screen back when it is dropped. A panic gives it back before it says anything.
pub(super) struct TerminalScreen(Terminal<CrosstermBackend<Stdout>>);

impl TerminalScreen {
    pub(super) fn enter() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                leave();
                before(panic);
            }));
        });
        take()?;
        Terminal::new(CrosstermBackend::new(stdout())).map(Self).inspect_err(|_| leave())
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(draw).map(drop)
    }

    /// Stops this process, as Ctrl-Z does elsewhere, until it is continued.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        leave();
        kill_process(getpid(), Signal::STOP)?;
        self.again()
    }

    /// Gives the terminal to a command until it ends and somebody has read what it said.
    pub(super) fn aside(&mut self, mut command: Command) -> io::Result<ExitStatus> {
        leave();
        let ended = command.status();
        let read = terminal::ask("\nPress Return to go back.");
        self.again()?;
        read?;
        ended
    }

    fn again(&mut self) -> io::Result<()> {
        take()?;
        self.0.clear()
    }
}

impl Drop for TerminalScreen {
    fn drop(&mut self) {
        leave();
    }
}

/// Gives the screen back for one who may wait for nobody: the screen may be in the middle of something.
pub(super) fn abandon() {
    drop(disable_raw_mode());
    let _ = rustix::io::write(stdout(), LEAVE);
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen).inspect_err(|_| leave())
}

/// Nothing can be done where that fails: the terminal is gone.
fn leave() {
    drop(disable_raw_mode());
    drop(execute!(stdout(), LeaveAlternateScreen, Show));
}
