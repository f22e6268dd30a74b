//! Weir's entry goes into the files of every host, and comes out again without a trace.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test may panic")]

use std::{fs, path::Path};

use proptest::prelude::*;
use weir_hosts::{Bearer, Command, EditError, Entry, Host, connect, disconnect, link, read, snippet};

const URL: &str = "http://127.0.0.1:8080/mcp";

fn entry() -> Entry {
    let args = vec!["connect".into(), URL.into()];
    let command = Some(Command { program: "weir".into(), args, env: Vec::new() });
    Entry { name: "weir".into(), url: URL.into(), bearer: None, command }
}

/// Connects, checks that the entry is there, disconnects, and checks that nothing else happened.
fn assert_restores(host: Host, text: Option<&str>, entry: &Entry) -> String {
    let original = text.unwrap_or_default();
    let connected = connect(host, text, entry).unwrap_or_else(|e| panic!("{} {original:?}: {e}", host.name()));
    let before = read(host, original).expect("the text");
    let after = read(host, &connected).expect("the connected text");
    let named = |server: &&weir_hosts::Server| server.name == entry.name && server.project.is_none();
    let server = after.servers.iter().find(named).expect("the entry");
    let reached =
        server.url.as_ref().and_then(|url| url.as_literal()) == Some(&entry.url) || host == Host::ClaudeDesktop;
    assert!(reached && server.enabled, "{connected}");
    assert_eq!(after.servers.len(), before.servers.len() + 1);
    assert_eq!(connect(host, Some(&connected), entry).as_ref(), Ok(&connected), "a second time");
    let restored = disconnect(host, &connected, &entry.name).expect("removal").expect("an entry");
    assert_eq!(restored, original, "{}:\n{connected}", host.name());
    connected
}

fn fixtures() -> Vec<(Host, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut texts = Vec::new();
    for host in Host::ALL {
        for file in fs::read_dir(root.join(host.name())).expect("a directory") {
            let path = file.expect("a file").path();
            if path.extension().is_none_or(|extension| extension != "golden") {
                texts.push((host, fs::read_to_string(path).expect("text")));
            }
        }
    }
    texts
}

#[test]
fn every_host_gets_its_file_back() {
    for (host, text) in fixtures() {
        let unix = text.trim_end_matches('\n').to_owned();
        for text in [&text, &unix, &text.replace('\n', "\r\n"), &unix.replace('\n', "\r\n"), &format!("\u{feff}{text}")]
        {
            assert_restores(host, Some(text), &entry());
        }
    }
}

#[test]
fn a_file_that_was_not_there_is_empty_again() {
    for host in Host::ALL {
        assert_restores(host, None, &entry());
        for text in ["", "\n", "\r\n", "\n\n"] {
            assert_restores(host, Some(text), &entry());
        }
        let comment = if ["codex", "goose", "mcp-toml"].contains(&host.name()) { "# mine" } else { "// mine" };
        for text in [comment.to_owned(), format!("{comment}\n"), format!("{comment}\r\n")] {
            assert_restores(host, Some(&text), &entry());
        }
    }
}

#[test]
fn json_of_any_layout_comes_back() {
    for text in [
        "{}",
        "{ }",
        "{\n}",
        "{}\n",
        "{ /* a */ }",
        "{ // a\n}",
        "{\n  // a\n}\n",
        "{\"a\":1}",
        "{\"a\":1}\n",
        "{ \"a\": 1 }",
        "{\n\t\"a\": 1\n}",
        "{\n    \"a\": 1, // b\n    // c\n}\n",
        "{\"a\":1,}",
        "{\n  \"a\": 1, /* b */ // c\n  /* d */\n}",
        "{\"mcpServers\":{}}",
        "{\"mcpServers\": { }}",
        "{\n  \"mcpServers\": {}\n}\n",
        "{\n  \"mcpServers\": {\n  }\n}\n",
        "{\n  \"mcpServers\": { // none\n  }\n}\n",
        "{\"mcpServers\":{\"a\":{\"url\":\"http://a\"}}}",
        "{\"mcpServers\":{\"a\":{\"url\":\"http://a\"} // b\n}}",
        "{\"mcpServers\":{\"a\":{\"url\":\"http://a\"},\n// b\n}}",
        "{\n\t\"mcpServers\": {\n\t\t\"a\": { \"url\": \"http://a\" }, // a\n\t\t// b\n\t},\n\t\"z\": [1,2]\n}",
        "// top\n{\n  \"a\": {}\n}\n// end",
        "{\"mcpServers\": {}, \"mcpServers\": {\"a\": {\"url\": \"http://a\"}}}",
    ] {
        for text in [text.to_owned(), text.replace('\n', "\r\n")] {
            for host in [Host::Cursor, Host::ClaudeCode, Host::ClaudeDesktop, Host::McpHub] {
                assert_restores(host, Some(&text), &entry());
            }
        }
    }
}

