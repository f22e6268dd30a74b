//! Against real authorization servers: npm `oidc-provider` here, PyPI `Authlib` in a module of its own.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "real/authlib.rs"]
mod authlib;
#[path = "real/browser.rs"]
mod browser;
#[path = "real/peer.rs"]
mod peer;

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;
use url::Url;
use weir_oauth::{
    AddressPolicy, Callback, ClientAuth, CredentialOwner, Discovered, Http, KeyBinding, Login, LoginError, LoginKey,
    Logins, Loopback, OAuthApplication, ProofDemand, ProofKey, Redirect, Registration, Renewal, RequestLimits, Scopes,
    SignIn, SignInError, Stale, TokenEndpoint, TokenError, Tokens, authorize, device, grants,
    inbound::{Issuer, Rejected, Verifier},
    registration, revoke, scope, server,
};
use weir_store::{Clock, FileStore, MemoryStore, Protection, Secret, Store};

use browser::Browser;
use peer::Peer;

const RESOURCE: &str = "https://mcp.example/mcp";
const REDIRECT: &str = "http://127.0.0.1:41234/oauth/callback";

fn http() -> Http {
    Http::new(AddressPolicy { loopback: true, private: false }, RequestLimits::default(), &[]).unwrap()
}

/// What discovery finds for an upstream that names the peer.
async fn found(peer: &Peer) -> Discovered {
    let server = server::find(&http(), &peer.issuer).await.unwrap();
    Discovered {
        resource: RESOURCE.to_owned(),
        scopes: vec!["mcp:read".to_owned()],
        server,
        demand: ProofDemand::Unsaid,
    }
}

