//! An event stream over HTTP, which is taken up again where it broke.
//!
//! A legacy server may put an id on each event and may close a stream on purpose, to be asked for the rest later (MCP
//! 2025-11-25, basic/transports, "Resumability and Redelivery"). Whoever reads the stream here notices neither that nor
//! a connection that broke: a GET with the last id goes on where the stream was, after as long as the server wished.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::task::JoinSet;
use weir_mcp::{
    Message,
    message::Kind,
    sse::{self, Decoder, Event, LastData, Splitter},
};

use crate::{
    caller::Caller,
    http::{HeaderValue, Response},
};

use super::{
    CredentialError, GATHERED, SendError, Upstream, credential::Credential, pause::jittered, streamable::Endpoint,
};

/// How much of an event is held back so that the stream can go on elsewhere behind it, in bytes.
const HELD: usize = 64 * 1024;

/// How long to wait before a stream is taken up again, unless its server says otherwise.
const PAUSE: Duration = Duration::from_secs(1);

/// Below this, a server's wish is not heeded: it would be asked in a tight loop.
const SHORTEST: Duration = Duration::from_millis(20);

/// The longest pause between two tries that failed, unless the server wishes a longer one.
const LONGEST: Duration = Duration::from_secs(10);

/// How many tries in a row may fail, for a stream without and with an answer. Whoever listens to what a server says of its
/// own accord soon wants to know that it is gone.
const FAILURES: [u32; 2] = [1, 5];

/// How often in a row a server may let a stream be taken up and bring nothing, without and with an answer to come. Until
/// it knows the answer, that is its right.
const EMPTY: [u32; 2] = [20, 600];

/// How many ids are remembered, to know what has been delivered.
const REMEMBERED: usize = 256;

/// An event stream of a server.
pub struct Events {
    response: Option<Response>,
    reading: Reading,
    again: Option<Box<Again>>,
    /// Whether it must bring an answer and cannot be taken up again.
    once: bool,
}

/// How the stream is read. It is one way for as long as the first connection lasts.
enum Reading {
    /// Not at all yet.
    Fresh,
    /// Event by event.
    Decoded(Box<Decoder>),
    /// As it comes.
    Split(Box<Splitter>),
}

/// How to go on after the connection.
pub(super) struct Again {
    endpoint: Arc<Endpoint>,
    session: Option<HeaderValue>,
    version: Option<HeaderValue>,
    /// What it was opened with.
    credential: Option<Credential>,
    /// Where the credential of a later connection is from; that of the first one will do where nobody is named.
    bearer: Option<Bearer>,
    /// Whether the stream brings the answer to a request, and ends with it.
    answers: bool,
    delivered: Delivered,
    /// What comes may have come before.
    replaying: bool,
    last_id: Option<HeaderValue>,
    retry: Option<Duration>,
    /// The data of the last event, if the stream was decoded.
    last: Bytes,
    /// Tries in a row that failed, and that brought nothing.
    failures: u32,
    empty: u32,
    /// The next connection, on its way. Kept here, so that a read that is given up loses nothing.
    coming: Option<JoinSet<Result<Response, Failed>>>,
}

/// For whom an upstream was asked.
#[derive(Clone)]
struct Bearer {
    upstream: Arc<Upstream>,
    caller: Option<Arc<Caller>>,
}

/// The request that takes the stream up.
struct Next {
    endpoint: Arc<Endpoint>,
    session: Option<HeaderValue>,
    version: Option<HeaderValue>,
    last: HeaderValue,
}

/// The ids of the events that were delivered, as hashes.
#[derive(Default)]
struct Delivered {
    hasher: RandomState,
    ids: VecDeque<u64>,
    /// Two events in a row had one id, so that ids tell nothing.
    ambiguous: bool,
}

/// Why a stream could not be taken up this time.
enum Failed {
    /// Another time it may be.
    Now(SendError),
    /// It is gone.
    Forever(SendError),
}

