//! What the log says when there is no way in: of a missing login one line of what to do and no error beside it, of anything
//! else one error. Counted over every mode, both transports, both eras, and calls that come again and again.

use serde_json::json;
use tokio::task::JoinSet;
use weir_tests::gateway::{NEEDS_SIGN_IN, UNREACHABLE};
use weir_tests::peer::free_port;
use weir_tests::terminal::{ENVIRONMENT, config, failed, lines, tells};
use weir_tests::wait::until;
use weir_tests::{Authority, Client, Gateway, Stub};

/// Calls of a client of one era.
const CALLS: usize = 10;

/// A server over one of the transports that wants tokens of `authority`: over HTTP+SSE a Weir of its own.
struct Guarded {
    config: String,
    _parts: (Stub, Option<Gateway>),
}

async fn guarded(authority: &Authority, transport: &str, auth: &str) -> Guarded {
    if transport == "http" {
        let stub = authority.upstream().await;
        return Guarded { config: config(&stub, auth), _parts: (stub, None) };
    }
    let (stub, port) = (Stub::start().await, free_port());
    let root = format!("http://127.0.0.1:{port}");
    let inner = format!("[auth]\nissuer = \"{}\"\naudience = \"{root}/mcp\"\n", authority.issuer());
    let inner = Gateway::start_at(port, &(inner + &stub.config("inner"))).await;
    let config = config(&stub, &format!("type = \"sse\"\n{auth}")).replace(&stub.url(), &format!("{root}/sse"));
    Guarded { config, _parts: (stub, Some(inner)) }
}

/// Calls in both eras, again and again.
async fn call(gateway: &Gateway) -> Vec<String> {
    let clients = [(Client::modern(gateway, "/mcp/u"), "echo"), (Client::legacy(gateway, "/mcp").await, "u__echo")];
    let mut answers = Vec::new();
    for (client, name) in &clients {
        for _ in 0..CALLS {
            let call = json!({ "name": name, "arguments": { "message": "m" } });
            answers.push(client.ask("tools/call", call).await.to_string());
        }
    }
    answers
}

#[tokio::test]
async fn a_missing_login_is_one_line_and_no_error() {
    let mut cases = JoinSet::new();
    for transport in ["http", "sse"] {
        for auth in ["", "auth = \"oauth\"", "auth = \"device\"\noauth = { client_id = \"weir-native\" }"] {
            cases.spawn(async move {
                let authority = Authority::start(3600);
                let upstream = guarded(&authority, transport, auth).await;
                let gateway = Gateway::start_with(&upstream.config, &ENVIRONMENT).await;
                gateway.logs(NEEDS_SIGN_IN).await;
                for answer in call(&gateway).await {
                    assert!(answer.contains("`u` needs a sign-in"), "{transport} {auth}: {answer}");
                }
                let quiet = "\"error\":\"needs a sign-in\"";
                until("each call has its line", || lines(&gateway, quiet) >= CALLS).await;
                let log = gateway.log();
                tells(&gateway, (0, 1)).await;
                assert_eq!(lines(&gateway, "\"level\":\"ERROR\"") + lines(&gateway, "\"level\":\"WARN\""), 0, "{log}");
                let line = log.lines().find(|line| line.contains(NEEDS_SIGN_IN)).unwrap();
                assert!(
                    line.contains("\"level\":\"INFO\"") && line.contains("\"command\":\"weir auth login u "),
                    "{line}"
                );
                // With a code there is nothing to open in a browser.
                let link = format!("\"link\":\"{}\"", gateway.url("/connect"));
                assert_eq!(line.contains(&link), !auth.contains("device"), "{line}");
            });
        }
    }
    cases.join_all().await;
}

#[tokio::test]
async fn anything_else_is_one_error() {
    let client = |id: &str, secret: &str| {
        format!("oauth = {{ client_id = \"{id}\", client_secret = {{ env = \"{secret}\" }} }}")
    };
    let cases = [
        // The authorization server does not know this secret; it knows it, and gives nothing of this kind for it.
        (
            format!("auth = \"client_credentials\"\n{}", client("weir-basic", "WEIR_TESTS_KEY")),
            "does not accept this client",
        ),
        (
            format!("auth = \"client_credentials\"\n{}", client("nobody", "WEIR_TESTS_SECRET")),
            "does not accept this client",
        ),
        (
            "auth = \"exchange\"\noauth = { issuer = \"ISSUER\", client_id = \"weir-native\", \
             subject_token = { env = \"WEIR_TESTS_SECRET\" } }"
                .to_owned(),
            "the authorization server refuses",
        ),
        ("bearer = { env = \"WEIR_TESTS_SECRET\" }".to_owned(), "refused the token from env WEIR_TESTS_SECRET"),
        ("headers = { X-Key = \"wrong\" }\nauth = \"none\"".to_owned(), "401"),
    ];
    let mut all = JoinSet::new();
    for transport in ["http", "sse"] {
        for (auth, why) in cases.clone() {
            all.spawn(async move {
                let authority = Authority::start(3600);
                let auth = auth.replace("ISSUER", authority.issuer());
                let upstream = guarded(&authority, transport, &auth).await;
                let gateway = Gateway::start_with(&upstream.config, &ENVIRONMENT).await;
                gateway.logs(UNREACHABLE).await;
                for answer in call(&gateway).await {
                    assert!(answer.contains(why), "{transport} {auth}: {answer} does not say: {why}");
                }
                // One for the upstream, and one for each call that came to nothing.
                failed(&gateway, 2 * CALLS).await;
                tells(&gateway, (1, 0)).await;
                let error = gateway.log().lines().find(|line| line.contains("\"ERROR\"")).unwrap().to_owned();
                assert!(error.contains(why), "{error}");
            });
        }
    }
    all.join_all().await;
}
