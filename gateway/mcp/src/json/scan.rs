//! One pass over JSON bytes that checks the whole grammar and keeps nothing.
//!
//! This is the hottest loop of the gateway. Strings, which are nearly all of a large message, are passed in blocks
//! (`plain`); nesting is a bit for each level instead of recursion, so hostile depth costs no
//! stack. UTF-8 is not checked here but once over the whole input (`check_utf8`).

use std::borrow::Cow;

use super::plain::plain;
use super::{JsonError, MAX_DEPTH, text};

/// A stretch of the input. Empty means absent: no JSON value is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Span {
    pub(crate) const NONE: Self = Self { start: 0, end: 0 };

    /// Inputs are below 4 GiB: [`Scanner::new`] cuts what is longer, which then fails as incomplete.
    #[allow(clippy::cast_possible_truncation, reason = "see above")]
    fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    pub(crate) fn is_none(self) -> bool {
        self.end == 0
    }

    /// The bytes of this span; none if it is absent.
    pub(crate) fn of(self, bytes: &[u8]) -> Option<&[u8]> {
        if self.is_none() { None } else { bytes.get(self.start as usize..self.end as usize) }
    }

    /// The longer of two.
    pub(crate) fn or_longer(self, other: Self) -> Self {
        if other.end - other.start > self.end - self.start { other } else { self }
    }

    /// The same stretch counted from `origin`.
    pub(crate) fn from(self, origin: u32) -> Self {
        if self.is_none() { self } else { Self { start: self.start - origin, end: self.end - origin } }
    }
}

/// A JSON string as it lies in the input, quotes included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawString {
    pub(crate) span: Span,
    pub(crate) escaped: bool,
}

/// The document is at fault, and [`Scanner::why`] says how. An error without content, because a result that fits into
/// registers makes the whole scan faster by half.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop;

