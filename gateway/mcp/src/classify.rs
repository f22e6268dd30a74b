//! Which era a POSTed body belongs to, and what of it can be refused from the message and its headers alone.
//!
//! The body decides, since it is what an upstream will read; the headers only have to agree with it. What is refused and
//! in which order follows 2026-07-28 and, where that is silent, the TypeScript SDK, so that clients see from Weir what
//! they would see from a server.

use thiserror::Error;

use crate::answer::{
    self, HEADER_MISMATCH, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, SERVER_ERROR, UNSUPPORTED_VERSION,
};
use crate::era::{LEGACY_VERSIONS, MODERN_VERSIONS, era_of};
use crate::headers::{carries, decode_value, trim};
use crate::{Era, Field, InboundRequest, Kind, Message, json, method};

/// What the headers of a POST say of its body. A value that is not UTF-8 must be given lossily, so that it is refused.
#[derive(Clone, Copy, Default)]
pub struct Claims<'a> {
    /// `MCP-Protocol-Version`
    pub version: Option<&'a str>,
    /// `Mcp-Method`
    pub method: Option<&'a str>,
    /// `Mcp-Name`
    pub name: Option<&'a str>,
}

/// Why a body is refused, and how to say so. The texts repeat no header and no part of the body.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Rejection {
    /// The HTTP status.
    pub status: u16,
    /// The JSON-RPC code.
    pub code: i64,
    /// The JSON-RPC message.
    pub message: String,
    /// The JSON-RPC data, as raw JSON.
    pub data: Option<String>,
}

impl Rejection {
    /// The body to answer with; `id` is the raw id of the request, if it has one.
    pub fn body(&self, id: Option<&[u8]>) -> bytes::Bytes {
        answer::error(id, self.code, &self.message, self.data.as_deref())
    }

    fn new(status: u16, code: i64, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), data: None }
    }

    fn mismatch(message: &str) -> Self {
        Self::new(400, HEADER_MISMATCH, message)
    }

    /// -32022 with the versions a modern client can use here, and the one it asked for.
    pub fn unsupported(requested: &str) -> Self {
        /// A version is ten bytes; more of what a stranger wrote need not go back.
        const ECHO: usize = 64;
        let supported = MODERN_VERSIONS.map(json::quote).join(",");
        let echo: String = requested.chars().take(ECHO).collect();
        Self {
            data: Some(format!("{{\"supported\":[{supported}],\"requested\":{}}}", json::quote(&echo))),
            ..Self::new(400, UNSUPPORTED_VERSION, "unsupported protocol version")
        }
    }
}

/// Decides the era of a POSTed body, or why it is refused.
///
/// Not judged here, for they need more than the message: sessions, capabilities a tool needs, `Mcp-Param-*` headers,
/// methods of extensions.
pub fn classify(inbound: &InboundRequest, claims: &Claims<'_>) -> Result<Era, Rejection> {
    let claims =
        Claims { version: claims.version.map(trim), method: claims.method.map(trim), name: claims.name.map(trim) };
    match inbound {
        InboundRequest::Single(message) => match message.kind() {
            Kind::Request => request(message, &claims),
            Kind::Notification => notification(message, &claims),
            Kind::Response | Kind::Error => {
                legacy_only(&claims, "responses cannot be sent in protocol version 2026-07-28")
            }
        },
        InboundRequest::Batch(messages) => {
            let text = "batches cannot be sent in protocol version 2026-07-28: send one message for each POST";
            if messages.iter().any(|message| message.raw(Field::ProtocolVersion).is_some()) {
                return Err(Rejection::new(400, INVALID_REQUEST, text));
            }
            legacy_only(&claims, text)
        }
    }
}

fn request(message: &Message, claims: &Claims<'_>) -> Result<Era, Rejection> {
    let modern_header = names_modern(claims);
    if message.method() == method::INITIALIZE && !claims_modern(message) {
        if modern_header {
            return Err(Rejection::mismatch(
                "initialize belongs to the versions before 2026-07-28, but MCP-Protocol-Version names a later one",
            ));
        }
        // The header is only due after the handshake, so whatever stands there now decides nothing.
        return Ok(Era::Legacy);
    }
    if message.raw(Field::ProtocolVersion).is_some() {
        return modern_request(message, claims);
    }
    if modern_header {
        return Err(missing_meta(message));
    }
    legacy(claims)
}

/// A request whose `_meta` claims a version.
fn modern_request(message: &Message, claims: &Claims<'_>) -> Result<Era, Rejection> {
    let version = claimed(message)?;
    match message.raw(Field::ClientCapabilities) {
        None => return Err(missing_meta(message)),
        Some(raw) if !raw.starts_with(b"{") => {
            return Err(Rejection::new(
                400,
                INVALID_PARAMS,
                "_meta[\"io.modelcontextprotocol/clientCapabilities\"] must be an object",
            ));
        }
        Some(_) => {}
    }
    agree(message, &version, claims)?;
    if claims.version.is_none() {
        return Err(Rejection::mismatch("the MCP-Protocol-Version header is missing"));
    }
    if claims.method.is_none() {
        return Err(Rejection::mismatch("the Mcp-Method header is missing"));
    }
    check_name(message, claims)?;
    if method::is_removed(message.method()) {
        return Err(Rejection::new(404, METHOD_NOT_FOUND, "this method does not exist in protocol version 2026-07-28"));
    }
    Ok(Era::Modern)
}

