//! HTTP/1.1 messages as they stand on the wire, read by both ends of the bench.
//!
//! A general library would cost as much as the proxies under test and would hide what arrived. This reads a head, finds how
//! long the body is (length or chunks) and hands out slices of one buffer that is kept for the life of the connection.

use memchr::memmem;
use thiserror::Error;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Most bytes of a head; a longer one is an error.
const HEAD_LIMIT: usize = 32 * 1024;
/// Most bytes of a body; a longer one is an error.
const BODY_LIMIT: usize = 16 * 1024 * 1024;
/// Room made before each read.
const READ_ROOM: usize = 128 * 1024;

/// Why no message could be read.
#[derive(Debug, Error)]
pub(crate) enum WireError {
    #[error("the connection was closed in the middle of a message")]
    Closed,
    #[error("the message head is longer than {HEAD_LIMIT} bytes")]
    HeadTooLong,
    #[error("the message body is longer than {BODY_LIMIT} bytes")]
    BodyTooLong,
    #[error("the message is not HTTP/1.1: {0}")]
    NotHttp(&'static str),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// One request or response.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    /// Start line and headers, with the empty line that ends them.
    pub(crate) head: &'a [u8],
    /// The body without its framing.
    pub(crate) body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The status of a response.
    pub(crate) fn status(&self) -> u16 {
        let digits = self.head.get(9..12).unwrap_or_default();
        std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Method and path of a request.
    pub(crate) fn method_and_path(&self) -> (&'a [u8], &'a [u8]) {
        let mut words = self.head.split(|byte| *byte == b' ');
        (words.next().unwrap_or_default(), words.next().unwrap_or_default())
    }

    /// The first header of that name, trimmed.
    pub(crate) fn header(&self, name: &str) -> Option<&'a [u8]> {
        header(self.head, name)
    }

    /// Whether the body is a stream of events.
    pub(crate) fn is_event_stream(&self) -> bool {
        self.header("content-type").is_some_and(|value| value.starts_with(b"text/event-stream"))
    }
}

/// The buffer of one connection.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    /// Bytes of the message handed out last, dropped when the next is asked for.
    used: usize,
    /// Body of a chunked message.
    joined: Vec<u8>,
}

impl Inbox {
    /// The next message, or `None` when the peer closed the connection between two messages.
    pub(crate) async fn next(&mut self, stream: &mut TcpStream) -> Result<Option<Message<'_>>, WireError> {
        self.bytes.drain(..self.used);
        self.used = 0;
        let Some(head_len) = self.read_head(stream).await? else {
            return Ok(None);
        };
        match framing(&self.bytes[..head_len])? {
            Framing::Length(length) => {
                let end = head_len + length;
                while self.bytes.len() < end {
                    self.read_more(stream).await?;
                }
                self.used = end;
                Ok(Some(Message { head: &self.bytes[..head_len], body: &self.bytes[head_len..end] }))
            }
            Framing::Chunked => {
                self.joined.clear();
                let mut at = head_len;
                while !join_chunks(&self.bytes, &mut at, &mut self.joined)? {
                    self.read_more(stream).await?;
                }
                self.used = at;
                Ok(Some(Message { head: &self.bytes[..head_len], body: &self.joined }))
            }
        }
    }

    async fn read_head(&mut self, stream: &mut TcpStream) -> Result<Option<usize>, WireError> {
        loop {
            if let Some(at) = memmem::find(&self.bytes, b"\r\n\r\n") {
                return Ok(Some(at + 4));
            }
            if self.bytes.len() > HEAD_LIMIT {
                return Err(WireError::HeadTooLong);
            }
            match self.read_more(stream).await {
                Err(WireError::Closed) if self.bytes.is_empty() => return Ok(None),
                other => other?,
            }
        }
    }

    async fn read_more(&mut self, stream: &mut TcpStream) -> Result<(), WireError> {
        if self.bytes.len() > HEAD_LIMIT + 2 * BODY_LIMIT {
            return Err(WireError::BodyTooLong);
        }
        self.bytes.reserve(READ_ROOM);
        match stream.read_buf(&mut self.bytes).await? {
            0 => Err(WireError::Closed),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, PartialEq)]
enum Framing {
    Length(usize),
    Chunked,
}

/// How the body behind `head` is delimited (RFC 9112 §6.3). A body that ends with the connection is refused: nothing could
/// follow it, and the bench is about connections that are kept.
fn framing(head: &[u8]) -> Result<Framing, WireError> {
    if header(head, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case(b"chunked")) {
        return Ok(Framing::Chunked);
    }
    if let Some(value) = header(head, "content-length") {
        let length = std::str::from_utf8(value).ok().and_then(|text| text.parse::<usize>().ok());
        return match length {
            Some(length) if length <= BODY_LIMIT => Ok(Framing::Length(length)),
            Some(_) => Err(WireError::BodyTooLong),
            None => Err(WireError::NotHttp("the content-length is not a number")),
        };
    }
    let is_response = head.starts_with(b"HTTP/");
    if is_response && !matches!(head.get(9..12), Some(b"204" | b"304")) {
        return Err(WireError::NotHttp("the response has no length"));
    }
    Ok(Framing::Length(0))
}

fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut rest = head;
    while let Some(end) = memmem::find(rest, b"\r\n") {
        let line = &rest[..end];
        if line.get(name.len()) == Some(&b':') && line[..name.len()].eq_ignore_ascii_case(name.as_bytes()) {
            return Some(line[name.len() + 1..].trim_ascii());
        }
        rest = &rest[end + 2..];
    }
    None
}

/// Appends the whole chunks that stand at `at` to `joined` and moves `at` behind them; true after the last one.
fn join_chunks(bytes: &[u8], at: &mut usize, joined: &mut Vec<u8>) -> Result<bool, WireError> {
    loop {
        let Some(line) = memmem::find(&bytes[*at..], b"\r\n") else {
            return Ok(false);
        };
        let digits = bytes[*at..*at + line].split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let size = std::str::from_utf8(digits).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
        let Some(size) = size else {
            return Err(WireError::NotHttp("a chunk has no size"));
        };
        if size > BODY_LIMIT || joined.len() + size > BODY_LIMIT {
            return Err(WireError::BodyTooLong);
        }
        let start = *at + line + 2;
        if bytes.len() < start + size + 2 {
            return Ok(false);
        }
        if &bytes[start + size..start + size + 2] != b"\r\n" {
            return Err(WireError::NotHttp("a chunk is longer than its size, or trailers follow the last one"));
        }
        joined.extend_from_slice(&bytes[start..start + size]);
        *at = start + size + 2;
        if size == 0 {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests;
