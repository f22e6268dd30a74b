//! The three pipes of a process: lines out of its standard output, lines into its standard input, and its standard
//! error into the log.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};
use weir_mcp::Message;

use super::StdioError;
use super::startup::Startup;
use super::write_queue::QueueReader;

/// How long a process may leave its full standard input unread. A server that is busy still reads; one that does not
/// is broken, and everything sent to it would wait for ever.
pub(super) const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// Bytes that one read can bring: what a pipe holds on Linux.
const CHUNK: usize = 64 * 1024;
/// A line up to this long is copied, so that the read buffer can be used again; a longer one keeps its buffer.
const COPIED: usize = 4 * 1024;
/// Bytes that are kept of each end of a line that is too long.
const KEPT: usize = 4 * 1024;
/// Lines of standard error that reach the log in a second.
const LINES_PER_SECOND: u32 = 100;
/// Bytes of a line on standard error that reach the log.
const MAX_LOGGED: usize = 4 * 1024;

/// A line that a process wrote.
#[allow(clippy::large_enum_variant, reason = "one lives for a moment, and nearly all are messages")]
#[derive(Debug)]
pub(super) enum PipeLine {
    /// A message.
    Message(Message),
    /// One of more than `limit` bytes, of which only the start and the end are kept.
    TooLong { start: Bytes, end: Bytes, limit: usize },
}

