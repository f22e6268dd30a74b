//! Reading a stream of server-sent events.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use crate::http::Connection;
use crate::wait::within;

/// One event. A field that was not sent is empty or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// What to send as `Last-Event-ID`.
    pub id: Option<String>,
    /// The kind of event; `message` is left out by most servers.
    pub event: Option<String>,
    /// The lines of data, joined.
    pub data: String,
    /// How long to wait before coming back, in milliseconds.
    pub retry: Option<u64>,
}

impl Event {
    /// The JSON-RPC message in it; none in an event that only carries an id.
    ///
    /// # Panics
    /// When the data is not JSON.
    pub fn message(&self) -> Option<Value> {
        if self.data.is_empty() {
            return None;
        }
        Some(serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.data)))
    }
}

/// The events of one answer, as they arrive. Dropping it closes the connection.
pub struct Events {
    body: Incoming,
    unread: Vec<u8>,
    _connection: Connection,
}

impl Events {
    pub(crate) fn new(body: Incoming, connection: Connection) -> Self {
        Self { body, unread: Vec::new(), _connection: connection }
    }

    /// The next event; none after the last. Comments are skipped.
    ///
    /// # Panics
    /// When nothing comes for too long, or the stream breaks off.
    pub async fn next(&mut self) -> Option<Event> {
        within("the next event", self.read()).await
    }

    /// The next message; none after the last.
    ///
    /// # Panics
    /// As [`Events::next`], and when an event does not hold a message.
    pub async fn next_message(&mut self) -> Option<Value> {
        loop {
            if let Some(message) = self.next().await?.message() {
                return Some(message);
            }
        }
    }

    /// All messages until the stream ends.
    ///
    /// # Panics
    /// As [`Events::next_message`].
    pub async fn messages(mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(message) = self.next_message().await {
            messages.push(message);
        }
        messages
    }

    async fn read(&mut self) -> Option<Event> {
        loop {
            while let Some(block) = self.take_block() {
                let event = parse(&block);
                if event != Event::default() {
                    return Some(event);
                }
            }
            let bytes = self.read_more().await?;
            self.unread.extend_from_slice(&bytes);
        }
    }

    async fn read_more(&mut self) -> Option<Bytes> {
        loop {
            match self.body.frame().await? {
                Ok(frame) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Some(bytes);
                    }
                }
                Err(error) => panic!("the stream broke off: {error}"),
            }
        }
    }

    /// The lines up to the next empty one, with LF as their end.
    fn take_block(&mut self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.unread).replace("\r\n", "\n");
        let (block, rest) = text.split_once("\n\n")?;
        let block = block.to_owned();
        self.unread = rest.as_bytes().to_vec();
        Some(block)
    }
}

fn parse(block: &str) -> Event {
    let mut event = Event::default();
    let mut data = Vec::new();
    for line in block.lines() {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => event.id = Some(value.to_owned()),
            "event" => event.event = Some(value.to_owned()),
            "data" => data.push(value),
            "retry" => event.retry = value.parse().ok(),
            _ => {}
        }
    }
    event.data = data.join("\n");
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_all_fields_and_skips_comments() {
        let event = parse(": comment\nid: 7\nevent: message\nretry: 500\ndata: {\"a\":\ndata:1}");
        let expected = Event {
            id: Some("7".to_owned()),
            event: Some("message".to_owned()),
            data: "{\"a\":\n1}".to_owned(),
            retry: Some(500),
        };
        assert_eq!(event, expected);
        assert_eq!(parse(": only a comment"), Event::default());
    }
}
