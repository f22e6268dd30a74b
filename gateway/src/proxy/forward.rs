//! What upstreams say of their own accord, on its way to a legacy client.
//!
//! Each upstream that a session has open is heard by a forwarder task, which fills the session's queue; whatever stream
//! the client has empties it. So nothing is lost while a client changes its connection, an upstream's stream that breaks
//! is opened again without the client's doing, and it does not matter which transport either side speaks. A client may
//! resume its own stream, and that of a request, with the id of the last event it has.

use std::{
    sync::{Arc, Weak},
    time::Instant,
};

use tokio::sync::oneshot;
use weir_flow::Backoff;
use weir_mcp::{Era, Message, answer};

use crate::{
    catalog::Catalog,
    http::HeaderValue,
    session::{Endpoint, ForwarderOpening, QueueConsumer, ResumePoint, Session},
    task,
    upstream::{Channel, ConnectError, Listened, Reply, ReplyBody, SendError, Upstream},
};

use super::{Answer, AnswerStream, KeepStream, Proxy, legacy::patiently, namespace};

impl Proxy {
    /// Opens the session's GET stream, or goes on with the stream that an event id is from.
    pub async fn listen(self: &Arc<Self>, session: &Arc<Session>, last_event_id: Option<&str>) -> Answer {
        let place = match last_event_id.map(|id| session.streams.find(id)) {
            None => None,
            Some(Some(ResumePoint::Own(place))) => Some(place),
            Some(Some(ResumePoint::Answer(replay))) if replay.is_over() => return Answer::empty(204),
            Some(Some(ResumePoint::Answer(replay))) => {
                return Answer::events(AnswerStream::replay(replay).until(session.ended()));
            }
            Some(None) => {
                let text = "this event id is not of this session, or what followed it is not kept any more";
                return Answer::whole(400, answer::error(None, answer::INVALID_REQUEST, text, None));
            }
        };
        let taken = match place {
            Some(_) => Some(session.queue.take_over()),
            None => session.queue.take(),
        };
        let Some(taken) = taken else {
            let text = "this session has a GET stream already";
            return Answer::whole(409, answer::error(None, answer::INVALID_REQUEST, text, None));
        };
        match &session.endpoint {
            // The process that has taken over hears them.
            _ if self.is_replaced() => {}
            Endpoint::Merged(_) => self.hear(session),
            Endpoint::One(upstream) => {
                if let Err(answer) = self.hear_one(session, upstream).await {
                    return answer;
                }
            }
        }
        let missed = place.map(|place| session.streams.said_after(place)).unwrap_or_default();
        Answer::events(self.overheard(session, taken).keep(KeepStream::Own(Arc::clone(session), missed)))
    }

    /// What waits for a session's client, to the end of the session; none if another stream has it.
    pub fn overhear(&self, session: &Arc<Session>) -> Option<AnswerStream> {
        Some(self.overheard(session, session.queue.take()?))
    }

    fn overheard(&self, session: &Arc<Session>, taken: QueueConsumer) -> AnswerStream {
        let changes = session.endpoint.is_merged().then(|| {
            let client = session.client_info().map(|client| client.name().into_owned());
            let looks = self.looker(session.endpoint.clone(), (session.caller(), client), Era::Legacy);
            (self.catalog.announced(), Arc::clone(session), looks)
        });
        AnswerStream::queue(taken, changes).until(session.ended())
    }

    /// Has what the session's upstreams say brought to its queue from now on.
    pub fn hear(self: &Arc<Self>, session: &Arc<Session>) {
        if let Endpoint::One(upstream) = &session.endpoint
            && session.channels.get(upstream).is_none()
            && upstream.only_other(Era::Legacy).is_some()
        {
            self.watch_lists(session, upstream);
        }
        for (upstream, channel) in session.channels.all() {
            if !session.forwarders.is_running(upstream.key()) {
                self.forward(session, &upstream, channel, None);
            }
        }
    }

