//! Upstreams that let a token in and want it to allow more (RFC 6750 §3.1, `insufficient_scope`): they get it, and not
//! without end.

use weir_tests::gateway::NEEDS_SIGN_IN;
use weir_tests::terminal::{ALONE, calling, echo, failed, sign_in, start, tells, told, works};
use weir_tests::wait::until;
use weir_tests::{Authority, Gateway};

/// How often more may be asked for, within minutes.
const MOST: usize = 3;

fn says_enough(text: &str) -> bool {
    text.contains("has asked for more scopes 3 times within 10 minutes") && text.contains("`oauth.scopes`")
}

/// What the log says last that somebody has to sign in with.
fn wanted(gateway: &Gateway) -> String {
    let log = gateway.log();
    let line = log.lines().rfind(|line| line.contains(NEEDS_SIGN_IN)).unwrap();
    let (_, scopes) = line.split_once("--scopes '").unwrap_or_else(|| panic!("no scopes in {line}"));
    scopes.split('\'').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_service_steps_up_as_often_as_the_limit_says() {
    let mut authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, ALONE).await;
    gateway.healthy(&["u"]).await;
    assert!(works(&gateway).await);
    upstream.be_greedy();
    let mut last = String::new();
    for _ in 0..20 {
        last = echo(&gateway).await.to_string();
    }
    assert!(says_enough(&last), "{last}");
    assert_eq!(authority.grants("client_credentials"), 1 + MOST as u64);
    let asked = authority.asked("/token");
    let scopes: Vec<&str> = asked.iter().map(|request| request["body"]["scope"].as_str().unwrap()).collect();
    // What is held is asked for again, for a new token replaces the old one.
    let growing =
        ["mcp:read", "mcp:read mcp:write", "mcp:admin mcp:read mcp:write", "mcp:admin mcp:audit mcp:read mcp:write"];
    assert_eq!(scopes, growing);
    failed(&gateway, 20).await;
    tells(&gateway, (0, 0)).await;
}

#[tokio::test]
async fn a_person_is_asked_for_more_as_often_as_the_limit_says() {
    let mut authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    sign_in(&gateway, &[]).await;
    gateway.healthy(&["u"]).await;
    assert!(works(&gateway).await);
    upstream.be_greedy();
    for step in 1..=MOST {
        for _ in 0..5 {
            let asked = echo(&gateway).await.to_string();
            assert!(asked.contains(&gateway.url("/connect")) && !says_enough(&asked), "{step}: {asked}");
        }
        until("it is said once", || told(&gateway).1 == 1 + step).await;
        sign_in(&gateway, &["--scopes", &wanted(&gateway)]).await;
        let tokens = upstream.tokens();
        calling(&gateway, || upstream.tokens().last() != tokens.last()).await;
    }
    for _ in 0..10 {
        let enough = echo(&gateway).await.to_string();
        assert!(says_enough(&enough), "{enough}");
    }
    tells(&gateway, (0, 1 + MOST)).await;
    assert_eq!(authority.grants("authorization_code"), 1 + MOST as u64);
}
