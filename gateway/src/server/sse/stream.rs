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
    relay::{Answer, Delivery, Heard, Inquiry, RETRY, Record},
    session::{Endpoint, Owner, Session},
};

use super::{
    super::{App, events, listen::Exchange, messages::Messages, refusal},
    Open, Posted,
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
        exchange: &mut Exchange,
    ) -> Option<Answer> {
        let owner = match Owner::new(self.relay.sessions(), exchange.caller().cloned(), exchange.principal()) {
            Ok(owner) => owner,
            Err(full) => return Some(Answer::full(None, &full)),
        };
        let Some((open, posted)) = self.streams.open(endpoint, exchange.path(), exchange.caller().cloned()) else {
            return Some(refusal::no_randomness());
        };
        events::start_own(exchange).await;
        let first = format!("event: endpoint\ndata: messages?sessionId={}\n\n", open.id);
        if exchange.write(first.into()).await {
            let (bring, brought) = mpsc::channel(WRITTEN_NEXT);
            let ends = exchange.ends();
            let owner = Some(owner);
            let mut client = Client { app: self, open, owner, session: None, ends, bring, running: JoinSet::new() };
            client.serve(exchange, posted, brought).await;
            client.end().await;
        }
        None
    }
}

/// One client and what runs for it.
struct Client<'a> {
    app: &'a Arc<App>,
    open: Open<'a>,
    /// Of the session, until that begins.
    owner: Option<Owner>,
    session: Option<(Arc<Session>, Delivery)>,
    /// When what the client has shown is no longer good; put off by each request that shows something younger.
    ends: Option<SystemTime>,
    /// What requests are given to bring their answers.
    bring: mpsc::Sender<Bytes>,
    running: JoinSet<()>,
}

/// What happens next on a stream.
enum Next {
    Write(Bytes),
    Take(Box<Posted>),
    Nothing,
    KeepAlive,
    /// Weir ends the stream.
    Close,
    Gone,
}

impl Client<'_> {
    async fn serve(
        &mut self,
        exchange: &mut Exchange,
        mut posted: mpsc::Receiver<Posted>,
        mut brought: mpsc::Receiver<Bytes>,
    ) {
        let (introduction, peer) = (Instant::now() + INTRODUCTION, exchange.peer());
        let mut draining = self.app.draining.subscribe();
        loop {
            let next = tokio::select! {
                biased;
                Some(message) = brought.recv() => Next::Write(gathered(message, &mut brought)),
                heard = overheard(&mut self.session) => match heard {
                    Some(bytes) => Next::Write(bytes),
                    None => Next::Close,
                },
                Some(posted) = posted.recv(), if self.running.len() < MAX_RUNNING => Next::Take(Box::new(posted)),
                Some(_) = self.running.join_next() => Next::Nothing,
                () = events::turns_true(&mut draining) => Next::Close,
                // What runs is still answered.
                () = events::passes(self.ends), if self.running.is_empty() => Next::Close,
                () = exchange.gone() => Next::Gone,
                () = sleep_until(introduction), if self.session.is_none() => Next::Close,
                () = sleep(events::KEEP_ALIVE) => Next::KeepAlive,
            };
            let written = match next {
                Next::Write(bytes) => exchange.write(bytes).await,
                Next::Take(posted) => match self.take(*posted, peer).await {
                    Some(message) => exchange.write(gathered(message, &mut brought)).await,
                    None => true,
                },
                Next::Nothing => true,
                Next::KeepAlive => exchange.write(Bytes::from_static(KEEP_ALIVE)).await,
                Next::Close => {
                    exchange.end_with(Bytes::from_static(RETRY)).await;
                    return;
                }
                Next::Gone => return,
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
        let session = self.session.as_ref().map(|(session, _)| Arc::clone(session));
        match (&session, message.method()) {
            (None, "initialize") => return Some(self.introduce(caller, &principal, &message, peer).await),
            (None, "ping") => return only(Answer::result(&message, Bytes::from_static(b"{}"))).await,
            (None, _) => return only(refusal::not_introduced(&message)).await,
            (Some(_), "initialize") => return only(refusal::second_initialize(message.id())).await,
            (Some(_), _) => {}
        }
        let endpoint = self.open.stream.endpoint;
        let inquiry = Inquiry { era: Era::Legacy, endpoint, caller, principal, message, version, headers, session };
        self.running.spawn(call(Arc::clone(self.app), inquiry, peer, self.bring.clone()));
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
        let endpoint = self.open.stream.endpoint;
        let mut record = Record::of(message, Era::Legacy, caller.as_ref());
        record.peer = Some(peer);
        let owner = match self.owner.take() {
            Some(owner) => owner.with(caller),
            // An `initialize` before this one came to nothing.
            None => match Owner::new(self.app.relay.sessions(), caller, principal) {
                Ok(owner) => owner,
                Err(full) => return answer::error(message.id(), answer::INTERNAL, &full.to_string(), None),
            },
        };
        let answer = self.app.relay.begin(owner, endpoint, message, &mut record).await.recorded(record);
        let session = answer.session.as_ref().and_then(|id| self.app.relay.sessions().get(id.as_bytes(), |_| true));
        if let Some(session) = session
            && let Some(overheard) = self.app.relay.overhear(&session)
        {
            drop(self.open.stream.session.set(Arc::clone(&session)));
            self.session = Some((session, overheard));
        }
        only(answer).await.unwrap_or_else(|| unanswered(message.id()))
    }

    /// A session of HTTP+SSE is its stream.
    async fn end(self) {
        drop(self.open);
        drop(self.running);
        if let Some((session, _)) = self.session
            && let Some(session) = self.app.relay.sessions().remove(session.id.as_bytes())
        {
            self.app.relay.end(&session).await;
        }
    }
}

/// Takes a request to its answer, and brings that and what comes before it.
async fn call(app: Arc<App>, inquiry: Inquiry, peer: SocketAddr, bring: mpsc::Sender<Bytes>) {
    let mut record = Record::new(&inquiry);
    record.peer = Some(peer);
    let answer = app.relay.request(&inquiry, &mut record).await.recorded(record);
    let (mut messages, mut any) = (Messages::of(answer), false);
    while let Some(message) = messages.next().await {
        any = true;
        if bring.send(message).await.is_err() {
            return;
        }
    }
    if !any && !messages.are_cancelled() {
        drop(bring.send(unanswered(inquiry.message.id())).await);
    }
}

/// What a client is told whose upstream gave nothing that could be passed on.
fn unanswered(id: Option<&[u8]>) -> Bytes {
    answer::error(id, answer::INTERNAL, "the upstream's answer broke off", None)
}

async fn only(answer: Answer) -> Option<Bytes> {
    Messages::of(answer).next().await
}

/// What the session has of its own accord, as bytes for the stream; nothing if it is over. Never ready before there is
/// a session.
async fn overheard(session: &mut Option<(Arc<Session>, Delivery)>) -> Option<Bytes> {
    let Some((_, overheard)) = session else { return std::future::pending().await };
    match overheard.next().await {
        Heard::Bytes(bytes) | Heard::Last(bytes) => Some(bytes),
        Heard::End => None,
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
