//! One request and its answer.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use ::http::{
    Version,
    header::{AsHeaderName, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING},
};
use bytes::{Bytes, BytesMut};
use pingora_core::protocols::{
    Stream,
    http::{ReusableHttpStream, ServerSession},
};
use pingora_http::ResponseHeader;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    caller::Caller,
    http::{self, HeaderName, HeaderValue},
    quota::{self, Permit, Quota, Reached},
};

use super::{ClientCertificate, ListenLimits, wire::ConnectionState};

/// Bodies up to here are not counted: there are no more of them than connections.
const SMALL: usize = 64 * 1024;

/// How many bytes of a body give it one second more.
const LEAST_RATE: usize = 8 * 1024;

/// Why a body could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// There is no room for it beside others.
    Full(Reached),
    /// More than is allowed.
    TooLarge,
    /// It took too long.
    TimedOut,
    /// The client went away, or what it sent is not framed as HTTP says.
    BrokenOff,
}

/// The other end of a connection.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// What stands for it where shares are counted.
    pub(super) share: Arc<str>,
    /// What it has shown in the handshake.
    pub(super) certificate: Option<Arc<ClientCertificate>>,
}

/// A large body. Whoever keeps a part of it keeps all of its memory, and the room that this takes.
struct RoomyBody {
    body: Bytes,
    _room: Permit,
}

impl AsRef<[u8]> for RoomyBody {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// A body that gives its room back when the last part of it is dropped.
fn with_room(body: Bytes, room: Option<Permit>) -> Bytes {
    match room {
        Some(_room) => Bytes::from_owner(RoomyBody { body, _room }),
        None => body,
    }
}

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, share: quota::address(address.ip()), certificate: None }
    }
}

/// One request and its answer.
pub struct HttpExchange {
    session: ServerSession,
    peer: Peer,
    caller: Option<Arc<Caller>>,
    ends: Option<SystemTime>,
    patience: ClientPatience,
    closing: Arc<AtomicBool>,
    /// Room for bodies.
    bodies: Arc<Quota>,
    /// The body, where it was read already.
    kept_body: Option<Bytes>,
    /// `Host` of the request that another gateway has passed on.
    forwarded_host: Option<String>,
    /// None for HTTP/2, which gathers by itself.
    line: Option<Arc<ConnectionState>>,
    answer: AnswerProgress,
    /// The bytes of the answer's body that are out.
    sent: u64,
}

/// How long is waited for a client.
#[derive(Clone, Copy)]
pub(super) struct ClientPatience {
    /// For the next bytes of a body, in either direction.
    next: Duration,
    /// For the body of a request, beside the time that its bytes give it.
    body: Duration,
}

impl From<ListenLimits> for ClientPatience {
    fn from(limits: ListenLimits) -> Self {
        Self { next: limits.idle_timeout, body: limits.body_timeout }
    }
}

/// How far the answer is.
enum AnswerProgress {
    None,
    /// The head waits for what is written first.
    Promised(Box<ResponseHeader>),
    /// The head is written.
    Begun,
    Ended,
    /// The client is gone or was cut off, or a write was abandoned half way: nothing more can be said.
    Lost,
}

/// What is left of the connection.
pub(super) enum ConnectionEnd {
    /// It may carry another request.
    Reusable(ReusableHttpStream),
    /// It was answered, but the body of the request was not read to its end.
    Unread(Stream),
    Closed,
}

impl HttpExchange {
    pub(super) fn new(
        session: ServerSession,
        peer: Peer,
        patience: ClientPatience,
        (closing, bodies): (Arc<AtomicBool>, Arc<Quota>),
        line: Option<Arc<ConnectionState>>,
    ) -> Self {
        Self {
            session,
            peer,
            caller: None,
            ends: None,
            patience,
            closing,
            bodies,
            kept_body: None,
            forwarded_host: None,
            line,
            answer: AnswerProgress::None,
            sent: 0,
        }
    }

    /// The method, in upper case.
    pub fn method(&self) -> &str {
        self.session.req_header().method.as_str()
    }

    /// The path, without the query.
    pub fn path(&self) -> &str {
        self.session.req_header().uri.path()
    }

