//! What all upstreams offer together, and where each offer comes from.
//!
//! For each upstream a [`refresher`] holds a [`CatalogSnapshot`] of its lists, fetched page by page in Weir's own name and fetched
//! again when the upstream says that they changed. The views of an era are merged once per change into a [`MergedLists`]
//! list, so that a client's list is a copy of bytes that are ready, and no client waits for a slow upstream.

mod announce;
mod entry;
mod header_params;
mod refresher;
mod merge;
mod names;
mod per_caller;
mod schema;
mod sign_in;
mod era_slots;
mod starting;
mod template;
mod traits;
mod snapshot;
mod unmatched;
mod view;

use std::{
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, Guard};
use bytes::Bytes;
use indexmap::IndexMap;
use tokio::{sync::watch, task::JoinSet};
use weir_mcp::{Era, ListKind, mirrored::Mirrored};

use crate::{
    access::Toolset, caller::Caller, config::UpstreamName, policy::ClientClass, sealed_state::SealedState,
    snapshot::Snapshot, task, upstream::Upstream,
};

pub use header_params::headers;
pub use merge::{AccountChoice, MergedLists, Offer, SeenLists};
pub use sign_in::SIGN_IN;
pub use snapshot::CatalogSnapshot;
pub use starting::STATUS;
pub use traits::Traits;
pub use view::{ClientInfo, Viewer, client_name};

use entry::CatalogEntry;
use era_slots::{EraSlot, FetchResult};
use header_params::HeaderParams;
use merge::{KnownUpstream, Paging, Reported};
use per_caller::{PerCaller, Personal};
use snapshot::ItemVerdict;
use view::{ViewKey, Views};

/// How long refreshers may take to close what they have open at their upstreams.
const STOP: Duration = Duration::from_secs(5);

/// The merged offers of all upstreams, per era.
pub struct Catalog {
    current: ArcSwap<CatalogUpstreams>,
    merged: [RwLock<Arc<MergedLists>>; 2],
    /// Seals the cursors of lists.
    seal: SealedState,
    changes: watch::Sender<ListVersions>,
    /// The same without what only Weir waits for, and once for a burst.
    announced: watch::Sender<ListVersions>,
    /// What the operator has been told of the merged lists. Held while they are merged.
    reported: Mutex<Reported>,
    stopping: watch::Sender<bool>,
    /// Turns true when somebody may see something else.
    superseded: ArcSwap<watch::Sender<bool>>,
    refreshers: tokio::sync::Mutex<JoinSet<()>>,
    heard: HeaderParams,
    /// What is offered to some callers only.
    personal: Personal,
    /// What callers see who do not see everything, or something besides.
    views: Views,
}

/// The upstreams of the snapshot in force, and what is known of each.
struct CatalogUpstreams {
    snapshot: Arc<Snapshot>,
    /// In the order of the configuration.
    entries: IndexMap<UpstreamName, Arc<CatalogEntry>>,
    /// Those that want a login of each caller.
    personal: Vec<Arc<Upstream>>,
    /// Those whose policies tell clients apart.
    apart: Vec<Arc<Upstream>>,
}

/// How often each kind of list has changed; a client is told when its kind moved on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListVersions {
    /// Lists of tools.
    pub tools: u64,
    /// Lists of prompts.
    pub prompts: u64,
    /// Lists of resources and templates.
    pub resources: u64,
    /// Anything at all, also that an upstream is known now.
    settled: u64,
}

impl ListVersions {
    /// The later of both, kind by kind.
    #[must_use]
    pub fn or_later(self, other: Self) -> Self {
        Self {
            tools: self.tools.max(other.tools),
            prompts: self.prompts.max(other.prompts),
            resources: self.resources.max(other.resources),
            settled: 0,
        }
    }
}

/// The configuration in force, for a moment. No count is raised, which all threads would write to with each call.
pub struct CurrentSnapshot(Guard<Arc<CatalogUpstreams>>);

impl Deref for CurrentSnapshot {
    type Target = Arc<Snapshot>;

    fn deref(&self) -> &Arc<Snapshot> {
        &self.0.snapshot
    }
}