#[test]
fn settings_of_vscode_and_both_forms_of_opencode_are_extended() {
    let settings = "{\n    \"mcp\": {\n        \"inputs\": []\n    }\n}\n";
    let connected = assert_restores(Host::VsCode, Some(settings), &entry());
    assert!(connected.contains("\"mcp\": {\n        \"inputs\": [],\n        \"servers\": {\n            \"weir\": {"));
    let second = "{\"mcp\": {\"servers\": {}}}";
    let connected = assert_restores(Host::OpenCode, Some(second), &entry());
    assert!(connected.contains("\"servers\": {\"weir\": { \"type\""));
    let first = "{\n  \"mcp\": {\n    \"a\": { \"type\": \"remote\", \"url\": \"http://a\" }\n  }\n}\n";
    assert!(assert_restores(Host::OpenCode, Some(first), &entry()).contains("    },\n") || first.len() > 1);
}

#[test]
fn toml_and_yaml_of_any_layout_come_back() {
    for text in [
        "a = 1",
        "a = 1\n",
        "a = 1\n\n",
        "a = 1\n\n\n# end",
        "[mcp_servers]\n",
        "[mcp_servers.a]\nurl = \"http://a\" # b\n",
    ] {
        for text in [text.to_owned(), text.replace('\n', "\r\n")] {
            assert_restores(Host::Codex, Some(&text), &entry());
        }
    }
    for text in [
        "a: 1",
        "a: 1\n",
        "---\na: 1\n",
        "a: 1\nextensions:\n    # b\n    c: { type: sse, uri: http://c }\n\nd: |\n  extensions:\n",
        "extensions: {}\n",
        "extensions: {}",
        "extensions: {} # a\nb: 2\n",
        "extensions: # a\n  b:\n    type: sse\n    uri: http://b\n",
        "extensions:\n  b:\n    type: sse\n    uri: http://b",
        "a:\n- 1\n",
        "a: |\n  b",
        "extensions:\n# a\n  b:\n    type: builtin\n# c\n",
        "\"extensions\":\n  b: {type: sse, uri: http://b}\n",
    ] {
        for text in [text.to_owned(), text.replace('\n', "\r\n")] {
            assert_restores(Host::Goose, Some(&text), &entry());
        }
    }
}

#[test]
fn forms_that_cannot_be_edited_are_refused_with_the_text_to_paste() {
    for (host, text) in [
        (Host::Cursor, "[]"),
        (Host::Cursor, "{\"mcpServers\": null}"),
        (Host::Codex, "mcp_servers = { a = { url = \"http://a\" } }\n"),
        (Host::Goose, "{extensions: {}}\n"),
        (Host::Goose, "extensions: {a: {type: sse, uri: http://a}}\n"),
        (Host::Goose, "a: 1\n...\n"),
    ] {
        match connect(host, Some(text), &entry()) {
            Err(EditError::Form { snippet, .. }) => assert!(snippet.contains(URL), "{snippet}"),
            other => panic!("{text:?}: {other:?}"),
        }
    }
    let inline = "mcp_servers = { weir = { url = \"http://a\" } }\n";
    assert!(matches!(disconnect(Host::Codex, inline, "weir"), Err(EditError::Form { .. })));
    assert!(matches!(connect(Host::Cursor, Some("{"), &entry()), Err(EditError::Read(_))));
}

#[test]
fn an_entry_of_the_same_name_stays() {
    let other = "{\"mcpServers\": {\"weir\": {\"url\": \"http://other\"}}}";
    assert_eq!(connect(Host::Cursor, Some(other), &entry()), Err(EditError::Taken { name: "weir".into() }));
    let text = "{\n  \"mcpServers\": {\n    \"a\": {\"url\": \"http://a\"}\n  }\n}\n";
    let first = connect(Host::Cursor, Some(text), &entry()).expect("an entry");
    let with_token = Entry { bearer: Some(Bearer::Env("WEIR_TOKEN".into())), ..entry() };
    let second = connect(Host::Cursor, Some(&first), &with_token).expect("another");
    assert_eq!(second.matches(URL).count(), 1);
    assert!(second.contains("Bearer ${env:WEIR_TOKEN}"));
    assert_eq!(disconnect(Host::Cursor, &second, "weir").expect("removal").as_deref(), Some(text));
    assert_eq!(disconnect(Host::Cursor, text, "weir"), Ok(None));
}

