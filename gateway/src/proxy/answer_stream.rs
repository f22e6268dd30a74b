//! An event stream on its way to a client, pulled piece by piece.

mod changes;
mod upstream;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, watch};
use weir_flow::Failure;
use weir_mcp::{Era, public::PublicNames, sse};

use crate::{
    catalog::{Catalog, ListVersions},
    session::{Endpoint, QueueConsumer, Replay, ReplayWriter, RunningGuard, RunningRequest, Session},
    upstream::{Listened, SendError, Upstream},
};

use super::{
    CallLog, RequestContext,
    answer::failure_message,
    deadline::Deadline,
    drive,
    namespace::Namespace,
    translate::{ClientMessage, StreamItem, TranslatedStream, TranslatedSubscription},
    watch::{UpstreamWatch, WatchedPart},
};

pub(super) use changes::ListFilter;

use changes::{MergedChanges, meta, told};
use upstream::AnsweredRequest;

/// How much is gathered into one write, in bytes.
const BATCH: usize = 64 * 1024;

/// What ends a stream that Weir closes of its own accord: how long to wait before coming back, in milliseconds.
pub const RETRY: &[u8] = b"retry: 1000\n\n";

/// A stream and what is needed to end it well.
pub struct AnswerStream {
    source: StreamSource,
    out: BytesMut,
    over: bool,
    /// An end that was found while more was looked for.
    ahead: Option<Result<Option<Bytes>, SendError>>,
    deadline: Option<Deadline>,
    /// Turns true when the session is over that the stream belongs to.
    ended: Option<watch::Receiver<bool>>,
    /// The request that the stream answers, for an error in its stead.
    answers: Option<AnsweredRequest>,
    /// For the log; none for a stream that is no call.
    pub record: Option<CallLog>,
    /// Whether its client may ask for it again.
    pub keep: KeepStream,
    /// Ends with the stream; when its client cancels it, the stream ends with it.
    running: Option<RunningGuard>,
    /// It has been cancelled.
    cancelled: bool,
}

/// Whether a stream's client may ask for it again.
#[derive(Default)]
pub enum KeepStream {
    /// It may not.
    #[default]
    Nothing,
    /// The answer to a request of this session.
    Answer(Arc<Session>),
    /// The same, of which the start is out already.
    Begun(Arc<Session>, Box<ReplayWriter>),
    /// The session's own stream, and what its client has missed of it.
    Own(Arc<Session>, Vec<Bytes>),
}

/// The next piece of a stream.
pub enum StreamChunk {
    /// Bytes to be written.
    Bytes(Bytes),
    /// Bytes to be written, after which the stream is at its end.
    Last(Bytes),
    /// The stream is at its end.
    End,
}

#[allow(clippy::large_enum_variant, reason = "nearly all are of an upstream; a box would cost each call an allocation")]
enum StreamSource {
    /// What an upstream says about a request of its client's own era; on `/mcp` something in it may need a name of Weir's
    /// own.
    Upstream { events: Listened, era: Era, namespace: Option<Box<Namespace>> },
    /// What waits for a session; on `/mcp` with the changes of the merged lists.
    Outbox { taken: QueueConsumer, changes: Option<(watch::Receiver<ListVersions>, Arc<Session>)> },
    /// Changes of the merged lists, for a modern client that listens on `/mcp`.
    Subscription(Box<MergedChanges>),
    /// The answer of a legacy upstream to a modern client.
    Translated(Box<TranslatedStream>),
    /// What a legacy upstream says of its own accord, for a modern client.
    Subscribed(TranslatedSubscription),
    /// The rest of a stream whose client has come back.
    Replay(Box<Replay>),
    /// A message that is all there is.
    Ready(Bytes),
    /// The answer of a modern upstream to a legacy client; the message is one that was read ahead.
    Rounds { first: Option<ClientMessage>, heard: mpsc::Receiver<StreamItem>, run: Arc<RunningRequest> },
    /// Nothing at all.
    Nothing,
}

