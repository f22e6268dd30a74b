//! Clients of HTTP+SSE (MCP 2024-11-05, basic/transports): one stream for all that goes to the client, and POSTs beside
//! it, each answered with 202.
//!
//! It is another way to carry the same [`Session`]: the stream empties the session's queue and brings the answers, and
//! when it ends so does the session. The first event names where to post, as `messages?sessionId=…` without a leading
//! slash: clients resolve it against the address of their stream, so it stays right behind a proxy that serves Weir
//! under a prefix, and Weir takes such a POST beside each address that gives out streams.

mod stream;

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use weir_mcp::{Era, InboundRequest, Message, classify::classify, message::Kind};

use crate::{
    caller::Caller,
    http::{HeaderName, HeaderValue},
    proxy::{Answer, RequestContext},
    session::{Endpoint, Session},
};

use super::{App, listen::HttpExchange, post, refusal};

/// How many requests may wait for a stream to take them up.
const WAITING: usize = 64;

/// The streams that are open, by the ids in their clients' POSTs.
#[derive(Default)]
pub(super) struct SseStreams {
    open: Mutex<HashMap<Box<str>, Arc<SseStream>>>,
}

/// What a POST finds of its stream.
struct SseStream {
    endpoint: Endpoint,
    /// Its address: what a token must be for that goes with a message to it.
    path: Box<str>,
    /// Whose it is.
    caller: Option<Arc<Caller>>,
    requests: mpsc::Sender<Posted>,
    /// Set by `initialize`.
    session: OnceLock<Arc<Session>>,
}

/// A request on its way from its POST to its stream.
struct Posted {
    caller: Option<Arc<Caller>>,
    /// Whose share it uses.
    principal: Arc<str>,
    /// When what they have shown is no longer good.
    ends: Option<SystemTime>,
    message: Message,
    version: Option<HeaderValue>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// A stream's place among those that are open, given up when dropped.
struct OpenStream<'a> {
    id: Box<str>,
    stream: Arc<SseStream>,
    streams: &'a SseStreams,
}

impl SseStreams {
    /// A new stream under an id that nobody can guess, and what will be posted to it; none if the system has no randomness
    /// to give.
    fn open(
        &self,
        endpoint: Endpoint,
        path: &str,
        caller: Option<Arc<Caller>>,
    ) -> Option<(OpenStream<'_>, mpsc::Receiver<Posted>)> {
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random).ok()?;
        let id: Box<str> = hex::encode(random).into();
        let (requests, posted) = mpsc::channel(WAITING);
        let stream = Arc::new(SseStream { endpoint, path: path.into(), caller, requests, session: OnceLock::new() });
        self.open.lock().insert(id.clone(), Arc::clone(&stream));
        Some((OpenStream { id, stream, streams: self }, posted))
    }

    /// Whether a stream has this id.
    pub(super) fn has(&self, id: &str) -> bool {
        self.open.lock().contains_key(id)
    }

    fn get(&self, id: &str) -> Option<Arc<SseStream>> {
        self.open.lock().get(id).cloned()
    }

    /// The address of the stream that a request is beside, if it is beside one.
    pub(super) fn beside(&self, path: &str, query: Option<&str>) -> Option<Box<str>> {
        let id = is_beside(path).then(|| session_id(query)).flatten()?;
        Some(self.get(id)?.path.clone())
    }
}

impl Drop for OpenStream<'_> {
    fn drop(&mut self) {
        self.streams.open.lock().remove(&self.id);
    }
}

