//! Streamable HTTP, from the client's side (MCP 2025-11-25 and 2026-07-28, basic/transports).

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use url::Url;
use weir_flow::{
    call::{Busy, MAX_HINT},
    facts::{Challenge, Refusal},
};
use weir_mcp::{Era, headers};
use weir_oauth::proof;

use crate::{
    config::{HttpReach, Timeouts},
    http::{self, HeaderName, HeaderValue, HttpClient, HttpProxy, HttpTarget, Method, Request, Response},
    task::on_heap,
    telemetry::{LogThrottle, printable},
};

use super::{
    JsonBody, Listened, Outgoing, Reply, ReplyBody, SendError,
    credential::{BoundToken, Credential},
    echo::masked,
    loss,
};

/// How much of an answer that nobody needs is read so that the connection can be used again, in bytes.
const IGNORED: usize = 64 * 1024;

/// The longest id of a session, in bytes: it is kept as long as the session, and sent with each request.
const MAX_SESSION_ID: usize = 8 * 1024;

const ACCEPT_BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const ACCEPT_EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("weir/", env!("CARGO_PKG_VERSION")));

const X_SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");

/// The headers of a request. Those that hold a secret are marked sensitive.
type RequestHeaders = Vec<(HeaderName, HeaderValue)>;

/// One MCP endpoint.
pub(super) struct HttpEndpoint {
    pub(super) client: HttpClient,
    pub(super) target: HttpTarget,
    /// The address, fit to be printed.
    pub(super) url: String,
    address: Url,
    times: http::HttpTimeouts,
    configured: Vec<(HeaderName, HeaderValue)>,
    /// Tells of headers that requests have already.
    repeated: LogThrottle,
    /// The longest message, in bytes.
    pub(super) limit: usize,
}

/// A session at an endpoint, or what is said there without one.
#[derive(Clone)]
pub struct HttpSession {
    pub(super) endpoint: Arc<HttpEndpoint>,
    /// The upstream's own id, where it gave one.
    pub(super) id: Option<HeaderValue>,
    /// What was agreed in it.
    pub(super) version: Option<HeaderValue>,
}

impl HttpEndpoint {
    /// Prepares an endpoint; nothing is sent.
    pub(super) fn new(
        client: HttpClient,
        reach: &HttpReach,
        timeouts: &Timeouts,
        limit: usize,
    ) -> Result<Self, http::Error> {
        let times = http::HttpTimeouts { connect: timeouts.connect, read: timeouts.read };
        let target = client.target(reach.url.as_url(), times)?;
        let configured = reach
            .headers
            .iter()
            .filter_map(|(name, value)| {
                let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
                let mut value = HeaderValue::from_str(value.expose()).ok()?;
                value.set_sensitive(true);
                Some((name, value))
            })
            .collect();
        let address = reach.url.as_url().clone();
        let (url, repeated) = (reach.url.to_string(), LogThrottle::default());
        Ok(Self { client, target, url, address, times, configured, repeated, limit })
    }

    /// Posts a message; whatever the server says is the reply.
    pub(super) async fn post(&self, outgoing: &Outgoing<'_>) -> Result<Reply, SendError> {
        let (response, head) = self.posted(outgoing, None).await?;
        reply(response, outgoing.mark(), &head, self.limit)
    }

    /// The answer, and the head that was sent.
    async fn posted(
        &self,
        outgoing: &Outgoing<'_>,
        session: Option<&HeaderValue>,
    ) -> Result<(Response, RequestHeaders), SendError> {
        let mut head = self.head(outgoing.version, session, outgoing.credential, ACCEPT_BOTH);
        head.push((http::CONTENT_TYPE, JSON));
        if outgoing.era == Era::Modern {
            head.push((http::MCP_METHOD, header_value(outgoing.message.method())?));
            if let Some(name) = outgoing.name {
                head.push((http::MCP_NAME, header_value(&headers::encode_value(name))?));
            }
        }
        self.add(&mut head, outgoing.headers);
        let response =
            self.send(&self.target, Method::POST, &head, outgoing.credential, Some(outgoing.body.clone())).await?;
        Ok((response, head))
    }

