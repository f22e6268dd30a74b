//! Which exchange a message on the shared stream belongs to.
//!
//! An answer is found by the id we gave, progress by the token we gave, what a subscription brings by its id. Nothing
//! else on such a stream says where it belongs: changes of lists and resources concern everybody. For the rest the
//! request that was started last is the best guess as long as one client has the stream for itself. Where many have it
//! nothing is guessed, since no client may see what belongs to another.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use weir_flow::SendError;
use weir_mcp::{Field, Kind, Message, Object, answer, method, translate::may_ask};

use super::inbox::Inbox;
use super::{ExchangeKey, Whose, not_sendable};

/// The requests that run on one stream.
pub(super) struct Routes {
    /// The longest message, in bytes.
    limit: usize,
    state: Mutex<RoutesState>,
}

struct RoutesState {
    last_key: u64,
    /// In the order in which they were started.
    running: BTreeMap<u64, RouteSlot>,
    /// Whether the requests are those of many clients.
    many: bool,
    end: Option<SendError>,
}

/// Where a message belongs.
pub(super) enum Routed {
    /// It is there already, or nobody waits for it any more.
    Done,
    /// To no request.
    Stray(Message),
    /// To one of several clients' requests, and nothing says to which.
    Ambiguous(Message),
}

struct RouteSlot {
    /// The client's id and token, as raw JSON.
    id: Bytes,
    token: Option<Bytes>,
    /// Whether what names no request may be meant for it: not for one of Weir's own, nor for a `subscriptions/listen`,
    /// which brings nothing but what it asked for (2026-07-28, basic/utilities/subscriptions).
    concerned: bool,
    /// Whether the server may ask something on its behalf.
    asks: bool,
    cancelled: bool,
    inbox: Arc<Inbox>,
}

impl Routes {
    /// Keys begin after `last_key`, and messages have at most `limit` bytes.
    pub(super) fn new(last_key: u64, limit: usize) -> Self {
        Self { limit, state: Mutex::new(RoutesState { last_key, running: BTreeMap::new(), many: false, end: None }) }
    }

    /// Registers a request and gives it a key, which is its id and progress token on the stream.
    pub(super) fn start(&self, request: &Message, whose: Whose) -> Result<(ExchangeKey, Arc<Inbox>), SendError> {
        let (Kind::Request, Some(id)) = (request.kind(), request.id()) else {
            return Err(not_sendable());
        };
        let inbox = Arc::new(Inbox::new(self.limit));
        let slot = RouteSlot {
            id: Bytes::copy_from_slice(id),
            token: request.progress_token().map(Bytes::copy_from_slice),
            concerned: whose == Whose::Client && request.method() != method::LISTEN,
            asks: may_ask(request.method()),
            cancelled: false,
            inbox: Arc::clone(&inbox),
        };
        let mut state = self.state.lock();
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        state.last_key += 1;
        let key = state.last_key;
        state.running.insert(key, slot);
        Ok((ExchangeKey(key), inbox))
    }

    /// From now on the requests are those of many clients.
    pub(super) fn serve_many(&self) {
        self.state.lock().many = true;
    }

    /// Forgets a request. `true` if the server may still be working on it.
    pub(super) fn remove(&self, key: ExchangeKey) -> bool {
        self.state.lock().running.remove(&key.0).is_some_and(|slot| !slot.cancelled)
    }

    /// Notes that the server is told to give up a request. `false` if there is nothing to tell.
    pub(super) fn mark_cancelled(&self, key: ExchangeKey) -> bool {
        let mut state = self.state.lock();
        state.running.get_mut(&key.0).is_some_and(|slot| !std::mem::replace(&mut slot.cancelled, true))
    }

    /// Ends one request with `reason`.
    pub(super) fn fail(&self, key: ExchangeKey, reason: SendError) {
        let slot = self.state.lock().running.remove(&key.0);
        if let Some(slot) = slot {
            slot.inbox.fail(reason);
        }
    }

    /// Ends the request that the server knows by this raw id with `reason`; `false` if there is none.
    pub(super) fn fail_by_id(&self, id: &[u8], reason: SendError) -> bool {
        let slot = key(id).and_then(|key| self.state.lock().running.remove(&key));
        slot.map(|slot| slot.inbox.fail(reason)).is_some()
    }

    /// Ends the only request that runs with `reason`; `false` if there are none or several.
    pub(super) fn fail_only(&self, reason: SendError) -> bool {
        self.take_only().map(|(_, slot)| slot.inbox.fail(reason)).is_some()
    }

    /// Whether it takes no more requests.
    pub(super) fn ended(&self) -> bool {
        self.state.lock().end.is_some()
    }

    /// Whether any request runs.
    pub(super) fn any(&self) -> bool {
        !self.state.lock().running.is_empty()
    }

    /// Ends every request but those that are spared, and every later one, with `reason`; the first reason stays and is
    /// returned.
    pub(super) fn end(&self, reason: SendError, spared: impl Fn(ExchangeKey) -> bool) -> SendError {
        let (reason, ended) = {
            let mut state = self.state.lock();
            let reason = state.end.get_or_insert(reason).clone();
            let ended: Vec<_> = state.running.extract_if(.., |key, _| !spared(ExchangeKey(*key))).collect();
            (reason, ended)
        };
        for (_, slot) in ended {
            slot.inbox.fail(reason.clone());
        }
        reason
    }

