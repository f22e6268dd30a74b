use super::*;

const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

/// The verdict on a body, with the headers version, method and name; `-` for none.
fn judge(body: &str, headers: [&str; 3]) -> Result<Era, Rejection> {
    let [version, method, name] = headers.map(|header| (header != "-").then_some(header));
    let inbound = InboundRequest::parse(body.replace("META", META).into()).unwrap_or_else(|e| panic!("{e}: {body}"));
    classify(&inbound, &Claims { version, method, name })
}

fn call(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}}}}}"#)
}

fn notice(params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{{params}}}}}"#)
}

fn claim(version: &str, rest: &str) -> String {
    format!(r#""_meta":{{"io.modelcontextprotocol/protocolVersion":{version}{rest}}}"#)
}

const CAPABLE: &str = r#","io.modelcontextprotocol/clientCapabilities":{}"#;
const NOW: &str = "2026-07-28";

#[test]
fn eras_are_told_apart() {
    let response = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}"#;
    let batch = format!("[{response},{}]", call("ping", ""));
    for (body, headers, era) in [
        (call("initialize", r#""protocolVersion":"2025-06-18""#), ["-", "-", "-"], Era::Legacy),
        (call("initialize", ""), ["2025-06-18", "-", "-"], Era::Legacy),
        // Before the handshake the header has no meaning yet.
        (call("initialize", ""), ["1999-01-01", "-", "-"], Era::Legacy),
        // A claim that is broken or names a legacy version does not make a handshake modern.
        (call("initialize", &claim("\"2025-11-25\"", CAPABLE)), ["-", "-", "-"], Era::Legacy),
        (call("initialize", &claim("1", CAPABLE)), ["-", "-", "-"], Era::Legacy),
        (call("tools/list", ""), ["-", "-", "-"], Era::Legacy),
        (call("tools/list", r#""_meta":{"progressToken":1}"#), ["2025-03-26", "-", "-"], Era::Legacy),
        (call("tools/call", r#""name":"a""#), ["2024-11-05", "other", "other"], Era::Legacy),
        (call("tools/call", r#""name":"a","arguments":{META}"#), [" 2025-11-25\t", "-", "-"], Era::Legacy),
        (notice(""), ["-", "-", "-"], Era::Legacy),
        (notice(""), ["2025-06-18", "-", "-"], Era::Legacy),
        (response.to_owned(), ["-", "-", "-"], Era::Legacy),
        (error.to_owned(), ["2025-11-25", "-", "-"], Era::Legacy),
        (batch, ["2025-03-26", "-", "-"], Era::Legacy),
        (call("server/discover", "META"), [NOW, "server/discover", "-"], Era::Modern),
        (call("tools/call", r#""name":"a",META"#), [NOW, "tools/call", "a"], Era::Modern),
        (call("tools/call", r#""name":"\u0061",META"#), [" 2026-07-28 ", "\ttools/call ", " a "], Era::Modern),
        (call("tools/call", r#""name":"größe",META"#), [NOW, "tools/call", "=?base64?Z3LDtsOfZQ==?="], Era::Modern),
        (call("tools/call", r#""name":"a",META"#), [NOW, "tools/call", "=?base64?YQ==?="], Era::Modern),
        (call("tools/call", "META"), [NOW, "tools/call", "-"], Era::Modern),
        (call("prompts/get", r#""name":"p",META"#), [NOW, "prompts/get", "p"], Era::Modern),
        (call("resources/read", r#""uri":"file:///a b",META"#), [NOW, "resources/read", "file:///a b"], Era::Modern),
        (call("tasks/get", r#""taskId":"t",META"#), [NOW, "tasks/get", "t"], Era::Modern),
        (call("tools/list", "META"), [NOW, "tools/list", "whatever"], Era::Modern),
        // Whether a method exists is for the method's owner to say, except for the five that are gone.
        (call("vendor/thing", "META"), [NOW, "vendor/thing", "-"], Era::Modern),
        (notice(""), [NOW, "-", "-"], Era::Modern),
        (notice(""), [NOW, "notifications/cancelled", "-"], Era::Modern),
        (notice("META"), ["-", "-", "-"], Era::Modern),
        (notice(&claim("\"2026-07-28\"", "")), [NOW, "-", "-"], Era::Modern),
    ] {
        assert_eq!(judge(&body, headers), Ok(era), "{body} {headers:?}");
    }
}

#[test]
fn what_breaks_a_rule_is_refused() {
    let response = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    let modern_call = call("tools/call", r#""name":"a",META"#);
    for (body, headers, status, code) in [
        // _meta keys
        (call("tools/list", ""), [NOW, "tools/list", "-"], 400, -32602),
        (call("tools/list", r#""_meta":{"progressToken":1}"#), ["2031-01-01", "-", "-"], 400, -32602),
        (call("tools/list", &claim("\"2026-07-28\"", "")), [NOW, "tools/list", "-"], 400, -32602),
        (call("tools/list", &claim("5", CAPABLE)), [NOW, "tools/list", "-"], 400, -32602),
        (call("tools/list", &claim("null", CAPABLE)), ["-", "-", "-"], 400, -32602),
        (
            call("tools/list", &claim("\"2026-07-28\"", r#","io.modelcontextprotocol/clientCapabilities":[]"#)),
            [NOW, "tools/list", "-"],
            400,
            -32602,
        ),
        (notice(&claim("5", "")), [NOW, "-", "-"], 400, -32602),
        // the last of two claims counts
        (call("tools/list", &format!("META,{}", claim("5", CAPABLE))), [NOW, "tools/list", "-"], 400, -32602),
        // MCP-Protocol-Version
        (modern_call.clone(), ["-", "tools/call", "a"], 400, -32020),
        (modern_call.clone(), ["2025-11-25", "tools/call", "a"], 400, -32020),
        (modern_call.clone(), ["", "tools/call", "a"], 400, -32020),
        (modern_call.clone(), ["2026-07-28\u{fffd}", "tools/call", "a"], 400, -32020),
        (call("initialize", ""), [NOW, "-", "-"], 400, -32020),
        (notice("META"), ["2025-11-25", "-", "-"], 400, -32020),
        // Mcp-Method
        (modern_call.clone(), [NOW, "-", "a"], 400, -32020),
        (modern_call.clone(), [NOW, "tools/Call", "a"], 400, -32020),
        (notice(""), [NOW, "notifications/progress", "-"], 400, -32020),
        (notice("META"), [NOW, "notifications/progress", "-"], 400, -32020),
        // Mcp-Name
        (modern_call.clone(), [NOW, "tools/call", "-"], 400, -32020),
        (modern_call.clone(), [NOW, "tools/call", "A"], 400, -32020),
        (modern_call.clone(), [NOW, "tools/call", ""], 400, -32020),
        (modern_call.clone(), [NOW, "tools/call", "=?base64?!?="], 400, -32020),
        (modern_call.clone(), [NOW, "tools/call", "ä"], 400, -32020),
        (modern_call.clone(), [NOW, "tools/call", "a\u{7f}"], 400, -32020),
        (call("tools/call", r#""name":"ä",META"#), [NOW, "tools/call", "ä"], 400, -32020),
        (call("prompts/get", r#""name":"p",META"#), [NOW, "prompts/get", "-"], 400, -32020),
        (call("resources/read", r#""uri":"a:",META"#), [NOW, "resources/read", "b:"], 400, -32020),
        (call("tasks/cancel", r#""taskId":"t",META"#), [NOW, "tasks/cancel", "u"], 400, -32020),
        // unknown versions, where header and body agree
        (call("tools/list", &claim("\"1900-01-01\"", CAPABLE)), ["1900-01-01", "tools/list", "-"], 400, -32022),
        (call("tools/list", &claim("\"2031-01-01\"", CAPABLE)), ["2031-01-01", "tools/list", "-"], 400, -32022),
        (call("tools/list", &claim("\"2025-11-25\"", CAPABLE)), ["2025-11-25", "tools/list", "-"], 400, -32022),
        (notice(&claim("\"2031-01-01\"", "")), ["2031-01-01", "-", "-"], 400, -32022),
        (notice(""), ["2031-01-01", "-", "-"], 400, -32022),
        // methods that are gone
        (call("initialize", "META"), [NOW, "initialize", "-"], 404, -32601),
        (call("ping", "META"), [NOW, "ping", "-"], 404, -32601),
        (call("logging/setLevel", "META"), [NOW, "logging/setLevel", "-"], 404, -32601),
        (call("resources/subscribe", r#""uri":"a:",META"#), [NOW, "resources/subscribe", "a:"], 404, -32601),
        (call("resources/unsubscribe", r#""uri":"a:",META"#), [NOW, "resources/unsubscribe", "a:"], 404, -32601),
        (call("tasks/result", r#""taskId":"1",META"#), [NOW, "tasks/result", "-"], 404, -32601),
        (call("tasks/list", "META"), [NOW, "tasks/list", "-"], 404, -32601),
        // bodies that only the legacy era has
        (format!("[{modern_call}]"), [NOW, "tools/call", "a"], 400, -32600),
        (format!("[{},{modern_call}]", call("ping", "")), ["-", "-", "-"], 400, -32600),
        (format!("[{}]", call("ping", "")), [NOW, "-", "-"], 400, -32600),
        (response.to_owned(), [NOW, "-", "-"], 400, -32600),
        // legacy headers
        (call("tools/list", ""), ["1999-01-01", "-", "-"], 400, -32000),
        (call("tools/list", ""), ["", "-", "-"], 400, -32000),
        (notice(""), ["bad", "-", "-"], 400, -32000),
        (response.to_owned(), ["2025-11-26", "-", "-"], 400, -32000),
        (format!("[{response}]"), ["x", "-", "-"], 400, -32000),
        // which fault is named first
        (call("ping", &claim("\"1900-01-01\"", CAPABLE)), ["1900-01-01", "-", "-"], 400, -32022),
        (call("ping", &claim("\"1900-01-01\"", CAPABLE)), [NOW, "ping", "-"], 400, -32020),
        (call("ping", "META"), [NOW, "-", "-"], 400, -32020),
        (call("ping", &claim("\"2026-07-28\"", "")), ["-", "-", "-"], 400, -32602),
    ] {
        let rejection = judge(&body, headers).expect_err(&body);
        assert_eq!((rejection.status, rejection.code), (status, code), "{body} {headers:?}: {rejection}");
    }
}

#[test]
fn a_rejection_says_what_to_do_and_repeats_little() {
    let body = call("tools/list", &claim("\"1900-01-01\"", CAPABLE));
    let rejection = judge(&body, ["1900-01-01", "tools/list", "-"]).unwrap_err();
    assert_eq!(rejection.data.as_deref(), Some(r#"{"supported":["2026-07-28"],"requested":"1900-01-01"}"#));
    assert_eq!(
        &rejection.body(Some(b"7"))[..],
        br#"{"jsonrpc":"2.0","id":7,"error":{"code":-32022,"message":"unsupported protocol version","data":{"supported":["2026-07-28"],"requested":"1900-01-01"}}}"#
    );
    let long = Rejection::unsupported(&"é\"".repeat(5000));
    assert!(long.data.unwrap().len() < 300);

    let rejection = judge(&call("tools/list", ""), [NOW, "-", "-"]).unwrap_err();
    assert_eq!(
        rejection.message,
        "params._meta lacks io.modelcontextprotocol/protocolVersion and io.modelcontextprotocol/clientCapabilities"
    );
    let secret = judge(&call("tools/call", r#""name":"secret",META"#), [NOW, "tools/call", "hidden"]).unwrap_err();
    assert!(!format!("{secret:?}").contains("secret") && !format!("{secret:?}").contains("hidden"));
}
