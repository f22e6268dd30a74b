//! What ends a login, and what does not.

use super::*;
use crate::tests::scripted::nobody;

#[tokio::test]
async fn trouble_of_the_server_keeps_the_login() {
    for reply in [
        ScriptedReply::status(500),
        ScriptedReply::error(503, "invalid_grant"),
        ScriptedReply::status(429).with("retry-after", "3"),
        ScriptedReply::error(400, "temporarily_unavailable"),
        ScriptedReply::error(400, "server_error"),
        ScriptedReply::text(502, "<html>bad gateway</html>"),
    ] {
        let scene = Scene::new().await;
        scene.signed_in(0).await;
        scene.instead([reply]);
        let failed = scene.access(None).await.unwrap_err();
        assert!(failed.is_temporary() && !failed.needs_sign_in(), "{failed}");
        let kept = scene.kept().await;
        assert_eq!((kept.refresh.unwrap().expose(), kept.ended), ("r1", false));
        for _ in 0..10 {
            let again = scene.access(None).await.unwrap_err();
            assert!(again.is_temporary() && again.to_string() == failed.to_string(), "{again} is not {failed}");
        }
        assert_eq!(scene.asked(), 1, "it is left alone for a while");
        scene.later(5);
        assert_eq!(scene.access(None).await.unwrap(), "a2", "and then it is as before");
    }
}

/// A firewall, a balancer, a page that says that work is going on.
#[tokio::test]
async fn what_stands_in_between_says_nothing_of_the_login() {
    for reply in [
        ScriptedReply::text(403, "<html>forbidden</html>"),
        ScriptedReply::text(404, "default backend - 404"),
        ScriptedReply::status(302).with("location", "https://status.example/"),
        ScriptedReply::json(401, &json!({ "message": "unauthorized" })),
    ] {
        let scene = Scene::new().await;
        scene.signed_in(0).await;
        scene.instead([reply]);
        let failed = scene.access(None).await.unwrap_err();
        assert!(matches!(failed, LoginError::Token(TokenError::Unclear { .. })), "{failed}");
        assert_eq!(scene.kept().await.refresh.unwrap().expose(), "r1");
        scene.later(5);
        assert_eq!(scene.access(None).await.unwrap(), "a2", "it is not left alone for long");
    }
}

/// A server that says no is left alone for longer, and what it said is said again, not that it had trouble.
#[tokio::test]
async fn a_refusal_stays_a_refusal_while_the_server_is_left_alone() {
    let scene = Scene::new().await;
    scene.signed_in(0).await;
    scene.instead([ScriptedReply::error(400, "invalid_target")]);
    for _ in 0..10 {
        let refused = scene.access(None).await.unwrap_err();
        assert!(
            matches!(&refused, LoginError::Token(TokenError::Refused(code)) if code == "invalid_target"),
            "{refused}"
        );
        scene.later(10);
    }
    assert_eq!(scene.asked(), 1);
    // Two minutes, and up to a quarter more.
    scene.later(60);
    assert_eq!(scene.access(None).await.unwrap(), "a2");
}

#[tokio::test]
async fn a_server_that_is_down_for_long_is_asked_less_and_less() {
    let scene = Scene::new().await;
    scene.signed_in(0).await;
    scene.instead((0..1000).map(|_| ScriptedReply::status(503)));
    for _ in 0..3600 {
        assert!(scene.access(None).await.unwrap_err().is_temporary());
        scene.later(1);
    }
    assert!((20..50).contains(&scene.asked()), "{}", scene.asked());
}

#[tokio::test]
async fn a_server_that_is_gone_keeps_the_login() {
    let scene = Scene::new().await;
    let (gone, _socket) = nobody("/token");
    let mut login = scene.login(0);
    login.server.token_endpoint = Some(gone);
    scene.logins.save(&scene.key(), &login).await.unwrap();
    assert!(scene.access(None).await.unwrap_err().is_temporary());
    assert_eq!(scene.kept().await.refresh.unwrap().expose(), "r1");
}

