//! The recipes of `docs/authentication.md`, each with an authorization server whose tokens look like the provider's.

use serde_json::{Value, json};
use weir_tests::tokens::{claims, token_for};
use weir_tests::{Authority, Gateway, Stub, paths};

use crate::callers::{refused, tools, with};

/// What the page writes below a heading, with another issuer. Says what it calls Weir, too.
fn recipe(heading: &str, issuer: &str) -> (String, String) {
    let page = std::fs::read_to_string(paths::tests().join("../docs/authentication.md")).unwrap();
    let section = page.split(&format!("### {heading}\n")).nth(1).unwrap_or_else(|| panic!("no section {heading}"));
    let block = section.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap().to_owned();
    let value = |key: &str| {
        let line = block.lines().find(|line| line.split('=').next().is_some_and(|name| name.trim() == key));
        line.and_then(|line| line.split('"').nth(1)).unwrap_or_else(|| panic!("no {key} in {block}")).to_owned()
    };
    (block.replace(&value("issuer"), issuer), value("audience"))
}

/// A provider, the gateway of its recipe, and what its tokens are made for.
async fn scene(heading: &str, settings: &Value) -> (Authority, Stub, Gateway, String) {
    let (_, audience) = recipe(heading, "");
    let mut settings = settings.clone();
    settings["audience"] = json!(audience);
    let (authority, stub) = (Authority::with(&settings), Stub::start().await);
    let (config, audience) = recipe(heading, authority.issuer());
    let gateway = Gateway::start_with(&(config + &stub.config("stub")), &[("WEIR_CLIENT_SECRET", "secret")]).await;
    (authority, stub, gateway, audience)
}

async fn status(gateway: &Gateway, token: &str) -> (u16, String) {
    let (status, _, text) = refused(gateway.send(with(tools("/mcp"), token)).await).await;
    (status, text)
}

/// A provider's token opens Weir; one without the scope, for another audience, or of too many groups does not.
async fn works(heading: &str, mut settings: Value, scope: &str, groups: &str) {
    settings["scopes"] = json!(format!("{scope} other"));
    let (authority, _stub, gateway, audience) = scene(heading, &settings).await;
    let resource = "https://weir.example.com/mcp";
    let token = token_for(authority.issuer(), 0, resource, scope).await;
    assert_eq!(claims(&token)["aud"], json!(audience));
    assert_eq!(status(&gateway, &token).await.0, 200, "{}", gateway.log());
    let without = token_for(authority.issuer(), 0, resource, "other").await;
    assert_eq!(status(&gateway, &without).await.0, 403);
    let document = weir_tests::Request::get("/.well-known/oauth-protected-resource/mcp");
    let document = gateway.send(document).await.json().await;
    assert_eq!(document["authorization_servers"], json!([authority.issuer()]));

    settings["audience"] = json!("https://other.example.com");
    let (elsewhere, stub) = (Authority::with(&settings), Stub::start().await);
    let config = recipe(heading, elsewhere.issuer()).0 + &stub.config("stub");
    let other = Gateway::start_with(&config, &[("WEIR_CLIENT_SECRET", "secret")]).await;
    let token = token_for(elsewhere.issuer(), 0, resource, scope).await;
    let (code, why) = status(&other, &token).await;
    assert!(code == 401 && why.contains("another audience"), "{code} {why}");

    // That the groups are read shows where they are too many.
    let many = json!(vec!["x"; 201]);
    match groups.split_once('.') {
        Some((outer, inner)) => settings["claims"][outer] = json!({ inner: many }),
        None => settings["claims"][groups] = many,
    }
    let (authority, _stub, gateway, _) = scene(heading, &settings).await;
    let token = token_for(authority.issuer(), 0, resource, scope).await;
    let (code, why) = status(&gateway, &token).await;
    assert!(code == 401 && why.contains("does not list its groups"), "{code} {why}");
}

#[tokio::test]
async fn entra_id() {
    let shape = json!({
        "ver": "2.0", "tid": "9122040d-6c67-4c5b-b112-36a304b66dad", "oid": "690222be-ff1a-4d56-abd1-7e4f7d38e474",
        "azp": "e1bbbe24-51d7-4e1e-a5a3-ea1f1d2e2f5b", "azpacr": "0", "uti": "x", "rh": "x",
        "roles": ["Tools.Admin"], "groups": ["0d3f7b0c-7c3f-4b6e-9f2e-5d1d1f3b1a11"],
    });
    // The token has the scope's own name, and the client asks for it by the whole.
    let settings = json!({ "scp": "short", "claims": shape });
    works("Entra ID", settings, "api://11111111-2222-3333-4444-555555555555/Mcp.Call", "groups").await;
}

#[tokio::test]
async fn okta() {
    let shape = json!({ "ver": 1, "cid": "0oa1", "uid": "00u1", "auth_time": 1, "groups": ["Everyone", "ops"] });
    works("Okta", json!({ "scp": "list", "claims": shape }), "mcp", "groups").await;
}

#[tokio::test]
async fn keycloak() {
    let shape = json!({
        "typ": "Bearer", "azp": "claude", "session_state": "x", "sid": "x", "acr": "1", "email_verified": true,
        "preferred_username": "ada", "realm_access": { "roles": ["offline_access", "ops"] },
        "resource_access": { "account": { "roles": ["view-profile"] } },
    });
    works("Keycloak", json!({ "claims": shape }), "mcp", "realm_access.roles").await;
}

#[tokio::test]
async fn google_and_github_behind_a_broker() {
    let shape = json!({ "identity_provider": "github", "groups": ["org:team"] });
    works("Google and GitHub", json!({ "claims": shape }), "mcp", "groups").await;
}
