//! The three pipes of a process: lines out of its standard output, lines into its standard input, and its standard
//! error into the log.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tracing::{info, warn};
use weir_mcp::Message;

use crate::observe::printable;

use super::outbox::Lines;
use super::startup::Startup;
use super::{MAX_LINE, StdioError};

/// How long a process may leave its full standard input unread. A server that is busy still reads; one that does not
/// is broken, and everything sent to it would wait for ever.
pub(super) const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// Bytes that one read can bring: what a pipe holds on Linux.
const CHUNK: usize = 64 * 1024;
/// A line up to this long is copied, so that the read buffer can be used again; a longer one keeps its buffer.
const COPIED: usize = 4 * 1024;
/// Bytes of a line on standard error that reach the log.
const MAX_LOGGED: usize = 4 * 1024;

/// Hands each message that the process writes to `deliver`, until it closes its output or exceeds the limit.
pub(super) async fn read_messages(
    stdout: impl AsyncRead + Unpin,
    name: Arc<str>,
    mut deliver: impl FnMut(Message),
) -> StdioError {
    let mut warned = false;
    read_lines(stdout, |mut line| {
        line.truncate(line.trim_ascii_end().len());
        if line.is_empty() {
            return;
        }
        match Message::parse(line) {
            Ok(message) => deliver(message),
            Err(_) if warned => {}
            Err(error) => {
                warned = true;
                warn!(
                    upstream = &*name,
                    %error,
                    "wrote something that is not MCP to stdout; such lines are skipped (its log belongs on stderr)"
                );
            }
        }
    })
    .await
}

async fn read_lines(mut from: impl AsyncRead + Unpin, mut each: impl FnMut(Bytes)) -> StdioError {
    let mut buffer = BytesMut::with_capacity(CHUNK);
    let mut searched = 0;
    loop {
        buffer.reserve(CHUNK / 4);
        let end = !matches!(from.read_buf(&mut buffer).await, Ok(1..));
        while let Some(at) = memchr(b'\n', &buffer[searched..]) {
            each(cut(&mut buffer, searched + at));
            buffer.advance(1);
            searched = 0;
        }
        searched = buffer.len();
        if searched > MAX_LINE {
            return StdioError::LineTooLong;
        }
        if end {
            // A last line without its end may be cut off; if it is a whole message it does no harm.
            each(buffer.freeze());
            return StdioError::Closed;
        }
    }
}

fn cut(buffer: &mut BytesMut, len: usize) -> Bytes {
    if len > COPIED {
        return buffer.split_to(len).freeze();
    }
    let line = Bytes::copy_from_slice(&buffer[..len]);
    buffer.advance(len);
    line
}

/// Writes what comes, one message per line, until the process leaves its input unread for `limit`, closes it, or
/// nothing can come any more. Says each time that something was written.
pub(super) async fn write_lines(
    mut stdin: impl AsyncWrite + Unpin,
    mut lines: Lines,
    limit: Duration,
    wrote: impl Fn(),
) -> StdioError {
    while let Some(message) = lines.next().await {
        let mut line = message.chain(&b"\n"[..]);
        while line.has_remaining() {
            match timeout(limit, stdin.write_buf(&mut line)).await {
                Ok(Ok(1..)) => wrote(),
                Ok(_) => return StdioError::Closed,
                Err(_) => return StdioError::Stuck,
            }
        }
    }
    StdioError::Stopped
}

/// Puts what the process writes to standard error into the log, line by line, for as long as it writes: a process
/// whose standard error nobody reads blocks when the pipe is full.
pub(super) async fn log_stderr(mut stderr: impl AsyncRead + Unpin, name: &str, startup: &Startup) {
    let mut chunk = vec![0; CHUNK / 8];
    let mut line = Vec::new();
    while let Ok(len @ 1..) = stderr.read(&mut chunk).await {
        for part in chunk[..len].split_inclusive(|byte| *byte == b'\n') {
            let room = MAX_LOGGED - line.len();
            line.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                log_line(name, &line, startup);
                line.clear();
            }
        }
    }
    log_line(name, &line, startup);
}

fn log_line(name: &str, line: &[u8], startup: &Startup) {
    // Colours too, which a server may well write.
    let text = startup.note(printable(&String::from_utf8_lossy(line)).into_owned());
    if !text.is_empty() {
        info!(target: "upstream::stderr", upstream = name, "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives the bytes in pieces of a size that divides nothing.
    async fn lines_of(bytes: &[u8], piece: usize) -> (Vec<Bytes>, StdioError) {
        let (from, mut to) = tokio::io::duplex(piece);
        let mut lines = Vec::new();
        let reading = read_lines(from, |line| lines.push(line));
        let writing = async move {
            // Fails where the reader gives up.
            let _ = to.write_all(bytes).await;
        };
        let (end, ()) = tokio::join!(reading, writing);
        (lines, end)
    }

    #[tokio::test]
    async fn lines_of_every_length_come_out_as_they_went_in() {
        let lengths = [0, 1, COPIED - 1, COPIED, COPIED + 1, CHUNK, CHUNK + 1, 3 * CHUNK, 0, 5];
        let lines: Vec<Vec<u8>> = (b'a'..).zip(lengths).map(|(byte, len)| vec![byte; len]).collect();
        let (read, end) = lines_of(&lines.join(&b'\n'), 4099).await;
        assert_eq!(read, lines);
        assert_eq!(end, StdioError::Closed);
    }

    #[tokio::test]
    async fn the_longest_line_passes_and_a_longer_one_does_not() {
        let mut bytes = vec![b'x'; MAX_LINE];
        bytes.push(b'\n');
        let (read, end) = lines_of(&bytes, CHUNK).await;
        assert_eq!((read[0].len(), end), (MAX_LINE, StdioError::Closed));
        bytes[MAX_LINE] = b'x';
        let (read, end) = lines_of(&bytes, CHUNK).await;
        assert_eq!((read.len(), end), (0, StdioError::LineTooLong));
    }
}