    /// The query, without its question mark.
    pub fn query(&self) -> Option<&str> {
        self.session.req_header().uri.query()
    }

    /// The first header of this name, if it is text.
    pub fn header(&self, name: impl AsHeaderName) -> Option<&str> {
        http::text(self.value(name)?)
    }

    /// The first header of this name.
    pub fn value(&self, name: impl AsHeaderName) -> Option<&HeaderValue> {
        self.session.get_header(name)
    }

    /// All cookies, as in one `Cookie` header: with HTTP/2 they may come in several (RFC 9113 §8.2.3).
    pub fn cookies(&self) -> String {
        let all = self.headers().filter(|(name, _)| name.as_str() == "cookie");
        all.filter_map(|(_, value)| value.to_str().ok()).collect::<Vec<_>>().join("; ")
    }

    /// `Host`, or what HTTP/2 has in its place (RFC 9113 §8.3.1).
    pub fn host(&self) -> Option<&str> {
        let forwarded = self.forwarded_host.as_deref();
        forwarded
            .or_else(|| self.header(HOST))
            .or_else(|| self.session.req_header().uri.authority().map(|authority| authority.as_str()))
    }

    /// All headers.
    pub fn headers(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.session.req_header().headers.iter()
    }

    /// Who sent it, as far as they have proved it; none where everybody may.
    pub const fn caller(&self) -> Option<&Arc<Caller>> {
        self.caller.as_ref()
    }

    /// When what they have shown is no longer good; none if there is no end to it.
    pub const fn ends(&self) -> Option<SystemTime> {
        self.ends
    }

    /// Notes who sent it, and until when what they have shown is good.
    pub fn set_caller(&mut self, caller: Option<Arc<Caller>>, ends: Option<SystemTime>) {
        (self.caller, self.ends) = (caller, ends);
    }

    /// Where it came from: the other end of the connection.
    pub fn peer(&self) -> SocketAddr {
        self.peer.address
    }

    /// The certificate that the client has shown, if any.
    #[must_use]
    pub fn certificate(&self) -> Option<&ClientCertificate> {
        self.peer.certificate.as_deref()
    }

    /// Whose share of what all share it uses: that of its principal, or of its address where nobody proves who they are.
    pub fn principal(&self) -> &Arc<str> {
        self.caller.as_ref().filter(|caller| !caller.is_local()).map_or(&self.peer.share, |caller| caller.id())
    }

    /// How many bytes of the answer's body are out.
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Reads the body, up to `cap` bytes. A body whose length is known to be more is not read at all.
    ///
    /// # Errors
    ///
    /// When it is larger, late, or not whole. It can still be answered, and is closed after that.
    pub async fn read_body(&mut self, cap: usize) -> Result<Bytes, BodyError> {
        if let Some(body) = self.kept_body.take() {
            return if body.len() > cap { Err(BodyError::TooLarge) } else { Ok(body) };
        }
        let length = self.header(CONTENT_LENGTH.as_str()).and_then(|length| length.trim().parse::<usize>().ok());
        if length.is_some_and(|length| length > cap) {
            return Err(BodyError::TooLarge);
        }
        let mut room = self.room(length.unwrap_or_default())?;
        self.welcome().await?;
        let start = Instant::now();
        let Some(first) = self.body_part(start, 0).await? else { return Ok(Bytes::new()) };
        // The usual body comes in one piece and is not copied again.
        if length == Some(first.len()) {
            return Ok(with_room(first, room));
        }
        if first.len() > cap {
            return Err(BodyError::TooLarge);
        }
        let mut whole = BytesMut::with_capacity(length.unwrap_or(2 * first.len()));
        whole.extend_from_slice(&first);
        while let Some(part) = self.body_part(start, whole.len()).await? {
            let read = whole.len() + part.len();
            if read > cap {
                return Err(BodyError::TooLarge);
            }
            if room.is_none() && read > SMALL {
                // Nobody knows how long it will be.
                room = self.room(cap)?;
            }
            whole.extend_from_slice(&part);
        }
        if length.is_none() && room.take().is_some() {
            room = self.room(whole.len())?;
        }
        Ok(with_room(whole.freeze(), room))
    }

