//! The stream of one client of HTTP+SSE. Whoever serves it owns everything that goes with it.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::{Bytes, BytesMut};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use weir_mcp::{
    Era, Message, answer,
    sse::{self, KEEP_ALIVE},
};

use crate::{
    caller::Caller,
    proxy::{Answer, AnswerStream, CallLog, RequestContext, StreamItem},
    session::{Endpoint, Session, SessionOwner},
};

use super::{
    super::{App, events, listen::HttpExchange, messages::Messages, refusal},
    OpenStream, Posted, registered,
};

/// How many requests of one client run at once; more wait, and then are refused.
const MAX_RUNNING: usize = 256;

/// How many messages wait to be written; whoever brings more waits too.
const WRITTEN_NEXT: usize = 64;

/// How long a client may take to introduce itself.
const INTRODUCTION: Duration = Duration::from_secs(60);

/// How much is gathered into one write, in bytes.
const GATHERED: usize = 64 * 1024;

impl App {
    /// Serves a stream to its end; an answer instead if there is no room for one.
    pub(in crate::server) async fn stream(
        self: &Arc<Self>,
        endpoint: Endpoint,
        exchange: &mut HttpExchange,
    ) -> Option<Answer> {
        let owner = match SessionOwner::new(self.proxy.sessions(), exchange.caller().cloned(), exchange.principal()) {
            Ok(owner) => owner,
            Err(full) => return Some(Answer::full(None, &full)),
        };
        let Some((open, posted)) = self.streams.open(endpoint, exchange.path(), exchange.caller().cloned()) else {
            return Some(refusal::no_randomness());
        };
        if let Some(registry) = self.proxy.registry()
            && let Err(why) = registry.add_stream(&registered(&open.id), exchange.path()).await
        {
            return Some(refusal::store_away(&why));
        }
        events::start_own(exchange).await;
        let first = format!("event: endpoint\ndata: messages?sessionId={}\n\n", open.id);
        if exchange.write(first.into()).await {
            let (bring, brought) = mpsc::channel(WRITTEN_NEXT);
            let ends = exchange.ends();
            let owner = Some(owner);
            let mut client = SseClient { app: self, open, owner, session: None, ends, bring, running: JoinSet::new() };
            client.serve(exchange, posted, brought).await;
            client.end().await;
        } else if let Some(registry) = self.proxy.registry() {
            registry.remove_stream(&registered(&open.id)).await;
        }
        None
    }
}

/// One client and what runs for it.
struct SseClient<'a> {
    app: &'a Arc<App>,
    open: OpenStream<'a>,
    /// Of the session, until that begins.
    owner: Option<SessionOwner>,
    session: Option<(Arc<Session>, AnswerStream)>,
    /// When what the client has shown is no longer good; put off by each request that shows something younger.
    ends: Option<SystemTime>,
    /// What requests are given to bring their answers.
    bring: mpsc::Sender<Bytes>,
    running: JoinSet<()>,
}

/// What happens next on a stream.
enum SseStep {
    Write(Bytes),
    Take(Box<Posted>),
    Nothing,
    KeepAlive,
    /// Weir ends the stream.
    Close,
    Gone,
}

