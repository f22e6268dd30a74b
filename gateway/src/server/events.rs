//! Event streams on the wire, and what becomes of those whose client goes away.
//!
//! A legacy client whose connection broke has not cancelled anything (MCP 2025-11-25, basic/transports): the task of its
//! connection goes on with the call, without the connection, and keeps what comes until the client asks for it. A
//! stream that is all there in its first piece, the usual one, is written as it is and costs nothing of that.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::{Bytes, BytesMut};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};
use weir_mcp::sse::{self, Event};

use crate::{
    http::{self, HeaderName, HeaderValue},
    proxy::{AnswerStream, CLIENT_GONE, KeepStream, StreamClose, StreamItem},
    session::{Left, ReplayWriter, ReplayedEvent, Session},
    task,
};

use super::{cors, listen::HttpExchange, refusal::GATEWAY_LOST};

/// How long a stream may rest before a comment is sent, so that proxies and dead clients are noticed.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How long the first event of a stream is waited for before the client is told how to resume the stream. Most answers
/// are there by then, and whole.
const PRIMED: Duration = Duration::from_millis(25);

/// How much is gathered into one write, in bytes.
const BATCH: usize = 64 * 1024;

/// What ends a stream that a client shall open again: how long to wait before, in milliseconds.
pub(super) const RETRY: &[u8] = b"retry: 1000\n\n";

const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");

/// Begins a stream that is no answer to a request.
pub(super) async fn start_own(exchange: &mut HttpExchange) {
    let mut head = Vec::with_capacity(6);
    cors::add(exchange, &mut head);
    start(exchange, 200, head).await;
}

/// Writes a stream to its end, and the log's line after it.
pub(super) async fn deliver(
    exchange: &mut HttpExchange,
    status: u16,
    head: Vec<(HeaderName, HeaderValue)>,
    mut delivery: Box<AnswerStream>,
    mut draining: watch::Receiver<bool>,
) {
    start(exchange, status, head).await;
    let mut outlet = Outlet { exchange, writer: None, is_here: true, left: None };
    let mut held = None;
    let session = match std::mem::take(&mut delivery.keep) {
        KeepStream::Nothing => None,
        KeepStream::Answer(session) => Some((session, StreamStart::Held)),
        KeepStream::Begun(hold, writer) => {
            outlet.writer = Some(writer);
            let session = Arc::clone(held.insert(hold).session());
            Some((session, StreamStart::Written))
        }
        KeepStream::Own(session, missed) => {
            outlet.writer = Some(Box::new(ReplayWriter::own(&session.streams, session.version())));
            Some((session, StreamStart::Missed(missed)))
        }
    };
    let ended = outlet.run(&mut delivery, session, &mut draining).await;
    drop(held);
    if let Some(record) = delivery.take_log() {
        record.finish(if ended == StreamEnd::Gone { CLIENT_GONE } else { status }, exchange.sent());
    }
}

