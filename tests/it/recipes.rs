//! The recipes of `docs/authentication.md`, each with an authorization server whose tokens look like the provider's, and which
//! refuses what the provider refuses.

use std::process::Command;

use serde_json::{Value, json};
use weir_tests::paths::{node, peers};
use weir_tests::peer::free_port;
use weir_tests::process::Process;
use weir_tests::tokens::{claims, client_token};
use weir_tests::{Authority, Client, Gateway, Issuer, Stub, paths};

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
    let resource = if settings["resource"].is_null() { Some("https://weir.example.com/mcp") } else { None };
    let token = client_token(authority.issuer(), 0, resource, scope).await;
    assert_eq!(claims(&token)["aud"], json!(audience));
    assert_eq!(status(&gateway, &token).await.0, 200, "{}", gateway.log());
    let without = client_token(authority.issuer(), 0, resource, "other").await;
    assert_eq!(status(&gateway, &without).await.0, 403);
    let document = weir_tests::Request::get("/.well-known/oauth-protected-resource/mcp");
    let document = gateway.send(document).await.json().await;
    assert_eq!(document["authorization_servers"], json!([authority.issuer()]));

    settings["audience"] = json!("https://other.example.com");
    let (elsewhere, stub) = (Authority::with(&settings), Stub::start().await);
    let config = recipe(heading, elsewhere.issuer()).0 + &stub.config("stub");
    let other = Gateway::start_with(&config, &[("WEIR_CLIENT_SECRET", "secret")]).await;
    let token = client_token(elsewhere.issuer(), 0, resource, scope).await;
    let (code, why) = status(&other, &token).await;
    assert!(code == 401 && why.contains("another audience"), "{code} {why}");

    // That the groups are read shows where they are too many.
    let many = json!(vec!["x"; 201]);
    match groups.split_once('.') {
        Some((outer, inner)) => settings["claims"][outer] = json!({ inner: many }),
        None => settings["claims"][groups] = many,
    }
    let (authority, _stub, gateway, _) = scene(heading, &settings).await;
    let token = client_token(authority.issuer(), 0, resource, scope).await;
    let (code, why) = status(&gateway, &token).await;
    assert!(code == 401 && why.contains("does not list its groups"), "{code} {why}");
}

/// Whom a provider knows as Weir, where it registers nobody.
const SECRET: &str = "secret";

/// A real client signs alice in, and sees what a rule lets her `group` see. `registers` is whether clients register at the
/// provider; else they do at Weir.
async fn signs_in(heading: &str, settings: Value, registers: bool, group: &str) {
    assert_eq!(tools_after_sign_in(heading, settings, registers, group).await, 5, "{heading}");
}

async fn tools_after_sign_in(heading: &str, mut settings: Value, registers: bool, group: &str) -> Value {
    let (port, stub) = (free_port(), Stub::start().await);
    let root = format!("http://127.0.0.1:{port}");
    let (written, _) = recipe(heading, "");
    let id = written.split("client_id").nth(1).and_then(|rest| rest.split('"').nth(1));
    let client = json!({
        "client_id": id.unwrap_or("weir"), "client_secret": SECRET, "redirect_uris": [format!("{root}/connect/callback")],
        "application_type": "native",
    });
    settings["registers"] = json!(registers);
    settings["names"] = json!(true);
    settings["clients"] = if registers { json!([]) } else { json!([client]) };
    settings["audience"] = json!(format!("{root}/mcp"));
    let authority = Authority::with(&settings);
    let mut config = recipe(heading, authority.issuer()).0.replace("https://weir.example.com", &root);
    if !registers && id.is_none() {
        config += "client_id = \"weir\"\nclient_secret = { env = \"WEIR_CLIENT_SECRET\" }\n";
    }
    if !registers && !config.contains("[authorization_server]") {
        config += "[authorization_server]\n";
    }
    if !config.contains("public_url") {
        config.insert_str(0, &format!("public_url = {root:?}\n"));
    }
    if !config.contains("[[access.rules]]") {
        config += &format!("[[access.rules]]\ngroups = [{group:?}]\n");
    }
    config += &stub.config("stub");
    let gateway = Gateway::start_at_with(port, &config, &[("WEIR_CLIENT_SECRET", SECRET)]).await;
    gateway.logs("upstream is healthy").await;
    let mut command = Command::new(node());
    command.arg(peers("clients/sign_in.mjs")).args(["2", &gateway.url("/mcp")]);
    command.env("SCOPE", settings["scopes"].as_str().unwrap_or_default());
    let mut client = Process::start("the client", &mut command);
    let said = client.says("what it got", |line| serde_json::from_str::<Value>(line).ok()).await;
    assert_eq!(said["audience"], json!(format!("{root}/mcp")), "{heading}: {}", gateway.log());
    said["tools"].clone()
}

