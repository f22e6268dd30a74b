//! What is in the store, and who else writes there.

use std::sync::atomic::AtomicBool;

use weir_store::{Entry, Key, Lease, Listed, Swap, Value};

use super::*;
use crate::tests::scripted::nobody;

#[tokio::test]
async fn what_the_server_gave_is_kept_before_it_is_used() {
    let scene = Scene::new().await;
    scene.signed_in(0).await;
    assert_eq!(scene.access(None).await.unwrap(), "a2");
    let kept = scene.kept().await;
    assert_eq!((kept.access.expose(), kept.refresh.unwrap().expose()), ("a2", "r2"));
    assert_eq!(kept.scopes.render(), "read", "a server that says nothing of scopes changes none");
}

#[tokio::test]
async fn a_server_that_does_not_rotate_leaves_the_refresh_token() {
    let scene = Scene::new().await;
    scene.signed_in(0).await;
    scene.instead([ScriptedReply::json(200, &json!({ "access_token": "a9", "scope": "read write" }))]);
    assert_eq!(scene.access(None).await.unwrap(), "a9");
    let kept = scene.kept().await;
    assert_eq!((kept.refresh.unwrap().expose(), kept.scopes.render().as_str()), ("r1", "read write"));
}

#[tokio::test]
async fn a_sign_in_during_a_refresh_counts() {
    let scene = Scene::new().await;
    scene.signed_in(0).await;
    scene.hold();
    let anew = async {
        scene.until_asked(1).await;
        let login = Login { access: Secret::new("new".to_owned()), ..scene.login(3600) };
        scene.logins.save(&scene.key(), &login).await.unwrap();
        scene.answers.add_permits(10);
    };
    let (access, ()) = tokio::join!(scene.access(None), anew);
    assert_eq!(access.unwrap(), "new");
    assert_eq!(scene.kept().await.access.expose(), "new");
    assert_eq!(scene.access(None).await.unwrap(), "new");
}

#[tokio::test]
async fn a_sign_out_during_a_refresh_counts() {
    let scene = Scene::new().await;
    scene.signed_in(0).await;
    scene.hold();
    let out = async {
        scene.until_asked(1).await;
        scene.store.delete(&scene.key().place()).await.unwrap();
        scene.answers.add_permits(10);
    };
    let (access, ()) = tokio::join!(scene.access(None), out);
    assert!(matches!(access, Err(LoginError::Missing)));
    assert!(scene.logins.get(&scene.key()).await.unwrap().is_none());
    assert_eq!(
        scene.server.seen("/revoke")[0].form("token").as_deref(),
        Some("r2"),
        "what came too late is given back"
    );
}

#[tokio::test]
async fn invalid_grant_because_another_process_was_faster_ends_nothing() {
    let scene = Scene::new().await;
    scene.signed_in(0).await;
    scene.instead([ScriptedReply::error(400, "invalid_grant")]);
    scene.hold();
    let other = async {
        scene.until_asked(1).await;
        // One that does not know of leases.
        let login = Login { access: Secret::new("theirs".to_owned()), ..scene.login(3600) };
        scene.store.put(&scene.key().place(), &login.value(), None).await.unwrap();
        scene.answers.add_permits(10);
    };
    let (access, ()) = tokio::join!(scene.access(None), other);
    assert_eq!(access.unwrap(), "theirs");
    assert!(!scene.kept().await.ended);
}

#[tokio::test]
async fn what_another_process_does_is_noticed() {
    let scene = Scene::new().await;
    let other = Logins::new(Arc::clone(&scene.store), clock(&scene.now));
    other.save(&scene.key(), &scene.login(3600)).await.unwrap();
    let found = scene.latest(&CredentialOwner::Shared).await.unwrap();
    assert_eq!((found.key, found.refreshable), (scene.key(), true));
    assert_eq!(scene.access(None).await.unwrap(), "a1");
    assert!(other.forget(&http(), "github", &CredentialOwner::Shared, None).await.unwrap().unwrap().is_ok());
    assert!(matches!(scene.access(None).await, Err(LoginError::Missing)));
}

