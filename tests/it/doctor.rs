//! `weir doctor`: each thing that is wrong has a finding with a repair, and what is fine has none.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use weir_tests::peer::free_port;
use weir_tests::process::Process;
use weir_tests::stub::Offer;
use weir_tests::wait::within;
use weir_tests::{Authority, Stub, paths, terminal};

/// An upstream that is not reached here.
const PROGRAM: &str = "[upstreams.program]\ncommand = \"sh\"\n";

/// A machine with a configuration on it.
struct Machine {
    home: TempDir,
    path: String,
}

impl Machine {
    fn of(config: &str) -> Self {
        let machine = Self { home: TempDir::new().unwrap(), path: std::env::var("PATH").unwrap() };
        fs::set_permissions(machine.home(), Permissions::from_mode(0o700)).unwrap();
        let listen = if config.starts_with("listen") { "" } else { "listen = \"127.0.0.1:0\"\n" };
        machine.has("weir.toml", 0o600, &format!("{listen}cache_dir = {:?}\n{config}", paths::cache()));
        machine
    }

    fn home(&self) -> &Path {
        self.home.path()
    }

    fn has(&self, name: &str, mode: u32, text: &str) {
        let path = self.home().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.home().join(name)).unwrap().permissions().mode() & 0o777
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(paths::weir());
        command.args(arguments).current_dir(self.home()).env_clear().env("HOME", self.home()).env("PATH", &self.path);
        command.env("XDG_STATE_HOME", self.home()).envs(terminal::ENVIRONMENT);
        command
    }

    async fn weir(&self, arguments: &[&str]) -> (i32, String) {
        let output = within("the command", Command::from(self.command(arguments)).output()).await.unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code().unwrap(), said)
    }

    /// What the doctor finds, and the exit code.
    async fn doctor(&self, more: &[&str]) -> (i32, Vec<Value>) {
        let (code, said) = self.weir(&[&["doctor", "--json"], more].concat()).await;
        (code, serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}")))
    }
}

/// The findings that are not `ok`, as `severity check`.
fn wrong(findings: &[Value]) -> Vec<String> {
    let wrong = findings.iter().filter(|finding| finding["severity"] != "ok");
    wrong
        .map(|finding| format!("{} {}", finding["severity"].as_str().unwrap(), finding["check"].as_str().unwrap()))
        .collect()
}

fn has(findings: &[Value], kind: &str, text: &str, repair: &str) {
    let is = |finding: &Value| {
        format!("{} {}", finding["severity"].as_str().unwrap(), finding["check"].as_str().unwrap()) == kind
            && finding["text"].as_str().unwrap().contains(text)
            && finding["repair"].as_str().unwrap_or_default().contains(repair)
    };
    assert!(findings.iter().any(is), "no {kind}: {text}: {repair} in {findings:#?}");
}

#[tokio::test]
async fn a_machine_in_good_health_has_no_findings() {
    let stub = Stub::start().await;
    let machine = Machine::of(&stub.config("stub"));
    let (code, findings) = machine.doctor(&[]).await;
    assert_eq!((code, wrong(&findings)), (0, vec![]), "{findings:#?}");
    let (code, said) = machine.weir(&["doctor"]).await;
    assert_eq!((code, said.lines().count()), (0, 1), "{said}");
    let (_, said) = machine.weir(&["doctor", "-v"]).await;
    for text in [
        "upstreams: stub: fine after",
        "clock: the clock differs from that of `stub` by 0 s",
        "the system chooses the port",
    ] {
        assert!(said.contains(text), "{said}");
    }
    let before = stub.seen().len();
    assert_eq!(machine.doctor(&["--offline"]).await.0, 0);
    assert_eq!(stub.seen().len(), before, "nothing is reached");
}

#[tokio::test]
async fn a_configuration_that_cannot_be_used_ends_with_64() {
    let (code, findings) = Machine::of("[upstreams.a]\nurll = \"x\"\n").doctor(&[]).await;
    assert_eq!(code, 64);
    has(&findings, "error configuration", "unknown key `urll`", "did you mean `url`?");
    let (code, findings) = Machine::of("[upstreams.a]\ncommand = \"weir-tests-none\"\n").doctor(&["--offline"]).await;
    assert_eq!(code, 1);
    has(&findings, "error commands", "weir-tests-none", "");
}

