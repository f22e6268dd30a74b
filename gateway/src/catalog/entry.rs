//! What the catalog holds of one upstream.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;
use weir_mcp::Era;

use crate::upstream::Upstream;

use super::{
    CatalogSnapshot,
    era_slots::{EraSlot, EraSlots},
    merge::KnownUpstream,
};

/// One upstream, and what is known of its lists.
pub(super) struct CatalogEntry {
    pub(super) upstream: Arc<Upstream>,
    slots: Mutex<EraSlots>,
    /// What wakes the refresher of whichever era it speaks, and the one of the other era.
    pokes: [Notify; 2],
    /// Whether what is known is of another server, which had the name before.
    is_of_other: AtomicBool,
}

impl CatalogEntry {
    pub(super) fn new(upstream: &Arc<Upstream>) -> Self {
        let slots = Mutex::new(EraSlots::pending());
        Self { upstream: Arc::clone(upstream), slots, pokes: Default::default(), is_of_other: AtomicBool::default() }
    }

    /// What stands for the same upstream under another configuration: what was known is on offer until it is asked.
    pub(super) fn succeeded_by(&self, upstream: &Arc<Upstream>) -> Self {
        let slots = Mutex::new(self.lock().succeeded());
        let is_of_other = self.upstream.reach_digest() != upstream.reach_digest();
        Self { upstream: Arc::clone(upstream), slots, pokes: Default::default(), is_of_other: is_of_other.into() }
    }

    /// Notes that it has been asked itself.
    pub(super) fn note_asked(&self) {
        self.is_of_other.store(false, Ordering::Relaxed);
    }

    /// Whether what is known of it in an era, or in any, is good while it is away.
    pub(super) fn outlasts(&self, era: Option<Era>) -> bool {
        self.knows(era) && !self.is_of_other.load(Ordering::Relaxed)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, EraSlots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What clients of an era are shown of it.
    pub(super) fn known(&self, era: Era) -> KnownUpstream {
        let slots = self.lock();
        KnownUpstream {
            name: self.upstream.key().clone(),
            account: self.upstream.account().cloned(),
            view: slots.view(era),
            starting: slots.is_starting(),
        }
    }

    /// What it offers in an era, as far as that is known.
    pub(super) fn view(&self, era: Era) -> Option<Arc<CatalogSnapshot>> {
        match self.lock().get(era) {
            EraSlot::Known(view) => Some(Arc::clone(view)),
            EraSlot::Unasked | EraSlot::Pending | EraSlot::Nothing => None,
        }
    }

    /// Whether anything is known of what it offers in an era, or in any.
    pub(super) fn knows(&self, era: Option<Era>) -> bool {
        let mut eras = [Era::Legacy, Era::Modern].into_iter().filter(|one| era.is_none_or(|era| era == *one));
        eras.any(|era| self.view(era).is_some())
    }

    /// Wakes its refreshers.
    pub(super) fn poke(&self) {
        self.pokes.iter().for_each(Notify::notify_one);
    }

    /// What wakes the refresher of `wanted`: each has its own, so that none takes the other's.
    pub(super) fn poked(&self, wanted: Option<Era>) -> &Notify {
        &self.pokes[usize::from(wanted.is_some())]
    }
}
