//! What may happen to an authorization server, and to Weir while it asks one: no login is lost, nobody else is disturbed,
//! and what is wrong is said once. The server is real `oidc-provider`; its trouble is made in front of it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use weir_tests::gateway::UNREACHABLE;
use weir_tests::terminal::{
    ALONE, ENVIRONMENT, auth, calling, calling_until_it_works, config, config_beside, echo, ended, failed, lines, page,
    sign_in, start, tells, told, works,
};
use weir_tests::wait::until_some;
use weir_tests::{Authority, Browser, Client, Gateway, Stub};

const METADATA: [&str; 2] = ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"];
/// How long a token is good that is to end in a test, in seconds.
const TOKEN: u32 = 6;
/// Longer than Weir leaves a server alone that was in trouble.
const AFTER_TROUBLE: Duration = Duration::from_secs(90);

/// An upstream whose login is there and in use.
async fn in_use(authority: &Authority) -> (Stub, Gateway) {
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    sign_in(&gateway, &[]).await;
    gateway.healthy(&["u"]).await;
    assert!(works(&gateway).await);
    (upstream, gateway)
}

async fn is_signed_in(gateway: &Gateway) -> bool {
    let (code, said) = ended(auth(gateway, &["status", "u"])).await;
    code == Some(0) && said.contains("signed in (")
}

/// Waits until so many requests stand before a server that is in trouble.
async fn until_waiting(authority: &mut Authority, count: u64) {
    until_some("it has been asked", || (authority.waiting() >= count).then_some(())).await;
}

