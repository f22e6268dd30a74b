//! Messages on their way out, one for each line.

use std::io;

use bytes::Bytes;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt, BufWriter},
    sync::mpsc,
};

/// How many messages may wait to be written; whoever has one more waits.
const WAITING: usize = 16;

/// Where messages are left to be written. Cheap to clone.
#[derive(Clone)]
pub(super) struct StdioWriter(mpsc::Sender<Bytes>);

/// Room for one message.
pub(super) struct OutputSlot<'o>(mpsc::Permit<'o, Bytes>);

/// What waits to be written.
pub(super) struct WaitingOutput(mpsc::Receiver<Bytes>);

/// The two ends.
pub(super) fn channel() -> (StdioWriter, WaitingOutput) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (StdioWriter(sender), WaitingOutput(receiver))
}

impl StdioWriter {
    /// Leaves one message, which has no line break in it, once there is room. Cancel-safe: it is left or it is not.
    pub(super) async fn say(&self, line: Bytes) {
        if let Some(slot) = self.slot().await {
            slot.say(line);
        }
    }

    /// Room for a message that is yet to be gathered, so that no more is gathered than may wait; none if nothing is
    /// written any more.
    pub(super) async fn slot(&self) -> Option<OutputSlot<'_>> {
        self.0.reserve().await.ok().map(OutputSlot)
    }
}

impl OutputSlot<'_> {
    /// Fills it.
    pub(super) fn say(self, line: Bytes) {
        self.0.send(line);
    }
}

/// Writes messages until nobody can leave one any more.
///
/// # Errors
///
/// When the output takes no more.
pub(super) async fn write(to: impl AsyncWrite + Unpin, mut waiting: WaitingOutput) -> io::Result<()> {
    let mut to = BufWriter::new(to);
    let mut lines = Vec::with_capacity(WAITING);
    while waiting.0.recv_many(&mut lines, WAITING).await > 0 {
        for line in lines.drain(..) {
            to.write_all(&line).await?;
            to.write_all(b"\n").await?;
        }
        to.flush().await?;
    }
    Ok(())
}
