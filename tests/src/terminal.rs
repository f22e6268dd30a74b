//! `weir auth` beside a gateway, and what a person does with it: the logins of an upstream `u`.

use std::process::Command;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::authority::browse;
use crate::browser::{Browser, Page};
use crate::gateway::NEEDS_SIGN_IN;
use crate::process::{Process, descendants};
use crate::wait::{PATIENCE, until, until_some};
use crate::{Client, Gateway, Stub, paths};

/// The key of the store.
pub const KEY: &str = "c2VjcmV0IGtleSBvZiB0aGUgc3RvcmUsIDMyIGJ5dGU=";
/// What one of the authorization server's clients shows; see `peers/oauth/server.js`.
pub const SECRET: &str = "basic secret: +&%";
/// The environment of the gateway and of the terminal.
pub const ENVIRONMENT: [(&str, &str); 2] = [("WEIR_TESTS_KEY", KEY), ("WEIR_TESTS_SECRET", SECRET)];
/// `RUST_LOG` for all that can be logged, but for the compiler of components, which sees no secret and would fill the disk.
pub const TRACE: &str =
    "trace,cranelift_codegen=warn,cranelift_frontend=warn,regalloc2=warn,wasmtime_internal_cranelift=warn";
/// The lines of an upstream at which Weir signs in by itself.
pub const ALONE: &str = r#"auth = "client_credentials"
oauth = { client_id = "weir-basic", client_secret = { env = "WEIR_TESTS_SECRET" } }"#;

/// A configuration with one upstream, `u`, and a store of its own beside it.
pub fn config(upstream: &Stub, auth: &str) -> String {
    format!("[store]\npath = \"logins.redb\"\nkey = {{ env = \"WEIR_TESTS_KEY\" }}\n{}{auth}\n", upstream.config("u"))
}

/// The same, with its store in the folder of another gateway.
///
/// # Panics
/// When the folder has no name in UTF-8.
pub fn config_beside(other: &Gateway, upstream: &Stub, auth: &str) -> String {
    let store = other.directory().join("logins.redb");
    config(upstream, auth).replace("logins.redb", store.to_str().expect("a path is text"))
}

/// A gateway with that upstream.
pub async fn start(upstream: &Stub, auth: &str) -> Gateway {
    Gateway::start_with(&config(upstream, auth), &ENVIRONMENT).await
}

/// `weir auth`, about the configuration of `gateway`.
pub fn auth(gateway: &Gateway, arguments: &[&str]) -> Process {
    Process::start("weir auth", &mut command(gateway, arguments))
}

/// The command itself.
pub fn command(gateway: &Gateway, arguments: &[&str]) -> Command {
    let mut command = Command::new(paths::weir());
    command.arg("auth").args(arguments).arg("--config").arg(gateway.directory().join("weir.toml"));
    dressed(&mut command, gateway);
    command
}

/// The same at a terminal, with all that it shows there. Its process is [`at_terminal`]'s: whichever shell `script` takes,
/// it makes way for `weir`, so that a signal has only one process to go to.
///
/// # Panics
/// When a path is no text.
pub fn auth_at_terminal(gateway: &Gateway, arguments: &[&str]) -> Process {
    let config = gateway.directory().join("weir.toml");
    let line = format!("exec {} auth {} --config {}", paths::weir().display(), arguments.join(" "), config.display());
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"]).env("SHELL", "/bin/sh");
    dressed(&mut command, gateway);
    Process::start("weir auth at a terminal", &mut command)
}

/// The process of `weir auth` below a terminal.
pub async fn at_terminal(process: &Process) -> u32 {
    let find = || descendants(process.id()).into_iter().find(|(_, line)| line.contains("weir auth")).map(|(id, _)| id);
    until_some("weir auth runs", find).await
}

fn dressed(command: &mut Command, gateway: &Gateway) {
    command.env("XDG_STATE_HOME", gateway.directory()).env_remove("BROWSER").env_remove("DISPLAY").envs(ENVIRONMENT);
}

/// Runs it to its end: the exit code, and what it said.
pub async fn ended(mut process: Process) -> (Option<i32>, String) {
    let status = process.end().await;
    (status.code(), process.output())
}

/// The page that a sign-in wants to have opened.
pub async fn page(process: &mut Process) -> String {
    process.says("where to sign in", |line| Some(line.trim().to_owned()).filter(|line| line.starts_with("http"))).await
}