#[test]
fn entries_go_wherever_they_stand() {
    for (text, left) in [
        ("{\"mcpServers\":{\"weir\":{},\"b\":{}}}", "{\"mcpServers\":{\"b\":{}}}"),
        ("{\"mcpServers\":{\"a\":{},\"weir\":{},\"b\":{}}}", "{\"mcpServers\":{\"a\":{},\"b\":{}}}"),
        ("{\"mcpServers\":{\"a\":{},\n// b\n\"weir\":{} }}", "{\"mcpServers\":{\"a\":{}\n// b\n }}"),
        ("{\"mcpServers\":{// a\n\"weir\":{}}}", "{\"mcpServers\":{// a\n}}"),
        ("{\n\"mcpServers\": {\n\"weir\": {},\n},\n\"b\": 1 }", "{\n\"b\": 1 }"),
    ] {
        assert_eq!(disconnect(Host::Cursor, text, "weir").expect("removal").as_deref(), Some(left));
    }
    let codex = "[mcp_servers.weir]\nurl = \"http://a\"\n\n[mcp_servers.weir.env]\nA = \"1\" # b\n\n[b]\nc = 1\n";
    assert_eq!(disconnect(Host::Codex, codex, "weir").expect("removal").as_deref(), Some("\n[b]\nc = 1\n"));
    let goose = "extensions:\n  a:\n    type: builtin\n  # weir\n  weir:\n    type: sse\n    args:\n    - b\n\n  c:\n    type: builtin\n";
    let left = "extensions:\n  a:\n    type: builtin\n  # weir\n\n  c:\n    type: builtin\n";
    assert_eq!(disconnect(Host::Goose, goose, "weir").expect("removal").as_deref(), Some(left));
}

#[test]
fn snippets_are_as_each_host_wants_them() {
    let mut all = String::new();
    for host in Host::ALL {
        for bearer in [None, Some(Bearer::Token("t0ken".into())), Some(Bearer::Env("WEIR_TOKEN".into()))] {
            let shown = match snippet(host, &Entry { bearer, ..entry() }) {
                Ok(snippet) => format!("# {} {}\n{}", host.name(), snippet.file, snippet.text),
                Err(e) => format!("# {}: {e}\n", host.name()),
            };
            all.push_str(&shown);
        }
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snippets.golden");
    if option_env!("WEIR_BLESS").is_some() {
        fs::write(&golden, &all).expect("the golden file");
    }
    assert_eq!(all, fs::read_to_string(golden).expect("the golden file"));
    let bare = Entry { command: None, ..entry() };
    assert!(matches!(snippet(Host::ClaudeDesktop, &bare), Err(EditError::NeedsCommand { .. })));
}

#[test]
fn links_carry_no_token() {
    let env = Entry { bearer: Some(Bearer::Env("T".into())), ..entry() };
    assert_eq!(
        link(Host::Cursor, &entry()).as_deref(),
        Some(
            "cursor://anysphere.cursor-deeplink/mcp/install?name=weir&config=eyAidXJsIjogImh0dHA6Ly8xMjcuMC4wLjE6ODA4MC9tY3AiIH0%3D"
        )
    );
    assert_eq!(
        link(Host::VsCode, &env).as_deref(),
        Some(
            "vscode:mcp/install?%7B%20%22name%22%3A%20%22weir%22%2C%20%22type%22%3A%20%22http%22%2C%20%22url%22%3A%20%22http%3A%2F%2F127.0.0.1\
             %3A8080%2Fmcp%22%2C%20%22headers%22%3A%20%7B%20%22Authorization%22%3A%20%22Bearer%20%24%7Benv%3AT%7D%22%20%7D%20%7D"
        )
    );
    assert_eq!(link(Host::Cursor, &Entry { bearer: Some(Bearer::Token("t".into())), ..entry() }), None);
    assert_eq!(link(Host::Zed, &entry()), None);
}

#[test]
fn odd_names_and_urls_are_quoted() {
    for name in ["", "a.b", "a b", "null", "é\"\\\n\u{85}", "1", "😀", "__proto__"] {
        for host in Host::ALL {
            let url = format!("http://a/?q=\"\\\u{7f}'{name}#: ");
            let command = entry().command.map(|command| Command { args: vec![url.clone()], ..command });
            let entry = Entry { name: name.into(), url, command, ..entry() };
            let connected = assert_restores(host, None, &entry);
            assert_restores(host, Some(&connected.replace("weir", "other")), &self::entry());
        }
    }
}

/// White space and comments.
fn trivia() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "", " ", "\n", "\n  ", "\t", "\r\n    ", " // a\n", "/* b, } */", "\n\n// c\n\t"])
}

