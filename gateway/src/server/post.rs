//! Messages from clients, by method: POST carries one or several, GET listens, DELETE ends.

use std::{pin::pin, sync::Arc};

use bytes::{Bytes, BytesMut};
use weir_mcp::{
    Era, InboundRequest, Message,
    classify::{self, Claims, Rejection},
    headers,
    message::{Field, Kind},
};

use crate::{
    http::{self, HeaderName, HeaderValue},
    proxy::{Answer, CallLog, RequestContext},
    replica::MISDIRECTED,
    session::{Endpoint, Session, SessionOwner},
    telemetry::CallOutcome,
};

use super::{
    App,
    listen::{BodyError, HttpExchange},
    messages::Messages,
    refusal,
    session_owner::{Whereabouts, WithCopy},
    slow,
};

impl App {
    /// One message, or a batch of legacy ones. No answer if it is written already.
    pub(super) async fn post(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        exchange: &mut HttpExchange,
        copy: Option<WithCopy>,
    ) -> Option<Answer> {
        let inbound = match self.inbound(exchange).await {
            Ok(inbound) => inbound,
            Err(refusal) => return Some(refusal),
        };
        let era = match classify::classify(&inbound, &claims(exchange)) {
            Ok(era) => era,
            Err(why) => return Some(rejected(endpoint, exchange, inbound, why)),
        };
        let accept = exchange.header(&http::ACCEPT).unwrap_or_default();
        let is_modern = era == Era::Modern && matches!(inbound, InboundRequest::Single(_));
        let accepts = if is_modern { headers::accepts_json(accept) } else { headers::accepts_json_and_events(accept) };
        if !accepts {
            return Some(refusal::not_acceptable("application/json and text/event-stream"));
        }
        match inbound {
            InboundRequest::Single(message) if is_modern => {
                if message.raw(Field::RequestState).is_some()
                    && let Some(replicas) = self.proxy.replicas()
                {
                    // Boxed: few calls come back with answers, and every call would have room for it.
                    match Box::pin(self.at_waiting_call(replicas, &message, exchange)).await {
                        Whereabouts::Here(_) => {}
                        Whereabouts::Answered => return None,
                        Whereabouts::Refused(answer) => return Some(*answer),
                    }
                }
                let context = context(era, endpoint, exchange, message, None);
                Some(self.handle_message(exchange, &context).await)
            }
            inbound => match copy {
                None => self.legacy(endpoint, exchange, inbound).await,
                // Boxed: most calls are of sessions that are here.
                Some(copy) => Box::pin(self.with_copy(endpoint, exchange, inbound, copy)).await,
            },
        }
    }

    #[allow(clippy::result_large_err, reason = "the refusal is the answer, on its way out")]
    /// What the body of a POST holds.
    pub(super) async fn inbound(&self, exchange: &mut HttpExchange) -> Result<InboundRequest, Answer> {
        if !exchange.header(&http::CONTENT_TYPE).is_some_and(headers::is_json) {
            return Err(refusal::not_json());
        }
        let limit = self.proxy.snapshot().limits().body;
        let body = exchange.read_body(limit).await.map_err(|why| {
            if let BodyError::Full(full) = &why {
                self.note_refusal(exchange, "request refused", full);
            }
            refusal::body(&why, limit)
        })?;
        InboundRequest::parse(body).map_err(|why| refusal::malformed(&why))
    }

    /// A message of a session that is here, or one that begins one. No answer if it is written already.
    pub(super) async fn legacy(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        exchange: &mut HttpExchange,
        inbound: InboundRequest,
    ) -> Option<Answer> {
        let id = exchange.header(&http::MCP_SESSION_ID);
        match &inbound {
            InboundRequest::Single(message) if message.method() == "initialize" && message.kind() == Kind::Request => {
                return Some(match id {
                    None => {
                        let context = context(Era::Legacy, endpoint, exchange, message.clone(), None);
                        match SessionOwner::new(self.proxy.sessions(), context.caller.clone(), &context.principal) {
                            Ok(owner) => {
                                let mut record = begun(&context, exchange);
                                let begun = self.proxy.begin(owner, endpoint.clone(), message, &mut record).await;
                                let shared = self.shared(begun, message.id(), &mut record).await;
                                shared.recorded(record)
                            }
                            Err(full) => {
                                recorded(Answer::full(message.id(), &full), &context, exchange, full.to_string())
                            }
                        }
                    }
                    Some(_) => refusal::second_initialize(message.id()),
                });
            }
            InboundRequest::Batch(all) if all.iter().any(|message| message.method() == "initialize") => {
                return Some(refusal::second_initialize(None));
            }
            InboundRequest::Single(_) | InboundRequest::Batch(_) => {}
        }
        let session = match self.session(endpoint, exchange, id) {
            Ok(session) => session,
            Err(answer) => {
                let InboundRequest::Single(message) = inbound else { return Some(answer) };
                let why = if id.is_none() { "no session is named" } else { "there is no such session" };
                let context = context(Era::Legacy, endpoint, exchange, message, None);
                return Some(recorded(answer, &context, exchange, why));
            }
        };
        Some(match inbound {
            InboundRequest::Single(message) => {
                if session.is_for_copies(&message)
                    && Box::pin(self.passed_to_copies(&session, &message, exchange)).await
                {
                    return Some(Answer::empty(202));
                }
                let context = context_in(&session, exchange, message);
                self.alone(exchange, &session, &context).await
            }
            InboundRequest::Batch(messages) if messages.len() > MAX_BATCH => refusal::batch_too_long(MAX_BATCH),
            InboundRequest::Batch(messages) => {
                let mut answers = Vec::new();
                for message in messages {
                    if session.is_for_copies(&message)
                        && Box::pin(self.passed_to_copies(&session, &message, exchange)).await
                    {
                        continue;
                    }
                    let context = context_in(&session, exchange, message);
                    let answer = self.handle_message(exchange, &context).await;
                    answers.extend(gathered(&session, answer).await);
                }
                batch(&answers)
            }
        })
    }