impl AnswerStream {
    /// The answer of an upstream to a request.
    pub(super) fn relayed(
        context: &RequestContext,
        catalog: &Arc<Catalog>,
        (place, upstream): (usize, &Arc<Upstream>),
        events: Listened,
        asked: Option<PublicNames>,
        running: Option<RunningGuard>,
        deadline: Option<Deadline>,
    ) -> Self {
        let token = context.message.progress_token().map(Bytes::copy_from_slice);
        let namespace = (context.endpoint == Endpoint::All).then(|| {
            Box::new(Namespace {
                catalog: Arc::clone(catalog),
                upstream: place,
                session: context.session.clone(),
                run: running.as_ref().map(|running| Arc::clone(&running.run)),
                token: token.clone(),
                asked: asked.unwrap_or_default(),
            })
        });
        let answers =
            AnsweredRequest { token, ..AnsweredRequest::new(context.message.id().unwrap_or(b"null"), upstream) };
        let source = StreamSource::Upstream { events, era: context.era, namespace };
        Self { answers: Some(answers), deadline, running, ..Self::new(source) }
    }

    /// The end of a request that its client has cancelled: no answer.
    pub(super) fn nothing() -> Self {
        Self { over: true, cancelled: true, ..Self::new(StreamSource::Nothing) }
    }

    /// What waits for a session, and what it has not been told yet of the merged lists.
    pub(super) fn outbox(taken: QueueConsumer, changes: Option<(watch::Receiver<ListVersions>, Arc<Session>)>) -> Self {
        let mut changes = changes;
        if let Some((changes, _)) = &mut changes {
            changes.mark_changed();
        }
        Self::new(StreamSource::Outbox { taken, changes })
    }

    /// Changes of the merged lists, after those that the client has seen.
    pub(super) fn subscription(
        id: &[u8],
        changes: (watch::Receiver<ListVersions>, ListVersions),
        wants: ListFilter,
        granted: (WatchedPart, Option<UpstreamWatch>),
    ) -> Self {
        Self::new(StreamSource::Subscription(Box::new(MergedChanges::new(id, changes, wants, granted))))
    }

    /// The rest of a stream whose client has come back.
    pub(super) fn replay(replay: Box<Replay>) -> Self {
        Self::new(StreamSource::Replay(replay))
    }

    /// A message that is all there is.
    #[must_use]
    pub fn ready(message: Bytes) -> Self {
        Self::new(StreamSource::Ready(message))
    }

    /// The same stream, which its client may ask for again.
    #[must_use]
    pub fn keep(mut self, keep: KeepStream) -> Self {
        self.keep = keep;
        self
    }

    /// The same stream, which ends when its session does.
    #[must_use]
    pub(super) fn until(self, ended: watch::Receiver<bool>) -> Self {
        Self { ended: Some(ended), ..self }
    }

    /// The answer of a legacy upstream to a modern client; `id` is the request's.
    pub(super) fn translated(
        stream: TranslatedStream,
        id: &[u8],
        upstream: &Arc<Upstream>,
        deadline: Deadline,
    ) -> Self {
        let answers = Some(AnsweredRequest::new(id, upstream));
        Self { answers, deadline: Some(deadline), ..Self::new(StreamSource::Translated(Box::new(stream))) }
    }

    /// What a legacy upstream says of its own accord, for a modern client.
    pub(super) fn subscribed(subscription: TranslatedSubscription) -> Self {
        Self::new(StreamSource::Subscribed(subscription))
    }

    /// The answer of a modern upstream to a legacy client's request with this raw id.
    pub(super) fn input_loop(
        first: Option<ClientMessage>,
        (heard, run): (mpsc::Receiver<StreamItem>, Arc<RunningRequest>),
        id: &[u8],
        upstream: &Arc<Upstream>,
        deadline: Deadline,
    ) -> Self {
        let answers = Some(AnsweredRequest::new(id, upstream));
        Self { answers, deadline: Some(deadline), ..Self::new(StreamSource::Rounds { first, heard, run }) }
    }

