//! What all upstreams offer together, and where each offer comes from.
//!
//! For each upstream a [`refresher`] holds a [`View`] of its lists, fetched page by page in Weir's own name and fetched
//! again when the upstream says that they changed. The views of an era are merged once per change into a [`Merged`]
//! list, so that a client's list is a copy of bytes that are ready, and no client waits for a slow upstream.

mod announce;
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

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant},
};

use tokio::{sync::Notify, sync::watch, task::JoinSet};
use weir_mcp::{Era, mirrored::Mirrored};

use crate::{caller::Caller, sealed_state::SealedState, task, upstream::Upstream};

pub use header_params::headers;
pub use merge::{ListKind, MergedLists, Offer};
pub use sign_in::SIGN_IN;
pub use snapshot::CatalogSnapshot;
pub use starting::STATUS;
pub use traits::Traits;

use era_slots::{EraSlot, EraSlots, FetchResult};
use header_params::HeaderParams;
use merge::{KnownUpstreams, Paging, Reported};
use per_caller::{PerCaller, Personal};

/// How long refreshers may take to say farewell to their upstreams.
const STOP: Duration = Duration::from_secs(5);

/// The merged offers of all upstreams, per era.
pub struct Catalog {
    upstreams: Arc<[Arc<Upstream>]>,
    slots: Mutex<Vec<EraSlots>>,
    merged: [RwLock<Arc<MergedLists>>; 2],
    /// Seals the cursors of lists.
    seal: SealedState,
    /// How many entries a page has.
    page: usize,
    changes: watch::Sender<ListVersions>,
    /// The same without what only Weir waits for, and once for a burst.
    announced: watch::Sender<ListVersions>,
    /// What the operator has been told of the merged lists.
    reported: Mutex<Reported>,
    /// For each upstream, what wakes the refresher of whichever era it speaks and the one of the other era.
    pokes: Vec<[Notify; 2]>,
    stopping: watch::Sender<bool>,
    refreshers: tokio::sync::Mutex<JoinSet<()>>,
    heard: HeaderParams,
    /// What is offered to some callers only.
    personal: Personal,
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

impl Catalog {
    /// A catalog that knows nothing yet; its lists come in pages of so many entries.
    #[must_use]
    pub fn new(upstreams: Arc<[Arc<Upstream>]>, page: usize) -> Arc<Self> {
        let slots = upstreams.iter().map(|_| EraSlots::pending()).collect();
        let personal = Personal::new(&upstreams);
        let pokes = upstreams.iter().map(|_| Default::default()).collect();
        let seal = SealedState::default();
        let merged = {
            let names: Vec<&str> = upstreams.iter().map(|upstream| upstream.name()).collect();
            let (views, starting) = (vec![None; names.len()], vec![true; names.len()]);
            let known = KnownUpstreams { names: &names, views: &views, starting: &starting };
            let merged = |era| RwLock::new(Arc::new(MergedLists::new(era, known, Paging { seal: &seal, size: page })));
            [merged(Era::Legacy), merged(Era::Modern)]
        };
        Arc::new(Self {
            upstreams,
            slots: Mutex::new(slots),
            merged,
            seal,
            page,
            changes: watch::Sender::default(),
            announced: watch::Sender::default(),
            reported: Mutex::default(),
            pokes,
            stopping: watch::Sender::default(),
            refreshers: tokio::sync::Mutex::default(),
            heard: HeaderParams::default(),
            personal,
        })
    }

    /// Starts to keep every upstream's lists, in whichever era it speaks.
    pub async fn start(self: &Arc<Self>) {
        let mut refreshers = self.refreshers.lock().await;
        for index in 0..self.upstreams.len() {
            refreshers.spawn(self.refresher(index, None));
        }
        refreshers.spawn(announce::announce(Arc::clone(self)));
    }

    /// Keeps the lists of an upstream, whatever befalls.
    fn refresher(self: &Arc<Self>, index: usize, wanted: Option<Era>) -> impl Future<Output = ()> + use<> {
        let catalog = Arc::clone(self);
        task::always("keeping the lists of an upstream", move || refresher::keep(Arc::clone(&catalog), index, wanted))
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

    /// The upstreams, in the order of the configuration.
    #[must_use]
    pub fn upstreams(&self) -> &[Arc<Upstream>] {
        &self.upstreams
    }

    /// The place of an upstream.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.upstreams.iter().position(|upstream| upstream.name() == name)
    }

