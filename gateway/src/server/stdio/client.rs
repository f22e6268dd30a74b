//! The one client: its session, and its requests that run.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use weir_flow::Backoff;
use weir_mcp::{
    Era, Field, InboundRequest, Message, answer,
    classify::{self, Claims},
    headers,
    message::Kind,
    method,
};

use crate::{
    caller::Caller,
    http::HeaderValue,
    proxy::{Answer, Body, CallLog, Proxy, RequestContext},
    session::{Endpoint, Session, SessionOwner},
    task,
};

use super::{InputLine, StdioLimits, answers, out::StdioWriter, over_http::OverHttp};

/// How many messages of the client may be under way at once.
const RUNNING: usize = 256;

/// How a message that was under way ended.
pub(super) type MessageEnd = Result<(tokio::task::Id, ()), JoinError>;

/// Who is on the other side of the pipes.
pub(super) struct StdioClient {
    proxy: Arc<Proxy>,
    /// The user of this machine who started it.
    caller: Arc<Caller>,
    endpoint: Endpoint,
    limits: StdioLimits,
    out: StdioWriter,
    session: Option<Arc<Session>>,
    tasks: JoinSet<()>,
    /// The requests that run, by their raw ids.
    running: HashMap<Box<[u8]>, RunningMessage>,
    /// The `initialize` that is being answered.
    opening: Option<Box<[u8]>>,
    /// Hears what the server says of its own accord; ends with this.
    listener: JoinSet<()>,
}

struct RunningMessage {
    task: AbortHandle,
    era: Era,
    endless: bool,
}

impl StdioClient {
    pub(super) fn new(proxy: Arc<Proxy>, endpoint: Endpoint, limits: StdioLimits, out: StdioWriter) -> Self {
        Self {
            proxy,
            caller: Caller::local(),
            endpoint,
            limits,
            out,
            session: None,
            tasks: JoinSet::new(),
            running: HashMap::new(),
            opening: None,
            listener: JoinSet::new(),
        }
    }

    /// Begins what a line asks for.
    pub(super) async fn take(&mut self, line: InputLine) {
        let InputLine::Text(text) = line else {
            let text = format!("a line of more than {} bytes was passed over", self.limits.line);
            tracing::warn!("{text}");
            return self.out.say(answer::error(None, answer::INVALID_REQUEST, &text, None)).await;
        };
        let inbound = match InboundRequest::parse(text) {
            Ok(inbound) => inbound,
            Err(why) => return self.out.say(answer::error(None, why.code(), &why.to_string(), None)).await,
        };
        match (era(&inbound), inbound) {
            (Err(why), inbound) => {
                let id = match &inbound {
                    InboundRequest::Single(message) => message.id(),
                    InboundRequest::Batch(_) => None,
                };
                self.out.say(why.body(id)).await;
            }
            (Ok(era), InboundRequest::Single(message)) => self.message(era, message).await,
            // Each is answered on a line of its own, as it is ready: what one waits for must not hold up the others.
            (Ok(era), InboundRequest::Batch(messages)) => {
                for message in messages {
                    self.message(era, message).await;
                }
            }
        }
    }

    /// The next of what is under way that has ended; none if nothing is. Cancel-safe.
    pub(super) async fn ended(&mut self) -> Option<MessageEnd> {
        self.tasks.join_next_with_id().await
    }

    /// Forgets a request that has ended. One that panicked is answered in its stead.
    pub(super) async fn settle(&mut self, ended: MessageEnd) {
        let task = ended.as_ref().map_or_else(JoinError::id, |(task, ())| *task);
        let Some(id) = self.running.iter().find(|(_, running)| running.task.id() == task).map(|(id, _)| id.clone())
        else {
            return;
        };
        self.running.remove(&id);
        if ended.is_err_and(|why| why.is_panic()) {
            self.out.say(answers::error(&id, "this request met a fault in weir")).await;
        }
    }

    /// Waits until all that is under way has ended, but for what has no end.
    pub(super) async fn finish(&mut self) {
        while self.running.values().any(|running| !running.endless) {
            let Some(ended) = self.ended().await else { return };
            self.settle(ended).await;
        }
    }

