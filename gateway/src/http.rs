//! Outgoing HTTP/1.1 over pingora's connector: a keep-alive pool, TLS with the system's roots, and nothing of MCP.
//!
//! A body is pulled piece by piece as it comes; the connection goes back to the pool when its end has been read and is
//! closed when the response is dropped before. Nothing is repeated here: whether a request may be sent again is decided
//! by `weir_flow`, which is told what may have happened ([`Error::may_have_run`]).

mod error;
mod response;
mod target;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use pingora_core::{
    connectors::http::v1::Connector, protocols::http::v1::client::HttpSession, upstreams::peer::HttpPeer,
};
use pingora_http::RequestHeader;

use ::http::header::{CONTENT_LENGTH, HOST, LOCATION};
pub use ::http::{
    HeaderName, HeaderValue, Method,
    header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, USER_AGENT, WWW_AUTHENTICATE},
};

pub use error::Error;
pub use response::Response;
pub use target::{Origin, Target};

/// `Last-Event-ID`
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static(weir_mcp::headers::LAST_EVENT_ID);
/// `Mcp-Method`
pub const MCP_METHOD: HeaderName = HeaderName::from_static(weir_mcp::headers::METHOD);
/// `Mcp-Name`
pub const MCP_NAME: HeaderName = HeaderName::from_static(weir_mcp::headers::NAME);
/// `MCP-Protocol-Version`
pub const MCP_PROTOCOL_VERSION: HeaderName = HeaderName::from_static(weir_mcp::headers::PROTOCOL_VERSION);
/// `Mcp-Session-Id`
pub const MCP_SESSION_ID: HeaderName = HeaderName::from_static(weir_mcp::headers::SESSION_ID);

/// How often a request follows its server elsewhere.
const MAX_REDIRECTS: usize = 3;

/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(90);

/// An HTTP client. One for the whole process; clones share its connections.
#[derive(Clone)]
pub struct Client {
    connector: Arc<Connector>,
}

/// How long to wait for a server.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For a connection, TLS included.
    pub connect: Duration,
    /// For the next bytes of an answer.
    pub read: Duration,
}

/// One request.
pub struct Request<'a> {
    /// The method.
    pub method: Method,
    /// The headers, but for `Host` and `Content-Length`.
    pub headers: &'a [(HeaderName, HeaderValue)],
    /// The body.
    pub body: Option<Bytes>,
}

impl Client {
    /// A client without connections.
    #[must_use]
    pub fn new() -> Self {
        Self { connector: Arc::new(Connector::new(None)) }
    }

    /// Sends a request and returns when the head of the answer is here.
    ///
    /// Follows redirects within the origin only: 307 and 308 always, 301, 302 and 303 for GET (RFC 9110 §15.4).
    ///
    /// # Errors
    ///
    /// When there is no answer, or one that leads elsewhere.
    pub async fn send(&self, target: &Target, request: Request<'_>) -> Result<Response, Error> {
        let mut path = None;
        for _ in 0..=MAX_REDIRECTS {
            let current: &str = path.as_deref().unwrap_or_else(|| target.path());
            let response = self.send_to(target, current, &request).await?;
            let follows = match response.status() {
                307 | 308 => true,
                301..=303 => request.method == Method::GET,
                _ => false,
            };
            let Some(location) = response.header(&LOCATION).filter(|_| follows) else { return Ok(response) };
            path = Some(target.redirected(current, location)?);
            // Read to its end, so that the connection can be used again.
            drop(response.collect(64 * 1024).await);
        }
        Err(Error::TooManyRedirects)
    }

    async fn send_to(&self, target: &Target, path: &str, request: &Request<'_>) -> Result<Response, Error> {
        let head = head(target, path, request)?;
        let (mut session, peer, reused) = self.connect(target).await?;
        session.read_timeout = peer.options.read_timeout;
        session.write_timeout = peer.options.write_timeout;
        let broken = |error: Box<pingora_core::Error>| Error::after_sending(&error, reused);
        session.write_request_header(head).await.map_err(broken)?;
        if let Some(body) = &request.body {
            session.write_body(body).await.map_err(broken)?;
            session.finish_body().await.map_err(broken)?;
        }
        loop {
            session.read_response().await.map_err(broken)?;
            // 1xx is only an announcement (RFC 9110 §15.2).
            if !session.get_status().is_some_and(|status| status.is_informational() && status != 101) {
                break;
            }
        }
        Response::new(session, Arc::clone(&self.connector), peer).ok_or(Error::BadResponse)
    }

    /// A connection to the first address that takes one.
    async fn connect(&self, target: &Target) -> Result<(HttpSession, Arc<HttpPeer>, bool), Error> {
        let mut failure = None;
        for peer in target.peers().await?.iter() {
            match self.connector.get_http_session(peer.as_ref()).await {
                Ok((session, reused)) => return Ok((session, Arc::clone(peer), reused)),
                Err(error) => failure = Some(Error::connecting(&error)),
            }
        }
        Err(failure.unwrap_or(Error::Resolve))
    }
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

fn head(target: &Target, path: &str, request: &Request<'_>) -> Result<Box<RequestHeader>, Error> {
    let size = request.headers.len() + 2;
    let bad = |_| Error::BadRequest;
    // Names go out in lower case, which spares a map of how they were spelt.
    let mut head = RequestHeader::build_no_case(request.method.clone(), path.as_bytes(), Some(size)).map_err(bad)?;
    head.append_header(HOST, target.host().clone()).map_err(bad)?;
    for (name, value) in request.headers {
        head.append_header(name.clone(), value.clone()).map_err(bad)?;
    }
    if let Some(body) = &request.body {
        head.append_header(CONTENT_LENGTH, HeaderValue::from(body.len())).map_err(bad)?;
    }
    Ok(Box::new(head))
}

#[cfg(test)]
mod tests;