impl Catalog {
    /// A catalog that knows nothing yet.
    #[must_use]
    pub fn new(snapshot: Arc<Snapshot>) -> Arc<Self> {
        let seal = SealedState::default();
        let current = CatalogUpstreams::new(snapshot, |_| None);
        let merged = [Era::Legacy, Era::Modern].map(|era| RwLock::new(Arc::new(current.merged(era, &seal))));
        Arc::new(Self {
            current: ArcSwap::from_pointee(current),
            merged,
            seal,
            changes: watch::Sender::default(),
            announced: watch::Sender::default(),
            reported: Mutex::default(),
            stopping: watch::Sender::default(),
            superseded: ArcSwap::default(),
            refreshers: tokio::sync::Mutex::default(),
            heard: HeaderParams::default(),
            personal: Personal::default(),
            views: Views::default(),
        })
    }

    /// Starts to keep every upstream's lists, in whichever era it speaks.
    pub async fn start(self: &Arc<Self>) {
        let mut refreshers = self.refreshers.lock().await;
        for entry in self.current.load().entries.values() {
            refreshers.spawn(self.refresher(entry, None));
        }
        refreshers.spawn(announce::announce(Arc::clone(self)));
    }

    /// Keeps the lists of an upstream, whatever befalls.
    fn refresher(self: &Arc<Self>, entry: &Arc<CatalogEntry>, wanted: Option<Era>) -> impl Future<Output = ()> + use<> {
        let (catalog, entry) = (Arc::clone(self), Arc::clone(entry));
        let keep = move || refresher::keep(Arc::clone(&catalog), Arc::clone(&entry), wanted);
        task::always("keeping the lists of an upstream", keep)
    }

    /// Ends all keeping, and with it what the refreshers hold open at their upstreams.
    pub async fn stop(&self) {
        self.stopping.send_replace(true);
        let mut refreshers = self.refreshers.lock().await;
        let ended = async { while refreshers.join_next().await.is_some() {} };
        // A refresher that is still reaching its upstream has nothing to close.
        drop(tokio::time::timeout(STOP, ended).await);
        refreshers.shutdown().await;
    }

    /// The configuration whose upstreams these are.
    #[must_use]
    pub fn snapshot(&self) -> CurrentSnapshot {
        CurrentSnapshot(self.current.load())
    }

    /// Puts another snapshot in force, and gives the upstreams that it has not carried over. What is known of an upstream
    /// stays on offer until the new one of its name has been asked.
    pub async fn swap(self: &Arc<Self>, snapshot: Arc<Snapshot>) -> Vec<Arc<Upstream>> {
        let mut refreshers = self.refreshers.lock().await;
        while refreshers.try_join_next().is_some() {}
        let before = self.current.load_full();
        let current = Arc::new(CatalogUpstreams::new(snapshot, |upstream| before.entries.get(upstream.key())));
        self.current.store(Arc::clone(&current));
        let carried = |entry: &Arc<CatalogEntry>| {
            let now = current.entries.get(entry.upstream.key());
            now.is_some_and(|now| Arc::ptr_eq(&now.upstream, &entry.upstream))
        };
        let gone: Vec<_> =
            before.entries.values().filter(|entry| !carried(entry)).map(|entry| Arc::clone(&entry.upstream)).collect();
        for upstream in &gone {
            upstream.retire();
            self.personal.outdate(Some(upstream.key()));
            self.heard.forget(upstream.key());
        }
        let known = |entry: &&Arc<CatalogEntry>| before.entries.values().any(|before| Arc::ptr_eq(before, entry));
        for entry in current.entries.values().filter(|entry| !known(entry)) {
            refreshers.spawn(self.refresher(entry, None));
        }
        drop(refreshers);
        self.remerge(self.merging());
        if !current.snapshot.has_rules_of(&before.snapshot) {
            // Whose lists are others now is not known.
            self.all_may_have_changed();
        }
        let added = current.entries.values().any(|entry| !before.entries.contains_key(entry.upstream.key()));
        if added || !gone.is_empty() || !current.snapshot.shows_the_same_as(&before.snapshot) {
            self.superseded.swap(Arc::default()).send_replace(true);
        }
        gone
    }