/// Two configurations of a user share a store, and may call two servers by one name.
#[tokio::test]
async fn a_login_for_another_place_is_left_alone() {
    let scene = Scene::new().await;
    let (key, login) = (scene.key(), scene.login(3600));
    let elsewhere = LoginKey { issuer: "https://other.example".to_owned(), ..key.clone() };
    let theirs = Login { origin: "https://elsewhere.example".to_owned(), ..login.clone() };
    scene.logins.save(&elsewhere, &theirs).await.unwrap();
    scene.logins.save(&key, &login).await.unwrap();
    let kept = async || {
        (scene.logins.get(&key).await.unwrap().is_some(), scene.logins.get(&elsewhere).await.unwrap().is_some())
    };
    assert_eq!(kept().await, (true, true), "one signed in");
    scene
        .logins
        .forget(&http(), "github", &CredentialOwner::Shared, Some(&login.origin))
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(kept().await, (false, true), "one signed out");
    scene.logins.save(&key, &Login { origin: theirs.origin.clone(), ..login }).await.unwrap();
    assert_eq!(kept().await, (true, false), "another issuer of one place");
}

#[tokio::test]
async fn a_sign_out_reaches_the_server() {
    let scene = Scene::new().await;
    assert!(scene.logins.forget(&http(), "github", &CredentialOwner::Shared, None).await.unwrap().is_none());
    scene.signed_in(3600).await;
    scene.logins.forget(&http(), "github", &CredentialOwner::Shared, None).await.unwrap().unwrap().unwrap();
    assert_eq!(scene.server.seen("/revoke")[0].form("token").as_deref(), Some("r1"));
    assert!(matches!(scene.access(None).await, Err(LoginError::Missing)));
    let mut unreachable = scene.login(3600);
    let (gone, _socket) = nobody("/revoke");
    unreachable.server.revocation_endpoint = Some(gone);
    scene.logins.save(&scene.key(), &unreachable).await.unwrap();
    let said = scene.logins.forget(&http(), "github", &CredentialOwner::Shared, None).await.unwrap().unwrap();
    assert!(said.unwrap_err().is_temporary());
    assert!(scene.logins.get(&scene.key()).await.unwrap().is_none(), "here it is forgotten all the same");
}

