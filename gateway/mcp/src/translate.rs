//! From one era's words to the other's, message by message.
//!
//! A modern client and a legacy server differ in what stands around a call, hardly in the call itself: who the client is
//! travels in `_meta` or in `initialize`, results say what they are and for how long they hold or do not, and some error
//! codes have moved. So everything here is a splice; arguments and results stay what their sender wrote.

mod missing;
mod stateless;

use bytes::Bytes;

pub use missing::missing;
pub use stateless::{
    Declared, InputRequired, QUESTIONS, Unaskable, acknowledged, again, asked, check, failure, initialized,
    legacy_answer, listen, question, response, responses, unsubscribed,
};

use crate::answer::{self, INTERNAL, INVALID_PARAMS, MISSING_CAPABILITY, RESOURCE_NOT_FOUND, URL_ELICITATION_REQUIRED};
use crate::{Edit, Field, Kind, Message, Object, era, json, method};

/// What a modern request says of its client, beside the progress token and what is not Weir's.
const OWN_META: [&str; 4] = [
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/logLevel",
];

/// Where a modern result says who answers.
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// Where a message of a subscription says to which one it belongs.
const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// The extension of the modern era that has tasks.
pub const TASKS: &str = "io.modelcontextprotocol/tasks";

/// The members by which a modern result says how long it holds. A legacy server never says when its lists change for
/// whom, so nothing may be kept or shared.
const NOT_KEPT: [(&str, &str); 2] = [("ttlMs", "0"), ("cacheScope", "\"private\"")];

/// The severities of log messages, mildest first (RFC 5424, MCP utilities/logging).
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// The client's name where it gives none.
const NAMELESS: &[u8] = br#"{"name":"weir","version":"0"}"#;

/// What a client lets a server ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Asks {
    /// `elicitation/create` with a form.
    pub form: bool,
    /// `elicitation/create` with an address to visit.
    pub url: bool,
    /// `sampling/createMessage`.
    pub sampling: bool,
    /// The same, with tools.
    pub sampling_tools: bool,
    /// The same, with context of other servers.
    pub sampling_context: bool,
    /// `roots/list`.
    pub roots: bool,
}

impl Asks {
    /// What the client of a modern request lets a server ask, as far as Weir knows of it.
    pub fn of_request(request: &Message) -> Self {
        request.raw(Field::ClientCapabilities).map(Self::of).unwrap_or_default()
    }

    /// The `initialize` that opens a legacy session for such clients. They share it, so it is in the name of whoever keeps
    /// it, `info`; and it declares no capability that Weir could not serve.
    pub fn initialize(self, info: &str) -> Bytes {
        let (version, capabilities) = (json::quote(era::LATEST_LEGACY), self.capabilities());
        let params = format!("{{\"protocolVersion\":{version},\"capabilities\":{capabilities},\"clientInfo\":{info}}}");
        answer::request(b"0", method::INITIALIZE, Some(params.as_bytes()))
    }

    /// Reads `clientCapabilities`.
    fn of(capabilities: &[u8]) -> Self {
        let has = |path: &[&str]| json::get(capabilities, path).is_some_and(|raw| raw.starts_with(b"{"));
        let url = has(&["elicitation", "url"]);
        Self {
            // `elicitation: {}` means forms (2025-11-25, client/elicitation).
            form: has(&["elicitation", "form"]) || (has(&["elicitation"]) && !url),
            url,
            sampling: has(&["sampling"]),
            sampling_tools: has(&["sampling", "tools"]),
            sampling_context: has(&["sampling", "context"]),
            roots: has(&["roots"]),
        }
    }

    /// Whether the client lets a server ask this.
    pub fn allows(&self, question: &Message) -> bool {
        match question.method() {
            "elicitation/create" => {
                let mode = question.params().and_then(|params| json::get(params, &["mode"])).and_then(json::string);
                if mode.as_deref() == Some("url") { self.url } else { self.form }
            }
            "sampling/createMessage" => self.sampling,
            "roots/list" => self.roots,
            _ => false,
        }
    }

    /// The `capabilities` of an `initialize`.
    fn capabilities(&self) -> String {
        let object = |members: &[(bool, &str)]| {
            let there: Vec<&str> = members.iter().filter(|(there, _)| *there).map(|(_, text)| *text).collect();
            format!("{{{}}}", there.join(","))
        };
        let elicitation =
            format!("\"elicitation\":{}", object(&[(self.form, "\"form\":{}"), (self.url, "\"url\":{}")]));
        let sampling = object(&[(self.sampling_tools, "\"tools\":{}"), (self.sampling_context, "\"context\":{}")]);
        let sampling = format!("\"sampling\":{sampling}");
        object(&[(self.form || self.url, &elicitation), (self.sampling, &sampling), (self.roots, "\"roots\":{}")])
    }
}