    fn new(source: StreamSource) -> Self {
        Self {
            source,
            out: BytesMut::new(),
            over: false,
            ahead: None,
            deadline: None,
            ended: None,
            answers: None,
            record: None,
            keep: KeepStream::Nothing,
            running: None,
            cancelled: false,
        }
    }

    /// The next piece: all that is there already, so that a burst of events is one write. Cancel-safe.
    pub async fn next(&mut self) -> StreamChunk {
        let first = match self.ahead.take() {
            Some(ended) => ended,
            None if self.over => Ok(None),
            None => self.wait().await,
        };
        match first {
            Ok(Some(bytes)) => {
                let bytes = self.with_what_is_there(bytes).await;
                let ended = self.ahead.take_if(|ahead| matches!(ahead, Ok(None))).is_some();
                self.over |= ended;
                if self.over && self.ahead.is_none() { StreamChunk::Last(bytes) } else { StreamChunk::Bytes(bytes) }
            }
            Ok(None) => {
                self.over = true;
                StreamChunk::End
            }
            Err(why) => self.fail(why),
        }
    }

    /// The next piece, or the end of the request, the time or the session that it belongs to.
    async fn wait(&mut self) -> Result<Option<Bytes>, SendError> {
        let Some(run) = self.running.as_ref().map(|running| Arc::clone(&running.run)) else {
            return self.wait_longer().await;
        };
        tokio::select! {
            biased;
            next = self.wait_longer() => next,
            () = run.cancelled() => {
                self.cancelled = true;
                Ok(None)
            }
        }
    }

    async fn wait_longer(&mut self) -> Result<Option<Bytes>, SendError> {
        if let Some(mut ended) = self.ended.clone() {
            return tokio::select! {
                next = self.pull() => next,
                _ = ended.wait_for(|ended| *ended) => Ok(None),
            };
        }
        match self.deadline {
            None => self.pull().await,
            Some(deadline) => {
                tokio::time::timeout_at(deadline.at().into(), self.pull()).await.unwrap_or(Err(SendError::TimedOut))
            }
        }
    }

    async fn with_what_is_there(&mut self, first: Bytes) -> Bytes {
        let mut whole: Option<BytesMut> = None;
        while !self.over && whole.as_ref().map_or(first.len(), BytesMut::len) < BATCH {
            let more = tokio::select! {
                biased;
                more = self.pull() => more,
                () = std::future::ready(()) => break,
            };
            match more {
                Ok(Some(bytes)) => whole.get_or_insert_with(|| BytesMut::from(&first[..])).extend_from_slice(&bytes),
                ended => {
                    self.ahead = Some(ended);
                    break;
                }
            }
        }
        whole.map_or(first, BytesMut::freeze)
    }

    /// Whether it goes on until somebody ends it.
    #[must_use]
    pub const fn is_endless(&self) -> bool {
        self.deadline.is_none()
    }

