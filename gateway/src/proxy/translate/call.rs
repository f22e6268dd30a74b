//! One request of a modern client at a legacy upstream: what goes out, and what becomes of what comes back.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use weir_mcp::{
    Era, Field, Kind, Message, ParseError, answer, method,
    public::{self, PublicNames},
    status::http_status,
    translate::{is_logged, legacy_request, may_ask, missing, modern_answer},
};

use crate::{
    caller::Caller,
    http::{HeaderName, HeaderValue},
    proxy::{
        Answer, AnswerStream, CallLog, RequestContext, answer::answered, attempt::Attempt, deadline::Deadline,
        pending_answer::answer_in,
    },
    task,
    telemetry::CallOutcome,
    upstream::{self, Outgoing, Reply, SendError, Ticket},
};

use super::{
    list_cache::{CachedListKey, ListCache},
    pending_input::{PendingInput, SuspendedCall},
    shared_session::{SessionLease, is_change},
};

/// How long more questions are waited for after one, so that a client is asked them together.
const TOGETHER: Duration = Duration::from_millis(50);

/// A request that runs at a legacy upstream. Dropped before its answer came, it is cancelled there: its client is gone.
pub(in crate::proxy) struct TranslatedCall {
    pub(super) lease: SessionLease,
    /// Whose share it is of while it waits.
    pub(super) principal: Arc<str>,
    request: Message,
    headers: Vec<(HeaderName, HeaderValue)>,
    ticket: Ticket,
    /// What the client calls the request, what it asked for, and where it wants to hear of progress.
    pub(super) id: Bytes,
    method: String,
    token: Option<Bytes>,
    /// From which severity on the client wants log messages.
    level: Option<String>,
    /// Whether the client speaks with many upstreams at once.
    crosses: bool,
    /// What its sealed state is good for: the caller, the method, the upstream, and the tool, prompt or resource.
    pub(super) bound: Vec<u8>,
    /// Whether the upstream may be working on it.
    runs: AtomicBool,
    /// What the upstream asked, and the client has not declared.
    refused: OnceLock<Message>,
    /// The list that it asks for, if it does.
    list: Option<CachedListKey>,
    list_cache: Arc<ListCache>,
}

/// The messages of a call on their way to its client.
pub(in crate::proxy) struct TranslatedStream {
    pending: Arc<PendingInput>,
    /// None when it is over, or put aside.
    running: Option<SuspendedCall>,
    /// When the questions that are open are put to the client.
    ask_at: Option<Instant>,
    /// What the answer comes to.
    outcome: CallOutcome,
    /// The upstream has reported progress since that was last looked at.
    progressed: bool,
}

/// What one message of the upstream is to the client.
enum CallMessage {
    /// The answer.
    Last(Bytes, CallOutcome),
    /// The same, where it is an error.
    Failed(Bytes),
    /// Something on the way to it.
    More(Bytes),
    /// The same, where it is progress.
    Progress(Bytes),
    /// A question that the client must answer first.
    Question(Box<Message>),
    /// Nothing.
    Nothing,
}

impl TranslatedCall {
    /// Prepares a request; `original` is what the client sent, in the upstream's own names.
    pub(super) fn new(
        context: &RequestContext,
        original: &Message,
        lease: SessionLease,
        list_cache: &Arc<ListCache>,
    ) -> Result<Self, ParseError> {
        let request = Message::parse(legacy_request(original, lease.key))?;
        let travels = |(name, _): &&(HeaderName, HeaderValue)| !name.as_str().starts_with("mcp-");
        Ok(Self {
            request,
            headers: context.headers.iter().filter(travels).cloned().collect(),
            ticket: Ticket::cancelling(),
            id: Bytes::copy_from_slice(original.id().unwrap_or(b"null")),
            method: original.method().to_owned(),
            token: original.progress_token().map(Bytes::copy_from_slice),
            level: original.text(Field::LogLevel).map(|level| level.into_owned()),
            crosses: context.endpoint.is_merged(),
            bound: bound(context.caller.as_ref(), lease.session.name(), original),
            runs: AtomicBool::new(false),
            refused: OnceLock::new(),
            list: CachedListKey::of(lease.session.upstream.key(), Era::Modern, original.method()),
            list_cache: Arc::clone(list_cache),
            principal: Arc::clone(&context.principal),
            lease,
        })
    }