/// A modern request as a legacy server takes it, under an id and, where it has one, a progress token of Weir's own.
pub fn legacy_request(request: &Message, key: u64) -> Bytes {
    let key = key.to_string();
    let mut edit = request.edit().set(Field::Id, &key).set(Field::ProgressToken, &key);
    for name in OWN_META {
        edit = edit.remove(Object::Meta, name);
    }
    edit.remove(Object::Body, "inputResponses").remove(Object::Body, "requestState").finish()
}

/// A legacy server's answer as a modern client takes it. `id` is the client's own, `method` what it asked for and
/// `server_info` who the server said it is; all but the method raw JSON.
pub fn modern_answer(answer: &Message, id: &[u8], method: &str, server_info: Option<&[u8]>) -> Bytes {
    if answer.kind() == Kind::Error {
        return modern_error(answer, id, method, server_info);
    }
    let mut edit = answer.edit().set(Field::Id, id).put(Object::Body, "resultType", "\"complete\"");
    if let Some(info) = server_info.filter(|_| answer.meta(SERVER_INFO).is_none()) {
        edit = edit.put(Object::Meta, SERVER_INFO, info);
    }
    if method::is_list(method) || method == method::RESOURCES_READ {
        for (name, value) in NOT_KEPT {
            edit = edit.put(Object::Body, name, value);
        }
    }
    edit.finish()
}

fn modern_error(error: &Message, id: &[u8], method: &str, server_info: Option<&[u8]>) -> Bytes {
    let named = |edit: Edit<'_>| match error.raw(Field::Id) {
        Some(_) => edit.set(Field::Id, id).finish(),
        None => edit.put(Object::Message, "id", id).finish(),
    };
    match error.error_code() {
        Some(RESOURCE_NOT_FOUND) => named(error.edit().set(Field::ErrorCode, INVALID_PARAMS.to_string())),
        Some(URL_ELICITATION_REQUIRED) => visit_first(error, id, method, server_info),
        // Servers that speak both eras say it in either, and what the client lacks is what it can mend: the data that
        // only the modern era defines shows that this is meant.
        Some(MISSING_CAPABILITY) if required(error) => named(error.edit()),
        // Codes that the modern era keeps for itself; a legacy server means something else by them.
        Some(-32099..=-32020) => named(error.edit().set(Field::ErrorCode, INTERNAL.to_string())),
        _ => named(error.edit()),
    }
}

/// Whether an error says which capabilities its client must declare.
fn required(error: &Message) -> bool {
    let data = error.raw(Field::ErrorData).and_then(|data| json::get(data, &["requiredCapabilities"]));
    data.is_some_and(|required| required.starts_with(b"{"))
}

/// "Visit these addresses first", said with what the modern era has for it: the result of a tool that went wrong, or
/// else an error.
fn visit_first(error: &Message, id: &[u8], method: &str, server_info: Option<&[u8]>) -> Bytes {
    let data = error.raw(Field::ErrorData).unwrap_or(b"{}");
    let why = error.text(Field::ErrorMessage).unwrap_or_default();
    let mut text =
        if why.is_empty() { "Something must be done in a browser first.".to_owned() } else { why.into_owned() };
    for asked in json::get(data, &["elicitations"]).into_iter().flat_map(json::elements) {
        let line = |key: &str| json::get(asked, &[key]).and_then(json::string).unwrap_or_default();
        text.push_str(&format!("\n{} {}", line("message"), line("url")));
    }
    if method != method::TOOLS_CALL {
        return answer::error(Some(id), INTERNAL, &text, None);
    }
    let info = server_info.unwrap_or(b"{}");
    let text = json::quote(&text);
    let head = format!(
        "{{\"resultType\":\"complete\",\"isError\":true,\"content\":[{{\"type\":\"text\",\"text\":{text}}}],\"_meta\":{{\"{SERVER_INFO}\":"
    );
    answer::result(id, &[head.as_bytes(), info, b"}}"].concat())
}

