//! What is known of a process until its first message: whether it reads its input, and how its standard error ends.
//!
//! A process that downloads before it serves leaves its input unread. So silence tells nothing of the server before the
//! process reads, and a process that ends with its input unread has crashed rather than disliked what it was asked.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::ioctl_fionread;
use tokio::sync::watch;

use crate::{config::ProcessLimits, telemetry::printable};

use super::confinement::complaint;

/// How often the input of a process is looked at until it reads for the first time.
const LOOK: Duration = Duration::from_millis(50);
/// What is kept of standard error: so many lines, and bytes of all of them.
const LINES: usize = 20;
const BYTES: usize = 1024;
/// A shorter value is no secret, and hiding it would garble the text.
const SECRET: usize = 6;

/// What a process does before it has said anything.
pub(super) struct Startup {
    /// Whether it has sent a message.
    heard: AtomicBool,
    input: watch::Sender<Input>,
    errors: Mutex<VecDeque<String>>,
    /// The lines of what it was given and must not be shown, the longest first.
    secrets: Vec<String>,
    limits: ProcessLimits,
    /// The limit that a line has complained of last.
    complaint: Mutex<Option<&'static str>>,
}

/// The state of the pipe into the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Empty,
    Written,
    Read,
}

impl Startup {
    pub(super) fn new(secrets: Vec<String>, limits: ProcessLimits) -> Self {
        // Each line of a secret by itself, as it comes and as it is shown.
        let lines = secrets.iter().flat_map(|secret| secret.lines()).map(str::trim);
        let forms = lines.flat_map(|line| [line.to_owned(), printable(line).into_owned()]);
        let mut secrets: Vec<_> = forms.filter(|secret| secret.len() >= SECRET).collect();
        secrets.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        secrets.dedup();
        Self {
            heard: AtomicBool::new(false),
            input: watch::Sender::new(Input::Empty),
            errors: Mutex::default(),
            secrets,
            limits,
            complaint: Mutex::default(),
        }
    }

    /// Notes that a message has come.
    pub(super) fn hear(&self) {
        if !self.heard.load(Ordering::Relaxed) {
            self.heard.store(true, Ordering::Relaxed);
        }
    }

    /// Whether no message has come yet.
    pub(super) fn is_starting(&self) -> bool {
        !self.heard.load(Ordering::Relaxed)
    }

    /// Notes that something was written to the process.
    pub(super) fn wrote(&self) {
        self.input.send_if_modified(|input| {
            let first = *input == Input::Empty;
            if first {
                *input = Input::Written;
            }
            first
        });
    }

    /// Whether the process has read what was written to it first.
    pub(super) fn has_read(&self) -> bool {
        *self.input.borrow() == Input::Read
    }

    /// Resolves when it has.
    pub(super) async fn reads(&self) {
        // Never closed: the sender is here.
        drop(self.input.subscribe().wait_for(|input| *input == Input::Read).await);
    }

    /// Looks at `input` until what was written has been read, and lets go of it; then never resolves.
    pub(super) async fn watch<T>(&self, input: Option<OwnedFd>) -> T {
        if let Some(input) = input {
            drop(self.input.subscribe().wait_for(|input| *input != Input::Empty).await);
            while !self.look(&input) {
                tokio::time::sleep(LOOK).await;
            }
        }
        std::future::pending().await
    }

    /// Whether what was written to the process has been read, as far as the system tells.
    pub(super) fn look(&self, input: impl std::os::fd::AsFd) -> bool {
        if *self.input.borrow() == Input::Written && ioctl_fionread(input).unwrap_or(0) == 0 {
            self.input.send_replace(Input::Read);
        }
        self.has_read()
    }

    /// A line of its standard error, fit to be shown and without the secrets that it was given; the last ones are kept.
    pub(super) fn note(&self, line: &str) -> String {
        // Once before a long line is cut, and once when no colour is left in the middle of a secret.
        let line = self.masked(&printable(&self.masked(line))).into_owned();
        if let Some(key) = complaint(&self.limits, &line) {
            *self.complaint.lock() = Some(key);
        }
        if !line.trim().is_empty() {
            let mut errors = self.errors.lock();
            errors.push_back(line.trim().to_owned());
            while errors.len() > LINES || errors.len() > 1 && errors.iter().map(String::len).sum::<usize>() > BYTES {
                errors.pop_front();
            }
        }
        line
    }

    fn masked<'a>(&self, line: &'a str) -> Cow<'a, str> {
        self.secrets.iter().fold(Cow::Borrowed(line), |line, secret| match line.contains(secret) {
            true => Cow::Owned(line.replace(secret, "***")),
            false => line,
        })
    }

    /// The key of the limit that it has complained of, if any.
    pub(super) fn complaint(&self) -> Option<&'static str> {
        *self.complaint.lock()
    }

    /// The last lines of its standard error, as one line; none if it wrote none, or has answered.
    pub(super) fn last_lines(&self) -> Option<String> {
        self.is_starting().then(|| self.all_last_lines()).filter(|text| !text.is_empty())
    }

    /// The same, whether it has answered or not; empty if it wrote none.
    pub(super) fn all_last_lines(&self) -> String {
        let text = Vec::from_iter(self.errors.lock().iter().cloned()).join(" | ");
        let start = text.ceil_char_boundary(text.len().saturating_sub(BYTES));
        text[start..].to_owned()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn the_last_lines_are_bounded_and_without_secrets() {
        let startup =
            Startup::new(vec!["hush-hush".into(), "hush-hush-more".into(), "short".into()], ProcessLimits::default());
        assert_eq!(startup.last_lines(), None);
        assert_eq!(startup.note("key=hush-hush-more! short"), "key=***! short");
        assert_eq!(startup.last_lines().as_deref(), Some("key=***! short"));
        for number in 0..100 {
            startup.note(&format!("  line {number}\u{e9}"));
        }
        let last = startup.last_lines().unwrap();
        assert!(last.starts_with("line 80\u{e9} | ") && last.ends_with(" | line 99\u{e9}"), "{last}");
        startup.note(&"x\u{e9}".repeat(4000));
        assert!(startup.last_lines().unwrap().len() <= BYTES);
        startup.hear();
        startup.note("later");
        assert_eq!(startup.last_lines(), None);
        assert!(startup.all_last_lines().ends_with("later"));
    }

    #[test]
    fn each_line_of_a_secret_is_hidden_also_beside_what_is_not_shown() {
        let key = "-----BEGIN PRIVATE KEY-----\r\nMIIEvQIBADAN\r\n  \"id\": \"tab\there\"\n}\n";
        let startup = Startup::new(vec![key.into(), "hush-hush".into()], ProcessLimits::default());
        for (line, shown) in [
            ("key: MIIEvQIBADAN;", "key: ***;"),
            ("\"id\": \"tab\there\"", "***"),
            ("hush\u{1b}[31m-hush", "***"),
            ("}", "}"),
        ] {
            assert_eq!(startup.note(line), shown);
        }
        let long = startup.note(&("x".repeat(4093) + "hush-hush"));
        assert!(!long.contains("hus"), "{long}");
    }

    #[tokio::test]
    async fn a_pipe_tells_whether_it_was_read() {
        use std::io::{Read, Write};
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let startup = Startup::new(Vec::new(), ProcessLimits::default());
        assert!(!startup.look(&writer), "nothing was written");
        writer.write_all(b"hello").unwrap();
        startup.wrote();
        assert!(!startup.look(&writer), "nothing was read");
        reader.read_exact(&mut [0; 5]).unwrap();
        assert!(startup.look(&writer));
        startup.reads().await;
    }
}
