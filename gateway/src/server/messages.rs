//! An answer as messages, for clients that are not given the answer as it comes: those of a batch, and those of HTTP+SSE.

use bytes::Bytes;
use weir_mcp::sse::Decoder;

use crate::proxy::{Answer, AnswerStream, Body, CallLog, StreamChunk, WholeAnswer};

/// The messages of one answer, in their order; the last is the answer itself.
pub(super) struct Messages {
    status: u16,
    record: Option<CallLog>,
    body: PendingBody,
    cancelled: bool,
    /// The bytes of the messages until now.
    sent: u64,
}

enum PendingBody {
    Done,
    Body(Body),
    Events(Box<AnswerStream>, Decoder),
}

impl Messages {
    pub(super) fn of(answer: Answer) -> Self {
        let body = match answer.body {
            Body::Events(delivery) => PendingBody::Events(delivery, Decoder::new(usize::MAX)),
            body => PendingBody::Body(body),
        };
        Self { status: answer.status, record: answer.record, body, cancelled: false, sent: 0 }
    }

    /// Whether there are no more because the client has cancelled its request.
    pub(super) const fn are_cancelled(&self) -> bool {
        self.cancelled
    }

    /// The next message; none after the last, when the log has its line.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let message = match std::mem::replace(&mut self.body, PendingBody::Done) {
            PendingBody::Done => None,
            PendingBody::Body(Body::Whole(parts)) => Some(parts.concat().into()),
            PendingBody::Body(Body::Json(pending)) => {
                let WholeAnswer { message, outcome, failure, .. } = pending.gather().await;
                if let Some(record) = &mut self.record {
                    (record.outcome, record.failure) = (outcome, failure);
                }
                Some(message)
            }
            PendingBody::Body(Body::Empty | Body::Events(_)) => None,
            PendingBody::Events(mut delivery, mut decoder) => {
                let message = event(&mut delivery, &mut decoder).await;
                if message.is_some() {
                    self.body = PendingBody::Events(delivery, decoder);
                } else {
                    self.record = delivery.record.take();
                    self.cancelled = delivery.is_cancelled();
                }
                message
            }
        };
        if message.is_none()
            && let Some(record) = self.record.take()
        {
            record.finish(self.status, self.sent);
        }
        self.sent += message.as_ref().map_or(0, |message| message.len() as u64);
        message
    }
}

async fn event(delivery: &mut AnswerStream, decoder: &mut Decoder) -> Option<Bytes> {
    loop {
        match decoder.next_event() {
            Ok(Some(event)) if event.data.is_empty() => continue,
            Ok(Some(event)) => return Some(event.data),
            Ok(None) => {}
            // Nothing more can be read of this stream; what is missing is said by whoever waits for it.
            Err(_) => return None,
        }
        match delivery.next().await {
            StreamChunk::Bytes(bytes) | StreamChunk::Last(bytes) => decoder.feed(&bytes),
            StreamChunk::End => return None,
        }
    }
}
