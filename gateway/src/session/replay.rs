//! What a legacy client may ask for again: the streams of a session, kept so that one that broke can be resumed.
//!
//! Event ids are Weir's own on both endpoints, also where an upstream has ids too: then a stream is resumed without the
//! upstream, whatever that is able to, and what breaks on its side is mended there without the client. An id names a
//! stream and a place in it, `<stream>-<place>`. Streams are numbered from a random start in each session, so that an id
//! leads to the stream it came from, in its own session, or nowhere. Stream 0 is the session's own, which goes on over
//! all GETs; each other one belongs to a request.
//!
//! Messages are kept, not bytes of the wire. They are bounded for each session, for each principal and for all together;
//! what is oldest goes first, and streams that are at their end before those that go on. Where gateways share a store, it
//! gets a copy ([`mirror`]), so that another one can go on when this one is gone.

mod log;
mod mirror;
mod writer;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use crate::quota::Shares;

pub use log::{Replay, ReplayedEvent};
pub use mirror::{MirrorQueue, MirroredEvent};
pub use writer::{Left, ReplayWriter};

use log::{FALLBACK, ReplayLog};
use mirror::Mirror;

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

/// How many streams of a session are taken to have begun since a copy was made.
const UNTOLD: u32 = 4096;

/// The first number of a stream that a copy of a session begins at another gateway, counted from the session's own stream.
/// Each copy begins at random from there on.
const OF_COPIES: u32 = 1 << 31;

/// What the streams of all sessions hold together.
pub struct ReplayMemory {
    limit: AtomicUsize,
    /// How much of it one principal may have.
    share: AtomicUsize,
    used: AtomicUsize,
    stores: Mutex<Vec<Weak<ReplayStreams>>>,
    /// What the sessions of each principal hold.
    principals: Mutex<HashMap<Arc<str>, Weak<AtomicUsize>>>,
    mirror: Mirror,
}

/// The streams of one session.
pub struct ReplayStreams {
    memory: Arc<ReplayMemory>,
    used: ReplayUse,
    /// The number of the session's own stream.
    first: u32,
    next: AtomicU32,
    /// The first number of a stream that began here, where another process has begun some before.
    untold_to: AtomicU32,
    left: AtomicUsize,
    own: Arc<ReplayLog>,
    answers: Mutex<ReplayAnswer>,
    /// What the store calls the session, as long as it has a copy.
    mirrored: MirroredAs,
    /// Whether the memory knows of it.
    known: AtomicBool,
}

/// What the store calls a session whose streams it has a copy of.
type MirroredAs = Arc<RwLock<Option<Arc<str>>>>;

/// What counts what is kept of one session, beside what counts for all.
#[derive(Clone)]
struct ReplayUse {
    session: Arc<AtomicUsize>,
    principal: Arc<AtomicUsize>,
}

#[derive(Default)]
struct ReplayAnswer {
    /// Oldest first.
    logs: VecDeque<Arc<ReplayLog>>,
}

/// What another process has written of a stream.
#[derive(Default)]
struct StreamCopy {
    /// Numbers and messages, oldest first.
    events: Vec<(u64, Bytes)>,
    /// What is said in place of an answer that is missing.
    fallback: Option<Bytes>,
}

/// Where an event id leads.
pub enum ResumePoint {
    /// Into the session's own stream, after this place.
    Own(u64),
    /// Into the answer to a request.
    Answer(Box<Replay>),
}

impl ReplayMemory {
    /// Room for so many bytes.
    pub fn new(limits: Shares) -> Arc<Self> {
        let (limit, share) = (limits.total.into(), limits.principal.into());
        let (stores, principals) = (Mutex::default(), Mutex::default());
        Arc::new(Self { limit, share, used: AtomicUsize::new(0), stores, principals, mirror: Mirror::default() })
    }

    /// Room for another number of bytes. What is kept beyond it goes with the next event.
    pub fn resize(&self, limits: Shares) {
        self.limit.store(limits.total, Ordering::Relaxed);
        self.share.store(limits.principal, Ordering::Relaxed);
    }

    /// From now on gives what is kept of sessions that are [mirrored](ReplayStreams::mirror_as); nothing if it does already.
    pub fn mirror(&self) -> Vec<MirrorQueue> {
        self.mirror.open()
    }

    /// Waits until the store has a copy of all there is of a session, by its name there.
    pub async fn flush(&self, session: &str) {
        self.mirror.flush(session).await;
    }

    /// The count of a principal, which all of its sessions share.
    fn used_by(&self, principal: &Arc<str>) -> Arc<AtomicUsize> {
        let mut principals = self.principals.lock();
        if let Some(used) = principals.get(principal).and_then(Weak::upgrade) {
            return used;
        }
        principals.retain(|_, used| used.strong_count() > 0);
        let used = Arc::default();
        principals.insert(Arc::clone(principal), Arc::downgrade(&used));
        used
    }

