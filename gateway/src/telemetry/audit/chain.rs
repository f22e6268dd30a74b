//! The file: records of which each has the SHA-256 of the one before, so that none can be changed, left out or moved
//! without the next showing it.
//!
//! Several processes may append to one log: both of an upgrade, and commands beside a gateway. Whoever has the lock
//! appends a batch, and looks first whether another process has appended since.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use ring::{
    digest::{SHA256, digest},
    hmac,
    rand::{SecureRandom, SystemRandom},
};

use super::{
    read::{AuditEntry, complete_files},
    record::Record,
};
use crate::{
    config::AuditConfig,
    telemetry::put::{put_hex, put_number},
};

/// How long another process may take for its batch.
const PATIENCE: Duration = Duration::from_secs(5);

/// How far back from the end of a file its last record is looked for, in bytes. No record is as long.
const WINDOW: u64 = 1 << 20;

/// How much is put together before it goes to the system, in bytes: what a processor's nearer caches hold.
const CHUNK: usize = 64 * 1024;

/// The log as one process appends to it.
pub(super) struct AuditChain {
    path: PathBuf,
    max_size: u64,
    keep: usize,
    max_age: Option<Duration>,
    /// The file of the key. Its lock is that of the log: the log itself is renamed.
    lock: Arc<File>,
    open: Option<OpenFile>,
    /// The last record that this process knows of.
    head: Option<Head>,
    chunk: Vec<u8>,
}

struct OpenFile {
    file: File,
    id: (u64, u64),
    len: u64,
}

/// The last record; none yet if its number is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Its number.
    pub seq: u64,
    /// The SHA-256 of its line.
    pub hash: [u8; 32],
}

/// What is at the end of a file.
#[derive(Default)]
struct Tail {
    last: Option<Head>,
    /// What follows the last record and is none.
    torn: Vec<u8>,
    /// Whether a line break is missing at the very end.
    open: bool,
}

struct Locked(Arc<File>);

impl Drop for Locked {
    fn drop(&mut self) {
        // It ends with the process in any case.
        drop(self.0.unlock());
    }
}

impl Head {
    /// The hash in hexadecimal.
    #[must_use]
    pub fn hex(&self) -> String {
        let mut hex = Vec::with_capacity(64);
        put_hex(&self.hash, &mut hex);
        String::from_utf8(hex).unwrap_or_default()
    }
}

/// The SHA-256 of a line.
pub(super) fn hash(line: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, line).as_ref());
    hash
}

impl AuditChain {
    /// The log of a configuration, and the key of its digests. Makes the folder and the key if they are not there.
    pub(super) fn new(config: &AuditConfig) -> io::Result<(Self, hmac::Key)> {
        if let Some(folder) = config.path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let mut key = config.path.clone().into_os_string();
        key.push(".key");
        let (lock, key) = open_key(Path::new(&key))?;
        let chain = Self {
            path: config.path.clone(),
            max_size: config.max_size as u64,
            keep: config.keep,
            max_age: config.max_age,
            lock: Arc::new(lock),
            open: None,
            head: None,
            chunk: Vec::new(),
        };
        Ok((chain, key))
    }

    /// The last record that is written.
    pub(super) fn head(&self) -> Head {
        self.head.unwrap_or_default()
    }

