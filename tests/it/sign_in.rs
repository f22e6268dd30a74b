//! Signing in through the gateway: a call that needs a login says where, `/connect` leads there, and the call goes through.
//!
//! Links are trusted here (`trust_sign_in_links`); that people say who they are is seen to in `oidc_login`.

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use weir_tests::browser::Page;
use weir_tests::client::{answer, with_meta};
use weir_tests::wait::until;
use weir_tests::{Authority, Browser, Client, Gateway, Issuer, LEGACY, Stub};

pub(crate) const AUDIENCE: &str = "https://weir.example/mcp";

pub(crate) fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {result}"))
}

/// An upstream that wants a login, and the lines that make it `name` with a login for each caller.
pub(crate) async fn guarded(authority: &Authority, name: &str, owner: &str) -> (Stub, String) {
    let stub = authority.upstream().await;
    let config = format!("{}auth = \"oauth\"\nowner = \"{owner}\"\n", stub.config(name));
    (stub, config)
}

/// A gateway that browsers know by its own address, with callers of `issuer`.
pub(crate) async fn proved(issuer: &Issuer, upstreams: &str) -> Gateway {
    let port = weir_tests::peer::free_port();
    let public = format!("http://127.0.0.1:{port}");
    let auth =
        format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\ntrust_sign_in_links = true\n", issuer.issuer());
    Gateway::start_at(port, &format!("public_url = \"{public}\"\n{auth}{upstreams}")).await
}

/// Opens the page by the link that a caller was given.
async fn enter(browser: &mut Browser, link: &str) -> Page {
    let page = browser.open(link).await;
    assert!(page.text.contains("Is this you?"), "{}", page.text);
    browser.press(&page, "connect").await
}

/// A call of a modern client that opens addresses.
fn call(client: &Client, tool: &str, more: Value) -> (u64, weir_tests::Request) {
    let mut params = json!({ "name": tool, "arguments": { "message": "hi" } });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    client.request_with("tools/call", with_meta(params, &json!({ "elicitation": { "url": {} } })))
}

pub(crate) async fn modern(client: &Client, tool: &str, more: Value) -> Value {
    let (id, request) = call(client, tool, more);
    let (method, params) = ("tools/call", json!({ "name": tool }));
    answer(client.send(client.dressed(request, method, &params)).await, id).await
}

/// A call that waits for somebody to sign in, on its way beside whatever comes next.
pub(crate) fn waiting(gateway: &Gateway, client: &Client, tool: &str, more: Value) -> JoinHandle<Value> {
    let (id, request) = call(client, tool, more);
    let request = client.dressed(request, "tools/call", &json!({ "name": tool }));
    let address = gateway.address();
    tokio::spawn(async move { answer(request.send(address).await, id).await })
}

