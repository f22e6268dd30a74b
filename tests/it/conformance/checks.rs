//! Check by check: what passes at a server passes through Weir, whichever way Weir reaches the server.
//!
//! A server that speaks both eras is run over Streamable HTTP, where the suite can reach it by itself, and behind Weir over
//! every transport. Scenarios that no revision requires are compared too.

use weir_tests::peer::Launch;
use weir_tests::suite::{Checks, run};
use weir_tests::{Gateway, Peer};

use super::{LEGACY, LEGACY_COUNT, MODERN, MODERN_COUNT, assert_all};

/// How Weir reaches the server, as the upstreams are called here.
const WAYS: [&str; 3] = ["http", "sse", "stdio"];

/// What cannot pass through Weir although it passes at the server: the ways, the revision, the scenario, the check.
type Exception = (&'static [&'static str], &'static str, &'static str, &'static str);

const EXCEPTIONS: [Exception; 5] = [
    // Weir takes up a stream that the server has closed, and its client's own goes on: there is nothing to resume.
    (&WAYS, LEGACY, "server-sse-polling", "server-sse-disconnect-resume"),
    // Neither a pipe nor the one stream of HTTP+SSE has a stream of a call that the server could close, so the answer is
    // JSON, which needs neither an event to begin with nor a time to come back.
    (&["sse", "stdio"], LEGACY, "server-sse-polling", "server-sse-priming-event"),
    (&["sse", "stdio"], LEGACY, "server-sse-polling", "server-sse-retry-field"),
    // For the same reason answers come as JSON where this check looks at streams; it notes that and does not fail.
    (&["sse", "stdio"], LEGACY, "server-sse-multiple-streams", "server-sse-streams-functional"),
    // A warning. The suite answers what it has not been asked. A legacy server asks first, and what Weir makes of that is
    // answered under the state that goes with it.
    (&["sse"], MODERN, "input-required-result-ignore-extra-params", "sep-2322-ignore-unexpected-params"),
];

/// The checks that pass at the server and not through Weir.
fn lost(way: &str, revision: &str, direct: &Checks, through: &Checks) -> Vec<String> {
    let excepted = |scenario: &str, check: &str| {
        EXCEPTIONS.iter().any(|(ways, of, s, c)| ways.contains(&way) && (*of, *s, *c) == (revision, scenario, check))
    };
    let passes = direct.iter().filter(|(_, status)| *status == "SUCCESS");
    passes
        .filter(|(key, _)| through.get(*key).is_none_or(|status| status != "SUCCESS") && !excepted(&key.0, &key.1))
        .map(|(key, _)| {
            let status = through.get(key).map_or("not made", String::as_str);
            format!("{way} {revision} {}: {} ({}): {status}", key.0, key.1, key.2)
        })
        .collect()
}

async fn compare(http: Peer, sse: Peer, stdio: Launch) {
    let config = [http.config("http"), sse.config("sse").replace("/mcp", "/sse"), stdio.config("stdio")].concat();
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&WAYS).await;
    let mut all = Vec::new();
    for (revision, count) in [(LEGACY, LEGACY_COUNT), (MODERN, MODERN_COUNT)] {
        let direct = run(&http.url(), revision, None).await;
        assert_all(&direct, count);
        for way in WAYS {
            let through = run(&gateway.url(&format!("/mcp/{way}")), revision, None).await;
            all.extend(lost(way, revision, &direct.checks, &through.checks));
        }
    }
    assert!(all.is_empty(), "{} checks pass at the server and not through Weir:\n{}", all.len(), all.join("\n"));
}

#[tokio::test]
async fn a_server_on_the_typescript_sdk() {
    let (http, sse) = tokio::join!(Peer::fixture("both"), Peer::fixture_sse());
    compare(http, sse, Launch::fixture("both")).await;
}

#[tokio::test]
async fn a_server_on_the_python_sdk() {
    let (http, sse) = tokio::join!(Peer::python_fixture(), Peer::python_fixture_sse());
    compare(http, sse, Launch::python_fixture()).await;
}
