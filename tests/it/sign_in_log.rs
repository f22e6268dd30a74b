//! Who came in, signed in and signed out stands in the log: one line for each, all of the same shape.

use serde_json::{Value, json};
use weir_tests::Browser;

use crate::oidc_login::Scene;

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
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines: Vec<Value> = lines.filter(|line| line["target"] == "weir::auth").collect();
    let told: Vec<[&str; 4]> = lines
        .iter()
        .map(|line| {
            let field = |name: &str| line["fields"][name].as_str().unwrap_or_default();
            [line["level"].as_str().unwrap(), field("message"), field("subject"), field("upstream")]
        })
        .collect();
    let expected = [
        ["INFO", "signed in", "ada", ""],
        ["INFO", "link opened", "ada", ""],
        ["INFO", "signed in", "ada", "github"],
        ["INFO", "signed out", "ada", "github"],
        ["INFO", "signed in", "eve", ""],
        ["WARN", "link refused", "eve", ""],
    ];
    assert_eq!(told, expected, "{log}");
    for line in &lines {
        let fields = &line["fields"];
        assert_eq!((&fields["issuer"], &fields["address"]), (&json!(scene.authority.issuer()), &json!("127.0.0.1")));
    }
}
