//! What a modern client watches at many upstreams: resources and tasks, each where it is.
//!
//! Weir listens at each upstream in the client's own words ([`Proxy::decide_and_drive`]): policies decide, and legacy
//! upstreams are translated, as for any request. What they say is brought together. A slow upstream does not hold up the
//! others: what it missed to promise in time is promised for it, and once it listens its resources are said to have
//! changed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use indexmap::IndexMap;
use tokio::{
    sync::{mpsc, oneshot, watch::Receiver},
    task::JoinSet,
};
use weir_flow::Backoff;
use weir_mcp::{
    Era, Kind, ListKind, Message, Object, answer, json, method,
    public::{self, PublicNames},
    translate::subscribed,
};

use crate::{access::Item, config::UpstreamName, session::Endpoint, task, upstream::Upstream};

use super::{
    Answer, AnswerStream, Body, CallLog, Proxy, RequestContext, answer_stream::StreamItem, authorize::is_shown,
    route::Target,
};

/// How many resources and how many tasks one client may watch at once.
pub(super) const WATCHED: usize = 256;

/// How many messages may wait for a client; then upstreams wait too.
const WAITING: usize = 64;

/// How long upstreams have to say what they grant before the client is told.
const PROMPT: Duration = Duration::from_secs(1);

/// The messages for one client; what it watches is let go when this is dropped.
pub(super) struct UpstreamWatch {
    heard: mpsc::Receiver<Bytes>,
    _following: JoinSet<()>,
}

/// What a client wants to watch at one upstream.
#[derive(Default)]
struct WatchedItems {
    /// Addresses: as the client knows them, and as the upstream does.
    uris: Vec<(String, String)>,
    /// Tasks, as the client knows them.
    tasks: Vec<String>,
}

/// What is granted of it: addresses and tasks as the client knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WatchedPart {
    pub(super) uris: Vec<String>,
    pub(super) tasks: Vec<String>,
}