    /// Opens the stream of HTTP+SSE, where some servers name the session in a header.
    pub(super) async fn stream(&self, credential: Option<&Credential>) -> Result<Reply, SendError> {
        let head = self.head(None, None, credential, ACCEPT_EVENTS);
        let response = self.send(&self.target, Method::GET, &head, credential, None).await?;
        let named = session_id(&response, &X_SESSION_ID)?;
        let reply = reply(response, credential.map(Credential::mark), &head, self.limit)?;
        Ok(Reply { session: reply.session.or(named), ..reply })
    }

    /// Another address at the same server, `reference` seen from this one. A session's id that is not in it already is
    /// put into its query.
    ///
    /// # Errors
    ///
    /// When it leads to another origin, where neither messages nor a credential may follow.
    pub(super) fn beside(&self, reference: &str, session: Option<&str>) -> Result<HttpTarget, SendError> {
        let not_mcp = |what: &str| SendError::NotMcp(what.into());
        let no_url = "an `endpoint` event that names no address";
        let mut url = self.address.join(reference).map_err(|_| not_mcp(no_url))?;
        let named = url.query_pairs().any(|(name, _)| name.to_ascii_lowercase().contains("session"));
        if let Some(session) = session.filter(|_| !named) {
            url.query_pairs_mut().append_pair("sessionId", session);
        }
        let target = self.client.target(&url, self.times).map_err(|_| not_mcp(no_url))?;
        if target.origin != self.target.origin {
            return Err(not_mcp(
                "an `endpoint` event that leads to another origin; if a proxy is between, have it pass on the host",
            ));
        }
        Ok(target)
    }

    /// The head of a POST beside the stream of HTTP+SSE.
    pub(super) fn aside(&self, session: Option<&HeaderValue>, credential: Option<&Credential>) -> RequestHeaders {
        let mut head = self.head(None, session, credential, ACCEPT_BOTH);
        head.push((http::CONTENT_TYPE, JSON));
        head
    }

    /// Adds what goes along with one call. What the operator has configured, and a credential, is sent once.
    pub(super) fn add(&self, head: &mut RequestHeaders, more: &[(HeaderName, HeaderValue)]) {
        let known = head.len();
        for (name, value) in more {
            if !head[..known].iter().any(|(there, _)| there == name) {
                head.push((name.clone(), value.clone()));
            } else if self.repeated.is_due() {
                let (url, header) = (&self.url, name.as_str());
                tracing::warn!(url, header, "a header of a call is not sent: the request has one of this name");
            }
        }
    }

    /// Host and port of the address.
    pub(super) fn server_address(&self) -> Option<(String, u16)> {
        Some((self.address.host_str()?.to_owned(), self.address.port_or_known_default()?))
    }

    /// The forward proxy that requests go through.
    pub(super) fn proxy(&self) -> Option<&HttpProxy> {
        self.target.proxy()
    }

    /// Sends a request to an address of this server, with a proof for a token that is bound to a key.
    pub(super) async fn send(
        &self,
        target: &HttpTarget,
        method: Method,
        headers: &[(HeaderName, HeaderValue)],
        credential: Option<&Credential>,
        body: Option<Bytes>,
    ) -> Result<Response, SendError> {
        match credential.filter(|credential| credential.is_for(&target.origin)).and_then(|one| one.bound.as_ref()) {
            // Boxed: few tokens are bound, and every call would carry its state.
            Some(bound) => on_heap(|| self.send_proved(target, method, headers, bound, body)).await,
            None => Ok(self.client.send(target, Request { method, headers, body }).await?),
        }
    }

    /// The same with a proof. A server that wants a nonce names it, and gets the same request once more (RFC 9449 §9). This is
    /// one attempt: the server has not looked at the message, and says nothing against the token.
    async fn send_proved(
        &self,
        target: &HttpTarget,
        method: Method,
        headers: &[(HeaderName, HeaderValue)],
        bound: &BoundToken,
        body: Option<Bytes>,
    ) -> Result<Response, SendError> {
        let url = target.url();
        for _ in 0..2 {
            let proof = (proof::DPOP, bound.proof(&method, &url)?);
            let headers = [headers, &[proof]].concat();
            let request = Request { method: method.clone(), headers: &headers, body: body.clone() };
            let response = self.client.send(target, request).await?;
            let is_named = bound.learn(&url, &response);
            if response.status() != 401 || !asks_for_nonce(&response) {
                return Ok(response);
            }
            // Read to its end, so that the connection can be used again.
            drop(response.collect(IGNORED).await);
            if !is_named {
                break;
            }
        }
        Err(SendError::NotMcp("status 401: it takes no proof with the nonce that it has named (DPoP)".into()))
    }