    /// Appends the bodies of records, one on each line. They are on disk when this returns; in an error none of them is.
    pub(super) fn append(&mut self, bodies: &[u8]) -> io::Result<()> {
        let _locked = self.locked()?;
        let mut notes = Vec::new();
        self.catch_up(&mut notes)?;
        let outdated = self.rotate(&mut notes)?;
        let result = self.write(&notes, bodies);
        if result.is_err()
            && let Some(OpenFile { file, len, .. }) = self.open.take()
        {
            // What cannot be taken back is found next time.
            drop(file.set_len(len));
        }
        result?;
        for path in outdated {
            if let Err(why) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), error = %why, "an old file of the audit log is not removed");
            }
        }
        Ok(())
    }

    fn locked(&self) -> io::Result<Locked> {
        let start = Instant::now();
        loop {
            match self.lock.try_lock() {
                Ok(()) => return Ok(Locked(Arc::clone(&self.lock))),
                Err(TryLockError::Error(why)) => return Err(why),
                Err(TryLockError::WouldBlock) if start.elapsed() > PATIENCE => {
                    return Err(io::Error::other("another process holds the lock of the audit log"));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Finds the end of the log, where it is not what this process has left. Notes are records of what was found.
    fn catch_up(&mut self, notes: &mut Vec<u8>) -> io::Result<()> {
        let there = fs::metadata(&self.path).ok().map(|file| (file.dev(), file.ino(), file.len()));
        if self.open.as_ref().is_some_and(|open| there == Some((open.id.0, open.id.1, open.len))) {
            return Ok(());
        }
        self.open = None;
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path)?;
        let found = file.metadata()?;
        let tail = Tail::read(&file, found.len())?;
        if tail.open {
            file.write_all(b"\n")?;
        }
        if found.len() == 0
            && let Some(folder) = self.path.parent()
        {
            File::open(folder)?.sync_all()?;
        }
        if !tail.torn.is_empty() {
            let mut note = Record::begin(notes, SystemTime::now(), "line_torn");
            note.number("torn_bytes", tail.torn.len() as u64);
            note.digest("torn_digest", "sha256", &hash(&tail.torn));
            note.end();
            tracing::warn!(path = %self.path.display(), "the audit log had a torn line; it is kept, and a record says so");
        }
        let last = match tail.last {
            Some(last) => last,
            None => self.last_of_complete()?,
        };
        match self.head {
            // The chain goes on from what this process has written, so that the gap shows.
            Some(own) if last.seq < own.seq => {
                let mut note = Record::begin(notes, SystemTime::now(), "log_cut");
                note.number("found_seq", last.seq);
                note.end();
                tracing::error!(
                    path = %self.path.display(), expected = own.seq, found = last.seq,
                    "records of the audit log are gone: another program has cut or moved it"
                );
            }
            _ => self.head = Some(last),
        }
        let len = found.len() + u64::from(tail.open);
        self.open = Some(OpenFile { file, id: (found.dev(), found.ino()), len });
        Ok(())
    }

    /// The last record of the newest file that is complete.
    fn last_of_complete(&self) -> io::Result<Head> {
        let Some((_, path)) = complete_files(&self.path)?.pop() else { return Ok(Head::default()) };
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Tail::read(&file, len)?.last.unwrap_or_default())
    }

    /// Begins the next file if this one is complete. Returns the files that may be removed as soon as the record of that is
    /// written.
    fn rotate(&mut self, notes: &mut Vec<u8>) -> io::Result<Vec<PathBuf>> {
        if self.open.as_ref().is_none_or(|open| open.len < self.max_size) {
            return Ok(Vec::new());
        }
        let mut complete = self.path.clone().into_os_string();
        complete.push(format!(".{:012}", self.head().seq));
        fs::rename(&self.path, complete)?;
        self.open = None;
        self.catch_up(notes)?;
        let Head { seq, .. } = self.head();
        tracing::info!(path = %self.path.display(), seq, hash = self.head().hex(), "the audit log goes on in a new file");
        let files = complete_files(&self.path)?;
        let (surplus, now) = (files.len().saturating_sub(self.keep), SystemTime::now());
        let is_old = |path: &Path| {
            let changed = fs::metadata(path).and_then(|file| file.modified());
            self.max_age.zip(changed.ok()).is_some_and(|(age, at)| now.duration_since(at).is_ok_and(|is| is > age))
        };
        let outdated = files.into_iter().enumerate().take_while(|(at, (_, path))| *at < surplus || is_old(path));
        let (last, paths): (Vec<u64>, Vec<PathBuf>) = outdated.map(|(_, file)| file).unzip();
        if let Some(last) = last.last() {
            let mut note = Record::begin(notes, SystemTime::now(), "files_removed");
            note.number("first_seq", last + 1);
            note.end();
        }
        Ok(paths)
    }

    fn write(&mut self, notes: &[u8], bodies: &[u8]) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Err(io::Error::other("the audit log is not open")) };
        let (mut head, mut len, chunk) = (self.head.unwrap_or_default(), open.len, &mut self.chunk);
        chunk.clear();
        for body in lines(notes).chain(lines(bodies)) {
            let start = chunk.len();
            chunk.extend_from_slice(b"{\"seq\":");
            put_number(head.seq + 1, chunk);
            if head.seq == 0 {
                chunk.extend_from_slice(b",\"previous_hash\":null,");
            } else {
                chunk.extend_from_slice(b",\"previous_hash\":\"");
                put_hex(&head.hash, chunk);
                chunk.extend_from_slice(b"\",");
            }
            chunk.extend_from_slice(body);
            head = Head { seq: head.seq + 1, hash: hash(&chunk[start..chunk.len() - 1]) };
            if chunk.len() >= CHUNK {
                len += write_out(&mut open.file, chunk)?;
            }
        }
        len += write_out(&mut open.file, chunk)?;
        open.file.sync_data()?;
        (open.len, self.head) = (len, Some(head));
        Ok(())
    }
}

