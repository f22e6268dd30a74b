//! Policies that harm: their own upstream's calls fail with their name, and the other upstreams keep answering.

use std::fs;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_tests::{Client, Gateway, Stub};

#[tokio::test]
async fn a_hostile_policy_costs_only_its_own_upstream() {
    let stub = Stub::start().await;
    let directory = tempfile::tempdir().unwrap();
    let mut config = stub.config("good");
    let guests = [("trap", weir_guests::TRAP), ("spin", weir_guests::SPIN), ("bomb", weir_guests::BOMB)];
    for (name, component) in guests {
        let file = directory.path().join(format!("{name}.wasm"));
        fs::write(&file, component).unwrap();
        config += &stub.config(name);
        config += &format!("[[upstreams.{name}.policies]]\ncomponent = {:?}\n", file.display().to_string());
    }
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["good"]).await;
    let good = Client::legacy(&gateway, "/mcp/good").await;
    for (name, _) in guests {
        let refused =
            gateway.send(weir_tests::client::initialize(&format!("/mcp/{name}"), "2025-11-25", &json!({}))).await;
        let answer = refused.json().await;
        let said =
            answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{name} is no policy, and yet: {answer}"));
        assert!(said.contains(&format!("{name}.wasm")), "the policy is named: {said}");
        good.call("echo", json!({ "message": "still here" })).await;
    }
}

#[tokio::test]
async fn a_component_of_the_wrong_world_stops_the_start() {
    let stub = Stub::start().await;
    let directory = tempfile::tempdir().unwrap();
    let (component, file) = (directory.path().join("stranger.wasm"), directory.path().join("weir.toml"));
    fs::write(&component, weir_guests::STRANGER).unwrap();
    let policies = format!("[[upstreams.a.policies]]\ncomponent = {:?}\n", component.display().to_string());
    fs::write(&file, stub.config("a") + &policies).unwrap();
    let checked =
        std::process::Command::new(weir_tests::paths::weir()).arg("check").arg("-c").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(64), "{said}");
    assert!(said.contains("stranger.wasm"), "{said}");
}

/// A service that hands out a token for each request, on one connection each.
async fn token_service() -> (std::net::SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        for number in 1.. {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 4096];
            let length = connection.read(&mut head).await.unwrap();
            let status = if head[..length].starts_with(b"POST /mcp ") { "200 OK" } else { "404 Not Found" };
            let body = format!("minted-{number}\n");
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            connection.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (address, serving)
}

#[tokio::test]
async fn a_policy_gets_its_token_from_a_service_that_the_configuration_names() {
    let stub = Stub::start().await;
    let (service, _serving) = token_service().await;
    let directory = tempfile::tempdir().unwrap();
    let component = directory.path().join("token_service.wasm");
    fs::write(&component, weir_guests::TOKEN_SERVICE).unwrap();
    let policy = |name: &str, allowed: &str| {
        format!(
            "[[upstreams.{name}.policies]]\ncomponent = {:?}\ngrants = [\"http\"]\nhttp = [\"http://{allowed}\"]\n\
             settings = {{ service = \"http://{service}/mcp\" }}\n",
            component.display().to_string()
        )
    };
    let config = stub.config("minted") + &policy("minted", &service.to_string());
    let config = config + &stub.config("elsewhere") + &policy("elsewhere", "tokens.example.com");
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["minted"]).await;
    let client = Client::legacy(&gateway, "/mcp/minted").await;
    client.call("echo", json!({ "message": "hello" })).await;
    for seen in stub.asked("tools/call") {
        assert_eq!(seen.header("authorization"), Some("Bearer minted-1"), "one answer of the service is kept");
    }
    gateway.logs("is not named in the configuration; to allow it, write: http = ").await;
    assert!(!gateway.log().contains("minted-1"), "{}", gateway.log());
}

/// What a component knows when it fails stays with it: its message goes nowhere, with all that can be logged.
#[tokio::test]
async fn a_policy_that_panics_with_a_secret_tells_nobody() {
    const SECRET: &str = "leaked-5b1f0c77";
    let stub = Stub::start().await;
    let directory = tempfile::tempdir().unwrap();
    let component = directory.path().join("leaker.wasm");
    fs::write(&component, weir_guests::LEAKER).unwrap();
    let policy = format!(
        "bearer = {{ env = \"LEAKED\" }}\n[[upstreams.u.policies]]\ncomponent = {:?}\ngrants = [\"secrets\"]\n",
        component.display().to_string()
    );
    let config = stub.config("u") + &policy;
    let gateway = Gateway::start_with(&config, &[("LEAKED", SECRET), ("RUST_LOG", weir_tests::terminal::TRACE)]).await;
    gateway.logs("upstream cannot be reached").await;
    let call = json!({ "name": "u__echo", "arguments": {} });
    for client in [Client::modern(&gateway, "/mcp"), Client::legacy(&gateway, "/mcp").await] {
        let answer = client.ask("tools/call", call.clone()).await.to_string();
        assert!(answer.contains("leaker.wasm") && !answer.contains(SECRET), "{answer}");
    }
    assert!(!gateway.log().contains(SECRET), "{}", gateway.log());
    assert!(stub.seen().is_empty());
}
