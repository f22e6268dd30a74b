//! What all stores do: in memory, in a file, at a real server, behind real Sentinels, in a real Cluster.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::Instant};
use weir_store::{
    Clock, Entry, FileStore, Key, KeySources, MemoryStore, Protection, RedisServer, RedisStore, RedisTarget, Secret,
    Store, StoreError, Swap, Value,
};
use weir_tests::redis::{Cluster, Redis, Sentinels, StoreKind};

mod redis;

const TOKEN: &str = "hunter2-refresh-token";
/// The keys of two stores.
const KEYS: [&str; 2] =
    ["c2VjcmV0IGtleSBvZiB0aGUgc3RvcmUsIDMyIGJ5dGU=", "c2VjcmV0IGtleSBvZiB0aGUgb3RoZXIsIDMyIGJ5dGU="];

fn value(secret: &str) -> Value {
    Value { about: r#"{"issuer":"https://a.example"}"#.to_owned(), secret: secret.as_bytes().to_vec().into() }
}

fn key(name: &str) -> Key {
    Key::new("login", &[name, "shared"])
}

fn protection(key: &str) -> Protection {
    let variable = Some(("env TEST".to_owned(), Secret::new(key.to_owned())));
    Protection::Encrypted(KeySources { variable, ..KeySources::default() })
}

fn server(url: &str) -> RedisServer {
    RedisServer::new(RedisTarget::parse(url).unwrap())
}

/// Another gateway's handle of the store at this URL.
async fn shared(url: &str) -> Arc<dyn Store> {
    Arc::new(RedisStore::open(server(url), &protection(KEYS[0])).await.unwrap())
}

async fn file(folder: &Path) -> Arc<dyn Store> {
    Arc::new(FileStore::open(folder.join("store"), protection(KEYS[0]), Clock::system()).await.unwrap())
}

fn text(entry: Option<Entry>) -> Option<String> {
    entry.map(|entry| String::from_utf8(entry.value.secret.to_vec()).unwrap())
}

/// Waits until something is so.
async fn eventually(what: &str, mut look: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + weir_tests::wait::PATIENCE;
    while !look().await {
        assert!(Instant::now() < end, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_store_in_memory_is_a_store() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    is_a_store(&store, &store).await;
}

#[tokio::test]
async fn a_store_in_a_file_is_a_store() {
    let folder = tempfile::tempdir().unwrap();
    is_a_store(&file(folder.path()).await, &file(folder.path()).await).await;
}

#[tokio::test]
async fn a_store_at_a_server_is_a_store() {
    at_a_server(StoreKind::Redis).await;
}

#[tokio::test]
async fn a_store_at_a_server_of_valkey_is_a_store() {
    at_a_server(StoreKind::Valkey).await;
}

async fn at_a_server(kind: StoreKind) {
    if kind.is_there() {
        let server = Redis::start_kind(kind).await;
        is_a_store(&shared(&server.url()).await, &shared(&server.url()).await).await;
    }
}

#[tokio::test]
async fn a_store_behind_sentinels_is_a_store() {
    behind_sentinels(StoreKind::Redis).await;
}

#[tokio::test]
async fn a_store_behind_sentinels_of_valkey_is_a_store() {
    behind_sentinels(StoreKind::Valkey).await;
}

async fn behind_sentinels(kind: StoreKind) {
    if kind.is_there() {
        let sentinels = Sentinels::start_kind(kind).await;
        is_a_store(&shared(&sentinels.url()).await, &shared(&sentinels.url()).await).await;
    }
}

#[tokio::test]
async fn a_store_in_a_cluster_is_a_store() {
    in_a_cluster(StoreKind::Redis).await;
}

#[tokio::test]
async fn a_store_in_a_cluster_of_valkey_is_a_store() {
    in_a_cluster(StoreKind::Valkey).await;
}

async fn in_a_cluster(kind: StoreKind) {
    if kind.is_there() {
        let cluster = Cluster::start_kind(kind).await;
        is_a_store(&shared(&cluster.url()).await, &shared(&cluster.url()).await).await;
    }
}

/// All that each store does, through two handles of one.
async fn is_a_store(store: &Arc<dyn Store>, other: &Arc<dyn Store>) {
    keeps_what_was_put(&**store, &**other).await;
    lists_what_is_below(&**store, &**other).await;
    swaps_what_was_seen(&**store, &**other).await;
    forgets_in_time(&**store, &**other).await;
    leases_to_one(&**store, &**other).await;
    lets_one_win(store, other).await;
    keeps_nothing_beyond_measure(&**store).await;
}

async fn keeps_what_was_put(store: &dyn Store, other: &dyn Store) {
    assert_eq!(text(other.get(&key("a")).await.unwrap()), None);
    let first = store.put(&key("a"), &value(TOKEN), None).await.unwrap();
    let found = other.get(&key("a")).await.unwrap().unwrap();
    assert_eq!((found.version, &found.value.about), (first, &value("").about));
    assert_eq!(text(Some(found)).as_deref(), Some(TOKEN));
    let second = other.put(&key("a"), &value(""), None).await.unwrap();
    assert!(second > first, "versions grow");
    assert_eq!(text(store.get(&key("a")).await.unwrap()).as_deref(), Some(""));
    assert!(store.delete(&key("a")).await.unwrap());
    assert!(!other.delete(&key("a")).await.unwrap());
    assert_eq!(text(store.get(&key("a")).await.unwrap()), None);
    let odd = Key::new("login", &["\u{0}\"]{}", "é", ""]);
    let bytes = Value { about: "é\u{0}\n".to_owned(), secret: vec![0, 255, 13, 10].into() };
    store.put(&odd, &bytes, None).await.unwrap();
    let found = other.get(&odd).await.unwrap().unwrap().value;
    assert_eq!((&found.about, &*found.secret), (&bytes.about, &*bytes.secret));
    assert!(store.delete(&odd).await.unwrap());
}

async fn lists_what_is_below(store: &dyn Store, other: &dyn Store) {
    let all = [
        &["a"][..],
        &["a", "shared", "i"],
        &["a", "principal", "x", "y", "i"],
        &["a", "principal", "x", "y", "j"],
        &["a", "principal", "x", "y\",\"z", "i"],
        &["a!", "shared", "i"],
        &["ab", "shared", "i"],
    ];
    for parts in all {
        store.put(&Key::new("list", parts), &value(TOKEN), None).await.unwrap();
    }
    store.put(&Key::new("lists", &["elsewhere"]), &value(TOKEN), None).await.unwrap();
    for (below, found) in [
        (vec![&[][..]], vec![0, 1, 2, 3, 4, 5, 6]),
        (vec![&["a"]], vec![1, 2, 3, 4]),
        (vec![&["a", "principal", "x", "y"]], vec![2, 3]),
        (vec![&["a", "shared"], &["ab", "shared"]], vec![1, 6]),
        (vec![&["a", "shared", "i"]], vec![]),
        (vec![], vec![]),
    ] {
        let below: Vec<Key> = below.into_iter().map(|parts| Key::new("list", parts)).collect();
        let listed = other.list(&below).await.unwrap();
        assert!(listed.iter().all(|row| row.about == value("").about));
        assert!(!format!("{listed:?}").contains(TOKEN));
        let listed: BTreeSet<Key> = listed.into_iter().map(|row| row.key).collect();
        let wanted: BTreeSet<Key> = found.into_iter().map(|at| Key::new("list", all[at])).collect();
        assert_eq!(listed, wanted, "below {below:?}");
    }
    for parts in all {
        assert!(other.delete(&Key::new("list", parts)).await.unwrap());
    }
    assert_eq!(store.list(&[Key::new("list", &[])]).await.unwrap(), []);
}

async fn swaps_what_was_seen(store: &dyn Store, other: &dyn Store) {
    let Swap::Done(first) = store.swap(&key("s"), None, &value("1"), None).await.unwrap() else { panic!("not there") };
    assert_eq!(other.swap(&key("s"), None, &value("2"), None).await.unwrap(), Swap::Lost(Some(first)));
    let Swap::Done(second) = other.swap(&key("s"), Some(first), &value("2"), None).await.unwrap() else {
        panic!("it was the first")
    };
    assert_eq!(store.swap(&key("s"), Some(first), &value("3"), None).await.unwrap(), Swap::Lost(Some(second)));
    store.delete(&key("s")).await.unwrap();
    assert_eq!(store.swap(&key("s"), Some(second), &value("3"), None).await.unwrap(), Swap::Lost(None));
    let third = store.put(&key("s"), &value("1"), None).await.unwrap();
    assert!(third > second, "a version never comes back");
    assert_eq!(text(other.get(&key("s")).await.unwrap()).as_deref(), Some("1"));
    store.delete(&key("s")).await.unwrap();
}

async fn forgets_in_time(store: &dyn Store, other: &dyn Store) {
    let brief = Some(Duration::from_secs(2));
    store.put(&key("brief"), &value("a"), brief).await.unwrap();
    store.put(&key("long"), &value("b"), Some(Duration::from_secs(3600))).await.unwrap();
    store.put(&key("longest"), &value("b"), Some(Duration::MAX)).await.unwrap();
    // Whoever writes it once more without an end has it stay.
    store.put(&key("stays"), &value("c"), brief).await.unwrap();
    store.put(&key("stays"), &value("c"), None).await.unwrap();
    assert_eq!(text(other.get(&key("brief")).await.unwrap()).as_deref(), Some("a"));
    eventually("its time is over", async || other.get(&key("brief")).await.unwrap().is_none()).await;
    let listed = other.list(&[Key::new("login", &[])]).await.unwrap();
    let names: BTreeSet<Key> = listed.into_iter().map(|row| row.key).collect();
    assert_eq!(names, [key("long"), key("longest"), key("stays")].into());
    assert!(matches!(other.swap(&key("brief"), None, &value("c"), None).await.unwrap(), Swap::Done(_)));
    for name in ["brief", "long", "longest", "stays"] {
        assert!(store.delete(&key(name)).await.unwrap(), "{name}");
    }
}

async fn leases_to_one(store: &dyn Store, other: &dyn Store) {
    let lease = Key::new("refresh", &["github"]);
    let held = store.lease(&lease, Duration::from_secs(60)).await.unwrap().unwrap();
    assert!(other.lease(&lease, Duration::from_secs(60)).await.unwrap().is_none());
    store.release(held).await.unwrap();
    let brief = other.lease(&lease, Duration::from_millis(1)).await.unwrap().unwrap();
    let mut next = None;
    eventually("a lease ends with its time", async || {
        next = store.lease(&lease, Duration::from_secs(60)).await.unwrap();
        next.is_some()
    })
    .await;
    other.release(brief).await.unwrap();
    assert!(other.lease(&lease, Duration::from_secs(60)).await.unwrap().is_none(), "only its holder gives it back");
    store.release(next.unwrap()).await.unwrap();
}

async fn lets_one_win(store: &Arc<dyn Store>, other: &Arc<dyn Store>) {
    let version = store.put(&key("race"), &value("0"), None).await.unwrap();
    let (mut swaps, mut leases) = (JoinSet::new(), JoinSet::new());
    for number in 0..40_usize {
        let (store, lease) = (Arc::clone([store, other][number % 2]), Key::new("refresh", &["race"]));
        let same = Arc::clone(&store);
        swaps.spawn(async move { store.swap(&key("race"), Some(version), &value("1"), None).await.unwrap() });
        leases.spawn(async move { same.lease(&lease, Duration::from_secs(60)).await.unwrap() });
    }
    let won = swaps.join_all().await.into_iter().filter(|swap| matches!(swap, Swap::Done(_))).count();
    let held: Vec<_> = leases.join_all().await.into_iter().flatten().collect();
    assert_eq!((won, held.len()), (1, 1));
    for lease in held {
        store.release(lease).await.unwrap();
    }
    store.delete(&key("race")).await.unwrap();
}

async fn keeps_nothing_beyond_measure(store: &dyn Store) {
    let largest = value(&"x".repeat(256 * 1024 - value("").about.len()));
    store.put(&key("large"), &largest, None).await.unwrap();
    assert_eq!(store.get(&key("large")).await.unwrap().unwrap().value.secret, largest.secret);
    let huge = value(&"x".repeat(256 * 1024));
    assert!(matches!(store.put(&key("large"), &huge, None).await, Err(StoreError::TooLarge)));
    store.delete(&key("large")).await.unwrap();
}