#[tokio::test]
async fn logins_are_told_apart_and_listed_without_secrets() {
    let scene = Scene::new().await;
    let alice = CredentialOwner::Principal("https://idp.example".to_owned(), "alice".to_owned());
    let key = |owner: &CredentialOwner, issuer: &str| LoginKey {
        upstream: "github".to_owned(),
        owner: owner.clone(),
        issuer: issuer.to_owned(),
    };
    for (owner, issuer, token) in
        [(&CredentialOwner::Shared, "https://one.example", "shared-one"), (&alice, "https://one.example", "alice-one")]
    {
        let login = Login { access: Secret::new(token.to_owned()), ..scene.login(3600) };
        scene.logins.save(&key(owner, issuer), &login).await.unwrap();
    }
    for (owner, issuer, token) in
        [(&CredentialOwner::Shared, "https://one.example", "shared-one"), (&alice, "https://one.example", "alice-one")]
    {
        assert_eq!(get(&scene.logins, &key(owner, issuer), None).await.unwrap(), token);
    }
    assert!(matches!(
        get(&scene.logins, &key(&CredentialOwner::Shared, "https://two.example"), None).await,
        Err(LoginError::Missing)
    ));
    let listed = scene.logins.list(&[LoginKey::range(None, None)]).await.unwrap();
    assert_eq!(listed.len(), 2);
    let latest = scene.latest(&alice).await.unwrap();
    assert_eq!(latest.key, key(&alice, "https://one.example"));
    assert_eq!(scene.logins.list(&[LoginKey::range(Some("other"), Some(&alice))]).await.unwrap(), []);
    let shown = format!("{listed:?} {latest:?} {:?}", scene.logins.get(&latest.key).await.unwrap());
    for secret in ["shared-one", "alice-one", "r1"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

/// A key of the same owner and upstream, of another issuer.
fn elsewhere(scene: &Scene) -> LoginKey {
    LoginKey { issuer: "https://new.example".to_owned(), ..scene.key() }
}

#[tokio::test]
async fn a_sign_in_elsewhere_takes_the_place_of_the_one_before() {
    let scene = Scene::new().await;
    scene.signed_in(3600).await;
    let others = LoginKey { upstream: "other".to_owned(), ..scene.key() };
    scene.logins.save(&others, &scene.login(3600)).await.unwrap();
    assert_eq!(scene.access(None).await.unwrap(), "a1");
    scene.logins.save(&elsewhere(&scene), &scene.login(3600)).await.unwrap();
    assert!(matches!(scene.access(None).await, Err(LoginError::Missing)), "it is forgotten here too");
    assert_eq!(scene.logins.list(&[LoginKey::range(None, None)]).await.unwrap().len(), 2);
    assert_eq!(scene.latest(&CredentialOwner::Shared).await.unwrap().key, elsewhere(&scene));
    assert!(scene.logins.get(&others).await.unwrap().is_some());
}

#[tokio::test]
async fn a_sign_in_that_is_not_kept_drops_nothing() {
    let (scene, writable, _) = failing().await;
    scene.signed_in(3600).await;
    writable.store(false, Ordering::SeqCst);
    assert!(scene.logins.save(&elsewhere(&scene), &scene.login(3600)).await.is_err());
    assert_eq!(scene.access(None).await.unwrap(), "a1");
}

#[tokio::test]
async fn the_latest_counts_even_if_it_has_ended_and_a_sign_out_is_of_all() {
    let scene = Scene::new().await;
    scene.signed_in(3600).await;
    // As a process left it that did not know of the other.
    let ended = Login { ended: true, refresh: Some(Secret::new("r9".to_owned())), ..scene.login(3600) };
    scene.store.put(&elsewhere(&scene).place(), &ended.value(), None).await.unwrap();
    assert_eq!(scene.latest(&CredentialOwner::Shared).await.unwrap().key, elsewhere(&scene));
    scene.logins.forget(&http(), "github", &CredentialOwner::Shared, None).await.unwrap().unwrap().unwrap();
    assert!(scene.logins.list(&[LoginKey::range(None, None)]).await.unwrap().is_empty());
    let revoked: Vec<_> = scene.server.seen("/revoke").iter().filter_map(|seen| seen.form("token")).collect();
    assert!(revoked.len() == 2 && ["r1", "r9"].iter().all(|token| revoked.iter().any(|one| one == token)));
}

#[test]
fn a_login_comes_back_from_the_store_as_it_was() {
    let key = crate::PrivateKey {
        pem: Secret::new("pem".to_owned()),
        algorithm: "ES256".to_owned(),
        id: Some("k".to_owned()),
    };
    let secret = || Secret::new("s".to_owned());
    for auth in [
        crate::ClientAuth::None,
        crate::ClientAuth::Basic(secret()),
        crate::ClientAuth::Post(secret()),
        crate::ClientAuth::PrivateKey(key),
    ] {
        let login = Login {
            origin: "https://mcp.example".to_owned(),
            resource: None,
            scopes: Scopes::parse("a b"),
            access: secret(),
            issued: UNIX_EPOCH,
            expires: Some(UNIX_EPOCH + Duration::from_millis(1_234)),
            refresh: None,
            client: OAuthApplication { id: "c".to_owned(), auth },
            server: ServerMetadata { issuer: "https://as.example".to_owned(), ..ServerMetadata::default() },
            proof: None,
            ended: true,
        };
        let back = Login::from_value(&login.value()).unwrap();
        assert_eq!((back.client, back.scopes, back.expires), (login.client, login.scopes, login.expires));
        assert_eq!((back.ended, back.refresh, back.resource), (true, None, None));
    }
}

/// A store whose disk is full, or gone, for a while.
struct Full {
    inner: MemoryStore,
    writable: Arc<AtomicBool>,
    readable: Arc<AtomicBool>,
}

impl Full {
    fn check(&self, key: &Key) -> Result<(), StoreError> {
        let lease = format!("{key:?}").contains("refresh");
        if lease || self.writable.load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(StoreError::Io { path: "store".into(), reason: "no space left on device".to_owned() })
    }
}

#[async_trait]
impl Store for Full {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        if !self.readable.load(Ordering::SeqCst) {
            return Err(StoreError::Busy("store".into()));
        }
        self.inner.get(key).await
    }
    async fn put(&self, key: &Key, value: &Value, ttl: Option<Duration>) -> Result<Version, StoreError> {
        self.check(key)?;
        self.inner.put(key, value, ttl).await
    }
    async fn swap(
        &self,
        key: &Key,
        expected: Option<Version>,
        value: &Value,
        ttl: Option<Duration>,
    ) -> Result<Swap, StoreError> {
        self.check(key)?;
        self.inner.swap(key, expected, value, ttl).await
    }
    async fn delete(&self, key: &Key) -> Result<bool, StoreError> {
        self.check(key)?;
        self.inner.delete(key).await
    }
    async fn list(&self, below: &[Key]) -> Result<Vec<Listed>, StoreError> {
        self.inner.list(below).await
    }
    async fn lease(&self, key: &Key, ttl: Duration) -> Result<Option<Lease>, StoreError> {
        self.inner.lease(key, ttl).await
    }
    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        self.inner.release(lease).await
    }
}

