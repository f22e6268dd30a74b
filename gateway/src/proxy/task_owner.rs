//! Whose a task is.
//!
//! Servers of the modern era know a task by its id alone. Where callers share a credential at the upstream, whoever knew
//! the id would have the task. So the ids that a caller sees end with a mark, which the same id has for no other caller.
//! That needs no memory. It outlives a restart, as the key of the marks lies in the store.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use ring::{hmac, rand::SystemRandom};
use tokio::sync::OnceCell;
use weir_mcp::{Era, Message, Object, answer, json, method, public};

use crate::{caller::Caller, credential::CredentialManager, session::Endpoint, telemetry::CallOutcome};

use super::{
    Answer, Body, CallLog, Proxy, RequestContext,
    route::declares_tasks,
    unknown::{UnknownTarget, nowhere},
    watch::WATCHED,
};

/// What parts an id from its mark. No mark has it inside.
const SEPARATOR: char = '.';

/// What makes the marks.
pub(super) struct TaskMarks {
    manager: Arc<CredentialManager>,
    /// None if the system has no randomness to give.
    key: OnceCell<Option<Arc<hmac::Key>>>,
    /// For as long as the store is away.
    meanwhile: OnceLock<Arc<hmac::Key>>,
}

fn random_key() -> Option<hmac::Key> {
    hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok()
}

/// The tasks of one caller at one endpoint.
pub(super) struct TaskOwner {
    key: Arc<hmac::Key>,
    /// What has marked tasks while the store was away.
    meanwhile: Option<Arc<hmac::Key>>,
    caller: Arc<str>,
    endpoint: Endpoint,
    /// Whether the request is about a task.
    of_task: bool,
}

impl TaskMarks {
    pub(super) fn new(manager: Arc<CredentialManager>) -> Self {
        Self { manager, key: OnceCell::new(), meanwhile: OnceLock::new() }
    }

    async fn key(&self) -> Option<Arc<hmac::Key>> {
        let made = self.key.get_or_try_init(|| async {
            let key = match self.manager.task_key().await {
                Ok(key) => Some(hmac::Key::new(hmac::HMAC_SHA256, &key)),
                Err(why) if why.is_away() => return Err(()),
                Err(why) => {
                    tracing::warn!("tasks are found again until Weir ends, and not after that: {why}");
                    random_key()
                }
            };
            Ok(key.map(Arc::new))
        });
        match made.await {
            Ok(key) => key.clone(),
            Err(()) => match self.meanwhile.get() {
                Some(key) => Some(Arc::clone(key)),
                None => random_key().map(|key| Arc::clone(self.meanwhile.get_or_init(|| Arc::new(key)))),
            },
        }
    }
}

impl Proxy {
    /// Takes a request to its answer that may be about tasks of one caller, or may become one.
    pub(super) async fn carry_for_owner(
        self: &Arc<Self>,
        (caller, of_task): (Arc<str>, bool),
        context: &RequestContext,
        record: &mut CallLog,
    ) -> Answer {
        let key = match &self.tasks {
            Some(marks) => marks.key().await,
            None => None,
        };
        let Some(key) = key else {
            let why = "nothing can mark whose its tasks are: the system has no randomness to give";
            record.fail(CallOutcome::Limited, why);
            return Answer::error(Era::Modern, &context.message, answer::INTERNAL, why);
        };
        if of_task && !declares_tasks(&context.message) {
            record.fail(CallOutcome::Refused, "the client does not declare tasks");
            return nowhere(context, &UnknownTarget::Undeclared);
        }
        let meanwhile = self.tasks.as_ref().and_then(|marks| marks.meanwhile.get().cloned());
        let owner = TaskOwner { key, meanwhile, caller, endpoint: context.endpoint.clone(), of_task };
        let Some(context) = owner.unmarked(context) else {
            record.fail(CallOutcome::Refused, "the task is not the caller's, or there is none");
            return nowhere(context, &UnknownTarget::Task);
        };
        let mut answer = self.carry(&context, record).await;
        match &mut answer.body {
            Body::Empty => {}
            Body::Whole(parts) => {
                if let Some(marked) = owner.marked(&parts.concat().into()) {
                    *parts = [marked, Bytes::new(), Bytes::new()];
                }
            }
            Body::Json(pending) => pending.owner = Some(Box::new(owner)),
            Body::Events(stream) => stream.mark_with(Box::new(owner)),
        }
        answer
    }
}

