//! What a release has written into a shared store, another one reads: `tests/records/` has a store as it was.
//!
//! `UPDATE=1` writes the store of this release anew. Keep those of the releases before.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::json;
use weir_tests::client::{answer, initialize};
use weir_tests::redis::Redis;
use weir_tests::terminal::ENVIRONMENT;
use weir_tests::{Gateway, LEGACY, Request, Stub, paths};

use crate::replicas::{config, stub};

/// A store with one session.
#[derive(Serialize, Deserialize)]
struct StoreRecord {
    /// What a client calls the session by.
    session: String,
    /// The values of the server, in hexadecimal.
    strings: BTreeMap<String, String>,
    hashes: BTreeMap<String, BTreeMap<String, String>>,
    indices: BTreeMap<String, Vec<String>>,
}

fn file(release: &str) -> PathBuf {
    paths::tests().join(format!("records/store-{release}.json"))
}

/// What a command answers, in hexadecimal.
fn hex(redis: &Redis, command: &str, key: &str, more: &str) -> String {
    let script =
        "return (tostring(redis.call(unpack(ARGV))):gsub('.', function(c) return ('%02x'):format(c:byte()) end))";
    let words: Vec<&str> =
        ["eval", script, "0", command, key, more].into_iter().filter(|word| !word.is_empty()).collect();
    redis.ask(&words)
}

fn record(redis: &Redis, session: &str) -> StoreRecord {
    let lines = |words: &[&str]| redis.ask(words).lines().map(str::to_owned).collect::<Vec<String>>();
    let (mut strings, mut hashes, mut indices) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for key in lines(&["keys", "weir:*"]) {
        let is_of_session = key == "weir:store" || key.starts_with("weir:{sessions}");
        match redis.ask(&["type", &key]).as_str() {
            "string" if is_of_session => drop(strings.insert(key.clone(), hex(redis, "GET", &key, ""))),
            "hash" if is_of_session => {
                let fields = lines(&["hkeys", &key]).into_iter();
                let fields = fields.map(|field| (field.clone(), hex(redis, "HGET", &key, &field))).collect();
                hashes.insert(key, fields);
            }
            "zset" if key == "weir:{sessions}:i" => {
                drop(indices.insert(key.clone(), lines(&["zrange", &key, "0", "-1"])))
            }
            _ => {}
        }
    }
    StoreRecord { session: session.to_owned(), strings, hashes, indices }
}

fn restore(redis: &Redis, record: &StoreRecord) {
    const SCRIPT: &str = "local text = ARGV[#ARGV]:gsub('..', function(c) return string.char(tonumber(c, 16)) end); \
                          ARGV[#ARGV] = text; return redis.call(unpack(ARGV))";
    for (key, value) in &record.strings {
        redis.ask(&["eval", SCRIPT, "0", "SET", key, value]);
    }
    for (key, fields) in &record.hashes {
        for (field, value) in fields {
            redis.ask(&["eval", SCRIPT, "0", "HSET", key, field, value]);
        }
    }
    for (key, names) in &record.indices {
        for name in names {
            redis.ask(&["zadd", key, "0", name]);
        }
    }
}

async fn gateway(redis: &Redis, stub: &Stub) -> Gateway {
    let gateway = Gateway::start_with(&config(redis, &stub.config("stub")), &ENVIRONMENT).await;
    gateway.healthy(&["stub"]).await;
    gateway
}

/// A session at all upstreams, for one of them would be known by its address.
async fn written() -> StoreRecord {
    let (stub, redis) = (stub().await, Redis::start().await);
    let mut gateway = gateway(&redis, &stub).await;
    let response = gateway.send(initialize("/mcp", LEGACY, &json!({ "elicitation": {} }))).await;
    let session = response.header("mcp-session-id").unwrap().to_owned();
    answer(response, 0).await;
    gateway.signal(Signal::KILL);
    gateway.end().await;
    record(&redis, &session)
}

async fn goes_on(record: &StoreRecord) {
    let (stub, redis) = (stub().await, Redis::start().await);
    restore(&redis, record);
    let gateway = gateway(&redis, &stub).await;
    let call = json!({ "name": "stub__echo", "arguments": { "message": "still here" } });
    let call = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call });
    let request = Request::post("/mcp", call.to_string()).header("mcp-session-id", &record.session);
    let response = gateway.send(request.header("mcp-protocol-version", LEGACY)).await;
    assert_eq!(response.status, 200, "{}", gateway.log());
    assert_eq!(answer(response, 7).await["result"]["content"][0]["text"], "still here");
}

#[tokio::test]
async fn a_session_that_a_neighbouring_release_has_written_goes_on() {
    let release = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap().0;
    if std::env::var_os("UPDATE").is_some() {
        fs::write(file(release), serde_json::to_string_pretty(&written().await).unwrap() + "\n").unwrap();
    }
    assert!(file(release).exists(), "run this test with UPDATE=1");
    for found in fs::read_dir(paths::tests().join("records")).unwrap() {
        let text = fs::read_to_string(found.unwrap().path()).unwrap();
        goes_on(&serde_json::from_str(&text).unwrap()).await;
    }
}

/// A gateway of another release can be told from the record that it writes now.
#[tokio::test]
async fn this_release_writes_what_its_record_has() {
    let release = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap().0;
    let known: StoreRecord = serde_json::from_str(&fs::read_to_string(file(release)).unwrap()).unwrap();
    let now = written().await;
    let fields = |record: &StoreRecord| {
        let kinds = record.hashes.values().map(|hash| hash.keys().cloned().collect::<Vec<_>>());
        (record.strings.keys().cloned().collect::<Vec<_>>(), kinds.collect::<Vec<_>>())
    };
    assert_eq!(fields(&known), fields(&now));
}
