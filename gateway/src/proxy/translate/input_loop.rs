//! One request of a legacy client at a modern upstream: round by round, until there is an answer.
//!
//! The upstream asks by an answer; here that becomes requests to the client, on the stream of the very call, and what the
//! client says goes up with the same request once more. All of it runs in a task of the session, because a legacy client
//! that loses its connection has not cancelled anything, while an upstream that loses its own takes it for that.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::mpsc;
use weir_flow::{Action, Failure, Sent};
use weir_mcp::{
    Era, Field, Kind, Message, answer, era, json, method, public,
    translate::{self, InputRequired, may_ask},
};

use crate::{
    caller::Caller,
    catalog::{self, Catalog},
    credential::Needed,
    http::{HeaderName, HeaderValue},
    proxy::{
        answer::{answered, failure_message, outcome},
        deadline::Deadline,
        namespace,
        pending_answer::answer_in,
    },
    session::{ClientQuestion, Endpoint, RunningGuard, Session, lock},
    telemetry::{CallOutcome, NEEDS_SIGN_IN},
    upstream::{
        Channel, ConnectError, Credential, CredentialError, JsonBody, Outgoing, Reply, ReplyBody, SendError, Upstream,
    },
};

use super::list_cache::{CachedListKey, ListCache};

/// How often an upstream may ask before it answers.
const ROUNDS: u32 = 16;

/// How long to wait where an upstream wants to be called again and asks for nothing; it grows with each round.
const PACE: Duration = Duration::from_millis(250);

/// The level of log messages for a client that has set none. Which it gets then is left to the server (2025-11-25,
/// server/utilities/logging).
const LEVEL: &str = "info";

static VERSION: HeaderValue = HeaderValue::from_static(era::LATEST_MODERN);

/// A request on its way through the input-required loop.
pub(super) struct InputLoop {
    pub(super) session: Arc<Session>,
    pub(super) caller: Option<Arc<Caller>>,
    pub(super) upstream: Arc<Upstream>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) place: usize,
    pub(super) list_cache: Arc<ListCache>,
    /// Names the request to whoever cancels it.
    pub(super) running: RunningGuard,
    /// What may need a public name in its answer, where the client speaks with many upstreams at once.
    pub(super) asked: Option<public::PublicNames>,
    /// What the client sent, in the upstream's own names.
    pub(super) original: Message,
    /// What `Mcp-Name` says.
    pub(super) name: Option<String>,
    /// Headers of the client that may travel.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) deadline: Mutex<Deadline>,
    pub(super) to: mpsc::Sender<StreamItem>,
}

/// What a request brings its client.
pub(in crate::proxy) enum StreamItem {
    /// A message.
    Said(ClientMessage),
    /// Nothing: the upstream does not speak the modern era any more, and has not looked at the request.
    Turned,
}

/// One message for the client.
pub(in crate::proxy) struct ClientMessage {
    pub(in crate::proxy) message: Bytes,
    /// Whether it is the answer.
    pub(in crate::proxy) last: bool,
    /// How often the request was sent so far.
    pub(in crate::proxy) attempts: u32,
    /// What it came to, and why if that is nothing.
    pub(in crate::proxy) outcome: CallOutcome,
    pub(in crate::proxy) failure: Option<String>,
}

/// The work on a request: what it is made of, and how far it has come.
struct InputLoopState<'a> {
    input_loop: &'a InputLoop,
    /// What is sent.
    request: Message,
    /// The arguments that travel in headers too.
    params: Vec<(HeaderName, HeaderValue)>,
    over_http: bool,
    attempts: u32,
    /// The client's connection is gone; what it must hear waits for its other stream.
    alone: bool,
    /// The furthest progress that the client has heard of, which must not go back.
    progress: f64,
}

/// Whether a refusal is that of a server which has sessions: it was another one, or an older version of it, that spoke the
/// modern era here. It has not looked at the request.
fn wants_session(answer: &Message) -> bool {
    let of_transport =
        answer.error_code().is_some_and(|code| matches!(code, -32019..=-32000 | answer::INVALID_REQUEST));
    let text = answer.text(Field::ErrorMessage).unwrap_or_default().to_ascii_lowercase();
    of_transport && ["session", "not initialized"].iter().any(|word| text.contains(word))
}

/// An answer of the upstream.
#[allow(clippy::large_enum_variant, reason = "one lives for a moment; a box would cost each call an allocation")]
enum UpstreamAnswer {
    /// As it was read.
    Read(Message),
    /// As the client takes it: it is the list that it was the last time.
    Known(Bytes),
}

/// How a request ended.
enum InputLoopEnd {
    Answer(Bytes, CallOutcome),
    Failed(Failure),
    /// Somebody must sign in first.
    SignIn(Box<Needed>),
    Turned,
}

