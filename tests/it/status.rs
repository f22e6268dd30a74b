//! Every answer that is a matter of status codes, as two tables: one for each era, each run at both kinds of endpoint.

use serde_json::Value;
use weir_tests::peer::Launch;
use weir_tests::{Client, Gateway, Peer, Request, Response};

mod legacy;
mod modern;

/// The upstream, as it is called here.
const NAME: &str = "fixture";
/// Small, so that a body that is too large need not be.
const BODY_LIMIT: usize = 64 * 1024;

/// One line of a table.
struct Row {
    case: &'static str,
    request: Request,
    statuses: &'static [u16],
    expected: Expected,
}

/// What comes with the status.
enum Expected {
    /// Whatever.
    Anything,
    /// No body.
    Nothing,
    /// A JSON-RPC result.
    Result,
    /// A JSON-RPC error with this code and the id of the request, or none if there was none to be read.
    Error(i64),
    /// Something that is said here.
    That(fn(&Response) -> bool),
}

fn row(case: &'static str, request: Request, statuses: &'static [u16], expected: Expected) -> Row {
    Row { case, request, statuses, expected }
}

/// One endpoint under test.
struct Endpoint {
    path: String,
    /// What goes before the name of a tool.
    prefix: String,
}

fn endpoints() -> [Endpoint; 2] {
    [
        Endpoint { path: "/mcp".to_owned(), prefix: format!("{NAME}__") },
        Endpoint { path: format!("/mcp/{NAME}"), prefix: String::new() },
    ]
}

async fn start() -> (Gateway, Peer) {
    let peer = Peer::fixture("both").await;
    (start_with(&peer.config(NAME)).await, peer)
}

async fn start_with(upstream: &str) -> Gateway {
    let gateway = Gateway::start(&format!("limits.body = \"64KiB\"\n{upstream}")).await;
    gateway.healthy(&[NAME]).await;
    gateway
}

/// Sends every row and reports all that are wrong at once.
async fn run(gateway: &Gateway, table: &str, rows: Vec<Row>) {
    let count = rows.len();
    let mut wrong = Vec::new();
    for row in rows {
        if let Err(error) = check(gateway, row.request, row.statuses, row.expected).await {
            wrong.push(format!("  {}: {error}", row.case));
        }
    }
    assert!(wrong.is_empty(), "{table}: {} of {count} answers are wrong\n{}", wrong.len(), wrong.join("\n"));
}

async fn check(
    gateway: &Gateway,
    request: Request,
    statuses: &'static [u16],
    expected: Expected,
) -> Result<(), String> {
    let response = gateway.send(request).await;
    let status = response.status;
    if !statuses.contains(&status) {
        return Err(format!("expected {statuses:?}, got {status}{}", body_of(response).await));
    }
    let fits = match expected {
        Expected::Anything => true,
        Expected::That(fits) => fits(&response),
        Expected::Nothing => response.bytes().await.is_empty(),
        Expected::Result => last(response).await?.get("result").is_some(),
        Expected::Error(code) => {
            let answer = last(response).await?;
            if answer["error"]["code"] != code {
                return Err(format!("expected {status} with error {code}, got {answer}"));
            }
            true
        }
    };
    if fits {
        Ok(())
    } else {
        Err(format!("the status is {status}, but the rest of the answer is not as it should be"))
    }
}

/// The last message of an answer is the one that counts: progress and the like come before.
async fn last(response: Response) -> Result<Value, String> {
    if response.is_stream() {
        return Ok(response.messages().await.pop().unwrap_or_default());
    }
    let status = response.status;
    let body = response.bytes().await;
    serde_json::from_slice(&body).map_err(|_| format!("{status} without JSON: {:?}", String::from_utf8_lossy(&body)))
}

async fn body_of(response: Response) -> String {
    if response.is_stream() {
        return " (a stream)".to_owned();
    }
    match response.bytes().await {
        body if body.is_empty() => String::new(),
        body => format!(" with {}", String::from_utf8_lossy(&body)),
    }
}

#[tokio::test]
async fn legacy_answers() {
    let (gateway, _peer) = start().await;
    for endpoint in endpoints() {
        let client = Client::legacy(&gateway, &endpoint.path).await;
        run(&gateway, &format!("legacy at {}", endpoint.path), legacy::rows(&client, &endpoint)).await;
    }
}

#[tokio::test]
async fn modern_answers() {
    let (gateway, _peer) = start().await;
    for endpoint in endpoints() {
        let client = Client::modern(&gateway, &endpoint.path);
        run(&gateway, &format!("modern at {}", endpoint.path), modern::rows(&client, &endpoint)).await;
    }
}

/// A process sees no headers, so all that concerns them is Weir's to check.
#[tokio::test]
async fn modern_answers_of_a_process() {
    let gateway = start_with(&Launch::fixture("both").config(NAME)).await;
    for endpoint in endpoints() {
        let client = Client::modern(&gateway, &endpoint.path);
        run(&gateway, &format!("modern over stdio at {}", endpoint.path), modern::rows(&client, &endpoint)).await;
    }
}

#[tokio::test]
async fn answers_beside_the_protocol() {
    let (gateway, _peer) = start().await;

    let health = gateway.send(Request::get("/healthz")).await;
    assert_eq!((health.status, health.bytes().await.trim_ascii()), (200, b"ok".as_slice()));

    let (status, readiness) = gateway.readiness().await;
    assert_eq!(status, 200, "{readiness}");
    let upstream = &readiness["upstreams"][0];
    assert_eq!(upstream["name"], NAME);
    assert_eq!(upstream["state"], "healthy");
    assert_eq!(upstream["transport"], "http");
    assert!(upstream["tools"].as_u64().is_some_and(|tools| tools > 20), "{readiness}");

    for path in ["/", "/mc", "/mcp/unknown", "/mcp/fixture/more", "/healthz/more"] {
        let response = gateway.send(Request::post(path, r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)).await;
        assert_eq!(response.status, 404, "POST {path}");
    }
}