    /// Forgets what has been kept long enough.
    pub fn expire(&self) {
        for streams in self.stores() {
            streams.expire();
        }
    }

    fn stores(&self) -> Vec<Arc<ReplayStreams>> {
        let mut stores = self.stores.lock();
        stores.retain(|store| store.strong_count() > 0);
        stores.iter().filter_map(Weak::upgrade).collect()
    }

    /// Makes room in all, or in what one principal has, for more than is wanted now, so that it need not be made again
    /// soon.
    fn shrink(&self, limit: usize, of: Option<&Arc<AtomicUsize>>) {
        let (goal, used) = (limit / 4 * 3, of.map_or(&self.used, |used| used));
        let is_enough = || used.load(Ordering::Relaxed) <= goal;
        let stores = self.stores();
        let meant = |streams: &&Arc<ReplayStreams>| of.is_none_or(|used| Arc::ptr_eq(used, &streams.used.principal));
        for ended in [true, false] {
            for streams in stores.iter().filter(meant) {
                if is_enough() {
                    return;
                }
                streams.shrink(ended, is_enough);
            }
        }
    }
}

impl ReplayStreams {
    /// No streams yet. `first` is the number of the session's own stream, where that is known.
    ///
    /// # Errors
    ///
    /// When the system has no randomness to give.
    pub fn new(memory: &Arc<ReplayMemory>, principal: &Arc<str>, first: Option<u32>) -> Result<Self, getrandom::Error> {
        let first = first.map_or_else(getrandom::u32, Ok)?;
        let used = ReplayUse { session: Arc::default(), principal: memory.used_by(principal) };
        let mirrored = MirroredAs::default();
        Ok(Self {
            own: Arc::new(ReplayLog::new(first, memory, &used, &mirrored)),
            mirrored,
            memory: Arc::clone(memory),
            used,
            first,
            next: AtomicU32::new(1),
            untold_to: AtomicU32::new(0),
            left: AtomicUsize::new(0),
            answers: Mutex::default(),
            known: AtomicBool::new(false),
        })
    }

    /// Where an event id leads; nowhere if it is of another session, or of a stream that is not kept any more.
    pub fn find(&self, id: &str) -> Option<ResumePoint> {
        let (stream, place) = parse(id)?;
        if stream == self.first {
            return Some(ResumePoint::Own(place));
        }
        let log = self.answers.lock().logs.iter().find(|log| log.stream == stream).cloned()?;
        let place = log.reachable(place);
        Some(ResumePoint::Answer(Box::new(Replay::new(log, place))))
    }

