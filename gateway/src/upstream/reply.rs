//! What an upstream answers, as it comes.
//!
//! A body is pulled by whoever delivers it, so a slow client slows its own call and nothing is gathered on the way.

use std::sync::Arc;

use bytes::Bytes;
use weir_mcp::{Message, sse};

use crate::{
    caller::Caller,
    http::{self, Response},
};

use super::{
    Channel, Events, SendError, Upstream,
    multiplex::{MultiplexExchange, UnsolicitedQueue},
};

/// An answer whose head is here.
pub struct Reply {
    /// The HTTP status; 200 for a child process.
    pub status: u16,
    /// The session that the answer opened.
    pub session: Option<http::HeaderValue>,
    /// The rest.
    pub body: ReplyBody,
}

/// What follows the head.
#[allow(clippy::large_enum_variant, reason = "one lives for a moment; a box would cost each call an allocation")]
pub enum ReplyBody {
    /// Nothing, as after a notification.
    Empty,
    /// One message.
    Json(JsonBody),
    /// A stream of messages that ends with the answer.
    Events(Listened),
}

/// One message on its way.
pub enum JsonBody {
    /// All of it.
    Whole(Bytes),
    /// As it comes from the socket, up to this many bytes.
    Coming(Response, usize),
}

/// A stream of messages.
pub enum Listened {
    /// Server-sent events.
    Http(Events),
    /// What comes about one request on a stream that many share; the message is one that was read ahead.
    Exchange { first: Option<Message>, exchange: MultiplexExchange },
    /// What else comes on such a stream, which stays open for whoever listens.
    Unsolicited { queue: UnsolicitedQueue, _open: Channel },
}

impl Reply {
    /// Has a stream taken up again, should it break, with the credential that this caller has by then.
    pub fn renew_for(&mut self, upstream: &Arc<Upstream>, caller: Option<&Arc<Caller>>) {
        if let ReplyBody::Events(Listened::Http(events)) = &mut self.body {
            events.renew_for(upstream, caller);
        }
    }
}

impl JsonBody {
    /// The whole message.
    ///
    /// # Errors
    ///
    /// When the connection breaks, or the message is longer than `limits.message`.
    pub async fn gather(self) -> Result<Bytes, SendError> {
        match self {
            Self::Whole(bytes) => Ok(bytes),
            Self::Coming(response, limit) => response.collect(limit).await.map_err(|why| match why {
                http::Error::TooLarge(limit) => too_long(limit),
                why => why.into(),
            }),
        }
    }
}

impl Listened {
    /// Wraps an event stream whose events have at most `limit` bytes.
    pub fn http(response: Response, limit: usize) -> Self {
        Self::Http(Events::new(response, limit))
    }

    /// The next message; none at the end of the stream. Cancel-safe.
    ///
    /// # Errors
    ///
    /// When the connection breaks, the process ends, or what comes is not MCP.
    pub async fn message(&mut self) -> Result<Option<Message>, SendError> {
        match self {
            Self::Http(events) => events.message().await,
            Self::Exchange { first, exchange } => match first.take() {
                Some(message) => Ok(Some(message)),
                None => exchange.next().await,
            },
            Self::Unsolicited { queue, .. } => queue.next().await.map(Some),
        }
    }

    /// The next event; none at the end of the stream.
    ///
    /// # Errors
    ///
    /// When the connection breaks, the process ends, or what comes is no event stream.
    pub async fn next(&mut self) -> Result<Option<sse::Event>, SendError> {
        if let Self::Http(events) = self {
            return events.next().await;
        }
        Ok(self.message().await?.map(|message| sse::Event::message(message.bytes().clone())))
    }

    /// Takes no more, because the answer has come; to drop it instead would cost a connection.
    pub fn finish(self) {
        if let Self::Http(events) = self {
            events.finish();
        }
    }
}

impl Reply {
    /// The final answer, past everything that comes before it.
    ///
    /// For Weir's own questions, where progress and log messages are of no use. Requests of the server's own are not
    /// answered: Weir declares no capability that would allow one.
    ///
    /// # Errors
    ///
    /// When no answer comes, or what comes is not one.
    pub async fn answer(self) -> Result<Message, SendError> {
        let not_mcp = |why: weir_mcp::ParseError| SendError::NotMcp(why.to_string());
        match self.body {
            ReplyBody::Empty => Err(SendError::NotMcp(format!("status {} without an answer", self.status))),
            ReplyBody::Json(body) => Message::parse(body.gather().await?).map_err(not_mcp),
            ReplyBody::Events(mut events) => {
                while let Some(message) = events.message().await? {
                    if message.is_answer() {
                        events.finish();
                        return Ok(message);
                    }
                }
                Err(SendError::NotMcp("an event stream that ended without an answer".into()))
            }
        }
    }
}

/// What is said of a message that is longer than `limit`.
pub(super) fn too_long(limit: usize) -> SendError {
    SendError::NotMcp(format!("a message of more than {limit} bytes; see `limits.message`"))
}