    /// What the gateway says on an endless stream when it stops: a subscription is answered at last (MCP 2026-07-28,
    /// basic/utilities/subscriptions); a legacy client hears when to come back.
    pub fn farewell(&mut self) -> Bytes {
        let id = match (&self.source, &self.answers) {
            (StreamSource::Outbox { .. } | StreamSource::Replay(_), _) => return Bytes::from_static(RETRY),
            (StreamSource::Subscription(merging), _) => &merging.id,
            (StreamSource::Upstream { .. }, Some(AnsweredRequest { id, .. })) => id,
            _ => return Bytes::new(),
        };
        let result = format!(r#"{{"resultType":"complete","_meta":{}}}"#, meta(id));
        let id = String::from_utf8_lossy(id);
        encoded(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#).into(), &mut self.out)
    }

    async fn pull(&mut self) -> Result<Option<Bytes>, SendError> {
        match &mut self.source {
            StreamSource::Upstream { .. } => self.pull_upstream().await,
            StreamSource::Outbox { taken, changes } => tokio::select! {
                message = taken.next() => Ok(message.map(|message| encoded(message, &mut self.out))),
                news = told(changes) => Ok(news.into_iter().map(|data| encoded(data, &mut self.out)).reduce(joined)),
            },
            StreamSource::Replay(replay) => Ok(replay.next().await),
            StreamSource::Ready(message) => {
                self.over = true;
                Ok(Some(encoded(std::mem::take(message), &mut self.out)))
            }
            StreamSource::Nothing => Ok(None),
            StreamSource::Translated(stream) => {
                let (message, last) = stream.next().await?;
                if let Some(deadline) = self.deadline.as_mut().filter(|_| stream.has_progressed()) {
                    deadline.put_off();
                }
                self.over = last;
                if let (true, Some(record)) = (last, &mut self.record) {
                    record.outcome = stream.outcome();
                }
                Ok(Some(encoded(message, &mut self.out)))
            }
            StreamSource::Subscribed(subscription) => {
                let (message, last) = subscription.next().await;
                self.over = last;
                Ok(Some(encoded(message, &mut self.out)))
            }
            StreamSource::Rounds { first, heard, run } => {
                let piece = match first.take() {
                    Some(said) => Some(StreamItem::Said(said)),
                    None => heard.recv().await,
                };
                let Some(piece) = piece else {
                    // Whoever works on it ends without a word when it is cancelled, and otherwise never on purpose.
                    self.cancelled = run.is_cancelled();
                    return if self.cancelled { Ok(None) } else { Err(broken()) };
                };
                let StreamItem::Said(ClientMessage { message, last, attempts, outcome, failure }) = piece else {
                    return Err(SendError::SessionLost);
                };
                if let Some(record) = &mut self.record {
                    record.attempts = attempts;
                    (record.outcome, record.failure) = (outcome, failure);
                }
                self.over = last;
                Ok(Some(encoded(message, &mut self.out)))
            }
            StreamSource::Subscription(merging) => {
                let news = merging.next().await;
                Ok(news.into_iter().map(|data| encoded(data, &mut self.out)).reduce(joined))
            }
        }
    }

    /// Whether it ended because its client has cancelled the request, and is to hear nothing more (2025-11-25,
    /// basic/utilities/cancellation).
    #[must_use]
    pub const fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// What to give in place of an answer that was to be kept and is not there; none for what answers nothing.
    pub fn instead(&mut self, why: &str) -> Option<Bytes> {
        let AnsweredRequest { id, upstream, .. } = self.answers.as_ref().filter(|_| !self.cancelled)?;
        let message = failure_message(Some(id), upstream.name(), &Failure::NotMcp(why.into()));
        Some(encoded(message, &mut self.out))
    }

    /// Ends a broken stream with an error in place of the answer, where the client can still read one.
    fn fail(&mut self, why: SendError) -> StreamChunk {
        self.over = true;
        let failure = match (why, &self.deadline) {
            (SendError::TimedOut, Some(deadline)) => {
                if let (Some(running), Some(answers)) = (&self.running, &self.answers) {
                    drive::cancel(&answers.upstream, running);
                }
                Failure::NotMcp(format!("its event stream went on for longer than `{}`", deadline.key()))
            }
            (why, _) => why.into(),
        };
        if let Some(record) = &mut self.record {
            record.failure = Some(failure.to_string());
        }
        let Some(AnsweredRequest { id, upstream, .. }) = &self.answers else { return StreamChunk::End };
        StreamChunk::Last(encoded(failure_message(Some(id), upstream.name(), &failure), &mut self.out))
    }
}

fn broken() -> SendError {
    SendError::NotMcp("its event stream ended before the answer".into())
}

fn encoded(data: Bytes, out: &mut BytesMut) -> Bytes {
    sse::encode(&sse::Event::message(data), out);
    out.split().freeze()
}

fn joined(a: Bytes, b: Bytes) -> Bytes {
    [a, b].concat().into()
}
