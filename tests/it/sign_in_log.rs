//! Who came in, signed in and signed out stands in the log: one line for each, all of the same shape.

use serde_json::{Value, json};
use weir_tests::terminal::{auth, ended, sign_in, start};
use weir_tests::{Authority, Browser};

use crate::oidc_login::Scene;

/// The lines about who came in and who went.
fn auth_lines(log: &str) -> Vec<Value> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["target"] == "weir::auth").collect()
}

/// Level, message, subject and upstream of each.
fn told(lines: &[Value]) -> Vec<[&str; 4]> {
    lines
        .iter()
        .map(|line| {
            let field = |name: &str| line["fields"][name].as_str().unwrap_or_default();
            [line["level"].as_str().unwrap(), field("message"), field("subject"), field("upstream")]
        })
        .collect()
}

#[tokio::test]
async fn who_comes_in_signs_in_and_signs_out_is_logged() {
    let scene = Scene::new(&json!({})).await;
    let (_client, mut browser, link) = scene.invited("ada").await;
    let page = browser.open(&link).await;
    let page = browser.press(&page, "connect/github/login").await;
    browser.press(&page, "connect/github/logout").await;
    let (_client, _, another) = scene.invited("ada").await;
    Browser::of("eve").open(&another).await;
    scene.gateway.logs("\"link refused\"").await;
    let log = scene.gateway.log();
    let lines = auth_lines(&log);
    let expected = [
        ["INFO", "signed in", "ada", ""],
        ["INFO", "link opened", "ada", ""],
        ["INFO", "signed in", "ada", "github"],
        ["INFO", "signed out", "ada", "github"],
        ["INFO", "signed in", "eve", ""],
        ["WARN", "link refused", "eve", ""],
    ];
    assert_eq!(told(&lines), expected, "{log}");
    for line in &lines {
        let fields = &line["fields"];
        assert_eq!(
            (&fields["issuer"], &fields["client_address"]),
            (&json!(scene.authority.issuer()), &json!("127.0.0.1"))
        );
    }
}

#[tokio::test]
async fn who_signs_in_and_out_at_a_terminal_is_logged() {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    let said = sign_in(&gateway, &[]).await;
    assert_eq!(told(&auth_lines(&said)), [["INFO", "signed in", "local", "u"]], "{said}");
    let (_, said) = ended(auth(&gateway, &["logout", "u"])).await;
    assert_eq!(told(&auth_lines(&said)), [["INFO", "signed out", "local", "u"]], "{said}");
    let (_, said) = ended(auth(&gateway, &["logout", "u"])).await;
    assert_eq!(auth_lines(&said), Vec::<Value>::new(), "nobody was signed in");
}

#[tokio::test]
async fn whose_login_an_operator_ends_is_logged() {
    let scene = Scene::new(&json!({})).await;
    let (_client, mut browser, link) = scene.invited("ada").await;
    let page = browser.open(&link).await;
    browser.press(&page, "connect/github/login").await;
    let (_, said) = ended(auth(&scene.gateway, &["logout", "github", "--principal", "ada"])).await;
    let lines = auth_lines(&said);
    assert_eq!(told(&lines), [["INFO", "signed out", "ada", "github"]], "{said}");
    assert_eq!(lines[0]["fields"]["issuer"], scene.authority.issuer());
}
