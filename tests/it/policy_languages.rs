//! Policies in each language: what `weir policy new` makes is built with the tools of the language and passes its cases, as
//! do the examples.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::json;
use tempfile::TempDir;
use weir_tests::{Client, Gateway, Stub, paths};

/// A command in a folder, which ends well; what it says.
fn weir(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(paths::weir());
    // What policies in Rust have in common is built once, and what is compiled is kept.
    command.env("CARGO_TARGET_DIR", paths::cache().join("policies")).env("XDG_CACHE_HOME", paths::cache());
    let Output { status, stdout, stderr } = command.current_dir(folder).args(arguments).output().unwrap();
    let said = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(status.success(), "weir {} ended with {status}:\n{said}", arguments.join(" "));
    said
}

/// The folder of a new policy.
fn made(folder: &Path, language: &str, interface: &str) -> PathBuf {
    let name = format!("{language}-{interface}");
    weir(folder, &["policy", "new", &name, "--lang", language, "--for", interface]);
    folder.join(name)
}

fn passes(folder: PathBuf, interface: &str) -> PathBuf {
    weir(&folder, &["policy", "build"]);
    let said = weir(&folder, &["policy", "test", "policy.wasm"]);
    assert!(said.contains("0 files failed"), "{said}");
    let said = weir(&folder, &["policy", "inspect", "policy.wasm"]);
    assert!(said.contains(&format!("decides  {interface}")), "{said}");
    folder.join("policy.wasm")
}

/// A copy of an example, with what its links lead to.
fn copied(example: &str, into: &Path) -> PathBuf {
    let from = paths::tests().with_file_name("guest").join("examples").join(example);
    let to = into.join(example);
    assert!(Command::new("cp").arg("-rL").args([&from, &to]).status().unwrap().success());
    for made in ["node_modules", ".venv"] {
        drop(std::fs::remove_dir_all(to.join(made)));
    }
    to
}

#[test]
fn a_new_policy_in_rust_is_built_and_passes_its_cases() {
    let folder = TempDir::new().unwrap();
    for interface in ["calls", "credentials"] {
        passes(made(folder.path(), "rust", interface), interface);
    }
}

/// The policy depends on what `cargo publish` would upload, instead of the copy that it comes with.
#[test]
fn the_crate_of_the_kit_is_complete_as_a_package() {
    let folder = TempDir::new().unwrap();
    let mut cargo = Command::new("cargo");
    cargo.args(["package", "-p", "weir-policy", "--offline", "--allow-dirty", "--no-verify", "--target-dir"]);
    let output = cargo.arg(folder.path()).current_dir(paths::tests()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("warning"), "{said}");
    let mut packaged = std::fs::read_dir(folder.path().join("package")).unwrap().map(|entry| entry.unwrap().path());
    let package = packaged.find(|file| file.extension().is_some_and(|extension| extension == "crate")).unwrap();
    let policy = made(folder.path(), "rust", "connection");
    std::fs::remove_dir_all(policy.join("weir-policy")).unwrap();
    std::fs::create_dir(policy.join("weir-policy")).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["-xzf".as_ref(), package.as_os_str(), "--strip-components=1".as_ref()]);
    assert!(tar.current_dir(policy.join("weir-policy")).status().unwrap().success());
    passes(policy, "connection");
}

#[tokio::test]
async fn a_new_policy_in_javascript_is_built_passes_its_cases_and_decides() {
    let folder = TempDir::new().unwrap();
    for interface in ["credentials", "connection"] {
        passes(made(folder.path(), "js", interface), interface);
    }
    let component = passes(made(folder.path(), "js", "calls"), "calls");
    let stub = Stub::offering(weir_tests::stub::Offer {
        tools: vec!["delete_all".into(), "echo".into()],
        ..Default::default()
    });
    let stub = stub.await;
    let policy = format!("[[upstreams.u.policies]]\ncomponent = {component:?}\ngrants = [\"log\"]\n");
    let gateway = Gateway::start(&(stub.config("u") + &policy)).await;
    gateway.healthy(&["u"]).await;
    let client = Client::modern(&gateway, "/mcp");
    let refused = client.call("u__delete_all", json!({})).await;
    let text = "delete_all is not allowed here: nothing is deleted; archive it instead";
    assert_eq!(refused["content"][0]["text"], text, "{refused}");
    let allowed = client.call("u__echo", json!({ "message": "hello" })).await;
    assert_eq!(allowed["content"][0]["text"], "hello", "{allowed}");
}

#[test]
fn the_example_in_javascript_is_built_and_passes_its_cases() {
    let folder = TempDir::new().unwrap();
    passes(copied("javascript", folder.path()), "credentials");
}

#[test]
fn the_example_in_python_is_built_and_passes_its_cases() {
    let folder = TempDir::new().unwrap();
    passes(copied("python", folder.path()), "credentials");
}

#[test]
fn a_folder_is_not_overwritten_and_a_name_is_checked() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(paths::weir()).current_dir(&folder).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    std::fs::create_dir(folder.path().join("there")).unwrap();
    let (code, said) = run(&["policy", "new", "there"]);
    assert!(code == Some(1) && said.contains("the folder there cannot be made"), "{said}");
    for name in ["Mine", "../up/..", "a b", "9", "x_y"] {
        let (code, said) = run(&["policy", "new", name]);
        assert!(code == Some(1) && said.contains("cannot be"), "{name}: {said}");
    }
    let (code, said) = run(&["policy", "build", "there"]);
    assert!(code == Some(1) && said.contains("`weir policy new` makes a policy"), "{said}");
}
