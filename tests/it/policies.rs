//! Policies that harm: their own upstream's calls fail with their name, and the other upstreams keep answering.

use std::{fs, net::SocketAddr, time::Duration};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use weir_tests::drill::Hosts;
use weir_tests::gateway::UNREACHABLE;
use weir_tests::{Client, Gateway, Issuer, Stub};

#[tokio::test]
async fn a_hostile_policy_costs_only_its_own_upstream() {
    let stub = Stub::start().await;
    let directory = tempfile::tempdir().unwrap();
    let mut config = stub.config("good");
    let guests = [("trap", weir_guests::TRAP), ("spin", weir_guests::SPIN), ("bomb", weir_guests::BOMB)];
    for (name, component) in guests {
        let file = directory.path().join(format!("{name}.wasm"));
        fs::write(&file, component).unwrap();
        config += &stub.config(name);
        config += &format!("[[upstreams.{name}.policies]]\ncomponent = {:?}\n", file.display().to_string());
    }
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["good"]).await;
    let good = Client::legacy(&gateway, "/mcp/good").await;
    for (name, _) in guests {
        let refused =
            gateway.send(weir_tests::client::initialize(&format!("/mcp/{name}"), "2025-11-25", &json!({}))).await;
        let answer = refused.json().await;
        let said =
            answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{name} is no policy, and yet: {answer}"));
        assert!(said.contains(&format!("{name}.wasm")), "the policy is named: {said}");
        good.call("echo", json!({ "message": "still here" })).await;
    }
}

#[tokio::test]
async fn a_component_of_the_wrong_world_stops_the_start() {
    let stub = Stub::start().await;
    let directory = tempfile::tempdir().unwrap();
    let (component, file) = (directory.path().join("stranger.wasm"), directory.path().join("weir.toml"));
    fs::write(&component, weir_guests::STRANGER).unwrap();
    let policies = format!("[[upstreams.a.policies]]\ncomponent = {:?}\n", component.display().to_string());
    fs::write(&file, stub.config("a") + &policies).unwrap();
    let checked =
        std::process::Command::new(weir_tests::paths::weir()).arg("check").arg("-c").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(64), "{said}");
    assert!(said.contains("stranger.wasm"), "{said}");
}

/// What `weir policy inspect` says of a component, and how it ends.
fn inspected(component: &[u8], more: &[&str]) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.wasm");
    fs::write(&file, component).unwrap();
    let mut command = std::process::Command::new(weir_tests::paths::weir());
    let output = command.args(["policy", "inspect"]).arg(&file).args(more).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.code(), said)
}

#[test]
fn a_component_is_looked_into_before_it_is_used() {
    let (code, said) = inspected(weir_guests::MASK_CARDS, &[]);
    assert_eq!(code, Some(0), "{said}");
    for line in [
        "decides  calls: what becomes of requests, answers and entries of lists",
        "answers with text",
        "could    answer what it is asked, and nothing else",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let (code, said) = inspected(weir_guests::JUDGE, &["--json", "--settings", r#"{"see":"tools","do":""}"#]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|why| panic!("{why}: {said}"));
    assert_eq!((code, &said["decides"], &said["grants"]), (Some(0), &json!(["calls"]), &json!(["clock", "store"])));
    assert_eq!(said["sees"]["entries"], json!(["tool"]), "{said}");
    // What is of another world is no policy.
    let (code, said) = inspected(weir_guests::STRANGER, &[]);
    assert!(code == Some(1) && said.contains("policy.wasm"), "{said}");
    let (code, said) = inspected(b"not wasm", &[]);
    assert!(code == Some(1) && said.contains("policy.wasm"), "{said}");
}

/// What `weir policy` says of a component and a case file, and how it ends.
fn tried(component: &[u8], case: &serde_json::Value) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("policy.wasm"), component).unwrap();
    fs::create_dir(directory.path().join("cases")).unwrap();
    fs::write(directory.path().join("cases/one.json"), case.to_string()).unwrap();
    let mut command = std::process::Command::new(weir_tests::paths::weir());
    let output = command.current_dir(&directory).args(["policy", "test", "policy.wasm"]).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.code(), said)
}

