//! The MCP conformance suite through `/mcp/<upstream>`, for each era and each transport of the upstream.

mod checks;

use std::path::PathBuf;

use serde_json::json;
use weir_tests::balancer::{Balancer, BalancerKind};
use weir_tests::client::{answer, with_meta};
use weir_tests::peer::{Launch, free_port};
use weir_tests::redis::Redis;
use weir_tests::suite::{SuiteVerdict, Way, client_scenarios, run, run_client};
use weir_tests::terminal::{ENVIRONMENT, lines};
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, Peer, paths};

use crate::replicas;

const LEGACY: &str = "2025-11-25";
const MODERN: &str = "2026-07-28";
/// How many scenarios each revision requires of a server. The suite has them frozen.
const LEGACY_COUNT: usize = 30;
const MODERN_COUNT: usize = 37;
/// The same for clients, without what is about authorization.
const LEGACY_CLIENTS: usize = 4;
const MODERN_CLIENTS: usize = 7;

fn assert_all(verdict: &SuiteVerdict, count: usize) {
    let failed = verdict.failed.join("\n");
    assert!(verdict.failed.is_empty(), "{} of {count} scenarios failed:\n{failed}", verdict.failed.len());
    assert_eq!(verdict.passed.len(), count, "{}", verdict.output);
    assert!(verdict.accepted, "{}", verdict.output);
    report(verdict);
}

/// What is not required may fail, but somebody should know. Shown with `--no-capture`.
fn report(verdict: &SuiteVerdict) {
    if !verdict.unscored_failures.is_empty() {
        eprintln!("not required, and failed:\n{}", verdict.unscored_failures.join("\n"));
    }
}

/// The misses that are known and explained, for upstreams over stdio.
fn baseline() -> PathBuf {
    paths::tests().join("conformance.yaml")
}

