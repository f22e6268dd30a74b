//! An event stream over HTTP, which is taken up again where it broke.
//!
//! A legacy server may put an id on each event and may close a stream on purpose, to be asked for the rest later (MCP
//! 2025-11-25, basic/transports, "Resumability and Redelivery"). Whoever reads the stream here notices neither that nor
//! a connection that broke: a GET with the last id goes on where the stream was, after as long as the server wished.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use weir_mcp::{
    Message,
    message::Kind,
    sse::{self, Decoder, Event, LastData, Splitter},
};

use crate::{caller::Caller, http::Response};

use super::{GATHERED, SendError, Upstream};

pub(super) use again::Again;
use again::Failed;

mod again;

/// How much of an event is held back so that the stream can go on elsewhere behind it, in bytes.
const HELD: usize = 64 * 1024;

/// An event stream of a server.
pub struct Events {
    response: Option<Response>,
    reading: Reading,
    again: Option<Box<Again>>,
    /// Whether it must bring an answer and cannot be taken up again.
    once: bool,
}

/// How the stream is read. It is one way for as long as the first connection lasts.
enum Reading {
    /// Not at all yet.
    Fresh,
    /// Event by event.
    Decoded(Box<Decoder>),
    /// As it comes.
    Split(Box<Splitter>),
}

impl Events {
    /// The stream that is an answer's body.
    pub(super) fn new(mut response: Response) -> Self {
        // An open stream may rest for as long as it likes; the call's own deadline still holds.
        response.set_read_timeout(None);
        Self { response: Some(response), reading: Reading::Fresh, again: None, once: false }
    }

    /// From now on goes on after the end of the connection.
    pub(super) fn go_on(&mut self, again: Again) {
        self.again = Some(Box::new(again));
    }

    /// From now on has a credential of the time for each connection: between two, a token may end.
    pub(super) fn renew_for(&mut self, upstream: &Arc<Upstream>, caller: Option<&Arc<Caller>>) {
        if let Some(again) = &mut self.again {
            again.renew_for(upstream, caller);
        }
    }

    /// From now on an end without an answer is an error.
    pub(super) fn answer_once(&mut self) {
        self.once = true;
    }

    /// The next event; none at the end. Cancel-safe.
    ///
    /// # Errors
    ///
    /// When the connection breaks for good, or what comes is no event stream.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, SendError> {
        if let Reading::Fresh = self.reading {
            self.reading = Reading::Decoded(Box::new(Decoder::new(GATHERED)));
        }
        loop {
            if let Reading::Decoded(decoder) = &mut self.reading
                && let Some(event) = decoder.next_event().map_err(|why| SendError::NotMcp(why.to_string()))?
            {
                if self.again.as_mut().is_none_or(|again| again.is_new(&event)) {
                    return Ok(Some(event));
                }
                continue;
            }
            match self.chunk().await? {
                Some(bytes) => {
                    if let Reading::Decoded(decoder) = &mut self.reading {
                        decoder.feed(&bytes);
                    }
                }
                None => return Ok(None),
            }
        }
    }

    /// The next bytes as they came, where the connection is still the first one; events otherwise. Cancel-safe.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next), and when a stream ends that should have brought an answer.
    pub(super) async fn raw(&mut self, out: &mut BytesMut) -> Result<Option<Bytes>, SendError> {
        if matches!(self.reading, Reading::Fresh) && (self.once || self.again.is_some()) {
            self.reading = Reading::Split(Box::new(Splitter::new(HELD)));
        }
        loop {
            if let Reading::Decoded(_) = self.reading {
                let event = self.next().await?;
                return Ok(event.map(|event| {
                    sse::encode(&event, out);
                    out.split().freeze()
                }));
            }
            let Some(bytes) = self.chunk().await? else { return Ok(None) };
            match (&mut self.reading, &mut self.again) {
                (Reading::Split(splitter), again) => {
                    let note = |id: &_| again.as_mut().into_iter().for_each(|again| again.note(id));
                    let piece = splitter.push(bytes, note);
                    if !piece.is_empty() {
                        return Ok(Some(piece));
                    }
                }
                // It is another connection by now.
                (Reading::Decoded(decoder), _) => decoder.feed(&bytes),
                _ => return Ok(Some(bytes)),
            }
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
                    self.reading = Reading::Decoded(Box::new(Decoder::new(GATHERED)));
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
        let Some(again) = &mut self.again else {
            let lost = broke.is_none() && self.once && !self.reading.is_answered();
            return if lost { Err(unanswered()) } else { broken(broke) };
        };
        match &self.reading {
            Reading::Decoded(decoder) => again.learn(decoder.last_id().map(str::as_bytes), decoder.retry()),
            Reading::Split(splitter) => {
                again.learn(splitter.last_id(), splitter.retry());
                match splitter.last_data() {
                    LastData::None => {}
                    // So long an event is an answer. And what has been passed on in part cannot be taken back.
                    LastData::TooLong => return broken(broke),
                    last @ LastData::Block(_) => again.heard(last.read().unwrap_or_default()),
                }
                if !splitter.is_between_events() {
                    return broken(broke);
                }
            }
            Reading::Fresh => {}
        }
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

impl Reading {
    /// Whether the last event was an answer, as far as it can be told. Whoever reads event by event sees for himself.
    fn is_answered(&self) -> bool {
        match self {
            Self::Fresh => false,
            Self::Decoded(_) => true,
            Self::Split(splitter) => match splitter.last_data() {
                LastData::None => false,
                LastData::TooLong => true,
                last @ LastData::Block(_) => last.read().is_some_and(|data| is_answer(&data)),
            },
        }
    }
}

fn is_answer(data: &Bytes) -> bool {
    Message::parse(data.clone()).is_ok_and(|message| matches!(message.kind(), Kind::Response | Kind::Error))
}

fn unanswered() -> SendError {
    SendError::NotMcp("its event stream ended before the answer".into())
}
