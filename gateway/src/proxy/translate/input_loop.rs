//! One request of a legacy client at a modern upstream, until there is an answer.
//!
//! The upstream asks by an answer (`input_required`). Here that becomes requests to the client, on the stream of the very
//! call; what the client answers goes up with the same request once more. The work is pulled by whoever delivers the
//! stream, which goes on when a client loses its connection: a legacy client has not cancelled anything by that.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use weir_flow::Failure;
use weir_mcp::{
    Era, Field, Kind, Message, answer, json, method, public,
    translate::{self, InputRequired, may_ask},
};

use crate::{
    admission::CallPermit,
    caller::Caller,
    catalog,
    http::{HeaderName, HeaderValue},
    proxy::{
        Proxy,
        answer::{answered, failure_message, outcome},
        attempt::{Attempt, AttemptSpans},
        deadline::Deadline,
        drive::{CallDriver, Codec, Stop},
        namespace,
        pending_answer::answer_in,
    },
    session::{ClientQuestion, Endpoint, RunningGuard, Session},
    task,
    telemetry::{CallOutcome, CallSpan, NEEDS_SIGN_IN},
    upstream::{Channel, JsonBody, Outgoing, Reply, ReplyBody, SendError, Upstream},
};

use super::list_cache::CachedListKey;

/// How often an upstream may ask before it answers.
const ROUNDS: u32 = 16;

/// How long to wait where an upstream wants to be called again and asks for nothing; it grows with each round.
const PACE: Duration = Duration::from_millis(250);

/// How many messages may wait for a client that does not read.
const WAITING: usize = 16;

/// The level of log messages for a client that has set none. Which it gets then is left to the server (2025-11-25,
/// server/utilities/logging).
const LEVEL: &str = "info";

/// A request, and how far it has come.
pub(super) struct InputLoop {
    pub(super) proxy: Arc<Proxy>,
    pub(super) session: Arc<Session>,
    pub(super) caller: Option<Arc<Caller>>,
    pub(super) upstream: Arc<Upstream>,
    /// What may need a public name in its answer, where the client speaks with many upstreams at once.
    pub(super) asked: Option<public::PublicNames>,
    /// What the client sent, in the upstream's own names.
    pub(super) original: Message,
    /// What `Mcp-Name` says.
    pub(super) name: Option<String>,
    /// Headers of the client that may travel.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) deadline: Deadline,
    /// None if the call is not traced.
    pub(super) span: Option<Arc<CallSpan>>,
    /// Its place among those that run for the session, and what it holds as a call.
    pub(super) _permits: (OwnedSemaphorePermit, Option<CallPermit>),
    /// What is sent.
    pub(super) request: Message,
    /// The arguments that travel in headers too.
    pub(super) params: Vec<(HeaderName, HeaderValue)>,
    pub(super) over_http: bool,
    /// The furthest progress that the client has heard of, which must not go back.
    pub(super) progress: f64,
}

/// What a request brings its client, one after the other.
///
/// Dropped before its end, the work goes on in the session without a client: who loses a connection has cancelled nothing
/// (MCP 2025-11-25, basic/transports).
pub(in crate::proxy) struct InputStream {
    /// None once it is at its end, or given up.
    work: Option<Pin<Box<dyn Future<Output = InputItem> + Send>>>,
    session: Arc<Session>,
    /// The request among those that its client may cancel.
    running: Option<RunningGuard>,
    /// When work without a client is given up.
    last: Instant,
    messages: mpsc::Receiver<InputItem>,
    end: Option<InputItem>,
    attempts: Arc<AtomicU32>,
}

/// One of these.
pub(in crate::proxy) enum InputItem {
    /// A message on the way to the answer.
    Message {
        message: Bytes,
        /// Whether it says that the call makes progress.
        progress: bool,
    },
    /// The answer; what it comes to, and why if that is nothing.
    Answer { message: Bytes, outcome: CallOutcome, failure: Option<String> },
    /// Nothing: the upstream speaks the other era only, and has not looked at the request.
    OtherEra,
}

/// What the work on a request reports to.
pub(in crate::proxy) struct Reporter {
    session: Arc<Session>,
    messages: mpsc::Sender<InputItem>,
    pub(in crate::proxy) attempts: Arc<AtomicU32>,
}

