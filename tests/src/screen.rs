//! A real terminal of 80 columns and 24 rows, in tmux.

use std::process::Command;

use tempfile::TempDir;

use crate::{process::descendants, wait::until};

/// A terminal in which one command runs. It stays when the command has ended, and says `ENDED` with the exit code.
pub struct Screen {
    socket: String,
    folder: TempDir,
}

impl Screen {
    /// One in which a shell runs this line. `name` is no other screen's.
    ///
    /// # Panics
    /// Without tmux.
    pub fn start(name: &str, line: &str) -> Self {
        let screen = Self { socket: format!("weir-tests-{name}"), folder: TempDir::new().unwrap() };
        let line = format!("{line}; echo \"ENDED $?\"; sleep 600");
        screen.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", &line]);
        screen
    }

    /// What tmux answers to a command.
    ///
    /// # Panics
    /// Without tmux.
    pub fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.args(["-L", &self.socket]).args(arguments).env("TMUX_TMPDIR", self.folder.path());
        command.env_remove("TMUX").env_remove("NO_COLOR").env("LANG", "C.UTF-8");
        String::from_utf8(command.output().expect("tmux is there").stdout).unwrap()
    }

    /// Presses keys, as tmux calls them.
    pub fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// What it shows.
    pub fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// The same, and what has left it at the top; broken lines are whole.
    pub fn history(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-J", "-S", "-"])
    }

    /// Waits until it shows this.
    pub async fn shows(&self, text: &str) {
        until(text, || self.text().contains(text)).await;
    }

    /// The process below it whose command line has this word.
    ///
    /// # Panics
    /// When there is none.
    pub fn process(&self, word: &str) -> u32 {
        let server = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let all = descendants(server.trim().parse().unwrap());
        let named = |line: &str| line.contains(word) && !line.contains("sleep");
        all.into_iter().find(|(_, line)| named(line)).unwrap().0
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}