/// Who has the tasks that a request is about or may become, and whether it is about one.
pub(super) fn task_owner(context: &RequestContext) -> Option<(Arc<str>, bool)> {
    let message = &context.message;
    let of_task = method::route(message.method()) == method::Route::Task;
    let caller = Caller::apart(context.caller.as_ref())?;
    // Whoever declares nothing may name a task all the same.
    let may = of_task
        || message.method() == method::LISTEN
        || message.method() == method::TOOLS_CALL && declares_tasks(message);
    (context.era == Era::Modern && may).then_some((caller, of_task))
}

impl TaskOwner {
    /// The request with the ids that its upstream knows; none if it is about a task of somebody else, or if servers may
    /// read in two ways which tasks it is about.
    fn unmarked(&self, context: &RequestContext) -> Option<RequestContext> {
        let message = &context.message;
        let body = if self.of_task {
            self.unmark(&message.task_id()?)?;
            public::with_task_ids(message, true, |id| self.unmark(id))
        } else if message.method() == method::LISTEN {
            self.wish(message)?
        } else {
            public::with_task_ids(message, false, |id| self.unmark(id))
        };
        let message = body.map_or_else(|| Some(message.clone()), |body| Message::parse(body).ok())?;
        Some(RequestContext { message, ..context.clone() })
    }

    /// What a client wants to listen to, with its own tasks alone; none inside if there are none.
    fn wish(&self, message: &Message) -> Option<Option<Bytes>> {
        let params = message.params().unwrap_or(b"{}");
        let mut wishes = json::members(params).filter(|(key, _)| json::is_like(key.as_bytes(), "notifications"));
        let Some((key, wish)) = wishes.next() else { return Some(None) };
        if key != "notifications" || wishes.next().is_some() {
            return None;
        }
        let is_tasks = |key: &str| json::is_like(key.as_bytes(), "taskIds");
        if !json::members(wish).any(|(key, _)| is_tasks(&key)) {
            return Some(None);
        }
        let ids = json::get(wish, &["taskIds"]).into_iter().flat_map(json::elements).filter_map(json::string);
        let own = ids.take(WATCHED).filter_map(|id| self.unmark(&id)).map(|id| json::quote(&id));
        let own = format!("\"taskIds\":[{}]", own.collect::<Vec<_>>().join(","));
        let others = json::members(wish).filter(|(key, _)| !is_tasks(key));
        let others = others.map(|(key, raw)| format!("{}:{}", json::quote(&key), String::from_utf8_lossy(raw)));
        let wish = others.chain([own]).collect::<Vec<_>>().join(",");
        Some(Some(message.edit().put(Object::Body, "notifications", format!("{{{wish}}}")).finish()))
    }

    /// A message with the ids that the caller knows; none if it is the same.
    pub(super) fn marked(&self, message: &Bytes) -> Option<Bytes> {
        let message = Message::parse(message.clone()).ok()?;
        public::with_task_ids(&message, self.of_task, |id| Some(format!("{id}{SEPARATOR}{}", self.mark(id))))
    }

    fn unmark(&self, marked: &str) -> Option<String> {
        let (id, mark) = marked.rsplit_once(SEPARATOR)?;
        let mark = URL_SAFE_NO_PAD.decode(mark).ok()?;
        let whole = self.whole(id);
        let mut keys = [Some(&self.key), self.meanwhile.as_ref()].into_iter().flatten();
        keys.any(|key| hmac::verify(key, whole.as_bytes(), &mark).is_ok()).then(|| id.to_owned())
    }

    fn mark(&self, id: &str) -> String {
        URL_SAFE_NO_PAD.encode(hmac::sign(&self.key, self.whole(id).as_bytes()))
    }

    /// What stands for a task of a caller, and for no other. It is the same at each endpoint.
    fn whole(&self, id: &str) -> String {
        let id = match &self.endpoint {
            Endpoint::One(upstream) => Cow::Owned(public::id(upstream.name(), id)),
            Endpoint::Merged(_) => Cow::Borrowed(id),
        };
        // With its length, no caller can be taken for a part of another.
        format!("{}:{}{id}", self.caller.len(), self.caller)
    }
}
