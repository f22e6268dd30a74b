//! The messages of one stream.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_mcp::Message;

use super::{MirroredAs, ReplayMemory, ReplayUse, StreamCopy, event_id, mirror::MirroredEvent};

/// The number of what is said in place of an answer: events begin with 1.
pub(super) const FALLBACK: u64 = 0;

/// What an event takes beside its bytes.
const OVERHEAD: usize = 64;

/// One stream, as far as it is kept.
pub(super) struct ReplayLog {
    pub(super) stream: u32,
    state: Mutex<LogState>,
    changed: Notify,
    memory: Arc<ReplayMemory>,
    /// What all streams of the session and of its principal hold.
    used: ReplayUse,
    mirrored: MirroredAs,
}

#[derive(Default)]
struct LogState {
    /// The messages, oldest first; they have consecutive numbers.
    events: VecDeque<Bytes>,
    /// The number of the next event; the first has 1.
    next: u64,
    bytes: usize,
    /// What is said in place of an answer that is missing when this process is gone.
    fallback: Option<Bytes>,
    /// How often a reader has taken over from the one before.
    turn: u64,
    ended: Option<Instant>,
    forgotten: bool,
    /// Whether another process has written it, perhaps further than is known here.
    restored: bool,
    /// Whether the answer was not written by then.
    lacks_answer: bool,
}

/// The rest of a stream for a client that has come back: what it missed, and what is still to come.
pub struct Replay {
    log: Arc<ReplayLog>,
    turn: u64,
    /// The number of the event that the client has.
    after: u64,
}

/// An event with the id that the client resumes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayedEvent {
    /// The id.
    pub id: String,
    /// The message.
    pub data: Bytes,
}

enum LogRead {
    Event(u64, Bytes),
    Nothing,
    End,
}

impl ReplayLog {
    pub(super) fn new(stream: u32, memory: &Arc<ReplayMemory>, used: &ReplayUse, mirrored: &MirroredAs) -> Self {
        let state = LogState { next: 1, ..LogState::default() };
        Self {
            stream,
            state: Mutex::new(state),
            changed: Notify::new(),
            memory: Arc::clone(memory),
            used: used.clone(),
            mirrored: Arc::clone(mirrored),
        }
    }

    /// Has `data` said to a client that comes back for this stream when this process is gone.
    pub(super) fn set_fallback(&self, data: Bytes) {
        self.state.lock().fallback = Some(data.clone());
        self.mirror(FALLBACK, Some(data));
    }

    /// What another process needs to [restore](Self::restore) it: numbers and messages.
    pub(super) fn written(&self) -> Vec<(u64, Bytes)> {
        let state = self.state.lock();
        let first = state.next - state.events.len() as u64;
        let fallback = state.fallback.iter().map(|data| (FALLBACK, data.clone()));
        fallback.chain((first..).zip(state.events.iter().cloned())).collect()
    }

    fn mirror(&self, number: u64, data: Option<Bytes>) {
        if let Some(session) = &*self.mirrored.read() {
            self.memory.mirror.push(MirroredEvent { session: Arc::clone(session), stream: self.stream, number, data });
        }
    }

    /// Fills it with what another process has written, and ends it if it `answers` a request. What is behind a gap counts.
    pub(super) fn restore(&self, copy: &StreamCopy, answers: bool) {
        let gap = copy.events.windows(2).rposition(|two| two[0].0 + 1 != two[1].0).map_or(0, |at| at + 1);
        let events = &copy.events[gap..];
        {
            let mut state = self.state.lock();
            state.next = events.first().map_or(1, |(number, _)| *number);
            state.restored = true;
        }
        events.iter().for_each(|(_, data)| self.push(data));
        if !answers {
            return;
        }
        let last = self.last().and_then(|data| Message::parse(data).ok());
        let lacks_answer = !last.is_some_and(|last| last.is_answer());
        self.state.lock().lacks_answer = lacks_answer;
        if let Some(fallback) = copy.fallback.as_ref().filter(|_| lacks_answer) {
            self.push(fallback);
        }
        self.end();
    }

    /// Whether another process has written it without the answer.
    pub(super) fn lacks_answer(&self) -> bool {
        self.state.lock().lacks_answer
    }

    /// The place after which a client that names `place` reads on: at least the last event of what another process has
    /// written, for the client may have seen more of it than is known here.
    pub(super) fn reachable(&self, place: u64) -> u64 {
        let state = self.state.lock();
        if state.restored { place.min(state.next.saturating_sub(2)) } else { place }
    }

