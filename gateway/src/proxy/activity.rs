//! The calls that run at upstreams and the last ones that ended, for operators who look.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    caller::Caller,
    config::UpstreamName,
    telemetry::{CallId, CallOutcome},
};

/// How many ended calls are remembered.
const ENDED: usize = 256;
/// How much is remembered of why one failed, in bytes.
const MAX_FAILURE: usize = 512;

/// The calls of this process.
static ACTIVITY: Mutex<Activity> =
    Mutex::new(Activity { running: Vec::new(), free: Vec::new(), ended: VecDeque::new() });

/// What is known of a call while it runs. It keeps no upstream and no caller alive.
#[derive(Clone)]
pub struct CallSummary {
    pub id: CallId,
    pub start: Instant,
    /// Method, name, id and client, one after the other, and where each ends.
    pub(super) text: String,
    pub(super) ends: [usize; 4],
    /// None if Weir answers itself.
    pub upstream: Option<UpstreamName>,
    /// Issuer and subject; none if it is a caller of this machine.
    pub(super) principal: Option<Arc<str>>,
    /// A hash of the session's id.
    pub session: Option<Arc<str>>,
}

/// A call that ended.
#[derive(Clone)]
pub struct EndedCall {
    pub facts: CallSummary,
    pub took: Duration,
    pub outcome: CallOutcome,
    /// The HTTP status of the answer.
    pub status: u16,
    /// How often the request was sent.
    pub attempts: u32,
    /// The rule that decided.
    pub rule: Option<Arc<str>>,
    /// Why it failed.
    pub failure: Option<String>,
    /// Bytes of the request and of the answer.
    pub received: u64,
    pub sent: u64,
}

/// Places of calls that run are used again, so that a call costs no allocation here.
struct Activity {
    running: Vec<Option<CallSummary>>,
    free: Vec<usize>,
    ended: VecDeque<EndedCall>,
}

/// A call that runs until this is dropped.
pub(super) struct RunningCall(usize);

/// Notes that a call runs. How many do is limited where calls are admitted.
pub(super) fn begin(facts: CallSummary) -> RunningCall {
    let mut activity = ACTIVITY.lock();
    match activity.free.pop() {
        Some(place) => {
            activity.running[place] = Some(facts);
            RunningCall(place)
        }
        None => {
            activity.running.push(Some(facts));
            RunningCall(activity.running.len() - 1)
        }
    }
}

/// Remembers a call that ended, in place of the oldest one.
pub(super) fn end(mut call: EndedCall) {
    if let Some(why) = &mut call.failure {
        why.truncate(why.floor_char_boundary(MAX_FAILURE));
    }
    let mut activity = ACTIVITY.lock();
    let oldest = if activity.ended.len() < ENDED { None } else { activity.ended.pop_front() };
    activity.ended.push_back(call);
    drop(activity);
    // Freed when nobody waits for it.
    drop(oldest);
}

/// The calls that run, the oldest first, and those that ended, the newest first.
pub(super) fn calls() -> (Vec<CallSummary>, Vec<EndedCall>) {
    let activity = ACTIVITY.lock();
    let mut seen = HashSet::new();
    let mut running: Vec<CallSummary> = activity.running.iter().flatten().cloned().collect();
    let ended = activity.ended.iter().rev().cloned().collect();
    drop(activity);
    running.sort_by_key(|call| call.start);
    // What works on a call has a record of its own.
    running.retain(|call| seen.insert(call.id.to_string()));
    (running, ended)
}

impl CallSummary {
    fn part(&self, place: usize) -> &str {
        let start = if place == 0 { 0 } else { self.ends[place - 1] };
        self.text.get(start..self.ends[place]).unwrap_or_default()
    }

    #[must_use]
    pub fn method(&self) -> &str {
        self.part(0)
    }

    /// The tool, prompt or resource. The query of an address is left out: it may hold a secret.
    #[must_use]
    pub fn name(&self) -> &str {
        let name = self.part(1);
        if name.contains("://") { name.split(['?', '#']).next().unwrap_or(name) } else { name }
    }

    /// What the client calls itself.
    #[must_use]
    pub fn client(&self) -> &str {
        self.part(3)
    }

    /// Whether it is a call of this caller.
    #[must_use]
    pub fn is_of(&self, caller: &Arc<Caller>) -> bool {
        self.principal == Caller::apart(Some(caller))
    }

    /// The subject of the caller.
    #[must_use]
    pub fn principal(&self) -> Option<&str> {
        self.principal.as_deref().map(|id| id.split_once('\n').map_or(id, |(_, subject)| subject))
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        let mut activity = ACTIVITY.lock();
        let ended = activity.running.get_mut(self.0).and_then(Option::take);
        activity.free.push(self.0);
        drop(activity);
        drop(ended);
    }
}

/// Tests that look at the calls of the process do so one at a time.
#[cfg(test)]
pub(super) static ALONE: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(name: &str) -> CallSummary {
        let text = format!("tools/call{name}7inspector/1");
        let ends = [10, 10 + name.len(), 11 + name.len(), text.len()];
        let principal = Some("https://login.example\nada".into());
        CallSummary { id: CallId::next(), start: Instant::now(), text, ends, upstream: None, principal, session: None }
    }

    #[test]
    fn a_call_runs_until_it_is_dropped_and_the_last_ones_are_remembered() {
        let _alone = ALONE.lock();
        let call = facts("file:///a?key=secret");
        let id = call.id.to_string();
        let is_running = || calls().0.iter().any(|call| call.id.to_string() == id);
        let again = begin(call.clone());
        let running = begin(call.clone());
        assert_eq!(calls().0.iter().filter(|call| call.id.to_string() == id).count(), 1, "it is one call");
        assert!(is_running());
        drop((running, again));
        assert!(!is_running());
        assert_eq!((call.method(), call.name(), call.client()), ("tools/call", "file:///a", "inspector/1"));
        assert_eq!(call.principal(), Some("ada"));
        for number in 0..ENDED + 1 {
            let failure = Some("é".repeat(MAX_FAILURE));
            let (took, outcome) = (Duration::from_millis(1), CallOutcome::Failed);
            let facts = facts(&number.to_string());
            end(EndedCall {
                facts,
                took,
                outcome,
                status: 200,
                attempts: 1,
                rule: None,
                failure,
                received: 1,
                sent: 2,
            });
        }
        let (_, ended) = calls();
        assert_eq!(ended.len(), ENDED);
        assert!(ended.iter().all(|call| call.failure.as_ref().is_some_and(|why| why.len() <= MAX_FAILURE)));
    }
}
