//! From one message to what is to be done about it, in the era that the message itself declares.

use std::fmt::Display;
use std::time::Duration;

use serde_json::{Value, json};
use weir_mcp::Era;
use weir_mcp::answer::{INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND};
use weir_mcp::era::{MODERN_VERSIONS, negotiate};
use weir_mcp::method;

use crate::stdio_server::{Failure, Incoming, StdioRequest};

use super::offer;

/// What a message asks for.
pub(super) enum DemoAnswer {
    Nothing,
    Now(Value),
    Count(Countdown),
    Cancel(Value),
}

/// A call of the tool that takes its time.
pub(super) struct Countdown {
    pub(super) request: StdioRequest,
    pub(super) token: Option<Value>,
    pub(super) from: u64,
    pub(super) pause: Duration,
}

impl Countdown {
    pub(super) fn finished(&self) -> Value {
        let result = text(format!("Counted down from {}.", self.from));
        self.request.answered(Ok(result), &offer::server_info())
    }
}

type DemoOutcome = Result<Value, Failure>;

pub(super) fn answer(line: &[u8]) -> DemoAnswer {
    let request = match Incoming::read(line) {
        Incoming::Nothing => return DemoAnswer::Nothing,
        Incoming::Refused(answer) => return DemoAnswer::Now(answer),
        Incoming::Cancelled(id) => return DemoAnswer::Cancel(id),
        Incoming::Request(request) => request,
    };
    if request.method == method::TOOLS_CALL && request.params["name"] == "countdown" {
        return countdown(request);
    }
    let outcome = perform(request.era, &request.method, &request.params);
    DemoAnswer::Now(request.answered(outcome, &offer::server_info()))
}

fn perform(era: Era, method: &str, params: &Value) -> DemoOutcome {
    match (method, era) {
        (method::INITIALIZE, Era::Legacy) => Ok(initialize(params)),
        (method::PING, Era::Legacy) => Ok(json!({})),
        (method::DISCOVER, Era::Modern) => Ok(json!({
            "supportedVersions": MODERN_VERSIONS,
            "capabilities": offer::capabilities(),
            "instructions": offer::INSTRUCTIONS,
        })),
        (method::TOOLS_LIST, _) => Ok(json!({"tools": offer::tools()})),
        (method::TOOLS_CALL, _) => call(params),
        (method::RESOURCES_LIST, _) => Ok(json!({"resources": [offer::readme()]})),
        (method::TEMPLATES_LIST, _) => Ok(json!({"resourceTemplates": []})),
        (method::RESOURCES_READ, _) => read(era, params),
        (method::PROMPTS_LIST, _) => Ok(json!({"prompts": [offer::prompt()]})),
        (method::PROMPTS_GET, _) => prompt(params),
        _ => Err(Failure::new(METHOD_NOT_FOUND, format!("Method not found: {method}"))),
    }
}

fn initialize(params: &Value) -> Value {
    json!({
        "protocolVersion": negotiate(params["protocolVersion"].as_str().unwrap_or_default()),
        "capabilities": offer::capabilities(),
        "serverInfo": offer::server_info(),
        "instructions": offer::INSTRUCTIONS,
    })
}

fn call(params: &Value) -> DemoOutcome {
    let arguments = &params["arguments"];
    match params["name"].as_str() {
        Some("echo") => Ok(match arguments["text"].as_str() {
            Some(said) => text(said),
            None => mistake("`text` must be a string"),
        }),
        Some("add") => Ok(add(&arguments["a"], &arguments["b"])),
        name => Err(Failure::new(INVALID_PARAMS, format!("Unknown tool: {}", name.unwrap_or_default()))),
    }
}

fn add(a: &Value, b: &Value) -> Value {
    let whole = a.as_i64().zip(b.as_i64()).and_then(|(a, b)| a.checked_add(b)).map(Value::from);
    let float = || a.as_f64().zip(b.as_f64()).map(|(a, b)| json!(a + b)).filter(Value::is_number);
    let Some(sum) = whole.or_else(float) else {
        return mistake("`a` and `b` must be numbers whose sum is one");
    };
    let mut result = text(&sum);
    result["structuredContent"] = json!({"sum": sum});
    result
}

fn countdown(request: StdioRequest) -> DemoAnswer {
    let arguments = &request.params["arguments"];
    let from = arguments["from"].as_u64().filter(|from| (1..=1000).contains(from));
    let pause = arguments.get("pause_ms").map_or(Some(200), Value::as_u64).filter(|pause| *pause <= 10_000);
    let (Some(from), Some(pause)) = (from, pause) else {
        let result = mistake("`from` must be an integer from 1 to 1000, `pause_ms` one from 0 to 10000");
        return DemoAnswer::Now(request.answered(Ok(result), &offer::server_info()));
    };
    let token = request.params["_meta"].get("progressToken").cloned();
    DemoAnswer::Count(Countdown { request, token, from, pause: Duration::from_millis(pause) })
}

fn read(era: Era, params: &Value) -> DemoOutcome {
    if params["uri"] == offer::README_URI {
        let content = json!({"uri": offer::README_URI, "mimeType": "text/markdown", "text": offer::README});
        return Ok(json!({"contents": [content]}));
    }
    let code = if era == Era::Modern { INVALID_PARAMS } else { RESOURCE_NOT_FOUND };
    Err(Failure { data: Some(json!({"uri": params["uri"]})), ..Failure::new(code, "Resource not found") })
}

fn prompt(params: &Value) -> DemoOutcome {
    if params["name"] != "introduce" {
        let name = params["name"].as_str().unwrap_or_default();
        return Err(Failure::new(INVALID_PARAMS, format!("Unknown prompt: {name}")));
    }
    let Some(name) = params["arguments"]["name"].as_str() else {
        return Err(Failure::new(INVALID_PARAMS, "The argument `name` is missing or no string"));
    };
    let message = json!({"role": "user", "content": {"type": "text", "text": offer::introduction(name)}});
    Ok(json!({"description": "Get to know Weir", "messages": [message]}))
}

fn text(text: impl Display) -> Value {
    json!({"content": [{"type": "text", "text": text.to_string()}]})
}

/// A failure that the model should see, to do better.
fn mistake(what: &str) -> Value {
    let mut result = text(what);
    result["isError"] = json!(true);
    result
}
