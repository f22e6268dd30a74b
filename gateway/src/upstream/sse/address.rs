//! Where a server wants its messages, as the beginning of its stream tells.
//!
//! By the book the first event is called `endpoint` and its data is a URI. Seen beside that: a notification before it,
//! JSON with `endpoint` or `sessionId` instead of a URI, and a session's id in a header of the response.

use std::time::Duration;

use serde_json::Value;
use weir_mcp::{Message, sse::Event};

use crate::http::HeaderValue;
use crate::upstream::{Listened, SendError};

/// How many events may come before the one that tells.
const EARLY: usize = 32;

/// The longest address, in bytes.
const LONGEST: usize = 8 * 1024;

/// How long a server that gave the session's id in a header may take to name an address too.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where a server that names a session and no address takes messages.
const USUAL: &str = "/messages";

/// What the beginning of a stream told.
#[derive(Debug, Default)]
pub(super) struct EndpointEvent {
    /// The URI, relative or absolute, and not checked.
    pub(super) reference: String,
    /// The session's id, where it was told apart from the URI.
    pub(super) session: Option<String>,
    /// Messages that came before.
    pub(super) early: Vec<Message>,
}

/// Reads a stream up to the event that tells; `named` is the session's id out of a header.
pub(super) async fn find(events: &mut Listened, named: Option<&HeaderValue>) -> Result<EndpointEvent, SendError> {
    let named = named.and_then(|id| id.to_str().ok()).map(str::to_owned);
    let mut early = Vec::new();
    for _ in 0..EARLY {
        let event = match &named {
            None => events.next().await?,
            Some(_) => match tokio::time::timeout(PATIENCE, events.next()).await {
                Ok(event) => event?,
                Err(_) => return Ok(EndpointEvent { reference: USUAL.into(), session: named, early }),
            },
        };
        let event =
            event.ok_or_else(|| SendError::NotMcp("an event stream that ended before its `endpoint` event".into()))?;
        if let Some((reference, session)) = told(&event)? {
            return Ok(EndpointEvent { reference, session: session.or(named), early });
        }
        if event.is_message() {
            early.extend(Message::parse(event.data));
        }
    }
    Err(SendError::NotMcp("an event stream without an `endpoint` event".into()))
}

/// The address and the session's id, if this event tells them.
fn told(event: &Event) -> Result<Option<(String, Option<String>)>, SendError> {
    let named = event.event.as_deref() == Some("endpoint");
    let text = std::str::from_utf8(&event.data).unwrap_or_default().trim();
    if event.data.len() > LONGEST {
        return if named { Err(no_address()) } else { Ok(None) };
    }
    let told = match serde_json::from_str(text) {
        Ok(Value::Object(fields)) if !fields.contains_key("jsonrpc") => {
            let field = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
            match (field("endpoint"), field("sessionId")) {
                (None, None) => None,
                (endpoint, session) => Some((endpoint.unwrap_or_else(|| USUAL.into()), session)),
            }
        }
        Ok(Value::String(reference)) if named => Some((reference, None)),
        Err(_) if named => Some((text.to_owned(), None)),
        _ => None,
    };
    match told {
        Some((reference, _)) if reference.is_empty() => Err(no_address()),
        None if named => Err(no_address()),
        told => Ok(told),
    }
}

fn no_address() -> SendError {
    SendError::NotMcp("an `endpoint` event that names no address".into())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn of(event: Option<&str>, data: &'static str) -> Result<Option<(String, Option<String>)>, SendError> {
        told(&Event { event: event.map(Into::into), data: Bytes::from_static(data.as_bytes()), ..Event::default() })
    }

    #[test]
    fn an_address_is_a_uri_or_json() {
        let uri = |text: &str| Ok(Some((text.to_owned(), None)));
        assert_eq!(of(Some("endpoint"), "/messages?sessionId=1"), uri("/messages?sessionId=1"));
        assert_eq!(of(Some("endpoint"), " messages "), uri("messages"));
        assert_eq!(of(Some("endpoint"), "\"http://a.example/m\""), uri("http://a.example/m"));
        let both = Ok(Some(("/m".to_owned(), Some("1".to_owned()))));
        assert_eq!(of(Some("endpoint"), r#"{"endpoint":"/m","sessionId":"1"}"#), both);
        let session = Ok(Some(("/messages".to_owned(), Some("1".to_owned()))));
        assert_eq!(of(None, r#"{"sessionId":"1"}"#), session);
        assert_eq!(of(Some("connected"), r#"{"sessionId":"1"}"#), session);
    }

    #[test]
    fn anything_else_is_no_address() {
        assert_eq!(of(None, r#"{"jsonrpc":"2.0","method":"a","sessionId":"1"}"#), Ok(None));
        assert_eq!(of(None, "/messages"), Ok(None));
        for bad in ["", "{}", "1", "[]", r#"{"endpoint":""}"#] {
            assert_eq!(of(Some("endpoint"), bad), Err(no_address()), "{bad}");
        }
    }
}