impl Events {
    /// The stream that is an answer's body.
    pub(super) fn new(mut response: Response) -> Self {
        // An open stream may rest for as long as it likes; the call's own deadline still holds.
        response.set_read_timeout(None);
        Self { response: Some(response), reading: Reading::Fresh, again: None, once: false }
    }

    /// From now on goes on after the end of the connection.
    pub(super) fn go_on(&mut self, again: Again) {
        self.again = Some(Box::new(again));
    }

    /// From now on has a credential of the time for each connection: between two, a token may end.
    pub(super) fn renew_for(&mut self, upstream: &Arc<Upstream>, caller: Option<&Arc<Caller>>) {
        if let Some(again) = &mut self.again {
            again.bearer = Some(Bearer { upstream: Arc::clone(upstream), caller: caller.cloned() });
        }
    }

    /// From now on an end without an answer is an error.
    pub(super) fn answer_once(&mut self) {
        self.once = true;
    }

    /// The next event; none at the end. Cancel-safe.
    ///
    /// # Errors
    ///
    /// When the connection breaks for good, or what comes is no event stream.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, SendError> {
        if let Reading::Fresh = self.reading {
            self.reading = Reading::Decoded(Box::new(Decoder::new(GATHERED)));
        }
        loop {
            if let Reading::Decoded(decoder) = &mut self.reading
                && let Some(event) = decoder.next_event().map_err(|why| SendError::NotMcp(why.to_string()))?
            {
                if self.again.as_mut().is_none_or(|again| again.is_new(&event)) {
                    return Ok(Some(event));
                }
                continue;
            }
            match self.chunk().await? {
                Some(bytes) => {
                    if let Reading::Decoded(decoder) = &mut self.reading {
                        decoder.feed(&bytes);
                    }
                }
                None => return Ok(None),
            }
        }
    }

    /// The next bytes as they came, where the connection is still the first one; events otherwise. Cancel-safe.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next), and when a stream ends that should have brought an answer.
    pub(super) async fn raw(&mut self, out: &mut BytesMut) -> Result<Option<Bytes>, SendError> {
        if matches!(self.reading, Reading::Fresh) && (self.once || self.again.is_some()) {
            self.reading = Reading::Split(Box::new(Splitter::new(HELD)));
        }
        loop {
            if let Reading::Decoded(_) = self.reading {
                let event = self.next().await?;
                return Ok(event.map(|event| {
                    sse::encode(&event, out);
                    out.split().freeze()
                }));
            }
            let Some(bytes) = self.chunk().await? else { return Ok(None) };
            match (&mut self.reading, &mut self.again) {
                (Reading::Split(splitter), again) => {
                    let note = |id: &_| again.as_mut().into_iter().for_each(|again| again.delivered.note(id));
                    let piece = splitter.push(bytes, note);
                    if !piece.is_empty() {
                        return Ok(Some(piece));
                    }
                }
                // It is another connection by now.
                (Reading::Decoded(decoder), _) => decoder.feed(&bytes),
                _ => return Ok(Some(bytes)),
            }
        }
    }

    /// Takes no more: the answer has come, and nothing is behind it. The connection is kept where it can be; an event
    /// stream that is dropped takes its connection with it.
    pub(super) fn finish(self) {
        if let Some(response) = self.response {
            response.finish();
        }
    }

    /// The next bytes of this connection, or of the next; none at the end.
    async fn chunk(&mut self) -> Result<Option<Bytes>, SendError> {
        loop {
            if let Some(response) = &mut self.response {
                match response.chunk().await {
                    Ok(Some(bytes)) => return Ok(Some(bytes)),
                    Ok(None) => self.ended(None)?,
                    Err(why) => self.ended(Some(why.into()))?,
                }
            }
            let Some(again) = &mut self.again else { return Ok(None) };
            let Some(coming) = &mut again.coming else { return Ok(None) };
            match coming.join_next().await {
                None => return Ok(None),
                Some(Ok(Ok(mut response))) => {
                    response.set_read_timeout(None);
                    self.response = Some(response);
                    // Events may come twice and have to be told apart.
                    self.reading = Reading::Decoded(Box::new(Decoder::new(GATHERED)));
                    again.failures = 0;
                    again.replaying = true;
                }
                Some(Ok(Err(Failed::Now(why)))) => again.try_later(why)?,
                Some(Ok(Err(Failed::Forever(why)))) => return Err(why),
                Some(Err(_)) => return Err(SendError::BrokenOff("its event stream ended".into())),
            }
        }
    }

    /// The connection is over: prepares the next, if there is to be one.
    fn ended(&mut self, broke: Option<SendError>) -> Result<(), SendError> {
        self.response = None;
        let broken = |broke: Option<SendError>| broke.map_or(Ok(()), Err);
        let Some(again) = &mut self.again else {
            let lost = broke.is_none() && self.once && !self.reading.is_answered();
            return if lost { Err(unanswered()) } else { broken(broke) };
        };
        match &self.reading {
            Reading::Decoded(decoder) => again.learn(decoder.last_id().map(str::as_bytes), decoder.retry()),
            Reading::Split(splitter) => {
                again.learn(splitter.last_id(), splitter.retry());
                match splitter.last_data() {
                    LastData::None => {}
                    // So long an event is an answer. And what has been passed on in part cannot be taken back.
                    LastData::TooLong => return broken(broke),
                    last @ LastData::Block(_) => again.last = last.read().unwrap_or_default(),
                }
                if !splitter.is_between_events() {
                    return broken(broke);
                }
            }
            Reading::Fresh => {}
        }
        if again.answers && again.is_answered() {
            return Ok(());
        }
        if again.last_id.is_none() {
            return match broke {
                None if again.answers => Err(unanswered()),
                broke => broken(broke),
            };
        }
        again.empty += 1;
        if again.empty > EMPTY[usize::from(again.answers)] {
            return broken(broke);
        }
        again.reconnect(again.retry.unwrap_or(PAUSE).max(SHORTEST));
        Ok(())
    }
}

