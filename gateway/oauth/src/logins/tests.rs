#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::UNIX_EPOCH,
};

use serde_json::json;
use tokio::sync::Semaphore;
use weir_store::{MemoryStore, Version};

use super::*;
use crate::{
    CredentialOwner, LoginSummary, Scopes, ServerMetadata,
    tests::scripted::{Scripted, ScriptedReply, http},
};

mod killed;
mod kept;
mod repeated;
mod trouble;

impl LoginError {
    /// Whether a sign-in is what it takes.
    fn needs_sign_in(&self) -> bool {
        matches!(self, Self::Missing | Self::Ended | Self::NotAccepted)
    }

    /// Whether it is likely to pass by itself.
    fn is_temporary(&self) -> bool {
        matches!(self, Self::Token(error) if error.is_temporary())
    }
}

/// When the tests begin, in seconds since 1970.
const NOW: u64 = 1_800_000_000;

/// An authorization server that rotates refresh tokens: it takes `r<n>` once, and gives `a<n+1>` and `r<n+1>`.
struct Scene {
    server: Scripted,
    /// Answers in place of tokens, in turn.
    instead: Arc<Mutex<Vec<ScriptedReply>>>,
    /// Permits to answer.
    answers: Arc<Semaphore>,
    store: Arc<dyn Store>,
    now: Arc<AtomicU64>,
    logins: Logins,
}

impl Scene {
    async fn new() -> Self {
        Self::with(|clock| Arc::new(MemoryStore::new(clock))).await
    }

    async fn with(store: impl FnOnce(Clock) -> Arc<dyn Store>) -> Self {
        let (instead, answers) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Semaphore::new(10_000)));
        let (replies, hold, current) = (Arc::clone(&instead), Arc::clone(&answers), AtomicU64::new(1));
        let server = Scripted::start(move |_, seen| {
            if seen.path == "/revoke" {
                return ScriptedReply::status(200);
            }
            let instead: Option<ScriptedReply> = { replies.lock().pop() };
            if let Some(instead) = instead {
                return instead.hold(&hold);
            }
            let given = seen.form("refresh_token").unwrap();
            let next = current.load(Ordering::SeqCst);
            if given != format!("r{next}") {
                return ScriptedReply::error(400, "invalid_grant").hold(&hold);
            }
            current.store(next + 1, Ordering::SeqCst);
            tokens(next + 1).hold(&hold)
        })
        .await;
        let now = Arc::new(AtomicU64::new(NOW));
        let clock = clock(&now);
        let store = store(clock.clone());
        let logins = Logins::new(Arc::clone(&store), clock);
        Self { server, instead, answers, store, now, logins }
    }

    /// A login that is good for `lifetime` seconds.
    async fn signed_in(&self, lifetime: u64) {
        self.logins.save(&self.key(), &self.login(lifetime)).await.unwrap();
    }

    fn login(&self, lifetime: u64) -> Login {
        let server = json!({
            "issuer": self.server.issuer(), "token_endpoint": self.server.at("/token"),
            "revocation_endpoint": self.server.at("/revoke"),
        });
        let server: ServerMetadata = serde_json::from_value(server).unwrap();
        Login {
            origin: "https://mcp.example".to_owned(),
            resource: Some("https://mcp.example/mcp".to_owned()),
            scopes: Scopes::parse("read"),
            access: Secret::new("a1".to_owned()),
            issued: UNIX_EPOCH,
            expires: Some(UNIX_EPOCH + Duration::from_secs(self.now.load(Ordering::SeqCst) + lifetime)),
            refresh: Some(Secret::new("r1".to_owned())),
            client: OAuthApplication::public("weir"),
            server,
            proof: None,
            ended: false,
        }
    }

    fn key(&self) -> LoginKey {
        LoginKey { upstream: "github".to_owned(), owner: CredentialOwner::Shared, issuer: self.server.issuer() }
    }

    async fn access(&self, refused: Option<&str>) -> Result<String, LoginError> {
        get(&self.logins, &self.key(), refused).await
    }

    async fn latest(&self, owner: &CredentialOwner) -> Option<LoginSummary> {
        let listed = self.logins.list(&[LoginKey::range(Some("github"), Some(owner))]).await.unwrap();
        listed.into_iter().max_by_key(|login| login.version)
    }

    /// What is in the store, as another process finds it.
    async fn kept(&self) -> Login {
        Login::from_value(&self.store.get(&self.key().place()).await.unwrap().unwrap().value).unwrap()
    }

    fn later(&self, seconds: u64) {
        self.now.fetch_add(seconds, Ordering::SeqCst);
    }

    fn instead(&self, replies: impl IntoIterator<Item = ScriptedReply>) {
        let mut instead = self.instead.lock();
        instead.extend(replies);
        instead.reverse();
    }

    fn asked(&self) -> usize {
        self.server.seen("/token").len()
    }

    /// What there is in place of a token whose end is near.
    async fn renewed(&self, token: &str) -> Result<String, LoginError> {
        let stale = Stale { token: Secret::new(token.to_owned()), refused: false };
        let renewed = self.logins.access(&http(), &self.key(), Some(&stale), &Renewal::Refresh(None)).await;
        renewed.map(|login| login.access.expose().to_owned())
    }

    /// A renewal that is due and brings nothing is not tried again at once, and the token is used on.
    async fn is_asked_once_in_ten_seconds(&self) {
        for asked in [1, 2] {
            for _ in 0..20 {
                assert!(!self.renewed("a1").await.is_ok_and(|token| token != "a1"));
                assert_eq!(self.access(None).await.unwrap(), "a1");
            }
            assert_eq!(self.asked(), asked);
            self.later(10);
        }
    }

    /// Waits until the server has been asked so often.
    async fn until_asked(&self, times: usize) {
        while self.asked() < times {
            tokio::task::yield_now().await;
        }
    }

    /// No answers until they are let through.
    fn hold(&self) {
        self.answers.forget_permits(self.answers.available_permits());
    }
}

