//! Legacy clients at modern upstreams: where each of their requests goes.

use std::{sync::Arc, time::Instant};

use weir_flow::Failure;
use weir_mcp::{Era, ParseError, answer, method};

use crate::{
    proxy::{Answer, AnswerStream, CallLog, Proxy, RequestContext, deadline::Deadline, drive::Stop, route::Target},
    session::{RunningGuard, WORK},
};

use super::input_loop::{InputLoop, InputStream};

impl Proxy {
    /// Takes a request of a legacy client to a modern upstream and back.
    pub(in crate::proxy) async fn to_modern(
        self: &Arc<Self>,
        context: &RequestContext,
        target: &Target,
        running: &mut Option<RunningGuard>,
        start: Instant,
        record: &mut CallLog,
    ) -> Result<Answer, Stop> {
        let (message, upstream) = (&context.message, &target.upstream);
        let Some(session) = &context.session else { return Err(Stop::Failed(Failure::SessionLost)) };
        match message.method() {
            method::PING => return Ok(Answer::result(message, super::EMPTY)),
            method::SET_LEVEL => {
                session.set_level(message);
                return Ok(Answer::result(message, super::EMPTY));
            }
            method::SUBSCRIBE | method::UNSUBSCRIBE => return Ok(self.watch_resource(session, context, target).await),
            name if method::route(name) == method::Route::Task || name == "tasks/list" => {
                let text = "this upstream has no tasks of the legacy era";
                return Ok(Answer::error(Era::Legacy, message, answer::METHOD_NOT_FOUND, text));
            }
            _ => {}
        }
        let Some(permit) = session.stateless().permit() else {
            let text = format!("this session has {WORK} requests running already; wait for their answers");
            return Ok(Answer::whole(429, answer::error(message.id(), answer::INTERNAL, &text, None)));
        };
        let deadline = Deadline::of(upstream, start);
        let unreadable = |why: ParseError| Stop::Failed(Failure::Unreachable(why.to_string()));
        let original = target.message(context).map_err(unreadable)?;
        let name = target.name.clone().or_else(|| method::target(&original).map(|name| name.into_owned()));
        let input_loop = InputLoop {
            proxy: Arc::clone(self),
            session: Arc::clone(session),
            caller: context.caller.clone(),
            upstream: Arc::clone(upstream),
            asked: target.asked.clone(),
            name,
            request: original.clone(),
            original,
            headers: context.headers.iter().filter(|(name, _)| !name.as_str().starts_with("mcp-")).cloned().collect(),
            deadline,
            span: record.span.clone(),
            _permits: (permit, record.share_permit()),
            params: Vec::new(),
            over_http: false,
            progress: f64::NEG_INFINITY,
        };
        let stream = InputStream::new(input_loop, running.take());
        let stream = AnswerStream::input_loop(stream, message, upstream, deadline);
        stream.answer(Era::Legacy, record).await.map_err(|given_back| {
            *running = given_back;
            Stop::OtherEra
        })
    }
}