/// Kills a gateway at a point of a rotation, and starts another on its store. Gives how often the server had been asked
/// before.
async fn killed(authority: &mut Authority, stall: &str) -> usize {
    let (upstream, mut gateway) = in_use(authority).await;
    let before = authority.asked("/token").len();
    authority.trouble(&json!({ "/token": { "stall": stall } }));
    let calls = tokio::spawn({
        let client = Client::modern(&gateway, "/mcp/u");
        let address = gateway.address();
        async move {
            loop {
                let call = json!({ "name": "echo", "arguments": { "message": "m" } });
                if client.request("tools/call", call).1.try_send(address).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    });
    until_waiting(authority, 1).await;
    gateway.signal(rustix::process::Signal::KILL);
    gateway.end().await;
    calls.await.unwrap();
    authority.trouble(&json!({}));

    let next = Gateway::start_with(&config_beside(&gateway, &upstream, "auth = \"oauth\""), &ENVIRONMENT).await;
    // The time that the one before had to refresh alone is not waited for.
    let answer = echo(&next).await;
    assert_eq!(answer["result"]["content"][0]["text"], "m", "{answer}\n{}", next.log());
    next.healthy(&["u"]).await;
    tells(&next, (0, 0)).await;
    assert!(is_signed_in(&next).await);
    // What is kept now is what the server gave last.
    let (code, said) = ended(auth(&next, &["refresh", "u"])).await;
    assert_eq!(code, Some(0), "{said}");
    before
}

#[tokio::test]
async fn killed_before_the_server_has_rotated() {
    let mut authority = Authority::start(TOKEN);
    killed(&mut authority, "before").await;
    assert!(authority.grants("refresh_token") > 1);
    // This server takes a refresh token once, and ends a login that comes with one twice.
    assert_eq!(authority.grants("refresh_token refused"), 0);
}

/// The server does as OAuth 2.1 advises and takes the token before once more. What is lost without that between its answer
/// and the disk, no client can get back.
#[tokio::test]
async fn killed_before_its_answer_is_here() {
    let mut authority = Authority::with(&json!({ "access": TOKEN, "forgiving": true }));
    let before = killed(&mut authority, "after").await;
    let asked = authority.asked("/token").into_iter().skip(before);
    let refreshed = asked.filter(|asked| asked["body"]["grant_type"] == "refresh_token");
    let shown: Vec<Value> = refreshed.map(|asked| asked["body"]["refresh_token"].clone()).collect();
    assert!(shown.len() > 2 && shown[0] == shown[1] && shown[1] != shown[2], "the same, and then its successor");
}

/// No connection is opened with a token that has taken the place of another: the calls that it went with show that it is
/// good, and that a newer one will be too.
#[tokio::test]
async fn a_token_that_calls_went_with_is_renewed_when_it_is_refused() {
    let mut authority = Authority::start(3600);
    let (upstream, gateway) = in_use(&authority).await;
    let first = upstream.tokens();
    sign_in(&gateway, &[]).await;
    calling(&gateway, || upstream.tokens().last().is_some_and(|token| !first.contains(token))).await;
    upstream.revoke();
    let answer = echo(&gateway).await;
    assert_eq!(answer["result"]["content"][0]["text"], "m", "{answer}");
    assert_eq!(authority.grants("refresh_token"), 1);
    tells(&gateway, (0, 1)).await;
}

#[tokio::test]
async fn two_gateways_on_one_store_refresh_once() {
    let mut authority = Authority::start(3600);
    let (upstream, gateway) = in_use(&authority).await;
    let second = Gateway::start_with(&config_beside(&gateway, &upstream, "auth = \"oauth\""), &ENVIRONMENT).await;
    second.healthy(&["u"]).await;
    assert!(works(&second).await);
    upstream.revoke();
    let mut calls = JoinSet::new();
    for number in 0..50 {
        let address = [gateway.address(), second.address()][number % 2];
        calls.spawn(async move { Client::modern_at(address, "/mcp/u").call("echo", json!({ "message": "m" })).await });
    }
    for result in calls.join_all().await {
        assert_eq!(result["content"][0]["text"], "m", "{result}");
    }
    assert_eq!(authority.grants("refresh_token"), 1);
    tells(&gateway, (0, 1)).await;
    tells(&second, (0, 0)).await;
}

/// All that is trouble of the server and no end of the login.
#[tokio::test]
async fn a_server_in_trouble_keeps_the_login() {
    let html = "<html>it works</html>";
    let troubles = [
        json!({ "status": 503 }),
        json!({ "status": 500, "json": { "error": "invalid_grant" } }),
        json!({ "status": 429, "headers": { "retry-after": "1" } }),
        json!({ "status": 400, "json": { "error": "temporarily_unavailable" } }),
        json!({ "status": 502, "body": html }),
        json!({ "status": 403, "body": html }),
        json!({ "status": 404 }),
        json!({ "status": 302, "headers": { "location": "/maintenance" } }),
        json!({ "status": 200, "body": html }),
        json!({ "status": 200, "json": { "access_token": 7 } }),
    ];
    let mut drills = JoinSet::new();
    for trouble in troubles {
        drills.spawn(async move {
            let mut authority = Authority::start(3600);
            let (upstream, gateway) = in_use(&authority).await;
            let before = told(&gateway);
            upstream.revoke();
            authority.trouble(&json!({ "/token": trouble }));
            for _ in 0..10 {
                let refused = echo(&gateway).await.to_string();
                assert!(refused.contains("its login is kept but could not be renewed"), "{trouble}: {refused}");
                assert!(!refused.contains("sign-in") && !refused.contains("weir auth"), "{trouble}: {refused}");
            }
            assert!(is_signed_in(&gateway).await, "{trouble}");
            failed(&gateway, 10).await;
            // Weir itself may have noticed too.
            let (errors, asked) = told(&gateway);
            assert!(errors < 2 && asked == before.1, "{trouble}: {}", gateway.log());
            assert_eq!(authority.grants("refresh_token"), 0);
            let asked = authority.asked("/token").len();
            assert!(asked < 5, "{trouble}: it was asked {asked} times though it is in trouble");
            authority.trouble(&json!({}));
            // What may be lasting is left alone for as long as two minutes; a terminal does not wait.
            let (code, said) = ended(auth(&gateway, &["refresh", "u"])).await;
            assert_eq!(code, Some(0), "{trouble}: {said}");
            calling_until_it_works(&gateway, AFTER_TROUBLE).await;
            assert_eq!(authority.grants("refresh_token"), 1);
        });
    }
    drills.join_all().await;
}

#[tokio::test]
async fn a_server_that_is_gone_for_a_while_keeps_the_login() {
    // What was sent to it meanwhile it does later, and nobody hears its answer.
    let authority = Authority::with(&json!({ "access": 3600, "forgiving": true }));
    let (upstream, gateway) = in_use(&authority).await;
    upstream.revoke();
    authority.pause();
    // It takes no connection any more, so this ends when Weir's patience does.
    let refused = echo(&gateway).await.to_string();
    assert!(refused.contains("its login is kept") && refused.contains("did not answer in time"), "{refused}");
    assert!(is_signed_in(&gateway).await);
    authority.go_on();
    calling_until_it_works(&gateway, AFTER_TROUBLE).await;
    assert!(told(&gateway).0 < 2 && told(&gateway).1 == 1, "{}", gateway.log());
}

/// Only those wait for it who need something of it, and for no longer than a while.
#[tokio::test]
async fn a_slow_server_disturbs_nobody_else() {
    let mut authority = Authority::start(3600);
    let (upstream, other) = (authority.upstream().await, Stub::start().await);
    authority.trouble(&json!({ "/token": { "stall": "before" } }));
    let gateway = Gateway::start_with(&(config(&upstream, ALONE) + &other.config("other")), &ENVIRONMENT).await;
    gateway.healthy(&["other"]).await;
    until_waiting(&mut authority, 1).await;
    let client = Client::modern(&gateway, "/mcp");
    for _ in 0..10 {
        let echoed = client.call("other__echo", json!({ "message": "m" })).await;
        assert_eq!(echoed["content"][0]["text"], "m", "{echoed}");
        assert!(client.tools().await.contains(&"other__echo".to_owned()));
    }
    assert_eq!(authority.waiting(), 1, "it is still being waited for");
    let refused = echo(&gateway).await.to_string();
    assert!(refused.contains("did not answer in time"), "{refused}");
    authority.trouble(&json!({}));
    calling_until_it_works(&gateway, AFTER_TROUBLE).await;
    tells(&gateway, (1, 0)).await;
}

/// A call waits for a token no longer than for its answer.
#[tokio::test]
async fn a_call_does_not_wait_for_a_token_for_ever() {
    let mut authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    authority.trouble(&json!({ "/token": { "stall": "before" } }));
    let gateway = start(&upstream, &format!("{ALONE}\ntimeouts = {{ overall = \"1s\" }}")).await;
    until_waiting(&mut authority, 1).await;
    let refused = echo(&gateway).await.to_string();
    assert!(refused.contains("upstream `u` has no credential: there was none within 1 s"), "{refused}");
    authority.trouble(&json!({}));
    calling_until_it_works(&gateway, AFTER_TROUBLE).await;
    assert_eq!(authority.asked("/token").len(), 1, "what was begun for one who went away serves the next");
}

/// Metadata that must not be believed, at the gateway and at the terminal.
#[tokio::test]
async fn a_server_that_is_not_what_it_should_be_gets_nothing() {
    let issuer = |authority: &Authority| authority.issuer().to_owned();
    let metadata = |authority: &Authority, field: &str, value: &str| {
        let issuer = issuer(authority);
        let mut all = json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{issuer}/auth"),
            "token_endpoint": format!("{issuer}/token"),
            "registration_endpoint": format!("{issuer}/reg"),
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "none"],
        });
        all[field] = json!(value);
        json!({ "status": 200, "json": all })
    };
    type Drill<'a> = (&'a str, &'a dyn Fn(&Authority) -> Value);
    // Another server of this machine, which may be asked, and not because somebody says so.
    let elsewhere = Stub::start().await;
    let redirect = |to: String| json!({ "status": 302, "headers": { "location": to } });
    let drills: [Drill<'_>; 8] = [
        ("names another issuer", &|authority| metadata(authority, "issuer", "https://other.example")),
        ("names another issuer", &|authority| metadata(authority, "issuer", &format!("{}/", issuer(authority)))),
        ("leads to a private network", &|authority| metadata(authority, "token_endpoint", "https://10.1.2.3/token")),
        ("leads to a link-local", &|authority| metadata(authority, "token_endpoint", "https://169.254.169.254/token")),
        ("publishes no metadata", &|_| redirect("http://10.1.2.3/".to_owned())),
        ("publishes no metadata", &|_| redirect(elsewhere.url())),
        ("publishes no metadata", &|_| json!({ "status": 200, "body": "<html>it works</html>" })),
        ("publishes no metadata", &|_| json!({ "status": 404 })),
    ];
    for (why, trouble) in drills {
        let mut authority = Authority::start(3600);
        let upstream = authority.upstream().await;
        let trouble = trouble(&authority);
        authority.trouble(&METADATA.iter().map(|path| ((*path).to_owned(), trouble.clone())).collect());
        let gateway = start(&upstream, ALONE).await;
        gateway.logs(UNREACHABLE).await;
        for _ in 0..10 {
            let refused = echo(&gateway).await.to_string();
            assert!(refused.contains(why), "{refused} does not say: {why}");
        }
        failed(&gateway, 10).await;
        tells(&gateway, (1, 0)).await;
        assert!(
            authority.asked("/token").is_empty() && authority.asked("/reg").is_empty(),
            "{why}: it was given something"
        );

        // An endpoint is looked at when it is used, which for this one is after somebody has signed in.
        if !why.starts_with("leads to") {
            let person = start(&upstream, "auth = \"oauth\"").await;
            let (code, said) = ended(auth(&person, &["login", "u", "--no-browser"])).await;
            assert!(code == Some(1) && said.contains(why) && said.matches("weir: ").count() == 1, "{why}: {said}");
            assert!(authority.asked("/token").is_empty());
        }
    }
    assert!(elsewhere.seen().is_empty());
}

