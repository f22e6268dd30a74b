//! What an approved call may do once it has gone out: its upstream asks the client something by an answer, and the client
//! calls again with what it was given.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use ring::digest::{Context, SHA256};
use weir_mcp::{Field, Message, json};

/// How long a client may take to come back with the answers that its upstream wants.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// How many calls of one principal may go on so.
const SHARE: usize = 32;

/// How many in all.
const MOST: usize = 1000;

pub(super) type Digest = [u8; 32];

/// Calls that were approved, and whose upstreams have asked their clients something: by the call and the state that it
/// comes back with. Each is good once.
#[derive(Default)]
pub(in crate::proxy) struct ContinuedCalls(Mutex<HashMap<Digest, (Arc<str>, Instant)>>);

/// A call that has gone out with its approval.
pub(in crate::proxy) struct ApprovedCall {
    continued: Arc<ContinuedCalls>,
    call: Digest,
    principal: Arc<str>,
}

impl ContinuedCalls {
    fn add(&self, key: Digest, principal: &Arc<str>) {
        let mut calls = self.0.lock();
        let now = Instant::now();
        calls.retain(|_, (_, until)| *until > now);
        let all = calls.len() >= MOST;
        let own = |of: &Arc<str>| of == principal;
        if all || calls.values().filter(|(of, _)| own(of)).count() >= SHARE {
            let rivals = calls.iter().filter(|(_, (of, _))| all || own(of));
            if let Some(oldest) = rivals.min_by_key(|(_, (_, until))| *until).map(|(key, _)| *key) {
                calls.remove(&oldest);
            }
        }
        calls.insert(key, (Arc::clone(principal), now + PATIENCE));
    }

    /// All of them, each with the time that it has left: for the process that takes over.
    pub(in crate::proxy) fn written(&self) -> Vec<(Digest, String, Duration)> {
        let now = Instant::now();
        let calls = self.0.lock();
        let left = calls.iter().map(|(key, (of, until))| (*key, of.to_string(), until.saturating_duration_since(now)));
        left.collect()
    }

    /// Adds those that another process has written.
    pub(in crate::proxy) fn add_written(&self, written: Vec<(Digest, String, Duration)>) {
        let now = Instant::now();
        let written = written.into_iter().take(MOST);
        self.0.lock().extend(written.map(|(key, of, left)| (key, (of.into(), now + left.min(PATIENCE)))));
    }

    /// Whether a message is what the client of an approved call was asked to come back with.
    pub(super) fn take(&self, call: &Digest, message: &Message) -> bool {
        let state = message.text(Field::RequestState);
        if state.is_none() && message.raw(Field::InputResponses).is_none() {
            return false;
        }
        let key = continuation(call, &state.unwrap_or_default());
        self.0.lock().remove(&key).is_some_and(|(_, until)| until > Instant::now())
    }
}

impl ApprovedCall {
    pub(super) fn new(continued: &Arc<ContinuedCalls>, call: Digest, principal: &Arc<str>) -> Self {
        Self { continued: Arc::clone(continued), call, principal: Arc::clone(principal) }
    }

    /// Looks into its answer: if that asks the client something, the client may come back once.
    pub(in crate::proxy) fn answered(&self, answer: &Bytes) {
        let Ok(answer) = Message::parse(answer.clone()) else { return };
        let member = |name| answer.member(name).and_then(json::string);
        if member("resultType").as_deref() == Some("input_required") {
            let key = continuation(&self.call, &member("requestState").unwrap_or_default());
            self.continued.add(key, &self.principal);
        }
    }
}

fn continuation(call: &Digest, state: &str) -> Digest {
    sha256(&[call, state.as_bytes()])
}

/// No two lists of parts have the same input.
pub(super) fn sha256(parts: &[&[u8]]) -> Digest {
    let mut digest = Context::new(&SHA256);
    for part in parts {
        digest.update(&(part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finish().as_ref().try_into().unwrap_or_default()
}
