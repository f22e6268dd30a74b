//! Who writes on a stream that may be resumed: gives each event its id and keeps what goes out.

use std::sync::{Arc, atomic::Ordering};

use bytes::{Bytes, BytesMut};
use weir_mcp::{Message, message::Kind, sse::Stamper};

use super::{MAX_LEFT, OWN_STREAM, ReplayStreams, log::ReplayLog, name};

/// How long a client is asked to wait before it comes back, in milliseconds.
const RETRY: u64 = 1000;

/// The first version whose clients expect an event without data.
const PRIMED_FROM: &str = "2025-11-25";

/// The writer of one stream. The stream is at its end when this is dropped, unless it is the session's own.
pub struct ReplayWriter {
    streams: Arc<ReplayStreams>,
    stamper: Stamper,
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
    #[must_use]
    pub fn answer(streams: &Arc<ReplayStreams>, version: &str) -> Self {
        let stream = streams.new_number();
        let stamper = Stamper::new(name(stream), 1);
        let primes = version >= PRIMED_FROM;
        Self { streams: Arc::clone(streams), stamper, stream, primes, log: None, turn: 0, is_own: false }
    }

    /// For the session's own stream, which goes on where it ended last.
    #[must_use]
    pub fn own(streams: &Arc<ReplayStreams>, version: &str) -> Self {
        let (log, stream) = (Arc::clone(&streams.own), streams.first);
        let stamper = Stamper::new(name(stream), log.next());
        let (turn, primes) = (log.turn(), version >= PRIMED_FROM);
        Self { streams: Arc::clone(streams), stamper, stream, primes, log: Some(log), turn, is_own: true }
    }

    /// Gives events their ids; nothing comes of what carries no data. What is [begun](Self::begin) is kept.
    pub fn stamp(&mut self, bytes: &[u8]) -> Bytes {
        let mut out = BytesMut::new();
        let begun = self.stamper.stamp(bytes, &mut out);
        let out = out.freeze();
        if !out.is_empty() {
            self.keep(&out, begun);
        }
        out
    }

    /// Begins to keep the stream; gives what goes out first: `stamped` behind an event that lets the client come back
    /// for it, where the client knows such events.
    pub fn begin(&mut self, stamped: &Bytes) -> Bytes {
        if self.log.is_none() {
            let log = self.streams.add(self.stream);
            self.turn = log.turn();
            self.log = Some(log);
            if !stamped.is_empty() {
                self.keep(stamped, true);
            }
        }
        if !self.primes {
            return stamped.clone();
        }
        let place = if self.is_own { self.stamper.next() - 1 } else { 0 };
        let mut out = BytesMut::new();
        self.stamper.prime(place, RETRY, &mut out);
        out.extend_from_slice(stamped);
        out.freeze()
    }

    /// Puts this in place of an event that will never be whole; it goes out only to who comes back.
    pub fn instead(&mut self, bytes: &[u8]) {
        self.stamper.abandon();
        if let Some(log) = &self.log {
            log.push(Bytes::new(), false, self.stamper.next());
        }
        self.stamp(bytes);
    }

    /// Whether the answer is kept from its start to its end, so that who comes back can have it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.log.as_ref().is_none_or(|log| log.is_whole())
    }

    /// Whether the last of what is kept answers a request.
    #[must_use]
    pub fn ends_with_answer(&self) -> bool {
        let last = self.log.as_ref().and_then(|log| log.last_data()).and_then(|data| Message::parse(data).ok());
        last.is_some_and(|message| matches!(message.kind(), Kind::Response | Kind::Error))
    }

    /// Whether its client knows events that carry nothing but an id.
    #[must_use]
    pub const fn primes(&self) -> bool {
        self.primes
    }

    /// Whether what went out ends with an event.
    #[must_use]
    pub fn is_between_events(&self) -> bool {
        self.stamper.is_between_events()
    }

    /// Whether the client reads on another connection by now.
    #[must_use]
    pub fn is_taken_over(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.turn() != self.turn)
    }

    /// Counts a call whose client is gone; none if too many of this session go on like that.
    #[must_use]
    pub fn leave(&self) -> Option<Left> {
        // What is said of nobody's asking waits in the queue.
        if self.is_own || self.log.is_none() {
            return None;
        }
        let left = Left(Arc::clone(&self.streams));
        let before = self.streams.left.fetch_add(1, Ordering::Relaxed);
        (before < MAX_LEFT).then_some(left)
    }

    fn keep(&self, bytes: &Bytes, begun: bool) {
        let Some(log) = &self.log else { return };
        log.push(bytes.clone(), begun, self.stamper.next());
        while self.is_own && log.bytes() > OWN_STREAM && log.drop_first() {}
        self.streams.bound();
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
