//! `weir test` and `weir check --live`: upstreams reached step by step, without a gateway that listens.

use std::fs;
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use weir_tests::authority::Authority;
use weir_tests::peer::{Launch, Peer, free_port};
use weir_tests::wait::within;
use weir_tests::{Stub, paths};

const SECRET: &str = "hush-hush-secret";

async fn weir(config: &str, arguments: &[&str]) -> (i32, String) {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("weir.toml");
    fs::write(&file, format!("cache_dir = {:?}\n{config}", paths::cache())).unwrap();
    let mut command = Command::new(paths::weir());
    command.args(arguments).arg("--config").arg(&file);
    command.env("XDG_STATE_HOME", directory.path()).env("WEIR_TESTS_TOKEN", SECRET).kill_on_drop(true);
    let Output { status, stdout, stderr } = within("the command", command.output()).await.unwrap();
    let said = String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap();
    assert!(!said.contains(SECRET), "{said}");
    (status.code().unwrap(), said)
}

/// The report of `weir test --json`, and the exit code.
async fn tested(config: &str, name: &str, more: &[&str]) -> (i32, Value) {
    let (code, said) = weir(config, &[&["test", name, "--json"], more].concat()).await;
    (code, serde_json::from_str(said.lines().next().unwrap_or_default()).unwrap_or_else(|_| panic!("{said}")))
}

fn steps(report: &Value) -> Vec<&str> {
    report["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn each_step_to_a_real_server_is_shown_and_a_tool_is_called() {
    let peer = Peer::everything().await;
    let call = ["--tool", "echo", "--args", r#"{"message":"hello there"}"#];
    let (code, report) = tested(&peer.config("everything"), "everything", &call).await;
    assert_eq!((code, &report["ok"], &report["era"]), (0, &true.into(), &"legacy".into()), "{report:#}");
    let steps = steps(&report);
    for step in ["resolve", "connect", "http, modern", "http, legacy", "tools/list", "tools/call echo"] {
        assert!(steps.contains(&step), "{step} is not in {steps:?}");
    }
    assert!(report["offers"].to_string().contains("\"echo\""), "{report:#}");
    assert!(report["answer"].to_string().contains("hello there"), "{report:#}");

    let (code, text) = weir(&Launch::fastmcp().config("python"), &["test", "python"]).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("stdio, modern") && text.contains("python: fine after"), "{text}");
    let (code, report) = tested(&Launch::everything().config("process"), "process", &call).await;
    assert!(code == 0 && report["answer"].to_string().contains("hello there"), "{report:#}");
}

#[tokio::test]
async fn the_exit_code_tells_the_class_of_failure() {
    let nobody = format!("[upstreams.nobody]\nurl = \"http://127.0.0.1:{}/mcp\"\n", free_port());
    let hangs = "[upstreams.hangs]\ncommand = \"sleep\"\nargs = [\"60\"]\ntimeouts.start = \"1s\"\n";
    let broken = "[upstreams.broken]\ncommand = \"sh\"\nargs = [\"-c\", \"echo no database >&2; exit 3\"]\n";
    let missing = "upstreams.none.command = \"weir-tests-none\"\n";
    let stub = Stub::start().await;
    let config = [missing, &nobody, hangs, broken, &stub.config("fine")].concat();
    for (name, expected, class, words) in [
        ("nobody", 69, "unreachable", "check its url"),
        ("hangs", 75, "timeout", "timeouts.start"),
        ("broken", 69, "stopped", "its standard error ends with: no database"),
        ("none", 69, "stopped", "was not found"),
    ] {
        let (code, report) = tested(&config, name, &[]).await;
        assert_eq!((code, &report["error_class"]), (expected, &class.into()), "{report:#}");
        assert!(report.to_string().contains(words), "{report:#}");
    }
    let (code, report) = tested(&config, "fine", &["--tool", "no-such-tool"]).await;
    assert_eq!((code, &report["error_class"]), (1, &"call".into()), "{report:#}");
    assert_eq!(weir(&config, &["test", "unknown"]).await.0, 64);
    assert_eq!(weir("upstreams.a.urll = \"x\"\n", &["test", "a"]).await.0, 64);
}

#[tokio::test]
async fn a_missing_login_is_said_with_the_command_that_makes_it() {
    let authority = Authority::start(3600);
    let stub = authority.upstream().await;
    let (code, report) = tested(&stub.config("private"), "private", &[]).await;
    assert_eq!((code, &report["error_class"]), (77, &"authentication".into()), "{report:#}");
    assert!(report["repair"].as_str().unwrap().contains("`weir auth login private "), "{report:#}");
    let refused = format!("{}bearer.env = \"WEIR_TESTS_TOKEN\"\n", stub.config("private"));
    let (code, report) = tested(&refused, "private", &[]).await;
    assert_eq!((code, &report["error_class"]), (77, &"authentication".into()), "{report:#}");
    assert!(steps(&report).contains(&"credential"), "{report:#}");
}

#[tokio::test]
async fn a_check_reaches_all_and_the_required_decide() {
    let stub = Stub::start().await;
    let nobody = format!("[upstreams.nobody]\nurl = \"http://127.0.0.1:{}/mcp\"\n", free_port());
    let config = nobody + &stub.config("fine") + "headers = { X-Key = \"${env:WEIR_TESTS_TOKEN}\" }\n";
    let (code, said) = weir(&config, &["check", "--live"]).await;
    assert_eq!(code, 69, "{said}");
    assert!(said.contains("fine: fine after") && said.contains("nobody: failed after"), "{said}");
    assert_eq!(weir(&config, &["check", "--live", "--require", "fine"]).await.0, 0);
    assert_eq!(weir(&config, &["check", "--live", "--require", "fine,nobody"]).await.0, 69);
    let (code, said) = weir(&config, &["check", "--live", "--require", "fien"]).await;
    assert!(code == 64 && said.contains("no upstream `fien`"), "{said}");
}
