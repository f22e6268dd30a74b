#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use super::{
    super::bindings::exports::weir::policy::{calls as contract, credentials},
    *,
};

fn fact() -> facts::UpstreamFacts {
    facts::UpstreamFacts {
        account: None,
        name: "docs".into(),
        url: Some("https://docs.example.com/mcp".into()),
        required_transport: None,
        required_era: None,
        transports: vec![facts::Transport::Http, facts::Transport::Sse, facts::Transport::Stdio],
        settings: "{}".into(),
    }
}

fn about() -> facts::CredentialQuestion {
    facts::CredentialQuestion {
        upstream: fact(),
        principal: None,
        secrets: vec!["token".into()],
        flows: vec![facts::Flow::ClientCredentials],
        token: None,
        refusal: None,
        attempts: Vec::new(),
    }
}

fn chosen(transport: types::Transport, era: types::Era) -> connection::Step {
    connection::Step::Attempt(connection::Candidate { transport, era, extensions: Vec::new() })
}

#[test]
fn the_account_of_an_upstream_is_an_extension() {
    let told = |account: Option<&str>| {
        upstream(&facts::UpstreamFacts { account: account.map(str::to_owned), ..fact() }, "{}").unwrap().extensions
    };
    assert_eq!(told(Some("work")), [("account".to_owned(), "work".to_owned())]);
    assert!(told(None).is_empty());
}

#[test]
fn long_histories_keep_their_end() {
    let attempt = |duration_ms| facts::Attempt {
        transport: facts::Transport::Http,
        era: Era::Modern,
        credential: true,
        outcome: facts::Outcome::TimedOut,
        duration_ms,
    };
    let all: Vec<_> = (0..100).map(attempt).collect();
    let told = history(&all);
    assert_eq!(told.len(), HISTORY);
    assert_eq!((told[0].duration_ms, told[HISTORY - 1].duration_ms), (36, 99));
    assert!(history(&[]).is_empty());
}

#[test]
fn what_a_server_wrote_is_cut_between_characters() {
    let long = facts::Outcome::NotMcp("é".repeat(TEXT));
    let types::Outcome::NotMcp(told) = outcome(&long) else { panic!("another outcome") };
    assert_eq!(told.len(), TEXT);
    let asked =
        facts::Challenge { scheme: "x".repeat(TEXT + 1), scope: Some("€".repeat(TEXT)), ..Default::default() };
    let told = challenge(&asked);
    assert_eq!(told.scheme.len(), TEXT);
    assert_eq!(told.scope.map(|scope| scope.len()), Some(TEXT - TEXT % 3));
}

#[test]
fn what_a_policy_must_know_whole_is_not_cut() {
    let settings = "x".repeat(DOCUMENT + 1);
    assert_eq!(upstream(&fact(), &settings).unwrap_err(), TooMuch("the policy's settings", DOCUMENT));
    let principal =
        facts::Principal { scopes: vec!["x".repeat(100); DOCUMENT / 100], ..facts::Principal::named("me", None) };
    let scopes = facts::CredentialQuestion { principal: Some(principal.clone()), ..about() };
    assert_eq!(question(&scopes, "{}").unwrap_err(), TooMuch("the principal's scopes", DOCUMENT));
    let claims = facts::Principal { scopes: Vec::new(), claims: "x".repeat(DOCUMENT + 1), ..principal };
    let claims = facts::CredentialQuestion { principal: Some(claims), ..about() };
    assert_eq!(question(&claims, "{}").unwrap_err(), TooMuch("the principal's claims", DOCUMENT));
}

#[test]
fn a_step_keeps_to_what_may_be_tried() {
    let http = || chosen(types::Transport::Http, types::Era::Modern);
    let sse = || chosen(types::Transport::Sse, types::Era::Legacy);
    let expected = facts::Candidate { transport: facts::Transport::Http, era: Era::Modern };
    assert_eq!(step(http(), &fact()), Ok(facts::Step::Attempt(expected)));
    let login = connection::Step::Authorize(connection::Candidate {
        transport: types::Transport::Http,
        era: types::Era::Modern,
        extensions: Vec::new(),
    });
    assert_eq!(step(login, &fact()), Ok(facts::Step::Authorize(expected)));

    let rule = |answer, to: facts::UpstreamFacts| step(answer, &to).unwrap_err().0;
    let carried = facts::UpstreamFacts { transports: vec![facts::Transport::Http], ..fact() };
    assert_eq!(rule(sse(), carried), "it chose sse, which this gateway does not carry");
    let pinned = facts::UpstreamFacts { required_transport: Some(facts::Transport::Http), ..fact() };
    assert_eq!(rule(sse(), pinned), "it chose sse, and the configuration insists on another transport");
    let wanted = facts::UpstreamFacts { required_era: Some(Era::Legacy), ..fact() };
    assert_eq!(rule(http(), wanted), "it chose the modern era, and the client needs the other");
    let command = facts::UpstreamFacts { url: None, ..fact() };
    assert_eq!(rule(http(), command), "it chose http, which the upstream cannot have");
    let stdio = chosen(types::Transport::Stdio, types::Era::Modern);
    assert_eq!(rule(stdio, fact()), "it chose stdio, which the upstream cannot have");
    assert_eq!(
        rule(chosen(types::Transport::Sse, types::Era::Modern), fact()),
        "it chose sse in the modern era, which does not have it"
    );
}

