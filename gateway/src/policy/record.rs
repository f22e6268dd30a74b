//! Questions and their answers, recorded while the gateway serves, so that they can be asked again: of another version of
//! the policy, and without a gateway.
//!
//! A line is a question as case files have it. What a policy is told of secrets is their names; tokens of its own making
//! are masked. Texts of calls are there only where the configuration says `bodies = true`.

mod serialize;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::guest_log::{Readable, redacted};
use crate::{
    config::RecordConfig,
    telemetry::{CallId, LogThrottle, now},
};

pub(super) use serialize::contract_json;

/// The longest line, in bytes.
const LINE: usize = 256 << 10;
/// The lines that may wait for the disk.
const WAITING: usize = 64;
/// What stands in place of a text that is not recorded.
const MASK: &str = "[masked]";

/// A question and its answer.
#[derive(Debug, Deserialize, Serialize)]
pub struct RecordedQuestion {
    /// When, as in the log.
    pub at: String,
    /// The name of the policy.
    pub policy: String,
    /// The upstream that it was about.
    pub upstream: String,
    /// The call that it was about; empty if it was about none.
    #[serde(default)]
    pub call: String,
    /// The function of the contract.
    pub ask: String,
    /// Its parameters by name.
    pub with: Map<String, Value>,
    /// The answer; none if there was none.
    #[serde(default)]
    pub answer: Option<Value>,
    /// Why there was none.
    #[serde(default)]
    pub error: Option<String>,
    /// What is missing here that the policy has had; none if nothing is.
    #[serde(default)]
    pub without: Option<String>,
}

/// What a recording calls a question.
pub(super) struct QuestionName<'a> {
    pub(super) function: &'static str,
    pub(super) upstream: &'a str,
    pub(super) call: Option<CallId>,
}

/// Writes questions into a file. The thread that writes ends with it.
pub struct QuestionRecorder {
    policies: Vec<String>,
    bodies: bool,
    lines: SyncSender<Vec<u8>>,
    lost: AtomicU64,
    told: LogThrottle,
}

/// Where lines go.
struct RecordFile {
    path: PathBuf,
    file: File,
    size: usize,
    max_size: usize,
}

impl QuestionRecorder {
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub fn start(config: &RecordConfig) -> io::Result<Self> {
        let file = RecordFile::open(&config.path, config.max_size)?;
        let (lines, written) = sync_channel(WAITING);
        thread::Builder::new().name("policy-record".into()).spawn(move || file.run(&written))?;
        let (policies, bodies) = (config.policies.clone(), config.bodies);
        Ok(Self { policies, bodies, lines, lost: AtomicU64::default(), told: LogThrottle::default() })
    }

    /// Whether the questions for this policy are recorded.
    pub(super) fn takes(&self, policy: &str) -> bool {
        self.policies.iter().any(|known| known == policy)
    }

    /// Records a question without what is not meant to be recorded. Waits for nothing.
    pub(super) fn write(&self, mut question: RecordedQuestion, secrets: &Readable) {
        if !self.bodies && question.leave_out_bodies() {
            question.without = Some("the texts of the call (`bodies = true` records them)".to_owned());
        }
        question.at = now();
        mask_token(question.answer.as_mut());
        let Ok(line) = serde_json::to_string(&question) else { return };
        let line = redacted(&line, secrets).into_owned() + "\n";
        if line.len() > LINE || self.lines.try_send(line.into_bytes()).is_err() {
            let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
            if self.told.is_due() {
                tracing::warn!(lost, "questions for policies were not recorded: too long, or too many at once");
            }
        }
    }
}

impl RecordedQuestion {
    /// Whether there were any.
    fn leave_out_bodies(&mut self) -> bool {
        let mut any = false;
        let mut mask = |text: Option<&mut Value>| {
            if let Some(text @ Value::String(_)) = text.filter(|text| text.as_str() != Some("")) {
                *text = MASK.into();
                any = true;
            }
        };
        mask(self.with.get_mut("params"));
        mask(self.with.get_mut("memory"));
        mask(self.answer.as_mut().and_then(|answer| answer.get_mut("memory")));
        let what = self.with.get_mut("what").and_then(Value::as_object_mut);
        what.into_iter().flatten().for_each(|(_, text)| mask(Some(text)));
        let entries = self.with.get_mut("entries").and_then(Value::as_array_mut);
        entries.into_iter().flatten().for_each(|entry| mask(entry.get_mut("body")));
        if let Some(Value::Object(verdict)) = self.answer.as_mut().and_then(|answer| answer.get_mut("verdict")) {
            ["replace", "answer"].iter().for_each(|name| mask(verdict.get_mut(*name)));
        }
        if let Some(Value::Array(verdicts)) = &mut self.answer {
            verdicts.iter_mut().for_each(|verdict| mask(verdict.get_mut("edit")));
        }
        any
    }
}

/// Hides the token that a policy has made.
pub fn mask_token(answer: Option<&mut Value>) {
    if let Some(text) = answer.and_then(|answer| answer.get_mut("mint")).and_then(|mint| mint.get_mut("text")) {
        *text = MASK.into();
    }
}

impl RecordFile {
    fn open(path: &Path, max_size: usize) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let size = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        Ok(Self { path: path.to_owned(), file, size, max_size })
    }

    fn run(mut self, lines: &Receiver<Vec<u8>>) {
        let told = LogThrottle::default();
        while let Ok(line) = lines.recv() {
            if let Err(why) = self.append(&line)
                && told.is_due()
            {
                tracing::warn!("questions for policies cannot be recorded in {}: {why}", self.path.display());
            }
        }
    }

    /// A full file takes the place of the one that was full before.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.size.saturating_add(line.len()) > self.max_size {
            let mut before = self.path.clone().into_os_string();
            before.push(".1");
            fs::rename(&self.path, before)?;
            *self = Self::open(&self.path, self.max_size)?;
        }
        self.file.write_all(line)?;
        self.size += line.len();
        Ok(())
    }
}
