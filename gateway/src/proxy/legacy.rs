//! How legacy sessions begin, open upstreams and end.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;
use weir_flow::{Backoff, call::MAX_ATTEMPTS};
use weir_mcp::{Era, ListKind, Message, answer, era, json, message::Field, method, translate};

use crate::{
    access::{Item, Toolset},
    catalog::Viewer,
    http::HeaderValue,
    session::{Endpoint, MAX_REMEMBERED, RunningGuard, Session, SessionOwner},
    task,
    telemetry::CallOutcome,
    upstream::{Channel, ConnectError, Lease, Upstream, own},
};

use super::{Answer, CallLog, Proxy, RequestContext, aggregate, authorize::is_shown, restore::restore, viewer};

/// How long upstreams that are being opened may take to end with their session.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Opens what a client waits for where no call drives it: most restarts are over in a moment, and a connection that was
/// kept may have been closed. `attempts` counts the tries.
pub(super) async fn patiently<T, F>(
    upstream: &Upstream,
    attempts: &mut u32,
    open: impl Fn() -> F,
) -> Result<T, ConnectError>
where
    F: Future<Output = Result<T, ConnectError>>,
{
    let mut backoff = Backoff::CALL;
    loop {
        *attempts += 1;
        match open().await {
            Err(ConnectError::Outage(_) | ConnectError::Limit(_))
                if *attempts < MAX_ATTEMPTS && upstream.take_retry() =>
            {
                task::back_off(&mut backoff).await;
            }
            ended => return ended,
        }
    }
}

impl Proxy {
    /// Begins a session: answers `initialize`.
    pub async fn begin(
        self: &Arc<Self>,
        owner: SessionOwner,
        endpoint: Endpoint,
        initialize: &Message,
        record: &mut CallLog,
    ) -> Answer {
        if let Some(refusal) = Answer::unrecorded(initialize, record) {
            return refusal;
        }
        if let Err(why) = self.admission.load().request(owner.principal()) {
            let context = RequestContext::introducing(&owner, endpoint, initialize);
            return Answer::not_admitted(&context, &why, record);
        }
        if initialize.bytes().len() > MAX_REMEMBERED {
            let why =
                format!("`initialize` is longer than {MAX_REMEMBERED} bytes, which is what a session may keep of it");
            record.fail(CallOutcome::Refused, why.clone());
            return Answer::whole(413, answer::error(initialize.id(), answer::INVALID_REQUEST, &why, None));
        }
        match endpoint {
            Endpoint::Merged(toolset) => self.begin_merged(owner, toolset, initialize).await,
            Endpoint::One(upstream) => self.begin_one(owner, upstream, initialize, record).await,
        }
    }

    async fn begin_merged(
        self: &Arc<Self>,
        owner: SessionOwner,
        toolset: Arc<Toolset>,
        initialize: &Message,
    ) -> Answer {
        let version = requested_version(initialize);
        let offers = self
            .catalog
            .merged(Viewer { caller: owner.caller.as_ref(), toolset: &toolset, client: None }, Era::Legacy)
            .await;
        let answer = Answer::result(initialize, aggregate::initialized(&offers, version));
        let version = HeaderValue::from_static(version);
        self.admit(owner, Endpoint::Merged(toolset), initialize, version, None, answer).await
    }

    async fn begin_one(
        self: &Arc<Self>,
        owner: SessionOwner,
        upstream: Arc<Upstream>,
        initialize: &Message,
        record: &mut CallLog,
    ) -> Answer {
        record.goes_to(&upstream);
        let open = || upstream.lease_session(owner.caller.as_ref(), owner.principal(), initialize);
        let opened = match patiently(&upstream, &mut record.attempts, open).await {
            // It knows no sessions, so that Weir says what it is.
            Err(ConnectError::OtherEra { .. }) => upstream.lease(owner.caller.as_ref(), Some(Era::Modern)).await,
            opened => opened,
        };
        let (channel, answer, era) = match opened {
            Ok(Lease { channel, answer, era }) => (channel, answer, era),
            Err(why) => {
                let context = RequestContext::introducing(&owner, Endpoint::One(Arc::clone(&upstream)), initialize);
                return Box::pin(self.stopped(&context, &upstream, why.into(), None, record)).await;
            }
        };
        if era == Era::Modern {
            let version = requested_version(initialize);
            let said = answer.result().unwrap_or(b"{}");
            let answer = Answer::result(initialize, translate::initialized(said, version, upstream.name()));
            let version = HeaderValue::from_static(version);
            return self.admit(owner, Endpoint::One(upstream), initialize, version, None, answer).await;
        }
        let agreed = answer.member("protocolVersion").and_then(json::string);
        let version = agreed.and_then(|version| HeaderValue::from_str(&version).ok());
        let version = version.unwrap_or(HeaderValue::from_static(era::LATEST_LEGACY));
        let id = initialize.id().unwrap_or(b"null");
        // A shared process was opened with an id of Weir's own.
        let same = answer.id() == Some(id);
        let bytes = if same { answer.bytes().clone() } else { answer.edit().set(Field::Id, id).finish() };
        let (endpoint, answer) = (Endpoint::One(upstream), Answer::whole(200, bytes));
        self.admit(owner, endpoint, initialize, version, Some(channel), answer).await
    }