    fn head(
        &self,
        version: Option<&HeaderValue>,
        session: Option<&HeaderValue>,
        credential: Option<&Credential>,
        accept: HeaderValue,
    ) -> RequestHeaders {
        let mut head = Vec::with_capacity(10 + self.configured.len());
        head.push((http::ACCEPT, accept));
        head.push((http::USER_AGENT, AGENT));
        if let Some(version) = version {
            head.push((http::MCP_PROTOCOL_VERSION, version.clone()));
        }
        if let Some(session) = session {
            head.push((http::MCP_SESSION_ID, session.clone()));
        }
        head.extend_from_slice(&self.configured);
        if let Some(credential) = credential.filter(|credential| credential.is_for(&self.target.origin)) {
            head.push((credential.name.clone(), credential.value.clone()));
        }
        head
    }
}

impl HttpSession {
    /// The endpoint, without a session.
    pub(super) fn none_at(endpoint: &Arc<HttpEndpoint>) -> Self {
        Self { endpoint: Arc::clone(endpoint), id: None, version: None }
    }

    /// Posts a message for a client, in a session if there is one; nothing that no client should be handed is a reply.
    pub(super) async fn call(&self, outgoing: &Outgoing<'_>) -> Result<Reply, SendError> {
        let (response, head) = self.endpoint.posted(outgoing, self.id.as_ref()).await?;
        if let Some(busy) = busy(&response) {
            return Err(SendError::Busy(busy));
        }
        if self.id.is_some() && loss::may_be(response.status()) {
            return known_session(response, self.endpoint.limit).await;
        }
        let reply = reply(response, outgoing.mark(), &head, self.endpoint.limit)?;
        match reply.body {
            ReplyBody::Empty if !(200..300).contains(&reply.status) => Err(SendError::of_status(reply.status)),
            _ => Ok(reply),
        }
    }

    /// Opens the GET stream of a legacy session.
    pub(super) async fn listen(
        &self,
        last_event_id: Option<&HeaderValue>,
        credential: Option<&Credential>,
    ) -> Result<Reply, SendError> {
        let (response, head) = self.get(last_event_id, credential).await?;
        let status = response.status();
        if self.id.is_some() && loss::may_be(status) {
            // Whatever else it means, there is no stream.
            return known_session(response, self.endpoint.limit).await.or_else(|why| match why {
                SendError::SessionLost => Err(why),
                _ => Ok(Reply { status, session: None, body: ReplyBody::Empty }),
            });
        }
        reply(response, credential.map(Credential::mark), &head, self.endpoint.limit)
    }

    /// Takes an event stream of a legacy session up again behind the event with the id `last`.
    ///
    /// # Errors
    ///
    /// With the status, where there was one.
    pub(super) async fn resume(
        &self,
        last: &HeaderValue,
        credential: Option<&Credential>,
    ) -> Result<Response, (Option<u16>, SendError)> {
        let (response, head) = self.get(Some(last), credential).await.map_err(|why| (None, why))?;
        let status = response.status();
        if status == 200 && media(&response).is_some_and(headers::is_event_stream) {
            return Ok(response);
        }
        let why = match refusal(&response, credential.map(Credential::mark), &head) {
            Some(refusal) => SendError::Refused(refusal),
            None if self.id.is_some() && loss::may_be(status) => {
                match known_session(response, self.endpoint.limit).await {
                    Err(SendError::SessionLost) => SendError::SessionLost,
                    _ => no_stream(status),
                }
            }
            None => no_stream(status),
        };
        Err((Some(status), why))
    }

    async fn get(
        &self,
        last_event_id: Option<&HeaderValue>,
        credential: Option<&Credential>,
    ) -> Result<(Response, RequestHeaders), SendError> {
        let mut head = self.endpoint.head(self.version.as_ref(), self.id.as_ref(), credential, ACCEPT_EVENTS);
        head.extend(last_event_id.map(|id| (http::LAST_EVENT_ID, id.clone())));
        let target = &self.endpoint.target;
        Ok((self.endpoint.send(target, Method::GET, &head, credential, None).await?, head))
    }

