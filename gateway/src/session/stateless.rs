//! What a session needs at upstreams that know no sessions.
//!
//! Such an upstream wants to hear with each request who the client is, and forgets it again. So what else it would
//! remember is kept here: the words of the client's `initialize`, and which resources the client watches.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};
use weir_mcp::{Message, translate::Declared};

use crate::config::UpstreamName;

use super::MAX_ADDRESSES;

/// How many resources one session may watch at one upstream.
const WATCHED: usize = 1024;

/// How many requests of one session may run at once at such upstreams.
pub const WORK: usize = 256;

/// The session's side of stateless upstreams.
pub struct StatelessState {
    /// What the client said of itself.
    pub declared: Declared,
    /// What follows upstreams for the client; it ends with the session.
    work: Mutex<JoinSet<()>>,
    /// Room for requests that run.
    room: Arc<Semaphore>,
    watches: Mutex<HashMap<UpstreamName, Arc<WatchedUpstream>>>,
}

/// What a client wants to hear of one upstream, and what that has granted.
#[derive(Default)]
pub struct WatchedUpstream {
    /// What is wanted.
    pub wish: watch::Sender<WatchRequest>,
    /// What is granted.
    pub granted: watch::Sender<WatchGrant>,
}

/// What a client wants to hear of one upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchRequest {
    /// Counts the changes.
    pub turn: u64,
    /// Whether it wants to hear of changes of lists.
    pub lists: bool,
    /// The resources.
    pub addresses: BTreeSet<String>,
}

/// What an upstream has granted of a wish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchGrant {
    /// The wish that it is an answer to.
    pub turn: u64,
    /// The resources.
    pub addresses: BTreeSet<String>,
    /// Why there is nothing, where the upstream could not be asked.
    pub failure: Option<String>,
}

impl StatelessState {
    /// For a client that introduced itself so.
    pub(super) fn new(initialize: &Message) -> Self {
        Self {
            declared: Declared::of(initialize),
            work: Mutex::default(),
            room: Arc::new(Semaphore::new(WORK)),
            watches: Mutex::default(),
        }
    }

    /// Room for one request more; none if too many run already.
    pub fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).try_acquire_owned().ok()
    }

    /// Follows something for the client as long as the session lasts; one thing for each upstream.
    pub fn follow(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut running = self.work.lock();
        // What is over stays until somebody asks for it.
        while running.try_join_next().is_some() {}
        running.spawn(work);
    }

    /// What is wanted of an upstream; `true` if nothing was before.
    pub fn watch(&self, upstream: &UpstreamName) -> (Arc<WatchedUpstream>, bool) {
        let mut watches = self.watches.lock();
        let new = !watches.contains_key(upstream);
        (Arc::clone(watches.entry(upstream.clone()).or_default()), new)
    }

    /// Ends what works for the client.
    pub(super) fn end(&self) {
        self.work.lock().abort_all();
    }
}

impl WatchedUpstream {
    /// Changes the wish; gives its turn, or nothing if the client watches too much already.
    pub fn change(&self, change: impl FnOnce(&mut WatchRequest)) -> Option<u64> {
        let mut turn = None;
        self.wish.send_if_modified(|wish| {
            let mut new = wish.clone();
            change(&mut new);
            let bytes: usize = new.addresses.iter().map(String::len).sum();
            if new.addresses.len() > WATCHED || bytes > MAX_ADDRESSES {
                return false;
            }
            let changed = new != *wish;
            new.turn += u64::from(changed);
            turn = Some(new.turn);
            *wish = new;
            changed
        });
        turn
    }

    /// What the upstream grants of the wish with this turn, or of a later one.
    pub async fn granted(&self, turn: u64) -> WatchGrant {
        let mut granted = self.granted.subscribe();
        let granted = granted.wait_for(|granted| granted.turn >= turn).await;
        granted.map(|granted| granted.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_has_a_turn_and_a_bound() {
        let watch = WatchedUpstream::default();
        assert_eq!(watch.change(|wish| wish.lists = true), Some(1));
        assert_eq!(watch.change(|wish| wish.lists = true), Some(1));
        let many = |wish: &mut WatchRequest| wish.addresses = (0..=WATCHED).map(|n| n.to_string()).collect();
        assert_eq!(watch.change(many), None);
        assert!(watch.wish.borrow().addresses.is_empty());
    }
}