#[tokio::test]
async fn http_legacy() {
    let fixture = Peer::fixture("legacy").await;
    let gateway = Gateway::start(&fixture.config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    assert_all(&run(&gateway.url("/mcp/fixture"), LEGACY, None).await, LEGACY_COUNT);
}

#[tokio::test]
async fn http_modern() {
    let fixture = Peer::fixture("modern").await;
    let gateway = Gateway::start(&fixture.config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    assert_all(&run(&gateway.url("/mcp/fixture"), MODERN, None).await, MODERN_COUNT);
}

/// Gateways before the same upstreams, behind a balancer that keeps nobody anywhere: nearly each request of a session is at
/// the wrong gateway.
struct Balanced {
    _redis: Redis,
    gateways: Vec<Gateway>,
    balancer: Balancer,
}

impl Balanced {
    async fn start(kind: BalancerKind, count: usize, upstreams: &str) -> Self {
        let redis = Redis::start().await;
        let config = replicas::config(&redis, upstreams);
        let mut gateways = Vec::new();
        for _ in 0..count {
            gateways.push(Gateway::start_with(&config, &ENVIRONMENT).await);
        }
        for gateway in &gateways {
            until("all upstreams are healthy", || {
                lines(gateway, "upstream is healthy") == upstreams.matches("[upstreams.").count()
            })
            .await;
        }
        let addresses: Vec<_> = gateways.iter().map(Gateway::address).collect();
        let balancer = Balancer::start_kind(kind, free_port(), &addresses).await;
        Self { _redis: redis, gateways, balancer }
    }

    async fn two(upstreams: &str) -> Self {
        Self::start(BalancerKind::Haproxy, 2, upstreams).await
    }

    async fn pass(&self, path: &str, revision: &str) {
        let count = if revision == LEGACY { LEGACY_COUNT } else { MODERN_COUNT };
        assert_all(&run(&self.balancer.url(path), revision, None).await, count);
    }
}

#[tokio::test]
async fn legacy_through_two_gateways() {
    let fixture = Peer::fixture("legacy").await;
    let gateways = Balanced::two(&fixture.config("fixture")).await;
    gateways.pass("/mcp/fixture", LEGACY).await;
    gateways.pass("/mcp/fixture", MODERN).await;
}

#[tokio::test]
async fn modern_through_two_gateways() {
    let fixture = Peer::fixture("modern").await;
    let gateways = Balanced::two(&fixture.config("fixture")).await;
    gateways.pass("/mcp/fixture", MODERN).await;
    gateways.pass("/mcp/fixture", LEGACY).await;
}

#[tokio::test]
async fn sse_through_two_gateways() {
    let fixture = Peer::fixture_sse().await;
    let gateways = Balanced::two(&fixture.config("fixture").replace("/mcp", "/sse")).await;
    gateways.pass("/mcp/fixture", LEGACY).await;
    gateways.pass("/mcp/fixture", MODERN).await;
}

#[tokio::test]
async fn stdio_through_two_gateways() {
    let gateways = Balanced::two(&Launch::fixture("legacy").config("fixture")).await;
    let verdict = run(&gateways.balancer.url("/mcp/fixture"), LEGACY, Some(&baseline())).await;
    assert!(verdict.accepted, "not as tests/conformance.yaml says:\n{}", verdict.output);
    report(&verdict);
    for gateway in &gateways.gateways {
        starts_the_process_of_the_suite(gateway).await;
    }
    gateways.pass("/mcp/fixture", MODERN).await;
}

#[tokio::test]
async fn beside_another_upstream_through_two_gateways() {
    let (modern, legacy) = tokio::join!(Peer::fixture("modern"), Peer::fixture("legacy"));
    let gateways = Balanced::two(&[modern.config("modern"), legacy.config("legacy")].concat()).await;
    gateways.pass("/mcp/modern", LEGACY).await;
}

/// At the endpoint of several upstreams, one of which offers what the suite asks for.
#[tokio::test]
async fn at_a_toolset_through_two_gateways() {
    let (fixture, other) = tokio::join!(Peer::fixture("legacy"), Peer::everything());
    let toolset = "[toolsets.suite]\nupstreams = [\"fixture\", \"other\"]\nprefix = false\n";
    let gateways = Balanced::two(&[&fixture.config("fixture"), &other.config("other"), toolset].concat()).await;
    gateways.pass("/mcp/suite", LEGACY).await;
    gateways.pass("/mcp/suite", MODERN).await;
}

#[tokio::test]
async fn legacy_through_three_gateways_behind_nginx() {
    let fixture = Peer::fixture("legacy").await;
    let gateways = Balanced::start(BalancerKind::Nginx, 3, &fixture.config("fixture")).await;
    gateways.pass("/mcp/fixture", LEGACY).await;
}

#[tokio::test]
async fn sse_legacy() {
    let fixture = Peer::fixture_sse().await;
    let config = fixture.config("fixture").replace("/mcp", "/sse");
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["fixture"]).await;
    assert_all(&run(&gateway.url("/mcp/fixture"), LEGACY, None).await, LEGACY_COUNT);
}

#[tokio::test]
async fn stdio_legacy() {
    let gateway = Gateway::start(&Launch::fixture("legacy").config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    let verdict = run(&gateway.url("/mcp/fixture"), LEGACY, Some(&baseline())).await;
    assert!(verdict.accepted, "not as tests/conformance.yaml says:\n{}", verdict.output);
    report(&verdict);
}

#[tokio::test]
async fn stdio_modern() {
    let gateway = Gateway::start(&Launch::fixture("modern").config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    let verdict = run(&gateway.url("/mcp/fixture"), MODERN, Some(&baseline())).await;
    assert!(verdict.accepted, "not as tests/conformance.yaml says:\n{}", verdict.output);
    report(&verdict);
}

#[tokio::test]
async fn http_legacy_for_modern_clients() {
    let fixture = Peer::fixture("legacy").await;
    let gateway = Gateway::start(&fixture.config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    assert_all(&run(&gateway.url("/mcp/fixture"), MODERN, None).await, MODERN_COUNT);
}

/// The suite gives a call 600 ms, and to start an interpreter is not what it measures: those who say the same of themselves
/// share a process.
async fn starts_the_process_of_the_suite(gateway: &Gateway) {
    let suite = json!({ "io.modelcontextprotocol/clientInfo": { "name": "conformance-client", "version": "1.0.0" } });
    let call = with_meta(json!({ "name": "test_simple_text", "_meta": suite }), &json!({ "elicitation": {} }));
    let (id, request) = Client::modern(gateway, "/mcp/fixture").request_with("tools/call", call);
    let answer = answer(gateway.send(request).await, id).await;
    assert!(answer["result"].is_object(), "{answer}");
}

#[tokio::test]
async fn stdio_legacy_for_modern_clients() {
    let gateway = Gateway::start(&Launch::fixture("legacy").config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    starts_the_process_of_the_suite(&gateway).await;
    assert_all(&run(&gateway.url("/mcp/fixture"), MODERN, None).await, MODERN_COUNT);
}

#[tokio::test]
async fn http_modern_for_legacy_clients() {
    let fixture = Peer::fixture("modern").await;
    let gateway = Gateway::start(&fixture.config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    assert_all(&run(&gateway.url("/mcp/fixture"), LEGACY, None).await, LEGACY_COUNT);
}

#[tokio::test]
async fn stdio_modern_for_legacy_clients() {
    let gateway = Gateway::start(&Launch::fixture("modern").config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    assert_all(&run(&gateway.url("/mcp/fixture"), LEGACY, None).await, LEGACY_COUNT);
}

/// Another upstream, of either era, is nobody's concern.
#[tokio::test]
async fn translated_beside_another_upstream() {
    let (modern, legacy, other) = tokio::join!(Peer::fixture("modern"), Peer::fixture("legacy"), Peer::everything());
    let config = [other.config("other"), modern.config("modern"), legacy.config("legacy")].concat();
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["other", "modern", "legacy"]).await;
    assert_all(&run(&gateway.url("/mcp/modern"), LEGACY, None).await, LEGACY_COUNT);
    assert_all(&run(&gateway.url("/mcp/legacy"), MODERN, None).await, MODERN_COUNT);
}

#[tokio::test]
async fn sse_legacy_for_modern_clients() {
    let fixture = Peer::fixture_sse().await;
    let gateway = Gateway::start(&fixture.config("fixture").replace("/mcp", "/sse")).await;
    gateway.healthy(&["fixture"]).await;
    assert_all(&run(&gateway.url("/mcp/fixture"), MODERN, None).await, MODERN_COUNT);
}

/// The suite as the server, Weir in between, and a client that does what each scenario asks for.
async fn clients(way: Way, revision: &str, count: usize) {
    let scenarios = client_scenarios(revision, false).await;
    assert_eq!(scenarios.len(), count, "{scenarios:?}");
    let mut failed = Vec::new();
    for scenario in &scenarios {
        if let Err(output) = run_client(way, scenario, revision).await {
            failed.push(format!("{scenario}:\n{output}"));
        }
    }
    assert!(failed.is_empty(), "{way:?} {revision}: {} of {count} failed:\n{}", failed.len(), failed.join("\n"));
}

#[tokio::test]
async fn clients_of_the_legacy_era() {
    clients(Way::One, LEGACY, LEGACY_CLIENTS).await;
}

#[tokio::test]
async fn clients_of_the_modern_era() {
    clients(Way::One, MODERN, MODERN_CLIENTS).await;
}

#[tokio::test]
async fn clients_of_the_legacy_era_at_all_upstreams() {
    clients(Way::All, LEGACY, LEGACY_CLIENTS).await;
}

#[tokio::test]
async fn clients_of_the_modern_era_at_all_upstreams() {
    clients(Way::All, MODERN, MODERN_CLIENTS).await;
}

#[tokio::test]
async fn clients_of_the_legacy_era_over_a_pipe() {
    clients(Way::Connect, LEGACY, LEGACY_CLIENTS).await;
}

#[tokio::test]
async fn clients_of_the_modern_era_over_a_pipe() {
    clients(Way::Connect, MODERN, MODERN_CLIENTS).await;
}

/// The scenarios about authorization, with Weir as the one who signs in.
async fn sign_ins(revision: &str, count: usize) {
    let scenarios = client_scenarios(revision, true).await;
    assert_eq!(scenarios.len(), count, "{scenarios:?}");
    all_pass(revision, scenarios.iter().map(String::as_str)).await;
}

async fn all_pass(revision: &str, scenarios: impl Iterator<Item = &str>) {
    let mut failed = Vec::new();
    for scenario in scenarios {
        if let Err(output) = run_client(Way::One, scenario, revision).await {
            failed.push(format!("{scenario}:\n{output}"));
        }
    }
    assert!(failed.is_empty(), "{revision}: {} failed:\n{}", failed.len(), failed.join("\n"));
}

#[tokio::test]
async fn signing_in_for_clients_of_the_legacy_era() {
    sign_ins(LEGACY, 14).await;
}

#[tokio::test]
async fn signing_in_for_clients_of_the_modern_era() {
    sign_ins(MODERN, 25).await;
}

#[tokio::test]
async fn signing_in_at_servers_of_2025_03_26() {
    let old = ["auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback"];
    all_pass("2025-03-26", old.into_iter()).await;
}

/// Extensions, which no revision requires.
#[tokio::test]
async fn signing_in_without_anybody() {
    let alone =
        ["auth/client-credentials-jwt", "auth/client-credentials-basic", "auth/enterprise-managed-authorization"];
    all_pass("", alone.into_iter()).await;
}

/// With a token of the platform (RFC 7523 §2.1).
#[tokio::test]
async fn signing_in_as_a_workload() {
    all_pass("", ["auth/wif-jwt-bearer"].into_iter()).await;
}

/// Tokens that are bound to a key (RFC 9449).
#[tokio::test]
async fn signing_in_with_proofs() {
    all_pass("", ["auth/dpop", "auth/dpop-nonce"].into_iter()).await;
}
