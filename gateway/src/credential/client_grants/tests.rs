#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use weir_store::Clock;

use super::*;

const LIFETIME: Duration = Duration::from_secs(1000);

/// A store, and what its clock shows, in seconds.
struct Scene {
    store: IssuerStore,
    time: Arc<AtomicU64>,
}

impl Scene {
    fn new() -> Self {
        let time = Arc::new(AtomicU64::new(1_000_000));
        let shown = Arc::clone(&time);
        let clock = Clock::from_fn(move || SystemTime::UNIX_EPOCH + Duration::from_secs(shown.load(Ordering::Relaxed)));
        Self { store: IssuerStore::in_memory(clock), time }
    }

    fn wait(&self, seconds: u64) {
        self.time.fetch_add(seconds, Ordering::Relaxed);
    }

    async fn code(&self) -> String {
        self.code_after(0).await
    }

    /// The same for a person who has signed in so many seconds ago.
    async fn code_after(&self, ago: u64) -> String {
        let grant = TokenGrant { client: "host".to_owned(), ..TokenGrant::default() };
        let binding = CodeBinding { redirect: String::new(), challenge: String::new() };
        let ago = Duration::from_secs(ago);
        self.store.issue_code(grant, binding, ago).await.unwrap().unwrap().expose().to_owned()
    }

    /// The refresh token that a code becomes; none if it is not good.
    async fn redeem(&self, code: &str) -> Option<String> {
        token(self.store.redeem_code(code, "host", LIFETIME, |_, _| true).await.unwrap())
    }

    async fn refresh(&self, old: &str) -> Option<String> {
        token(self.store.refresh(old, "host", |_| true).await.unwrap())
    }
}

fn token(redeemed: Redeemed) -> Option<String> {
    match redeemed {
        Redeemed::Good(_, next) => Some(next.expose().to_owned()),
        Redeemed::Reused(_) | Redeemed::Unknown => None,
    }
}

#[tokio::test]
async fn a_code_expires_after_a_minute() {
    let scene = Scene::new();
    let (late, soon) = (scene.code().await, scene.code().await);
    scene.wait(59);
    assert!(scene.redeem(&soon).await.is_some());
    scene.wait(1);
    assert_eq!(scene.redeem(&late).await, None);
}

#[tokio::test]
async fn no_refresh_prolongs_a_grant() {
    let scene = Scene::new();
    let first = scene.redeem(&scene.code().await).await.unwrap();
    scene.wait(999);
    let second = scene.refresh(&first).await.unwrap();
    scene.wait(1);
    assert_eq!(scene.refresh(&second).await, None);
}

#[tokio::test]
async fn a_grant_is_as_old_as_its_sign_in() {
    let scene = Scene::new();
    assert_eq!(scene.redeem(&scene.code_after(1000).await).await, None);
    let first = scene.redeem(&scene.code_after(600).await).await.unwrap();
    scene.wait(399);
    let second = scene.refresh(&first).await.unwrap();
    scene.wait(1);
    assert_eq!(scene.refresh(&second).await, None);
}

#[tokio::test]
async fn the_last_token_is_answered_again_for_a_moment() {
    let scene = Scene::new();
    let first = scene.redeem(&scene.code().await).await.unwrap();
    let second = scene.refresh(&first).await.unwrap();
    scene.wait(29);
    assert_eq!(scene.refresh(&first).await.as_ref(), Some(&second));
    scene.wait(1);
    assert_eq!((scene.refresh(&first).await, scene.refresh(&second).await), (None, None), "all is revoked");
}

#[tokio::test]
async fn a_code_is_answered_once() {
    let scene = Scene::new();
    let code = scene.code().await;
    let token = scene.redeem(&code).await.unwrap();
    assert_eq!((scene.redeem(&code).await, scene.refresh(&token).await), (None, None));
    // Neither passes for the other.
    let code = scene.code().await;
    assert_eq!(scene.refresh(&code.replace(CODE, REFRESH)).await, None);
    let token = scene.redeem(&scene.code().await).await.unwrap();
    assert_eq!(scene.redeem(&token.replace(REFRESH, CODE)).await, None);
}