impl Again {
    /// For a stream of this session; `answers` if it brings the answer to a request.
    pub(super) fn new(
        endpoint: &Arc<Endpoint>,
        session: Option<&HeaderValue>,
        version: Option<&HeaderValue>,
        credential: Option<&Credential>,
        answers: bool,
    ) -> Self {
        Self {
            endpoint: Arc::clone(endpoint),
            session: session.cloned(),
            version: version.cloned(),
            credential: credential.cloned(),
            bearer: None,
            answers,
            delivered: Delivered::default(),
            replaying: false,
            last_id: None,
            retry: None,
            last: Bytes::new(),
            failures: 0,
            empty: 0,
            coming: None,
        }
    }

    /// Takes note of an event; `false` if it was delivered before.
    fn is_new(&mut self, event: &Event) -> bool {
        if let Some(id) = event.id.as_deref().filter(|id| !id.is_empty()) {
            if self.replaying && self.delivered.contains(id.as_bytes()) {
                return false;
            }
            self.replaying = false;
            self.delivered.note(id.as_bytes());
        }
        if !event.data.is_empty() {
            self.last = event.data.clone();
            self.empty = 0;
        }
        true
    }

    fn is_answered(&self) -> bool {
        is_answer(&self.last)
    }

    fn learn(&mut self, last_id: Option<&[u8]>, retry: Option<u64>) {
        if let Some(id) = last_id.filter(|id| !id.is_empty()) {
            // An id that fits no header is as good as none.
            self.last_id = HeaderValue::from_bytes(id).ok();
        }
        self.retry = retry.map(Duration::from_millis).or(self.retry);
    }