    /// The same for the one upstream of an endpoint, whose own word on it the client is told when it offers no stream.
    #[allow(clippy::result_large_err, reason = "the refusal is the answer, on its way out")]
    async fn hear_one(self: &Arc<Self>, session: &Arc<Session>, upstream: &Arc<Upstream>) -> Result<(), Answer> {
        let trouble = |why: String| {
            let text = format!("upstream `{}`: {why}", upstream.name());
            Answer::whole(502, answer::error(None, answer::INTERNAL, &text, None))
        };
        let mut reopened = false;
        while !session.forwarders.is_running(upstream.key()) {
            let channel = match patiently(upstream, &mut 0, || self.open_channel(session, upstream)).await {
                Ok(channel) => channel,
                Err(ConnectError::OtherEra { .. }) => {
                    self.watch_lists(session, upstream);
                    return Ok(());
                }
                Err(why) => return Err(trouble(why.to_string())),
            };
            if session.has_come_over() {
                // The process before may have its stream yet, for some seconds.
                self.forward(session, upstream, channel, None);
                session.forwarders.settled(upstream.key()).await;
                return Ok(());
            }
            let (tell, told) = oneshot::channel();
            self.forward(session, upstream, channel.clone(), Some(tell));
            match told.await {
                Ok(ListenHead::Open) => {}
                Ok(ListenHead::Lost) if !reopened => {
                    session.channels.forget(upstream, &channel);
                    reopened = true;
                }
                Ok(ListenHead::Lost) => return Err(trouble("the session is gone".into())),
                Ok(ListenHead::None) => return Err(Answer { allow: Some("POST, DELETE"), ..Answer::empty(405) }),
                Ok(ListenHead::Busy) => return Err(Answer::empty(409)),
                Ok(ListenHead::Trouble(why)) => return Err(trouble(why)),
                Err(_) => return Err(trouble("the session is over".into())),
            }
        }
        Ok(())
    }

    /// Brings what an upstream says of its own accord into the session's queue, until the session ends. Who wants to
    /// be told how the stream opened hears the first try out, and only a stream that opened is kept up. Once the upstream
    /// has lost the session, a new one is opened for a client that listens.
    pub(super) fn forward(
        self: &Arc<Self>,
        session: &Arc<Session>,
        upstream: &Arc<Upstream>,
        channel: Channel,
        tell: Option<oneshot::Sender<ListenHead>>,
    ) {
        let forward = NotificationForwarder {
            channel: channel.clone(),
            upstream: Arc::clone(upstream),
            catalog: Arc::clone(&self.catalog),
            session: Arc::downgrade(session),
            last_event_id: None,
        };
        let (proxy, upstream, weak) = (Arc::downgrade(self), Arc::clone(upstream), Arc::downgrade(session));
        session.forwarders.run(upstream.clone().key(), |opening| async move {
            let forwarding = async {
                if forward.run(opening, tell).await == Ended::Lost {
                    open_again(&proxy, &weak, &upstream, &channel).await;
                }
            };
            task::until(upstream.retirement(), forwarding).await;
        });
    }
}

/// Opens an upstream again that has lost a session, for as long as the session's client listens: it may never call. What
/// opens it brings a forwarder of its own, in place of the one that this belongs to.
async fn open_again(proxy: &Weak<Proxy>, session: &Weak<Session>, upstream: &Arc<Upstream>, lost: &Channel) {
    let mut backoff = Backoff::CONNECT;
    loop {
        task::back_off(&mut backoff).await;
        let (Some(proxy), Some(session)) = (proxy.upgrade(), session.upgrade()) else { return };
        if !session.queue.is_taken() {
            return;
        }
        session.channels.forget(upstream, lost);
        match proxy.open_channel(&session, upstream).await {
            Err(
                ConnectError::Outage(_)
                | ConnectError::Silent(_)
                | ConnectError::Crashed { .. }
                | ConnectError::Full(_)
                | ConnectError::Limit(_),
            ) => {}
            Err(why) => {
                let upstream = upstream.name();
                tracing::debug!(upstream, error = %why, "a client that listens does not hear of it any more");
                return;
            }
            Ok(_) => return,
        }
    }
}

