//! Opaque tokens: the issuer is asked what each is good for (RFC 7662).

use serde_json::{Value, json};
use tokio::task::JoinSet;
use weir_tests::tokens::token;
use weir_tests::{Authority, Client, Gateway, Stub};

use crate::callers::{AUDIENCE, refused, tools, with};
use crate::whole_run::key;

/// The id and the secret of Weir at the issuer, and where it asks.
fn auth(issuer: &str, introspection: &str) -> String {
    format!(
        "[auth]\nissuer = \"{issuer}\"\naudience = \"{AUDIENCE}\"\nscopes = [\"mcp:read\"]\nclient_id = \"weir-basic\"\n\
         client_secret = {{ env = \"WEIR_TESTS_SECRET\" }}\nintrospection = {introspection}\n"
    )
}

async fn start(config: &str) -> Gateway {
    Gateway::start_with(config, &[("WEIR_TESTS_SECRET", "basic secret: +&%")]).await
}

fn opaque() -> Authority {
    Authority::with(&json!({ "opaque": true, "claims": { "groups": ["ops"] } }))
}

async fn status(gateway: &Gateway, token: &str) -> u16 {
    gateway.send(with(tools("/mcp"), token)).await.status
}

fn questions(authority: &mut Authority) -> usize {
    authority.asked("/token/introspection").len()
}