impl Tail {
    fn read(file: &File, len: u64) -> io::Result<Self> {
        let start = len.saturating_sub(WINDOW);
        let mut bytes = vec![0; (len - start) as usize];
        file.read_exact_at(&mut bytes, start)?;
        // The first line may not be whole.
        let first =
            if start == 0 { 0 } else { bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1) };
        let mut tail = Self { open: bytes.last().is_some_and(|byte| *byte != b'\n'), ..Self::default() };
        let mut end = bytes.len() - usize::from(bytes.last() == Some(&b'\n'));
        let whole = end;
        while end > first {
            let begin = bytes[first..end].iter().rposition(|byte| *byte == b'\n').map_or(first, |at| first + at + 1);
            let line = &bytes[begin..end];
            if let Some(entry) = AuditEntry::read(line) {
                tail.last = Some(Head { seq: entry.seq, hash: hash(line) });
                tail.torn = bytes[whole.min(end + 1)..whole].to_vec();
                return Ok(tail);
            }
            end = begin.saturating_sub(1);
        }
        if start > 0 {
            let why =
                "there is no record in its last MiB: move the file away, and its end becomes the next record's past";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        tail.torn = bytes[..whole].to_vec();
        Ok(tail)
    }
}

/// Writes a chunk, which is empty afterwards, and says how long it was.
fn write_out(file: &mut File, chunk: &mut Vec<u8>) -> io::Result<u64> {
    file.write_all(chunk)?;
    let len = chunk.len() as u64;
    chunk.clear();
    Ok(len)
}

/// Lines with their ends, found many bytes at a time.
fn lines(all: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = memchr::memchr_iter(b'\n', all).map(|end| end + 1);
    ends.scan(0, |start, end| Some(&all[std::mem::replace(start, end)..end]))
}

/// Opens the key of the digests, and makes it if it is not there.
fn open_key(path: &Path) -> io::Result<(File, hmac::Key)> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        let why = format!("others can read {}; run `chmod 600` on it", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    file.lock()?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    if text.is_empty() {
        let mut random = [0; 32];
        let none = |_| io::Error::other("the system has no random numbers for a key");
        SystemRandom::new().fill(&mut random).map_err(none)?;
        put_hex(&random, &mut text);
        text.push(b'\n');
        file.write_all(&text)?;
        file.sync_all()?;
    }
    file.unlock()?;
    Ok((file, hmac::Key::new(hmac::HMAC_SHA256, text.trim_ascii())))
}

#[cfg(test)]
mod tests;
