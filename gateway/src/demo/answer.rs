//! From one message to what is to be done about it, in the era that the message itself declares.

use std::fmt::Display;
use std::time::Duration;

use serde_json::{Map, Value, json};
use weir_mcp::Era;
use weir_mcp::answer::{
    INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, RESOURCE_NOT_FOUND, UNSUPPORTED_VERSION,
};
use weir_mcp::era::{MODERN_VERSIONS, negotiate};
use weir_mcp::method;

use super::offer;

const CLAIM: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// What a message asks for.
pub(super) enum DemoAnswer {
    Nothing,
    Now(Value),
    Count(Countdown),
    Cancel(Value),
}

/// A call of the tool that takes its time.
pub(super) struct Countdown {
    pub(super) id: Value,
    pub(super) token: Option<Value>,
    pub(super) from: u64,
    pub(super) pause: Duration,
    era: Era,
}

impl Countdown {
    pub(super) fn finished(&self) -> Value {
        let result = text(format!("Counted down from {}.", self.from));
        success(&self.id, complete(self.era, method::TOOLS_CALL, result))
    }
}

struct DemoFailure {
    code: i64,
    message: String,
    data: Option<Value>,
}

type DemoOutcome = Result<Value, DemoFailure>;

pub(super) fn answer(line: &[u8]) -> DemoAnswer {
    let Ok(message) = serde_json::from_slice::<Value>(line) else {
        return DemoAnswer::Now(error(&Value::Null, fail(PARSE_ERROR, "not JSON")));
    };
    let (id, params) = (&message["id"], &message["params"]);
    let Some(method) = message["method"].as_str().filter(|_| message["jsonrpc"] == "2.0") else {
        let is_answer = message.get("result").or(message.get("error")).is_some();
        let refusal = || error(&Value::Null, fail(INVALID_REQUEST, "not a JSON-RPC 2.0 message"));
        return if is_answer { DemoAnswer::Nothing } else { DemoAnswer::Now(refusal()) };
    };
    match method {
        method::CANCELLED => DemoAnswer::Cancel(params["requestId"].clone()),
        _ if id.is_null() => DemoAnswer::Nothing,
        method::TOOLS_CALL if params["name"] == "countdown" => match era(params) {
            Ok(era) => countdown(era, id, params),
            Err(failure) => DemoAnswer::Now(error(id, failure)),
        },
        _ => DemoAnswer::Now(
            match era(params).and_then(|era| Ok(complete(era, method, perform(era, method, params)?))) {
                Ok(result) => success(id, result),
                Err(failure) => error(id, failure),
            },
        ),
    }
}

/// The era of a request, which is modern if it claims a version in `_meta`.
fn era(params: &Value) -> Result<Era, DemoFailure> {
    let meta = &params["_meta"];
    match meta.get(CLAIM) {
        None => Ok(Era::Legacy),
        Some(version) if !MODERN_VERSIONS.iter().any(|known| version == known) => Err(DemoFailure {
            data: Some(json!({"supported": MODERN_VERSIONS, "requested": version})),
            ..fail(UNSUPPORTED_VERSION, "Unsupported protocol version")
        }),
        Some(_) if !meta[CAPABILITIES].is_object() => {
            Err(fail(INVALID_PARAMS, format!("`_meta` lacks `{CAPABILITIES}`")))
        }
        Some(_) => Ok(Era::Modern),
    }
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
        _ => Err(fail(METHOD_NOT_FOUND, format!("Method not found: {method}"))),
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
        name => Err(fail(INVALID_PARAMS, format!("Unknown tool: {}", name.unwrap_or_default()))),
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

fn countdown(era: Era, id: &Value, params: &Value) -> DemoAnswer {
    let arguments = &params["arguments"];
    let from = arguments["from"].as_u64().filter(|from| (1..=1000).contains(from));
    let pause = arguments.get("pause_ms").map_or(Some(200), Value::as_u64).filter(|pause| *pause <= 10_000);
    let (Some(from), Some(pause)) = (from, pause) else {
        let result = mistake("`from` must be an integer from 1 to 1000, `pause_ms` one from 0 to 10000");
        return DemoAnswer::Now(success(id, complete(era, method::TOOLS_CALL, result)));
    };
    let token = params["_meta"].get("progressToken").cloned();
    DemoAnswer::Count(Countdown { id: id.clone(), token, from, pause: Duration::from_millis(pause), era })
}

fn read(era: Era, params: &Value) -> DemoOutcome {
    if params["uri"] == offer::README_URI {
        let content = json!({"uri": offer::README_URI, "mimeType": "text/markdown", "text": offer::README});
        return Ok(json!({"contents": [content]}));
    }
    let code = if era == Era::Modern { INVALID_PARAMS } else { RESOURCE_NOT_FOUND };
    Err(DemoFailure { data: Some(json!({"uri": params["uri"]})), ..fail(code, "Resource not found") })
}

fn prompt(params: &Value) -> DemoOutcome {
    if params["name"] != "introduce" {
        let name = params["name"].as_str().unwrap_or_default();
        return Err(fail(INVALID_PARAMS, format!("Unknown prompt: {name}")));
    }
    let Some(name) = params["arguments"]["name"].as_str() else {
        return Err(fail(INVALID_PARAMS, "The argument `name` is missing or no string"));
    };
    let message = json!({"role": "user", "content": {"type": "text", "text": offer::introduction(name)}});
    Ok(json!({"description": "Get to know Weir", "messages": [message]}))
}

/// Adds what every result carries in the modern era, and what those carry that may be cached (2026-07-28).
fn complete(era: Era, method: &str, mut result: Value) -> Value {
    if era == Era::Modern {
        result["resultType"] = json!("complete");
        result["_meta"] = json!({SERVER_INFO: offer::server_info()});
        if method == method::DISCOVER || method == method::RESOURCES_READ || method::is_list(method) {
            // Nothing here ever changes, and it is the same for everybody.
            result["ttlMs"] = json!(3_600_000);
            result["cacheScope"] = json!("public");
        }
    }
    result
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

fn fail(code: i64, message: impl Into<String>) -> DemoFailure {
    DemoFailure { code, message: message.into(), data: None }
}

fn success(id: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

fn error(id: &Value, failure: DemoFailure) -> Value {
    let mut body = Map::from_iter([("code".into(), failure.code.into()), ("message".into(), failure.message.into())]);
    body.extend(failure.data.map(|data| ("data".into(), data)));
    json!({"jsonrpc": "2.0", "id": id, "error": body})
}
