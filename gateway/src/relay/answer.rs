//! What a client is given back, before it becomes HTTP.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use weir_flow::Failure;
use weir_mcp::{Era, Message, answer};

use crate::{
    http::HeaderValue,
    observe::CallRecord,
    quota::Reached,
    upstream::{JsonBody, Upstream},
};

use super::{Inquiry, delivery::Delivery};

/// One answer on its way to a client.
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// `Mcp-Session-Id`, where a session begins.
    pub session: Option<HeaderValue>,
    /// `Allow`, where the method is the trouble.
    pub allow: Option<&'static str>,
    /// The rest.
    pub body: Body,
    /// For the log; none for what is no call.
    pub record: Option<Record>,
}

/// What follows the head.
pub enum Body {
    /// Nothing.
    Empty,
    /// JSON that is all here, in pieces that are sent one after the other.
    Whole([Bytes; 3]),
    /// JSON as it comes from an upstream, until this moment at most.
    Json(JsonBody, Instant),
    /// An event stream.
    Events(Box<Delivery>),
}

/// How much of a method that a client sent goes into the log, in characters.
const METHOD_IN_LOG: usize = 64;

/// What the log will say of a call.
pub struct Record {
    start: Instant,
    method: String,
    name: String,
    era: Era,
    /// The upstream that answers; none if Weir does.
    pub upstream: Option<Arc<Upstream>>,
    /// How often the request was sent.
    pub attempts: u32,
    /// Why the call failed.
    pub failure: Option<String>,
}

impl Answer {
    /// A status and nothing else.
    #[must_use]
    pub const fn empty(status: u16) -> Self {
        Self { status, session: None, allow: None, body: Body::Empty, record: None }
    }

    /// A message that is all here.
    #[must_use]
    pub const fn whole(status: u16, message: Bytes) -> Self {
        let body = Body::Whole([message, Bytes::new(), Bytes::new()]);
        Self { status, session: None, allow: None, body, record: None }
    }

    /// An event stream.
    #[must_use]
    pub fn events(delivery: Delivery) -> Self {
        Self { status: 200, session: None, allow: None, body: Body::Events(Box::new(delivery)), record: None }
    }

    /// The answer to a request that Weir answers by itself; `result` is JSON that is ready.
    #[must_use]
    pub fn result(request: &Message, result: Bytes) -> Self {
        let id = request.id().unwrap_or(b"null");
        let mut head = Vec::with_capacity(32 + id.len());
        head.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        head.extend_from_slice(id);
        head.extend_from_slice(br#","result":"#);
        let body = Body::Whole([head.into(), result, Bytes::from_static(b"}")]);
        Self { status: 200, session: None, allow: None, body, record: None }
    }

    /// A JSON-RPC error; the status follows from the era and the code.
    #[must_use]
    pub fn error(era: Era, request: &Message, code: i64, message: &str) -> Self {
        let status = weir_mcp::status::http_status(era, code);
        Self::whole(status, answer::error(request.id(), code, message, None))
    }

    /// A call that came to nothing.
    #[must_use]
    pub fn failed(request: &Message, upstream: &str, failure: &Failure) -> Self {
        Self::whole(200, failure_message(request.id(), upstream, failure))
    }

    /// A limit was reached.
    #[must_use]
    pub fn full(id: Option<&[u8]>, reached: &Reached) -> Self {
        Self::whole(reached.status(), answer::error(id, answer::INTERNAL, &reached.to_string(), None))
    }

    /// Adds what the log will say.
    #[must_use]
    pub fn recorded(mut self, record: Record) -> Self {
        match &mut self.body {
            Body::Events(delivery) => delivery.record = Some(record),
            Body::Empty | Body::Whole(_) | Body::Json(..) => self.record = Some(record),
        }
        self
    }
}

/// The JSON-RPC error that tells a client why its call failed.
pub(super) fn failure_message(id: Option<&[u8]>, upstream: &str, failure: &Failure) -> Bytes {
    let message = format!("upstream `{upstream}` {failure}");
    answer::error(id, answer::INTERNAL, &message, None)
}

impl Record {
    /// A call that begins now.
    #[must_use]
    pub fn new(inquiry: &Inquiry) -> Self {
        Self::of(&inquiry.message, inquiry.era)
    }

    /// The same for a message of this era.
    #[must_use]
    pub fn of(message: &Message, era: Era) -> Self {
        let name = message.name().or_else(|| message.uri()).map(|name| name.into_owned()).unwrap_or_default();
        Self {
            start: Instant::now(),
            method: message.method().chars().take(METHOD_IN_LOG).collect(),
            name,
            era,
            upstream: None,
            attempts: 0,
            failure: None,
        }
    }

    /// A call that Weir itself refuses.
    #[must_use]
    pub fn refused(inquiry: &Inquiry, why: impl Into<String>) -> Self {
        Self { failure: Some(why.into()), ..Self::new(inquiry) }
    }

    /// Writes the line: the answer is out, or will never be.
    pub fn finish(self, status: u16) {
        let record = CallRecord {
            upstream: self.upstream.as_ref().map_or("-", |upstream| upstream.name()),
            method: &self.method,
            name: &self.name,
            era: self.era,
            status,
            attempts: self.attempts,
            took: self.start.elapsed(),
            failure: self.failure.as_deref(),
        };
        record.write();
    }
}
