//! What is particular of a store at a server.

use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use tokio::time::Instant;
use weir_store::{Key, Listed, RedisServer, RedisStore, RedisTarget, Secret, Store, StoreError, Value};
use weir_tests::redis::{Cluster, PASSWORD, Redis, Sentinels, USER, ask};

use super::{KEYS, TOKEN, eventually, key, protection, server, shared, text, value};

/// Longer than anybody may be held, on a busy machine too.
const LIMIT: Duration = Duration::from_secs(6);

fn place(name: &str) -> String {
    format!(r#"weir:{{login}}:e:["login","{name}","shared"]"#)
}

#[tokio::test]
async fn the_server_sees_no_secret_and_another_key_opens_nothing() {
    let redis = Redis::start().await;
    let store = shared(&redis.url()).await;
    store.put(&key("a"), &value(TOKEN), None).await.unwrap();
    let disk = redis.disk();
    let has = |what: &str| disk.windows(what.len()).any(|window| window == what.as_bytes());
    assert!(has("a.example") && !has(TOKEN));
    let other = RedisStore::open(server(&redis.url()), &protection(KEYS[1])).await.unwrap_err();
    assert!(matches!(&other, StoreError::Key(_)), "{other}");
    assert!(server(&redis.url()).check_key(&protection(KEYS[1])).await.is_err());
    server(&redis.url()).check_key(&protection(KEYS[0])).await.unwrap();
    let plain = RedisStore::open(server(&redis.url()), &weir_store::Protection::Plaintext).await.unwrap_err();
    assert!(matches!(&plain, StoreError::Protection { .. }), "{plain}");
    // To list needs no key.
    let listed = server(&redis.url()).list(&[Key::new("login", &[])]).await.unwrap();
    assert_eq!(listed.len(), 1);
    let mut newer = redis.ask(&["get", "weir:store"]);
    newer = newer.replace("\"format\":1", "\"format\":2");
    assert_eq!(redis.ask(&["set", "weir:store", &newer]), "OK");
    let newer = RedisStore::open(server(&redis.url()), &protection(KEYS[0])).await.unwrap_err();
    assert!(matches!(&newer, StoreError::Newer { found: 2, .. }), "{newer}");
}

#[tokio::test]
async fn what_is_damaged_or_foreign_is_an_error_that_names_its_place_alone() {
    let redis = Redis::start().await;
    let store = shared(&redis.url()).await;
    for name in ["a", "b"] {
        store.put(&key(name), &value(TOKEN), None).await.unwrap();
    }
    let huge = "redis.call('hset', KEYS[1], 's', string.rep('hunter2', 100000))";
    let commands: [&[&str]; 7] = [
        &["set", &place("a"), "hunter2"],
        &["hset", &place("a"), "s", "hunter2"],
        &["hset", &place("a"), "a", "hunter2"],
        &["hdel", &place("a"), "v"],
        &["hset", &place("a"), "v", "hunter2"],
        &["eval", huge, "1", &place("a")],
        &["copy", &place("b"), &place("a"), "replace"],
    ];
    for command in commands {
        redis.ask(&["del", &place("a")]);
        store.put(&key("a"), &value(TOKEN), None).await.unwrap();
        redis.ask(command);
        let why = store.get(&key("a")).await.unwrap_err();
        assert!(matches!(why, StoreError::Entry(_)), "{command:?}: {why}");
        let told = why.to_string();
        assert!(told.contains(&place("a")) && !told.contains("hunter2"), "{told}");
        // The others are as they were, and a new value takes its place.
        assert_eq!(text(store.get(&key("b")).await.unwrap()).as_deref(), Some(TOKEN));
        store.put(&key("a"), &value("new"), None).await.unwrap();
        assert_eq!(text(store.get(&key("a")).await.unwrap()).as_deref(), Some("new"));
    }
    redis.ask(&["set", &place("a"), "hunter2"]);
    let listed = store.list(&[Key::new("login", &[])]).await.unwrap_err();
    assert!(matches!(&listed, StoreError::Entry(place) if place.contains("\"a\"")), "{listed}");
    assert!(store.delete(&key("a")).await.unwrap());
    assert_eq!(store.list(&[Key::new("login", &[])]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_index_holds_what_is_there_and_no_more() {
    let redis = Redis::start().await;
    let store = shared(&redis.url()).await;
    let cards = || ["i", "x"].map(|set| redis.ask(&["zcard", &format!("weir:{{login}}:{set}")]));
    for number in 0..300 {
        store.put(&key(&number.to_string()), &value(TOKEN), Some(Duration::from_millis(1))).await.unwrap();
    }
    store.put(&key("stays"), &value(TOKEN), None).await.unwrap();
    eventually("what has expired is gone from the index", async || {
        store.put(&key("stays"), &value(TOKEN), None).await.unwrap();
        cards() == ["1", "0"]
    })
    .await;
    // What a server has thrown out for want of memory.
    for number in 0..1000 {
        store.put(&key(&format!("{number:04}")), &value(TOKEN), Some(Duration::from_secs(60))).await.unwrap();
    }
    let listed = store.list(&[Key::new("login", &[])]).await.unwrap();
    assert_eq!(listed.len(), 1001);
    assert!(listed.is_sorted_by_key(|row| row.key.clone()));
    redis.ask(&["del", &place("0007"), &place("stays")]);
    assert_eq!(store.list(&[Key::new("login", &[])]).await.unwrap().len(), 999);
    assert_eq!(cards(), ["999", "999"]);
    let large = |about: &str| Value { about: about.repeat(200_000), secret: Default::default() };
    for number in 0..20 {
        store.put(&Key::new("large", &[&number.to_string()]), &large("x"), None).await.unwrap();
    }
    assert_eq!(store.list(&[Key::new("large", &[])]).await.unwrap().len(), 20);
}

#[tokio::test]
async fn stores_with_other_prefixes_do_not_see_each_other() {
    let redis = Redis::start().await;
    let target = || RedisTarget::parse(&redis.url()).unwrap();
    let mut stores = Vec::new();
    for (prefix, own) in [("one", KEYS[0]), ("two", KEYS[1])] {
        let server = RedisServer::new(target().with_prefix(prefix).unwrap());
        let store = RedisStore::open(server.clone(), &protection(own)).await.unwrap();
        store.put(&key(prefix), &value(prefix), None).await.unwrap();
        stores.push((server, store));
    }
    for ((server, store), prefix) in stores.iter().zip(["one", "two"]) {
        let listed: Vec<Listed> = store.list(&[Key::new("login", &[])]).await.unwrap();
        assert_eq!(listed.iter().map(|row| row.key.clone()).collect::<Vec<_>>(), [key(prefix)]);
        assert_eq!(server.namespaces().await.unwrap(), ["login"]);
    }
}

#[tokio::test]
async fn versions_grow_after_the_server_has_lost_what_it_had() {
    let redis = Redis::start().await;
    let store = shared(&redis.url()).await;
    let first = store.put(&key("a"), &value("1"), None).await.unwrap();
    let before = server(&redis.url()).last_version("login").await.unwrap();
    assert_eq!(before, first.number());
    redis.ask(&["flushall"]);
    assert_eq!(text(store.get(&key("a")).await.unwrap()), None);
    let second = store.put(&key("a"), &value("2"), None).await.unwrap();
    assert!(second > first);
    assert_eq!(server(&redis.url()).namespaces().await.unwrap(), ["login"]);
    // Its clock was ahead.
    redis.ask(&["set", "weir:{login}:v", "3000000000000000"]);
    let third = store.put(&key("a"), &value("3"), None).await.unwrap();
    assert_eq!(third.number(), 3_000_000_000_000_001);
    store.delete(&key("a")).await.unwrap();
    assert_eq!(server(&redis.url()).last_version("login").await.unwrap(), third.number() + 1);
    assert_eq!(server(&redis.url()).last_version("none").await.unwrap(), 0);
}

#[tokio::test]
async fn a_user_may_do_what_the_page_says_and_a_wrong_password_is_not_repeated() {
    let redis = Redis::with_user().await;
    let url = format!("redis://{USER}@127.0.0.1:{}", redis.port());
    let with = |password: &'static str| {
        let mut target = RedisTarget::parse(&url).unwrap();
        target.password = Some(std::sync::Arc::new(|| Ok(Secret::new(password.to_owned()))));
        RedisServer::new(target)
    };
    let store = RedisStore::open(with(PASSWORD), &protection(KEYS[0])).await.unwrap();
    store.put(&key("a"), &value(TOKEN), Some(Duration::from_secs(60))).await.unwrap();
    assert_eq!(text(store.get(&key("a")).await.unwrap()).as_deref(), Some(TOKEN));
    assert_eq!(store.list(&[Key::new("login", &[])]).await.unwrap().len(), 1);
    assert!(store.delete(&key("a")).await.unwrap());
    with(PASSWORD).report().await.unwrap();
    let wrong = RedisStore::open(with("hunter3"), &protection(KEYS[0])).await.unwrap_err();
    let told = format!("{wrong} {wrong:?} {:?}", with("hunter3"));
    assert!(matches!(wrong, StoreError::Refused { .. }) && !told.contains("hunter"), "{told}");
    let mut elsewhere = RedisTarget::parse(&url).unwrap().with_prefix("other").unwrap();
    elsewhere.password = Some(std::sync::Arc::new(|| Ok(Secret::new(PASSWORD.to_owned()))));
    let elsewhere = RedisServer::new(elsewhere);
    let why = RedisStore::open(elsewhere, &protection(KEYS[0])).await.unwrap_err().to_string();
    assert!(why.contains("NOPERM"), "{why}");
}

#[tokio::test]
async fn only_a_server_with_a_trusted_certificate_is_talked_to() {
    let folder = tempfile::tempdir().unwrap();
    let own = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&own).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("cert.pem"), certificate.pem()).unwrap();
    std::fs::write(path("key.pem"), own.serialize_pem()).unwrap();
    let port = weir_tests::peer::free_port();
    let (number, cert, key_file) = (port.to_string(), path("cert.pem"), path("key.pem"));
    let words = ["--tls-port", &number, "--tls-cert-file", &cert, "--tls-key-file", &key_file];
    let _redis = Redis::with(&[&words[..], &["--tls-auth-clients", "no", "--tls-ca-cert-file", &cert]].concat()).await;
    let url = format!("rediss://127.0.0.1:{port}");
    let mut target = RedisTarget::parse(&url).unwrap();
    target.ca = Some(cert.into());
    let store = RedisStore::open(RedisServer::new(target.clone()), &protection(KEYS[0])).await.unwrap();
    store.put(&key("a"), &value(TOKEN), None).await.unwrap();
    assert_eq!(text(store.get(&key("a")).await.unwrap()).as_deref(), Some(TOKEN));
    let unknown = RedisStore::open(server(&url), &protection(KEYS[0])).await.unwrap_err();
    assert!(unknown.to_string().contains("certificate"), "{unknown}");
    target.ca = Some(folder.path().join("none.pem"));
    let missing = RedisStore::open(RedisServer::new(target), &protection(KEYS[0])).await.unwrap_err();
    assert!(missing.to_string().contains("none.pem"), "{missing}");
}

#[tokio::test]
async fn a_server_that_stands_still_holds_nobody_for_long_and_is_used_again_when_it_goes_on() {
    let redis = Redis::start().await;
    let store = shared(&redis.url()).await;
    store.put(&key("a"), &value(TOKEN), None).await.unwrap();
    redis.freeze();
    let begun = Instant::now();
    let mut waiting = tokio::task::JoinSet::new();
    for number in 0..500 {
        let store = std::sync::Arc::clone(&store);
        waiting.spawn(async move { store.get(&key(&number.to_string())).await.map(drop) });
    }
    for answer in waiting.join_all().await {
        assert!(answer.unwrap_err().is_away());
    }
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    redis.thaw();
    eventually("it is used again", async || store.get(&key("a")).await.is_ok()).await;
    assert_eq!(text(store.get(&key("a")).await.unwrap()).as_deref(), Some(TOKEN));
}

#[tokio::test]
async fn a_server_that_died_is_away_and_has_all_that_was_written_when_it_is_back() {
    let mut redis = Redis::start().await;
    let store = shared(&redis.url()).await;
    for number in 0..50 {
        store.put(&key(&number.to_string()), &value(TOKEN), None).await.unwrap();
    }
    // A restart between two looks is not noticed by those who read.
    redis.kill();
    redis.restart().await;
    assert_eq!(text(store.get(&key("7")).await.unwrap()).as_deref(), Some(TOKEN));
    redis.kill();
    for _ in 0..3 {
        let why = store.put(&key("new"), &value(TOKEN), None).await.unwrap_err();
        assert!(why.is_away(), "{why}");
        assert!(why.to_string().contains(&redis.url()), "{why}");
    }
    redis.restart().await;
    eventually("it is used again", async || store.put(&key("new"), &value(TOKEN), None).await.is_ok()).await;
    assert_eq!(store.list(&[Key::new("login", &[])]).await.unwrap().len(), 51);
}

#[tokio::test]
async fn a_replica_takes_over_and_all_goes_on() {
    let mut sentinels = Sentinels::start().await;
    let store = shared(&sentinels.url()).await;
    let first = store.put(&key("a"), &value(TOKEN), None).await.unwrap();
    let replica = sentinels.servers[1].port();
    let has = || ask(replica, &["exists", &place("a")]) == "1";
    weir_tests::wait::until("the replica has it", has).await;
    sentinels.servers[0].kill();
    eventually("the replica is written to", async || store.put(&key("b"), &value("b"), None).await.is_ok()).await;
    assert_eq!(sentinels.master(), Some(replica));
    assert_eq!(text(store.get(&key("a")).await.unwrap()).as_deref(), Some(TOKEN));
    assert!(store.get(&key("b")).await.unwrap().unwrap().version > first);
    // The one that was the master comes back as a replica.
    sentinels.servers[0].restart().await;
    let old = sentinels.servers[0].port();
    let is_replica = || ask(old, &["role"]).starts_with("slave");
    weir_tests::wait::until("the old master follows", is_replica).await;
    store.put(&key("c"), &value("c"), None).await.unwrap();
}

#[tokio::test]
async fn a_node_of_a_cluster_that_comes_back_is_used_again() {
    let mut cluster = Cluster::start().await;
    let store = shared(&cluster.url()).await;
    let namespaces: Vec<Key> = (0..30).map(|number| Key::new(&format!("space-{number}"), &["a"])).collect();
    for key in &namespaces {
        store.put(key, &value(TOKEN), None).await.unwrap();
    }
    assert!(server(&cluster.url()).report().await.unwrap().version.starts_with("redis "));
    assert_eq!(server(&cluster.url()).namespaces().await.unwrap().len(), 30);
    for node in &cluster.nodes {
        assert!(node.ask(&["dbsize"]).parse::<u32>().unwrap() > 0, "all nodes hold some");
    }
    cluster.nodes[2].kill();
    let mut failed = 0;
    for key in &namespaces {
        failed += usize::from(store.get(key).await.is_err());
    }
    assert!(failed > 0);
    cluster.nodes[2].restart().await;
    for key in &namespaces {
        eventually("it is used again", async || store.get(key).await.is_ok_and(|entry| entry.is_some())).await;
        store.put(key, &value("new"), None).await.unwrap();
    }
}
