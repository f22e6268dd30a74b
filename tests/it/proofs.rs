//! Tokens that are bound to a key (DPoP, RFC 9449) on both sides of Weir, and workloads that say who they are (RFC 7523).

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use weir_tests::issuer::now;
use weir_tests::peer::free_port;
use weir_tests::tokens::encoded;
use weir_tests::wait::PATIENCE;
use weir_tests::{Authority, Client, Gateway, Issuer, Request, Stub};

use crate::callers::{AUDIENCE, refused, tools};

const SECRET: &str = "basic secret: +&%";

fn hash(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, text.as_bytes()))
}

/// The thumbprint of a key (RFC 7638).
fn thumbprint(jwk: &Value) -> String {
    hash(&format!(r#"{{"crv":"P-256","kty":"EC","x":{},"y":{}}}"#, jwk["x"], jwk["y"]))
}

/// A proof by the key of `holder` for a POST to Weir's address with `token`.
fn proof(holder: &Issuer, token: &str, id: &str) -> String {
    let head = json!({ "typ": "dpop+jwt", "alg": "ES256", "jwk": holder.jwk() });
    holder.sign_as(&head, &json!({ "jti": id, "htm": "POST", "htu": AUDIENCE, "iat": now(), "ath": hash(token) }))
}

fn with(scheme: &str, token: &str, proofs: &[&str]) -> Request {
    let request = tools("/mcp").header("authorization", &format!("{scheme} {token}"));
    proofs.iter().fold(request, |request, proof| request.also("dpop", proof))
}

#[tokio::test]
async fn a_token_that_is_bound_to_a_key_opens_with_a_proof_alone() {
    let (issuer, holder, stub) = (Issuer::start().await, Issuer::start().await, Stub::start().await);
    let auth = format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n", issuer.issuer());
    let gateway = Gateway::start(&(auth + &stub.config("stub"))).await;
    let mut claims = issuer.claims("ada", AUDIENCE);
    claims["cnf"] = json!({ "jkt": thumbprint(&holder.jwk()) });
    let (token, plain) = (issuer.sign(&claims), issuer.token("ada", AUDIENCE));
    let used = proof(&holder, &token, "one");
    // Before the token is known and after.
    for round in ["a", "b"] {
        let fresh = proof(&holder, &token, round);
        assert_eq!(gateway.send(with("DPoP", &token, &[&fresh])).await.status, 200, "{}", gateway.log());
    }
    assert_eq!(gateway.send(with("DPoP", &token, &[&used])).await.status, 200);
    let (first, second) = (proof(&holder, &token, "two"), proof(&holder, &token, "three"));
    let (foreign, elsewhere) = (proof(&issuer, &token, "four"), proof(&holder, &plain, "five"));
    let long = format!("{first}{}", "A".repeat(100_000));
    for (request, error, what) in [
        (with("Bearer", &token, &[]), "invalid_token", "as a bearer token"),
        (with("Bearer", &token, &[&first]), "invalid_token", "as a bearer token with a proof"),
        (with("DPoP", &token, &[]), "invalid_dpop_proof", "without a proof"),
        (with("DPoP", &token, &[&first, &second]), "invalid_dpop_proof", "with two proofs"),
        (with("DPoP", &token, &[&used]), "invalid_dpop_proof", "with a proof that was used"),
        (with("DPoP", &token, &[&foreign]), "invalid_dpop_proof", "with the proof of another key"),
        (with("DPoP", &token, &[&elsewhere]), "invalid_dpop_proof", "with the proof of another token"),
        (with("DPoP", &plain, &[&elsewhere]), "invalid_token", "a token that is bound to nothing"),
    ] {
        let (status, challenge, why) = refused(gateway.send(request).await).await;
        assert_eq!(status, 401, "{what}");
        assert!(challenge.contains(&format!("error=\"{error}\"")), "{what}: {challenge} {why}");
    }
    assert_ne!(gateway.send(with("DPoP", &token, &[&long])).await.status, 200);
    assert_eq!(gateway.send(with("DPoP", &token, &[&first])).await.status, 200, "none of that has used it up");
    assert_eq!(gateway.send(with("Bearer", &plain, &[])).await.status, 200);
    for secret in [&token, &used] {
        assert!(!gateway.log().contains(secret.as_str()), "it is in the log");
    }
}

/// What the issuer says of an opaque token binds it as a JWT binds itself.
#[tokio::test]
async fn an_opaque_token_that_is_bound_to_a_key_opens_with_a_proof_alone() {
    let (authority, holder, stub) =
        (Authority::with(&json!({ "opaque": true })), Issuer::start().await, Stub::start().await);
    let issuer = authority.issuer();
    let auth = format!(
        "[auth]\nissuer = \"{issuer}\"\naudience = \"{AUDIENCE}\"\nclient_id = \"weir-basic\"\n\
         client_secret = {{ env = \"SECRET\" }}\nintrospection = {{ cache = \"60s\" }}\n"
    );
    let gateway = Gateway::start_with(&(auth + &stub.config("stub")), &[("SECRET", SECRET)]).await;
    let head = json!({ "typ": "dpop+jwt", "alg": "ES256", "jwk": holder.jwk() });
    let asks = json!({ "jti": "ask", "htm": "POST", "htu": format!("{issuer}/token"), "iat": now() });
    let form = [("grant_type", "client_credentials"), ("resource", AUDIENCE), ("scope", "mcp:read")];
    let form = form.iter().chain(&[("client_id", "weir-post"), ("client_secret", "post secret: +&%")]);
    let form: Vec<_> = form.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    let request = Request::new("POST", "/token").header("content-type", "application/x-www-form-urlencoded");
    let request = request.header("dpop", &holder.sign_as(&head, &asks)).body(form.join("&"));
    let given = request.send(issuer.trim_start_matches("http://").parse().unwrap()).await.json().await;
    assert_eq!(given["token_type"], "DPoP", "{given}");
    let token = given["access_token"].as_str().unwrap();
    for round in ["asked about", "known"] {
        let proof = proof(&holder, token, round);
        assert_eq!(gateway.send(with("DPoP", token, &[&proof])).await.status, 200, "{round}: {}", gateway.log());
        assert_eq!(gateway.send(with("DPoP", token, &[&proof])).await.status, 401, "{round}: the proof was used");
        assert_eq!(gateway.send(with("Bearer", token, &[])).await.status, 401, "{round}: as a bearer token");
    }
}

/// A proof without a nonce is answered with one, which is good from then on.
#[tokio::test]
async fn a_proof_needs_a_nonce_where_the_configuration_says_so() {
    let (issuer, holder, stub) = (Issuer::start().await, Issuer::start().await, Stub::start().await);
    let auth = format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\ndpop_nonce = true\n", issuer.issuer());
    let gateway = Gateway::start(&(auth + "[store]\npath = \"store.redb\"\n" + &stub.config("stub"))).await;
    let mut claims = issuer.claims("ada", AUDIENCE);
    claims["cnf"] = json!({ "jkt": thumbprint(&holder.jwk()) });
    let token = issuer.sign(&claims);
    let proof = |id: &str, nonce: &str| {
        let head = json!({ "typ": "dpop+jwt", "alg": "ES256", "jwk": holder.jwk() });
        let claims =
            json!({ "jti": id, "htm": "POST", "htu": AUDIENCE, "iat": now(), "ath": hash(&token), "nonce": nonce });
        holder.sign_as(&head, &claims)
    };
    let mut given = Vec::new();
    for (id, nonce) in [("one", ""), ("two", "made-up")] {
        let response = gateway.send(with("DPoP", &token, &[&proof(id, nonce)])).await;
        given.push(response.header("dpop-nonce").expect("a nonce").to_owned());
        let (status, challenge, why) = refused(response).await;
        assert_eq!(status, 401, "{why}");
        assert!(challenge.starts_with("DPoP ") && challenge.contains("error=\"use_dpop_nonce\""), "{challenge}");
    }
    assert_eq!(given[0], given[1]);
    assert_eq!(
        gateway.send(with("DPoP", &token, &[&proof("three", &given[0])])).await.status,
        200,
        "{}",
        gateway.log()
    );
    // What is bound to nothing needs no proof, and so no nonce.
    assert_eq!(gateway.send(with("Bearer", &issuer.token("ada", AUDIENCE), &[])).await.status, 200);
}

/// A gateway that wants proofs, as the upstream of another one: over each transport, in both eras, with all methods.
#[tokio::test]
async fn a_gateway_proves_its_key_to_another_one() {
    let (authority, stub) = (Authority::with(&json!({ "access": 3600, "dpop": "nonce" })), Stub::start().await);
    let port = free_port();
    let first = format!(
        "[auth]\nissuer = \"{}\"\naudience = \"http://127.0.0.1:{port}/mcp\"\nrequire_dpop = true\ndpop_nonce = true\n[store]\npath = \"nonces.redb\"\n{}",
        authority.issuer(),
        stub.config("stub"),
    );
    let first = Gateway::start_at(port, &first).await;
    let (status, challenge, _) = refused(first.send(tools("/mcp")).await).await;
    assert!(status == 401 && challenge.starts_with("DPoP ") && challenge.contains("algs=\"ES256"), "{challenge}");
    let oauth =
        "auth = \"client_credentials\"\noauth = { client_id = \"weir-basic\", client_secret = { env = \"SECRET\" } }";
    let second = format!(
        "[store]\npath = \"logins.redb\"\n[upstreams.http]\nurl = \"http://127.0.0.1:{port}/mcp\"\n{oauth}\n\
         [upstreams.sse]\nurl = \"http://127.0.0.1:{port}/sse\"\ntype = \"sse\"\n{oauth}\n",
    );
    let second = Gateway::start_with(&second, &[("SECRET", SECRET)]).await;
    second.healthy(&["http", "sse"]).await;
    for path in ["/mcp/http", "/mcp/sse"] {
        let echoed = |client: Client| async move {
            client.call("stub__echo", json!({ "message": "hi" })).await;
            client
        };
        echoed(Client::modern(&second, path)).await;
        let legacy = echoed(Client::legacy(&second, path).await).await;
        legacy.close().await;
    }
}

#[tokio::test]
async fn a_statement_of_the_platform_takes_the_place_of_a_password() {
    let platform = Issuer::start().await;
    let mut authority = Authority::with(&json!({ "access": 5, "jwk": platform.jwk() }));
    let upstream = authority.upstream().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("workload.jwt");
    let issuer = authority.issuer().to_owned();
    let statement = |id: &str| {
        let claims = json!({ "iss": "weir-jwt", "sub": "weir-jwt", "aud": issuer, "exp": now() + 60, "jti": id });
        platform.sign_as(&json!({ "alg": "ES256" }), &claims)
    };
    let first = statement("one");
    std::fs::write(&file, format!("{first}\n")).unwrap();
    let oauth = format!("{{ client_id = \"weir-jwt\", client_assertion = {{ file = {file:?} }} }}");
    let config = format!(
        "[store]\npath = \"logins.redb\"\n{}auth = \"client_credentials\"\noauth = {oauth}\n",
        upstream.config("u")
    );
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["u"]).await;
    let client = Client::modern(&gateway, "/mcp/u");
    client.call("echo", json!({ "message": "m" })).await;
    assert_eq!(authority.grants("client_credentials"), 1, "{}", gateway.log());

    // The platform replaces it, and nobody takes the first one twice.
    std::fs::write(&file, statement("two")).unwrap();
    let end = tokio::time::Instant::now() + PATIENCE;
    while authority.grants("client_credentials") == 1 {
        assert!(tokio::time::Instant::now() < end, "the token is not renewed: {}", gateway.log());
        client.call("echo", json!({ "message": "m" })).await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    client.call("echo", json!({ "message": "m" })).await;
    assert_eq!(authority.grants("client_credentials refused"), 0);
    assert!(!gateway.log().contains(&first), "it is in the log");
}
