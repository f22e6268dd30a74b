//! On the way through, arguments and results stay the bytes that they were.

mod eras;

use std::fmt::Write as _;

use serde_json::json;
use weir_tests::stub::{Offer, Stub};
use weir_tests::{Client, Gateway};

/// JSON that a parser and a printer would not give back as it was.
const AWKWARD: &str = r#"{ "z" : 1,"a":1.0, "big":1152921504606846977, "huge":1e400,"small":1E-0007,
 "dup":1,"dup":2,"esc":"\u00e9\u2028\/\ud83d\ude00","raw":"é😀","deep":[[[[[[[[{"x":[]}]]]]]]]] , "" : null}"#;

fn long() -> String {
    let mut text = String::from("{\"text\":\"");
    for index in 0..40_000 {
        let _ = write!(text, "line {index}\\n\\\"quoted\\\" ");
    }
    text + "\"}"
}

#[tokio::test]
async fn params_and_results_of_unknown_methods_are_untouched() {
    for value in [AWKWARD.to_owned(), long()] {
        let stub = Stub::offering(Offer { raw: value.clone(), ..Offer::default() }).await;
        let gateway = Gateway::start(&stub.config("stub")).await;
        gateway.healthy(&["stub"]).await;
        let client = Client::legacy(&gateway, "/mcp/stub").await;

        let body = format!(r#"{{"jsonrpc":"2.0", "id":77,"method":"weir-tests/raw","params":{value}}}"#);
        let response = client.send(client.post(body)).await;
        assert_eq!(response.status, 200);
        let answer = response.bytes().await;
        let answer = std::str::from_utf8(&answer).unwrap();
        assert!(answer.contains(&value), "the result was changed");
        assert!(answer.contains("\"id\":77"), "the id is the client's");

        let seen = stub.asked("weir-tests/raw").pop().unwrap();
        assert!(has(&seen.body, &value), "the params were changed");
    }
}

#[tokio::test]
async fn arguments_of_a_tool_are_untouched_where_its_name_is_not() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let arguments = r#"{ "message":"\u0041","n":1.000, "k":9007199254740993 }"#;
    let params = [
        format!(r#"{{"name":"stub__echo","arguments":{arguments},"unknown":[1.0]}}"#),
        format!(r#"{{"unknown":[1.0],"arguments":{arguments},"name":"stub\u005f_echo"}}"#),
    ];
    let client = Client::legacy(&gateway, "/mcp").await;
    for (index, params) in params.iter().enumerate() {
        let body = format!(r#"{{"params":{params},"method":"tools/call","id":"text-{index}","jsonrpc":"2.0"}}"#);
        let answer = client.send(client.post(body)).await.messages().await.pop().unwrap();
        assert_eq!(answer["id"], json!(format!("text-{index}")), "an id of text stays one");
        assert_eq!(answer["result"]["content"][0]["text"], "A");

        let seen = stub.asked("tools/call").pop().unwrap();
        assert!(has(&seen.body, arguments), "the arguments were changed: {:?}", seen.body);
        assert!(has(&seen.body, r#""unknown":[1.0]"#), "an unknown field was lost: {:?}", seen.body);
        assert_eq!(seen.message()["params"]["name"], "echo");
    }
}

fn has(body: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(body).contains(text)
}