    fn try_later(&mut self, why: SendError) -> Result<(), SendError> {
        self.failures += 1;
        if self.failures > FAILURES[usize::from(self.answers)] {
            return Err(why);
        }
        let wish = self.retry.unwrap_or(PAUSE).max(SHORTEST);
        let longer = jittered(wish * 2_u32.pow(self.failures)).min(LONGEST);
        self.reconnect(longer.max(wish));
        Ok(())
    }

    /// Starts to make the next connection, after a pause.
    fn reconnect(&mut self, pause: Duration) {
        let Some(last) = self.last_id.clone() else { return };
        let (endpoint, session, version) = (Arc::clone(&self.endpoint), self.session.clone(), self.version.clone());
        let next = Next { endpoint, session, version, last };
        let (credential, bearer, answers) = (self.credential.clone(), self.bearer.clone(), self.answers);
        self.coming.get_or_insert_default().spawn(async move {
            tokio::time::sleep(pause).await;
            let resumed = match &bearer {
                Some(bearer) => next.resume_for(bearer).await,
                None => next.resume(credential.as_ref()).await,
            };
            match resumed {
                Ok(response) => Ok(response),
                // The call may have run, and its answer is lost with the session.
                Err((_, SendError::SessionLost)) if answers => {
                    Err(Failed::Forever(SendError::BrokenOff("its event stream ended, and the session is gone".into())))
                }
                Err((_, why @ SendError::SessionLost)) => Err(Failed::Forever(why)),
                Err((None | Some(408 | 409 | 429 | 500..), why)) => Err(Failed::Now(why)),
                Err((_, why)) => Err(Failed::Forever(why)),
            }
        });
    }
}

impl Next {
    async fn resume(&self, credential: Option<&Credential>) -> Result<Response, (Option<u16>, SendError)> {
        self.endpoint.resume(self.session.as_ref(), self.version.as_ref(), &self.last, credential).await
    }

    /// The same with the credential of now, and once more with another one if that is refused.
    async fn resume_for(&self, bearer: &Bearer) -> Result<Response, (Option<u16>, SendError)> {
        let mut refused = None;
        loop {
            let again = refused.is_some();
            let credential = bearer.upstream.credential(bearer.caller.as_ref(), refused).await.map_err(|why| {
                let lasting = matches!(why, CredentialError::SignIn(_) | CredentialError::Personal);
                (lasting.then_some(401), SendError::BrokenOff(format!("its event stream ended, and {why}")))
            })?;
            match self.resume(credential.as_ref()).await {
                Err((_, SendError::Refused(refusal))) if refusal.status == 401 && !again => refused = Some(refusal),
                outcome => return outcome,
            }
        }
    }
}

impl Reading {
    /// Whether the last event was an answer, as far as it can be told. Whoever reads event by event sees for himself.
    fn is_answered(&self) -> bool {
        match self {
            Self::Fresh => false,
            Self::Decoded(_) => true,
            Self::Split(splitter) => match splitter.last_data() {
                LastData::None => false,
                LastData::TooLong => true,
                last @ LastData::Block(_) => last.read().is_some_and(|data| is_answer(&data)),
            },
        }
    }
}

fn is_answer(data: &Bytes) -> bool {
    Message::parse(data.clone()).is_ok_and(|message| matches!(message.kind(), Kind::Response | Kind::Error))
}

fn unanswered() -> SendError {
    SendError::NotMcp("its event stream ended before the answer".into())
}

impl Delivered {
    fn note(&mut self, id: &[u8]) {
        let id = self.hasher.hash_one(id);
        self.ambiguous |= self.ids.back() == Some(&id);
        if self.ids.len() >= REMEMBERED {
            self.ids.pop_front();
        }
        self.ids.push_back(id);
    }

    fn contains(&self, id: &[u8]) -> bool {
        !self.ambiguous && self.ids.contains(&self.hasher.hash_one(id))
    }
}
