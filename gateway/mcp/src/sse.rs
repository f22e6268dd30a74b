//! Event streams: bytes to events and back (WHATWG HTML §9.2).
//!
//! The decoder is fed whatever the connection yields and gives events as soon as their last byte is there. Data in one
//! line, the normal case, is a slice of what was fed and not copied again.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

/// The byte order mark that may stand at the start.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// A comment that keeps a quiet connection open.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The `event` field; none means `message`.
    pub event: Option<String>,
    /// The `id` field of this event, if it has one.
    pub id: Option<String>,
    /// The `retry` field of this event, in milliseconds.
    pub retry: Option<u64>,
    /// The data, lines joined by line feeds. Not checked to be UTF-8.
    pub data: Bytes,
}

impl Event {
    /// A plain event that carries one message.
    pub fn message(data: Bytes) -> Self {
        Self { data, ..Self::default() }
    }

    /// Whether this is of the type `message`, which is also what an event without a type is.
    pub fn is_message(&self) -> bool {
        self.event.as_deref().is_none_or(|name| name.is_empty() || name == "message")
    }
}

/// An event or a line went over the bound.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("an event of the stream is larger than {limit} bytes")]
pub struct TooLarge {
    /// The bound, in bytes.
    pub limit: usize,
    /// How the data begins.
    pub start: Bytes,
    /// How its last line ends, where the decoder [waits](Decoder::wait_for_ends) for that.
    pub end: Vec<u8>,
}

/// How much is kept of either end of data that is too large, in bytes.
const KEPT: usize = 4 * 1024;

/// Turns bytes into events. An event that is too large is an error, and passed over; the next ones can be read.
pub struct Decoder {
    limit: usize,
    buffer: BytesMut,
    /// How much of `buffer` is known to hold no line break.
    searched: usize,
    /// A CR ended the last line, so an LF that follows belongs to it.
    after_cr: bool,
    started: bool,
    block: Block,
    last_id: Option<String>,
    retry: Option<u64>,
    /// An event that is too large is being passed over; true within a line.
    skipping: Option<bool>,
    /// Whether such an event is told when it ends, and not at once.
    waits: bool,
    /// What is to be told then.
    passed: Option<TooLarge>,
}

/// The fields of the event that is being read.
#[derive(Default)]
struct Block {
    event: Option<String>,
    id: Option<String>,
    retry: Option<u64>,
    first: Option<Bytes>,
    /// All data lines, once there is more than one.
    joined: BytesMut,
    size: usize,
}

