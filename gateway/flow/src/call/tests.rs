#![allow(clippy::panic, reason = "a test stops at the first surprise")]

use proptest::prelude::*;

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);
const AT: Duration = Duration::from_millis(5);

/// Goes on to the next attempt; fails where there is none.
fn attempt(step: CallStep) -> SendAttempt {
    match step {
        CallStep::Choose(state) => attempt(state.chosen()),
        CallStep::Open(state) => attempt(state.opened()),
        CallStep::Wait(state) => attempt(state.over()),
        CallStep::Attempt(state) => state,
        CallStep::Fail(failure) => panic!("failed: {failure}"),
    }
}

fn sending(repeatable: bool) -> SendAttempt {
    attempt(begin(DEADLINE, repeatable))
}

fn failure(step: CallStep) -> Failure {
    match step {
        CallStep::Fail(failure) => failure,
        step => panic!("goes on: {step:?}"),
    }
}

fn refusal(status: u16) -> Refusal {
    Refusal { status, credential: Some(1), challenge: Challenge::default() }
}

#[test]
fn what_may_have_run_is_repeated_only_if_that_is_safe() {
    let broken = || SendError::BrokenOff("reset".into());
    assert_eq!(failure(sending(false).ended(broken(), AT)), Failure::BrokenOff("reset".into()));
    let CallStep::Wait(pause) = sending(true).ended(broken(), AT) else { panic!("it may run twice") };
    assert!(pause.pause() <= Duration::from_millis(125), "{:?}", pause.pause());
    assert!(matches!(pause.over(), CallStep::Open(_)));
}

#[test]
fn what_never_left_is_tried_again_with_growing_pauses() {
    let mut state = sending(false);
    let mut pauses = Vec::new();
    let end = loop {
        assert_eq!(state.number() as usize, pauses.len() + 1);
        match state.ended(SendError::Unsent("refused".into()), AT) {
            CallStep::Wait(pause) => {
                pauses.push(pause.pause());
                state = attempt(pause.over());
            }
            step => break failure(step),
        }
    };
    assert_eq!(end, Failure::Unreachable("refused".into()));
    assert_eq!(pauses.len(), 3);
    for (pause, nominal) in pauses.iter().zip([100, 400, 1600].map(Duration::from_millis)) {
        assert!(pause.abs_diff(nominal) <= nominal / 4, "{pause:?}");
    }
}

#[test]
fn tries_to_open_and_to_send_are_attempts_alike() {
    let mut step = sending(false).ended(SendError::Unsent("refused".into()), AT);
    for _ in 1..MAX_ATTEMPTS {
        let CallStep::Wait(pause) = step else { panic!("tried again: {step:?}") };
        let CallStep::Open(open) = pause.over() else { panic!("a channel is looked for") };
        step = open.failed(SendError::Unsent("nobody is there".into()), AT);
    }
    assert_eq!(failure(step), Failure::Unreachable("nobody is there".into()));
}

#[test]
fn a_busy_upstream_says_when_to_come_back() {
    let busy = |after| SendError::Busy(Busy { status: 429, after });
    let CallStep::Wait(pause) = sending(false).ended(busy(MAX_HINT), AT) else { panic!("it did not run") };
    assert!(pause.pause() >= MAX_HINT);
    assert!(matches!(failure(sending(false).ended(busy(DEADLINE), AT)), Failure::Busy(_)));
}

#[test]
fn no_pause_outlives_the_deadline() {
    let end = sending(true).ended(SendError::BrokenOff("reset".into()), DEADLINE);
    assert_eq!(failure(end), Failure::BrokenOff("reset".into()));
}

#[test]
fn a_new_credential_for_each_of_two_refusals() {
    let mut state = sending(false);
    for _ in 0..2 {
        let CallStep::Choose(mut choose) = state.ended(SendError::Refused(refusal(401)), AT) else {
            panic!("the policy is asked")
        };
        assert_eq!(choose.take_refusal(), Some(refusal(401)));
        state = attempt(choose.chosen());
    }
    assert!(matches!(
        failure(state.ended(SendError::Refused(refusal(401)), AT)),
        Failure::Refused { status: 401, credential: true, .. }
    ));
}

#[test]
fn a_want_of_scopes_is_answered_with_a_new_credential_once() {
    let challenge = Challenge { error: Some("insufficient_scope".into()), ..Challenge::default() };
    let more = Refusal { challenge, ..refusal(403) };
    let CallStep::Choose(mut choose) = sending(false).ended(SendError::Refused(more.clone()), AT) else {
        panic!("the policy is asked")
    };
    assert_eq!(choose.take_refusal(), Some(more.clone()));
    let end = attempt(choose.chosen()).ended(SendError::Refused(more), AT);
    assert!(matches!(failure(end), Failure::Refused { status: 403, .. }));
    let end = sending(false).ended(SendError::Refused(refusal(403)), AT);
    assert!(matches!(failure(end), Failure::Refused { status: 403, .. }));
}

#[test]
fn a_lost_session_is_opened_again_once() {
    let CallStep::Open(open) = sending(false).ended(SendError::SessionLost, AT) else { panic!("it is opened again") };
    assert_eq!(failure(attempt(open.opened()).ended(SendError::SessionLost, AT)), Failure::SessionLost);
}

fn outcomes() -> impl Strategy<Value = SendError> {
    prop_oneof![
        Just(SendError::Refused(refusal(401))),
        Just(SendError::Refused(refusal(403))),
        Just(SendError::SessionLost),
        Just(SendError::Unsent("refused".into())),
        Just(SendError::Busy(Busy { status: 503, after: Duration::from_secs(3) })),
        Just(SendError::BrokenOff("reset".into())),
        Just(SendError::TimedOut),
        Just(SendError::NotMcp("html".into())),
    ]
}

proptest! {
    /// A simulation under a virtual clock: whatever befalls a call, it ends within its attempts and its deadline, and what
    /// may have run is not sent again unless that is safe.
    #[test]
    fn a_call_ends_whatever_befalls_it(
        faults in prop::collection::vec((outcomes(), 0_u64..30_000), 16),
        opens in prop::collection::vec(prop::bool::weighted(0.8), 64),
        repeatable: bool,
    ) {
        let (mut now, mut tried, mut ran, mut faults) = (Duration::ZERO, 0_u32, false, faults.into_iter());
        let mut step = begin(DEADLINE, repeatable);
        for opens in opens {
            step = match step {
                CallStep::Choose(state) => state.chosen(),
                CallStep::Open(state) if opens => state.opened(),
                CallStep::Open(state) => {
                    tried += 1;
                    state.failed(SendError::Unsent("nobody is there".into()), now)
                }
                CallStep::Wait(state) => {
                    now += state.pause();
                    prop_assert!(now < DEADLINE);
                    state.over()
                }
                CallStep::Attempt(state) => {
                    prop_assert!(!ran || repeatable, "it may have run, and is sent again");
                    tried += 1;
                    prop_assert_eq!(state.number(), tried);
                    let (fault, took) = faults.next().unwrap_or((SendError::TimedOut, 0));
                    now = (now + Duration::from_millis(took)).min(DEADLINE);
                    ran |= matches!(fault, SendError::BrokenOff(_) | SendError::TimedOut | SendError::NotMcp(_));
                    state.ended(fault, now)
                }
                CallStep::Fail(_) => {
                    // Refusals and a lost session add at most four to the attempts that a pause comes before.
                    prop_assert!(tried <= MAX_ATTEMPTS + 4);
                    return Ok(());
                }
            };
        }
        prop_assert!(false, "it goes on for ever");
    }
}
