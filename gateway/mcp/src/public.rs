//! What crosses an endpoint that is many servers at once, and so must say which of them it is from.
//!
//! The id of a task is unique at its server and nowhere else, so on such an endpoint it carries the server's name in front:
//! that needs no memory, outlives a restart, is the same every time the task is mentioned, and leaves it to the server who
//! may use it. Log messages say in the same way who speaks. As everywhere, a message is spliced and never rendered anew.

use std::borrow::Cow;

use bytes::Bytes;

use crate::{Field, Kind, Message, json, method};

/// What parts a server's name from its own id. No server's name has it inside.
pub const SEPARATOR: &str = "__";

/// The key of `_meta` that says to which task a message belongs (2025-11-25, basic/utilities/tasks).
const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// What the answer to a request may have in it that needs a public name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PublicNames {
    /// Nothing beyond what any message may have.
    #[default]
    Plain,
    /// It may be a task instead of the answer.
    Call,
    /// It is about one task.
    Task,
    /// It is a list of tasks.
    Tasks,
    /// It repeats the address that was read, which the client knows by another one.
    Read {
        /// The server's own address.
        native: String,
        /// What the client calls it.
        public: String,
    },
}

/// The public form of an id of `server`.
pub fn id(server: &str, native: &str) -> String {
    [server, SEPARATOR, native].concat()
}

/// The server and its own id.
pub fn split(public: &str) -> Option<(&str, &str)> {
    public.split_once(SEPARATOR).filter(|(server, _)| !server.is_empty())
}

/// A message of `server` as the client takes it; none if it is the same. `asked` is what it answers, if it is an answer.
pub fn outward(message: &Message, server: &str, asked: &PublicNames) -> Option<Bytes> {
    let mut changes = Replacements::default();
    let named = |raw: &[u8]| json::string(raw).map(|native| json::quote(&id(server, &native)));
    changes.replace(related_task(message), named);
    match message.kind() {
        Kind::Notification if message.method() == method::LOG_MESSAGE => {
            let named = changes.made_to(message.bytes()).and_then(|bytes| Message::parse(bytes).ok());
            return Some(logged(named.as_ref().unwrap_or(message), server));
        }
        Kind::Notification if matches!(message.method(), method::TASK_STATUS | method::TASK_CHANGE) => {
            changes.replace(message.raw(Field::TaskId), named);
        }
        Kind::Response => {
            let result = message.result();
            match asked {
                PublicNames::Plain => {}
                PublicNames::Call => {
                    changes.replace(at(result, &["task", "taskId"]), named);
                    if message.text(Field::ResultType).as_deref() == Some("task") {
                        changes.replace(at(result, &["taskId"]), named);
                    }
                }
                PublicNames::Task => changes.replace(at(result, &["taskId"]), named),
                PublicNames::Tasks => {
                    for task in at(result, &["tasks"]).into_iter().flat_map(json::elements) {
                        changes.replace(json::get(task, &["taskId"]), named);
                    }
                }
                PublicNames::Read { native, public } => {
                    for content in at(result, &["contents"]).into_iter().flat_map(json::elements) {
                        let uri = json::get(content, &["uri"]);
                        let same = uri.and_then(json::string).is_some_and(|uri| uri == *native);
                        changes.replace(uri.filter(|_| same), |_| Some(json::quote(public)));
                    }
                }
            }
        }
        Kind::Notification | Kind::Request | Kind::Error => {}
    }
    changes.made_to(message.bytes())
}

/// A client's message as `server` takes it; none if it is the same. Ids that are not the server's stay what they are: they
/// are the client's own.
pub fn inward(message: &Message, server: &str) -> Option<Bytes> {
    let mut changes = Replacements::default();
    let native = |raw: &[u8]| {
        let text = json::string(raw)?;
        let (named, native) = split(&text)?;
        (named == server).then(|| json::quote(native))
    };
    changes.replace(related_task(message), native);
    if method::route(message.method()) == method::Route::Task {
        changes.replace(message.raw(Field::TaskId), native);
    }
    changes.made_to(message.bytes())
}

