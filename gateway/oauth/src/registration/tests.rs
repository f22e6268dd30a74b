#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use weir_store::{MemoryStore, Secret};

use super::*;
use crate::{
    CredentialOwner, Prepared, Scopes,
    tests::scripted::{Scripted, ScriptedReply, http},
};

fn wanted() -> Registration {
    Registration {
        known: None,
        document: Some(Url::parse("https://weir.example/client.json").unwrap()),
        name: "Weir".to_owned(),
        redirect: Some(Redirect::At("http://127.0.0.1/oauth/callback".to_owned())),
        grants: vec!["authorization_code", "refresh_token"],
        key: None,
    }
}

fn server(own: &Scripted, fields: Value) -> ServerMetadata {
    let mut metadata = json!({ "issuer": own.issuer(), "registration_endpoint": own.at("/register") });
    metadata.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(metadata).unwrap()
}

/// A server that registers everybody, each under the next number.
async fn registering(extra: Value) -> Scripted {
    let count = AtomicU64::new(0);
    Scripted::start(move |_, _| {
        let mut given = json!({ "client_id": format!("client-{}", count.fetch_add(1, Ordering::Relaxed)) });
        given.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        ScriptedReply::json(201, &given)
    })
    .await
}

#[tokio::test]
async fn each_way_has_its_turn() {
    let own = registering(json!({})).await;
    let store = MemoryStore::new(Clock::system());
    let get = async |server: &ServerMetadata, wanted: &Registration| {
        client(&http(), &store, &Clock::system(), server, wanted).await
    };
    let with_documents = server(&own, json!({ "client_id_metadata_document_supported": true }));
    let known = KnownClient { client: OAuthApplication::public("mine"), issuer: None, upstream: None };
    let by_hand = Registration { known: Some(known), ..wanted() };
    assert_eq!(get(&with_documents, &by_hand).await.unwrap().id, "mine");
    assert_eq!(get(&with_documents, &wanted()).await.unwrap().id, "https://weir.example/client.json");
    assert!(own.seen("").is_empty());
    for no_document in [None, Some("https://weir.example/"), Some("http://weir.example/client.json")] {
        let wanted = Registration { document: no_document.map(|url| Url::parse(url).unwrap()), ..wanted() };
        assert_eq!(get(&with_documents, &wanted).await.unwrap().id, "client-0");
    }
    let none: ServerMetadata = serde_json::from_value(json!({ "issuer": own.issuer() })).unwrap();
    let elsewhere = Registration { redirect: Some(Redirect::At("http://127.0.0.1/other".to_owned())), ..wanted() };
    let refused = get(&none, &elsewhere).await.unwrap_err().to_string();
    assert!(refused.ends_with("lets no client register itself"), "{refused}");
    let by_code = Registration { redirect: None, grants: vec!["device"], ..wanted() };
    for (wanted, what) in [(elsewhere, "comes back to http://127.0.0.1/other,"), (by_code, "may use device,")] {
        let wanted = Registration { key: Some("client_id = …"), ..wanted };
        let refused = get(&none, &wanted).await.unwrap_err().to_string();
        assert!(refused.contains(what) && refused.ends_with("into the config: client_id = …"), "{refused}");
    }
}

#[tokio::test]
async fn a_registration_is_kept_for_its_issuer_alone() {
    let (one, two) = (registering(json!({})).await, registering(json!({ "client_secret": "hunter2" })).await);
    let store = MemoryStore::new(Clock::system());
    let get =
        async |server: &ServerMetadata| client(&http(), &store, &Clock::system(), server, &wanted()).await.unwrap();
    let (first, second) = (server(&one, json!({})), server(&two, json!({})));
    assert_eq!(get(&first).await, OAuthApplication::public("client-0"));
    assert_eq!(get(&first).await, OAuthApplication::public("client-0"));
    assert!(matches!(get(&second).await.auth, ClientAuth::Basic(secret) if secret.expose() == "hunter2"));
    assert_eq!((one.seen("").len(), two.seen("").len()), (1, 1));
    assert!(!format!("{:?}", store.list(&[weir_store::Key::new("client", &[])]).await.unwrap()).contains("hunter2"));
    // Not that of another issuer, nor one that is as young as that.
    for (issuer, id, before) in [
        (two.issuer(), "client-0", None),
        (one.issuer(), "client-1", None),
        (one.issuer(), "client-0", Some(SystemTime::now() - Duration::from_secs(60))),
    ] {
        let forgotten = forget(&store, &issuer, id, before).await.unwrap();
        assert_eq!(forgotten, issuer == two.issuer() && id == "client-0", "{issuer} {id}");
    }
    assert_eq!(get(&first).await.id, "client-0");
    assert!(forget(&store, &one.issuer(), "client-0", None).await.unwrap());
    assert_eq!(get(&first).await.id, "client-1");
}

