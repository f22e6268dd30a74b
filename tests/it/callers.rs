//! Who may call: with `[auth]` every request brings a token of the one issuer, and nobody sees what is another's.

use std::process::Command;

use serde_json::{Value, json};
use weir_tests::client::{answer, initialize};
use weir_tests::issuer::{now, unsigned};
use weir_tests::paths::{node, peers};
use weir_tests::peer::free_port;
use weir_tests::process::Process;
use weir_tests::tokens::token;
use weir_tests::{Authority, Client, Gateway, Issuer, LEGACY, Request, Response, Stub};

pub(crate) const AUDIENCE: &str = "https://weir.example/mcp";
const METADATA: &str = "https://weir.example/.well-known/oauth-protected-resource";

pub(crate) fn auth(issuer: &str) -> String {
    format!("[auth]\nissuer = \"{issuer}\"\naudience = \"{AUDIENCE}\"\n")
}

pub(crate) fn with(request: Request, token: &str) -> Request {
    request.header("authorization", &format!("Bearer {token}"))
}

pub(crate) fn tools(path: &str) -> Request {
    Client::modern_at(([127, 0, 0, 1], 1).into(), path).request("tools/list", json!({})).1
}

/// What a refusal tells its client.
pub(crate) async fn refused(response: Response) -> (u16, String, String) {
    let (status, challenge) = (response.status, response.header("www-authenticate").unwrap_or_default().to_owned());
    let body = response.json().await;
    (status, challenge, body["error"]["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn real_tokens_let_their_principals_in() {
    let (authority, stub) = (Authority::start(3600), Stub::start().await);
    let gateway = Gateway::start(&(auth(authority.issuer()) + &stub.config("stub"))).await;
    let (ada, eve) = (token(authority.issuer(), 0, AUDIENCE).await, token(authority.issuer(), 1, AUDIENCE).await);

    let modern = Client::modern(&gateway, "/mcp").with_token(&ada);
    assert!(modern.tools().await.contains(&"stub__echo".to_owned()));
    let legacy = Client::legacy_with(&gateway, "/mcp", &ada, &json!({})).await;
    legacy.call("stub__echo", json!({ "message": "hi" })).await;
    let also = Client::legacy_with(&gateway, "/mcp", &eve, &json!({})).await;
    also.call("stub__echo", json!({ "message": "hi" })).await;

    // Neither token has gone anywhere, and nothing else of who called.
    for seen in stub.seen() {
        let text = format!("{:?} {:?}", seen.headers, seen.body);
        assert!(!text.contains(&ada) && !text.contains(&eve) && seen.header("authorization").is_none(), "{text}");
    }
    let log = gateway.log();
    assert!(!log.contains(&ada) && !log.contains(&eve), "a token is in the log");
}

/// As where a program beside Weir fetches them, through whatever stands between it and the issuer.
#[tokio::test]
async fn the_keys_of_an_issuer_far_away_may_be_on_this_machine() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let name = "https://login.example";
    let keys = format!("jwks = \"{}/keys\"\n", issuer.issuer());
    let gateway = Gateway::start(&(auth(name) + &keys + &stub.config("stub"))).await;
    let mut claims = issuer.claims("ada", AUDIENCE);
    claims["iss"] = json!(name);
    let response = gateway.send(with(tools("/mcp"), &issuer.sign(&claims))).await;
    assert_eq!(response.status, 200, "{}", gateway.log());
}

/// What leads there is made from it: links, and the metadata.
#[tokio::test]
async fn by_the_host_of_its_audience_a_gateway_is_called() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let gateway = Gateway::start(&(auth(&issuer.issuer()) + &stub.config("stub"))).await;
    let asked = |host: &str| Request::get("/.well-known/oauth-protected-resource/mcp").header("host", host);
    for (host, status) in [("weir.example", 200), ("weir.example:8443", 200), ("evil.example", 403)] {
        assert_eq!(gateway.send(asked(host)).await.status, status, "{host}");
    }
}

