#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use base64::{Engine, engine::general_purpose::STANDARD};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::{Value, json};
use weir_store::Clock;

use super::*;
use crate::{
    ClientAuth, OAuthApplication, PrivateKey, ServerMetadata,
    revoke::{Revoked, revoke},
    tests::scripted::{Scripted, ScriptedReply, http},
};

fn secret(text: &str) -> Secret {
    Secret::new(text.to_owned())
}

fn metadata(server: &Scripted) -> ServerMetadata {
    serde_json::from_value(json!({
        "issuer": server.issuer(), "token_endpoint": server.at("/token"), "revocation_endpoint": server.at("/revoke"),
    }))
    .unwrap()
}

async fn giving(token: &'static str) -> Scripted {
    Scripted::start(move |_, _| {
        ScriptedReply::json(200, &json!({ "access_token": token, "issued_token_type": TokenKind::Assertion.uri() }))
    })
    .await
}

fn client(auth: ClientAuth) -> OAuthApplication {
    OAuthApplication { id: "we ir".to_owned(), auth }
}

#[tokio::test]
async fn a_client_shows_itself_in_each_way() {
    let clock = Clock::system();
    for (auth, header, fields) in [
        (ClientAuth::None, None, vec![("client_id", Some("we ir")), ("client_secret", None)]),
        // RFC 6749 §2.3.1: both parts are encoded as in a form first.
        (
            ClientAuth::Basic(secret("a:b %")),
            Some("we+ir:a%3Ab+%25"),
            vec![("client_id", None), ("client_secret", None)],
        ),
        (ClientAuth::Post(secret("a:b %")), None, vec![("client_id", Some("we ir")), ("client_secret", Some("a:b %"))]),
    ] {
        let server = giving("t").await;
        let (metadata, client) = (metadata(&server), client(auth));
        let endpoint = TokenEndpoint {
            server: &metadata,
            client: &client,
            resource: Some("https://r"),
            proof: None,
            clock: &clock,
        };
        let (http, token) = (http(), secret("hunter2"));
        client_credentials(&http, &endpoint, &Scopes::parse("a b")).await.unwrap();
        refresh(&http, &endpoint, &token).await.unwrap();
        let subject = Subject { token: &token, kind: TokenKind::Access };
        exchange(&http, &endpoint, subject, None, Some("aud"), &Scopes::parse("a b")).await.unwrap();
        revoke(&http, &endpoint, &token, Revoked::Refresh).await.unwrap();
        for seen in server.seen("") {
            let expected = header.map(|pair| format!("Basic {}", STANDARD.encode(pair)));
            assert_eq!(seen.header("authorization"), expected.as_deref());
            assert_eq!(seen.header("accept"), Some("application/json"));
            for (name, value) in &fields {
                assert_eq!(seen.form(name).as_deref(), *value, "{name} in {}", seen.body);
            }
        }
        let sent = server.seen("/token");
        let grants: Vec<_> = sent.iter().filter_map(|seen| seen.form("grant_type")).collect();
        assert_eq!(grants, ["client_credentials", "refresh_token", EXCHANGE]);
        assert!(sent.iter().all(|seen| seen.form("resource").as_deref() == Some("https://r")));
        assert_eq!(sent[0].form("scope").as_deref(), Some("a b"));
        assert_eq!(sent[1].form("refresh_token").as_deref(), Some("hunter2"));
        assert_eq!(sent[2].form("subject_token_type").as_deref(), Some(TokenKind::Access.uri()));
        assert_eq!(sent[2].form("audience").as_deref(), Some("aud"));
        let revoked = &server.seen("/revoke")[0];
        assert_eq!(revoked.form("token").as_deref(), Some("hunter2"));
        assert_eq!(
            (revoked.form("token_type_hint").as_deref(), revoked.form("resource")),
            (Some("refresh_token"), None)
        );
    }
}

