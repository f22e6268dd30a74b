//! The byte stream under a pingora session: a socket, plain or with TLS.
//!
//! Pingora writes the head of an answer and its body apart and flushes at the end. Its own buffer for that is of one size
//! for the life of a connection, and writes a head apart from a body that is longer. Here what is small is gathered until
//! the flush, and what is large is handed to the socket together with what was gathered: one system call, one TLS record,
//! one segment for the usual answer. Where pingora flushes between two things that are there already, the flush is held
//! back ([`ConnectionState::hold`]).

use std::{
    fmt,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, Stream, TimingDigest,
    UniqueID, UniqueIDType, raw_connect::ProxyDigest,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Up to here writes are gathered, in bytes: a TLS record.
const GATHERED: usize = 16 * 1024;

/// What is kept of that room while a connection rests.
const KEPT: usize = 2 * 1024;

/// How much of the next request is read while this one is answered, in bytes.
const AHEAD: usize = 64 * 1024;

/// What an HTTP/2 connection begins with (RFC 9113 §3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What the socket, the loop over its requests, and the listener tell each other of a connection.
pub(super) struct ConnectionState {
    phase: AtomicU8,
    /// How many more bytes the head of a request may have.
    allowance: AtomicUsize,
    /// Whether more is about to be written, so that a flush would come too early.
    held: AtomicBool,
    /// Whether it is watched for its end alone: what comes before that is kept for the next request.
    watched: AtomicBool,
}

/// Has a connection watched for its end until this is dropped.
pub(super) struct EndWatch(Arc<ConnectionState>);

/// Nothing has come yet.
const NEW: u8 = 0;
const RESTING: u8 = 1;
const BUSY: u8 = 2;
const CLOSED: u8 = 3;

/// A byte stream.
pub(super) struct Wire {
    io: Stream,
    /// Read to see which protocol is spoken, or while the connection was watched; handed out first.
    ahead: BytesMut,
    /// Written and not yet sent.
    gathered: BytesMut,
    line: Arc<ConnectionState>,
}

impl ConnectionState {
    /// Waits for a request whose head may have so many bytes.
    pub(super) fn rest(&self, allowance: usize) {
        self.allowance.store(allowance, Ordering::Relaxed);
        // Before its first request it is not at rest but new.
        let _ = self.phase.compare_exchange(BUSY, RESTING, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// As [`rest`](Self::rest), where a part of the request is here already.
    pub(super) fn go_on(&self, allowance: usize) {
        self.allowance.store(allowance, Ordering::Relaxed);
        self.phase.store(BUSY, Ordering::SeqCst);
    }

    /// The head of a request is here; what follows it has other limits.
    pub(super) fn end_head(&self) {
        self.allowance.store(usize::MAX, Ordering::Relaxed);
    }

    /// Makes a flush do nothing, until it is told otherwise.
    pub(super) fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// Has it watched for its end.
    pub(super) fn watched(self: Arc<Self>) -> EndWatch {
        self.watched.store(true, Ordering::Relaxed);
        EndWatch(self)
    }

    /// Whether a byte of a request has come since the last rest.
    pub(super) fn is_busy(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == BUSY
    }

    /// Whether a head had more bytes than it may.
    pub(super) fn is_exhausted(&self) -> bool {
        self.allowance.load(Ordering::Relaxed) == 0
    }

    /// Takes a connection out of service that rests, or `also_new` one on which nothing has come: whatever comes on it now
    /// was never heard.
    pub(super) fn close_if_resting(&self, also_new: bool) -> bool {
        let close = |from| self.phase.compare_exchange(from, CLOSED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        close(RESTING) || (also_new && close(NEW))
    }

    /// Called for bytes that came; false if the connection was closed before.
    fn hear(&self, bytes: usize) -> bool {
        match self.phase.load(Ordering::Relaxed) {
            BUSY => {}
            _ if bytes == 0 => return true,
            CLOSED => return false,
            waiting => {
                if self.phase.compare_exchange(waiting, BUSY, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                    return false;
                }
            }
        }
        let allowance = self.allowance.load(Ordering::Relaxed);
        if allowance != usize::MAX {
            self.allowance.store(allowance.saturating_sub(bytes), Ordering::Relaxed);
        }
        true
    }
}

impl Default for ConnectionState {
    fn default() -> Self {
        let [held, watched] = [false, false].map(AtomicBool::new);
        Self { phase: AtomicU8::new(NEW), allowance: AtomicUsize::new(usize::MAX), held, watched }
    }
}

impl Drop for EndWatch {
    fn drop(&mut self) {
        self.0.watched.store(false, Ordering::Relaxed);
    }
}

impl Wire {
    pub(super) fn new(io: Stream, line: Arc<ConnectionState>) -> Self {
        Self { io, ahead: BytesMut::new(), gathered: BytesMut::new(), line }
    }

    /// Reads as far as it takes to tell whether HTTP/2 is spoken; nothing is lost.
    pub(super) async fn speaks_h2(&mut self) -> io::Result<bool> {
        let mut start = BytesMut::with_capacity(4096);
        loop {
            if self.read_buf(&mut start).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let common = start.len().min(PREFACE.len());
            let alike = start[..common] == PREFACE[..common];
            if !alike || common == PREFACE.len() {
                self.ahead = start;
                return Ok(alike);
            }
        }
    }

    /// Ready at the end of the connection. What comes before is kept; of more than a little nothing more is read.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.ahead.len() < AHEAD {
            let mut room = [0; 1024];
            let mut buffer = ReadBuf::new(&mut room);
            ready!(Pin::new(&mut self.io).poll_read(context, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.ahead.extend_from_slice(buffer.filled());
        }
        Poll::Pending
    }

    /// Sends what was gathered.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.gathered.is_empty() {
            let sent = ready!(Pin::new(&mut self.io).poll_write(context, &self.gathered))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.gathered.advance(sent);
        }
        if self.gathered.capacity() > KEPT {
            self.gathered = BytesMut::new();
        } else {
            self.gathered.clear();
        }
        Poll::Ready(Ok(()))
    }

    /// Sends what was gathered and, right behind it, `slices`; tells how much of these was sent.
    fn poll_send_with(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            let mut all = [IoSlice::new(&[]); 8];
            let gathered = usize::from(!self.gathered.is_empty());
            all[0] = IoSlice::new(&self.gathered);
            let taken = slices.len().min(all.len() - gathered);
            all[gathered..gathered + taken].copy_from_slice(&slices[..taken]);
            let sent = ready!(Pin::new(&mut self.io).poll_write_vectored(context, &all[..gathered + taken]))?;
            match sent.checked_sub(self.gathered.len()) {
                // TLS may take one slice at a time. To tell that nothing was sent would break the connection off.
                Some(0) if !self.gathered.is_empty() => self.gathered.clear(),
                Some(sent) => {
                    self.gathered.clear();
                    return Poll::Ready(Ok(sent));
                }
                None if sent == 0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                None => self.gathered.advance(sent),
            }
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.line.watched.load(Ordering::Relaxed) {
            return this.poll_end(context);
        }
        if !this.ahead.is_empty() {
            let taken = this.ahead.len().min(out.remaining());
            if !this.line.hear(taken) {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            out.put_slice(&this.ahead.split_to(taken));
            if this.ahead.is_empty() {
                this.ahead = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        if this.line.is_exhausted() {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let before = out.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(context, out))?;
        if !this.line.hear(out.filled().len() - before) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.gathered.len() + bytes.len() <= GATHERED {
            self.gathered.extend_from_slice(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        self.poll_send_with(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        if self.gathered.len() + length <= GATHERED {
            slices.iter().for_each(|slice| self.gathered.extend_from_slice(slice));
            return Poll::Ready(Ok(length));
        }
        self.poll_send_with(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.line.held.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[async_trait]
impl Shutdown for Wire {
    async fn shutdown(&mut self) {
        drop(AsyncWriteExt::shutdown(self).await);
    }
}

impl UniqueID for Wire {
    fn id(&self) -> UniqueIDType {
        self.io.id()
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("id", &self.id()).finish_non_exhaustive()
    }
}

// Which protocol is spoken is known before pingora is asked, and nothing here reads its digests.
impl Ssl for Wire {}
impl Peek for Wire {}

impl GetTimingDigest for Wire {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for Wire {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for Wire {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}
