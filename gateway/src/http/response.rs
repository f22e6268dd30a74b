//! An answer whose head is here and whose body is pulled.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use ::http::header::{CONTENT_LENGTH, RETRY_AFTER};
use bytes::{Bytes, BytesMut};
use pingora_core::protocols::{Stream, http::client::HttpSession};
use pingora_http::ResponseHeader;
use tokio::time::timeout;

use super::{
    Error, HeaderName, HeaderValue,
    connection_pool::{BusyConnection, ConnectionPool},
    drain::Drain,
};

/// An answer. Dropping it before its body was read to the end closes its connection, or resets its stream of HTTP/2;
/// [`finish`](Self::finish) does not unless it must.
pub struct Response {
    body: HttpBody,
    pool: Arc<ConnectionPool>,
    /// Until the connection is given back.
    busy: Option<BusyConnection>,
    patience: Option<Duration>,
    /// Whether the connection may carry another request after this one.
    reusable: bool,
}

/// The head stays with the session, from which it can only be copied, until the connection is given back.
enum HttpBody {
    Open(Box<HttpSession>),
    Ended(Box<ResponseHeader>),
}

impl Response {
    /// None if the session has read no head.
    pub(super) fn new(
        session: HttpSession,
        (pool, busy): (&Arc<ConnectionPool>, BusyConnection),
        patience: Duration,
        reusable: bool,
    ) -> Option<Self> {
        session.response_header()?;
        let body = HttpBody::Open(Box::new(session));
        let (pool, busy) = (Arc::clone(pool), Some(busy));
        Some(Self { body, pool, busy, patience: Some(patience), reusable })
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.head().map_or(0, |head| head.status.as_u16())
    }

    /// The first header of this name.
    pub fn header(&self, name: &HeaderName) -> Option<&HeaderValue> {
        self.head()?.headers.get(name)
    }

    /// All headers.
    pub fn headers(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.head().into_iter().flat_map(|head| head.headers.iter())
    }

    /// How long the server wants to be left alone (RFC 9110 §10.2.3); a date that has passed means not at all.
    pub fn retry_after(&self) -> Option<Duration> {
        let after = self.header(&RETRY_AFTER)?.to_str().ok()?;
        match after.parse() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => {
                Some(httpdate::parse_http_date(after).ok()?.duration_since(SystemTime::now()).unwrap_or_default())
            }
        }
    }

    /// The length of the body, where the head tells.
    pub fn content_length(&self) -> Option<usize> {
        self.header(&CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
    }

    /// How long to wait for the next bytes; none for as long as it takes.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.patience = timeout;
    }

    /// The next piece of the body as it came; none at its end. Cancel-safe.
    ///
    /// # Errors
    ///
    /// When the connection breaks or falls silent.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let HttpBody::Open(session) = &mut self.body else { return Ok(None) };
            let chunk = match self.patience {
                Some(patience) => {
                    timeout(patience, session.read_response_body()).await.map_err(|_| Error::ReadTimeout)?
                }
                None => session.read_response_body().await,
            };
            let chunk = chunk.map_err(|error| Error::reading(&error))?;
            self.give_back_if_done().await;
            // Pingora hands on an empty piece when only the end of a chunk came.
            match chunk {
                Some(chunk) if chunk.is_empty() => {}
                chunk => return Ok(chunk),
            }
        }
    }

    /// The whole body.
    ///
    /// # Errors
    ///
    /// As [`chunk`](Self::chunk), and when it is longer than `limit` bytes.
    pub async fn collect(mut self, limit: usize) -> Result<Bytes, Error> {
        let length = self.content_length();
        if length.is_some_and(|length| length > limit) {
            return Err(Error::TooLarge(limit));
        }
        let first = self.chunk().await?.unwrap_or_default();
        if length == Some(first.len()) {
            return Ok(first);
        }
        let mut whole = BytesMut::from(first);
        if let Some(length) = length {
            whole.reserve(length.saturating_sub(whole.len()));
        }
        while let Some(chunk) = self.chunk().await? {
            if whole.len() + chunk.len() > limit {
                return Err(Error::TooLarge(limit));
            }
            whole.extend_from_slice(&chunk);
        }
        if whole.len() > limit { Err(Error::TooLarge(limit)) } else { Ok(whole.freeze()) }
    }

    /// Takes no more of the body, of which only the end should be missing, and keeps the connection if it is no more.
    pub fn finish(self) {
        let HttpBody::Open(session) = self.body else { return };
        if self.reusable {
            self.pool.put_rest(Drain::new(session));
        }
    }

    fn head(&self) -> Option<&ResponseHeader> {
        match &self.body {
            HttpBody::Open(session) => session.response_header(),
            HttpBody::Ended(head) => Some(head),
        }
    }

    /// Gives the connection back if nothing of the body is missing, as behind the head of a 202.
    pub(super) async fn give_back_if_done(&mut self) {
        let HttpBody::Open(session) = &mut self.body else { return };
        if !is_done(session) {
            return;
        }
        let Some(head) = session.response_header() else { return };
        let ended = HttpBody::Ended(Box::new(head.clone()));
        let HttpBody::Open(session) = std::mem::replace(&mut self.body, ended) else { return };
        self.busy = None;
        if self.reusable
            && let Some((stream, promised)) = kept(session).await
        {
            self.pool.put(stream, promised);
        }
    }
}

/// Whether a body was read to its end.
pub(super) fn is_done(session: &mut HttpSession) -> bool {
    match session {
        // A stream that was reset has ended too, and its body has not.
        HttpSession::H2(session) => matches!(session.check_response_end_or_error(), Ok(true)),
        session => session.response_done(),
    }
}

/// The connection of an answer that was read to its end, and for how long its server said to keep it; none if it cannot
/// carry another request, or carries others already.
pub(super) async fn kept(session: Box<HttpSession>) -> Option<(Stream, Option<Duration>)> {
    let HttpSession::H1(mut session) = *session else { return None };
    let promised = promised(session.resp_header()?);
    session.respect_keepalive();
    if !session.will_keepalive() {
        return None;
    }
    session.reuse().await.map(|stream| (stream, promised))
}

/// A name that is no text need not be read for each answer.
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// `Keep-Alive: timeout=5`: how long the server will keep the connection (Node's does so for five seconds).
fn promised(head: &ResponseHeader) -> Option<Duration> {
    let value = head.headers.get(KEEP_ALIVE)?.to_str().ok()?;
    let seconds = value.split(',').find_map(|part| part.trim().strip_prefix("timeout=")?.parse().ok())?;
    Some(Duration::from_secs(seconds))
}