#[tokio::test]
async fn another_caller_s_session_is_as_good_as_none() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let gateway = Gateway::start(&(auth(&issuer.issuer()) + &stub.config("stub"))).await;
    let (ada, eve) = (issuer.token("ada", AUDIENCE), issuer.token("eve", AUDIENCE));
    let client = Client::legacy_with(&gateway, "/mcp/stub", &ada, &json!({})).await;

    let post = |token: &str| with(client.request("tools/list", json!({})).1, token);
    let unknown = gateway.send(with(client.request("tools/list", json!({})).1, &eve)).await;
    let never = post(&eve).header("mcp-session-id", &"0".repeat(64));
    let never = gateway.send(never).await;
    assert_eq!((unknown.status, never.status), (404, 404));
    assert_eq!(unknown.json().await, never.json().await, "nobody learns that there is one");

    let stream = Request::get("/mcp/stub").header("accept", "text/event-stream");
    let stream = stream.header("mcp-session-id", client.session_id()).header("mcp-protocol-version", LEGACY);
    assert_eq!(gateway.send(with(stream.clone(), &eve)).await.status, 404);
    let resumed = with(stream.clone(), &eve).header("last-event-id", "1");
    assert_eq!(gateway.send(resumed).await.status, 404);
    let end = Request::new("DELETE", "/mcp/stub").header("mcp-session-id", client.session_id());
    assert_eq!(gateway.send(with(end, &eve)).await.status, 404);

    // A younger token of the same principal is as good as the one that opened it.
    let younger = issuer.claims("ada", AUDIENCE);
    let younger =
        issuer.sign(&json!({ "jti": "2", "iss": younger["iss"], "sub": "ada", "aud": AUDIENCE, "exp": now() + 60 }));
    assert_eq!(gateway.send(post(&younger)).await.status, 200);
    assert_eq!(gateway.send(with(stream, &ada)).await.status, 200);
}

#[tokio::test]
async fn a_stream_of_http_sse_is_its_callers() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let gateway = Gateway::start(&(auth(&issuer.issuer()) + &stub.config("stub"))).await;
    let (ada, eve) = (issuer.token("ada", AUDIENCE), issuer.token("eve", AUDIENCE));
    let open = Request::get("/sse").header("accept", "text/event-stream");
    assert_eq!(gateway.send(open.clone()).await.status, 401);
    let response = gateway.send(with(open, &ada)).await;
    assert_eq!(response.status, 200);
    let mut events = response.events();
    let place = format!("/{}", events.next().await.unwrap().data);

    let hello = initialize(&place, LEGACY, &json!({}));
    assert_eq!(gateway.send(hello.clone()).await.status, 401);
    assert_eq!(gateway.send(with(hello.clone(), &eve)).await.status, 404);
    assert_eq!(gateway.send(with(hello, &ada)).await.status, 202);
    let greeting = events.next_message().await.unwrap();
    assert_eq!(greeting["result"]["serverInfo"]["name"], "weir");
}

#[tokio::test]
async fn whoever_has_no_token_is_told_where_to_get_one() {
    let stub = Stub::start().await;
    let issuer = Issuer::start().await;
    let gateway = Gateway::start(&(auth(&issuer.issuer()) + &stub.config("stub"))).await;
    for (request, path) in [
        (tools("/mcp"), "/mcp"),
        (tools("/mcp/stub"), "/mcp/stub"),
        (tools("/mcp/nobody"), "/mcp/nobody"),
        (initialize("/mcp", LEGACY, &json!({})), "/mcp"),
        (Request::get("/mcp").header("accept", "text/event-stream"), "/mcp"),
        (Request::get("/sse/stub").header("accept", "text/event-stream"), "/sse/stub"),
        (Request::new("DELETE", "/mcp").header("mcp-session-id", "x"), "/mcp"),
        (Request::post("/messages?sessionId=x", "{}"), "/mcp"),
        (tools("/mcp").header("authorization", "Basic YTpi"), "/mcp"),
    ] {
        let (status, challenge, text) = refused(gateway.send(request.clone()).await).await;
        assert_eq!(status, 401, "{request:?}");
        assert_eq!(challenge, format!("Bearer resource_metadata=\"{METADATA}{path}\""), "{request:?}");
        assert!(text.contains("a bearer token of") && !text.contains("stub"), "{text}");
    }
    assert!(!gateway.send(Request::get("/readyz")).await.json().await.to_string().contains("stub"));
    assert_eq!(gateway.send(Request::get("/healthz")).await.status, 200);

    for (path, resource) in [
        ("", "https://weir.example/mcp"),
        ("/mcp", "https://weir.example/mcp"),
        ("/mcp/stub", "https://weir.example/mcp/stub"),
        ("/sse/stub", "https://weir.example/sse/stub"),
    ] {
        let place = format!("/.well-known/oauth-protected-resource{path}");
        let page = Request::get(&place).header("origin", "http://localhost:6274");
        let response = gateway.send(page).await;
        assert_eq!(response.header("access-control-allow-origin"), Some("http://localhost:6274"));
        let document = response.json().await;
        assert_eq!(document["resource"], resource);
        assert_eq!(document["authorization_servers"], json!([issuer.issuer()]));
    }
    assert_eq!(gateway.send(Request::get("/.well-known/oauth-protected-resource/other")).await.status, 401);
    assert_eq!(stub.asked("tools/call").len(), 0);
}

