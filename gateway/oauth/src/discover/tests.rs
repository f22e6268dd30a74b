#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use serde_json::{Value, json};

use super::*;
use crate::tests::scripted::{Scripted, ScriptedReply, http, nobody};

fn challenge(text: &str) -> Challenge {
    Challenge::token([text.as_bytes()]).unwrap()
}

/// Metadata of a server at `issuer`.
fn metadata(issuer: &str) -> Value {
    json!({
        "issuer": issuer,
        "authorization_endpoint": "https://as.example/authorize",
        "token_endpoint": "https://as.example/token",
        "code_challenge_methods_supported": ["S256"],
    })
}

#[tokio::test]
async fn the_refusal_points_the_way() {
    let server = Scripted::start(|own, seen| match seen.path.as_str() {
        "/elsewhere/metadata" => ScriptedReply::json(
            200,
            &json!({ "resource": own.join("/mcp").unwrap().as_str(), "authorization_servers": [format!("{own}tenant")],
                     "scopes_supported": ["a", "b"] }),
        ),
        "/tenant/.well-known/openid-configuration" => ScriptedReply::json(200, &metadata(&format!("{own}tenant"))),
        _ => ScriptedReply::status(404),
    })
    .await;
    let said = challenge(&format!("Bearer resource_metadata=\"{}\"", server.at("/elsewhere/metadata")));
    let found = discover(&http(), &server.at("/mcp"), Some(&said), None, None).await.unwrap();
    assert_eq!(found.resource, server.at("/mcp").as_str());
    assert_eq!(found.scopes, ["a", "b"]);
    assert_eq!(found.server.issuer, server.at("/tenant").as_str());
    assert_eq!(
        server.paths(),
        [
            "/elsewhere/metadata",
            "/.well-known/oauth-authorization-server/tenant",
            "/.well-known/openid-configuration/tenant",
            "/tenant/.well-known/openid-configuration",
        ]
    );
}

#[tokio::test]
async fn without_a_pointer_the_well_known_places_are_tried() {
    let server = Scripted::start(|own, seen| match seen.path.as_str() {
        "/.well-known/oauth-protected-resource" => ScriptedReply::json(
            200,
            &json!({ "resource": own.as_str(), "authorization_servers": [own.origin().ascii_serialization()] }),
        ),
        "/.well-known/oauth-authorization-server" => {
            ScriptedReply::json(200, &metadata(&own.origin().ascii_serialization()))
        }
        // Some hosts serve their page for everything.
        _ => ScriptedReply::text(200, "<html>welcome</html>"),
    })
    .await;
    for said in [None, Some(challenge("Bearer")), Some(challenge("Bearer resource_metadata=\"http://[\""))] {
        let found = discover(&http(), &server.at("/team/mcp"), said.as_ref(), None, None).await.unwrap();
        assert_eq!(found.server.issuer, server.issuer());
    }
    assert_eq!(
        server.paths()[..2],
        ["/.well-known/oauth-protected-resource/team/mcp", "/.well-known/oauth-protected-resource"]
    );
}

#[tokio::test]
async fn an_older_server_is_its_own_authorization_server() {
    let with = Scripted::start(|own, seen| match seen.path.as_str() {
        "/.well-known/oauth-authorization-server" => ScriptedReply::json(200, &metadata(own.as_str())),
        _ => ScriptedReply::status(404),
    })
    .await;
    let found = discover(&http(), &with.at("/mcp"), None, None, None).await.unwrap();
    assert_eq!((found.server.issuer.as_str(), found.resource.as_str()), (with.url.as_str(), with.at("/mcp").as_str()));

    let without = Scripted::start(|_, _| ScriptedReply::status(404)).await;
    let found = discover(&http(), &without.at("/mcp?x=1"), None, None, None).await.unwrap();
    assert_eq!(found.server.authorization_endpoint, Some(without.at("/authorize")));
    assert_eq!(found.server.token_endpoint, Some(without.at("/token")));
    assert_eq!(found.server.registration_endpoint, Some(without.at("/register")));
    assert!(found.server.has_pkce() && found.server.has_auth("none"));
}

