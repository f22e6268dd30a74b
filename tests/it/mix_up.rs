//! A hostile authorization server that leads its users to an honest one (RFC 9700 §4.4): no code and no verifier comes to
//! it, though the honest server does not name itself (RFC 9207).

use serde_json::{Value, json};
use weir_tests::browser::Page;
use weir_tests::peer::free_port;
use weir_tests::process::Process;
use weir_tests::terminal::{ENVIRONMENT, auth, ended, page};
use weir_tests::tokens::encoded;
use weir_tests::{Authority, Browser, Gateway, Stub};

/// A gateway before an upstream of each.
struct Scene {
    honest: Authority,
    hostile: Authority,
    gateway: Gateway,
    /// The port that browsers come back to from a terminal's sign-in.
    port: String,
    _upstreams: [Stub; 2],
}

impl Scene {
    async fn new() -> Self {
        let (honest, hostile) = (Authority::with(&json!({ "iss": false })), Authority::with(&json!({ "iss": false })));
        let upstreams = [honest.upstream().await, hostile.upstream().await];
        let login = |name: &str, stub: &Stub| format!("{}auth = \"oauth\"\n", stub.config(name));
        let store = "[store]\npath = \"logins.redb\"\nkey = { env = \"WEIR_TESTS_KEY\" }\n";
        let config = [store, &login("honest", &upstreams[0]), &login("hostile", &upstreams[1])].concat();
        let gateway = Gateway::start_with(&config, &ENVIRONMENT).await;
        Self { honest, hostile, gateway, port: free_port().to_string(), _upstreams: upstreams }
    }

    /// The hostile server names the page of the honest one as its own. Whoever registers there is given the id that they
    /// have at the honest one.
    fn name_the_honest_page(&mut self, known: &Value) {
        let (own, page) = (self.hostile.issuer().to_owned(), format!("{}/auth", self.honest.issuer()));
        let metadata = json!({
            "issuer": own,
            "authorization_endpoint": page,
            "token_endpoint": format!("{own}/token"),
            "registration_endpoint": format!("{own}/reg"),
            "code_challenge_methods_supported": ["S256"],
        });
        let metadata = json!({ "status": 200, "json": metadata });
        self.hostile.trouble(&json!({
            "/.well-known/oauth-authorization-server": metadata,
            "/.well-known/openid-configuration": metadata,
            "/reg": { "status": 201, "json": { "client_id": known["client_id"] } },
        }));
    }

    /// The query with which somebody was sent to the page of the honest server last.
    fn asked(&mut self) -> Value {
        self.honest.asked("/auth").pop().expect("somebody was sent there")["query"].clone()
    }

    /// Nothing has come to the hostile server, and nobody is signed in there.
    async fn held(mut self) {
        assert_eq!(self.hostile.asked("/token"), Vec::<Value>::new(), "a code came to the hostile server");
        let (_, said) = ended(auth(&self.gateway, &["status", "hostile"])).await;
        assert!(!said.contains("signed in (") && said.contains("not signed in"), "{said}");
        assert_eq!(self.honest.grants("authorization_code"), 1, "the honest login alone");
    }

    /// The honest server knows Weir, and sends nobody to the address of another.
    fn honest_refuses(&mut self, shown: &Page, known: &Value) {
        let asked = self.asked();
        assert_eq!(asked["client_id"], known["client_id"]);
        assert_ne!(asked["redirect_uri"], known["redirect_uri"], "each has its own address");
        assert!(shown.status == 400 && shown.url.starts_with(self.honest.issuer()), "{shown:?}");
        assert!(shown.text.contains("redirect_uri"), "{}", shown.text);
    }

    fn login(&self, name: &str) -> Process {
        auth(&self.gateway, &["login", name, "--no-browser", "--port", &self.port])
    }