    /// Ends a legacy session. A server that does not care about it is left alone.
    pub(super) async fn delete(&self, credential: Option<&Credential>) {
        let head = self.endpoint.head(self.version.as_ref(), self.id.as_ref(), credential, ACCEPT_BOTH);
        let target = &self.endpoint.target;
        match self.endpoint.send(target, Method::DELETE, &head, credential, None).await {
            // Read to its end, so that the connection can be used again.
            Ok(response) => drop(response.collect(IGNORED).await),
            Err(why) => tracing::debug!(url = self.endpoint.url, error = %why, "could not end an upstream session"),
        }
    }
}

/// Sorts the response to a request with this head by its status and media type.
fn reply(
    response: Response,
    credential: Option<u64>,
    head: &[(HeaderName, HeaderValue)],
    limit: usize,
) -> Result<Reply, SendError> {
    let status = response.status();
    if let Some(refusal) = refusal(&response, credential, head) {
        return Err(SendError::Refused(refusal));
    }
    let media = media(&response).unwrap_or_default();
    let session = session_id(&response, &http::MCP_SESSION_ID)?;
    let body = if headers::is_json(media) && response.content_length() != Some(0) {
        ReplyBody::Json(JsonBody::Coming(response, limit))
    } else if headers::is_event_stream(media) && status == 200 {
        ReplyBody::Events(Listened::http(response, limit))
    } else if status == 200 && response.content_length() != Some(0) {
        let media = media.split(';').next().unwrap_or_default().trim();
        let media = if media.is_empty() { "an answer of no stated type" } else { media };
        let media = masked(media, head);
        return Err(SendError::NotMcp(format!("{} where JSON or an event stream belongs", shown(&media))));
    } else {
        ReplyBody::Empty
    };
    Ok(Reply { status, session, body })
}

/// The id of a session that a header names. It is copied: a header keeps the whole head of its answer in memory.
fn session_id(response: &Response, name: &HeaderName) -> Result<Option<HeaderValue>, SendError> {
    match response.header(name).map(HeaderValue::as_bytes) {
        Some(id) if id.len() > MAX_SESSION_ID => {
            Err(SendError::NotMcp(format!("an id of a session over {MAX_SESSION_ID} bytes")))
        }
        id => Ok(id.and_then(|id| HeaderValue::from_bytes(id).ok())),
    }
}

/// An answer in a session, unless it says that the session is gone.
async fn known_session(response: Response, limit: usize) -> Result<Reply, SendError> {
    let status = response.status();
    let json = media(&response).is_some_and(headers::is_json);
    let body = JsonBody::Coming(response, limit).gather().await?;
    if loss::in_answer(status, &body) {
        return Err(SendError::SessionLost);
    }
    if !json {
        return Err(SendError::of_status(status));
    }
    Ok(Reply { status, session: None, body: ReplyBody::Json(JsonBody::Whole(body)) })
}

fn no_stream(status: u16) -> SendError {
    SendError::NotMcp(format!("its event stream ended before the answer, and status {status} where it should go on"))
}

fn media(response: &Response) -> Option<&str> {
    response.header(&http::CONTENT_TYPE)?.to_str().ok()
}

/// How the server says that it is too busy to look at a request: with a time to come back (RFC 9110 §10.2.3, RFC 6585 §4).
/// For a longer wait than a call may make, its own answer tells the client more.
fn busy(response: &Response) -> Option<Busy> {
    let status = response.status();
    let after = response.retry_after().filter(|_| matches!(status, 429 | 503))?;
    (after <= MAX_HINT).then_some(Busy { status, after })
}

/// The server's no to a credential, or to the want of one. `head` is what the request was sent with.
pub(super) fn refusal(
    response: &Response,
    credential: Option<u64>,
    head: &[(HeaderName, HeaderValue)],
) -> Option<Refusal> {
    let status = response.status();
    matches!(status, 401 | 403).then(|| Refusal {
        status,
        credential,
        challenge: challenge(response.headers().filter(|(name, _)| **name == http::WWW_AUTHENTICATE), head),
    })
}