#[test]
fn a_component_is_tried_without_a_gateway() {
    let case = |text: &str| {
        json!({
            "questions": [{
                "ask": "after",
                "with": { "what": { "result": { "text": "paid with 4111 1111 1111 1111" } } },
                "expect": { "verdict": { "replace": { "text": text } } },
            }]
        })
    };
    let (code, said) = tried(weir_guests::MASK_CARDS, &case("paid with **** **** **** 1111"));
    assert_eq!((code, said.contains("1 questions")), (Some(0), true), "{said}");
    let (code, said) = tried(weir_guests::MASK_CARDS, &case("paid with something else"));
    assert_eq!(code, Some(1), "{said}");
    let expected = "question 1 (after): verdict.replace.text\n        expected  \"paid with something else\"\n        found     \
                    \"paid with **** **** **** 1111\"";
    assert!(said.contains(expected), "{said}");
    let mut wrong = case("");
    wrong["questions"][0]["with"] = json!({ "about": { "nam": "echo" } });
    let (code, said) = tried(weir_guests::MASK_CARDS, &wrong);
    assert!(code == Some(1) && said.contains("with.about has no nam; it has id, upstream, endpoint"), "{said}");
    // Counts in the store last for a file; services answer as it says.
    let calls = json!({
        "settings": { "see": "facts", "do": "calls=1" },
        "questions": [
            { "ask": "before", "expect": { "verdict": "allow", "labels": [["count", "1"]] } },
            { "ask": "before", "expect": { "verdict": { "deny": { "text": "these were your 1 calls" } } } },
        ]
    });
    let (code, said) = tried(weir_guests::JUDGE, &calls);
    assert_eq!(code, Some(0), "{said}");
    let cases = weir_tests::paths::tests().with_file_name("guest/examples/token-service/cases/keys.json");
    let keys = serde_json::from_slice(&fs::read(cases).unwrap()).unwrap();
    let (code, said) = tried(weir_guests::TOKEN_SERVICE, &keys);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = tried(weir_guests::SPIN, &json!({ "questions": [{ "ask": "next", "expect": "stop" }] }));
    assert!(code == Some(1) && said.contains("policy.wasm gave no answer in time"), "{said}");
}

#[test]
fn what_is_tried_keeps_no_more_than_in_a_gateway() {
    let case = json!({
        "settings": { "see": "facts", "do": "hoard" },
        "questions": [{
            "ask": "before",
            "with": { "about": { "method": "tools/call" } },
            "expect": { "verdict": { "deny": {
                "text": "Err(StoreError::Limit(\"a policy keeps at most 2 MiB for one upstream\"))"
            } } },
        }]
    });
    let (code, said) = tried(weir_guests::JUDGE, &case);
    assert_eq!(code, Some(0), "{said}");
}

/// The image compiles what the binary brings along.
#[test]
fn what_is_compiled_ahead_is_not_compiled_again() {
    let directory = tempfile::tempdir().unwrap();
    let root = weir_tests::paths::tests().parent().unwrap();
    let image = fs::read_to_string(root.join("Dockerfile")).unwrap();
    let named: Vec<&str> = image.split_whitespace().filter(|word| word.starts_with("weir:")).collect();
    let shipped = fs::read_dir(root.join("guest/policies")).unwrap();
    for policy in shipped.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
        assert!(named.contains(&&*format!("weir:{policy}")), "the image does not compile weir:{policy}: {named:?}");
    }
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(weir_tests::paths::weir());
        command.current_dir(&directory).env("XDG_CACHE_HOME", directory.path()).args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let mut list = std::process::Command::new("find");
        let found = list.arg(directory.path()).args([
            "-type",
            "f",
            "-path",
            "*compiled*",
            "-not",
            "-name",
            "*.stats",
            "-not",
            "-name",
            ".*",
        ]);
        let mut files: Vec<_> =
            String::from_utf8(found.output().unwrap().stdout).unwrap().lines().map(str::to_owned).collect();
        files.sort_unstable();
        files
    };
    let compiled = run(&[&["policy", "compile"][..], &named].concat());
    assert!(compiled.len() >= named.len(), "{compiled:?}");
    assert_eq!(run(&["policy", "inspect", "weir:redact"]), compiled);
}

