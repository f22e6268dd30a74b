//! What one gateway tells another along with a request: who has sent it, and from where.
//!
//! Requests of one connection tell the same, time and again. So what was written last for each is kept, and at the other
//! gateway what was read: also what the rules allow that caller is found out once.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ahash::RandomState;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{
    caller::{Caller, CallerRecord},
    credential::Replica,
    http::{HeaderName, HeaderValue},
    server::listen::HttpExchange,
};

/// The header it is in.
pub(super) const FORWARDED: HeaderName = HeaderName::from_static("weir-forwarded");

/// Of how many connections it is kept.
const MOST: usize = 1024;

/// How long it is at most to be kept, in bytes.
const LONGEST: usize = 4096;

/// As it goes from one gateway to another: base64url of this as JSON.
#[derive(Serialize, Deserialize)]
struct Forwarded {
    /// The gateway that is meant.
    to: String,
    /// Who sent it; none where everybody may.
    caller: Option<CallerRecord>,
    /// When what they have shown is no longer good, in milliseconds since 1970.
    ends: Option<u64>,
    /// Where it came from.
    peer: SocketAddr,
    /// What it called Weir by.
    host: Option<String>,
}

/// For whom a request is answered that another gateway has sent.
pub(super) struct Sender {
    pub(super) to: String,
    pub(super) caller: Option<Arc<Caller>>,
    pub(super) ends: Option<SystemTime>,
    pub(super) peer: SocketAddr,
    pub(super) host: Option<String>,
}

/// What was written for the last request of each connection.
#[derive(Default)]
pub(in crate::server) struct Written(Mutex<HashMap<SocketAddr, WrittenHeader, RandomState>>);

struct WrittenHeader {
    to: String,
    caller: Option<Arc<Caller>>,
    ends: Option<SystemTime>,
    host: Option<String>,
    header: HeaderValue,
}

/// What was read.
#[derive(Default)]
pub(super) struct Read(Mutex<HashMap<HeaderValue, Arc<Sender>, RandomState>>);

impl Written {
    /// What goes along with a request to a gateway; none if it is no header.
    pub(super) fn header(&self, exchange: &HttpExchange, to: &Replica) -> Option<HeaderValue> {
        let (caller, ends, host) = (exchange.caller(), exchange.ends(), exchange.host());
        let is_same = |known: &WrittenHeader| {
            known.to == to.id
                && is_same_caller(known.caller.as_deref(), caller.map(|caller| &**caller))
                && known.ends == ends
                && known.host.as_deref() == host
        };
        if let Some(known) = self.0.lock().get(&exchange.peer()).filter(|known| is_same(known)) {
            return Some(known.header.clone());
        }
        let host = host.map(str::to_owned);
        let since = |end: SystemTime| end.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let forwarded = Forwarded {
            to: to.id.clone(),
            caller: caller.map(|caller| CallerRecord::with_token(caller)),
            ends: ends.map(|end| u64::try_from(since(end)).unwrap_or(u64::MAX)),
            peer: exchange.peer(),
            host: host.clone(),
        };
        let text = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&forwarded).ok()?);
        let mut header = HeaderValue::from_str(&text).ok()?;
        header.set_sensitive(true);
        if text.len() <= LONGEST {
            let known = WrittenHeader { to: forwarded.to, caller: caller.cloned(), ends, host, header: header.clone() };
            room(&mut self.0.lock()).insert(exchange.peer(), known);
        }
        Some(header)
    }
}

impl Read {
    /// For whom a request is answered; none if the header is missing or says nothing.
    pub(super) fn sender(&self, exchange: &HttpExchange) -> Option<Arc<Sender>> {
        let value = exchange.value(FORWARDED.as_str())?;
        if let Some(known) = self.0.lock().get(value) {
            return Some(Arc::clone(known));
        }
        let Forwarded { to, caller, ends, peer, host } =
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(value).ok()?).ok()?;
        let ends = ends.and_then(|millis| UNIX_EPOCH.checked_add(Duration::from_millis(millis)));
        let sender = Arc::new(Sender { to, caller: caller.as_ref().map(CallerRecord::caller), ends, peer, host });
        if value.len() <= LONGEST {
            // A copy, so that it does not hold on to the buffer that the request was read into.
            let value = HeaderValue::from_bytes(value.as_bytes()).ok()?;
            room(&mut self.0.lock()).insert(value, Arc::clone(&sender));
        }
        Some(sender)
    }
}

fn is_same_caller(known: Option<&Caller>, caller: Option<&Caller>) -> bool {
    known.zip(caller).map_or(known.is_none() == caller.is_none(), |(known, caller)| caller.is_copy_of(known))
}

/// With room for one more. Whoever has to go is read or written once more.
fn room<K, V, S>(known: &mut HashMap<K, V, S>) -> &mut HashMap<K, V, S> {
    if known.len() >= MOST {
        known.clear();
    }
    known
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use serde_json::{Value, json};

    use super::*;

    /// As the release before this one sends it, and the one after has to read it.
    const MESSAGE: &str = include_str!("forwarded-0.1.json");

    #[test]
    fn a_message_of_a_neighbouring_release_is_read_and_written_with_all_it_has() {
        let mut message: Value = serde_json::from_str(MESSAGE).unwrap();
        let read = |message: &Value| serde_json::from_value::<Forwarded>(message.clone()).unwrap();
        assert_eq!(
            serde_json::to_value(read(&message)).unwrap(),
            message,
            "a field is gone, or has another name or form"
        );
        message["from_a_newer_weir"] = json!(true);
        message["caller"]["from_a_newer_weir"] = json!(true);
        assert_eq!(read(&message).host.as_deref(), Some("weir.example.com"));
    }
}
