//! What a modern client watches at many upstreams: resources and tasks, each where it is.
//!
//! Weir listens at each upstream in the client's own words ([`Proxy::drive`]), so that legacy upstreams are translated as
//! for any request, and brings together what they say. A slow upstream does not hold up the others: what it missed to
//! promise in time is promised for it, and once it listens its resources are said to have changed.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use weir_flow::Backoff;
use weir_mcp::{
    Era, Kind, ListKind, Message, Object, answer, json, method,
    public::{self, PublicNames},
    translate::subscribed,
};

use crate::{access::Item, catalog::MergedLists, config::UpstreamName, session::Endpoint, task, upstream::Upstream};

use super::{
    Answer, AnswerStream, Body, CallLog, Proxy, RequestContext, answer_stream::StreamItem, authorize::is_shown,
    route::Target, viewer,
};

/// How many resources and how many tasks one client may watch at once.
const WATCHED: usize = 256;

/// How many messages may wait for a client; then upstreams wait too.
const WAITING: usize = 64;

/// How long upstreams have to say what they grant before the client is told.
const PROMPT: Duration = Duration::from_secs(1);

/// The messages for one client; what it watches is let go when this is dropped.
pub(super) struct UpstreamWatch {
    heard: mpsc::Receiver<Bytes>,
    _following: JoinSet<()>,
}

/// What is watched at one upstream, or is granted of it: addresses and tasks as the client knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WatchedPart {
    pub(super) uris: Vec<String>,
    pub(super) tasks: Vec<String>,
}

impl UpstreamWatch {
    /// The next message; none will come once no upstream is listened to. Cancel-safe.
    pub(super) async fn next(&mut self) -> Bytes {
        match self.heard.recv().await {
            Some(message) => message,
            None => std::future::pending().await,
        }
    }
}

impl Proxy {
    /// Begins to watch what a `subscriptions/listen` wishes for; says what is granted of it.
    pub(super) async fn watch(
        self: &Arc<Self>,
        context: &RequestContext,
        wish: &[u8],
    ) -> (WatchedPart, Option<UpstreamWatch>) {
        let (heard, mut following) = (mpsc::channel(WAITING), JoinSet::new());
        let mut answers = Vec::new();
        let mut parts = self.parts(context, wish);
        for upstream in self.snapshot().upstreams() {
            let Some(part) = parts.remove(upstream.key()) else { continue };
            let Some(sub) = self.sub_context(context, upstream, &part) else { continue };
            let (tell, told) = oneshot::channel();
            answers.push((part.clone(), told));
            let (proxy, upstream) = (Arc::clone(self), Arc::clone(upstream));
            let follower = SubscriptionFollower {
                proxy,
                upstream,
                part,
                endpoint: context.endpoint.clone(),
                sub,
                client: heard.0.clone(),
            };
            following.spawn(follower.follow(tell));
        }
        if answers.is_empty() {
            return (WatchedPart::default(), None);
        }
        let (mut granted, end) = (WatchedPart::default(), Instant::now() + PROMPT);
        for (part, told) in answers {
            let answer = match tokio::time::timeout_at(end.into(), told).await {
                Ok(answer) => answer.unwrap_or_default(),
                Err(_) => part,
            };
            granted.uris.extend(answer.uris);
            granted.tasks.extend(answer.tasks);
        }
        (granted, Some(UpstreamWatch { heard: heard.1, _following: following }))
    }