fn wanted() -> Registration {
    Registration {
        known: None,
        document: None,
        name: "Weir".to_owned(),
        redirect: Some(Redirect::At(REDIRECT.to_owned())),
        grants: vec!["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
        key: None,
    }
}

fn scopes(found: &Discovered) -> Scopes {
    scope::choose(&scope::Wishes {
        resource: &found.scopes,
        server: &found.server.scopes_supported,
        offline: true,
        ..scope::Wishes::default()
    })
}

fn sign_in(found: &Discovered, client: &OAuthApplication) -> SignIn {
    SignIn {
        server: found.server.clone(),
        client: client.clone(),
        redirect: REDIRECT.to_owned(),
        resource: Some(found.resource.clone()),
        scopes: scopes(found),
        nonce: None,
        prompt: None,
        proof: None,
    }
}

/// What a browser brings back.
fn returned(back: &Url) -> Callback {
    Callback::parse(&back[url::Position::BeforePath..])
}

/// The whole way through the browser.
async fn signed_in(found: &Discovered, client: &OAuthApplication) -> Result<Tokens, SignInError> {
    let (url, pending) = authorize::begin(&http(), sign_in(found, client)).unwrap();
    let back = Browser::default().sign_in(&url, REDIRECT).await;
    pending.finish(&http(), returned(&back), &Clock::system()).await
}

async fn registered(found: &Discovered, store: &dyn Store) -> OAuthApplication {
    registration::client(&http(), store, &Clock::system(), &found.server, &wanted()).await.unwrap()
}

fn key(found: &Discovered) -> LoginKey {
    LoginKey { upstream: "real".to_owned(), owner: CredentialOwner::Shared, issuer: found.server.issuer.clone() }
}

fn login(found: &Discovered, client: &OAuthApplication, tokens: Tokens) -> Login {
    let (clock, upstream) = (Clock::system(), RESOURCE.parse().unwrap());
    let resource = Some(found.resource.clone());
    Login::new(tokens, &upstream, resource, &scopes(found), client.clone(), found.server.clone(), clock.now())
}

fn verifier(found: &Discovered) -> Verifier {
    let issuer = Issuer {
        issuer: found.server.issuer.clone(),
        audiences: vec![RESOURCE.to_owned()],
        keys: None,
        leeway: Duration::from_secs(5),
        algorithms: Vec::new(),
        groups: "groups".to_owned(),
    };
    Verifier::new(issuer, http(), Clock::system())
}

#[tokio::test]
async fn a_stranger_registers_signs_in_and_is_known_by_the_token() {
    let peer = Peer::start(&json!({})).await;
    let found = found(&peer).await;
    let store = MemoryStore::new(Clock::system());
    let client = registered(&found, &store).await;
    assert_eq!(client.auth, ClientAuth::None, "it keeps no secret where it need not");
    let tokens = signed_in(&found, &client).await.unwrap();
    assert!(tokens.refresh.is_some() && tokens.lifetime.is_some());
    let principal = verifier(&found).verify(tokens.access.expose()).await.unwrap();
    assert_eq!((principal.subject.as_str(), principal.scopes.render().as_str()), ("alice", "mcp:read"));
    let other = Issuer {
        issuer: found.server.issuer.clone(),
        audiences: vec!["https://other.example".to_owned()],
        keys: None,
        leeway: Duration::ZERO,
        algorithms: Vec::new(),
        groups: "groups".to_owned(),
    };
    let other = Verifier::new(other, http(), Clock::system());
    assert_eq!(other.verify(tokens.access.expose()).await, Err(Rejected::Audience));
}

#[tokio::test]
async fn a_native_client_comes_back_to_any_port() {
    let peer = Peer::start(&json!({})).await;
    let (found, http) = (found(&peer).await, http());
    let port = Loopback::bind(0).await.unwrap();
    let redirect = port.redirect().of(&found.server.issuer);
    let elsewhere = Redirect::Below("http://127.0.0.1:1/oauth/callback".to_owned());
    let (store, wanted) = (MemoryStore::new(Clock::system()), Registration { redirect: Some(elsewhere), ..wanted() });
    let client = registration::client(&http, &store, &Clock::system(), &found.server, &wanted).await.unwrap();
    let what = SignIn { redirect: redirect.clone(), ..sign_in(&found, &client) };
    let (url, pending) = authorize::begin(&http, what).unwrap();
    let user = async {
        let back = Browser::default().sign_in(&url, &redirect).await;
        Browser::default().open(&back).await;
    };
    let (callback, ()) = tokio::join!(port.wait(&pending), user);
    assert!(pending.finish(&http, callback.unwrap(), &Clock::system()).await.is_ok());
}

#[tokio::test]
async fn a_document_is_a_client_id() {
    let id = "https://weir.example/client.json";
    let document = registration::document(Some(id), "Weir", &[REDIRECT.to_owned()]);
    let peer = Peer::start(&json!({ "document": document })).await;
    let found = found(&peer).await;
    let wanted = Registration { document: Some(id.parse().unwrap()), ..wanted() };
    let store = MemoryStore::new(Clock::system());
    let client = registration::client(&http(), &store, &Clock::system(), &found.server, &wanted).await.unwrap();
    assert_eq!(client.id, id);
    assert!(signed_in(&found, &client).await.unwrap().refresh.is_some());
}

#[tokio::test]
async fn a_code_works_only_with_its_verifier() {
    let peer = Peer::start(&json!({})).await;
    let found = found(&peer).await;
    let client = OAuthApplication::public("weir-native");
    let begin = || authorize::begin(&http(), sign_in(&found, &client)).unwrap();
    let ((url, pending), (_, thief)) = (begin(), begin());
    let back = Browser::default().sign_in(&url, REDIRECT).await;
    let stolen = back.query().unwrap().replace(pending.state().expose(), thief.state().expose());
    let refused = thief
        .finish(&http(), Callback::parse(&format!("{}?{stolen}", back.path())), &Clock::system())
        .await
        .unwrap_err();
    assert_eq!(refused, SignInError::Token(TokenError::InvalidGrant), "the code of another browser");
    let mine = pending.finish(&http(), returned(&back), &Clock::system()).await;
    assert!(mine.is_ok(), "the one who signed in is not harmed");
}

#[tokio::test]
async fn a_device_signs_in() {
    let peer = Peer::start(&json!({})).await;
    let found = found(&peer).await;
    let (client, clock, http) = (OAuthApplication::public("weir-native"), Clock::system(), http());
    let endpoint =
        TokenEndpoint { server: &found.server, client: &client, resource: Some(RESOURCE), proof: None, clock: &clock };
    let begun = device::begin(&http, &endpoint, &scopes(&found)).await.unwrap();
    assert!(begun.page_with_code.as_ref().unwrap().as_str().contains(&begun.code));
    let (page, code) = (begun.page.clone(), begun.code.clone());
    let user = async { Browser::default().enter_code(&page, &code).await };
    let (tokens, ()) = tokio::join!(begun.finish(&http, &endpoint), user);
    let tokens = tokens.unwrap();
    assert!(tokens.refresh.is_some());
    assert_eq!(verifier(&found).verify(tokens.access.expose()).await.unwrap().subject, "alice");
    let denied = device::begin(&http, &endpoint, &scopes(&found)).await.unwrap();
    let (page, code) = (denied.page.clone(), denied.code.clone());
    let user = async { Browser::default().refuse_code(&page, &code).await };
    let (tokens, ()) = tokio::join!(denied.finish(&http, &endpoint), user);
    assert_eq!(tokens.unwrap_err(), TokenError::Denied);
}

#[tokio::test]
async fn a_service_needs_nobody() {
    let (pem, jwk) = peer::key();
    let peer = Peer::start(&json!({ "jwk": jwk })).await;
    let found = found(&peer).await;
    let (clock, http) = (Clock::system(), http());
    let secret = |text: &str| Secret::new(text.to_owned());
    for (id, auth) in [
        ("weir-basic", ClientAuth::Basic(secret("basic secret: +&%"))),
        ("weir-post", ClientAuth::Post(secret("post secret: +&%"))),
        ("weir-jwt", ClientAuth::PrivateKey(weir_oauth::PrivateKey { pem, algorithm: "ES256".to_owned(), id: None })),
    ] {
        let client = OAuthApplication { id: id.to_owned(), auth };
        let endpoint = TokenEndpoint {
            server: &found.server,
            client: &client,
            resource: Some(RESOURCE),
            proof: None,
            clock: &clock,
        };
        let tokens = grants::client_credentials(&http, &endpoint, &Scopes::parse("mcp:read")).await.unwrap();
        let principal = verifier(&found).verify(tokens.access.expose()).await.unwrap();
        assert_eq!((principal.subject.as_str(), principal.scopes.render().as_str()), (id, "mcp:read"));
    }
    let wrong = OAuthApplication { id: "weir-basic".to_owned(), auth: ClientAuth::Basic(secret("wrong")) };
    let endpoint = TokenEndpoint { server: &found.server, client: &wrong, resource: None, proof: None, clock: &clock };
    let refused = grants::client_credentials(&http, &endpoint, &Scopes::default()).await;
    assert_eq!(refused.unwrap_err(), TokenError::InvalidClient);
}

#[tokio::test]
async fn a_login_is_refreshed_rotated_and_given_back() {
    let mut peer = Peer::start(&json!({})).await;
    let found = found(&peer).await;
    let folder = tempfile::tempdir().unwrap();
    let open = async || {
        let keys = weir_store::KeySources { keyring: None, file: Some(folder.path().join("key")), variable: None };
        let path = folder.path().join("store");
        let store = FileStore::open(path, Protection::Encrypted(keys), Clock::system()).await.unwrap();
        Logins::new(Arc::new(store), Clock::system())
    };
    let logins = open().await;
    let client = OAuthApplication::public("weir-native");
    let tokens = signed_in(&found, &client).await.unwrap();
    let (first, key) = (tokens.access.clone(), key(&found));
    let spent = tokens.refresh.clone().unwrap();
    logins.save(&key, &login(&found, &client, tokens)).await.unwrap();

    let others = [open().await, open().await];
    let http = http();
    let renewal = Renewal::Refresh(None);
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..51 {
        let logins = [&logins, &others[0], &others[1]][number % 3].clone();
        let (http, key, renewal, token) = (http.clone(), key.clone(), renewal.clone(), first.clone());
        let stale = Stale { token, refused: true };
        calls.spawn(async move { logins.access(&http, &key, Some(&stale), &renewal).await.unwrap().access.clone() });
    }
    let second = calls.join_all().await;
    assert!(second.iter().all(|token| *token == second[0] && *token != first));
    assert_eq!(peer.stats().await["refresh_token"], 1, "51 calls of as many as three processes");
    let access = verifier(&found).verify(second[0].expose()).await.unwrap();
    assert_eq!(access.scopes.render(), "mcp:read", "the resource is asked for again");

    let kept = logins.get(&key).await.unwrap().unwrap().refresh.unwrap();
    assert_ne!(kept, spent, "rotated");
    assert!(logins.forget(&http, &key.upstream, &key.owner, None).await.unwrap().unwrap().is_ok());
    let clock = Clock::system();
    let endpoint = TokenEndpoint { server: &found.server, client: &client, resource: None, proof: None, clock: &clock };
    assert_eq!(grants::refresh(&http, &endpoint, &kept).await.unwrap_err(), TokenError::InvalidGrant);
}

/// The key that a token is bound to.
fn bound_to(token: &Secret) -> String {
    let claims = URL_SAFE_NO_PAD.decode(token.expose().split('.').nth(1).unwrap()).unwrap();
    let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
    claims["cnf"]["jkt"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_login_stays_bound_to_its_key() {
    for peer in [json!({ "dpop": true }), json!({ "dpop": "nonce" })] {
        let peer = Peer::start(&peer).await;
        let (found, http, clock) = (found(&peer).await, http(), Clock::system());
        let client = OAuthApplication::public("weir-native");
        let proof = KeyBinding { key: Arc::new(ProofKey::generate().unwrap()), bound: true };
        let thumbprint = proof.key.thumbprint().to_owned();
        let what = SignIn { proof: Some(proof.clone()), ..sign_in(&found, &client) };
        let (url, pending) = authorize::begin(&http, what).unwrap();
        assert!(url.query_pairs().any(|(name, value)| name == "dpop_jkt" && value == thumbprint));
        let back = Browser::default().sign_in(&url, REDIRECT).await;
        let tokens = pending.finish(&http, returned(&back), &clock).await.unwrap();
        assert!(tokens.is_bound());
        assert_eq!(bound_to(&tokens.access), thumbprint);

        // As another process has it.
        let (store, key): (Arc<dyn Store>, _) = (Arc::new(MemoryStore::new(clock.clone())), key(&found));
        let first = Login { proof: Some(proof), ..login(&found, &client, tokens) };
        Logins::new(Arc::clone(&store), clock.clone()).save(&key, &first).await.unwrap();
        let logins = Logins::new(store, clock.clone());
        let stale = Stale { token: first.access.clone(), refused: true };
        let second = logins.access(&http, &key, Some(&stale), &Renewal::Refresh(None)).await.unwrap();
        assert_ne!(second.access, first.access);
        assert_eq!(bound_to(&second.access), thumbprint);
        assert!(logins.list(&[LoginKey::range(None, None)]).await.unwrap()[0].bound);

        let other = KeyBinding { key: Arc::new(ProofKey::generate().unwrap()), bound: true };
        for proof in [Some(&other), None] {
            let (server, client) = (&found.server, &client);
            let thief = TokenEndpoint { server, client, resource: Some(RESOURCE), proof, clock: &clock };
            let refused = grants::refresh(&http, &thief, second.refresh.as_ref().unwrap()).await;
            assert!(refused.is_err(), "without its key a refresh token is worth nothing");
        }
    }
}

#[tokio::test]
async fn a_token_that_is_bound_to_nothing_is_not_taken_for_a_bound_one() {
    let peer = Peer::start(&json!({ "dpop": false })).await;
    let (found, http, clock) = (found(&peer).await, http(), Clock::system());
    let auth = ClientAuth::Basic(Secret::new("basic secret: +&%".to_owned()));
    let client = OAuthApplication { id: "weir-basic".to_owned(), auth };
    let key = Arc::new(ProofKey::generate().unwrap());
    for (bound, taken) in [(true, false), (false, true)] {
        let proof = Some(KeyBinding { key: Arc::clone(&key), bound });
        let (server, client, proof) = (&found.server, &client, proof.as_ref());
        let endpoint = TokenEndpoint { server, client, resource: Some(RESOURCE), proof, clock: &clock };
        let given = grants::client_credentials(&http, &endpoint, &Scopes::parse("mcp:read")).await;
        assert_eq!(given.as_ref().is_ok(), taken, "{given:?}");
        assert!(taken || matches!(given, Err(TokenError::Unbound(_))));
    }
}

#[tokio::test]
async fn a_login_that_was_revoked_elsewhere_ends_and_a_failed_sign_in_clears_nothing() {
    let peer = Peer::start(&json!({})).await;
    let found = found(&peer).await;
    let logins = Logins::new(Arc::new(MemoryStore::new(Clock::system())), Clock::system());
    let client = OAuthApplication::public("weir-native");
    let tokens = signed_in(&found, &client).await.unwrap();
    let (access, refresh, key, http) = (tokens.access.clone(), tokens.refresh.clone().unwrap(), key(&found), http());
    logins.save(&key, &login(&found, &client, tokens)).await.unwrap();

    let (url, pending) = authorize::begin(&http, sign_in(&found, &client)).unwrap();
    drop(url);
    let failed = pending.finish(&http, Callback::parse("/oauth/callback?error=access_denied"), &Clock::system()).await;
    assert!(failed.is_err());
    let renewal = Renewal::Refresh(None);
    assert_eq!(logins.access(&http, &key, None, &renewal).await.unwrap().access, access);

    let clock = Clock::system();
    let endpoint = TokenEndpoint { server: &found.server, client: &client, resource: None, proof: None, clock: &clock };
    revoke::revoke(&http, &endpoint, &refresh, weir_oauth::Revoked::Refresh).await.unwrap();
    let stale = Stale { token: access, refused: true };
    let ended = logins.access(&http, &key, Some(&stale), &renewal).await.unwrap_err();
    assert!(matches!(ended, LoginError::Ended), "{ended}");
    let tokens = signed_in(&found, &client).await.unwrap();
    let access = tokens.access.clone();
    logins.save(&key, &login(&found, &client, tokens)).await.unwrap();
    assert_eq!(logins.access(&http, &key, None, &renewal).await.unwrap().access, access);
}