#[tokio::test]
async fn an_opaque_token_is_asked_about_once_in_a_while() {
    let (mut authority, stub) = (opaque(), Stub::start().await);
    let gateway = start(&(auth(authority.issuer(), "{ cache = \"3s\" }") + &stub.config("stub"))).await;
    let (ada, eve) = (token(authority.issuer(), 0, AUDIENCE).await, token(authority.issuer(), 1, AUDIENCE).await);
    assert!(!ada.contains('.'), "{ada} is no opaque token");

    // However many come with it at once, it is one question.
    let mut calls = JoinSet::new();
    for _ in 0..12 {
        let (request, address) = (with(tools("/mcp"), &ada), gateway.address());
        calls.spawn(async move { request.send(address).await.status });
    }
    assert!(calls.join_all().await.into_iter().all(|status| status == 200), "{}", gateway.log());
    assert_eq!(questions(&mut authority), 1);
    let asked = authority.asked("/token/introspection");
    assert_eq!(asked[0]["authorization"], "Basic");

    // Each client is a caller of its own.
    let client = Client::legacy_with(&gateway, "/mcp/stub", &ada, &json!({})).await;
    assert_eq!(gateway.send(with(client.request("tools/list", json!({})).1, &eve)).await.status, 404);
    assert_eq!(questions(&mut authority), 2);

    // The answer is good for as long as the configuration says.
    let end = tokio::time::Instant::now() + weir_tests::wait::PATIENCE;
    while questions(&mut authority) == 2 {
        assert!(tokio::time::Instant::now() < end && status(&gateway, &ada).await == 200);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    for token in [&ada, &eve] {
        assert!(!gateway.log().contains(token.as_str()));
    }
}

#[tokio::test]
async fn a_token_that_the_issuer_does_not_vouch_for_opens_nothing() {
    let (authority, stub) = (opaque(), Stub::start().await);
    let endpoint = format!("{{ endpoint = \"{}/token/introspection\" }}", authority.issuer());
    let gateway = start(&(auth(authority.issuer(), &endpoint) + &stub.config("stub"))).await;
    let other = token(authority.issuer(), 0, "https://other.example/mcp").await;
    for (token, why) in [
        ("x".repeat(43), "not active"),
        ("a.b.c".to_owned(), "not active"),
        (other, "another audience"),
        ("x".repeat(20_000), "no signed JWT"),
        ("a&token=b".to_owned(), "no signed JWT"),
    ] {
        let (status, challenge, text) = refused(gateway.send(with(tools("/mcp"), &token)).await).await;
        assert!(status == 401 && text.contains(why), "{status} {text} is not {why}");
        assert!(challenge.contains("error=\"invalid_token\""), "{challenge}");
    }
    let narrow = token(authority.issuer(), 0, &format!("{AUDIENCE}/stub")).await;
    assert_eq!(status(&gateway, &narrow).await, 401);
    assert_eq!(gateway.send(with(tools("/mcp/stub"), &narrow)).await.status, 200);
}

#[tokio::test]
async fn weir_may_sign_in_place_of_a_secret_and_shows_no_issuer_a_key() {
    let (pem, jwk) = key();
    let (mut authority, stub) = (Authority::with(&json!({ "opaque": true, "jwk": jwk })), Stub::start().await);
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("weir.pem");
    std::fs::write(&file, pem).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let config = auth(authority.issuer(), "{}").replace("weir-basic", "weir-jwt");
    let config = config
        .replace("client_secret = { env = \"WEIR_TESTS_SECRET\" }", &format!("private_key = {{ file = {file:?} }}"));
    let gateway = start(&(config + &stub.config("stub"))).await;
    let ada = token(authority.issuer(), 0, AUDIENCE).await;
    assert_eq!(status(&gateway, &ada).await, 200, "{}", gateway.log());
    assert_eq!(questions(&mut authority), 1);
    assert_eq!(status(&gateway, &format!("weir_{}", "0".repeat(72))).await, 401);
    assert_eq!(questions(&mut authority), 1);
}

#[tokio::test]
async fn an_issuer_that_does_not_answer_says_nothing_of_the_token() {
    let (mut authority, stub) = (opaque(), Stub::start().await);
    let gateway = start(&(auth(authority.issuer(), "{}") + &stub.config("stub"))).await;
    let ada = token(authority.issuer(), 0, AUDIENCE).await;
    for trouble in [json!({ "status": 503 }), json!({ "status": 200, "body": "<html>" }), json!({ "status": 401 })] {
        authority.trouble(&json!({ "/token/introspection": trouble }));
        let (status, challenge, text) = refused(gateway.send(with(tools("/mcp"), &ada)).await).await;
        assert_eq!((status, challenge.as_str()), (503, ""), "{text}");
    }
    gateway.logs("callers cannot be let in").await;
    authority.trouble(&json!({}));
    assert_eq!(status(&gateway, &ada).await, 200);
    authority.stop();
    assert_eq!(status(&gateway, &ada).await, 200, "what was answered is good for a while");
    assert_eq!(status(&gateway, &"y".repeat(43)).await, 503);
}

#[tokio::test]
async fn an_address_has_a_share_of_the_questions() {
    let (authority, stub) = (opaque(), Stub::start().await);
    let limits = "[limits]\nintrospections = 20\nprincipal = { introspections = 3 }\n";
    let gateway = start(&(auth(authority.issuer(), "{}") + limits + &stub.config("stub"))).await;
    let ada = token(authority.issuer(), 0, AUDIENCE).await;
    assert_eq!(status(&gateway, &ada).await, 200);
    authority.pause();
    let mut flood = JoinSet::new();
    for number in 0..20 {
        let (request, address) = (with(tools("/mcp"), &format!("{number:x>43}")), gateway.address());
        flood.spawn(async move { request.send(address).await });
    }
    // All but those that wait for the issuer are told so at once.
    for _ in 0..17 {
        let response = flood.join_next().await.unwrap().unwrap();
        assert!(response.header("retry-after").is_some());
        let (status, _, text) = refused(response).await;
        assert!(status == 429 && text.contains("`limits.principal.introspections`"), "{status} {text}");
    }
    assert_eq!(status(&gateway, &ada).await, 200, "who is known need not wait");
    authority.go_on();
    while let Some(response) = flood.join_next().await {
        assert_eq!(response.unwrap().status, 401);
    }
    let log: Value = json!(gateway.log());
    assert!(!log.to_string().contains(&ada));
}
