//! Log lines gathered and written in batches, so that a busy gateway does not pay one system call for each call.

use std::{
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use tracing_subscriber::fmt::MakeWriter;

/// How long a line may wait before it is written.
const PATIENCE: Duration = Duration::from_millis(100);

/// How much may wait; whoever fills it writes it out.
const BATCH: usize = 64 * 1024;

/// A writer that gathers.
#[derive(Clone)]
pub(super) struct Buffered {
    shared: Arc<Shared>,
}

/// Writes what is left when it is dropped.
pub struct Flush {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

struct Shared {
    lines: Mutex<Lines>,
    waiting: Condvar,
}

#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    over: bool,
}

impl Buffered {
    /// Gathers for standard error.
    pub(super) fn stderr() -> (Self, Flush) {
        let shared = Arc::new(Shared { lines: Mutex::default(), waiting: Condvar::new() });
        let worker = std::thread::Builder::new().name("log".into()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        });
        (Self { shared: Arc::clone(&shared) }, Flush { shared, worker: worker.ok() })
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
        let mut lines = self.shared.lock();
        if lines.bytes.is_empty() {
            self.shared.waiting.notify_one();
        }
        lines.bytes.extend_from_slice(line);
        if lines.bytes.len() >= BATCH || lines.over {
            write_out(&mut lines.bytes);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps while there is nothing to write; otherwise writes once per [`PATIENCE`].
    fn run(&self) {
        let mut lines = self.lock();
        while !lines.over {
            if lines.bytes.is_empty() {
                lines = self.waiting.wait(lines).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            (lines, _) = self.waiting.wait_timeout(lines, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            let mut batch = std::mem::take(&mut lines.bytes);
            drop(lines);
            write_out(&mut batch);
            lines = self.lock();
            if lines.bytes.is_empty() {
                lines.bytes = batch;
            }
        }
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.waiting.notify_one();
        if let Some(worker) = self.worker.take() {
            // A worker that panicked has nothing more to say.
            drop(worker.join());
        }
        write_out(&mut self.shared.lock().bytes);
    }
}

/// A log that cannot be written must not stop the gateway.
fn write_out(bytes: &mut Vec<u8>) {
    drop(io::stderr().write_all(bytes));
    bytes.clear();
}
