//! Outgoing HTTP: pingora's connector and client sessions, a pool of connections, and nothing of MCP.
//!
//! A server that agrees to HTTP/2 (ALPN) has one connection for all requests, any other is spoken to in HTTP/1.1.
//!
//! A body is pulled piece by piece as it comes. When its end has been read, the connection goes back to the pool. When the
//! response is dropped before, the connection is closed, or the stream of HTTP/2 reset. Nothing is repeated here: whether a
//! request may be sent again is decided by `weir_flow`, which is told what may have happened ([`Error::may_have_run`]).
//!
//! Two parts of pingora's client for HTTP/1.1 are left out because of what they cost on every call. Its session writes head
//! and body apart (two segments, two system calls) and builds a map of headers first: here both leave in one write. Its
//! pool wakes a task when a connection is taken and starts one when it is put back: here the pool does without.

mod address_cache;
mod dial;
mod error;
mod response;
mod drain;
mod multiplexed;
mod connection_pool;
mod target;
mod tunnel;

use std::{sync::Arc, time::Duration};

use ::http::header::LOCATION;
use bytes::{Buf, Bytes};
use pingora_core::protocols::{
    Stream,
    http::{client::HttpSession, v1},
};
use pingora_rustls::ClientConfig;
use tokio::{io::AsyncWriteExt, time::timeout};
use url::Url;
use weir_oauth::ForwardProxies;

pub use ::http::{
    HeaderName, HeaderValue, Method,
    header::{
        ACCEPT, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, ORIGIN, RETRY_AFTER, USER_AGENT, WWW_AUTHENTICATE,
    },
};

pub use error::Error;
pub use response::Response;
pub use target::{HttpProxy, HttpTarget};
pub use tunnel::Tunnel;

use connection_pool::Connection;
use dial::Dialer;

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

/// How many announcements (1xx) may come before the answer.
const MAX_ANNOUNCEMENTS: usize = 8;

/// The body of a redirect that is read so that the connection can be used again, in bytes.
const REDIRECT_BODY: usize = 64 * 1024;

/// Up to here a body is copied behind its head, in bytes; a longer one is handed to the socket beside it.
const COPIED_BODY: usize = 16 * 1024;

/// An HTTP client. One for the whole process; clones share its TLS roots. Idle connections belong to the [`HttpTarget`].
#[derive(Clone)]
pub struct HttpClient {
    dialer: Dialer,
    proxies: ForwardProxies,
    /// How many connections to one target may be in use.
    most: usize,
}

/// How long to wait for a server.
#[derive(Clone, Copy, Debug)]
pub struct HttpTimeouts {
    /// For a connection: name, TCP and TLS together.
    pub connect: Duration,
    /// For the next bytes of an answer, and for the server to take the request.
    pub read: Duration,
}

/// One request.
pub struct Request<'a> {
    /// The method; not `HEAD`, whose answers have a length and no body.
    pub method: Method,
    /// The headers. Those that frame the message are Weir's own and are left out if they are here.
    pub headers: &'a [(HeaderName, HeaderValue)],
    /// The body.
    pub body: Option<Bytes>,
}

impl Default for HttpClient {
    fn default() -> Self {
        Self::new()
    }
}

impl HttpClient {
    /// A client without connections, which uses the forward proxies of the environment. The system's roots are read when
    /// the first `https` connection is made.
    pub fn new() -> Self {
        Self { dialer: Dialer::default(), proxies: ForwardProxies::from_env(), most: usize::MAX }
    }

    /// A client whose connections this secures, and which uses no forward proxy.
    pub fn secured_by(config: Arc<ClientConfig>) -> Self {
        Self { dialer: Dialer::secured_by(config), proxies: ForwardProxies::default(), most: usize::MAX }
    }

