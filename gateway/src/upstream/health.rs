//! Whether an open upstream still answers.
//!
//! A connection that rests tells nothing: a server may hang, or be gone without a word. So it is asked now and then, with
//! the least that its era has to ask.

use std::time::Duration;

use tokio::time::Instant;
use weir_flow::{Observation, Trouble};
use weir_mcp::Era;

use crate::config::Timeouts;

use super::{Lease, Outgoing, SendError, Upstream, own};

/// The `error_class` of an upstream that is silent.
const CLASS: &str = "timeout";

/// So many questions in a row without an answer, and the connection is given up.
const LOST: u32 = 3;

/// What is known of the health of one open upstream.
pub struct Health {
    rhythm: Rhythm,
    next: Instant,
    unanswered: u32,
}

/// How often a server is asked, and how long it may take to answer.
#[derive(Clone, Copy)]
struct Rhythm {
    every: Duration,
    patience: Duration,
}

/// What one question came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pulse {
    /// It answers, if only with an error.
    Beats,
    /// It does not.
    Misses,
    /// It has said that the connection is of no more use.
    Stops,
    /// It was not asked, for a limit of Weir.
    Unasked,
}

/// How the health of a server changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HealthChange {
    Weak,
    Well,
}

impl Health {
    /// Nothing is known yet of an upstream that is open.
    pub fn of(upstream: &Upstream) -> Self {
        let Timeouts { probe_interval, probe, .. } = upstream.timeouts;
        Self::new(Rhythm { every: probe_interval, patience: probe })
    }

    fn new(rhythm: Rhythm) -> Self {
        Self { rhythm, next: Instant::now() + rhythm.every, unanswered: 0 }
    }

    /// Asks until the connection is to be given up. May be dropped and called again at any time.
    /// `alone` if it is Weir's own era there.
    pub async fn lost(&mut self, upstream: &Upstream, lease: &Lease, alone: bool) {
        let felt = |change| {
            let trouble = (change == HealthChange::Weak).then(|| Trouble::new(CLASS, "it does not answer"));
            upstream.observe(match alone {
                true => Observation::Probed(trouble),
                false => Observation::ProbedInOtherEra(trouble),
            });
        };
        self.watch(|| upstream.pulse(lease), || upstream.guard.suspected(), felt).await;
    }

    /// Asks at its rhythm, and as soon as `suspected` resolves.
    async fn watch<F: Future<Output = Pulse>, S: Future<Output = ()>>(
        &mut self,
        ask: impl Fn() -> F,
        suspected: impl Fn() -> S,
        felt: impl Fn(HealthChange),
    ) {
        while self.unanswered < LOST {
            tokio::select! {
                () = tokio::time::sleep_until(self.next) => {}
                () = suspected() => {}
            }
            self.next = Instant::now() + self.rhythm.every;
            match tokio::time::timeout(self.rhythm.patience, ask()).await.unwrap_or(Pulse::Misses) {
                Pulse::Unasked => {}
                Pulse::Beats if self.unanswered == 0 => {}
                Pulse::Beats => {
                    self.unanswered = 0;
                    felt(HealthChange::Well);
                }
                Pulse::Misses => {
                    self.unanswered += 1;
                    felt(HealthChange::Weak);
                }
                Pulse::Stops => self.unanswered = LOST,
            }
        }
    }
}

impl Upstream {
    async fn pulse(&self, lease: &Lease) -> Pulse {
        let Ok(credential) = self.credential(None, None).await else { return Pulse::Stops };
        let message = match lease.era {
            Era::Legacy => own::ping(),
            Era::Modern => own::discover(),
        };
        let outgoing = Outgoing::own(lease.era, &message, credential.as_ref());
        let answered = async {
            let reply = lease.channel.send(outgoing).await?;
            let status = reply.status;
            reply.answer().await.map(|_| status)
        };
        match answered.await {
            Ok(502..=504) => Pulse::Misses,
            Ok(_) => {
                self.note_answer();
                Pulse::Beats
            }
            Err(SendError::SessionLost | SendError::Refused(_)) => Pulse::Stops,
            Err(SendError::Full(_)) => Pulse::Unasked,
            Err(_) if !lease.channel.alive() => Pulse::Stops,
            Err(_) => Pulse::Misses,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::VecDeque};

    use super::*;

    const QUICK: Rhythm = Rhythm { every: Duration::from_millis(1), patience: Duration::from_secs(10) };

    /// What is felt while the answers are as in `script`, until it is lost.
    async fn felt(rhythm: Rhythm, script: &[Pulse]) -> Vec<HealthChange> {
        let script = RefCell::new(script.iter().copied().collect::<VecDeque<_>>());
        let changes = RefCell::default();
        let mut health = Health::new(rhythm);
        let ask = || async { script.borrow_mut().pop_front().unwrap_or(Pulse::Stops) };
        health
            .watch(ask, std::future::pending, |change| RefCell::<Vec<HealthChange>>::borrow_mut(&changes).push(change))
            .await;
        assert!(script.borrow().is_empty());
        changes.into_inner()
    }

    #[tokio::test]
    async fn a_server_that_misses_three_times_is_lost() {
        use Pulse::{Beats, Misses, Stops, Unasked};
        assert_eq!(felt(QUICK, &[Misses, Misses, Misses]).await, [HealthChange::Weak; 3]);
        let changes = felt(QUICK, &[Beats, Misses, Beats, Beats, Misses, Misses, Beats, Stops]).await;
        assert_eq!(
            changes,
            [HealthChange::Weak, HealthChange::Well, HealthChange::Weak, HealthChange::Weak, HealthChange::Well]
        );
        assert_eq!(felt(QUICK, &[Beats, Stops]).await, []);
        assert_eq!(felt(QUICK, &[Misses, Unasked, Unasked, Stops]).await, [HealthChange::Weak]);
    }

    #[tokio::test]
    async fn silence_is_a_miss() {
        let mut health = Health::new(Rhythm { patience: Duration::from_millis(1), ..QUICK });
        health.watch(std::future::pending, std::future::pending, |_| ()).await;
        assert_eq!(health.unanswered, LOST);
    }
}