#[tokio::test]
async fn a_token_that_allows_too_little_is_told_what_it_lacks() {
    let stub = Stub::start().await;
    let issuer = Issuer::start().await;
    let scopes = "scopes = [\"mcp:read\", \"mcp:call\"]\n";
    let gateway = Gateway::start(&(auth(&issuer.issuer()) + scopes + &stub.config("stub"))).await;
    let token = |scope: Option<&str>| {
        let mut claims = issuer.claims("ada", AUDIENCE);
        if let Some(scope) = scope {
            claims["scope"] = scope.into();
        }
        issuer.sign(&claims)
    };
    for scope in [None, Some("mcp:read"), Some("mcp:read mcp:caller"), Some("mcp:read mcp:call other")] {
        let answer = gateway.send(with(tools("/mcp"), &token(scope))).await;
        if scope.is_some_and(|scope| scope.ends_with("other")) {
            assert_eq!(answer.status, 200);
            continue;
        }
        // Once for a token that was never seen, and once for one that is known.
        for answer in [answer, gateway.send(with(tools("/mcp"), &token(scope))).await] {
            let (status, challenge, _) = refused(answer).await;
            assert_eq!(status, 403, "{scope:?}");
            let told = "error=\"insufficient_scope\", scope=\"mcp:read mcp:call\"";
            assert!(challenge.contains(told) && challenge.contains("resource_metadata="), "{challenge}");
        }
    }
    let (status, challenge, _) = refused(gateway.send(tools("/mcp")).await).await;
    assert!(status == 401 && challenge.ends_with("scope=\"mcp:read mcp:call\""), "{challenge}");
    let document = gateway.send(Request::get("/.well-known/oauth-protected-resource/mcp")).await.json().await;
    assert_eq!(document["scopes_supported"], json!(["mcp:read", "mcp:call"]));
}