    /// Turns true when somebody may see something else. It is taken before anything is decided that holds for long.
    #[must_use]
    pub fn superseded(&self) -> watch::Receiver<bool> {
        self.superseded.load().subscribe()
    }

    fn all_may_have_changed(&self) {
        self.changes.send_modify(|changes| {
            changes.tools += 1;
            changes.prompts += 1;
            changes.resources += 1;
        });
    }

    /// The merged offers of an era, as a caller sees them at an endpoint.
    ///
    /// Right after the start, waits for upstreams that are still being reached, each for as long as its own list
    /// deadline allows; whoever is late is announced by `list_changed`.
    pub async fn merged(self: &Arc<Self>, viewer: Viewer<'_>, era: Era) -> Arc<MergedLists> {
        let mut changes = self.changes.subscribe();
        while let Some(wait) = self.unsettled(era).await {
            if tokio::time::timeout(wait, changes.changed()).await.is_err() {
                break;
            }
        }
        // What has settled just now is about to be merged.
        drop(self.merging());
        let current = self.current.load_full();
        if let Some((caller, own)) = viewer.caller.zip(self.own(&current, viewer.caller)) {
            Box::pin(own.refresh(caller, &current.personal)).await;
        }
        self.known(viewer, era)
    }

    /// The merged offers of an era as far as they are known to a caller.
    #[must_use]
    pub fn known(&self, viewer: Viewer<'_>, era: Era) -> Arc<MergedLists> {
        let current = self.current.load();
        let (grants, own) = (viewer.grants(&current.snapshot), self.own(&current, viewer.caller));
        let caller = own.as_ref().and(viewer.caller).map(|caller| caller.id());
        let classes = current.classes(viewer.client);
        let Some(key) = ViewKey::of(&viewer, &grants, caller, classes.clone()) else { return self.shared(era) };
        let personal = own.map_or_else(Vec::new, |own| {
            // One that is not there still makes the list a private one.
            let of = |upstream: &Arc<Upstream>| Some(own.view(upstream.key()).unwrap_or_default());
            current.personal.iter().map(of).collect()
        });
        self.views.merged(key, place(era), (self.shared(era), personal.clone()), || {
            let mut personal = personal.into_iter();
            let known = |entry: &Arc<CatalogEntry>| {
                let known = entry.known(era);
                let own = entry.upstream.is_personal.then(|| personal.next()).flatten();
                let at = current.apart.iter().position(|apart| apart.key() == entry.upstream.key());
                let class = at.and_then(|at| classes.get(at)?.as_ref());
                KnownUpstream { view: own.unwrap_or(known.view).map(|view| view.seen_by(class)), ..known }
            };
            let known = view::narrowed(current.entries.values().map(known).collect(), viewer.toolset, &grants);
            MergedLists::new(era, &known, viewer.toolset, paging(&current.snapshot, &self.seal))
        })
    }

    /// Whether policies let a caller use an item with this client, as far as its upstream has listed it. A tool or prompt
    /// that they have not looked at may not be used; of resources, a list need not have all.
    #[must_use]
    pub fn shows(
        &self,
        caller: Option<&Arc<Caller>>,
        client: Option<ClientInfo<'_>>,
        upstream: &Upstream,
        (kind, native): (ListKind, &str),
    ) -> bool {
        let Some(policies) = upstream.policies().filter(|policies| policies.decide_item(kind)) else { return true };
        let client = client.filter(|_| !policies.classes().is_empty());
        let class = client.and_then(|client| policies.class_of(&client.name()));
        let views = match upstream.is_personal {
            true => [self.personal.of(caller).and_then(|own| own.view(upstream.key())), None],
            false => [Era::Legacy, Era::Modern].map(|era| self.view(upstream, era)),
        };
        let views = views.into_iter().flatten().map(|view| view.seen_by(class));
        let verdicts: Vec<_> = views.map(|view| view.verdict(kind, native)).collect();
        let has = |verdict| verdicts.contains(&verdict);
        let is_open = matches!(kind, ListKind::Resource | ListKind::Template);
        !has(ItemVerdict::Hidden) && (has(ItemVerdict::Shown) || is_open && has(ItemVerdict::Unlisted))
    }