fn json(depth: u32) -> BoxedStrategy<String> {
    let leaf =
        prop::sample::select(vec!["1", "\"a//b\"", "null", "true", "[ ]", "\"\\\"}\"", "{}"]).prop_map(str::to_owned);
    leaf.prop_recursive(depth, 24, 4, |inner| {
        object(prop::sample::select(vec!["a", "b", "c", "url"]).boxed(), inner).boxed()
    })
    .boxed()
}

fn object(keys: BoxedStrategy<&'static str>, values: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    let property = (trivia(), keys, trivia(), trivia(), values, trivia());
    let property = property.prop_map(|(a, key, b, c, value, d)| format!("{a}\"{key}\"{b}:{c}{value}{d}"));
    (prop::collection::vec(property, 0..4), any::<bool>(), trivia()).prop_map(|(properties, comma, end)| {
        let comma = if comma && !properties.is_empty() { "," } else { "" };
        format!("{{{}{comma}{end}}}", properties.join(","))
    })
}

fn document() -> impl Strategy<Value = String> {
    let servers = object(prop::sample::select(vec!["one", "two", "three"]).boxed(), json(2));
    let root = object(prop::sample::select(vec!["mcpServers", "x", "y"]).boxed(), prop_oneof![servers, json(1)]);
    (trivia(), root, trivia()).prop_map(|(before, root, after)| format!("{before}{root}{after}"))
}

/// Lines of TOML and of YAML, with either line ending, and perhaps without the last one.
fn text_of(lines: &'static [&'static str]) -> impl Strategy<Value = String> {
    let lines = prop::collection::vec(prop::sample::select(lines), 0..8);
    (lines, any::<bool>(), any::<bool>()).prop_map(|(lines, windows, last)| {
        let text = lines.concat();
        let text = if last { text.as_str() } else { text.strip_suffix('\n').unwrap_or(&text) };
        if windows { text.replace('\n', "\r\n") } else { text.to_owned() }
    })
}

const TOML: &[&str] = &[
    "\n",
    "# a\n",
    "b = \"\"\"\n[mcp_servers.weir]\n\"\"\"\n",
    "[c]\n",
    "[mcp_servers]\n",
    "[mcp_servers.d]\nurl = \"http://d\"\n",
    "  [mcp_servers.e] # f\n",
    "[[g]]\n",
    "h.i = [\n1,\n]\n",
    "[mcp_servers.d.env]\n",
    "mcp_servers.j.url = \"http://j\"\n",
];
const YAML: &[&str] = &[
    "\n",
    "# a\n",
    "b: 1\n",
    "c:\n- d\n",
    "e: |\n  extensions:\n    f: g\n",
    "extensions:\n",
    "extensions: {}\n",
    "  g:\n    type: sse\n    uri: http://g\n",
    "    h:\n",
    "  # i\n",
    "  j: {type: sse, uri: http://j}\n",
    "---\n",
    "...\n",
    "k: 'l\n  m'\n",
    "  \n",
    "n: >+\n  o\n\n",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_jsonc_comes_back(text in document()) {
        let Ok(connected) = connect(Host::Cursor, Some(&text), &entry()) else { return Ok(()) };
        let restored = disconnect(Host::Cursor, &connected, "weir");
        prop_assert_eq!(restored, Ok(Some(text)), "{}", connected);
    }

    #[test]
    fn any_toml_comes_back(text in text_of(TOML)) {
        let Ok(connected) = connect(Host::Codex, Some(&text), &entry()) else { return Ok(()) };
        let restored = disconnect(Host::Codex, &connected, "weir");
        prop_assert_eq!(restored, Ok(Some(text)), "{}", connected);
    }

    #[test]
    fn any_yaml_comes_back(text in text_of(YAML)) {
        let Ok(connected) = connect(Host::Goose, Some(&text), &entry()) else { return Ok(()) };
        // A key without a value goes together with the entry.
        let servers = read(Host::Goose, &text).is_ok_and(|found| !found.servers.is_empty());
        if !servers && text.lines().any(|line| line.trim_end() == "extensions:") {
            return Ok(());
        }
        let restored = disconnect(Host::Goose, &connected, "weir");
        prop_assert_eq!(restored, Ok(Some(text)), "{}", connected);
    }

    #[test]
    fn no_text_makes_editing_panic(text in any::<String>()) {
        for host in Host::ALL {
            if let Ok(connected) = connect(host, Some(&text), &entry()) {
                let _ = disconnect(host, &connected, "weir");
            }
            let _ = disconnect(host, &text, "");
        }
    }
}
