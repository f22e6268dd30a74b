//! What a process may take and as whom it runs, what stands between it and Weir, and what happens when it keeps ending.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_tests::peer::Launch;
use weir_tests::process::runs;
use weir_tests::wait::{PATIENCE, until};
use weir_tests::{Client, Gateway};

/// A server of the legacy era with tools that tell of its process, or end it.
const SERVER: &str = r#"
import json, os, resource, sys
def facts():
    limits = {name: list(resource.getrlimit(getattr(resource, "RLIMIT_" + name))) for name in ("DATA", "CPU", "NOFILE", "NPROC")}
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    names = {name: os.environ.get(name) for name in ("HOME", "USER", "LOGNAME", "SHELL", "WEIR_TESTS_SECRET")}
    return {"limits": limits, "uid": os.getresuid(), "gid": os.getresgid(), "groups": os.getgroups(),
            "environment": names, "new_privileges": status["NoNewPrivs"].strip(), "pid": os.getpid()}
def leave():
    print("the database is gone", file=sys.stderr, flush=True)
    sys.exit(3)
def spin():
    while True: pass
def files():
    opened = []
    while True: opened.append(open("/dev/null"))
tools = {"facts": facts, "hog": lambda: len(bytearray(1 << 30)), "spin": spin, "files": files, "leave": leave}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message: continue
    method, answer = message["method"], {}
    if method == "initialize":
        answer["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        answer["result"] = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]}
    elif method == "tools/call":
        answer["result"] = {"content": [{"type": "text", "text": json.dumps(tools[message["params"]["name"]]())}]}
    elif method == "ping":
        answer["result"] = {}
    else:
        answer["error"] = {"code": -32601, "message": "Method not found"}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
    if method == "tools/list" and len(sys.argv) > 1 and os.path.exists(sys.argv[1]): leave()
"#;

fn server() -> Launch {
    Launch::new(Path::new("/usr/bin/env"), ["python3", "-c", SERVER])
}

async fn facts(gateway: &Gateway, upstream: &str) -> Value {
    let client = Client::legacy(gateway, &format!("/mcp/{upstream}")).await;
    let result = client.call("facts", json!({})).await;
    serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap()
}

/// What `/readyz` says is wrong with an upstream.
async fn error(gateway: &Gateway, upstream: &str) -> String {
    let (_, readiness) = gateway.readiness().await;
    let all = readiness["upstreams"].as_array().unwrap();
    let found = all.iter().find(|entry| entry["name"] == upstream).unwrap();
    found["error"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_process_never_runs_without_its_limits() {
    let limits = "process_limits = { memory = \"1GiB\", cpu_time = \"30m\", open_files = 64 }\n";
    let gateway = Gateway::start(&(server().config("limited") + limits + &server().config("free"))).await;
    gateway.healthy(&["limited", "free"]).await;
    let (limited, free) = (facts(&gateway, "limited").await, facts(&gateway, "free").await);
    assert_eq!(limited["limits"]["DATA"], json!([1 << 30, 1 << 30]), "{limited}");
    assert_eq!(limited["limits"]["CPU"], json!([1800, 1805]), "{limited}");
    assert_eq!(limited["limits"]["NOFILE"], json!([64, 64]), "{limited}");
    assert_ne!(free["limits"]["NOFILE"], limited["limits"]["NOFILE"]);
    assert_eq!(free["limits"]["CPU"], json!([-1, -1]), "{free}");
}

#[tokio::test]
async fn a_process_that_reaches_a_limit_says_which() {
    let limited = [
        ("hog", "memory = \"512MiB\"", "process_limits.memory"),
        ("spin", "cpu_time = \"1s\"", "process_limits.cpu_time"),
        ("files", "open_files = 32", "process_limits.open_files"),
    ];
    let config = limited.map(|(name, limit, _)| format!("{}process_limits.{limit}\n", server().config(name))).concat();
    let gateway = Gateway::start(&config).await;
    for (name, _, key) in limited {
        let client = Client::legacy(&gateway, &format!("/mcp/{name}")).await;
        let answer = client.ask("tools/call", json!({ "name": name, "arguments": {} })).await;
        let told = answer.to_string();
        assert!(told.contains(&format!("it seems to have reached `{key}`")), "{told}");
    }
}

#[tokio::test]
async fn real_servers_run_within_limits_and_one_with_too_little_memory_says_so() {
    let enough = "process_limits = { memory = \"1GiB\", cpu_time = \"10m\", open_files = 256 }\n";
    let config = Launch::everything().config("everything")
        + enough
        + &Launch::fastmcp().config("fastmcp")
        + enough
        + &Launch::everything().config("starved")
        + "process_limits.memory = \"48MiB\"\n";
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["everything", "fastmcp"]).await;
    gateway.settle(&["starved"], "error").await;
    let why = error(&gateway, "starved").await;
    assert!(why.contains("seems to have reached `process_limits.memory`"), "{why}");
}

#[tokio::test]
async fn a_missing_program_is_told_as_such_also_with_limits() {
    let gateway =
        Gateway::start("upstreams.a = { command = \"weir-tests-none\", process_limits.open_files = 64 }").await;
    gateway.settle(&["a"], "error").await;
    let why = error(&gateway, "a").await;
    assert!(why.contains("`weir-tests-none` was not found; install it"), "{why}");
}

#[tokio::test]
async fn a_program_runs_as_another_user_and_cannot_be_root_again() {
    let config = server().config("other") + "user = \"nobody\"\nprocess_limits.processes = 64\ncwd = \"/\"\n";
    if !rustix::process::geteuid().is_root() {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("weir.toml");
        fs::write(&file, config).unwrap();
        let checked = Command::new(weir_tests::paths::weir()).arg("check").arg("-c").arg(&file).output().unwrap();
        assert_eq!(checked.status.code(), Some(64));
        let said = String::from_utf8(checked.stderr).unwrap();
        assert!(said.contains("only root on Linux can start programs as another user"), "{said}");
        return;
    }
    let gateway = Gateway::start_with(&config, &[("WEIR_TESTS_SECRET", "hush")]).await;
    gateway.healthy(&["other"]).await;
    let facts = facts(&gateway, "other").await;
    let entry = fs::read_to_string("/etc/passwd").unwrap();
    let entry = entry.lines().find(|line| line.starts_with("nobody:")).unwrap();
    let fields: Vec<&str> = entry.split(':').collect();
    let (uid, gid): (u32, u32) = (fields[2].parse().unwrap(), fields[3].parse().unwrap());
    assert_eq!((&facts["uid"], &facts["gid"]), (&json!([uid, uid, uid]), &json!([gid, gid, gid])), "{facts}");
    assert!(facts["groups"].as_array().unwrap().iter().all(|group| *group == gid), "{facts}");
    let environment = &facts["environment"];
    assert_eq!((&environment["USER"], &environment["LOGNAME"]), (&json!("nobody"), &json!("nobody")), "{facts}");
    assert_eq!((&environment["HOME"], &environment["SHELL"]), (&json!(fields[5]), &json!(fields[6])), "{facts}");
    assert_eq!((&environment["WEIR_TESTS_SECRET"], &facts["new_privileges"]), (&Value::Null, &json!("1")), "{facts}");
    assert_eq!(facts["limits"]["NPROC"], json!([64, 64]), "{facts}");
}

#[tokio::test]
async fn a_process_that_keeps_ending_is_an_error_with_its_last_words_and_recovers() {
    let directory = TempDir::new().unwrap();
    let (broken, starts) = (directory.path().join("broken"), directory.path().join("starts"));
    fs::write(&broken, "").unwrap();
    let script = format!("echo started >> '{}'; exec \"$@\"", starts.display());
    let crashing = Launch::new(Path::new("/usr/bin/env"), ["python3", "-c", SERVER, broken.to_str().unwrap()]);
    let gateway = Gateway::start(&(crashing.by(&script).config("crashing") + "shared = true\n")).await;
    let expected = "the server process ended soon after its start (exit status: 3); its standard error ends with: the database is gone";
    gateway.logs("keeps ending soon after its start").await;
    let end = tokio::time::Instant::now() + PATIENCE;
    while error(&gateway, "crashing").await != expected {
        assert!(tokio::time::Instant::now() < end, "{}", error(&gateway, "crashing").await);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    fs::remove_file(&broken).unwrap();
    gateway.healthy(&["crashing"]).await;
    assert!(fs::read_to_string(&starts).unwrap().lines().count() < 20, "it was started again and again");
}

#[tokio::test]
async fn calls_that_crash_their_process_do_not_start_one_after_the_other() {
    let gateway = Gateway::start(&server().config("fragile")).await;
    gateway.healthy(&["fragile"]).await;
    let client = Client::legacy(&gateway, "/mcp/fragile").await;
    // Each crash doubles the pause, so that even a slow machine calls within one.
    for _ in 0..10 {
        let answer = client.ask("tools/call", json!({ "name": "leave", "arguments": {} })).await.to_string();
        if answer
            .contains("ended soon after its start (exit status: 3); its standard error ends with: the database is gone")
        {
            assert!(answer.contains("; the next one may start in "), "{answer}");
            return;
        }
    }
    panic!("no call was told to wait: {}", gateway.log());
}

/// A sandbox with a view of the whole system and processes of its own.
const BWRAP: &str = r#"wrapper = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--unshare-all", "--die-with-parent", "--"]
"#;

/// Whether programs can be started in a sandbox here; says so if not.
fn has_sandboxes() -> bool {
    let tried =
        Command::new("bwrap").args(["--ro-bind", "/", "/", "--proc", "/proc", "--unshare-all", "true"]).output();
    let works = tried.is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("SKIPPED: bwrap is not here, or may make no namespaces");
    }
    works
}

#[tokio::test]
async fn a_server_in_a_sandbox_ends_with_its_session_and_with_weir() {
    if !has_sandboxes() {
        return;
    }
    let config = server().config("boxed")
        + BWRAP
        + "process_limits.open_files = 128\n"
        + &Launch::everything().config("everything")
        + BWRAP;
    let mut gateway = Gateway::start(&config).await;
    gateway.healthy(&["boxed", "everything"]).await;
    let client = Client::legacy(&gateway, "/mcp/boxed").await;
    let result = client.call("facts", json!({})).await;
    let facts: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!((&facts["pid"], &facts["limits"]["NOFILE"]), (&json!(2), &json!([128, 128])), "it is not in a sandbox");

    let boxed = gateway.children();
    assert!(boxed.len() >= 2, "the wrapper and the server: {boxed:?}");
    client.close().await;
    until("the session's processes are gone", || gateway.children().is_empty()).await;

    // A server that crashes takes its sandbox along, and one that Weir leaves behind ends with Weir.
    let client = Client::legacy(&gateway, "/mcp/boxed").await;
    let answer = client.ask("tools/call", json!({ "name": "leave", "arguments": {} })).await;
    assert!(answer["error"].is_object(), "{answer}");
    until("the crashed sandbox is gone", || gateway.children().is_empty()).await;
    let (one, two) = (Client::legacy(&gateway, "/mcp/boxed").await, Client::legacy(&gateway, "/mcp/everything").await);
    assert!(!one.tools().await.is_empty() && !two.tools().await.is_empty());
    let children = gateway.children();
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.end().await.code(), Some(0));
    until("nobody is left", || !children.iter().any(|(id, _)| runs(*id))).await;
}

#[tokio::test]
async fn a_sandbox_does_not_outlive_weir_or_its_wrapper() {
    if !has_sandboxes() {
        return;
    }
    let gateway = Gateway::start(&(server().config("boxed") + BWRAP)).await;
    let client = Client::legacy(&gateway, "/mcp/boxed").await;
    assert!(!client.tools().await.is_empty());
    let children = gateway.children();
    let (outer, _) = children.iter().min_by_key(|(id, _)| *id).unwrap();
    kill_process(Pid::from_raw(outer.cast_signed()).unwrap(), Signal::KILL).unwrap();
    until("the sandbox is gone", || !children.iter().any(|(id, _)| runs(*id))).await;

    assert!(!Client::legacy(&gateway, "/mcp/boxed").await.tools().await.is_empty());
    let children = gateway.children();
    gateway.signal(Signal::KILL);
    until("nobody is left", || !children.iter().any(|(id, _)| runs(*id))).await;
}
