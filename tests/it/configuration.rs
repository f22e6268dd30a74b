//! What an operator writes, and what Weir says and does about it: `weir check`, the start, the examples, the environment of
//! programs, signals that do nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_tests::client::answer;
use weir_tests::peer::Launch;
use weir_tests::process::Process;
use weir_tests::terminal::{ENVIRONMENT, config, ended, sign_in};
use weir_tests::wait::until;
use weir_tests::{Authority, Bridge, Client, Gateway, Request, Stub, paths};

/// A key, and not the one that the stores of these tests are made with.
const ANOTHER_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

/// The exit code for a configuration that cannot be used.
const BAD_CONFIG: Option<i32> = Some(64);

/// A command of Weir in a folder, without what the tests' own environment may say of it.
fn weir(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(paths::weir());
    command.current_dir(folder).args(arguments).env("XDG_STATE_HOME", folder).env("XDG_CACHE_HOME", paths::cache());
    command.env_remove("WEIR_STORE_KEY");
    command
}

/// What it ended with, and all that it said.
fn said(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

/// A folder with a `weir.toml`.
fn folder(config: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("weir.toml"), config).unwrap();
    folder
}

#[test]
fn the_file_of_this_folder_is_the_one_that_is_meant() {
    let folder = folder("upstreams.a.url = 'https://a.example/mcp'");
    let (code, told) = said(&mut weir(folder.path(), &["check"]));
    assert!(code == Some(0) && told.ends_with("weir.toml is fine\n"), "{told}");
    let empty = TempDir::new().unwrap();
    for command in ["check", "serve"] {
        let (code, told) = said(&mut weir(empty.path(), &[command]));
        assert!(code == BAD_CONFIG && told.contains("--config") && told.contains("weir demo"), "{told}");
    }
}

#[test]
fn what_is_not_on_this_machine_is_said_by_check() {
    let lacking = "[upstreams.a]\ncommand = 'weir-no-such-program'\n[upstreams.b]\ncommand = 'sh'\ncwd = 'nowhere'\n";
    let folder = folder(lacking);
    let (code, told) = said(&mut weir(folder.path(), &["check"]));
    assert_eq!(code, BAD_CONFIG, "{told}");
    assert!(told.contains("weir.toml:2:11: there is no program `weir-no-such-program` in PATH"), "{told}");
    assert!(told.contains("weir.toml:5:7: there is no folder ") && !told.contains("is fine"), "{told}");
}

#[tokio::test]
async fn what_is_not_on_this_machine_keeps_no_other_upstream_from_starting() {
    let stub = Stub::start().await;
    let lacking = "[upstreams.a]\ncommand = 'weir-no-such-program'\n[upstreams.b]\ncommand = 'sh'\ncwd = 'nowhere'\n";
    let gateway = Gateway::start(&(stub.config("stub") + lacking)).await;
    gateway.healthy(&["stub"]).await;
    gateway.settle(&["a", "b"], "error").await;
}

#[tokio::test]
async fn a_port_in_use_is_said_once_with_who_to_ask() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    let port = gateway.address().port();
    let folder = folder(&format!("listen = '127.0.0.1:{port}'\n{}", stub.config("stub")));
    let (code, told) = said(&mut weir(folder.path(), &["serve"]));
    let last = told.lines().last().unwrap();
    assert_eq!(code, Some(1), "{told}");
    assert!(last.contains(&format!("ss -ltnp 'sport = :{port}'")) && last.contains("`listen`"), "{told}");
    assert!(!last.contains("os error") && last.matches("another program has").count() == 1, "{told}");
}

#[test]
fn an_address_that_demo_cannot_listen_on_is_told_with_one_that_it_can() {
    let folder = TempDir::new().unwrap();
    let (_, told) = said(&mut weir(folder.path(), &["demo", "--listen", "localhost:8080"]));
    assert!(told.contains("127.0.0.1:8080") && !told.contains("socket address syntax"), "{told}");
}