/// What the contract promises to those who have built a component: it is asked the same, and understood, by each later Weir.
#[test]
fn components_built_against_released_contracts_are_still_asked_and_understood() {
    let contracts = weir_tests::paths::tests().join("contracts");
    let folders = |path: &std::path::Path| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut tried = 0;
    for version in folders(&contracts).filter(|path| path.is_dir()) {
        for component in folders(&version).filter(|file| file.extension().is_some_and(|name| name == "wasm")) {
            let mut command = std::process::Command::new(weir_tests::paths::weir());
            command.args(["policy", "test"]).args([&component, &component.with_extension("json")]);
            let output = command.output().unwrap();
            let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
            assert!(output.status.success(), "{}: {said}", component.display());
            tried += 1;
        }
    }
    assert!(tried >= 3, "each interface has a component");
}

/// A service that hands out a key for each request, named after the team that asks, on one connection each.
async fn key_service() -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        for number in 1.. {
            let (mut connection, _) = listener.accept().await.unwrap();
            let (mut request, mut part) = (String::new(), vec![0; 4096]);
            while !request.ends_with('}') {
                let length = connection.read(&mut part).await.unwrap();
                request += std::str::from_utf8(&part[..length]).unwrap();
            }
            assert!(request.starts_with("POST /mint "), "{request}");
            let (_, body) = request.split_once("\r\n\r\n").unwrap();
            let asked: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(asked["upstream"], "minted");
            let body =
                json!({ "key": format!("minted-{}-{number}", asked["team"].as_str().unwrap()), "expires_in": 600 });
            let body = body.to_string();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            connection.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (address, serving)
}

/// A service that sends whoever asks to an address of its choice.
async fn redirecting_service(to: SocketAddr) -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            assert_ne!(connection.read(&mut [0; 4096]).await.unwrap(), 0);
            let answer = format!("HTTP/1.1 307 Moved\r\nlocation: http://{to}/mint\r\ncontent-length: 0\r\n\r\n");
            connection.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (address, serving)
}

#[tokio::test]
async fn a_policy_gets_a_key_for_each_team_from_a_service_that_the_configuration_names() {
    const AUDIENCE: &str = "https://weir.example/mcp";
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let (service, _serving) = key_service().await;
    let (private, _private) = key_service().await;
    let (moved, _moved) = redirecting_service(private).await;
    let directory = tempfile::tempdir().unwrap();
    let component = directory.path().join("token_service.wasm");
    fs::write(&component, weir_guests::TOKEN_SERVICE).unwrap();
    let policy = |name: &str, service: SocketAddr, allowed: &str, more: &str| {
        let granted = format!("grants = [\"http\", \"log\"]\nhttp = [\"http://{allowed}\"]\n{more}\n");
        decided(&stub, name, &component, &format!("{granted}settings = {{ service = \"http://{service}/mint\" }}\n"))
    };
    let config = format!("[auth]\nissuer = {:?}\naudience = {AUDIENCE:?}\n", issuer.issuer())
        + &policy("minted", service, &service.to_string(), "")
        + &policy("elsewhere", service, "tokens.example.com", "")
        + &policy("reading", service, &service.to_string(), "http_methods = [\"GET\"]")
        + &policy("moved", moved, &moved.to_string(), "");
    let gateway = Gateway::start(&config).await;
    for (caller, team) in [("ada", "blue"), ("eve", "red")] {
        let mut claims = issuer.claims(caller, AUDIENCE);
        claims["team"] = json!(team);
        let client = Client::legacy_with(&gateway, "/mcp/minted", &issuer.sign(&claims), &json!({})).await;
        for _ in 0..2 {
            client.call("echo", json!({ "message": team })).await;
        }
        let used: Vec<_> =
            stub.asked("tools/call").iter().map(|seen| seen.header("authorization").unwrap().to_owned()).collect();
        let of_team: Vec<_> = used.iter().filter(|key| key.starts_with(&format!("Bearer minted-{team}-"))).collect();
        assert_eq!(of_team.len(), 2, "{used:?}");
        assert_eq!(of_team[0], of_team[1], "one answer of the service is kept");
        let client = Client::modern(&gateway, "/mcp").with_token(&issuer.sign(&claims));
        client.ask("tools/call", json!({ "name": "elsewhere__echo", "arguments": {} })).await;
        client.ask("tools/call", json!({ "name": "reading__echo", "arguments": {} })).await;
        client.ask("tools/call", json!({ "name": "moved__echo", "arguments": {} })).await;
    }
    gateway.logs("is not named in the configuration; to allow it, write: http = ").await;
    gateway.logs("it redirects to another origin").await;
    gateway.logs("POST is not allowed; to allow it, write: http_methods = ").await;
    assert!(!gateway.log().contains("minted-blue"), "{}", gateway.log());
}