    /// Signs in at the honest upstream from /connect, so that its server knows Weir and has its user's consent. Gives the
    /// page and how Weir is known.
    async fn signed_in_at_connect(&mut self, browser: &mut Browser) -> (Page, Value) {
        let at = browser.open(&self.gateway.url("/connect")).await;
        let at = browser.press(&at, "connect/honest/login").await;
        assert!(at.text.contains("Signed in at honest"), "{}", at.text);
        (at, self.asked())
    }

    /// The same from a terminal.
    async fn signed_in_at_terminal(&mut self, browser: &mut Browser) -> Value {
        let mut process = self.login("honest");
        let shown = browser.open(&page(&mut process).await).await;
        assert!(shown.text.contains("Weir has what it needs"), "{}", shown.text);
        assert_eq!(ended(process).await.0, Some(0));
        self.asked()
    }
}

/// The page of the hostile server, as it sends its user on to the honest one: with all that Weir has asked it, but as the
/// client that is known there, and back to the address that this client has there.
fn led_on(page: &str, honest: &Value, to: &str) -> String {
    let (_, query) = page.split_once('?').unwrap();
    let own = query.split('&').filter(|pair| !pair.starts_with("client_id=") && !pair.starts_with("redirect_uri="));
    let (client, redirect) = (honest["client_id"].as_str().unwrap(), honest["redirect_uri"].as_str().unwrap());
    let changed = [format!("client_id={}", encoded(client)), format!("redirect_uri={}", encoded(redirect))];
    let query: Vec<String> = own.map(str::to_owned).chain(changed).collect();
    // It wants what the honest upstream is for.
    let query = query.join("&");
    format!("{to}/auth?{query}")
}

#[tokio::test]
async fn a_page_of_an_honest_server_named_by_a_hostile_one() {
    let mut scene = Scene::new().await;
    let mut browser = Browser::new();
    let (at, known) = scene.signed_in_at_connect(&mut browser).await;
    scene.name_the_honest_page(&known);

    let shown = browser.press(&at, "connect/hostile/login").await;
    scene.honest_refuses(&shown, &known);
    scene.held().await;
}

#[tokio::test]
async fn a_user_led_on_to_an_honest_server() {
    let mut scene = Scene::new().await;
    let mut browser = Browser::new();
    let (at, known) = scene.signed_in_at_connect(&mut browser).await;

    let own = scene.hostile.issuer().to_owned();
    let on_the_way = browser.press_until(&at, "connect/hostile/login", |url| url.starts_with(&own)).await;
    let back = browser.open(&led_on(&on_the_way.url, &known, scene.honest.issuer())).await;
    assert!(back.text.contains("another server than the one asked"), "{}", back.text);
    assert_eq!(back.url, scene.gateway.url("/connect"), "it has come back from the honest server");
    scene.held().await;
}

#[tokio::test]
async fn a_page_of_an_honest_server_named_by_a_hostile_one_to_a_terminal() {
    let mut scene = Scene::new().await;
    let mut browser = Browser::new();
    let known = scene.signed_in_at_terminal(&mut browser).await;
    scene.name_the_honest_page(&known);
    let mut process = scene.login("hostile");
    let shown = browser.open(&page(&mut process).await).await;
    scene.honest_refuses(&shown, &known);
    process.signal(rustix::process::Signal::INT);
    assert_eq!(ended(process).await.0, Some(130));
    scene.held().await;
}

#[tokio::test]
async fn a_user_of_a_terminal_led_on_to_an_honest_server() {
    let mut scene = Scene::new().await;
    let mut browser = Browser::new();
    let known = scene.signed_in_at_terminal(&mut browser).await;
    let mut process = scene.login("hostile");
    let on_the_way = page(&mut process).await;
    let shown = browser.open(&led_on(&on_the_way, &known, scene.honest.issuer())).await;
    assert!(shown.status == 400 && shown.text.contains("Another server than the one asked"), "{}", shown.text);
    let (code, said) = ended(process).await;
    assert!(code == Some(1) && said.contains("another server than the one asked"), "{said}");
    scene.held().await;
}
