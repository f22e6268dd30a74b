//! Two principals on one upstream: what Weir keeps for one is never the other's, in either era. Sessions, parked calls,
//! tasks and logins are tried beside what they are: `callers`, `tasks`, `exchange`, `sign_in`.

use serde_json::{Value, json};
use weir_tests::stub::Offer;
use weir_tests::{Client, Gateway, Issuer, LEGACY, Request, Stub};

use crate::{
    approval::{OWN, is_asked, modern, reply, rules},
    callers::{AUDIENCE, auth, with},
};

/// A gateway for callers with tokens; the upstream is called `stub`.
async fn gateway(stub: &Stub, issuer: &Issuer, more: &str) -> Gateway {
    let gateway = Gateway::start(&format!("{}{}{more}", auth(&issuer.issuer()), stub.config("stub"))).await;
    gateway.logs("upstream is healthy").await;
    gateway
}

/// A client of each of the two.
fn both(gateway: &Gateway, issuer: &Issuer, path: &str) -> [Client; 2] {
    ["ada", "eve"].map(|who| Client::modern(gateway, path).with_token(&issuer.token(who, AUDIENCE)))
}

async fn legacy(gateway: &Gateway, issuer: &Issuer, path: &str) -> [Client; 2] {
    let [ada, eve] = ["ada", "eve"].map(|who| issuer.token(who, AUDIENCE));
    let open = async |token: &str| Client::legacy_with(gateway, path, token, &json!({})).await;
    [open(&ada).await, open(&eve).await]
}

/// The lists are long, so that those are kept that were translated; the upstream speaks one era only, so that one client is
/// translated and the other is not.
#[tokio::test]
async fn a_list_that_one_has_read_is_not_the_others() {
    const RULES: &str = "\n[[access.rules]]\nsubjects = [\"ada\"]\ntools = [\"of_ada_*\"]\n\n\
                         [[access.rules]]\nsubjects = [\"eve\"]\ntools = [\"of_eve_*\"]\n";
    let issuer = Issuer::start().await;
    for legacy_upstream in [true, false] {
        let tools = (0..300).map(|number| format!("of_{}_{number}", ["ada", "eve"][number % 2])).collect();
        let offer = Offer { tools, page: 1000, legacy: legacy_upstream, modern: !legacy_upstream, ..Offer::default() };
        let stub = Stub::offering(offer).await;
        let gateway = gateway(&stub, &issuer, RULES).await;
        for path in ["/mcp", "/mcp/stub"] {
            for clients in [both(&gateway, &issuer, path), legacy(&gateway, &issuer, path).await] {
                for _ in 0..2 {
                    for (client, own, other) in
                        [(&clients[0], "of_ada_", "of_eve_"), (&clients[1], "of_eve_", "of_ada_")]
                    {
                        let names = client.tools().await;
                        assert_eq!(names.len(), 150, "{path}: {names:?}");
                        assert!(
                            names.iter().all(|name| name.contains(own) && !name.contains(other)),
                            "{path}: {names:?}"
                        );
                    }
                }
            }
        }
    }
}

/// The decision is denied with a time of its own, so that a kept one is told from a new one.
#[tokio::test]
async fn an_answer_that_is_kept_for_one_is_not_given_to_the_other() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let file = tempfile::tempdir().unwrap();
    let component = file.path().join("judge.wasm");
    std::fs::write(&component, weir_guests::JUDGE).unwrap();
    let policy = format!(
        "\n[[upstreams.stub.policies]]\ncomponent = {:?}\ngrants = [\"clock\", \"store\"]\n\
         settings = {{ see = \"facts\", do = \"once\" }}\n",
        component.display().to_string()
    );
    let gateway = gateway(&stub, &issuer, &policy).await;
    let said =
        async |client: &Client| client.call("echo", json!({ "message": "x" })).await["content"][0]["text"].clone();
    for clients in [both(&gateway, &issuer, "/mcp/stub"), legacy(&gateway, &issuer, "/mcp/stub").await] {
        let (ada, eve, again) = (said(&clients[0]).await, said(&clients[1]).await, said(&clients[0]).await);
        assert!(ada.as_str().is_some_and(|text| text.contains("at ")), "{ada}");
        assert_eq!(ada, again, "it is kept");
        assert_ne!(ada, eve, "for its own principal");
    }
}

/// Event ids are numbers of a session, and sessions are their principals'.
#[tokio::test]
async fn events_of_one_are_not_the_others() {
    let issuer = Issuer::start().await;
    let stub = Stub::offering(Offer { tools: vec!["steps".to_owned()], ..Offer::default() }).await;
    let gateway = gateway(&stub, &issuer, "").await;
    for (path, tool) in [("/mcp", "stub__steps"), ("/mcp/stub", "steps")] {
        let [ada, eve] = legacy(&gateway, &issuer, path).await;
        let params = json!({ "name": tool, "arguments": { "message": "of ada" }, "_meta": { "progressToken": "t" } });
        let mut events = ada.send(ada.request("tools/call", params).1).await.events();
        let first = events.next().await.unwrap().id.unwrap();
        let token = issuer.token("eve", AUDIENCE);
        let back = |session: &Client| {
            let get = Request::get(path).header("accept", "text/event-stream").header("last-event-id", &first);
            let get = get.header("mcp-session-id", session.session_id()).header("mcp-protocol-version", LEGACY);
            with(get, &token)
        };
        // In her own session the id is of nobody, and the other session is as good as none.
        assert_eq!(gateway.send(back(&eve)).await.status, 400);
        assert_eq!(gateway.send(back(&ada)).await.status, 404);
        let delete = Request::new("DELETE", path).header("mcp-session-id", ada.session_id());
        assert_eq!(gateway.send(with(delete, &token)).await.status, 404);
        stub.release(3);
        let rest = events.messages().await;
        assert_eq!(rest.last().unwrap()["result"]["content"][0]["text"], "of ada", "nobody was disturbed: {rest:?}");
    }
}

#[tokio::test]
async fn an_approval_of_one_lets_no_call_of_the_other_out() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let gateway = gateway(&stub, &issuer, &format!("\n{}", rules(OWN))).await;
    let arguments = || json!({ "message": "pay" });
    for (path, tool) in [("/mcp", "stub__echo"), ("/mcp/stub", "echo")] {
        let before = stub.asked("tools/call").len();
        let [ada, eve] = both(&gateway, &issuer, path);
        let hers = modern(&ada, tool, arguments(), json!({})).await;
        assert!(is_asked(&hers), "{hers}");
        let stolen = modern(&eve, tool, arguments(), reply(&hers, "accept")).await;
        assert!(is_asked(&stolen) && state(&stolen) != state(&hers), "eve is asked herself: {stolen}");
        assert_eq!(stub.asked("tools/call").len(), before);
        // Nor does her refusal count for the other.
        let refused = modern(&eve, tool, arguments(), reply(&stolen, "decline")).await;
        assert_eq!(refused["result"]["isError"], true, "{refused}");
        let done = modern(&ada, tool, arguments(), reply(&hers, "accept")).await;
        assert_eq!(done["result"]["content"][0]["text"], "pay", "{done}");
        assert_eq!(stub.asked("tools/call").len(), before + 1);
    }
}

fn state(asked: &Value) -> &Value {
    &asked["result"]["requestState"]
}