    /// Gives back a body that was [read](Self::read_body), for whoever reads it next.
    pub fn keep_body(&mut self, body: Bytes) {
        self.kept_body = Some(body);
    }

    /// Notes that the other end passes on what somebody else has sent, who has proved there who they are.
    pub fn speak_for(
        &mut self,
        peer: SocketAddr,
        host: Option<String>,
        caller: Option<Arc<Caller>>,
        ends: Option<SystemTime>,
    ) {
        (self.peer, self.forwarded_host) = (Peer::new(peer), host);
        self.set_caller(caller, ends);
    }

    /// Writes a whole answer, head and body at once.
    pub async fn respond(&mut self, status: u16, headers: &[(HeaderName, HeaderValue)], body: Bytes) {
        self.start(status, headers, Some(body.len())).await;
        let bodiless = matches!(status, 204 | 304) || self.method() == "HEAD";
        self.part(if bodiless { Bytes::new() } else { body }, true).await;
    }

    /// Begins an answer whose body follows; without a length it is a stream.
    ///
    /// The head of a stream leaves together with what is written first, or when [`gone`](Self::gone) is awaited.
    pub async fn start(&mut self, status: u16, headers: &[(HeaderName, HeaderValue)], length: Option<usize>) {
        if !matches!(self.answer, AnswerProgress::None) {
            return;
        }
        self.answer = AnswerProgress::Lost;
        let chunked = length.is_none() && self.session.req_header().version == Version::HTTP_11;
        let Ok(head) = head(status, headers, length, chunked).map(Box::new) else { return };
        if self.closing.load(Ordering::Relaxed) {
            self.session.set_keepalive(None);
        }
        if length.is_none() {
            self.answer = AnswerProgress::Promised(head);
        } else if matches!(timeout(self.patience.next, self.session.write_response_header(head)).await, Ok(Ok(()))) {
            self.answer = AnswerProgress::Begun;
        }
    }

    /// Writes a piece of the body; false if nobody is there to read it. In a stream it leaves at once.
    pub async fn write(&mut self, bytes: Bytes) -> bool {
        self.part(bytes, false).await
    }

    /// Ends the body.
    pub async fn end(&mut self) {
        self.part(Bytes::new(), true).await;
    }

    /// Writes the last piece of the body and ends it, both at once; false if nobody is there to read it.
    pub async fn end_with(&mut self, bytes: Bytes) -> bool {
        self.part(bytes, true).await
    }

    /// Ends the connection, so that the client sees that the answer is not whole.
    pub fn cut(&mut self) {
        self.answer = AnswerProgress::Lost;
    }

    /// Ends the connection, whose client is not there any more, while its request goes on.
    pub async fn leave(&mut self) {
        /// For the last words of TLS.
        const CLOSE_LIMIT: Duration = Duration::from_secs(1);
        self.answer = AnswerProgress::Lost;
        drop(timeout(CLOSE_LIMIT, self.session.shutdown()).await);
    }

    /// Resolves when the client has gone away: it closed its side, or gave up the stream. Cancel-safe.
    pub async fn gone(&mut self) {
        match std::mem::replace(&mut self.answer, AnswerProgress::Lost) {
            AnswerProgress::Promised(head) => {
                // Before the wait, which may be dropped: what is gathered by then is not lost.
                self.answer = AnswerProgress::Begun;
                self.hold(false);
                if self.session.write_response_header(head).await.is_err() {
                    self.answer = AnswerProgress::Lost;
                }
            }
            answer => self.answer = answer,
        }
        if matches!(self.answer, AnswerProgress::Lost) {
            return;
        }
        // The next request may come early on the same connection; it is kept for later, and what comes behind it is looked
        // at too.
        let _watched = self.line.clone().map(ConnectionState::watched);
        while self.session.read_body_or_idle(true).await.is_ok() {}
        self.answer = AnswerProgress::Lost;
    }