/// An answer of the upstream.
#[allow(clippy::large_enum_variant, reason = "one lives for a moment; a box would cost each call an allocation")]
enum UpstreamAnswer {
    /// As it was read.
    Read(Message),
    /// As the client takes it: it is the list that it was the last time.
    Known(Bytes),
}

impl InputStream {
    /// The stream of a request. Nothing happens before it is asked for the first item.
    pub(super) fn new(input_loop: InputLoop, running: Option<RunningGuard>) -> Self {
        let (session, last) = (Arc::clone(&input_loop.session), input_loop.deadline.last);
        Self::of(session, last, running, |reporter| input_loop.run(reporter))
    }

    /// The stream of other work for a session's client, which is over by `last`.
    pub(in crate::proxy) fn of<F>(
        session: Arc<Session>,
        last: Instant,
        running: Option<RunningGuard>,
        work: impl FnOnce(Reporter) -> F,
    ) -> Self
    where
        F: Future<Output = InputItem> + Send + 'static,
    {
        let (sender, messages) = mpsc::channel(WAITING);
        let attempts = Arc::new(AtomicU32::new(0));
        let reporter = Reporter { session: Arc::clone(&session), messages: sender, attempts: Arc::clone(&attempts) };
        let work = Some(Box::pin(work(reporter)) as Pin<Box<dyn Future<Output = InputItem> + Send>>);
        Self { work, session, running, last, messages, end: None, attempts }
    }

    /// The next item; the end comes last. Cancel-safe.
    pub(in crate::proxy) async fn next(&mut self) -> InputItem {
        if let Some(work) = &mut self.work {
            let end = tokio::select! {
                biased;
                Some(message) = self.messages.recv() => return message,
                end = work => end,
            };
            (self.work, self.end) = (None, Some(end));
        }
        // What was said at the very end comes before it.
        let last = self.messages.try_recv().ok();
        last.or_else(|| self.end.take()).unwrap_or(InputItem::OtherEra)
    }

    /// Gives the work up: the client has cancelled the request, or its time is over.
    pub(in crate::proxy) fn give_up(&mut self) {
        self.work = None;
    }

    /// The request among those that its client may cancel.
    pub(in crate::proxy) const fn running(&self) -> Option<&RunningGuard> {
        self.running.as_ref()
    }

    /// The same, for who puts the request in another way.
    pub(in crate::proxy) fn take_running(&mut self) -> Option<RunningGuard> {
        self.running.take()
    }

    /// How often the request was sent so far.
    pub(in crate::proxy) fn attempts(&self) -> u32 {
        self.attempts.load(Ordering::Relaxed)
    }
}

impl Drop for InputStream {
    fn drop(&mut self) {
        let Some(work) = self.work.take().filter(|_| !self.session.is_over()) else { return };
        let (running, last) = (self.running.take(), self.last);
        self.session.stateless().follow(async move {
            let cancelled = task::or_never(running.as_ref().map(|running| running.run.cancelled()));
            tokio::select! {
                biased;
                () = cancelled => {}
                _ = tokio::time::timeout_at(last.into(), work) => {}
            }
        });
    }
}

/// Whether a refusal is that of a server which has sessions: it was another one, or an older version of it, that spoke the
/// modern era here. It has not looked at the request.
fn wants_session(answer: &Message) -> bool {
    let of_transport =
        answer.error_code().is_some_and(|code| matches!(code, -32019..=-32000 | answer::INVALID_REQUEST));
    let text = answer.text(Field::ErrorMessage).unwrap_or_default().to_ascii_lowercase();
    of_transport && ["session", "not initialized"].iter().any(|word| text.contains(word))
}

impl InputItem {
    const fn answer(message: Bytes, outcome: CallOutcome) -> Self {
        Self::Answer { message, outcome, failure: None }
    }
}

/// One round of a request.
struct Round<'a> {
    input: &'a InputLoop,
    channel: Option<Channel>,
}

