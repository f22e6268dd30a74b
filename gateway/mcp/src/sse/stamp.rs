//! Event ids of one's own for a stream that passes through.
//!
//! Bytes go in as the connection yields them, whole events or not, and come out with an id before each event. Data is
//! not looked into. What stays behind: the sender's own ids and `retry`, comments, unknown fields, and events without
//! data, which only carry an id or a time.

use std::fmt::Write as _;

use bytes::{BufMut, BytesMut};

use super::MARK;

/// The longest name of an event that is passed on, in bytes with its field's name.
const MAX_NAME: usize = 256;

/// Gives the events of a stream the ids `<stream>-1`, `<stream>-2` and so on.
pub struct Stamper {
    stream: String,
    next: u64,
    line: StampLine,
    /// The start of a line whose field is not known yet.
    held: Vec<u8>,
    after_cr: bool,
    started: bool,
    /// The `event` line of an event whose data has not come yet.
    name: Vec<u8>,
    /// The event has one line of data so far, with nothing in it.
    empty: bool,
    /// The event's id is written.
    open: bool,
}

/// Where in a line the bytes so far end.
enum StampLine {
    Start,
    /// In one that goes on as it is.
    Passed,
    /// In one that stays behind.
    Skipped,
}

/// What a line is, as far as it is here.
enum StampField {
    /// Too short to tell.
    Unknown,
    Data,
    /// Data with nothing in it.
    Empty,
    Name,
    Other,
}

impl Stamper {
    /// A stamper for the stream of this name, whose next event has this number.
    pub fn new(stream: String, next: u64) -> Self {
        Self {
            stream,
            next,
            line: StampLine::Start,
            held: Vec::new(),
            after_cr: false,
            started: false,
            name: Vec::new(),
            empty: false,
            open: false,
        }
    }

    /// Passes bytes on; true if an event began in them.
    pub fn stamp(&mut self, mut bytes: &[u8], out: &mut BytesMut) -> bool {
        let before = self.next;
        out.reserve(bytes.len() + 32);
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(at) = memchr::memchr2(b'\n', b'\r', bytes) else {
                self.part(bytes, false, out);
                break;
            };
            self.part(&bytes[..at], true, out);
            self.after_cr = bytes[at] == b'\r';
            bytes = &bytes[at + 1..];
        }
        self.next > before
    }

    /// An event that carries nothing but the id to come back with for all that follows `place`, and after how many
    /// milliseconds (MCP 2025-11-25, basic/transports).
    pub fn prime(&self, place: u64, retry: u64, out: &mut BytesMut) {
        // Writing to memory does not fail.
        let _ = write!(out, "id: {}-{place}\nretry: {retry}\ndata: \n\n", self.stream);
    }

    /// The number of the next event.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether what came out ends with an event.
    pub fn is_between_events(&self) -> bool {
        !self.open
    }

    /// Forgets an event that will never be whole.
    pub fn abandon(&mut self) {
        let stream = std::mem::take(&mut self.stream);
        *self = Self { started: self.started, ..Self::new(stream, self.next) };
    }

    fn part(&mut self, part: &[u8], ended: bool, out: &mut BytesMut) {
        match self.line {
            StampLine::Start if self.held.is_empty() => return self.begin(part, ended, out),
            StampLine::Start => {
                let mut line = std::mem::take(&mut self.held);
                line.extend_from_slice(part);
                return self.begin(&line, ended, out);
            }
            StampLine::Passed => {
                out.put_slice(part);
                if ended {
                    out.put_u8(b'\n');
                }
            }
            StampLine::Skipped => {}
        }
        if ended {
            self.line = StampLine::Start;
        }
    }

    fn begin(&mut self, mut line: &[u8], ended: bool, out: &mut BytesMut) {
        if !self.started {
            if !ended && line.len() < MARK.len() && MARK.starts_with(line) {
                self.held.extend_from_slice(line);
                return;
            }
            self.started = true;
            line = line.strip_prefix(MARK).unwrap_or(line);
        }
        if line.is_empty() {
            if ended {
                self.end(out);
            }
            return;
        }
        match field(line, ended) {
            StampField::Unknown => self.held.extend_from_slice(line),
            StampField::Empty if !self.open && !self.empty => self.empty = true,
            StampField::Data | StampField::Empty => {
                self.open(out);
                out.put_slice(line);
                if ended {
                    out.put_u8(b'\n');
                } else {
                    self.line = StampLine::Passed;
                }
            }
            StampField::Name if self.open => {
                out.put_slice(line);
                out.put_u8(b'\n');
            }
            StampField::Name => {
                self.name.clear();
                self.name.extend_from_slice(line);
            }
            StampField::Other if ended => {}
            StampField::Other => self.line = StampLine::Skipped,
        }
    }

    fn open(&mut self, out: &mut BytesMut) {
        if self.open {
            return;
        }
        self.open = true;
        let _ = writeln!(out, "id: {}-{}", self.stream, self.next);
        self.next += 1;
        if !self.name.is_empty() {
            out.put_slice(&self.name);
            out.put_u8(b'\n');
            self.name.clear();
        }
        if std::mem::take(&mut self.empty) {
            out.put_slice(b"data:\n");
        }
    }

    fn end(&mut self, out: &mut BytesMut) {
        if std::mem::take(&mut self.open) {
            out.put_u8(b'\n');
        }
        self.name.clear();
        self.empty = false;
    }
}

fn field(line: &[u8], ended: bool) -> StampField {
    let colon = memchr::memchr(b':', line);
    if colon.is_none() && !ended && b"data".starts_with(line) | b"event".starts_with(line) {
        return StampField::Unknown;
    }
    let name = &line[..colon.unwrap_or(line.len())];
    let value = line.get(name.len() + 1..).unwrap_or_default();
    match name {
        b"data" if value.strip_prefix(b" ").unwrap_or(value).is_empty() => {
            if ended {
                StampField::Empty
            } else {
                StampField::Unknown
            }
        }
        b"data" => StampField::Data,
        b"event" if line.len() > MAX_NAME => StampField::Other,
        b"event" if ended => StampField::Name,
        b"event" => StampField::Unknown,
        _ => StampField::Other,
    }
}
