//! Weir issues tokens of its own, to clients that bring what the company vouches for.

use serde_json::{Value, json};
use weir_tests::issuer::{now, unique};
use weir_tests::peer::free_port;
use weir_tests::tokens::{claims, encoded};
use weir_tests::{Client, Gateway, Issuer, Request, Stub};

const SECRET: &str = "host secret: +&%";
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

/// A gateway that issues tokens, and what is behind it.
struct Scene {
    issuer: Issuer,
    gateway: Gateway,
    stub: Stub,
    port: u16,
}

impl Scene {
    async fn new() -> Self {
        Self::with("", "").await
    }

    /// With more lines of the root and of `[authorization_server]`.
    async fn with(root: &str, more: &str) -> Self {
        let (issuer, stub, port) = (Issuer::start().await, Stub::start().await, free_port());
        let gateway = start(port, &issuer, &stub, root, more).await;
        gateway.logs("upstream is healthy").await;
        Self { issuer, gateway, stub, port }
    }

    fn root(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The claims of an assertion that is good.
    fn vouched(&self, subject: &str) -> Value {
        json!({
            "iss": self.issuer.issuer(), "sub": subject, "aud": self.root(), "client_id": "host",
            "resource": format!("{}/mcp", self.root()), "scope": "mcp", "groups": ["ops"], "email": "ada@example.com",
            "jti": unique(), "iat": now(), "exp": now() + 300,
        })
    }

    fn assertion(&self, claims: &Value) -> String {
        self.issuer.sign_as(&json!({ "alg": "ES256", "typ": "oauth-id-jag+jwt", "kid": "one" }), claims)
    }

    async fn ask(&self, fields: &[(&str, &str)]) -> (u16, Value) {
        let body: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let request = Request::new("POST", "/oauth/token").header("content-type", "application/x-www-form-urlencoded");
        let response = self.gateway.send(request.body(body.join("&"))).await;
        (response.status, response.json().await)
    }

    async fn exchange(&self, assertion: &str) -> (u16, Value) {
        let fields = [("grant_type", JWT_BEARER), ("assertion", assertion)];
        self.ask(&[&fields[..], &[("client_id", "host"), ("client_secret", SECRET)]].concat()).await
    }

    async fn lists(&self, path: &str, token: &str) -> u16 {
        let request = Client::modern(&self.gateway, path).request("tools/list", json!({})).1;
        self.gateway.send(request.header("authorization", &format!("Bearer {token}"))).await.status
    }
}

async fn start(port: u16, issuer: &Issuer, stub: &Stub, root: &str, more: &str) -> Gateway {
    let config = format!(
        "public_url = \"http://127.0.0.1:{port}\"\n{root}\n[auth]\nissuer = \"{}\"\naudience = \"api://weir\"\n\
         scopes = [\"mcp\"]\n[authorization_server]\n{more}\n[[authorization_server.clients]]\nclient_id = \"host\"\n\
         client_secret = {{ env = \"HOST_SECRET\" }}\n[[authorization_server.clients]]\nclient_id = \"signer\"\n\
         jwks = \"{}/keys\"\n{}",
        issuer.issuer(),
        issuer.issuer(),
        stub.config("stub"),
    );
    Gateway::start_at_with(port, &config, &[("HOST_SECRET", SECRET), ("SECRET", SECRET)]).await
}

/// Weir at both ends: as the client that has its callers vouched for, and as the server that believes it.
#[tokio::test]
async fn weir_takes_what_weir_brings() {
    let scene = Scene::new().await;
    scene.issuer.open(false);
    scene.issuer.vouches("host", &json!({}));
    let config = format!(
        "[auth]\nissuer = \"{0}\"\naudience = \"https://front.example/mcp\"\n[store]\npath = \"logins.redb\"\n\
         [upstreams.behind]\nurl = \"{1}/mcp\"\nauth = \"exchange\"\n\
         oauth = {{ issuer = \"{1}\", client_id = \"host\", client_secret = {{ env = \"SECRET\" }}, \
         identity_provider = {{ token_endpoint = \"{0}/token\", client_id = \"front\" }} }}\n",
        scene.issuer.issuer(),
        scene.root(),
    );
    let front = Gateway::start_with(&config, &[("SECRET", SECRET)]).await;
    let token = scene.issuer.token("ada", "https://front.example/mcp");
    let client = Client::modern(&front, "/mcp/behind").with_token(&token);
    let call = json!({ "name": "stub__echo", "arguments": { "message": "m" } });
    let answer = client.ask("tools/call", call).await;
    assert_eq!(answer["result"]["content"][0]["text"], "m", "{answer} {}", front.log());
    assert_eq!(scene.stub.asked("tools/call").len(), 1);
    scene.gateway.logs("\"token issued\"").await;
    let log = scene.gateway.log();
    let line = log.lines().find(|line| line.contains("\"token issued\"")).unwrap();
    assert!(line.contains("\"subject\":\"ada\"") && line.contains("\"client\":\"host\""), "{line}");
    assert!(!log.contains(SECRET) && !front.log().contains(SECRET));
}

#[tokio::test]
async fn a_token_of_weir_opens_what_it_was_asked_for() {
    let scene = Scene::new().await;
    let (status, given) = scene.exchange(&scene.assertion(&scene.vouched("ada"))).await;
    assert_eq!((status, &given["token_type"]), (200, &json!("Bearer")), "{given} {}", scene.gateway.log());
    let token = given["access_token"].as_str().unwrap();
    let said = claims(token);
    assert_eq!((&said["iss"], &said["aud"]), (&json!(scene.root()), &json!(format!("{}/mcp", scene.root()))));
    assert_eq!((&said["sub"], &said["idp"]), (&json!("ada"), &json!(scene.issuer.issuer())));
    assert_eq!((&said["groups"], &said["client_id"]), (&json!(["ops"]), &json!("host")));
    assert!(said["exp"].as_u64().unwrap() <= now() + 600);
    for path in ["/mcp", "/mcp/stub"] {
        assert_eq!(scene.lists(path, token).await, 200, "{path}");
    }

    let mut one = scene.vouched("ada");
    one["resource"] = json!(format!("{}/mcp/stub", scene.root()));
    let (_, given) = scene.exchange(&scene.assertion(&one)).await;
    let token = given["access_token"].as_str().unwrap();
    assert_eq!((scene.lists("/mcp/stub", token).await, scene.lists("/mcp", token).await), (200, 401));

    // The scopes of the company's own tokens count for these.
    let mut less = scene.vouched("ada");
    less["scope"] = json!("other");
    let (_, given) = scene.exchange(&scene.assertion(&less)).await;
    assert_eq!(scene.lists("/mcp", given["access_token"].as_str().unwrap()).await, 403);

    // A session of a caller is as good with either of its tokens.
    let own =
        scene.exchange(&scene.assertion(&scene.vouched("ada"))).await.1["access_token"].as_str().unwrap().to_owned();
    let mut company = scene.issuer.claims("ada", "api://weir");
    company["scope"] = json!("mcp");
    let company = scene.issuer.sign(&company);
    let client = Client::legacy_with(&scene.gateway, "/mcp", &own, &json!({})).await;
    let (_, request) = client.request("tools/list", json!({}));
    assert_eq!(scene.gateway.send(request.header("authorization", &format!("Bearer {company}"))).await.status, 200);
}

#[tokio::test]
async fn only_a_good_assertion_is_believed_and_only_once() {
    let scene = Scene::new().await;
    let good = scene.assertion(&scene.vouched("ada"));
    // It is no access token.
    assert_eq!(scene.lists("/mcp", &good).await, 401);
    assert_eq!(scene.exchange(&good).await.0, 200);
    let (status, refused) = scene.exchange(&good).await;
    assert_eq!((status, &refused["error"]), (400, &json!("invalid_grant")), "{refused}");

    let root = scene.root();
    for (claim, value, error) in [
        ("iss", json!("https://other.example"), "invalid_grant"),
        ("aud", json!("https://other.example"), "invalid_grant"),
        ("aud", json!(format!("{root}/mcp")), "invalid_grant"),
        ("aud", json!([root, "https://other.example"]), "invalid_grant"),
        ("client_id", json!("signer"), "invalid_grant"),
        ("client_id", Value::Null, "invalid_grant"),
        ("exp", json!(now() - 300), "invalid_grant"),
        ("exp", json!(now() + 7200), "invalid_grant"),
        ("exp", Value::Null, "invalid_grant"),
        ("nbf", json!(now() + 300), "invalid_grant"),
        ("jti", Value::Null, "invalid_grant"),
        ("sub", json!(""), "invalid_grant"),
        ("cnf", json!({ "jkt": "x" }), "invalid_grant"),
        ("groups", json!(["x".repeat(300)]), "invalid_grant"),
        ("resource", json!("https://other.example/mcp"), "invalid_target"),
        ("resource", json!(format!("{root}/connect")), "invalid_target"),
        ("resource", json!(5), "invalid_target"),
    ] {
        let mut claims = scene.vouched("ada");
        claims[claim] = value.clone();
        let (status, refused) = scene.exchange(&scene.assertion(&claims)).await;
        assert_eq!((status, &refused["error"]), (400, &json!(error)), "{claim} {value}: {refused}");
    }
    let claims = scene.vouched("ada");
    for kind in [
        json!({ "typ": "JWT" }),
        json!({ "typ": "at+jwt" }),
        json!({}),
        json!({ "typ": "oauth-id-jag+jwt", "kid": "two" }),
    ] {
        let mut header = json!({ "alg": "ES256", "kid": "one" });
        header.as_object_mut().unwrap().extend(kind.as_object().unwrap().clone());
        let (status, refused) = scene.exchange(&scene.issuer.sign_as(&header, &claims)).await;
        assert_eq!((status, &refused["error"]), (400, &json!("invalid_grant")), "{header}: {refused}");
    }
    // What Weir has signed itself is no assertion either.
    let given = scene.exchange(&scene.assertion(&scene.vouched("ada"))).await.1;
    assert_eq!(scene.exchange(given["access_token"].as_str().unwrap()).await.0, 400);
    for text in ["\"token not issued\"", "another client"] {
        scene.gateway.logs(text).await;
    }
}

#[tokio::test]
async fn a_client_proves_who_it_is() {
    let scene = Scene::new().await;
    let assertion = || scene.assertion(&scene.vouched("ada"));
    for (more, status) in [
        (vec![("client_id", "host"), ("client_secret", "wrong")], 401),
        (vec![("client_id", "nobody"), ("client_secret", SECRET)], 401),
        (vec![("client_id", "host")], 401),
        (vec![("client_id", "signer"), ("client_secret", "")], 401),
        (vec![("client_id", "host"), ("client_secret", SECRET), ("client_id", "host")], 400),
        (vec![("client_id", "host"), ("client_secret", SECRET), ("scope", "other")], 400),
        (vec![("client_id", "host"), ("client_secret", SECRET), ("scope", "mcp other")], 200),
    ] {
        let assertion = assertion();
        let fields = [&[("grant_type", JWT_BEARER), ("assertion", &*assertion)][..], &more].concat();
        let (got, said) = scene.ask(&fields).await;
        assert_eq!(got, status, "{more:?}: {said}");
    }
    let (_, said) = scene.ask(&[("grant_type", "password"), ("client_id", "host"), ("client_secret", SECRET)]).await;
    assert_eq!(said["error"], "unsupported_grant_type");

    // With a key, and each statement once.
    let mut vouched = scene.vouched("ada");
    vouched["client_id"] = json!("signer");
    let statement = |id: &str, audience: &str, subject: &str| {
        let header = json!({ "alg": "ES256", "typ": "JWT", "kid": "one" });
        let claims = json!({ "iss": "signer", "sub": subject, "aud": audience, "jti": id, "exp": now() + 60 });
        scene.issuer.sign_as(&header, &claims)
    };
    let token = format!("{}/oauth/token", scene.root());
    for (id, audience, subject, status) in [
        ("1", &*scene.root(), "signer", 200),
        ("1", &*scene.root(), "signer", 400),
        ("2", &token, "signer", 200),
        ("3", "https://other.example", "signer", 401),
        ("4", &token, "host", 401),
    ] {
        vouched["jti"] = json!(unique());
        let (assertion, statement) = (scene.assertion(&vouched), statement(id, audience, subject));
        let fields = [
            ("grant_type", JWT_BEARER),
            ("assertion", &*assertion),
            ("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"),
            ("client_assertion", &*statement),
        ];
        let (got, said) = scene.ask(&fields).await;
        assert_eq!(got, status, "{id} {audience} {subject}: {said}");
    }
}

#[tokio::test]
async fn keys_outlive_the_process_and_the_metadata_leads_to_weir() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("store = {{ path = {:?} }}", folder.path().join("logins.redb"));
    let scene = Scene::with(&store, "access_token_lifetime = \"5m\"").await;
    let document = |path: &'static str| {
        let request = Request::get(path).header("origin", "http://localhost:6274");
        async { scene.gateway.send(request).await.json().await }
    };
    let resource = document("/.well-known/oauth-protected-resource/mcp").await;
    assert_eq!(resource["authorization_servers"], json!([scene.root(), scene.issuer.issuer()]));
    let metadata = document("/.well-known/oauth-authorization-server").await;
    assert_eq!(metadata["issuer"], json!(scene.root()));
    assert_eq!(metadata["token_endpoint"], json!(format!("{}/oauth/token", scene.root())));
    let keys = document("/oauth/jwks").await;
    assert_eq!(keys["keys"].as_array().unwrap().len(), 1);
    assert!(keys["keys"][0].get("d").is_none(), "{keys}");

    let assertion = scene.assertion(&scene.vouched("ada"));
    let (_, given) = scene.exchange(&assertion).await;
    assert_eq!(given["expires_in"], 300);
    let Scene { issuer, gateway, stub, port } = scene;
    drop(gateway);
    let gateway = start(port, &issuer, &stub, &store, "").await;
    let again = Scene { issuer, gateway, stub, port };
    again.gateway.logs("upstream is healthy").await;
    assert_eq!(again.lists("/mcp", given["access_token"].as_str().unwrap()).await, 200, "{}", again.gateway.log());
    assert_eq!(again.exchange(&assertion).await.0, 400, "it was used already");
}
