//! What a modern upstream says of its own accord, for a legacy session: one subscription that follows the client's wishes.
//!
//! A subscription cannot be changed, so a new wish opens another; the one before is heard until the new one is confirmed,
//! and a moment longer. Where a subscription breaks off, what changed meanwhile is unknown, so everything may have.

use std::{
    pin::pin,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use tokio::sync::watch;
use weir_flow::Backoff;
use weir_mcp::{Era, Kind, ListKind, Message, answer, json, method, translate};

use crate::{
    access::Item,
    catalog::Catalog,
    proxy::{Answer, Proxy, RequestContext, authorize::is_shown, namespace, route::Target},
    session::{Session, WatchGrant, WatchRequest, WatchedUpstream},
    task,
    upstream::{Listened, ReplyBody, Upstream},
};

/// How long the subscription before is still heard.
const GRACE: Duration = Duration::from_millis(100);

/// The notifications about lists, and what grants them.
const LISTS: [(&str, &str); 3] = [
    ("toolsListChanged", "notifications/tools/list_changed"),
    ("promptsListChanged", "notifications/prompts/list_changed"),
    ("resourcesListChanged", "notifications/resources/list_changed"),
];

impl Proxy {
    /// Has a session hear of every list of an upstream.
    pub(in crate::proxy) fn watch_lists(&self, session: &Arc<Session>, upstream: &Arc<Upstream>) {
        self.wishes(session, upstream).change(|wish| wish.lists = true);
    }

    /// Answers `resources/subscribe` and `resources/unsubscribe`.
    pub(super) async fn watch_resource(
        &self,
        session: &Arc<Session>,
        context: &RequestContext,
        target: &Target,
    ) -> Answer {
        let (message, upstream) = (&context.message, &target.upstream);
        let refuse = |code: i64, why: &str| {
            Answer::error(Era::Legacy, message, code, &format!("upstream `{}`: {why}", upstream.name()))
        };
        let Some(address) = target.name.clone().or_else(|| message.uri().map(|uri| uri.into_owned())) else {
            return refuse(answer::INVALID_PARAMS, "no resource is named");
        };
        let watch = self.wishes(session, upstream);
        if message.method() == method::UNSUBSCRIBE {
            watch.change(|wish| {
                wish.addresses.remove(&address);
            });
            return Answer::result(message, super::EMPTY);
        }
        let Some(turn) = watch.change(|wish| {
            wish.addresses.insert(address.clone());
        }) else {
            return refuse(answer::INVALID_REQUEST, "this session watches as many resources as it may");
        };
        let granted = tokio::time::timeout(upstream.timeouts.list, watch.granted(turn)).await;
        let why = match granted {
            Ok(granted) if granted.addresses.contains(&address) => return Answer::result(message, super::EMPTY),
            Ok(granted) => granted.failure.unwrap_or_else(|| "it does not let this resource be watched".into()),
            Err(_) => "it did not confirm the subscription in time".into(),
        };
        watch.change(|wish| {
            wish.addresses.remove(&address);
        });
        refuse(answer::INVALID_PARAMS, &why)
    }

    /// What a session wishes to hear of an upstream, and what follows it.
    fn wishes(&self, session: &Arc<Session>, upstream: &Arc<Upstream>) -> Arc<WatchedUpstream> {
        let (watch, new) = session.stateless().watch(upstream.key());
        if new && !session.is_over() {
            let watcher = SessionSubscriber {
                session: Arc::downgrade(session),
                upstream: Arc::clone(upstream),
                catalog: Arc::clone(&self.catalog),
                watch: Arc::clone(&watch),
            };
            session.stateless().follow(watcher.run());
        }
        watch
    }
}

/// The one who follows the wishes.
struct SessionSubscriber {
    /// The task belongs to the session, so it must not keep the session alive.
    session: Weak<Session>,
    upstream: Arc<Upstream>,
    catalog: Arc<Catalog>,
    watch: Arc<WatchedUpstream>,
}

/// A subscription and what it grants.
struct OpenSubscription {
    events: Listened,
    lists: Vec<&'static str>,
    addresses: Vec<String>,
}

impl SessionSubscriber {
    async fn run(mut self) {
        let mut wishes = self.watch.wish.subscribe();
        let mut open: Option<OpenSubscription> = None;
        let (mut backoff, mut lost) = (Backoff::STREAM, false);
        loop {
            if self.upstream.is_retired() {
                let Some(now) = self.catalog.snapshot().upstream(self.upstream.name()).cloned() else { return };
                (self.upstream, open, lost) = (now, None, true);
            }
            let mut superseded = self.catalog.superseded();
            let Some(wish) = self.allowed(&wishes.borrow_and_update()) else { return };
            if !wish.lists && wish.addresses.is_empty() {
                (open, lost) = (None, false);
                self.grant(&wish, &[], None);
                tokio::select! {
                    changed = wishes.changed() => if changed.is_err() { return },
                    _ = superseded.wait_for(|superseded| *superseded) => {}
                }
                continue;
            }
            let before = open.take();
            let heard = before.is_some();
            match self.open(&wish, before).await {
                Ok(opened) => {
                    self.grant(&wish, &opened.addresses, None);
                    if std::mem::take(&mut lost) {
                        self.all_may_have_changed(&opened);
                    }
                    open = Some(opened);
                }
                Err(why) => {
                    tracing::debug!(upstream = self.upstream.name(), error = why, "no subscription");
                    self.grant(&wish, &[], Some(why));
                    lost |= heard;
                }
            }
            if let Some(opened) = &mut open {
                let since = Instant::now();
                match self.hear(opened, &mut wishes, (&wish, &mut superseded)).await {
                    Some(true) => {
                        backoff.reset();
                        continue;
                    }
                    Some(false) => (open, lost) = (None, true),
                    None => return,
                }
                backoff.handle_stay(since.elapsed());
            }
            tokio::select! {
                () = task::back_off(&mut backoff) => {}
                changed = wishes.changed() => if changed.is_err() { return },
            }
        }
    }

    /// What is wished for, as far as the rules allow it; none if the session is over.
    fn allowed(&self, wish: &WatchRequest) -> Option<WatchRequest> {
        let session = self.session.upgrade()?;
        let caller = session.caller();
        let who = (caller.as_ref(), session.client_info());
        let sees = |item: Item<'_>| is_shown(&self.catalog, &session.endpoint, who, &self.upstream, item);
        let (turn, lists, mut addresses) = (wish.turn, wish.lists && sees(Item::Any), wish.addresses.clone());
        addresses.retain(|address| sees(Item::One(ListKind::Resource, address)));
        Some(WatchRequest { turn, lists, addresses })
    }

    /// Passes on what comes until there is another wish or another may be granted (`true`), or the subscription ends
    /// (`false`); none if the session is over.
    async fn hear(
        &self,
        open: &mut OpenSubscription,
        wishes: &mut watch::Receiver<WatchRequest>,
        (wish, superseded): (&WatchRequest, &mut watch::Receiver<bool>),
    ) -> Option<bool> {
        loop {
            tokio::select! {
                message = open.events.message() => match message {
                    Ok(Some(message)) => if !self.pass(&message)? {
                        return Some(false);
                    },
                    Ok(None) | Err(_) => return Some(false),
                },
                changed = wishes.changed() => return changed.is_ok().then_some(true),
                () = self.upstream.retired() => return Some(false),
                () = async { drop(superseded.wait_for(|superseded| *superseded).await) } => {
                    *superseded = self.catalog.superseded();
                    if self.allowed(&wishes.borrow())? != *wish {
                        return Some(true);
                    }
                }
            }
        }
    }

    /// Opens a subscription for a wish, while the one before is still heard.
    async fn open(&self, wish: &WatchRequest, before: Option<OpenSubscription>) -> Result<OpenSubscription, String> {
        let mut opening = pin!(tokio::time::timeout(self.upstream.timeouts.list, self.subscribe(wish)));
        let late = |_| Err("it did not confirm the subscription in time".into());
        let Some(OpenSubscription { mut events, .. }) = before else { return opening.await.unwrap_or_else(late) };
        let opened = loop {
            tokio::select! {
                opened = &mut opening => break opened.unwrap_or_else(late),
                message = events.message() => match message {
                    Ok(Some(message)) => drop(self.pass(&message)),
                    Ok(None) | Err(_) => return opening.await.unwrap_or_else(late),
                },
            }
        };
        let rest = async {
            while let Ok(Some(message)) = events.message().await {
                self.pass(&message);
            }
        };
        drop(tokio::time::timeout(GRACE, rest).await);
        opened
    }

    async fn subscribe(&self, wish: &WatchRequest) -> Result<OpenSubscription, String> {
        let caller = self.session.upgrade().ok_or("the session is over")?.caller();
        let channel = self.upstream.lease_modern(caller.as_ref()).await.map_err(|why| why.to_string())?;
        let addresses: Vec<String> = wish.addresses.iter().cloned().collect();
        let request = {
            let session = self.session.upgrade().ok_or("the session is over")?;
            translate::listen(&session.stateless().declared, wish.turn, wish.lists, &addresses)
        };
        let request = Message::parse(request).map_err(|why| why.to_string())?;
        let reply = self.upstream.send(caller.as_ref(), &channel, Era::Modern, &request).await;
        let reply = reply.map_err(|why| why.to_string())?;
        let ReplyBody::Events(mut events) = reply.body else { return Err("it offers no subscriptions".into()) };
        while let Some(message) = events.message().await.map_err(|why| why.to_string())? {
            if let Some(addresses) = translate::acknowledged(&message) {
                let granted =
                    message.params().and_then(|params| json::get(params, &["notifications"])).unwrap_or(b"{}");
                let lists = LISTS.iter().filter(|(key, _)| json::get(granted, &[key]) == Some(b"true"));
                return Ok(OpenSubscription { events, lists: lists.map(|(_, method)| *method).collect(), addresses });
            }
            if message.kind() == Kind::Error {
                return Err("it offers no subscriptions".into());
            }
        }
        Err("it ended the subscription at once".into())
    }

    /// Brings a notification to the client; `false` if it is the end of the subscription, none if the session is over.
    fn pass(&self, message: &Message) -> Option<bool> {
        let session = self.session.upgrade()?;
        if message.kind() != Kind::Notification {
            return Some(false);
        }
        // On `/mcp` the client hears of the merged lists.
        let crosses = session.endpoint.is_merged();
        if (crosses && message.method().ends_with("/list_changed")) || translate::acknowledged(message).is_some() {
            return Some(true);
        }
        let plain = translate::unsubscribed(message);
        let said = if crosses { self.public(&session, &plain) } else { Some(plain) };
        if let Some(said) = said {
            session.queue.push(said);
        }
        Some(true)
    }

    /// A notification in the names that a client of all upstreams knows.
    fn public(&self, session: &Arc<Session>, plain: &bytes::Bytes) -> Option<bytes::Bytes> {
        let message = Message::parse(plain.clone()).ok()?;
        namespace::mapped(&message, session, &self.catalog, &self.upstream)
    }

    fn all_may_have_changed(&self, open: &OpenSubscription) {
        for method in &open.lists {
            self.announce(answer::notification(method, None));
        }
        for address in &open.addresses {
            let params = format!("{{\"uri\":{}}}", json::quote(address));
            self.announce(answer::notification("notifications/resources/updated", Some(params.as_bytes())));
        }
    }

    fn announce(&self, notification: bytes::Bytes) {
        if let Ok(message) = Message::parse(notification) {
            self.pass(&message);
        }
    }

    fn grant(&self, wish: &WatchRequest, addresses: &[String], failure: Option<String>) {
        let addresses = addresses.iter().cloned().collect();
        self.watch.granted.send_replace(WatchGrant { turn: wish.turn, addresses, failure });
    }
}
