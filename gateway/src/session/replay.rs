//! What a legacy client may ask for again: the streams of a session, kept so that one that broke can be resumed.
//!
//! Event ids are Weir's own on both endpoints, also where an upstream has ids too: then a stream is resumed without the
//! upstream, whatever that is able to, and what breaks on its side is mended there without the client. An id names a
//! stream and a place in it, `<stream>-<place>`. Streams are numbered from a random start in each session, so that an id
//! leads to the stream it came from, in its own session, or nowhere. Stream 0 is the session's own, which goes on over
//! all GETs; each other one belongs to a request.
//!
//! What was written is kept as it was written, and looked into when it is asked for again. It is bounded for each session
//! and for all together; what is oldest goes first, and streams that are at their end before those that go on.

mod keeper;
mod log;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::lock;

pub use keeper::{Keeper, Left};
pub use log::Replay;

use log::Log;

/// How long a stream that is at its end is kept.
const KEPT: Duration = Duration::from_secs(5 * 60);

/// How many streams of one session are kept.
const MAX_STREAMS: usize = 64;

/// How many calls of one session may go on without a client.
const MAX_LEFT: usize = 32;

/// How much of what a session's own stream has said is kept, in bytes.
const OWN_STREAM: usize = 256 * 1024;

/// One session may have this part of the whole.
const SHARE: usize = 16;

/// What the streams of all sessions hold together.
pub struct Memory {
    limit: usize,
    used: AtomicUsize,
    stores: Mutex<Vec<Weak<Streams>>>,
}

/// The streams of one session.
pub struct Streams {
    memory: Arc<Memory>,
    used: Arc<AtomicUsize>,
    /// The number of the session's own stream.
    first: u32,
    next: AtomicU32,
    left: AtomicUsize,
    own: Arc<Log>,
    answers: Mutex<Answers>,
}

#[derive(Default)]
struct Answers {
    /// Oldest first.
    logs: VecDeque<Arc<Log>>,
    known: bool,
}

/// Where an event id leads.
pub enum Found {
    /// Into the session's own stream, after this place.
    Own(u64),
    /// Into the answer to a request.
    Answer(Box<Replay>),
}

impl Memory {
    /// Room for so many bytes.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0), stores: Mutex::default() })
    }

    /// Forgets what has been kept long enough.
    pub fn expire(&self) {
        for streams in self.stores() {
            streams.expire();
        }
    }

    fn stores(&self) -> Vec<Arc<Streams>> {
        let mut stores = lock(&self.stores);
        stores.retain(|store| store.strong_count() > 0);
        stores.iter().filter_map(Weak::upgrade).collect()
    }

    /// Makes room, for more than is wanted now, so that it need not be made again soon.
    fn shrink(&self) {
        let goal = self.limit / 4 * 3;
        for ended in [true, false] {
            for streams in self.stores() {
                if self.used.load(Ordering::Relaxed) <= goal {
                    return;
                }
                streams.shrink(ended, || self.used.load(Ordering::Relaxed) <= goal);
            }
        }
    }
}

impl Streams {
    /// No streams yet.
    ///
    /// # Errors
    ///
    /// When the system has no randomness to give.
    pub fn new(memory: &Arc<Memory>) -> Result<Self, getrandom::Error> {
        let first = getrandom::u32()?;
        let used = Arc::<AtomicUsize>::default();
        Ok(Self {
            own: Arc::new(Log::new(first, memory, &used)),
            memory: Arc::clone(memory),
            used,
            first,
            next: AtomicU32::new(1),
            left: AtomicUsize::new(0),
            answers: Mutex::default(),
        })
    }

    /// Where an event id leads; nowhere if it is of another session, or of a stream that is not kept any more.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<Found> {
        let (stream, place) = parse(id)?;
        if stream == self.first {
            return Some(Found::Own(place));
        }
        let log = lock(&self.answers).logs.iter().find(|log| log.stream == stream).cloned()?;
        Some(Found::Answer(Box::new(Replay::new(log, place))))
    }

    /// What the session's own stream said after this place, as it was written.
    #[must_use]
    pub fn said_after(&self, place: u64) -> Vec<bytes::Bytes> {
        Replay::new(Arc::clone(&self.own), place).all_there_is()
    }

    /// Whether anything may be kept at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.memory.limit > 0
    }

    fn new_number(&self) -> u32 {
        self.first.wrapping_add(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Adds the stream of an answer.
    fn add(self: &Arc<Self>, stream: u32) -> Arc<Log> {
        let log = Arc::new(Log::new(stream, &self.memory, &self.used));
        let mut answers = lock(&self.answers);
        let first = !std::mem::replace(&mut answers.known, true);
        answers.logs.retain(|log| !log.ended_before(KEPT));
        if answers.logs.len() >= MAX_STREAMS {
            let oldest = answers.logs.iter().position(|log| log.has_ended()).unwrap_or(0);
            if let Some(log) = answers.logs.remove(oldest) {
                log.forget();
            }
        }
        answers.logs.push_back(Arc::clone(&log));
        drop(answers);
        if first {
            lock(&self.memory.stores).push(Arc::downgrade(self));
        }
        log
    }

    /// Bounds what is kept, after something was added.
    fn bound(&self) {
        let most = self.memory.limit / SHARE;
        let is_enough = || self.used.load(Ordering::Relaxed) <= most;
        if !is_enough() {
            self.shrink(true, is_enough);
            self.shrink(false, is_enough);
        }
        if self.memory.used.load(Ordering::Relaxed) > self.memory.limit {
            self.memory.shrink();
        }
    }

    /// Drops the oldest first, of streams at their end or of all, until it is enough.
    fn shrink(&self, ended: bool, is_enough: impl Fn() -> bool) {
        let mut logs: Vec<Arc<Log>> = lock(&self.answers).logs.iter().cloned().collect();
        logs.push(Arc::clone(&self.own));
        for log in logs.iter().filter(|log| !ended || log.has_ended()) {
            while !is_enough() && log.drop_first() {}
        }
    }

    fn expire(&self) {
        lock(&self.answers).logs.retain(|log| !log.ended_before(KEPT));
    }
}

fn parse(id: &str) -> Option<(u32, u64)> {
    let (stream, place) = id.split_once('-')?;
    let is_plain = |text: &str, allowed: fn(&u8) -> bool| !text.is_empty() && text.bytes().all(|byte| allowed(&byte));
    if !is_plain(stream, u8::is_ascii_hexdigit) || !is_plain(place, u8::is_ascii_digit) {
        return None;
    }
    Some((u32::from_str_radix(stream, 16).ok()?, place.parse().ok()?))
}

/// The name of a stream, as its ids begin.
fn name(stream: u32) -> String {
    format!("{stream:08x}")
}

#[cfg(test)]
mod tests;