    /// The answer to `initialize`, once other gateways can find the session that it has begun.
    async fn shared(&self, answer: Answer, id: Option<&[u8]>, record: &mut CallLog) -> Answer {
        let Some((registry, session)) = self.proxy.registry().zip(answer.session.as_ref()) else { return answer };
        let Some(session) = self.proxy.sessions().get(session.as_bytes(), |_| true) else { return answer };
        let Err(why) = registry.add(&session, self.proxy.sessions()).await else { return answer };
        if let Some(session) = self.proxy.sessions().remove(session.id.as_bytes()) {
            self.proxy.end(&session).await;
        }
        record.fail(CallOutcome::Failed, why.to_string());
        refusal::session_not_shared(id)
    }

    /// As [`handle_message`](Self::handle_message), where the answer may become a stream that the client can resume.
    pub(super) async fn alone(
        self: &Arc<Self>,
        exchange: &mut HttpExchange,
        session: &Arc<Session>,
        context: &RequestContext,
    ) -> Answer {
        if context.message.kind() != Kind::Request || !session.streams.is_on() {
            return self.handle_message(exchange, context).await;
        }
        let mut record = begun(context, exchange);
        let id = context.message.id().unwrap_or(b"null");
        let answer = {
            let asked = pin!(self.proxy.request(context, &mut record));
            slow::resumable(self, exchange, session, id, asked).await
        };
        if answer.is_at_owner() { answer } else { answer.recorded(record) }
    }

    pub(super) async fn handle_message(
        self: &Arc<Self>,
        exchange: &mut HttpExchange,
        context: &RequestContext,
    ) -> Answer {
        if context.message.kind() != Kind::Request {
            self.proxy.pass(context).await;
            return Answer::empty(202);
        }
        let mut record = begun(context, exchange);
        let answer = {
            let asked = pin!(self.proxy.request(context, &mut record));
            slow::while_there(exchange, asked).await
        };
        answer.recorded(record)
    }

    /// The stream of what Weir says of its own accord, or one that goes on. No answer if it is written already.
    pub(super) async fn get(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        exchange: &mut HttpExchange,
        copy: Option<WithCopy>,
    ) -> Option<Answer> {
        if let Some(refused) = refused_version(exchange) {
            return Some(refused);
        }
        if !headers::accepts_events(exchange.header(&http::ACCEPT).unwrap_or_default()) {
            return Some(refusal::not_acceptable("text/event-stream"));
        }
        let last = exchange.header("last-event-id").map(str::to_owned);
        if let Some(copy) = &copy {
            let session = copy.session(endpoint, exchange).zip(last.as_deref());
            let session = session.filter(|(session, last)| session.streams.knows(last));
            let Some((session, last)) = session else { return Some(Answer::empty(MISDIRECTED)) };
            return Some(self.proxy.listen(session, Some(last)).await);
        }
        let session = match self.session(endpoint, exchange, exchange.header(&http::MCP_SESSION_ID)) {
            Ok(session) => session,
            Err(answer) => return Some(answer),
        };
        if let Some(last) = &last
            && let Some(stream) = session.streams.elsewhere(last)
        {
            match self.stream_of_copy(&session, exchange).await {
                Some(Whereabouts::Answered) => return None,
                Some(Whereabouts::Refused(answer)) if !session.streams.knows(last) => return Some(*answer),
                Some(Whereabouts::Refused(_) | Whereabouts::Here(_)) | None => {}
            }
            if let Some(registry) = self.proxy.registry().filter(|_| !session.streams.knows(last)) {
                registry.read_stream(&session, stream).await;
            }
        }
        Some(self.proxy.listen(&session, last.as_deref()).await)
    }

    /// The end of a session.
    pub(super) async fn delete(self: &Arc<Self>, endpoint: &Endpoint, exchange: &HttpExchange) -> Answer {
        if let Some(refused) = refused_version(exchange) {
            return refused;
        }
        match self.session(endpoint, exchange, exchange.header(&http::MCP_SESSION_ID)) {
            Ok(session) => {
                if let Some(session) = self.proxy.sessions().remove(session.id.as_bytes()) {
                    self.proxy.end(&session).await;
                }
                Answer::empty(200)
            }
            Err(answer) => answer,
        }
    }

