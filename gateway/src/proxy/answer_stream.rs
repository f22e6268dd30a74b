//! An answer that comes as a stream of messages, pulled one by one. The edge encodes them.

mod changes;
mod upstream;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::watch;
use weir_flow::Failure;
use weir_mcp::{Era, Message, public::PublicNames, status::http_status};

use crate::{
    catalog::{Catalog, ListVersions, SeenLists},
    session::{QueueConsumer, Replay, ReplayWriter, ReplayedEvent, RunningGuard, Session, SessionHold},
    telemetry::CallOutcome,
    upstream::{Listened, SendError, Upstream},
};

use super::{
    Answer, CallLog, RequestContext,
    answer::failure_message,
    approval::ApprovedCall,
    attempt::AttemptSpans,
    deadline::Deadline,
    decided_answer::{DecidedCall, DecidedMessage},
    legacy,
    namespace::Namespace,
    task_owner::TaskOwner,
    translate::{InputItem, InputStream, TranslatedStream, TranslatedSubscription},
    watch::{UpstreamWatch, WatchedPart},
};

pub(super) use changes::{ListFilter, Looker};

use changes::{MergedChanges, Moved, SessionChanges, told};
use upstream::AnsweredRequest;

/// How long an answer is held back for its first message. What comes at once gets the status that it deserves; what takes
/// longer is a stream.
const HELD: Duration = Duration::from_secs(1);

/// A stream of messages and what is needed to end it well.
#[must_use]
pub struct AnswerStream {
    source: StreamSource,
    /// Messages that come before those of the source.
    ready: VecDeque<Bytes>,
    over: bool,
    deadline: Option<Deadline>,
    /// Turns true when what the stream belongs to is over: its session, or what was decided about it.
    ended: Option<watch::Receiver<bool>>,
    /// The request that the stream answers, for an error in its stead.
    answers: Option<AnsweredRequest>,
    /// For the log; none for a stream that is no call.
    pub(super) record: Option<CallLog>,
    found: CallResult,
    /// Whether its client may ask for it again.
    pub keep: KeepStream,
    /// Ends with the stream; when its client cancels it, the stream ends with it.
    running: Option<RunningGuard>,
    /// It has been cancelled.
    cancelled: bool,
    /// The upstream turned out to speak the other era only. Nothing has been answered.
    other_era: bool,
    /// The approved call that it answers.
    pub(super) approved: Option<Box<ApprovedCall>>,
    /// The policies that decide about it, and the part that they decide about.
    decided: Option<Box<DecidedCall>>,
    deciding: Option<StreamItem>,
    /// Whose the tasks are that it tells of.
    owner: Option<Box<TaskOwner>>,
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
    Begun(SessionHold, Box<ReplayWriter>),
    /// The session's own stream, and what its client has missed of it.
    Own(Arc<Session>, Vec<ReplayedEvent>),
}

/// The next part of a stream.
#[derive(Debug)]
pub enum StreamItem {
    /// A message.
    Message(Bytes),
    /// The last message.
    Last(Bytes),
    /// An event of a stream that the client resumes.
    Replayed(ReplayedEvent),
    /// The stream is at its end.
    End,
}

/// What ends a stream that Weir closes of its own accord.
pub enum StreamClose {
    /// The answer to a subscription (MCP 2026-07-28, basic/utilities/subscriptions).
    Answer(Bytes),
    /// A legacy client hears when to come back.
    Retry,
    /// Nothing.
    Nothing,
}

/// What the log is told of a stream.
#[derive(Default)]
struct CallResult {
    outcome: Option<CallOutcome>,
    failure: Option<String>,
    /// How the stream broke, for the span of its attempt.
    broken: Option<SendError>,
    attempts: Option<u32>,
}

