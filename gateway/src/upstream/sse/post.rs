//! One POST beside the stream, and what its answer means.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use weir_mcp::{Message, headers};

use crate::http::{self, CONTENT_TYPE, HeaderName, HeaderValue, Method, Response};
use crate::upstream::{Credential, Events, loss, reply::too_long, streamable::refusal};

use super::{GRACE, Outgoing, SendError, SseShared, multiplex};

/// How much is read of what an error is about, in bytes.
const TURNED_AWAY: usize = 64 * 1024;

impl SseShared {
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
        Arc::clone(self).posted(head, body, outgoing.credential.cloned())
    }

    pub(super) async fn posted(
        self: Arc<Self>,
        head: Vec<(HeaderName, HeaderValue)>,
        body: Bytes,
        credential: Option<Credential>,
    ) -> Result<(), SendError> {
        let mut over = self.over.subscribe();
        let post = async {
            let response = self.endpoint.send(&self.to, Method::POST, &head, credential.as_ref(), Some(body)).await?;
            self.judge(response, credential.as_ref().map(Credential::mark), &head).await
        };
        let end = async {
            drop(over.wait_for(|over| *over).await);
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            taken = post => taken,
            () = end => Err(multiplex::closed()),
        }
    }

    async fn judge(
        self: &Arc<Self>,
        response: Response,
        credential: Option<u64>,
        head: &[(HeaderName, HeaderValue)],
    ) -> Result<(), SendError> {
        let status = response.status();
        if (200..300).contains(&status) {
            return self.take_in(response).await;
        }
        self.turned_away.store(status, Ordering::Release);
        if let Some(refusal) = refusal(&response, credential, head) {
            return Err(SendError::Refused(refusal));
        }
        let body = response.collect(TURNED_AWAY).await.unwrap_or_default();
        if self.proven.load(Ordering::Acquire) && loss::beside_stream(status, &body) {
            return Err(SendError::SessionLost);
        }
        Err(SendError::of_status(status))
    }

    /// Reads an answer to its end, so that the connection can be used again. By the book it says `Accepted`; some servers
    /// put there what belongs on the stream. One that breaks off has said enough.
    ///
    /// # Errors
    ///
    /// When it carries a message that is too long: no other answer comes.
    async fn take_in(self: &Arc<Self>, response: Response) -> Result<(), SendError> {
        let media = response.header(&CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let limit = self.endpoint.limit;
        if headers::is_event_stream(media) {
            let mut events = Events::new(response, limit);
            while let Ok(event) = events.next_or_large().await {
                match event.map_err(|large| too_long(large.limit))? {
                    Some(event) => self.hear(event),
                    None => break,
                }
            }
            return Ok(());
        }
        let json = headers::is_json(media);
        match response.collect(limit).await {
            Ok(body) if json => Message::parse(body).map(|message| self.deliver(message)).unwrap_or_default(),
            Err(http::Error::TooLarge(limit)) if json => return Err(too_long(limit)),
            _ => {}
        }
        Ok(())
    }
}