impl InputLoop {
    /// Does it all.
    pub(super) async fn run(self) {
        let id = Bytes::copy_from_slice(self.original.id().unwrap_or(b"null"));
        let mut work = InputLoopState::new(&self);
        let end = tokio::select! {
            biased;
            // Who has cancelled expects no answer (2025-11-25, basic/utilities/cancellation).
            () = self.running.run.cancelled() => return,
            end = work.input_loop(&id) => end,
            () = self.time_is_up() => InputLoopEnd::Failed(Failure::TimedOut(self.upstream.overall_timeout())),
        };
        let attempts = work.attempts;
        let piece = match end {
            InputLoopEnd::Turned => StreamItem::Turned,
            InputLoopEnd::Answer(message, outcome) => {
                let message = self.named(message);
                StreamItem::Said(ClientMessage { message, last: true, attempts, outcome, failure: None })
            }
            InputLoopEnd::Failed(failure) => {
                let message = failure_message(Some(&id), self.upstream.name(), &failure);
                let (outcome, failure) = (outcome(&failure), Some(failure.to_string()));
                StreamItem::Said(ClientMessage { message, last: true, attempts, outcome, failure })
            }
            InputLoopEnd::SignIn(needed) => {
                let failure = Failure::Policy(needed.to_string());
                let message = failure_message(Some(&id), self.upstream.name(), &failure);
                let failure = Some(NEEDS_SIGN_IN.to_owned());
                StreamItem::Said(ClientMessage { message, last: true, attempts, outcome: CallOutcome::SignIn, failure })
            }
        };
        // Fails if the client is gone.
        drop(self.to.send(piece).await);
    }

    /// Resolves when the deadline has passed, which progress puts off.
    async fn time_is_up(&self) {
        loop {
            let at = lock(&self.deadline).at();
            tokio::time::sleep_until(at.into()).await;
            if lock(&self.deadline).at() <= at {
                return;
            }
        }
    }

    /// The answer in the names that the client knows.
    fn named(&self, answer: Bytes) -> Bytes {
        let Some(asked) = &self.asked else { return answer };
        let message = Message::parse(answer.clone()).ok();
        message.and_then(|message| public::outward(&message, self.upstream.name(), asked)).unwrap_or(answer)
    }
}

impl<'a> InputLoopState<'a> {
    fn new(input_loop: &'a InputLoop) -> Self {
        Self {
            input_loop,
            request: input_loop.original.clone(),
            params: Vec::new(),
            over_http: false,
            attempts: 0,
            alone: false,
            progress: f64::NEG_INFINITY,
        }
    }

    async fn input_loop(&mut self, id: &[u8]) -> InputLoopEnd {
        let method = self.input_loop.original.method();
        let level = self.input_loop.session.level();
        let declared = &self.input_loop.session.stateless().declared;
        match Message::parse(declared.request(&self.input_loop.original, 1, Some(level.as_deref().unwrap_or(LEVEL)))) {
            Ok(request) => self.request = request,
            Err(why) => return InputLoopEnd::Failed(Failure::NotMcp(why.to_string())),
        }
        self.params = self.mirror(&self.input_loop.catalog.mirrored(
            self.input_loop.caller.as_ref(),
            self.input_loop.place,
            Era::Modern,
            &self.tool(),
        ));
        let mut listed = false;
        for round in 1..=ROUNDS {
            let answer = match self.attempt(round).await {
                Ok(UpstreamAnswer::Read(answer)) => answer,
                Ok(UpstreamAnswer::Known(told)) => return InputLoopEnd::Answer(told, CallOutcome::Ok),
                Err(end) => return end,
            };
            if answer.error_code() == Some(answer::HEADER_MISMATCH) && !listed && method == method::TOOLS_CALL {
                listed = true;
                self.list_anew().await;
                continue;
            }
            let asked = match translate::asked(&answer) {
                None => return InputLoopEnd::Answer(self.translated(&answer, id), answered(&answer)),
                Some(Ok(asked)) if may_ask(method) => asked,
                Some(asked) => {
                    let why = asked.err().unwrap_or(translate::Unaskable::Unreadable);
                    return InputLoopEnd::Answer(
                        translate::failure(id, method, &why.to_string()),
                        CallOutcome::Refused,
                    );
                }
            };
            let answers = match self.ask(&asked, round).await {
                Ok(answers) => answers,
                Err(why) => return InputLoopEnd::Answer(translate::failure(id, method, &why), CallOutcome::Refused),
            };
            let next =
                translate::again(&self.request, u64::from(round) + 1, answers.as_deref(), asked.state.as_deref());
            match Message::parse(next) {
                Ok(request) => self.request = request,
                Err(why) => return InputLoopEnd::Failed(Failure::NotMcp(why.to_string())),
            }
        }
        let why = format!("the server asked for input {ROUNDS} times and still has no answer");
        InputLoopEnd::Answer(translate::failure(id, method, &why), CallOutcome::Error)
    }