/// The configuration names the service. Who answers for its name must not lead a policy to this machine.
#[tokio::test]
async fn a_service_whose_name_leads_to_this_machine_is_not_asked() {
    const AUDIENCE: &str = "https://weir.example/mcp";
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let Some(hosts) = Hosts::new() else { return eprintln!("skipped: no process may have a file of hosts here") };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let service = format!("https://{}:{}", Hosts::NAME, listener.local_addr().unwrap().port());
    let directory = tempfile::tempdir().unwrap();
    let component = directory.path().join("token_service.wasm");
    fs::write(&component, weir_guests::TOKEN_SERVICE).unwrap();
    let more =
        format!("grants = [\"http\", \"log\"]\nhttp = [{service:?}]\nsettings = {{ service = \"{service}/mint\" }}\n");
    let auth = format!("[auth]\nissuer = {:?}\naudience = {AUDIENCE:?}\n", issuer.issuer());
    let config = auth + &decided(&stub, "minted", &component, &more);
    let gateway = Gateway::start_by(&config, &Hosts::ENVIRONMENT, |command| hosts.seen_by(&command)).await;
    let mut claims = issuer.claims("ada", AUDIENCE);
    claims["team"] = json!("blue");
    let client = Client::modern(&gateway, "/mcp").with_token(&issuer.sign(&claims));
    client.ask("tools/call", json!({ "name": "minted__echo", "arguments": {} })).await;
    gateway.logs("its host name leads to ").await;
    assert!(timeout(Duration::from_millis(100), listener.accept()).await.is_err(), "nobody has been here");
}

/// What a component knows when it fails stays with it, with all that can be logged: its message is there without the secret.
#[tokio::test]
async fn a_policy_that_panics_with_a_secret_tells_nobody() {
    const SECRET: &str = "leaked-5b1f0c77";
    let stub = Stub::start().await;
    let directory = tempfile::tempdir().unwrap();
    let component = directory.path().join("leaker.wasm");
    fs::write(&component, weir_guests::LEAKER).unwrap();
    let policy = format!(
        "[[upstreams.u.policies]]\ncomponent = {:?}\ngrants = [\"log\", \"secrets\"]\n\
         secrets = {{ token = {{ env = \"LEAKED\" }} }}\n",
        component.display().to_string()
    );
    let config = stub.config("u") + &policy;
    let gateway = Gateway::start_with(&config, &[("LEAKED", SECRET), ("RUST_LOG", weir_tests::terminal::TRACE)]).await;
    gateway.logs(UNREACHABLE).await;
    let call = json!({ "name": "u__echo", "arguments": {} });
    for client in [Client::modern(&gateway, "/mcp"), Client::legacy(&gateway, "/mcp").await] {
        let answer = client.ask("tools/call", call.clone()).await.to_string();
        assert!(answer.contains("leaker.wasm") && !answer.contains(SECRET), "{answer}");
    }
    gateway.logs("it is Some(\\\"[secret token]\\\")").await;
    assert!(!gateway.log().contains(SECRET), "{}", gateway.log());
    assert!(stub.seen().is_empty());
}

/// An upstream whose credentials a component decides about, for each caller.
fn decided(stub: &Stub, name: &str, component: &std::path::Path, more: &str) -> String {
    stub.config(name)
        + "owner = \"principal\"\n"
        + &format!("[[upstreams.{name}.policies]]\ncomponent = {:?}\n{more}", component.display().to_string())
}

