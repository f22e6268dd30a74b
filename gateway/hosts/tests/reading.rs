//! The files of every host, as the host itself writes them, and what Weir reads there.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test may panic")]

use std::{fmt::Write, fs, path::Path};

use proptest::prelude::*;
use weir_hosts::{Host, HostServers, MAX_SERVERS, OAuth, Piece, Server, Template, detect, read};

fn host_of(directory: &Path) -> Host {
    let name = directory.file_name().and_then(|name| name.to_str()).expect("a name");
    Host::parse(name).expect("a host")
}

fn files() -> Vec<(Host, std::path::PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let directories = fs::read_dir(root).expect("fixtures").map(|entry| entry.expect("an entry").path());
    let mut files = Vec::new();
    for directory in directories {
        let entries = fs::read_dir(&directory).expect("files").map(|entry| entry.expect("an entry").path());
        let configuration = entries.filter(|path| path.extension().is_none_or(|extension| extension != "golden"));
        files.extend(configuration.map(|path| (host_of(&directory), path)));
    }
    files.sort_by_key(|(_, path)| path.clone());
    files
}

fn template(value: &Template) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Literal(text) => text.clone(),
        Piece::Env { name, default: None } => format!("<env {name}>"),
        Piece::Env { name, default: Some(default) } => format!("<env {name} or {default:?}>"),
        Piece::Input { id, description, password } => format!("<input {id} {description:?} password={password}>"),
        Piece::WorkspaceFolder => "<workspace>".into(),
        Piece::UserHome => "<home>".into(),
        Piece::Command(command) => format!("<command {command}>"),
    };
    value.0.iter().map(piece).collect()
}

fn oauth(oauth: &OAuth) -> String {
    let OAuth { client_id, client_secret, scopes, resource, callback_port, metadata_url } = oauth;
    let (id, secret) = (client_id.as_ref().map(template), client_secret.as_ref().map(template));
    format!("{id:?} {secret:?} {scopes:?} {resource:?} {callback_port:?} {metadata_url:?}")
}

fn lines(server: &Server) -> Vec<String> {
    let mut lines = Vec::new();
    let mut add = |key: &str, value: Option<String>| lines.extend(value.map(|value| format!("{key}: {value}")));
    add("project", server.project.clone());
    add("transport", server.transport.map(|transport| format!("{transport:?}")));
    add("url", server.url.as_ref().map(template));
    for (name, value) in &server.headers {
        add(&format!("header {name}"), Some(template(value)));
    }
    add("command", server.command.as_ref().map(template));
    server.args.iter().for_each(|arg| add("arg", Some(template(arg))));
    for (name, value) in &server.env {
        add(&format!("env {name}"), Some(template(value)));
    }
    add("env file", server.env_file.as_ref().map(template));
    add("cwd", server.cwd.as_ref().map(template));
    add("enabled", (!server.enabled).then(|| "false".into()));
    add("timeout", server.timeout_seconds.map(|seconds| seconds.to_string()));
    add("oauth", server.oauth.as_ref().map(oauth));
    add("bearer", server.bearer_env.clone());
    add("allowed", server.tools.allowed.as_ref().map(|tools| tools.join(" ")));
    add("denied", Some(server.tools.denied.join(" ")).filter(|tools| !tools.is_empty()));
    add("bridge", server.bridge.clone());
    server.not_carried.iter().for_each(|sentence| add("not carried", Some(sentence.clone())));
    lines
}

fn show(found: &HostServers) -> String {
    let mut text = String::new();
    for server in &found.servers {
        writeln!(text, "{} (line {})", server.name, server.line).expect("a string");
        for line in lines(server) {
            writeln!(text, "  {line}").expect("a string");
        }
    }
    for sentence in &found.not_carried {
        writeln!(text, "not carried: {sentence}").expect("a string");
    }
    text
}

