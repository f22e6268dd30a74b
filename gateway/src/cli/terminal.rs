//! What commands say: whoever its words are from, it only says something.

use std::{
    env,
    fmt::Display,
    io::{self, IsTerminal, Write},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::telemetry::{printable, printable_json, printable_text};

/// Whether standard output is for JSON alone.
static ONLY_JSON: AtomicBool = AtomicBool::new(false);

/// From now on standard output is for JSON alone: what a command says for people goes to standard error.
pub(super) fn only_json() {
    ONLY_JSON.store(true, Ordering::Relaxed);
}

/// Says it on standard output.
pub(super) fn say(text: impl Display) -> io::Result<()> {
    if ONLY_JSON.load(Ordering::Relaxed) {
        complain(text);
        return Ok(());
    }
    io::stdout().lock().write_all(lines(text).as_bytes())
}

/// Puts a text of somebody else on standard output, whole.
pub(super) fn put(text: &str) -> io::Result<()> {
    let mut text = printable_text(text);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    io::stdout().lock().write_all(text.as_bytes())
}

/// Puts JSON on standard output, whole.
pub(super) fn put_json(json: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(printable_json(json).as_bytes())?;
    out.write_all(b"\n")
}

/// Says it on standard error.
pub(super) fn complain(text: impl Display) {
    eprint!("{}", lines(text));
}

/// Whether there is a person who can be asked.
pub(super) fn is_there() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// The line that the person at the terminal types; none where the input ends.
pub(super) fn ask(question: &str) -> io::Result<Option<String>> {
    eprint!("{}", printable(question));
    eprint!(" ");
    io::stderr().flush()?;
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer)?;
    Ok((read > 0).then(|| answer.trim().to_owned()))
}

/// Whether the person at the terminal agrees, or presses return where that means yes. Nobody does where there is none.
pub(super) fn asks(question: &str, otherwise: bool) -> io::Result<bool> {
    if !is_there() {
        return Ok(false);
    }
    eprint!("{question}");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(match answer.trim().to_ascii_lowercase().as_str() {
        "" => otherwise && !answer.is_empty(),
        "y" | "yes" => true,
        _ => false,
    })
}

/// How long a command works without saying at what, and how often it says for how long.
const SECOND: Duration = Duration::from_secs(1);

/// Says on the terminal for how long a command has been at something, until it is dropped.
pub(super) struct WaitingLine(Option<(Sender<()>, JoinHandle<()>)>);

/// Says `what` the command is at, once that takes longer than a second. Programs that read standard error do not get it.
pub(super) fn waiting(what: impl Display) -> WaitingLine {
    let is_dumb = env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
    if is_dumb || !io::stderr().is_terminal() {
        return WaitingLine(None);
    }
    let (what, began) = (printable(&what.to_string()).into_owned(), Instant::now());
    let (done, until) = mpsc::channel();
    let saying = thread::spawn(move || {
        let mut is_shown = false;
        while let Err(RecvTimeoutError::Timeout) = until.recv_timeout(SECOND) {
            // The cursor goes back, so that a line of the log takes its place.
            eprint!("\x1b[K{what}: {} s\r", began.elapsed().as_secs());
            is_shown = true;
        }
        if is_shown {
            eprint!("\x1b[K");
        }
    });
    WaitingLine(Some((done, saying)))
}

impl Drop for WaitingLine {
    fn drop(&mut self) {
        if let Some((done, saying)) = self.0.take() {
            drop(done);
            // A thread that has panicked has nothing more to say.
            drop(saying.join());
        }
    }
}

/// Each line of a text by itself.
fn lines(text: impl Display) -> String {
    let text = text.to_string();
    let mut cleaned = String::with_capacity(text.len() + 1);
    for line in text.split('\n') {
        cleaned.push_str(&printable(line));
        cleaned.push('\n');
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::lines;

    #[test]
    fn each_line_is_cleaned_and_stays_a_line() {
        assert_eq!(lines("a\x1b]0;t\x07b\n\n  c\u{202e}d"), "ab\n\n  cd\n");
    }
}