impl App {
    /// A POST beside a stream: answers to upstreams' questions and notifications are passed on, requests go to the
    /// stream that will carry their answers.
    pub(super) async fn post_beside(self: &Arc<Self>, exchange: &mut HttpExchange) -> Answer {
        let inbound = match self.inbound(exchange).await {
            Ok(inbound) => inbound,
            Err(refusal) => return refusal,
        };
        let Some(id) = session_id(exchange.query()) else { return refusal::stream_missing() };
        // Another caller's is as good as none, and so is one at what the caller may no longer use.
        let own = |stream: &Arc<SseStream>| {
            Caller::is_same(stream.caller.as_ref(), exchange.caller())
                && self.proxy.still(&stream.endpoint, exchange.caller())
        };
        let Some(stream) = self.streams.get(id).filter(own) else { return refusal::stream_unknown() };
        match classify(&inbound, &post::claims(exchange)) {
            Ok(Era::Legacy) => {}
            Ok(Era::Modern) => return refusal::stream_is_legacy(),
            Err(why) => {
                let id = match &inbound {
                    InboundRequest::Single(message) => message.id(),
                    InboundRequest::Batch(_) => None,
                };
                return refusal::rejected(&why, id);
            }
        }
        let messages = match inbound {
            InboundRequest::Single(message) => vec![message],
            InboundRequest::Batch(all) if all.iter().any(|message| message.method() == "initialize") => {
                return refusal::second_initialize(None);
            }
            InboundRequest::Batch(all) if all.len() > post::MAX_BATCH => {
                return refusal::batch_too_long(post::MAX_BATCH);
            }
            InboundRequest::Batch(all) => all,
        };
        for message in messages {
            if !self.take(exchange, &stream, message).await {
                return refusal::stream_is_busy();
            }
        }
        Answer::empty(202)
    }

    /// False if the stream cannot take any more.
    async fn take(self: &Arc<Self>, exchange: &HttpExchange, stream: &SseStream, message: Message) -> bool {
        let context = post::context(Era::Legacy, &stream.endpoint, exchange, message, stream.session.get().cloned());
        if context.message.kind() == Kind::Request {
            let RequestContext { caller, principal, message, version, headers, .. } = context;
            let posted = Posted { caller, principal, ends: exchange.ends(), message, version, headers };
            return stream.requests.try_send(posted).is_ok();
        }
        let own = |session: &Arc<Session>| session.is_of(exchange.caller());
        let Some(session) = context.session.clone().filter(own) else { return true };
        let ready = context.message.method() == "notifications/initialized";
        self.proxy.pass(&context).await;
        if ready {
            self.proxy.hear(&session);
        }
        true
    }
}

/// Whether messages of HTTP+SSE are sent there: beside each address that gives out streams.
pub(super) fn is_beside(path: &str) -> bool {
    matches!(path, "/messages" | "/mcp/messages" | "/sse/messages")
}

/// Whether a gateway may have given out this id.
pub(super) fn may_be_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What other gateways find a stream by. No session has such an id.
pub(super) fn registered(id: &str) -> Vec<u8> {
    format!("sse {id}").into_bytes()
}

/// The stream that a POST's query names; the Python SDK's servers spell it with an underscore, and so may their clients.
pub(super) fn session_id(query: Option<&str>) -> Option<&str> {
    query?.split('&').find_map(|pair| pair.strip_prefix("sessionId=").or_else(|| pair.strip_prefix("session_id=")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_named_in_the_query() {
        assert_eq!(session_id(Some("sessionId=a1")), Some("a1"));
        assert_eq!(session_id(Some("x=y&session_id=a1&z")), Some("a1"));
        assert_eq!(session_id(Some("x=sessionId=a1")), None);
        assert_eq!(session_id(None), None);
    }

    #[test]
    fn a_stream_is_known_as_long_as_it_is_open() {
        let streams = SseStreams::default();
        let Some((first, _posted)) =
            streams.open(Endpoint::Merged(Arc::clone(crate::access::Toolset::all())), "/sse", None)
        else {
            panic!("there is randomness")
        };
        assert_eq!(first.id.len(), 32);
        let query = format!("sessionId={}", first.id);
        assert_eq!(streams.beside("/messages", Some(&query)).as_deref(), Some("/sse"));
        assert_eq!(streams.beside("/mcp", Some(&query)), None);
        assert_eq!(streams.beside("/messages", Some("sessionId=0")), None);
        assert!(streams.get(&first.id).is_some());
        let id = first.id.clone();
        drop(first);
        assert!(streams.get(&id).is_none());
    }
}