async fn failing() -> (Scene, Arc<AtomicBool>, Arc<AtomicBool>) {
    let (writable, readable) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(true)));
    let (writes, reads) = (Arc::clone(&writable), Arc::clone(&readable));
    let store = |clock| Arc::new(Full { inner: MemoryStore::new(clock), writable: writes, readable: reads }) as _;
    (Scene::with(store).await, writable, readable)
}

#[tokio::test]
async fn without_its_store_nothing_is_renewed_and_nothing_ends() {
    let (scene, _, readable) = failing().await;
    scene.signed_in(3600).await;
    readable.store(false, Ordering::SeqCst);
    for _ in 0..5 {
        scene.later(1000);
        for failed in [scene.access(None).await.unwrap_err(), scene.renewed("a1").await.unwrap_err()] {
            assert!(matches!(failed, LoginError::Store(_)) && !failed.needs_sign_in(), "{failed}");
        }
    }
    assert_eq!(scene.asked(), 0, "nothing is rotated that could not be kept");
    readable.store(true, Ordering::SeqCst);
    assert_eq!(scene.access(None).await.unwrap(), "a2");
}

#[tokio::test]
async fn a_full_disk_loses_no_rotation() {
    let (scene, writable, _) = failing().await;
    scene.signed_in(0).await;
    writable.store(false, Ordering::SeqCst);
    assert!(scene.logins.save(&scene.key(), &scene.login(3600)).await.is_err());
    assert_eq!(scene.access(None).await.unwrap(), "a2", "the call goes on");
    assert_eq!(scene.kept().await.refresh.unwrap().expose(), "r1");
    assert_eq!(scene.access(None).await.unwrap(), "a2");
    let listed = scene.latest(&CredentialOwner::Shared).await.unwrap();
    assert!(listed.expires > scene.kept().await.expires, "it is listed as it is in memory");
    scene.later(4000);
    assert_eq!(scene.access(None).await.unwrap(), "a3", "and so does the next rotation");
    writable.store(true, Ordering::SeqCst);
    assert_eq!(scene.access(None).await.unwrap(), "a3");
    scene.logins.close().await;
    let kept = scene.kept().await;
    assert_eq!(
        (kept.access.expose(), kept.refresh.unwrap().expose()),
        ("a3", "r3"),
        "it is saved when that is possible"
    );
    assert_eq!(scene.asked(), 2);
}

#[tokio::test]
async fn a_login_takes_the_new_name_of_its_upstream_unless_it_is_being_renewed() {
    let scene = Scene::new().await;
    scene.signed_in(3600).await;
    let (old, login) = (scene.key(), scene.kept().await);
    let other = LoginKey { owner: CredentialOwner::Principal("i".to_owned(), "ada".to_owned()), ..old.clone() };
    let elsewhere = Login { origin: "https://elsewhere.example".to_owned(), ..login.clone() };
    scene.logins.save(&other, &elsewhere).await.unwrap();

    let lease = scene.store.lease(&old.lease(), Duration::from_secs(60)).await.unwrap().unwrap();
    let busy = scene.logins.rename(&old.upstream, "new", &login.origin).await;
    assert!(matches!(busy, Err(RenameError::Busy)), "{busy:?}");
    scene.store.release(lease).await.unwrap();

    assert_eq!(scene.logins.rename(&old.upstream, "new", &login.origin).await.unwrap(), 1);
    let new = LoginKey { upstream: "new".to_owned(), ..old.clone() };
    let moved = scene.logins.get(&new).await.unwrap().unwrap();
    assert_eq!((moved.access, moved.refresh), (login.access, login.refresh));
    assert!(scene.logins.get(&old).await.unwrap().is_none());
    assert!(scene.logins.get(&other).await.unwrap().is_some(), "a login for another origin stays");
    assert_eq!(scene.logins.rename(&old.upstream, "new", &login.origin).await.unwrap(), 0);
}
