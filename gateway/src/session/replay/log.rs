//! What was written on one stream.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;
use weir_mcp::sse::{self, Decoder};

use super::{ReplayMemory, ReplayUse, lock, parse};

/// What a chunk takes beside its bytes.
const OVERHEAD: usize = 64;

/// One stream, as far as it is kept.
pub(super) struct ReplayLog {
    pub(super) stream: u32,
    state: Mutex<LogState>,
    changed: Notify,
    memory: Arc<ReplayMemory>,
    /// What all streams of the session and of its principal hold.
    used: ReplayUse,
}

#[derive(Default)]
struct LogState {
    /// As they were written. An empty one stands where an event was begun that will never be whole.
    chunks: VecDeque<Bytes>,
    /// How many came before those.
    dropped: u64,
    bytes: usize,
    /// The chunk in which the last event begins.
    last: u64,
    /// How often a reader has taken over from the one before.
    turn: u64,
    /// The number of the next event.
    next: u64,
    ended: Option<Instant>,
    forgotten: bool,
}

/// The rest of a stream for a client that has come back: what it missed, and what is still to come.
pub struct Replay {
    log: Arc<ReplayLog>,
    turn: u64,
    at: u64,
    after: u64,
    decoder: Decoder,
    out: BytesMut,
}

enum LogRead {
    Chunk(Bytes),
    Nothing,
    End,
}

impl ReplayLog {
    pub(super) fn new(stream: u32, memory: &Arc<ReplayMemory>, used: &ReplayUse) -> Self {
        let state = LogState { next: 1, ..LogState::default() };
        Self {
            stream,
            state: Mutex::new(state),
            changed: Notify::new(),
            memory: Arc::clone(memory),
            used: used.clone(),
        }
    }

