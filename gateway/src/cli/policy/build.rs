//! `weir policy build`: runs the tools of the language that a policy is written in.

use std::{
    ffi::OsStr,
    fs,
    io::ErrorKind,
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, bail, ensure};

use super::terminal;

/// What the tools of each language are to make.
const COMPONENT: &str = "policy.wasm";

pub(super) fn run(folder: &Path) -> anyhow::Result<ExitCode> {
    let has = |file: &str| folder.join(file).is_file();
    if has("Cargo.toml") {
        rust(folder)?;
    } else if has("package.json") {
        tool(folder, "npm", &["install", "--no-audit", "--no-fund"], "Node.js brings it along")?;
        tool(folder, "npm", &["run", "build"], "Node.js brings it along")?;
    } else if has("requirements.txt") {
        python(folder)?;
    } else {
        bail!(
            "{} has no Cargo.toml, package.json or requirements.txt; `weir policy new` makes a policy",
            folder.display()
        );
    }
    let component = folder.join(COMPONENT);
    let bytes = fs::metadata(&component).with_context(|| format!("{} was not made", component.display()))?.len();
    terminal::say(format_args!("{}  {} KiB", component.display(), bytes.div_ceil(1024)))?;
    Ok(ExitCode::SUCCESS)
}

/// Cargo says itself which files it has made.
fn rust(folder: &Path) -> anyhow::Result<()> {
    const TARGET: [&str; 2] = ["--target", "wasm32-wasip2"];
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--lib", "--message-format", "json-render-diagnostics"]).args(TARGET);
    let output = cargo.current_dir(folder).stderr(Stdio::inherit()).output();
    let output = output.map_err(|why| missing(&why, "cargo", "https://rustup.rs has it"))?;
    ensure!(output.status.success(), "cargo failed; if the target is missing, run: rustup target add wasm32-wasip2");
    let made = String::from_utf8_lossy(&output.stdout).lines().filter_map(component).next_back();
    let made = made.context("cargo made no component; the crate needs crate-type = [\"cdylib\"]")?;
    fs::copy(&made, folder.join(COMPONENT)).with_context(|| format!("{made} cannot be copied"))?;
    Ok(())
}

/// The component that a message of cargo names.
fn component(message: &str) -> Option<String> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let files = message.get("filenames")?.as_array()?;
    files.iter().filter_map(|file| file.as_str()).find(|file| file.ends_with(".wasm")).map(str::to_owned)
}

/// The tools lie in an environment of the folder.
fn python(folder: &Path) -> anyhow::Result<()> {
    let hint = "install Python 3.10 or later, with `venv`";
    if !folder.join(".venv/bin/componentize-py").is_file() {
        tool(folder, "python3", &["-m", "venv", ".venv"], hint)?;
        tool(folder, ".venv/bin/python", &["-m", "pip", "install", "--quiet", "-r", "requirements.txt"], hint)?;
    }
    let arguments = ["-d", "wit", "-w", "policy", "componentize", "policy", "-o", COMPONENT];
    tool(folder, ".venv/bin/componentize-py", &arguments, hint)
}

fn tool(folder: &Path, program: &str, arguments: &[&str], hint: &str) -> anyhow::Result<()> {
    // A path is one of the folder's, whatever the folder of this process is. Links stay: the Python of an environment is one.
    let path = if program.contains('/') { std::path::absolute(folder.join(program)) } else { Ok(program.into()) };
    let path = path.map_err(|why| missing(&why, program, hint))?;
    let status = Command::new(path).args(arguments).current_dir(folder).stdout(Stdio::from(std::io::stderr())).status();
    let status = status.map_err(|why| missing(&why, program, hint))?;
    let name = Path::new(program).file_name().and_then(OsStr::to_str).unwrap_or(program);
    ensure!(status.success(), "{name} failed ({status})");
    Ok(())
}

fn missing(why: &std::io::Error, program: &str, hint: &str) -> anyhow::Error {
    match why.kind() {
        ErrorKind::NotFound => anyhow::anyhow!("{program} is not installed: {hint}"),
        _ => anyhow::anyhow!("{program} cannot be run: {why}"),
    }
}
