//! The log as it is read by whoever hands it on: each record once, in order, across files and restarts.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::read::{AuditEntry, LogLines, complete_files};

/// How many records are read at once, and how long they may be together, in bytes.
const MOST: usize = 512;
const LARGEST: usize = 1 << 20;

/// Reads what comes after a record that was handed on, and remembers beside the log how far that has come.
pub struct AuditReader {
    path: PathBuf,
    /// The number of the last record that was read.
    last: u64,
    lines: Option<LogLines>,
    /// The number in the name of the complete file that these are of.
    opened: Option<u64>,
    /// The complete files that were read to their end.
    finished: HashSet<u64>,
}

/// Records that follow each other.
#[derive(Debug, Default)]
pub struct AuditBatch {
    /// Their lines.
    pub lines: Vec<Vec<u8>>,
    /// The number of the last one.
    pub last: u64,
    /// How many records are missing before them: their files were removed before they were read.
    pub missing: u64,
}

impl AuditReader {
    /// Goes on where it was left, or at the end of the log if nothing of it was handed on.
    ///
    /// # Errors
    ///
    /// If the log cannot be read, or the mark beside it. What is no mark begins with the oldest record.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        let newest = newest(&path)?;
        let mut reader = Self { path, last: newest, lines: None, opened: None, finished: HashSet::new() };
        match fs::read_to_string(reader.mark()) {
            Ok(mark) => reader.last = mark.trim().parse().unwrap_or(0),
            Err(why) if why.kind() == io::ErrorKind::NotFound => reader.keep(newest)?,
            Err(why) => return Err(why),
        }
        if reader.last > newest {
            let (sent, path) = (reader.last, reader.path.display());
            tracing::error!(
                sent,
                newest,
                "the audit log {path} is not the one that was sent before, and is sent whole"
            );
            reader.last = 0;
        }
        Ok(reader)
    }

    /// What comes next; empty if there is nothing now.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn next_batch(&mut self) -> io::Result<AuditBatch> {
        let (mut batch, mut size) = (AuditBatch::default(), 0);
        while batch.lines.len() < MOST && size < LARGEST {
            let (line, seq) = match self.next_record() {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(why) => {
                    self.close();
                    // It comes again with the next batch.
                    if batch.lines.is_empty() {
                        return Err(why);
                    }
                    break;
                }
            };
            if batch.lines.is_empty() {
                batch.missing = seq - self.last - 1;
            } else if seq != self.last + 1 {
                // It begins a batch of its own, which says what is missing.
                self.close();
                break;
            }
            (self.last, batch.last) = (seq, seq);
            size += line.len();
            batch.lines.push(line);
        }
        Ok(batch)
    }

    /// The next record that was not read, and its number.
    fn next_record(&mut self) -> io::Result<Option<(Vec<u8>, u64)>> {
        loop {
            let Some(lines) = &mut self.lines else {
                match self.open_next()? {
                    Some(next) => self.lines = Some(next),
                    None => return Ok(None),
                }
                continue;
            };
            // What is asked before it is read cannot become complete in between.
            let is_now = lines.is_at(&self.path);
            match lines.next_line()? {
                Some(line) => {
                    if let Some(entry) = AuditEntry::read(&line).filter(|entry| entry.seq > self.last) {
                        return Ok(Some((line, entry.seq)));
                    }
                }
                None if is_now => return Ok(None),
                None => {
                    // What has fewer records than its name says is not opened again and again.
                    self.finished.extend(self.opened);
                    self.close();
                }
            }
        }
    }

    fn close(&mut self) {
        (self.lines, self.opened) = (None, None);
    }

    /// The first file that has what was not read; none if there is no file.
    fn open_next(&mut self) -> io::Result<Option<LogLines>> {
        // This one first: should it become complete meanwhile, it is among those.
        let now = match File::open(&self.path) {
            Ok(now) => now,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(why) => return Err(why),
        };
        let complete = complete_files(&self.path)?;
        self.finished.retain(|number| complete.iter().any(|(last, _)| last == number));
        match complete.into_iter().find(|(last, _)| *last > self.last && !self.finished.contains(last)) {
            Some((last, path)) => {
                let file = File::open(path)?;
                self.opened = Some(last);
                Ok(Some(LogLines::new(file)))
            }
            None => Ok(Some(LogLines::new(now))),
        }
    }

    /// Remembers that everything up to this record was handed on.
    ///
    /// # Errors
    ///
    /// If the mark cannot be written.
    pub fn keep(&self, last: u64) -> io::Result<()> {
        let (mark, mut new) = (self.mark(), self.mark().into_os_string());
        // Another process may do the same, as during an upgrade.
        new.push(format!(".{}", std::process::id()));
        let mut file = File::create(&new)?;
        file.write_all(last.to_string().as_bytes())?;
        file.sync_data()?;
        fs::rename(new, mark)
    }

    fn mark(&self) -> PathBuf {
        let mut mark = self.path.clone().into_os_string();
        mark.push(".sent");
        mark.into()
    }
}