    /// Brings a message to its exchange, or returns it if it belongs to none. Late answers and progress of requests
    /// that nobody waits for any more are dropped.
    pub(super) fn route(&self, message: Message) -> Routed {
        if matches!(message.kind(), Kind::Response | Kind::Error) {
            self.answer(&message);
            return Routed::Done;
        }
        if let Some(key) = message.raw(Field::SubscriptionId).and_then(key) {
            return self.subscribed(key, message);
        }
        match message.method() {
            method::PROGRESS => {
                self.progress(&message);
                Routed::Done
            }
            "notifications/tools/list_changed"
            | "notifications/prompts/list_changed"
            | "notifications/resources/list_changed"
            | "notifications/resources/updated" => Routed::Stray(message),
            _ => self.guess(message),
        }
    }

    fn answer(&self, message: &Message) {
        let answered = match message.id() {
            Some(id) => key(id).and_then(|key| Some((key, self.state.lock().running.remove(&key)?))),
            // The server could not read what it got. That was the one request that waits, if it is one.
            None => self.take_only(),
        };
        let Some((key, slot)) = answered else { return };
        let mut edit = message.edit();
        edit = match message.raw(Field::Id) {
            Some(_) => edit.set(Field::Id, &slot.id),
            None => edit.put(Object::Message, "id", &slot.id),
        };
        if message.raw(Field::SubscriptionId).and_then(self::key) == Some(key) {
            edit = edit.set(Field::SubscriptionId, &slot.id);
        }
        match Message::parse(edit.finish()) {
            Ok(message) => slot.inbox.finish(message),
            Err(_) => slot.inbox.fail(not_sendable()),
        }
    }

    fn take_only(&self) -> Option<(u64, RouteSlot)> {
        let mut state = self.state.lock();
        (state.running.len() == 1).then(|| state.running.pop_first()).flatten()
    }

    fn progress(&self, message: &Message) {
        let Some(key) = message.progress_token().and_then(key) else {
            return;
        };
        let Some((inbox, Some(token))) = self.find(key, |slot| slot.token.clone()) else {
            return;
        };
        push_edited(&inbox, message, Field::ProgressToken, &token);
    }

    fn subscribed(&self, key: u64, message: Message) -> Routed {
        let Some((inbox, id)) = self.find(key, |slot| slot.id.clone()) else {
            return Routed::Stray(message);
        };
        push_edited(&inbox, &message, Field::SubscriptionId, &id);
        Routed::Done
    }

    /// Brings a message that names no request to the one that was started last, if all are the same client's.
    fn guess(&self, message: Message) -> Routed {
        let latest = {
            let state = self.state.lock();
            let any = !(state.many && message.kind() == Kind::Request);
            let mut concerned = state.running.values().rev().filter(|slot| slot.concerned && (any || slot.asks));
            let latest = concerned.next().map(|slot| Arc::clone(&slot.inbox));
            if state.many && concerned.next().is_some() {
                return Routed::Ambiguous(message);
            }
            latest
        };
        match latest {
            Some(inbox) => {
                inbox.push(message);
                Routed::Done
            }
            None => Routed::Stray(message),
        }
    }

    fn find<T>(&self, key: u64, what: impl FnOnce(&RouteSlot) -> T) -> Option<(Arc<Inbox>, T)> {
        let state = self.state.lock();
        let slot = state.running.get(&key)?;
        Some((Arc::clone(&slot.inbox), what(slot)))
    }
}

/// The request as the server sees it.
pub(in crate::upstream) fn outgoing(request: &Message, key: ExchangeKey) -> Bytes {
    let key = key.0.to_string();
    let mut edit = request.edit().set(Field::Id, key.as_bytes());
    if request.progress_token().is_some() {
        edit = edit.set(Field::ProgressToken, key.as_bytes());
    }
    edit.finish()
}

/// The client's cancellation as the server sees it.
pub(in crate::upstream) fn cancelled(notification: &Message, key: ExchangeKey) -> Result<Bytes, SendError> {
    notification.request_id().ok_or_else(not_sendable)?;
    Ok(notification.edit().set(Field::RequestId, key.0.to_string().as_bytes()).finish())
}

/// A cancellation of our own, for a client that is gone.
pub(super) fn cancellation(key: ExchangeKey) -> Bytes {
    let params = format!(r#"{{"requestId":{},"reason":"the client is gone"}}"#, key.0);
    answer::notification(method::CANCELLED, Some(params.as_bytes()))
}

/// One of our keys, out of raw JSON. Some servers turn ids into strings.
fn key(raw: &[u8]) -> Option<u64> {
    let digits = raw.strip_prefix(b"\"").and_then(|raw| raw.strip_suffix(b"\"")).unwrap_or(raw);
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn push_edited(inbox: &Inbox, message: &Message, field: Field, value: &[u8]) {
    match Message::parse(message.edit().set(field, value).finish()) {
        Ok(message) => inbox.push(message),
        Err(_) => inbox.fail(not_sendable()),
    }
}
