//! Whatever a `connection` policy answers and an upstream does, a negotiation keeps to its limits and ends.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use weir_flow::{
    Negotiation, NegotiationStep,
    facts::{Attempt, Candidate, Challenge, Outcome, Step, Transport, UpstreamFacts},
    walk::MAX_ATTEMPTS,
};
use weir_mcp::Era;

const TRANSPORTS: [Transport; 3] = [Transport::Http, Transport::Sse, Transport::Stdio];

/// One turn: what the policy answers after a while, and how the attempt ends that it may lead to.
#[derive(Clone, Debug)]
struct Turn {
    thinks: Duration,
    step: Step,
    credential: bool,
    /// In milliseconds.
    takes: u32,
    /// The era in which the upstream answered, where it was another.
    answered_in: Option<Era>,
    outcome: Outcome,
}

/// What has happened so far, in the simplest words.
#[derive(Default)]
struct Model {
    elapsed: Duration,
    attempts: Vec<Attempt>,
}

impl Model {
    /// Why this step must not be taken; none if it must.
    fn refusal(&self, upstream: &UpstreamFacts, deadline: Duration, step: &Step) -> Option<&'static str> {
        let (Step::Attempt(how) | Step::Authorize(how)) = step else { return Some("policy") };
        let configured = match (&upstream.url, upstream.required_transport) {
            (_, Some(required)) if required != how.transport => false,
            (Some(_), _) => how.transport != Transport::Stdio,
            (None, _) => how.transport == Transport::Stdio,
        };
        if self.elapsed >= deadline {
            Some("deadline")
        } else if self.attempts.len() >= MAX_ATTEMPTS {
            Some("attempts")
        } else {
            (!configured).then_some("transport")
        }
    }
}

fn era() -> impl Strategy<Value = Era> {
    prop::sample::select(vec![Era::Legacy, Era::Modern])
}

fn step() -> impl Strategy<Value = Step> {
    let how =
        || (prop::sample::select(&TRANSPORTS[..]), era()).prop_map(|(transport, era)| Candidate { transport, era });
    prop_oneof![
        8 => how().prop_map(Step::Attempt),
        8 => how().prop_map(Step::Authorize),
        1 => Just(Step::Stop("no way is left".into())),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        1 => Just(Outcome::Connected),
        2 => (500..600_u16).prop_map(Outcome::Inconclusive),
        2 => (404..418_u16).prop_map(Outcome::Unsupported),
        4 => Just(Outcome::Unauthorized(Challenge::default())),
        2 => Just(Outcome::Forbidden(Challenge::default())),
        1 => Just(Outcome::Unreachable("refused".into())),
        1 => Just(Outcome::TimedOut),
        1 => Just(Outcome::ConnectionTerminated),
        1 => Just(Outcome::NotMcp("a page".into())),
    ]
}

fn millis(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_millis)
}

prop_compose! {
    fn turn()(
        thinks in millis(0..200),
        step in step(),
        credential in any::<bool>(),
        takes in 0..4_000_u32,
        answered_in in prop::option::of(era()),
        outcome in outcome(),
    ) -> Turn {
        Turn { thinks, step, credential, takes, answered_in, outcome }
    }
}

prop_compose! {
    fn upstream()(process in any::<bool>(), required_transport in prop::option::of(prop::sample::select(&TRANSPORTS[..]))) -> UpstreamFacts {
        UpstreamFacts {
            account: None,
            name: "docs".into(),
            url: (!process).then(|| "http://docs.test/".into()),
            required_transport,
            required_era: None,
            transports: TRANSPORTS.to_vec(),
            settings: "{}".into(),
        }
    }
}

/// Turns that never leave what is configured, so that long walks are common.
fn obedient(upstream: &UpstreamFacts, turns: &mut [Turn]) {
    let transport =
        upstream.required_transport.unwrap_or(if upstream.url.is_some() { Transport::Http } else { Transport::Stdio });
    for turn in turns {
        if let Step::Attempt(how) | Step::Authorize(how) = &mut turn.step {
            how.transport = transport;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_negotiation_keeps_to_its_limits_and_ends(
        upstream in upstream(),
        deadline in millis(0..30_000),
        mut turns in vec(turn(), MAX_ATTEMPTS + 1),
        obeys in any::<bool>(),
    ) {
        if obeys {
            obedient(&upstream, &mut turns);
        }
        let (mut negotiation, mut model) = (Negotiation::new(upstream.clone(), deadline), Model::default());
        for turn in turns {
            model.elapsed += turn.thinks;
            let refusal = model.refusal(&upstream, deadline, &turn.step);
            let how = match (negotiation.handle_step(turn.step.clone(), model.elapsed), refusal) {
                (NegotiationStep::Stop(why), Some(refusal)) => {
                    let names = match refusal {
                        "policy" => "no way is left",
                        "deadline" => "given up after",
                        "attempts" => "attempts",
                        _ => "its policy asked for",
                    };
                    prop_assert!(why.contains(names), "{} names no {}", why, refusal);
                    return Ok(());
                }
                (NegotiationStep::Attempt { how, authorize }, None) => {
                    prop_assert_eq!(&turn.step, &if authorize { Step::Authorize(how) } else { Step::Attempt(how) });
                    how
                }
                other => return Err(TestCaseError::fail(format!("{:?}: {other:?}", turn.step))),
            };
            negotiation.begin(how, turn.credential, model.elapsed);
            let how = match turn.answered_in {
                Some(era) => {
                    // A process may answer in another era than the one that it was asked in.
                    negotiation.begin(Candidate { era, ..how }, turn.credential, model.elapsed);
                    Candidate { era, ..how }
                }
                None => how,
            };
            model.elapsed += Duration::from_millis(turn.takes.into());
            let next = negotiation.handle_outcome(turn.outcome.clone(), model.elapsed);
            model.attempts.push(Attempt {
                transport: how.transport,
                era: how.era,
                credential: turn.credential,
                outcome: turn.outcome.clone(),
                duration_ms: turn.takes,
            });
            prop_assert_eq!(negotiation.history(), &model.attempts[..]);
            if turn.outcome == Outcome::Connected {
                prop_assert_eq!(next, NegotiationStep::Connected(how));
                return Ok(());
            }
            prop_assert_eq!(next, NegotiationStep::Ask);
        }
        prop_assert!(false, "it has not ended");
    }

    #[test]
    fn an_outcome_without_an_attempt_changes_nothing(upstream in upstream(), outcome in outcome(), at in millis(0..9)) {
        let mut negotiation = Negotiation::new(upstream, Duration::from_secs(1));
        prop_assert_eq!(negotiation.handle_outcome(outcome, at), NegotiationStep::Ask);
        prop_assert!(negotiation.history().is_empty());
    }
}
