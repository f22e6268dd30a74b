use weir_policy::{Challenge, Transport, Upstream};

use super::*;

/// A question about a token that is good for an hour and half as old; each test changes what it is about.
fn question() -> Question {
    Question {
        upstream: Upstream {
            name: "github".into(),
            url: Some("https://api.example.com/mcp".into()),
            pinned: None,
            wanted: None,
            transports: vec![Transport::Http],
            settings: "{}".into(),
            more: Vec::new(),
        },
        principal: None,
        secrets: Vec::new(),
        flows: vec![Flow::AuthorizationCode],
        token: Some(Token {
            issuer: "https://login.example.com".into(),
            scopes: vec!["read".into()],
            age: 1800,
            ends_in: Some(1800),
            accepted: false,
            renewable: true,
        }),
        refused: None,
        efforts: Vec::new(),
    }
}

fn ending_in(seconds: u32) -> Question {
    let mut about = question();
    about.token = about.token.map(|token| Token { ends_in: Some(seconds), ..token });
    about
}

fn of_age(age: u32) -> Question {
    let mut about = question();
    about.token = about.token.map(|token| Token { age, ..token });
    about
}

fn lasting(about: Question) -> Question {
    let token = about.token.map(|token| Token { renewable: false, ..token });
    Question { token, ..about }
}

fn accepted(about: Question) -> Question {
    let token = about.token.map(|token| Token { accepted: true, ..token });
    Question { token, ..about }
}

fn without_token() -> Question {
    Question { token: None, ..question() }
}

fn refused(about: Question, status: u16, error: Option<&str>, scope: Option<&str>) -> Question {
    let challenge = Challenge {
        scheme: "Bearer".into(),
        error: error.map(Into::into),
        scope: scope.map(Into::into),
        resource_metadata: None,
    };
    let credential = about.token.is_some();
    Question { refused: Some(Refusal { status, credential, challenge }), ..about }
}

fn after(mut about: Question, task: Task, ending: Ending) -> Question {
    about.efforts.push(Effort { task, ending });
    about
}

/// Without anybody who could sign in.
fn alone(about: Question) -> Question {
    Question { flows: vec![Flow::ClientCredentials], ..about }
}

const REFUSED_AT_ONCE: &str = "it refuses tokens that https://login.example.com has just issued for it; check the upstream's url, its audience and its scopes";

fn denied() -> Ending {
    Ending::Denied("invalid_grant".into())
}

fn failed() -> Ending {
    Ending::Failed("503".into())
}

fn presented(holds_for: u32) -> Choice {
    present(holds_for)
}

fn obtained(flow: Flow, scopes: &[&str]) -> Choice {
    Choice::Obtain(Wish { flow, scopes: scopes.iter().map(|&scope| scope.into()).collect() })
}

fn sign_in(scopes: &[&str]) -> Choice {
    obtained(Flow::AuthorizationCode, scopes)
}

fn stopped(message: &str) -> Choice {
    Choice::Stop(message.into())
}

#[test]
fn a_token_in_its_time() {
    let cases = [
        (question(), presented(1740)),
        (ending_in(7200), presented(3600)),
        (ending_in(61), presented(1)),
        (ending_in(60), Choice::Renew),
        (ending_in(0), Choice::Renew),
        (lasting(ending_in(60)), presented(30)),
        (lasting(ending_in(7)), presented(7)),
        (lasting(ending_in(0)), sign_in(&[])),
        (after(ending_in(20), Task::Renew, Ending::Failed("503".into())), presented(20)),
        (after(ending_in(20), Task::Renew, denied()), presented(20)),
        (after(ending_in(0), Task::Renew, denied()), sign_in(&[])),
        (after(ending_in(3600), Task::Renew, Ending::Done), presented(3540)),
        (
            after(ending_in(0), Task::Renew, failed()),
            stopped("its login is kept but could not be renewed (503); try again later"),
        ),
    ];
    for (about, expected) in cases {
        assert_eq!(choose(&about), expected, "{about:?}");
    }
    let mut endless = question();
    endless.token = endless.token.map(|token| Token { ends_in: None, ..token });
    assert_eq!(choose(&endless), presented(3600));
}

