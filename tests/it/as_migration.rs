//! A login that is of no use any more though its server still renews it: the upstream takes the tokens of another one, or
//! those of this person no more. Somebody is asked to sign in, once, and nothing is renewed again and again.

use weir_tests::terminal::{
    ALONE, ENVIRONMENT, auth, calling, calling_until_it_works, config_beside, echo, ended, sign_in, start, tells, works,
};
use weir_tests::wait::PATIENCE;
use weir_tests::{Authority, Gateway, Stub};

/// An upstream whose login is there and in use.
async fn in_use(authority: &Authority, how: &str) -> (Stub, Gateway) {
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, how).await;
    if how != ALONE {
        sign_in(&gateway, &[]).await;
    }
    gateway.healthy(&["u"]).await;
    assert!(works(&gateway).await);
    (upstream, gateway)
}

async fn asks(gateway: &Gateway) {
    for _ in 0..10 {
        let asked = echo(gateway).await.to_string();
        assert!(asked.contains(&gateway.url("/connect")), "{asked}");
    }
    // Once before the first login, and once now.
    tells(gateway, (0, 2)).await;
}

#[tokio::test]
async fn an_upstream_that_has_moved_to_another_server_asks_for_a_sign_in_there() {
    let (mut old, mut new) = (Authority::start(3600), Authority::start(3600));
    let (upstream, gateway) = in_use(&old, "auth = \"oauth\"").await;
    upstream.trust(new.issuer(), new.keys().await);
    asks(&gateway).await;
    assert_eq!(old.grants("refresh_token"), 0, "its tokens are of no use there");

    let said = sign_in(&gateway, &[]).await;
    assert_eq!(new.grants("authorization_code"), 1, "{said}");
    calling_until_it_works(&gateway, PATIENCE).await;
    tells(&gateway, (0, 2)).await;
    let (code, said) = ended(auth(&gateway, &["logout", "u"])).await;
    assert!(code == Some(0) && said.contains("Signed out of u"), "{said}");
    let (code, said) = ended(auth(&gateway, &["status", "u"])).await;
    assert!(code == Some(1) && said.contains("not signed in"), "{said}");
    let (_, said) = ended(auth(&gateway, &["logout", "u"])).await;
    assert!(said.contains("There is no login at u"), "{said}");
}

/// An upstream that is somebody else's could name any server: the secret goes there when the configuration says so.
#[tokio::test]
async fn where_weir_signs_in_by_itself_its_secret_stays_until_the_other_server_is_written_down() {
    let (mut old, mut new) = (Authority::start(3600), Authority::start(3600));
    let (upstream, gateway) = in_use(&old, ALONE).await;
    upstream.trust(new.issuer(), new.keys().await);
    let told = format!("oauth = {{ issuer = \"{}\" }}", new.issuer());
    for _ in 0..10 {
        let answer = echo(&gateway).await["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(answer.contains("no token for it could be had") && answer.contains(old.issuer()), "{answer}");
        assert!(answer.contains(&told), "{answer}");
    }
    // Nor does another process bring it there: nobody has told it that the old one is of no use.
    let (code, said) = ended(auth(&gateway, &["refresh", "u"])).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!((old.grants("client_credentials"), new.asked("/token").len()), (2, 0));

    let named = ALONE.replace("oauth = {", &format!("oauth = {{ issuer = \"{}\",", new.issuer()));
    let second = Gateway::start_with(&config_beside(&gateway, &upstream, &named), &ENVIRONMENT).await;
    second.healthy(&["u"]).await;
    assert!(works(&second).await);
    assert_eq!((old.grants("client_credentials"), new.grants("client_credentials")), (2, 1));
    // What is renewed is the one that is there now.
    let (code, said) = ended(auth(&second, &["refresh", "u"])).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!((old.grants("client_credentials"), new.grants("client_credentials")), (2, 2));
    tells(&second, (0, 0)).await;
}

/// The upstream has only put another one in front.
#[tokio::test]
async fn a_server_that_is_named_beside_others_still_gets_the_secret() {
    let (mut old, mut new) = (Authority::start(3600), Authority::start(3600));
    let (upstream, gateway) = in_use(&old, ALONE).await;
    upstream.name(new.issuer());
    let first = upstream.tokens().last().unwrap().clone();
    let (code, said) = ended(auth(&gateway, &["refresh", "u"])).await;
    assert_eq!((code, old.grants("client_credentials")), (Some(0), 2), "{said}");
    let (_, said) = ended(auth(&gateway, &["logout", "u"])).await;
    assert!(said.contains("forgotten"), "{said}");
    let (code, said) = ended(auth(&gateway, &["refresh", "u"])).await;
    assert_eq!((code, old.grants("client_credentials")), (Some(0), 3), "{said}");
    calling(&gateway, || upstream.tokens().last() != Some(&first)).await;
    assert!(works(&gateway).await);
    upstream.revoke();
    calling_until_it_works(&gateway, PATIENCE).await;
    assert_eq!((old.grants("client_credentials"), new.asked("/token").len()), (4, 0));
}

#[tokio::test]
async fn what_is_withdrawn_at_the_upstream_alone_is_asked_for_and_not_renewed_in_a_loop() {
    let mut authority = Authority::start(3600);
    let (upstream, gateway) = in_use(&authority, "auth = \"oauth\"").await;
    upstream.shut(true);
    asks(&gateway).await;
    assert_eq!(authority.grants("refresh_token"), 1, "no loop");

    // The login is kept, so that nobody need sign in if the upstream thinks better of it.
    upstream.shut(false);
    assert!(works(&gateway).await);
    sign_in(&gateway, &[]).await;
    calling_until_it_works(&gateway, PATIENCE).await;
    tells(&gateway, (0, 2)).await;
}