/// Whether a server may ask the client something before it answers this method (MCP 2026-07-28, multi round-trip
/// requests).
pub fn may_ask(method: &str) -> bool {
    matches!(method, method::TOOLS_CALL | method::PROMPTS_GET | method::RESOURCES_READ)
}

/// The answer that asks a client first. `id` is raw; each question stands under the key that the client will answer it
/// by; `state` is what the client gives back with its answers.
pub fn input_required(id: &[u8], questions: &[(String, &Message)], state: &str, server_info: Option<&[u8]>) -> Bytes {
    let mut out = b"{\"resultType\":\"input_required\",\"inputRequests\":{".to_vec();
    for (at, (key, question)) in questions.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        member(&mut out, key, &input_request(question));
    }
    out.extend_from_slice(b"},");
    member(&mut out, "requestState", json::quote(state).as_bytes());
    if let Some(info) = server_info {
        out.extend_from_slice(b",\"_meta\":{");
        member(&mut out, SERVER_INFO, info);
        out.push(b'}');
    }
    out.push(b'}');
    answer::result(id, &out)
}

/// A name for a question, said by what it asks for; a legacy server gives it none. None if nothing fits in a few words.
pub fn question_name(question: &Message) -> Option<String> {
    let plain = |name: &str| {
        name.len() <= 40 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
    };
    match question.method() {
        "elicitation/create" => {
            let mut fields = json::members(json::get(question.params()?, &["requestedSchema", "properties"])?);
            let (name, _) = fields.next().filter(|(name, _)| plain(name))?;
            fields.next().is_none().then(|| format!("user_{name}"))
        }
        "sampling/createMessage" => Some("model_message".to_owned()),
        "roots/list" => Some("client_roots".to_owned()),
        _ => None,
    }
}

/// A legacy server's question as part of an answer: without what belongs to the message that brought it.
fn input_request(question: &Message) -> Vec<u8> {
    let mut out = b"{".to_vec();
    member(&mut out, "method", json::quote(question.method()).as_bytes());
    let stripped = question.edit().remove(Object::Body, "_meta").remove(Object::Body, "elicitationId").finish();
    let params = json::get(&stripped, &["params"]).filter(|raw| raw.starts_with(b"{"));
    if let Some(params) = params {
        out.push(b',');
        member(&mut out, "params", params);
    }
    out.push(b'}');
    out
}

/// The `result` of `server/discover` for a server that said `initialized` of itself, the result of its `initialize`.
pub fn discovered(initialized: &[u8]) -> Bytes {
    let capabilities = json::get(initialized, &["capabilities"]).unwrap_or(b"{}");
    let mut out =
        format!("{{\"resultType\":\"complete\",\"supportedVersions\":[\"{}\"]", era::LATEST_MODERN).into_bytes();
    out.extend_from_slice(b",\"capabilities\":{");
    // Tasks are another thing in each era.
    let carried = json::members(capabilities).filter(|(name, _)| name != "tasks");
    for (at, (name, value)) in carried.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        member(&mut out, &name, value);
    }
    out.push(b'}');
    if let Some(text) = json::get(initialized, &["instructions"]) {
        out.push(b',');
        member(&mut out, "instructions", text);
    }
    for (name, value) in NOT_KEPT {
        out.push(b',');
        member(&mut out, name, value.as_bytes());
    }
    if let Some(info) = json::get(initialized, &["serverInfo"]) {
        out.extend_from_slice(b",\"_meta\":{");
        member(&mut out, SERVER_INFO, info);
        out.push(b'}');
    }
    out.push(b'}');
    out.into()
}

fn member(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(json::quote(name).as_bytes());
    out.push(b':');
    out.extend_from_slice(value);
}

/// How severe a level of log messages is, 0 the mildest; none if there is no such level.
pub fn rank(level: &str) -> Option<usize> {
    LEVELS.iter().position(|known| *known == level)
}

/// Whether a client that wants log messages from `wanted` on wants this one. A level that nobody knows is let through.
pub fn is_logged(wanted: &str, log_message: &Message) -> bool {
    let level = log_message.params().and_then(|params| json::get(params, &["level"])).and_then(json::string);
    match (rank(wanted), level.as_deref().and_then(rank)) {
        (Some(wanted), Some(level)) => level >= wanted,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

/// A notification as part of the subscription that was opened by the request with this raw `id`.
pub fn subscribed(notification: &Message, id: &[u8]) -> Bytes {
    notification.edit().put(Object::Meta, SUBSCRIPTION_ID, id).finish()
}

#[cfg(test)]
mod tests;
