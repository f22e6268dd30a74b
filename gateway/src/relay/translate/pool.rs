//! The legacy sessions that modern clients share: one for each upstream, principal and kind of client.
//!
//! What a client says of itself decides how a legacy server treats its session, so only clients that say the same share
//! one, and calls that may ask their client something run side by side only where there are too many of them. Their number
//! is bounded, since clients choose what they say.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::task::JoinSet;
use weir_mcp::translate::Introduction;

use crate::session::lock;

use super::line::Line;

/// How many lines may be open at once.
const LINES: usize = 256;

/// How many lines one kind of client has at one upstream, where requests that may ask run in lines of their own.
pub(super) const SIDE_BY_SIDE: usize = 8;

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
}

impl Pool {
    /// The line for this kind of client, opened by `open` if there is none that still carries.
    pub(super) async fn get<F>(&self, key: Key, open: impl FnOnce() -> F) -> Result<Arc<Line>, String>
    where
        F: Future<Output = Result<Arc<Line>, String>>,
    {
        let slot = self.slot(key)?;
        if let Some(line) = slot.get() {
            return Ok(line);
        }
        let _opening = slot.opening.lock().await;
        if let Some(line) = slot.get() {
            return Ok(line);
        }
        let line = open().await?;
        *lock(&slot.line) = Some(Arc::clone(&line));
        Ok(line)
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

    fn slot(&self, key: Key) -> Result<Arc<Slot>, String> {
        let mut slots = lock(&self.slots);
        if slots.len() >= LINES && !slots.contains_key(&key) {
            let Some(rests) = slots.iter().find(|(_, slot)| slot.rests(Duration::ZERO)).map(|(key, _)| key.clone())
            else {
                return Err("too many different clients use legacy upstreams at once".into());
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

    /// Whether nobody used the line for `idle`. While it is being opened it is in use.
    fn rests(&self, idle: Duration) -> bool {
        let opening = self.opening.try_lock().is_err();
        !opening && lock(&self.line).as_ref().is_none_or(|line| line.idle().is_some_and(|rests| rests >= idle))
    }
}

async fn close(slots: Vec<Arc<Slot>>) {
    let mut closing = JoinSet::new();
    for line in slots.into_iter().filter_map(|slot| lock(&slot.line).take()) {
        closing.spawn(async move { line.close().await });
    }
    closing.join_all().await;
}