/// An upstream that names a place inside as its authorization server.
#[tokio::test]
async fn an_issuer_at_a_private_address_is_not_visited() {
    for (issuer, why) in [
        ("http://10.1.2.3", "is not https"),
        ("https://10.1.2.3", "leads to a private network"),
        ("https://169.254.169.254", "leads to a link-local"),
        ("https://[fd00::1]", "leads to a private network"),
    ] {
        let upstream = Stub::behind(issuer, json!({ "keys": [] })).await;
        let gateway = start(&upstream, ALONE).await;
        gateway.logs(UNREACHABLE).await;
        let refused = echo(&gateway).await.to_string();
        assert!(refused.contains(why), "{refused} does not say: {why}");
        let (code, said) = ended(auth(&gateway, &["refresh", "u"])).await;
        assert!(code == Some(1) && said.contains(why), "{said}");
        tells(&gateway, (1, 0)).await;
    }
}

#[tokio::test]
async fn a_failed_sign_in_clears_no_login() {
    let mut authority = Authority::start(3600);
    let (_upstream, gateway) = in_use(&authority).await;
    for (path, trouble) in [
        ("/token", json!({ "status": 400, "json": { "error": "invalid_grant" } })),
        ("/token", json!({ "status": 503 })),
        ("/token", json!({ "status": 200, "body": "<html></html>" })),
        ("/auth", json!({ "status": 303, "headers": { "location": "{back}?error=access_denied&state={state}" } })),
    ] {
        let mut process = auth(&gateway, &["login", "u", "--no-browser"]);
        let page = page(&mut process).await;
        let query = |name: &str| {
            let (_, rest) = page.split_once(&format!("{name}=")).unwrap();
            rest.split('&').next().unwrap().replace("%3A", ":").replace("%2F", "/")
        };
        let trouble = trouble.to_string().replace("{back}", &query("redirect_uri")).replace("{state}", &query("state"));
        let iss = format!("&iss={}", authority.issuer());
        let trouble = trouble.replace("access_denied", &format!("access_denied{iss}"));
        authority.trouble(&json!({ path: serde_json::from_str::<Value>(&trouble).unwrap() }));
        Browser::new().open(&page).await;
        let (code, said) = ended(process).await;
        assert!(code == Some(1) && said.matches("weir: ").count() == 1, "{trouble}: {said}");
        authority.trouble(&json!({}));
        assert!(is_signed_in(&gateway).await && works(&gateway).await, "{trouble}");
    }
    let (code, said) = ended(auth(&gateway, &["refresh", "u"])).await;
    assert_eq!(code, Some(0), "{said}");
    tells(&gateway, (0, 1)).await;
}