    /// The merged offers of an era, as a caller sees them.
    ///
    /// Right after the start, waits for upstreams that are still being reached, each for as long as its own list
    /// deadline allows; whoever is late is announced by `list_changed`.
    pub async fn merged(self: &Arc<Self>, caller: Option<&Arc<Caller>>, era: Era) -> Arc<MergedLists> {
        let mut changes = self.changes.subscribe();
        while let Some(wait) = self.unsettled(era).await {
            if tokio::time::timeout(wait, changes.changed()).await.is_err() {
                break;
            }
        }
        if let Some((caller, own)) = caller.zip(self.personal.of(caller)) {
            Box::pin(own.refresh(caller, &self.upstreams, &self.personal.places)).await;
            return self.composed(&own, era);
        }
        self.shared(era)
    }

    /// The merged offers of an era as far as they are known to a caller.
    #[must_use]
    pub fn known(&self, caller: Option<&Arc<Caller>>, era: Era) -> Arc<MergedLists> {
        match self.personal.of(caller) {
            None => self.shared(era),
            Some(own) => self.composed(&own, era),
        }
    }

    /// What everybody is offered, and what this caller is offered besides.
    fn composed(&self, own: &PerCaller, era: Era) -> Arc<MergedLists> {
        let shared = self.shared(era);
        let views = self.lock().iter().map(|slots| slots.view(era)).collect::<Vec<_>>().into_iter().enumerate();
        let view = |(place, view): (usize, Option<Arc<CatalogSnapshot>>)| match self.personal.places.contains(&place) {
            // One that is not there still makes the list a private one.
            true => Some(own.view(place).unwrap_or_default()),
            false => view,
        };
        own.merged(place(era), shared, views.map(view).collect(), |views| self.merge(era, views, &self.starting()))
    }

