//! Clients of the modern era at servers of the legacy one, through the whole gateway.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

/// No step takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A gateway with one legacy upstream, `old`.
struct Gateway {
    weir: Child,
    peer: Option<Child>,
    folder: PathBuf,
    address: String,
}

/// An answer as it comes.
struct Answer {
    status: u16,
    from: BufReader<TcpStream>,
    length: Option<usize>,
}

impl Gateway {
    fn start(transport: &str, test: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/translate/legacy.py");
        let mut peer = None;
        let reach = if transport != "stdio" {
            let (stdin, stdout) = (Stdio::piped(), Stdio::piped());
            let mut child =
                Command::new("python3").args([script, transport]).stdin(stdin).stdout(stdout).spawn().unwrap();
            let port = first_line(child.stdout.take().unwrap(), |_| true);
            peer = Some(child);
            format!("url = \"http://127.0.0.1:{port}/mcp\"")
        } else {
            format!("command = \"python3\"\nargs = [{script:?}, \"stdio\"]")
        };
        let folder = std::env::temp_dir().join(format!("weir-translate-{}-{test}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let config = folder.join("weir.toml");
        fs::write(&config, format!("listen = \"127.0.0.1:0\"\n[upstreams.old]\n{reach}\n")).unwrap();
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        let weir = weir.arg("serve").arg("--config").arg(&config).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut weir = weir.spawn().unwrap();
        let ready = first_line(weir.stderr.take().unwrap(), |line| line.contains("Weir is ready for clients"));
        let ready: Value = serde_json::from_str(&ready).unwrap();
        let url = ready["fields"]["url"].as_str().unwrap();
        let address = url.strip_prefix("http://").unwrap().strip_suffix("/mcp").unwrap().to_owned();
        Self { weir, peer, folder, address }
    }

    fn post(&self, path: &str, method: &str, params: Value, capabilities: Value) -> Answer {
        Answer::read(self.post_only(path, method, params, capabilities))
    }

    /// Posts a request whose answer is read later.
    fn post_only(&self, path: &str, method: &str, mut params: Value, capabilities: Value) -> TcpStream {
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
        params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({"name": "test", "version": "1"});
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
        let target = params.get("name").or(params.get("uri")).or(params.get("taskId"));
        let name = target.and_then(Value::as_str);
        let name = name.map_or_else(String::new, |name| format!("Mcp-Name: {name}\r\n"));
        let body = json!({"jsonrpc": "2.0", "id": "id", "method": method, "params": params}).to_string();
        let mut to = TcpStream::connect(&self.address).unwrap();
        to.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(
            to,
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        to
    }

    fn ask(&self, method: &str, params: Value) -> Value {
        self.post("/mcp/old", method, params, json!({})).last()
    }

    fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// A call of a client that can be asked.
    fn call_asking(&self, mut params: Value) -> Value {
        params["name"] = params.get("name").cloned().unwrap_or(json!("ask"));
        self.post("/mcp/old", "tools/call", params, json!({"elicitation": {}})).last()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.weir.kill());
        drop(self.weir.wait());
        if let Some(peer) = &mut self.peer {
            drop(peer.kill());
            drop(peer.wait());
        }
        drop(fs::remove_dir_all(&self.folder));
    }
}

impl Answer {
    fn read(stream: TcpStream) -> Self {
        let mut answer = Self { status: 0, from: BufReader::new(stream), length: None };
        let head = answer.line();
        answer.status = head.split(' ').nth(1).unwrap().parse().unwrap();
        loop {
            let line = answer.line().to_ascii_lowercase();
            if line.is_empty() {
                return answer;
            }
            if let Some(length) = line.strip_prefix("content-length:") {
                answer.length = Some(length.trim().parse().unwrap());
            }
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "the answer ended");
        line.trim_end().to_owned()
    }

    /// The next message.
    fn next(&mut self) -> Value {
        if let Some(length) = self.length {
            let mut body = vec![0; length];
            self.from.read_exact(&mut body).unwrap();
            return serde_json::from_slice(&body).unwrap();
        }
        loop {
            if let Some(data) = self.line().strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
    }

    /// All messages, to the answer.
    fn all(mut self) -> Vec<Value> {
        let mut all = vec![self.next()];
        while all.last().unwrap().get("method").is_some() {
            all.push(self.next());
        }
        all
    }

    fn last(self) -> Value {
        let last = self.all().pop().unwrap();
        assert_eq!(last["id"], "id");
        last
    }
}

fn first_line(from: impl Read, wanted: impl Fn(&str) -> bool) -> String {
    let lines = BufReader::new(from).lines();
    lines.map(Result::unwrap).find(|line| wanted(line)).unwrap()
}

fn text(answer: &Value) -> Value {
    let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    serde_json::from_str(text).unwrap_or_else(|_| json!(text))
}

fn accepted(key: &str, field: &str, value: &str) -> Value {
    json!({ key: {"action": "accept", "content": {field: value}} })
}

#[test]
fn http_answers_are_modern() {
    answers_are_modern(&Gateway::start("http", "answers-http"));
}

#[test]
fn stdio_answers_are_modern() {
    answers_are_modern(&Gateway::start("stdio", "answers-stdio"));
}

fn answers_are_modern(weir: &Gateway) {
    let found = weir.ask("server/discover", json!({}))["result"].take();
    assert_eq!(found["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!((&found["resultType"], &found["cacheScope"]), (&json!("complete"), &json!("private")));
    assert_eq!(found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "legacy-peer");
    assert_eq!((&found["capabilities"]["tasks"], &found["instructions"]), (&Value::Null, &json!("Ask.")));

    let list = weir.ask("tools/list", json!({}))["result"].take();
    assert_eq!((&list["tools"][0]["name"], &list["ttlMs"]), (&json!("echo"), &json!(0)));
    let merged = weir.post("/mcp", "tools/list", json!({}), json!({})).last()["result"].take();
    assert_eq!((&merged["tools"][0]["name"], &merged["cacheScope"]), (&json!("old__echo"), &json!("private")));
    let named = json!({"name": "old__echo", "arguments": {"a": 1}});
    let echoed = weir.post("/mcp", "tools/call", named, json!({})).last();
    assert_eq!((text(&echoed), &echoed["result"]["resultType"]), (json!({"a": 1}), &json!("complete")));

    let seen = weir.ask("tools/call", json!({"name": "seen", "_meta": {"k": 1}, "inputResponses": {}}));
    let seen = text(&seen);
    assert_eq!((&seen["params"], &seen["meta"]), (&json!(["_meta", "name"]), &json!(["k"])));
    assert!(seen["headers"].as_array().unwrap().iter().all(|name| name != "mcp-method" && name != "mcp-name"));
    assert_eq!(seen["client"]["clientInfo"]["name"], "weir", "clients of any name share the session");

    assert_eq!(weir.ask("resources/read", json!({"uri": "x:y"}))["error"]["code"], -32602);
    let unknown = weir.post("/mcp/old", "no/such", json!({}), json!({}));
    assert_eq!((unknown.status, &unknown.last()["error"]["code"]), (404, &json!(-32601)));
    assert_eq!(weir.ask("tasks/get", json!({"taskId": "t"}))["error"]["code"], -32601);
    let sign_in = weir.call("sign_in", json!({}));
    assert_eq!(sign_in["result"]["isError"], true);
    assert_eq!(text(&sign_in), "Sign in\nHere https://sign.in.test/x");
}

#[test]
fn http_notifications_find_their_request() {
    notifications_find_their_request(&Gateway::start("http", "notifications-http"));
}

#[test]
fn stdio_notifications_find_their_request() {
    notifications_find_their_request(&Gateway::start("stdio", "notifications-stdio"));
}

fn notifications_find_their_request(weir: &Gateway) {
    let report = |meta: Value| {
        let params = json!({"name": "report", "arguments": {}, "_meta": meta});
        let mut all = weir.post("/mcp/old", "tools/call", params, json!({})).all();
        let answer = all.pop().unwrap();
        (all, text(&answer))
    };
    assert_eq!(report(json!({})), (vec![], json!("none")));
    let (heard, level) = report(json!({"progressToken": "p", "io.modelcontextprotocol/logLevel": "info"}));
    let logged: Vec<_> = heard.iter().filter_map(|message| message["params"]["level"].as_str()).collect();
    let tokens: Vec<_> = heard.iter().filter_map(|message| message["params"]["progressToken"].as_str()).collect();
    assert_eq!((logged, tokens, level), (vec!["info", "error"], vec!["p", "p"], json!("debug")));
    assert_eq!(report(json!({})).0, Vec::<Value>::new());
}

#[test]
fn http_questions_become_answers_that_ask() {
    questions_become_answers_that_ask(&Gateway::start("http", "questions-http"));
}

#[test]
fn stdio_questions_become_answers_that_ask() {
    questions_become_answers_that_ask(&Gateway::start("stdio", "questions-stdio"));
}

fn questions_become_answers_that_ask(weir: &Gateway) {
    let arguments = json!({"fields": ["name", "color"]});
    let first = weir.call_asking(json!({"arguments": arguments}))["result"].take();
    assert_eq!(first["resultType"], "input_required");
    let question = &first["inputRequests"]["user_name"];
    assert_eq!((&question["method"], &question["params"]["message"]), (&json!("elicitation/create"), &json!("name")));
    assert_eq!(question["params"]["_meta"], Value::Null);

    // What is not answered is asked again, under another state.
    let again = json!({"arguments": arguments, "requestState": first["requestState"], "inputResponses": {"x": {}}});
    let again = weir.call_asking(again)["result"].take();
    assert_eq!(again["inputRequests"]["user_name"], *question);
    let state = &again["requestState"];
    assert_ne!(*state, first["requestState"]);

    let answers = accepted("user_name", "name", "Ada");
    let stale = json!({"requestState": first["requestState"], "inputResponses": answers});
    assert_eq!(weir.call_asking(stale)["error"]["code"], -32602);
    let mut tampered = state.as_str().unwrap().to_owned();
    tampered.replace_range(20..21, if &tampered[20..21] == "A" { "B" } else { "A" });
    assert_eq!(weir.call_asking(json!({"requestState": tampered, "inputResponses": answers}))["error"]["code"], -32602);
    let elsewhere = json!({"name": "echo", "requestState": state, "inputResponses": answers});
    assert_eq!(weir.call_asking(elsewhere)["error"]["code"], -32602);

    let second = weir.call_asking(json!({"requestState": state, "inputResponses": answers}))["result"].take();
    assert_eq!(second["inputRequests"]["user_color"]["params"]["message"], "color");
    let answers = accepted("user_color", "color", "red");
    let last = weir.call_asking(json!({"requestState": second["requestState"], "inputResponses": answers}));
    assert_eq!(text(&last), json!([{"name": "Ada"}, {"color": "red"}]));

    // A client that declares nothing is asked nothing.
    let refused = text(&weir.call("ask", json!({"fields": ["name"]})));
    assert_eq!(refused[0]["code"], -32601);
    let client = text(&weir.call("seen", json!({})))["client"].take();
    assert_eq!(client["capabilities"], json!({}));
}

#[test]
fn http_questions_reach_no_other_call() {
    questions_reach_no_other_call(&Gateway::start("http", "others-http"));
}

#[test]
fn stdio_questions_reach_no_other_call() {
    questions_reach_no_other_call(&Gateway::start("stdio", "others-stdio"));
}

fn questions_reach_no_other_call(weir: &Gateway) {
    let signal = weir.folder.join("go");
    let post = |params: Value| weir.post_only("/mcp/old", "tools/call", params, json!({"elicitation": {}}));
    let asking = post(json!({"name": "ask", "arguments": {"fields": ["name"], "until": signal}}));
    let mut other = Answer::read(post(json!({"name": "wait", "_meta": {"progressToken": 1}})));
    assert_eq!(other.next()["params"]["progress"], 1);
    fs::write(&signal, "").unwrap();
    let asked = Answer::read(asking).last();
    assert_eq!(asked["result"]["inputRequests"]["user_name"]["params"]["message"], "name");
    // What waits for its client is nobody's but its client's.
    let third = weir.call_asking(json!({"arguments": {"fields": ["color"]}}));
    assert_eq!(third["result"]["inputRequests"]["user_color"]["params"]["message"], "color");
    for (asked, key, field, value) in [(third, "user_color", "color", "red"), (asked, "user_name", "name", "Ada")] {
        let state = &asked["result"]["requestState"];
        let last = weir.call_asking(json!({"requestState": state, "inputResponses": accepted(key, field, value)}));
        assert_eq!(text(&last), json!([{ field: value }]));
    }
}

#[test]
fn clients_that_never_answer_make_way() {
    let weir = Gateway::start("stdio", "way");
    let ask = || weir.call_asking(json!({"arguments": {"fields": ["name"]}}))["result"]["requestState"].take();
    let states: Vec<Value> = std::iter::repeat_with(ask).take(6).collect();
    let answer = |state: &Value| {
        weir.call_asking(json!({"requestState": state, "inputResponses": accepted("user_name", "name", "Ada")}))
    };
    assert_eq!(answer(&states[0])["error"]["code"], -32602);
    assert_eq!(text(&answer(&states[5])), json!([{"name": "Ada"}]));
}

#[test]
fn http_clients_that_go_away_cancel() {
    clients_that_go_away_cancel(&Gateway::start("http", "cancel-http"));
}

#[test]
fn stdio_clients_that_go_away_cancel() {
    clients_that_go_away_cancel(&Gateway::start("stdio", "cancel-stdio"));
}

fn clients_that_go_away_cancel(weir: &Gateway) {
    let before = text(&weir.call("session", json!({})));
    let params = json!({"name": "wait", "_meta": {"progressToken": 1}});
    let mut waiting = weir.post("/mcp/old", "tools/call", params, json!({}));
    assert_eq!(waiting.next()["params"]["progress"], 1);
    drop(waiting);
    assert_eq!(text(&weir.call("cancelled", json!({}))), "yes");
    assert_eq!(text(&weir.call("session", json!({}))), before);
    let other = weir.post("/mcp/old", "tools/call", json!({"name": "session"}), json!({"roots": {}})).last();
    assert_ne!(text(&other), before);
}

#[test]
fn http_subscriptions_are_fed() {
    subscriptions_are_fed(&Gateway::start("http", "subscriptions-http"));
}

#[test]
fn stdio_subscriptions_are_fed() {
    subscriptions_are_fed(&Gateway::start("stdio", "subscriptions-stdio"));
}

fn subscriptions_are_fed(weir: &Gateway) {
    let wish = json!({"toolsListChanged": true, "promptsListChanged": true, "resourceSubscriptions": ["x:a", "x:b"]});
    let mut heard = weir.post("/mcp/old", "subscriptions/listen", json!({"notifications": wish}), json!({}));
    let granted = json!({"toolsListChanged": true, "resourceSubscriptions": ["x:a", "x:b"]});
    let mut next = || {
        let message = heard.next();
        assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "id");
        message
    };
    assert_eq!(next()["params"]["notifications"], granted);
    assert_eq!(text(&weir.call("touch", json!({}))), "touched");
    assert_eq!(next()["method"], "notifications/tools/list_changed");
    let uris = [next(), next()].map(|message| message["params"]["uri"].as_str().unwrap().to_owned());
    assert_eq!(uris, ["x:a", "x:b"]);
}

#[test]
fn what_is_not_granted_is_confirmed_to_nobody() {
    let weir = Gateway::start("http", "refused");
    let signal = weir.folder.join("go");
    let wish = json!({"notifications": {"resourceSubscriptions": [format!("refused:{}", signal.display())]}});
    let listen = || weir.post_only("/mcp/old", "subscriptions/listen", wish.clone(), json!({}));
    let both = [listen(), listen()];
    fs::write(&signal, "").unwrap();
    for listening in both {
        assert_eq!(Answer::read(listening).next()["params"]["notifications"], json!({}));
    }
}

#[test]
fn an_upstream_that_is_busy_is_listened_to_later() {
    let weir = Gateway::start("busy", "busy");
    let wish = json!({"notifications": {"toolsListChanged": true, "resourceSubscriptions": ["x:a"]}});
    let mut heard = weir.post("/mcp/old", "subscriptions/listen", wish, json!({}));
    assert_eq!(heard.next()["params"]["notifications"]["toolsListChanged"], true);
    // What it said meanwhile is unknown.
    assert_eq!(heard.next()["method"], "notifications/tools/list_changed");
    assert_eq!(heard.next()["params"]["uri"], "x:a");
    assert_eq!(text(&weir.call("touch", json!({}))), "touched");
    assert_eq!(heard.next()["method"], "notifications/tools/list_changed");
    assert_eq!(heard.next()["params"]["uri"], "x:a");
}

#[test]
fn a_session_is_opened_whatever_becomes_of_its_client() {
    let weir = Gateway::start("http", "gone");
    let signal = weir.folder.join("go");
    let slow = json!({"experimental": {"until": {"path": signal}}});
    let call = || weir.post_only("/mcp/old", "tools/call", json!({"name": "alike"}), slow.clone());
    let first = call();
    first.shutdown(std::net::Shutdown::Both).unwrap();
    let second = call();
    fs::write(&signal, "").unwrap();
    assert_eq!(text(&Answer::read(second).last()), 2, "Weir's own for its lists, and one for both calls");
}

#[test]
fn a_session_that_is_gone_is_opened_again() {
    let weir = Gateway::start("http", "healing-http");
    let before = text(&weir.call("session", json!({})));
    weir.call("forget", json!({}));
    let after = text(&weir.call("session", json!({})));
    assert_ne!(before, after);
    assert_eq!(text(&weir.call("echo", json!({"b": 2}))), json!({"b": 2}));
}
