//! The legacy sessions that modern clients share: one for each upstream, principal and kind of client.
//!
//! What a client says of itself decides how a legacy server treats its session, so only clients that say the same share
//! one. Nothing may say which call a question belongs to, so calls that may ask their client something run side by side
//! only where there are too many of them, and then what they ask may be refused. The number of lines is bounded, since
//! clients choose what they say.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::oneshot, task::JoinSet};
use weir_mcp::translate::Introduction;

use crate::{session::lock, upstream::ConnectError};

use super::line::Line;

/// How long a line that is being opened is waited for when all are ended.
const FAREWELL: Duration = Duration::from_secs(5);

/// How many lines may be open at once.
const LINES: usize = 256;

/// How many lines one kind of client has at one upstream, where requests that may ask run in lines of their own: sessions
/// over HTTP, and processes or streams, which cost more.
pub(super) const SIDE_BY_SIDE: [usize; 2] = [8, 4];

/// Why nothing is opened any more.
const ENDED: &str = "the gateway has ended its sessions";

/// Who may share a line.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) upstream: usize,
    /// The principal that it is kept apart for.
    pub(super) whose: Option<Arc<str>>,
    /// What the client says of itself.
    pub(super) introduction: Introduction,
    /// Which of the lines for such clients.
    pub(super) number: usize,
}

/// All lines, by upstream and introduction.
#[derive(Default)]
pub(in crate::relay) struct Pool {
    slots: Mutex<HashMap<Key, Arc<Slot>>>,
}

#[derive(Default)]
struct Slot {
    line: Mutex<Option<Arc<Line>>>,
    /// Held while the line is opened, so that concurrent first calls open one.
    opening: tokio::sync::Mutex<()>,
    /// Whether it has been taken out of the pool.
    over: AtomicBool,
}

impl Pool {
    /// The line for this kind of client, opened by `open` if there is none that still carries. It is opened whatever
    /// becomes of the client, since others may wait for it and the upstream has a session by then.
    pub(super) async fn get<F>(&self, key: Key, open: impl FnOnce() -> F) -> Result<Arc<Line>, ConnectError>
    where
        F: Future<Output = Result<Arc<Line>, ConnectError>> + Send + 'static,
    {
        let slot = self.slot(key)?;
        if let Some(line) = slot.get() {
            return Ok(line);
        }
        let (tell, told) = oneshot::channel();
        let opening = open();
        tokio::spawn(async move {
            let _opening = slot.opening.lock().await;
            if tell.is_closed() {
                return;
            }
            let line = match slot.get() {
                Some(line) => Ok(line),
                None => slot.fill(opening).await,
            };
            // A client that is gone needs no line.
            drop(tell.send(line));
        });
        told.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Ends the lines that nobody used for `idle`, and forgets those that are gone.
    pub(in crate::relay) async fn reap(&self, idle: Duration) {
        let over: Vec<Arc<Slot>> = {
            let mut slots = lock(&self.slots);
            slots.extract_if(|_, slot| slot.rests(idle)).map(|(_, slot)| slot).collect()
        };
        close(over).await;
    }

    /// Ends all lines.
    pub(in crate::relay) async fn stop(&self) {
        let all = std::mem::take(&mut *lock(&self.slots));
        close(all.into_values().collect()).await;
    }

    fn slot(&self, key: Key) -> Result<Arc<Slot>, ConnectError> {
        let mut slots = lock(&self.slots);
        if slots.len() >= LINES && !slots.contains_key(&key) {
            let Some(rests) = slots.iter().find(|(_, slot)| slot.rests(Duration::ZERO)).map(|(key, _)| key.clone())
            else {
                let why = "too many different clients use legacy upstreams at once";
                return Err(ConnectError::Outage(why.into()));
            };
            if let (Some(slot), Ok(runtime)) = (slots.remove(&rests), tokio::runtime::Handle::try_current()) {
                runtime.spawn(close(vec![slot]));
            }
        }
        Ok(Arc::clone(slots.entry(key).or_default()))
    }
}

impl Slot {
    fn get(&self) -> Option<Arc<Line>> {
        lock(&self.line).as_ref().filter(|line| line.alive()).cloned()
    }

    /// Opens the line, and ends it at once if the slot is out of the pool by then.
    async fn fill(
        &self,
        opening: impl Future<Output = Result<Arc<Line>, ConnectError>>,
    ) -> Result<Arc<Line>, ConnectError> {
        let line = opening.await?;
        *lock(&self.line) = Some(Arc::clone(&line));
        if !self.over.load(Ordering::Acquire) {
            return Ok(line);
        }
        let line = lock(&self.line).take();
        if let Some(line) = line {
            line.close().await;
        }
        Err(ended())
    }

    /// Whether nobody used the line for `idle`. Whoever opens it, or is about to, holds the slot.
    fn rests(self: &Arc<Self>, idle: Duration) -> bool {
        let held = Arc::strong_count(self) > 1;
        !held && lock(&self.line).as_ref().is_none_or(|line| line.idle().is_some_and(|rests| rests >= idle))
    }
}

fn ended() -> ConnectError {
    ConnectError::Outage(ENDED.into())
}

async fn close(slots: Vec<Arc<Slot>>) {
    let mut closing = JoinSet::new();
    for slot in slots {
        slot.over.store(true, Ordering::Release);
        closing.spawn(async move {
            // What is being opened ends itself when it is open.
            drop(tokio::time::timeout(FAREWELL, slot.opening.lock()).await);
            let line = lock(&slot.line).take();
            if let Some(line) = line {
                line.close().await;
            }
        });
    }
    closing.join_all().await;
}