#[test]
fn every_host_is_read_as_its_golden_file_says() {
    let files = files();
    for (host, path) in &files {
        let text = fs::read_to_string(path).expect("a file");
        let found = read(*host, &text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let golden = path.with_extension("golden");
        if option_env!("WEIR_BLESS").is_some() {
            fs::write(&golden, show(&found)).expect("the golden file");
        }
        let expected = fs::read_to_string(&golden).expect("a golden file");
        assert_eq!(show(&found), expected, "{}", path.display());
    }
    let hosts: std::collections::HashSet<_> = files.iter().map(|(host, _)| host).collect();
    assert_eq!(hosts.len(), Host::ALL.len(), "every host has a file");
}

#[test]
fn a_host_is_recognized_by_name_or_by_shape() {
    for (host, path) in files() {
        let text = fs::read_to_string(&path).expect("a file");
        let name = path.file_name().expect("a name").to_str().expect("text");
        // The plain names say nothing; there the shape decides.
        let shared = matches!(host, Host::Cursor);
        assert!(shared || detect(Path::new(name), &text) == Some(host) || name == "claude.json", "{}", path.display());
    }
    assert_eq!(detect(Path::new("/p/.cursor/mcp.json"), "{}"), Some(Host::Cursor));
    assert_eq!(detect(Path::new("/h/.claude.json"), ""), Some(Host::ClaudeCode));
    assert_eq!(detect(Path::new("notes.txt"), "hello"), None);
}

#[test]
fn names_are_understood_in_any_case() {
    for host in Host::ALL {
        assert_eq!(Host::parse(&host.name().to_uppercase()), Some(host));
    }
    assert_eq!(Host::parse("emacs"), None);
}

#[test]
fn an_empty_file_has_no_servers() {
    for host in Host::ALL {
        for text in ["", "\n", "\u{feff}"] {
            assert_eq!(read(host, text), Ok(HostServers::default()), "{}", host.name());
        }
    }
}

#[test]
fn errors_name_the_place_and_the_remedy() {
    let message = |host, text| read(host, text).expect_err("an error").to_string();
    assert_eq!(
        message(Host::Cursor, "{\n  \"mcpServers\": {\n    \"a\": {} \"b\": {}\n  }\n}"),
        "line 3, column 12: Expected comma. Correct the JSON there; comments and trailing commas are fine"
    );
    assert_eq!(
        message(Host::Zed, "{\"ä\": 1, \"context_servers\": []}"),
        "line 1, column 29: `context_servers` is not a map of servers. Write one key for each server below it"
    );
    assert!(message(Host::Codex, "[mcp_servers.a]\nurl = \n").starts_with("line 2, column 7: "));
    assert!(message(Host::Goose, "extensions:\n  a: [\n").starts_with("line "));
    assert!(message(Host::Goose, "a: 1\n---\nb: 2\n").starts_with("line 2, column 1: A second YAML document"));
}

#[test]
fn limits_hold() {
    let big = format!("\"{}\"", "x".repeat(weir_hosts::MAX_BYTES));
    let brackets = |count: usize| format!("{{\"a\":{}{}}}", "[".repeat(count), "]".repeat(count));
    let many: String = (0..=MAX_SERVERS).map(|i| format!("\"s{i}\":{{\"url\":\"http://a\"}},")).collect();
    for text in [big, brackets(64), brackets(100_000), format!("{{\"mcpServers\":{{{many}}}}}")] {
        assert!(read(Host::Cursor, &text).is_err());
    }
    assert!(read(Host::Cursor, &brackets(63)).is_ok());
    for text in [format!("a = {}", "[".repeat(5_000)), format!("{} = 1", vec!["a"; 5_000].join("."))] {
        assert!(read(Host::Codex, &text).is_err());
    }
    let bomb: String = (1..30).map(|i| format!("a{i}: &a{i} [*a{0}, *a{0}]\n", i - 1)).collect();
    for text in [format!("a: {}", "[".repeat(5_000)), format!("a0: &a0 [x]\n{bomb}")] {
        assert!(read(Host::Goose, &text).is_err());
    }
}

#[test]
fn servers_of_other_projects_are_left_out() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/claude-code/claude.json");
    let found = read(Host::ClaudeCode, &fs::read_to_string(root).expect("a file")).expect("servers");
    let names = |directory: &str| {
        let servers = found.clone().in_project(directory).servers.into_iter();
        servers.map(|server| (server.name, server.project.is_some())).collect::<Vec<_>>()
    };
    let expected = [("sentry", true), ("files", true), ("search", false)];
    assert_eq!(names("/home/ada/shop"), expected.map(|(name, own)| (name.to_owned(), own)));
    assert_eq!(names("/elsewhere").len(), 2);
    assert_eq!((found.elsewhere("/home/ada/shop"), found.elsewhere("/elsewhere")), (0, 2));
}

