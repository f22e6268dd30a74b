//! The caller's token for one of the upstream (RFC 8693), at the upstream's own authorization server: `oidc-provider` with
//! that grant.

use serde_json::{Value, json};
use weir_tests::issuer::now;
use weir_tests::terminal::{failed, tells};
use weir_tests::tokens::claims;
use weir_tests::wait::until;
use weir_tests::{Authority, Client, Gateway, Issuer, Stub};

const AUDIENCE: &str = "https://weir.example/mcp";
const SECRET: &str = "exchange secret: +&%";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:token-exchange";

/// An authorization server that takes tokens of `issuer`, an upstream of it, and a gateway whose callers `issuer` knows.
async fn scene(issuer: &Issuer) -> (Authority, Stub, Gateway) {
    let trust = json!({ "trusts": issuer.issuer(), "audience": AUDIENCE, "barred": ["eve"] });
    let authority = Authority::with(&json!({ "exchange": trust }));
    let (upstream, other) = (authority.upstream().await, Stub::start().await);
    let config = format!(
        "[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n[store]\npath = \"logins.redb\"\n\
         {}auth = \"exchange\"\n\
         oauth = {{ issuer = \"{}\", client_id = \"weir-exchange\", client_secret = {{ env = \"SECRET\" }} }}\n{}",
        issuer.issuer(),
        upstream.config("u"),
        authority.issuer(),
        other.config("other"),
    );
    let gateway = Gateway::start_with(&config, &[("SECRET", SECRET)]).await;
    gateway.logs("upstream is healthy").await;
    (authority, upstream, gateway)
}

async fn echo(client: &Client) -> Value {
    client.ask("tools/call", json!({ "name": "echo", "arguments": { "message": "m" } })).await
}

fn answered(answer: &Value) -> bool {
    answer["result"]["content"][0]["text"] == "m"
}

#[tokio::test]
async fn each_caller_s_token_becomes_one_of_the_upstream_once() {
    let issuer = Issuer::start().await;
    let (mut authority, upstream, gateway) = scene(&issuer).await;
    let (ada, bob) = (issuer.token("ada", AUDIENCE), issuer.token("bob", AUDIENCE));
    for _ in 0..3 {
        for token in [&ada, &bob] {
            let modern = Client::modern(&gateway, "/mcp/u").with_token(token);
            let answer = echo(&modern).await;
            assert!(answered(&answer), "{answer}");
        }
        let legacy = Client::legacy_with(&gateway, "/mcp/u", &ada, &json!({})).await;
        assert!(answered(&echo(&legacy).await));
    }
    assert_eq!(authority.grants(GRANT), 2, "one exchange for each principal: {:?}", authority.asked("/token"));

    // Each call went with a token that the upstream's server made for its caller.
    let mut subjects: Vec<String> = Vec::new();
    for seen in upstream.asked("tools/call") {
        let token = seen.header("authorization").unwrap().strip_prefix("Bearer ").unwrap().to_owned();
        let said = claims(&token);
        assert_eq!((&said["iss"], &said["aud"]), (&json!(authority.issuer()), &json!(upstream.url())));
        subjects.push(said["sub"].as_str().unwrap().to_owned());
    }
    subjects.sort_unstable();
    assert_eq!(subjects, [vec!["ada"; 6], vec!["bob"; 3]].concat());
    // The caller's own goes to the server that exchanges it, and to nobody else.
    for seen in upstream.seen() {
        let text = format!("{:?} {:?}", seen.headers, seen.body);
        assert!(!text.contains(&ada) && !text.contains(&bob), "{text}");
    }
    let asked = authority.asked("/token");
    let exchanged: Vec<&str> = asked.iter().filter_map(|request| request["body"]["subject_token"].as_str()).collect();
    assert_eq!(exchanged, [&ada, &bob]);
    for request in &asked {
        let (body, resource) = (&request["body"], upstream.url());
        assert_eq!((&body["resource"], &request["authorization"]), (&json!(resource), &json!("Basic")), "{request}");
        assert_eq!(body["subject_token_type"], "urn:ietf:params:oauth:token-type:access_token", "{request}");
    }
    for secret in [&ada, &bob, SECRET] {
        assert!(!gateway.log().contains(secret), "it is in the log");
    }
}

