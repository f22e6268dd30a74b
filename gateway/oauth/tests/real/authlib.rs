//! The same against another make: an issuer with a path, secrets for everybody, opaque tokens, no `resource`.

use std::{sync::Arc, time::Duration};

use url::{Url, form_urlencoded};
use weir_oauth::{
    ClientAuth, CredentialOwner, IdentityError, Login, LoginError, Logins, OAuthApplication, Prepared, Renewal, Scopes,
    SignIn, Stale, TokenError, authorize, device, grants, identity,
    inbound::{Issuer, VerifiedToken, Verifier},
    registration, server,
};
use weir_store::{Clock, MemoryStore, Secret};

use super::{REDIRECT, browser::Browser, http, peer::Peer, returned, wanted};

/// Weir, registered there.
async fn prepared(peer: &Peer, extra: &'static str) -> Prepared {
    let server = server::find(&http(), &peer.issuer).await.unwrap();
    let mut wanted = wanted();
    wanted.grants.push(extra);
    let store = MemoryStore::new(Clock::system());
    let client = registration::client(&http(), &store, &Clock::system(), &server, &wanted).await.unwrap();
    Prepared {
        upstream: "authlib".to_owned(),
        url: "https://mcp.example/mcp".parse().unwrap(),
        server,
        client,
        resource: Some("https://mcp.example/mcp".to_owned()),
        redirect: Some(REDIRECT.to_owned()),
        scopes: Scopes::parse("read write"),
        begun: std::time::SystemTime::now(),
        proof: None,
    }
}

async fn signed_in(prepared: &Prepared) -> Login {
    let (url, pending) = authorize::begin(&http(), prepared.sign_in()).unwrap();
    let back = Browser::default().sign_in(&url, REDIRECT).await;
    let clock = Clock::system();
    let tokens = pending.finish(&http(), returned(&back), &clock).await.unwrap();
    prepared.login(tokens, clock.now())
}

#[tokio::test]
async fn a_login_from_the_first_to_the_last_step() {
    let peer = Peer::authlib().await;
    let prepared = prepared(&peer, "client_credentials").await;
    assert!(matches!(prepared.client.auth, ClientAuth::Basic(_)), "this server wants a secret");
    let login = signed_in(&prepared).await;
    assert_eq!(login.scopes.render(), "read write");
    let logins = Logins::new(Arc::new(MemoryStore::new(Clock::system())), Clock::system());
    let (http, key, renewal) = (http(), prepared.key(CredentialOwner::Shared), Renewal::Refresh(None));
    logins.save(&key, &login).await.unwrap();
    let first = logins.access(&http, &key, None, &renewal).await.unwrap().access.clone();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (logins, http, key, renewal, first) =
            (logins.clone(), http.clone(), key.clone(), renewal.clone(), first.clone());
        let stale = Stale { token: first, refused: true };
        calls.spawn(async move { logins.access(&http, &key, Some(&stale), &renewal).await.unwrap().access.clone() });
    }
    let second = calls.join_all().await;
    assert!(second.iter().all(|token| *token == second[0] && *token != first));
    let (kept, clock) = (logins.get(&key).await.unwrap().unwrap().refresh.unwrap(), Clock::system());
    assert_ne!(login.refresh, Some(kept.clone()), "rotated");
    let spent = grants::refresh(&http, &prepared.endpoint(&clock), login.refresh.as_ref().unwrap()).await;
    assert_eq!(spent.unwrap_err(), TokenError::InvalidGrant);
    logins.forget(&http, &key.upstream, &key.owner, None).await.unwrap().unwrap().unwrap();
    let revoked = grants::refresh(&http, &prepared.endpoint(&clock), &kept).await;
    assert_eq!(revoked.unwrap_err(), TokenError::InvalidGrant);
    let gone = logins.access(&http, &key, None, &renewal).await.unwrap_err();
    assert!(matches!(gone, LoginError::Missing));
}

#[tokio::test]
async fn a_person_says_who_they_are() {
    let peer = Peer::authlib().await;
    let Prepared { server, client, .. } = prepared(&peer, "client_credentials").await;
    let wanted = || identity::sign_in(&server, &client, REDIRECT, false);
    let principal = vouched_for(wanted()).await.unwrap();
    assert_eq!((principal.subject.as_str(), &principal.issuer), ("bob", &server.issuer));
    assert_eq!(principal.claims["name"], "Bob");
    let nameless = vouched_for(SignIn { scopes: Scopes::parse("read"), ..wanted() }).await;
    assert_eq!(nameless, Err(IdentityError::Nobody(server.issuer.clone())));
}

async fn vouched_for(what: SignIn) -> Result<VerifiedToken, IdentityError> {
    let issuer = Issuer {
        issuer: what.server.issuer.clone(),
        audiences: Vec::new(),
        keys: None,
        leeway: Duration::from_secs(5),
        algorithms: Vec::new(),
        groups: "groups".to_owned(),
    };
    let (http, clock) = (http(), Clock::system());
    let verifier = Verifier::new(issuer, http.clone(), clock.clone());
    let (url, pending) = authorize::begin(&http, what).unwrap();
    let back = Browser::default().sign_in(&url, REDIRECT).await;
    identity::finish(pending, &http, &verifier, returned(&back), &clock).await
}

#[tokio::test]
async fn a_device_signs_in() {
    let peer = Peer::authlib().await;
    let prepared = prepared(&peer, "client_credentials").await;
    let (clock, http) = (Clock::system(), http());
    let begun = device::begin(&http, &prepared.endpoint(&clock), &prepared.scopes).await.unwrap();
    approve(&begun.page, &begun.code).await;
    let tokens = begun.finish(&http, &prepared.endpoint(&clock)).await.unwrap();
    assert_eq!(tokens.scopes.unwrap().render(), "read write");
}

#[tokio::test]
async fn a_service_needs_its_secret() {
    let peer = Peer::authlib().await;
    let mut prepared = prepared(&peer, "client_credentials").await;
    let (clock, http) = (Clock::system(), http());
    let tokens = grants::client_credentials(&http, &prepared.endpoint(&clock), &Scopes::parse("read")).await.unwrap();
    assert_eq!(tokens.scopes.unwrap().render(), "read");
    for wrong in [ClientAuth::Basic(Secret::new("wrong".to_owned())), ClientAuth::None] {
        prepared.client = OAuthApplication { id: prepared.client.id.clone(), auth: wrong };
        let refused = grants::client_credentials(&http, &prepared.endpoint(&clock), &Scopes::default()).await;
        assert_eq!(refused.unwrap_err(), TokenError::InvalidClient);
    }
}

async fn approve(page: &Url, code: &str) {
    let body = form_urlencoded::Serializer::new(String::new()).append_pair("user_code", code).finish();
    Browser::default().post(page, body).await;
}
