//! Faults of one upstream under calls: the others do not notice, it is not called in vain, and it is back by itself.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::cutter::{Cutter, Fault};
use weir_tests::peer::free_port;
use weir_tests::process::Process;
use weir_tests::stub::Offer;
use weir_tests::wait::{PATIENCE, until, within};
use weir_tests::{Client, Gateway, Stub, paths};

/// A gateway in front of a stub that a test can put faults upon, and of one that is well.
struct Drill {
    gateway: Gateway,
    faulty: Stub,
    network: Cutter,
    _well: Stub,
}

impl Drill {
    async fn start() -> Self {
        let (faulty, well) = (Stub::start().await, Stub::start().await);
        let network = Cutter::start(faulty.address()).await;
        let config = format!(
            "[upstreams.faulty]\nurl = \"{}\"\n[upstreams.faulty.timeouts]\noverall = \"1s\"\n{}",
            network.url("/mcp"),
            well.config("well")
        );
        let gateway = Gateway::start(&config).await;
        gateway.healthy(&["faulty", "well"]).await;
        Self { gateway, faulty, network, _well: well }
    }

    /// Calls until a call is shed; what it was told. The other upstream answers each time.
    async fn shed(&self, client: &Client) -> String {
        for _ in 0..40 {
            let answer = echo(client, "faulty", "in vain").await;
            well(client).await;
            let Some(text) = answer["result"]["content"][0]["text"].as_str() else { continue };
            assert_eq!(answer["result"]["isError"], true, "{answer}");
            return text.to_owned();
        }
        panic!("no call was shed: {}", self.gateway.log());
    }

    /// A safe call succeeds once the fault is over, and so do all after it.
    async fn recovers(&self, clients: &[Client]) {
        self.network.fail(Fault::None);
        for client in clients {
            succeeds(client, "faulty").await;
            assert_eq!(text(&echo(client, "faulty", "again").await), "again");
        }
        self.gateway.healthy(&["faulty", "well"]).await;
        self.gateway.logs("breaker closed").await;
    }
}

async fn echo(client: &Client, upstream: &str, message: &str) -> Value {
    let name = format!("{upstream}__echo");
    client.ask("tools/call", json!({ "name": name, "arguments": { "message": message } })).await
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer}"))
}

async fn well(client: &Client) {
    assert_eq!(text(&echo(client, "well", "hello").await), "hello");
}

async fn succeeds(client: &Client, upstream: &str) {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let answer = echo(client, upstream, "back").await;
        if answer["result"]["isError"] != true && answer["result"]["content"][0]["text"] == "back" {
            return;
        }
        assert!(tokio::time::Instant::now() < end, "it did not come back: {answer}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_server_behind_503_is_called_no_more_until_it_is_back() {
    let drill = Drill::start().await;
    let clients = [Client::modern(&drill.gateway, "/mcp"), Client::legacy(&drill.gateway, "/mcp").await];
    drill.network.fail(Fault::Unavailable);
    let told = drill.shed(&clients[0]).await;
    assert!(told.starts_with("upstream `faulty` is not called for "), "{told}");
    assert!(told.contains("503") && told.contains("calls in a row failed"), "{told}");
    let (_, ready) = drill.gateway.readiness().await;
    assert_ne!(weir_tests::gateway::state(&ready, "faulty"), Some("healthy"), "{ready}");
    drill.recovers(&clients).await;
    assert!(drill.faulty.asked("tools/call").iter().all(|seen| !seen.body.is_empty()));
}

#[tokio::test]
async fn a_server_that_accepts_and_never_answers_holds_up_few_calls() {
    let drill = Drill::start().await;
    let clients = [Client::legacy(&drill.gateway, "/mcp").await, Client::modern(&drill.gateway, "/mcp")];
    drill.network.fail(Fault::Silent);
    let told = drill.shed(&clients[0]).await;
    assert!(told.contains("calls in a row failed"), "{told}");
    drill.recovers(&clients).await;
}

#[tokio::test]
async fn one_tool_that_fails_keeps_nobody_from_the_others() {
    let drill = Drill::start().await;
    let client = Client::modern(&drill.gateway, "/mcp");
    for _ in 0..12 {
        let failed = client.ask("tools/call", json!({ "name": "faulty__fail", "arguments": { "message": "x" } })).await;
        assert_ne!(failed["result"]["isError"], false, "{failed}");
    }
    assert_eq!(text(&echo(&client, "faulty", "hello").await), "hello");
    let log = drill.gateway.log();
    assert!(!log.contains("breaker opened"), "{log}");
}

#[tokio::test]
async fn a_server_that_is_killed_under_calls_answers_each_once() {
    let port = free_port();
    let mut command = Command::new(paths::node());
    command.arg(paths::peers("node_modules/.bin/mcp-server-everything")).arg("streamableHttp");
    command.env("PORT", port.to_string());
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let accepts = || async move { until("it accepts", || std::net::TcpStream::connect(address).is_ok()).await };
    let mut server = Process::start("everything", &mut command);
    accepts().await;
    let well_stub = Stub::offering(Offer::default()).await;
    let config = format!("[upstreams.a]\nurl = \"http://{address}/mcp\"\n{}", well_stub.config("well"));
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["a", "well"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    let sum = |b: u64| client.ask("tools/call", json!({ "name": "a__get-sum", "arguments": { "a": 1000, "b": b } }));
    let calls = async {
        let mut answered = 0;
        for round in 0..30 {
            // A whole answer, the right one, once: the client fails on an answer with another id.
            let answer = within("an answer", sum(round)).await;
            if let Some(text) =
                answer["result"]["content"][0]["text"].as_str().filter(|_| answer["result"]["isError"] != true)
            {
                assert!(text.contains(&(1000 + round).to_string()), "{answer}");
                answered += 1;
            }
            well(&client).await;
        }
        answered
    };
    let kill = async {
        until("calls arrive", || gateway.log().contains("get-sum")).await;
        server.signal(Signal::KILL);
        server.end().await;
        server = Process::start("everything", &mut command);
        accepts().await;
    };
    let (answered, ()) = tokio::join!(calls, kill);
    assert!(answered > 0);
    let after = async {
        while within("an answer", sum(7)).await["result"]["isError"] != Value::Null {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within("it is back", after).await;
}
