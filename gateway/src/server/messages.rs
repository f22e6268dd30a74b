//! An answer as messages, for clients that are not given the answer as it comes: those of a batch, and those of HTTP+SSE.

use bytes::Bytes;

use crate::proxy::{Answer, AnswerStream, Body, CallLog, StreamItem};

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
    Events(Box<AnswerStream>),
}

impl Messages {
    pub(super) fn of(answer: Answer) -> Self {
        let body = match answer.body {
            Body::Events(stream) => PendingBody::Events(stream),
            body => PendingBody::Body(body),
        };
        Self { status: answer.status, record: answer.record, body, cancelled: false, sent: 0 }
    }

    /// Whether there are no more because the client has cancelled its request.
    pub(super) const fn are_cancelled(&self) -> bool {
        self.cancelled
    }

    /// The next message; none after the last, when the call is over.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let message = match std::mem::replace(&mut self.body, PendingBody::Done) {
            PendingBody::Done => None,
            PendingBody::Body(Body::Whole(parts)) => Some(parts.concat().into()),
            PendingBody::Body(Body::Json(pending)) => {
                let mut answer = pending.gather().await;
                if let Some(record) = &mut self.record {
                    record.came_to(&mut answer);
                }
                Some(answer.message)
            }
            PendingBody::Body(Body::Empty | Body::Events(_)) => None,
            PendingBody::Events(mut stream) => {
                let message = match stream.next().await {
                    StreamItem::Message(data) | StreamItem::Last(data) => Some(data),
                    StreamItem::Replayed(event) => Some(event.data),
                    StreamItem::End => None,
                };
                if message.is_some() {
                    self.body = PendingBody::Events(stream);
                } else {
                    self.record = stream.take_log();
                    self.cancelled = stream.is_cancelled();
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
