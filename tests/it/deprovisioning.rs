//! Logins whose owners do not sign out: people who have left, and upstreams that are not in the configuration any more.

use std::time::{Duration, Instant};

use serde_json::json;
use weir_tests::terminal::{auth, config, ended, sign_in, start};
use weir_tests::wait::PATIENCE;
use weir_tests::{Authority, Browser};

use crate::oidc_login::{Scene, gets_through};

/// How often somebody was registered after this person has signed in.
async fn registered_for(scene: &mut Scene, person: &str) -> usize {
    let (_, _, link) = scene.invited(person).await;
    let mut browser = Browser::of(person);
    let page = browser.open(&link).await;
    browser.press(&page, "connect/github/login").await;
    scene.authority.asked("/reg").len()
}

#[tokio::test]
async fn an_operator_ends_the_login_of_one_caller() {
    let mut scene = Scene::new(&json!({ "names": true })).await;
    let mut clients = Vec::new();
    for person in ["ada", "eve"] {
        let (client, _, link) = scene.invited(person).await;
        let mut browser = Browser::of(person);
        let page = browser.open(&link).await;
        browser.press(&page, "connect/github/login").await;
        assert!(gets_through(&client).await, "{person}");
        clients.push(client);
    }
    let (code, said) = ended(auth(&scene.gateway, &["list"])).await;
    assert!(code == Some(0) && said.contains("each caller signs in at the gateway; 2 did"), "{said}");

    let (code, said) = ended(auth(&scene.gateway, &["logout", "github"])).await;
    assert!(code == Some(1) && said.contains("name one of them with `--principal`"), "{said}");
    let (code, said) = ended(auth(&scene.gateway, &["logout", "github", "--principal", "ada"])).await;
    assert!(code == Some(0) && said.contains("Forgot what was kept of ada at github; its server"), "{said}");
    assert!(scene.authority.asked("/token/revocation").len() == 1, "its server was told");
    let end = Instant::now() + PATIENCE;
    while gets_through(&clients[0]).await {
        assert!(Instant::now() < end, "a login that is gone is used on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(gets_through(&clients[1]).await, "eve's login is eve's");
    let (code, said) = ended(auth(&scene.gateway, &["logout", "github", "--principal", "ada"])).await;
    assert!(code == Some(0) && said.contains("There is no login of ada at github."), "{said}");

    // Eve's is the last: whoever comes after that registers anew.
    let registered = registered_for(&mut scene, "ada").await;
    for person in ["ada", "eve"] {
        let (code, said) = ended(auth(&scene.gateway, &["logout", "github", "--principal", person])).await;
        assert!(code == Some(0), "{said}");
    }
    assert_eq!(registered_for(&mut scene, "ada").await, registered + 1);
}

#[tokio::test]
async fn the_login_at_an_upstream_that_is_gone_can_be_forgotten() {
    let mut authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    sign_in(&gateway, &[]).await;
    let renamed = config(&upstream, "auth = \"oauth\"").replace("[upstreams.u]", "[upstreams.v]");
    let disabled = config(&upstream, "auth = \"oauth\"\nenabled = false");
    for changed in [renamed, disabled] {
        std::fs::write(gateway.directory().join("weir.toml"), changed).unwrap();
        let (code, said) = ended(auth(&gateway, &["list"])).await;
        assert!(code == Some(0) && said.contains("a login is kept; `weir auth logout` forgets it"), "{said}");
    }
    let (code, said) = ended(auth(&gateway, &["logout", "u"])).await;
    assert!(code == Some(0) && said.contains("Forgot what was kept at u; its server has forgotten it too."), "{said}");
    assert_eq!(authority.asked("/token/revocation").len(), 1);
    let (code, said) = ended(auth(&gateway, &["logout", "u"])).await;
    assert!(code == Some(1) && said.contains("`u` is disabled in the configuration"), "{said}");
    let (code, said) = ended(auth(&gateway, &["logout", "nobody"])).await;
    assert!(code == Some(1) && said.contains("there is no upstream `nobody`"), "{said}");

    // Should it come back, it is registered anew.
    std::fs::write(gateway.directory().join("weir.toml"), config(&upstream, "auth = \"oauth\"")).unwrap();
    sign_in(&gateway, &[]).await;
    assert_eq!(authority.asked("/reg").len(), 2);
}

#[tokio::test]
async fn a_login_that_was_for_all_can_be_ended_when_each_has_their_own() {
    let mut authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    sign_in(&gateway, &[]).await;
    let file = gateway.directory().join("weir.toml");
    let callers = format!("[auth]\nissuer = \"{}\"\naudience = \"a\"\n", authority.issuer());
    std::fs::write(&file, callers + &config(&upstream, "auth = \"oauth\"\nowner = \"principal\"")).unwrap();
    let (code, said) = ended(auth(&gateway, &["list"])).await;
    assert!(code == Some(0) && said.trim_end().ends_with("each caller signs in at the gateway"), "{said}");
    let (code, said) = ended(auth(&gateway, &["logout", "u"])).await;
    assert!(code == Some(0) && said.contains("Forgot what was kept for all at u; its server"), "{said}");
    assert_eq!(authority.asked("/token/revocation").len(), 1);
    let (code, said) = ended(auth(&gateway, &["logout", "u"])).await;
    assert!(code == Some(1) && said.contains("name one of them with `--principal`"), "{said}");
}