#[tokio::test]
async fn garbage_is_no_end_of_a_login() {
    for reply in [
        ScriptedReply::text(200, "hunter2"),
        ScriptedReply::json(200, &json!({ "access_token": 1 })),
        ScriptedReply::text(404, "no"),
    ] {
        let scene = Scene::new().await;
        scene.signed_in(0).await;
        scene.instead([reply]);
        let failed = scene.access(None).await.unwrap_err();
        assert!(!failed.needs_sign_in() && !format!("{failed:?}").contains("hunter2"), "{failed}");
        assert!(!scene.kept().await.ended);
        scene.later(200);
        assert_eq!(scene.access(None).await.unwrap(), "a2");
    }
}

#[tokio::test]
async fn invalid_grant_ends_it_and_is_asked_once() {
    let scene = Scene::new().await;
    scene.signed_in(0).await;
    scene.instead([ScriptedReply::error(400, "invalid_grant")]);
    for _ in 0..5 {
        let ended = scene.access(None).await.unwrap_err();
        assert!(matches!(ended, LoginError::Ended) && ended.needs_sign_in(), "{ended}");
        scene.later(1000);
    }
    assert_eq!(scene.asked(), 1, "no loop");
    assert!(scene.kept().await.ended);
    let listed = scene.latest(&CredentialOwner::Shared).await.unwrap();
    assert!(listed.ended);
    scene.signed_in(3600).await;
    assert_eq!(scene.access(None).await.unwrap(), "a1", "a new sign-in helps at once");
}

#[tokio::test]
async fn the_last_token_of_an_ended_login_is_used_up() {
    let scene = Scene::new().await;
    scene.signed_in(50).await;
    scene.instead([ScriptedReply::error(400, "invalid_grant")]);
    assert!(matches!(scene.renewed("a1").await, Err(LoginError::Ended)));
    assert!(scene.kept().await.ended);
    assert_eq!(scene.access(None).await.unwrap(), "a1");
    assert!(matches!(scene.access(Some("a1")).await, Err(LoginError::Ended)));
    scene.later(60);
    assert!(matches!(scene.access(None).await, Err(LoginError::Ended)));
    assert_eq!(scene.asked(), 1);
}

#[tokio::test]
async fn a_due_refresh_that_fails_leaves_the_token_in_use() {
    let scene = Scene::new().await;
    scene.signed_in(50).await;
    scene.instead([ScriptedReply::status(503), ScriptedReply::status(503)]);
    scene.is_asked_once_in_ten_seconds().await;
}

#[tokio::test]
async fn what_cannot_be_refreshed_ends_with_its_token() {
    let scene = Scene::new().await;
    scene.logins.save(&scene.key(), &Login { refresh: None, ..scene.login(50) }).await.unwrap();
    assert_eq!(scene.access(None).await.unwrap(), "a1");
    assert!(matches!(scene.access(Some("a1")).await, Err(LoginError::Ended)));
    scene.later(60);
    assert!(matches!(scene.access(None).await, Err(LoginError::Ended)));
    let endless = Login { expires: None, ..scene.login(0) };
    scene.logins.save(&scene.key(), &endless).await.unwrap();
    scene.later(1_000_000);
    assert_eq!(scene.access(None).await.unwrap(), "a1", "nobody said that it ends");
}

#[tokio::test]
async fn another_secret_in_the_config_is_used_at_once() {
    let scene = Scene::new().await;
    let with = |secret: &str| OAuthApplication {
        id: "weir".to_owned(),
        auth: crate::ClientAuth::Post(Secret::new(secret.to_owned())),
    };
    scene.logins.save(&scene.key(), &Login { client: with("old"), ..scene.login(0) }).await.unwrap();
    let renewal = Renewal::Refresh(Some(with("new")));
    scene.logins.access(&http(), &scene.key(), None, &renewal).await.unwrap();
    assert_eq!(scene.server.seen("/token")[0].form("client_secret").as_deref(), Some("new"));
    scene.later(4000);
    let other = Renewal::Refresh(Some(OAuthApplication::public("another")));
    scene.logins.access(&http(), &scene.key(), None, &other).await.unwrap();
    assert_eq!(scene.server.seen("/token")[1].form("client_id").as_deref(), Some("weir"));
}