/// Signs in at `u` with a browser, to the end; gives what the terminal said.
///
/// # Panics
/// When that does not work.
pub async fn sign_in(gateway: &Gateway, more: &[&str]) -> String {
    let mut process = auth(gateway, &[&["login", "u", "--no-browser"], more].concat());
    let shown = browse(&page(&mut process).await).await;
    assert!(shown.contains("Weir has what it needs"), "{shown}");
    let (code, said) = ended(process).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("Signed in at u"), "{said}");
    said
}

/// The page and the code that a terminal shows.
///
/// # Panics
/// When it shows none.
pub async fn prompt(process: &mut Process) -> (String, String) {
    let page = process.says("the page", |line| Some(line.trim().to_owned()).filter(|line| line.ends_with("/device")));
    let page = page.await;
    let is_code = |line: &str| line.len() == 9 && line.as_bytes()[4] == b'-' && !line.contains(' ');
    let code = process.says("the code", |line| Some(line.trim().to_owned()).filter(|line| is_code(line))).await;
    (page, code)
}

/// Types the code in a browser, as far as the question whether that is wanted.
pub async fn type_code(browser: &mut Browser, (page, code): &(String, String)) -> Page {
    let page = browser.open(page).await;
    let (to, mut fields) = page.form("/device");
    fields.push(("user_code".to_owned(), code.clone()));
    browser.submit(&to, &fields).await
}

/// Says yes in a browser to what a terminal shows.
///
/// # Panics
/// When that is not taken.
pub async fn approve(process: &mut Process) {
    let prompt = prompt(process).await;
    let mut browser = Browser::new();
    let page = type_code(&mut browser, &prompt).await;
    let done = browser.press(&page, "/device").await;
    assert!(done.status == 200 && done.text.contains("Sign-in Success"), "{}", done.text);
}

/// A call at `u`, with its whole answer.
pub async fn echo(gateway: &Gateway) -> Value {
    Client::modern(gateway, "/mcp/u")
        .ask("tools/call", json!({ "name": "echo", "arguments": { "message": "m" } }))
        .await
}

/// Whether a call at `u` has its answer.
pub async fn works(gateway: &Gateway) -> bool {
    echo(gateway).await["result"]["content"][0]["text"] == "m"
}

/// Calls until something is so.
///
/// # Panics
/// When that takes too long.
pub async fn calling(gateway: &Gateway, is_so: impl Fn() -> bool) {
    let patience = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < patience, "in vain");
        echo(gateway).await;
    }
}

/// Calls until a call has its answer again.
///
/// # Panics
/// When that takes longer than `patience`.
pub async fn calling_until_it_works(gateway: &Gateway, patience: std::time::Duration) {
    let end = Instant::now() + patience;
    while !works(gateway).await {
        assert!(Instant::now() < end, "in vain: {}", gateway.log());
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// How many lines of the log have `part` in them.
pub fn lines(gateway: &Gateway, part: &str) -> usize {
    gateway.log().lines().filter(|line| line.contains(part)).count()
}

/// How many errors the log has beside those of calls, and how often it says that somebody has to sign in.
pub fn told(gateway: &Gateway) -> (usize, usize) {
    let log = gateway.log();
    let errors = log.lines().filter(|line| line.contains(ERROR) && !line.contains(FAILED)).count();
    (errors, lines(gateway, NEEDS_SIGN_IN))
}

/// Waits until the log has so many errors beside those of calls, and says so often that somebody has to sign in.
///
/// # Panics
/// When it has fewer for too long, or more.
pub async fn tells(gateway: &Gateway, expected: (usize, usize)) {
    let enough = |told: (usize, usize)| told.0 >= expected.0 && told.1 >= expected.1;
    until(&format!("it has told {expected:?}"), || enough(told(gateway))).await;
    assert_eq!(told(gateway), expected, "{}", gateway.log());
}

/// Waits until the log has the error of each of `count` calls that failed.
///
/// # Panics
/// When it has fewer for too long, or more.
pub async fn failed(gateway: &Gateway, count: usize) {
    until(&format!("{count} calls have failed"), || lines(gateway, FAILED) >= count).await;
    assert_eq!(lines(gateway, FAILED), count, "{}", gateway.log());
}

/// What a line has that is an error.
const ERROR: &str = "\"level\":\"ERROR\"";
/// What the error of a call has.
const FAILED: &str = "\"message\":\"call failed\"";