    async fn admit(
        &self,
        owner: SessionOwner,
        endpoint: Endpoint,
        initialize: &Message,
        version: HeaderValue,
        opened: Option<Channel>,
        answer: Answer,
    ) -> Answer {
        let session = match Session::new(owner, endpoint, initialize, version, self.sessions.memory()) {
            Ok(session) => Arc::new(session),
            Err(why) => {
                let why = format!("no session id can be made: {why}");
                return Answer::whole(503, answer::error(initialize.id(), answer::INTERNAL, &why, None));
            }
        };
        session.tell(self.catalog.latest());
        if let (Endpoint::One(upstream), Some(channel)) = (&session.endpoint, opened) {
            session.channels.put(upstream, channel);
        }
        self.sessions.add(Arc::clone(&session));
        // A configuration that came into force meanwhile either finds the session, or is found here.
        if !self.still(&session.endpoint, session.caller().as_ref()) {
            if self.sessions.remove(session.id.as_bytes()).is_some() {
                self.end(&session).await;
            }
            let why = "the configuration has changed meanwhile; begin again with initialize";
            return Answer::whole(503, answer::error(initialize.id(), answer::INTERNAL, why, None));
        }
        Answer { session: Some(session.id.clone()), ..answer }
    }

    /// The session's own way to an upstream, opened with the client's own words.
    pub(super) async fn open_channel(
        self: &Arc<Self>,
        session: &Arc<Session>,
        upstream: &Arc<Upstream>,
    ) -> Result<Channel, ConnectError> {
        if let Some(channel) = session.channels.get(upstream) {
            session.forwarders.settled(upstream.key()).await;
            return Ok(channel);
        }
        if session.is_over() {
            return Err(session_over());
        }
        if let Some(other) = upstream.only_other(Era::Legacy) {
            return Err(ConnectError::OtherEra { wanted: Era::Legacy, other });
        }
        if session.is_copy() {
            return Err(ConnectError::AtOwner);
        }
        let (tell, told) = oneshot::channel();
        let (proxy, owner, upstream) = (Arc::clone(self), Arc::clone(session), Arc::clone(upstream));
        let opening = async move {
            let mut opened = owner.channels.get_or_open(&upstream, || proxy.open_anew(&owner, &upstream)).await;
            // Either the end of the session finds the channel, or this finds the end of the session.
            if owner.is_over() {
                close_channels(&owner, |_| true).await;
                opened = Err(session_over());
            }
            // A caller that is gone needs no channel.
            drop(tell.send(opened));
        };
        {
            let mut openings = session.openings.lock();
            while openings.try_join_next().is_some() {}
            openings.spawn(opening);
        }
        told.await.unwrap_or_else(|_| Err(session_over()))
    }

