//! Where messages wait for the one who reads them: bounded in number and in bytes, never blocking the one who brings.
//!
//! The stream is shared by all exchanges, so a reader that does not keep up must lose its own exchange and nobody else's.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_flow::SendError;
use weir_mcp::Message;

use super::overflow;

/// Messages that may wait in one inbox.
pub(in crate::upstream) const MAX_WAITING: usize = 256;
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    arrived: Notify,
}

struct InboxState {
    waiting: VecDeque<Message>,
    bytes: usize,
    /// How many bytes may wait: the longest message and as much again.
    max: usize,
    end: Option<Result<(), SendError>>,
}

impl Inbox {
    /// For messages of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        let state = InboxState { waiting: VecDeque::new(), bytes: 0, max: limit.saturating_mul(2), end: None };
        Self { state: Mutex::new(state), arrived: Notify::new() }
    }

    /// Adds a message; one too many ends the inbox with [`overflow`] and throws away what waits.
    pub(super) fn push(&self, message: Message) {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return;
        }
        if state.full_for(&message) {
            state.waiting = VecDeque::new();
            state.bytes = 0;
            state.end = Some(Err(overflow()));
        } else {
            state.add(message);
        }
        self.arrived.notify_one();
    }

    /// Adds a message, at the cost of the oldest ones where there is no room. `false` if any was lost.
    pub(super) fn push_over_oldest(&self, message: Message) -> bool {
        let mut state = self.state.lock();
        let mut kept_all = true;
        if state.end.is_some() {
            return kept_all;
        }
        while state.full_for(&message) && state.take().is_some() {
            kept_all = false;
        }
        state.add(message);
        self.arrived.notify_one();
        kept_all
    }

    /// Adds the last message. It always finds room: there is one for each inbox.
    pub(super) fn finish(&self, message: Message) {
        let mut state = self.state.lock();
        if state.end.is_none() {
            state.add(message);
            state.end = Some(Ok(()));
            self.arrived.notify_one();
        }
    }

    /// Ends it with an error, after what already waits.
    pub(super) fn fail(&self, error: SendError) {
        self.state.lock().end.get_or_insert(Err(error));
        self.arrived.notify_one();
    }

    /// The next message, `None` after the last. For one reader at a time.
    pub(super) async fn next(&self) -> Result<Option<Message>, SendError> {
        loop {
            {
                let mut state = self.state.lock();
                if let Some(message) = state.take() {
                    return Ok(Some(message));
                }
                if let Some(end) = &state.end {
                    return end.clone().map(|()| None);
                }
            }
            self.arrived.notified().await;
        }
    }
}

impl InboxState {
    fn full_for(&self, message: &Message) -> bool {
        self.waiting.len() >= MAX_WAITING || self.bytes + message.bytes().len() > self.max
    }

    fn add(&mut self, message: Message) {
        self.bytes += message.bytes().len();
        self.waiting.push_back(message);
    }

    fn take(&mut self) -> Option<Message> {
        let message = self.waiting.pop_front()?;
        self.bytes -= message.bytes().len();
        Some(message)
    }
}
