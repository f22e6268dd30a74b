//! `weir import` and `weir client`: servers out of the files of hosts, and Weir into them.

mod programs;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use weir_tests::{Client, Gateway, Stub, paths};

/// A person with hosts, and a folder that they are in.
struct Person {
    home: tempfile::TempDir,
    variables: Vec<(&'static str, String)>,
}

impl Person {
    fn new() -> Self {
        let person = Self { home: tempfile::tempdir().unwrap(), variables: vec![("KEY", "a-key".to_owned())] };
        fs::create_dir_all(person.folder()).unwrap();
        person
    }

    fn home(&self) -> &Path {
        self.home.path()
    }

    /// Sets a variable of the environment.
    fn set(&mut self, name: &'static str, value: &str) {
        self.variables.push((name, value.to_owned()));
    }

    fn folder(&self) -> PathBuf {
        self.home().join("work")
    }

    fn has(&self, path: &str, text: &str) {
        let path = self.home().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn reads(&self, path: &str) -> String {
        fs::read_to_string(self.home().join(path)).unwrap()
    }

    /// A program in this folder, with nothing of the environment of the tests but `PATH`.
    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.folder()).env_clear().env("HOME", self.home());
        command.env("PATH", std::env::var_os("PATH").unwrap());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// What a command prints, and how it ends.
    fn weir(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.command(&paths::weir(), arguments).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    }

