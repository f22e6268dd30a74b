//! One JSON-RPC message: the bytes that came in, and where its parts lie.
//!
//! A message is scanned once. What Weir needs for routing is found in that same pass and remembered as spans; the rest
//! stays what the sender wrote. A change is a splice of the original bytes ([`Message::edit`]), never a new rendering.

mod edit;
mod long;
mod walk;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

pub use edit::{Edit, Object};
pub use long::Answered;
pub use walk::Field;

use crate::json::{self, Scanner, Span, Stop};
use crate::{answer, method};
use walk::Parts;

/// The most messages that one batch may hold.
pub const MAX_BATCH: usize = 100;

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The bytes are not JSON.
    #[error("not valid JSON at byte {offset}: {what}")]
    Json {
        /// Where, in bytes from the start.
        offset: usize,
        /// What is wrong there.
        what: &'static str,
    },
    /// JSON nested deeper than [`json::MAX_DEPTH`].
    #[error("JSON nested deeper than {} levels", json::MAX_DEPTH)]
    TooDeep,
    /// JSON, but no JSON-RPC 2.0 message as MCP has them.
    #[error("not a JSON-RPC 2.0 message: {0}")]
    InvalidRequest(&'static str),
}

impl ParseError {
    /// The JSON-RPC code to answer with: -32700 or -32600.
    pub fn code(&self) -> i64 {
        match self {
            Self::Json { .. } | Self::TooDeep => answer::PARSE_ERROR,
            Self::InvalidRequest(_) => answer::INVALID_REQUEST,
        }
    }
}

impl From<json::JsonError> for ParseError {
    fn from(error: json::JsonError) -> Self {
        match error {
            json::JsonError::Syntax { offset, what } => Self::Json { offset, what },
            json::JsonError::TooDeep => Self::TooDeep,
        }
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A method and an id.
    Request,
    /// A method without an id.
    Notification,
    /// A result.
    Response,
    /// An error, which is a response too.
    Error,
}

/// What `completion/complete` completes for: the value of `params.ref`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference<'a> {
    /// `ref/prompt`, by name.
    Prompt(Cow<'a, str>),
    /// `ref/resource`, by URI or URI template.
    Resource(Cow<'a, str>),
}

/// One body as it came in.
#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all bodies are single messages, so a box would cost and save nothing"
)]
pub enum InboundRequest {
    /// One message.
    Single(Message),
    /// An array of messages (2025-03-26 only), from 1 to [`MAX_BATCH`].
    Batch(Vec<Message>),
}

impl InboundRequest {
    /// Reads a body that may be a batch.
    ///
    /// One bad element spoils the whole batch, as it does in the reference implementation.
    pub fn parse(bytes: Bytes) -> Result<Self, ParseError> {
        json::check_utf8(&bytes)?;
        let mut scanner = Scanner::new(&bytes);
        if scanner.next_byte() != Some(b'[') {
            return Message::scan(&bytes, scanner).map(Self::Single);
        }
        let (parts, count) = batch(&mut scanner).map_err(|stop| scanner.why(stop))?;
        match count {
            0 => Err(ParseError::InvalidRequest("the batch is empty")),
            1..=MAX_BATCH => parts.into_iter().map(|part| Message::element(&bytes, part)).collect(),
            _ => Err(ParseError::InvalidRequest("the batch holds more than 100 messages")),
        }
        .map(Self::Batch)
    }

    /// The messages, whether one or many.
    pub fn messages(&self) -> &[Message] {
        match self {
            Self::Single(message) => std::slice::from_ref(message),
            Self::Batch(messages) => messages,
        }
    }
}

/// One JSON-RPC message. Clones share the bytes.
#[derive(Clone)]
pub struct Message {
    bytes: Bytes,
    parts: Parts,
    kind: Kind,
    method: Method,
}

/// A method, found once: a call asks for it two dozen times.
#[derive(Clone)]
enum Method {
    /// One that Weir knows; empty for responses.
    Known(&'static str),
    Other(Arc<str>),
}

impl Message {
    /// Reads one message; a batch is refused.
    pub fn parse(bytes: Bytes) -> Result<Self, ParseError> {
        json::check_utf8(&bytes)?;
        let scanner = Scanner::new(&bytes);
        Self::scan(&bytes, scanner)
    }

    /// The message as it came in, white space around it included.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The message as one line, for stdio: line breaks, which can only be white space in JSON, become spaces.
    ///
    /// The final line break is left to the caller. Without line breaks inside this is a clone.
    pub fn one_line(&self) -> Bytes {
        one_line(&self.bytes)
    }