#[tokio::test]
async fn the_json_of_another_host_is_served() {
    let stub = Stub::start().await;
    let folder = TempDir::new().unwrap();
    let json =
        json!({ "mcpServers": { "my stub": { "type": "http", "url": stub.url(), "headers": { "X-Key": "s3cr3t" } } } });
    for (file, arguments) in [("weir.toml", &[][..]), ("mcp.json", &["--config", "mcp.json"])] {
        fs::write(folder.path().join(file), format!("// servers\n{json}")).unwrap();
        let (code, told) = said(&mut weir(folder.path(), &[&["check"], arguments].concat()));
        assert!(code == Some(0) && told.contains("[upstreams.my-stub]") && told.contains("is fine"), "{told}");
        assert!(!told.contains("s3cr3t"), "{told}");

        let mut command = weir(folder.path(), &[&["serve", "--listen", "127.0.0.1:0"], arguments].concat());
        let mut process = Process::start("weir serve", &mut command);
        let url = process.says("where it is", |line| ready(line).map(|line| line["fields"]["url"].clone())).await;
        let address = url.as_str().unwrap().strip_prefix("http://").unwrap().strip_suffix("/mcp").unwrap();
        let response = Request::get("/readyz").send(address.parse().unwrap()).await;
        let readiness = response.json().await;
        assert_eq!(weir_tests::gateway::state(&readiness, "my-stub"), Some("healthy"), "{readiness}");
        fs::remove_file(folder.path().join(file)).unwrap();
    }
}

/// The line of the log that says where Weir is.
fn ready(line: &str) -> Option<Value> {
    let line: Value = serde_json::from_str(line).ok()?;
    (line["fields"]["message"] == "Weir is ready for clients").then_some(line)
}

#[tokio::test]
async fn the_log_stays_json_and_standard_output_empty() {
    let stub = Stub::start().await;
    let public = "public_url = 'https://weir.example.com'\nallow_unauthenticated = true\nlisten = '0.0.0.0:0'\n";
    let folder = folder(&(public.to_owned() + &stub.config("stub")));
    let (out, log) = (folder.path().join("out"), folder.path().join("log"));
    let mut command = weir(folder.path(), &["serve"]);
    command.stdout(fs::File::create(&out).unwrap()).stderr(fs::File::create(&log).unwrap());
    let mut child = command.spawn().unwrap();
    let lines = || fs::read_to_string(&log).unwrap();
    until("it is ready", || lines().contains("Weir is ready for clients")).await;
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_to_string(&out).unwrap(), "");
    let lines = lines();
    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{lines}");
    let ready = lines.lines().find_map(ready).unwrap();
    assert_eq!(ready["fields"]["url"], "https://weir.example.com/mcp");
}

#[tokio::test]
async fn a_person_is_shown_the_address_that_clients_use() {
    let stub = Stub::start().await;
    let folder = folder(&format!("allow_unauthenticated = true\nlisten = '0.0.0.0:0'\n{}", stub.config("stub")));
    let line = format!("exec {} serve", paths::weir().display());
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"]).env("SHELL", "/bin/sh");
    command.current_dir(folder.path()).env("XDG_STATE_HOME", folder.path()).env("XDG_CACHE_HOME", paths::cache());
    let mut process = Process::start("weir serve at a terminal", &mut command);
    let shown = |line: &str| line.trim_end().strip_prefix("Weir is at http://").map(str::to_owned);
    let shown = process.says("where it is", shown).await;
    assert!(shown.starts_with("127.0.0.1:") && !shown.contains("127.0.0.1:0/"), "{shown}");
    // The terminal goes, and with it whoever could end it there.
    let weir = weir_tests::process::descendants(process.id());
    drop(process);
    until("it has ended", || !weir.iter().any(|(id, _)| weir_tests::process::runs(*id))).await;
}

#[tokio::test]
async fn a_hangup_reloads_and_ends_no_call() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::legacy(&gateway, "/mcp/stub").await;
    let (id, request) = client.request("tools/call", json!({ "name": "hold", "arguments": { "message": "kept" } }));
    let address = gateway.address();
    let call = tokio::spawn(async move { answer(request.send(address).await, id).await });
    until("the call runs", || stub.held() == 1).await;
    gateway.signal(Signal::HUP);
    gateway.logs("the configuration was reloaded").await;
    stub.release(1);
    assert_eq!(call.await.unwrap()["result"]["content"][0]["text"], "kept");
}

#[tokio::test]
async fn a_hangup_ends_a_bridge_as_ctrl_c_does() {
    let stub = Stub::start().await;
    let mut bridge = Bridge::start(&[&stub.url()]);
    bridge.shake_hands(json!({})).await;
    bridge.signal(Signal::HUP);
    assert_eq!(bridge.end().await.status.code(), Some(0));
}