/// The number of the newest record of a log; 0 if there is none.
fn newest(path: &Path) -> io::Result<u64> {
    /// Some of the last lines may be torn.
    const LINES: usize = 16;
    let last = match super::tail(path, LINES) {
        Ok((last, _)) => last.iter().rev().find_map(|line| AuditEntry::read(line)).map(|entry| entry.seq),
        Err(why) if why.kind() == io::ErrorKind::NotFound => None,
        Err(why) => return Err(why),
    };
    match last {
        Some(last) => Ok(last),
        None if path.parent().is_some_and(Path::exists) => {
            Ok(complete_files(path)?.last().map_or(0, |(number, _)| *number))
        }
        None => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::ops::RangeInclusive;

    use super::*;

    fn append(path: &Path, records: RangeInclusive<u64>) {
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        for seq in records {
            writeln!(file, "{{\"seq\":{seq},\"event_type\":\"call\"}}").unwrap();
        }
    }

    fn numbers(reader: &mut AuditReader) -> (Vec<u64>, u64) {
        let batch = reader.next_batch().unwrap();
        (batch.lines.iter().map(|line| AuditEntry::read(line).unwrap().seq).collect(), batch.missing)
    }

    #[test]
    fn each_record_is_read_once_across_files_and_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let complete = |last: u64| fs::rename(&path, folder.path().join(format!("audit.jsonl.{last:012}"))).unwrap();
        let open = || AuditReader::open(path.clone()).unwrap();
        assert_eq!(numbers(&mut open()), (vec![], 0));
        append(&path, 1..=2);
        let mut reader = open();
        assert_eq!(numbers(&mut reader), (vec![1, 2], 0), "it begins where the log did when it was first opened");
        append(&path, 3..=3);
        complete(3);
        append(&path, 4..=5);
        complete(5);
        append(&path, 6..=6);
        assert_eq!(numbers(&mut reader), (vec![3, 4, 5, 6], 0));
        assert_eq!(numbers(&mut reader), (vec![], 0));
        // What was not kept is read again, and what was kept is not.
        reader.keep(4).unwrap();
        assert_eq!(numbers(&mut open()), (vec![5, 6], 0));
        // A file is gone that nobody has read.
        complete(6);
        append(&path, 7..=8);
        fs::remove_file(folder.path().join("audit.jsonl.000000000006")).unwrap();
        fs::remove_file(folder.path().join("audit.jsonl.000000000005")).unwrap();
        assert_eq!(numbers(&mut open()), (vec![7, 8], 2));
        // A line that is being written is none yet.
        write!(File::options().append(true).open(&path).unwrap(), "{{\"seq\":9").unwrap();
        assert_eq!(numbers(&mut reader), (vec![7, 8], 0));
    }

    #[test]
    fn what_was_there_before_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        append(&path, 1..=3);
        let mut reader = AuditReader::open(path.clone()).unwrap();
        append(&path, 4..=4);
        assert_eq!(numbers(&mut reader), (vec![4], 0));
    }

    #[test]
    fn a_file_that_is_not_what_its_name_says_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        append(&path, 1..=1);
        let mut reader = AuditReader::open(path.clone()).unwrap();
        append(&path, 2..=3);
        // Its last records are gone, and another one is a copy with a date.
        fs::rename(&path, folder.path().join("audit.jsonl.000000000005")).unwrap();
        append(&path, 6..=7);
        fs::copy(&path, folder.path().join("audit.jsonl.20261123")).unwrap();
        fs::copy(&path, folder.path().join("audit.jsonl.202611230000")).unwrap();
        assert_eq!(numbers(&mut reader), (vec![2, 3], 0));
        assert_eq!(numbers(&mut reader), (vec![6, 7], 2));
        append(&path, 8..=8);
        assert_eq!(numbers(&mut reader), (vec![8], 0));
    }

    #[test]
    fn what_was_read_before_a_failure_is_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let mut reader = AuditReader::open(path.clone()).unwrap();
        append(&path, 1..=2);
        fs::rename(&path, folder.path().join("audit.jsonl.000000000002")).unwrap();
        let unreadable = folder.path().join("audit.jsonl.000000000004");
        fs::create_dir(&unreadable).unwrap();
        append(&path, 5..=5);
        assert_eq!(numbers(&mut reader), (vec![1, 2], 0));
        assert!(reader.next_batch().is_err());
        fs::remove_dir(unreadable).unwrap();
        assert_eq!(numbers(&mut reader), (vec![5], 2));
    }

    #[test]
    fn a_log_that_begins_anew_is_sent_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        append(&path, 1..=3);
        drop(AuditReader::open(path.clone()).unwrap());
        fs::remove_file(&path).unwrap();
        append(&path, 1..=2);
        assert_eq!(numbers(&mut AuditReader::open(path).unwrap()), (vec![1, 2], 0));
    }
}
