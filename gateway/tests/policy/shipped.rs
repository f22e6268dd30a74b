//! The policies that the binary carries.

use weir::policy::{LoadError, LoadFault, PolicyGrant, shipped};
use weir_flow::facts::{Attachment, Challenge, CredentialDecision, Outcome, Step};

use crate::bench::{LEGACY, MODERN, Vault, attempt, load, question, try_load, upstream};

#[tokio::test]
async fn fallback_walks_as_its_machine_does() {
    let policy = load("fallback", shipped::FALLBACK.wasm());
    assert!(policy.decides_connections());
    assert!(!policy.decides_credentials());
    let to = upstream();

    let mut history = Vec::new();
    assert_eq!(policy.next(&to, &history).await, Ok(Step::Attempt(MODERN)));
    history.push(attempt(MODERN, Outcome::Unauthorized(Challenge::default())));
    assert_eq!(policy.next(&to, &history).await, Ok(Step::Authorize(MODERN)));
    history.push(attempt(MODERN, Outcome::Unsupported(404)));
    assert_eq!(policy.next(&to, &history).await, Ok(Step::Attempt(LEGACY)));
    history.push(attempt(LEGACY, Outcome::Inconclusive(503)));
    let stop = "it is out of order (503 over Streamable HTTP); try again when it has recovered";
    assert_eq!(policy.next(&to, &history).await, Ok(Step::Stop(stop.into())));
}

#[tokio::test]
async fn bearer_places_the_token_without_seeing_it() {
    let policy = try_load("bearer", shipped::BEARER.wasm(), &[], r#"{"source":"env DOCS_TOKEN"}"#).unwrap();
    assert!(policy.decides_credentials());
    assert!(!policy.decides_connections());
    let expected = CredentialDecision::Attach(Attachment {
        header: "authorization".into(),
        scheme: Some("Bearer".into()),
        secret: "token".into(),
        ttl_seconds: 3600,
    });
    assert_eq!(policy.decide(&question(&["token"], None), &Vault).await, Ok(expected));
    let stop = "it refused the token from env DOCS_TOKEN (401); replace it with a valid one";
    assert_eq!(
        policy.decide(&question(&["token"], Some(401)), &Vault).await,
        Ok(CredentialDecision::Stop(stop.into()))
    );
}

#[test]
fn they_import_nothing() {
    for (name, wasm) in [("fallback", shipped::FALLBACK.wasm()), ("bearer", shipped::BEARER.wasm())] {
        assert!(try_load(name, wasm, &[], "").is_ok());
        assert!(!wasm.windows(5).any(|at| at == b"wasi:"), "{name} names WASI");
        assert!(wasm.len() < 64 << 10, "{name} has grown to {} bytes", wasm.len());
    }
}

#[test]
fn the_same_component_serves_several_settings() {
    let all = [PolicyGrant::Log];
    for settings in [r#"{"source":"env A"}"#, r#"{"source":"env B"}"#, " {} ", ""] {
        assert!(try_load("bearer", shipped::BEARER.wasm(), &all, settings).is_ok(), "{settings}");
    }
    for settings in ["[]", "1", "{", "{} {}"] {
        let refused = try_load("bearer", shipped::BEARER.wasm(), &all, settings).unwrap_err();
        assert!(
            matches!(&refused, LoadError { policy, fault: LoadFault::Settings(_) } if policy == "bearer"),
            "{refused}"
        );
    }
}
