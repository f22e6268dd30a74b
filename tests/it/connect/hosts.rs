//! Real hosts that start `weir connect` as they start any server.

use serde_json::json;
use weir_tests::driver::{Choice, Target, Visitor, common, inspect, visit};
use weir_tests::{Gateway, Peer, paths};

/// Where `weir connect` leads, with the words of a call that gives back a text.
struct Place {
    url: String,
    tool: &'static str,
}

struct Stage {
    places: Vec<Place>,
    _parts: (Peer, Peer, Peer, Gateway),
}

async fn stage() -> Stage {
    let (fixture, http, sse) = tokio::join!(Peer::fixture("both"), Peer::everything(), Peer::everything_sse());
    let gateway = Gateway::start(&http.config("everything")).await;
    gateway.healthy(&["everything"]).await;
    let places = vec![
        Place { url: fixture.url(), tool: "test_simple_text" },
        Place { url: http.url(), tool: "echo" },
        Place { url: sse.sse_url(), tool: "echo" },
        Place { url: gateway.url("/mcp"), tool: "everything__echo" },
    ];
    Stage { places, _parts: (fixture, http, sse, gateway) }
}

/// Whatever the server speaks, a host has the era that it prefers.
async fn visit_all(visitor: Visitor, choices: &[Choice]) {
    let weir = paths::weir();
    let stage = stage().await;
    for place in &stage.places {
        let command = [weir.to_str().unwrap(), "connect", &place.url];
        for choice in choices {
            let arguments = json!({ "message": "hello" });
            let seen = visit(visitor, *choice, Target::Stdio(&command), place.tool, &arguments).await;
            let seen = seen.unwrap_or_else(|error| panic!("{visitor:?} {choice:?} at {}: {error}", place.url));
            let text = seen["call"]["content"][0]["text"].as_str().unwrap_or_default();
            assert!(text == "Echo: hello" || text.starts_with("This is a simple text"), "{}: {seen}", place.url);
            assert!(seen["tools"].as_array().unwrap().len() > 5, "{}: {seen}", place.url);
            let era = if *choice == Choice::Legacy { "legacy" } else { "modern" };
            assert_eq!(seen["era"], era, "{visitor:?} {choice:?} at {}", place.url);
        }
    }
    // What a host sees through the program is what it sees without.
    let direct = visit(visitor, choices[0], &stage.places[0].url, "test_multiple_content_types", &json!({})).await;
    let command = [weir.to_str().unwrap(), "connect", &stage.places[0].url];
    let target = Target::Stdio(&command);
    let through = visit(visitor, choices[0], target, "test_multiple_content_types", &json!({})).await;
    assert_eq!(through.map(common), direct.map(common));
}

#[tokio::test]
async fn sdk1() {
    visit_all(Visitor::Sdk1, &[Choice::Legacy]).await;
}

#[tokio::test]
async fn sdk2() {
    visit_all(Visitor::Sdk2, &[Choice::Legacy, Choice::Auto, Choice::Modern]).await;
}

#[tokio::test]
async fn python() {
    visit_all(Visitor::Python, &[Choice::Legacy, Choice::Auto, Choice::Modern]).await;
}

#[tokio::test]
async fn the_inspector() {
    let weir = paths::weir();
    let stage = stage().await;
    for place in stage.places.iter().filter(|place| place.tool == "echo") {
        let command = [weir.to_str().unwrap(), "connect", &place.url];
        for choice in [Choice::Legacy, Choice::Auto, Choice::Modern] {
            let more = ["--tool-name", place.tool, "--tool-arg", "message=hello"];
            let seen = inspect(choice, Target::Stdio(&command), "tools/call", &more).await;
            let seen = seen.unwrap_or_else(|error| panic!("{choice:?} at {}: {error}", place.url));
            assert_eq!(seen["content"][0]["text"], "Echo: hello", "{choice:?} at {}", place.url);
        }
    }
}
