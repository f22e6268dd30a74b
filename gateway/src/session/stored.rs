//! What a session needs to go on in another process: who its client is, what it said, what it watches and what it waits
//! for.
//!
//! Connections to upstreams and child processes cannot move. The other process opens them anew when they are needed, with
//! the client's own `initialize`, as after a loss.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use weir_mcp::Message;
use zeroize::Zeroizing;

use crate::{
    caller::{Caller, CallerRecord},
    config::UpstreamName,
    credential::Replica,
    http::HeaderValue,
    quota::{Permit, Reached},
    upstream::{Channel, Upstream},
};

use super::{
    Endpoint, MirroredEvent, Session, SessionOwner, Sessions,
    copies::{CopyState, QUESTIONS, SessionCopies},
};

/// How many bytes of sessions go over, of all principals and of one.
const MOST: usize = 32 << 20;
const SHARE: usize = 8 << 20;

/// How large one value of the store becomes, in bytes, before the next begins.
const VALUE: usize = 1 << 20;

/// How many bytes of addresses of watched resources go along.
const WATCHED: usize = 48 * 1024;

/// How many sessions at upstreams go along.
const CHANNELS: usize = 32;

/// How many processes before may run calls of a session yet.
const PROCESSES: usize = 4;

/// How many bytes of the streams of a session go along to the next process of this gateway.
const EVENTS: usize = 256 * 1024;

/// One session, as it is written down.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredSession {
    pub(super) id: String,
    caller: Option<CallerRecord>,
    /// Whose share it is of.
    principal: String,
    endpoint: String,
    /// The SHA-256 of the one upstream that is served there; none where several are.
    reach: Option<[u8; 32]>,
    initialize: String,
    version: String,
    log_level: Option<String>,
    #[serde(default)]
    watched: Vec<(String, String)>,
    /// The number of its own stream; none if an older Weir has written it.
    #[serde(default)]
    stream: Option<u32>,
    /// The sign-ins and the approvals that its client was sent to a page for.
    #[serde(default)]
    sign_ins: Vec<(String, String)>,
    #[serde(default)]
    approvals: Vec<(String, String)>,
    /// Its sessions at upstreams; none if an older Weir has written it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) channels: Option<StoredChannels>,
    /// The gateways where calls of it run with copies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    copies: Vec<Replica>,
    /// What the client may ask for again, where that goes along: stream, number and message of each event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    events: Vec<(u32, u64, String)>,
    /// What a newer Weir has written, for the next one that reads it.
    #[serde(flatten)]
    newer: serde_json::Map<String, serde_json::Value>,
}

/// The sessions at upstreams that any gateway can use.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct StoredChannels {
    /// The gateway that has written this. An older one leaves it as it is, and opens others.
    gateway: String,
    open: Vec<StoredChannel>,
}

impl StoredChannels {
    /// What is open, if the gateway of the session has written it.
    pub(super) fn of(self, owner: Option<&Replica>) -> Option<Vec<StoredChannel>> {
        owner.is_none_or(|owner| owner.id == self.gateway).then_some(self.open)
    }
}

/// A session at an upstream.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredChannel {
    upstream: String,
    /// Stands for the address and all else that the upstream is reached with.
    reach: String,
    /// What the upstream calls it, and the version that was agreed.
    id: Option<String>,
    version: Option<String>,
}

impl StoredChannel {
    /// None for one that lives in one process.
    fn of(upstream: &Upstream, channel: &Channel) -> Option<Self> {
        let (id, version) = channel.travels()?;
        let text = |value: Option<&HeaderValue>| value.map(|value| value.to_str().map(str::to_owned)).transpose().ok();
        let (id, version) = (text(id)?, text(version)?);
        Some(Self { upstream: upstream.key().to_string(), reach: reach_text(upstream), id, version })
    }

    /// The same session, as this gateway reaches it; none if the upstream is another here.
    pub(super) fn attached(
        &self,
        upstream: impl Fn(&str) -> Option<Arc<Upstream>>,
    ) -> Option<(Arc<Upstream>, Channel)> {
        let upstream = upstream(&self.upstream)?;
        let header = |text: &Option<String>| text.as_deref().map(HeaderValue::from_str).transpose().ok();
        let channel = upstream.attached(header(&self.id)?, header(&self.version)?)?;
        (reach_text(&upstream) == self.reach).then_some((upstream, channel))
    }
}

fn reach_text(upstream: &Upstream) -> String {
    hex::encode(&upstream.reach_digest()[..16])
}