/// The access token is over and the refresh token is not taken any more: somebody is asked to sign in, once.
#[tokio::test]
async fn when_both_tokens_are_over_somebody_is_asked_once() {
    let mut authority = Authority::start(3600);
    let (upstream, gateway) = in_use(&authority).await;
    upstream.revoke();
    authority.trouble(&json!({ "/token": { "status": 400, "json": { "error": "invalid_grant" } } }));
    for _ in 0..10 {
        let asked = echo(&gateway).await.to_string();
        assert!(asked.contains(&gateway.url("/connect")), "{asked}");
    }
    let refreshes = authority.asked("/token").iter().filter(|asked| asked["body"].is_null()).count();
    assert_eq!(refreshes, 1, "no loop");
    // Once before the first login, and once now.
    tells(&gateway, (0, 2)).await;
    gateway.settle(&["u"], "auth_expired").await;
    let (code, said) = ended(auth(&gateway, &["status", "u"])).await;
    assert!(code == Some(1) && said.contains("the login has ended; sign in with `weir auth login u "), "{said}");
    authority.trouble(&json!({}));
    sign_in(&gateway, &[]).await;
    calling_until_it_works(&gateway, AFTER_TROUBLE).await;
    tells(&gateway, (0, 2)).await;
    assert_eq!(lines(&gateway, "panicked"), 0);
}
