//! An upstream that is gone for some seconds, as when it is restarted.

use serde_json::json;
use weir_tests::stub::Offer;
use weir_tests::{Client, Gateway, Stub};

#[tokio::test]
async fn its_tools_stay_on_offer_and_calls_say_that_it_is_gone() {
    let offer = Offer { modern: false, ..Offer::default() };
    let stub = Stub::offering(offer.clone()).await;
    let address = stub.address();
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let clients = [Client::legacy(&gateway, "/mcp").await, Client::modern(&gateway, "/mcp")];
    let tools = clients[0].tools().await;
    assert!(tools.contains(&"stub__echo".to_owned()), "{tools:?}");

    drop(stub);
    // It has been tried twice by then.
    gateway.settle(&["stub"], "error").await;
    let call = json!({ "name": "stub__echo", "arguments": { "message": "hello" } });
    for client in &clients {
        assert_eq!(client.tools().await, tools);
        let answer = client.ask("tools/call", call.clone()).await;
        let why = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(
            why,
            "upstream `stub` cannot be reached: no connection: refused; check its url and that it is running"
        );
    }

    let _stub = Stub::at(address, offer).await;
    for client in &clients {
        assert_eq!(client.result("tools/call", call.clone()).await["content"][0]["text"], "hello");
    }
}
