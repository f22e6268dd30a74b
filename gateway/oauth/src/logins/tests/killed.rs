//! A process that is killed in the middle of a rotation.
//!
//! The server here does as OAuth 2.1 advises: the refresh token before is good until the one after has been used. What
//! is lost without that, between the server's answer and the disk, no client can get back.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use weir_store::{Entry, FileStore, Key, Lease, Listed, Protection, Swap, Value};

use super::*;

const FOLDER: &str = "WEIR_OAUTH_TEST_FOLDER";
const ISSUER: &str = "WEIR_OAUTH_TEST_ISSUER";
const STOP: &str = "WEIR_OAUTH_TEST_STOP";
/// What has died is not waited for.
const LEASE: Duration = Duration::from_secs(3600);

/// A store that says what is done with logins, and waits for its end there.
struct Halting {
    inner: FileStore,
    stop: String,
}

impl Halting {
    async fn at(&self, step: &str, key: &Key) {
        if self.stop == step && format!("{key:?}").contains("login") {
            say("halted");
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Store for Halting {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.inner.get(key).await
    }
    async fn put(&self, key: &Key, value: &Value, ttl: Option<Duration>) -> Result<Version, StoreError> {
        self.inner.put(key, value, ttl).await
    }
    async fn swap(
        &self,
        key: &Key,
        expected: Option<Version>,
        value: &Value,
        ttl: Option<Duration>,
    ) -> Result<Swap, StoreError> {
        self.at("given", key).await;
        let swap = self.inner.swap(key, expected, value, ttl).await;
        self.at("kept", key).await;
        swap
    }
    async fn delete(&self, key: &Key) -> Result<bool, StoreError> {
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

#[expect(clippy::print_stdout, reason = "the parent reads it")]
fn say(line: &str) {
    println!("{line}");
}

async fn file(folder: &str) -> FileStore {
    FileStore::open(PathBuf::from(folder).join("store"), Protection::Plaintext, Clock::system()).await.unwrap()
}

/// The process that is killed. Does nothing unless it is started as that.
#[tokio::test]
async fn child() {
    let (Ok(folder), Ok(issuer), Ok(stop)) = (std::env::var(FOLDER), std::env::var(ISSUER), std::env::var(STOP)) else {
        return;
    };
    let store = Arc::new(Halting { inner: file(&folder).await, stop });
    let logins = Logins::with_lease(store, Clock::system(), LEASE);
    let key = LoginKey { upstream: "github".to_owned(), owner: CredentialOwner::Shared, issuer };
    let _ = logins.access(&http(), &key, None, &Renewal::Refresh(None)).await;
}

/// Gives `r<n+1>` for `r<n>`, and again for as long as `r<n+1>` has not been used. Holds its first answer if asked to.
async fn forgiving(hold: Option<Arc<Semaphore>>) -> Scripted {
    let used = AtomicU64::new(0);
    Scripted::start(move |_, seen| {
        let number: u64 = seen.form("refresh_token").unwrap()[1..].parse().unwrap();
        if number < used.load(Ordering::SeqCst) {
            return ScriptedReply::error(400, "invalid_grant");
        }
        let first = used.swap(number, Ordering::SeqCst) == 0;
        match &hold {
            Some(hold) if first => tokens(number + 1).hold(hold),
            _ => tokens(number + 1),
        }
    })
    .await
}

async fn killed_at(stop: &str) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let never = (stop == "asked").then(|| Arc::new(Semaphore::new(0)));
    let server = forgiving(never).await;
    let store = Arc::new(file(folder).await);
    let logins = Logins::with_lease(store, Clock::system(), LEASE);
    let key = LoginKey { upstream: "github".to_owned(), owner: CredentialOwner::Shared, issuer: server.issuer() };
    let metadata = ServerMetadata {
        issuer: server.issuer(),
        token_endpoint: Some(server.at("/token")),
        ..ServerMetadata::default()
    };
    let login = Login {
        origin: "https://mcp.example".to_owned(),
        resource: None,
        scopes: Scopes::default(),
        access: Secret::new("a1".to_owned()),
        issued: UNIX_EPOCH,
        expires: Some(UNIX_EPOCH),
        refresh: Some(Secret::new("r1".to_owned())),
        client: OAuthApplication::public("weir"),
        server: metadata,
        proof: None,
        ended: false,
    };
    logins.save(&key, &login).await.unwrap();

    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "logins::tests::killed::child", "--nocapture"])
        .envs([(FOLDER, folder), (ISSUER, server.issuer().as_str()), (STOP, stop)])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    while server.seen("/token").is_empty() {
        tokio::task::yield_now().await;
    }
    if stop != "asked" {
        let output = BufReader::new(child.stdout.take().unwrap());
        let halted = tokio::task::spawn_blocking(|| output.lines().any(|line| line.unwrap().contains("halted")));
        assert!(halted.await.unwrap());
    }
    child.kill().unwrap();
    child.wait().unwrap();

    let again = Logins::with_lease(Arc::new(file(folder).await), Clock::system(), LEASE);
    assert_eq!(get(&again, &key, None).await.unwrap(), "a2", "killed when {stop}");
    let kept = again.get(&key).await.unwrap().unwrap();
    assert_eq!(kept.refresh.unwrap().expose(), "r2");
    let asked = server.seen("/token").len();
    assert_eq!(asked, if stop == "kept" { 1 } else { 2 }, "killed when {stop}");
}

#[tokio::test]
async fn killed_before_the_server_answers() {
    killed_at("asked").await;
}

#[tokio::test]
async fn killed_before_the_answer_is_on_disk() {
    killed_at("given").await;
}

#[tokio::test]
async fn killed_after_the_answer_is_on_disk() {
    killed_at("kept").await;
}