impl Codec for Round<'_> {
    async fn open(&mut self) -> Result<(), Stop> {
        self.channel = Some(self.input.upstream.lease_modern(self.input.caller.as_ref()).await?);
        Ok(())
    }

    async fn send(&mut self, attempt: &Attempt<'_>) -> Result<Reply, SendError> {
        let Some(channel) = &self.channel else { return Err(SendError::Unsent("no connection".into())) };
        let InputLoop { request, name, headers, params, .. } = self.input;
        let headers = [&headers[..], params].concat();
        let own = Outgoing::own(Era::Modern, request, attempt.credential);
        let outgoing = Outgoing { name: name.as_deref(), headers: &headers, trace: attempt.trace.as_ref(), ..own };
        let reply = channel.send(outgoing).await?;
        if reply.status == 400 && channel.carries_headers() {
            let answer = reply.answer().await?;
            if wants_session(&answer) {
                return Err(SendError::SessionLost);
            }
            let body = ReplyBody::Json(JsonBody::Whole(answer.bytes().clone()));
            return Ok(Reply { status: 400, session: None, body });
        }
        Ok(reply)
    }

    fn failed(&mut self, why: &SendError) {
        if *why == SendError::SessionLost {
            self.input.upstream.doubt(Era::Modern);
        }
    }
}

impl InputLoop {
    /// Does it all.
    async fn run(mut self, reporter: Reporter) -> InputItem {
        match self.answer(&reporter).await {
            Ok(InputItem::Answer { message, outcome, failure }) => {
                InputItem::Answer { message: self.named(message), outcome, failure }
            }
            Ok(item) => item,
            Err(stop) => self.stopped(stop),
        }
    }

    fn stopped(&self, stop: Stop) -> InputItem {
        let failed = |failure: &Failure| failure_message(Some(self.id()), self.upstream.name(), failure);
        match stop {
            Stop::OtherEra => InputItem::OtherEra,
            Stop::Outage(why) => self.stopped(Stop::Failed(why.into())),
            Stop::Failed(failure) => {
                let failure = match failure {
                    Failure::TimedOut(_) => Failure::TimedOut(self.upstream.timeouts.overall),
                    failure => failure,
                };
                let outcome = outcome(&failure);
                InputItem::Answer { message: failed(&failure), outcome, failure: Some(failure.to_string()) }
            }
            Stop::SignIn(needed) => InputItem::Answer {
                message: failed(&Failure::Policy(needed.to_string())),
                outcome: CallOutcome::SignIn,
                failure: Some(NEEDS_SIGN_IN.to_owned()),
            },
            Stop::Full(reached) => {
                let message = answer::error(Some(self.id()), answer::INTERNAL, &reached.to_string(), None);
                InputItem::answer(message, CallOutcome::Refused)
            }
            // Nothing of a round is answered by Weir itself.
            Stop::Answered(_) => InputItem::OtherEra,
        }
    }

    /// The answer in the names that the client knows.
    fn named(&self, answer: Bytes) -> Bytes {
        let Some(asked) = &self.asked else { return answer };
        let message = Message::parse(answer.clone()).ok();
        message.and_then(|message| public::outward(&message, self.upstream.name(), asked)).unwrap_or(answer)
    }

    async fn answer(&mut self, reporter: &Reporter) -> Result<InputItem, Stop> {
        let (id, method) = (Bytes::copy_from_slice(self.id()), self.original.method().to_owned());
        let not_mcp = |why: weir_mcp::ParseError| Stop::Failed(Failure::NotMcp(why.to_string()));
        let level = self.session.level();
        let declared = &self.session.stateless().declared;
        let request = declared.request(&self.original, 1, Some(level.as_deref().unwrap_or(LEVEL)));
        self.request = Message::parse(request).map_err(not_mcp)?;
        let mirrored = self.proxy.catalog.mirrored(self.caller.as_ref(), &self.upstream, Era::Modern, &self.tool());
        self.params = catalog::headers(&mirrored, &self.request);
        let mut listed = false;
        for round in 1..=ROUNDS {
            let answer = match self.round(round, reporter).await? {
                UpstreamAnswer::Read(answer) => answer,
                UpstreamAnswer::Known(told) => return Ok(InputItem::answer(told, CallOutcome::Ok)),
            };
            if answer.error_code() == Some(answer::HEADER_MISMATCH) && !listed && method == method::TOOLS_CALL {
                listed = true;
                self.end_attempt();
                self.list_again().await;
                continue;
            }
            let asked = match translate::asked(&answer) {
                None => return Ok(InputItem::answer(self.translated(&answer, &id), answered(&answer))),
                Some(Ok(asked)) if may_ask(&method) => asked,
                Some(asked) => {
                    let why = asked.err().unwrap_or(translate::Unaskable::Unreadable);
                    let message = translate::failure(&id, &method, &why.to_string());
                    return Ok(InputItem::answer(message, CallOutcome::Refused));
                }
            };
            self.end_attempt();
            let answers = match self.ask(&asked, round, reporter).await {
                Ok(answers) => answers,
                Err(why) => {
                    return Ok(InputItem::answer(translate::failure(&id, &method, &why), CallOutcome::Refused));
                }
            };
            let again =
                translate::again(&self.request, u64::from(round) + 1, answers.as_deref(), asked.state.as_deref());
            self.request = Message::parse(again).map_err(not_mcp)?;
        }
        let why = format!("the server asked for input {ROUNDS} times and still has no answer");
        Ok(InputItem::answer(translate::failure(&id, &method, &why), CallOutcome::Error))
    }

