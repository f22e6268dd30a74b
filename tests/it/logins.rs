//! Upstreams that want a login, through a gateway and from a terminal, with a real authorization server.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use tokio::task::JoinSet;
use weir_tests::gateway::{NEEDS_SIGN_IN, UNREACHABLE};
use weir_tests::terminal::{
    ALONE, ENVIRONMENT, KEY, SECRET, auth, calling, config, config_beside, echo, ended, failed, lines, page, sign_in,
    start, tells,
};
use weir_tests::tokens::{claims, encoded, token};
use weir_tests::wait::until;
use weir_tests::{Authority, Client, Gateway, Request, Stub, paths};

/// What the other tests here rest upon: an upstream that believes no token but those that were made for it.
#[tokio::test]
async fn an_upstream_lets_in_whom_it_should() {
    let (authority, other) = (Authority::start(3600), Authority::start(3600));
    let upstream = authority.upstream().await;
    let status = async |token: &str| {
        let (_, request) = Client::modern_at(upstream.address(), "/mcp").with_token(token).request("ping", json!({}));
        request.send(upstream.address()).await.status
    };
    let good = token(authority.issuer(), 0, &upstream.url()).await;
    assert_eq!(status(&good).await, 200);
    // Both servers of the tests sign with the same key, so only what is signed tells them apart.
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let elsewhere = token(other.issuer(), 0, &upstream.url()).await;
    let narrow = token(authority.issuer(), 0, "http://127.0.0.1:1/mcp").await;
    let turned: String = signature.chars().rev().collect();
    for (bad, why) in [
        (elsewhere, "of another issuer"),
        (narrow, "for another resource"),
        (format!("{signed}.{turned}"), "with another signature"),
        (format!("{signed}."), "without one"),
        ("token".to_owned(), "that is none"),
    ] {
        assert_eq!(status(&bad).await, 401, "a token {why}");
    }
    upstream.hurry(3601);
    assert_eq!(status(&good).await, 401, "a token whose time is over");
}

#[tokio::test]
async fn a_gateway_signs_in_for_itself() {
    let mut authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, ALONE).await;
    gateway.healthy(&["u"]).await;
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let address = gateway.address();
        calls.spawn(async move {
            let client = Client::modern_at(address, "/mcp/u");
            client.call("echo", json!({ "message": "m" })).await
        });
    }
    assert_eq!(calls.join_all().await.len(), 20);
    assert_eq!(authority.grants("client_credentials"), 1);
    assert_eq!((lines(&gateway, "\"ERROR\""), lines(&gateway, "sign-in")), (0, 0), "{}", gateway.log());
    // Another one with the same store needs no token of its own.
    let second = Gateway::start_with(&config_beside(&gateway, &upstream, ALONE), &ENVIRONMENT).await;
    second.healthy(&["u"]).await;
    assert_eq!(authority.grants("client_credentials"), 1);
}

#[tokio::test]
async fn a_login_from_the_terminal_to_the_call_and_out_again() {
    let mut authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    // Nothing is said of a login: it is found out.
    let gateway = start(&upstream, "").await;
    gateway.logs(NEEDS_SIGN_IN).await;
    assert!(!gateway.directory().join("logins.redb").exists(), "a store was made for nobody");
    let (code, said) = ended(auth(&gateway, &["list"])).await;
    assert_eq!((code, said.matches("u  detected  not signed in").count()), (Some(0), 1), "{said}");
    sign_in(&gateway, &[]).await;
    // Nobody has told the gateway.
    gateway.healthy(&["u"]).await;
    let answer = echo(&gateway).await;
    assert_eq!(answer["result"]["content"][0]["text"], "m", "{answer}");

    let (code, said) = ended(auth(&gateway, &["status", "u"])).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("signed in (scopes mcp:read; for"), "{said}");
    let (code, said) = ended(auth(&gateway, &["refresh", "u"])).await;
    assert_eq!((code, authority.grants("refresh_token")), (Some(0), 1), "{said}");
    let before = upstream.tokens().last().unwrap().clone();
    calling(&gateway, || upstream.tokens().last() != Some(&before)).await;

    let (code, said) = ended(auth(&gateway, &["logout", "u"])).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("its server has forgotten the login too"), "{said}");
    let (code, said) = ended(auth(&gateway, &["logout", "u"])).await;
    assert_eq!((code, said.contains("There is no login at u")), (Some(0), true), "{said}");
    assert_eq!(ended(auth(&gateway, &["refresh", "u"])).await.0, Some(1));
    // Before the login, and again without it: one line each.
    until("the gateway has noticed", || lines(&gateway, NEEDS_SIGN_IN) == 2).await;
    assert_eq!(lines(&gateway, "\"ERROR\""), 0, "{}", gateway.log());
    nothing_secret_is_told(&gateway, &upstream, &mut authority, &said);
}