/// How an upstream's own stream opened.
pub(super) enum ListenHead {
    /// It is there.
    Open,
    /// There is none.
    None,
    /// Another stream is, or was not yet seen to be closed.
    Busy,
    /// Not now.
    Trouble(String),
    /// The upstream does not know the session any more.
    Lost,
}

/// Why nothing more is brought from an upstream.
#[derive(PartialEq, Eq)]
enum Ended {
    /// The upstream has lost the session.
    Lost,
    /// It has nothing to say, or nobody is there to hear it.
    Over,
}

/// One upstream's way into a session's queue.
struct NotificationForwarder {
    channel: Channel,
    upstream: Arc<Upstream>,
    catalog: Arc<Catalog>,
    /// The task belongs to the session, so it must not keep the session alive.
    session: Weak<Session>,
    /// Where to go on when the stream is opened again.
    last_event_id: Option<HeaderValue>,
}

impl NotificationForwarder {
    async fn run(mut self, opening: ForwarderOpening, tell: Option<oneshot::Sender<ListenHead>>) -> Ended {
        let (mut head, mut heard) = opening.during(self.open()).await;
        if let Some(tell) = tell {
            let opened = matches!(head, ListenHead::Open);
            if tell.send(head).is_err() || !opened {
                return Ended::Over;
            }
            head = ListenHead::Open;
        }
        let mut backoff = Backoff::STREAM;
        loop {
            match (&head, heard) {
                (ListenHead::Open, Some(heard)) => {
                    let since = Instant::now();
                    match self.pass_on(heard).await {
                        Some(true) => backoff.reset(),
                        Some(false) => backoff.handle_stay(since.elapsed()),
                        None => return Ended::Over,
                    }
                }
                (ListenHead::Lost, _) => return Ended::Lost,
                (ListenHead::None, _) => return Ended::Over,
                (ListenHead::Open | ListenHead::Busy | ListenHead::Trouble(_), _) => {}
            }
            if !self.channel.alive() {
                return Ended::Lost;
            }
            task::back_off(&mut backoff).await;
            (head, heard) = self.open().await;
        }
    }

    async fn open(&self) -> (ListenHead, Option<Listened>) {
        let Some(caller) = self.session.upgrade().map(|session| session.caller()) else {
            return (ListenHead::Lost, None);
        };
        let credential = match self.upstream.credential(caller.as_ref(), None).await {
            Ok(credential) => credential,
            Err(why) => return (ListenHead::Trouble(why.to_string()), None),
        };
        match self.channel.listen(self.last_event_id.as_ref(), credential.as_ref()).await {
            Ok(Reply { status: 200, body: ReplyBody::Events(heard), .. }) => (ListenHead::Open, Some(heard)),
            Ok(Reply { status: 409, .. }) => (ListenHead::Busy, None),
            Ok(Reply { status: status @ (408 | 429 | 500..), .. }) => {
                (ListenHead::Trouble(format!("status {status}")), None)
            }
            Ok(_) => (ListenHead::None, None),
            Err(SendError::SessionLost) => (ListenHead::Lost, None),
            Err(why) => (ListenHead::Trouble(why.to_string()), None),
        }
    }

    /// Fills the queue until the stream ends; says whether anything came, or nothing if the session is over.
    async fn pass_on(&mut self, mut heard: Listened) -> Option<bool> {
        let mut any = false;
        while let Ok(Some(event)) = heard.next().await {
            if let Some(id) = event.id.as_deref() {
                self.last_event_id = HeaderValue::from_str(id).ok().filter(|id| !id.is_empty());
            }
            let session = self.session.upgrade()?;
            if event.data.is_empty() || !event.is_message() {
                continue;
            }
            let Ok(message) = Message::parse(event.data) else { continue };
            let data = match &session.endpoint {
                // Answers belong on the streams of their requests. A client takes one wherever it comes.
                _ if message.is_answer() => None,
                // What one upstream says to its own client goes as it is.
                Endpoint::One(_) => Some(message.bytes().clone()),
                Endpoint::Merged(_) => namespace::mapped(&message, &session, &self.catalog, &self.upstream),
            };
            if let Some(data) = data {
                session.queue.push(data);
                any = true;
            }
        }
        Some(any)
    }
}