    /// One round: the request goes up, and what comes before the answer goes down.
    async fn round(&mut self, round: u32, reporter: &Reporter) -> Result<UpstreamAnswer, Stop> {
        let left = self.deadline.at.saturating_duration_since(Instant::now());
        let mut attempts = reporter.attempts.load(Ordering::Relaxed);
        let reply = {
            let driver = CallDriver::new(&self.upstream, self.caller.as_ref(), self.request.method(), left);
            let driver = driver.traced(self.span.as_ref());
            let mut codec = Round { input: self, channel: None };
            let driven = driver.drive(&mut codec, &mut attempts).await;
            let over_http = codec.channel.is_some_and(|channel| channel.carries_headers());
            reporter.attempts.store(attempts, Ordering::Relaxed);
            self.over_http = over_http;
            driven
        };
        let reply = reply.map_err(|stop| match stop {
            // What has begun in one era is not begun again in the other.
            Stop::OtherEra if round > 1 => Stop::Failed(Failure::SessionLost),
            stop => stop,
        })?;
        let answer = self.last(reply, reporter).await;
        answer.map_err(|why| {
            AttemptSpans::new(self.span.as_ref()).fail(&why);
            Stop::Failed(why.into())
        })
    }

    /// The round has its answer, and the call goes on without the upstream for now.
    fn end_attempt(&self) {
        if let Some(span) = &self.span {
            span.end_attempt();
        }
    }

    /// The answer, past what is on the way to it.
    async fn last(&mut self, reply: Reply, reporter: &Reporter) -> Result<UpstreamAnswer, SendError> {
        let mut events = match reply.body {
            ReplyBody::Empty => return Err(SendError::NotMcp(format!("status {} without an answer", reply.status))),
            ReplyBody::Json(body) => {
                let data = body.gather().await?;
                return match self.recall(&data) {
                    Some(told) => Ok(UpstreamAnswer::Known(told)),
                    None => {
                        answer_in(data, self.request.id().unwrap_or(b"null"), reply.status).map(UpstreamAnswer::Read)
                    }
                };
            }
            ReplyBody::Events(events) => events,
        };
        while let Some(event) = events.next().await? {
            if event.data.is_empty() || !event.is_message() {
                continue;
            }
            if let Some(told) = self.recall(&event.data) {
                events.finish();
                return Ok(UpstreamAnswer::Known(told));
            }
            let message = Message::parse(event.data).map_err(|why| SendError::NotMcp(why.to_string()))?;
            match message.kind() {
                // One to another request is nobody's.
                Kind::Response | Kind::Error => {
                    if let Some(answer) = message.answer_to(self.request.id().unwrap_or(b"null")) {
                        events.finish();
                        return Ok(UpstreamAnswer::Read(answer));
                    }
                }
                Kind::Notification => self.pass(&message, reporter).await,
                // The modern era has no requests of servers.
                Kind::Request => {}
            }
        }
        Err(SendError::BrokenOff("its event stream ended before the answer".into()))
    }

    /// What the client is told where the upstream lists what it listed the last time.
    fn recall(&self, data: &Bytes) -> Option<Bytes> {
        let (list, key) = (self.list()?, self.request.id()?);
        self.proxy.list_cache.recall(&list, (data, key), self.with(), self.id())
    }

    /// The answer as the client takes it.
    fn translated(&self, answer: &Message, id: &[u8]) -> Bytes {
        if self.original.method() == method::TOOLS_LIST
            && self.over_http
            && let Some(tools) = answer.member("tools")
        {
            self.proxy.catalog.hear_tools(&self.upstream, tools);
        }
        let told = translate::legacy_answer(answer, id, self.original.method(), self.over_http);
        if let Some(list) = self.list() {
            self.proxy.list_cache.keep(list, answer, self.with(), &told, id);
        }
        told
    }