fn nothing_secret_is_told(gateway: &Gateway, upstream: &Stub, authority: &mut Authority, said: &str) {
    let mut secrets = [authority.secrets(), upstream.tokens(), vec![KEY.to_owned(), SECRET.to_owned()]].concat();
    secrets.dedup();
    assert!(secrets.len() > 5, "{}", secrets.len());
    let store = std::fs::read(gateway.directory().join("logins.redb")).unwrap();
    let store = String::from_utf8_lossy(&store);
    for secret in secrets {
        assert!(!gateway.log().contains(&secret) && !said.contains(&secret) && !store.contains(&secret), "{secret}");
    }
}

#[tokio::test]
async fn fifty_calls_at_the_end_of_a_token_renew_it_once() {
    let mut authority = Authority::start(20);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    sign_in(&gateway, &[]).await;
    gateway.healthy(&["u"]).await;
    let client = Client::legacy(&gateway, "/mcp/u").await;
    client.call("echo", json!({ "message": "m" })).await;
    let before = authority.grants("refresh_token");
    let last = upstream.tokens().last().unwrap().clone();
    // Its time runs while nobody asks for it, and nothing that waits for it can make it run faster.
    until("the token has ended", || over(&last)).await;
    let renewed = authority.grants("refresh_token");
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let address = gateway.address();
        calls.spawn(async move { Client::modern_at(address, "/mcp/u").call("echo", json!({ "message": "m" })).await });
    }
    assert_eq!(calls.join_all().await.len(), 50);
    // What keeps the lists may have renewed it shortly before; then nobody had to.
    let after = authority.grants("refresh_token");
    assert!(after - before <= 2 && after - renewed <= 1, "{before} {renewed} {after}");
    assert!(after > 0);
    let used: std::collections::BTreeSet<String> = upstream.tokens().into_iter().collect();
    assert!(used.len() <= 3, "{}", used.len());
}

