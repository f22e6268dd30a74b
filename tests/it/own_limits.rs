//! Numbers of a single key, upstream or tool: they count instead of those of its kind, a refusal names the key of the
//! configuration, and a reload changes them.

use serde_json::json;
use weir_tests::peer::Launch;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, Request, Response, Stub};

use crate::{
    callers::tools,
    keys::{add, within_limits},
    reload::reload,
};

async fn refused(response: Response) -> (u16, String) {
    let status = response.status;
    (status, response.json().await["error"]["message"].as_str().unwrap_or_default().to_owned())
}

fn call(client: &Client, tool: &str, message: &str) -> Request {
    client.request("tools/call", json!({ "name": tool, "arguments": { "message": message } })).1
}

fn listen(client: &Client) -> Request {
    client.request("subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } })).1
}

#[tokio::test]
async fn a_key_has_rates_and_streams_of_its_own_and_a_reload_changes_them() {
    let stub = Stub::start().await;
    let config = |own: &str| {
        let kind = "api_keys = true\n[limits.principal]\ncalls_per_minute = 4\nstreams = 2\n";
        format!("{kind}{own}{}", stub.config("stub"))
    };
    let own = "[limits.keys.ci]\ncalls_per_minute = 2\nstreams = 1\n";
    let gateway = Gateway::start(&config(own)).await;
    gateway.logs("upstream is healthy").await;
    let [ci, ops] = [add(&gateway, &["ci"]).await, add(&gateway, &["ops"]).await];
    let [ci, ops] = [ci, ops].map(|key| Client::modern(&gateway, "/mcp").with_token(&key));
    for (client, count, key) in
        [(&ci, 2, "`limits.keys.ci.calls_per_minute`"), (&ops, 4, "`limits.principal.calls_per_minute`")]
    {
        for number in 0..count {
            assert_eq!(gateway.send(call(client, "stub__echo", &number.to_string())).await.status, 200, "{key}");
        }
        let (status, why) = refused(gateway.send(call(client, "stub__echo", "more")).await).await;
        assert_eq!((status, why.contains(key)), (429, true), "{why}");
    }
    let held = [gateway.send(listen(&ci)).await, gateway.send(listen(&ops)).await, gateway.send(listen(&ops)).await];
    assert!(held.iter().all(|stream| stream.status == 200));
    let (status, why) = refused(gateway.send(listen(&ci)).await).await;
    assert_eq!(status, 429);
    assert_eq!(why, "this caller has 1 streams already, as many as `limits.keys.ci.streams` allows");
    let (_, why) = refused(gateway.send(listen(&ops)).await).await;
    assert!(why.contains("`limits.principal.streams`"), "{why}");

    reload(&gateway, &config("[limits.keys.ci]\ncalls_per_minute = 3\nstreams = 2\ncalls_per_day = 2\n")).await;
    let second = gateway.send(listen(&ci)).await;
    assert_eq!(second.status, 200);
    for number in 0..2 {
        assert_eq!(gateway.send(call(&ci, "stub__echo", &number.to_string())).await.status, 200);
    }
    let (status, why) = refused(gateway.send(call(&ci, "stub__echo", "more")).await).await;
    assert_eq!((status, why.contains("`limits.keys.ci.calls_per_day`")), (429, true), "{why}");
}

#[tokio::test]
async fn an_upstream_and_tools_have_calls_of_their_own() {
    let stub = Stub::start().await;
    let config = |own: &str, tools: &str| {
        let [narrow, wide] = ["narrow", "wide"].map(|name| stub.config(name));
        format!("limits.upstream.calls = 2\n[limits.tools]\n{tools}\n{narrow}{own}\n{wide}")
    };
    let gateway = Gateway::start(&config("limits = { calls = 1 }", "")).await;
    gateway.healthy(&["narrow", "wide"]).await;
    let client = Client::modern(&gateway, "/mcp");
    let address = gateway.address();
    let hold = async |tool: &str| {
        let (before, request) = (stub.held(), call(&client, tool, ""));
        let held = tokio::spawn(async move { request.send(address).await.status }).abort_handle();
        until("the call is held", || stub.held() > before).await;
        held
    };
    let running = [hold("narrow__hold").await, hold("wide__hold").await];
    let (status, why) = refused(gateway.send(call(&client, "narrow__echo", "x")).await).await;
    assert_eq!(status, 503);
    assert_eq!(why, "upstream `narrow` has 1 calls already, as many as `upstreams.narrow.limits.calls` allows");
    assert_eq!(gateway.send(call(&client, "wide__echo", "x")).await.status, 200);

    // Calls that run count on, for tools from the next one on.
    reload(
        &gateway,
        &config("limits = { calls = 9 }", "\"*__ec*\" = { calls_per_minute = 1 }\n\"wide__hold\" = { calls = 1 }"),
    )
    .await;
    let held = hold("wide__hold").await;
    let (status, why) = refused(gateway.send(call(&client, "wide__hold", "x")).await).await;
    assert_eq!((status, why.contains("`limits.upstream.calls`")), (503, true), "{why}");
    running.iter().for_each(tokio::task::AbortHandle::abort);
    until("those end", || stub.held() == 1).await;
    let (status, why) = refused(gateway.send(call(&client, "wide__hold", "x")).await).await;
    assert_eq!(status, 503);
    assert_eq!(why, "tool `wide/hold` has 1 calls already, as many as `limits.tools.\"wide__hold\".calls` allows");
    for tool in ["wide__echo", "narrow__echo"] {
        assert_eq!(gateway.send(call(&client, tool, "x")).await.status, 200, "each tool counts by itself");
        let (status, why) = refused(gateway.send(call(&client, tool, "y")).await).await;
        assert_eq!((status, why.contains("`limits.tools.\"*__ec*\".calls_per_minute`")), (503, true), "{why}");
    }
    held.abort();
}

#[tokio::test]
async fn a_key_and_an_upstream_have_processes_of_their_own() {
    let narrow = Launch::fixture("legacy").config("narrow") + "limits = { processes = 1 }\n";
    let wide = Launch::fixture("legacy").config("wide");
    let config = format!("api_keys = true\nlimits.keys.ci.processes = 2\n{narrow}{wide}");
    let gateway = Gateway::start(&config).await;
    until("both are healthy", || gateway.log().matches("upstream is healthy").count() == 2).await;
    gateway.has_children(0).await;
    let [ci, ops] = [add(&gateway, &["ci"]).await, add(&gateway, &["ops"]).await];
    let _one = Client::legacy_with(&gateway, "/mcp/narrow", &ci, &json!({})).await;
    let (status, why) = within_limits(&gateway, "/mcp/narrow", &ops).await;
    assert_eq!((status, why.contains("`upstreams.narrow.limits.processes`")), (503, true), "{why}");
    let _two = Client::legacy_with(&gateway, "/mcp/wide", &ci, &json!({})).await;
    let (status, why) = within_limits(&gateway, "/mcp/wide", &ci).await;
    assert_eq!((status, why.contains("`limits.keys.ci.processes`")), (429, true), "{why}");
    assert_eq!(within_limits(&gateway, "/mcp/wide", &ops).await.0, 200);
    assert_eq!(gateway.send(crate::callers::with(tools("/mcp"), &ci)).await.status, 200);
}
