//! `weir policy build`: runs the tools of the language that a policy is written in.

use std::{
    ffi::OsStr,
    fs,
    io::{self, ErrorKind},
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, bail, ensure};
use flate2::read::GzDecoder;

use super::terminal;

/// What the tools of each language are to make.
const COMPONENT: &str = "policy.wasm";

/// Where a build in Go puts what is in between. Go passes over such a folder.
const MADE: &str = ".weir";

/// Go knows WASI 0.1 alone. The adapter is that of wasmtime for modules without a `main`, compressed by the build script.
const ADAPTER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/adapter.wasm.gz"));

pub(super) fn run(folder: &Path) -> anyhow::Result<ExitCode> {
    let has = |file: &str| folder.join(file).is_file();
    if has("Cargo.toml") {
        rust(folder)?;
    } else if has("package.json") {
        tool(folder, "npm", &["install", "--no-audit", "--no-fund"], "Node.js brings it along")?;
        tool(folder, "npm", &["run", "build"], "Node.js brings it along")?;
    } else if has("requirements.txt") {
        python(folder)?;
    } else if has("go.mod") {
        go(folder)?;
    } else {
        bail!(
            "{} has no Cargo.toml, package.json, requirements.txt or go.mod; `weir policy new` makes a policy",
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

/// Go builds a core module for WASI 0.1. The adapter turns its imports into those of WASI 0.2.
fn go(folder: &Path) -> anyhow::Result<()> {
    const BINDINGS: [&str; 6] = ["go", "wit", "-w", "policy", "--out-dir", MADE];
    // The bindings allocate before Go's runtime has started, through a function that Go reserves for itself.
    const COMPILE: [&str; 8] = [
        "build",
        "-mod=mod",
        "-trimpath",
        "-buildvcs=false",
        "-buildmode=c-shared",
        "-ldflags=-s -w -checklinkname=0",
        "-o",
        ".weir/core.wasm",
    ];
    const EMBED: [&str; 8] =
        ["component", "embed", "wit", "-w", "policy", ".weir/core.wasm", "-o", ".weir/embedded.wasm"];
    const NEW: [&str; 7] = [
        "component",
        "new",
        ".weir/embedded.wasm",
        "--adapt",
        "wasi_snapshot_preview1=.weir/adapter.wasm",
        "-o",
        COMPONENT,
    ];
    const WASM_TOOLS: &str = "cargo install --locked wasm-tools, or a release of wasm-tools";
    let made = folder.join(MADE);
    fs::create_dir_all(&made)?;
    io::copy(&mut GzDecoder::new(ADAPTER), &mut fs::File::create(made.join("adapter.wasm"))?)?;
    tool(folder, "wit-bindgen", &BINDINGS, "cargo install --locked wit-bindgen-cli@0.63.0, or its release")?;
    take_bindings(&made, folder).with_context(|| format!("the bindings cannot be put into {}", folder.display()))?;
    let mut compiler = Command::new("go");
    // The module is built for itself, wherever its folder is.
    compiler.args(COMPILE).envs([("GOOS", "wasip1"), ("GOARCH", "wasm"), ("GOWORK", "off")]);
    succeed(folder, compiler, "go", "https://go.dev/dl has it")?;
    tool(folder, "wasm-tools", &EMBED, WASM_TOOLS)?;
    tool(folder, "wasm-tools", &NEW, WASM_TOOLS)
}

/// Replaces the generated packages by new ones. The generated `go.mod` is left out: the policy has its own.
fn take_bindings(made: &Path, folder: &Path) -> io::Result<()> {
    let is_package = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with("weir_policy_"));
    for entry in fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()? {
        if is_package(&entry.file_name()) && entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    for entry in fs::read_dir(made)?.collect::<io::Result<Vec<_>>>()? {
        if is_package(&entry.file_name()) || entry.file_name() == "wit_exports.go" {
            fs::rename(entry.path(), folder.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn tool(folder: &Path, program: &str, arguments: &[&str], hint: &str) -> anyhow::Result<()> {
    // A path is one of the folder's, whatever the folder of this process is. Links stay: the Python of an environment is one.
    let path = if program.contains('/') { std::path::absolute(folder.join(program)) } else { Ok(program.into()) };
    let path = path.map_err(|why| missing(&why, program, hint))?;
    let mut command = Command::new(path);
    command.args(arguments);
    succeed(folder, command, program, hint)
}

/// Runs a tool, whose output is for the person at the terminal.
fn succeed(folder: &Path, mut command: Command, program: &str, hint: &str) -> anyhow::Result<()> {
    let status = command.current_dir(folder).stdout(Stdio::from(io::stderr())).status();
    let status = status.map_err(|why| missing(&why, program, hint))?;
    let name = Path::new(program).file_name().and_then(OsStr::to_str).unwrap_or(program);
    ensure!(status.success(), "{name} failed ({status})");
    Ok(())
}

fn missing(why: &io::Error, program: &str, hint: &str) -> anyhow::Error {
    match why.kind() {
        ErrorKind::NotFound => anyhow::anyhow!("{program} is not installed: {hint}"),
        _ => anyhow::anyhow!("{program} cannot be run: {why}"),
    }
}
