//! How a gateway stands, as its operator is told.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json as value};
use weir_tests::wait::{until, within};
use weir_tests::{Authority, Client, Gateway, Issuer, Peer, Stub, paths};

use crate::sign_in::{AUDIENCE, guarded};

/// A server that asks for a login, and an address where nobody listens.
async fn start() -> (Gateway, Peer) {
    let peer = Peer::fixture("both").await;
    let config = format!(
        "{}\n[upstreams.dead]\nurl = \"http://127.0.0.1:1/mcp\"\n\
         [upstreams.locked]\nurl = \"http://127.0.0.1:1/locked\"\nauth = \"oauth\"\noauth = {{ client_id = \"weir\" }}\n",
        peer.config("alive")
    );
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["alive"]).await;
    gateway.settle(&["dead"], "error").await;
    (gateway, peer)
}

fn status(gateway: &Gateway, arguments: &[&str]) -> Output {
    let mut command = Command::new(paths::weir());
    command.arg("status").arg("--config").arg(gateway.directory().join("weir.toml")).args(arguments);
    command.env("XDG_STATE_HOME", gateway.directory()).output().expect("weir status can be started")
}

fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&said).unwrap_or_else(|why| panic!("{why}: {output:?}"))
}

#[tokio::test]
async fn the_operator_is_told_why_an_upstream_is_gone_and_what_comes_next() {
    let (gateway, _peer) = start().await;
    let output = status(&gateway, &["--json"]);
    assert_eq!(output.status.code(), Some(1), "one upstream is down: {output:?}");
    let report = json(&output);
    assert_eq!(report["process"], gateway.id(), "{report}");
    assert_eq!(report["state"], "ready", "{report}");
    let named = |name: &str| {
        let all = report["upstreams"].as_array().expect("upstreams are a list");
        all.iter().find(|upstream| upstream["name"] == name).expect("it is shown").clone()
    };
    let alive = named("alive");
    assert_eq!((&alive["state"], &alive["error"]), (&"healthy".into(), &Value::Null), "{alive}");
    assert_eq!(alive["failures"], 0, "{alive}");
    let dead = named("dead");
    assert_eq!((&dead["state"], &dead["error_class"]), (&"error".into(), &"unreachable".into()), "{dead}");
    assert!(dead["failures"].as_u64().is_some_and(|failures| failures > 0), "{dead}");
    assert!(dead["retry_in_seconds"].is_u64(), "{dead}");
    assert_eq!(named("locked")["login"]["state"], "missing", "{report}");

    let shown = status(&gateway, &["alive"]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
    assert!(text.contains("alive") && text.contains("healthy") && !text.contains("dead"), "{text}");
    let all = status(&gateway, &[]);
    let text = String::from_utf8_lossy(&all.stdout).into_owned();
    assert!(text.contains("next try in"), "{text}");
    let unknown = status(&gateway, &["nobody"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no upstream `nobody`"), "{unknown:?}");
}

/// The gateway looks at the file itself, too, and may be first. Then there is nothing left to say, and the next try comes.
#[tokio::test]
async fn a_reload_is_asked_for_and_tells_what_it_changes() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    let command = |arguments: &[&str]| {
        let mut command = Command::new(paths::weir());
        command.args(arguments).arg("--config").arg(gateway.directory().join("weir.toml"));
        let output = command.env("XDG_STATE_HOME", gateway.directory()).output().expect("weir can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (diff, reload) = (|| command(&["config", "diff"]), || command(&["reload"]));
    assert_eq!(diff(), (Some(0), "a reload would change nothing\n".to_owned(), String::new()));
    let attempt =
        |change: &dyn Fn(usize) -> String, ask: &dyn Fn() -> (Option<i32>, String, String), lines: &[&str]| {
            (0..10).any(|number| {
                gateway.configure(&change(number));
                let said = ask().1;
                lines.iter().all(|line| said.contains(&line.replace('#', &number.to_string())))
            })
        };
    let more = |number: usize| {
        let limits = format!("[limits]\nsessions = {}\nmessage = '{}KiB'\n", 100 + number, 9000 + number);
        let limits = limits + &format!("[[access.rules]]\nname = \"r{number}\"\n");
        stub.config(&format!("more{number}")) + &limits
    };
    let lines = [
        "+ upstream more#",
        "- upstream ",
        "~ access",
        "~ limits",
        "! limits.message: changes when Weir is started again",
    ];
    assert!(attempt(&more, &diff, &lines), "{}", gateway.log());
    let as_json = || command(&["config", "diff", "--json"]);
    assert!(attempt(&|number| more(number + 40), &as_json, &["\"added\": [", "\"more4#\"", "\"limits.message\""]));
    let other = |number: usize| more(number + 20);
    let lines = ["+ upstream more", "- upstream more", "~ access"];
    assert!(attempt(&other, &reload, &lines), "{}", gateway.log());
    let report = json(&status(&gateway, &["--json"]));
    assert!(report["upstreams"][0]["name"].as_str().is_some_and(|name| name.starts_with("more2")), "{report}");

    // What cannot be done says why, and changes nothing.
    gateway.configure(&("api_keys = true\n".to_owned() + &stub.config("secret")));
    for ask in [&diff as &dyn Fn() -> _, &reload] {
        let (code, _, why) = ask();
        assert!(code == Some(1) && why.contains("`api_keys`") && why.contains("started again"), "{why}");
    }
    gateway.configure("[upstreams.x]\nurll = 'http://127.0.0.1:1'\n");
    for ask in [&diff as &dyn Fn() -> _, &reload] {
        let (code, _, why) = ask();
        assert!(code == Some(64) && why.contains("urll"), "{why}");
    }
}

#[tokio::test]
async fn only_its_owner_can_open_the_socket() {
    let (gateway, _peer) = start().await;
    let mode = |path: &std::path::Path| fs::symlink_metadata(path).expect("it is there").permissions().mode() & 0o777;
    let socket = gateway.socket();
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(socket.parent().expect("it is in a folder")), 0o700);
}

#[tokio::test]
async fn a_socket_that_was_left_behind_is_replaced_and_one_without_a_gateway_is_told() {
    let (mut gateway, _peer) = start().await;
    gateway.signal(Signal::KILL);
    gateway.end().await;
    assert!(gateway.socket().exists(), "what is killed cleans nothing up");
    let output = status(&gateway, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no gateway serves"), "{output:?}");
    let state = gateway.directory().to_str().expect("the path is text").to_owned();
    let config = "[upstreams.dead]\nurl = \"http://127.0.0.1:1/mcp\"\n";
    let mut next = Gateway::start_with(config, &[("XDG_STATE_HOME", &state)]).await;
    next.settle(&["dead"], "error").await;
    assert_eq!(json(&status(&gateway, &["--json"]))["process"], next.id());
    next.signal(Signal::TERM);
    next.end().await;
    assert!(!gateway.socket().exists(), "what ends takes its socket along");
    assert!(!next.log().contains("shutdown_signal"), "{}", next.log());
}

/// The whole answer to a request without a body.
fn ask(mut stream: impl Read + Write, request: &str, headers: &str) -> String {
    let request = format!("{request} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("the request can be sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the answer is text");
    answer
}

#[tokio::test]
async fn programs_read_at_an_address_what_they_may_and_change_nothing() {
    let stub = Stub::start().await;
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let open = Gateway::start(&(stub.config("stub") + admin)).await;
    let secured = format!("{}{admin}token = {{ env = \"ADMIN_TOKEN\" }}\n", stub.config("stub"));
    let secured = Gateway::start_with(&secured, &[("ADMIN_TOKEN", "letmein")]).await;
    let address = |gateway: &Gateway| {
        let log = gateway.log();
        let (_, rest) = log.split_once("metrics and status are at http://").expect("the log has the address");
        rest.chars().take_while(|each| each.is_ascii_digit() || ".:".contains(*each)).collect::<String>()
    };
    let ask = async |gateway: &Gateway, request: &str, headers: &str| {
        gateway.logs("metrics and status are at").await;
        ask(TcpStream::connect(address(gateway)).expect("the address can be reached"), request, headers)
    };
    for (gateway, request, headers, status) in [
        (&open, "GET /metrics", "Host: localhost\r\n", "200"),
        (&open, "GET /status", "Host: 127.0.0.1\r\n", "200"),
        (&open, "GET /readyz", "Host: localhost\r\n", "200"),
        // A page that has its name point here.
        (&open, "GET /status", "Host: rebound.example.com\r\n", "403"),
        (&open, "GET /status", "Host: localhost\r\nOrigin: https://evil.example.com\r\n", "403"),
        (&open, "POST /reload", "Host: localhost\r\nContent-Length: 0\r\n", "404"),
        (&open, "GET /reload", "Host: localhost\r\n", "404"),
        (&secured, "GET /metrics", "Host: weir.internal\r\nAuthorization: Bearer letmein\r\n", "200"),
        (&secured, "GET /metrics", "Host: localhost\r\nAuthorization: Bearer letmei\r\n", "401"),
        (&secured, "GET /status", "Host: localhost\r\n", "401"),
    ] {
        let answer = ask(gateway, request, headers).await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{request} {headers}: {answer}");
        assert!(!answer.contains("letmein"), "{answer}");
    }
    assert!(!secured.log().contains("letmein"), "{}", secured.log());
    let mut open = open;
    open.signal(Signal::TERM);
    assert!(open.end().await.success());
    assert!(!open.log().contains("ERROR"), "{}", open.log());
}

#[tokio::test]
async fn prometheus_reads_what_calls_came_to() {
    let (gateway, _peer) = start().await;
    let client = Client::legacy(&gateway, "/mcp").await;
    client.call("alive__test_simple_text", value!({})).await;
    client.ask("tools/call", value!({ "name": "nobody__knows", "arguments": {} })).await;
    let counted = |line: &str| gateway.metrics().lines().any(|each| each == line);
    let lines = [
        r#"weir_calls_total{upstream="alive",outcome="ok",blame="none"} 1"#,
        r#"weir_calls_total{upstream="",outcome="refused",blame="client"} 1"#,
        r#"weir_attempts_total{upstream="alive"} 1"#,
        r#"weir_call_duration_seconds_count{upstream="alive"} 1"#,
        r#"weir_call_duration_seconds_bucket{le="+Inf",upstream="alive"} 1"#,
        r#"weir_upstream_healthy{upstream="alive"} 1"#,
        r#"weir_upstream_healthy{upstream="dead"} 0"#,
        r#"weir_limit_used{limit="sessions"} 1"#,
    ];
    for line in lines {
        until(line, || counted(line)).await;
    }
    let text = gateway.metrics();
    assert!(text.ends_with("# EOF\n") && !text.contains("nobody__knows"), "{text}");
    let report = json(&status(&gateway, &["alive", "--json"]));
    assert_eq!(report["upstreams"][0]["calls"], value!({ "ok": 1 }), "{report}");

    // The page has each of them and no other.
    let exported: BTreeSet<_> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let page = fs::read_to_string(paths::tests().join("../docs/operations.md")).expect("the page can be read");
    let rows = page.lines().filter(|line| line.starts_with("| `weir_"));
    let named: BTreeSet<_> = rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`')).collect();
    let named: BTreeSet<_> = named.into_iter().filter(|word| word.starts_with("weir_")).collect();
    assert_eq!(exported, named);

    // Neither the alerts nor the dashboard ask for anything else, and the dashboard shows each.
    for file in ["prometheus-alerts.yml", "grafana-dashboard.json"] {
        let asking = fs::read_to_string(paths::tests().join("../config").join(file)).expect("it is there");
        let words = asking.split(|each: char| !each.is_ascii_alphanumeric() && each != '_');
        let asked: BTreeSet<_> = words.filter(|word| word.starts_with("weir_")).collect();
        let family = |metric| ["_total", "_bucket"].iter().find_map(|suffix| str::strip_suffix(metric, suffix));
        let asked: BTreeSet<_> = asked.into_iter().map(|metric| family(metric).unwrap_or(metric)).collect();
        assert!(!asked.is_empty() && asked.is_subset(&exported), "{file}: {:?}", &asked - &exported);
        if file == "grafana-dashboard.json" {
            assert_eq!(asked, exported);
        }
    }
    let dashboard = fs::read(paths::tests().join("../config/grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_slice(&dashboard).expect("the dashboard is JSON");
    assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() > 10));
}

#[tokio::test]
async fn prometheus_reads_limits_processes_and_policies() {
    let stub = Stub::start().await;
    let crash = "[upstreams.crash]\ncommand = \"/bin/false\"\n";
    let config = format!("limits.tool.calls_per_minute = 1\n{}{crash}", stub.config("stub"));
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp/stub");
    let echo = || client.request("tools/call", value!({ "name": "echo", "arguments": { "message": "hi" } })).1;
    assert_eq!(gateway.send(echo()).await.status, 200);
    assert_eq!(gateway.send(echo()).await.status, 503);
    let lines = [
        // The limit is everybody's, and so nobody's fault who calls.
        r#"weir_calls_total{upstream="stub",outcome="limited",blame="operator"} 1"#,
        r#"weir_calls_total{upstream="stub",outcome="refused",blame="client"} 0"#,
        r#"weir_limit_reached_total{limit="tool.calls_per_minute"} 1"#,
        r#"weir_limit_reached_total{limit="processes"} 0"#,
        r#"weir_policy_failures_total{policy="fallback"} 0"#,
        r#"weir_policy_waiting{policy="fallback"} 0"#,
        r#"weir_export_waiting{signal="spans"} 0"#,
    ];
    for line in lines {
        until(line, || gateway.metrics().lines().any(|each| each == line)).await;
    }
    let counted = [
        r#"weir_upstream_process_starts_total{upstream="crash"} "#,
        r#"weir_upstream_process_exits_total{upstream="crash"} "#,
        r#"weir_list_refreshes_total{upstream="stub",outcome="done"} "#,
        r#"weir_policy_decisions_total{policy="fallback"} "#,
        r#"weir_policy_seconds_total{policy="fallback"} "#,
        "weir_tasks{} ",
    ];
    for name in counted {
        let value = |line: &str| line.strip_prefix(name).and_then(|value| value.parse::<f64>().ok());
        until(name, || gateway.metrics().lines().any(|line| value(line).is_some_and(|value| value > 0.0))).await;
    }
}

/// `weir` with these arguments, for this gateway.
fn weir(gateway: &Gateway, arguments: &[&str]) -> Command {
    let mut command = Command::new(paths::weir());
    command.args(arguments).arg("--config").arg(gateway.directory().join("weir.toml"));
    command.env("XDG_STATE_HOME", gateway.directory());
    command
}

#[tokio::test]
async fn one_upstream_is_told_with_its_calls_and_how_long_they_took() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp/stub");
    for _ in 0..3 {
        client.call("echo", serde_json::json!({ "message": "hi" })).await;
    }
    gateway.logs("\"request_id\":\"3\"").await;
    let told = String::from_utf8(status(&gateway, &["stub"]).stdout).unwrap();
    assert!(told.contains("calls: ok 3; 3 attempts") && told.contains("latency: p50 ≤ "), "{told}");
    assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
    let report = json(&status(&gateway, &["--json"]));
    assert!(report["upstreams"][0]["latency_ms"]["p99"].is_number(), "{report}");
}

#[tokio::test]
async fn the_log_is_shown_and_followed() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&(stub.config("stub") + &stub.config("other"))).await;
    gateway.healthy(&["stub", "other"]).await;
    let client = Client::modern(&gateway, "/mcp/stub");
    client.call("echo", serde_json::json!({ "message": "hi" })).await;
    gateway.logs("\"message\":\"call\"").await;
    let shown = |arguments: &[&str]| {
        let output = weir(&gateway, &[&["logs"], arguments].concat()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    until("the call is there", || shown(&[]).contains("\"message\":\"call\"")).await;
    assert!(shown(&[]).contains("listening on"));
    assert_eq!(shown(&["-n", "1"]).lines().count(), 1);
    assert_eq!(shown(&["--level", "error"]), "");
    let of_other = shown(&["--upstream", "other"]);
    assert!(of_other.contains("\"other\"") && !of_other.contains("\"stub\""), "{of_other}");

    let mut following = weir(&gateway, &["logs", "--follow", "-n", "0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    let mut found =
        tokio::task::spawn_blocking(move || lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("burst"))));
    // Which calls come after it has begun to follow nobody can say, so there are several.
    let calling = async {
        loop {
            client.call("burst", serde_json::json!({ "message": "hi" })).await;
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let found = within("a call that is followed", async {
        tokio::select! { found = &mut found => found.unwrap(), () = calling => None }
    });
    assert!(found.await.is_some());
    following.kill().unwrap();
    following.wait().unwrap();
}

#[tokio::test]
async fn the_options_of_the_log_choose_what_is_written_and_how() {
    let stub = Stub::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.toml");
    fs::write(&file, format!("listen = \"127.0.0.1:0\"\n{}", stub.config("stub"))).unwrap();
    for (options, has, has_not) in [
        (&["--log-format", "text"][..], "INFO listening on", "{"),
        (&["--log-format", "json", "-v"], "\"level\":\"DEBUG\"", "INFO listening on"),
    ] {
        let mut command = Command::new(paths::weir());
        command.args(["serve", "--config"]).arg(&file).args(options);
        command.env("XDG_STATE_HOME", folder.path()).env("XDG_CACHE_HOME", folder.path());
        command.env_remove("RUST_LOG").stdin(Stdio::null()).stderr(Stdio::piped());
        let mut serving = command.spawn().unwrap();
        let lines = BufReader::new(serving.stderr.take().unwrap()).lines();
        let has_owned = has.to_owned();
        let found =
            tokio::task::spawn_blocking(move || lines.map(Result::unwrap).find(|line| line.contains(&has_owned)));
        let found = within("a line of the log", found).await.unwrap();
        serving.kill().unwrap();
        serving.wait().unwrap();
        let line = found.unwrap_or_else(|| panic!("no line has {has}"));
        assert!(!line.contains(has_not) && !line.contains('\u{1b}'), "{line}");
    }
}

#[tokio::test]
async fn an_upstream_that_each_caller_signs_in_to_is_not_told_to_be_down() {
    let (authority, issuer) = (Authority::start(3600), Issuer::start().await);
    let (_stub, config) = guarded(&authority, "theirs", "principal").await;
    let auth = format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n", issuer.issuer());
    let gateway = Gateway::start(&(auth + &config)).await;
    let state = || json(&status(&gateway, &["--json"]))["upstreams"][0]["state"].clone();
    until("it is known to its callers only", || state() == "auth_required").await;
    let lines = [r#"weir_upstream_healthy{upstream="theirs"} 1"#, r#"weir_upstream_failures{upstream="theirs"} 0"#];
    let text = gateway.metrics();
    assert!(lines.iter().all(|line| text.lines().any(|each| each == *line)), "{text}");
    let shown = status(&gateway, &["--json"]);
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
    assert_eq!(json(&shown)["upstreams"][0]["login"]["state"], "of_each_caller", "{shown:?}");
}