    /// Opens an upstream and makes it ready before any call can use it.
    async fn open_anew(
        self: &Arc<Self>,
        session: &Arc<Session>,
        upstream: &Arc<Upstream>,
    ) -> Result<Channel, ConnectError> {
        let caller = session.caller();
        let Lease { channel, answer: said, .. } =
            upstream.lease_session(caller.as_ref(), session.principal(), &session.initialize).await?;
        let initialized = own::initialized();
        let told = upstream.tell(caller.as_ref(), &channel, &initialized, None);
        if tokio::time::timeout(upstream.timeouts.list, told).await.is_err() {
            tracing::debug!(upstream = upstream.name(), "initialized not taken in time");
        }
        let logs = said.result().and_then(|result| json::get(result, &["capabilities", "logging"])).is_some();
        restore(session, upstream, &channel, logs).await;
        self.tell_of_watched(session, upstream);
        if session.queue.is_taken() {
            self.forward(session, upstream, channel.clone(), None);
            session.forwarders.settled(upstream.key()).await;
        }
        // Other gateways can use it, too.
        session.note_change();
        Ok(channel)
    }

    /// Tells a client of the resources that it watches: what their upstreams said of them meanwhile nobody has heard.
    fn tell_of_watched(&self, session: &Session, upstream: &Arc<Upstream>) {
        let caller = session.caller();
        for uri in &session.watched(upstream.key()) {
            let item = Item::One(ListKind::Resource, uri);
            let (caller, client) = (caller.as_ref(), session.client_info());
            if !is_shown(&self.catalog, &session.endpoint, (caller, client), upstream, item) {
                continue;
            }
            let offers = self.catalog.known(viewer(Some(&session.endpoint), caller, client), Era::Legacy);
            let merged = session.endpoint.is_merged();
            let public = offers.public_address(upstream.key(), uri).filter(|_| merged).unwrap_or(uri);
            let params = format!("{{\"uri\":{}}}", json::quote(public));
            session.queue.push(answer::notification(method::UPDATED, Some(params.as_bytes())));
        }
    }

    /// Goes on with a session that has come here from another gateway, with what it has open.
    pub fn go_on(&self, session: &Session) {
        session.channels.all().iter().for_each(|(upstream, _)| self.tell_of_watched(session, upstream));
    }

    /// Ends a session and everything it holds: its tasks, its upstream sessions, its child processes.
    pub async fn end(&self, session: &Arc<Session>) {
        if let Some(registry) = &self.registry {
            registry.remove(session).await;
        }
        self.close_session(session, |_| true).await;
    }

    /// Ends what this gateway holds of a session. Others can go on with it, and with its sessions at upstreams; or the process
    /// that has taken over can.
    pub async fn leave(&self, session: &Arc<Session>) {
        if let Some(registry) = &self.registry {
            registry.leave(session, &self.sessions).await;
        }
        let is_left = self.registry.is_some() || (self.is_replaced() && session.is_handed_over());
        self.close_session(session, |channel| !is_left || channel.travels().is_none()).await;
    }

    async fn close_session(&self, session: &Arc<Session>, ends: impl Fn(&Channel) -> bool) {
        session.end();
        session.forwarders.stop();
        close_channels(session, ends).await;
        // Whatever is being opened closes itself; an upstream that does not answer is left.
        let openings = std::mem::take(&mut *session.openings.lock());
        drop(tokio::time::timeout(CLOSE_LIMIT, openings.join_all()).await);
    }
}

async fn close_channels(session: &Session, ends: impl Fn(&Channel) -> bool) {
    let mut closing = tokio::task::JoinSet::new();
    for (upstream, channel) in session.channels.take().into_iter().filter(|(_, channel)| ends(channel)) {
        let caller = session.caller();
        closing.spawn(async move { upstream.close(caller.as_ref(), &channel).await });
    }
    closing.join_all().await;
}

/// The version to answer `initialize` with.
fn requested_version(initialize: &Message) -> &'static str {
    era::negotiate(&initialize.member("protocolVersion").and_then(json::string).unwrap_or_default())
}

fn session_over() -> ConnectError {
    ConnectError::Stopped("the client has ended its session".into())
}
/// Tells an upstream, in the background, that nobody waits for a request of a legacy client any more.
pub(super) fn cancel(upstream: &Arc<Upstream>, running: &RunningGuard) {
    let session = running.session();
    let Some(channel) = session.channels.get(upstream) else { return };
    let Ok(message) = Message::parse(running.cancellation("it has timed out")) else { return };
    let (upstream, caller, run) = (Arc::clone(upstream), session.caller(), Arc::clone(&running.run));
    tokio::spawn(async move {
        let tell = upstream.tell(caller.as_ref(), &channel, &message, Some(&run.ticket));
        drop(tokio::time::timeout(upstream.timeouts.list, tell).await);
    });
}
