//! Lines on their way to the process: in order, bounded in bytes, each exactly one line.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use weir_mcp::message::one_line;

/// Bytes that may wait to be written, each line with [`OVERHEAD`]. A longer message waits until it has the queue for itself.
const MAX_BYTES: u32 = 16 * 1024 * 1024;

/// Bytes of Weir's own answers that may wait. A process that asks and does not read could have a million of them wait
/// otherwise.
const MAX_ANSWERS: u32 = 256 * 1024;

/// What a line takes beside its bytes.
const OVERHEAD: u32 = 128;

/// The process takes no more lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed;

/// The end where lines are put in.
pub(super) struct WriteQueue {
    lines: mpsc::UnboundedSender<QueuedLine>,
    room: Arc<Semaphore>,
    answers: Arc<Semaphore>,
}

/// The end from which they are written.
pub(super) struct QueueReader {
    lines: mpsc::UnboundedReceiver<QueuedLine>,
    room: Arc<Semaphore>,
}

struct QueuedLine {
    bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

impl WriteQueue {
    pub(super) fn new() -> (Self, QueueReader) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(MAX_BYTES as usize));
        let answers = Arc::new(Semaphore::new(MAX_ANSWERS as usize));
        (Self { lines: sender, room: Arc::clone(&room), answers }, QueueReader { lines: receiver, room })
    }

    /// Waits for room and puts the message in. Nothing is put in if the caller gives up while it waits.
    pub(super) async fn send(&self, message: Bytes) -> Result<(), Closed> {
        let bytes = one_line(&message);
        let size = size(&bytes).min(MAX_BYTES);
        let room = Arc::clone(&self.room).acquire_many_owned(size).await.map_err(|_| Closed)?;
        self.lines.send(QueuedLine { bytes, _room: Some(room) }).map_err(|_| Closed)
    }

    /// Puts in a short message without waiting: a cancellation, of which each request has one at most.
    pub(super) fn send_now(&self, message: Bytes) {
        // A process that is gone needs no cancellation.
        let _ = self.lines.send(QueuedLine { bytes: message, _room: None });
    }

    /// Puts in an answer of Weir's own without waiting; `false` if there is no room for it.
    pub(super) fn offer(&self, message: Bytes) -> bool {
        let Ok(room) = Arc::clone(&self.answers).try_acquire_many_owned(size(&message)) else { return false };
        self.lines.send(QueuedLine { bytes: message, _room: Some(room) }).is_ok()
    }

    /// Refuses everything from now on.
    pub(super) fn close(&self) {
        self.room.close();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.room.is_closed()
    }
}

/// What a line takes while it waits.
fn size(line: &Bytes) -> u32 {
    u32::try_from(line.len()).unwrap_or(u32::MAX).saturating_add(OVERHEAD)
}

impl QueueReader {
    /// The next message to write, without its line end; `None` when nothing can come any more.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        self.lines.recv().await.map(|line| line.bytes)
    }
}

impl Drop for QueueReader {
    fn drop(&mut self) {
        self.room.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_that_nobody_reads_take_little_and_leave_room_for_requests() {
        let (queue, mut reader) = WriteQueue::new();
        let answer = || Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        let taken = (0..1_000_000).take_while(|_| queue.offer(answer())).count();
        assert!((1000..3000).contains(&taken), "{taken} answers wait");
        assert_eq!(queue.send(Bytes::from_static(b"{}")).await, Ok(()));
        assert_eq!(reader.next().await, Some(answer()));
        assert!(queue.offer(answer()), "there is room again");
    }
}