#[tokio::test]
async fn a_younger_token_of_a_caller_is_exchanged_only_when_it_must_be() {
    let issuer = Issuer::start().await;
    let (mut authority, upstream, gateway) = scene(&issuer).await;
    let as_ada = |id: &str| {
        let mut claims = issuer.claims("ada", AUDIENCE);
        claims["jti"] = json!(id);
        issuer.sign(&claims)
    };
    for id in ["first", "second"] {
        assert!(answered(&echo(&Client::modern(&gateway, "/mcp/u").with_token(&as_ada(id))).await));
    }
    assert_eq!(authority.grants(GRANT), 1);
    // One that was made a moment ago would not get better by being made again.
    let first = claims(upstream.tokens().last().unwrap());
    until("it is not new any more", || now() > first["iat"].as_u64().unwrap() + 10).await;
    upstream.revoke();
    let third = as_ada("third");
    assert!(answered(&echo(&Client::modern(&gateway, "/mcp/u").with_token(&third)).await), "{}", gateway.log());
    assert_eq!(authority.grants(GRANT), 2);
    assert_eq!(authority.asked("/token")[1]["body"]["subject_token"], json!(third), "what came with this call");
}

#[tokio::test]
async fn a_refused_exchange_is_one_clear_error_and_nobody_else_s() {
    let issuer = Issuer::start().await;
    let (mut authority, upstream, gateway) = scene(&issuer).await;
    let (ada, eve) = (issuer.token("ada", AUDIENCE), issuer.token("eve", AUDIENCE));
    let ada = Client::modern(&gateway, "/mcp/u").with_token(&ada);
    assert!(answered(&echo(&ada).await));
    let asked = upstream.asked("tools/call").len();
    for _ in 0..10 {
        let refused = echo(&Client::modern(&gateway, "/mcp/u").with_token(&eve)).await;
        let text = refused.to_string();
        assert!(text.contains("no token for it could be had") && text.contains("refuses"), "{refused}");
        assert!(!text.contains(&eve) && !text.contains("weir auth login"), "{refused}");
    }
    assert!(answered(&echo(&ada).await), "nobody else is concerned");
    assert_eq!(upstream.asked("tools/call").len(), asked + 1, "without a token nothing is sent");
    // A server that says no is not asked with every call.
    assert_eq!(authority.grants(&format!("{GRANT} refused")), 1);
    // One error for each call that came to nothing, and nothing beside it.
    failed(&gateway, 10).await;
    tells(&gateway, (0, 0)).await;
}

/// What runs for all callers has an identity of its own, of which some servers want to know what it is.
#[tokio::test]
async fn a_token_is_said_to_be_what_the_configuration_says() {
    let issuer = Issuer::start().await;
    for (said, kind) in [("", "access_token"), ("id_token", "id_token"), ("jwt", "jwt")] {
        let trust = json!({ "trusts": issuer.issuer(), "audience": AUDIENCE, "takes": kind });
        let mut authority = Authority::with(&json!({ "exchange": trust }));
        let upstream = authority.upstream().await;
        let said = if said.is_empty() { String::new() } else { format!(", subject_token_type = \"{said}\"") };
        let config = format!(
            "[store]\npath = \"logins.redb\"\n{}auth = \"exchange\"\n\
             oauth = {{ issuer = \"{}\", client_id = \"weir-exchange\", client_secret = {{ env = \"SECRET\" }}, \
             subject_token = {{ env = \"IDENTITY\" }}{said} }}\n",
            upstream.config("u"),
            authority.issuer(),
        );
        let identity = issuer.token("workload", AUDIENCE);
        let gateway = Gateway::start_with(&config, &[("SECRET", SECRET), ("IDENTITY", &identity)]).await;
        gateway.healthy(&["u"]).await;
        assert!(answered(&echo(&Client::modern(&gateway, "/mcp/u")).await), "{kind}: {}", gateway.log());
        let uri = format!("urn:ietf:params:oauth:token-type:{kind}");
        assert_eq!(authority.asked("/token")[0]["body"]["subject_token_type"], json!(uri));
    }
}
