//! What a legacy client says as a server without sessions takes it, and what that answers as the client takes it.
//!
//! The client said once who it is and what it may be asked; the server wants to read it in every request. The server
//! asks by an answer, which becomes requests of its own for the client; what the client says to them goes into the same
//! request once more.

use bytes::Bytes;

use super::{Asks, NAMELESS, OWN_META, SERVER_INFO, SUBSCRIPTION_ID, member};
use crate::answer::{
    self, HEADER_MISMATCH, INTERNAL, INVALID_PARAMS, INVALID_REQUEST, MISSING_CAPABILITY, RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
};
use crate::{Field, Kind, Message, Object, era, json, method, mirrored};

/// The longest part of an introduction that is passed on, in bytes.
const MAX_PART: usize = 16 * 1024;

/// How many questions one answer may hold.
pub const QUESTIONS: usize = 32;

/// The extension that is another thing in each era.
const TASKS: &str = "io.modelcontextprotocol/tasks";

/// What a legacy client has said of itself, in the words of the modern era.
#[derive(Clone, Debug)]
pub struct Declared {
    info: Bytes,
    capabilities: Bytes,
    asks: Asks,
}

/// A server's answer that asks the client first.
#[derive(Clone, Debug)]
pub struct InputRequired {
    /// What is asked, each under the name that its answer goes back by.
    pub questions: Vec<(String, Message)>,
    /// What goes back with the answers: raw JSON, byte for byte.
    pub state: Option<Bytes>,
}

/// Why a question cannot be put to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unaskable {
    /// The client has not declared that it may be asked this.
    #[error("the server asks for `{0}`, which this client has not declared")]
    Undeclared(String),
    /// The same, for an address that the user could visit instead.
    #[error("{message}\n{url}")]
    Visit {
        /// What it is about.
        message: String,
        /// Where to go.
        url: String,
    },
    /// It is no question, or there are too many.
    #[error("the server asks for input in a form that cannot be read")]
    Unreadable,
}

impl Declared {
    /// Reads an `initialize`. What means something else in the modern era is left out.
    pub fn of(initialize: &Message) -> Self {
        let params = initialize.params().unwrap_or(b"{}");
        let object =
            |path: &[&str]| json::get(params, path).filter(|raw| raw.starts_with(b"{") && raw.len() <= MAX_PART);
        let given = object(&["capabilities"]).unwrap_or(b"{}");
        let asks = Asks::of(given);
        let mut capabilities = asks.capabilities().into_bytes();
        capabilities.pop();
        for name in ["extensions", "experimental"] {
            let Some(raw) = object(&["capabilities", name]) else { continue };
            if capabilities.len() > 1 {
                capabilities.push(b',');
            }
            member(&mut capabilities, name, &without(raw, &[TASKS]));
        }
        capabilities.push(b'}');
        let info = Bytes::copy_from_slice(object(&["clientInfo"]).unwrap_or(NAMELESS));
        Self { info, capabilities: capabilities.into(), asks }
    }

    /// What the client lets a server ask.
    pub fn asks(&self) -> Asks {
        self.asks
    }

    /// A request of this client under another id; `level` is from which severity on it wants log messages.
    pub fn request(&self, request: &Message, id: u64, level: Option<&str>) -> Bytes {
        let values = [Some(json::quote(era::LATEST_MODERN)), None, None, level.map(json::quote)];
        let own = [None, Some(&self.info), Some(&self.capabilities), None];
        let mut edit = request.edit().set(Field::Id, id.to_string());
        for ((name, value), own) in OWN_META.iter().zip(&values).zip(own) {
            edit = match (value, own) {
                (Some(value), _) => edit.put(Object::Meta, name, value),
                (None, Some(own)) => edit.put(Object::Meta, name, own),
                (None, None) => edit.remove(Object::Meta, name),
            };
        }
        edit.finish()
    }
}

