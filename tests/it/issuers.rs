//! Several issuers (`[[auth]]`): a token is checked by the one that it names, and by no other.

use bytes::Bytes;
use serde_json::json;
use weir_tests::peer::free_port;
use weir_tests::tokens::token_of;
use weir_tests::{Authority, Browser, Client, Gateway, Issuer, Request, Stub};

use crate::callers::{AUDIENCE, refused, tools, with};
use crate::oidc_login::gets_through;
use crate::sign_in::{guarded, modern};

const METADATA: &str = "/.well-known/oauth-protected-resource/mcp";

fn auth(issuer: &str, more: &str) -> String {
    format!("[[auth]]\nissuer = \"{issuer}\"\naudience = \"{AUDIENCE}\"\n{more}\n")
}

async fn status(gateway: &Gateway, token: &str) -> u16 {
    gateway.send(with(tools("/mcp"), token)).await.status
}

#[tokio::test]
async fn each_issuer_has_keys_scopes_and_callers_of_its_own() {
    let (one, two, stub) = (Issuer::start().await, Issuer::start().await, Stub::start().await);
    let config = auth(&one.issuer(), "scopes = [\"mcp\"]") + &auth(&two.issuer(), "scopes = [\"call\"]");
    let gateway = Gateway::start(&(config + &stub.config("stub"))).await;
    let token = |issuer: &Issuer, scope: &str| {
        let mut claims = issuer.claims("ada", AUDIENCE);
        claims["scope"] = json!(scope);
        issuer.sign(&claims)
    };
    let (first, second) = (token(&one, "mcp"), token(&two, "call"));
    assert_eq!((status(&gateway, &first).await, status(&gateway, &second).await), (200, 200));

    // What one asks for is nothing to the other.
    let (code, challenge, _) = refused(gateway.send(with(tools("/mcp"), &token(&two, "mcp"))).await).await;
    assert!(code == 403 && challenge.ends_with("scope=\"call\""), "{code} {challenge}");
    let (code, challenge, text) = refused(gateway.send(tools("/mcp")).await).await;
    assert!(code == 401 && challenge.ends_with("scope=\"mcp\""), "{code} {challenge}");
    assert!(text.contains(&one.issuer()) && text.contains(&two.issuer()), "{text}");
    let document = gateway.send(Request::get(METADATA)).await.json().await;
    assert_eq!(document["authorization_servers"], json!([one.issuer(), two.issuer()]));
    assert_eq!(document["scopes_supported"], json!(["mcp", "call"]));

    // Each `ada` is somebody else.
    let client = Client::legacy_with(&gateway, "/mcp/stub", &first, &json!({})).await;
    let stolen = with(client.request("tools/list", json!({})).1, &second);
    assert_eq!(gateway.send(stolen).await.status, 404);
}

#[tokio::test]
async fn an_issuer_answers_for_its_own_tokens_alone() {
    let (one, two, stranger) = (Issuer::start().await, Issuer::start().await, Issuer::start().await);
    let stub = Stub::start().await;
    let config = auth(&one.issuer(), "") + &auth(&two.issuer(), "");
    let gateway = Gateway::start(&(config + &stub.config("stub"))).await;
    for (token, why) in [
        (two.sign(&one.claims("ada", AUDIENCE)), "not signed by the issuer"),
        (one.sign(&two.claims("ada", AUDIENCE)), "not signed by the issuer"),
        (stranger.token("ada", AUDIENCE), "another issuer"),
        (one.sign(&json!({ "sub": "ada", "aud": AUDIENCE })), "another issuer"),
    ] {
        let (code, _, text) = refused(gateway.send(with(tools("/mcp"), &token)).await).await;
        assert!(code == 401 && text.contains(why), "{code} {text} is not {why}");
    }
    assert_eq!(stranger.fetches(), 0);
}

#[tokio::test]
async fn an_issuer_that_is_away_keeps_only_its_own_callers_out() {
    let (one, two, stub) = (Issuer::start().await, Issuer::start().await, Stub::start().await);
    one.say(Bytes::from_static(b"out of order"));
    let config = auth(&one.issuer(), "") + &auth(&two.issuer(), "");
    let gateway = Gateway::start(&(config + &stub.config("stub"))).await;
    assert_eq!(status(&gateway, &one.token("ada", AUDIENCE)).await, 503);
    assert_eq!(status(&gateway, &two.token("ada", AUDIENCE)).await, 200);
    assert_eq!(two.fetches(), 1);
}

#[tokio::test]
async fn a_link_leads_to_the_issuer_of_the_caller_it_was_made_for() {
    let (one, two) = (Authority::with(&json!({})), Authority::with(&json!({})));
    let (_stub, upstream) = guarded(&two, "github", "principal").await;
    let port = free_port();
    let root = format!("public_url = \"http://127.0.0.1:{port}\"\n");
    let config = root + &auth(one.issuer(), "") + &auth(two.issuer(), "") + &upstream;
    let gateway = Gateway::start_at_with(port, &config, &[("WEIR_TESTS_SECRET", "s3cret: +&%")]).await;
    let mut browser = Browser::of("ada");
    let token = token_of(two.issuer(), &mut browser, AUDIENCE).await;
    let client = Client::modern(&gateway, "/mcp").with_token(&token);
    let asked = modern(&client, "github__echo", json!({})).await;
    let link = asked["result"]["inputRequests"]["sign_in_github"]["params"]["url"].as_str().unwrap().to_owned();

    // Whoever comes without a link signs in at the first: somebody else, whatever they are called there.
    let mut other = Browser::of("ada");
    let page = other.open(&gateway.url("/connect")).await;
    assert!(page.status == 200 && page.text.contains("ada"), "{page:?}");
    let page = other.open(&link).await;
    assert!(page.status == 403 && page.text.contains("Not your link"), "{page:?}");

    let back = browser.open_until(&link, |url| url.starts_with(&gateway.url("/connect/callback"))).await.url;
    assert!(back.starts_with(&gateway.url("/connect/callback/")), "{back} is the address of the first");
    let page = browser.open(&back).await;
    let page = browser.press(&page, "connect/github/login").await;
    assert!(page.text.contains("Signed in at github"), "{}", page.text);
    assert!(gets_through(&client).await);
}