/// A message with other ids of tasks, where `renamed` gives one; none if it is the same. What answers a request about a
/// task is `of_task`.
pub fn with_task_ids(message: &Message, of_task: bool, renamed: impl Fn(&str) -> Option<String>) -> Option<Bytes> {
    let mut changes = Replacements::default();
    let renamed = |raw: &[u8]| json::string(raw).and_then(|id| Some(json::quote(&renamed(&id)?)));
    changes.replace(related_task(message), renamed);
    match message.kind() {
        Kind::Notification if message.method() == method::ACKNOWLEDGED => {
            let watched = at(message.params(), &["notifications", "taskIds"]).into_iter().flat_map(json::elements);
            watched.for_each(|id| changes.replace(Some(id), renamed));
        }
        Kind::Notification | Kind::Request => changes.replace(message.raw(Field::TaskId), renamed),
        Kind::Response if of_task || message.text(Field::ResultType).as_deref() == Some("task") => {
            changes.replace(at(message.result(), &["taskId"]), renamed);
        }
        Kind::Response | Kind::Error => {}
    }
    changes.made_to(message.bytes())
}

/// Whether a message belongs to a task.
pub fn is_of_task(message: &Message) -> bool {
    related_task(message).is_some()
}

/// The level that a `logging/setLevel` sets.
pub fn log_level(set_level: &Message) -> Option<Cow<'_, str>> {
    at(set_level.params(), &["level"]).and_then(json::string)
}

/// A notification about a resource under the address by which the client knows it.
pub fn readdressed(message: &Message, public: &str) -> Bytes {
    message.edit().set(Field::Uri, json::quote(public)).finish()
}

/// The tool's user interface (MCP Apps): the raw address, from either place where servers write it.
pub fn interface(tool: &[u8]) -> Vec<&[u8]> {
    let meta = json::get(tool, &["_meta"]).unwrap_or_default();
    let places = [json::get(meta, &["ui", "resourceUri"]), json::get(meta, &["ui/resourceUri"])];
    places.into_iter().flatten().filter(|raw| raw.starts_with(b"\"")).collect()
}

/// `document` with some of its parts, each a slice of it, replaced.
pub fn replaced(document: &Bytes, parts: Vec<(&[u8], String)>) -> Bytes {
    let mut changes = Replacements::default();
    for (part, new) in parts {
        changes.replace(Some(part), |_| Some(new.clone()));
    }
    changes.made_to(document).unwrap_or_else(|| document.clone())
}

/// A log message whose logger says which server speaks.
fn logged(message: &Message, server: &str) -> Bytes {
    let logger = at(message.params(), &["logger"]).and_then(json::string);
    let public = logger.map_or_else(|| server.to_owned(), |logger| format!("{server}/{logger}"));
    message.edit().put(crate::Object::Body, "logger", json::quote(&public)).finish()
}

fn related_task(message: &Message) -> Option<&[u8]> {
    json::get(message.raw(Field::Meta)?, &[RELATED_TASK, "taskId"])
}

fn at<'a>(object: Option<&'a [u8]>, path: &[&str]) -> Option<&'a [u8]> {
    json::get(object?, path)
}

/// New values for parts of a document, each part a slice of the document.
#[derive(Default)]
struct Replacements<'d> {
    parts: Vec<(&'d [u8], Cow<'d, str>)>,
}

impl<'d> Replacements<'d> {
    fn replace(&mut self, part: Option<&'d [u8]>, with: impl Fn(&[u8]) -> Option<String>) {
        if let Some((part, new)) = part.and_then(|part| Some((part, with(part)?))) {
            self.parts.push((part, new.into()));
        }
    }

    fn made_to(mut self, document: &Bytes) -> Option<Bytes> {
        if self.parts.is_empty() {
            return None;
        }
        self.parts.sort_by_key(|(part, _)| part.as_ptr());
        let mut out = Vec::with_capacity(document.len() + 32 * self.parts.len());
        let mut done = 0;
        for (part, new) in &self.parts {
            // The slice lies in the document, so its place follows from the addresses.
            let start = (part.as_ptr() as usize).wrapping_sub(document.as_ptr() as usize);
            let Some(before) = document.get(done..start) else { continue };
            out.extend_from_slice(before);
            out.extend_from_slice(new.as_bytes());
            done = start + part.len();
        }
        out.extend_from_slice(document.get(done..)?);
        Some(out.into())
    }
}

#[cfg(test)]
mod tests;