/// A place in the input; each method checks and passes one piece of it.
pub(crate) struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    why: JsonError,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        let cut = bytes.len().min(u32::MAX as usize);
        Self { bytes: &bytes[..cut], at: 0, why: JsonError::TooDeep }
    }

    /// What made the scan stop.
    pub(crate) fn why(&self, _: Stop) -> JsonError {
        self.why
    }

    /// Passes white space and says what comes next.
    #[inline]
    pub(crate) fn next_byte(&mut self) -> Option<u8> {
        self.space();
        self.peek()
    }

    /// Passes the value that comes next, `depth` containers deep.
    pub(crate) fn value(&mut self, depth: usize) -> Result<Span, Stop> {
        self.space();
        let start = self.at;
        match self.peek() {
            Some(b'{' | b'[') => self.container(depth)?,
            _ => self.scalar()?,
        }
        Ok(Span::new(start, self.at))
    }

    /// The same where the value at `known` has been passed before: it is not read again.
    pub(crate) fn value_knowing(&mut self, known: Span, depth: usize) -> Result<Span, Stop> {
        self.space();
        if known.is_none() || known.start as usize != self.at || known.end as usize > self.bytes.len() {
            return self.value(depth);
        }
        self.at = known.end as usize;
        Ok(known)
    }

    /// Passes an object that comes next, handing each key to `each`, which must pass the value.
    pub(crate) fn object(&mut self, mut each: impl FnMut(&mut Self, &[u8]) -> Result<(), Stop>) -> Result<Span, Stop> {
        self.space();
        let start = self.at;
        let mut more = self.open(b'{', b'}')?;
        while more {
            let key = self.key()?;
            let name = self.name(key);
            each(self, &name)?;
            more = self.more(b'}')?;
        }
        Ok(Span::new(start, self.at))
    }

    /// Passes the bracket `open`, and `close` if it follows at once; says whether something is between.
    pub(crate) fn open(&mut self, open: u8, close: u8) -> Result<bool, Stop> {
        if self.next_byte() != Some(open) {
            return Err(self.fault("expected an opening bracket"));
        }
        self.at += 1;
        let empty = self.next_byte() == Some(close);
        self.at += usize::from(empty);
        Ok(!empty)
    }

    /// Passes a comma or the bracket `close`; says whether it was the comma.
    pub(crate) fn more(&mut self, close: u8) -> Result<bool, Stop> {
        let byte = self.next_byte();
        let more = byte == Some(b',');
        if !more && byte != Some(close) {
            return Err(self.fault("expected a comma or a closing bracket"));
        }
        self.at += 1;
        Ok(more)
    }

    /// Passes a key and its colon.
    #[inline]
    pub(crate) fn key(&mut self) -> Result<RawString, Stop> {
        self.space();
        let key = self.text()?;
        if self.next_byte() != Some(b':') {
            return Err(self.fault("expected a colon"));
        }
        self.at += 1;
        Ok(key)
    }

    /// Passes a string.
    #[inline]
    pub(crate) fn text(&mut self) -> Result<RawString, Stop> {
        if self.peek() != Some(b'"') {
            return Err(self.fault("expected a string"));
        }
        let start = self.at;
        self.at += 1;
        let mut escaped = false;
        loop {
            self.at = plain(self.bytes, self.at);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(RawString { span: Span::new(start, self.at), escaped });
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return Err(self.fault("control character in a string")),
                None => return Err(self.fault("string without an end")),
            }
        }
    }

    /// Checks that nothing but white space is left.
    pub(crate) fn end(&mut self) -> Result<(), Stop> {
        match self.next_byte() {
            None => Ok(()),
            Some(_) => Err(self.fault("something follows the end of the document")),
        }
    }

    /// The key's name as bytes. Keys too long to be of interest and written with escapes are not decoded.
    fn name(&self, key: RawString) -> Cow<'a, [u8]> {
        /// The longest key the protocol names has 42 bytes; an escape spends at most 6 on each.
        const LONGEST: u32 = 6 * 64;
        let inner = Span { start: key.span.start + 1, end: key.span.end - 1 };
        if !key.escaped {
            return Cow::Borrowed(inner.of(self.bytes).unwrap_or_default());
        }
        if inner.end - inner.start > LONGEST {
            return Cow::Borrowed(b"");
        }
        match text::decode(self.bytes, key) {
            Some(name) => Cow::Owned(name.into_owned().into_bytes()),
            None => Cow::Borrowed(b""),
        }
    }

    /// Passes an object or array with everything in it, without recursion.
    fn container(&mut self, depth: usize) -> Result<(), Stop> {
        let mut nest = Nest::new(depth);
        loop {
            let first = self.peek();
            if let Some(b'{' | b'[') = first {
                let object = first == Some(b'{');
                if !nest.push(object) {
                    self.why = JsonError::TooDeep;
                    return Err(Stop);
                }
                self.at += 1;
                if self.next_byte() != Some(if object { b'}' } else { b']' }) {
                    if object {
                        self.key()?;
                        self.space();
                    }
                    continue;
                }
                self.at += 1;
                nest.pop();
            } else {
                self.scalar()?;
            }
            loop {
                if nest.is_empty() {
                    return Ok(());
                }
                match self.next_byte() {
                    Some(b',') => break,
                    Some(b'}') if nest.object => {}
                    Some(b']') if !nest.object => {}
                    _ => return Err(self.fault("expected a comma or a closing bracket")),
                }
                self.at += 1;
                nest.pop();
            }
            self.at += 1;
            self.space();
            if nest.object {
                self.key()?;
                self.space();
            }
        }
    }

    #[inline]
    fn scalar(&mut self) -> Result<(), Stop> {
        match self.peek() {
            Some(b'"') => self.text().map(drop),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal(b"true"),
            Some(b'f') => self.literal(b"false"),
            Some(b'n') => self.literal(b"null"),
            Some(_) => Err(self.fault("expected a value")),
            None => Err(self.fault("the document ends too early")),
        }
    }

    #[inline]
    fn literal(&mut self, word: &[u8]) -> Result<(), Stop> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(self.fault("expected a value"));
        }
        self.at += word.len();
        Ok(())
    }

    #[inline]
    fn number(&mut self) -> Result<(), Stop> {
        self.at += usize::from(self.peek() == Some(b'-'));
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        match self.peek() {
            Some(b'.' | b'e' | b'E') => self.fraction(),
            _ => Ok(()),
        }
    }

    fn fraction(&mut self) -> Result<(), Stop> {
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits()?;
        }
        Ok(())
    }

    #[inline]
    fn digits(&mut self) -> Result<(), Stop> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let count = rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
        if count == 0 {
            return Err(self.fault("expected a digit"));
        }
        self.at += count;
        Ok(())
    }

    fn escape(&mut self) -> Result<(), Stop> {
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') => {
                let digits = self.bytes.get(self.at + 2..self.at + 6).unwrap_or_default();
                if digits.len() != 4 || !digits.iter().all(u8::is_ascii_hexdigit) {
                    return Err(self.fault("unknown escape in a string"));
                }
                self.at += 6;
            }
            _ => return Err(self.fault("unknown escape in a string")),
        }
        Ok(())
    }

    #[inline]
    fn space(&mut self) {
        if self.peek().is_some_and(|b| b > b' ') {
            return;
        }
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[cold]
    fn fault(&mut self, what: &'static str) -> Stop {
        self.why = JsonError::Syntax { offset: self.at, what };
        Stop
    }
}

/// The open containers: one bit each, set for an object.
struct Nest {
    bits: [u64; MAX_DEPTH / 64],
    base: usize,
    len: usize,
    object: bool,
}

impl Nest {
    fn new(base: usize) -> Self {
        Self { bits: [0; MAX_DEPTH / 64], base, len: 0, object: false }
    }

    /// Opens a container, unless that is one too many.
    #[inline]
    fn push(&mut self, object: bool) -> bool {
        if self.base + self.len >= MAX_DEPTH {
            return false;
        }
        let mask = 1 << (self.len % 64);
        let word = &mut self.bits[self.len / 64];
        *word = if object { *word | mask } else { *word & !mask };
        self.len += 1;
        self.object = object;
        true
    }

    #[inline]
    fn pop(&mut self) {
        self.len -= 1;
        let top = self.len.saturating_sub(1);
        self.object = self.bits[top / 64] >> (top % 64) & 1 == 1;
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.len == 0
    }
}
