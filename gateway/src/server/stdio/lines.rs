//! Lines as they come in, bounded.

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr;
use tokio::io::{AsyncRead, AsyncReadExt};

/// How much room a read finds at least, in bytes.
const CHUNK: usize = 16 * 1024;

/// A line up to this long is copied, so that the read buffer can be used again; a longer one keeps its buffer.
const COPIED: usize = 4 * 1024;

/// One line with something in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InputLine {
    /// Its text, without white space at its ends.
    Text(Bytes),
    /// It was longer than the limit and has been passed over.
    TooLong,
}

/// Cuts what is read into lines.
pub(super) struct LineCutter<R> {
    from: R,
    buffer: BytesMut,
    /// Up to here there is no line break.
    searched: usize,
    limit: usize,
    /// Whether the line that is being read is too long.
    over: bool,
}

impl<R: AsyncRead + Unpin> LineCutter<R> {
    pub(super) fn new(from: R, limit: usize) -> Self {
        Self { from, buffer: BytesMut::new(), searched: 0, limit, over: false }
    }

    /// The next line that is not blank; none at the end, or when nothing can be read any more. Cancel-safe.
    ///
    /// A last line without a line break counts: if it was cut off it is no JSON.
    pub(super) async fn next(&mut self) -> Option<InputLine> {
        loop {
            while let Some(line) = self.cut() {
                if line != InputLine::Text(Bytes::new()) {
                    return Some(line);
                }
            }
            self.buffer.reserve(CHUNK);
            if !matches!(self.from.read_buf(&mut self.buffer).await, Ok(1..)) {
                let rest = self.take(self.buffer.len());
                return (rest != InputLine::Text(Bytes::new())).then_some(rest);
            }
        }
    }

    /// The next line of what has been read.
    fn cut(&mut self) -> Option<InputLine> {
        match memchr(b'\n', &self.buffer[self.searched..]) {
            Some(at) => {
                let line = self.take(self.searched + at);
                self.buffer.advance(1);
                Some(line)
            }
            None => {
                self.searched = self.buffer.len();
                if self.searched > self.limit {
                    // Nothing of it is kept, however long it goes on.
                    self.over = true;
                    self.buffer.clear();
                    self.searched = 0;
                }
                None
            }
        }
    }

    fn take(&mut self, length: usize) -> InputLine {
        self.searched = 0;
        if std::mem::take(&mut self.over) || length > self.limit {
            self.buffer.advance(length);
            return InputLine::TooLong;
        }
        if length > COPIED {
            let line = self.buffer.split_to(length).freeze();
            return InputLine::Text(line.slice_ref(line.trim_ascii()));
        }
        let line = Bytes::copy_from_slice(self.buffer[..length].trim_ascii());
        self.buffer.advance(length);
        InputLine::Text(line)
    }
}
