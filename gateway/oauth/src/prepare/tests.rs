#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Duration;

use serde_json::json;
use weir_store::{MemoryStore, Secret};

use super::*;
use crate::{
    ClientAuth, KnownClient,
    tests::scripted::{Scripted, ScriptedReply, http},
};

/// An upstream at `/mcp` that names these of its own paths as its servers, of which each says so of itself.
async fn naming(servers: &'static [&'static str]) -> Scripted {
    Scripted::start(move |own, seen| match seen.path.strip_prefix("/.well-known/oauth-authorization-server/") {
        Some("gone") => ScriptedReply::status(404),
        Some(name) => {
            let metadata = json!({ "issuer": format!("{own}{name}"), "token_endpoint": format!("{own}{name}/token") });
            ScriptedReply::json(200, &metadata)
        }
        None if seen.path == "/.well-known/oauth-protected-resource/mcp" => {
            let issuers: Vec<String> = servers.iter().map(|name| format!("{own}{name}")).collect();
            let resource = own.join("/mcp").unwrap();
            ScriptedReply::json(200, &json!({ "resource": resource.as_str(), "authorization_servers": issuers }))
        }
        None => ScriptedReply::status(404),
    })
    .await
}

/// It, with a client that has a secret and no issuer.
fn upstream(url: Url, id: &str) -> PreparedUpstream {
    let client = OAuthApplication { id: id.to_owned(), auth: ClientAuth::Basic(Secret::new("hunter2".to_owned())) };
    let known = KnownClient { client, issuer: None, upstream: Some("u".to_owned()) };
    PreparedUpstream {
        name: "u".to_owned(),
        url,
        issuer: None,
        registration: Registration {
            known: Some(known),
            document: None,
            name: "Weir".to_owned(),
            redirect: None,
            grants: vec!["client_credentials"],
            key: None,
        },
        scopes: None,
        names_resource: true,
        signs_in: false,
        dpop: None,
    }
}

/// A login that the server at `/{name}` has made for the client `mine`.
fn login(own: &Scripted, name: &str) -> Login {
    let issuer = own.at(&format!("/{name}")).to_string();
    let server = ServerMetadata { issuer, ..ServerMetadata::default() };
    let access = Secret::new("token".to_owned());
    let lifetime = Some(Duration::from_secs(60));
    let tokens = Tokens { access, scheme: None, refresh: None, lifetime, scopes: None, identity: None, kind: None };
    let (url, scopes) = (own.at("/mcp"), ["a".to_owned()].into_iter().collect());
    let client = upstream(url.clone(), "mine").registration.known.unwrap().client;
    Login::new(tokens, &url, Some("for this".to_owned()), &scopes, client, server, SystemTime::now())
}

#[tokio::test]
async fn a_secret_stays_at_its_server_as_long_as_that_is_named() {
    let (store, clock) = (MemoryStore::default(), Clock::system());
    let own = naming(&["other", "first"]).await;
    let (first, other) = (own.at("/first").to_string(), own.at("/other").to_string());
    let upstream = upstream(own.at("/mcp"), "mine");
    let find = async |issuer: Option<&str>| {
        prepare(&http(), &store, &clock, &upstream, None, issuer).await.map(|prepared| prepared.server.issuer)
    };
    // The login that is there chooses as long as nothing else does.
    assert_eq!(find(Some(&first)).await.unwrap(), first);
    for issuer in [None, Some(first.as_str()), Some(other.as_str())] {
        assert_eq!(find(issuer).await.unwrap(), first, "{issuer:?}");
    }

    let moved = naming(&["other"]).await;
    let upstream = self::upstream(moved.at("/mcp"), "mine");
    let refused = prepare(&http(), &store, &clock, &upstream, None, None).await.unwrap_err();
    assert!(matches!(refused, PrepareError::Registration(RegistrationError::Moved { .. })), "{refused}");
}

#[tokio::test]
async fn a_login_that_nobody_has_refused_stays_where_it_is() {
    let own = naming(&["other"]).await;
    let clock = Clock::system();
    let again = async |upstream: &PreparedUpstream, before: &Login| {
        prepare_again(&http(), &MemoryStore::default(), &clock, upstream, before).await.unwrap()
    };
    let mine = upstream(own.at("/mcp"), "mine");
    for (name, known) in [("first", true), ("gone", false)] {
        let prepared = again(&mine, &login(&own, name)).await;
        assert_eq!(prepared.server.issuer, own.at(&format!("/{name}")).as_str());
        assert_eq!(prepared.server.token_endpoint.is_some(), known, "what it says now, if it does");
        assert_eq!((prepared.resource.as_deref(), prepared.scopes.render().as_str()), (Some("for this"), "a"));
    }
    assert!(own.seen("/.well-known/oauth-protected-resource/mcp").is_empty(), "the upstream has no say");

    // A client that was not there yet begins where the upstream says, and so does a login that has no resource.
    let changed = again(&upstream(own.at("/mcp"), "yours"), &login(&own, "first")).await;
    let without = Login { resource: None, ..login(&own, "first") };
    let found = again(&mine, &without).await;
    for prepared in [changed, found] {
        assert_eq!(prepared.server.issuer, own.at("/other").as_str());
        assert_eq!(prepared.resource.as_deref(), Some(own.at("/mcp").as_str()));
    }
    let narrow = PreparedUpstream { names_resource: false, ..mine };
    assert_eq!(again(&narrow, &without).await.server.issuer, own.at("/first").as_str());
}
