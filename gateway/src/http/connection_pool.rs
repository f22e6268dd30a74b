//! Idle connections of one target.
//!
//! The one used last is taken first, so that those beyond the need grow old and are closed. Whether the server has closed
//! one is seen when it is taken, without a system call: the runtime already knows what the socket has to say. Those whose
//! last answer lacks its end lie apart until that is here. A connection of HTTP/2 stays here while it is in use.

use std::{
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use pingora_core::{
    connectors::http::v2::ConnectionRef,
    protocols::{Stream, http::v2::client::Http2Session},
};
use tokio::{
    io::{AsyncRead, ReadBuf},
    task::AbortHandle,
    time::Instant,
};

use super::{
    Error,
    drain::{Drain, DrainProgress},
    multiplexed::{self, MultiplexedConnections},
};

/// How long an unused connection is kept unless its server says less.
const IDLE: Duration = Duration::from_secs(60);

/// How many unused connections are kept.
const ROOM: usize = 256;

/// How many are kept whose last answer lacks its end, and for how long.
const UNFINISHED: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);

/// How often what has grown old is closed.
const SWEEP: Duration = Duration::from_secs(15);

/// Idle connections.
#[derive(Default)]
pub(super) struct ConnectionPool {
    idle: Mutex<IdleConnection>,
    /// How many connections are in use.
    busy: AtomicUsize,
    /// Held while a connection is made that may be of HTTP/2: others wait for their part of it.
    pub(super) dialing: tokio::sync::Mutex<()>,
    /// Whether the last connection was of HTTP/1.1, so that the next is made at once.
    pub(super) speaks_http1: AtomicBool,
    /// Whether the server wants HTTP/1.1 where it has agreed to HTTP/2.
    http1_required: AtomicBool,
}

/// What one request is sent on.
pub(super) enum Connection {
    /// A connection for as long as the answer lasts.
    Http1(Stream),
    /// A stream of a connection.
    Http2(Box<Http2Session>),
}

enum Pooled {
    Http1(Instant, Stream),
    Http2(ConnectionRef),
}

/// A connection in use, counted until this is dropped.
pub(super) struct BusyConnection(Arc<ConnectionPool>);

#[derive(Default)]
struct IdleConnection {
    streams: Vec<(Instant, Stream)>,
    unfinished: Vec<(Instant, Drain)>,
    multiplexed: MultiplexedConnections,
    /// Runs while there is something to sweep.
    sweeper: Option<AbortHandle>,
}

impl ConnectionPool {
    /// Counts one connection more that is in use, if that is not too many.
    pub(super) fn busy(self: &Arc<Self>, most: usize) -> Result<BusyConnection, Error> {
        let busy = BusyConnection(Arc::clone(self));
        if self.busy.fetch_add(1, Ordering::Relaxed) < most { Ok(busy) } else { Err(Error::Busy(most)) }
    }

    /// A connection that its server has not closed as far as is known.
    pub(super) async fn take(&self) -> Option<Connection> {
        loop {
            match self.next()? {
                Pooled::Http1(until, mut stream) => {
                    if Instant::now() < until && is_silent(&mut stream) {
                        return Some(Connection::Http1(stream));
                    }
                }
                Pooled::Http2(connection) => {
                    if let Some(stream) = Box::pin(multiplexed::open(&connection)).await {
                        return Some(Connection::Http2(stream));
                    }
                }
            }
        }
    }

    /// Shares a connection of HTTP/2 among the requests to come.
    pub(super) fn share(self: &Arc<Self>, connection: ConnectionRef) {
        let mut idle = self.idle.lock();
        idle.multiplexed.put(connection);
        self.keep_swept(&mut idle);
    }

    /// Speaks HTTP/1.1 from now on.
    pub(super) fn require_http1(&self) {
        self.http1_required.store(true, Ordering::Relaxed);
        self.idle.lock().multiplexed.clear();
    }

    pub(super) fn http1_required(&self) -> bool {
        self.http1_required.load(Ordering::Relaxed)
    }

