//! Records that wait, and the thread that writes them: a call does not wait for a disk.

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use super::{chain::AuditChain, record::Record};
use crate::{config::AuditSync, telemetry::LogThrottle};

/// How long a record may wait before it is written.
const INTERVAL: Duration = Duration::from_millis(250);

/// How much may wait, in bytes. A record beyond it is lost, and counted.
const MOST: usize = 4 << 20;

/// As soon as so much waits it is written, in bytes. If power fails meanwhile, what is left of it is shorter than the part of
/// the file in which the last record is looked for.
const BATCH: usize = 512 * 1024;

/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// How long the end of the process waits for the disk.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Where a record is appended.
pub(super) trait Sink: Send {
    /// Appends bodies of records, all or none.
    fn append(&mut self, bodies: &[u8]) -> io::Result<()>;

    /// Called once, at the end.
    fn close(&mut self) {}
}

impl Sink for AuditChain {
    fn append(&mut self, bodies: &[u8]) -> io::Result<()> {
        Self::append(self, bodies)
    }

    /// What the log ends with is told to another one, where a cut of the end shows.
    fn close(&mut self) {
        let head = self.head();
        tracing::info!(seq = head.seq, hash = head.hex(), "the audit log is closed");
    }
}

pub(super) struct AuditQueue {
    records: Mutex<WaitingRecords>,
    /// Whether something is wrong, to be looked at with each call.
    failing: AtomicBool,
    /// Told when there is something to write.
    waiting: Condvar,
    /// Told when the thread has ended.
    ended: Condvar,
    interval: Duration,
    told: LogThrottle,
}

#[derive(Default)]
struct WaitingRecords {
    bodies: Vec<u8>,
    /// Records that found no room.
    lost: u64,
    failure: Option<String>,
    over: bool,
    ended: bool,
}

/// What is written at once.
#[derive(Default)]
struct Batch {
    bodies: Vec<u8>,
    /// How many bytes of them are records; a note on lost ones follows.
    records: usize,
    lost: u64,
}

impl Batch {
    /// Empty again, with the memory it has.
    fn clear(&mut self) {
        self.bodies.clear();
        (self.records, self.lost) = (0, 0);
    }
}

impl AuditQueue {
    fn new(sync: AuditSync) -> Self {
        let interval = match sync {
            AuditSync::Interval => INTERVAL,
            AuditSync::Each => Duration::ZERO,
        };
        Self {
            records: Mutex::default(),
            failing: AtomicBool::new(false),
            waiting: Condvar::new(),
            ended: Condvar::new(),
            interval,
            told: LogThrottle::default(),
        }
    }

    /// A queue, and the thread that empties it.
    pub(super) fn start(sync: AuditSync, sink: impl Sink + 'static) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self::new(sync));
        let shared = Arc::clone(&queue);
        std::thread::Builder::new().name("audit".into()).spawn(move || shared.run(sink))?;
        Ok(queue)
    }

    fn lock(&self) -> MutexGuard<'_, WaitingRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the body of a record.
    pub(super) fn push(&self, body: &[u8]) {
        let mut records = self.lock();
        let (before, after) = (records.bodies.len(), records.bodies.len() + body.len());
        if after > MOST {
            records.lost += 1;
            if records.failure.is_none() {
                self.fail(&mut records, "records come faster than they can be written".to_owned());
            }
            return;
        }
        records.bodies.extend_from_slice(body);
        if before == 0 || (before < BATCH && after >= BATCH) {
            self.waiting.notify_one();
        }
    }

    /// Why records cannot be written; none if they can.
    pub(super) fn failure(&self) -> Option<String> {
        self.failing.load(Ordering::Relaxed).then(|| self.lock().failure.clone()).flatten()
    }

    fn fail(&self, records: &mut WaitingRecords, why: String) {
        if records.failure.is_none() || self.told.is_due() {
            tracing::error!(error = why, "the audit log cannot be written");
        }
        records.failure = Some(why);
        self.failing.store(true, Ordering::Relaxed);
    }

    /// Writes what waits until it is told that this is all.
    fn run(&self, mut sink: impl Sink) {
        let (mut batch, mut last_try) = (Batch::default(), false);
        while self.next_batch(&mut batch) {
            match sink.append(&batch.bodies) {
                Ok(()) => {
                    batch.clear();
                    let mut records = self.lock();
                    if records.lost == 0 && records.failure.take().is_some() {
                        tracing::info!("the audit log is written again");
                        self.failing.store(false, Ordering::Relaxed);
                    }
                }
                Err(why) => {
                    let mut records = self.lock();
                    self.fail(&mut records, why.to_string());
                    // At the end there is one more try after the one that was under way.
                    if records.over && std::mem::replace(&mut last_try, true) {
                        tracing::error!(error = %why, "the last records of the audit log are lost");
                        break;
                    }
                    drop(self.waiting.wait_timeout_while(records, PAUSE, |records| !records.over));
                }
            }
        }
        sink.close();
        self.lock().ended = true;
        self.ended.notify_all();
    }

