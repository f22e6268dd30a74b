//! A login store on a file system that takes nothing: calls go on, and `/readyz` says what is wrong.

use std::process::Command;

use serde_json::json;
use weir_tests::wait::until_some;
use weir_tests::{Client, Gateway, Stub, paths};

#[tokio::test]
async fn a_store_without_room_is_told_of_and_calls_go_on() {
    let mut probe = Command::new("unshare");
    probe.args(["--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]);
    if !probe.output().is_ok_and(|ended| ended.status.success()) {
        eprintln!("NOT CHECKED: no file system may be mounted here");
        return;
    }
    let stub = Stub::start().await;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().to_str().unwrap();
    // Only the gateway sees it, and whoever looks through the eyes of its process.
    let inside = "mount -t tmpfs -o size=256k tmpfs \"$XDG_STATE_HOME\" && exec \"$0\" \"$@\"";
    let gateway = Gateway::start_by(&stub.config("stub"), &[("XDG_STATE_HOME", state)], |command| {
        let mut unshared = Command::new("unshare");
        unshared.args(["--map-root-user", "--mount", "sh", "-c", inside, &paths::weir().display().to_string()]);
        unshared.args(command.get_args());
        for (name, value) in command.get_envs() {
            unshared.env(name, value.unwrap_or_default());
        }
        unshared
    })
    .await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp");
    let there = std::path::PathBuf::from(format!("/proc/{}/root{state}", gateway.id()));
    let store = there.join("weir");
    until_some("the gateway has a folder there", || there.exists().then_some(())).await;
    std::fs::create_dir_all(&store).unwrap();
    // A store is there, whatever is in it.
    let name = std::fs::read_dir(&store).unwrap().flatten().find(|entry| entry.path().is_file());
    let file = name.map_or_else(|| store.join("logins.redb"), |entry| entry.path());
    if !file.exists() {
        std::fs::write(&file, "").unwrap();
    }
    let fill = there.join("fill");
    let mut full = std::fs::File::create(&fill).unwrap();
    while std::io::Write::write(&mut full, &[0; 4096]).is_ok_and(|written| written > 0) {}
    let told = async {
        loop {
            let (status, body) = gateway.readiness().await;
            if body["store"].is_string() {
                break (status, body);
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let (status, body) = weir_tests::wait::within("it is told", told).await;
    assert_eq!((status, &body["state"]), (200, &json!("ready")), "{body}");
    assert!(body["store"].as_str().unwrap().contains("is full"), "{body}");
    assert_eq!(client.call("stub__echo", json!({ "message": "on" })).await["content"][0]["text"], "on");
    drop(full);
    std::fs::remove_file(&fill).unwrap();
    gateway.logs("the store takes logins again").await;
    assert!(gateway.readiness().await.1["store"].is_null());
}