/// When a token ends, in seconds since 1970.
fn exp(token: &str) -> u64 {
    claims(token)["exp"].as_u64().unwrap()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Whether the time of a token is over.
fn over(token: &str) -> bool {
    exp(token) <= now()
}

#[tokio::test]
async fn more_scopes_are_asked_for_when_they_are_needed() {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    sign_in(&gateway, &[]).await;
    gateway.healthy(&["u"]).await;
    upstream.demand("mcp:write");
    let refused = echo(&gateway).await;
    assert!(refused.get("error").is_some() || refused["result"]["isError"] == true, "{refused}");
    gateway.logs("--scopes").await;
    assert_eq!(lines(&gateway, "\"ERROR\""), 0, "{}", gateway.log());
    sign_in(&gateway, &["--scopes", "mcp:read mcp:write"]).await;
    calling(&gateway, || upstream.tokens().last().is_some_and(|token| has(token, "mcp:write"))).await;
    assert_eq!(echo(&gateway).await["result"]["content"][0]["text"], "m");
}

/// Whoever signs in at a terminal is another process than the one that was refused.
#[tokio::test]
async fn whoever_signs_in_next_is_asked_for_the_scopes_that_were_wanted() {
    let mut authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    sign_in(&gateway, &[]).await;
    gateway.healthy(&["u"]).await;
    upstream.demand("mcp:write");
    echo(&gateway).await;
    gateway.logs("--scopes").await;
    sign_in(&gateway, &[]).await;
    let scopes = |asked: &serde_json::Value| asked["query"]["scope"].as_str().unwrap().to_owned();
    let asked = |authority: &mut Authority| {
        scopes(authority.asked("/auth").iter().rfind(|asked| asked["query"]["scope"].is_string()).unwrap())
    };
    assert!(asked(&mut authority).contains("mcp:write"), "{}", asked(&mut authority));
    calling(&gateway, || upstream.tokens().last().is_some_and(|token| has(token, "mcp:write"))).await;
    assert_eq!(echo(&gateway).await["result"]["content"][0]["text"], "m");
    // That is done, and asked for no more.
    sign_in(&gateway, &[]).await;
    assert!(!asked(&mut authority).contains("mcp:write"), "{}", asked(&mut authority));
}

fn has(token: &str, scope: &str) -> bool {
    claims(token)["scope"].as_str().unwrap().contains(scope)
}

#[tokio::test]
async fn a_terminal_that_is_interrupted_has_changed_nothing() {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    sign_in(&gateway, &[]).await;
    gateway.healthy(&["u"]).await;
    let mut process = auth(&gateway, &["login", "u", "--no-browser"]);
    page(&mut process).await;
    process.signal(rustix::process::Signal::INT);
    let (code, said) = ended(process).await;
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("Nothing was changed"), "{said}");
    assert_eq!(echo(&gateway).await["result"]["content"][0]["text"], "m");
    let (code, said) = ended(auth(&gateway, &["login", "nowhere"])).await;
    assert_eq!((code, said.contains("there is no upstream `nowhere`; known: u; `weir auth list`")), (Some(1), true));
}

#[tokio::test]
async fn an_authorization_server_that_is_away_is_one_error() {
    let mut authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    authority.stop();
    let gateway = start(&upstream, ALONE).await;
    gateway.logs(UNREACHABLE).await;
    for _ in 0..10 {
        let answer = echo(&gateway).await.to_string();
        assert!(answer.contains("no token for it could be had"), "{answer}");
    }
    // One for the upstream, one for each call, and nothing beside them.
    failed(&gateway, 10).await;
    tells(&gateway, (1, 0)).await;
    assert_eq!(lines(&gateway, "sign-in"), 0);
}

/// A real server takes it for what it is, with each address that people come back to.
#[tokio::test]
async fn the_document_that_the_pages_show_makes_weir_known() {
    let page = std::fs::read_to_string(paths::tests().join("../docs/credentials.md")).unwrap();
    let document = page.split("```json\n").skip(1).find_map(|rest| {
        let text = rest.split("```").next()?;
        text.contains("redirect_uris").then(|| serde_json::from_str::<serde_json::Value>(text).unwrap())
    });
    let document = document.expect("the page has one");
    let authority = Authority::with(&json!({ "document": document }));
    assert_eq!(document["redirect_uris"].as_array().unwrap().len(), 3);
    takes(&authority, &document).await;
}

/// Whether a server sends people back to each address of a document.
async fn takes(authority: &Authority, document: &serde_json::Value) {
    for redirect in document["redirect_uris"].as_array().unwrap() {
        let (id, back) = (document["client_id"].as_str().unwrap(), encoded(redirect.as_str().unwrap()));
        let page = format!(
            "{}/auth?response_type=code&client_id={}&redirect_uri={back}&scope=openid&code_challenge_method=S256\
             &code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM",
            authority.issuer(),
            encoded(id),
        );
        let back = redirect.as_str().unwrap().to_owned();
        let mut browser = weir_tests::Browser::new();
        let page = browser.open_until(&page, |url| url.starts_with(&back)).await;
        assert!(page.url.contains("code="), "{redirect}: {page:?}");
    }
}