    /// Sends it.
    pub(in crate::proxy) async fn send(&self, attempt: &Attempt<'_>) -> Result<Reply, SendError> {
        let outgoing = Outgoing {
            headers: &self.headers,
            ticket: Some(&self.ticket),
            trace: attempt.trace.as_ref(),
            ..Outgoing::own(Era::Legacy, &self.request, attempt.credential)
        };
        self.runs.store(true, Ordering::Release);
        self.lease.session.channel.send(outgoing).await
    }

    /// Takes note that it failed: there is nothing to cancel, and perhaps no session any more.
    pub(in crate::proxy) fn failed(&self, why: &SendError) {
        if *why != SendError::TimedOut {
            self.runs.store(false, Ordering::Release);
        }
        if *why == SendError::SessionLost {
            self.lease.session.lose();
        }
    }

    /// Goes on under the name of a later request, which answers the upstream's questions.
    pub(super) fn continue_as(&mut self, request: &Message) {
        self.id = Bytes::copy_from_slice(request.id().unwrap_or(b"null"));
        self.token = request.progress_token().map(Bytes::copy_from_slice);
        self.level = request.text(Field::LogLevel).map(|level| level.into_owned());
    }

    /// Turns the upstream's reply into the client's answer.
    pub(in crate::proxy) async fn deliver(
        self,
        reply: Reply,
        pending: &Arc<PendingInput>,
        deadline: Deadline,
        record: &mut CallLog,
    ) -> Result<Answer, SendError> {
        match reply.body {
            upstream::ReplyBody::Empty => Err(SendError::NotMcp(format!("status {} without an answer", reply.status))),
            upstream::ReplyBody::Json(body) => {
                let gathered = tokio::time::timeout_at(deadline.at.into(), body.gather()).await;
                let bytes = gathered.unwrap_or(Err(SendError::TimedOut))?;
                if let Some(told) = self.recall(&bytes) {
                    return Ok(Answer::whole(200, told));
                }
                let id = self.request.id().unwrap_or(b"null");
                match self.understand(answer_in(bytes, id, reply.status)?) {
                    CallMessage::Last(bytes, outcome) => {
                        record.outcome = outcome;
                        Ok(Answer::whole(200, bytes))
                    }
                    CallMessage::Failed(bytes) => {
                        record.outcome = CallOutcome::Error;
                        record.note_error(CallOutcome::Error, &bytes);
                        Ok(refused(bytes))
                    }
                    CallMessage::More(_)
                    | CallMessage::Progress(_)
                    | CallMessage::Question(_)
                    | CallMessage::Nothing => Err(broken()),
                }
            }
            upstream::ReplyBody::Events(events) => {
                let running = SuspendedCall { call: self, events, questions: Vec::new(), asked: 0 };
                TranslatedStream::new(running, pending).answer(deadline, record).await
            }
        }
    }

    fn hear(&self, data: Bytes) -> Result<CallMessage, SendError> {
        if let Some(told) = self.recall(&data) {
            return Ok(CallMessage::Last(told, CallOutcome::Ok));
        }
        let message = Message::parse(data).map_err(|why| SendError::NotMcp(why.to_string()))?;
        Ok(self.understand(message))
    }

    /// What the client is told where the upstream lists what it listed the last time.
    fn recall(&self, data: &Bytes) -> Option<Bytes> {
        let (list, key) = (self.list.as_ref()?, self.request.id()?);
        let info = self.lease.session.server_info().unwrap_or_default();
        let told = self.list_cache.recall(list, (data, key), info, &self.id)?;
        self.runs.store(false, Ordering::Release);
        Some(told)
    }