    fn shared(&self, era: Era) -> Arc<MergedLists> {
        Arc::clone(&self.merged[place(era)].read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The arguments of an upstream's tool that travel in headers too, as far as is known in this era.
    #[must_use]
    pub fn mirrored(&self, caller: Option<&Arc<Caller>>, upstream: usize, era: Era, tool: &str) -> Arc<[Mirrored]> {
        if self.personal.places.contains(&upstream) {
            let view = self.personal.of(caller).and_then(|own| own.view(upstream));
            return view.and_then(|view| view.mirrored(tool).cloned()).unwrap_or_default();
        }
        if let Some(EraSlot::Known(view)) = self.lock().get(upstream).map(|slots| slots.get(era)) {
            return view.mirrored(tool).cloned().unwrap_or_default();
        }
        if era == Era::Modern { self.heard.get(upstream, tool) } else { Arc::default() }
    }

    /// Takes note of the tools in a list that a modern upstream gave to a client, raw; where a refresher keeps its lists
    /// there is no need to. `weir connect` has no refreshers.
    pub fn hear_tools(&self, upstream: usize, tools: &[u8]) {
        let kept = matches!(self.lock().get(upstream).map(|slots| slots.get(Era::Modern)), Some(EraSlot::Known(_)));
        // What one caller is shown is no business of another.
        if !kept && !self.personal.places.contains(&upstream) {
            self.heard.list(upstream, tools);
        }
    }

    /// The same for a modern upstream, asked of it anew; none if it cannot be asked.
    pub async fn look_up(&self, caller: Option<&Arc<Caller>>, upstream: usize, tool: &str) -> Option<Arc<[Mirrored]>> {
        let asked = self.upstreams.get(upstream)?;
        let opened = asked.open(caller, Some(Era::Modern)).await.ok()?;
        let mirrored = CatalogSnapshot::look_up(caller, asked, &opened, tool).await?;
        if !self.personal.places.contains(&upstream) {
            self.heard.tool(upstream, tool, Arc::clone(&mirrored));
        }
        Some(mirrored)
    }

    /// Seals what clients carry for lists.
    #[must_use]
    pub fn seal(&self) -> &SealedState {
        &self.seal
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
    pub fn poke(&self, upstream: usize) {
        self.personal.outdate(Some(upstream));
        for poke in self.pokes.get(upstream).into_iter().flatten() {
            poke.notify_one();
        }
    }

    /// Says that some caller's login has come, changed or gone, and with it what they are offered.
    pub fn logins_changed(&self) {
        if self.personal.places.is_empty() {
            return;
        }
        self.personal.outdate(None);
        self.changes.send_modify(|changes| {
            changes.tools += 1;
            changes.prompts += 1;
            changes.resources += 1;
        });
    }

    /// Whether every upstream has been reached or given up on once.
    #[must_use]
    pub fn settled(&self) -> bool {
        !self.lock().iter().any(EraSlots::is_starting)
    }

    /// For each upstream, whether it has not been reached or given up on yet.
    fn starting(&self) -> Vec<bool> {
        self.lock().iter().map(EraSlots::is_starting).collect()
    }

    /// Whether what Weir says of itself is true of nearly all upstreams: each has been reached or given up on once. One that
    /// is still being reached is waited for as long as its processes may take to start, and no longer than an `initialize`
    /// waits for it where another one is there already.
    #[must_use]
    pub fn ready(&self) -> bool {
        let slots = self.lock();
        let any = slots
            .iter()
            .any(|slots| matches!((&slots.legacy, &slots.modern), (EraSlot::Known(_), _) | (_, EraSlot::Known(_))));
        slots.iter().zip(self.upstreams.iter()).all(|(slots, upstream)| {
            let patience = if any { upstream.list_timeout() } else { upstream.start_timeout() };
            !slots.is_starting() || slots.since.elapsed() >= patience
        })
    }

    /// How long to wait for upstreams that are not known in `era` yet; none if there is no need to. Starts to keep the
    /// lists of those that nobody asked for in this era before.
    async fn unsettled(self: &Arc<Self>, era: Era) -> Option<Duration> {
        let mut unasked = Vec::new();
        let mut wait = None;
        for (index, (slots, upstream)) in self.lock().iter_mut().zip(self.upstreams.iter()).enumerate() {
            if matches!(slots.get(era), EraSlot::Unasked) {
                *slots.slot(era) = EraSlot::Pending;
                slots.since = Instant::now();
                slots.kept = Some(era);
                unasked.push(index);
            }
            if matches!(slots.get(era), EraSlot::Pending) {
                let left = upstream.list_timeout().saturating_sub(slots.since.elapsed());
                wait = wait.max(Some(left).filter(|left| !left.is_zero()));
            }
        }
        if !unasked.is_empty() {
            let mut refreshers = self.refreshers.lock().await;
            for index in unasked {
                refreshers.spawn(self.refresher(index, Some(era)));
            }
        }
        wait
    }

    /// Whether anything is known of what an upstream offers in an era, or in any.
    fn knows(&self, index: usize, era: Option<Era>) -> bool {
        let known = |slots: &EraSlots, era| matches!(slots.get(era), EraSlot::Known(_));
        let slots = self.lock();
        let mut eras = [Era::Legacy, Era::Modern].into_iter().filter(|one| era.is_none_or(|era| era == *one));
        slots.get(index).is_some_and(|slots| eras.any(|era| known(slots, era)))
    }

    /// What is known of what an upstream offers in an era.
    fn view(&self, index: usize, era: Era) -> Option<Arc<CatalogSnapshot>> {
        match self.lock().get(index)?.get(era) {
            EraSlot::Known(view) => Some(Arc::clone(view)),
            EraSlot::Unasked | EraSlot::Pending | EraSlot::Nothing => None,
        }
    }

    /// Takes in what a refresher found out, and merges anew.
    fn publish(&self, index: usize, found: FetchResult) {
        let mut slots = self.lock();
        if let Some(slots) = slots.get_mut(index) {
            slots.take(found);
        }
        // Merged under the lock, or an older look at the slots could overwrite a newer one.
        let starting: Vec<bool> = slots.iter().map(EraSlots::is_starting).collect();
        for era in [Era::Legacy, Era::Modern] {
            let views: Vec<_> = slots.iter().map(|slots| slots.view(era)).collect();
            self.put(era, self.merge(era, &views, &starting));
        }
        drop(slots);
        self.changes.send_modify(|changes| changes.settled += 1);
    }

    fn merge(&self, era: Era, views: &[Option<Arc<CatalogSnapshot>>], starting: &[bool]) -> MergedLists {
        let names: Vec<&str> = self.upstreams.iter().map(|upstream| upstream.name()).collect();
        MergedLists::new(
            era,
            KnownUpstreams { names: &names, views, starting },
            Paging { seal: &self.seal, size: self.page },
        )
    }

    fn put(&self, era: Era, new: MergedLists) {
        let names: Vec<&str> = self.upstreams.iter().map(|upstream| upstream.name()).collect();
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).report(&new, &names);
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

    fn lock(&self) -> MutexGuard<'_, Vec<EraSlots>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const fn place(era: Era) -> usize {
    match era {
        Era::Legacy => 0,
        Era::Modern => 1,
    }
}