    /// Keeps a connection whose last answer was read to its end; `promised` is how long its server said to keep it.
    pub(super) fn put(self: &Arc<Self>, stream: Stream, promised: Option<Duration>) {
        let mut idle = self.idle.lock();
        idle.put(stream, promised);
        self.keep_swept(&mut idle);
    }

    /// Keeps a connection if nothing comes on it any more but the end of its last answer.
    pub(super) fn put_rest(self: &Arc<Self>, rest: Drain) {
        match rest.read() {
            DrainProgress::Ended(stream, promised) => self.put(stream, promised),
            DrainProgress::Later(rest) => {
                let mut idle = self.idle.lock();
                if idle.unfinished.len() < UNFINISHED {
                    idle.unfinished.push((Instant::now() + PATIENCE, rest));
                    self.keep_swept(&mut idle);
                }
            }
            DrainProgress::Over => {}
        }
    }

    /// Reads the ends that are here; says how many connections lie ready.
    #[cfg(test)]
    pub(super) fn finish_now(&self) -> usize {
        let mut idle = self.idle.lock();
        idle.finish(Instant::now());
        idle.streams.len()
    }

    /// How many connections wait for the end of their last answer.
    #[cfg(test)]
    pub(super) fn unfinished(&self) -> usize {
        self.idle.lock().unfinished.len()
    }

    fn next(&self) -> Option<Pooled> {
        let mut idle = self.idle.lock();
        if idle.streams.is_empty() {
            idle.finish(Instant::now());
        }
        match idle.streams.pop() {
            Some((until, stream)) => Some(Pooled::Http1(until, stream)),
            None => idle.multiplexed.find().map(Pooled::Http2),
        }
    }

    fn keep_swept(self: &Arc<Self>, idle: &mut IdleConnection) {
        if idle.has_some() && idle.sweeper.is_none() {
            idle.sweeper = Some(tokio::spawn(sweep(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Closes what is old or closed; false when nothing is left to come back for.
    fn sweep(&self) -> bool {
        let now = Instant::now();
        let mut idle = self.idle.lock();
        idle.finish(now);
        idle.streams.retain_mut(|(until, stream)| now < *until && is_silent(stream));
        idle.multiplexed.sweep(IDLE);
        let more = idle.has_some();
        if !more {
            idle.sweeper = None;
        }
        more
    }
}

impl IdleConnection {
    fn has_some(&self) -> bool {
        !self.streams.is_empty() || !self.unfinished.is_empty() || !self.multiplexed.is_empty()
    }

    fn put(&mut self, stream: Stream, promised: Option<Duration>) {
        // A server's promise ends while a request is on its way: use it a second less.
        let keep = promised.map_or(IDLE, |promised| promised.saturating_sub(Duration::from_secs(1)).min(IDLE));
        if !keep.is_zero() && self.streams.len() < ROOM {
            self.streams.push((Instant::now() + keep, stream));
        }
    }

    /// Looks whether what was missing of an answer is here.
    fn finish(&mut self, now: Instant) {
        for (until, rest) in std::mem::take(&mut self.unfinished) {
            match rest.read() {
                DrainProgress::Ended(stream, promised) => self.put(stream, promised),
                DrainProgress::Later(rest) if now < until => self.unfinished.push((until, rest)),
                DrainProgress::Later(_) | DrainProgress::Over => {}
            }
        }
    }
}

impl Drop for BusyConnection {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        if let Some(sweeper) = self.idle.lock().sweeper.take() {
            sweeper.abort();
        }
    }
}

async fn sweep(pool: Weak<ConnectionPool>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        if !pool.upgrade().is_some_and(|pool| pool.sweep()) {
            return;
        }
    }
}

/// Whether a connection is open and has nothing to say, as it must be between two requests.
fn is_silent(stream: &mut Stream) -> bool {
    let mut byte = [0];
    let mut context = Context::from_waker(Waker::noop());
    matches!(Pin::new(stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)), Poll::Pending)
}