impl StoredSession {
    /// None for one that is over, or is none of text. What it has open goes along where it is written for other gateways, by
    /// this one.
    pub(super) fn of(session: &Session, by: Option<&Replica>) -> Option<Self> {
        let text = |bytes: &[u8]| Some(std::str::from_utf8(bytes).ok()?.to_owned());
        // The store takes no value of any length.
        let mut left = WATCHED;
        let fits = |(_, uri): &&(UpstreamName, String)| {
            left = left.saturating_sub(uri.len());
            left > 0
        };
        let all = session.watched.lock();
        let watched = all.iter().take_while(fits).map(|(of, uri)| (of.to_string(), uri.clone())).collect();
        drop(all);
        (!session.is_over()).then_some(())?;
        let channels = by.map(|gateway| {
            let open = session.channels.all().into_iter().take(CHANNELS);
            let open = open.filter_map(|(upstream, channel)| StoredChannel::of(&upstream, &channel)).collect();
            StoredChannels { gateway: gateway.id.clone(), open }
        });
        Some(Self {
            id: text(session.id.as_bytes())?,
            caller: session.caller().as_deref().map(CallerRecord::of),
            principal: session.principal.to_string(),
            endpoint: session.endpoint.name().to_owned(),
            reach: reach(&session.endpoint),
            initialize: text(session.initialize.bytes())?,
            version: session.version().to_owned(),
            log_level: session.log_level().and_then(|level| text(level.bytes())),
            watched,
            stream: Some(session.streams.own_number()),
            sign_ins: session.awaited(),
            approvals: session.awaited_approvals(),
            channels,
            copies: session.copied_at(),
            events: Vec::new(),
            newer: session.newer.get().map(|newer| (**newer).clone()).unwrap_or_default(),
        })
    }

    /// Whether a copy is of the same session, and `endpoint` serves the same where it was opened.
    pub(super) fn is_of(
        &self,
        copy: &Session,
        endpoint: impl Fn(&str, Option<&Arc<Caller>>) -> Option<Endpoint>,
    ) -> bool {
        let caller = copy.caller();
        endpoint(&self.endpoint, caller.as_ref()).is_some_and(|endpoint| endpoint == copy.endpoint)
            && self.principal == **copy.principal()
            && self.initialize.as_bytes() == &copy.initialize.bytes()[..]
    }

    /// The last `logging/setLevel`.
    pub(super) fn level(&self) -> Option<Message> {
        Message::parse(Bytes::from(self.log_level.clone()?)).ok()
    }

    /// Adds what its client may ask for again.
    fn add_streams(&mut self, session: &Session) {
        let text =
            |(stream, number, data): (u32, u64, Bytes)| Some((stream, number, String::from_utf8(data.into()).ok()?));
        self.events = session.streams.written(EVENTS).into_iter().filter_map(text).collect();
    }
}

fn reach(endpoint: &Endpoint) -> Option<[u8; 32]> {
    match endpoint {
        Endpoint::One(upstream) => Some(*upstream.reach_digest()),
        Endpoint::Merged(_) => None,
    }
}

impl Sessions {
    /// All sessions, to go over to another process; and how many had no room. They stay. What they have open goes along where
    /// that process can reach this one, which is `by` then.
    #[must_use]
    pub fn written(&self, by: Option<&Replica>) -> (Vec<Zeroizing<Vec<u8>>>, usize) {
        let (mut values, mut total, mut left_out) = (Vec::<Zeroizing<Vec<u8>>>::new(), 0, 0);
        let mut shares: HashMap<Arc<str>, usize> = HashMap::new();
        for session in self.list() {
            let Some(mut stored) = StoredSession::of(&session, by) else { continue };
            // What runs here is for whoever takes over as what runs with a copy. Older processes have ended by now.
            stored.copies.drain(..stored.copies.len().saturating_sub(PROCESSES));
            stored.copies.extend(by.cloned());
            let share = shares.entry(Arc::clone(session.principal())).or_default();
            let fits = |line: &Zeroizing<Vec<u8>>| total + line.len() <= MOST && *share + line.len() <= SHARE;
            let line = |stored: &StoredSession| serde_json::to_vec(stored).ok().map(Zeroizing::new).filter(fits);
            stored.add_streams(&session);
            let with_streams = line(&stored);
            stored.events.clear();
            // Where its streams have no room, the session goes on without them.
            let Some(line) = with_streams.or_else(|| line(&stored)) else {
                left_out += 1;
                continue;
            };
            if by.is_some() {
                session.note_handed_over();
            }
            total += line.len();
            *share += line.len();
            match values.last_mut().filter(|value| value.len() < VALUE) {
                Some(value) => {
                    value.push(b'\n');
                    value.extend_from_slice(&line);
                }
                None => values.push(line),
            }
        }
        (values, left_out)
    }