#[tokio::test]
async fn a_program_gets_what_it_needs_to_reach_the_world_and_none_of_weirs_secrets() {
    let upstream = Launch::everything().config("everything");
    let more = "env = { OWN = '1', KEPT = '${env:WEIR_TESTS_SECRET}' }\n";
    let environment = [
        ("HTTPS_PROXY", "http://proxy.example:3128"),
        ("NODE_EXTRA_CA_CERTS", "/dev/null"),
        ("LC_MESSAGES", "C"),
        ("WEIR_STORE_KEY", ANOTHER_KEY),
        ("WEIR_TESTS_SECRET", "s3cr3t"),
        ("AWS_SECRET_ACCESS_KEY", "s3cr3t"),
        ("AWS_REGION", "eu"),
    ];
    let usual = ["HTTPS_PROXY", "KEPT", "LC_MESSAGES", "NODE_EXTRA_CA_CERTS", "OWN"];
    let cases = [("", &usual[..]), ("inherit_env = ['AWS_R*']\n", &["AWS_REGION", "KEPT", "OWN"])];
    for (inherit, expected) in cases {
        let gateway = Gateway::start_with(&format!("{upstream}{more}{inherit}"), &environment).await;
        gateway.healthy(&["everything"]).await;
        let client = Client::legacy(&gateway, "/mcp/everything").await;
        let told = client.call("get-env", json!({})).await;
        let got: BTreeMap<String, String> = serde_json::from_str(told["content"][0]["text"].as_str().unwrap()).unwrap();
        let names = environment.iter().map(|(name, _)| *name).chain(["KEPT", "OWN"]);
        let mut names: Vec<&str> = names.filter(|name| got.contains_key(*name)).collect();
        names.sort_unstable();
        assert_eq!(names, expected, "{inherit}");
        assert!(got.contains_key("PATH"));
    }
}

#[test]
fn a_key_that_is_none_is_found_before_anything_starts() {
    let folder = folder("upstreams.a.url = 'http://127.0.0.1:1/mcp'\nlisten = '127.0.0.1:0'");
    for command in ["check", "serve"] {
        let (code, told) = said(weir(folder.path(), &[command]).env("WEIR_STORE_KEY", "no-key-at-all"));
        assert_eq!(code, BAD_CONFIG, "{told}");
        assert!(told.contains("env WEIR_STORE_KEY holds no key") && !told.contains("no-key-at-all"), "{told}");
    }
    let (code, told) = said(weir(folder.path(), &["check"]).env("WEIR_STORE_KEY", ANOTHER_KEY));
    assert_eq!(code, Some(0), "{told}");
    assert!(!folder.path().join("weir").exists(), "no store is made");
}

#[tokio::test]
async fn a_key_of_another_store_is_found_before_anything_starts() {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = Gateway::start_with(&config(&upstream, "auth = \"oauth\""), &ENVIRONMENT).await;
    sign_in(&gateway, &[]).await;
    let file = gateway.directory().join("weir.toml");
    for command in ["check", "serve"] {
        let mut command = weir(gateway.directory(), &[command, "--config", file.to_str().unwrap()]);
        let process = Process::start("weir", command.env("WEIR_TESTS_KEY", ANOTHER_KEY));
        let (code, told) = ended(process).await;
        assert!(code == BAD_CONFIG && told.contains("env WEIR_TESTS_KEY (another key)"), "{told}");
    }
}

/// Each says in its comments which variables and files it needs; with those in place it is fine.
#[test]
fn each_example_is_fine_or_says_what_to_put_in() {
    let examples = paths::tests().join("../config");
    let mut count = 0;
    for entry in fs::read_dir(&examples).unwrap() {
        let file = entry.unwrap().path();
        if file.extension() != Some("toml".as_ref()) {
            continue;
        }
        count += 1;
        let text = fs::read_to_string(&file).unwrap();
        let comments: String = text.lines().filter(|line| line.starts_with('#')).collect();
        let folder = folder(&text);
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::copy("/bin/true", bin.join("npx")).unwrap();
        let check = |with: &[(String, String)]| {
            let mut command = weir(folder.path(), &["check"]);
            command.env_clear().envs(with.iter().cloned()).env("PATH", &bin).env("XDG_CACHE_HOME", paths::cache());
            said(&mut command)
        };
        let (mut code, mut told) = check(&[]);
        let mut variables = Vec::new();
        for _ in 0..10 {
            for line in told.lines().filter(|_| code == BAD_CONFIG) {
                let missing = match (line.split_once(": env "), line.split_once(": there is no ")) {
                    (Some((_, name)), _) => {
                        let name = name.split(' ').next().unwrap();
                        variables.push((name.to_owned(), "value".to_owned()));
                        name.to_owned()
                    }
                    (_, Some((_, path))) => {
                        fs::write(path, "").unwrap();
                        Path::new(path).file_name().unwrap().to_str().unwrap().to_owned()
                    }
                    _ => continue,
                };
                assert!(comments.contains(&missing), "{} does not say that it needs {missing}", file.display());
            }
            (code, told) = check(&variables);
        }
        assert!(code == Some(0), "{}: {told}", file.display());
        assert!(!text.contains("example.com") || comments.contains("Put in"), "{}", file.display());
    }
    assert!(count >= 4);
}