/// Of a server that reads one, and of whoever registers Weir by hand.
#[tokio::test]
async fn each_server_reads_a_document_with_its_own_addresses() {
    let port = weir_tests::peer::free_port();
    let authority = Authority::with(&json!({ "port": port }));
    let upstream = authority.upstream().await;
    let public = "public_url = \"https://weir.example\"\n\
                  client_metadata_url = \"https://weir.example/client/{issuer}.json\"\n";
    let config = public.to_owned() + &config(&upstream, "auth = \"oauth\"");
    let gateway = Gateway::start_with(&config, &ENVIRONMENT).await;
    let name = authority.callback().rsplit('/').next().unwrap().to_owned();
    let id = format!("https://weir.example/client/{name}.json");
    let read = |name: &str| Request::get(&format!("/client/{name}.json")).header("host", "weir.example");
    let served = gateway.send(read(&name)).await;
    assert_eq!((served.status, served.header("content-type")), (200, Some("application/json")));
    let served = served.json().await;
    assert_eq!(served["client_id"], id);
    let back = authority.callback();
    let own = [format!("https://weir.example{back}"), format!("http://127.0.0.1:41789{back}")];
    assert_eq!(served["redirect_uris"], json!(own));
    for none in ["", "x", &"0".repeat(31), &name.to_uppercase()] {
        assert_eq!(gateway.send(read(none)).await.status, 404, "{none}");
    }
    let evil = read(&name).header("host", "evil.example");
    assert_eq!(gateway.send(evil).await.status, 403);
    for named in [&["metadata", "u"][..], &["metadata"]] {
        let (code, said) = ended(auth(&gateway, named)).await;
        let printed = said.find('{').and_then(|at| serde_json::from_str(&said[at..]).ok());
        assert_eq!((code, printed.as_ref()), (Some(0), Some(&served)), "{said}");
    }
    // Weir is known by it, and a real server takes it for what it is, with each of its addresses.
    let mut process =
        auth(&gateway, &["login", "u", "--no-browser", "--port", &weir_tests::peer::free_port().to_string()]);
    let asked = page(&mut process).await;
    assert!(asked.contains(&format!("client_id={}", encoded(&id))), "{asked}");
    process.signal(rustix::process::Signal::INT);
    ended(process).await;
    drop(authority);
    let authority = Authority::with(&json!({ "port": port, "document": served }));
    takes(&authority, &served).await;
}

/// One for all names nobody who could be sent the codes of others.
#[tokio::test]
async fn a_document_that_all_servers_read_names_those_that_name_themselves() {
    let (named, nameless) = (Authority::start(3600), Authority::with(&json!({ "iss": false })));
    let (one, two) = (named.upstream().await, nameless.upstream().await);
    let root = "client_metadata_url = \"https://weir.example/client.json\"\n";
    let both = |written: &str| {
        format!("{root}{}{}auth = \"oauth\"\n{written}", config(&one, "auth = \"oauth\""), two.config("v"))
    };
    let written = format!("oauth = {{ issuer = \"{}\" }}\n", nameless.issuer());
    for (config, count) in [(both(""), 2), (both(&written), 4)] {
        let gateway = Gateway::start_with(&config, &ENVIRONMENT).await;
        let (code, said) = ended(auth(&gateway, &["metadata"])).await;
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(said.matches("/oauth/callback/").count(), count, "{said}");
        assert!(said.contains(&named.callback()), "{said}");
        assert_eq!(said.contains(&format!("{} is left out", nameless.issuer())), count == 2, "{said}");
    }
}