    fn understand(&self, message: Message) -> CallMessage {
        match (message.kind(), message.method()) {
            (Kind::Response | Kind::Error, _) => {
                let Some(message) = message.answer_to(self.request.id().unwrap_or(b"null")) else {
                    tracing::debug!(
                        upstream = self.lease.session.name(),
                        "answers another request than the one it was asked"
                    );
                    return CallMessage::Nothing;
                };
                self.runs.store(false, Ordering::Release);
                if let Some(needed) = missing(&message, self.lease.session.asks, self.refused.get()) {
                    return CallMessage::Failed(self.lacks(needed));
                }
                let info = self.lease.session.server_info();
                let told = modern_answer(&message, &self.id, &self.method, info);
                if let Some(list) = &self.list {
                    self.list_cache.keep(list.clone(), &message, info.unwrap_or_default(), &told, &self.id);
                }
                match answered(&message) {
                    CallOutcome::Error => CallMessage::Failed(told),
                    outcome => CallMessage::Last(told, outcome),
                }
            }
            (Kind::Notification, method::PROGRESS) => match &self.token {
                Some(token) if self.is_mine(&message) => {
                    CallMessage::Progress(message.edit().set(Field::ProgressToken, token).finish())
                }
                _ => CallMessage::Nothing,
            },
            (Kind::Notification, method::LOG_MESSAGE) => match &self.level {
                Some(level) if is_logged(level, &message) => {
                    let name = self.lease.session.name();
                    let named = self.crosses.then(|| public::outward(&message, name, &PublicNames::Plain)).flatten();
                    CallMessage::More(named.unwrap_or_else(|| message.bytes().clone()))
                }
                _ => CallMessage::Nothing,
            },
            (Kind::Notification, name) if is_change(name) => {
                self.lease.session.change(message);
                CallMessage::Nothing
            }
            // The rest means nothing in the modern era.
            (Kind::Notification, _) => CallMessage::Nothing,
            (Kind::Request, _) if may_ask(&self.method) && self.lease.session.asks.allows(&message) => {
                CallMessage::Question(Box::new(message))
            }
            // On a pipe nothing says which request a question belongs to, so it may be another one's.
            (Kind::Request, _) if !may_ask(&self.method) => {
                self.lease.session.hear(message);
                CallMessage::Nothing
            }
            (Kind::Request, _) => {
                self.lease.session.refuse(&message);
                // The first is what the call fails for.
                drop(self.refused.set(message));
                CallMessage::Nothing
            }
        }
    }

    /// The answer to a client that has not declared what the call needs.
    fn lacks(&self, needed: &str) -> Bytes {
        let data = format!("{{\"requiredCapabilities\":{needed}}}");
        let text = "the upstream needs a capability that this client has not declared";
        answer::error(Some(&self.id), answer::MISSING_CAPABILITY, text, Some(&data))
    }

    /// Whether progress is this call's. A process's is found by its token before it comes here, and has it back.
    fn is_mine(&self, progress: &Message) -> bool {
        progress.progress_token() == self.request.progress_token()
    }
}

impl Drop for TranslatedCall {
    fn drop(&mut self) {
        // On a shared stream the exchange tells it, which alone knows what the server calls the request there.
        if self.runs.load(Ordering::Acquire) && self.lease.session.channel.has_request_streams() {
            let params = format!("{{\"requestId\":{},\"reason\":\"the client is gone\"}}", self.lease.key);
            self.lease.session.tell(answer::notification(method::CANCELLED, Some(params.as_bytes())));
        }
    }
}

impl TranslatedStream {
    pub(super) fn new(running: SuspendedCall, pending: &Arc<PendingInput>) -> Self {
        let ask_at = (!running.questions.is_empty()).then(Instant::now);
        Self {
            pending: Arc::clone(pending),
            running: Some(running),
            ask_at,
            outcome: CallOutcome::Ok,
            progressed: false,
        }
    }