    /// The lists of an era as a caller sees them now; none if that is not known without asking upstreams.
    #[must_use]
    pub fn seen(&self, viewer: Viewer<'_>, era: Era) -> Option<SeenLists> {
        let is_shared = self.own(&self.current.load(), viewer.caller).is_none();
        is_shared.then(|| self.known(viewer, era).seen())
    }

    /// What a caller is offered besides; none where theirs are the lists of everybody.
    fn own(&self, current: &CatalogUpstreams, caller: Option<&Arc<Caller>>) -> Option<Arc<PerCaller>> {
        if current.personal.is_empty() { None } else { self.personal.of(caller) }
    }

    fn shared(&self, era: Era) -> Arc<MergedLists> {
        Arc::clone(&self.merged[place(era)].read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether an upstream's tool says of itself that it changes nothing, as far as is known in this era.
    #[must_use]
    pub fn only_reads(&self, caller: Option<&Arc<Caller>>, upstream: &Upstream, era: Era, tool: &str) -> bool {
        self.view_of(caller, upstream, era).is_some_and(|view| view.only_reads(tool))
    }

    /// The input schema of an upstream's tool as its server listed it, raw; none if no policy wants those.
    #[must_use]
    pub fn input_schema(
        &self,
        caller: Option<&Arc<Caller>>,
        upstream: &Upstream,
        era: Era,
        tool: &str,
    ) -> Option<Bytes> {
        // What one era does not list, the other may.
        let eras = [era, if era == Era::Modern { Era::Legacy } else { Era::Modern }];
        let mut views = eras.into_iter().filter_map(|era| self.view_of(caller, upstream, era));
        views.find_map(|view| view.input_schemas.get(tool).cloned())
    }

    /// What is known of the lists of an upstream that a caller is shown.
    fn view_of(&self, caller: Option<&Arc<Caller>>, upstream: &Upstream, era: Era) -> Option<Arc<CatalogSnapshot>> {
        match upstream.is_personal {
            true => self.personal.of(caller).and_then(|own| own.view(upstream.key())),
            false => self.view(upstream, era),
        }
    }

    /// The arguments of an upstream's tool that travel in headers too, as far as is known in this era.
    #[must_use]
    pub fn mirrored(&self, caller: Option<&Arc<Caller>>, upstream: &Upstream, era: Era, tool: &str) -> Arc<[Mirrored]> {
        match self.view_of(caller, upstream, era) {
            Some(view) => view.mirrored(tool).cloned().unwrap_or_default(),
            None if era == Era::Modern => self.heard.get(upstream.key(), tool),
            None => Arc::default(),
        }
    }

    /// Takes note of the tools in a list that a modern upstream gave to a client, raw; where a refresher keeps its lists
    /// there is no need to. `weir connect` has no refreshers.
    pub fn hear_tools(&self, upstream: &Upstream, tools: &[u8]) {
        // What one caller is shown is no business of another.
        if !upstream.is_personal && self.view(upstream, Era::Modern).is_none() {
            self.heard.list(upstream.key(), tools);
        }
    }

    /// The same for a modern upstream, asked of it anew; none if it cannot be asked.
    pub async fn look_up(
        &self,
        caller: Option<&Arc<Caller>>,
        upstream: &Upstream,
        tool: &str,
    ) -> Option<Arc<[Mirrored]>> {
        let lease = upstream.lease(caller, Some(Era::Modern)).await.ok()?;
        let mirrored = CatalogSnapshot::look_up(caller, upstream, &lease, tool).await?;
        if !upstream.is_personal {
            self.heard.tool(upstream.key(), tool, Arc::clone(&mirrored));
        }
        Some(mirrored)
    }

    /// What is known of what an upstream offers in an era.
    fn view(&self, upstream: &Upstream, era: Era) -> Option<Arc<CatalogSnapshot>> {
        self.current.load().entries.get(upstream.key())?.view(era)
    }

    /// What each upstream is known to offer, whoever may see it, as the upstream calls it.
    #[must_use]
    pub fn items(&self) -> Vec<(UpstreamName, Vec<(ListKind, String)>)> {
        self.current.load().items()
    }

    /// Seals what clients carry for lists.
    #[must_use]
    pub fn seal(&self) -> &SealedState {
        &self.seal
    }

    /// Has other gateways that share this secret take cursors of this one.
    pub fn share_cursors(&self, secret: &[u8; 32]) {
        self.seal.share(secret, "cursor");
        let reported = self.merging();
        self.remerge(reported);
    }

    /// Follows the changes of the lists, as they come.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<ListVersions> {
        self.changes.subscribe()
    }

    /// Follows the changes of the lists as clients are told of them.
    #[must_use]
    pub fn announced(&self) -> watch::Receiver<ListVersions> {
        self.announced.subscribe()
    }

    /// The changes that whoever fetches the lists from now on has seen, announced or not.
    #[must_use]
    pub fn latest(&self) -> ListVersions {
        ListVersions { settled: 0, ..*self.changes.borrow() }
    }

    /// Has clients told of the changes up to now.
    fn tell(&self, now: ListVersions) {
        let now = ListVersions { settled: 0, ..now };
        self.announced.send_if_modified(|known| std::mem::replace(known, now) != now);
    }

    /// Says that an upstream's lists have changed.
    pub fn poke(&self, upstream: &Upstream) {
        self.personal.outdate(Some(upstream.key()));
        if let Some(entry) = self.current.load().entries.get(upstream.key()) {
            entry.poke();
        }
    }

    /// Says that some caller's login has come, changed or gone, and with it what they are offered.
    pub fn logins_changed(&self) {
        if self.current.load().personal.is_empty() {
            return;
        }
        self.personal.outdate(None);
        self.all_may_have_changed();
    }

    /// Whether every upstream has been reached or given up on once.
    #[must_use]
    pub fn settled(&self) -> bool {
        !self.current.load().entries.values().any(|entry| entry.lock().is_starting())
    }

    /// Whether what Weir says of itself is true of nearly all upstreams: each has been reached or given up on once. One that
    /// is still being reached is waited for as long as its processes may take to start, and no longer than an `initialize`
    /// waits for it where another one is there already.
    #[must_use]
    pub fn ready(&self) -> bool {
        let current = self.current.load();
        let any = current.entries.values().any(|entry| entry.knows(None));
        current.entries.values().all(|entry| {
            let patience = if any { entry.upstream.timeouts.list } else { entry.upstream.timeouts.start };
            let slots = entry.lock();
            !slots.is_starting() || slots.since.elapsed() >= patience
        })
    }

    /// How long to wait for upstreams that are not known in `era` yet; none if there is no need to. Starts to keep the
    /// lists of those that nobody asked for in this era before.
    async fn unsettled(self: &Arc<Self>, era: Era) -> Option<Duration> {
        let mut unasked = Vec::new();
        let mut wait = None;
        let current = self.current.load_full();
        for entry in current.entries.values() {
            let mut slots = entry.lock();
            if matches!(slots.get(era), EraSlot::Unasked) {
                *slots.slot(era) = EraSlot::Pending;
                slots.since = Instant::now();
                slots.kept = Some(era);
                unasked.push(entry);
            }
            if matches!(slots.get(era), EraSlot::Pending) {
                let left = entry.upstream.timeouts.list.saturating_sub(slots.since.elapsed());
                wait = wait.max(Some(left).filter(|left| !left.is_zero()));
            }
        }
        if !unasked.is_empty() {
            let mut refreshers = self.refreshers.lock().await;
            for entry in unasked {
                refreshers.spawn(self.refresher(entry, Some(era)));
            }
        }
        wait
    }

    /// Takes in what a refresher found out, and merges anew.
    fn publish(&self, entry: &CatalogEntry, found: FetchResult) {
        let reported = self.merging();
        let variants = || [Era::Legacy, Era::Modern].map(|era| entry.view(era).map(|view| view.variants.clone()));
        let before = variants();
        entry.lock().take(found);
        self.remerge(reported);
        // The lists that everybody shares may be the same.
        if variants() != before {
            self.all_may_have_changed();
        }
    }

    /// Held while lists are merged, or an older look at the entries could overwrite a newer one.
    fn merging(&self) -> MutexGuard<'_, Reported> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Merges anew what is known of all upstreams.
    fn remerge(&self, mut reported: MutexGuard<'_, Reported>) {
        let current = self.current.load();
        for era in [Era::Legacy, Era::Modern] {
            let merged = current.merged(era, &self.seal);
            reported.report(&merged);
            self.put(era, merged);
        }
        reported.report_unmatched(current.unmatched());
        drop(reported);
        self.changes.send_modify(|changes| changes.settled += 1);
    }

    fn put(&self, era: Era, new: MergedLists) {
        let new = Arc::new(new);
        let old = {
            let mut merged = self.merged[place(era)].write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *merged, Arc::clone(&new))
        };
        self.changes.send_if_modified(|changes| {
            let before = *changes;
            changes.tools += u64::from(!new.same(&old, ListKind::Tool));
            changes.prompts += u64::from(!new.same(&old, ListKind::Prompt));
            changes.resources += u64::from(!new.same(&old, ListKind::Resource) || !new.same(&old, ListKind::Template));
            *changes != before
        });
    }
}

