//! What is known of each upstream, by era.

use std::{sync::Arc, time::Instant};

use weir_mcp::Era;

use super::CatalogSnapshot;

/// What is known of one upstream in both eras.
pub(super) struct EraSlots {
    pub(super) legacy: EraSlot,
    pub(super) modern: EraSlot,
    pub(super) since: Instant,
    /// What stands in for it while it waits for a login that those who see this list can give.
    pub(super) waiting: Option<Arc<CatalogSnapshot>>,
    /// An era that has a refresher of its own, beside the one that takes whichever era is spoken.
    pub(super) kept: Option<Era>,
}

#[derive(Clone, Default)]
pub(super) enum EraSlot {
    /// Nobody asked for this era yet.
    #[default]
    Unasked,
    /// On the way.
    Pending,
    /// Known.
    Known(Arc<CatalogSnapshot>),
    /// The upstream does not speak this era, or cannot be reached.
    Nothing,
}

/// What a refresher found out.
pub(super) enum FetchResult {
    /// The lists of an era, and whether the other era was tried before and is not spoken.
    View { era: Era, view: Arc<CatalogSnapshot>, alone: bool },
    /// Nothing in this era, or in any; perhaps because it waits for a login, and this is shown until then.
    Nothing { era: Option<Era>, waiting: Option<Arc<CatalogSnapshot>> },
}

impl EraSlots {
    /// Those of an upstream that is about to be reached.
    pub(super) fn pending() -> Self {
        Self { legacy: EraSlot::Pending, modern: EraSlot::Pending, since: Instant::now(), waiting: None, kept: None }
    }

    /// The same for an upstream that is about to be reached under another configuration.
    pub(super) fn succeeded(&self) -> Self {
        let known = |era| match self.get(era) {
            EraSlot::Known(view) => EraSlot::Known(Arc::clone(view)),
            EraSlot::Unasked | EraSlot::Pending | EraSlot::Nothing => EraSlot::Pending,
        };
        Self { legacy: known(Era::Legacy), modern: known(Era::Modern), ..Self::pending() }
    }

    pub(super) fn take(&mut self, found: FetchResult) {
        match found {
            FetchResult::View { era, view, alone } => {
                self.waiting = None;
                *self.slot(era) = EraSlot::Known(view);
                // What was known of the other era before, nobody keeps any more.
                let (other, now) = match era {
                    Era::Legacy => (Era::Modern, EraSlot::Nothing),
                    Era::Modern => (Era::Legacy, EraSlot::Unasked),
                };
                if alone && self.kept != Some(other) {
                    *self.slot(other) = now;
                }
            }
            FetchResult::Nothing { era, waiting } => {
                // Whoever keeps one era alone may not know why the other is not there.
                if era.is_none() || waiting.is_some() {
                    self.waiting = waiting;
                }
                for lost in [Era::Legacy, Era::Modern] {
                    if era.map_or(self.kept != Some(lost), |era| era == lost) {
                        *self.slot(lost) = EraSlot::Nothing;
                    }
                }
            }
        }
    }

    pub(super) fn get(&self, era: Era) -> &EraSlot {
        match era {
            Era::Legacy => &self.legacy,
            Era::Modern => &self.modern,
        }
    }

    pub(super) fn slot(&mut self, era: Era) -> &mut EraSlot {
        match era {
            Era::Legacy => &mut self.legacy,
            Era::Modern => &mut self.modern,
        }
    }

    /// Whether the upstream has not been reached or given up on in any era yet.
    pub(super) fn is_starting(&self) -> bool {
        !self.is_settled(Era::Legacy) && !self.is_settled(Era::Modern)
    }

    fn is_settled(&self, era: Era) -> bool {
        matches!(self.get(era), EraSlot::Known(_) | EraSlot::Nothing)
    }

    /// What is shown to clients of an era. They are shown an upstream that speaks only the other era too: calls to it
    /// are translated.
    pub(super) fn view(&self, era: Era) -> Option<Arc<CatalogSnapshot>> {
        let other = match era {
            Era::Legacy => Era::Modern,
            Era::Modern => Era::Legacy,
        };
        match (self.get(era), self.get(other)) {
            (EraSlot::Known(view), _) | (EraSlot::Nothing, EraSlot::Known(view)) => Some(Arc::clone(view)),
            (EraSlot::Nothing, _) => self.waiting.clone(),
            (EraSlot::Unasked | EraSlot::Pending, _) => None,
        }
    }
}