    #[allow(clippy::result_large_err, reason = "the refusal is the answer, on its way out")]
    /// The session that a request names, if it was opened at this endpoint by the same caller. Another caller's is as good
    /// as none.
    fn session(&self, endpoint: &Endpoint, exchange: &HttpExchange, id: Option<&str>) -> Result<Arc<Session>, Answer> {
        let id = id.ok_or_else(refusal::session_missing)?;
        let own = |session: &Arc<Session>| session.endpoint == *endpoint && session.is_of(exchange.caller());
        let session = self.proxy.sessions().get(id.as_bytes(), own);
        session.ok_or_else(refusal::session_unknown)
    }
}

/// How many messages a batch may hold, as in the SDKs.
pub(super) const MAX_BATCH: usize = 100;

/// The answer to what no era can read.
fn rejected(endpoint: &Endpoint, exchange: &HttpExchange, inbound: InboundRequest, why: Rejection) -> Answer {
    let InboundRequest::Single(message) = inbound else { return refusal::rejected(&why, None) };
    let answer = refusal::rejected(&why, message.id());
    let era = if message.claimed_version().is_some() { Era::Modern } else { Era::Legacy };
    recorded(answer, &context(era, endpoint, exchange, message, None), exchange, why.message)
}

/// What the log will say of a call that begins now.
fn begun(context: &RequestContext, exchange: &HttpExchange) -> CallLog {
    let mut record = CallLog::new(context);
    record.peer = Some(exchange.peer());
    record
}

/// Has the log tell of a request that is refused; notifications are no calls.
pub(super) fn recorded(
    answer: Answer,
    context: &RequestContext,
    exchange: &HttpExchange,
    why: impl Into<String>,
) -> Answer {
    match context.message.kind() {
        Kind::Request => {
            let mut record = begun(context, exchange);
            record.fail(CallOutcome::Refused, why);
            answer.recorded(record)
        }
        Kind::Notification | Kind::Response | Kind::Error => answer,
    }
}

/// What the headers of a POST say of its body.
pub(super) fn claims(exchange: &HttpExchange) -> Claims<'_> {
    Claims {
        version: exchange.header(&http::MCP_PROTOCOL_VERSION),
        method: exchange.header(&http::MCP_METHOD),
        name: exchange.header(&http::MCP_NAME),
    }
}

/// The answer to a GET or DELETE of a version that has neither, or that nobody knows.
fn refused_version(exchange: &HttpExchange) -> Option<Answer> {
    match classify::classify_bare(&claims(exchange)) {
        Ok(Era::Legacy) => None,
        Ok(Era::Modern) => Some(refusal::method("POST")),
        Err(why) => Some(refusal::rejected(&why, None)),
    }
}

/// The context of a message in a session.
pub(super) fn context_in(session: &Arc<Session>, exchange: &HttpExchange, message: Message) -> RequestContext {
    context(Era::Legacy, &session.endpoint, exchange, message, Some(Arc::clone(session)))
}

pub(super) fn context(
    era: Era,
    endpoint: &Endpoint,
    exchange: &HttpExchange,
    message: Message,
    session: Option<Arc<Session>>,
) -> RequestContext {
    let travels = |(name, value): (&HeaderName, &HeaderValue)| {
        weir_flow::may_travel(name.as_str()).then(|| (name.clone(), value.clone()))
    };
    let headers = exchange.headers().filter_map(travels).collect();
    let version = exchange.value(&http::MCP_PROTOCOL_VERSION).cloned();
    let (endpoint, principal) = (endpoint.clone(), Arc::clone(exchange.principal()));
    RequestContext { era, endpoint, caller: exchange.caller().cloned(), principal, message, version, headers, session }
}

/// The message that an answer comes to, for a batch; none for what has none. What is said and asked before it goes to the
/// session's own stream.
async fn gathered(session: &Session, answer: Answer) -> Option<Bytes> {
    let (mut messages, mut last) = (Messages::of(answer), None);
    while let Some(message) = messages.next().await {
        match Message::parse(message.clone()).map(|message| message.kind()) {
            Ok(Kind::Response | Kind::Error) => last = Some(message),
            Ok(Kind::Request | Kind::Notification) => session.queue.push(message),
            Err(_) => {}
        }
    }
    last
}

/// The answers of a batch as one array (MCP 2025-03-26, basic/transports); 202 if there is none.
fn batch(answers: &[Bytes]) -> Answer {
    match answers {
        [] => Answer::empty(202),
        answers => Answer::whole(200, array(answers)),
    }
}

/// Messages as one array.
pub(super) fn array(messages: &[Bytes]) -> Bytes {
    let mut body = BytesMut::from(&b"["[..]);
    for (at, message) in messages.iter().enumerate() {
        if at > 0 {
            body.extend_from_slice(b",");
        }
        body.extend_from_slice(message);
    }
    body.extend_from_slice(b"]");
    body.freeze()
}