    /// Waits for the next batch, or adds to the one that could not be written what was lost meanwhile. False at the end.
    fn next_batch(&self, batch: &mut Batch) -> bool {
        let mut records = self.lock();
        if batch.bodies.is_empty() {
            let idle = |records: &mut WaitingRecords| records.bodies.is_empty() && records.lost == 0 && !records.over;
            records = self.waiting.wait_while(records, idle).unwrap_or_else(PoisonError::into_inner);
            let gathering = |records: &mut WaitingRecords| records.bodies.len() < BATCH && !records.over;
            let waited = self.waiting.wait_timeout_while(records, self.interval, gathering);
            (records, _) = waited.unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut batch.bodies, &mut records.bodies);
            batch.records = batch.bodies.len();
        }
        batch.lost += std::mem::take(&mut records.lost);
        drop(records);
        if batch.lost > 0 {
            // One note says it all, however often this is tried.
            batch.bodies.truncate(batch.records);
            let mut note = Record::begin(&mut batch.bodies, SystemTime::now(), "records_lost");
            note.number("count", batch.lost);
            note.end();
        }
        !batch.bodies.is_empty()
    }

    /// Has everything written that waits, and ends the thread.
    pub(super) fn close(&self) {
        let mut records = self.lock();
        records.over = true;
        self.waiting.notify_one();
        drop(self.ended.wait_timeout_while(records, LAST_WRITE, |records| !records.ended));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::sync::mpsc;

    use super::*;

    /// A disk that does as it is told.
    struct Told {
        may: mpsc::Receiver<io::Result<()>>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Sink for Told {
        fn append(&mut self, bodies: &[u8]) -> io::Result<()> {
            self.may.recv().unwrap_or(Ok(()))?;
            self.written.lock().unwrap().extend_from_slice(bodies);
            Ok(())
        }
    }

    type Tell = mpsc::Sender<io::Result<()>>;

    fn told() -> (Arc<AuditQueue>, Tell, Arc<Mutex<Vec<u8>>>) {
        let (tell, may) = mpsc::channel();
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let sink = Told { may, written: Arc::clone(&written) };
        (AuditQueue::start(AuditSync::Each, sink).unwrap(), tell, written)
    }

    #[test]
    fn what_cannot_be_written_is_written_later() {
        let (queue, tell, written) = told();
        queue.push(b"one\n");
        tell.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        while queue.failure().is_none() {
            std::thread::yield_now();
        }
        queue.push(b"two\n");
        drop(tell);
        queue.close();
        assert_eq!(*written.lock().unwrap(), b"one\ntwo\n");
        assert_eq!(queue.failure(), None);
    }

    #[test]
    fn what_is_lost_while_a_batch_waits_makes_one_note() {
        let (queue, mut batch) = (AuditQueue::new(AuditSync::Each), Batch::default());
        queue.push(b"one\n");
        for lost in [3, 2, 0] {
            queue.lock().lost = lost;
            assert!(queue.next_batch(&mut batch));
        }
        let text = String::from_utf8(batch.bodies).unwrap();
        assert!(text.starts_with("one\n") && text.ends_with("\"count\":5}\n"), "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    #[test]
    fn what_finds_no_room_is_counted_in_a_record() {
        let (queue, tell, written) = told();
        let body = [&[b'x'; 65_535][..], b"\n"].concat();
        let pushed = 3 * MOST / body.len();
        for _ in 0..pushed {
            queue.push(&body);
        }
        assert!(queue.failure().is_some_and(|why| why.contains("faster")));
        drop(tell);
        queue.close();
        let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let notes: Vec<&str> = written.lines().filter(|line| line.contains("records_lost")).collect();
        let count =
            |note: &&str| note.rsplit_once("\"count\":").unwrap().1.trim_end_matches('}').parse::<usize>().unwrap();
        let lost: usize = notes.iter().map(count).sum();
        assert!(lost > 0);
        assert_eq!(written.lines().count() - notes.len() + lost, pushed);
        assert_eq!(queue.failure(), None);
    }
}