async fn start(exchange: &mut HttpExchange, status: u16, mut head: Vec<(HeaderName, HeaderValue)>) {
    head.push((http::CONTENT_TYPE, EVENTS));
    head.push((http::CACHE_CONTROL, HeaderValue::from_static("no-cache")));
    // Tells nginx and its kin not to gather a stream.
    head.push((HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")));
    exchange.start(status, &head, None).await;
}

/// Resolves when this turns true, as the gateway stops or a session ends.
pub(super) async fn turns_true(watched: &mut watch::Receiver<bool>) {
    drop(watched.wait_for(|is_true| *is_true).await);
}

/// Resolves when what a client has shown to open a stream is good no longer; never if there is no end to it. Whoever comes
/// back shows something younger.
pub(super) async fn passes(end: Option<SystemTime>) {
    let Some(end) = end else { return std::future::pending().await };
    // Over is over at the first look: no timer is, and a stream that always has something to say looks but once.
    if let Ok(left) = end.duration_since(SystemTime::now()) {
        sleep(left).await;
    }
}

/// How a stream that may be resumed begins.
enum StreamStart {
    /// With its first event, or without it if that takes its time.
    Held,
    /// It has begun already.
    Written,
    /// With what its client has missed.
    Missed(Vec<ReplayedEvent>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    Well,
    Gone,
}

/// Where a stream goes: to its client, as long as that is there, and to what is kept.
struct Outlet<'a> {
    exchange: &'a mut HttpExchange,
    writer: Option<Box<ReplayWriter>>,
    /// Whether the client is at the other end of this connection.
    is_here: bool,
    left: Option<Left>,
}

/// How a batch of messages ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchEnd {
    More,
    /// With the last message.
    Last,
    /// With the end of the stream.
    End,
}

impl Outlet<'_> {
    async fn run(
        &mut self,
        stream: &mut AnswerStream,
        session: Option<(Arc<Session>, StreamStart)>,
        draining: &mut watch::Receiver<bool>,
    ) -> StreamEnd {
        let (mut over, ends) = (None, self.exchange.ends());
        let of = session.as_ref().map(|(session, _)| Arc::clone(session));
        // Its client comes back for it through the process that has taken over.
        let goes_on = || of.as_ref().is_some_and(|session| session.is_handed_over());
        if let Some((session, start)) = session {
            let ended = match start {
                StreamStart::Held => self.hold(stream, &session).await,
                StreamStart::Written => None,
                StreamStart::Missed(missed) if missed.is_empty() => {
                    let first = self.begin(Vec::new(), stream);
                    self.write_first(first).await
                }
                StreamStart::Missed(missed) => {
                    let mut out = BytesMut::new();
                    missed.into_iter().for_each(|event| replayed(event, &mut out));
                    (!self.exchange.write(out.freeze()).await).then_some(StreamEnd::Gone)
                }
            };
            if let Some(ended) = ended {
                return ended;
            }
            over = Some(session.ended());
        }
        loop {
            tokio::select! {
                biased;
                // First, for a stream that always has something to say would never come to it.
                () = passes(ends), if stream.is_endless() && self.is_here => return self.close(stream.close()).await,
                item = stream.next() => if let Some(ended) = self.pass_on(item, stream).await {
                    return ended;
                },
                () = turns_true(draining), if stream.is_endless() || !(self.is_here || goes_on()) => {
                    return self.close(stream.close()).await;
                }
                () = task::or_never(over.as_mut().map(turns_true)), if !self.is_here => return StreamEnd::Gone,
                () = self.exchange.gone(), if self.is_here => if !self.lose().await {
                    return StreamEnd::Gone;
                },
                () = sleep(KEEP_ALIVE), if self.is_here => if !self.keep_alive().await {
                    return StreamEnd::Gone;
                },
            }
        }
    }

    /// Waits for the first message, so that a stream that is all there by then goes out as it is.
    async fn hold(&mut self, stream: &mut AnswerStream, session: &Session) -> Option<StreamEnd> {
        let (mut messages, mut size) = (Vec::new(), 0);
        let mut item = timeout_at(Instant::now() + PRIMED, stream.next()).await.ok();
        while let Some(next) = item.take() {
            match next {
                StreamItem::Message(data) => {
                    size += data.len();
                    messages.push(data);
                }
                StreamItem::Last(data) => {
                    let mut out = BytesMut::new();
                    messages.into_iter().chain([data]).for_each(|data| sse::encode(&Event::message(data), &mut out));
                    let written = self.exchange.end_with(out.freeze()).await;
                    return Some(if written { StreamEnd::Well } else { StreamEnd::Gone });
                }
                StreamItem::Replayed(_) | StreamItem::End => {
                    self.writer = Some(Box::new(ReplayWriter::answer(&session.streams, session.version())));
                    if !messages.is_empty() {
                        let first = self.begin(messages, stream);
                        if let Some(ended) = self.write_first(first).await {
                            return Some(ended);
                        }
                    }
                    return self.pass_on(next, stream).await;
                }
            }
            item = if size < BATCH { stream.next_ready().await } else { None };
        }
        self.writer = Some(Box::new(ReplayWriter::answer(&session.streams, session.version())));
        let first = self.begin(messages, stream);
        self.write_first(first).await
    }

    /// Begins to keep the stream, which has these messages so far.
    fn begin(&mut self, messages: Vec<Bytes>, stream: &AnswerStream) -> Bytes {
        let Some(writer) = &mut self.writer else { return Bytes::new() };
        let mut out = BytesMut::from(&writer.begin(|| stream.instead(GATEWAY_LOST))[..]);
        messages.into_iter().for_each(|data| writer.write(data, &mut out));
        out.freeze()
    }

    async fn write_first(&mut self, first: Bytes) -> Option<StreamEnd> {
        if first.is_empty() || self.exchange.write(first).await || self.lose().await {
            return None;
        }
        Some(StreamEnd::Gone)
    }

    /// Passes on an item and all that are there already, in one write.
    async fn pass_on(&mut self, item: StreamItem, stream: &mut AnswerStream) -> Option<StreamEnd> {
        let (mut out, mut item) = (BytesMut::new(), item);
        let batch = loop {
            match item {
                StreamItem::Message(data) => self.encode(data, &mut out),
                StreamItem::Last(data) => {
                    self.encode(data, &mut out);
                    break BatchEnd::Last;
                }
                StreamItem::Replayed(event) => replayed(event, &mut out),
                StreamItem::End => break BatchEnd::End,
            }
            if out.len() >= BATCH {
                break BatchEnd::More;
            }
            match stream.next_ready().await {
                Some(next) => item = next,
                None => break BatchEnd::More,
            }
        };
        if batch == BatchEnd::More {
            return (!self.write(out.freeze(), false).await).then_some(StreamEnd::Gone);
        }
        if batch == BatchEnd::Last || !out.is_empty() {
            self.write(out.freeze(), batch == BatchEnd::Last).await;
        }
        if batch == BatchEnd::End {
            self.end(stream.instead(UNANSWERED)).await;
        }
        if let Some(writer) = self.writer.as_mut().filter(|writer| !writer.is_whole())
            && let Some(instead) = stream.instead(NOT_KEPT)
        {
            writer.instead(&instead);
        }
        Some(self.ended())
    }

    fn encode(&mut self, data: Bytes, out: &mut BytesMut) {
        match &mut self.writer {
            Some(writer) => writer.write(data, out),
            None => sse::encode(&Event::message(data), out),
        }
    }

    /// The end of a stream. A client that may resume it would come back for ever for an answer that is not there.
    async fn end(&mut self, instead: Option<Bytes>) {
        let unanswered = self.writer.as_ref().is_some_and(|writer| writer.is_whole() && !writer.ends_with_answer());
        match instead.filter(|_| unanswered) {
            Some(instead) => {
                let mut out = BytesMut::new();
                self.encode(instead, &mut out);
                self.write(out.freeze(), true).await;
            }
            None => self.exchange.end().await,
        }
    }

    /// Ends a stream that would go on.
    async fn close(&mut self, close: StreamClose) -> StreamEnd {
        let mut out = BytesMut::new();
        match close {
            StreamClose::Answer(data) => sse::encode(&Event::message(data), &mut out),
            StreamClose::Retry => out.extend_from_slice(RETRY),
            StreamClose::Nothing => {}
        }
        self.exchange.end_with(out.freeze()).await;
        self.ended()
    }

    /// Writes; false if nobody is there and nobody may come back.
    async fn write(&mut self, bytes: Bytes, last: bool) -> bool {
        if self.is_here && self.writer.as_ref().is_some_and(|writer| writer.is_taken_over()) {
            return self.lose().await;
        }
        if !self.is_here {
            return true;
        }
        let written = match last {
            true => self.exchange.end_with(bytes).await,
            false => bytes.is_empty() || self.exchange.write(bytes).await,
        };
        written || self.lose().await
    }

    async fn keep_alive(&mut self) -> bool {
        if self.writer.as_ref().is_some_and(|writer| writer.is_taken_over()) {
            return self.lose().await;
        }
        self.exchange.write(Bytes::from_static(sse::KEEP_ALIVE)).await || self.lose().await
    }

    /// The client is gone from this connection; false if there is no use in going on.
    async fn lose(&mut self) -> bool {
        self.is_here = false;
        self.exchange.leave().await;
        self.left = self.writer.as_ref().and_then(|writer| writer.leave());
        self.left.is_some()
    }

    const fn ended(&self) -> StreamEnd {
        if self.is_here { StreamEnd::Well } else { StreamEnd::Gone }
    }
}

fn replayed(event: ReplayedEvent, out: &mut BytesMut) {
    sse::encode(&Event { id: Some(event.id), ..Event::message(event.data) }, out);
}

const UNANSWERED: &str = "its event stream ended before the answer";
const NOT_KEPT: &str =
    "its answer is larger than what is kept for a client that comes back; see `limits.replay_buffer`";

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;

    /// A timer that is due is not always ready when it is looked at first.
    #[tokio::test]
    async fn what_is_over_is_over_at_the_first_look() {
        let mut looked = Context::from_waker(Waker::noop());
        let mut is_ready = |end| pin!(passes(end)).poll(&mut looked).is_ready();
        for _ in 0..100 {
            assert!(is_ready(Some(SystemTime::now())) && is_ready(Some(SystemTime::UNIX_EPOCH)));
        }
        assert!(!is_ready(Some(SystemTime::now() + Duration::from_secs(60))) && !is_ready(None));
    }
}