#[test]
fn servers_of_all_projects_have_names_and_folders_of_their_own() {
    let text = r#"{ "mcpServers": { "db": { "command": "db" }, "docs": { "type": "http", "url": "https://docs.example.com" } },
        "projects": {
            "/home/ada/shop": { "mcpServers": { "db": { "command": "db", "args": ["shop"] } } },
            "/srv/shop/": { "mcpServers": { "db": { "command": "db", "args": ["other"] } } },
            "/home/ada/site": { "mcpServers": { "docs": { "type": "http", "url": "https://docs.example.com" } } }
        } }"#;
    let all = read(Host::ClaudeCode, text).expect("servers").in_all_projects("/home/ada/docs");
    let shown =
        |server: &Server| (server.name.clone(), server.cwd.as_ref().and_then(Template::as_literal).map(str::to_owned));
    let expected =
        [("db", None), ("docs", None), ("db-shop", Some("/home/ada/shop")), ("db-shop-2", Some("/srv/shop/"))];
    let expected = expected.map(|(name, cwd)| (name.to_owned(), cwd.map(str::to_owned)));
    assert_eq!(all.servers.iter().map(shown).collect::<Vec<_>>(), expected);
}

#[test]
fn secrets_are_told_from_other_values() {
    let literal = |text: &str| Template::literal(text);
    for (key, value) in [
        ("Authorization", "Bearer abc"),
        ("X-Api-Key", "k"),
        ("apiKey", "k"),
        ("GITHUB_TOKEN", "x"),
        ("CLIENT_SECRET", "x"),
        ("DB_PASSWORD", "x"),
        ("OTHER", "ghp_0123456789"),
        ("OTHER", "sk-0123456789"),
        ("OTHER", "xoxb-0123456789"),
        ("OTHER", "AKIAIOSFODNN7EXAMPLE"),
        ("DATABASE", "postgres://ada:hush@db/shop"),
    ] {
        assert!(weir_hosts::looks_secret(key, &literal(value)), "{key}: {value}");
    }
    for (key, value) in [
        ("LOG_LEVEL", "debug"),
        ("KEYBOARD", "de"),
        ("MAX_TOKENS", "100"),
        ("SECRET_FILE", "/run/secret"),
        ("PUBLIC_KEY", "x"),
        ("USE_AUTH", "false"),
        ("AUTHORIZATION", ""),
        ("URL", "https://example.com/a@b:c"),
    ] {
        assert!(!weir_hosts::looks_secret(key, &literal(value)), "{key}: {value}");
    }
    assert!(!weir_hosts::looks_secret("TOKEN", &Template::env("TOKEN")));
}

/// Texts near what hosts write, and any others.
fn hostile() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "'",
        "\n",
        "  ",
        "- ",
        "#",
        "//",
        "/*",
        "*/",
        "=",
        "&a ",
        "*a",
        "|\n",
        ">-\n",
        "---\n",
        "mcpServers",
        "servers",
        "mcp",
        "extensions",
        "[mcp_servers.a]\n",
        "context_servers",
        "\"url\"",
        "url",
        "command",
        "args",
        "\"npx\"",
        "\"mcp-remote\"",
        "\"--header\"",
        "${",
        "${A:-",
        "$A",
        "{env:",
        "\\u",
        "0x",
        "1e9",
        "null",
        "true",
        "\u{feff}",
        "ä",
        "\r\n",
        "\t",
        "\0",
        "type",
        "!!str ",
        "? ",
        "<<",
    ]);
    prop_oneof![any::<String>(), prop::collection::vec(words, 0..40).prop_map(|words| words.concat())]
}

fn entry() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        Just("null".to_owned()),
        Just("1e400".to_owned()),
        Just("{\"a\": {}}".to_owned()),
        "\\[(\"[-a-z$\\{\\}:=/@]{0,8}\",?){0,4}\\]",
        "\"[-a-z$\\{\\}:=/@]{0,12}\"",
    ];
    let key = prop::sample::select(vec![
        "type",
        "transport",
        "url",
        "httpUrl",
        "serverUrl",
        "uri",
        "headers",
        "command",
        "cmd",
        "args",
        "env",
        "envs",
        "env_keys",
        "oauth",
        "auth",
        "timeout",
        "tools",
        "includeTools",
        "enabled",
        "disabled",
        "cwd",
        "bearer_token_env_var",
        "source",
    ]);
    let pairs = prop::collection::vec((key, value), 0..8);
    pairs.prop_map(|pairs| pairs.iter().map(|(key, value)| format!("\"{key}\": {value},")).collect())
}

proptest! {
    #[test]
    fn no_text_makes_reading_panic(text in hostile()) {
        for host in Host::ALL {
            let _ = read(host, &text);
        }
        let _ = detect(Path::new("x"), &text);
    }

    #[test]
    fn no_entry_makes_reading_panic(entry in entry(), key in prop::sample::select(vec!["mcpServers", "servers", "context_servers", "mcp"])) {
        for host in Host::ALL {
            let _ = read(host, &format!("{{\"{key}\": {{\"a\": {{{entry}}}}}}}"));
        }
    }
}
