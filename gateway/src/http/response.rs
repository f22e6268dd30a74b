//! An answer whose head is here and whose body is pulled.

use std::{sync::Arc, time::Duration};

use ::http::header::CONTENT_LENGTH;
use bytes::{Bytes, BytesMut};
use pingora_core::{
    connectors::http::v1::Connector, protocols::http::v1::client::HttpSession, upstreams::peer::HttpPeer,
};

use super::{Error, HeaderName, HeaderValue, IDLE};

/// An answer.
pub struct Response {
    /// None once the body's end has been read and the connection given back.
    session: Option<HttpSession>,
    head: pingora_http::ResponseHeader,
    connector: Arc<Connector>,
    peer: Arc<HttpPeer>,
}

impl Response {
    pub(super) fn new(mut session: HttpSession, connector: Arc<Connector>, peer: Arc<HttpPeer>) -> Option<Self> {
        session.respect_keepalive();
        let head = session.resp_header()?.clone();
        Some(Self { session: Some(session), head, connector, peer })
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.head.status.as_u16()
    }

    /// The first header of this name.
    #[must_use]
    pub fn header(&self, name: &HeaderName) -> Option<&HeaderValue> {
        self.head.headers.get(name)
    }

    /// The length of the body, where the head tells.
    #[must_use]
    pub fn content_length(&self) -> Option<usize> {
        self.header(&CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
    }

    /// How long to wait for the next bytes; none for as long as it takes.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        if let Some(session) = &mut self.session {
            session.read_timeout = timeout;
        }
    }

    /// The next piece of the body; none at its end. Cancel-safe.
    ///
    /// # Errors
    ///
    /// When the connection breaks or falls silent.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(session) = &mut self.session else { return Ok(None) };
        let chunk = session.read_body_bytes().await.map_err(|error| Error::after_sending(&error, false))?;
        if chunk.is_none() || session.is_body_done() {
            self.give_back().await;
        }
        Ok(chunk)
    }

    /// The whole body.
    ///
    /// # Errors
    ///
    /// As [`chunk`](Self::chunk), and when it is longer than `limit` bytes.
    pub async fn collect(mut self, limit: usize) -> Result<Bytes, Error> {
        if self.content_length().is_some_and(|length| length > limit) {
            return Err(Error::TooLarge(limit));
        }
        let Some(first) = self.chunk().await? else { return Ok(Bytes::new()) };
        if self.session.is_none() {
            return if first.len() > limit { Err(Error::TooLarge(limit)) } else { Ok(first) };
        }
        let mut whole = BytesMut::from(first);
        while let Some(chunk) = self.chunk().await? {
            if whole.len() + chunk.len() > limit {
                return Err(Error::TooLarge(limit));
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.freeze())
    }

    async fn give_back(&mut self) {
        if let Some(session) = self.session.take() {
            self.connector.release_http_session(session, self.peer.as_ref(), Some(IDLE)).await;
        }
    }
}