#[tokio::test]
async fn on_this_machine_the_page_is_open_and_leads_to_a_login() {
    let authority = Authority::start(3600);
    let (stub, config) = guarded(&authority, "github", "shared").await;
    let plain = Stub::start().await;
    let gateway = Gateway::start(&(config + &plain.config("plain"))).await;
    gateway.healthy(&["plain"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    let told = client.call("github__echo", json!({ "message": "hi" })).await;
    assert!(told["isError"] == true && text(&told).contains(&gateway.url("/connect")), "{told}");

    let mut browser = Browser::new();
    let page = browser.open(&gateway.url("/connect")).await;
    assert!(page.text.contains("not signed in") && page.text.contains("needs no login"), "{}", page.text);
    let page = browser.press(&page, "connect/github/login").await;
    assert!(page.text.contains("Signed in at github"), "{}", page.text);
    assert!(page.text.contains(&format!("signed in at {}", authority.issuer())), "{}", page.text);
    assert_eq!(page.url, gateway.url("/connect"));
    let again = browser.open(&page.url).await;
    assert!(!again.text.contains("Signed in at github"), "it is said once");

    let result = client.call("github__echo", json!({ "message": "hi" })).await;
    assert_eq!(text(&result), "hi");
    assert!(!stub.tokens().is_empty());

    let page = browser.press(&again, "connect/github/logout").await;
    assert!(page.text.contains("Signed out of github") && page.text.contains("not signed in"), "{}", page.text);
}

#[tokio::test]
async fn a_client_that_opens_addresses_is_asked_once_for_all_that_is_missing() {
    let (authority, issuer) = (Authority::start(3600), Issuer::start().await);
    let (_one, first) = guarded(&authority, "one", "principal").await;
    let (_two, second) = guarded(&authority, "two", "principal").await;
    let gateway = proved(&issuer, &(first + &second)).await;
    let ada = issuer.token("ada", AUDIENCE);
    let opens = json!({ "elicitation": { "form": {}, "url": {} } });
    let client = Client::legacy_with(&gateway, "/mcp", &ada, &opens).await;
    let mut stream = client.stream().await;

    let told = client.ask("tools/call", json!({ "name": "two__echo", "arguments": { "message": "hi" } })).await;
    assert_eq!(told["error"]["code"], -32042, "{told}");
    let elicitations = told["error"]["data"]["elicitations"].as_array().unwrap();
    let about = |at: usize| elicitations[at]["message"].as_str().unwrap();
    assert!(elicitations.len() == 2 && about(0).contains("two") && about(1).contains("one"), "{told}");
    assert!(elicitations.iter().all(|one| one["mode"] == "url"), "{told}");
    let again = client.ask("tools/call", json!({ "name": "two__echo", "arguments": { "message": "hi" } })).await;
    assert_eq!(
        again,
        {
            let mut same = told.clone();
            same["id"] = again["id"].clone();
            same
        },
        "it is the same question"
    );

    let mut browser = Browser::new();
    let page = enter(&mut browser, elicitations[0]["url"].as_str().unwrap()).await;
    assert!(page.text.contains("For ada"), "{}", page.text);
    let page = browser.press(&page, "connect/two/login").await;
    assert!(page.text.contains("Signed in at two"), "{}", page.text);
    // The other link leads to the same page, for the browser is known by now.
    let other = browser.open(elicitations[1]["url"].as_str().unwrap()).await;
    assert!(other.text.contains("connect/one/login"), "{}", other.text);

    let (mut complete, mut changed) = (None, false);
    while complete.is_none() || !changed {
        let message = stream.next_message().await.unwrap();
        match message["method"].as_str() {
            Some("notifications/elicitation/complete") => complete = Some(message["params"]["elicitationId"].clone()),
            Some("notifications/tools/list_changed") => changed = true,
            _ => {}
        }
    }
    assert_eq!(complete.unwrap(), elicitations[0]["elicitationId"]);
    let result = client.call("two__echo", json!({ "message": "hi" })).await;
    assert_eq!(text(&result), "hi");
    assert!(client.tools().await.contains(&"two__echo".to_owned()));
    let eve = Client::legacy_with(&gateway, "/mcp", &issuer.token("eve", AUDIENCE), &json!({})).await;
    assert_eq!(eve.tools().await, ["one__sign_in", "two__sign_in"], "what ada is shown is nobody else's");
    let told = eve.call("two__echo", json!({ "message": "hi" })).await;
    assert!(told["isError"] == true && text(&told).contains("/connect?ticket="), "{told}");
}

#[tokio::test]
async fn a_modern_call_waits_for_its_login_and_goes_through() {
    let (authority, issuer) = (Authority::start(3600), Issuer::start().await);
    let (stub, config) = guarded(&authority, "github", "principal").await;
    let gateway = proved(&issuer, &config).await;
    let (ada, eve) = (issuer.token("ada", AUDIENCE), issuer.token("eve", AUDIENCE));
    let (ada, eve) =
        (Client::modern(&gateway, "/mcp").with_token(&ada), Client::modern(&gateway, "/mcp").with_token(&eve));

    let asked = modern(&ada, "github__echo", json!({})).await;
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let request = &asked["result"]["inputRequests"]["sign_in_github"];
    assert_eq!((&request["method"], &request["params"]["mode"]), (&json!("elicitation/create"), &json!("url")));
    let link = request["params"]["url"].as_str().unwrap().to_owned();
    let state = asked["result"]["requestState"].clone();
    let back = json!({ "requestState": state, "inputResponses": { "sign_in_github": { "action": "accept" } } });

    // Somebody else's state is none, and it waits for nobody.
    let stolen = modern(&eve, "github__echo", back.clone()).await;
    assert!(stolen["result"]["resultType"] != "input_required", "{stolen}");
    let no = json!({ "requestState": state, "inputResponses": { "sign_in_github": { "action": "decline" } } });
    let declined = modern(&ada, "github__echo", no).await;
    assert!(declined["result"]["isError"] == true && text(&declined["result"]).contains("declined"), "{declined}");

    // It comes back before anybody has signed in, and gets its answer when that is done.
    let waiting = waiting(&gateway, &ada, "github__echo", back);
    let mut browser = Browser::new();
    let page = enter(&mut browser, &link).await;
    let page = browser.press(&page, "connect/github/login").await;
    assert!(page.text.contains("Signed in at github"), "{}", page.text);
    let done = waiting.await.unwrap();
    assert_eq!(text(&done["result"]), "hi", "{done}");
    assert!(ada.tools().await.contains(&"github__echo".to_owned()));
    assert_eq!(eve.tools().await, ["github__sign_in"]);
    for seen in stub.asked("tools/call") {
        assert!(seen.message()["params"].get("requestState").is_none(), "it is between the client and Weir");
    }
}

#[tokio::test]
async fn one_upstream_s_own_path_asks_at_the_handshake() {
    let (authority, issuer) = (Authority::start(3600), Issuer::start().await);
    let (_stub, config) = guarded(&authority, "github", "principal").await;
    let gateway = proved(&issuer, &config).await;
    let ada = issuer.token("ada", AUDIENCE);
    let hello = weir_tests::client::initialize("/mcp/github", LEGACY, &json!({ "elicitation": { "url": {} } }));
    let hello = hello.header("authorization", &format!("Bearer {ada}"));
    let told = gateway.send(hello.clone()).await.json().await;
    assert_eq!(told["error"]["code"], -32042, "{told}");
    let mut browser = Browser::new();
    let page = enter(&mut browser, told["error"]["data"]["elicitations"][0]["url"].as_str().unwrap()).await;
    browser.press(&page, "connect/github/login").await;
    let client = Client::legacy_with(&gateway, "/mcp/github", &ada, &json!({})).await;
    assert_eq!(text(&client.call("echo", json!({ "message": "hi" })).await), "hi");
}

#[tokio::test]
async fn a_link_is_its_owners_and_good_once() {
    let (authority, issuer) = (Authority::start(3600), Issuer::start().await);
    let (_stub, config) = guarded(&authority, "github", "principal").await;
    let gateway = proved(&issuer, &config).await;
    let client = Client::modern(&gateway, "/mcp").with_token(&issuer.token("ada", AUDIENCE));
    let asked = modern(&client, "github__echo", json!({})).await;
    let link = asked["result"]["inputRequests"]["sign_in_github"]["params"]["url"].as_str().unwrap().to_owned();

    let stranger = Browser::new().open(&gateway.url("/connect")).await;
    assert_eq!(stranger.status, 401);
    assert!(stranger.text.contains("does not know this browser") && !stranger.text.contains("github"));
    // Looking at a link does not use it up: programs do that.
    Browser::new().open(&link).await;
    let (mut first, mut second) = (Browser::new(), Browser::new());
    let late = second.open(&link).await;
    let page = enter(&mut first, &link).await;
    assert!(page.text.contains("connect/github/login"), "{}", page.text);
    // Two browsers with one link: the second comes too late.
    assert_eq!(second.press(&late, "connect").await.status, 410);
    assert_eq!(Browser::new().open(&link).await.status, 410);
    assert_eq!(Browser::new().open(&gateway.url("/connect?ticket=0")).await.status, 410);

    // A page's forms are its browser's own.
    let eve = Client::modern(&gateway, "/mcp").with_token(&issuer.token("eve", AUDIENCE));
    let asked = modern(&eve, "github__echo", json!({})).await;
    let hers = asked["result"]["inputRequests"]["sign_in_github"]["params"]["url"].as_str().unwrap().to_owned();
    let mut other = Browser::new();
    enter(&mut other, &hers).await;
    let stolen = other.press(&page, "connect/github/login").await;
    assert_eq!(stolen.status, 403, "{}", stolen.text);
    assert_eq!(Browser::new().press(&page, "connect/github/login").await.status, 403);
    assert_eq!(first.send(&gateway.url("/connect/github/login"), "key=").await.status, 403);
    assert_eq!(first.send(&gateway.url("/connect/nobody/login"), &key(&page)).await.status, 404);
    let from_afar = weir_tests::Request::new("POST", "/connect/github/login").header("origin", "https://evil.example");
    assert_eq!(gateway.send(from_afar).await.status, 403);
}

/// The key in a page's first form.
fn key(page: &Page) -> String {
    let (_, fields) = page.form("login");
    format!("key={}", fields[0].1)
}

#[tokio::test]
async fn a_sign_in_ends_in_the_browser_that_began_it_and_once() {
    let (authority, issuer) = (Authority::start(3600), Issuer::start().await);
    let (_stub, config) = guarded(&authority, "github", "principal").await;
    let gateway = proved(&issuer, &config).await;
    let back = gateway.url(&authority.callback());
    let mut browsers = Vec::new();
    for name in ["ada", "eve"] {
        let client = Client::modern(&gateway, "/mcp").with_token(&issuer.token(name, AUDIENCE));
        let asked = modern(&client, "github__echo", json!({})).await;
        let link = asked["result"]["inputRequests"]["sign_in_github"]["params"]["url"].as_str().unwrap().to_owned();
        let mut browser = Browser::new();
        let page = enter(&mut browser, &link).await;
        browsers.push((client, browser, page));
    }
    let [(ada, first, page), (eve, second, _)] = &mut browsers[..] else { panic!("two") };
    let returned = first.press_until(page, "connect/github/login", |url| url.starts_with(&back)).await;
    assert!(returned.url.contains("code=") && returned.url.contains("state="), "{}", returned.url);

    // Tampered, somebody else's, nobody's: it fails, and harms nothing.
    let (before, state) = returned.url.split_once("state=").unwrap();
    let tampered = format!("{before}state=x{state}");
    assert!(first.open(&tampered).await.text.contains("Not signed in"));
    assert!(second.open(&returned.url).await.text.contains("Not signed in"));
    let nobody = Browser::new().open(&returned.url).await;
    assert!(nobody.status == 400 && nobody.text.contains("has not begun a sign-in"), "{}", nobody.text);
    assert!(modern(eve, "github__echo", json!({})).await["result"]["resultType"] == "input_required");

    let done = first.open(&returned.url).await;
    assert!(done.text.contains("Signed in at github"), "{}", done.text);
    let twice = first.open(&returned.url).await;
    assert!(twice.text.contains("Not signed in") && twice.text.contains("signed in at"), "{}", twice.text);
    assert_eq!(text(&modern(ada, "github__echo", json!({})).await["result"]), "hi");
    let refused = first.open(&format!("{back}?error=access_denied&state=x")).await;
    assert!(refused.text.contains("Not signed in"), "{}", refused.text);
}

#[tokio::test]
async fn what_everybody_shares_is_the_operators_to_give() {
    let (authority, issuer) = (Authority::start(3600), Issuer::start().await);
    let (_own, own) = guarded(&authority, "own", "principal").await;
    let (_shared, shared) = guarded(&authority, "team", "shared").await;
    let gateway = proved(&issuer, &(own + &shared)).await;
    let client = Client::modern(&gateway, "/mcp").with_token(&issuer.token("ada", AUDIENCE));
    let told = modern(&client, "team__echo", json!({})).await;
    assert!(text(&told["result"]).contains("by the operator of this gateway"), "{told}");
    let asked = modern(&client, "own__echo", json!({})).await;
    let requests = asked["result"]["inputRequests"].as_object().unwrap();
    assert_eq!(requests.keys().collect::<Vec<_>>(), ["sign_in_own"]);
    let mut browser = Browser::new();
    let page = enter(&mut browser, requests["sign_in_own"]["params"]["url"].as_str().unwrap()).await;
    assert!(page.text.contains("its operator signs in for all"), "{}", page.text);
    assert_eq!(browser.send(&gateway.url("/connect/team/login"), &key(&page)).await.status, 404);
}

#[tokio::test]
async fn where_everybody_may_call_nobody_is_known() {
    let port = weir_tests::peer::free_port();
    let authority = Authority::start(3600);
    let (_stub, config) = guarded(&authority, "github", "shared").await;
    let config = format!("allow_unauthenticated = true\n{config}");
    let gateway = Gateway::start_on(&format!("0.0.0.0:{port}"), &config).await;
    let page = Browser::new().open(&gateway.url("/connect")).await;
    assert!(page.status == 403 && page.text.contains("weir auth login"), "{}", page.text);
    until("it is said that a login is needed", || gateway.log().contains("weir auth login github")).await;
}