/// What the server believes to be over is renewed, though it has minutes to go here.
#[tokio::test]
async fn a_clock_that_is_five_minutes_ahead_costs_no_login() {
    let mut authority = Authority::start(600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    sign_in(&gateway, &[]).await;
    gateway.healthy(&["u"]).await;
    assert_eq!(echo(&gateway).await["result"]["content"][0]["text"], "m");
    assert_eq!(authority.grants("refresh_token"), 0);
    let first = upstream.tokens().last().unwrap().clone();
    // Of ten minutes five are left: what was made a moment ago still opens it.
    upstream.hurry(300);
    assert_eq!(echo(&gateway).await["result"]["content"][0]["text"], "m");
    assert_eq!(authority.grants("refresh_token"), 0);
    // Now it is over there, and not here; what is made now has some seconds to go.
    until("some seconds have passed", || now() + 590 > exp(&first)).await;
    upstream.hurry(exp(&first) - now() + 1);
    assert_eq!(echo(&gateway).await["result"]["content"][0]["text"], "m");
    assert_eq!(authority.grants("refresh_token"), 1);
    assert_ne!(upstream.tokens().last(), Some(&first));
    assert_eq!(lines(&gateway, NEEDS_SIGN_IN), 1, "{}", gateway.log());
}

/// What is wrong with the store concerns the upstreams that need it, and is said once for each.
#[tokio::test]
async fn a_store_that_cannot_be_used_is_one_error_and_disturbs_nobody_else() {
    use std::os::unix::fs::PermissionsExt;
    let authority = Authority::start(3600);
    let (upstream, other) = (authority.upstream().await, Stub::start().await);
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("logins.redb");
    let garbage: Vec<u8> = (0..100_000_u32).map(|at| at.to_le_bytes()[1]).collect();
    for content in [&b"redb"[..], &garbage] {
        std::fs::write(&file, content).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let config = config(&upstream, "auth = \"oauth\"").replace("logins.redb", file.to_str().unwrap());
        let gateway = Gateway::start_with(&(config + &other.config("other")), &ENVIRONMENT).await;
        gateway.healthy(&["other"]).await;
        gateway.logs(UNREACHABLE).await;
        let error = gateway.log().lines().find(|line| line.contains("\"ERROR\"")).unwrap().to_owned();
        assert_eq!((lines(&gateway, "\"ERROR\""), error.contains("is damaged")), (1, true), "{}", gateway.log());
        let (code, told) = ended(auth(&gateway, &["status"])).await;
        assert_eq!((code, told.contains("is damaged")), (Some(1), true), "{told}");
        assert_eq!(std::fs::read(&file).unwrap(), content, "it was written to");
    }
}

#[tokio::test]
async fn a_browser_comes_back_to_the_port_that_is_named_and_to_no_other() {
    let mut authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, said) = ended(auth(&gateway, &["login", "u", "--no-browser", "--port", &port])).await;
    assert!(code == Some(1) && said.contains(&format!("port {port} cannot be come back to")), "{said}");
    let port = weir_tests::peer::free_port().to_string();
    sign_in(&gateway, &["--port", &port]).await;
    let back = format!("http://127.0.0.1:{port}{}", authority.callback());
    assert_eq!(authority.asked("/reg")[0]["body"]["redirect_uris"], json!([back]));
}

#[tokio::test]
async fn a_renamed_upstream_keeps_its_login() {
    let mut authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    sign_in(&gateway, &[]).await;
    let logins = authority.asked("/token").len();
    let rename = |from: &str, to: &str| {
        let mut command = std::process::Command::new(paths::weir());
        command.args(["rename", from, to, "--config"]).arg(gateway.directory().join("weir.toml"));
        command.env("XDG_STATE_HOME", gateway.directory()).envs(ENVIRONMENT);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let said = rename("u", "v");
    assert!(said.contains("`u` is called `v` now; its login came along"), "{said}");
    let (code, said) = ended(auth(&gateway, &["status", "v"])).await;
    assert!(code == Some(0) && said.contains("signed in"), "{said}");
    // The gateway has the new name as soon as it has looked at the file, and needs nobody for its login.
    gateway.healthy(&["v"]).await;
    assert_eq!(authority.asked("/token").len(), logins);
    assert!(rename("v", "u").contains("its login came along"));
    let (code, said) = ended(auth(&gateway, &["logout", "v"])).await;
    assert!(code == Some(1) && said.contains("there is no upstream `v`"), "{said}");
}
