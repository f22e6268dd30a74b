//! One request and its answer.

use std::time::Duration;

use ::http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use bytes::{Bytes, BytesMut};
use pingora_core::protocols::{Stream, http::ServerSession};
use pingora_http::ResponseHeader;

use crate::http::{HeaderName, HeaderValue};

/// Why a body could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// More than is allowed.
    TooLarge,
    /// Nothing came for too long.
    TimedOut,
    /// The client went away.
    BrokenOff,
}

/// One request and its answer.
pub struct Exchange {
    session: ServerSession,
    /// Whether the connection may carry another request.
    reusable: bool,
}

impl Exchange {
    pub(super) fn new(mut session: ServerSession, idle: Duration) -> Self {
        session.set_read_timeout(Some(idle));
        // A client that does not read must not hold a call for ever.
        session.set_write_timeout(Some(idle));
        // What a client still sends after its answer is not waited for.
        session.set_total_drain_timeout(Some(Duration::from_secs(1)));
        Self { session, reusable: true }
    }

    /// The method, in upper case.
    #[must_use]
    pub fn method(&self) -> &str {
        self.session.req_header().method.as_str()
    }

    /// The path, without the query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.session.req_header().uri.path()
    }

    /// The first header of this name, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.value(name)?.to_str().ok()
    }

    /// The first header of this name.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&HeaderValue> {
        self.session.get_header(name)
    }

    /// `Host`, or what HTTP/2 has in its place (RFC 9113 §8.3.1).
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.header("host").or_else(|| self.session.req_header().uri.authority().map(|authority| authority.as_str()))
    }

    /// All headers.
    pub fn headers(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.session.req_header().headers.iter()
    }

    /// Reads the body, up to `cap` bytes.
    ///
    /// # Errors
    ///
    /// When it is larger, late, or not whole.
    pub async fn read_body(&mut self, cap: usize) -> Result<Bytes, BodyError> {
        let length = self.header(CONTENT_LENGTH.as_str()).and_then(|length| length.trim().parse::<usize>().ok());
        if length.is_some_and(|length| length > cap) {
            self.reusable = false;
            return Err(BodyError::TooLarge);
        }
        let first = self.body_part().await?.unwrap_or_default();
        // The usual body comes in one piece and is not copied again.
        if length == Some(first.len()) {
            return Ok(first);
        }
        let mut whole = BytesMut::with_capacity(length.unwrap_or(2 * first.len()));
        whole.extend_from_slice(&first);
        while let Some(part) = self.body_part().await? {
            if whole.len() + part.len() > cap {
                self.reusable = false;
                return Err(BodyError::TooLarge);
            }
            whole.extend_from_slice(&part);
        }
        Ok(whole.freeze())
    }

    /// Writes a whole answer, head and body at once.
    pub async fn respond(&mut self, status: u16, headers: &[(HeaderName, HeaderValue)], body: Bytes) {
        self.start(status, headers, Some(body.len())).await;
        if self.reusable && self.session.write_response_body(body, true).await.is_err() {
            self.reusable = false;
        }
    }

    /// Writes the head of an answer whose body follows; without a length it is a stream.
    pub async fn start(&mut self, status: u16, headers: &[(HeaderName, HeaderValue)], length: Option<usize>) {
        let Ok(head) = response(status, headers, length) else {
            self.reusable = false;
            return;
        };
        let draining = self.session.get_keepalive().is_none();
        if self.session.write_response_header(Box::new(head)).await.is_err() || draining {
            self.reusable &= !draining;
        }
    }

    /// Writes a piece of the body at once; false if nobody is there to read it.
    pub async fn write(&mut self, bytes: Bytes) -> bool {
        let written = self.session.write_response_body(bytes, false).await.is_ok();
        self.reusable &= written;
        written
    }

    /// Ends the body.
    pub async fn end(&mut self) {
        if self.session.write_response_body(Bytes::new(), true).await.is_err() {
            self.reusable = false;
        }
    }

    /// Ends the connection, so that the client sees that the answer is not whole.
    pub fn cut(&mut self) {
        self.reusable = false;
    }

    /// Resolves when the client has gone away. Cancel-safe.
    pub async fn gone(&mut self) {
        while let Ok(Some(_)) = self.session.read_body_or_idle(true).await {}
        self.reusable = false;
    }

    /// Ends the exchange; gives the connection back if it may carry another request.
    pub(super) async fn finish(mut self) -> Option<Stream> {
        if !self.reusable {
            self.session.shutdown().await;
            return None;
        }
        let reusable = self.session.finish().await.ok()??;
        let (stream, _) = reusable.into_parts();
        Some(stream)
    }

    async fn body_part(&mut self) -> Result<Option<Bytes>, BodyError> {
        self.session.read_request_body().await.map_err(|error| {
            self.reusable = false;
            match error.etype {
                pingora_core::ErrorType::ReadTimedout => BodyError::TimedOut,
                _ => BodyError::BrokenOff,
            }
        })
    }
}

fn response(
    status: u16,
    headers: &[(HeaderName, HeaderValue)],
    length: Option<usize>,
) -> pingora_core::Result<ResponseHeader> {
    let mut head = ResponseHeader::build_no_case(status, Some(headers.len() + 1))?;
    for (name, value) in headers {
        head.append_header(name.clone(), value.clone())?;
    }
    match length {
        Some(length) => head.append_header(CONTENT_LENGTH, HeaderValue::from(length))?,
        None => head.append_header(TRANSFER_ENCODING, HeaderValue::from_static("chunked"))?,
    };
    Ok(head)
}
