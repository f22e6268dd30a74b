#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::os::unix::fs::{PermissionsExt, symlink};

use super::super::{tail, verify, verify::Anchor};
use super::*;
use crate::config::{AuditArguments, AuditSync};

/// A log in a folder of its own.
struct Log {
    _folder: Folder,
    config: AuditConfig,
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

impl Log {
    fn new(max_size: usize, keep: usize) -> Self {
        let mut random = [0; 8];
        SystemRandom::new().fill(&mut random).unwrap();
        let folder = std::env::temp_dir().join(format!("weir-audit-{:x}", u64::from_be_bytes(random)));
        let config = AuditConfig {
            path: folder.join("log/audit.jsonl"),
            max_size,
            keep,
            max_age: None,
            sync: AuditSync::Each,
            arguments: AuditArguments::Digest,
            refuse: true,
            otlp: None,
        };
        Self { _folder: Folder(folder), config }
    }

    fn open(&self) -> AuditChain {
        AuditChain::new(&self.config).unwrap().0
    }

    /// A log of so many records, each in a batch of its own.
    fn of(records: usize, max_size: usize, keep: usize) -> Self {
        let log = Self::new(max_size, keep);
        let mut chain = log.open();
        for number in 0..records {
            chain.append(&body(number)).unwrap();
        }
        log
    }

    fn faults(&self) -> Vec<String> {
        self.faults_with(None)
    }

    fn faults_with(&self, anchor: Option<&Anchor>) -> Vec<String> {
        let report = verify(&self.config.path, anchor).unwrap();
        report.faults.iter().map(|fault| fault.to_string().rsplit_once("/log/").unwrap().1.to_owned()).collect()
    }

    fn read(&self) -> String {
        fs::read_to_string(&self.config.path).unwrap()
    }