#[allow(clippy::large_enum_variant, reason = "nearly all are of an upstream; a box would cost each call an allocation")]
enum StreamSource {
    /// What an upstream says about a request of its client's own era; on `/mcp` something in it may need a name of Weir's
    /// own.
    Upstream { events: Listened, era: Era, namespace: Option<Box<Namespace>> },
    /// What waits for a session; on `/mcp` with the changes of the merged lists.
    Queue { consumer: QueueConsumer, changes: Option<SessionChanges> },
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
    /// The answer of a modern upstream to a legacy client.
    InputLoop(Box<InputStream>),
    /// Nothing at all.
    Nothing,
}

impl CallResult {
    fn write_to(&mut self, record: &mut CallLog) {
        if let Some(outcome) = self.outcome.take() {
            record.outcome = outcome;
        }
        if let Some(failure) = self.failure.take() {
            record.failure = Some(failure);
        }
        if let Some(why) = self.broken.take() {
            AttemptSpans::new(record.span.as_ref()).fail(&why);
        }
        if let Some(attempts) = self.attempts.take() {
            record.attempts = attempts;
        }
    }
}

impl AnswerStream {
    /// The answer of an upstream to a request.
    pub(super) fn relayed(
        context: &RequestContext,
        catalog: &Arc<Catalog>,
        upstream: &Arc<Upstream>,
        events: Listened,
        asked: Option<PublicNames>,
        running: Option<RunningGuard>,
        deadline: Option<Deadline>,
    ) -> Self {
        let token = context.message.progress_token().map(Bytes::copy_from_slice);
        let namespace = context.endpoint.is_merged().then(|| {
            Box::new(Namespace {
                catalog: Arc::clone(catalog),
                upstream: Arc::clone(upstream),
                session: context.session.clone(),
                run: running.as_ref().map(|running| Arc::clone(&running.run)),
                token: token.clone(),
                asked: asked.unwrap_or_default(),
            })
        });
        let answers = AnsweredRequest { token, ..AnsweredRequest::new(id_of(&context.message), upstream) };
        let source = StreamSource::Upstream { events, era: context.era, namespace };
        Self { answers: Some(answers), deadline, running, ..Self::new(source) }
    }

    /// The end of a request that its client has cancelled: no answer.
    pub(super) fn nothing() -> Self {
        Self { over: true, cancelled: true, ..Self::new(StreamSource::Nothing) }
    }

    /// What waits for a session, and what it has not been told yet of the merged lists.
    pub(super) fn queue(consumer: QueueConsumer, changes: Option<SessionChanges>) -> Self {
        let mut changes = changes;
        if let Some((changes, ..)) = &mut changes {
            changes.mark_changed();
        }
        Self::new(StreamSource::Queue { consumer, changes })
    }

    /// Changes of the merged lists, after those that the client has seen, and of what it watches, until it is `moved`.
    pub(super) fn subscription(
        id: &[u8],
        changes: ((watch::Receiver<ListVersions>, ListVersions), (SeenLists, Looker)),
        wants: ListFilter,
        (granted, moved): ((WatchedPart, Option<UpstreamWatch>), Moved),
    ) -> Self {
        Self::new(StreamSource::Subscription(Box::new(MergedChanges::new(id, changes, wants, granted, moved))))
    }

    /// The rest of a stream whose client has come back.
    pub(super) fn replay(replay: Box<Replay>) -> Self {
        Self::new(StreamSource::Replay(replay))
    }

    /// A message that is all there is.
    pub fn ready(message: Bytes) -> Self {
        Self::new(StreamSource::Ready(message))
    }

    /// The same stream, which its client may ask for again.
    pub fn keep(mut self, keep: KeepStream) -> Self {
        self.keep = keep;
        self
    }