#[tokio::test]
async fn forged_tokens_open_nothing() {
    let (issuer, other, stub) = (Issuer::start().await, Issuer::start().await, Stub::start().await);
    let gateway = Gateway::start(&(auth(&issuer.issuer()) + &stub.config("stub"))).await;
    let good = issuer.claims("ada", AUDIENCE);
    let but = |field: &str, value: Value| {
        let mut claims = good.clone();
        claims[field] = value;
        claims
    };
    let header = |field: &str, value: &str| {
        let mut header = issuer.header();
        header[field] = json!(value);
        header
    };
    let mut critical = issuer.header();
    critical["crit"] = json!(["exp"]);
    let with_key = |issuer: &Issuer| {
        let mut header = issuer.header();
        header["jwk"] = issuer.jwk();
        header
    };
    let twice = |claim: &str, value: &str| {
        let text = format!("{},\"{claim}\":\"{value}\"}}", good.to_string().trim_end_matches('}'));
        issuer.sign_text(&issuer.header().to_string(), &text)
    };
    let whole = issuer.sign(&good);
    let (head, tail) = whole.rsplit_once('.').unwrap();
    for (token, why) in [
        (other.sign(&good), "not signed by the issuer"),
        (other.token("ada", AUDIENCE), "another issuer"),
        (issuer.sign(&but("iss", json!(other.issuer()))), "another issuer"),
        (issuer.sign(&but("iss", json!(format!("{}/", issuer.issuer())))), "another issuer"),
        (issuer.sign(&but("aud", json!("https://other.example/mcp"))), "another audience"),
        (issuer.sign(&but("aud", json!("https://weir.example"))), "another audience"),
        (issuer.sign(&but("aud", json!("https://weir.example/mcp/nobody"))), "another audience"),
        (issuer.sign(&but("exp", json!(now() - 61))), "has expired"),
        (issuer.sign(&but("nbf", json!(now() + 90))), "not valid yet"),
        (issuer.sign(&but("sub", json!(""))), "no `sub`"),
        (issuer.sign_as(&header("kid", "unknown"), &good), "not signed by the issuer"),
        (issuer.sign_as(&header("alg", "RS256"), &good), "not signed by the issuer"),
        (issuer.sign_as(&header("typ", "id+jwt"), &good), "no signed JWT"),
        (
            issuer.sign_as(&header("jku", &format!("{}/keys", other.issuer())), &but("aud", json!("x"))),
            "another audience",
        ),
        (other.sign_as(&with_key(&other), &good), "not signed by the issuer"),
        (issuer.sign_as(&critical, &good), "critical header"),
        (issuer.sign(&but("cnf", json!({ "jkt": "x" }))), "bound to a key"),
        (issuer.sign(&but("groups", json!(vec!["x"; 201]))), "does not list its groups"),
        (twice("sub", "eve"), "no signed JWT"),
        (twice("iss", &other.issuer()), "no signed JWT"),
        (issuer.sign_with_public_key(&good), "algorithm that is not accepted"),
        (format!("{}.", unsigned(&json!({ "alg": "none" }), &good)), "no signed JWT"),
        (format!("{head}."), "not signed by the issuer"),
        (format!("{head}.{}", tail.chars().rev().collect::<String>()), "not signed by the issuer"),
        (head.to_owned(), "no signed JWT"),
        ("x".repeat(20_000), "no signed JWT"),
        ("a.b.c".to_owned(), "no signed JWT"),
    ] {
        let (status, challenge, text) = refused(gateway.send(with(tools("/mcp"), &token)).await).await;
        assert_eq!(status, 401, "{why}");
        assert!(text.contains(why), "{text} is not {why}");
        assert!(challenge.contains("error=\"invalid_token\""), "{challenge}");
        assert!(!text.contains(&token));
    }
    // However many strangers come with names of keys that are not there, the issuer is not asked for each.
    assert!(issuer.fetches() <= 2, "{} fetches", issuer.fetches());
    assert_eq!(gateway.send(with(tools("/mcp"), &whole)).await.status, 200);
    assert!(stub.asked("tools/call").is_empty());
    assert!(!gateway.log().contains(&whole));
}

#[tokio::test]
async fn a_token_for_one_upstream_opens_that_one_alone() {
    let (issuer, one, two) = (Issuer::start().await, Stub::start().await, Stub::start().await);
    let config = auth(&issuer.issuer()) + &one.config("one") + &two.config("two");
    let gateway = Gateway::start(&config).await;
    let narrow = issuer.token("ada", "https://weir.example/mcp/one");
    for (path, status) in [("/mcp/one", 200), ("/mcp", 401), ("/mcp/two", 401), ("/mcp/one", 200), ("/sse/two", 401)] {
        assert_eq!(gateway.send(with(tools(path), &narrow)).await.status, status, "{path}");
    }
    let mut both = issuer.claims("ada", AUDIENCE);
    both["aud"] = json!(["https://weir.example/mcp/one", "https://weir.example/sse/two"]);
    let both = issuer.sign(&both);
    assert_eq!(gateway.send(with(tools("/mcp/two"), &both)).await.status, 200);
    assert_eq!(gateway.send(with(tools("/mcp"), &both)).await.status, 401);
}