    /// One round: the request goes up, and what comes before the answer goes down.
    async fn attempt(&mut self, round: u32) -> Result<UpstreamAnswer, InputLoopEnd> {
        let upstream = &self.input_loop.upstream;
        let start = Instant::now();
        let left = lock(&self.input_loop.deadline).at().saturating_duration_since(start);
        let mut call = weir_flow::CallFlow::new(left, method::safe_to_repeat(self.request.method()));
        let (mut credential, mut channel, mut reply) = (None, None, None);
        let before = self.attempts;
        loop {
            match call.poll_action() {
                Action::Choose(refused) => match upstream.credential(self.input_loop.caller.as_ref(), refused).await {
                    Ok(chosen) => {
                        credential = chosen;
                        call.handle_chosen();
                    }
                    Err(CredentialError::SignIn(needed)) => return Err(InputLoopEnd::SignIn(needed)),
                    Err(why) => call.handle_failure(Failure::Policy(format!("has no credential: {why}"))),
                },
                Action::Open => match upstream.open_modern(self.input_loop.caller.as_ref()).await {
                    Ok(opened) => {
                        self.over_http = opened.carries_headers();
                        channel = Some(opened);
                        call.handle_open();
                    }
                    Err(ConnectError::OtherEra { .. }) if round == 1 => return Err(InputLoopEnd::Turned),
                    Err(ConnectError::SignIn(needed)) => return Err(InputLoopEnd::SignIn(needed)),
                    Err(ConnectError::Full(full)) => {
                        let text = full.to_string();
                        let message = answer::error(Some(self.id()), answer::INTERNAL, &text, None);
                        return Err(InputLoopEnd::Answer(message, CallOutcome::Refused));
                    }
                    Err(why) => call.handle_failure(Failure::Unreachable(why.to_string())),
                },
                Action::Attempt => {
                    let sent = match &channel {
                        Some(channel) => self.send(channel, credential.as_ref()).await,
                        None => Err(SendError::Unsent("no connection".into())),
                    };
                    let sent = match sent {
                        Ok(answer) => {
                            reply = Some(answer);
                            Sent::Answered
                        }
                        Err(why) => {
                            if why == SendError::SessionLost {
                                upstream.doubt(Era::Modern);
                            }
                            why.into()
                        }
                    };
                    call.handle_sent(sent, start.elapsed());
                    self.attempts = before + call.attempts();
                }
                Action::Wait(pause) => {
                    tokio::time::sleep(pause).await;
                    call.handle_pause();
                }
                Action::Deliver => break,
                Action::Fail(failure) => return Err(InputLoopEnd::Failed(failure)),
            }
        }
        let Some(reply) = reply else { return Err(InputLoopEnd::Failed(Failure::NotMcp("nothing".into()))) };
        self.last(reply).await.map_err(|why| InputLoopEnd::Failed(why.into()))
    }

    async fn send(&self, channel: &Channel, credential: Option<&Credential>) -> Result<Reply, SendError> {
        let headers = [&self.input_loop.headers[..], &self.params].concat();
        let outgoing = Outgoing {
            era: Era::Modern,
            message: &self.request,
            body: self.request.bytes().clone(),
            name: self.input_loop.name.as_deref(),
            version: Some(&VERSION),
            headers: &headers,
            ticket: None,
            credential,
        };
        let reply = channel.send(outgoing).await?;
        if reply.status == 400 && self.over_http {
            let answer = reply.answer().await?;
            if wants_session(&answer) {
                return Err(SendError::SessionLost);
            }
            return Ok(Reply {
                status: 400,
                session: None,
                body: ReplyBody::Json(JsonBody::Whole(answer.bytes().clone())),
            });
        }
        match reply.body {
            ReplyBody::Empty => Err(SendError::NotMcp(format!("status {} without an answer", reply.status))),
            ReplyBody::Json(_) | ReplyBody::Events(_) => Ok(reply),
        }
    }