    /// What the message is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The id as raw JSON: a string or an integer. None for notifications, and for errors with a `null` id or none.
    pub fn id(&self) -> Option<&[u8]> {
        self.raw(Field::Id).filter(|raw| *raw != b"null")
    }

    /// The method; empty for responses.
    pub fn method(&self) -> &str {
        match &self.method {
            Method::Known(method) => method,
            Method::Other(method) => method,
        }
    }

    /// The raw value of a field, if the message has it; `null` counts as a value.
    pub fn raw(&self, field: Field) -> Option<&[u8]> {
        self.parts.span(field).of(&self.bytes)
    }

    /// The value of a field, decoded, if it is a string.
    pub fn text(&self, field: Field) -> Option<Cow<'_, str>> {
        self.raw(field).and_then(json::string)
    }

    /// The raw `params`, always an object; none if absent or `null`.
    pub fn params(&self) -> Option<&[u8]> {
        self.raw(Field::Params).filter(|raw| *raw != b"null")
    }

    /// The raw `result`.
    pub fn result(&self) -> Option<&[u8]> {
        self.raw(Field::Result)
    }

    /// The raw `error`, always an object.
    pub fn error(&self) -> Option<&[u8]> {
        self.raw(Field::Error)
    }

    /// The raw value of one member of `params` or `result`; the last one where the key occurs twice.
    ///
    /// Cheaper than [`json::get`], since the longest member is not read again.
    pub fn member(&self, key: &str) -> Option<&[u8]> {
        let span =
            [Field::Params, Field::Result].map(|field| self.parts.span(field)).into_iter().find(|at| !at.is_none())?;
        let body = span.of(&self.bytes)?;
        let found =
            json::spans_knowing(body, self.longest_in(span)).filter(|member| json::key_is(body, member.key, key));
        found.last()?.value.of(body)
    }

