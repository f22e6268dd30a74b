//! An answer in JSON that is on its way. It is gathered by whoever delivers it, when there is room for it, and looked into
//! before anything of it goes out.

use std::sync::Arc;

use bytes::Bytes;
use weir_flow::Failure;
use weir_mcp::{
    Era, InboundRequest, Kind, Message, Object,
    public::{self, PublicNames},
};

use crate::{
    session::RunningGuard,
    telemetry::CallOutcome,
    upstream::{JsonBody, SendError, Upstream},
};

use super::{
    RequestContext,
    answer::{answered, failure_message, outcome},
    deadline::Deadline,
    decided_answer::DecidedCall,
    legacy,
    task_owner::TaskOwner,
};

/// The body of an upstream's answer to a request.
pub struct PendingAnswer {
    pub(super) json: JsonBody,
    pub(super) status: u16,
    pub(super) era: Era,
    /// The request's id, raw.
    pub(super) id: Bytes,
    pub(super) upstream: Arc<Upstream>,
    /// What in it may need a public name.
    pub(super) asked: Option<PublicNames>,
    pub(super) running: Option<RunningGuard>,
    pub(super) deadline: Deadline,
    /// Whose a task in it is.
    pub(super) owner: Option<Box<TaskOwner>>,
    /// The policies that decide about it.
    pub(super) decided: Option<Box<DecidedCall>>,
}

/// What came of it.
pub struct WholeAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The answer, or an error in its place.
    pub message: Bytes,
    /// What it comes to.
    pub outcome: CallOutcome,
    /// Why it is an error of Weir's own.
    pub failure: Option<String>,
}

impl PendingAnswer {
    /// The answer to a request, of which the head is here.
    pub(super) fn new(
        context: &RequestContext,
        (json, status): (JsonBody, u16),
        upstream: &Arc<Upstream>,
        asked: Option<PublicNames>,
        running: Option<RunningGuard>,
        deadline: Deadline,
    ) -> Self {
        let id = Bytes::copy_from_slice(context.message.id().unwrap_or(b"null"));
        Self {
            json,
            status,
            era: context.era,
            id,
            upstream: Arc::clone(upstream),
            asked,
            running,
            deadline,
            owner: None,
            decided: None,
        }
    }

    /// All of it, if it is the answer to the request; otherwise an error that names the upstream.
    pub async fn gather(self) -> WholeAnswer {
        let Self { json, status, era, id, upstream, asked, running, deadline, owner, decided } = self;
        let gathered = tokio::time::timeout_at(deadline.at.into(), json.gather()).await;
        let answer = gathered.unwrap_or(Err(SendError::TimedOut)).and_then(|body| answer_in(body, &id, status));
        let failure = match answer {
            Ok(answer) => {
                let named = asked.as_ref().and_then(|asked| public::outward(&answer, upstream.name(), asked));
                // To a client with a session a 404 would say that its session is gone (2025-11-25, basic/transports).
                let status = if (era, status) == (Era::Legacy, 404) { 200 } else { status };
                let message = named.unwrap_or_else(|| answer.bytes().clone());
                let (message, failure) = match decided {
                    Some(mut call) => call.whole(message).await,
                    None => (message, None),
                };
                let marked = owner.and_then(|owner| owner.marked(&message));
                let message = marked.unwrap_or(message);
                let outcome = if failure.is_some() { CallOutcome::Denied } else { answered(&answer) };
                return WholeAnswer { status, message, outcome, failure };
            }
            Err(SendError::TimedOut) => {
                if let Some(running) = &running {
                    legacy::cancel(&upstream, running);
                }
                Failure::TimedOut(upstream.timeouts.overall)
            }
            Err(why) => why.into(),
        };
        let message = failure_message(Some(&id), upstream.name(), &failure);
        WholeAnswer { status: 200, message, outcome: outcome(&failure), failure: Some(failure.to_string()) }
    }
}

/// The answer to the request with this raw id out of a body. What a server says before it has read the request, with a
/// status of its own, may name any id or none; it is about this request all the same.
pub(super) fn answer_in(body: Bytes, id: &[u8], status: u16) -> Result<Message, SendError> {
    let not_mcp =
        |why: String| SendError::NotMcp(if (200..300).contains(&status) { why } else { format!("status {status}") });
    let inbound = InboundRequest::parse(body).map_err(|why| not_mcp(why.to_string()))?;
    let mut messages = inbound.messages().iter();
    let answer = messages.find_map(|message| match message.kind() {
        Kind::Error if status >= 400 => Message::parse(message.edit().put(Object::Message, "id", id).finish()).ok(),
        _ => message.answer_to(id),
    });
    answer.ok_or_else(|| not_mcp("it answered another request than the one it was asked".into()))
}
