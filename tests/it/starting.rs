//! What clients are told while upstreams are still starting.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use weir_tests::driver::{Choice, Visitor, visit};
use weir_tests::gateway::UNREACHABLE;
use weir_tests::stub::{Offer, Stub};
use weir_tests::wait::{PATIENCE, until, within};
use weir_tests::{Client, Gateway};

/// No list waits for long.
const IMPATIENT: &str = "defaults.timeouts = { list = \"1s\" }\n";

/// What may come, and cannot be announced later.
const CAPABILITIES: [&str; 5] = ["completions", "logging", "prompts", "resources", "tools"];

async fn slow() -> Stub {
    Stub::offering(Offer { waits: true, ..Offer::default() }).await
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {result}"))
}

fn keys(object: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[tokio::test]
async fn answers_are_whole_before_any_upstream_is_there() {
    let stub = slow().await;
    let gateway = Gateway::start(&(IMPATIENT.to_owned() + &stub.config("slow"))).await;
    let (legacy, modern) = (Client::legacy(&gateway, "/mcp").await, Client::modern(&gateway, "/mcp"));
    let discovered = modern.result("server/discover", json!({})).await;
    for greeting in [legacy.greeting(), &discovered] {
        assert_eq!(keys(&greeting["capabilities"]), CAPABILITIES, "{greeting}");
        assert!(greeting["instructions"].as_str().unwrap().contains("still starting: `slow`"), "{greeting}");
    }
    for client in [&legacy, &modern] {
        assert_eq!(client.tools().await, ["weir__status"]);
        for (method, key) in [
            ("prompts/list", "prompts"),
            ("resources/list", "resources"),
            ("resources/templates/list", "resourceTemplates"),
        ] {
            assert!(client.list(method, key).await.is_empty(), "{method}");
        }
        assert_eq!(text(&client.call("weir__status", json!({})).await), "`slow`: starting");
        // What nobody supports yet is refused as what nobody has.
        let reference = json!({ "type": "ref/prompt", "name": "none" });
        let complete = json!({ "ref": reference, "argument": { "name": "a", "value": "b" } });
        let refused = client.ask("completion/complete", complete).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
        let refused = client.ask("resources/read", json!({ "uri": "test://none" })).await;
        assert!(refused["error"]["message"].as_str().unwrap().contains("Resource not found"), "{refused}");
    }
    assert_eq!(legacy.result("logging/setLevel", json!({ "level": "error" })).await, json!({}));

    let mut stream = legacy.stream().await;
    stub.release(1000);
    while stream.next_message().await.unwrap()["method"] != "notifications/tools/list_changed" {}
    for client in [&legacy, &modern] {
        assert_eq!(client.tools().await[0], "slow__echo");
        assert!(!client.tools().await.contains(&"weir__status".to_owned()), "nothing starts any more");
        // Who has listed it before may call it yet.
        let told = client.call("weir__status", json!({})).await;
        assert!(text(&told).starts_with("`slow`: healthy"), "{told}");
    }
    let late = Client::legacy(&gateway, "/mcp").await;
    assert_eq!(keys(&late.greeting()["capabilities"]), ["tools"], "all is known");
    assert!(late.greeting().get("instructions").is_none(), "{}", late.greeting());
}

#[tokio::test]
async fn real_clients_may_come_before_any_upstream() {
    let stub = slow().await;
    let gateway = Gateway::start(&(IMPATIENT.to_owned() + &stub.config("slow"))).await;
    for (visitor, choice) in [
        (Visitor::Sdk1, Choice::Legacy),
        (Visitor::Sdk2, Choice::Legacy),
        (Visitor::Sdk2, Choice::Auto),
        (Visitor::Python, Choice::Legacy),
        (Visitor::Python, Choice::Auto),
    ] {
        let seen = visit(visitor, choice, &gateway.url("/mcp"), "weir__status", &json!({})).await;
        let seen = seen.unwrap_or_else(|why| panic!("{visitor:?} {choice:?}: {why}"));
        assert_eq!(seen["capabilities"], json!(CAPABILITIES), "{visitor:?} {choice:?}: {seen}");
        // It is slow, or has been given up by then.
        let tools = &seen["tools"];
        assert!(*tools == json!(["weir__status"]) || *tools == json!([]), "{visitor:?} {choice:?}: {seen}");
        assert!(text(&seen["call"]).starts_with("`slow`: "), "{visitor:?} {choice:?}: {seen}");
    }
}

#[tokio::test]
async fn many_starts_are_told_once_and_not_each() {
    let mut stubs = Vec::new();
    for _ in 0..8 {
        stubs.push(slow().await);
    }
    let config: String = stubs.iter().enumerate().map(|(at, stub)| stub.config(&format!("u{at}"))).collect();
    let gateway = Gateway::start(&(IMPATIENT.to_owned() + &config)).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    let mut stream = client.stream().await;
    for stub in &stubs {
        stub.release(1000);
    }
    let (mut told, mut listed) = (0, 0);
    while listed < 8 * 5 {
        let message = within("the lists change", stream.next_message()).await.unwrap();
        assert_eq!(message["method"], "notifications/tools/list_changed", "nothing else has changed");
        told += 1;
        listed = client.tools().await.len();
    }
    assert!(told < 8, "{told} times for 8 upstreams");
}

#[tokio::test]
async fn an_upstream_called_weir_keeps_its_tools() {
    let tools = vec!["status".to_owned()];
    let weir = Stub::offering(Offer { tools, ..Offer::default() }).await;
    let stub = slow().await;
    let config = IMPATIENT.to_owned() + &weir.config("weir") + &stub.config("slow");
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["weir"]).await;
    for client in [Client::legacy(&gateway, "/mcp").await, Client::modern(&gateway, "/mcp")] {
        assert_eq!(client.tools().await, ["weir__status"]);
        assert_eq!(text(&client.call("weir__status", json!({ "message": "its own" })).await), "its own");
    }
    assert_eq!(weir.asked("tools/call").len(), 2);
}