fn tokens(number: u64) -> ScriptedReply {
    ScriptedReply::json(
        200,
        &json!({ "access_token": format!("a{number}"), "refresh_token": format!("r{number}"), "expires_in": 3600 }),
    )
}

fn clock(now: &Arc<AtomicU64>) -> Clock {
    let now = Arc::clone(now);
    Clock::from_fn(move || UNIX_EPOCH + Duration::from_secs(now.load(Ordering::SeqCst)))
}

async fn get(logins: &Logins, key: &LoginKey, refused: Option<&str>) -> Result<String, LoginError> {
    let refused = refused.map(|token| Stale { token: Secret::new(token.to_owned()), refused: true });
    let login = logins.access(&http(), key, refused.as_ref(), &Renewal::Refresh(None)).await?;
    assert_eq!(login.origin, "https://mcp.example");
    Ok(login.access.expose().to_owned())
}

#[tokio::test]
async fn a_good_token_is_used_without_asking_anybody() {
    let scene = Scene::new().await;
    assert!(matches!(scene.access(None).await, Err(LoginError::Missing)));
    scene.signed_in(3600).await;
    for _ in 0..3 {
        assert_eq!(scene.access(None).await.unwrap(), "a1");
        scene.later(1000);
    }
    assert_eq!(scene.asked(), 0);
}

#[tokio::test]
async fn fifty_calls_at_expiry_make_one_refresh() {
    let scene = Arc::new(Scene::new().await);
    scene.signed_in(1).await;
    scene.later(2);
    scene.hold();
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let scene = Arc::clone(&scene);
        calls.spawn(async move { scene.access(None).await.unwrap() });
    }
    scene.until_asked(1).await;
    scene.answers.add_permits(100);
    assert!(calls.join_all().await.iter().all(|token| token == "a2"));
    assert_eq!(scene.asked(), 1);
    let sent = &scene.server.seen("/token")[0];
    for (name, value) in
        [("grant_type", "refresh_token"), ("resource", "https://mcp.example/mcp"), ("client_id", "weir")]
    {
        assert_eq!(sent.form(name).as_deref(), Some(value));
    }
}

#[tokio::test]
async fn while_a_good_token_is_renewed_nobody_waits() {
    let scene = Scene::new().await;
    scene.signed_in(30).await;
    scene.hold();
    let others = async {
        scene.until_asked(1).await;
        for _ in 0..20 {
            assert_eq!(scene.access(None).await.unwrap(), "a1");
        }
        scene.answers.add_permits(100);
    };
    let (renewed, ()) = tokio::join!(scene.renewed("a1"), others);
    assert_eq!(renewed.unwrap(), "a2");
    assert_eq!(scene.access(None).await.unwrap(), "a2");
    assert_eq!(scene.asked(), 1);
}

#[tokio::test]
async fn a_call_that_goes_away_does_not_tear_a_rotation() {
    let scene = Scene::new().await;
    scene.signed_in(0).await;
    scene.hold();
    tokio::select! {
        _ = scene.access(None) => panic!("it cannot be there yet"),
        () = scene.until_asked(1) => {}
    }
    scene.answers.add_permits(100);
    assert_eq!(scene.access(None).await.unwrap(), "a2");
    assert_eq!((scene.asked(), scene.kept().await.refresh.unwrap().expose()), (1, "r2"));
}