/// What is sent beside a stream is for what the stream is for.
#[tokio::test]
async fn a_token_for_one_upstream_says_nothing_to_a_stream_of_all() {
    let (issuer, one, other) = (Issuer::start().await, Stub::start().await, Stub::start().await);
    let gateway = Gateway::start(&(auth(&issuer.issuer()) + &one.config("one") + &other.config("other"))).await;
    let (whole, narrow) = (issuer.token("ada", AUDIENCE), issuer.token("ada", &format!("{AUDIENCE}/one")));
    let say = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
    for (stream, opened_with, said_with, status) in [
        ("/sse", &whole, &whole, 202),
        ("/sse", &whole, &narrow, 401),
        ("/sse/other", &whole, &narrow, 401),
        ("/sse/one", &whole, &narrow, 202),
        ("/sse/one", &narrow, &narrow, 202),
    ] {
        let opened = Request::get(stream).header("accept", "text/event-stream");
        let opened = gateway.send(with(opened, opened_with)).await;
        let mut events = opened.events();
        let place = events.next().await.unwrap().data;
        for folder in ["/", "/sse/", "/mcp/"] {
            let posted = Request::post(&format!("{folder}{place}"), say.clone());
            assert_eq!(gateway.send(with(posted, said_with)).await.status, status, "{stream} {folder}");
        }
    }
    // A stream that is not there is nobody's.
    let gone = Request::post(&format!("/messages?sessionId={}", "0".repeat(32)), say);
    assert_eq!(gateway.send(with(gone, &narrow)).await.status, 404);
}

#[tokio::test]
async fn refused_tokens_are_logged_with_the_reason_and_without_the_token() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let gateway = Gateway::start(&(auth(&issuer.issuer()) + &stub.config("stub"))).await;
    let mut late = issuer.claims("ada", AUDIENCE);
    late["exp"] = json!(now() - 3600);
    let mut bound = issuer.claims("ada", AUDIENCE);
    bound["cnf"] = json!({ "kid": "a key" });
    let mut critical = issuer.header();
    critical["crit"] = json!(["b64"]);
    let narrow = issuer.token("ada", &format!("{AUDIENCE}/stub"));
    let refused = [
        (issuer.sign(&late), "expired", None),
        (issuer.sign(&bound), "bound", None),
        (issuer.sign_as(&critical, &issuer.claims("ada", AUDIENCE)), "critical", None),
        ("no token".to_owned(), "malformed", None),
        (narrow, "audience", Some("ada")),
    ];
    for (token, why, subject) in &refused {
        let response = gateway.send(with(tools("/mcp"), token)).await;
        assert_eq!(response.status, 401, "{why}");
        gateway.logs(&format!("\"error\":\"{why}\"")).await;
        let log = gateway.log();
        let line = log.lines().find(|line| line.contains(&format!("\"error\":\"{why}\""))).unwrap();
        let line: Value = serde_json::from_str(line).unwrap();
        let fields = &line["fields"];
        assert_eq!((&line["level"], &line["target"]), (&json!("WARN"), &json!("weir::auth")), "{line}");
        assert_eq!((&fields["message"], &fields["subject"]), (&json!("token refused"), &json!(subject)), "{line}");
        assert_eq!(
            (&fields["issuer"], &fields["client_address"]),
            (&json!(issuer.issuer()), &json!("127.0.0.1")),
            "{line}"
        );
    }
    // To come without one is how clients ask where to get one.
    assert_eq!(gateway.send(tools("/mcp")).await.status, 401);
    let log = gateway.log();
    assert_eq!(log.matches("token refused").count(), refused.len(), "{log}");
    assert!(refused.iter().all(|(token, ..)| !log.contains(token.as_str())), "a token is in the log");
}

#[tokio::test]
async fn an_issuer_in_trouble_lets_nobody_in_and_nobody_wait() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let gateway = Gateway::start(&(auth(&issuer.issuer()) + &stub.config("stub"))).await;
    // More than keys can be, and without an end in sight.
    issuer.say(vec![b'['; 4 << 20].into());
    let token = issuer.token("ada", AUDIENCE);
    for _ in 0..3 {
        let (status, challenge, text) = refused(gateway.send(with(tools("/mcp"), &token)).await).await;
        assert_eq!((status, challenge.as_str()), (503, ""), "it says nothing of the token");
        assert!(text.contains("cannot be checked now"), "{text}");
    }
    assert_eq!(issuer.fetches(), 1);
    gateway.logs("callers cannot be let in").await;
    assert_eq!(gateway.log().matches("callers cannot be let in").count(), 1, "{}", gateway.log());
}

