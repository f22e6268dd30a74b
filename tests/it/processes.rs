//! Processes on their way to their first answer: slow ones, silent ones, those that crash, and those that are ended.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_tests::gateway::state;
use weir_tests::peer::Launch;
use weir_tests::wait::{until, within};
use weir_tests::{Client, Gateway, LEGACY, Request, Stub};

/// A server of the legacy era that says nothing at all to what it does not know, unless it is `polite`.
const SILENT: &str = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    result = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "silent", "version": "1"}},
        "tools/list": {"tools": [{"name": "nothing", "inputSchema": {"type": "object"}}]},
        "ping": {},
    }.get(message.get("method"))
    if result is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
    elif "id" in message and "polite" in sys.argv:
        error = {"code": -32601, "message": "Method not found"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
"#;

fn silent() -> Launch {
    Launch::new(Path::new("python3"), ["-c", SILENT])
}

fn sh(script: &str) -> Launch {
    Launch::new(Path::new("/bin/sh"), ["-c", script])
}

fn upstream<'a>(readiness: &'a Value, name: &str) -> &'a Value {
    let upstreams = readiness["upstreams"].as_array().unwrap();
    upstreams.iter().find(|entry| entry["name"] == name).unwrap()
}

/// How many lines a file has.
fn lines(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[tokio::test]
async fn servers_of_either_era_that_take_long_come_up_in_one_process() {
    let directory = TempDir::new().unwrap();
    let servers = [
        ("fixture", Launch::fixture("both")),
        ("python", Launch::python()),
        ("fastmcp", Launch::fastmcp()),
        ("everything", Launch::everything()),
    ];
    let mut config = "limits.concurrent_starts = 8\n".to_owned();
    let mut names = Vec::new();
    for (name, server) in &servers {
        // Like npx, which leaves its input unread until the server is there, and like docker, which reads it at once.
        for (kind, script) in [("npx", "sleep 12; exec \"$@\""), ("docker", "cat | (sleep 12; exec \"$@\")")] {
            let name = format!("{name}-{kind}");
            let starts = directory.path().join(&name);
            let script = format!("echo started >> '{}'; {script}", starts.display());
            config += &server.by(&script).config(&name);
            names.push(name);
        }
    }
    let gateway = Gateway::start(&config).await;
    for name in &names {
        gateway.healthy(&[name]).await;
    }
    let (_, readiness) = gateway.readiness().await;
    for name in &names {
        let found = upstream(&readiness, name);
        // What the official SDK has read first holds in Python; in TypeScript an `initialize` that came too has the last word.
        let era = match name.as_str() {
            "everything-npx" | "everything-docker" | "fixture-docker" => "legacy",
            _ => "modern",
        };
        assert_eq!(found["era"], era, "{readiness:#}");
        assert!(found["tools"].as_u64().is_some_and(|tools| tools > 0), "{readiness:#}");
        assert_eq!(lines(&directory.path().join(name)), 1, "{name} was started more than once");
    }
}

#[tokio::test]
async fn a_server_that_ignores_what_it_does_not_know_is_asked_in_the_other_way() {
    let directory = TempDir::new().unwrap();
    let starts = directory.path().join("starts");
    let script = format!("echo started >> '{}'; exec \"$@\"", starts.display());
    let gateway = Gateway::start(&silent().by(&script).config("silent")).await;
    gateway.healthy(&["silent"]).await;
    assert_eq!(upstream(&gateway.readiness().await.1, "silent")["era"], "legacy");
    assert_eq!(lines(&starts), 1);
    // That it ignores the modern era is known now, so calls of that era are translated at once.
    let tools = within("the tools", Client::modern(&gateway, "/mcp/silent").tools()).await;
    assert_eq!(tools, ["nothing"]);
}

#[tokio::test]
async fn a_process_that_ends_says_why_and_is_started_once_for_each_try() {
    const SECRET: &str = "hush-hush-secret";
    let directory = TempDir::new().unwrap();
    let starts = directory.path().join("starts");
    let script = format!(
        "echo started >> '{}'; printf 'reading the settings\\nError: \\033[31mKEY=%s and %s are no good\\033[0m\\n' \"$KEY\" \"$1\" >&2; exit 3",
        starts.display()
    );
    let config = format!(
        "[upstreams.broken]\ncommand = \"/bin/sh\"\nargs = [\"-c\", {script:?}, \"sh\", \"${{env:WEIR_TESTS_ARGUMENT}}\"]\nenv = {{ KEY = {SECRET:?} }}\n"
    );
    let environment = [("RUST_LOG", "debug"), ("WEIR_TESTS_ARGUMENT", "also-a-secret")];
    let gateway = Gateway::start_with(&config, &environment).await;
    gateway.settle(&["broken"], "error").await;
    let why = "starting it failed (it ended with exit status: 3); check its command and args; its standard error ends with: \
               reading the settings | Error: KEY=*** and *** are no good";
    let (_, readiness) = gateway.readiness().await;
    assert_eq!(upstream(&readiness, "broken")["error"], why);
    let params =
        json!({ "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    let legacy = gateway.send(Request::post("/mcp/broken", initialize.to_string())).await.json().await;
    let modern = Client::modern(&gateway, "/mcp/broken").ask("tools/list", json!({})).await;
    for answer in [legacy, modern] {
        assert_eq!(answer["error"]["message"], format!("upstream `broken` cannot be reached: {why}"), "{answer}");
    }
    until("it was tried again", || lines(&starts) >= 5).await;
    let log = gateway.log();
    let attempts: Vec<&str> = log.lines().filter(|line| line.contains("\"attempt\"")).collect();
    assert!(attempts.len() >= 4, "{log}");
    let legacy = |line: &&&str| line.contains("legacy");
    assert_eq!(attempts.iter().filter(legacy).count(), 1, "only the legacy client asks in its era: {attempts:#?}");
    assert!(!log.contains(SECRET) && !log.contains("also-a-secret"), "{log}");
}

/// Like npx in the middle of an installation: told to end, it cleans up, which takes longer than most processes are given.
fn installing(directory: &Path) -> Launch {
    let marker = directory.join("installing");
    let ends = directory.join("ends");
    sh(&format!(
        "trap 'sleep 3; rm \"{0}\"; echo clean >> \"{1}\"; exit 0' TERM; : > \"{0}\"; while :; do sleep 0.1; done",
        marker.display(),
        ends.display()
    ))
}

#[tokio::test]
async fn a_process_that_is_starting_may_clean_up_when_weir_stops() {
    let directories: Vec<TempDir> = (0..3).map(|_| TempDir::new().unwrap()).collect();
    let marker = |directory: &TempDir| directory.path().join("installing");
    let mut config = String::new();
    for (number, directory) in directories.iter().enumerate() {
        config += &installing(directory.path()).config(&format!("npx{number}"));
    }
    let mut gateway = Gateway::start(&config).await;
    until("all of them install", || directories.iter().all(|directory| marker(directory).exists())).await;
    let children = gateway.children();
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.end().await.code(), Some(0), "{}", gateway.log());
    assert!(!directories.iter().any(|directory| marker(directory).exists()), "killed in the middle of an installation");
    until("nobody is left", || !children.iter().any(|(id, _)| weir_tests::process::runs(*id))).await;
}

#[tokio::test]
async fn a_process_that_takes_too_long_may_clean_up_and_the_message_names_the_key() {
    let directory = TempDir::new().unwrap();
    let config = installing(directory.path()).config("npx") + "timeouts.start = \"1s\"\n";
    let gateway = Gateway::start(&config).await;
    gateway.settle(&["npx"], "error").await;
    assert!(lines(&directory.path().join("ends")) >= 1, "it was killed");
    let (_, readiness) = gateway.readiness().await;
    let why = upstream(&readiness, "npx")["error"].as_str().unwrap().to_owned();
    assert_eq!(why, "given up after 1 s (`timeouts.start`); tried stdio (modern)");
}

#[tokio::test]
async fn a_few_processes_start_at_once_and_waiting_for_a_turn_is_no_delay() {
    let directory = TempDir::new().unwrap();
    let (running, counts) = (directory.path().join("running"), directory.path().join("counts"));
    fs::create_dir(&running).unwrap();
    let mut config = "limits.concurrent_starts = 2\ndefaults.timeouts.start = \"8s\"\n".to_owned();
    let polite = Launch::new(Path::new("python3"), ["-c", SILENT, "polite"]);
    let names: Vec<String> = (0..6).map(|number| format!("slow{number}")).collect();
    for name in &names {
        // Each takes three seconds, so that the last ones are there after nine.
        let script = format!(
            "mkdir '{0}/{name}'; ls '{0}' | wc -l >> '{1}'; sleep 3; rmdir '{0}/{name}'; exec \"$@\"",
            running.display(),
            counts.display()
        );
        config += &polite.by(&script).config(name);
    }
    let gateway = Gateway::start(&config).await;
    for name in &names {
        gateway.healthy(&[name]).await;
    }
    let counts = fs::read_to_string(counts).unwrap();
    let counts: Vec<usize> = counts.lines().map(|line| line.trim().parse().unwrap()).collect();
    assert!(counts.len() == 6 && counts.iter().all(|count| *count <= 2), "{counts:?}");
}

#[tokio::test]
async fn a_hanging_process_keeps_weir_from_being_ready_for_a_while_only() {
    let hanging = || sh("while :; do sleep 1; done").config("hanging");
    let stub = Stub::start().await;
    let gateway = Gateway::start(&(stub.config("stub") + &hanging() + "timeouts.list = \"1s\"\n")).await;
    ready(&gateway).await;
    let (_, readiness) = gateway.readiness().await;
    assert_eq!((state(&readiness, "stub"), state(&readiness, "hanging")), (Some("healthy"), Some("connecting")));

    let gateway = Gateway::start(&(hanging() + "timeouts.start = \"2s\"\n")).await;
    assert_eq!(gateway.readiness().await.0, 503, "nothing is known of anything");
    ready(&gateway).await;
}

async fn ready(gateway: &Gateway) {
    let answers = async {
        while gateway.readiness().await.0 != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    within("Weir is ready", answers).await;
}
