//! The log as it is read: by whoever verifies it, looks at it, or appends to it.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// How many digits the name of a complete file has at least: a copy with a date is none.
const DIGITS: usize = 12;
/// The longest line that is read as a record, in bytes.
const LONGEST: u64 = 1 << 20;

/// What the chain needs to know of a record.
#[derive(Debug, Deserialize)]
pub(super) struct AuditEntry {
    pub(super) seq: u64,
    pub(super) previous_hash: Option<String>,
    pub(super) event_type: String,
    /// Of `files_removed`: the oldest record that was kept.
    pub(super) first_seq: Option<u64>,
    /// Of `line_torn`: what is between it and the record before.
    pub(super) torn_digest: Option<String>,
}

/// One file of the log.
pub(super) struct LogFile {
    pub(super) path: PathBuf,
    pub(super) lines: LogLines,
}

/// The lines of a file. A last one without an end is none.
pub struct LogLines {
    from: BufReader<File>,
    /// What was read of a line that has no end yet.
    begun: Vec<u8>,
}

impl AuditEntry {
    /// Reads a line; none if it is no record.
    pub(super) fn read(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}

impl LogLines {
    pub(super) fn new(file: File) -> Self {
        Self { from: BufReader::new(file), begun: Vec::new() }
    }

    /// The next line without its end; none if there is no whole one now.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let left = LONGEST.saturating_sub(self.begun.len() as u64);
        self.from.by_ref().take(left).read_until(b'\n', &mut self.begun)?;
        let whole = self.begun.pop_if(|byte| *byte == b'\n').is_some();
        if whole || self.begun.len() as u64 >= LONGEST {
            return Ok(Some(std::mem::take(&mut self.begun)));
        }
        Ok(None)
    }

    /// What follows the last line and has no end.
    pub(super) fn rest(&self) -> &[u8] {
        &self.begun
    }

    /// Whether the file is still the one at `path`.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let id = |file: fs::Metadata| (file.dev(), file.ino());
        fs::metadata(path).ok().map(id) == self.from.get_ref().metadata().ok().map(id)
    }
}

/// The files of a log that are complete, oldest first, each with the number of its last record.
pub(super) fn complete_files(path: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let (folder, name) = (path.parent().unwrap_or(Path::new(".")), path.file_name().unwrap_or_default());
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let found = entry.file_name();
        let suffix = found.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
        let digits = suffix.and_then(|suffix| suffix.strip_prefix(b".")).filter(|digits| digits.len() >= DIGITS);
        let number = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        files.extend(number.map(|number: u64| (number, folder.join(&found))));
    }
    files.sort();
    Ok(files)
}

/// Opens all files of a log, oldest first.
pub(super) fn open(path: &Path) -> io::Result<Vec<LogFile>> {
    // This one first: should it become complete meanwhile, it is found once more, and no file is missed.
    let now = LogLines::new(File::open(path)?);
    let mut files = Vec::new();
    for (_, complete) in complete_files(path)? {
        if !now.is_at(&complete) {
            files.push(LogFile { lines: LogLines::new(File::open(&complete)?), path: complete });
        }
    }
    files.push(LogFile { path: path.to_owned(), lines: now });
    Ok(files)
}