#[tokio::test]
async fn files_that_others_can_use_are_found_and_closed() {
    let stub = Stub::start().await;
    let config = format!(
        "{}bearer = {{ file = \"token\" }}\nheaders = {{ X-Key = \"plain\" }}\n[store]\npath = \"logins.redb\"\n",
        stub.config("stub")
    );
    let machine = Machine::of(&config);
    machine.has("token", 0o644, "secret");
    machine.has("logins.redb.key", 0o644, terminal::KEY);
    fs::set_permissions(machine.home().join("weir.toml"), Permissions::from_mode(0o646)).unwrap();
    let (code, findings) = machine.doctor(&["--offline"]).await;
    assert_eq!(code, 1);
    has(&findings, "error files", "the key of the login store", "chmod go-rwx");
    has(&findings, "warning files", "a token", "chmod o-rwx");
    has(&findings, "warning files", "values of variables or headers", "chmod o-rwx weir.toml");
    has(&findings, "warning files", "others can write this file", "chmod go-w weir.toml");
    assert_eq!(machine.mode("token"), 0o644, "nothing is changed unasked");

    // What belongs to root may be read by a service just because others can read it.
    let is_root = fs::metadata(machine.home()).unwrap().uid() == 0;
    let (left, modes) = if is_root { (1, [0o644, 0o600, 0o644]) } else { (0, [0o640, 0o600, 0o640]) };
    let (code, findings) = machine.doctor(&["--offline", "--fix"]).await;
    assert_eq!(code, left, "{findings:#?}");
    has(&findings, "note files", "repaired: its mode is 600 now", "");
    assert_eq!(["token", "logins.redb.key", "weir.toml"].map(|name| machine.mode(name)), modes);
    let (code, findings) = machine.doctor(&["--offline"]).await;
    assert_eq!((code, wrong(&findings).is_empty()), (left, !is_root), "{findings:#?}");
    if is_root {
        has(&findings, "warning files", "a token", "to the user or group of the service, then: chmod o-rwx");
    }
}

#[tokio::test]
async fn certificates_are_read_and_matched() {
    let key = KeyPair::generate().unwrap();
    let certificate = |year| {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        params.self_signed(&key).unwrap().pem()
    };
    let machine = Machine::of(&format!("tls = {{ certificate = \"own.pem\", key = \"own.key\" }}\n{PROGRAM}"));
    machine.has("own.key", 0o600, &key.serialize_pem());
    machine.has("own.pem", 0o644, &certificate(2099));
    let (code, findings) = machine.doctor(&["--offline"]).await;
    assert_eq!((code, wrong(&findings)), (0, vec![]), "{findings:#?}");
    machine.has("own.pem", 0o644, &certificate(2020));
    let (code, findings) = machine.doctor(&["--offline"]).await;
    assert_eq!(code, 1);
    has(&findings, "error certificate", "has expired", "renew it");
    machine.has("own.key", 0o600, &KeyPair::generate().unwrap().serialize_pem());
    has(&machine.doctor(&["--offline"]).await.1, "error certificate", "own.key", "");
}

#[tokio::test]
async fn ports_are_free_or_the_gateways() {
    let port = free_port();
    let machine = Machine::of(&format!("listen = \"127.0.0.1:{port}\"\n{PROGRAM}"));
    let other = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let (code, findings) = machine.doctor(&["--offline"]).await;
    assert_eq!(code, 1);
    has(&findings, "error ports", &format!("127.0.0.1:{port} cannot be listened on"), "ss -ltnp");
    drop(other);
    let mut gateway = Process::start("the gateway", &mut machine.command(&["serve"]));
    gateway.says("that it listens", |line| line.contains("listening on").then_some(())).await;
    let (code, findings) = machine.doctor(&["--offline"]).await;
    assert_eq!((code, wrong(&findings)), (0, vec![]), "{findings:#?}");
    let expected = format!("in use while the gateway runs as process {}", gateway.id());
    has(&findings, "ok ports", &expected, "");
}