#[test]
fn a_message_is_one_line() {
    let stop = |text: &str| step(connection::Step::Stop(text.into()), &fact());
    assert_eq!(stop(" down\n\u{1b}[31mfor \u{202e}now\0 "), Ok(facts::Step::Stop("down for now".into())));
    assert!(stop("\n\u{1b}").is_err());
    assert!(stop(&"x".repeat(MESSAGE + 1)).is_err());
    assert!(decision(credentials::Decision::Stop(String::new()), &about()).is_err());
}

#[test]
fn a_credential_goes_where_credentials_go() {
    let attach = |header: &str, scheme: Option<&str>, secret: &str| {
        let attachment = credentials::Attachment {
            header: header.into(),
            scheme: scheme.map(Into::into),
            secret: secret.into(),
            ttl_seconds: 60,
            extensions: Vec::new(),
        };
        decision(credentials::Decision::Attach(attachment), &about())
    };
    let expected = |header: &str, scheme: Option<&str>| {
        Ok(facts::CredentialDecision::Attach(facts::Attachment {
            header: header.into(),
            scheme: scheme.map(Into::into),
            secret: "token".into(),
            ttl_seconds: 60,
        }))
    };
    assert_eq!(attach("Authorization", Some("Bearer"), "token"), expected("authorization", Some("Bearer")));
    assert_eq!(attach("X-Api-Key", None, "token"), expected("x-api-key", None));
    for header in ["", "a:b", "a\r\nb", "é", "Content-Length", "HOST", "mcp-protocol-version", "transfer-encoding"] {
        assert!(attach(header, None, "token").is_err(), "{header:?}");
    }
    for scheme in ["", "Bearer ", "a\r\nb"] {
        assert!(attach("authorization", Some(scheme), "token").is_err(), "{scheme:?}");
    }
    assert!(attach("authorization", None, "tokens").is_err());
}

#[test]
fn a_token_is_presented_renewed_and_obtained_only_where_that_can_be() {
    let presentation = || {
        credentials::Decision::Present(credentials::Presentation {
            header: "Authorization".into(),
            scheme: Some("Bearer".into()),
            ttl_seconds: 60,
            extensions: Vec::new(),
        })
    };
    let token = |renewable| facts::Token {
        issuer: "https://login.example.com".into(),
        scopes: Vec::new(),
        age_seconds: 1,
        expires_in_seconds: None,
        accepted: true,
        renewable,
    };
    let with = |renewable| facts::CredentialQuestion { token: Some(token(renewable)), ..about() };
    assert!(decision(presentation(), &about()).is_err());
    assert!(
        matches!(decision(presentation(), &with(false)), Ok(facts::CredentialDecision::Present(p)) if p.header == "authorization")
    );
    assert!(decision(credentials::Decision::Renew, &about()).is_err());
    assert!(decision(credentials::Decision::Renew, &with(false)).is_err());
    assert_eq!(decision(credentials::Decision::Renew, &with(true)), Ok(facts::CredentialDecision::Renew));
    let obtain = |flow, scopes: &[&str]| {
        let scopes = scopes.iter().map(|&scope| scope.into()).collect();
        decision(
            credentials::Decision::Obtain(credentials::TokenRequest { flow, scopes, extensions: Vec::new() }),
            &about(),
        )
    };
    assert!(obtain(credentials::Flow::ClientCredentials, &["read", "a:b/c"]).is_ok());
    assert!(obtain(credentials::Flow::DeviceCode, &[]).is_err());
    for scope in ["", "a b", "a\"b", "a\\b", "é", "a\n"] {
        assert!(obtain(credentials::Flow::ClientCredentials, &[scope]).is_err(), "{scope:?}");
    }
}

#[test]
fn groups_of_clients_are_bounded_and_the_first_pattern_counts() {
    let wants = |clients: &str| {
        interest(Ok(contract::Interest {
            methods: Vec::new(),
            names: Vec::new(),
            request: contract::Detail::Nothing,
            answer: contract::Detail::Nothing,
            event: contract::Detail::Nothing,
            entries: vec![contract::EntryKind::Tool],
            extensions: vec![("clients".into(), clients.into()), ("later".into(), "ignored".into())],
        }))
    };
    let groups = wants(r#"[["A*","one"],["ab","two"],["b","two"]]"#).map(|interest| interest.clients).unwrap();
    assert_eq!(groups.names().len(), 2);
    let group = |client| groups.find(client).map(AsRef::as_ref);
    assert_eq!((group("ab"), group("b"), group("c")), (Some("one"), Some("two"), None));
    let many =
        |of: &dyn Fn(usize) -> [String; 2], count| serde_json::to_string(&(0..count).map(of).collect::<Vec<_>>());
    for wrong in [
        "{}".to_owned(),
        r#"[["a"]]"#.to_owned(),
        r#"[["a",""]]"#.to_owned(),
        many(&|number| ["a".to_owned(), number.to_string()], 9).unwrap(),
        many(&|number| [number.to_string(), "g".to_owned()], 65).unwrap(),
    ] {
        assert!(wants(&wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_minted_token_fits_a_header() {
    let mint = |header: &str, text: &str| {
        let minted = credentials::MintedToken {
            header: header.into(),
            scheme: None,
            text: text.into(),
            ttl_seconds: 60,
            extensions: Vec::new(),
        };
        decision(credentials::Decision::Mint(minted), &about())
    };
    assert!(mint("x-api-key", "made here").is_ok());
    for (header, text) in [("host", "x"), ("x-api-key", ""), ("x-api-key", "a\r\nb"), ("x-api-key", "é")] {
        assert!(mint(header, text).is_err(), "{header} {text:?}");
    }
}