impl WatchedItems {
    /// All of it.
    fn promised(&self) -> WatchedPart {
        WatchedPart { uris: self.uris.iter().map(|(uri, _)| uri.clone()).collect(), tasks: self.tasks.clone() }
    }
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
        for (name, part) in self.parts(context, wish) {
            let (tell, told) = oneshot::channel();
            answers.push((part.promised(), told));
            let (proxy, context, client) = (Arc::clone(self), context.clone(), heard.0.clone());
            following.spawn(SubscriptionFollower { proxy, name, part, context, client }.follow(tell));
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
    fn parts(&self, context: &RequestContext, wish: &[u8]) -> IndexMap<UpstreamName, WatchedItems> {
        let offers = self.catalog.known(context.viewer(), Era::Modern);
        let texts = |key: &str| {
            let texts = json::get(wish, &[key]).into_iter().flat_map(json::elements).filter_map(json::string);
            texts.map(|text| text.into_owned()).take(WATCHED).collect::<Vec<_>>()
        };
        let sees = |upstream: &UpstreamName, item: Item<'_>| {
            let snapshot = self.snapshot();
            let upstream = snapshot.upstream(upstream.as_str());
            upstream.is_some_and(|upstream| is_shown(&self.catalog, &context.endpoint, context.who(), upstream, item))
        };
        let mut parts: IndexMap<UpstreamName, WatchedItems> = IndexMap::new();
        for uri in texts("resourceSubscriptions") {
            let found = offers.find_resource(&uri);
            let found = found.filter(|(upstream, native)| sees(upstream, Item::One(ListKind::Resource, native)));
            let can_watch = |of: &UpstreamName| offers.traits(of).is_some_and(|traits| traits.subscribe);
            if let Some((upstream, native)) = found.filter(|(upstream, _)| can_watch(upstream)) {
                let (of, uris) = (upstream.clone(), (uri.clone(), native.to_owned()));
                let known = &mut parts.entry(of).or_default().uris;
                if !known.contains(&uris) {
                    known.push(uris);
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

    /// The client's request, narrowed to what concerns one upstream and may be watched there now; none if that is nothing.
    fn sub_context(
        &self,
        context: &RequestContext,
        upstream: &Arc<Upstream>,
        part: &WatchedItems,
    ) -> Option<RequestContext> {
        let sees = |item: Item<'_>| is_shown(&self.catalog, &context.endpoint, context.who(), upstream, item);
        if !sees(Item::Any) {
            return None;
        }
        let natives = part.uris.iter().map(|(_, native)| native);
        let natives = natives.filter(|native| sees(Item::One(ListKind::Resource, native)));
        let uris: Vec<String> = natives.map(|native| json::quote(native)).collect();
        let tasks = part.tasks.iter().filter_map(|task| Some(json::quote(public::split(task)?.1)));
        let tasks: Vec<String> = tasks.collect();
        let mut wish = Vec::new();
        for (key, values) in [("resourceSubscriptions", uris), ("taskIds", tasks)] {
            if !values.is_empty() {
                wish.push(format!("\"{key}\":[{}]", values.join(",")));
            }
        }
        if wish.is_empty() {
            return None;
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
    /// The upstream's.
    name: UpstreamName,
    part: WatchedItems,
    /// The client's own request.
    context: RequestContext,
    client: mpsc::Sender<Bytes>,
}

impl SubscriptionFollower {
    async fn follow(self, tell: oneshot::Sender<WatchedPart>) {
        let mut tell = Some(tell);
        let mut backoff = Backoff::STREAM;
        loop {
            // First, so that what is looked at from here on is looked at again when it may be otherwise.
            let mut superseded = self.proxy.catalog.superseded();
            let Some((upstream, sub)) = self.allowed() else {
                // Rules that allow it again may come.
                tell = None;
                if superseded.wait_for(|superseded| *superseded).await.is_err() {
                    return;
                }
                continue;
            };
            let target = Target::unchanged(&upstream, &sub.message, Era::Modern);
            let mut record = CallLog::of(&sub.message, sub.era, sub.caller.as_ref());
            let answer = self.proxy.decide_and_drive(&sub, target, None, &mut record).await;
            let Answer { body: Body::Events(delivery), .. } = answer else {
                // It does not let anything be watched, or cannot be asked now. Only what was promised is tried again.
                if tell.as_ref().is_some_and(|tell| !tell.is_closed()) {
                    return;
                }
                task::back_off(&mut backoff).await;
                continue;
            };
            let (since, mut stream) = (Instant::now(), *delivery);
            while let Some(item) = self.next(&mut stream, &mut superseded, (&upstream, &sub)).await {
                if self.pass_on(item, &upstream, &mut tell).await.is_none() {
                    return;
                }
            }
            drop(stream);
            backoff.handle_stay(since.elapsed());
            task::back_off(&mut backoff).await;
        }
    }

    /// The upstream of the name that is in force, and what may be watched there.
    fn allowed(&self) -> Option<(Arc<Upstream>, RequestContext)> {
        let upstream = self.proxy.upstream(self.name.as_str())?;
        let sub = self.proxy.sub_context(&self.context, &upstream, &self.part)?;
        Some((upstream, sub))
    }

    /// The next message; none at the end of the stream, and when the upstream is another or something else may be watched
    /// there.
    async fn next(
        &self,
        stream: &mut AnswerStream,
        superseded: &mut Receiver<bool>,
        (upstream, sub): (&Arc<Upstream>, &RequestContext),
    ) -> Option<Bytes> {
        loop {
            match task::until(superseded.clone(), stream.next()).await {
                Some(StreamItem::Message(data) | StreamItem::Last(data)) => return Some(data),
                Some(StreamItem::Replayed(_) | StreamItem::End) => return None,
                None => {
                    *superseded = self.proxy.catalog.superseded();
                    let same = |now: &Arc<Upstream>, allowed: &RequestContext| {
                        Arc::ptr_eq(now, upstream) && allowed.message.bytes() == sub.message.bytes()
                    };
                    self.allowed().filter(|(now, allowed)| same(now, allowed))?;
                }
            }
        }
    }

    /// Brings what an upstream says to the client; none if the client is gone.
    async fn pass_on(
        &self,
        data: Bytes,
        upstream: &Upstream,
        tell: &mut Option<oneshot::Sender<WatchedPart>>,
    ) -> Option<()> {
        let Ok(message) = Message::parse(data) else { return Some(()) };
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
            // Some servers tell each of all changes.
            (Kind::Notification, method::UPDATED) => {
                let Some(uri) = message.uri() else { return Some(()) };
                if self.may_hear_of(upstream, Item::One(ListKind::Resource, &uri)) {
                    self.client.send(self.addressed(upstream, &message)).await.ok()?;
                }
            }
            (Kind::Notification, method::TASK_CHANGE) if self.may_hear_of(upstream, Item::Any) => {
                let named = public::outward(&message, upstream.name(), &PublicNames::Plain);
                self.client.send(named.unwrap_or_else(|| message.bytes().clone())).await.ok()?;
            }
            _ => {}
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
        let uri = |(_, native): &&(String, String)| has("resourceSubscriptions", native);
        let task = |task: &&String| public::split(task).is_some_and(|(_, native)| has("taskIds", native));
        WatchedPart {
            uris: self.part.uris.iter().filter(uri).map(|(uri, _)| uri.clone()).collect(),
            tasks: self.part.tasks.iter().filter(task).cloned().collect(),
        }
    }

    /// Whether the client may know of what has changed.
    fn may_hear_of(&self, upstream: &Upstream, item: Item<'_>) -> bool {
        is_shown(&self.proxy.catalog, &self.context.endpoint, self.context.who(), upstream, item)
    }

    fn addressed(&self, upstream: &Upstream, updated: &Message) -> Bytes {
        let offers = self.proxy.catalog.known(self.context.viewer(), Era::Modern);
        let public = updated.uri().and_then(|uri| offers.public_address(upstream.key(), &uri));
        public.map_or_else(|| updated.bytes().clone(), |public| public::readdressed(updated, public))
    }

    /// Says that a resource may have changed.
    fn updated(&self, uri: &str) -> Bytes {
        let params = format!("{{\"uri\":{}}}", json::quote(uri));
        let bytes = answer::notification(method::UPDATED, Some(params.as_bytes()));
        let id = self.context.message.id().unwrap_or(b"null");
        Message::parse(bytes.clone()).map_or(bytes, |message| subscribed(&message, id))
    }
}