    /// The same with so many connections in use at once for each target.
    pub fn limited(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// One URL to send requests to; nothing is resolved yet.
    ///
    /// # Errors
    ///
    /// When it is neither `http` nor `https`, has no host, or the environment names a proxy for it that is not one.
    pub fn target(&self, url: &Url, timeouts: HttpTimeouts) -> Result<HttpTarget, Error> {
        let proxy = self.proxies.for_url(url).map_err(|error| Error::Proxy(error.to_string()))?;
        HttpTarget::new(url, timeouts, proxy)
    }

    /// Sends a request and returns when the head of the answer is here.
    ///
    /// Follows redirects within the origin only: 307 and 308 always, 301, 302 and 303 for GET (RFC 9110 §15.4). The
    /// overall deadline is the caller's: dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// When there is no answer, or one that leads elsewhere.
    pub async fn send(&self, target: &HttpTarget, request: Request<'_>) -> Result<Response, Error> {
        let mut response = self.send_to(target, None, &request).await?;
        let mut path = None;
        for _ in 0..MAX_REDIRECTS {
            let Some(location) = redirect(&response, &request.method) else { return Ok(response) };
            let next = target.redirected(path.as_deref(), location)?;
            drop(response.collect(REDIRECT_BODY).await);
            response = self.send_to(target, Some(&next), &request).await?;
            path = Some(next);
        }
        if redirect(&response, &request.method).is_some() { Err(Error::TooManyRedirects) } else { Ok(response) }
    }

    /// Sends a request for another path of the target's origin. Follows no redirect.
    ///
    /// # Errors
    ///
    /// When there is no answer.
    pub async fn send_at(&self, target: &HttpTarget, path: &str, request: Request<'_>) -> Result<Response, Error> {
        self.send_to(target, Some(path), &request).await
    }

    async fn send_to(&self, target: &HttpTarget, path: Option<&str>, request: &Request<'_>) -> Result<Response, Error> {
        let busy = target.pool.busy(self.most)?;
        let connection = match target.pool.take().await {
            Some(connection) => connection,
            // Boxed, here as wherever few calls come by: the state of a handshake would be part of every call's.
            None => Box::pin(self.dialer.connect(target)).await?,
        };
        let (session, reusable) = match connection {
            Connection::Http1(stream) => {
                let line = path.map(|path| target.line_to(path));
                let line = line.as_deref().unwrap_or(&target.line);
                let (session, sent) = exchange(stream, line, request, target.timeouts.read).await?;
                (HttpSession::H1(session), sent)
            }
            Connection::Http2(stream) => {
                let path = path.unwrap_or(&target.path);
                (HttpSession::H2(Box::pin(multiplexed::send(stream, target, path, request)).await?), true)
            }
        };
        let kept = (&target.pool, busy);
        let mut response = Response::new(session, kept, target.timeouts.read, reusable).ok_or(Error::BadResponse)?;
        response.give_back_if_done().await;
        // Its own to answer where it reads the request (RFC 9110 §15.5.8).
        match target.reader() {
            Some(proxy) if response.status() == 407 => Err(proxy.unauthorized()),
            _ => Ok(response),
        }
    }
}

/// Writes a request of HTTP/1.1 and reads until the head of the answer is here; also whether all of it was sent.
async fn exchange(
    mut stream: Stream,
    line: &[u8],
    request: &Request<'_>,
    patience: Duration,
) -> Result<(v1::client::HttpSession, bool), Error> {
    let sent = timeout(patience, write(&mut stream, line, request)).await.map_err(|_| Error::ReadTimeout)?;
    let mut session = v1::client::HttpSession::new(stream);
    for _ in 0..MAX_ANNOUNCEMENTS {
        // A server may answer and close before it has read the whole request; its answer counts (RFC 9112 §9.3).
        let read = timeout(patience, session.read_response()).await.map_err(|_| Error::ReadTimeout)?;
        read.map_err(|error| Error::reading(&error))?;
        if !session.get_status().is_some_and(|status| status.is_informational()) {
            return Ok((session, sent.is_ok()));
        }
    }
    Err(Error::BadResponse)
}

/// Where an answer sends its request, if it is one that is followed.
fn redirect<'a>(response: &'a Response, method: &Method) -> Option<&'a HeaderValue> {
    match response.status() {
        307 | 308 => response.header(&LOCATION),
        301..=303 if method == Method::GET => response.header(&LOCATION),
        _ => None,
    }
}

/// Writes a request, head and body in one go.
async fn write(stream: &mut Stream, line: &[u8], request: &Request<'_>) -> std::io::Result<()> {
    let body = request.body.as_ref();
    let copied = body.filter(|body| body.len() <= COPIED_BODY);
    let mut head = head(line, request, copied.map_or(0, Bytes::len));
    match (body, copied) {
        (Some(body), None) => stream.write_all_buf(&mut Bytes::from(head).chain(body.clone())).await?,
        (_, copied) => {
            head.extend_from_slice(copied.map_or(&[], |body| body));
            stream.write_all(&head).await?;
        }
    }
    stream.flush().await
}

/// A header as text, if all of it is ASCII. Looked at many bytes at a time: a token has hundreds.
pub fn text(value: &HeaderValue) -> Option<&str> {
    std::str::from_utf8(value.as_bytes()).ok().filter(|text| text.is_ascii())
}

/// The head of a request, with `room` bytes to spare behind it.
fn head(line: &[u8], request: &Request<'_>, room: usize) -> Vec<u8> {
    let headers = || request.headers.iter().filter(|(name, _)| !is_framing(name));
    let size: usize = headers().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let mut head = Vec::with_capacity(request.method.as_str().len() + line.len() + size + 32 + room);
    head.extend_from_slice(request.method.as_str().as_bytes());
    head.extend_from_slice(line);
    for (name, value) in headers() {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    let length = request.body.as_ref().map(Bytes::len);
    // A POST without a body says so, or some servers wait for one (RFC 9110 §8.6).
    if let Some(length) = length.or_else(|| (request.method == Method::POST).then_some(0)) {
        head.extend_from_slice(b"content-length: ");
        head.extend_from_slice(HeaderValue::from(length).as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// What says where a message begins and ends: never another's word.
fn is_framing(name: &HeaderName) -> bool {
    matches!(name.as_str(), "host" | "content-length" | "transfer-encoding" | "connection")
}

#[cfg(test)]
mod tests;