#[tokio::test]
async fn a_refused_token_is_refreshed_once_and_its_successor_not_again() {
    let scene = Scene::new().await;
    scene.signed_in(3600).await;
    let calls = (0..20).map(|_| scene.access(Some("a1")));
    for token in join_all(calls).await {
        assert_eq!(token.unwrap(), "a2");
    }
    assert_eq!(scene.asked(), 1);
    assert_eq!(scene.access(Some("a1")).await.unwrap(), "a2", "a late answer to the old one");
    for _ in 0..5 {
        assert!(matches!(scene.access(Some("a2")).await, Err(LoginError::NotAccepted)));
    }
    assert_eq!(scene.asked(), 1, "no storm");
    scene.later(60);
    assert_eq!(scene.access(Some("a2")).await.unwrap(), "a3");
}

#[tokio::test]
async fn two_processes_refresh_once() {
    let scene = Scene::new().await;
    let other = Logins::new(Arc::clone(&scene.store), clock(&scene.now));
    scene.signed_in(0).await;
    scene.hold();
    let key = scene.key();
    let here = (0..25).map(|_| get(&scene.logins, &key, None));
    let there = (0..25).map(|_| get(&other, &key, None));
    let release = async {
        scene.until_asked(1).await;
        scene.answers.add_permits(100);
    };
    let (here, there, ()) = tokio::join!(join_all(here), join_all(there), release);
    assert!(here.into_iter().chain(there).all(|token| token.unwrap() == "a2"));
    assert_eq!(scene.asked(), 1);
}

#[tokio::test]
async fn a_token_that_nobody_signs_in_for_is_made_once() {
    struct Service(AtomicU64, Login);
    #[async_trait]
    impl Obtain for Service {
        async fn obtain(&self) -> Result<Login, TokenError> {
            tokio::task::yield_now().await;
            if self.0.fetch_add(1, Ordering::SeqCst) == 0 { Ok(self.1.clone()) } else { Err(TokenError::InvalidGrant) }
        }
    }
    let scene = Scene::new().await;
    let service = Arc::new(Service(AtomicU64::new(0), Login { refresh: None, ..scene.login(3600) }));
    let renewal = Renewal::Obtain(service.clone());
    let (http, key) = (http(), scene.key());
    let calls = (0..30).map(|_| scene.logins.access(&http, &key, None, &renewal));
    assert!(join_all(calls).await.into_iter().all(|login| login.unwrap().access.expose() == "a1"));
    assert_eq!(service.0.load(Ordering::SeqCst), 1);
    scene.later(4000);
    let failed = scene.logins.access(&http, &key, None, &renewal).await.unwrap_err();
    assert!(matches!(failed, LoginError::Token(TokenError::InvalidGrant)), "{failed}");
    assert!(!scene.kept().await.ended);
}

/// A server that gives whoever asks this login, without anybody who signs in.
struct Service(Login);

#[async_trait]
impl Obtain for Service {
    async fn obtain(&self) -> Result<Login, TokenError> {
        Ok(self.0.clone())
    }
}

#[tokio::test]
async fn what_nobody_signs_in_for_is_not_kept_for_long_after_its_end() {
    let scene = Scene::new().await;
    scene.signed_in(0).await;
    let caller = |name: &str| {
        let owner = CredentialOwner::Principal("https://idp.example".to_owned(), name.to_owned());
        LoginKey { owner, ..scene.key() }
    };
    let service = |login: Login| Renewal::Obtain(Arc::new(Service(login)));
    for number in 0..20 {
        let renewal = service(Login { refresh: None, ..scene.login(600) });
        scene.logins.access(&http(), &caller(&number.to_string()), None, &renewal).await.unwrap();
    }
    let endless = service(Login { refresh: None, expires: None, ..scene.login(0) });
    scene.logins.access(&http(), &caller("endless"), None, &endless).await.unwrap();
    scene.later(600);
    assert_eq!(
        scene.logins.list(&[LoginKey::range(None, None)]).await.unwrap().len(),
        22,
        "it tells for what a new one is asked for"
    );
    scene.later(3600);
    assert_eq!(scene.logins.list(&[LoginKey::range(None, None)]).await.unwrap().len(), 2);
    scene.later(7 * 86_400);
    let left = scene.logins.list(&[LoginKey::range(None, None)]).await.unwrap();
    assert!(left.len() == 1 && left[0].key == scene.key(), "what somebody has signed in for stays: {left:?}");
}

/// All at the same time, as far as one thread goes.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, output) in &mut futures {
            if output.is_none()
                && let std::task::Poll::Ready(done) = future.as_mut().poll(context)
            {
                *output = Some(done);
            }
        }
        if futures.iter().all(|(_, output)| output.is_some()) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    futures.into_iter().map(|(_, output)| output.unwrap()).collect()
}