    /// Answers what still runs, and ends the session.
    pub(super) async fn close(mut self) {
        self.listener.abort_all();
        self.tasks.abort_all();
        while let Some(ended) = self.ended().await {
            // What was cut short keeps its place here; what ended by itself has been answered.
            if !ended.as_ref().is_err_and(JoinError::is_cancelled) {
                self.settle(ended).await;
            }
        }
        for (id, running) in &self.running {
            let last = if running.endless {
                let id = String::from_utf8_lossy(id);
                let result =
                    format!(r#"{{"resultType":"complete","_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}"#);
                answer::result(id.as_bytes(), result.as_bytes())
            } else {
                answers::error(id, STOPPING)
            };
            self.out.say(last).await;
        }
        if let Some(id) = &self.opening {
            self.out.say(answers::error(id, STOPPING)).await;
        }
        for session in self.proxy.sessions().all() {
            self.proxy.end(&session).await;
        }
    }

    async fn message(&mut self, era: Era, message: Message) {
        match message.kind() {
            Kind::Request if era == Era::Legacy && message.method() == method::INITIALIZE => {
                self.initialize(message).await;
            }
            Kind::Request => self.request(era, message).await,
            Kind::Notification if message.method() == method::CANCELLED => self.cancel(message).await,
            Kind::Notification if message.method() == method::INITIALIZED => {
                let Some(session) = self.session.clone() else { return };
                // It must be there before anything else of the session is.
                Box::pin(self.proxy.pass(&self.context(Era::Legacy, message))).await;
                self.listen(session);
            }
            Kind::Notification | Kind::Response | Kind::Error => self.pass(era, message).await,
        }
    }

    /// Begins a session. A client that says hello again, as after a failure, begins anew.
    async fn initialize(&mut self, message: Message) {
        let id: Box<[u8]> = message.id().unwrap_or(b"null").into();
        self.opening = Some(id.clone());
        if let Some(session) = self.session.take() {
            self.listener.abort_all();
            drop(self.proxy.sessions().remove(session.id.as_bytes()));
            self.proxy.end(&session).await;
        }
        let owner = SessionOwner::new(self.proxy.sessions(), Some(Arc::clone(&self.caller)), self.caller.id());
        let owner = match owner {
            Ok(owner) => owner,
            Err(full) => return self.out.say(answers::error(&id, &full.to_string())).await,
        };
        let mut record = CallLog::new(&self.context(Era::Legacy, message.clone()));
        let begun = Box::pin(self.proxy.begin(owner, self.endpoint.clone(), &message, &mut record));
        match tokio::time::timeout(self.limits.request, begun).await {
            Ok(begun) => {
                let session = begun.session.as_ref();
                self.session = session.and_then(|id| self.proxy.sessions().get(id.as_bytes(), |_| true));
                answers::give(begun.recorded(record), &id, &self.out).await;
            }
            Err(_) => self.out.say(answers::error(&id, &late(self.limits.request))).await,
        }
        self.opening = None;
    }

    async fn request(&mut self, era: Era, message: Message) {
        let id: Box<[u8]> = message.id().unwrap_or(b"null").into();
        let refused = if self.tasks.len() >= RUNNING {
            Some(format!("{RUNNING} messages are under way already"))
        } else if self.running.contains_key(&id) {
            Some("a request with this id runs already".to_owned())
        } else if era == Era::Legacy && self.session.is_none() && message.method() != method::PING {
            Some("there is no session; begin with initialize".to_owned())
        } else {
            None
        };
        if let Some(why) = refused {
            return self.out.say(answer::error(Some(&id), answer::INVALID_REQUEST, &why, None)).await;
        }
        if era == Era::Legacy && self.session.is_none() {
            return self.out.say(answer::result(&id, b"{}")).await;
        }
        let endless = method::is_endless(message.method());
        let limit = (!endless).then_some(self.limits.request);
        let (proxy, context, out) = (Arc::clone(&self.proxy), self.context(era, message), self.out.clone());
        let task = self.tasks.spawn(run(proxy, context, limit, out));
        self.running.insert(id, RunningMessage { task, era, endless });
    }

    /// In the modern era nobody waits for what was cancelled, and the proxy tells the upstream; in the legacy era the
    /// upstream decides what becomes of it.
    async fn cancel(&mut self, message: Message) {
        let Some(id) = message.request_id() else { return };
        match self.running.get(id) {
            Some(RunningMessage { task, era: Era::Modern, .. }) => {
                task.abort();
                self.running.remove(id);
            }
            Some(RunningMessage { era: Era::Legacy, .. }) => self.pass(Era::Legacy, message).await,
            None => {}
        }
    }

    /// Passes on what has no answer.
    async fn pass(&mut self, era: Era, message: Message) {
        if era == Era::Legacy && self.session.is_none() {
            return;
        }
        while self.tasks.len() >= RUNNING
            && let Some(ended) = self.ended().await
        {
            self.settle(ended).await;
        }
        let (proxy, context) = (Arc::clone(&self.proxy), self.context(era, message));
        self.tasks.spawn(async move { proxy.pass(&context).await });
    }

    /// Hears what the server says of its own accord, for as long as the session lives.
    fn listen(&mut self, session: Arc<Session>) {
        self.listener.abort_all();
        let (proxy, out) = (Arc::clone(&self.proxy), self.out.clone());
        self.listener.spawn(listen(proxy, session, out));
    }

    fn context(&self, era: Era, message: Message) -> RequestContext {
        let version = match era {
            Era::Modern => message.claimed_version().and_then(|version| HeaderValue::from_str(&version).ok()),
            Era::Legacy => None,
        };
        let session = self.session.clone().filter(|_| era == Era::Legacy);
        let (caller, principal) = (Some(Arc::clone(&self.caller)), Arc::clone(self.caller.id()));
        RequestContext {
            era,
            endpoint: self.endpoint.clone(),
            caller,
            principal,
            message,
            version,
            headers: Vec::new(),
            session,
        }
    }
}

const STOPPING: &str = "weir is stopping before the answer has come";

/// The era of a line. On a pipe there are no headers that could disagree, so they are taken to repeat the message.
fn era(inbound: &InboundRequest) -> Result<Era, classify::Rejection> {
    let InboundRequest::Single(message) = inbound else { return classify::classify(inbound, &Claims::default()) };
    if message.raw(Field::ProtocolVersion).is_none() {
        return classify::classify(inbound, &Claims::default());
    }
    let (version, target) = (message.claimed_version(), method::target(message));
    let name = target.as_deref().map(headers::encode_value);
    let claims = Claims { version: version.as_deref(), method: Some(message.method()), name: name.as_deref() };
    classify::classify(inbound, &claims)
}

async fn run(proxy: Arc<Proxy>, mut context: RequestContext, limit: Option<Duration>, out: StdioWriter) {
    let id = Bytes::copy_from_slice(context.message.id().unwrap_or(b"null"));
    let http = OverHttp::of(&proxy, &context);
    if let Some(http) = &http {
        context.headers = http.headers(&context.message);
    }
    answer(&proxy, context, http, &id, (limit, &out)).await;
}

/// Takes a request to its answer, once more if the server wants other headers. The answer must begin within the limit;
/// the proxy ends one that goes on for too long.
async fn answer(
    proxy: &Arc<Proxy>,
    mut context: RequestContext,
    http: Option<OverHttp>,
    id: &[u8],
    (limit, out): (Option<Duration>, &StdioWriter),
) {
    for again in [true, false] {
        let mut record = CallLog::new(&context);
        let begun = {
            let mut begun = std::pin::pin!(proxy.request(&context, &mut record));
            match tokio::time::timeout(limit.unwrap_or(Duration::MAX), &mut begun).await {
                Ok(answer) => answer,
                // While the request is known to run, for what has ended cannot be cancelled.
                Err(_) => return give_up(proxy, &context, id, limit.unwrap_or_default(), out).await,
            }
        };
        let answer = begun.recorded(record);
        let Some(http) = &http else { return answers::give(answer, id, out).await };
        if answers::give_as(answer, id, out, |response| http.line(response, again)).await {
            return;
        }
        context.headers = http.headers_anew(&context.message).await;
    }
}

/// Answers a request whose time is up, and tells its server. A modern one is told by being dropped.
async fn give_up(proxy: &Arc<Proxy>, context: &RequestContext, id: &[u8], limit: Duration, out: &StdioWriter) {
    let why = late(limit);
    tracing::warn!(method = context.message.method(), "{why}");
    out.say(answers::error(id, &why)).await;
    if context.session.is_some() {
        let params = format!("{{\"requestId\":{},\"reason\":\"{why}\"}}", String::from_utf8_lossy(id));
        let cancel = answer::notification(method::CANCELLED, Some(params.as_bytes()));
        if let Ok(message) = Message::parse(cancel) {
            proxy.pass(&RequestContext { message, ..context.clone() }).await;
        }
    }
}

async fn listen(proxy: Arc<Proxy>, session: Arc<Session>, out: StdioWriter) {
    let mut backoff = Backoff::STREAM;
    while !session.is_over() {
        match proxy.listen(&session, None).await {
            Answer { body: Body::Events(mut delivery), .. } => {
                let since = Instant::now();
                answers::hear(&mut delivery, None, &out).await;
                backoff.handle_stay(since.elapsed());
            }
            // The stream before this one has not been noticed to be closed, or the server is in trouble.
            Answer { status: 408 | 409 | 429 | 500.., .. } => {}
            // There is none.
            Answer { .. } => return,
        }
        task::back_off(&mut backoff).await;
    }
}

fn late(limit: Duration) -> String {
    format!("no answer within {} s", limit.as_secs_f32())
}
