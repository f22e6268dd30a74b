//! The one pass over a message: which fields are remembered, and what makes a message a message.
//!
//! The pass knows no methods: a field is noted wherever its place in the message says what it is. When an object below
//! the message is given twice, what was noted below the first is forgotten with it, for the last one counts (see
//! [`crate::json`]). A message whose own members are given twice is refused: who answers whom must not depend on the
//! reader. So is a request that names what it is about twice, for rules must judge what the upstream will read.

use super::{Kind, ParseError};
use crate::json::{self, Scanner, Span, Stop};

/// A place in a message that is found while scanning. The order matters: an object stands before all that lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// `id`
    Id,
    /// `method`
    Method,
    /// `params`
    Params,
    /// `result`
    Result,
    /// `error`
    Error,
    /// `error.code`
    ErrorCode,
    /// `error.message`
    ErrorMessage,
    /// `error.data`
    ErrorData,
    /// `params.name`
    Name,
    /// `params.uri`
    Uri,
    /// `params.cursor`
    Cursor,
    /// `params.arguments`
    Arguments,
    /// `params.requestId` of `notifications/cancelled`
    RequestId,
    /// `params.taskId`
    TaskId,
    /// `params.inputResponses`
    InputResponses,
    /// `params.protocolVersion` of `initialize`, or `result.protocolVersion` of its answer
    InitializeVersion,
    /// `result.resultType`
    ResultType,
    /// `result.isError`
    IsError,
    /// `result.nextCursor`
    NextCursor,
    /// `requestState`, in `params` or `result`
    RequestState,
    /// `params.ref`
    Reference,
    /// `params.ref.type`
    ReferenceType,
    /// `params.ref.name`
    ReferenceName,
    /// `params.ref.uri`
    ReferenceUri,
    /// `_meta`, in `params` or `result`
    Meta,
    /// `params._meta.progressToken`, or `params.progressToken` of `notifications/progress`
    ProgressToken,
    /// `_meta["io.modelcontextprotocol/protocolVersion"]`
    ProtocolVersion,
    /// `_meta["io.modelcontextprotocol/subscriptionId"]`
    SubscriptionId,
    /// `_meta["io.modelcontextprotocol/clientCapabilities"]`
    ClientCapabilities,
    /// `_meta["io.modelcontextprotocol/clientInfo"]`
    ClientInfo,
    /// `_meta["io.modelcontextprotocol/logLevel"]`
    LogLevel,
}

/// How many fields there are.
const FIELDS: usize = Field::LogLevel as usize + 1;

/// Where the parts of one message lie.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    fields: [Span; FIELDS],
    whole: Span,
    jsonrpc: Span,
    /// `params.progressToken`, until the method says whether it is the one that counts.
    own_progress_token: Span,
    /// The longest value in `params` or `result`, which need not be read again to find what is beside it.
    longest: Span,
    /// A member of the message is there twice, or a second time in other case. Readers disagree which one counts.
    ambiguous: bool,
    /// The same of the members of `params` that say what a request is about.
    ambiguous_target: bool,
}

/// The members of a message.
const MEMBERS: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];

/// The members of `params` that say what a request is about.
const TARGETS: [&str; 5] = ["name", "uri", "arguments", "taskId", "ref"];

/// Those of `ref` in it.
const REFERENCES: [&str; 3] = ["type", "name", "uri"];

impl Parts {
    /// Passes the object that comes next and notes its parts. `depth` is the number of containers around it.
    pub(super) fn scan(scanner: &mut Scanner<'_>, depth: usize) -> Result<Self, Stop> {
        let none = Span::NONE;
        let fields = [none; FIELDS];
        let mut parts = Self {
            fields,
            whole: none,
            jsonrpc: none,
            own_progress_token: none,
            longest: none,
            ambiguous: false,
            ambiguous_target: false,
        };
        parts.whole = scanner.object(|scanner, key| {
            let field = match key {
                b"jsonrpc" => {
                    parts.ambiguous |= !parts.jsonrpc.is_none();
                    parts.jsonrpc = scanner.value(depth + 1)?;
                    return Ok(());
                }
                b"id" => Field::Id,
                b"method" => Field::Method,
                b"params" => Field::Params,
                b"result" => Field::Result,
                b"error" => Field::Error,
                _ => {
                    parts.ambiguous |= MEMBERS.iter().any(|member| json::is_like(key, member));
                    return scanner.value(depth + 1).map(drop);
                }
            };
            parts.ambiguous |= !parts.span(field).is_none();
            match field {
                Field::Params | Field::Result => parts.body(field, scanner, depth + 1),
                Field::Error => parts.error(scanner, depth + 1),
                field => parts.note(field, scanner, depth + 1),
            }
        })?;
        Ok(parts)
    }

