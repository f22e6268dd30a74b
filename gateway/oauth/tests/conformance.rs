//! The client scenarios of the MCP conformance suite that are about signing in, with the client of
//! `examples/conformance.rs`. Everything that is not about signing in is expected to fail.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{env, fs, path::PathBuf, process::Command};

#[test]
fn signing_in_of_2025_11_25() {
    run(&["--suite", "auth", "--spec-version", "2025-11-25"], 14, &[]);
}

#[test]
fn signing_in_of_2026_07_28() {
    run(&["--suite", "auth", "--spec-version", "2026-07-28"], 14, &[]);
}

#[test]
fn what_2026_07_28_added() {
    let failing =
        ["request-metadata", "sep-2322-client-request-state", "http-custom-headers", "http-invalid-tool-headers"];
    run(&["--suite", "draft"], 13, &failing);
}

#[test]
fn servers_of_2025_03_26() {
    run(&["--suite", "backcompat"], 2, &[]);
}

#[test]
fn extensions() {
    run(&["--suite", "extensions"], 6, &[]);
}

/// Runs a suite, of which `passing` scenarios pass and those `failing` fail.
fn run(suite: &[&str], passing: usize, failing: &[&str]) {
    let peers = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers");
    let (node, script) = (peers.join(".tools/bin/node"), peers.join("node_modules/.bin/conformance"));
    for needed in [&node, &script] {
        assert!(needed.exists(), "{} is missing: run tests/peers/setup.sh", needed.display());
    }
    let client = env::current_exe().unwrap().parent().unwrap().join("../examples/conformance");
    let folder = tempfile::tempdir().unwrap();
    let baseline = folder.path().join("baseline.yaml");
    let entries: String = failing.iter().map(|name| format!("  - {name}\n")).collect();
    fs::write(&baseline, format!("client:\n{entries}")).unwrap();
    let mut command = Command::new(node);
    command.arg(script).arg("client").arg("--command").arg(client).args(suite).arg("-o").arg(folder.path().join("out"));
    if !failing.is_empty() {
        command.arg("--expected-failures").arg(&baseline);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let marked = |mark: &str| said.lines().filter(|line| line.starts_with(mark)).count();
    assert_eq!((marked("✓"), marked("✗")), (passing, failing.len()), "{said}");
}