    fn write(&self, text: &str) {
        fs::write(&self.config.path, text).unwrap();
    }
}

fn body(number: usize) -> Vec<u8> {
    let mut body = Vec::new();
    let mut record = Record::begin(&mut body, SystemTime::now(), "call");
    record.number("number", number as u64);
    record.end();
    body
}

/// Each of these is a line of the log that somebody has in hand.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

#[test]
fn whatever_is_done_to_a_record_shows() {
    let log = Log::of(5, 1 << 20, 9);
    assert_eq!(log.faults(), [""; 0]);
    let text = log.read();
    let all = lines(&text);
    let edited = text.replace("\"number\":2", "\"number\":9");
    let deleted = [all[0], all[1], all[3], all[4]].concat();
    let swapped = [all[0], all[2], all[1], all[3], all[4]].concat();
    let inserted = [all[0], all[1], all[1], all[2], all[3], all[4]].concat();
    let headless = all[1..].concat();
    let scribbled = [all[0], "mine\n", all[1], all[2], all[3], all[4]].concat();
    for (text, fault) in [
        (edited, "audit.jsonl:4: record 4 does not follow"),
        (deleted, "audit.jsonl:3: record 4 follows record 2"),
        (swapped, "audit.jsonl:2: record 3 follows record 1"),
        (inserted, "audit.jsonl:3: record 2 follows record 2"),
        (headless, "audit.jsonl:1: the log begins with record 2"),
        (scribbled, "audit.jsonl:3: the 1 lines before it are no records"),
    ] {
        log.write(&text);
        let faults = log.faults();
        assert!(faults.first().is_some_and(|first| first.starts_with(fault)), "{fault}: {faults:?}");
    }
}

#[test]
fn a_batch_of_several_chunks_is_one_chain() {
    let log = Log::new(1 << 20, 9);
    let mut chain = log.open();
    for batch in [0..2000, 2000..2001] {
        chain.append(&batch.flat_map(body).collect::<Vec<u8>>()).unwrap();
        assert_eq!(chain.open.as_ref().unwrap().len, fs::metadata(&log.config.path).unwrap().len());
    }
    let text = log.read();
    assert!(text.len() > 4 * CHUNK && lines(&text).len() == 2001, "{} bytes", text.len());
    assert_eq!(log.faults(), [""; 0]);
}

#[test]
fn a_cut_end_shows_against_an_anchor() {
    let log = Log::of(5, 1 << 20, 9);
    let anchor: Anchor = verify(&log.config.path, None).unwrap().last.hex().parse().unwrap();
    assert_eq!(log.faults_with(Some(&anchor)), [""; 0]);
    let text = log.read();
    log.write(&lines(&text)[..4].concat());
    assert_eq!(log.faults(), [""; 0], "nothing within shows it");
    assert!(log.faults_with(Some(&anchor))[0].contains("no record has the hash"));
}

#[test]
fn a_chain_goes_on_over_files_and_processes_and_old_files_are_removed_openly() {
    let log = Log::of(10, 300, 3);
    for number in 10..20 {
        log.open().append(&body(number)).unwrap();
    }
    let files = complete_files(&log.config.path).unwrap();
    assert_eq!(files.len(), 3, "{files:?}");
    let report = verify(&log.config.path, None).unwrap();
    assert_eq!(log.faults(), [""; 0]);
    assert!(report.first > 1 && report.last.seq > 20, "{report:?}");
    // The last record that was removed is named, so one more shows.
    fs::remove_file(&files[0].1).unwrap();
    assert!(log.faults()[0].contains("those before it are missing"));

    let (last, _) = tail(&log.config.path, 5).unwrap();
    let seqs: Vec<u64> = last.iter().map(|line| AuditEntry::read(line).unwrap().seq).collect();
    assert_eq!(seqs, (report.last.seq - 4..=report.last.seq).collect::<Vec<_>>());
}

#[test]
fn two_processes_append_to_one_chain() {
    let log = Log::new(2000, 99);
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let mut chain = log.open();
            std::thread::spawn(move || (0..25).for_each(|number| chain.append(&body(number)).unwrap()))
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert_eq!(log.faults(), [""; 0]);
    assert_eq!(verify(&log.config.path, None).unwrap().last.seq, 100);
}

#[test]
fn a_torn_line_is_kept_and_told_of() {
    let whole = Log::of(3, 1 << 20, 9).read();
    for cut in 1..lines(&whole)[2].len() {
        let log = Log::of(0, 1 << 20, 9);
        drop(log.open());
        log.write(&whole[..whole.len() - cut]);
        log.open().append(&body(7)).unwrap();
        let (report, text) = (verify(&log.config.path, None).unwrap(), log.read());
        assert_eq!(log.faults(), [""; 0], "{text}");
        assert!(text.starts_with(&whole[..whole.len() - cut]), "what was there is there");
        // Without its line break alone it is whole.
        assert_eq!(report.torn, u64::from(cut > 1), "{cut}: {text}");
        if cut > 1 {
            let all = lines(&text);
            let edited = [all[0], all[1], "{\n", all[3], all[4]].concat();
            let edited = if all[2] == "{\n" { edited.replacen("{\n", "[\n", 1) } else { edited };
            log.write(&edited);
            assert_ne!(log.faults(), [""; 0], "{edited}");
        }
    }
}

#[test]
fn nothing_of_a_batch_is_there_that_the_disk_has_refused() {
    let log = Log::new(1 << 20, 9);
    let mut chain = log.open();
    symlink("/dev/full", &log.config.path).unwrap();
    let why = chain.append(&body(1)).unwrap_err();
    assert_eq!(why.kind(), io::ErrorKind::StorageFull);
    fs::remove_file(&log.config.path).unwrap();
    chain.append(&body(1)).unwrap();
    assert_eq!(log.faults(), [""; 0]);
    assert_eq!(chain.head().seq, 1);
}

#[test]
fn a_log_that_is_cut_while_it_is_written_shows_it() {
    let log = Log::new(1 << 20, 9);
    let mut chain = log.open();
    (0..4).for_each(|number| chain.append(&body(number)).unwrap());
    let text = log.read();
    log.write(&lines(&text)[..2].concat());
    chain.append(&body(4)).unwrap();
    assert!(log.read().contains("\"event_type\":\"log_cut\",\"found_seq\":2}"));
    assert_eq!(log.faults(), ["audit.jsonl:3: record 5 follows record 2"]);
}

#[test]
fn the_key_is_the_owners_alone_and_is_kept() {
    let log = Log::new(1 << 20, 9);
    let sign = |key: &hmac::Key| hmac::sign(key, b"{}").as_ref().to_vec();
    let (_, key) = AuditChain::new(&log.config).unwrap();
    let (_, again) = AuditChain::new(&log.config).unwrap();
    assert_eq!(sign(&key), sign(&again));
    let path = log.config.path.with_file_name("audit.jsonl.key");
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    assert!(AuditChain::new(&log.config).err().unwrap().to_string().contains("chmod 600"));
    mode(0o600);
    fs::write(&path, "").unwrap();
    assert_ne!(sign(&AuditChain::new(&log.config).unwrap().1), sign(&key));
}