#[tokio::test]
async fn a_registration_for_one_grant_is_none_for_another() {
    let own = registering(json!({})).await;
    let (store, server) = (MemoryStore::default(), server(&own, json!({})));
    for _ in 0..2 {
        for (grant, id) in [("authorization_code", "client-0"), ("client_credentials", "client-1")] {
            let wanted = Registration { grants: vec![grant], document: None, ..wanted() };
            let found = client(&http(), &store, &Clock::system(), &server, &wanted).await.unwrap();
            assert_eq!(found.id, id, "{grant}");
        }
    }
}

#[tokio::test]
async fn a_server_says_whether_it_knows_whom_it_has_registered() {
    for (status, code, gone) in [
        (401, "invalid_client", true),
        (400, "unauthorized_client", true),
        // It has looked at what it was brought, or has other worries, or makes no sense.
        (400, "invalid_grant", false),
        (503, "", false),
        (500, "invalid_client", false),
        (404, "", false),
    ] {
        let own = Scripted::start(move |_, asked| match asked.path.as_str() {
            "/token" => ScriptedReply::error(status, code),
            _ => ScriptedReply::json(201, &json!({ "client_id": "mine" })),
        })
        .await;
        let (store, clock) = (MemoryStore::default(), Clock::system());
        let server = server(&own, json!({ "token_endpoint": own.at("/token") }));
        assert_eq!(is_gone(&http(), &store, &clock, &server, &wanted()).await.unwrap(), None);
        assert!(own.seen("").is_empty(), "it has registered nobody");
        client(&http(), &store, &clock, &server, &wanted()).await.unwrap();
        let found = is_gone(&http(), &store, &clock, &server, &wanted()).await.unwrap();
        assert_eq!(found, gone.then(|| OAuthApplication::public("mine")), "{status} {code}");
        let [asked] = &own.seen("/token")[..] else { panic!("it is asked once") };
        assert_eq!(asked.form("client_id").as_deref(), Some("mine"));
    }
}

#[tokio::test]
async fn a_registration_is_doubtful_to_whom_it_did_not_bring_back() {
    let own = registering(json!({})).await;
    let (store, clock, server) = (MemoryStore::default(), Clock::system(), server(&own, json!({})));
    let ada = CredentialOwner::Principal("https://login.example".to_owned(), "ada".to_owned());
    let as_client = |id: &str, begun: SystemTime| Prepared {
        upstream: "u".to_owned(),
        url: own.url.clone(),
        server: server.clone(),
        client: OAuthApplication::public(id),
        resource: None,
        redirect: None,
        scopes: Scopes::default(),
        begun,
        proof: None,
    };
    let before = clock.now();
    let later = before + Duration::from_secs(3600);
    let doubtful = async |who: &CredentialOwner| is_doubtful(&store, &as_client("client-0", later), who).await.unwrap();
    client(&http(), &store, &clock, &server, &wanted()).await.unwrap();
    begun(&store, &as_client("client-0", before), &ada).await.unwrap();
    assert!(!doubtful(&ada).await, "it was made for her");
    let nobody = as_client("nobody", later);
    begun(&store, &nobody, &ada).await.unwrap();
    begun(&store, &as_client("client-0", later), &ada).await.unwrap();
    assert!(doubtful(&ada).await && !doubtful(&CredentialOwner::Shared).await);
    assert!(!is_doubtful(&store, &nobody, &ada).await.unwrap(), "it was not registered by the server");
    returned(&store, &as_client("client-0", later), &ada).await.unwrap();
    assert!(!doubtful(&ada).await);
}