/// Hands each message that the process writes to `deliver`, until it closes its output. Lines of more than `limit` bytes
/// are passed over.
pub(super) async fn read_messages(
    stdout: impl AsyncRead + Unpin,
    (name, limit): (Arc<str>, usize),
    mut deliver: impl FnMut(PipeLine),
) -> StdioError {
    let mut warned = false;
    read_lines(stdout, limit, |line| {
        let mut line = match line {
            ReadLine::Whole(line) => line,
            ReadLine::Long(start, end) => return deliver(PipeLine::TooLong { start, end, limit }),
        };
        line.truncate(line.trim_ascii_end().len());
        if line.is_empty() {
            return;
        }
        match Message::parse(line) {
            Ok(message) => deliver(PipeLine::Message(message)),
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

/// What is read of a line.
#[derive(Debug, PartialEq, Eq)]
enum ReadLine {
    Whole(Bytes),
    /// Its start and its end.
    Long(Bytes, Bytes),
}

/// A line that is too long, while it is read.
struct Long {
    start: Bytes,
    end: Vec<u8>,
}

impl Long {
    fn new(start: &[u8]) -> Self {
        let mut long = Self { start: Bytes::copy_from_slice(&start[..start.len().min(KEPT)]), end: Vec::new() };
        long.go_on(start);
        long
    }

    fn go_on(&mut self, more: &[u8]) {
        self.end.extend_from_slice(&more[more.len().saturating_sub(KEPT)..]);
        self.end.drain(..self.end.len().saturating_sub(KEPT));
    }

    fn ended(self) -> ReadLine {
        ReadLine::Long(self.start, self.end.into())
    }
}

async fn read_lines(mut from: impl AsyncRead + Unpin, limit: usize, mut each: impl FnMut(ReadLine)) -> StdioError {
    let mut buffer = BytesMut::with_capacity(CHUNK);
    let mut searched = 0;
    let mut long: Option<Long> = None;
    loop {
        buffer.reserve(CHUNK / 4);
        let end = !matches!(from.read_buf(&mut buffer).await, Ok(1..));
        while let Some(at) = memchr(b'\n', &buffer[searched..]) {
            let line = cut(&mut buffer, searched + at);
            each(match long.take() {
                Some(mut long) => {
                    long.go_on(&line);
                    long.ended()
                }
                None if line.len() > limit => Long::new(&line).ended(),
                None => ReadLine::Whole(line),
            });
            buffer.advance(1);
            searched = 0;
        }
        searched = buffer.len();
        if long.is_some() || searched > limit {
            match &mut long {
                Some(long) => long.go_on(&buffer),
                None => long = Some(Long::new(&buffer)),
            }
            (buffer, searched) = (BytesMut::with_capacity(CHUNK), 0);
        }
        if end {
            // A last line without its end may be cut off; if it is a whole message it does no harm.
            each(long.map_or_else(|| ReadLine::Whole(buffer.freeze()), Long::ended));
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
    mut lines: QueueReader,
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
/// whose standard error nobody reads blocks when the pipe is full. What is too much for a log is counted.
pub(super) async fn log_stderr(mut stderr: impl AsyncRead + Unpin, name: &str, startup: &Startup) {
    let mut chunk = vec![0; CHUNK / 8];
    let mut line = Vec::new();
    let mut rate = StderrRate { second: Instant::now(), written: 0, dropped: 0 };
    loop {
        let Ok(read) = timeout(rate.silence(), stderr.read(&mut chunk)).await else {
            rate.tell(name);
            continue;
        };
        let Ok(len @ 1..) = read else { break };
        for part in chunk[..len].split_inclusive(|byte| *byte == b'\n') {
            let room = MAX_LOGGED - line.len();
            line.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                log_line(name, &line, startup, &mut rate);
                line.clear();
            }
        }
    }
    log_line(name, &line, startup, &mut rate);
    rate.tell(name);
}

/// How many lines were logged in the second that runs, and how many were not.
struct StderrRate {
    second: Instant,
    written: u32,
    dropped: u64,
}

impl StderrRate {
    /// Counts a line, and says whether it may be written.
    fn allows(&mut self, name: &str) -> bool {
        if self.second.elapsed() >= Duration::from_secs(1) {
            self.tell(name);
            (self.second, self.written) = (Instant::now(), 0);
        }
        self.written = self.written.saturating_add(1);
        let allowed = self.written <= LINES_PER_SECOND;
        self.dropped += u64::from(!allowed);
        allowed
    }

    /// How long to wait for more before it is said how many lines were dropped.
    fn silence(&self) -> Duration {
        if self.dropped > 0 { Duration::from_secs(1) } else { Duration::MAX }
    }

    /// Says how many lines were dropped.
    fn tell(&mut self, name: &str) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            warn!(target: "upstream::stderr", upstream = name, dropped, "wrote too much to stderr; lines were dropped");
        }
    }
}

fn log_line(name: &str, line: &[u8], startup: &Startup, rate: &mut StderrRate) {
    // Colours too, which a server may well write.
    let text = startup.note(&String::from_utf8_lossy(line));
    if !text.is_empty() && rate.allows(name) {
        info!(target: "upstream::stderr", upstream = name, "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 4 * CHUNK;

    /// Gives the bytes in pieces of a size that divides nothing.
    async fn lines_of(bytes: &[u8], piece: usize) -> (Vec<ReadLine>, StdioError) {
        let (from, mut to) = tokio::io::duplex(piece);
        let mut lines = Vec::new();
        let reading = read_lines(from, LIMIT, |line| lines.push(line));
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
        let whole: Vec<ReadLine> = lines.into_iter().map(|line| ReadLine::Whole(line.into())).collect();
        assert_eq!((read, end), (whole, StdioError::Closed));
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_passed_over_and_the_next_is_read() {
        let longest = "x".repeat(LIMIT);
        for piece in [4099, CHUNK, 64 * CHUNK] {
            for length in [LIMIT + 1, 3 * LIMIT + 17] {
                let long = format!("begin{}end", "y".repeat(length - 8));
                let (read, end) = lines_of(format!("{longest}\n{long}\nnext\n{long}").as_bytes(), piece).await;
                assert_eq!(end, StdioError::Closed);
                let [first, passed, next, last] = &read[..] else { panic!("{} lines", read.len()) };
                assert!(*first == ReadLine::Whole(longest.clone().into()) && *next == ReadLine::Whole("next".into()));
                for long in [passed, last] {
                    let ReadLine::Long(start, end) = long else { panic!("it is too long") };
                    assert!(start.starts_with(b"begin") && end.ends_with(b"end"));
                    assert!(start.len() <= KEPT && end.len() <= KEPT);
                }
            }
        }
    }

    #[test]
    fn standard_error_is_logged_at_a_rate() {
        let mut rate = StderrRate { second: Instant::now(), written: 0, dropped: 0 };
        let written = (0..100_000).filter(|_| rate.allows("x")).count();
        assert!((100..50_000).contains(&written), "{written} lines were written");
    }
}