    pub(super) fn span(&self, field: Field) -> Span {
        self.fields[field as usize]
    }

    pub(super) fn whole(&self) -> Span {
        self.whole
    }

    /// Whether readers may disagree on what a request is about.
    pub(super) fn is_target_ambiguous(&self) -> bool {
        self.ambiguous_target
    }

    /// The longest value in `params` or `result`.
    pub(super) fn longest(&self) -> Span {
        self.longest
    }

    /// The same parts, counted from `origin`.
    pub(super) fn from(mut self, origin: u32) -> Self {
        let others = [&mut self.whole, &mut self.jsonrpc, &mut self.own_progress_token, &mut self.longest];
        for span in self.fields.iter_mut().chain(others) {
            *span = span.from(origin);
        }
        self
    }

    pub(super) fn use_own_progress_token(&mut self) {
        if !self.own_progress_token.is_none() {
            self.fields[Field::ProgressToken as usize] = self.own_progress_token;
        }
    }

    /// What the message is, or why it is none.
    pub(super) fn kind(&self, bytes: &[u8]) -> Result<Kind, ParseError> {
        let has = |field| !self.span(field).is_none();
        let refuse = |what| Err(ParseError::InvalidRequest(what));
        if self.ambiguous {
            return refuse("a member of the message is there twice");
        }
        let version = self.jsonrpc.of(bytes);
        if version != Some(b"\"2.0\"") && version.and_then(json::string).as_deref() != Some("2.0") {
            return refuse("jsonrpc must be \"2.0\"");
        }
        match (has(Field::Method), has(Field::Result), has(Field::Error)) {
            (true, false, false) => self.called(bytes),
            (false, true, false) | (false, false, true) if has(Field::Params) => refuse("params in a response"),
            (false, true, false) => match id_kind(self.span(Field::Id).of(bytes)) {
                IdKind::Usable => Ok(Kind::Response),
                _ => refuse("the id must be a string or an integer"),
            },
            (false, false, true) => self.failed(bytes),
            (false, false, false) => refuse("neither method, result nor error"),
            _ => refuse("more than one of method, result and error"),
        }
    }

    fn called(&self, bytes: &[u8]) -> Result<Kind, ParseError> {
        let refuse = |what| Err(ParseError::InvalidRequest(what));
        let starts = |field| self.span(field).of(bytes).and_then(<[u8]>::first).copied();
        if starts(Field::Method) != Some(b'"') {
            return refuse("the method must be a string");
        }
        // JSON-RPC knows arrays here, MCP does not; null is what some serializers write for nothing.
        if !matches!(starts(Field::Params), None | Some(b'{' | b'n')) {
            return refuse("params must be an object");
        }
        match id_kind(self.span(Field::Id).of(bytes)) {
            IdKind::Absent => Ok(Kind::Notification),
            IdKind::Usable => Ok(Kind::Request),
            IdKind::Null | IdKind::Other => refuse("the id must be a string or an integer"),
        }
    }

    fn failed(&self, bytes: &[u8]) -> Result<Kind, ParseError> {
        if self.span(Field::Error).of(bytes).and_then(<[u8]>::first) != Some(&b'{') {
            return Err(ParseError::InvalidRequest("the error must be an object"));
        }
        // An error about a request that could not be read has no id to name, and servers put all sorts there.
        match id_kind(self.span(Field::Id).of(bytes)) {
            IdKind::Other => Err(ParseError::InvalidRequest("the id must be a string or an integer")),
            _ => Ok(Kind::Error),
        }
    }

    fn note(&mut self, field: Field, scanner: &mut Scanner<'_>, depth: usize) -> Result<(), Stop> {
        self.fields[field as usize] = scanner.value(depth)?;
        Ok(())
    }

    /// Forgets the fields from `first` to `last`, in the order of [`Field`].
    fn forget(&mut self, first: Field, last: Field) {
        self.fields[first as usize..=last as usize].fill(Span::NONE);
    }

