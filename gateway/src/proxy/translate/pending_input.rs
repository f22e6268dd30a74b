//! Calls at legacy upstreams that wait until their clients have answered a question.
//!
//! A legacy server asks in the middle of a call and waits; a modern client is asked by an answer and calls again. In
//! between the upstream's call stands here. The client holds the only way back to it: a sealed state that is good for
//! one more request of the same kind to the same upstream.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use weir_mcp::{
    Field, Message, answer, json,
    translate::{input_required, question_name},
};

use crate::{
    quota::{Permit, Quota, Reached, Shares},
    sealed_state::SealedState,
    upstream::Listened,
};

use super::{call::TranslatedCall, shared_session::SharedSession};

/// How long a call waits for its client.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// How many questions one call may have open.
pub(super) const QUESTIONS: usize = 32;

/// A call and the rest of what its upstream says.
pub(super) struct SuspendedCall {
    pub(super) call: TranslatedCall,
    pub(super) events: Listened,
    pub(super) questions: Vec<OpenQuestion>,
    /// How often the upstream has asked.
    pub(super) asked: u32,
}

/// A question of the upstream that the client has not answered.
pub(super) struct OpenQuestion {
    key: String,
    message: Box<Message>,
}

/// What stands between the name of a gateway and a sealed state, which has none of it.
const GATEWAY_END: char = '.';

/// The gateway at which the call waits that a request goes on with, if its state names one.
pub(in crate::proxy) fn gateway_of(request: &Message) -> Option<String> {
    let state = request.text(Field::RequestState)?;
    let (gateway, _) = state.split_once(GATEWAY_END)?;
    // An upstream's own state may look much like one.
    let is_name = gateway.len() == 16 && gateway.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_name.then(|| gateway.to_owned())
}

/// The calls that wait.
pub(in crate::proxy) struct PendingInput {
    seal: SealedState,
    /// What tells this gateway from others that share its store; none where it is alone.
    gateway: OnceLock<String>,
    next: AtomicU64,
    calls: Mutex<HashMap<u64, PendingCall>>,
    quota: Arc<Quota>,
}

/// A call that waits.
struct PendingCall {
    running: SuspendedCall,
    until: Instant,
    _permit: Permit,
}

impl SuspendedCall {
    /// Adds a question; it comes back if there are too many.
    pub(super) fn ask(&mut self, message: Box<Message>) -> Result<(), Box<Message>> {
        if self.questions.len() >= QUESTIONS {
            return Err(message);
        }
        self.asked += 1;
        let numbered = format!("question_{}", self.asked);
        let named = question_name(&message).filter(|name| self.questions.iter().all(|open| open.key != *name));
        self.questions.push(OpenQuestion { key: named.unwrap_or(numbered), message });
        Ok(())
    }

    /// Hands the client's answers to the upstream. What is not answered stays open.
    pub(super) async fn answer(&mut self, responses: &[u8]) {
        let given = || json::members(responses).filter(|(_, raw)| raw.starts_with(b"{"));
        let mut open = Vec::new();
        for question in std::mem::take(&mut self.questions) {
            match (given().filter(|(key, _)| *key == question.key).last(), question.message.id()) {
                (Some((_, raw)), Some(id)) => self.call.lease.session.say(answer::result(id, raw)).await,
                _ => open.push(question),
            }
        }
        self.questions = open;
    }
}

impl PendingInput {
    /// Room for so many calls.
    pub(in crate::proxy) fn new(calls: Shares) -> Self {
        let quota = Quota::new("pending_inputs", calls);
        let (seal, gateway) = (SealedState::default(), OnceLock::new());
        Self { seal, gateway, next: AtomicU64::new(0), calls: Mutex::default(), quota }
    }

    /// From now on has states say that their calls wait at this gateway.
    pub(in crate::proxy) fn name_gateway(&self, gateway: &str) {
        // The first name counts.
        drop(self.gateway.set(gateway.to_owned()));
    }

    /// Allows another number of them.
    pub(in crate::proxy) fn resize(&self, calls: Shares) {
        self.quota.resize(calls);
    }

    /// Room for one more that waits elsewhere.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(in crate::proxy) fn room(&self, principal: &Arc<str>) -> Result<Permit, Reached> {
        self.quota.take(principal, None)
    }

    /// Puts a call aside and gives the answer that asks its client, or why that cannot be. Then the call is over, which its
    /// upstream is told.
    pub(super) fn park(&self, running: SuspendedCall) -> Result<Bytes, String> {
        let now = Instant::now();
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let state = self.seal.seal(&key.to_be_bytes(), &running.call.bound);
        let mut state = state.ok_or("the system has no randomness to give")?;
        if let Some(gateway) = self.gateway.get() {
            state = format!("{gateway}{GATEWAY_END}{state}");
        }
        // Those that nobody comes back for make way.
        self.reap();
        let permit = self.quota.take(&running.call.principal, Some(running.call.lease.session.name()));
        let permit = permit.map_err(|full| full.to_string())?;
        let questions: Vec<(String, &Message)> =
            running.questions.iter().map(|question| (question.key.clone(), &*question.message)).collect();
        let bytes = input_required(&running.call.id, &questions, &state, running.call.lease.session.server_info());
        self.calls.lock().insert(key, PendingCall { running, until: now + PATIENCE, _permit: permit });
        Ok(bytes)
    }

    /// The call that a client's state leads to, if the state is Weir's own, meant for this kind of call, and good still.
    pub(super) fn take(&self, request: &Message, bound: &[u8]) -> Option<SuspendedCall> {
        let state = request.text(Field::RequestState)?;
        let sealed = state.rsplit_once(GATEWAY_END).map_or(&*state, |(_, sealed)| sealed);
        let key = u64::from_be_bytes(self.seal.open(sealed, bound)?.try_into().ok()?);
        let PendingCall { running, until, .. } = self.calls.lock().remove(&key)?;
        (until > Instant::now()).then_some(running)
    }

    /// Gives up the call that has waited longest in any of these sessions, and says in which: its client may never come back.
    pub(super) fn make_way<'a>(&self, sessions: &'a [Arc<SharedSession>]) -> Option<&'a Arc<SharedSession>> {
        let session =
            |running: &SuspendedCall| sessions.iter().find(|session| Arc::ptr_eq(session, &running.call.lease.session));
        let oldest = {
            let mut calls = self.calls.lock();
            let waiting = calls.iter().filter(|(_, waiting)| session(&waiting.running).is_some());
            let key = *waiting.min_by_key(|(_, waiting)| waiting.until)?.0;
            calls.remove(&key)
        };
        session(&oldest?.running)
    }

    /// Gives up the calls whose clients did not come back; their upstreams are told.
    pub(in crate::proxy) fn reap(&self) {
        let now = Instant::now();
        let over: Vec<_> = self.calls.lock().extract_if(|_, waiting| waiting.until <= now).collect();
        drop(over);
    }

    /// Whether some wait.
    pub(in crate::proxy) fn is_waited_for(&self) -> bool {
        !self.calls.lock().is_empty()
    }

    /// Gives up all of them.
    pub(in crate::proxy) fn stop(&self) {
        let all = std::mem::take(&mut *self.calls.lock());
        drop(all);
    }
}