impl Decoder {
    /// A decoder that refuses events whose lines have more than `limit` bytes together.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            buffer: BytesMut::new(),
            searched: 0,
            after_cr: false,
            started: false,
            block: Block::default(),
            last_id: None,
            retry: None,
            skipping: None,
            waits: false,
            passed: None,
        }
    }

    /// From now on tells of an event that is too large when it ends: what it ends with may say what it is.
    pub fn wait_for_ends(&mut self) {
        self.waits = true;
    }

    /// Takes in what the connection yielded. Call [`Decoder::next_event`] until it gives nothing before feeding more,
    /// or what is held back is without bound.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole event, or nothing until more is fed.
    pub fn next_event(&mut self) -> Result<Option<Event>, TooLarge> {
        if !self.start() {
            return Ok(None);
        }
        while let Some(line) = self.line()? {
            if let Some(within) = &mut self.skipping {
                if std::mem::take(within) || !line.is_empty() {
                    self.note_end(&line);
                } else {
                    self.skipping = None;
                    self.passed.take().map_or(Ok(()), Err)?;
                }
            } else if !line.is_empty() {
                self.block.size += line.len();
                if self.block.size > self.limit {
                    self.skip(&line, false)?;
                    continue;
                }
                self.block.field(&line);
            } else if let Some(event) = self.dispatch() {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// The last event id of the stream, for `Last-Event-ID`. Unlike [`Event::id`] it outlives its event.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// The last `retry` of the stream, in milliseconds, whether it came with data or alone.
    pub fn retry(&self) -> Option<u64> {
        self.retry
    }

    /// Skips the byte order mark that may stand at the start; says whether the start is behind us.
    fn start(&mut self) -> bool {
        if !self.started {
            if self.buffer.len() < MARK.len() && MARK.starts_with(&self.buffer) {
                return false;
            }
            if self.buffer.starts_with(MARK) {
                self.buffer.advance(MARK.len());
            }
            self.started = true;
        }
        true
    }

    fn line(&mut self) -> Result<Option<Bytes>, TooLarge> {
        if self.after_cr && !self.buffer.is_empty() {
            self.after_cr = false;
            if self.buffer[0] == b'\n' {
                self.buffer.advance(1);
            }
        }
        let Some(at) = memchr::memchr2(b'\n', b'\r', &self.buffer[self.searched..]) else {
            self.searched = self.buffer.len();
            if let Some(within) = &mut self.skipping {
                *within |= self.searched > 0;
                let passed = std::mem::take(&mut self.buffer);
                self.searched = 0;
                self.note_end(&passed);
            } else if self.block.size + self.searched > self.limit {
                let line = std::mem::take(&mut self.buffer).freeze();
                self.searched = 0;
                self.skip(&line, true)?;
            }
            return Ok(None);
        };
        let line = self.buffer.split_to(self.searched + at).freeze();
        self.after_cr = self.buffer[0] == b'\r';
        self.buffer.advance(1);
        self.searched = 0;
        Ok(Some(line))
    }

    /// Passes over the event that is being read, `within` this line of it.
    fn skip(&mut self, line: &Bytes, within: bool) -> Result<(), TooLarge> {
        self.skipping = Some(within);
        let mut block = std::mem::take(&mut self.block);
        block.field(line);
        let start = block.first.unwrap_or_default();
        let start = Bytes::copy_from_slice(&start[..start.len().min(KEPT)]);
        let large = TooLarge { limit: self.limit, start, end: Vec::new() };
        if !self.waits {
            return Err(large);
        }
        self.passed = Some(large);
        self.note_end(line);
        Ok(())
    }

    /// Keeps the last of what is passed over.
    fn note_end(&mut self, bytes: &[u8]) {
        if let Some(TooLarge { end, .. }) = &mut self.passed {
            end.extend_from_slice(&bytes[bytes.len().saturating_sub(KEPT)..]);
            end.drain(..end.len().saturating_sub(KEPT));
        }
    }

    /// Ends the block. Without any data line it is no event, but its id and retry count.
    fn dispatch(&mut self) -> Option<Event> {
        let block = std::mem::take(&mut self.block);
        if let Some(id) = &block.id {
            self.last_id = Some(id.clone());
        }
        self.retry = block.retry.or(self.retry);
        let data = if block.joined.is_empty() { block.first? } else { block.joined.freeze() };
        Some(Event { event: block.event, id: block.id, retry: block.retry, data })
    }
}

impl Block {
    fn field(&mut self, line: &Bytes) {
        let colon = memchr::memchr(b':', line).unwrap_or(line.len());
        let after = line.get(colon + 1..).unwrap_or_default();
        let value = after.strip_prefix(b" ").unwrap_or(after);
        match &line[..colon] {
            b"data" => self.data(line.slice(line.len() - value.len()..)),
            b"event" => self.event = Some(String::from_utf8_lossy(value).into_owned()),
            b"id" if !value.contains(&0) => self.id = Some(String::from_utf8_lossy(value).into_owned()),
            b"retry" => self.retry = milliseconds(value).or(self.retry),
            // Comments, and fields that the standard does not know.
            _ => {
                if colon == 0 {
                    self.size = self.size.saturating_sub(line.len());
                }
            }
        }
    }

    fn data(&mut self, value: Bytes) {
        match self.first.as_ref() {
            None => self.first = Some(value),
            Some(first) => {
                if self.joined.is_empty() {
                    self.joined.extend_from_slice(first);
                }
                self.joined.put_u8(b'\n');
                self.joined.extend_from_slice(&value);
            }
        }
    }
}

/// Writes an event. Line breaks in the data begin new data lines, so CR and CRLF come out as LF on the other side.
///
/// An `event` or `id` with a line break, or an `id` with a NUL, cannot be written and is left out.
pub fn encode(event: &Event, out: &mut BytesMut) {
    out.reserve(event.data.len() + 64);
    if let Some(name) = event.event.as_deref().filter(|name| is_line(name)) {
        field(out, b"event: ", name.as_bytes());
    }
    if let Some(id) = event.id.as_deref().filter(|id| is_line(id) && !id.contains('\0')) {
        field(out, b"id: ", id.as_bytes());
    }
    if let Some(retry) = event.retry {
        field(out, b"retry: ", retry.to_string().as_bytes());
    }
    let mut rest = &event.data[..];
    while let Some(at) = memchr::memchr2(b'\n', b'\r', rest) {
        field(out, b"data: ", &rest[..at]);
        let width = if rest[at..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = &rest[at + width..];
    }
    field(out, b"data: ", rest);
    out.put_u8(b'\n');
}

/// The value of `retry`: digits and nothing else.
fn milliseconds(value: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}

fn is_line(text: &str) -> bool {
    !text.contains(['\n', '\r'])
}

fn field(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(value);
    out.put_u8(b'\n');
}

#[cfg(test)]
mod tests;
