//! Whether a log is what was written.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use super::{
    chain::{Head, hash},
    read::{self, AuditEntry},
};

/// How many faults are told one by one.
const MOST: usize = 20;

/// The hash of a record, as it was noted somewhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor(String);

impl FromStr for Anchor {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_hash { Ok(Self(text.to_ascii_lowercase())) } else { Err("64 hexadecimal digits are expected") }
    }
}

/// What a log is found to be.
#[derive(Debug, Default)]
pub struct ChainReport {
    /// How many records there are.
    pub records: u64,
    /// The number of the first one.
    pub first: u64,
    /// The last one.
    pub last: Head,
    /// What is wrong; no more than can be read.
    pub faults: Vec<ChainFault>,
    /// Bytes at the end that are no whole line: one that is being written, or the writer was killed.
    pub unfinished: usize,
    /// Lines that a killed writer has left, and a record says so.
    pub torn: u64,
}

/// One fault, and where.
#[derive(Debug, PartialEq, Eq)]
pub struct ChainFault {
    path: PathBuf,
    line: u64,
    text: String,
}

impl fmt::Display for ChainFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.text)
    }
}

/// Where the check is.
struct Check<'a> {
    report: ChainReport,
    /// What is no record, since the last one.
    strange: Vec<Vec<u8>>,
    /// The oldest record that may be missing none before it.
    kept_from: u64,
    anchor: Option<&'a Anchor>,
}

/// Reads a whole log and checks that each record follows from the one before.
///
/// # Errors
///
/// If a file cannot be read.
pub fn verify(path: &Path, anchor: Option<&Anchor>) -> io::Result<ChainReport> {
    let mut check = Check { report: ChainReport::default(), strange: Vec::new(), kept_from: 1, anchor };
    let mut begin = None;
    for mut file in read::open(path)? {
        if check.report.unfinished > 0 {
            check.strange.push(Vec::new());
            check.end_of_file(&file.path, 0);
        }
        let mut number = 0;
        while let Some(line) = file.lines.next_line()? {
            number += 1;
            begin.get_or_insert_with(|| file.path.clone());
            check.line(&file.path, number, line);
        }
        check.report.unfinished = file.lines.rest().len();
        check.end_of_file(&file.path, number);
    }
    let Check { mut report, kept_from, anchor, .. } = check;
    if report.first > kept_from {
        let text = format!("the log begins with record {}; those before it are missing", report.first);
        report.faults.insert(0, ChainFault { path: begin.unwrap_or_default(), line: 1, text });
    }
    if anchor.is_some() {
        let text = "no record has the hash that was given: the log was cut, or written anew".to_owned();
        report.faults.push(ChainFault { path: path.to_owned(), line: 0, text });
    }
    Ok(report)
}

impl Check<'_> {
    fn line(&mut self, path: &Path, number: u64, line: Vec<u8>) {
        let Some(entry) = AuditEntry::read(&line) else {
            self.strange.push(line);
            return;
        };
        let (last, hash) = (self.report.last, hash(&line));
        if !self.strange.is_empty() {
            let torn = digest(&self.strange.join(&b'\n'));
            if entry.event_type == "line_torn" && entry.torn_digest.as_deref() == Some(&torn) {
                self.report.torn += self.strange.len() as u64;
            } else {
                let count = self.strange.len();
                self.fault(path, number, format!("the {count} lines before it are no records"));
            }
            self.strange.clear();
        }
        if last.seq == 0 {
            self.report.first = entry.seq;
            if entry.seq == 1 && entry.previous_hash.is_some() {
                self.fault(path, number, "the first record names one before it".to_owned());
            }
        } else if entry.seq != last.seq + 1 {
            self.fault(path, number, format!("record {} follows record {}", entry.seq, last.seq));
        } else if entry.previous_hash.as_deref() != Some(&*last.hex()) {
            let text = format!(
                "record {} does not follow from the line before, which was changed, or this one was",
                entry.seq
            );
            self.fault(path, number, text);
        }
        if entry.event_type == "files_removed" {
            self.kept_from = self.kept_from.max(entry.first_seq.unwrap_or_default());
        }
        self.report.last = Head { seq: entry.seq, hash };
        self.report.records += 1;
        if self.anchor.is_some_and(|anchor| anchor.0 == self.report.last.hex()) {
            self.anchor = None;
        }
    }

    /// A file ends with a record; what was torn is followed by the record of that.
    fn end_of_file(&mut self, path: &Path, number: u64) {
        if !std::mem::take(&mut self.strange).is_empty() {
            self.fault(path, number, "the file before it, or this one, ends with what is no record".to_owned());
        }
    }

    fn fault(&mut self, path: &Path, line: u64, text: String) {
        if self.report.faults.len() < MOST {
            self.report.faults.push(ChainFault { path: path.to_owned(), line, text });
        }
    }
}

/// A digest as records have it.
fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", Head { seq: 0, hash: hash(bytes) }.hex())
}
