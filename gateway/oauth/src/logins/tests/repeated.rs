//! A server that gives the token that there is, until that has ended, or whatever is asked of it.

use super::*;

impl Scene {
    /// The token that there is, good for so many seconds more.
    fn same(lifetime: u64) -> ScriptedReply {
        ScriptedReply::json(200, &json!({ "access_token": "a1", "refresh_token": "r1", "expires_in": lifetime }))
    }
}

#[tokio::test]
async fn a_token_that_is_renewed_to_itself_stays_in_use() {
    let scene = Scene::new().await;
    scene.signed_in(50).await;
    let issued = scene.kept().await.issued;
    scene.instead([Scene::same(50), Scene::same(30)]);
    for _ in 0..20 {
        assert_eq!(scene.renewed("a1").await.unwrap(), "a1");
    }
    assert_eq!(scene.asked(), 1, "it has no other yet");
    assert_eq!(scene.kept().await.issued, issued, "it is as old as it was");
    scene.later(20);
    assert_eq!(scene.renewed("a1").await.unwrap(), "a1");
    assert_eq!(scene.asked(), 2);
    scene.later(30);
    assert_eq!(scene.renewed("a1").await.unwrap(), "a2", "it has ended, so there is another");
    assert_eq!(scene.asked(), 3);
}

#[tokio::test]
async fn what_is_left_of_a_token_in_its_last_second_is_no_renewal() {
    let scene = Scene::new().await;
    scene.signed_in(10).await;
    scene.instead([Scene::same(1)]);
    let failed = scene.renewed("a1").await.unwrap_err();
    assert!(failed.is_temporary() && !failed.needs_sign_in(), "{failed}");
    scene.later(1);
    assert_eq!(scene.renewed("a1").await.unwrap(), "a2");
}

#[tokio::test]
async fn a_refresh_that_is_due_and_changes_nothing_is_not_tried_again_at_once() {
    let scene = Scene::new().await;
    scene.signed_in(50).await;
    scene.instead((1..10).map(|round| Scene::same(50 - round)));
    scene.is_asked_once_in_ten_seconds().await;
}

#[tokio::test]
async fn a_refused_token_that_is_given_again_is_not_accepted() {
    let scene = Scene::new().await;
    scene.signed_in(3600).await;
    scene.instead((0..100).map(|_| Scene::same(3600)));
    let calls = (0..20).map(|_| scene.access(Some("a1")));
    for token in join_all(calls).await {
        assert!(matches!(token, Err(LoginError::NotAccepted)), "{token:?}");
    }
    assert_eq!(scene.asked(), 1, "no storm");
    assert_eq!(scene.access(None).await.unwrap(), "a1", "whoever has not been refused may try");
}

#[tokio::test]
async fn more_scopes_may_change_no_token() {
    let scene = Scene::new().await;
    let login = Login { refresh: None, ..scene.login(3600) };
    scene.logins.save(&scene.key(), &login).await.unwrap();
    let more = Renewal::Obtain(Arc::new(Service(Login { scopes: Scopes::parse("read write"), ..login.clone() })));
    let stale = Stale { token: login.access.clone(), refused: false };
    let login = scene.logins.access(&http(), &scene.key(), Some(&stale), &more).await.unwrap();
    assert_eq!((login.access.expose(), login.scopes.render().as_str()), ("a1", "read write"));
}
