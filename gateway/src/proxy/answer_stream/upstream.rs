//! What an upstream says about a request of its client's own era, and which of it the client hears.

use std::sync::Arc;

use bytes::Bytes;
use weir_mcp::{Era, Kind, Message, method};

use crate::{
    proxy::answer::answered,
    upstream::{SendError, Upstream},
};

use super::{AnswerStream, StreamItem, StreamSource, broken};

/// The request that a stream answers.
pub(super) struct AnsweredRequest {
    pub(super) id: Bytes,
    /// Where its client wants to hear of progress, raw.
    pub(super) token: Option<Bytes>,
    pub(super) upstream: Arc<Upstream>,
    /// Whether an answer to another request has been noted in the log.
    pub(super) warned: bool,
}

impl AnsweredRequest {
    pub(super) fn new(id: &[u8], upstream: &Arc<Upstream>) -> Self {
        Self { id: Bytes::copy_from_slice(id), token: None, upstream: Arc::clone(upstream), warned: false }
    }

    /// Whether a message says that the request makes progress.
    fn is_progress(&self, message: &Message) -> bool {
        message.method() == method::PROGRESS
            && self.token.as_deref().is_some_and(|token| message.progress_token() == Some(token))
    }

    /// Notes that the upstream has answered what it was not asked here.
    fn warn(&mut self) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                upstream = self.upstream.name(),
                "answers another request than the one it was asked; dropped"
            );
        }
    }
}

impl AnswerStream {
    /// The next message of an upstream. Of all answers only the one to this very request is passed on: clients sort them
    /// by id alone, and the others are those to requests elsewhere. Cancel-safe.
    pub(super) async fn pull_upstream(&mut self) -> Result<StreamItem, SendError> {
        let (StreamSource::Upstream { events, era, namespace }, Some(answers)) = (&mut self.source, &mut self.answers)
        else {
            return Ok(StreamItem::End);
        };
        loop {
            let Some(message) = events.message().await? else {
                // A subscription may end without a word. Any other stream has lost its answer.
                return if self.deadline.is_none() { Ok(StreamItem::End) } else { Err(broken()) };
            };
            if message.is_answer() {
                let Some(answer) = message.answer_to(&answers.id) else {
                    answers.warn();
                    continue;
                };
                let data =
                    namespace.as_ref().map_or_else(|| answer.bytes().clone(), |namespace| namespace.answer(&answer));
                if let StreamSource::Upstream { events, .. } =
                    std::mem::replace(&mut self.source, StreamSource::Nothing)
                {
                    events.finish();
                }
                self.found.outcome = Some(answered(&answer));
                return Ok(StreamItem::Last(data));
            }
            let data = match namespace {
                Some(namespace) => namespace.take(&message),
                // The modern era has no requests of servers.
                None if *era == Era::Modern && message.kind() == Kind::Request => None,
                None => Some(message.bytes().clone()),
            };
            let Some(data) = data else { continue };
            if let Some(deadline) = self.deadline.as_mut().filter(|_| answers.is_progress(&message)) {
                deadline.put_off();
            }
            return Ok(StreamItem::Message(data));
        }
    }
}