    /// `params.name`, when a string.
    pub fn name(&self) -> Option<Cow<'_, str>> {
        self.text(Field::Name)
    }

    /// `params.uri`, when a string.
    pub fn uri(&self) -> Option<Cow<'_, str>> {
        self.text(Field::Uri)
    }

    /// `params.cursor`, when a string. The empty string is a cursor too.
    pub fn cursor(&self) -> Option<Cow<'_, str>> {
        self.text(Field::Cursor)
    }

    /// `params.taskId`, when a string.
    pub fn task_id(&self) -> Option<Cow<'_, str>> {
        self.text(Field::TaskId)
    }

    /// `params.ref` of `completion/complete`, when it is one of the two known kinds and whole.
    pub fn reference(&self) -> Option<Reference<'_>> {
        match self.text(Field::ReferenceType)?.as_ref() {
            "ref/prompt" => self.text(Field::ReferenceName).map(Reference::Prompt),
            "ref/resource" => self.text(Field::ReferenceUri).map(Reference::Resource),
            _ => None,
        }
    }

    /// `params.requestId` of `notifications/cancelled`, as raw JSON.
    pub fn request_id(&self) -> Option<&[u8]> {
        self.raw(Field::RequestId)
    }

    /// The progress token as raw JSON: `params._meta.progressToken`, or `params.progressToken` of
    /// `notifications/progress`.
    pub fn progress_token(&self) -> Option<&[u8]> {
        self.raw(Field::ProgressToken)
    }

    /// The raw value of one key of `_meta`, in `params` or `result`.
    pub fn meta(&self, key: &str) -> Option<&[u8]> {
        json::get(self.raw(Field::Meta)?, &[key])
    }

    /// The version of the modern era that the message claims in `_meta`, when a string.
    pub fn claimed_version(&self) -> Option<Cow<'_, str>> {
        self.text(Field::ProtocolVersion)
    }

    /// `error.code`, when an integer.
    pub fn error_code(&self) -> Option<i64> {
        std::str::from_utf8(self.raw(Field::ErrorCode)?).ok()?.parse().ok()
    }

    /// The message as the answer to the request with this raw id; none if it answers another request, or none. An error
    /// that names no request, as servers send for what they could not read, gets the id.
    pub fn answer_to(&self, id: &[u8]) -> Option<Self> {
        match (self.kind, self.id()) {
            (Kind::Response | Kind::Error, Some(own)) => is_same_id(own, id).then(|| self.clone()),
            (Kind::Error, None) => Self::parse(self.edit().put(Object::Message, "id", id).finish()).ok(),
            _ => None,
        }
    }

    /// Whether the message is a result or an error.
    pub fn is_answer(&self) -> bool {
        matches!(self.kind, Kind::Response | Kind::Error)
    }

    /// Begins a change of this message.
    pub fn edit(&self) -> Edit<'_> {
        Edit::new(self)
    }

    /// Where the longest value of the object at `span` lies, as the object sees it, where that is known.
    fn longest_in(&self, span: Span) -> Span {
        let longest = self.parts.longest();
        let body = [Field::Params, Field::Result].iter().any(|field| self.parts.span(*field) == span);
        let inside = longest.start > span.start && longest.end < span.end;
        if inside && body { longest.from(span.start) } else { Span::NONE }
    }

    fn scan(bytes: &Bytes, mut scanner: Scanner<'_>) -> Result<Self, ParseError> {
        let first = scanner.next_byte();
        let parts =
            if first == Some(b'{') { Parts::scan(&mut scanner, 0).map(Some) } else { scanner.value(0).map(|_| None) };
        let parts = parts.and_then(|parts| scanner.end().map(|()| parts)).map_err(|stop| scanner.why(stop))?;
        match (parts, first) {
            (Some(parts), _) => Self::of(bytes.clone(), parts),
            (None, Some(b'[')) => Err(ParseError::InvalidRequest("a batch where one message was expected")),
            (None, _) => Err(ParseError::InvalidRequest("not an object")),
        }
    }

    /// One element of a batch: a message of its own that shares the bytes.
    fn element(batch: &Bytes, parts: Option<Parts>) -> Result<Self, ParseError> {
        let parts = parts.ok_or(ParseError::InvalidRequest("the batch holds something that is no object"))?;
        let whole = parts.whole();
        let bytes = batch.slice(whole.start as usize..whole.end as usize);
        Self::of(bytes, parts.from(whole.start))
    }

    fn of(bytes: Bytes, parts: Parts) -> Result<Self, ParseError> {
        let kind = parts.kind(&bytes)?;
        let mut message = Self { bytes, parts, kind, method: Method::Known("") };
        message.method = message.written_method()?;
        if message.parts.is_target_ambiguous() && method::route(message.method()) != method::Route::None {
            return Err(ParseError::InvalidRequest("what the request is about is there twice"));
        }
        if message.method() == method::PROGRESS {
            message.parts.use_own_progress_token();
        }
        Ok(message)
    }

    fn written_method(&self) -> Result<Method, ParseError> {
        let Some(quoted) = self.raw(Field::Method) else {
            return Ok(Method::Known(""));
        };
        let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
        if let Some(known) = method::known(inner) {
            return Ok(Method::Known(known));
        }
        let decoded = json::string(quoted).ok_or(ParseError::InvalidRequest("the method is no text"))?;
        Ok(Method::Other(Arc::from(decoded.as_ref())))
    }
}

/// Shows the kind and the method, and nothing of what the message carries.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("kind", &self.kind).field("method", &self.method()).finish_non_exhaustive()
    }
}

/// Whether two raw ids are the same. One string may be written with other escapes than the other; a number is no string.
fn is_same_id(a: &[u8], b: &[u8]) -> bool {
    a == b || (a.first() == Some(&b'"') && json::string(a).is_some_and(|text| json::string(b) == Some(text)))
}

/// A JSON document as one line: line breaks, which can only be white space in it, become spaces.
pub fn one_line(document: &Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', document).is_none() {
        return document.clone();
    }
    document.iter().map(|&b| if b == b'\n' || b == b'\r' { b' ' } else { b }).collect::<Vec<_>>().into()
}

/// Passes a batch to the end of the document: the parts of its objects, and how many elements there are.
///
/// What is beyond the bound is checked as JSON all the same, for broken JSON is the graver fault, but not remembered.
fn batch(scanner: &mut Scanner<'_>) -> Result<(Vec<Option<Parts>>, usize), Stop> {
    let mut parts = Vec::new();
    let mut count = 0;
    let mut more = scanner.open(b'[', b']')?;
    while more {
        count += 1;
        if count > MAX_BATCH {
            scanner.value(1)?;
        } else if scanner.next_byte() == Some(b'{') {
            parts.push(Some(Parts::scan(scanner, 1)?));
        } else {
            scanner.value(1)?;
            parts.push(None);
        }
        more = scanner.more(b']')?;
    }
    scanner.end()?;
    Ok((parts, count))
}

#[cfg(test)]
mod tests;