    /// Who is to be asked for what.
    fn parts(&self, context: &RequestContext, wish: &[u8]) -> HashMap<UpstreamName, WatchedPart> {
        let offers = self.catalog.known(context.viewer(), Era::Modern);
        let texts = |key: &str| {
            let texts = json::get(wish, &[key]).into_iter().flat_map(json::elements).filter_map(json::string);
            texts.map(|text| text.into_owned()).take(WATCHED).collect::<Vec<_>>()
        };
        let sees = |upstream: &UpstreamName, item: Item<'_>| {
            let (snapshot, caller) = (self.snapshot(), context.caller.as_ref());
            let upstream = snapshot.upstream(upstream.as_str());
            upstream.is_some_and(|upstream| is_shown(&snapshot, &context.endpoint, caller, upstream, item))
        };
        let mut parts: HashMap<UpstreamName, WatchedPart> = HashMap::new();
        for uri in texts("resourceSubscriptions") {
            let found = offers.find_resource(&uri);
            let found = found.filter(|(upstream, native)| sees(upstream, Item::One(ListKind::Resource, native)));
            let upstream = found.map(|(upstream, _)| upstream);
            if let Some(upstream) = upstream.filter(|of| offers.traits(of).is_some_and(|traits| traits.subscribe)) {
                let uris = &mut parts.entry(upstream.clone()).or_default().uris;
                if !uris.contains(&uri) {
                    uris.push(uri);
                }
            }
        }
        for task in texts("taskIds") {
            let upstream = public::split(&task).and_then(|(name, _)| self.upstream(name));
            let upstream = upstream.filter(|upstream| sees(upstream.key(), Item::Any));
            let has_tasks = |of: &Arc<Upstream>| offers.traits(of.key()).is_some_and(|traits| traits.tasks);
            if let Some(upstream) = upstream.filter(has_tasks) {
                parts.entry(upstream.key().clone()).or_default().tasks.push(task);
            }
        }
        parts
    }

    /// The client's request, narrowed to what concerns one upstream.
    fn sub_context(
        &self,
        context: &RequestContext,
        upstream: &Arc<Upstream>,
        part: &WatchedPart,
    ) -> Option<RequestContext> {
        let offers = self.catalog.known(context.viewer(), Era::Modern);
        let native = |uri: &String| offers.find_resource(uri).map(|(_, native)| json::quote(native));
        let uris: Vec<String> = part.uris.iter().filter_map(native).collect();
        let tasks = part.tasks.iter().filter_map(|task| Some(json::quote(public::split(task)?.1)));
        let tasks: Vec<String> = tasks.collect();
        let mut wish = Vec::new();
        for (key, values) in [("resourceSubscriptions", uris), ("taskIds", tasks)] {
            if !values.is_empty() {
                wish.push(format!("\"{key}\":[{}]", values.join(",")));
            }
        }
        let wish = format!("{{{}}}", wish.join(","));
        let message = context.message.edit().put(Object::Body, "notifications", wish).finish();
        let (endpoint, message) = (Endpoint::One(Arc::clone(upstream)), Message::parse(message).ok()?);
        Some(RequestContext { era: Era::Modern, endpoint, message, session: None, ..context.clone() })
    }
}

/// One upstream being listened to for one client.
struct SubscriptionFollower {
    proxy: Arc<Proxy>,
    upstream: Arc<Upstream>,
    part: WatchedPart,
    /// Where the client listens.
    endpoint: Endpoint,
    sub: RequestContext,
    client: mpsc::Sender<Bytes>,
}

impl SubscriptionFollower {
    async fn follow(mut self, tell: oneshot::Sender<WatchedPart>) {
        let mut tell = Some(tell);
        let mut backoff = Backoff::STREAM;
        loop {
            if self.upstream.is_retired() {
                let Some(now) = self.proxy.upstream(self.upstream.name()) else { return };
                self.sub.endpoint = Endpoint::One(Arc::clone(&now));
                self.upstream = now;
            }
            let target = Target::unchanged(&self.upstream, &self.sub.message, Era::Modern);
            let answer = self.proxy.drive(&self.sub, target, &mut CallLog::new(&self.sub)).await;
            let Answer { body: Body::Events(delivery), .. } = answer else {
                // It does not let anything be watched, or cannot be asked now. Only what was promised is tried again.
                if tell.as_ref().is_some_and(|tell| !tell.is_closed()) {
                    return;
                }
                task::back_off(&mut backoff).await;
                continue;
            };
            let since = Instant::now();
            let passed = task::until(self.upstream.retirement(), self.pass_on(*delivery, &mut tell)).await;
            if passed.is_some_and(|passed| passed.is_none()) {
                return;
            }
            backoff.handle_stay(since.elapsed());
            task::back_off(&mut backoff).await;
        }
    }

