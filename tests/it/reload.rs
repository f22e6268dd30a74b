//! The configuration changes while clients call: only what has changed is touched, and a file that cannot be used changes
//! nothing.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::json;
use tokio::{io::AsyncReadExt, net::TcpStream};
use weir_tests::client::answer;
use weir_tests::peer::{Launch, free_port};
use weir_tests::process::runs;
use weir_tests::wait::{PATIENCE, until};
use weir_tests::{Client, Gateway, Peer, Request, Stub, paths};

/// The log's message after a reload, as JSON writes it.
const RELOADED: &str = "\"the configuration was reloaded\"";
const REFUSED: &str = "the configuration is not reloaded";

/// Has a gateway take another configuration, and waits until it has.
pub(crate) async fn reload(gateway: &Gateway, config: &str) {
    let before = gateway.log().matches(RELOADED).count();
    gateway.configure(config);
    gateway.signal(Signal::HUP);
    until("the configuration is reloaded", || gateway.log().matches(RELOADED).count() > before).await;
}

#[tokio::test]
async fn lists_stay_while_their_upstream_is_away_unless_its_name_leads_to_another_server() {
    let peer = Peer::fixture("modern").await;
    let gateway = Gateway::start(&peer.config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    let client = Client::modern(&gateway, "/mcp");
    let tools = client.tools().await;
    assert!(tools.contains(&"fixture__test_simple_text".to_owned()), "{tools:?}");
    let away = peer.config("fixture");
    peer.kill();
    gateway.logs("upstream cannot be reached").await;
    assert_eq!(client.tools().await, tools);
    // Another time limit makes it no other server.
    reload(&gateway, &format!("{away}timeouts.connect = \"3s\"\n")).await;
    until("it is tried again", || gateway.log().matches("upstream cannot be reached").count() > 1).await;
    assert_eq!(client.tools().await, tools);
    let nobody = format!("[upstreams.fixture]\nurl = \"http://127.0.0.1:{}/mcp\"\n", free_port());
    reload(&gateway, &nobody).await;
    until("the other server is tried", || gateway.log().matches("upstream cannot be reached").count() > 2).await;
    let end = Instant::now() + PATIENCE;
    while !client.tools().await.is_empty() {
        assert!(Instant::now() < end, "{:?}", client.tools().await);
    }
}

#[tokio::test]
async fn upstreams_come_change_and_go_and_the_others_notice_nothing() {
    let (stays, changes) = tokio::join!(Stub::start(), Stub::start());
    let fixture = Launch::fixture("legacy").config("fixture");
    let config = stays.config("stays") + &fixture;
    let gateway = Gateway::start(&(config.clone() + &changes.config("changes"))).await;
    gateway.healthy(&["stays", "changes", "fixture"]).await;
    let (legacy, modern) = (Client::legacy(&gateway, "/mcp").await, Client::modern(&gateway, "/mcp"));
    for client in [&legacy, &modern] {
        client.call("stays__echo", json!({ "message": "before" })).await;
        client.call("fixture__test_simple_text", json!({})).await;
    }
    let (sessions, children) = (stays.sessions(), gateway.children());
    let mut told = legacy.stream().await;

    let other = Stub::start().await;
    reload(&gateway, &(config + &other.config("changes") + &other.config("comes"))).await;
    gateway.healthy(&["stays", "changes", "comes", "fixture"]).await;
    let change = told.next_message().await.unwrap();
    assert_eq!(change["method"], "notifications/tools/list_changed", "{change}");
    for client in [&legacy, &modern] {
        assert!(client.tools().await.contains(&"comes__echo".to_owned()));
        for upstream in ["stays", "changes", "comes"] {
            let said = client.call(&format!("{upstream}__echo"), json!({ "message": upstream })).await;
            assert_eq!(said["content"][0]["text"], upstream);
        }
        client.call("fixture__test_simple_text", json!({})).await;
    }
    assert_eq!(stays.sessions(), sessions, "nothing was opened anew where nothing has changed");
    assert_eq!(gateway.children(), children);
    assert!(other.asked("tools/call").len() >= 4, "the new address is called");

    reload(&gateway, &stays.config("stays")).await;
    until("the process has ended", || gateway.children().is_empty()).await;
    for client in [&legacy, &modern] {
        assert!(client.tools().await.iter().all(|tool| tool.starts_with("stays__")));
        let (id, request) = client.request("tools/call", json!({ "name": "comes__echo", "arguments": {} }));
        let refusal = answer(client.send(request).await, id).await;
        assert_eq!(refusal["error"]["code"], -32602, "{refusal}");
    }
    assert_eq!(stays.sessions(), sessions);
}

#[tokio::test]
async fn a_call_ends_at_the_upstream_that_it_began_with() {
    let (before, after) = tokio::join!(Stub::start(), Stub::start());
    let gateway = Gateway::start(&before.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let clients = [
        (Client::legacy(&gateway, "/mcp").await, "stub__hold"),
        (Client::legacy(&gateway, "/mcp/stub").await, "hold"),
        (Client::modern(&gateway, "/mcp"), "stub__hold"),
        (Client::modern(&gateway, "/mcp/stub"), "hold"),
    ];
    let calls: Vec<_> = clients
        .iter()
        .map(|(client, tool)| {
            let (id, request) =
                client.request("tools/call", json!({ "name": tool, "arguments": { "message": "kept" } }));
            let address = gateway.address();
            tokio::spawn(async move { answer(request.send(address).await, id).await })
        })
        .collect();
    until("the calls run", || before.held() == calls.len()).await;
    reload(&gateway, &after.config("stub")).await;
    // Whoever calls from now on is at the new one. The session of one upstream is over.
    for (place, (client, tool)) in clients.iter().enumerate() {
        let echo = tool.replace("hold", "echo");
        let (id, request) = client.request("tools/call", json!({ "name": echo, "arguments": { "message": "new" } }));
        let response = client.send(request).await;
        if place == 1 {
            assert_eq!(response.status, 404);
        } else {
            assert_eq!(answer(response, id).await["result"]["content"][0]["text"], "new");
        }
    }
    before.release(calls.len());
    for call in calls {
        let said = call.await.unwrap();
        assert_eq!(said["result"]["content"][0]["text"], "kept", "{said}");
    }
    until("nobody listens to the old one", || before.listeners() == 0 && before.subscriptions() == 0).await;
}

#[tokio::test]
async fn a_shutdown_after_a_reload_lets_calls_at_changed_processes_end() {
    let before = Launch::everything().config("every");
    let mut gateway = Gateway::start(&before).await;
    gateway.healthy(&["every"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    client.call("every__echo", json!({ "message": "the process runs" })).await;
    let arguments = json!({ "duration": 4, "steps": 4 });
    let named = json!({ "name": "every__trigger-long-running-operation", "arguments": arguments });
    let (id, request) = client.request("tools/call", named);
    let address = gateway.address();
    let call = tokio::spawn(async move { answer(request.send(address).await, id).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    reload(&gateway, &format!("{before}timeouts = {{ overall = \"2m\" }}\n")).await;
    let children = gateway.children();
    gateway.signal(Signal::TERM);
    let said = call.await.unwrap();
    assert!(said["result"]["content"][0]["text"].as_str().unwrap_or_default().contains("completed"), "{said}");
    assert_eq!(gateway.end().await.code(), Some(0), "{}", gateway.log());
    assert!(children.iter().all(|(id, _)| !runs(*id)), "a process outlives the gateway: {children:?}");
}

#[tokio::test]
async fn a_file_that_cannot_be_used_changes_nothing() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    for (bad, why) in [
        ("[upstreams.other]\nurll = 'http://127.0.0.1:1/mcp'", "urll"),
        ("[upstreams.other\n", "weir.toml:3"),
        ("[upstreams.other]\nurl = 'http://127.0.0.1:1/mcp'\npolicies = [{ component = 'none.wasm' }]", "none.wasm"),
    ] {
        let before = gateway.log().matches(REFUSED).count();
        gateway.configure(bad);
        gateway.signal(Signal::HUP);
        until("the file is refused", || gateway.log().matches(REFUSED).count() > before).await;
        assert!(gateway.log().contains(why), "{why}: {}", gateway.log());
        assert_eq!(client.call("stub__echo", json!({ "message": "still" })).await["content"][0]["text"], "still");
    }
    assert!(!gateway.log().contains(RELOADED));
}

/// Its file takes the place of one that works, as when a build is deployed.
#[tokio::test]
async fn a_policy_that_fails_its_test_leaves_the_last_good_one_in_force() {
    let stub = Stub::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("team.wasm");
    // As an upload by the name of the old one: never half of it.
    let put = |component: &[u8]| {
        fs::write(folder.path().join("new"), component).unwrap();
        fs::rename(folder.path().join("new"), &file).unwrap();
    };
    put(weir_guests::JUDGE);
    let settings = "settings = { see = 'facts', do = 'deny=closed today' }";
    let policy =
        format!("[[upstreams.stub.policies]]\ncomponent = {file:?}\ngrants = ['clock', 'store']\n{settings}\n");
    let gateway = Gateway::start(&(stub.config("stub") + &policy)).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    let decides = || async {
        let (id, request) = client.request("tools/call", json!({ "name": "stub__echo", "arguments": {} }));
        let answer = answer(client.send(request).await, id).await;
        assert!(answer.to_string().contains("closed today"), "{answer}");
    };
    decides().await;
    let sessions = stub.sessions();
    let status = || {
        let output = Command::new(paths::weir())
            .args(["status", "--config"])
            .arg(gateway.directory().join("weir.toml"))
            .env("XDG_STATE_HOME", gateway.directory())
            .output();
        String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
    };

    for (component, why) in [
        (weir_guests::TRAP, "team.wasm failed: wasm trap: wasm `unreachable` instruction executed"),
        (weir_guests::STRANGER, "decides nothing"),
        (weir_guests::SPIN, "team.wasm gave no answer in time"),
    ] {
        put(component);
        gateway.logs(why).await;
        until("`weir status` says so", || status().contains("the last reload failed") && status().contains(why)).await;
        decides().await;
    }
    assert!(!gateway.log().contains(RELOADED));

    // The old bytes in a new file are the old policy.
    put(weir_guests::JUDGE);
    gateway.logs(RELOADED).await;
    until("nothing has failed", || !status().contains("the last reload failed")).await;
    decides().await;
    assert_eq!(stub.sessions(), sessions, "the upstream was left alone");
}

#[tokio::test]
async fn a_changed_file_needs_no_signal_and_what_needs_a_restart_is_named() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp");
    let rule = "[[access.rules]]\nname = 'echo only'\ntools = ['echo']\n";
    let limits = "[limits]\nsessions = 7\nmessage = '9MiB'\n";
    // As a Kubernetes ConfigMap is changed: another file takes the place of the first.
    let file = gateway.directory().join("weir.toml");
    gateway.configure(&(stub.config("stub") + rule + limits));
    let text = fs::read_to_string(&file).unwrap();
    let other = gateway.directory().join("other.toml");
    fs::write(&other, text).unwrap();
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&other, &file).unwrap();
    gateway.logs(RELOADED).await;
    gateway.logs("`limits.message` has changed, which takes effect when Weir is started again").await;
    assert_eq!(client.tools().await, ["stub__echo"]);
    let (id, request) = client.request("tools/call", json!({ "name": "stub__burst", "arguments": {} }));
    assert_eq!(answer(client.send(request).await, id).await["error"]["code"], -32602);
}

#[tokio::test]
async fn limits_come_into_force_and_what_is_held_stays() {
    let stub = Stub::start().await;
    let config = |limits: &str| stub.config("stub") + "[limits]\n" + limits;
    let gateway = Gateway::start(&config("body = '1KiB'\n")).await;
    gateway.healthy(&["stub"]).await;
    let held = [Client::legacy(&gateway, "/mcp").await, Client::legacy(&gateway, "/mcp").await];
    let long = json!({ "message": "x".repeat(2048) });
    let modern = Client::modern(&gateway, "/mcp");
    let (_, request) = modern.request("tools/call", json!({ "name": "stub__echo", "arguments": long }));
    assert_eq!(modern.send(request).await.status, 413);

    reload(&gateway, &config("sessions = 2\npage_size = 1\n[limits.principal]\ncalls_per_minute = 1\n")).await;
    let hello = || weir_tests::client::initialize("/mcp", "2025-11-25", &json!({}));
    let refused = gateway.send(hello()).await;
    assert!(refused.json().await.to_string().contains("sessions"), "{}", gateway.log());
    assert_eq!(held[0].call("stub__echo", long).await["content"][0]["text"], "x".repeat(2048));
    let page = held[0].result("tools/list", json!({})).await;
    assert_eq!(page["tools"].as_array().unwrap().len(), 1, "{page}");
    let (_, request) = modern.request("tools/call", json!({ "name": "stub__echo", "arguments": {} }));
    assert_eq!(modern.send(request).await.status, 429);

    // What has not changed counts on; what is gone does not.
    reload(&gateway, &config("[limits.principal]\ncalls_per_minute = 1\n")).await;
    let (_, request) = modern.request("tools/call", json!({ "name": "stub__echo", "arguments": {} }));
    assert_eq!(modern.send(request).await.status, 429);
    assert_eq!(gateway.send(hello()).await.status, 200);
    reload(&gateway, &stub.config("stub")).await;
    held[1].call("stub__echo", json!({ "message": "on" })).await;
}

/// Those of connections hold for the ones that come.
#[tokio::test]
async fn limits_of_connections_come_into_force() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let limits = "[limits]\nconnections = 1\nheader_timeout = '2s'\nconcurrent_starts = 1\nlist = '1KiB'\n";
    reload(&gateway, &(stub.config("stub") + limits)).await;
    assert!(!gateway.log().contains("takes effect when Weir is started again"), "{}", gateway.log());
    let mut silent = TcpStream::connect(gateway.address()).await.unwrap();
    until("the next one is turned away", || {
        let _next = std::net::TcpStream::connect(gateway.address()).unwrap();
        gateway.log().contains("connections are turned away")
    })
    .await;
    let begun = Instant::now();
    drop(silent.read_to_end(&mut Vec::new()).await);
    assert!(begun.elapsed() < Duration::from_secs(8), "it may be silent for 2 s, not 10: {:?}", begun.elapsed());
    reload(&gateway, &stub.config("stub")).await;
    let client = Client::modern(&gateway, "/mcp");
    client.call("stub__echo", json!({ "message": "on" })).await;
}

/// What else the file has may be meant for the callers that `[auth]` would let in.
#[tokio::test]
async fn what_would_let_others_in_changes_nothing_until_a_restart() {
    let (stub, secret) = tokio::join!(Stub::start(), Stub::start());
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp");
    let before = stub.config("stub") + &secret.config("secret");
    for (change, keys) in [
        ("api_keys = true\n", "`api_keys`"),
        ("[auth]\nissuer = 'http://127.0.0.1:1'\naudience = 'weir'\n", "`auth`"),
        ("allowed_hosts = ['weir.example']\n[audit]\npath = 'audit.jsonl'\n", "`allowed_hosts`, `audit`"),
    ] {
        gateway.configure(&format!("{change}{before}"));
        gateway.signal(Signal::HUP);
        gateway.logs(&format!("a change of {keys} takes effect when Weir is started again")).await;
        assert!(client.tools().await.iter().all(|tool| tool.starts_with("stub__")));
        assert_eq!(gateway.send(Request::post("/mcp/secret", "{}")).await.status, 404);
    }
    assert!(!gateway.log().contains(RELOADED));
    reload(&gateway, &before).await;
    assert!(client.tools().await.contains(&"secret__echo".to_owned()));
}

#[tokio::test]
async fn streams_that_other_rules_would_narrow_end() {
    let peer = Peer::fixture("both").await;
    let gateway = Gateway::start(&peer.config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    let (merged, own) = (Client::legacy(&gateway, "/mcp").await, Client::legacy(&gateway, "/mcp/fixture").await);
    let (mut kept, mut ended) = (merged.stream().await, own.stream().await);
    let modern = Client::modern(&gateway, "/mcp/fixture");
    let wish = json!({ "notifications": { "toolsListChanged": true } });
    let (_, request) = modern.request("subscriptions/listen", wish);
    let mut listening = modern.send(request).await.events();
    assert_eq!(listening.next_message().await.unwrap()["method"], "notifications/subscriptions/acknowledged");
    reload(&gateway, &(peer.config("fixture") + "[[access.rules]]\ntools = ['test_simple_text']\n")).await;
    while ended.next_message().await.is_some() {}
    while listening.next_message().await.is_some() {}
    assert_eq!(kept.next_message().await.unwrap()["method"], "notifications/tools/list_changed");
    let (_, request) = own.request("tools/list", json!({}));
    assert_eq!(own.send(request).await.status, 404);
    assert_eq!(modern.tools().await, ["test_simple_text"]);
}

#[tokio::test]
async fn what_is_watched_is_watched_on() {
    let fixture = |more: &str| Launch::fixture("legacy").config("fixture") + more;
    let gateway = Gateway::start(&fixture("")).await;
    gateway.healthy(&["fixture"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    let mut told = client.stream().await;
    client.result("resources/subscribe", json!({ "uri": "test://watched-resource" })).await;
    reload(&gateway, &fixture("env = { CHANGED = 'yes' }\n")).await;
    gateway.healthy(&["fixture"]).await;
    client.call("fixture__touch_watched_resource", json!({})).await;
    loop {
        let said = told.next_message().await.unwrap();
        if said["method"] == "notifications/resources/updated" {
            assert_eq!(said["params"]["uri"], "test://watched-resource");
            break;
        }
    }
}

#[tokio::test]
async fn what_is_watched_is_watched_again_when_its_upstream_comes_back() {
    let (peer, stub) = tokio::join!(Peer::fixture("both"), Stub::start());
    let config = stub.config("stub") + &peer.config("fixture");
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["fixture"]).await;
    let client = Client::modern(&gateway, "/mcp");
    let wish = json!({ "notifications": { "resourceSubscriptions": ["test://watched-resource"] } });
    let mut told = client.send(client.request("subscriptions/listen", wish).1).await.events();
    let acknowledged = told.next_message().await.unwrap();
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged", "{acknowledged}");
    reload(&gateway, &stub.config("stub")).await;
    reload(&gateway, &config).await;
    gateway.healthy(&["fixture"]).await;
    // The stream at the upstream is opened anew, which takes a moment.
    let touching = async {
        loop {
            client.call("fixture__touch_watched_resource", json!({})).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let hearing = async { while told.next_message().await.unwrap()["method"] != "notifications/resources/updated" {} };
    tokio::select! {
        () = touching => {}
        () = hearing => {}
    }
}

/// Which upstreams there are is chosen by a generator with a fixed seed.
#[tokio::test]
async fn calls_go_on_while_the_configuration_changes_a_hundred_times() {
    let (steady, other) = tokio::join!(Stub::start(), Stub::start());
    let process = Launch::fixture("both");
    let gateway = Gateway::start(&steady.config("steady")).await;
    gateway.healthy(&["steady"]).await;
    let clients = [Client::legacy(&gateway, "/mcp").await, Client::modern(&gateway, "/mcp")];
    for client in &clients {
        client.call("steady__echo", json!({ "message": "first" })).await;
    }
    let before = gateway.descriptors();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let calling: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let stopped = stopped.clone();
            tokio::spawn(async move {
                let mut calls = 0;
                while !*stopped.borrow() {
                    let said = client.call("steady__echo", json!({ "message": "on" })).await;
                    assert_eq!(said["content"][0]["text"], "on");
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let mut random = 17_u32;
    for turn in 0..100 {
        // Numerical Recipes' linear congruential generator; its high bits are the random ones.
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mut config = steady.config("steady");
        for place in 0..3 {
            if random >> (29 + place) & 1 == 1 {
                config += &other.config(&format!("other-{place}"));
            }
        }
        // A process is dear to start.
        if turn % 10 < 3 {
            config += &process.config("process");
        }
        reload(&gateway, &config).await;
    }
    reload(&gateway, &steady.config("steady")).await;
    stop.send_replace(true);
    for calls in calling {
        assert!(calls.await.unwrap() > 20);
    }
    until("no child is left", || gateway.children().is_empty()).await;
    until("nothing is left open", || gateway.descriptors() <= before + 8).await;
    assert_eq!(gateway.send(Request::get("/readyz")).await.status, 200);
}
