//! A stream that is passed on as it came, and may have to be taken up again where it broke.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::{Decoder, MARK};

/// Cuts a stream into pieces that end between two events, so that another connection can go on after any of them.
///
/// Nothing is copied as long as the connection itself cuts between events, as servers that flush each event make it. An
/// event that grows longer than the bound is passed on in parts; until it ends, there is no going on after it.
pub struct Splitter {
    limit: usize,
    /// The beginning of an event.
    held: BytesMut,
    begun: bool,
    inside: Option<Inside>,
    block: Block,
    last_id: Option<Bytes>,
    retry: Option<u64>,
    last: LastData,
}

/// The beginning of an event has been passed on already.
#[derive(Clone, Copy)]
struct Inside {
    /// The end of its line has not.
    mid_line: bool,
    /// It ended with a CR, so an LF that follows belongs to it.
    after_cr: bool,
}

/// What counts of the event that is being looked at.
#[derive(Default)]
struct Block {
    id: Option<Bytes>,
    retry: Option<u64>,
    data: bool,
}

/// The last event that had data, or was longer than the bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastData {
    /// There was none yet.
    None,
    /// Its block of lines.
    Block(Bytes),
    /// It was longer than the bound and not kept.
    TooLong,
}

impl Splitter {
    /// A splitter that holds back at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            held: BytesMut::new(),
            begun: false,
            inside: None,
            block: Block::default(),
            last_id: None,
            retry: None,
            last: LastData::None,
        }
    }

    /// Takes in what the connection yielded and gives what may be passed on; nothing if that is only the beginning of an
    /// event. `id` is told each event's id.
    pub fn push(&mut self, chunk: Bytes, id: impl FnMut(&[u8])) -> Bytes {
        let mut bytes = chunk;
        if !self.held.is_empty() {
            self.held.extend_from_slice(&bytes);
            bytes = self.held.split().freeze();
        }
        if self.inside.is_none() {
            // What was held back is looked at again.
            self.block = Block::default();
        }
        let passed = self.scan(&bytes, id);
        if self.inside.is_some() || bytes.len() - passed > self.limit {
            let last = bytes.last().copied();
            let mid_line = !matches!(last, Some(b'\n' | b'\r'));
            self.inside = Some(Inside { mid_line, after_cr: last == Some(b'\r') });
        } else {
            let rest = bytes.split_off(passed);
            self.held.extend_from_slice(&rest);
        }
        self.begun |= !bytes.is_empty();
        bytes
    }

    /// Whether what was passed on ends between two events.
    pub const fn is_between_events(&self) -> bool {
        self.inside.is_none()
    }

    /// The id of the last event that was passed on, for `Last-Event-ID`. Unlike the event it has no end.
    pub fn last_id(&self) -> Option<&[u8]> {
        self.last_id.as_deref().filter(|id| !id.is_empty())
    }

    /// The last `retry` that was passed on, in milliseconds.
    pub const fn retry(&self) -> Option<u64> {
        self.retry
    }

    /// The last event with data that was passed on.
    pub const fn last_data(&self) -> &LastData {
        &self.last
    }

    /// Looks through whole events; gives where the last of them ends.
    fn scan(&mut self, bytes: &Bytes, mut id: impl FnMut(&[u8])) -> usize {
        let mut at = match self.inside {
            None if !self.begun && bytes.starts_with(MARK) => MARK.len(),
            Some(Inside { after_cr: true, .. }) if bytes.first() == Some(&b'\n') => 1,
            _ => 0,
        };
        let mut mid_line = self.inside.is_some_and(|inside| inside.mid_line);
        let (mut begin, mut passed) = (at, 0);
        while let Some((line, next)) = line(bytes, at) {
            at = next;
            if std::mem::take(&mut mid_line) {
                // Its beginning is not here.
            } else if !line.is_empty() {
                self.block.field(bytes, line);
            } else {
                self.end_event(bytes, begin..next, &mut id);
                (begin, passed) = (next, next);
            }
        }
        passed
    }

    fn end_event(&mut self, bytes: &Bytes, event: Range<usize>, id: &mut impl FnMut(&[u8])) {
        let block = std::mem::take(&mut self.block);
        if let Some(found) = block.id {
            id(&found);
            self.last_id = Some(found);
        }
        self.retry = block.retry.or(self.retry);
        if self.inside.take().is_some() {
            self.last = LastData::TooLong;
        } else if block.data {
            self.last = LastData::Block(bytes.slice(event));
        }
    }
}

impl LastData {
    /// The data; nothing if there is none or it was not kept.
    pub fn read(&self) -> Option<Bytes> {
        let Self::Block(block) = self else { return None };
        let mut decoder = Decoder::new(block.len());
        // Only at the start of a stream is a byte order mark no part of the first line.
        decoder.feed(b"\n");
        decoder.feed(block);
        Some(decoder.next_event().ok()??.data)
    }
}

impl Block {
    fn field(&mut self, bytes: &Bytes, line: Range<usize>) {
        let text = &bytes[line.clone()];
        let colon = memchr::memchr(b':', text).unwrap_or(text.len());
        let after = text.get(colon + 1..).unwrap_or_default();
        let value = after.strip_prefix(b" ").unwrap_or(after);
        match &text[..colon] {
            b"data" => self.data = true,
            b"id" if !value.contains(&0) => self.id = Some(bytes.slice(line.end - value.len()..line.end)),
            b"retry" => self.retry = super::milliseconds(value).or(self.retry),
            _ => {}
        }
    }
}

/// The line that begins at `at`, and where the next one does.
fn line(bytes: &[u8], at: usize) -> Option<(Range<usize>, usize)> {
    let end = at + memchr::memchr2(b'\n', b'\r', bytes.get(at..)?)?;
    let width = if bytes[end..].starts_with(b"\r\n") { 2 } else { 1 };
    Some((at..end, end + width))
}