    /// Whether answers are kept that the client may ask for again.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.lock().logs.is_empty()
    }

    /// Whether the stream of an event id is kept here.
    pub fn knows(&self, id: &str) -> bool {
        let is_kept = |stream| stream == self.first || self.answers.lock().logs.iter().any(|log| log.stream == stream);
        parse(id).is_some_and(|(stream, _)| is_kept(stream))
    }

    /// What the session's own stream said after this place.
    pub fn said_after(&self, place: u64) -> Vec<ReplayedEvent> {
        Replay::new(Arc::clone(&self.own), place).all_there_is()
    }

    /// The number of the session's own stream.
    pub(super) const fn own_number(&self) -> u32 {
        self.first
    }

    /// Has the store keep a copy from now on, under this name, or not any more.
    pub(super) fn mirror_as(&self, session: Option<Arc<str>>) {
        *self.mirrored.write() = session;
    }

    /// What another process needs to go on with these streams: the number of each, and of each of its events. Of all of it at
    /// most so many bytes; the session's own stream comes first, and then the newest.
    pub(super) fn written(&self, most: usize) -> Vec<(u32, u64, Bytes)> {
        let mut left = most;
        let answers = self.answers.lock();
        let logs = std::iter::once(&self.own).chain(answers.logs.iter().rev());
        let written = logs.filter_map(|log| {
            let events = log.written();
            left = left.checked_sub(events.iter().map(|(_, data)| data.len()).sum())?;
            Some(events.into_iter().map(|(number, data)| (log.stream, number, data)))
        });
        written.flatten().collect()
    }

    /// Has streams that begin from now on be told apart from those of the session at its own gateway.
    ///
    /// # Errors
    ///
    /// When the system has no randomness to give.
    pub(super) fn number_apart(&self) -> Result<(), getrandom::Error> {
        self.next.store(OF_COPIES + (getrandom::u32()? >> 2), Ordering::Relaxed);
        Ok(())
    }

    /// The stream of an event id that goes on elsewhere, as far as is known: a copy of the session has begun it, or the process
    /// before, and it has no answer here.
    pub fn elsewhere(&self, id: &str) -> Option<u32> {
        let (stream, _) = parse(id)?;
        let answers = self.answers.lock();
        let log = answers.logs.iter().find(|log| log.stream == stream);
        let is_elsewhere =
            log.map_or_else(|| self.is_of_copy(stream) || self.is_untold(stream), |log| log.lacks_answer());
        is_elsewhere.then_some(stream)
    }

    /// Whether the process before may have begun a stream of this number after it told.
    fn is_untold(&self, stream: u32) -> bool {
        let begun_here = self.untold_to.load(Ordering::Relaxed);
        let number = stream.wrapping_sub(self.first);
        // The session's own stream has 0.
        number > 0 && number < begun_here && begun_here - number <= UNTOLD
    }

    /// Whether a copy of the session has begun a stream of this number.
    pub(super) const fn is_of_copy(&self, stream: u32) -> bool {
        stream.wrapping_sub(self.first) >= OF_COPIES
    }

    /// Takes what another process has written of these streams, in their order, and numbers others apart from them.
    pub(super) fn restore(self: &Arc<Self>, events: Vec<MirroredEvent>) {
        let number = |event: &MirroredEvent| event.stream.wrapping_sub(self.first);
        // The other process may have begun more than it could tell.
        let last = events.iter().map(number).filter(|number| *number < OF_COPIES).max().unwrap_or(0);
        self.next.store(last.wrapping_add(UNTOLD), Ordering::Relaxed);
        self.untold_to.store(last.wrapping_add(UNTOLD), Ordering::Relaxed);
        self.add_written(events);
    }

    /// Takes what another process has written of these streams, in their order.
    pub(super) fn add_written(self: &Arc<Self>, events: Vec<MirroredEvent>) {
        let mut streams: BTreeMap<u32, StreamCopy> = BTreeMap::new();
        for MirroredEvent { stream, number, data, .. } in events {
            let copy = streams.entry(stream.wrapping_sub(self.first)).or_default();
            match data {
                Some(data) if number == FALLBACK => copy.fallback = Some(data),
                Some(data) => copy.events.push((number, data)),
                None => {}
            }
        }
        for (number, copy) in streams {
            match number {
                0 => self.own.restore(&copy, false),
                number => self.add(self.first.wrapping_add(number)).restore(&copy, true),
            }
        }
        self.bound();
    }

    /// Whether anything may be kept at all.
    pub fn is_on(&self) -> bool {
        self.memory.limit.load(Ordering::Relaxed) > 0
    }

    fn new_number(&self) -> u32 {
        self.first.wrapping_add(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Adds the stream of an answer.
    fn add(self: &Arc<Self>, stream: u32) -> Arc<ReplayLog> {
        let log = Arc::new(ReplayLog::new(stream, &self.memory, &self.used, &self.mirrored));
        let mut answers = self.answers.lock();
        answers.logs.retain(|log| !log.ended_before(KEPT));
        if answers.logs.len() >= MAX_STREAMS {
            let oldest = answers.logs.iter().position(|log| log.has_ended()).unwrap_or(0);
            if let Some(log) = answers.logs.remove(oldest) {
                log.forget();
            }
        }
        answers.logs.push_back(Arc::clone(&log));
        log
    }

    /// Bounds what is kept, after something was added.
    fn bound(self: &Arc<Self>) {
        // Most sessions keep nothing.
        if !self.known.swap(true, Ordering::Relaxed) {
            self.memory.stores.lock().push(Arc::downgrade(self));
        }
        let most = self.memory.limit.load(Ordering::Relaxed) / SHARE;
        let is_enough = || self.used.session.load(Ordering::Relaxed) <= most;
        if !is_enough() {
            self.shrink(true, is_enough);
            self.shrink(false, is_enough);
        }
        let (limit, share) = (self.memory.limit.load(Ordering::Relaxed), self.memory.share.load(Ordering::Relaxed));
        if self.used.principal.load(Ordering::Relaxed) > share {
            self.memory.shrink(share, Some(&self.used.principal));
        }
        if self.memory.used.load(Ordering::Relaxed) > limit {
            self.memory.shrink(limit, None);
        }
    }

    /// Drops the oldest first, of streams at their end or of all, until it is enough.
    fn shrink(&self, ended: bool, is_enough: impl Fn() -> bool) {
        let mut logs: Vec<Arc<ReplayLog>> = self.answers.lock().logs.iter().cloned().collect();
        logs.push(Arc::clone(&self.own));
        for log in logs.iter().filter(|log| !ended || log.has_ended()) {
            while !is_enough() && log.drop_first() {}
        }
    }

    fn expire(&self) {
        self.answers.lock().logs.retain(|log| !log.ended_before(KEPT));
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

/// The id of an event.
fn event_id(stream: u32, place: u64) -> String {
    format!("{stream:08x}-{place}")
}

#[cfg(test)]
mod tests;