impl CatalogUpstreams {
    /// The upstreams of a snapshot. Of one that was there `before`, what is known is kept.
    fn new<'a>(snapshot: Arc<Snapshot>, before: impl Fn(&Upstream) -> Option<&'a Arc<CatalogEntry>>) -> Self {
        let entry = |upstream: &Arc<Upstream>| {
            let entry = match before(upstream) {
                Some(entry) if Arc::ptr_eq(&entry.upstream, upstream) => Arc::clone(entry),
                Some(entry) => Arc::new(entry.succeeded_by(upstream)),
                None => Arc::new(CatalogEntry::new(upstream)),
            };
            (upstream.key().clone(), entry)
        };
        let entries = snapshot.upstreams().map(entry).collect();
        let personal = snapshot.upstreams().filter(|upstream| upstream.is_personal).cloned().collect();
        let tells = |upstream: &Upstream| upstream.policies().is_some_and(|policies| !policies.classes().is_empty());
        let apart = snapshot.upstreams().filter(|upstream| tells(upstream)).cloned().collect();
        Self { snapshot, entries, personal, apart }
    }

    /// The class of a client at each upstream whose policies tell clients apart; nothing if none of them knows it.
    fn classes(&self, client: Option<ClientInfo<'_>>) -> Vec<Option<ClientClass>> {
        let Some(client) = client.filter(|_| !self.apart.is_empty()) else { return Vec::new() };
        let name = client.name();
        let class = |upstream: &Arc<Upstream>| upstream.policies()?.class_of(&name).cloned();
        let classes: Vec<_> = self.apart.iter().map(class).collect();
        if classes.iter().all(Option::is_none) { Vec::new() } else { classes }
    }

    /// What everybody sees at `/mcp`, as far as it is known.
    fn merged(&self, era: Era, seal: &SealedState) -> MergedLists {
        let known: Vec<KnownUpstream> = self.entries.values().map(|entry| entry.known(era)).collect();
        MergedLists::new(era, &known, Toolset::all(), paging(&self.snapshot, seal))
    }

    /// What each upstream is known to offer, whoever may see it, as the upstream calls it.
    fn items(&self) -> Vec<(UpstreamName, Vec<(ListKind, String)>)> {
        let of = |entry: &Arc<CatalogEntry>| {
            let view = entry.view(Era::Modern).or_else(|| entry.view(Era::Legacy));
            let items = view.iter().flat_map(|view| {
                let named = |kind: ListKind| view.entries(kind).iter().map(move |entry| (kind, entry.key.clone()));
                ListKind::ALL.into_iter().flat_map(named)
            });
            (entry.upstream.key().clone(), items.collect())
        };
        self.entries.values().map(of).collect()
    }
}

fn paging<'a>(snapshot: &Snapshot, seal: &'a SealedState) -> Paging<'a> {
    Paging { seal, size: snapshot.limits().page_size, private: snapshot.access().is_enforced() }
}

fn place(era: Era) -> usize {
    usize::from(era == Era::Modern)
}