#[tokio::test]
async fn an_upstream_that_has_failed_starts_no_more() {
    let stub = Stub::start().await;
    let port = weir_tests::peer::free_port();
    let absent = format!("[upstreams.absent]\nurl = \"http://127.0.0.1:{port}/mcp\"\n");
    let gateway = Gateway::start(&(absent + &stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    until("it is given up", || gateway.log().contains(UNREACHABLE)).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    assert!(!client.tools().await.contains(&"weir__status".to_owned()), "all have started or failed");
    // It may come back with more than tools.
    assert_eq!(keys(&client.greeting()["capabilities"]), CAPABILITIES);
    let told = client.call("weir__status", json!({})).await;
    assert!(text(&told).contains("`absent`: error: ") && text(&told).contains("`stub`: healthy, 5 tools"), "{told}");
}

#[tokio::test]
async fn a_server_that_says_nothing_has_the_time_that_its_error_names() {
    let stub = slow().await;
    let gateway = Gateway::start(&format!("{}timeouts = {{ initialize = \"300ms\" }}\n", stub.config("slow"))).await;
    gateway.settle(&["slow"], "error").await;
    let (_, body) = gateway.readiness().await;
    assert!(body["upstreams"][0]["error"].as_str().unwrap().contains("timeouts.initialize"), "{body}");
    stub.offer(Offer::default());
    gateway.healthy(&["slow"]).await;
}

/// A component with a module beside it that takes many seconds to compile, and that no cache has seen.
fn slow_to_compile(wasm: &[u8]) -> Vec<u8> {
    const FUNCTIONS: usize = 800;
    const STEPS: usize = 2_000;
    let leb = |mut number: usize| {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
            number >>= 7;
        }
        bytes.push(u8::try_from(number).unwrap());
        bytes
    };
    let section = |id: u8, content: Vec<u8>| [vec![id], leb(content.len()), content].concat();
    // No locals; the parameter is squared and added to, again and again.
    let body = [vec![0], [0x20, 0, 0x20, 0, 0x6c, 0x41, 1, 0x6a, 0x21, 0].repeat(STEPS), vec![0x20, 0, 0x0b]].concat();
    let bodies = [leb(body.len()), body].concat().repeat(FUNCTIONS);
    let nonce = std::process::id().to_le_bytes().to_vec();
    let module = [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, vec![1, 0x60, 1, 0x7f, 1, 0x7f]),
        section(3, [leb(FUNCTIONS), vec![0; FUNCTIONS]].concat()),
        section(10, [leb(FUNCTIONS), bodies].concat()),
        section(0, [vec![1, b'n'], nonce].concat()),
    ];
    [wasm.to_vec(), section(1, module.concat())].concat()
}

#[tokio::test]
async fn policies_that_are_being_compiled_keep_their_own_upstream_and_nobody_else() {
    let (stub, directory) = (Stub::start().await, tempfile::tempdir().unwrap());
    let component = directory.path().join("judge.wasm");
    std::fs::write(&component, slow_to_compile(weir_guests::JUDGE)).unwrap();
    let policy = format!(
        "[[upstreams.judged.policies]]\ncomponent = {component:?}\ngrants = [\"clock\", \"store\"]\n\
         settings = {{ see = \"facts\", do = \"deny=ask the desk\" }}\n"
    );
    let broken = directory.path().join("broken.wasm");
    std::fs::write(&broken, slow_to_compile(weir_guests::STRANGER)).unwrap();
    let wrong = format!("[[upstreams.wrong.policies]]\ncomponent = {broken:?}\n");
    let config = stub.config("free") + &stub.config("judged") + &policy + &stub.config("wrong") + &wrong;
    let gateway = Gateway::start(&config).await;
    gateway.logs("policies are being compiled").await;
    let client = Client::modern(&gateway, "/mcp");
    let free = client.call("free__echo", json!({ "message": "hello" })).await;
    assert_eq!(text(&free), "hello");
    let held = client.ask("tools/call", json!({ "name": "judged__echo", "arguments": {} })).await;
    assert!(text(&held["result"]).contains("its policies are being compiled"), "{held}");
    assert_eq!(held["result"]["isError"], true, "{held}");
    assert!(!gateway.log().contains("in force"), "all that was before the component was there: {}", gateway.log());
    // Compilers have what other tests leave them of the machine.
    let compiled = async || {
        while !gateway.log().contains("policies are compiled and in force") {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(4 * PATIENCE, compiled()).await.expect("policies are compiled");
    gateway.healthy(&["judged"]).await;
    let judged = client.call("judged__echo", json!({ "message": "hello" })).await;
    assert_eq!(text(&judged), "ask the desk");
    gateway.logs("its policies cannot be used").await;
    let wrong = client.ask("tools/call", json!({ "name": "wrong__echo", "arguments": {} })).await;
    assert!(text(&wrong["result"]).contains("its policies cannot be used"), "{wrong}");
    assert_eq!(stub.asked("tools/call").len(), 1, "nothing went past a policy");
}
