//! Legacy clients at modern upstreams: how their sessions begin there, and where each of their requests goes.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use weir_mcp::{Era, Message, answer, era, json, method, translate};

use crate::{
    http::HeaderValue,
    proxy::{Answer, AnswerStream, Body, CallLog, Proxy, RequestContext, deadline::Deadline, route::Target},
    session::{Endpoint, RunningRequest, Session, SessionOwner, WORK},
    upstream::Upstream,
};

use super::input_loop::{ClientMessage, InputLoop, StreamItem};

/// How long the head of an answer is held back for its first message: what takes longer is a stream.
const FIRST: Duration = Duration::from_secs(1);

/// How many messages may wait for a client that does not read.
const WAITING: usize = 16;

/// How long the delivery waits beyond the deadline, which is the call's own to report.
const BEYOND: Duration = Duration::from_secs(1);

impl Proxy {
    /// Begins a session at an upstream that knows none.
    pub(in crate::proxy) async fn begin_sessionless(
        self: &Arc<Self>,
        owner: SessionOwner,
        place: usize,
        initialize: &Message,
        record: &mut CallLog,
    ) -> Answer {
        let upstream = self.upstream(place);
        let opened = match upstream.open(owner.caller.as_ref(), Some(Era::Modern)).await {
            Ok(opened) => opened,
            Err(why) => return Box::pin(self.not_begun(&owner, place, initialize, why, record)).await,
        };
        let requested =
            initialize.params().and_then(|params| json::get(params, &["protocolVersion"])).and_then(json::string);
        let version = era::negotiate(requested.as_deref().unwrap_or_default());
        let said = opened.answer.result().unwrap_or(b"{}");
        let answer = Answer::result(initialize, translate::initialized(said, version, upstream.name()));
        self.admit(owner, Endpoint::One(place), initialize, HeaderValue::from_static(version), None, answer)
    }

    /// Takes a request of a legacy client to a modern upstream and back; none if that turns out to speak the legacy era,
    /// and has not looked at the request.
    pub(in crate::proxy) async fn in_input_loop(
        self: &Arc<Self>,
        context: &RequestContext,
        target: &Target,
        session: &Arc<Session>,
        start: Instant,
        record: &mut CallLog,
    ) -> Option<Answer> {
        let message = &context.message;
        match message.method() {
            method::PING => return Some(Answer::result(message, super::EMPTY)),
            method::SET_LEVEL => {
                session.set_level(message);
                return Some(Answer::result(message, super::EMPTY));
            }
            method::SUBSCRIBE | method::UNSUBSCRIBE => {
                return Some(self.watch_resource(session, context, target).await);
            }
            name if method::route(name) == method::Route::Task || name == "tasks/list" => {
                let text = "this upstream has no tasks of the legacy era";
                return Some(Answer::error(Era::Legacy, message, answer::METHOD_NOT_FOUND, text));
            }
            _ => {}
        }
        let upstream = self.upstream(target.upstream);
        let deadline = Deadline::of(upstream, start);
        let (to, heard) = mpsc::channel(WAITING);
        let input_loop = match self.input_loop(context, target, session, (deadline, to)) {
            Ok(input_loop) => input_loop,
            Err(why) => return Some(Answer::error(Era::Legacy, message, answer::INTERNAL, &why)),
        };
        let run = Arc::clone(&input_loop.running.run);
        if !session.stateless().work(input_loop.run()) {
            let text = format!("this session has {WORK} requests running already; wait for their answers");
            return Some(Answer::whole(429, answer::error(message.id(), answer::INTERNAL, &text, None)));
        }
        answered((heard, run), message, upstream, deadline, record).await
    }

    fn input_loop(
        &self,
        context: &RequestContext,
        target: &Target,
        session: &Arc<Session>,
        (deadline, to): (Deadline, mpsc::Sender<StreamItem>),
    ) -> Result<InputLoop, String> {
        let original = target.message(context).map_err(|why| why.to_string())?;
        let running = session.run(&original, target.upstream).ok_or("it has no id")?;
        let name = target.name.clone().or_else(|| method::target(&original).map(|name| name.into_owned()));
        Ok(InputLoop {
            session: Arc::clone(session),
            caller: context.caller.clone(),
            upstream: Arc::clone(self.upstream(target.upstream)),
            catalog: Arc::clone(&self.catalog),
            place: target.upstream,
            list_cache: Arc::clone(&self.list_cache),
            running,
            asked: target.asked.clone(),
            name,
            original,
            headers: context.headers.iter().filter(|(name, _)| !name.as_str().starts_with("mcp-")).cloned().collect(),
            deadline: Mutex::new(deadline),
            to,
        })
    }
}

/// What a client is given: the answer, if it is here soon, else a stream that ends with it.
async fn answered(
    (mut heard, run): (mpsc::Receiver<StreamItem>, Arc<RunningRequest>),
    request: &Message,
    upstream: &Arc<Upstream>,
    deadline: Deadline,
    record: &mut CallLog,
) -> Option<Answer> {
    let first = tokio::time::timeout(FIRST, heard.recv()).await;
    let first = match first {
        Ok(Some(StreamItem::Turned)) => return None,
        Ok(Some(StreamItem::Said(ClientMessage { message, last: true, attempts, outcome, failure }))) => {
            record.attempts = attempts;
            (record.outcome, record.failure) = (outcome, failure);
            return Some(Answer::whole(200, message));
        }
        Ok(Some(StreamItem::Said(said))) => Some(said),
        // Cancelled, or on the way.
        Ok(None) | Err(_) => None,
    };
    let id = request.id().unwrap_or(b"null");
    let delivery = AnswerStream::input_loop(first, (heard, run), id, upstream, deadline.beyond(BEYOND));
    let body = Body::Events(Box::new(delivery));
    Some(Answer { status: 200, session: None, allow: None, body, record: None })
}