/// Notifications need no `_meta`; for one without a claim the header decides.
fn notification(message: &Message, claims: &Claims<'_>) -> Result<Era, Rejection> {
    if message.raw(Field::ProtocolVersion).is_some() {
        let version = claimed(message)?;
        agree(message, &version, claims)?;
        return Ok(Era::Modern);
    }
    match claims.version.filter(|_| names_modern(claims)) {
        Some(version) => agree(message, version, claims).map(|()| Era::Modern),
        None => legacy(claims),
    }
}

/// What headers are there must agree with the body, and the version must be one that is spoken.
fn agree(message: &Message, version: &str, claims: &Claims<'_>) -> Result<(), Rejection> {
    if claims.version.is_some_and(|header| header != version) {
        return Err(Rejection::mismatch("the MCP-Protocol-Version header and the body disagree"));
    }
    if claims.method.is_some_and(|header| header != message.method()) {
        return Err(Rejection::mismatch("the Mcp-Method header and the body disagree"));
    }
    if !MODERN_VERSIONS.contains(&version) {
        return Err(Rejection::unsupported(version));
    }
    Ok(())
}

/// `Mcp-Name` must repeat what the body names. What the body lacks is a matter of its params, not of the header.
fn check_name(message: &Message, claims: &Claims<'_>) -> Result<(), Rejection> {
    // A method that is no more has no header that would be due.
    if method::is_removed(message.method()) {
        return Ok(());
    }
    let field = match method::route(message.method()) {
        method::Route::Name => Field::Name,
        method::Route::Uri => Field::Uri,
        method::Route::Task => Field::TaskId,
        method::Route::Reference | method::Route::None => return Ok(()),
    };
    let body = message.text(field);
    let Some(header) = claims.name else {
        return match body {
            Some(_) => Err(Rejection::mismatch("the Mcp-Name header is missing")),
            None => Ok(()),
        };
    };
    let Some(header) = decode_value(header) else {
        return Err(Rejection::mismatch("the Mcp-Name header is not ASCII text or valid base64 in =?base64?...?="));
    };
    match body {
        Some(body) if body != header => Err(Rejection::mismatch("the Mcp-Name header and the body disagree")),
        _ => Ok(()),
    }
}

/// Decides the era of a request that has no body, or why it is refused: an unknown version is 400 whatever the method
/// (2025-11-25, basic/transports, "Protocol Version Header").
pub fn classify_bare(claims: &Claims<'_>) -> Result<Era, Rejection> {
    let claims = Claims { version: claims.version.map(trim), ..*claims };
    if names_modern(&claims) { Ok(Era::Modern) } else { legacy(&claims) }
}

/// A body that only the legacy era knows.
fn legacy_only(claims: &Claims<'_>, text: &str) -> Result<Era, Rejection> {
    if names_modern(claims) { Err(Rejection::new(400, INVALID_REQUEST, text)) } else { legacy(claims) }
}

fn legacy(claims: &Claims<'_>) -> Result<Era, Rejection> {
    match claims.version {
        Some(version) if !LEGACY_VERSIONS.contains(&version) => Err(Rejection::new(
            400,
            SERVER_ERROR,
            format!(
                "MCP-Protocol-Version must be one of {}, {}",
                MODERN_VERSIONS.join(", "),
                LEGACY_VERSIONS.join(", ")
            ),
        )),
        _ => Ok(Era::Legacy),
    }
}

fn names_modern(claims: &Claims<'_>) -> bool {
    claims.version.is_some_and(|version| carries(version) && era_of(version) == Some(Era::Modern))
}

/// Whether the `_meta` of an `initialize` is whole and names a modern version; only then it is no handshake.
fn claims_modern(message: &Message) -> bool {
    message.claimed_version().is_some_and(|version| era_of(&version) == Some(Era::Modern))
        && message.raw(Field::ClientCapabilities).is_some_and(|raw| raw.starts_with(b"{"))
}

fn claimed(message: &Message) -> Result<std::borrow::Cow<'_, str>, Rejection> {
    message.claimed_version().ok_or_else(|| {
        Rejection::new(400, INVALID_PARAMS, "_meta[\"io.modelcontextprotocol/protocolVersion\"] must be a string")
    })
}

fn missing_meta(message: &Message) -> Rejection {
    let keys = [
        (Field::ProtocolVersion, "io.modelcontextprotocol/protocolVersion"),
        (Field::ClientCapabilities, "io.modelcontextprotocol/clientCapabilities"),
    ];
    let missing: Vec<&str> =
        keys.iter().filter(|(field, _)| message.raw(*field).is_none()).map(|(_, key)| *key).collect();
    Rejection::new(400, INVALID_PARAMS, format!("params._meta lacks {}", missing.join(" and ")))
}

#[cfg(test)]
mod tests;
