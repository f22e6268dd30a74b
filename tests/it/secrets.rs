//! What must never be seen by anybody but the one it is for.

use std::{fs, process::Command, time::Duration};

use serde_json::json;
use weir_tests::paths;
use weir_tests::peer::{Launch, free_port};
use weir_tests::{Client, Gateway, Request, Stub};

const TOKEN: &str = "token-7f3a9c51e2";
const HEADER: &str = "header-7f3a9c51e2";
const CLIENT: &str = "client-7f3a9c51e2";
const ARGUMENT: &str = "argument-7f3a9c51e2";
const VARIABLE: &str = "variable-7f3a9c51e2";
const QUERY: &str = "query-7f3a9c51e2";
const NAME: &str = "name-7f3a9c51e2";
/// What all of them have in common.
const MARK: &str = "7f3a9c51e2";

fn config(stub: &Stub) -> String {
    format!(
        "{}bearer = {{ env = \"WEIR_TESTS_TOKEN\" }}\nheaders = {{ X-Key = \"${{env:WEIR_TESTS_HEADER}}\" }}\n\
         [upstreams.away]\nurl = \"http://127.0.0.1:{}/mcp?key=${{env:WEIR_TESTS_QUERY}}\"\n\
         {}env = {{ API_KEY = \"${{env:WEIR_TESTS_VARIABLE}}\" }}\n",
        stub.config("stub"),
        free_port(),
        Launch::everything().config("everything"),
    )
}

async fn start(stub: &Stub, level: &str) -> Gateway {
    let environment = [
        ("WEIR_TESTS_TOKEN", TOKEN),
        ("WEIR_TESTS_HEADER", HEADER),
        ("WEIR_TESTS_QUERY", QUERY),
        ("WEIR_TESTS_VARIABLE", VARIABLE),
        ("RUST_LOG", level),
    ];
    let gateway = Gateway::start_with(&config(stub), &environment).await;
    gateway.healthy(&["stub", "everything"]).await;
    gateway
}

#[tokio::test]
async fn nothing_secret_is_logged_or_told() {
    let stub = Stub::start().await;
    for level in ["info", "weir=trace"] {
        let gateway = start(&stub, level).await;
        for client in [Client::legacy(&gateway, "/mcp").await, Client::modern(&gateway, "/mcp")] {
            for tool in ["stub__echo", "stub__fail", "stub__refuse", "stub__burst"] {
                let params = json!({ "name": tool, "arguments": { "message": ARGUMENT } });
                let (_, request) = client.request("tools/call", params);
                let request = request.header("authorization", &format!("Bearer {CLIENT}")).header("x-secret", CLIENT);
                gateway.send(request).await.bytes().await;
            }
            let (_, request) = client.request("tools/call", json!({ "name": "away__any", "arguments": {} }));
            gateway.send(request).await.bytes().await;
        }
        let bad = [
            Request::post("/mcp", format!("{{\"jsonrpc\":\"2.0\",{ARGUMENT}")),
            Request::post("/mcp", "{}").header("mcp-session-id", CLIENT),
            Request::post(&format!("/mcp?token={CLIENT}"), "{}"),
            Request::post("/mcp", "{}").header("origin", &format!("https://{CLIENT}.example")),
        ];
        for request in bad {
            gateway.send(request).await.bytes().await;
        }
        // Another tool's environment is a result like any other.
        let legacy = Client::legacy(&gateway, "/mcp/everything").await;
        let environment = legacy.call("get-env", json!({})).await.to_string();
        assert!(environment.contains(VARIABLE), "the child has its variable");

        let (_, readiness) = gateway.readiness().await;
        assert!(!readiness.to_string().contains(MARK), "{readiness}");
        let log = gateway.log();
        let leaks: Vec<&str> = log.lines().filter(|line| line.contains(MARK)).collect();
        assert!(leaks.is_empty(), "at level {level} the log has:\n{}", leaks.join("\n"));
    }
}

#[tokio::test]
async fn a_credential_goes_to_its_upstream_and_the_clients_own_goes_nowhere() {
    let (stub, other) = (Stub::start().await, Stub::start().await);
    let gateway = Gateway::start_with(
        &(config(&stub) + &other.config("other")),
        &[
            ("WEIR_TESTS_TOKEN", TOKEN),
            ("WEIR_TESTS_HEADER", HEADER),
            ("WEIR_TESTS_QUERY", QUERY),
            ("WEIR_TESTS_VARIABLE", VARIABLE),
        ],
    )
    .await;
    gateway.healthy(&["stub", "other"]).await;
    for path in ["/mcp", "/mcp/stub", "/mcp/other"] {
        for client in [Client::legacy(&gateway, path).await, Client::modern(&gateway, path)] {
            for name in ["stub__echo", "other__echo", "echo"] {
                let (_, request) = client.request("tools/call", json!({ "name": name, "arguments": {} }));
                let request = request
                    .header("authorization", &format!("Bearer {CLIENT}"))
                    .header("cookie", CLIENT)
                    .header("proxy-authorization", CLIENT)
                    .header("x-forwarded-for", "192.0.2.1");
                gateway.send(request).await.bytes().await;
            }
        }
    }
    let seen = stub.seen();
    assert!(!stub.asked("tools/call").is_empty() && !other.asked("tools/call").is_empty());
    for request in &seen {
        assert_eq!(request.header("authorization"), Some(format!("Bearer {TOKEN}").as_str()));
        assert_eq!(request.header("x-key"), Some(HEADER));
    }
    for request in other.seen() {
        assert_eq!(request.header("authorization"), None, "{:?}", request.headers);
        assert_eq!(request.header("x-key"), None);
    }
    for request in seen.into_iter().chain(other.seen()) {
        assert!(!format!("{:?}", request.headers).contains(CLIENT), "{:?}", request.headers);
    }
}

