//! What opened an upstream the last time, per era, so that the next client asks no policy.

use std::time::{Duration, Instant};

use weir_flow::facts::{Attempt, Candidate, Transport};
use weir_mcp::Era;

use super::connect::NegotiationEnd;

/// How long "does not speak this era" is believed. A server that learns an era is noticed within this time.
const BELIEVED: Duration = Duration::from_secs(10 * 60);

/// What is known of both eras.
#[derive(Debug, Default)]
pub(super) struct KnownEras {
    /// Of each era.
    verdicts: [EraVerdict; 2],
    advised: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum EraVerdict {
    #[default]
    Unknown,
    Works(Transport),
    Not(Instant),
}

impl KnownEras {
    /// What to try first.
    pub(super) fn first(&self, wanted: Option<Era>) -> Option<Candidate> {
        let of = |era| self.works(era).map(|transport| Candidate { transport, era });
        match wanted {
            Some(era) => of(era),
            None => of(Era::Modern).or_else(|| of(Era::Legacy)),
        }
    }

    /// The transport that opened `era`.
    pub(super) fn works(&self, era: Era) -> Option<Transport> {
        match self.verdicts[era as usize] {
            EraVerdict::Works(transport) => Some(transport),
            EraVerdict::Unknown | EraVerdict::Not(_) => None,
        }
    }

    /// The era that the upstream speaks, when it is known not to speak `era`.
    pub(super) fn only_other(&self, era: Era) -> Option<Era> {
        let other = era.other();
        (self.lacks(era) && self.works(other).is_some()).then_some(other)
    }

    /// The other era, when the upstream is known not to speak the one that is `wanted` and may speak that.
    pub(super) fn may_be_other(&self, wanted: Era) -> Option<Era> {
        let other = wanted.other();
        (self.lacks(wanted) && !self.lacks(other)).then_some(other)
    }

    /// Forgets that `era` works: it did not in a call.
    pub(super) fn doubt(&mut self, era: Era) {
        if self.works(era).is_some() {
            self.change(era, EraVerdict::Unknown);
        }
    }

    /// Whether HTTP+SSE opened it after Streamable HTTP had failed.
    pub(super) fn fell_back(&self) -> bool {
        self.advised && self.works(Era::Legacy) == Some(Transport::Sse)
    }

    /// Whether the operator has not been advised yet how to shorten the way.
    pub(super) const fn first_advice(&mut self) -> bool {
        !std::mem::replace(&mut self.advised, true)
    }

    /// Takes in how a walk ended. An outage teaches nothing: what worked before is tried first again.
    pub(super) fn learn(&mut self, ended: &NegotiationEnd) {
        for era in [Era::Legacy, Era::Modern] {
            if ended.speaks_against(era) && !is_held(&ended.history, era) {
                self.change(era, EraVerdict::Not(Instant::now()));
            }
        }
        if let (Ok(opened), Some(last)) = (&ended.opened, ended.history.last()) {
            self.verdicts[opened.era as usize] = EraVerdict::Works(last.transport);
        }
    }

    /// An era that worked and does not any more is another server, or another version of it: that the one before did not
    /// speak the other era says nothing of this one.
    fn change(&mut self, era: Era, verdict: EraVerdict) {
        let worked = self.works(era).is_some();
        self.verdicts[era as usize] = verdict;
        let other = &mut self.verdicts[era.other() as usize];
        if worked && matches!(other, EraVerdict::Not(_)) {
            *other = EraVerdict::Unknown;
        }
    }

    fn lacks(&self, era: Era) -> bool {
        matches!(self.verdicts[era as usize], EraVerdict::Not(since) if since.elapsed() < BELIEVED)
    }
}

/// Whether a no in `era` may be due to the era before it: servers on a pipe stay in the one of the first question they
/// read, even if they are too slow for its answer to be waited for. Believed, it would have clients of this era
/// translated, at a server that speaks it.
fn is_held(history: &[Attempt], era: Era) -> bool {
    history.first().is_some_and(|first| first.transport == Transport::Stdio && first.era != era)
}

#[cfg(test)]
mod tests {
    use weir_flow::facts::Outcome;

    use super::*;

    #[test]
    fn a_process_speaks_for_the_era_that_it_was_asked_in_first() {
        let asked = |transport, era, outcome| Attempt { transport, era, credential: false, outcome, duration_ms: 1 };
        let refused = || Outcome::NotMcp("an error".into());
        for (transport, held) in [(Transport::Stdio, true), (Transport::Http, false)] {
            let slow = [asked(transport, Era::Modern, Outcome::TimedOut), asked(transport, Era::Legacy, refused())];
            assert_eq!(is_held(&slow, Era::Legacy), held);
            assert!(!is_held(&slow, Era::Modern));
            assert!(!is_held(&slow[1..], Era::Legacy), "it was asked nothing before");
        }
    }
}