/// The same request once more, under another id, with the client's answers and the server's state.
pub fn again(request: &Message, id: u64, answers: Option<&[u8]>, state: Option<&[u8]>) -> Bytes {
    let mut edit = request.edit().set(Field::Id, id.to_string());
    for (name, value) in [("inputResponses", answers), ("requestState", state)] {
        edit = match value {
            Some(value) => edit.put(Object::Body, name, value),
            None => edit.remove(Object::Body, name),
        };
    }
    edit.finish()
}

/// The `result` of `initialize` for a server that said `discovered` of itself, the result of `server/discover`. The
/// server is called `name` where it says none.
pub fn initialized(discovered: &[u8], version: &str, name: &str) -> Bytes {
    let mut out = format!("{{\"protocolVersion\":{},\"capabilities\":", json::quote(version)).into_bytes();
    let capabilities = json::get(discovered, &["capabilities"]).unwrap_or(b"{}");
    out.extend_from_slice(&capabilities_of(capabilities));
    out.extend_from_slice(b",\"serverInfo\":");
    let info = json::get(discovered, &["_meta", SERVER_INFO])
        .or_else(|| json::get(discovered, &["serverInfo"]))
        .filter(|raw| raw.starts_with(b"{"));
    match info {
        Some(info) => out.extend_from_slice(info),
        None => out.extend_from_slice(format!("{{\"name\":{},\"version\":\"0\"}}", json::quote(name)).as_bytes()),
    }
    if let Some(text) = json::get(discovered, &["instructions"]).filter(|raw| raw.starts_with(b"\"")) {
        out.push(b',');
        member(&mut out, "instructions", text);
    }
    out.push(b'}');
    out.into()
}

fn capabilities_of(capabilities: &[u8]) -> Vec<u8> {
    let mut out = b"{".to_vec();
    for (name, value) in json::members(capabilities).filter(|(name, _)| name != "tasks") {
        if out.len() > 1 {
            out.push(b',');
        }
        let value = if name == "extensions" { without(value, &[TASKS]) } else { value.to_vec() };
        member(&mut out, &name, &value);
    }
    out.push(b'}');
    out
}

/// An object without these members.
fn without(raw_object: &[u8], names: &[&str]) -> Vec<u8> {
    let mut out = b"{".to_vec();
    for (name, value) in json::members(raw_object).filter(|(name, _)| !names.contains(&name.as_ref())) {
        if out.len() > 1 {
            out.push(b',');
        }
        member(&mut out, &name, value);
    }
    out.push(b'}');
    out
}

/// What an answer asks for, if it asks; `Unreadable` where nobody can tell what.
pub fn asked(answer: &Message) -> Option<Result<InputRequired, Unaskable>> {
    let kind = answer.text(Field::ResultType)?;
    (kind == "input_required").then(|| questions(answer).ok_or(Unaskable::Unreadable))
}

fn questions(answer: &Message) -> Option<InputRequired> {
    let requests = answer.member("inputRequests").filter(|raw| *raw != b"null");
    let state = answer.raw(Field::RequestState).filter(|raw| raw.starts_with(b"\""));
    let mut questions = Vec::new();
    for (name, raw) in requests.into_iter().flat_map(json::members) {
        let method = json::get(raw, &["method"]).and_then(json::string)?;
        let params = json::get(raw, &["params"]).filter(|raw| raw.starts_with(b"{"));
        let question = Message::parse(answer::request(b"0", &method, params)).ok()?;
        questions.push((name.into_owned(), question));
    }
    let some = !questions.is_empty() || state.is_some();
    let state = state.map(Bytes::copy_from_slice);
    (some && questions.len() <= QUESTIONS).then_some(InputRequired { questions, state })
}

/// A server's question as a request for the client, under this raw id. An address to visit gets an `elicitationId`,
/// which the client tells them apart by (2025-11-25, client/elicitation).
pub fn question(question: &Message, id: &[u8], elicitation: &str) -> Bytes {
    let edit = question.edit().set(Field::Id, id);
    let given = || question.params().is_some_and(|params| json::get(params, &["elicitationId"]).is_some());
    if mode(question).as_deref() == Some("url") && !given() {
        return edit.put(Object::Body, "elicitationId", json::quote(elicitation)).finish();
    }
    edit.finish()
}