#[tokio::test]
async fn entra_id() {
    const GROUP: &str = "0d3f7b0c-7c3f-4b6e-9f2e-5d1d1f3b1a11";
    let shape = json!({
        "ver": "2.0", "tid": "9122040d-6c67-4c5b-b112-36a304b66dad", "oid": "690222be-ff1a-4d56-abd1-7e4f7d38e474",
        "azp": "e1bbbe24-51d7-4e1e-a5a3-ea1f1d2e2f5b", "azpacr": "0", "uti": "x", "rh": "x",
        "roles": ["Tools.Admin"], "groups": [GROUP],
    });
    let scope = "api://11111111-2222-3333-4444-555555555555/Mcp.Call";
    // The token has the scope's own name, and the client asks for it by the whole. It may name no other resource.
    let settings = json!({
        "scp": "short", "claims": shape, "registers": false, "iss": false, "groups": { "alice": [GROUP] },
        "resource": "api://11111111-2222-3333-4444-555555555555",
    });
    works("Entra ID", settings.clone(), scope, "groups").await;
    signs_in("Entra ID", settings, false, GROUP).await;
}

#[tokio::test]
async fn okta() {
    let shape = json!({ "ver": 1, "cid": "0oa1", "uid": "00u1", "auth_time": 1, "groups": ["Everyone", "ops"] });
    let settings = json!({
        "scp": "list", "claims": shape, "registers": false, "iss": false, "groups": { "alice": ["Everyone", "ops"] },
    });
    works("Okta", settings.clone(), "mcp", "groups").await;
    signs_in("Okta", settings, false, "ops").await;
}

#[tokio::test]
async fn keycloak() {
    let shape = json!({
        "typ": "Bearer", "azp": "claude", "session_state": "x", "sid": "x", "acr": "1", "email_verified": true,
        "preferred_username": "ada", "realm_access": { "roles": ["offline_access", "ops"] },
        "resource_access": { "account": { "roles": ["view-profile"] } },
    });
    works("Keycloak", json!({ "claims": shape }), "mcp", "realm_access.roles").await;
    signs_in("Keycloak", json!({ "claims": shape, "scopes": "mcp" }), true, "ops").await;
}

#[tokio::test]
async fn google() {
    // It names no groups, its access tokens are opaque, and it registers nobody.
    let people = json!({ "alice": { "hd": "example.com", "email_verified": true } });
    let settings = json!({ "opaque": true, "scopes": "profile email", "people": people });
    signs_in("Google", settings.clone(), false, "").await;
    // So can everybody else, to whom nothing is there.
    for people in [json!({ "alice": { "hd": "example.org" } }), json!({ "alice": { "email_verified": true } })] {
        let mut settings = settings.clone();
        settings["people"] = people;
        assert_eq!(tools_after_sign_in("Google", settings, false, "").await, 0);
    }

    // An ID token of Google, of whichever client, opens nothing.
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let (config, audience) = recipe("Google", &issuer.issuer());
    let gateway = Gateway::start_with(&(config + &stub.config("stub")), &[("WEIR_CLIENT_SECRET", SECRET)]).await;
    let mut claims = issuer.claims("ada", &audience);
    claims["hd"] = json!("example.com");
    assert_eq!(status(&gateway, &issuer.sign(&claims)).await.0, 403);
    claims["scope"] = json!("mcp");
    claims["hd"] = json!("example.org");
    let stranger = issuer.sign(&claims);
    assert_eq!(Client::modern(&gateway, "/mcp").with_token(&stranger).tools().await, Vec::<String>::new());
    assert_eq!(gateway.send(with(tools("/mcp/stub"), &stranger)).await.status, 404);
}

#[tokio::test]
async fn github_behind_a_broker() {
    let shape = json!({ "identity_provider": "github", "groups": ["org:team"] });
    works("GitHub", json!({ "claims": shape }), "mcp", "groups").await;
    signs_in("GitHub", json!({ "claims": shape, "scopes": "mcp" }), true, "org:team").await;

    // GitHub's own tokens say nothing.
    let (_authority, _stub, gateway, _) = scene("GitHub", &json!({ "claims": shape })).await;
    let (code, why) = status(&gateway, "gho_16C7e42F292c6912E7710c838347Ae178B4a").await;
    assert!(code == 401 && why.contains("no signed JWT"), "{code} {why}");
}