#[test]
fn a_short_lived_token_is_not_renewed_with_every_call() {
    let mut about = ending_in(60);
    about.token = about.token.map(|token| Token { age: 0, ..token });
    assert_eq!(choose(&about), presented(45));
    about.upstream.settings = r#"{"skew":5}"#.into();
    assert_eq!(choose(&about), presented(55));
}

#[test]
fn no_token_yet() {
    assert_eq!(choose(&without_token()), sign_in(&[]));
    let mut quiet = without_token();
    quiet.upstream.settings = r#"{"only_if_refused":true}"#.into();
    assert_eq!(choose(&quiet), Choice::None);
    assert_eq!(choose(&refused(quiet, 401, None, None)), sign_in(&[]));
    let bare = Question { flows: Vec::new(), ..without_token() };
    assert_eq!(
        choose(&bare),
        stopped("it needs a token and no way to one is configured; set auth under [upstreams.github]")
    );
    let both = Question { flows: vec![Flow::TokenExchange, Flow::ClientCredentials], ..without_token() };
    let both = after(both, Task::Obtain(Flow::TokenExchange), denied());
    assert_eq!(choose(&both), obtained(Flow::ClientCredentials, &[]));
    let none = after(both, Task::Obtain(Flow::ClientCredentials), failed());
    assert_eq!(choose(&none), stopped("no token for it could be had (503); check its auth settings"));
}

#[test]
fn a_token_that_the_upstream_refuses() {
    let unauthorized = |about| refused(about, 401, Some("invalid_token"), None);
    let cases = [
        (unauthorized(question()), Choice::Renew),
        (unauthorized(lasting(question())), sign_in(&[])),
        (after(unauthorized(question()), Task::Renew, denied()), sign_in(&[])),
        (after(unauthorized(question()), Task::Renew, Ending::Done), sign_in(&[])),
        (after(unauthorized(of_age(3)), Task::Renew, Ending::Done), sign_in(&[])),
        (after(alone(unauthorized(of_age(3))), Task::Renew, Ending::Done), stopped(REFUSED_AT_ONCE)),
        (after(of_age(3), Task::Renew, Ending::Done), presented(1740)),
        (
            after(unauthorized(question()), Task::Renew, failed()),
            stopped("its login is kept but could not be renewed (503); try again later"),
        ),
        (unauthorized(accepted(of_age(3))), Choice::Renew),
        (unauthorized(of_age(3)), stopped(REFUSED_AT_ONCE)),
    ];
    for (about, expected) in cases {
        assert_eq!(choose(&about), expected, "{about:?}");
    }
}

#[test]
fn more_scopes_are_asked_for_together_and_once() {
    let asks = |scope| refused(question(), 403, Some("insufficient_scope"), Some(scope));
    assert_eq!(choose(&asks("write read")), sign_in(&["read", "write"]));
    assert_eq!(
        choose(&after(asks("write"), Task::Obtain(Flow::AuthorizationCode), denied())),
        stopped("no token for it could be had (invalid_grant); check its auth settings")
    );
    assert_eq!(choose(&after(asks("write"), Task::Obtain(Flow::AuthorizationCode), Ending::Done)), presented(1740));
    assert_eq!(
        choose(&asks("read")),
        stopped(
            "it does not allow this (403) and asks for the scope read, which its token has; ask its owner for access"
        )
    );
    assert_eq!(
        choose(&refused(question(), 403, None, None)),
        stopped("it accepts the login but does not allow this (403); ask its owner for access")
    );
}

/// Whatever Weir reports back, a question is over after a few answers.
#[test]
fn every_question_ends() {
    let starts = [
        without_token(),
        ending_in(0),
        lasting(ending_in(0)),
        refused(question(), 401, None, None),
        refused(question(), 403, Some("insufficient_scope"), Some("write")),
    ];
    for start in starts {
        for ending in [denied(), failed(), Ending::Done] {
            let mut about = Question { flows: vec![Flow::TokenExchange, Flow::AuthorizationCode], ..start.clone() };
            let end = (0..8).find_map(|_| {
                let task = match choose(&about) {
                    Choice::Renew => Task::Renew,
                    Choice::Obtain(wish) => Task::Obtain(wish.flow),
                    end => return Some(end),
                };
                about = after(about.clone(), task, ending.clone());
                None
            });
            assert!(end.is_some(), "{start:?} {ending:?}");
        }
    }
}
