//! One POST beside the stream, and what its answer means.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;

use crate::http::{HeaderName, HeaderValue, Method, Request, Response};

use super::{Outgoing, SendError, Shared};
use crate::upstream::streamable::refusal;

/// How much of an answer is read, in bytes: `Accepted`, or what an error is about.
const ANSWER: usize = 64 * 1024;

impl Shared {
    /// Posts `body` in the name of `outgoing`. The head is made now; nothing is sent before the first poll.
    ///
    /// # Errors
    ///
    /// When the server did not take the message. [`SendError::TimedOut`] says nothing: some servers take a message and
    /// never answer its POST.
    pub(super) fn post(
        self: &Arc<Self>,
        outgoing: &Outgoing<'_>,
        body: Bytes,
    ) -> impl Future<Output = Result<(), SendError>> + Send + use<> {
        let head = self.head(outgoing);
        Arc::clone(self).posted(head, body, outgoing.credential.is_some())
    }

    pub(super) async fn posted(
        self: Arc<Self>,
        head: Vec<(HeaderName, HeaderValue)>,
        body: Bytes,
        credential: bool,
    ) -> Result<(), SendError> {
        let mut over = self.over.subscribe();
        let post = async {
            let request = Request { method: Method::POST, headers: &head, body: Some(body) };
            let response = self.endpoint.client().send(&self.to, request).await?;
            self.judge(response, credential).await
        };
        tokio::select! {
            taken = post => taken,
            _ = over.wait_for(|over| *over) => Err(SendError::BrokenOff("its event stream ended".into())),
        }
    }

    async fn judge(&self, response: Response, credential: bool) -> Result<(), SendError> {
        let status = response.status();
        if (200..300).contains(&status) {
            // Read to its end, so that the connection can be used again. An answer that breaks off has said enough.
            drop(response.collect(ANSWER).await);
            return Ok(());
        }
        self.turned_away.store(status, Ordering::Release);
        if let Some(refusal) = refusal(&response, credential) {
            return Err(SendError::Refused(refusal));
        }
        let body = response.collect(ANSWER).await.unwrap_or_default();
        if self.proven.load(Ordering::Acquire) && is_loss(status, &body) {
            return Err(SendError::SessionLost);
        }
        Err(SendError::NotMcp(format!("status {status}")))
    }
}

/// Whether a message was turned away because the server no longer knows the session. The specification leaves the status
/// open; real servers say 404, or 400, 500 and 503 with words about a session, a transport or a connection.
fn is_loss(status: u16, body: &[u8]) -> bool {
    match status {
        404 | 410 => true,
        400 | 500 | 503 => {
            let text = String::from_utf8_lossy(body).to_ascii_lowercase();
            ["session", "transport", "connection"].iter().any(|word| text.contains(word))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::is_loss;

    #[test]
    fn a_lost_session_is_told_from_a_bad_message() {
        assert!(is_loss(404, b""));
        assert!(is_loss(400, b"No active transport"));
        assert!(is_loss(400, b"Invalid session ID"));
        assert!(is_loss(500, b"SSE connection not established"));
        assert!(is_loss(503, b"No active SSE connection for session 1"));
        assert!(!is_loss(400, b"Could not parse message"));
        assert!(!is_loss(503, b"try again later"));
        assert!(!is_loss(422, b"session"));
    }
}
