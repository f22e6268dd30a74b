//! Real clients at real servers: what a client sees through the gateway is what it sees without.

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_tests::Gateway;
use weir_tests::driver::{Choice, Visitor, common, inspect, visit};
use weir_tests::peer::{Launch, Peer};

/// All real servers behind one gateway.
struct Stage {
    gateway: Gateway,
    upstreams: Vec<Upstream>,
    directory: TempDir,
    _peers: Vec<Peer>,
}

/// One of them, with a tool to call.
struct Upstream {
    name: &'static str,
    /// Where to see it without the gateway: another process of the same server, if it has no address of its own.
    direct: String,
    modern: bool,
    tool: &'static str,
    arguments: Value,
}

async fn stage() -> Stage {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("note.txt"), "a note").unwrap();
    let (fixture, everything, python, fastmcp) =
        tokio::join!(Peer::fixture("both"), Peer::everything(), Peer::python(), Peer::fastmcp());
    let echo = json!({ "message": "hello" });
    let upstream = |name, direct: &Peer, modern, tool, arguments: &Value| Upstream {
        name,
        direct: direct.url(),
        modern,
        tool,
        arguments: arguments.clone(),
    };
    let upstreams = vec![
        upstream("fixture", &fixture, true, "test_multiple_content_types", &json!({})),
        upstream("fixture-stdio", &fixture, true, "test_image_content", &json!({})),
        upstream("everything", &everything, false, "echo", &echo),
        upstream("everything-stdio", &everything, false, "get-sum", &json!({ "a": 2, "b": 3 })),
        upstream("python", &python, true, "add", &json!({ "a": 2, "b": 3 })),
        upstream("python-stdio", &python, true, "echo", &echo),
        upstream("fastmcp", &fastmcp, true, "echo", &echo),
    ];
    let config = [
        fixture.config("fixture"),
        Launch::fixture("both").config("fixture-stdio"),
        everything.config("everything"),
        Launch::everything().config("everything-stdio"),
        python.config("python"),
        Launch::python().config("python-stdio"),
        fastmcp.config("fastmcp"),
        Launch::filesystem(directory.path()).config("files"),
    ];
    let gateway = Gateway::start(&config.concat()).await;
    let mut names: Vec<&str> = upstreams.iter().map(|upstream| upstream.name).collect();
    names.push("files");
    gateway.healthy(&names).await;
    let peers = vec![fixture, everything, python, fastmcp];
    Stage { gateway, upstreams, directory, _peers: peers }
}

/// Visits every upstream that `choice` can speak with, directly and through its own endpoint, and compares.
async fn compare(visitor: Visitor, choice: Choice) {
    let stage = stage().await;
    let mut wrong = Vec::new();
    for upstream in stage.upstreams.iter().filter(|upstream| upstream.modern || choice != Choice::Modern) {
        let through = stage.gateway.url(&format!("/mcp/{}", upstream.name));
        let (tool, arguments) = (upstream.tool, &upstream.arguments);
        let (direct, through) = tokio::join!(
            visit(visitor, choice, &upstream.direct, tool, arguments),
            visit(visitor, choice, &through, tool, arguments),
        );
        let direct = direct.unwrap_or_else(|error| panic!("{} without the gateway: {error}", upstream.name));
        match through.map(common) {
            Ok(through) if through == common(direct.clone()) => {}
            // A client that prefers the modern era has it from the gateway, whatever the server speaks.
            Ok(through) if choice == Choice::Auto && same_in_either_era(&through, &common(direct.clone())) => {}
            Ok(through) => {
                wrong.push(format!("{}:\n  directly {}\n  through  {through}", upstream.name, common(direct)));
            }
            Err(error) => wrong.push(format!("{}: {error}", upstream.name)),
        }
    }
    assert!(wrong.is_empty(), "{visitor:?} {choice:?} sees something else through the gateway:\n{}", wrong.join("\n"));
}

/// Whether a legacy server shows the same when it is translated: results then say who answers and for how long they hold.
fn same_in_either_era(modern: &Value, legacy: &Value) -> bool {
    let without_era = |mut seen: Value| {
        seen["era"] = Value::Null;
        for answer in ["call", "prompt", "resource"] {
            if let Some(answer) = seen[answer].as_object_mut() {
                for added in ["_meta", "ttlMs", "cacheScope"] {
                    answer.remove(added);
                }
            }
        }
        seen
    };
    modern["era"] == "modern" && legacy["era"] == "legacy" && without_era(modern.clone()) == without_era(legacy.clone())
}

#[tokio::test]
async fn sdk1_legacy() {
    compare(Visitor::Sdk1, Choice::Legacy).await;
}

#[tokio::test]
async fn sdk2_legacy() {
    compare(Visitor::Sdk2, Choice::Legacy).await;
}

#[tokio::test]
async fn sdk2_auto() {
    compare(Visitor::Sdk2, Choice::Auto).await;
}

