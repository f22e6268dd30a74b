//! Hosts' own programs: they read back what Weir has written for them, and reach it there.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use weir_tests::{
    Gateway, Peer, Stub, paths,
    peer::{Launch, free_port},
    process::Process,
    wait::until,
};

use super::Person;

/// What a host's own program prints.
fn says(person: &Person, program: &Path, arguments: &[&str]) -> String {
    let mut command = person.command(program, arguments);
    command.env("NO_PROXY", "127.0.0.1");
    // Gemini CLI reaches no server from a folder that nobody has trusted; Claude Code would report to its makers.
    command.env("GEMINI_CLI_TRUST_WORKSPACE", "true").env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{} {arguments:?}: {text}", program.display());
    text
}

fn package(path: &str) -> String {
    paths::installed(&format!("hosts/node_modules/{path}")).display().to_string()
}

/// The program of Claude Code for this machine. Its package for npm only finds it.
fn claude() -> PathBuf {
    let folders = fs::read_dir(package("@anthropic-ai")).unwrap().map(|folder| folder.unwrap().path().join("claude"));
    folders.into_iter().find(|program| program.is_file()).expect("a program for this machine")
}

fn gemini(person: &Person) -> String {
    says(person, &paths::node(), &[&package("@google/gemini-cli/bundle/gemini.js"), "mcp", "list"])
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_find_weir_where_it_was_written_and_reach_it() {
    let (person, stub) = (Person::new(), Stub::start().await);
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let url = gateway.url("/mcp");
    let connect = |what: &str| person.done(&["client", what, "claude-code", "codex", "gemini-cli", "--url", &url]);
    connect("connect");

    let listed = says(&person, &claude(), &["mcp", "list"]);
    assert!(listed.contains(&format!("weir: {url} (HTTP) - ✔ Connected")), "{listed}");
    let listed = gemini(&person);
    assert!(listed.contains(&format!("✓ weir: {url} (http) - Connected")), "{listed}");
    let codex = |arguments: &[&str]| {
        let program = package("@openai/codex/bin/codex.js");
        says(&person, &paths::node(), &[&[program.as_str(), "mcp"], arguments].concat())
    };
    let listed = codex(&["get", "weir", "--json"]);
    let entry: Value = serde_json::from_str(&listed[listed.find('{').unwrap()..=listed.rfind('}').unwrap()]).unwrap();
    assert_eq!((&entry["transport"]["type"], &entry["transport"]["url"]), (&json!("streamable_http"), &json!(url)));
    assert_eq!(entry["enabled"], true);

    // The inspector is told which file to read.
    person.done(&["client", "connect", "inspector", "--project", "--url", &url]);
    let inspector = paths::peers("node_modules/.bin/mcp-inspector").display().to_string();
    let file = person.folder().join("mcp.json").display().to_string();
    let asked = ["--cli", "--config", &file, "--server", "weir", "--method", "tools/list"];
    let listed = says(&person, &paths::node(), &[&[inspector.as_str()], &asked[..]].concat());
    assert!(listed.contains("stub__echo"), "{listed}");

    connect("disconnect");
    assert!(says(&person, &claude(), &["mcp", "list"]).contains("No MCP servers configured"));
    assert!(!gemini(&person).contains("weir"));
    assert!(!codex(&["list"]).contains("weir"));
}

#[tokio::test(flavor = "multi_thread")]
async fn five_servers_of_a_host_are_behind_weir_after_three_commands() {
    let mut person = Person::new();
    let remote = Peer::everything().await;
    let program = |launch: Launch| {
        json!({ "command": launch.prepared().get_program().to_str().unwrap(),
        "args": launch.prepared().get_args().map(|argument| argument.to_str().unwrap()).collect::<Vec<_>>() })
    };
    let settings = json!({ "mcpServers": {
        "everything": program(Launch::everything()),
        "files": program(Launch::filesystem(&person.folder())),
        "fast": program(Launch::fastmcp()),
        "python": program(Launch::python()),
        "remote": { "httpUrl": remote.url() },
    } });
    person.has(".gemini/settings.json", &settings.to_string());
    let address = format!("127.0.0.1:{}", free_port());
    person.set("WEIR__LISTEN", &address);

    person.done(&["import", "gemini-cli", "--yes", "--trust"]);
    let mut gateway = Process::start("the gateway", &mut person.command(&paths::weir(), &["serve"]));
    gateway.says("where it listens", |line| line.contains(&address).then_some(())).await;
    person.done(&["client", "connect", "gemini-cli"]);

    let said = person.done(&["test", "files", "--json"]);
    assert!(said.contains("\"ok\":true"), "{said}");
    let url = format!("http://{address}/mcp");
    let servers = ["everything__", "files__", "fast__", "python__", "remote__"];
    until("all five servers are there", || {
        let tools = person.done(&["tools", &url, "--json"]);
        servers.iter().all(|server| tools.contains(server))
    })
    .await;
    let said = person.done(&["call", &url, "remote__echo", "message=hello"]);
    assert!(said.contains("hello"), "{said}");
    let listed = gemini(&person);
    assert!(listed.contains(&format!("✓ weir: {url} (http) - Connected")), "{listed}");
}