#[tokio::test]
async fn metadata_of_somebody_else_is_refused() {
    let resource = Scripted::start(|_, seen| match seen.path.as_str() {
        "/.well-known/oauth-protected-resource/mcp" => {
            ScriptedReply::json(200, &json!({ "resource": "https://evil.example/mcp", "authorization_servers": [] }))
        }
        _ => ScriptedReply::status(404),
    })
    .await;
    let refused = discover(&http(), &resource.at("/mcp"), None, None, None).await.unwrap_err();
    assert!(matches!(refused, DiscoveryError::OtherResource { .. }), "{refused}");

    for named in ["https://evil.example", "{}/", "{}:80", "{}/x"] {
        let server = Scripted::start(move |own, seen| {
            let own = own.origin().ascii_serialization();
            match seen.path.as_str() {
                "/.well-known/oauth-protected-resource/mcp" => ScriptedReply::json(
                    200,
                    &json!({ "resource": format!("{own}/mcp"), "authorization_servers": [own] }),
                ),
                "/.well-known/oauth-authorization-server" => {
                    ScriptedReply::json(200, &metadata(&named.replace("{}", &own)))
                }
                _ => ScriptedReply::status(404),
            }
        })
        .await;
        let refused = discover(&http(), &server.at("/mcp"), None, None, None).await.unwrap_err();
        assert!(matches!(refused, DiscoveryError::OtherIssuer { .. }), "{named}: {refused}");
    }

    let old = Scripted::start(|_, seen| match seen.path.as_str() {
        "/.well-known/oauth-authorization-server" => ScriptedReply::json(200, &metadata("https://evil.example")),
        _ => ScriptedReply::status(404),
    })
    .await;
    let refused = discover(&http(), &old.at("/mcp"), None, None, None).await.unwrap_err();
    assert!(matches!(refused, DiscoveryError::OtherIssuer { .. }), "{refused}");
}

#[tokio::test]
async fn an_outage_is_no_evidence() {
    for status in [500, 502, 503, 429] {
        let server = Scripted::start(move |_, _| ScriptedReply::status(status)).await;
        let failed = discover(&http(), &server.at("/mcp"), None, None, None).await.unwrap_err();
        assert!(failed.is_temporary(), "{failed}");
    }
    let (gone, _socket) = nobody("/mcp");
    assert!(discover(&http(), &gone, None, None, None).await.unwrap_err().is_temporary());
}

#[tokio::test]
async fn a_server_without_metadata_is_named() {
    let server = Scripted::start(|own, seen| match seen.path.as_str() {
        "/.well-known/oauth-protected-resource/mcp" => ScriptedReply::json(
            200,
            &json!({ "resource": own.as_str(), "authorization_servers": [format!("{own}secret-tenant")] }),
        ),
        _ => ScriptedReply::text(200, vec![b'{'; 1000]),
    })
    .await;
    let failed = discover(&http(), &server.at("/mcp"), None, None, None).await.unwrap_err();
    assert_eq!(failed, DiscoveryError::NoServerMetadata { issuer: server.issuer() });
    assert!(!failed.is_temporary());
}

#[tokio::test]
async fn a_known_issuer_is_preferred_and_a_bad_one_refused() {
    let server = Scripted::start(|own, seen| match seen.path.as_str() {
        "/.well-known/oauth-protected-resource/mcp" => ScriptedReply::json(
            200,
            &json!({ "resource": own.as_str(), "authorization_servers": [format!("{own}one"), format!("{own}two")] }),
        ),
        path => match path.strip_prefix("/.well-known/oauth-authorization-server/") {
            Some(tenant) => ScriptedReply::json(200, &metadata(&format!("{own}{tenant}"))),
            None => ScriptedReply::status(404),
        },
    })
    .await;
    let two = server.at("/two");
    let found = discover(&http(), &server.at("/mcp"), None, None, Some(two.as_str())).await.unwrap();
    assert_eq!(found.server.issuer, two.as_str());
    let found = discover(&http(), &server.at("/mcp"), None, None, Some("https://gone.example")).await.unwrap();
    assert_eq!(found.server.issuer, server.at("/one").as_str());

    for bad in ["", "not a url", "https://as.example?x=1", "file:///etc/passwd", "http://169.254.169.254/"] {
        let server = Scripted::start(move |own, _| {
            ScriptedReply::json(200, &json!({ "resource": own.as_str(), "authorization_servers": [bad] }))
        })
        .await;
        let failed = discover(&http(), &server.at("/mcp"), None, None, None).await.unwrap_err();
        assert!(!failed.is_temporary(), "{bad}: {failed}");
    }
}

#[tokio::test]
async fn an_upstream_says_whose_tokens_it_takes() {
    let mine = "https://as.example/tenant";
    for (named, others) in [
        (json!([mine]), false),
        (json!(["https://new.example", mine]), false),
        (json!(["https://new.example"]), true),
        (json!(["https://as.example/tenant/"]), true),
        (json!([]), false),
        (Value::Null, false),
    ] {
        let document = named.clone();
        let server = Scripted::start(move |own, _| {
            ScriptedReply::json(
                200,
                &json!({ "resource": own.join("/mcp").unwrap().as_str(), "authorization_servers": document }),
            )
        })
        .await;
        let said = names_others(&http(), &server.at("/mcp"), None, mine).await;
        assert_eq!(said, Ok(others), "{named}");
    }
    let silent = Scripted::start(|_, _| ScriptedReply::status(404)).await;
    assert_eq!(names_others(&http(), &silent.at("/mcp"), None, mine).await, Ok(false));
    let ill = Scripted::start(|_, _| ScriptedReply::status(503)).await;
    assert!(names_others(&http(), &ill.at("/mcp"), None, mine).await.is_err());
}