    /// The answer, past what is on the way to it.
    async fn last(&mut self, reply: Reply) -> Result<UpstreamAnswer, SendError> {
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
                Kind::Notification => self.pass(&message).await,
                // The modern era has no requests of servers.
                Kind::Request => {}
            }
        }
        Err(SendError::BrokenOff("its event stream ended before the answer".into()))
    }

    /// What the client is told where the upstream lists what it listed the last time.
    fn recall(&self, data: &Bytes) -> Option<Bytes> {
        let (list, key) = (self.list()?, self.request.id()?);
        self.input_loop.list_cache.recall(&list, (data, key), self.with(), self.id())
    }

    /// The answer as the client takes it.
    fn translated(&self, answer: &Message, id: &[u8]) -> Bytes {
        if self.input_loop.original.method() == method::TOOLS_LIST
            && self.over_http
            && let Some(tools) = answer.member("tools")
        {
            self.input_loop.catalog.hear_tools(self.input_loop.place, tools);
        }
        let told = translate::legacy_answer(answer, id, self.input_loop.original.method(), self.over_http);
        if let Some(list) = self.list() {
            self.input_loop.list_cache.keep(list, answer, self.with(), &told, id);
        }
        told
    }

    /// The list that is asked for, if one is.
    fn list(&self) -> Option<CachedListKey> {
        CachedListKey::of(self.input_loop.place, Era::Legacy, self.input_loop.original.method())
    }

    /// What a list's translation depends on beside the list.
    fn with(&self) -> &'static [u8] {
        if self.over_http { b"http" } else { b"" }
    }

    /// What the client calls its request, raw.
    fn id(&self) -> &'a [u8] {
        self.input_loop.original.id().unwrap_or(b"null")
    }

    /// Passes on what the upstream says on the way to its answer.
    async fn pass(&mut self, message: &Message) {
        if message.method() == method::PROGRESS {
            lock(&self.input_loop.deadline).put_off();
            let progress = message.params().and_then(|params| json::get(params, &["progress"]));
            let progress = progress.and_then(|raw| std::str::from_utf8(raw).ok()?.parse::<f64>().ok());
            // Each round counts anew, and for the client it is one call.
            match progress {
                Some(progress) if progress > self.progress => self.progress = progress,
                Some(_) => return,
                None => {}
            }
        }
        let bytes = match self.input_loop.session.endpoint {
            Endpoint::One(_) => Some(message.bytes().clone()),
            Endpoint::All => {
                let InputLoop { session, catalog, place, .. } = self.input_loop;
                namespace::mapped(message, session, catalog, *place)
            }
        };
        if let Some(bytes) = bytes {
            self.say(bytes, false).await;
        }
    }

    /// Brings a message to the client. One that it `must` hear waits for its other stream where this one is gone.
    async fn say(&mut self, message: Bytes, must: bool) {
        if !self.alone {
            let (attempts, outcome) = (self.attempts, CallOutcome::Ok);
            let said = ClientMessage { message: message.clone(), last: false, attempts, outcome, failure: None };
            self.alone = self.input_loop.to.send(StreamItem::Said(said)).await.is_err();
        }
        if self.alone && must {
            self.input_loop.session.queue.push(message);
        }
    }

    /// Puts an upstream's questions to the client; gives its answers, or why there are none.
    async fn ask(&mut self, asked: &InputRequired, round: u32) -> Result<Option<Vec<u8>>, String> {
        if asked.questions.is_empty() {
            tokio::time::sleep(PACE * round).await;
            return Ok(None);
        }
        let asks = self.input_loop.session.stateless().declared.asks();
        for (_, question) in &asked.questions {
            translate::check(asks, question).map_err(|why| why.to_string())?;
        }
        let mut open: Vec<(&str, &Message, ClientQuestion)> = Vec::new();
        for (name, message) in &asked.questions {
            let question = self.input_loop.session.ask_for_call();
            let id = question.id.to_string();
            self.say(translate::question(message, id.as_bytes(), &format!("weir-{id}")), true).await;
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
                        self.say(answer::notification(method::CANCELLED, Some(params.as_bytes())), true).await;
                    }
                    return Err(why);
                }
            }
        }
        Ok(Some(translate::responses(&answers)))
    }

    fn tool(&self) -> String {
        let call = self.input_loop.original.method() == method::TOOLS_CALL;
        self.input_loop.original.name().filter(|_| call).unwrap_or_default().into_owned()
    }

    /// The headers that repeat arguments.
    fn mirror(&self, mirrored: &[weir_mcp::mirrored::Mirrored]) -> Vec<(HeaderName, HeaderValue)> {
        catalog::headers(mirrored, &self.request)
    }

    /// Looks into the upstream's list again: it says that another argument belongs into a header.
    async fn list_anew(&mut self) {
        self.input_loop.catalog.poke(self.input_loop.place);
        let tool = self.tool();
        let listing = self.input_loop.catalog.look_up(self.input_loop.caller.as_ref(), self.input_loop.place, &tool);
        if let Ok(Some(mirrored)) = tokio::time::timeout(self.input_loop.upstream.list_timeout(), listing).await {
            self.params = self.mirror(&mirrored);
        }
    }
}
