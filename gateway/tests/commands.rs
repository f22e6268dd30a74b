//! What each command says: its `--help`, and what it prints and ends with for the lines of [`RUNS`]. One file for each
//! command in `tests/commands`. `UPDATE=1 cargo test --test commands` writes them.
//!
//! Commands are found by the help of the program, so that a new one needs no line here.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

/// Runs beside the `--help` of each command, in a folder that has [`GOOD`] as `weir.toml` and [`BAD`] as `bad.toml`.
const RUNS: &[&str] = &[
    "--version",
    "nonsense",
    "serve --config nowhere.toml",
    "serve --config bad.toml",
    "serve --listen 0.0.0.0:8080",
    "serve --listen here",
    "status",
    "reload",
    "config diff",
    "list --sources",
    "list --sources --json",
    "check",
    "check --config bad.toml",
    "check --config nowhere.toml",
    "connect",
    "connect nowhere",
    "connect ftp://mcp.example.com/mcp",
    "connect --header Authorization https://mcp.example.com/mcp",
    "connect --header X-Team:a --header X-Team:b https://mcp.example.com/mcp",
    "connect --http --sse https://mcp.example.com/mcp",
    "connect --timeout 0 https://mcp.example.com/mcp",
    "demo --listen 0.0.0.0:8080",
    "auth list",
    "auth list --config bad.toml",
    "auth status",
    "auth status files",
    "auth login nowhere",
    "auth login files",
    "auth login search",
    "auth login wiki",
    "auth logout github",
    "auth logout github --principal ada",
    "auth refresh github",
    "auth metadata search",
    "auth grants list",
    "auth grants list --json",
    "auth grants revoke --subject ada",
    "store check",
    "store check --json",
    "store migrate --to redis://127.0.0.1:1",
    "store migrate --to redis://weir:hunter2@redis.internal",
    "key list",
    "key revoke nothing",
    "audit verify",
    "audit verify --json",
    "audit tail",
    "policy inspect nowhere.wasm",
    "policy inspect weir.toml",
];

/// An upstream for each way to be opened; nothing of it is called.
const GOOD: &str = r#"
[upstreams.files]
command = "sh"
args    = ["-c", "exit"]

[upstreams.github]
url  = "https://mcp.example.com/mcp"
auth = "oauth"

[upstreams.search]
url    = "https://search.example.com/mcp"
bearer = { file = "token" }

[upstreams.wiki]
url     = "https://wiki.example.com/mcp"
auth    = "oauth"
enabled = false
"#;

const BAD: &str = "listen = \"here\"\n[upstreams.github]\nurll = \"https://mcp.example.com/mcp\"\n";

#[test]
fn each_command_says_what_its_file_has() {
    let mut texts = BTreeMap::new();
    let mut commands = vec![Vec::new()];
    while let Some(path) = commands.pop() {
        let (help, text) = run(&[&path[..], &["--help".to_owned()]].concat());
        commands.extend(subcommands(&help).map(|name| [&path[..], &[name.to_owned()]].concat()));
        texts.insert(path, text);
    }
    for line in RUNS {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let of = |path: &&Vec<String>| words.starts_with(path);
        let path = texts.keys().filter(of).max_by_key(|path| path.len()).unwrap().clone();
        *texts.get_mut(&path).unwrap() += &run(&words).1;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/commands");
    let file =
        |path: &Vec<String>| folder.join(format!("{}.txt", [&["weir".to_owned()], &path[..]].concat().join("-")));
    let expected: BTreeMap<PathBuf, String> = texts.iter().map(|(path, text)| (file(path), text.clone())).collect();
    if env::var_os("UPDATE").is_some() {
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).unwrap();
        expected.iter().for_each(|(path, text)| fs::write(path, text).unwrap());
    }
    let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
    let written: BTreeMap<PathBuf, String> =
        files.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect();
    for (path, text) in &expected {
        let differs = "differs; UPDATE=1 rewrites it";
        assert!(written.get(path) == Some(text), "{} {differs}\n{text}", path.display());
    }
    assert_eq!(written.len(), expected.len(), "a file is of no command any more; UPDATE=1 removes it");
}

#[test]
fn the_schema_is_the_file_of_the_tree() {
    let printed = weir(&TempDir::new().unwrap(), &["schema".to_owned()]).stdout;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/weir.schema.json");
    assert_eq!(String::from_utf8(printed).unwrap().trim(), fs::read_to_string(path).unwrap().trim());
}

/// What a run prints on standard output, and the run as it stands in the file.
fn run(arguments: &[String]) -> (String, String) {
    let folder = TempDir::new().unwrap();
    for (name, text) in [("weir.toml", GOOD), ("bad.toml", BAD), ("token", "secret")] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let output = weir(&folder, arguments);
    let text = |bytes: &[u8]| {
        let text = String::from_utf8(bytes.to_vec()).unwrap().replace(&*folder.path().to_string_lossy(), "$HOME");
        text.lines().map(|line| format!("{}\n", line.trim_end())).collect::<String>()
    };
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    let told = if complained.is_empty() { String::new() } else { format!("--- standard error\n{complained}") };
    let code = output.status.code().unwrap();
    let whole = format!("$ weir {}\n{said}{told}--- exit code {code}\n\n", arguments.join(" "));
    (said, whole)
}

fn weir(folder: &TempDir, arguments: &[String]) -> Output {
    let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
    weir.args(arguments).current_dir(folder.path()).env_clear().env("HOME", folder.path());
    weir.env("PATH", env::var_os("PATH").unwrap_or_default()).output().unwrap()
}

/// The commands that a help lists, but for `help` itself.
fn subcommands(help: &str) -> impl Iterator<Item = &str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names =
        lines.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' '))?.split(' ').next());
    names.filter(|name| *name != "help")
}