#[tokio::test]
async fn sdk2_modern() {
    compare(Visitor::Sdk2, Choice::Modern).await;
}

#[tokio::test]
async fn python_legacy() {
    compare(Visitor::Python, Choice::Legacy).await;
}

#[tokio::test]
async fn python_auto() {
    compare(Visitor::Python, Choice::Auto).await;
}

#[tokio::test]
async fn python_modern() {
    compare(Visitor::Python, Choice::Modern).await;
}

/// At `/mcp` a client speaks the era that it prefers: what a server lacks is translated for it.
#[tokio::test]
async fn every_client_at_all_servers_at_once() {
    let stage = stage().await;
    let url = stage.gateway.url("/mcp");
    let sum = json!({ "a": 20, "b": 22 });
    for (visitor, choice) in [
        (Visitor::Sdk1, Choice::Legacy),
        (Visitor::Sdk2, Choice::Legacy),
        (Visitor::Sdk2, Choice::Auto),
        (Visitor::Python, Choice::Legacy),
        (Visitor::Python, Choice::Auto),
    ] {
        let seen = visit(visitor, choice, &url, "python__add", &sum).await.unwrap();
        assert_eq!(seen["call"]["content"][0]["text"], "42", "{visitor:?} {choice:?}: {seen}");
        let era = if choice == Choice::Legacy { "legacy" } else { "modern" };
        assert_eq!(seen["era"], era, "{visitor:?} {choice:?}");
        let tools = seen["tools"].to_string();
        for tool in [
            "fixture__test_simple_text",
            "fixture-stdio__test_simple_text",
            "everything__get-sum",
            "everything-stdio__echo",
            "python-stdio__slow",
            "fastmcp__echo",
            "files__read_text_file",
        ] {
            assert!(tools.contains(tool), "{visitor:?} {choice:?} sees {tool}: {tools}");
        }
    }
}

#[tokio::test]
async fn modern_clients_at_all_modern_servers_at_once() {
    let (fixture, python) = tokio::join!(Peer::fixture("modern"), Peer::python());
    let config = fixture.config("fixture") + &python.config("python") + &Launch::fastmcp().config("fastmcp");
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["fixture", "python", "fastmcp"]).await;
    let url = gateway.url("/mcp");
    let sum = json!({ "a": 20, "b": 22 });
    for (visitor, choice) in [
        (Visitor::Sdk2, Choice::Modern),
        (Visitor::Sdk2, Choice::Auto),
        (Visitor::Python, Choice::Modern),
        (Visitor::Python, Choice::Auto),
    ] {
        let seen = visit(visitor, choice, &url, "fastmcp__add", &sum).await.unwrap();
        assert_eq!(seen["call"]["content"][0]["text"], "42", "{visitor:?} {choice:?}: {seen}");
        assert_eq!(seen["era"], "modern", "{visitor:?} {choice:?}");
        let tools = seen["tools"].to_string();
        for tool in ["fixture__test_simple_text", "python__slow", "fastmcp__echo"] {
            assert!(tools.contains(tool), "{visitor:?} {choice:?} sees {tool}: {tools}");
        }
    }
    let more = ["--tool-name", "python__add", "--tool-arg", "a=20", "--tool-arg", "b=22"];
    let sum = inspect(Choice::Modern, &url, "tools/call", &more).await.unwrap();
    assert_eq!(sum["content"][0]["text"], "42");
}

#[tokio::test]
async fn a_file_is_read_through_the_filesystem_server() {
    let stage = stage().await;
    let path = stage.directory.path().join("note.txt");
    let arguments = json!({ "path": path.to_str().unwrap() });
    let url = stage.gateway.url("/mcp/files");
    let seen = visit(Visitor::Sdk1, Choice::Legacy, &url, "read_text_file", &arguments).await.unwrap();
    assert_eq!(seen["call"]["content"][0]["text"], "a note", "{seen}");
}

#[tokio::test]
async fn the_inspector_in_every_era() {
    let stage = stage().await;
    for choice in [Choice::Legacy, Choice::Auto, Choice::Modern] {
        for upstream in stage.upstreams.iter().filter(|upstream| upstream.modern) {
            let through = stage.gateway.url(&format!("/mcp/{}", upstream.name));
            let direct = inspect(choice, &upstream.direct, "tools/list", &[]).await.unwrap();
            let through = inspect(choice, &through, "tools/list", &[]).await.unwrap();
            assert_eq!(through["tools"], direct["tools"], "{} in {choice:?}", upstream.name);
        }
    }
    let url = stage.gateway.url("/mcp");
    for choice in [Choice::Legacy, Choice::Auto] {
        let more = ["--tool-name", "python__add", "--tool-arg", "a=20", "--tool-arg", "b=22"];
        let sum = inspect(choice, &url, "tools/call", &more).await.unwrap();
        assert_eq!(sum["content"][0]["text"], "42", "{choice:?}");
    }
}