    /// `params` or `result`. They share their fields, since a message that has both is refused.
    fn body(&mut self, at: Field, scanner: &mut Scanner<'_>, depth: usize) -> Result<(), Stop> {
        self.forget(Field::Name, Field::LogLevel);
        (self.own_progress_token, self.longest) = (Span::NONE, Span::NONE);
        if scanner.next_byte() != Some(b'{') {
            return self.note(at, scanner, depth);
        }
        let asked = at == Field::Params;
        self.fields[at as usize] = scanner.object(|scanner, key| {
            let field = match key {
                b"_meta" => return self.meta(scanner, depth + 1),
                b"requestState" => Field::RequestState,
                b"protocolVersion" => Field::InitializeVersion,
                b"ref" if asked => {
                    self.ambiguous_target |= !self.span(Field::Reference).is_none();
                    return self.reference(scanner, depth + 1);
                }
                b"name" if asked => Field::Name,
                b"uri" if asked => Field::Uri,
                b"cursor" if asked => Field::Cursor,
                b"arguments" if asked => Field::Arguments,
                b"requestId" if asked => Field::RequestId,
                b"taskId" if asked => Field::TaskId,
                b"inputResponses" if asked => Field::InputResponses,
                b"progressToken" if asked => {
                    self.own_progress_token = scanner.value(depth + 1)?;
                    return Ok(());
                }
                b"resultType" if !asked => Field::ResultType,
                b"isError" if !asked => Field::IsError,
                b"nextCursor" if !asked => Field::NextCursor,
                _ => {
                    self.ambiguous_target |= asked && TARGETS.iter().any(|target| json::is_like(key, target));
                    self.longest = self.longest.or_longer(scanner.value(depth + 1)?);
                    return Ok(());
                }
            };
            let target = matches!(field, Field::Name | Field::Uri | Field::Arguments | Field::TaskId);
            self.ambiguous_target |= target && !self.span(field).is_none();
            self.note(field, scanner, depth + 1)?;
            self.longest = self.longest.or_longer(self.span(field));
            Ok(())
        })?;
        Ok(())
    }

    fn reference(&mut self, scanner: &mut Scanner<'_>, depth: usize) -> Result<(), Stop> {
        self.forget(Field::Reference, Field::ReferenceUri);
        if scanner.next_byte() != Some(b'{') {
            return self.note(Field::Reference, scanner, depth);
        }
        self.fields[Field::Reference as usize] = scanner.object(|scanner, key| {
            let field = match key {
                b"type" => Field::ReferenceType,
                b"name" => Field::ReferenceName,
                b"uri" => Field::ReferenceUri,
                _ => {
                    self.ambiguous_target |= REFERENCES.iter().any(|member| json::is_like(key, member));
                    return scanner.value(depth + 1).map(drop);
                }
            };
            self.ambiguous_target |= !self.span(field).is_none();
            self.note(field, scanner, depth + 1)
        })?;
        Ok(())
    }

    fn meta(&mut self, scanner: &mut Scanner<'_>, depth: usize) -> Result<(), Stop> {
        self.forget(Field::Meta, Field::LogLevel);
        if scanner.next_byte() != Some(b'{') {
            return self.note(Field::Meta, scanner, depth);
        }
        self.fields[Field::Meta as usize] = scanner.object(|scanner, key| {
            let field = match key.strip_prefix(b"io.modelcontextprotocol/") {
                None if key == b"progressToken" => Field::ProgressToken,
                Some(b"protocolVersion") => Field::ProtocolVersion,
                Some(b"subscriptionId") => Field::SubscriptionId,
                Some(b"clientCapabilities") => Field::ClientCapabilities,
                Some(b"clientInfo") => Field::ClientInfo,
                Some(b"logLevel") => Field::LogLevel,
                _ => return scanner.value(depth + 1).map(drop),
            };
            self.note(field, scanner, depth + 1)
        })?;
        Ok(())
    }

    fn error(&mut self, scanner: &mut Scanner<'_>, depth: usize) -> Result<(), Stop> {
        self.forget(Field::ErrorCode, Field::ErrorData);
        if scanner.next_byte() != Some(b'{') {
            return self.note(Field::Error, scanner, depth);
        }
        self.fields[Field::Error as usize] = scanner.object(|scanner, key| match key {
            b"code" => self.note(Field::ErrorCode, scanner, depth + 1),
            b"message" => self.note(Field::ErrorMessage, scanner, depth + 1),
            b"data" => self.note(Field::ErrorData, scanner, depth + 1),
            _ => scanner.value(depth + 1).map(drop),
        })?;
        Ok(())
    }
}

enum IdKind {
    Absent,
    Null,
    Usable,
    Other,
}

fn id_kind(raw: Option<&[u8]>) -> IdKind {
    match raw {
        None => IdKind::Absent,
        Some(b"null") => IdKind::Null,
        Some([b'"', ..]) => IdKind::Usable,
        Some([b'-' | b'0'..=b'9', rest @ ..]) if rest.iter().all(u8::is_ascii_digit) => IdKind::Usable,
        Some(_) => IdKind::Other,
    }
}