#[tokio::test]
async fn what_a_call_waits_for_is_its_callers_alone() {
    let (issuer, fixture) = (Issuer::start().await, weir_tests::Peer::fixture("legacy").await);
    let gateway = Gateway::start(&(auth(&issuer.issuer()) + &fixture.config("fixture"))).await;
    let (ada, eve) = (issuer.token("ada", AUDIENCE), issuer.token("eve", AUDIENCE));
    let client = Client::modern(&gateway, "/mcp/fixture").with_token(&ada);
    let elicits = json!({ "elicitation": { "form": {} } });
    let ask = |more: Value| {
        let mut params = json!({ "name": "test_elicitation", "arguments": { "message": "Who?" } });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.request_with("tools/call", weir_tests::client::with_meta(params, &elicits))
    };
    let (id, request) = ask(json!({}));
    let asked = answer(gateway.send(with(request, &ada)).await, id).await;
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let key = asked["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let back = json!({
        "requestState": asked["result"]["requestState"],
        "inputResponses": { key: { "action": "accept", "content": { "username": "a", "email": "a@b.example" } } },
    });
    let (id, request) = ask(back.clone());
    let stolen = answer(gateway.send(with(request, &eve)).await, id).await;
    assert_eq!(stolen["error"]["code"], -32602, "{stolen}");
    let (id, request) = ask(back);
    let own = answer(gateway.send(with(request, &ada)).await, id).await;
    assert_eq!(own["result"]["resultType"], "complete", "{own}");
}

#[tokio::test]
async fn each_principal_has_its_own_sessions_and_processes() {
    let issuer = Issuer::start().await;
    let legacy = Stub::offering(weir_tests::stub::Offer { modern: false, ..Default::default() }).await;
    let local = weir_tests::peer::Launch::fixture("modern");
    let config = auth(&issuer.issuer()) + &legacy.config("legacy") + &local.config("local");
    let gateway = Gateway::start(&config).await;
    let client = |name: &str| Client::modern(&gateway, "/mcp").with_token(&issuer.token(name, AUDIENCE));
    let (ada, also, eve) = (client("ada"), client("ada"), client("eve"));
    ada.tools().await;
    let before = legacy.sessions_opened();
    for client in [&ada, &also, &ada] {
        client.call("legacy__echo", json!({ "message": "hi" })).await;
    }
    assert_eq!(legacy.sessions_opened() - before, 1, "one principal shares a session among its clients");
    eve.call("legacy__echo", json!({ "message": "hi" })).await;
    assert_eq!(legacy.sessions_opened() - before, 2, "another has its own");
    // One is Weir's own, which keeps the list.
    gateway.has_children(1).await;
    for client in [&ada, &also, &ada] {
        client.call("local__test_simple_text", json!({})).await;
    }
    gateway.has_children(2).await;
    eve.call("local__test_simple_text", json!({})).await;
    gateway.has_children(3).await;
}

#[tokio::test]
async fn real_clients_find_the_way_to_a_token_by_themselves() {
    let (authority, stub) = (Authority::start(3600), Stub::start().await);
    let port = free_port();
    let root = format!("http://127.0.0.1:{port}");
    let auth = format!("[auth]\nissuer = \"{}\"\naudience = \"{root}/mcp\"\n", authority.issuer());
    let gateway = Gateway::start_at(port, &(auth + &stub.config("stub"))).await;
    gateway.logs("upstream is healthy").await;
    for sdk in ["1", "2"] {
        for path in ["/mcp", "/mcp/stub"] {
            let mut command = Command::new(node());
            command.arg(peers("clients/sign_in.mjs")).args([sdk, &gateway.url(path)]);
            let mut client = Process::start(&format!("SDK {sdk}"), &mut command);
            let said = client.says("what it got", |line| serde_json::from_str::<Value>(line).ok()).await;
            assert_eq!(said, json!({ "audience": format!("{root}{path}"), "tools": 5 }), "SDK {sdk} at {path}");
        }
    }
}