/// What the server asks for: of several challenges, in one header or in many, the one that a token answers. The secrets
/// that were sent are not in it.
fn challenge<'a>(
    headers: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>,
    sent: &[(HeaderName, HeaderValue)],
) -> Challenge {
    let all = weir_oauth::Challenge::parse_all(headers.map(|(_, value)| value.as_bytes()));
    let Some(chosen) = weir_oauth::Challenge::token_of(&all).or(all.first()) else { return Challenge::default() };
    let parameter = |name| chosen.get(name).map(|value| masked(value, sent));
    Challenge {
        scheme: masked(&chosen.scheme, sent),
        error: parameter("error"),
        scope: chosen.scope().map(|scope| masked(scope, sent)),
        resource_metadata: parameter("resource_metadata"),
    }
}

/// Whether the server wants a nonce in the proof.
fn asks_for_nonce(response: &Response) -> bool {
    let challenges = response.headers().filter(|(name, _)| **name == http::WWW_AUTHENTICATE);
    proof::asks_for_nonce(challenges.map(|(_, value)| value.as_bytes()))
}

fn header_value(text: &str) -> Result<HeaderValue, SendError> {
    HeaderValue::from_str(text).map_err(|_| SendError::NotMcp("a method or name that fits no header".into()))
}

/// A server's word for its media type, kept short.
fn shown(media: &str) -> Cow<'_, str> {
    printable(&media[..media.floor_char_boundary(64)])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use tokio::io::AsyncWriteExt;

    use std::time::Duration;

    use super::*;

    #[test]
    fn of_all_challenges_the_one_counts_that_a_token_answers() {
        let read = |headers: &[&'static str]| {
            let values: Vec<HeaderValue> = headers.iter().map(|text| HeaderValue::from_static(text)).collect();
            challenge(values.iter().map(|value| (&http::WWW_AUTHENTICATE, value)), &[])
        };
        let bearer = Challenge {
            scheme: "bearer".into(),
            error: Some("invalid_token".into()),
            scope: Some("read all".into()),
            resource_metadata: Some("https://x.test/m?a=b".into()),
        };
        let text =
            r#"Bearer realm="a, b", error=invalid_token, scope="read all", resource_metadata="https://x.test/m?a=b""#;
        assert_eq!(read(&[text]), bearer);
        assert_eq!(read(&["Negotiate", "Basic realm=\"a\"", text]), bearer);
        assert_eq!(read(&["Basic realm=\"a\""]).scheme, "basic");
        assert_eq!(read(&[]), Challenge::default());
        // What opened the request is not in what policies and the log are told.
        let mut secret = HeaderValue::from_static("Bearer hunter2hunter2");
        secret.set_sensitive(true);
        let echo = HeaderValue::from_static(
            r#"hunter2hunter2 error="no hunter2hunter2", scope="hunter2hunter2 all", resource_metadata="https://x.test/hunter2hunter2""#,
        );
        let echoed = challenge(
            [(&http::WWW_AUTHENTICATE, &echo)].into_iter(),
            &[(HeaderName::from_static("authorization"), secret)],
        );
        assert!(!format!("{echoed:?}").contains("hunter2"), "{echoed:?}");
        assert_eq!(echoed.scope.as_deref(), Some("[secret] all"));
        for odd in ["", "Bearer", "Bearer =", "Bearer a=\"", "Basic a", "Bearer ,,,=\"\\\""] {
            read(&[odd]);
        }
    }

    #[tokio::test]
    async fn an_id_of_a_session_is_as_long_as_one_may_be() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let patience = Duration::from_secs(20);
        let times = http::HttpTimeouts { connect: patience, read: patience };
        let client = HttpClient::new();
        let target = client.target(&url, times).unwrap();
        for length in [100, 8 * 1024, 8 * 1024 + 1] {
            let id = "x".repeat(length);
            let answer = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let head = format!("HTTP/1.1 202 Accepted\r\nMcp-Session-Id: {id}\r\nConnection: close\r\n\r\n");
                stream.write_all(head.as_bytes()).await.unwrap();
                stream
            };
            let request = Request { method: Method::GET, headers: &[], body: None };
            let (response, _stream) = tokio::join!(client.send(&target, request), answer);
            let named = reply(response.unwrap(), None, &[], 100).map(|reply| reply.session.unwrap());
            assert_eq!(named.is_ok_and(|named| named == id), length <= 8 * 1024, "{length}");
        }
    }
}