#[tokio::test]
async fn a_signed_statement_is_for_this_server_and_this_once() {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).unwrap();
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(pkcs8.as_ref()));
    let key = PrivateKey { pem: secret(&pem), algorithm: "ES256".to_owned(), id: Some("k1".to_owned()) };
    let server = giving("t").await;
    let (metadata, client, clock) = (metadata(&server), client(ClientAuth::PrivateKey(key)), Clock::system());
    let endpoint = TokenEndpoint { server: &metadata, client: &client, resource: None, proof: None, clock: &clock };
    client_credentials(&http(), &endpoint, &Scopes::default()).await.unwrap();
    endpoint.grant(&http(), &[("grant_type", "x")]).await.unwrap();
    let mut unique = Vec::new();
    for seen in server.seen("/token") {
        assert_eq!(seen.form("client_assertion_type").as_deref(), Some(crate::client::ASSERTION_TYPE));
        let statement = seen.form("client_assertion").unwrap();
        let mut validation = Validation::new(Algorithm::ES256);
        validation.set_audience(&[server.issuer()]);
        validation.set_issuer(&["we ir"]);
        let public = DecodingKey::from_ec_der(pair.public_key().as_ref());
        let token = jsonwebtoken::decode::<Value>(&statement, &public, &validation).unwrap();
        assert_eq!((token.header.kid.as_deref(), &token.claims["sub"]), (Some("k1"), &json!("we ir")));
        unique.push(token.claims["jti"].to_string());
    }
    assert_ne!(unique[0], unique[1]);
}

#[tokio::test]
async fn a_provider_vouches_for_the_caller() {
    let (provider, upstream) = (giving("the assertion").await, giving("the token").await);
    let (at_provider, at_upstream) = (client(ClientAuth::Post(secret("p"))), client(ClientAuth::Basic(secret("u"))));
    let (clock, from, to) = (Clock::system(), metadata(&provider), metadata(&upstream));
    let provider_end =
        TokenEndpoint { server: &from, client: &at_provider, resource: None, proof: None, clock: &clock };
    let upstream_end = TokenEndpoint {
        server: &to,
        client: &at_upstream,
        resource: Some("https://mcp.example"),
        proof: None,
        clock: &clock,
    };
    let (http, identity) = (http(), secret("id token"));
    let subject = Subject { token: &identity, kind: TokenKind::Identity };
    let tokens = vouched(&http, &provider_end, subject, &upstream_end, &Scopes::parse("a")).await.unwrap();
    assert_eq!(tokens.access.expose(), "the token");
    let first = &provider.seen("/token")[0];
    for (name, value) in [
        ("grant_type", EXCHANGE),
        ("subject_token", "id token"),
        ("subject_token_type", TokenKind::Identity.uri()),
        ("requested_token_type", TokenKind::Assertion.uri()),
        ("audience", upstream.issuer().as_str()),
        ("resource", "https://mcp.example"),
        ("client_secret", "p"),
        ("scope", "a"),
    ] {
        assert_eq!(first.form(name).as_deref(), Some(value), "{name}");
    }
    let second = &upstream.seen("/token")[0];
    assert_eq!(second.form("grant_type").as_deref(), Some(JWT_BEARER));
    assert_eq!(second.form("assertion").as_deref(), Some("the assertion"));
    assert!(!second.body.contains("id+token"), "the identity goes to its provider alone");
}

#[tokio::test]
async fn a_token_of_the_wrong_kind_is_not_passed_on() {
    let provider = Scripted::start(|_, _| {
        ScriptedReply::json(200, &json!({ "access_token": "a", "issued_token_type": TokenKind::Access.uri() }))
    })
    .await;
    let upstream = giving("never").await;
    let (client, clock, from, to) =
        (client(ClientAuth::None), Clock::system(), metadata(&provider), metadata(&upstream));
    let provider_end = TokenEndpoint { server: &from, client: &client, resource: None, proof: None, clock: &clock };
    let upstream_end = TokenEndpoint { server: &to, ..provider_end };
    let identity = secret("id token");
    let subject = Subject { token: &identity, kind: TokenKind::Identity };
    let refused = vouched(&http(), &provider_end, subject, &upstream_end, &Scopes::default()).await;
    assert!(matches!(refused, Err(TokenError::Malformed(_))));
    assert!(upstream.seen("").is_empty());
}

#[tokio::test]
async fn what_cannot_be_given_back_says_so() {
    let server = Scripted::start(|_, _| ScriptedReply::error(400, "unsupported_token_type")).await;
    let (client, clock, full) = (client(ClientAuth::None), Clock::system(), metadata(&server));
    let token = secret("hunter2");
    let endpoint = TokenEndpoint { server: &full, client: &client, resource: None, proof: None, clock: &clock };
    let refused = revoke(&http(), &endpoint, &token, Revoked::Access).await.unwrap_err();
    assert!(matches!(refused, TokenError::Refused(_)));
    let without = ServerMetadata { revocation_endpoint: None, ..full.clone() };
    let endpoint = TokenEndpoint { server: &without, ..endpoint };
    assert!(matches!(revoke(&http(), &endpoint, &token, Revoked::Access).await, Err(TokenError::Unsupported(_))));
}