    /// Adds the sessions that another process has written, as far as there is room and `endpoint` still serves what they
    /// were opened at; says how many. Each is of the same caller, and no request is needed to prove it: none gets in
    /// without its own proof.
    pub fn add_written(
        &self,
        values: &[Zeroizing<Vec<u8>>],
        endpoint: impl Fn(&str, Option<&Arc<Caller>>) -> Option<Endpoint>,
        upstream: impl Fn(&str) -> Option<Arc<Upstream>>,
    ) -> usize {
        let lines = values.iter().flat_map(|value| value.split(|byte| *byte == b'\n'));
        let stored = lines.filter_map(|line| serde_json::from_slice::<StoredSession>(line).ok());
        let restored = stored.filter_map(|mut stored| {
            let channels = stored.channels.take().and_then(|all| all.of(None)).unwrap_or_default();
            let session = self.restore(stored, &endpoint).ok().flatten()?;
            let session = Session { copying: session.copying.come_over(), ..session };
            // The process before may ask yet, and counts on.
            session.ask_from(u64::from(getrandom::u32().ok()?) << 8);
            session.attach(&channels, &upstream);
            Some(session)
        });
        restored.map(|session| self.add(Arc::new(session))).count()
    }

    /// The session that was written down, unless `endpoint` serves something else now.
    ///
    /// # Errors
    ///
    /// When there is no room for it.
    pub(super) fn restore(
        &self,
        stored: StoredSession,
        endpoint: impl Fn(&str, Option<&Arc<Caller>>) -> Option<Endpoint>,
    ) -> Result<Option<Session>, Reached> {
        self.restore_with(stored, endpoint, |principal| self.permit(principal))
    }

    /// The same as a copy, while another gateway has the session.
    pub(super) fn copied(
        &self,
        stored: StoredSession,
        endpoint: impl Fn(&str, Option<&Arc<Caller>>) -> Option<Endpoint>,
        copies: &SessionCopies,
    ) -> Option<Session> {
        let copy = self.restore_with(stored, endpoint, |principal| copies.permit(principal)).ok().flatten()?;
        copy.streams.number_apart().ok()?;
        copy.ask_from(QUESTIONS + (u64::from(getrandom::u32().ok()?) << 8));
        Some(Session { copying: CopyState::of_copy(), ..copy })
    }

    fn restore_with(
        &self,
        stored: StoredSession,
        endpoint: impl Fn(&str, Option<&Arc<Caller>>) -> Option<Endpoint>,
        permit: impl FnOnce(&Arc<str>) -> Result<Permit, Reached>,
    ) -> Result<Option<Session>, Reached> {
        let caller = stored.caller.as_ref().map(CallerRecord::caller);
        let endpoint = endpoint(&stored.endpoint, caller.as_ref());
        let Some(endpoint) = endpoint.filter(|endpoint| reach(endpoint) == stored.reach) else { return Ok(None) };
        let principal = stored.principal.as_str().into();
        let owner = SessionOwner { caller, permit: permit(&principal)?, principal };
        Ok(self.restored(stored, owner, endpoint))
    }

    fn restored(&self, stored: StoredSession, owner: SessionOwner, endpoint: Endpoint) -> Option<Session> {
        let level = stored.level();
        let initialize = Message::parse(Bytes::from(stored.initialize)).ok()?;
        let version = HeaderValue::from_str(&stored.version).ok()?;
        let id = HeaderValue::from_str(&stored.id).ok()?;
        let mut session =
            Session::named((id, stored.stream), owner, endpoint, &initialize, version, self.memory()).ok()?;
        if let Some(level) = level {
            session.set_level(&level);
        }
        for (upstream, uri) in stored.watched {
            if let Ok(upstream) = upstream.parse::<UpstreamName>() {
                session.watch(&upstream, uri, true);
            }
        }
        let event = |(stream, number, data)| MirroredEvent {
            session: Arc::default(),
            stream,
            number,
            data: Some(Bytes::from(String::into_bytes(data))),
        };
        // Also where there are none: no stream that begins here is taken for one of the process before.
        session.streams.restore(stored.events.into_iter().map(event).collect());
        session.copying = CopyState::with(stored.copies);
        *session.awaited.lock() = stored.sign_ins;
        *session.awaited_approvals.lock() = stored.approvals;
        if !stored.newer.is_empty() {
            // It is new, so nothing is there yet.
            let _ = session.newer.set(Box::new(stored.newer));
        }
        Some(session)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use serde_json::{Value, json};

    use super::*;

    /// As the release before this one writes it, and the one after has to read it.
    const RECORD: &str = include_str!("stored/record-0.1.json");

    fn rewritten(record: &Value) -> Value {
        let stored: StoredSession = serde_json::from_value(record.clone()).unwrap();
        serde_json::to_value(&stored).unwrap()
    }

    #[test]
    fn a_record_of_a_neighbouring_release_is_read_and_written_with_all_it_has() {
        let mut record: Value = serde_json::from_str(RECORD).unwrap();
        assert_eq!(rewritten(&record), record, "a field is gone or has another name or form");
        record["from_a_newer_weir"] = json!({ "is": ["kept"] });
        assert_eq!(rewritten(&record), record);
        // What the first gateways with a shared store did not write.
        for key in ["channels", "copies", "stream", "sign_ins", "approvals", "watched", "log_level", "reach", "caller"]
        {
            record.as_object_mut().unwrap().remove(key);
            rewritten(&record);
        }
    }
}
