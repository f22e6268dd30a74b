//! What clients have in common who share the server behind a stream.
//!
//! Each hears what the server says of its own accord, at the pace of its own. To the server they are one client, so what
//! one of them ends must not end for the others: a resource is watched until nobody watches it any more.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use weir_flow::SendError;
use weir_mcp::{Message, method};

use super::inbox::Inbox;

/// How many resources are counted; what is beyond them ends for all.
const WATCHED: usize = 4096;

pub(super) struct Together {
    /// The longest message, in bytes.
    limit: usize,
    listeners: Mutex<Vec<Weak<Inbox>>>,
    /// How often each resource is watched.
    watched: Mutex<HashMap<String, usize>>,
    ended: Mutex<Option<SendError>>,
}

impl Together {
    /// Nobody listens yet; messages have at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, listeners: Mutex::default(), watched: Mutex::default(), ended: Mutex::new(None) }
    }

    /// Where one more listener hears everything from now on; it is over when it is dropped.
    pub(super) fn join(&self) -> Arc<Inbox> {
        let inbox = Arc::new(Inbox::new(self.limit));
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(&inbox));
        drop(listeners);
        if let Some(reason) = self.ended.lock().clone() {
            inbox.fail(reason);
        }
        inbox
    }

    /// Brings a message to everybody; `false` if a slow one has lost an older one.
    pub(super) fn tell(&self, message: &Message) -> bool {
        let listeners: Vec<_> = self.listeners.lock().iter().filter_map(Weak::upgrade).collect();
        let mut kept_all = true;
        for listener in listeners {
            kept_all &= listener.push_over_oldest(message.clone());
        }
        kept_all
    }

    /// Ends it for everybody, those to come included.
    pub(super) fn end(&self, reason: &SendError) {
        self.ended.lock().get_or_insert_with(|| reason.clone());
        let listeners: Vec<_> = self.listeners.lock().drain(..).filter_map(|listener| listener.upgrade()).collect();
        for listener in listeners {
            listener.fail(reason.clone());
        }
    }

    /// Takes note of what a request begins or ends; `true` if it would end what others still need.
    pub(super) fn spares(&self, request: &Message) -> bool {
        let subscribes = match request.method() {
            method::SUBSCRIBE => true,
            method::UNSUBSCRIBE => false,
            _ => return false,
        };
        let Some(uri) = request.uri() else { return false };
        let mut watched = self.watched.lock();
        if subscribes {
            if watched.len() < WATCHED || watched.contains_key(&*uri) {
                *watched.entry(uri.into_owned()).or_default() += 1;
            }
            return false;
        }
        let Some(count) = watched.get_mut(&*uri) else { return false };
        *count -= 1;
        let needed = *count > 0;
        if !needed {
            watched.remove(&*uri);
        }
        needed
    }
}
