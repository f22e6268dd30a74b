//! Upstreams behind the forward proxy that the environment names.

use std::process::Command;

use serde_json::json;
use weir_tests::gateway::UNREACHABLE;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, Peer, Stub, paths};

/// `user:hunter2`, as it is sent.
const PROOF: &str = "dXNlcjpodW50ZXIy";

#[tokio::test]
async fn an_upstream_is_reached_through_the_proxy_and_this_machine_is_not() {
    let (far, near) = (Stub::start().await, Stub::start().await);
    let proxy = Peer::forward_proxy(far.address()).await;
    let config = format!("[upstreams.far]\nurl = 'http://mcp.test/mcp'\n{}", near.config("near"));
    let variable = format!("http://user:hunter2@{}", proxy.address());
    let gateway = Gateway::start_with(&config, &[("http_proxy", &variable)]).await;
    gateway.healthy(&["far", "near"]).await;
    let client = Client::modern(&gateway, "/mcp");
    for tool in ["far__echo", "near__echo"] {
        assert_eq!(client.call(tool, json!({ "message": "hello" })).await["content"][0]["text"], "hello");
    }
    let asked = proxy.output();
    assert!(asked.contains("POST http://mcp.test/mcp") && !asked.contains(&near.address().to_string()), "{asked}");
    assert!(far.seen().iter().all(|seen| seen.header("proxy-authorization").is_none()));
    let log = gateway.log();
    assert_eq!(log.matches("requests to this upstream go through a forward proxy").count(), 1, "{log}");
    assert!(log.contains(&format!("http://{}", proxy.address())), "{log}");
    assert!(!log.contains("hunter2") && !log.contains(PROOF), "{log}");
}

#[tokio::test]
async fn check_says_which_proxy_and_a_refusal_names_it() {
    let far = Stub::start().await;
    let proxy = Peer::forward_proxy(far.address()).await;
    let config = "[upstreams.far]\nurl = 'https://mcp.test/mcp'";
    let variable = format!("http://user:wrong@{}", proxy.address());
    let gateway = Gateway::start_with(config, &[("ALL_PROXY", &variable)]).await;
    until("it says that the proxy refuses", || gateway.log().contains(UNREACHABLE)).await;
    let (log, named) = (gateway.log(), format!("the proxy http://{} of `ALL_PROXY`", proxy.address()));
    assert!(log.contains(&format!("{named} wants another user and password (407)")), "{log}");
    assert!(proxy.output().contains("CONNECT mcp.test:443") && !log.contains("wrong"), "{log}");

    let check = |proxy: &str| {
        let mut check = Command::new(paths::weir());
        check.args(["check", "--config"]).arg(gateway.directory().join("weir.toml")).env("ALL_PROXY", proxy);
        let output = check.env("XDG_STATE_HOME", gateway.directory()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), said)
    };
    let (code, said) = check(&variable);
    let through = format!("far: https://mcp.test/mcp through the proxy http://{}, ", proxy.address());
    assert!(code == Some(0) && said.contains(&through) && !said.contains("wrong"), "{said}");
    let (code, said) = check("socks5://user:wrong@127.0.0.1:1");
    assert!(code == Some(64) && said.contains("upstream `far`: `ALL_PROXY` is not the address"), "{said}");
    assert!(!said.contains("wrong"), "{said}");
}