#[tokio::test]
async fn what_a_policy_says_reaches_its_caller_and_the_log_and_nobody_is_sent_to_sign_in() {
    const AUDIENCE: &str = "https://weir.example/mcp";
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let directory = tempfile::tempdir().unwrap();
    let guests = [
        ("team", weir_guests::MINIMAL, ""),
        ("trap", weir_guests::TRAP, ""),
        ("spin", weir_guests::SPIN, ""),
        (
            "liar",
            weir_guests::LIAR,
            "settings = { lie = \"secret=other\" }\nsecrets = { token = { env = \"PATH\" } }\n",
        ),
    ];
    let mut config = format!("[auth]\nissuer = {:?}\naudience = {AUDIENCE:?}\n", issuer.issuer());
    for (name, component, more) in guests {
        let file = directory.path().join(format!("{name}.wasm"));
        fs::write(&file, component).unwrap();
        config += &match name {
            "spin" => stub.config(name) + &format!("[[upstreams.spin.policies]]\ncomponent = {file:?}\n"),
            _ => decided(&stub, name, &file, more),
        };
    }
    let gateway = Gateway::start(&config).await;
    let without = issuer.token("ada", AUDIENCE);
    let mut claims = issuer.claims("eve", AUDIENCE);
    claims["team"] = json!("blue");
    let with = issuer.sign(&claims);

    let said = [
        ("team", "team.wasm stopped: your token has no team; ask the platform team"),
        ("trap", "trap.wasm failed: wasm trap: wasm `unreachable` instruction executed"),
        ("spin", "spin.wasm gave no answer in time"),
        ("liar", "liar.wasm gave an answer that cannot be used: it chose the secret \"other\""),
    ];
    let modern = Client::modern(&gateway, "/mcp").with_token(&without);
    let legacy = Client::legacy_with(&gateway, "/mcp", &without, &json!({})).await;
    for (name, text) in said {
        for client in [&modern, &legacy] {
            let call = json!({ "name": format!("{name}__echo"), "arguments": { "message": "hi" } });
            let answer = client.ask("tools/call", call).await;
            let told = answer["error"]["message"].as_str().unwrap_or_default();
            assert!(told.contains(&format!("upstream `{name}`")) && told.contains(text), "{answer}");
            let answer = answer.to_string();
            assert!(!answer.contains("sign in") && !answer.contains("http://"), "{answer}");
        }
        gateway.logs(&text.replace('"', "\\\"")).await;
    }
    assert!(!gateway.log().contains("needs a sign-in"), "{}", gateway.log());

    // One policy, and another caller: what it decides is theirs alone.
    let blue = Client::modern(&gateway, "/mcp").with_token(&with);
    assert!(blue.tools().await.contains(&"team__echo".to_owned()));
    blue.call("team__echo", json!({ "message": "hi" })).await;
    let called = stub.asked("tools/call");
    assert_eq!(called.iter().map(|seen| seen.header("x-caller")).collect::<Vec<_>>(), [Some("eve")]);
}

/// Nobody can sign in where a policy stops, or fails, before the upstream has asked for anything.
#[tokio::test]
async fn a_policy_that_stops_is_an_error_and_no_login_that_is_missing() {
    let stub = Stub::start().await;
    let directory = tempfile::tempdir().unwrap();
    let cases = [
        ("stops", weir_guests::MINIMAL, "stops.wasm stopped: nobody is calling"),
        ("lies", weir_guests::LIAR, "lies.wasm gave an answer that cannot be used"),
    ];
    let mut config = String::new();
    for (name, component, _) in cases {
        let file = directory.path().join(format!("{name}.wasm"));
        fs::write(&file, component).unwrap();
        config += &stub.config(name);
        config += &format!("[[upstreams.{name}.policies]]\ncomponent = {file:?}\n");
    }
    let gateway = Gateway::start(&config).await;
    gateway.settle(&["stops", "lies"], "error").await;
    let (_, body) = gateway.readiness().await;
    for (entry, (name, _, text)) in body["upstreams"].as_array().unwrap().iter().zip(cases) {
        assert_eq!(entry["name"], name);
        assert!(entry["error"].as_str().unwrap().contains(text), "{entry}");
    }
    assert!(stub.seen().is_empty());
}

#[tokio::test]
async fn an_owner_that_nobody_decides_for_stops_the_start() {
    let stub = Stub::start().await;
    let directory = tempfile::tempdir().unwrap();
    let (component, file) = (directory.path().join("wasi.wasm"), directory.path().join("weir.toml"));
    fs::write(&component, weir_guests::WASI).unwrap();
    let auth = "[auth]\nissuer = \"https://login.example\"\naudience = \"https://weir.example/mcp\"\n";
    fs::write(&file, auth.to_owned() + &decided(&stub, "a", &component, "")).unwrap();
    let checked =
        std::process::Command::new(weir_tests::paths::weir()).arg("check").arg("-c").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(64), "{said}");
    assert!(said.contains("upstream `a`: `owner = \"principal\"` goes with a login, or with a policy"), "{said}");
}