    /// The list that is asked for, if one is.
    fn list(&self) -> Option<CachedListKey> {
        CachedListKey::of(self.upstream.key(), Era::Legacy, self.original.method())
    }

    /// What a list's translation depends on beside the list.
    fn with(&self) -> &'static [u8] {
        if self.over_http { b"http" } else { b"" }
    }

    /// What the client calls its request, raw.
    fn id(&self) -> &[u8] {
        self.original.id().unwrap_or(b"null")
    }

    /// Passes on what the upstream says on the way to its answer.
    async fn pass(&mut self, message: &Message, reporter: &Reporter) {
        let is_progress = message.method() == method::PROGRESS;
        if is_progress {
            self.deadline.put_off();
            let progress = message.params().and_then(|params| json::get(params, &["progress"]));
            let progress = progress.and_then(|raw| std::str::from_utf8(raw).ok()?.parse::<f64>().ok());
            // Each round counts anew, and for the client it is one call.
            match progress {
                Some(progress) if progress > self.progress => self.progress = progress,
                Some(_) => return,
                None => {}
            }
        }
        let bytes = match &self.session.endpoint {
            Endpoint::One(_) => Some(message.bytes().clone()),
            Endpoint::Merged(_) => namespace::mapped(message, &self.session, &self.proxy.catalog, &self.upstream),
        };
        if let Some(bytes) = bytes {
            reporter.say(bytes, is_progress).await;
        }
    }

    /// Puts an upstream's questions to the client; gives its answers, or why there are none.
    async fn ask(&self, asked: &InputRequired, round: u32, reporter: &Reporter) -> Result<Option<Vec<u8>>, String> {
        if asked.questions.is_empty() {
            tokio::time::sleep(PACE * round).await;
            return Ok(None);
        }
        let asks = self.session.stateless().declared.asks();
        for (_, question) in &asked.questions {
            translate::check(asks, question).map_err(|why| why.to_string())?;
        }
        let mut open: Vec<(&str, &Message, ClientQuestion)> = Vec::new();
        for (name, message) in &asked.questions {
            let question = self.session.ask_for_call();
            let id = question.id.to_string();
            reporter.ask(translate::question(message, id.as_bytes(), &format!("weir-{id}"))).await;
            open.push((name, message, question));
        }
        let mut answers = Vec::new();
        while !open.is_empty() {
            let (name, message, mut question) = open.remove(0);
            let answer = question.answer().await.ok_or("too many questions wait for this client's answers".to_owned());
            match answer.and_then(|answer| translate::response(message, &answer)) {
                Ok(answer) => answers.push((name.to_owned(), answer)),
                Err(why) => {
                    for (_, _, question) in open {
                        let params = format!("{{\"requestId\":{},\"reason\":\"the call has failed\"}}", question.id);
                        let cancelled = answer::notification(method::CANCELLED, Some(params.as_bytes()));
                        reporter.ask(cancelled).await;
                    }
                    return Err(why);
                }
            }
        }
        Ok(Some(translate::responses(&answers)))
    }

    fn tool(&self) -> String {
        let call = self.original.method() == method::TOOLS_CALL;
        self.original.name().filter(|_| call).unwrap_or_default().into_owned()
    }

    /// Looks into the upstream's list again: it says that another argument belongs into a header.
    async fn list_again(&mut self) {
        let catalog = &self.proxy.catalog;
        catalog.poke(&self.upstream);
        let tool = self.tool();
        let listing = catalog.look_up(self.caller.as_ref(), &self.upstream, &tool);
        if let Ok(Some(mirrored)) = tokio::time::timeout(self.upstream.timeouts.list, listing).await {
            self.params = catalog::headers(&mirrored, &self.request);
        }
    }
}

impl Reporter {
    /// Brings a message to the client.
    pub(in crate::proxy) async fn say(&self, message: Bytes, progress: bool) {
        // Fails if the client is gone.
        drop(self.messages.send(InputItem::Message { message, progress }).await);
    }

    /// Brings the client what it must hear. Where its stream is gone, it waits for its other one.
    pub(in crate::proxy) async fn ask(&self, message: Bytes) {
        let item = InputItem::Message { message: message.clone(), progress: false };
        if self.messages.send(item).await.is_err() {
            self.session.queue.push(message);
        }
    }
}