#[tokio::test]
async fn what_is_sent_says_what_weir_is() {
    for (redirect, kind, methods, method) in [
        ("http://127.0.0.1/oauth/callback", "native", json!(["none", "client_secret_basic"]), "none"),
        ("http://localhost:8080/oauth/callback", "native", json!(["client_secret_post"]), "client_secret_post"),
        ("https://weir.example/oauth/callback", "web", json!(null), "client_secret_basic"),
        ("https://127.0.0.1:8443/oauth/callback", "web", json!(["none"]), "none"),
    ] {
        let own = registering(json!({})).await;
        let wanted = Registration { redirect: Some(Redirect::At(redirect.to_owned())), ..wanted() };
        let server = server(&own, json!({ "token_endpoint_auth_methods_supported": methods }));
        client(&http(), &MemoryStore::default(), &Clock::system(), &server, &wanted).await.unwrap();
        let sent: Value = serde_json::from_str(&own.seen("/register")[0].body).unwrap();
        assert_eq!((&sent["application_type"], &sent["token_endpoint_auth_method"]), (&json!(kind), &json!(method)));
        assert_eq!(sent["redirect_uris"], json!([redirect]));
        assert_eq!(sent["grant_types"], json!(["authorization_code", "refresh_token"]));
    }
}

#[tokio::test]
async fn a_secret_that_ends_is_registered_again() {
    let now = Arc::new(AtomicU64::new(1000));
    let clock = Clock::from_fn({
        let now = Arc::clone(&now);
        move || UNIX_EPOCH + Duration::from_secs(now.load(Ordering::Relaxed))
    });
    let own = registering(json!({ "client_secret": "s", "client_secret_expires_at": 1100 })).await;
    let store = MemoryStore::new(clock.clone());
    let server = server(&own, json!({}));
    let get = async || client(&http(), &store, &clock, &server, &wanted()).await.unwrap().id;
    assert_eq!((get().await.as_str(), get().await.as_str()), ("client-0", "client-0"));
    now.store(1100, Ordering::Relaxed);
    assert_eq!(get().await, "client-1");
}

#[tokio::test]
async fn a_refusal_is_told_and_shows_nothing() {
    for (status, body, temporary) in [
        (400, json!({ "error": "invalid_redirect_uri", "error_description": "hunter2" }), false),
        (400, json!({ "error": "evil\n\u{1b}[31m" }), false),
        (403, json!("no"), false),
        (201, json!({ "client_secret": "hunter2" }), false),
        (503, json!(null), true),
        (429, json!(null), true),
    ] {
        let own = Scripted::start(move |_, _| ScriptedReply::json(status, &body)).await;
        let (store, clock, server) = (MemoryStore::default(), Clock::system(), server(&own, json!({})));
        let failed = client(&http(), &store, &clock, &server, &wanted()).await.unwrap_err();
        assert_eq!(matches!(failed, RegistrationError::Trouble { .. }), temporary, "{failed}");
        assert!(!failed.to_string().contains("hunter2") && !failed.to_string().contains('\n'), "{failed}");
    }
}

#[tokio::test]
async fn a_client_of_the_config_is_shown_to_its_issuer_alone() {
    let own = registering(json!({})).await;
    let post = server(&own, json!({ "token_endpoint_auth_methods_supported": ["client_secret_post"] }));
    let secret = ClientAuth::Basic(Secret::new("s".to_owned()));
    let known = |issuer: &str| KnownClient {
        client: OAuthApplication { id: "mine".to_owned(), auth: secret.clone() },
        issuer: Some(issuer.to_owned()),
        upstream: None,
    };
    let mine = Registration { known: Some(known(&own.issuer())), ..wanted() };
    let found = client(&http(), &MemoryStore::default(), &Clock::system(), &post, &mine).await.unwrap();
    assert!(matches!(found.auth, ClientAuth::Post(_)), "as the server likes it");
    let other = Registration { known: Some(known("https://other.example")), ..wanted() };
    let refused = client(&http(), &MemoryStore::default(), &Clock::system(), &post, &other).await;
    assert!(matches!(refused, Err(RegistrationError::OtherIssuer(_))));
}

