//! The decision: a ladder of ways to try, and what each outcome means for the next rung.
//!
//! ```text
//! url      http modern → http legacy → sse
//! command  stdio modern → stdio legacy
//! ```
//!
//! A server that does not know what was sent to it points to the next rung. An outage points nowhere: a server that is down
//! today may speak anything, so it stops the walk. Each transport gets one new credential, and each rung is tried once for
//! each credential, so every walk ends. The configuration's pin and the client's era take rungs away.

use weir_policy::{Attempt, Candidate, Challenge, Era, Outcome, Step, Transport, Upstream};

use crate::message;

/// The next step after `history`.
pub fn next(to: &Upstream, history: &[Attempt]) -> Step {
    let ladder = ladder(to);
    let walk = walk(history);
    let Some(last) = walk.last() else {
        return climb(to, &ladder, walk);
    };
    match &last.outcome {
        Outcome::Connected => again(last),
        Outcome::Unauthorized(_) if refusals(walk, last.transport) == 1 => Step::Authorize(last.candidate()),
        Outcome::Unauthorized(_) => climb(to, above(&ladder, last, |rung| rung.transport != last.transport), walk),
        Outcome::Forbidden(asked) if wants_scope(asked) && refusals(walk, last.transport) == 1 => {
            Step::Authorize(last.candidate())
        }
        Outcome::Unsupported(_) | Outcome::NotMcp(_) => climb(to, above(&ladder, last, |_| true), walk),
        // A server that only knows the legacy era may wait forever, or end, at a first message that it does not know.
        Outcome::TimedOut | Outcome::ConnectionTerminated
            if last.transport == Transport::Stdio && last.era == Era::Modern =>
        {
            climb(to, above(&ladder, last, |_| true), walk)
        }
        Outcome::Forbidden(_)
        | Outcome::TimedOut
        | Outcome::ConnectionTerminated
        | Outcome::Inconclusive(_)
        | Outcome::Unreachable(_) => Step::Stop(message::stopped(last)),
    }
}

/// Every way that may be tried, in order, whether or not this Weir can carry it.
fn ladder(to: &Upstream) -> Vec<Candidate> {
    const ADDRESS: [(Transport, Era); 3] =
        [(Transport::Http, Era::Modern), (Transport::Http, Era::Legacy), (Transport::Sse, Era::Legacy)];
    const COMMAND: [(Transport, Era); 2] = [(Transport::Stdio, Era::Modern), (Transport::Stdio, Era::Legacy)];
    let all: &[_] = if to.url.is_some() { &ADDRESS } else { &COMMAND };
    all.iter()
        .map(|&(transport, era)| Candidate::new(transport, era))
        .filter(|rung| to.required_transport.is_none_or(|required| required == rung.transport))
        .filter(|rung| to.required_era.is_none_or(|required| required == rung.era))
        .collect()
}

/// The attempts that count: those since the upstream was last connected, or that connection if nothing came after it.
fn walk(history: &[Attempt]) -> &[Attempt] {
    let connected = history.iter().rposition(|attempt| attempt.outcome == Outcome::Connected);
    match connected {
        Some(at) if at + 1 == history.len() => &history[at..],
        Some(at) => &history[at + 1..],
        None => history,
    }
}

/// The same once more: what worked is the first thing to try when a connection was lost.
fn again(last: &Attempt) -> Step {
    Step::Attempt(last.candidate())
}

/// The rungs above the one that was tried last, from the first that `fits`.
fn above<'a>(ladder: &'a [Candidate], last: &Attempt, fits: impl Fn(&Candidate) -> bool) -> &'a [Candidate] {
    let start = ladder.iter().position(|rung| *rung == last.candidate()).map_or(0, |at| at + 1);
    let rest = &ladder[start..];
    let skipped = rest.iter().position(fits).unwrap_or(rest.len());
    &rest[skipped..]
}

/// The first of the rungs that this Weir can carry, or the end of the walk.
fn climb(to: &Upstream, rungs: &[Candidate], walk: &[Attempt]) -> Step {
    let untried = |rung: &&Candidate| walk.iter().all(|attempt| attempt.candidate() != **rung);
    match rungs.iter().filter(untried).find(|rung| to.transports.contains(&rung.transport)) {
        Some(rung) => Step::Attempt(rung.clone()),
        None => Step::Stop(message::exhausted(to, rungs, walk)),
    }
}

/// How often this transport was refused for want of a credential.
fn refusals(walk: &[Attempt], transport: Transport) -> usize {
    let refused = |attempt: &&Attempt| matches!(attempt.outcome, Outcome::Unauthorized(_) | Outcome::Forbidden(_));
    walk.iter().filter(|attempt| attempt.transport == transport).filter(refused).count()
}

/// RFC 6750 §3.1: the token is good and its scopes are too few, so a new one may do.
fn wants_scope(asked: &Challenge) -> bool {
    asked.error.as_deref() == Some("insufficient_scope")
}

#[cfg(test)]
mod tests;
