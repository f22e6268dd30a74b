#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{
    collections::BTreeSet,
    fs,
    io::Read,
    os::unix::fs::MetadataExt,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::UNIX_EPOCH,
};

use redb::Database;

use super::*;
use crate::{KeySources, Secret};

mod former;
mod shared;
mod trouble;

const TOKEN: &str = "hunter2-refresh-token";

fn value(secret: &str) -> Value {
    Value { about: r#"{"issuer":"https://a.example"}"#.to_owned(), secret: Zeroizing::new(secret.into()) }
}

fn key(name: &str) -> Key {
    Key::new("login", &[name, "shared"])
}

/// Without a keyring: a test leaves nothing on the machine.
fn sources(folder: &Path) -> KeySources {
    KeySources { keyring: None, file: Some(folder.join("store.key")), variable: None }
}

async fn open(folder: &Path) -> Result<FileStore, StoreError> {
    let path = folder.join("store");
    FileStore::open(path, Protection::Encrypted(sources(folder)), Clock::system()).await
}

async fn text(store: &FileStore, key: &Key) -> Option<String> {
    let entry = store.get(key).await.unwrap()?;
    Some(String::from_utf8(entry.value.secret.to_vec()).unwrap())
}

#[tokio::test]
async fn what_was_put_is_there_for_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).await.unwrap().put(&key("github"), &value(TOKEN), None).await.unwrap();
    let again = open(folder.path()).await.unwrap();
    assert_eq!(text(&again, &key("github")).await.as_deref(), Some(TOKEN));
    assert!(again.delete(&key("github")).await.unwrap());
    assert!(!again.delete(&key("github")).await.unwrap());
    assert_eq!(text(&again, &key("github")).await, None);
}

#[tokio::test]
async fn no_file_shows_a_secret_or_can_be_read_by_others() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("deeper")).await.unwrap();
    store.put(&key("github"), &value(TOKEN), None).await.unwrap();
    let mut names = BTreeSet::new();
    for file in fs::read_dir(folder.path().join("deeper")).unwrap() {
        let file = file.unwrap();
        let bytes = fs::read(file.path()).unwrap();
        assert!(!bytes.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes()), "{:?}", file.path());
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600, "{:?}", file.path());
        names.insert(file.file_name().into_string().unwrap());
    }
    assert_eq!(names, ["store", "store.key", "store.lock"].map(str::to_owned).into());
    assert_eq!(fs::metadata(folder.path().join("deeper")).unwrap().mode() & 0o777, 0o700);
    let shown = format!("{store:?} {:?} {:?}", value(TOKEN), store.get(&key("github")).await.unwrap());
    assert!(!shown.contains(TOKEN), "{shown}");
}

/// Whoever may write into the folder must not have files made or locked elsewhere.
#[tokio::test]
async fn a_lock_follows_no_link() {
    let folder = tempfile::tempdir().unwrap();
    let (lock, elsewhere) = (folder.path().join("store.lock"), folder.path().join("elsewhere"));
    std::os::unix::fs::symlink(&elsewhere, &lock).unwrap();
    let refused = open(folder.path()).await.unwrap_err().to_string();
    assert!(refused.contains("store.lock: it is a symbolic link"), "{refused}");
    fs::remove_file(&lock).unwrap();
    let store = open(folder.path()).await.unwrap();
    for version in 1..20 {
        std::os::unix::fs::symlink(&elsewhere, folder.path().join(format!("store.lease-{version}"))).unwrap();
    }
    assert!(store.lease(&key("lease"), Duration::from_secs(10)).await.unwrap().is_some());
    assert!(!elsewhere.exists(), "a link was followed");
}

#[tokio::test]
async fn a_list_needs_no_key_and_shows_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    assert_eq!(FileStore::peek(path.clone(), &[Key::new("login", &[])], &Clock::system()).await.unwrap(), []);
    let store = open(folder.path()).await.unwrap();
    store.put(&key("github"), &value(TOKEN), None).await.unwrap();
    store.put(&key("docs"), &value(TOKEN), None).await.unwrap();
    store.put(&Key::new("logins", &["other"]), &value(TOKEN), None).await.unwrap();
    fs::remove_file(folder.path().join("store.key")).unwrap();

    let listed = FileStore::peek(path, &[Key::new("login", &[])], &Clock::system()).await.unwrap();
    assert_eq!(
        listed.iter().map(|row| row.key.parts()).collect::<Vec<_>>(),
        [["docs", "shared"], ["github", "shared"]]
    );
    assert_eq!(listed[0].about, value("").about);
    assert!(!format!("{listed:?}").contains(TOKEN));
    assert_eq!(store.list(&[Key::new("login", &[])]).await.unwrap(), listed);
}

#[tokio::test]
async fn what_has_an_end_ends() {
    let folder = tempfile::tempdir().unwrap();
    let now = Arc::new(AtomicU64::new(1_000_000));
    let clock = Clock::from_fn({
        let now = Arc::clone(&now);
        move || UNIX_EPOCH + Duration::from_secs(now.load(Ordering::Relaxed))
    });
    let path = folder.path().join("store");
    let store = FileStore::open(path, Protection::Plaintext, clock).await.unwrap();
    store.put(&key("brief"), &value("a"), Some(Duration::from_secs(10))).await.unwrap();
    store.put(&key("long"), &value("b"), None).await.unwrap();
    now.fetch_add(9, Ordering::Relaxed);
    assert_eq!(text(&store, &key("brief")).await.as_deref(), Some("a"));
    now.fetch_add(1, Ordering::Relaxed);
    assert_eq!(text(&store, &key("brief")).await, None);
    assert_eq!(store.list(&[Key::new("login", &[])]).await.unwrap().len(), 1);
    assert!(matches!(store.swap(&key("brief"), None, &value("c"), None).await.unwrap(), Swap::Done(_)));
    assert_eq!(text(&store, &key("long")).await.as_deref(), Some("b"));
}

#[tokio::test]
async fn keys_do_not_run_into_each_other() {
    assert_ne!(Key::new("a", &["b", "c"]), Key::new("a", &["b\",\"c"]));
    assert_ne!(Key::new("a", &["b", "c"]), Key::new("a", &["b", "", "c"]));
    assert_eq!(Key::new("a", &["\u{0}\"]", ""]).parts(), ["\u{0}\"]", ""]);
}
