//! Log lines gathered, and written in batches by a thread of their own: a busy gateway does not pay one system call for
//! each call, and one whose log nobody reads goes on. What does not fit is dropped and counted.

use std::{
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tracing_subscriber::fmt::MakeWriter;

use super::{
    live::{LiveScreen, LiveView, terminal_size},
    recent,
};

/// How long a line may wait before it is written.
const PATIENCE: Duration = Duration::from_millis(100);

/// How much is written at once; as soon as so much waits it is written.
const BATCH: usize = 64 * 1024;

/// How much may wait. A line beyond it is dropped.
const MOST: usize = 1024 * 1024;

/// How long the end of the process waits for a reader that takes nothing.
const STALLED: Duration = Duration::from_secs(1);

/// A writer that gathers.
#[derive(Clone)]
pub(super) struct Buffered {
    shared: Arc<WriterShared>,
}

/// Has what is left written when it is dropped.
pub struct Flush {
    shared: Arc<WriterShared>,
}

pub(super) struct WriterShared {
    lines: Mutex<LogQueue>,
    /// Told when there is something to write.
    waiting: Condvar,
    /// Told whenever something was written.
    written: Condvar,
}

#[derive(Default)]
struct LogQueue {
    bytes: Vec<u8>,
    /// Lines that found no room since the last ones that did.
    dropped: u64,
    /// Bytes that are being written.
    busy: usize,
    over: bool,
    /// What is shown below the log.
    table: Option<Arc<Vec<String>>>,
    /// Whether that has changed since it was drawn, and whether something is drawn.
    redraw: bool,
    is_drawn: bool,
    /// Whether what is drawn is to be left where it is.
    forget: bool,
}

impl LogQueue {
    /// What the end waits for: bytes, and a table that is to be erased.
    fn left(&self) -> usize {
        self.busy + self.bytes.len() + usize::from(self.is_drawn && (self.over || self.table.is_none()))
    }
}

impl Flush {
    /// A table below this log.
    #[must_use]
    pub fn live(&self) -> LiveView {
        LiveView(Arc::clone(&self.shared))
    }
}

impl Buffered {
    /// Gathers for standard error.
    pub(super) fn stderr() -> (Self, Flush) {
        let (writer, flush) = Self::new();
        let shared = Arc::clone(&writer.shared);
        let worker = std::thread::Builder::new().name("log".into()).spawn(move || shared.run(&mut io::stderr()));
        // Without a thread there is no log; the gateway is worth more than that.
        drop(worker);
        (writer, flush)
    }

    pub(super) fn new() -> (Self, Flush) {
        let shared =
            Arc::new(WriterShared { lines: Mutex::default(), waiting: Condvar::new(), written: Condvar::new() });
        (Self { shared: Arc::clone(&shared) }, Flush { shared })
    }

    pub(super) fn shared(&self) -> Arc<WriterShared> {
        Arc::clone(&self.shared)
    }
}

impl<'a> MakeWriter<'a> for Buffered {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for Buffered {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.shared.gather(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl WriterShared {
    fn lock(&self) -> MutexGuard<'_, LogQueue> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn gather(&self, line: &[u8]) {
        let mut lines = self.lock();
        let (before, after) = (lines.bytes.len(), lines.bytes.len() + line.len());
        if after > MOST && before > 0 {
            lines.dropped += 1;
            return;
        }
        lines.bytes.extend_from_slice(line);
        if before == 0 || (before < BATCH && after >= BATCH) {
            self.waiting.notify_one();
        }
    }

    /// What is gathered, in place of writing it.
    #[cfg(test)]
    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock().bytes)
    }

    /// Shows another table below the log, or none.
    pub(super) fn show(&self, table: Option<Arc<Vec<String>>>) {
        let mut lines = self.lock();
        if lines.table != table {
            lines.table = table;
            lines.redraw = true;
            self.waiting.notify_one();
        }
    }

    /// Draws the table again; where `below`, what is drawn stays where it is.
    pub(super) fn redraw(&self, below: bool) {
        let mut lines = self.lock();
        lines.redraw = true;
        lines.forget |= below;
        self.waiting.notify_one();
    }

    /// Sleeps while there is nothing to write; otherwise writes once per [`PATIENCE`], or as soon as there is a batch.
    fn run(&self, to: &mut impl Write) {
        let mut screen = LiveScreen::default();
        let mut lines = self.lock();
        loop {
            if lines.bytes.is_empty() && !lines.redraw {
                if lines.over {
                    if lines.is_drawn {
                        drop(to.write_all(&screen.frame(b"", None, terminal_size())));
                        lines.is_drawn = false;
                        self.written.notify_all();
                    }
                    return;
                }
                lines = self.waiting.wait(lines).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if !lines.over && !lines.redraw && lines.bytes.len() < BATCH {
                (lines, _) = self.waiting.wait_timeout(lines, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            }
            let batch = Bytes::from(std::mem::take(&mut lines.bytes));
            lines.busy = batch.len();
            let dropped = std::mem::take(&mut lines.dropped);
            if std::mem::take(&mut lines.forget) {
                screen.forget();
            }
            lines.redraw = false;
            let table = lines.table.clone().filter(|_| !lines.over);
            drop(lines);
            if dropped > 0 {
                // There is room for it now, behind what came before.
                tracing::warn!(dropped, "lines of this log were dropped: whoever reads standard error was too slow");
            }
            if !batch.is_empty() {
                recent::keep(batch.clone());
            }
            if table.is_none() && !screen.is_drawn() {
                self.write_out(to, &batch);
                lines = self.lock();
                continue;
            }
            // A terminal that takes nothing costs lines, as without a table.
            drop(to.write_all(&screen.frame(&batch, table.as_ref().map(|table| &table[..]), terminal_size())));
            lines = self.lock();
            (lines.busy, lines.is_drawn) = (0, screen.is_drawn());
            self.written.notify_all();
        }
    }

    /// A log that cannot be written must not stop the gateway.
    fn write_out(&self, to: &mut impl Write, batch: &[u8]) {
        for part in batch.chunks(BATCH) {
            drop(to.write_all(part));
            self.lock().busy -= part.len();
            self.written.notify_all();
        }
    }

    /// Waits until all is written, or for as long as somebody reads; nobody reads who takes nothing for `stalled`.
    pub(super) fn flush(&self, stalled: Duration, over: bool) {
        let mut lines = self.lock();
        lines.over |= over;
        self.waiting.notify_one();
        let mut left = usize::MAX;
        let mut since = Instant::now();
        while lines.left() > 0 {
            if lines.left() < left {
                left = lines.left();
                since = Instant::now();
            }
            let Some(patience) = stalled.checked_sub(since.elapsed()) else { return };
            (lines, _) = self.written.wait_timeout(lines, patience).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        super::write_rest();
        self.shared.flush(STALLED, true);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::sync::mpsc;

    use super::*;

    /// A reader that takes a part of what is written each time it is told to.
    struct Slow {
        may: mpsc::Receiver<()>,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.may.recv().map_err(io::Error::other)?;
            self.taken.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (Buffered, Flush, mpsc::Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (writer, flush) = Buffered::new();
        let (allow, may) = mpsc::channel();
        let taken = Arc::<Mutex<Vec<u8>>>::default();
        let mut reader = Slow { may, taken: Arc::clone(&taken) };
        let shared = writer.shared();
        std::thread::spawn(move || shared.run(&mut reader));
        (writer, flush, allow, taken)
    }

    #[test]
    fn nobody_waits_for_a_reader_that_reads_nothing_and_the_rest_is_counted() {
        let (mut writer, flush, allow, taken) = slow();
        let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
        writer.write_all(&line).unwrap();
        // What is dropped before the reader takes anything would be said with what it takes.
        while writer.shared.lock().busy == 0 {
            std::thread::yield_now();
        }
        for _ in 1..4096 {
            writer.write_all(&line).unwrap();
        }
        let lines = writer.shared.lock();
        assert!(lines.bytes.len() <= MOST, "{}", lines.bytes.len());
        let kept = (lines.bytes.len() + lines.busy) / line.len();
        let dropped = usize::try_from(lines.dropped).unwrap();
        assert_eq!(kept + dropped, 4096);
        assert!(dropped > 1000, "{dropped}");
        drop(lines);
        for _ in 0..64 {
            allow.send(()).unwrap();
        }
        drop(flush);
        assert_eq!(taken.lock().unwrap().len(), kept * line.len());
    }

    #[test]
    fn what_was_logged_is_written_before_the_end() {
        let (mut writer, flush, allow, taken) = slow();
        for number in 0..100 {
            writeln!(writer, "line {number}").unwrap();
        }
        allow.send(()).unwrap();
        allow.send(()).unwrap();
        allow.send(()).unwrap();
        drop(flush);
        let taken = String::from_utf8(taken.lock().unwrap().clone()).unwrap();
        assert_eq!(taken.lines().count(), 100, "{taken}");
    }

    #[test]
    fn the_end_comes_although_nobody_reads() {
        let (mut writer, flush, _allow, taken) = slow();
        writer.write_all(b"line\n").unwrap();
        drop(flush);
        assert!(taken.lock().unwrap().is_empty());
    }
}
