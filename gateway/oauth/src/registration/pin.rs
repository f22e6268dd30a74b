//! A secret of the config goes to one authorization server: the one that the config names, else the first that its upstream
//! has named. An upstream that is somebody else's one day must not have it sent to them.

use serde::{Deserialize, Serialize};
use url::Url;
use weir_store::{Key, Store, Swap, Value};
use zeroize::Zeroizing;

use crate::{ServerMetadata, http::origin};

use super::{KnownClient, RegistrationError};

/// The namespace of issuers that have seen a client of the config.
const NAMESPACE: &str = "issuer";

/// The longest issuer that is shown whole.
const LONGEST: usize = 200;

#[derive(Deserialize, Serialize)]
struct PinRecord {
    issuer: String,
}

/// The issuer that has seen a client first, if it is held to that.
pub(super) async fn first(store: &dyn Store, known: &KnownClient) -> Result<Option<String>, RegistrationError> {
    match place(known) {
        Some(key) => read(store, &key, known).await,
        None => Ok(None),
    }
}

/// Remembers the issuer that sees a client first, and holds to it.
pub(super) async fn hold(
    store: &dyn Store,
    server: &ServerMetadata,
    known: &KnownClient,
) -> Result<(), RegistrationError> {
    let Some(key) = place(known) else { return Ok(()) };
    loop {
        if let Some(first) = read(store, &key, known).await? {
            return held(&first, &server.issuer);
        }
        let about = serde_json::to_string(&PinRecord { issuer: server.issuer.clone() }).unwrap_or_default();
        let value = Value { about, secret: Zeroizing::default() };
        if let Swap::Done(_) = store.swap(&key, None, &value, None).await? {
            return Ok(());
        }
    }
}

/// Where that is remembered; none if nothing secret is shown, or the config says to whom.
fn place(known: &KnownClient) -> Option<Key> {
    let upstream = known.upstream.as_ref().filter(|_| known.issuer.is_none())?;
    Some(Key::new(NAMESPACE, &[upstream, &known.client.id]))
}

/// What is remembered. That nobody can read it does not mean that nobody was first.
async fn read(store: &dyn Store, key: &Key, known: &KnownClient) -> Result<Option<String>, RegistrationError> {
    let Some(entry) = store.get(key).await? else { return Ok(None) };
    match serde_json::from_str::<PinRecord>(&entry.value.about) {
        Ok(about) => Ok(Some(about.issuer)),
        Err(_) => Err(RegistrationError::Unreadable { upstream: known.upstream.clone().unwrap_or_default() }),
    }
}

fn held(before: &str, now: &str) -> Result<(), RegistrationError> {
    if before == now {
        return Ok(());
    }
    Err(RegistrationError::Moved { before: shown(before), now: shown(now) })
}

/// An issuer as it is to be written, unless it is no text for a message.
fn shown(issuer: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"\"\\".contains(&byte);
    if issuer.len() <= LONGEST && issuer.bytes().all(plain) {
        return issuer.to_owned();
    }
    Url::parse(issuer).map_or_else(|_| "another server".to_owned(), |url| origin(&url))
}
