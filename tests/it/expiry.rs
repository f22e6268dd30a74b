//! A stream that would never end by itself ends with the token that opened it; an answer that is under way comes.

use serde_json::json;
use weir_tests::client::{answer, initialize, with_meta};
use weir_tests::issuer::now;
use weir_tests::stub::Offer;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, Issuer, LEGACY, Request, Stub};

const AUDIENCE: &str = "https://weir.example/mcp";

/// How far the clocks of issuer and gateway may differ.
const LEEWAY: u64 = 60;

fn with(request: Request, token: &str) -> Request {
    request.header("authorization", &format!("Bearer {token}"))
}

#[tokio::test]
async fn streams_end_with_the_token_that_opened_them() {
    let issuer = Issuer::start().await;
    let listening = Offer { listens: true, ..Offer::default() };
    let (stub, old) =
        (Stub::offering(listening).await, Stub::offering(Offer { modern: false, ..Offer::default() }).await);
    let auth = format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n", issuer.issuer());
    let gateway = Gateway::start(&format!("{auth}{}{}", stub.config("stub"), old.config("old"))).await;
    let long = issuer.token("ada", AUDIENCE);
    let mut claims = issuer.claims("ada", AUDIENCE);
    // Good for a few seconds more, by what clocks may differ.
    claims["exp"] = json!(now() - LEEWAY + 25);
    let short = issuer.sign(&claims);

    let (whole, own) = (
        Client::legacy_with(&gateway, "/mcp", &long, &json!({})).await,
        Client::legacy_with(&gateway, "/mcp/old", &long, &json!({})).await,
    );
    let listen = |client: &Client, path: &str, token: &str| {
        let request = Request::get(path).header("accept", "text/event-stream").header("mcp-protocol-version", LEGACY);
        gateway.send(with(request.header("mcp-session-id", client.session_id()), token))
    };
    let mut lasting = listen(&own, "/mcp/old", &long).await.events();
    let mut ending = vec![listen(&whole, "/mcp", &short).await.events()];
    for path in ["/sse", "/mcp"] {
        let open = Request::get(path).header("accept", "text/event-stream");
        ending.push(gateway.send(with(open, &short)).await.events());
    }
    for path in ["/mcp", "/mcp/stub", "/mcp/old"] {
        let client = Client::modern(&gateway, path).with_token(&short);
        let wish = json!({ "notifications": { "toolsListChanged": true } });
        ending.push(client.send(client.request("subscriptions/listen", wish).1).await.events());
    }
    let ended = ending.into_iter().map(|mut stream| {
        tokio::spawn(async move {
            while stream.next().await.is_some() {}
            now()
        })
    });
    let ended: Vec<_> = ended.collect();
    // A client that comes with a younger token in time keeps its stream.
    let open = Request::get("/sse").header("accept", "text/event-stream");
    let mut renewed = gateway.send(with(open, &short)).await.events();
    let place = format!("/{}", renewed.next().await.unwrap().data);
    assert_eq!(gateway.send(with(initialize(&place, LEGACY, &json!({})), &long)).await.status, 202);
    assert_eq!(renewed.next_message().await.unwrap()["result"]["serverInfo"]["name"], "weir");
    // A call that is under way when the token ends.
    let client = Client::modern(&gateway, "/mcp/stub").with_token(&short);
    let (id, request) = client.request("tools/call", with_meta(json!({ "name": "hold", "arguments": {} }), &json!({})));
    let address = gateway.address();
    let held = tokio::spawn(async move { answer(request.send(address).await, id).await });
    until("the call waits", || stub.held() == 1).await;

    let end = claims["exp"].as_u64().unwrap() + LEEWAY;
    for ended in ended {
        // Both are whole seconds.
        assert!(ended.await.unwrap() + 1 >= end, "not before its time");
    }
    assert_eq!(gateway.send(with(own.request("ping", json!({})).1, &short)).await.status, 401);
    stub.release(1);
    assert!(held.await.unwrap().get("result").is_some());
    until("the gateway listens", || old.listeners() > 0).await;
    old.announce("notifications/tools/list_changed");
    assert_eq!(lasting.next_message().await.unwrap()["method"], "notifications/tools/list_changed");
    let ping = json!({ "jsonrpc": "2.0", "id": 7, "method": "ping" }).to_string();
    assert_eq!(gateway.send(with(Request::post(&place, ping), &long)).await.status, 202);
    loop {
        let message = renewed.next_message().await.expect("the stream goes on");
        if message["id"] == 7 {
            break;
        }
    }
}