    /// The same for a command that ends well.
    fn done(&self, arguments: &[&str]) -> String {
        let (code, text) = self.weir(arguments);
        assert_eq!(code, Some(0), "weir {arguments:?}: {text}");
        text
    }
}

/// Files that real hosts have written, and where they are.
const WRITTEN: [(&str, &str); 6] = [
    (".cursor/mcp.json", include_str!("../../gateway/hosts/tests/fixtures/cursor/mcp.json")),
    (".gemini/settings.json", include_str!("../../gateway/hosts/tests/fixtures/gemini-cli/settings.json")),
    (".codex/config.toml", include_str!("../../gateway/hosts/tests/fixtures/codex/config.toml")),
    (".claude.json", include_str!("../../gateway/hosts/tests/fixtures/claude-code/claude.json")),
    (".config/goose/config.yaml", include_str!("../../gateway/hosts/tests/fixtures/goose/config.yaml")),
    (".config/zed/settings.json", include_str!("../../gateway/hosts/tests/fixtures/zed/settings.json")),
];

/// Files that `claude mcp add` (2.1.197), `gemini mcp add` (0.61.0) and `codex mcp add` (0.169.0) have written.
const ADDED: [(&str, &str); 3] = [
    (".claude.json", include_str!("../hosts/claude-code.json")),
    (".gemini/settings.json", include_str!("../hosts/gemini-cli.json")),
    (".codex/config.toml", include_str!("../hosts/codex.toml")),
];

#[test]
fn what_the_commands_of_hosts_have_added_moves_in_and_stays_as_it_is() {
    let person = Person::new();
    ADDED.iter().for_each(|(path, text)| person.has(path, text));
    person.done(&["import", "--all-projects", "--yes"]);
    person.done(&["check"]);
    let listed: Value = serde_json::from_str(&person.done(&["list", "--json"])).unwrap();
    let mut names: Vec<_> = listed.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["asana", "docs", "everything", "github", "linear", "search", "sentry"]);
    let config = person.reads("work/weir.toml");
    assert!(!config.contains("k3y") && !config.contains("ghp_"), "{config}");
    for reference in ["env = \"SENTRY_TOKEN\"", "${env:MY_TOKEN}", "env = \"LINEAR_TOKEN\"", "type = \"sse\""] {
        assert!(config.contains(reference), "{reference}: {config}");
    }
    person.done(&["client", "connect", "--all"]);
    person.done(&["client", "disconnect", "--all"]);
    for (path, text) in ADDED {
        assert_eq!(person.reads(path), text, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_of_a_host_are_called_through_weir() {
    let (person, stub) = (Person::new(), Stub::start().await);
    let servers = json!({ "theme": "dark", "mcpServers": {
        "stub": { "httpUrl": stub.url(), "headers": { "Authorization": "Bearer t0p-s3cret", "X-Key": "$KEY" } },
        "my files": { "command": "echo", "args": ["hello"], "env": { "SOME_TOKEN": "v3ry-s3cret" } },
        "later": { "url": "https://later.example.com/mcp", "headers": { "X-Key": "${NOT_SET}" } },
    } });
    person.has(".gemini/settings.json", &servers.to_string());
    let (code, text) = person.weir(&["import", "gemini-cli"]);
    assert!(code == Some(1) && text.contains("[upstreams.stub]") && text.contains("--yes"), "{text}");
    assert!(!person.folder().join("weir.toml").exists(), "nobody has agreed");

    let text = person.done(&["import", "gemini-cli", "--yes"]);
    assert!(text.contains("added 3 servers") && text.contains("weir enable later my-files"), "{text}");
    assert!(text.contains("set NOT_SET in Weir's environment"), "{text}");
    let file = person.reads("work/weir.toml");
    for secret in ["t0p-s3cret", "v3ry-s3cret"] {
        assert!(!file.contains(secret) && !text.contains(secret), "{secret} is elsewhere: {file} {text}");
    }
    assert_eq!(secrets(&person), ["my-files-some-token", "stub-token"]);
    assert!(file.contains("SOME_TOKEN = \"${stored:my-files-some-token}\""), "{file}");
    assert_eq!(person.reads(".gemini/settings.json"), servers.to_string(), "the host keeps its file");
    let others = servers.to_string().replace("v3ry-s3cret", "another-secret");
    person.has(".gemini/settings.json", &others);
    assert!(person.done(&["import", "--yes"]).contains("there is nothing to add"));
    assert_eq!(secrets(&person).len(), 2, "nothing else is kept");
    person.done(&["check"]);

    let (config, state) = (file.replace("listen = \"127.0.0.1:8080\"\n", ""), person.home().join(".local/state"));
    let variables = [("KEY", "a-key"), ("XDG_STATE_HOME", state.to_str().unwrap())];
    let gateway = Gateway::start_with(&config, &variables).await;
    gateway.healthy(&["stub"]).await;
    let said = Client::modern(&gateway, "/mcp").call("stub__echo", json!({ "message": "hello" })).await;
    assert_eq!(said["content"][0]["text"], "hello");
    let seen = stub.asked("tools/call");
    let call = seen.last().unwrap();
    assert_eq!((call.header("authorization"), call.header("x-key")), (Some("Bearer t0p-s3cret"), Some("a-key")));
}

#[test]
fn what_hosts_have_written_is_imported_and_checks() {
    let person = Person::new();
    WRITTEN.iter().for_each(|(path, text)| person.has(path, text));
    let text = person.done(&["import", "--yes"]);
    for (path, _) in WRITTEN {
        assert!(text.contains(path), "{path} is read: {text}");
    }
    person.done(&["check"]);
    let listed: Value = serde_json::from_str(&person.done(&["list", "--json"])).unwrap();
    let listed = listed.as_array().unwrap();
    assert!(listed.len() >= 12, "{listed:?}");
    let programs = listed.iter().filter(|one| one["command"].is_string());
    assert!(programs.clone().count() > 2);
    assert!(programs.clone().all(|one| one["enabled"] == false), "no program starts that nobody has looked at");
    assert!(person.weir(&["import", "no-such-host"]).1.contains("claude-code, claude-desktop"));
}

#[test]
fn hosts_point_at_weir_and_away_again_without_another_byte() {
    let person = Person::new();
    WRITTEN.iter().for_each(|(path, text)| person.has(path, text));
    let before = |path: &str| WRITTEN.iter().find(|(known, _)| *known == path).unwrap().1;
    let shown = person.done(&["client", "connect", "--all", "--dry-run"]);
    assert!(shown.contains("would be") && WRITTEN.iter().all(|(path, text)| person.reads(path) == *text));
    person.done(&["client", "connect", "--all"]);
    for (path, _) in WRITTEN {
        assert!(person.reads(path).contains("http://127.0.0.1:8080/mcp"), "{path}: {}", person.reads(path));
        assert_eq!(person.reads(&format!("{path}.before-weir")), before(path));
    }
    let list = person.done(&["client", "list"]);
    assert_eq!(list.matches("connected").count(), WRITTEN.len(), "{list}");
    assert!(person.done(&["client", "connect", "cursor"]).contains("says so already"));
    assert!(person.weir(&["import", "cursor"]).1.contains("it is Weir itself"), "Weir is not its own upstream");
    person.done(&["client", "disconnect", "--all"]);
    for (path, text) in WRITTEN {
        assert_eq!(person.reads(path), text, "{path}");
        assert!(!person.home().join(format!("{path}.before-weir")).exists(), "what is as before needs no copy");
    }
    person.has(".cursor/mcp.json", "{ \"mcpServers\": { \"weir\": { \"url\": \"https://other.example.com/mcp\" } } }");
    let (code, text) = person.weir(&["client", "connect", "cursor"]);
    assert!(code == Some(1) && text.contains("--name"), "{text}");
}

#[test]
fn a_gateway_that_needs_keys_has_hosts_send_one() {
    let person = Person::new();
    person.has("work/weir.toml", "api_keys = true\n");
    let text = person.done(&["client", "connect", "claude-code", "cursor"]);
    assert!(text.contains("`weir key add claude-code` makes one"), "{text}");
    let header = |path: &str| {
        let written: Value = serde_json::from_str(&person.reads(path)).unwrap();
        written["mcpServers"]["weir"]["headers"]["Authorization"].as_str().unwrap().to_owned()
    };
    assert_eq!(header(".claude.json"), "Bearer ${WEIR_API_KEY}");
    assert_eq!(header(".cursor/mcp.json"), "Bearer ${env:WEIR_API_KEY}");
    let text = person.done(&["client", "connect", "cursor", "--name", "other", "--bearer-env", "MINE"]);
    assert!(person.reads(".cursor/mcp.json").contains("${env:MINE}") && !text.contains("key add"), "{text}");
}

#[test]
fn a_host_without_a_file_gets_one_and_loses_it_again() {
    let person = Person::new();
    person.has("work/weir.toml", "listen = \"0.0.0.0:9000\"\nallow_unauthenticated = true\n");
    person.done(&["client", "connect", "claude-code", "--project", "--endpoint", "desk"]);
    let written: Value = serde_json::from_str(&person.reads("work/.mcp.json")).unwrap();
    assert_eq!(written["mcpServers"]["weir"], json!({ "type": "http", "url": "http://127.0.0.1:9000/mcp/desk" }));
    person.done(&["client", "disconnect", "claude-code", "--project"]);
    assert!(!person.folder().join(".mcp.json").exists());
    let snippet: Value = serde_json::from_str(&{
        let mut command = Command::new(paths::weir());
        command.args(["client", "print", "claude-desktop"]).current_dir(person.folder()).env("HOME", person.home());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    })
    .unwrap();
    assert_eq!(snippet["mcpServers"]["weir"]["args"], json!(["connect", "http://127.0.0.1:9000/mcp"]));
}

/// Files whose servers are moved, and the name of one of them.
const MOVED: [(&str, &str); 3] =
    [(".cursor/mcp.json", "cursor"), (".gemini/settings.json", "gemini-cli"), (".codex/config.toml", "codex")];

#[test]
fn servers_of_hosts_move_into_weir_and_back() {
    for (path, host) in MOVED {
        let person = Person::new();
        let before = WRITTEN.iter().find(|(known, _)| *known == path).unwrap().1;
        person.has(path, before);
        let asked = person.weir(&["client", "connect", host, "--move"]);
        assert!(asked.0 == Some(1) && asked.1.contains("--yes"), "{host}: nobody agrees: {asked:?}");
        person.done(&["client", "connect", host, "--move", "--dry-run"]);
        assert_eq!(person.reads(path), before, "{host}: nothing was written");
        assert!(!person.folder().join("weir.toml").exists() && secrets(&person).is_empty(), "{host}");
        let text = person.done(&["client", "connect", host, "--move", "--yes"]);
        assert!(text.contains("moved `"), "{host}: {text}");
        let now = person.reads(path);
        assert!(now.contains("http://127.0.0.1:8080/mcp"), "{host}: {now}");
        let listed: Value = serde_json::from_str(&person.done(&["list", "--json"])).unwrap();
        let moved = listed.as_array().unwrap().len();
        assert!(moved > 1, "{host}: {text}");
        assert!(person.weir(&["import", host]).1.contains("it is Weir itself"), "{host}: nothing else is left");
        let again = person.weir(&["client", "connect", host, "--move", "--yes"]);
        assert!(again.0 == Some(1) && again.1.contains("disconnect"), "{host}: the copy stays: {again:?}");
        person.done(&["client", "disconnect", host]);
        assert_eq!(person.reads(path), before, "{host}: all is as before");
        assert!(!person.home().join(format!("{path}.before-move")).exists(), "{host}");
    }
}

#[test]
fn a_file_that_has_changed_since_a_move_keeps_its_change() {
    let person = Person::new();
    let before = "{\n  \"mcpServers\": {\n    \"docs\": { \"url\": \"https://docs.example.com/mcp\" }\n  }\n}\n";
    person.has(".cursor/mcp.json", before);
    person.done(&["client", "connect", "cursor", "--move", "--yes"]);
    let changed = person.reads(".cursor/mcp.json").replacen('{', "{\n  \"mine\": true,", 1);
    person.has(".cursor/mcp.json", &changed);
    let text = person.done(&["client", "disconnect", "cursor"]);
    assert!(text.contains("has changed since") && text.contains(".before-move"), "{text}");
    let now = person.reads(".cursor/mcp.json");
    assert!(now.contains("mine") && !now.contains("docs") && !now.contains("8080"), "{now}");
    assert_eq!(person.reads(".cursor/mcp.json.before-move"), before);
}

#[test]
fn permission_rules_move_with_their_servers() {
    let person = Person::new();
    person.has(
        ".claude.json",
        "{ \"mcpServers\": { \"my docs\": { \"type\": \"http\", \"url\": \"https://docs.example.com/mcp\" },
                            \"closed\": { \"type\": \"http\", \"url\": \"https://closed.example.com/mcp\" } } }",
    );
    let rules = "{\n  // mine\n  \"permissions\": {\n    \"allow\": [\"mcp__my_docs__read\", \"mcp__other__x\"],\n    \
                 \"deny\": [\"mcp__my_docs__write\", \"mcp__closed\"]\n  }\n}\n";
    person.has(".claude/settings.json", rules);
    let text = person.done(&["client", "connect", "claude-code", "--move", "--yes"]);
    let name = if text.contains("mcp__weir__my-docs__read") { "my-docs" } else { "my_docs" };
    let expected = rules
        .replace("mcp__my_docs__read", &format!("mcp__weir__{name}__read"))
        .replace("mcp__my_docs__write", &format!("mcp__weir__{name}__write"));
    assert_eq!(person.reads(".claude/settings.json"), expected, "{text}");
    let servers = person.done(&["list"]);
    assert!(servers.contains(name) && !servers.contains("closed"), "rules name the server as Weir does: {servers}");
    assert!(text.contains("closed: it stays where it is: `mcp__closed` in "), "a denial would be lost: {text}");
    assert!(person.reads(".claude.json").contains("closed.example.com"));
    person.done(&["client", "disconnect", "claude-code"]);
    assert_eq!(person.reads(".claude/settings.json"), rules);
    assert!(!person.home().join(".claude/settings.json.before-move").exists());
}

#[test]
fn permission_rules_of_other_projects_move_too() {
    let person = Person::new();
    let other = person.home().join("other");
    let file = json!({
        "mcpServers": { "docs": { "type": "http", "url": "https://docs.example.com/mcp" } },
        "projects": { (other.to_str().unwrap()): {}, "/not/there": {} },
    });
    person.has(".claude.json", &file.to_string());
    let rules = "{ \"permissions\": { \"deny\": [\"mcp__docs__write\"] } }\n";
    person.has("other/.claude/settings.local.json", rules);
    person.has("other/.claude/settings.json", rules);
    let text = person.done(&["client", "connect", "claude-code", "--move", "--yes"]);
    assert!(person.reads("other/.claude/settings.local.json").contains("mcp__weir__docs__write"), "{text}");
    let told = "other/.claude/settings.json: mcp__docs__write should be mcp__weir__docs__write now";
    assert!(text.contains(told), "what a project shares with others is only told: {text}");
    assert_eq!(person.reads("other/.claude/settings.json"), rules);
    person.done(&["client", "disconnect", "claude-code"]);
    assert_eq!(person.reads("other/.claude/settings.local.json"), rules);
}

#[test]
fn names_that_are_too_long_for_a_host_are_told() {
    let person = Person::new();
    let tool = "a".repeat(50);
    person.has(
        "work/weir.toml",
        &format!(
            "[upstreams.docs]\nurl = \"https://docs.example.com/mcp\"\ntools = {{ allow = [\"{tool}\", \"b\"] }}\n"
        ),
    );
    let text = person.done(&["client", "connect", "claude-code"]);
    assert!(text.contains(&format!("`mcp__weir__docs__{tool}` is longer")) && !text.contains("docs__b"), "{text}");
    assert!(!person.done(&["client", "connect", "windsurf"]).contains("longer"));
    let config = person.reads("work/weir.toml");
    person.has("work/weir.toml", &format!("name_budgets = {{ claude-code = 80 }}\n{config}"));
    person.done(&["client", "disconnect", "claude-code"]);
    assert!(!person.done(&["client", "connect", "claude-code"]).contains("longer"));
    let listed: Value = serde_json::from_str(&person.done(&["client", "list", "--json"])).unwrap();
    assert_eq!((&listed[0]["host"], &listed[0]["connected"]), (&json!("claude-code"), &json!(true)));
    let shown: Value = serde_json::from_str(&person.done(&["show", "docs", "--json"])).unwrap();
    assert_eq!(shown["upstreams"]["docs"]["url"], "https://docs.example.com/mcp");
}

#[test]
fn servers_of_other_projects_are_told_of_and_taken_on_demand() {
    let person = Person::new();
    let (other, here) = (person.home().join("other"), person.folder());
    fs::create_dir(&other).unwrap();
    let project = |argument: &str| json!({ "mcpServers": { "db": { "command": "echo", "args": [argument] } } });
    let file = json!({ "mcpServers": {}, "projects": {
        (here.to_str().unwrap()): project("here"), (other.to_str().unwrap()): project("other"),
    } });
    person.has(".claude.json", &file.to_string());
    let (_, text) = person.weir(&["import", "claude-code"]);
    assert!(text.contains("1 server is of another project; --all-projects"), "{text}");
    assert!(text.contains("\"here\"") && !text.contains("\"other\""), "{text}");
    person.done(&["import", "claude-code", "--all-projects", "--yes"]);
    let shown = person.done(&["show", "db-other"]);
    assert!(shown.contains(&format!("cwd = {:?}", other.to_str().unwrap())), "{shown}");
    assert!(person.done(&["show", "db"]).contains("\"here\""));
}

#[test]
fn secrets_of_a_host_are_nowhere_in_the_configuration() {
    let person = Person::new();
    let token = "ghp_0123456789abcdefghij";
    let file = json!({ "mcpServers": {
        "docs": { "url": format!("https://docs.example.com/mcp?tenant=7&api_key=k3y&other={token}") },
        "docker": { "command": "echo", "args": ["run", "-e", format!("GITHUB={token}"), "--api-key", "k3y", "--port", "80",
            "--token=t0ken", "--header", "Authorization: Bearer k3y", "--key-file", "/etc/key"],
            "env": { "DATABASE": "postgres://ada:k3y@db/shop", "PLAIN": "yes" } },
    } });
    person.has(".cursor/mcp.json", &file.to_string());
    let (_, asked) = person.weir(&["import", "cursor"]);
    assert!(asked.contains("docs: a secret goes into the login store: docs-api-key"), "{asked}");
    assert!(!person.home().join(".local/state/weir").exists(), "nobody has agreed");
    person.done(&["import", "cursor", "--yes"]);
    let config = person.reads("work/weir.toml");
    for secret in [token, "k3y", "t0ken"] {
        assert!(!config.contains(secret) && !asked.contains(secret), "{config}{asked}");
    }
    for kept in [
        "?tenant=7&api_key=${stored:",
        "\"80\"",
        "\"/etc/key\"",
        "\"--token=${stored:",
        "\"GITHUB=${stored:",
        "\"yes\"",
    ] {
        assert!(config.contains(kept), "{kept}: {config}");
    }
    person.done(&["check"]);
    person.done(&["remove", "docker", "docs"]);
    assert!(secrets(&person).is_empty(), "{:?}", secrets(&person));
}

#[test]
fn a_server_that_is_removed_takes_its_secrets_along() {
    let person = Person::new();
    let server = |name: &str| {
        format!(
            "\"{name}\": {{ \"url\": \"https://{name}.example.com/mcp\", \"headers\": {{ \"Authorization\": \"Bearer t0p-s3cret\" }} }}"
        )
    };
    person.has(".cursor/mcp.json", &format!("{{ \"mcpServers\": {{ {}, {} }} }}", server("a"), server("a-b")));
    person.done(&["import", "cursor", "--yes"]);
    assert_eq!(secrets(&person), ["a-b-token", "a-token"]);
    let text = person.done(&["remove", "a"]);
    assert!(text.contains("a-token") && !text.contains("s3cret"), "{text}");
    assert_eq!(secrets(&person), ["a-b-token"], "what the server did not name stays");
    let shared = person.reads("work/weir.toml")
        + "\n[upstreams.c]\nurl = \"https://c.example.com/mcp\"\nbearer = { stored = \"a-b-token\" }\n";
    person.has("work/weir.toml", &shared);
    person.done(&["remove", "a-b"]);
    assert_eq!(secrets(&person), ["a-b-token"], "another server names it");
}

/// The names of the secrets in the login store.
fn secrets(person: &Person) -> Vec<String> {
    person.done(&["secret", "list"]).lines().map(str::to_owned).collect()
}