    /// Adds what is written; `begun` if an event begins in it, `next` is the number of the one after.
    pub(super) fn push(&self, chunk: Bytes, begun: bool, next: u64) {
        let mut state = lock(&self.state);
        if state.forgotten {
            return;
        }
        let size = chunk.len() + OVERHEAD;
        for used in [&*self.used.session, &self.used.principal, &self.memory.used] {
            used.fetch_add(size, Ordering::Relaxed);
        }
        if begun {
            state.last = state.dropped + state.chunks.len() as u64;
        }
        state.next = next;
        state.bytes += size;
        state.chunks.push_back(chunk);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Drops the oldest chunk; false if there is none.
    pub(super) fn drop_first(&self) -> bool {
        let mut state = lock(&self.state);
        let Some(chunk) = state.chunks.pop_front() else { return false };
        state.dropped += 1;
        let size = chunk.len() + OVERHEAD;
        state.bytes -= size;
        drop(state);
        self.uncount(size);
        true
    }

    /// Keeps nothing any more: nobody will find it.
    pub(super) fn forget(&self) {
        lock(&self.state).forgotten = true;
        while self.drop_first() {}
    }

    pub(super) fn bytes(&self) -> usize {
        lock(&self.state).bytes
    }

    pub(super) fn next(&self) -> u64 {
        lock(&self.state).next
    }

    /// The data of the last event that is kept whole.
    pub(super) fn last_data(&self) -> Option<Bytes> {
        let mut decoder = Decoder::new(usize::MAX);
        let state = lock(&self.state);
        let from = usize::try_from(state.last.checked_sub(state.dropped)?).ok()?;
        state.chunks.iter().skip(from).for_each(|chunk| decoder.feed(chunk));
        drop(state);
        std::iter::from_fn(|| decoder.next_event().ok().flatten()).last().map(|event| event.data)
    }

    /// Whether the event that began last is kept from its start.
    pub(super) fn is_whole(&self) -> bool {
        let state = lock(&self.state);
        state.dropped <= state.last
    }

    pub(super) fn end(&self) {
        lock(&self.state).ended.get_or_insert_with(Instant::now);
        self.changed.notify_waiters();
    }

    pub(super) fn has_ended(&self) -> bool {
        lock(&self.state).ended.is_some()
    }

    pub(super) fn ended_before(&self, age: Duration) -> bool {
        lock(&self.state).ended.is_some_and(|ended| ended.elapsed() >= age)
    }

    /// How often a reader has taken over.
    pub(super) fn turn(&self) -> u64 {
        lock(&self.state).turn
    }

    /// The chunk at a place, which is moved to the next one.
    fn read(&self, turn: u64, at: &mut u64) -> LogRead {
        let state = lock(&self.state);
        if state.turn != turn {
            return LogRead::End;
        }
        if *at < state.dropped {
            *at = state.dropped;
            return LogRead::Chunk(Bytes::new());
        }
        let index = usize::try_from(*at - state.dropped).unwrap_or(usize::MAX);
        match state.chunks.get(index) {
            Some(chunk) => {
                *at += 1;
                LogRead::Chunk(chunk.clone())
            }
            None if state.ended.is_some() => LogRead::End,
            None => LogRead::Nothing,
        }
    }

    fn uncount(&self, bytes: usize) {
        for used in [&*self.used.session, &self.used.principal, &self.memory.used] {
            used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for ReplayLog {
    fn drop(&mut self) {
        let bytes = self.bytes();
        self.uncount(bytes);
    }
}

impl Replay {
    /// Reads after a place. Whoever read this stream before reads no further.
    pub(super) fn new(log: Arc<ReplayLog>, after: u64) -> Self {
        let turn = {
            let mut state = lock(&log.state);
            state.turn += 1;
            state.turn
        };
        log.changed.notify_waiters();
        // What does not fit was never kept, so the bound is no concern here.
        Self { log, turn, at: 0, after, decoder: Decoder::new(usize::MAX), out: BytesMut::new() }
    }

    /// The next event; none at the end of the stream, or when another reader has taken over. Cancel-safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.decoded() {
                return Some(event);
            }
            let log = Arc::clone(&self.log);
            let mut changed = pin!(log.changed.notified());
            changed.as_mut().enable();
            match self.log.read(self.turn, &mut self.at) {
                LogRead::Chunk(chunk) => self.feed(&chunk),
                LogRead::Nothing => changed.await,
                LogRead::End => return None,
            }
        }
    }

    /// Whether the stream is at its end and the client has all of it that is kept.
    #[must_use]
    pub fn is_over(&self) -> bool {
        if !self.log.has_ended() {
            return false;
        }
        let mut look = Self {
            at: 0,
            decoder: Decoder::new(usize::MAX),
            out: BytesMut::new(),
            log: Arc::clone(&self.log),
            ..*self
        };
        look.take_one().is_none()
    }

    /// The events that are here already.
    pub(super) fn all_there_is(mut self) -> Vec<Bytes> {
        std::iter::from_fn(|| self.take_one()).collect()
    }

    fn take_one(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.decoded() {
                return Some(event);
            }
            let LogRead::Chunk(chunk) = self.log.read(self.turn, &mut self.at) else { return None };
            self.feed(&chunk);
        }
    }

    fn feed(&mut self, chunk: &Bytes) {
        if chunk.is_empty() {
            self.decoder = Decoder::new(usize::MAX);
        }
        self.decoder.feed(chunk);
    }

    /// The next whole event after those that the client has. One whose start is not kept any more has no id.
    fn decoded(&mut self) -> Option<Bytes> {
        while let Ok(Some(event)) = self.decoder.next_event() {
            let place = event.id.as_deref().and_then(parse).filter(|(stream, _)| *stream == self.log.stream);
            let Some((_, place)) = place else { continue };
            if place > self.after && !event.data.is_empty() {
                self.after = place;
                sse::encode(&event, &mut self.out);
                return Some(self.out.split().freeze());
            }
        }
        None
    }
}