#[tokio::test]
async fn runtimes_that_do_not_work_are_named() {
    let mut machine =
        Machine::of("[upstreams.a]\ncommand = \"npx\"\nargs = [\"-y\", \"x\"]\n[upstreams.b]\ncommand = \"docker\"\n");
    machine.has("bin/npx", 0o755, "#!/bin/sh\necho 10.0.0\n");
    machine.has("bin/node", 0o755, "#!/bin/sh\necho v16.20.2\n");
    machine.has("bin/docker", 0o755, "#!/bin/sh\necho 'no daemon' >&2\nexit 1\n");
    machine.path = format!("{}:{}", machine.home().join("bin").display(), machine.path);
    let (code, findings) = machine.doctor(&["--offline"]).await;
    assert_eq!(code, 1);
    has(&findings, "warning runtimes", "`node` is v16.20.2", "nodejs.org");
    has(
        &findings,
        "warning runtimes",
        "`docker` does not work: it ends with exit status: 1: no daemon",
        "docker version",
    );
    has(&findings, "ok runtimes", "`npx` is 10.0.0", "");
    assert!(!findings.iter().any(|finding| finding["text"].as_str().unwrap().contains("`uv`")), "{findings:#?}");
}

#[tokio::test]
async fn each_upstream_is_reached_and_a_host_has_its_names() {
    let tools = vec!["echo".to_owned(), "x".repeat(60)];
    let stub = Stub::offering(Offer { tools, ..Offer::default() }).await;
    let nobody = format!("[upstreams.nobody]\nurl = \"http://127.0.0.1:{}/mcp\"\n", free_port());
    let machine = Machine::of(&[stub.config("stub"), nobody].concat());
    machine.has(".cursor/mcp.json", 0o600, "{}");
    assert_eq!(machine.weir(&["client", "connect", "cursor", "--url", "http://127.0.0.1:1/mcp"]).await.0, 0);
    let (code, findings) = machine.doctor(&[]).await;
    assert_eq!(code, 1);
    has(&findings, "error upstreams", "nobody: failed after", "weir test nobody");
    has(&findings, "warning names", "Cursor takes names of 60 characters", "overrides");
    let names = findings.iter().filter(|finding| finding["check"] == "names").count();
    assert_eq!(names, 1, "only hosts that are connected count: {findings:#?}");
}

#[tokio::test]
async fn schemas_that_a_hosts_model_rejects_name_the_tool_and_the_policy() {
    let tool = |name: &str, schema: Value| json!({ "name": name, "description": name, "inputSchema": schema });
    let tools = [
        tool("either", json!({ "type": "object", "properties": {}, "anyOf": [{ "required": ["a"] }] })),
        tool("many", json!({ "type": "object", "properties": { "ids": { "type": "array" } } })),
    ];
    let stub = Stub::offering(Offer { lists: json!({ "tools/list": tools }), ..Offer::default() }).await;
    let policy = "[[upstreams.stub.policies]]\ncomponent = \"weir:schema\"\n";
    for (config, expected) in [(stub.config("stub"), 1), (stub.config("stub") + policy, 0)] {
        let machine = Machine::of(&config);
        machine.has(".claude.json", 0o600, "{}");
        assert_eq!(machine.weir(&["client", "connect", "claude-code", "--url", "http://127.0.0.1:1/mcp"]).await.0, 0);
        let (code, findings) = machine.doctor(&[]).await;
        assert_eq!(code, expected, "{findings:#?}");
        if expected == 1 {
            has(&findings, "warning schemas", "stub__either: `anyOf` at the top level", "for = \"anthropic\"");
            assert!(!findings.iter().any(|finding| finding["text"].as_str().unwrap().contains("stub__many")));
        }
    }
}

#[tokio::test]
async fn a_login_that_is_missing_names_its_command() {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let machine = Machine::of(&terminal::config(&upstream, "auth = \"oauth\""));
    for (options, check) in [(&["--offline"][..], "error logins"), (&[], "error upstreams")] {
        let (code, findings) = machine.doctor(options).await;
        assert_eq!(code, 1);
        has(&findings, check, "u: ", "weir auth login u");
        assert_eq!(wrong(&findings).len(), 1, "{findings:#?}");
    }
}
