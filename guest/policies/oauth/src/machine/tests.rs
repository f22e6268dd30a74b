use weir_policy::{Challenge, Transport, Upstream};

use super::*;

/// A question about a token that is good for an hour and half as old; each test changes what it is about.
fn question() -> Question {
    Question {
        upstream: Upstream {
            name: "github".into(),
            url: Some("https://api.example.com/mcp".into()),
            required_transport: None,
            required_era: None,
            transports: vec![Transport::Http],
            settings: "{}".into(),
            extensions: Vec::new(),
        },
        principal: None,
        secrets: Vec::new(),
        flows: vec![Flow::AuthorizationCode],
        token: Some(Token {
            issuer: "https://login.example.com".into(),
            scopes: vec!["read".into()],
            age_seconds: 1800,
            expires_in_seconds: Some(1800),
            accepted: false,
            renewable: true,
            extensions: Vec::new(),
        }),
        refusal: None,
        attempts: Vec::new(),
        extensions: Vec::new(),
    }
}

fn expiring_in(seconds: u32) -> Question {
    let mut about = question();
    about.token = about.token.map(|token| Token { expires_in_seconds: Some(seconds), ..token });
    about
}

fn of_age(age_seconds: u32) -> Question {
    let mut about = question();
    about.token = about.token.map(|token| Token { age_seconds, ..token });
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
        extensions: Vec::new(),
    };
    let credential = about.token.is_some();
    let refusal = Refusal { status, credential, challenge, extensions: Vec::new() };
    Question { refusal: Some(refusal), ..about }
}

fn after(mut about: Question, operation: TokenOperation, outcome: TokenOutcome) -> Question {
    about.attempts.push(TokenAttempt { operation, outcome, extensions: Vec::new() });
    about
}

/// Without anybody who could sign in.
fn alone(about: Question) -> Question {
    Question { flows: vec![Flow::ClientCredentials], ..about }
}

const REFUSED_AT_ONCE: &str = "it refuses tokens that https://login.example.com has just issued for it; check the upstream's url, its audience and its scopes";

fn denied() -> TokenOutcome {
    TokenOutcome::Denied("invalid_grant".into())
}

fn failed() -> TokenOutcome {
    TokenOutcome::Failed("503".into())
}

fn presented(ttl_seconds: u32) -> Decision {
    present(ttl_seconds)
}

fn obtained(flow: Flow, scopes: &[&str]) -> Decision {
    let scopes = scopes.iter().map(|&scope| scope.into()).collect();
    Decision::Obtain(TokenRequest { flow, scopes, extensions: Vec::new() })
}

fn sign_in(scopes: &[&str]) -> Decision {
    obtained(Flow::AuthorizationCode, scopes)
}

fn stopped(message: &str) -> Decision {
    Decision::Stop(message.into())
}

#[test]
fn a_token_in_its_time() {
    let cases = [
        (question(), presented(1740)),
        (expiring_in(7200), presented(3600)),
        (expiring_in(61), presented(1)),
        (expiring_in(60), Decision::Renew),
        (expiring_in(0), Decision::Renew),
        (lasting(expiring_in(60)), presented(30)),
        (lasting(expiring_in(7)), presented(7)),
        (lasting(expiring_in(0)), sign_in(&[])),
        (after(expiring_in(20), TokenOperation::Renew, TokenOutcome::Failed("503".into())), presented(20)),
        (after(expiring_in(20), TokenOperation::Renew, denied()), presented(20)),
        (after(expiring_in(0), TokenOperation::Renew, denied()), sign_in(&[])),
        (after(expiring_in(3600), TokenOperation::Renew, TokenOutcome::Done), presented(3540)),
        (
            after(expiring_in(0), TokenOperation::Renew, failed()),
            stopped("its login is kept but could not be renewed (503); try again later"),
        ),
    ];
    for (about, expected) in cases {
        assert_eq!(decide(&about), expected, "{about:?}");
    }
    let mut endless = question();
    endless.token = endless.token.map(|token| Token { expires_in_seconds: None, ..token });
    assert_eq!(decide(&endless), presented(3600));
}

#[test]
fn a_short_lived_token_is_not_renewed_with_every_call() {
    let mut about = expiring_in(60);
    about.token = about.token.map(|token| Token { age_seconds: 0, ..token });
    assert_eq!(decide(&about), presented(45));
    about.upstream.settings = r#"{"renew_before":5}"#.into();
    assert_eq!(decide(&about), presented(55));
}