#[tokio::test]
async fn a_secret_of_the_config_is_for_the_first_issuer() {
    let (store, clock) = (MemoryStore::default(), Clock::system());
    let metadata = |issuer: &str| ServerMetadata { issuer: issuer.to_owned(), ..ServerMetadata::default() };
    let mine = |upstream: &str, id: &str, issuer: Option<&str>| {
        let client = OAuthApplication { id: id.to_owned(), auth: ClientAuth::Basic(Secret::new("hunter2".to_owned())) };
        let known = KnownClient { client, issuer: issuer.map(str::to_owned), upstream: Some(upstream.to_owned()) };
        Registration { known: Some(known), ..wanted() }
    };
    let at = async |issuer: &str, wanted: &Registration| {
        client(&http(), &store, &clock, &metadata(issuer), wanted).await.map(|client| client.id)
    };
    let (first, other) = ("https://login.example/tenant", "https://evil.example/tenant");
    for _ in 0..2 {
        assert_eq!(at(first, &mine("u", "mine", None)).await.unwrap(), "mine");
        let refused = at(other, &mine("u", "mine", None)).await.unwrap_err().to_string();
        assert!(
            refused.contains(first) && refused.contains(&format!("oauth = {{ issuer = \"{other}\" }}")),
            "{refused}"
        );
        assert!(!refused.contains("hunter2"), "{refused}");
    }
    // Another upstream, another client, and what the config says.
    for wanted in [mine("v", "mine", None), mine("u", "yours", None), mine("u", "mine", Some(other))] {
        at(other, &wanted).await.unwrap();
    }
    at(first, &mine("u", "mine", None)).await.unwrap();
    let hostile = at("https://evil.example/\u{1b}[31m\" }", &mine("u", "mine", None)).await.unwrap_err().to_string();
    assert!(hostile.contains("issuer = \"https://evil.example\"") && !hostile.contains('\u{1b}'), "{hostile}");
}

#[tokio::test]
async fn what_another_version_has_kept_of_an_issuer_is_an_error() {
    let (store, clock) = (MemoryStore::default(), Clock::system());
    let about = "{\"issuers\":[\"https://login.example\"]}".to_owned();
    let value = weir_store::Value { about, secret: zeroize::Zeroizing::default() };
    store.put(&weir_store::Key::new("issuer", &["u", "mine"]), &value, None).await.unwrap();
    let metadata = ServerMetadata { issuer: "https://login.example".to_owned(), ..ServerMetadata::default() };
    let secret = OAuthApplication { id: "mine".to_owned(), auth: ClientAuth::Basic(Secret::new("hunter2".to_owned())) };
    let known = KnownClient { client: secret, issuer: None, upstream: Some("u".to_owned()) };
    let mine = Registration { known: Some(known), ..wanted() };
    let pinned = pinned(&store, &mine).await;
    let found = client(&http(), &store, &clock, &metadata, &mine).await;
    for refused in [pinned.map(drop).unwrap_err(), found.map(drop).unwrap_err()] {
        assert!(refused.to_string().contains("oauth = { issuer = \"…\" }"), "{refused}");
    }
}

#[test]
fn the_document_describes_itself() {
    let url = Url::parse("https://weir.example/client.json").unwrap();
    let redirects =
        ["https://weir.example/oauth/callback/a".to_owned(), "http://127.0.0.1/oauth/callback/a".to_owned()];
    let document = document(Some(url.as_str()), "Weir", &redirects);
    assert_eq!((&document["client_id"], &document["redirect_uris"]), (&json!(url.as_str()), &json!(redirects)));
    assert_eq!(document["token_endpoint_auth_method"], "none");
}

/// A server that lets users come back to addresses of others would let others have their codes.
#[tokio::test]
async fn each_server_registers_its_own_address_and_reads_its_own_document() {
    let below = |base: &str| Some(Redirect::Below(base.to_owned()));
    let mut sent = Vec::new();
    for _ in 0..2 {
        let own = registering(json!({})).await;
        let server = server(&own, json!({}));
        let wanted = Registration { redirect: below("https://weir.example/oauth/callback"), ..wanted() };
        client(&http(), &MemoryStore::default(), &Clock::system(), &server, &wanted).await.unwrap();
        let body: Value = serde_json::from_str(&own.seen("/register")[0].body).unwrap();
        assert_eq!(body["redirect_uris"], json!([wanted.redirect_for(&server)]));
        sent.push(body["redirect_uris"][0].clone());
        let reads = ServerMetadata { client_id_metadata_document_supported: true, ..server };
        let document = Some(Url::parse("https://weir.example/client/{issuer}.json").unwrap());
        let known = unasked(&reads, &Registration { document, ..wanted }).unwrap().unwrap();
        assert_eq!(known.id, format!("https://weir.example/client/{}.json", redirect::name(&reads.issuer)));
    }
    assert_ne!(sent[0], sent[1]);
}