    /// The answer to its client.
    pub(super) async fn answer(self, deadline: Deadline, record: &mut CallLog) -> Result<Answer, SendError> {
        let Some(SuspendedCall { call, .. }) = &self.running else { return Err(broken()) };
        let (id, upstream) = (call.id.clone(), Arc::clone(&call.lease.session.upstream));
        let stream = AnswerStream::translated(self, &id, &upstream, deadline);
        stream.answer(Era::Modern, record).await.map_err(|_| broken())
    }

    /// What the answer comes to.
    pub(in crate::proxy) const fn outcome(&self) -> CallOutcome {
        self.outcome
    }

    /// Whether the upstream has reported progress since this was last asked.
    pub(in crate::proxy) fn has_progressed(&mut self) -> bool {
        std::mem::take(&mut self.progressed)
    }

    /// The next message for the client, and whether it is the answer. Cancel-safe.
    pub(in crate::proxy) async fn next(&mut self) -> Result<(Bytes, bool), SendError> {
        loop {
            let Some(running) = &mut self.running else { return Err(broken()) };
            let ask_at = self.ask_at;
            let heard = tokio::select! {
                event = running.events.next() => match event? {
                    // Without data it is the first event of a stream that can be resumed.
                    Some(event) if event.data.is_empty() || !event.is_message() => continue,
                    Some(event) => running.call.hear(event.data)?,
                    None => return Err(broken()),
                },
                Some(message) = running.call.lease.heard.recv() => running.call.understand(message),
                () = task::or_never(ask_at.map(|at| tokio::time::sleep_until(at.into()))) => {
                    self.ask_at = None;
                    return Ok((self.park().ok_or_else(broken)?, true));
                }
            };
            self.outcome = match &heard {
                CallMessage::Last(_, outcome) => *outcome,
                CallMessage::Failed(_) => CallOutcome::Error,
                _ => CallOutcome::Ok,
            };
            self.progressed |= matches!(heard, CallMessage::Progress(_));
            match heard {
                CallMessage::Last(bytes, _) | CallMessage::Failed(bytes) => {
                    if let Some(SuspendedCall { events, .. }) = self.running.take() {
                        events.finish();
                    }
                    return Ok((bytes, true));
                }
                CallMessage::More(bytes) | CallMessage::Progress(bytes) => return Ok((bytes, false)),
                CallMessage::Question(message) => match running.ask(message) {
                    Ok(()) => self.ask_at = Some(Instant::now() + TOGETHER),
                    Err(message) => running.call.lease.session.refuse(&message),
                },
                CallMessage::Nothing => {}
            }
        }
    }

    /// Puts the call aside until its client has answered; the answer says so, or why it is over.
    fn park(&mut self) -> Option<Bytes> {
        let running = self.running.take()?;
        let (id, upstream) = (running.call.id.clone(), running.call.lease.session.name().to_owned());
        Some(self.pending.park(running).unwrap_or_else(|why| {
            tracing::warn!(upstream, error = why, "a call cannot wait for its client's input");
            self.outcome = CallOutcome::Error;
            let text = format!("the upstream asks for input, and this call cannot wait for it: {why}");
            answer::error(Some(&id), answer::INTERNAL, &text, None)
        }))
    }
}

/// What the sealed state of a request is good for.
pub(super) fn bound(caller: Option<&Arc<Caller>>, upstream: &str, request: &Message) -> Vec<u8> {
    let target = method::target(request).unwrap_or_default();
    let caller = caller.map_or("", |caller| caller.id());
    [request.method(), upstream, caller, &target].join("\n").into_bytes()
}

/// An error with the status that the modern era gives it.
fn refused(bytes: Bytes) -> Answer {
    let code = Message::parse(bytes.clone()).ok().and_then(|message| message.error_code());
    Answer::whole(code.map_or(200, |code| http_status(Era::Modern, code)), bytes)
}

fn broken() -> SendError {
    SendError::NotMcp("its event stream ended before the answer".into())
}