/// Whether the client may be asked this.
pub fn check(asks: Asks, question: &Message) -> Result<(), Unaskable> {
    if asks.allows(question) {
        return Ok(());
    }
    let text = |key: &str| question.params().and_then(|params| json::get(params, &[key])).and_then(json::string);
    match (mode(question).as_deref(), text("url")) {
        (Some("url"), Some(url)) => Err(Unaskable::Visit {
            message: text("message").unwrap_or("Something must be done in a browser first.".into()).into_owned(),
            url: url.into_owned(),
        }),
        _ => Err(Unaskable::Undeclared(question.method().chars().take(64).collect())),
    }
}

fn mode(question: &Message) -> Option<std::borrow::Cow<'_, str>> {
    json::get(question.params()?, &["mode"]).and_then(json::string)
}

/// What the client's answer to a question is to the server; the error is what the client said instead.
pub fn response(question: &Message, answer: &Message) -> Result<Bytes, String> {
    match (answer.kind(), answer.result()) {
        (Kind::Response, Some(result)) if result.starts_with(b"{") => Ok(Bytes::copy_from_slice(result)),
        // Nobody has answered, which the era has a word for.
        _ if question.method() == "elicitation/create" => Ok(Bytes::from_static(br#"{"action":"cancel"}"#)),
        _ => {
            let why = answer.text(Field::ErrorMessage).unwrap_or_default();
            Err(format!("the client did not answer `{}`: {why}", question.method()))
        }
    }
}

/// Answers, each under the name of its question, as `inputResponses`.
pub fn responses(answers: &[(String, Bytes)]) -> Vec<u8> {
    let mut out = b"{".to_vec();
    for (name, answer) in answers {
        if out.len() > 1 {
            out.push(b',');
        }
        member(&mut out, name, answer);
    }
    out.push(b'}');
    out
}

/// A server's last answer as a legacy client takes it. `id` is the client's own, raw, and `method` what it asked for.
/// Over HTTP, tools that nobody could call there are left out.
pub fn legacy_answer(answer: &Message, id: &[u8], method: &str, over_http: bool) -> Bytes {
    if answer.kind() == Kind::Error {
        return legacy_error(answer, id, method);
    }
    match answer.text(Field::ResultType).as_deref() {
        None | Some("complete") => {}
        Some(_) => {
            return failure(id, method, "the server answered with a kind of result that this client cannot read");
        }
    }
    let mut edit = answer.edit().set(Field::Id, id).remove(Object::Body, "resultType");
    if answer.raw(Field::Meta).is_some() {
        edit = match json::members(answer.raw(Field::Meta).unwrap_or_default()).count() {
            1 if answer.meta(SERVER_INFO).is_some() => edit.remove(Object::Body, "_meta"),
            _ => edit.remove(Object::Meta, SERVER_INFO),
        };
    }
    if method::is_list(method) || method == method::RESOURCES_READ {
        edit = edit.remove(Object::Body, "ttlMs").remove(Object::Body, "cacheScope");
    }
    if method == method::TOOLS_LIST
        && over_http
        && let Some(offered) = answer.member("tools").and_then(mirrored::offered)
    {
        edit = edit.put(Object::Body, "tools", offered);
    }
    edit.finish()
}

fn legacy_error(error: &Message, id: &[u8], method: &str) -> Bytes {
    let named = |code: Option<i64>| {
        let edit = match error.raw(Field::Id) {
            Some(_) => error.edit().set(Field::Id, id),
            None => error.edit().put(Object::Message, "id", id),
        };
        match code {
            Some(code) => edit.set(Field::ErrorCode, code.to_string()).finish(),
            None => edit.finish(),
        }
    };
    match error.error_code() {
        Some(INVALID_PARAMS) if method == method::RESOURCES_READ && is_not_found(error) => {
            named(Some(RESOURCE_NOT_FOUND))
        }
        Some(MISSING_CAPABILITY) => {
            let needed = error.raw(Field::ErrorData).and_then(|data| json::get(data, &["requiredCapabilities"]));
            let names: Vec<String> =
                needed.into_iter().flat_map(json::members).map(|(name, _)| format!("`{name}`")).take(8).collect();
            let which = if names.is_empty() { "a capability".to_owned() } else { names.join(", ") };
            failure(id, method, &format!("this needs a client that declares {which}"))
        }
        Some(UNSUPPORTED_VERSION | HEADER_MISMATCH) => {
            failure(id, method, "the server and Weir do not agree on the protocol")
        }
        // Codes that only the modern era has.
        Some(-32099..=-32020) => named(Some(INTERNAL)),
        _ => named(None),
    }
}

/// Whether an error about parameters says that there is no such resource, for which the legacy era has a code.
fn is_not_found(error: &Message) -> bool {
    let address = error.raw(Field::ErrorData).and_then(|data| json::get(data, &["uri"]));
    let text = error.text(Field::ErrorMessage).unwrap_or_default().to_ascii_lowercase();
    address.is_some() || text.contains("not found") || text.contains("unknown resource")
}

/// What went wrong between the two eras, said where the client looks: in the result of a tool, or else as an error.
pub fn failure(id: &[u8], method: &str, why: &str) -> Bytes {
    if method != method::TOOLS_CALL {
        return answer::error(Some(id), INVALID_REQUEST, why, None);
    }
    let text = json::quote(why);
    let result = format!("{{\"content\":[{{\"type\":\"text\",\"text\":{text}}}],\"isError\":true}}");
    answer::result(id, result.as_bytes())
}

/// A request to listen for changes: of all lists, if wanted, and of these resources.
pub fn listen(declared: &Declared, id: u64, lists: bool, addresses: &[String]) -> Bytes {
    let mut wish = if lists {
        "\"toolsListChanged\":true,\"promptsListChanged\":true,\"resourcesListChanged\":true".to_owned()
    } else {
        String::new()
    };
    if !addresses.is_empty() {
        let addresses: Vec<String> = addresses.iter().map(|address| json::quote(address)).collect();
        let comma = if wish.is_empty() { "" } else { "," };
        wish.push_str(&format!("{comma}\"resourceSubscriptions\":[{}]", addresses.join(",")));
    }
    let params = format!("{{\"notifications\":{{{wish}}}}}");
    let request = answer::request(b"0", method::LISTEN, Some(params.as_bytes()));
    match Message::parse(request.clone()) {
        Ok(message) => declared.request(&message, id, None),
        Err(_) => request,
    }
}

/// The resources that a server lets be watched: what it acknowledges of a [`listen`]. None if it is no acknowledgement.
pub fn acknowledged(notification: &Message) -> Option<Vec<String>> {
    if notification.method() != "notifications/subscriptions/acknowledged" {
        return None;
    }
    let granted =
        notification.params().and_then(|params| json::get(params, &["notifications", "resourceSubscriptions"]));
    let addresses = granted.into_iter().flat_map(json::elements).filter_map(json::string);
    Some(addresses.map(|address| address.into_owned()).collect())
}

/// A change as a legacy client hears of it.
pub fn unsubscribed(notification: &Message) -> Bytes {
    match notification.raw(Field::Meta).map(|meta| json::members(meta).count()) {
        Some(1) if notification.raw(Field::SubscriptionId).is_some() => {
            notification.edit().remove(Object::Body, "_meta").finish()
        }
        Some(_) => notification.edit().remove(Object::Meta, SUBSCRIPTION_ID).finish(),
        None => notification.bytes().clone(),
    }
}

#[cfg(test)]
mod tests;
