//! How a stream goes on after its connection: when, behind which event, and with which credential.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::task::JoinSet;
use weir_flow::Backoff;
use weir_mcp::sse::Event;

use crate::{
    caller::Caller,
    http::{HeaderValue, Response},
    upstream::{CredentialError, SendError, Upstream, credential::Credential, streamable::HttpSession},
};

use super::is_answer;

/// Below this, a server's wish is not heeded: it would be asked in a tight loop.
const SHORTEST: Duration = Duration::from_millis(20);

/// How many tries in a row may fail, for a stream without and with an answer. Whoever listens to what a server says of its
/// own accord soon wants to know that it is gone.
const FAILURES: [u32; 2] = [1, 5];

/// How often in a row a server may let a stream be taken up and bring nothing, without and with an answer to come. Until
/// it knows the answer, that is its right.
const EMPTY: [u32; 2] = [20, 600];

/// How many ids are remembered, to know what has been delivered.
const REMEMBERED: usize = 256;

/// How to go on after the connection.
pub(in crate::upstream) struct StreamResumption {
    session: HttpSession,
    /// What it was opened with.
    credential: Option<Credential>,
    /// Where the credential of a later connection is from; that of the first one will do where nobody is named.
    bearer: Option<ResumptionCaller>,
    /// Whether the stream brings the answer to a request, and ends with it.
    pub(super) answers: bool,
    delivered: Delivered,
    /// What comes may have come before.
    replaying: bool,
    last_id: Option<HeaderValue>,
    retry: Option<Duration>,
    /// The data of the last event.
    last: Bytes,
    /// The pauses since a connection was there.
    backoff: Backoff,
    /// Connections in a row that brought nothing.
    empty: u32,
    /// The next connection, on its way. Kept here, so that a read that is given up loses nothing.
    coming: Option<JoinSet<Result<Response, Failed>>>,
}

/// For whom an upstream was asked.
#[derive(Clone)]
struct ResumptionCaller {
    upstream: Arc<Upstream>,
    caller: Option<Arc<Caller>>,
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
pub(super) enum Failed {
    /// Another time it may be.
    Now(SendError),
    /// It is gone.
    Forever(SendError),
}

impl StreamResumption {
    /// For a stream of this session; `answers` if it brings the answer to a request.
    pub(in crate::upstream) fn new(session: HttpSession, credential: Option<&Credential>, answers: bool) -> Self {
        Self {
            session,
            credential: credential.cloned(),
            bearer: None,
            answers,
            delivered: Delivered::default(),
            replaying: false,
            last_id: None,
            retry: None,
            last: Bytes::new(),
            backoff: Backoff::RESUME,
            empty: 0,
            coming: None,
        }
    }

    /// From now on has a credential of the time for each connection.
    pub(super) fn renew_for(&mut self, upstream: &Arc<Upstream>, caller: Option<&Arc<Caller>>) {
        self.bearer = Some(ResumptionCaller { upstream: Arc::clone(upstream), caller: caller.cloned() });
    }

    /// Takes note of an event; `false` if it was delivered before.
    pub(super) fn is_new(&mut self, event: &Event) -> bool {
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

    pub(super) fn is_answered(&self) -> bool {
        is_answer(&self.last)
    }

    pub(super) fn learn(&mut self, last_id: Option<&[u8]>, retry: Option<u64>) {
        if let Some(id) = last_id.filter(|id| !id.is_empty()) {
            // An id that fits no header is as good as none.
            self.last_id = HeaderValue::from_bytes(id).ok();
        }
        self.retry = retry.map(|millis| Duration::from_millis(millis).max(SHORTEST)).or(self.retry);
    }

    /// Whether there is an id to go on behind.
    pub(super) const fn knows_where(&self) -> bool {
        self.last_id.is_some()
    }

    /// Starts to make the next connection, unless too many in a row have brought nothing.
    pub(super) fn go_on(&mut self) -> bool {
        self.empty += 1;
        let may = self.empty <= EMPTY[usize::from(self.answers)];
        if may {
            self.backoff = self.retry.map_or(Backoff::RESUME, |retry| Backoff::RESUME.starting_at(retry));
            self.reconnect();
        }
        may
    }

    /// The next connection; none if none is being made. Cancel-safe.
    pub(super) async fn connection(&mut self) -> Option<Result<Response, Failed>> {
        let made = self.coming.as_mut()?.join_next().await?;
        let made = made.unwrap_or_else(|_| Err(Failed::Forever(SendError::BrokenOff("its event stream ended".into()))));
        if made.is_ok() {
            self.replaying = true;
        }
        Some(made)
    }

    /// Starts to make it once more after a failure.
    ///
    /// # Errors
    ///
    /// With the failure, when too many in a row have failed.
    pub(super) fn try_later(&mut self, why: SendError) -> Result<(), SendError> {
        // The first pause came before the first try.
        if self.backoff.failures() > FAILURES[usize::from(self.answers)] {
            return Err(why);
        }
        self.reconnect();
        Ok(())
    }

    /// Starts to make the next connection, after a pause.
    fn reconnect(&mut self) {
        let Some(last) = self.last_id.clone() else { return };
        // A client must wait for as long as the server says (MCP 2025-11-25, Streamable HTTP).
        let pause = self.backoff.pause(self.retry, getrandom::u32().unwrap_or_default());
        let (session, answers) = (self.session.clone(), self.answers);
        let (credential, bearer) = (self.credential.clone(), self.bearer.clone());
        self.coming.get_or_insert_default().spawn(async move {
            tokio::time::sleep(pause).await;
            let resumed = match &bearer {
                Some(bearer) => bearer.resume(&session, &last).await,
                None => session.resume(&last, credential.as_ref()).await,
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

impl ResumptionCaller {
    /// Takes a stream up with the credential of now, and once more with another one if that is refused.
    async fn resume(&self, session: &HttpSession, last: &HeaderValue) -> Result<Response, (Option<u16>, SendError)> {
        let mut refused = None;
        loop {
            let again = refused.is_some();
            let credential = self.upstream.credential(self.caller.as_ref(), refused).await.map_err(|why| {
                // How to sign in is told to whoever may, with the next call.
                let (lasting, why) = match why {
                    CredentialError::SignIn(needed) => (true, needed.what()),
                    CredentialError::Personal => (true, why.to_string()),
                    CredentialError::Denied(why) | CredentialError::Failed(why) => (false, why),
                };
                (lasting.then_some(401), SendError::BrokenOff(format!("its event stream ended, and {why}")))
            })?;
            match session.resume(last, credential.as_ref()).await {
                Err((_, SendError::Refused(refusal))) if refusal.status == 401 && !again => refused = Some(refusal),
                outcome => return outcome,
            }
        }
    }
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