    /// The same stream, which ends when this turns true.
    pub(super) fn until(self, ended: impl Into<Option<watch::Receiver<bool>>>) -> Self {
        Self { ended: ended.into(), ..self }
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

    /// The answer of a modern upstream to a legacy client's request.
    pub(super) fn input_loop(
        stream: InputStream,
        request: &Message,
        upstream: &Arc<Upstream>,
        deadline: Deadline,
    ) -> Self {
        let answers = Some(AnsweredRequest::new(id_of(request), upstream));
        let source = StreamSource::InputLoop(Box::new(stream));
        Self { answers, deadline: Some(deadline), ..Self::new(source) }
    }

    fn new(source: StreamSource) -> Self {
        Self {
            source,
            ready: VecDeque::new(),
            over: false,
            deadline: None,
            ended: None,
            answers: None,
            record: None,
            found: CallResult::default(),
            keep: KeepStream::Nothing,
            running: None,
            cancelled: false,
            other_era: false,
            approved: None,
            decided: None,
            deciding: None,
            owner: None,
        }
    }

    /// The answer to its client of this era: whole if it is here soon, else a stream that ends with it. The request is
    /// given back if the upstream speaks the other era only.
    pub(super) async fn answer(mut self, era: Era, record: &mut CallLog) -> Result<Answer, Option<RunningGuard>> {
        let first = tokio::time::timeout(HELD, self.next()).await;
        if let (true, StreamSource::InputLoop(stream)) = (self.other_era, &mut self.source) {
            return Err(stream.take_running());
        }
        match first {
            Ok(StreamItem::Last(message)) => {
                self.found.write_to(record);
                record.note_error(record.outcome, &message);
                let code = || Message::parse(message.clone()).ok()?.error_code();
                let refused = era == Era::Modern && record.outcome == CallOutcome::Error;
                let status = if refused { code().map_or(200, |code| http_status(era, code)) } else { 200 };
                return Ok(Answer::whole(status, message));
            }
            Ok(StreamItem::Message(message)) => self.ready.push_front(message),
            Ok(StreamItem::Replayed(_) | StreamItem::End) | Err(_) => {}
        }
        Ok(Answer::events(self))
    }

    /// The same stream, about which policies decide before the client gets it.
    pub(super) fn decide_with(&mut self, call: Box<DecidedCall>) {
        self.decided = Some(call);
    }

    /// The same stream, with the ids of tasks that their owner knows.
    pub(super) fn mark_with(&mut self, owner: Box<TaskOwner>) {
        self.owner = Some(owner);
    }

    /// The next part. Cancel-safe.
    pub async fn next(&mut self) -> StreamItem {
        let item = self.next_unmarked().await;
        self.marked(item)
    }

    fn marked(&self, mut item: StreamItem) -> StreamItem {
        if let (Some(owner), StreamItem::Message(message) | StreamItem::Last(message)) = (&self.owner, &mut item)
            && let Some(marked) = owner.marked(message)
        {
            *message = marked;
        }
        item
    }

    async fn next_unmarked(&mut self) -> StreamItem {
        loop {
            if self.deciding.is_none() {
                let item = self.next_undecided().await;
                // What Weir says itself is no answer of the upstream.
                if self.decided.is_none() || self.found.failure.is_some() {
                    return item;
                }
                self.deciding = Some(item);
            }
            if let Some(item) = self.decide().await {
                return item;
            }
        }
    }

    /// What becomes of the part that is there; nothing if the client does not get it. Cancel-safe.
    async fn decide(&mut self) -> Option<StreamItem> {
        let (Some(call), Some(StreamItem::Message(message) | StreamItem::Last(message))) =
            (&mut self.decided, &self.deciding)
        else {
            return Some(self.deciding.take().unwrap_or(StreamItem::End));
        };
        let decided = call.decide(message).await;
        let was_last = matches!(self.deciding.take(), Some(StreamItem::Last(_)));
        match decided {
            DecidedMessage::Pass(message) if was_last => Some(StreamItem::Last(message)),
            DecidedMessage::Pass(message) => Some(StreamItem::Message(message)),
            DecidedMessage::Drop => None,
            DecidedMessage::Cut(message, why) => {
                self.give_up();
                if let (Some(AnsweredRequest { upstream, .. }), Some(running)) = (&self.answers, &self.running) {
                    legacy::cancel(upstream, running);
                }
                (self.source, self.over) = (StreamSource::Nothing, true);
                self.ready.clear();
                (self.found.outcome, self.found.failure) = (Some(CallOutcome::Denied), Some(why));
                Some(StreamItem::Last(message))
            }
        }
    }

    async fn next_undecided(&mut self) -> StreamItem {
        if let Some(message) = self.ready.pop_front() {
            return StreamItem::Message(message);
        }
        if self.over {
            return StreamItem::End;
        }
        let pulled = self.wait().await;
        self.settle(pulled)
    }

    /// The next part, if it is there already.
    pub async fn next_ready(&mut self) -> Option<StreamItem> {
        if self.decided.is_some() || self.owner.is_some() {
            return None;
        }
        if let Some(message) = self.ready.pop_front() {
            return Some(StreamItem::Message(message));
        }
        if self.over {
            return None;
        }
        let pulled = tokio::select! {
            biased;
            pulled = self.pull() => pulled,
            () = std::future::ready(()) => return None,
        };
        Some(self.settle(pulled))
    }

    fn settle(&mut self, pulled: Result<StreamItem, SendError>) -> StreamItem {
        let item = pulled.unwrap_or_else(|why| self.fail(why));
        self.over |= matches!(item, StreamItem::Last(_) | StreamItem::End);
        // Whoever takes the answer slowly keeps nobody from calling.
        if let Some(record) = self.record.as_mut().filter(|_| self.over) {
            record.release();
            if let (StreamItem::Last(answer), Some(outcome)) = (&item, self.found.outcome) {
                record.note_error(outcome, answer);
            }
        }
        if let (StreamItem::Last(answer), Some(approved)) = (&item, &self.approved) {
            approved.answered(answer);
        }
        item
    }

    /// The next part, or the end of the request, the time or the session that it belongs to.
    async fn wait(&mut self) -> Result<StreamItem, SendError> {
        let running = match &self.source {
            StreamSource::InputLoop(stream) => stream.running(),
            _ => self.running.as_ref(),
        };
        let Some(run) = running.map(|running| Arc::clone(&running.run)) else {
            return self.wait_longer().await;
        };
        tokio::select! {
            biased;
            next = self.wait_longer() => next,
            () = run.cancelled() => {
                self.cancelled = true;
                self.give_up();
                Ok(StreamItem::End)
            }
        }
    }

    async fn wait_longer(&mut self) -> Result<StreamItem, SendError> {
        if let Some(mut ended) = self.ended.clone() {
            return tokio::select! {
                next = self.pull() => next,
                _ = ended.wait_for(|ended| *ended) => Ok(self.closing()),
            };
        }
        match self.deadline {
            None => self.pull().await,
            Some(deadline) => {
                tokio::time::timeout_at(deadline.at.into(), self.pull()).await.unwrap_or(Err(SendError::TimedOut))
            }
        }
    }

    async fn pull(&mut self) -> Result<StreamItem, SendError> {
        match &mut self.source {
            StreamSource::Upstream { .. } => self.pull_upstream().await,
            StreamSource::Queue { consumer, changes } => {
                let news = tokio::select! {
                    message = consumer.next() => return Ok(message.map_or(StreamItem::End, StreamItem::Message)),
                    news = told(changes) => news,
                };
                Ok(self.first_of(news))
            }
            StreamSource::Replay(replay) => Ok(replay.next().await.map_or(StreamItem::End, StreamItem::Replayed)),
            StreamSource::Ready(message) => Ok(StreamItem::Last(std::mem::take(message))),
            StreamSource::Nothing => Ok(StreamItem::End),
            StreamSource::Translated(stream) => {
                let (message, last) = stream.next().await?;
                if let Some(deadline) = self.deadline.as_mut().filter(|_| stream.has_progressed()) {
                    deadline.put_off();
                }
                if last {
                    self.found.outcome = Some(stream.outcome());
                }
                Ok(if last { StreamItem::Last(message) } else { StreamItem::Message(message) })
            }
            StreamSource::Subscribed(subscription) => {
                let (message, last) = subscription.next().await;
                Ok(if last { StreamItem::Last(message) } else { StreamItem::Message(message) })
            }
            StreamSource::InputLoop(stream) => {
                let item = stream.next().await;
                self.found.attempts = Some(stream.attempts());
                match item {
                    InputItem::Message { message, progress } => {
                        if let Some(deadline) = self.deadline.as_mut().filter(|_| progress) {
                            deadline.put_off();
                        }
                        Ok(StreamItem::Message(message))
                    }
                    InputItem::Answer { message, outcome, failure } => {
                        (self.found.outcome, self.found.failure) = (Some(outcome), failure);
                        Ok(StreamItem::Last(message))
                    }
                    InputItem::OtherEra => {
                        self.other_era = true;
                        Err(SendError::SessionLost)
                    }
                }
            }
            StreamSource::Subscription(changes) => {
                let news = changes.next().await;
                Ok(if news.is_empty() { self.closing() } else { self.first_of(news) })
            }
        }
    }

    /// Gives up what an upstream is still asked for: nobody waits for it any more.
    fn give_up(&mut self) {
        if let StreamSource::InputLoop(stream) = &mut self.source {
            stream.give_up();
        }
    }

    /// The first of some messages; the others come next. None is the end.
    fn first_of(&mut self, messages: Vec<Bytes>) -> StreamItem {
        let mut messages = messages.into_iter();
        let first = messages.next().map_or(StreamItem::End, StreamItem::Message);
        self.ready.extend(messages);
        first
    }

    /// Whether it goes on until somebody ends it.
    pub const fn is_endless(&self) -> bool {
        self.deadline.is_none()
    }

    /// Whether it ended because its client has cancelled the request, and is to hear nothing more (2025-11-25,
    /// basic/utilities/cancellation).
    pub const fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// What the log says of the stream, which is at its end; none for a stream that is no call.
    pub fn take_log(&mut self) -> Option<CallLog> {
        let mut record = self.record.take()?;
        self.found.write_to(&mut record);
        Some(record)
    }

    /// What to give in place of an answer that was to be kept and is not there; none for what answers nothing.
    pub fn instead(&self, why: &str) -> Option<Bytes> {
        let AnsweredRequest { id, upstream, .. } = self.answers.as_ref().filter(|_| !self.cancelled)?;
        Some(failure_message(Some(id), upstream.name(), &Failure::NotMcp(why.into())))
    }

    /// Ends a broken stream with an error in place of the answer, where the client can still read one.
    fn fail(&mut self, why: SendError) -> StreamItem {
        self.give_up();
        self.found.broken = Some(why.clone());
        let failure = match (why, &self.deadline, &self.answers) {
            (SendError::TimedOut, Some(deadline), Some(AnsweredRequest { upstream, .. })) => {
                if let Some(running) = &self.running {
                    legacy::cancel(upstream, running);
                }
                match self.source {
                    StreamSource::InputLoop(_) => Failure::TimedOut(upstream.timeouts.overall),
                    _ => Failure::NotMcp(format!("its event stream went on for longer than `{}`", deadline.key())),
                }
            }
            (why, _, _) => why.into(),
        };
        self.found.failure = Some(failure.to_string());
        match &self.answers {
            Some(AnsweredRequest { id, upstream, .. }) => {
                StreamItem::Last(failure_message(Some(id), upstream.name(), &failure))
            }
            None => StreamItem::End,
        }
    }
}

fn broken() -> SendError {
    SendError::NotMcp("its event stream ended before the answer".into())
}

fn id_of(request: &Message) -> &[u8] {
    request.id().unwrap_or(b"null")
}
