//! An event stream over HTTP, which is taken up again where it broke.
//!
//! A legacy server may put an id on each event and may close a stream on purpose, to be asked for the rest later (MCP
//! 2025-11-25, basic/transports, "Resumability and Redelivery"). Whoever reads the stream here notices neither that nor
//! a connection that broke: a GET with the last id goes on where the stream was, after as long as the server wished.

use std::{sync::Arc, vec};

use bytes::Bytes;
use weir_mcp::{
    InboundRequest, Message,
    sse::{Decoder, Event, TooLarge},
};

use crate::{caller::Caller, http::Response};

use super::{SendError, Upstream, reply::too_long};

use resumption::Failed;
pub(super) use resumption::StreamResumption;

mod resumption;

/// An event stream of a server.
pub struct Events {
    response: Option<Response>,
    decoder: Decoder,
    /// The longest event, in bytes.
    limit: usize,
    again: Option<Box<StreamResumption>>,
    /// What is left of an event that carries several messages (2025-03-26, basic/transports).
    batch: vec::IntoIter<Message>,
}

impl Events {
    /// The stream that is an answer's body, whose events have at most `limit` bytes.
    pub(super) fn new(mut response: Response, limit: usize) -> Self {
        // An open stream may rest for as long as it likes; the call's own deadline still holds.
        response.set_read_timeout(None);
        let decoder = Decoder::new(limit);
        Self { response: Some(response), decoder, limit, again: None, batch: Vec::new().into_iter() }
    }

    /// From now on tells of an event that is too large when it ends.
    pub(super) fn wait_for_ends(&mut self) {
        self.decoder.wait_for_ends();
    }

    /// From now on goes on after the end of the connection.
    pub(super) fn go_on(&mut self, again: StreamResumption) {
        self.again = Some(Box::new(again));
    }

    /// From now on has a credential of the time for each connection: between two, a token may end.
    pub(super) fn renew_for(&mut self, upstream: &Arc<Upstream>, caller: Option<&Arc<Caller>>) {
        if let Some(again) = &mut self.again {
            again.renew_for(upstream, caller);
        }
    }

    /// The next event; none at the end. One that carries several messages comes as several. Cancel-safe.
    ///
    /// # Errors
    ///
    /// When the connection breaks for good, or what comes is no event stream.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, SendError> {
        self.next_or_large().await?.map_err(|large| too_long(large.limit))
    }

    /// The same, where an event that is too large is told and the next one can be read.
    pub(super) async fn next_or_large(&mut self) -> Result<Result<Option<Event>, TooLarge>, SendError> {
        loop {
            if let Some(message) = self.batch.next() {
                return Ok(Ok(Some(Event::message(message.bytes().clone()))));
            }
            match self.decoder.next_event() {
                Ok(Some(event)) if self.again.as_mut().is_some_and(|again| !again.is_new(&event)) => continue,
                Ok(Some(event)) if event.data.trim_ascii_start().first() == Some(&b'[') => {
                    let batch = InboundRequest::parse(event.data).map_err(|why| SendError::NotMcp(why.to_string()))?;
                    self.batch = batch.messages().to_vec().into_iter();
                    continue;
                }
                Ok(Some(event)) => return Ok(Ok(Some(event))),
                Ok(None) => {}
                Err(large) => return Ok(Err(large)),
            }
            match self.chunk().await? {
                Some(bytes) => self.decoder.feed(&bytes),
                None => return Ok(Ok(None)),
            }
        }
    }

    /// The next message; none at the end. Cancel-safe.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next), and when an event carries something else.
    pub(super) async fn message(&mut self) -> Result<Option<Message>, SendError> {
        loop {
            let Some(event) = self.next().await? else { return Ok(None) };
            // Without data it is the first event of a stream that can be resumed.
            if event.data.is_empty() || !event.is_message() {
                continue;
            }
            return Message::parse(event.data).map(Some).map_err(|why| SendError::NotMcp(why.to_string()));
        }
    }

    /// Takes no more: the answer has come, and nothing is behind it. The connection is kept where it can be; an event
    /// stream that is dropped takes its connection with it.
    pub(super) fn finish(self) {
        if let Some(response) = self.response {
            response.finish();
        }
    }

    /// The next bytes of this connection, or of the next; none at the end.
    async fn chunk(&mut self) -> Result<Option<Bytes>, SendError> {
        loop {
            if let Some(response) = &mut self.response {
                match response.chunk().await {
                    Ok(Some(bytes)) => return Ok(Some(bytes)),
                    Ok(None) => self.ended(None)?,
                    Err(why) => self.ended(Some(why.into()))?,
                }
            }
            let Some(again) = &mut self.again else { return Ok(None) };
            match again.connection().await {
                None => return Ok(None),
                Some(Ok(mut response)) => {
                    response.set_read_timeout(None);
                    self.response = Some(response);
                    // Events may come twice and have to be told apart.
                    self.decoder = Decoder::new(self.limit);
                }
                Some(Err(Failed::Now(why))) => again.try_later(why)?,
                Some(Err(Failed::Forever(why))) => return Err(why),
            }
        }
    }

    /// The connection is over: prepares the next, if there is to be one.
    fn ended(&mut self, broke: Option<SendError>) -> Result<(), SendError> {
        self.response = None;
        let broken = |broke: Option<SendError>| broke.map_or(Ok(()), Err);
        let Some(again) = &mut self.again else { return broken(broke) };
        again.learn(self.decoder.last_id().map(str::as_bytes), self.decoder.retry());
        if again.answers && again.is_answered() {
            return Ok(());
        }
        if !again.knows_where() {
            return match broke {
                None if again.answers => Err(unanswered()),
                broke => broken(broke),
            };
        }
        if again.go_on() { Ok(()) } else { broken(broke) }
    }
}

fn is_answer(data: &Bytes) -> bool {
    Message::parse(data.clone()).is_ok_and(|message| message.is_answer())
}

fn unanswered() -> SendError {
    SendError::NotMcp("its event stream ended before the answer".into())
}