#[test]
fn no_token_yet() {
    assert_eq!(decide(&without_token()), sign_in(&[]));
    let mut quiet = without_token();
    quiet.upstream.settings = r#"{"only_if_refused":true}"#.into();
    assert_eq!(decide(&quiet), Decision::None);
    assert_eq!(decide(&refused(quiet, 401, None, None)), sign_in(&[]));
    let bare = Question { flows: Vec::new(), ..without_token() };
    assert_eq!(
        decide(&bare),
        stopped("it needs a token and no way to one is configured; set auth under [upstreams.github]")
    );
    let both = Question { flows: vec![Flow::TokenExchange, Flow::ClientCredentials], ..without_token() };
    let both = after(both, TokenOperation::Obtain(Flow::TokenExchange), denied());
    assert_eq!(decide(&both), obtained(Flow::ClientCredentials, &[]));
    let none = after(both, TokenOperation::Obtain(Flow::ClientCredentials), failed());
    assert_eq!(decide(&none), stopped("no token for it could be had (503); check its auth settings"));
}

#[test]
fn a_token_that_the_upstream_refuses() {
    let unauthorized = |about| refused(about, 401, Some("invalid_token"), None);
    let cases = [
        (unauthorized(question()), Decision::Renew),
        (unauthorized(lasting(question())), sign_in(&[])),
        (after(unauthorized(question()), TokenOperation::Renew, denied()), sign_in(&[])),
        (after(unauthorized(question()), TokenOperation::Renew, TokenOutcome::Done), sign_in(&[])),
        (after(unauthorized(of_age(3)), TokenOperation::Renew, TokenOutcome::Done), sign_in(&[])),
        (after(alone(unauthorized(of_age(3))), TokenOperation::Renew, TokenOutcome::Done), stopped(REFUSED_AT_ONCE)),
        (after(of_age(3), TokenOperation::Renew, TokenOutcome::Done), presented(1740)),
        (
            after(unauthorized(question()), TokenOperation::Renew, failed()),
            stopped("its login is kept but could not be renewed (503); try again later"),
        ),
        (unauthorized(accepted(of_age(3))), Decision::Renew),
        (unauthorized(of_age(3)), stopped(REFUSED_AT_ONCE)),
    ];
    for (about, expected) in cases {
        assert_eq!(decide(&about), expected, "{about:?}");
    }
}

#[test]
fn more_scopes_are_asked_for_together_and_once() {
    let asks = |scope| refused(question(), 403, Some("insufficient_scope"), Some(scope));
    assert_eq!(decide(&asks("write read")), sign_in(&["read", "write"]));
    assert_eq!(
        decide(&after(asks("write"), TokenOperation::Obtain(Flow::AuthorizationCode), denied())),
        stopped("no token for it could be had (invalid_grant); check its auth settings")
    );
    assert_eq!(
        decide(&after(asks("write"), TokenOperation::Obtain(Flow::AuthorizationCode), TokenOutcome::Done)),
        presented(1740)
    );
    assert_eq!(
        decide(&asks("read")),
        stopped(
            "it does not allow this (403) and asks for the scope read, which its token has; ask its owner for access"
        )
    );
    assert_eq!(
        decide(&refused(question(), 403, None, None)),
        stopped("it accepts the login but does not allow this (403); ask its owner for access")
    );
}

/// Whatever Weir reports back, a question is over after a few answers.
#[test]
fn every_question_ends() {
    let starts = [
        without_token(),
        expiring_in(0),
        lasting(expiring_in(0)),
        refused(question(), 401, None, None),
        refused(question(), 403, Some("insufficient_scope"), Some("write")),
    ];
    for start in starts {
        for outcome in [denied(), failed(), TokenOutcome::Done] {
            let mut about = Question { flows: vec![Flow::TokenExchange, Flow::AuthorizationCode], ..start.clone() };
            let end = (0..8).find_map(|_| {
                let operation = match decide(&about) {
                    Decision::Renew => TokenOperation::Renew,
                    Decision::Obtain(request) => TokenOperation::Obtain(request.flow),
                    end => return Some(end),
                };
                about = after(about.clone(), operation, outcome.clone());
                None
            });
            assert!(end.is_some(), "{start:?} {outcome:?}");
        }
    }
}
