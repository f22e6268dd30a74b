//! How often gateways ask the store that they share, as the store itself counts it.

use std::time::Duration;

use tokio::time::Instant;
use weir_tests::redis::Redis;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway};

use crate::replicas::{echo, pair, stub};

/// Calls of each kind: far more than what gateways say of themselves meanwhile.
const CALLS: usize = 200;

/// How often the store has run a script: each round trip but those that look for news runs one.
fn scripts(redis: &Redis) -> usize {
    (redis.calls("evalsha") + redis.calls("eval")) as usize
}

/// What two gateways say of themselves at most: every 2 seconds that they serve, and who else does.
fn own(elapsed: Duration) -> usize {
    (usize::try_from(elapsed.as_secs()).unwrap() / 2 + 2) * 4
}

/// How many round trips calls cost that are made in turn by these clients at these gateways.
async fn asked(redis: &Redis, clients: &[(&Gateway, &Client)]) -> usize {
    let (begin, before) = (Instant::now(), scripts(redis));
    for (gateway, client) in clients.iter().cycle().take(CALLS) {
        assert_eq!(echo(gateway, client).await.0, 200, "{}", gateway.log());
    }
    (scripts(redis) - before).saturating_sub(own(begin.elapsed()))
}

#[tokio::test]
async fn a_modern_call_asks_the_store_nothing_and_a_legacy_one_now_and_then() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let [one, other] = pair(&redis, &stub.config("stub")).await;
    let (modern, legacy) = (Client::modern(&one, "/mcp/stub"), Client::legacy(&one, "/mcp/stub").await);
    // What the first calls find out they find out once.
    for gateway in [&one, &other] {
        for client in [&modern, &legacy] {
            assert_eq!(echo(gateway, client).await.0, 200);
        }
    }
    let mut last = scripts(&redis);
    until("the store is quiet", || last == std::mem::replace(&mut last, scripts(&redis))).await;
    let modern_calls = asked(&redis, &[(&one, &modern), (&other, &modern)]).await;
    let at_own = asked(&redis, &[(&one, &legacy)]).await;
    let at_other = asked(&redis, &[(&other, &legacy)]).await;
    assert!(modern_calls == 0 && at_own == 0, "{modern_calls} and {at_own} in {CALLS} calls");
    assert!(at_other <= CALLS / 10, "{at_other} in {CALLS} calls");
    // The count sees more: each session that begins is written, and looked up at the other gateway once.
    let before = scripts(&redis);
    for _ in 0..CALLS / 4 {
        let begun = Client::legacy(&one, "/mcp/stub").await;
        assert_eq!(echo(&other, &begun).await.0, 200);
    }
    let seen = scripts(&redis) - before;
    assert!(seen >= CALLS / 2, "{seen} for {} sessions", CALLS / 4);
}