    /// Brings what an upstream says to the client until the stream ends; none if the client is gone.
    async fn pass_on(&self, mut stream: AnswerStream, tell: &mut Option<oneshot::Sender<WatchedPart>>) -> Option<()> {
        while let StreamItem::Message(data) | StreamItem::Last(data) = stream.next().await {
            let Ok(message) = Message::parse(data) else { continue };
            match (message.kind(), message.method()) {
                (Kind::Notification, method::ACKNOWLEDGED) => {
                    let granted = self.granted(&message);
                    // Whoever came too late to be heard, or comes again, may have missed something.
                    let missed = match tell.take() {
                        Some(tell) => tell.send(granted).err(),
                        None => Some(granted),
                    };
                    for uri in missed.into_iter().flat_map(|missed| missed.uris) {
                        self.client.send(self.updated(&uri)).await.ok()?;
                    }
                }
                (Kind::Notification, method::UPDATED) if self.may_hear_of(&message) => {
                    self.client.send(self.addressed(&message)).await.ok()?;
                }
                (Kind::Notification, method::TASK_CHANGE) => {
                    let named = public::outward(&message, self.upstream.name(), &PublicNames::Plain);
                    self.client.send(named.unwrap_or_else(|| message.bytes().clone())).await.ok()?;
                }
                _ => {}
            }
        }
        Some(())
    }

    /// What an upstream grants of its part, as the client knows it.
    fn granted(&self, acknowledged: &Message) -> WatchedPart {
        let granted = acknowledged.params().and_then(|params| json::get(params, &["notifications"])).unwrap_or(b"{}");
        let has = |key: &str, native: &str| {
            let mut all = json::get(granted, &[key]).into_iter().flat_map(json::elements).filter_map(json::string);
            all.any(|text| text == native)
        };
        let offers = self.offers();
        let uri =
            |uri: &&String| offers.find_resource(uri).is_some_and(|(_, native)| has("resourceSubscriptions", native));
        let task = |task: &&String| public::split(task).is_some_and(|(_, native)| has("taskIds", native));
        WatchedPart {
            uris: self.part.uris.iter().filter(uri).cloned().collect(),
            tasks: self.part.tasks.iter().filter(task).cloned().collect(),
        }
    }

    /// What the client sees where it listens.
    fn offers(&self) -> Arc<MergedLists> {
        let (catalog, caller) = (&self.proxy.catalog, self.sub.caller.as_ref());
        catalog.known(viewer(Some(&self.endpoint), caller), Era::Modern)
    }

    /// Whether the client may know of what has changed. Some servers tell each of all.
    fn may_hear_of(&self, updated: &Message) -> bool {
        let (snapshot, caller) = (self.proxy.snapshot(), self.sub.caller.as_ref());
        updated.uri().is_some_and(|uri| {
            let item = Item::One(ListKind::Resource, &uri);
            is_shown(&snapshot, &self.endpoint, caller, &self.upstream, item)
        })
    }

    fn addressed(&self, updated: &Message) -> Bytes {
        let offers = self.offers();
        let public = updated.uri().and_then(|uri| offers.public_address(self.upstream.key(), &uri));
        public.map_or_else(|| updated.bytes().clone(), |public| public::readdressed(updated, public))
    }

    /// Says that a resource may have changed.
    fn updated(&self, uri: &str) -> Bytes {
        let params = format!("{{\"uri\":{}}}", json::quote(uri));
        let bytes = answer::notification(method::UPDATED, Some(params.as_bytes()));
        let id = self.sub.message.id().unwrap_or(b"null");
        Message::parse(bytes.clone()).map_or(bytes, |message| subscribed(&message, id))
    }
}