#[tokio::test]
async fn an_error_does_not_repeat_what_it_was_given() {
    let stub = Stub::start().await;
    let gateway = start(&stub, "info").await;
    for path in ["/mcp", "/mcp/stub"] {
        for client in [Client::legacy(&gateway, path).await, Client::modern(&gateway, path)] {
            let params = json!({ "name": "stub__none", "arguments": { "message": ARGUMENT } });
            let unknown = client.ask("tools/call", params).await.to_string();
            assert!(!unknown.contains(ARGUMENT), "{unknown}");
        }
    }
    let requests = [
        Request::post("/mcp", format!("{{\"{ARGUMENT}")),
        Request::post("/mcp", "{}").header("mcp-protocol-version", CLIENT),
        Request::post(&format!("/mcp/{NAME}"), "{}"),
    ];
    for request in requests {
        let said = gateway.send(request).await.bytes().await;
        assert!(!String::from_utf8_lossy(&said).contains(MARK), "{said:?}");
    }
}

#[tokio::test]
async fn a_command_prints_a_secret_that_rotates_and_stays_when_the_command_fails() {
    let stub = Stub::start().await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    // It tells its standard error what it must not.
    let script = "cat \"$0\" >&2; cat \"$0\"";
    let command = json!(["/bin/sh", "-c", script, token]);
    let config = format!("{}bearer = {{ command = {command}, refresh = \"100ms\" }}\n", stub.config("stub"));
    let mut gateway = Gateway::start(&config).await;
    gateway.healthy(&["stub"]).await;
    assert!(stub.tokens().iter().all(|token| token == TOKEN));

    // The stub takes any token: what a call brings is the new one once the old one is refused, or a reload has come.
    let rotated = format!("rotated-{MARK}");
    fs::write(&token, &rotated).unwrap();
    gateway.configure(&format!("{config}timeouts = {{ read = \"59s\" }}\n"));
    let client = Client::modern(&gateway, "/mcp/stub");
    while stub.tokens().last() != Some(&rotated) {
        client.call("echo", json!({ "message": "hi" })).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    fs::remove_file(&token).unwrap();
    gateway.logs("a secret cannot be fetched anew").await;
    client.call("echo", json!({ "message": "hi" })).await;
    assert_eq!(stub.tokens().last(), Some(&rotated), "the last one stays");
    let log = gateway.log();
    assert!(!log.contains(MARK), "{log}");

    // One that starts has no last one.
    gateway.signal(rustix::process::Signal::TERM);
    gateway.end().await;
    let file = folder.path().join("weir.toml");
    fs::write(&file, config).unwrap();
    let check = Command::new(paths::weir()).args(["check", "--config"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&check.stderr).into_owned() + &String::from_utf8_lossy(&check.stdout);
    assert_eq!(check.status.code(), Some(64), "{said}");
    assert!(said.contains("command /bin/sh gives no secret: it ended with exit status: 1"), "{said}");
}

#[tokio::test]
async fn a_credential_of_systemd_and_a_file_of_a_mount_open_upstreams() {
    let (stub, mounted) = (Stub::start().await, Stub::start().await);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("stub-token"), TOKEN).unwrap();
    // As the kubelet mounts a secret: a link that it moves to another folder at once.
    let mount = folder.path().join("mount");
    for (name, token) in [("one", "one"), ("two", "two")] {
        fs::create_dir_all(mount.join(name)).unwrap();
        fs::write(mount.join(name).join("token"), format!("{token}-{MARK}")).unwrap();
    }
    std::os::unix::fs::symlink("one", mount.join("data")).unwrap();
    let path = mount.join("data/token");
    let config = format!(
        "{}bearer = {{ credential = \"stub-token\" }}\n{}headers = {{ X-Key = \"${{file:{}}}\" }}\n",
        stub.config("stub"),
        mounted.config("mounted"),
        path.display(),
    );
    let environment = [("CREDENTIALS_DIRECTORY", folder.path().to_str().unwrap())];
    let gateway = Gateway::start_with(&config, &environment).await;
    gateway.healthy(&["stub", "mounted"]).await;
    assert_eq!(stub.tokens().last().map(String::as_str), Some(TOKEN));

    std::os::unix::fs::symlink("two", mount.join("next")).unwrap();
    fs::rename(mount.join("next"), mount.join("data")).unwrap();
    gateway.logs("the configuration was reloaded").await;
    gateway.healthy(&["mounted"]).await;
    Client::modern(&gateway, "/mcp/mounted").call("echo", json!({ "message": "hi" })).await;
    let seen = mounted.seen();
    let key = seen.last().and_then(|request| request.header("x-key").map(str::to_owned));
    assert_eq!(key, Some(format!("two-{MARK}")));
}
