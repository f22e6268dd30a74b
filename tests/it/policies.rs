//! Policies that harm: their own upstream's calls fail with their name, and the other upstreams keep answering.

use std::fs;

use serde_json::json;
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