    /// Keeps a message under the next number.
    pub(super) fn push(&self, message: &[u8]) {
        let mut state = self.state.lock();
        if state.forgotten {
            return;
        }
        let size = message.len() + OVERHEAD;
        for used in [&*self.used.session, &self.used.principal, &self.memory.used] {
            used.fetch_add(size, Ordering::Relaxed);
        }
        let number = state.next;
        state.next += 1;
        state.bytes += size;
        // A copy: the message may be a small part of a large buffer.
        let event = Bytes::copy_from_slice(message);
        state.events.push_back(event.clone());
        drop(state);
        self.mirror(number, Some(event));
        self.changed.notify_waiters();
    }

    /// Drops the oldest event; false if there is none.
    pub(super) fn drop_first(&self) -> bool {
        let mut state = self.state.lock();
        let Some(event) = state.events.pop_front() else { return false };
        let number = state.next - 1 - state.events.len() as u64;
        let size = event.len() + OVERHEAD;
        state.bytes -= size;
        drop(state);
        self.mirror(number, None);
        self.uncount(size);
        true
    }

    /// Keeps nothing any more: nobody will find it.
    pub(super) fn forget(&self) {
        self.state.lock().forgotten = true;
        while self.drop_first() {}
    }

    pub(super) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// The number of the next event.
    pub(super) fn next(&self) -> u64 {
        self.state.lock().next
    }

    /// The last message, if it is kept.
    pub(super) fn last(&self) -> Option<Bytes> {
        self.state.lock().events.back().cloned()
    }

    /// Whether the event that was written last is kept.
    pub(super) fn is_whole(&self) -> bool {
        let state = self.state.lock();
        state.next == 1 || !state.events.is_empty()
    }

    pub(super) fn end(&self) {
        {
            let mut state = self.state.lock();
            state.ended.get_or_insert_with(Instant::now);
            // It has its answer by now, or never gets one.
            state.fallback = None;
        }
        self.changed.notify_waiters();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().ended.is_some()
    }

    pub(super) fn ended_before(&self, age: Duration) -> bool {
        self.state.lock().ended.is_some_and(|ended| ended.elapsed() >= age)
    }

    /// How often a reader has taken over.
    pub(super) fn turn(&self) -> u64 {
        self.state.lock().turn
    }

    /// The oldest event after a number that is kept.
    fn read(&self, turn: u64, after: u64) -> LogRead {
        let state = self.state.lock();
        if state.turn != turn {
            return LogRead::End;
        }
        let first = state.next - state.events.len() as u64;
        let index = usize::try_from((after + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        match state.events.get(index) {
            Some(event) => LogRead::Event(first + index as u64, event.clone()),
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
        while self.drop_first() {}
        self.mirror(FALLBACK, None);
    }
}

impl Replay {
    /// Reads after a number. Whoever read this stream before reads no further.
    pub(super) fn new(log: Arc<ReplayLog>, after: u64) -> Self {
        let turn = {
            let mut state = log.state.lock();
            state.turn += 1;
            state.turn
        };
        log.changed.notify_waiters();
        Self { log, turn, after }
    }

    /// The next event; none at the end of the stream, or when another reader has taken over. Cancel-safe.
    pub async fn next(&mut self) -> Option<ReplayedEvent> {
        loop {
            let log = Arc::clone(&self.log);
            let mut changed = pin!(log.changed.notified());
            changed.as_mut().enable();
            match self.log.read(self.turn, self.after) {
                LogRead::Event(number, data) => return Some(self.take(number, data)),
                LogRead::Nothing => changed.await,
                LogRead::End => return None,
            }
        }
    }

    /// Whether the stream is at its end and the client has all of it that is kept.
    pub fn is_over(&self) -> bool {
        matches!(self.log.read(self.turn, self.after), LogRead::End)
    }

    /// The events that are here already.
    pub(super) fn all_there_is(mut self) -> Vec<ReplayedEvent> {
        std::iter::from_fn(|| match self.log.read(self.turn, self.after) {
            LogRead::Event(number, data) => Some(self.take(number, data)),
            LogRead::Nothing | LogRead::End => None,
        })
        .collect()
    }

    fn take(&mut self, number: u64, data: Bytes) -> ReplayedEvent {
        self.after = number;
        ReplayedEvent { id: event_id(self.log.stream, number), data }
    }
}
