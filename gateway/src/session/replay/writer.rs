//! Who writes on a stream that may be resumed: gives each event its id and keeps what goes out.

use std::sync::{Arc, atomic::Ordering};

use bytes::{Bytes, BytesMut};
use weir_mcp::{
    Message,
    sse::{self, Event},
};

use super::{MAX_LEFT, OWN_STREAM, ReplayStreams, event_id, log::ReplayLog};

/// How long a client is asked to wait before it comes back, in milliseconds.
const RETRY: u64 = 1000;

/// The first version whose clients expect an event without data.
const PRIMED_FROM: &str = "2025-11-25";

/// The writer of one stream. The stream is at its end when this is dropped, unless it is the session's own.
pub struct ReplayWriter {
    streams: Arc<ReplayStreams>,
    stream: u32,
    primes: bool,
    /// None until something goes out that is worth keeping.
    log: Option<Arc<ReplayLog>>,
    turn: u64,
    is_own: bool,
}

/// A call that goes on without a client, counted until this is dropped.
pub struct Left(Arc<ReplayStreams>);

impl ReplayWriter {
    /// For the answer to a request of a client of this version. Nothing is kept before it [begins](Self::begin).
    pub fn answer(streams: &Arc<ReplayStreams>, version: &str) -> Self {
        let (stream, primes) = (streams.new_number(), version >= PRIMED_FROM);
        Self { streams: Arc::clone(streams), stream, primes, log: None, turn: 0, is_own: false }
    }

    /// For the session's own stream, which goes on where it ended last.
    pub fn own(streams: &Arc<ReplayStreams>, version: &str) -> Self {
        let (log, stream) = (Arc::clone(&streams.own), streams.first);
        let (turn, primes) = (log.turn(), version >= PRIMED_FROM);
        Self { streams: Arc::clone(streams), stream, primes, log: Some(log), turn, is_own: true }
    }

    /// Begins to keep the stream; gives the event that lets the client come back for it, where it knows such events.
    /// It carries nothing but an id and when to come back (MCP 2025-11-25, basic/transports).
    ///
    /// `fallback` is what a client gets that comes back for the answer at another process when this one is gone.
    pub fn begin(&mut self, fallback: impl FnOnce() -> Option<Bytes>) -> Bytes {
        if self.log.is_none() {
            let log = self.streams.add(self.stream);
            self.turn = log.turn();
            if let Some(fallback) = fallback() {
                log.set_fallback(fallback);
            }
            self.log = Some(log);
        }
        let mut out = BytesMut::new();
        if self.primes {
            // An answer begins here; the session's own stream goes on.
            let last = self.log.as_ref().filter(|_| self.is_own).map_or(0, |log| log.next() - 1);
            let id = Some(event_id(self.stream, last));
            sse::encode(&Event { id, retry: Some(RETRY), ..Event::default() }, &mut out);
        }
        out.freeze()
    }

    /// Keeps a message of a stream that has [begun](Self::begin), and encodes it with its id.
    pub fn write(&mut self, data: Bytes, out: &mut BytesMut) {
        let Some(log) = &self.log else { return sse::encode(&Event::message(data), out) };
        let id = Some(event_id(self.stream, log.next()));
        log.push(&data);
        while self.is_own && log.bytes() > OWN_STREAM && log.drop_first() {}
        self.streams.bound();
        sse::encode(&Event { id, ..Event::message(data) }, out);
    }

    /// Keeps a message that goes out only to a client that comes back.
    pub fn instead(&mut self, data: &[u8]) {
        if let Some(log) = &self.log {
            log.push(data);
            self.streams.bound();
        }
    }

    /// Whether the answer is kept, so that who comes back can have it.
    pub fn is_whole(&self) -> bool {
        self.log.as_ref().is_none_or(|log| log.is_whole())
    }

    /// Whether the last of what is kept answers a request.
    pub fn ends_with_answer(&self) -> bool {
        let last = self.log.as_ref().and_then(|log| log.last()).and_then(|data| Message::parse(data).ok());
        last.is_some_and(|message| message.is_answer())
    }

    /// Whether its client knows events that carry nothing but an id.
    pub const fn primes(&self) -> bool {
        self.primes
    }

    /// Whether the client reads on another connection by now.
    pub fn is_taken_over(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.turn() != self.turn)
    }

    /// Counts a call whose client is gone; none if too many of this session go on like that.
    pub fn leave(&self) -> Option<Left> {
        // What is said of nobody's asking waits in the queue.
        if self.is_own || self.log.is_none() {
            return None;
        }
        let left = Left(Arc::clone(&self.streams));
        let before = self.streams.left.fetch_add(1, Ordering::Relaxed);
        (before < MAX_LEFT).then_some(left)
    }
}

impl Drop for ReplayWriter {
    fn drop(&mut self) {
        if let Some(log) = self.log.as_ref().filter(|_| !self.is_own) {
            log.end();
        }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        self.0.left.fetch_sub(1, Ordering::Relaxed);
    }
}