    /// Ends the exchange.
    pub(super) async fn finish(mut self) -> ConnectionEnd {
        if matches!(self.answer, AnswerProgress::None) {
            self.respond(500, &[], Bytes::new()).await;
        }
        if !matches!(self.answer, AnswerProgress::Ended) {
            if let ServerSession::H2(session) = &mut self.session {
                // Or the client would take the stream for whole.
                session.shutdown();
            }
            return ConnectionEnd::Closed;
        }
        let unread = !self.session.is_body_done();
        match self.session {
            ServerSession::H1(session) if unread => ConnectionEnd::Unread(session.into_inner()),
            session => match timeout(self.patience.next, session.finish()).await {
                Ok(Ok(Some(stream))) => ConnectionEnd::Reusable(stream),
                _ => ConnectionEnd::Closed,
            },
        }
    }

    async fn part(&mut self, bytes: Bytes, last: bool) -> bool {
        // Whoever drops this future before its end must not write behind half a chunk.
        let head = match std::mem::replace(&mut self.answer, AnswerProgress::Lost) {
            AnswerProgress::Promised(head) => Some(head),
            AnswerProgress::Begun => None,
            answer => {
                self.answer = answer;
                return false;
            }
        };
        let (patience, length) = (self.patience.next, bytes.len());
        if !matches!(timeout(patience, self.write_all(head, bytes, last)).await, Ok(Ok(()))) {
            return false;
        }
        self.sent += length as u64;
        self.answer = if last { AnswerProgress::Ended } else { AnswerProgress::Begun };
        true
    }

    /// Writes what is there and lets only the last of it be flushed.
    async fn write_all(
        &mut self,
        head: Option<Box<ResponseHeader>>,
        bytes: Bytes,
        last: bool,
    ) -> pingora_core::Result<()> {
        if let Some(head) = head {
            self.hold(last || !bytes.is_empty());
            self.session.write_response_header(head).await?;
        }
        if self.session.is_http2() {
            return self.session.write_response_body(bytes, last).await;
        }
        if !bytes.is_empty() {
            self.hold(last);
            self.session.write_response_body(bytes, false).await?;
        }
        if last {
            self.hold(false);
            self.session.write_response_body(Bytes::new(), true).await?;
        }
        Ok(())
    }

    fn hold(&self, held: bool) {
        if let Some(line) = &self.line {
            line.hold(held);
        }
    }

    /// Room for a body, if it is large.
    fn room(&self, size: usize) -> Result<Option<Permit>, BodyError> {
        let room = || self.bodies.take_many(self.principal(), None, size).map_err(BodyError::Full);
        (size > SMALL).then(room).transpose()
    }

    /// The next part of a body that was begun at `start` and of which so many bytes are here.
    async fn body_part(&mut self, start: Instant, read: usize) -> Result<Option<Bytes>, BodyError> {
        let earned = Duration::from_secs((read / LEAST_RATE) as u64);
        let end = (start + self.patience.body + earned).min(Instant::now() + self.patience.next);
        let read = timeout_at(end, self.session.read_request_body()).await;
        read.map_err(|_| BodyError::TimedOut)?.map_err(|_| BodyError::BrokenOff)
    }

    /// Tells a client that asked whether it may send its body that it may (RFC 9110 §10.1.1).
    async fn welcome(&mut self) -> Result<(), BodyError> {
        let asks = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
        if self.session.is_http2() || !self.session.get_header(EXPECT).is_some_and(asks) {
            return Ok(());
        }
        let written = timeout(self.patience.next, self.session.write_continue_response()).await;
        written.map_err(|_| BodyError::TimedOut)?.map_err(|_| BodyError::BrokenOff)
    }
}

fn head(
    status: u16,
    headers: &[(HeaderName, HeaderValue)],
    length: Option<usize>,
    chunked: bool,
) -> pingora_core::Result<ResponseHeader> {
    // Date, Connection and the framing come to it.
    let mut head = ResponseHeader::build_no_case(status, Some(headers.len() + 3))?;
    for (name, value) in headers {
        head.append_header(name.clone(), value.clone())?;
    }
    match length {
        // These have no body, and must not speak of one (RFC 9110 §8.6).
        _ if matches!(status, 204 | 304) => {}
        Some(length) => drop(head.append_header(CONTENT_LENGTH, HeaderValue::from(length))?),
        None if chunked => drop(head.append_header(TRANSFER_ENCODING, HeaderValue::from_static("chunked"))?),
        None => {}
    }
    Ok(head)
}