impl SseClient<'_> {
    async fn serve(
        &mut self,
        exchange: &mut HttpExchange,
        mut posted: mpsc::Receiver<Posted>,
        mut brought: mpsc::Receiver<Bytes>,
    ) {
        let (introduction, peer) = (Instant::now() + INTRODUCTION, exchange.peer());
        let mut draining = self.app.draining.subscribe();
        // Nothing but answers is to come.
        let mut answers_only = false;
        loop {
            let next = tokio::select! {
                biased;
                Some(message) = brought.recv() => SseStep::Write(gathered(message, &mut brought)),
                heard = overheard(&mut self.session), if !answers_only || self.running.is_empty() => match heard {
                    Some(message) => SseStep::Write(gathered(message, &mut brought)),
                    None if self.running.is_empty() => SseStep::Close,
                    None => {
                        answers_only = true;
                        SseStep::Nothing
                    }
                },
                Some(posted) = posted.recv(), if self.running.len() < MAX_RUNNING => SseStep::Take(Box::new(posted)),
                Some(_) = self.running.join_next() => SseStep::Nothing,
                () = events::turns_true(&mut draining) => SseStep::Close,
                // What runs is still answered.
                () = events::passes(self.ends), if self.running.is_empty() => SseStep::Close,
                () = exchange.gone() => SseStep::Gone,
                () = sleep_until(introduction), if self.session.is_none() => SseStep::Close,
                () = sleep(events::KEEP_ALIVE) => SseStep::KeepAlive,
            };
            let written = match next {
                SseStep::Write(bytes) => exchange.write(bytes).await,
                SseStep::Take(posted) => match self.take(*posted, peer).await {
                    Some(message) => exchange.write(gathered(message, &mut brought)).await,
                    None => true,
                },
                SseStep::Nothing => true,
                SseStep::KeepAlive => exchange.write(Bytes::from_static(KEEP_ALIVE)).await,
                SseStep::Close => {
                    exchange.end_with(Bytes::from_static(events::RETRY)).await;
                    return;
                }
                SseStep::Gone => return,
            };
            if !written {
                return;
            }
        }
    }

    /// Begins a request; gives its answer if there is nothing to wait for.
    async fn take(&mut self, posted: Posted, peer: SocketAddr) -> Option<Bytes> {
        let Posted { caller, principal, ends, message, version, headers } = posted;
        self.ends = self.ends.max(ends);
        // It may have waited while another configuration came into force.
        if !self.app.proxy.still(&self.open.stream.endpoint, caller.as_ref()) {
            return only(refusal::stream_is_over(&message)).await;
        }
        let session = self.session.as_ref().map(|(session, _)| Arc::clone(session));
        match (&session, message.method()) {
            (None, "initialize") => return Some(self.introduce(caller, &principal, &message, peer).await),
            (None, "ping") => return only(Answer::result(&message, Bytes::from_static(b"{}"))).await,
            (None, _) => return only(refusal::not_introduced(&message)).await,
            (Some(_), "initialize") => return only(refusal::second_initialize(message.id())).await,
            (Some(_), _) => {}
        }
        let endpoint = self.open.stream.endpoint.clone();
        let context =
            RequestContext { era: Era::Legacy, endpoint, caller, principal, message, version, headers, session };
        self.running.spawn(call(Arc::clone(self.app), context, peer, self.bring.clone()));
        None
    }

    /// Answers `initialize`. It is not broken off when the client goes, so that nothing is left half open.
    async fn introduce(
        &mut self,
        caller: Option<Arc<Caller>>,
        principal: &Arc<str>,
        message: &Message,
        peer: SocketAddr,
    ) -> Bytes {
        let endpoint = self.open.stream.endpoint.clone();
        let mut record = CallLog::of(message, Era::Legacy, caller.as_ref());
        record.peer = Some(peer);
        let owner = match self.owner.take() {
            Some(owner) => owner.with(caller),
            // An `initialize` before this one came to nothing.
            None => match SessionOwner::new(self.app.proxy.sessions(), caller, principal) {
                Ok(owner) => owner,
                Err(full) => return answer::error(message.id(), answer::INTERNAL, &full.to_string(), None),
            },
        };
        let answer = self.app.proxy.begin(owner, endpoint, message, &mut record).await.recorded(record);
        let session = answer.session.as_ref().and_then(|id| self.app.proxy.sessions().get(id.as_bytes(), |_| true));
        if let Some(session) = session
            && let Some(overheard) = self.app.proxy.overhear(&session)
        {
            drop(self.open.stream.session.set(Arc::clone(&session)));
            self.session = Some((session, overheard));
        }
        only(answer).await.unwrap_or_else(|| unanswered(message.id()))
    }

    /// A session of HTTP+SSE is its stream.
    async fn end(self) {
        if let Some(registry) = self.app.proxy.registry() {
            registry.remove_stream(&registered(&self.open.id)).await;
        }
        drop(self.open);
        drop(self.running);
        if let Some((session, _)) = self.session
            && let Some(session) = self.app.proxy.sessions().remove(session.id.as_bytes())
        {
            self.app.proxy.end(&session).await;
        }
    }
}

/// Takes a request to its answer, and brings that and what comes before it.
async fn call(app: Arc<App>, context: RequestContext, peer: SocketAddr, bring: mpsc::Sender<Bytes>) {
    let mut record = CallLog::new(&context);
    record.peer = Some(peer);
    let answer = app.proxy.request(&context, &mut record).await.recorded(record);
    let (mut messages, mut any) = (Messages::of(answer), false);
    while let Some(message) = messages.next().await {
        any = true;
        if bring.send(message).await.is_err() {
            return;
        }
    }
    if !any && !messages.are_cancelled() {
        drop(bring.send(unanswered(context.message.id())).await);
    }
}

/// What a client is told whose upstream gave nothing that could be passed on.
fn unanswered(id: Option<&[u8]>) -> Bytes {
    answer::error(id, answer::INTERNAL, "the upstream's answer broke off", None)
}

async fn only(answer: Answer) -> Option<Bytes> {
    Messages::of(answer).next().await
}

/// What the session has of its own accord; nothing if it is over. Never ready before there is
/// a session.
async fn overheard(session: &mut Option<(Arc<Session>, AnswerStream)>) -> Option<Bytes> {
    let Some((_, overheard)) = session else { return std::future::pending().await };
    match overheard.next().await {
        StreamItem::Message(data) | StreamItem::Last(data) => Some(data),
        StreamItem::Replayed(event) => Some(event.data),
        StreamItem::End => None,
    }
}

/// The event of a message, and of those that are there already.
fn gathered(message: Bytes, brought: &mut mpsc::Receiver<Bytes>) -> Bytes {
    let mut out = BytesMut::new();
    let mut next = Some(message);
    while let Some(data) = next {
        // Named, for those who listen to nothing else (2024-11-05: "sent as SSE `message` events").
        sse::encode(&sse::Event { event: Some("message".into()), ..sse::Event::message(data) }, &mut out);
        next = if out.len() < GATHERED { brought.try_recv().ok() } else { None };
    }
    out.freeze()
}
