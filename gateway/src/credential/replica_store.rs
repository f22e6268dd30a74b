//! What gateways at one store say of themselves and of the sessions that they have.
//!
//! Three kinds of values: a gateway that serves, which has to be renewed; a session, with the gateway that has it; and the
//! messages of streams that a client may ask for again. Sessions stand under a digest of their id: whoever reads the
//! names in the store cannot take part in one.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use weir_store::{Key, Listed, Swap, Value, Version};
use zeroize::Zeroizing;

use super::{CredentialManager, TokenStoreError, token_store::TokenStore};

const GATEWAYS: &str = "gateways";
const SESSIONS: &str = "sessions";
const EVENTS: &str = "session-events";

/// How many messages of streams are read at once.
const READS: usize = 32;

/// A gateway that serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// Another one for each process.
    pub id: String,
    /// Host and port, by which others reach it.
    pub address: String,
}

/// A session as it is in the store.
pub struct SessionRecord {
    /// The gateway that has it; none that has left it for others.
    pub owner: Option<Replica>,
    /// What it needs to go on elsewhere.
    pub state: Zeroizing<Vec<u8>>,
    /// The record as it was found.
    pub version: Version,
}

/// One message of a stream, as it is in the store.
pub struct StoredEvent {
    /// The stream.
    pub stream: u32,
    /// Its place there.
    pub number: u64,
    /// The message.
    pub data: Zeroizing<Vec<u8>>,
}

/// What gateways keep for each other. Opens nothing before it is asked.
#[derive(Clone)]
pub struct ReplicaStore(Arc<TokenStore>);

impl CredentialManager {
    /// What gateways at this store keep for each other; none if nobody shares it.
    #[must_use]
    pub fn replica_store(&self) -> Option<ReplicaStore> {
        self.is_shared().then(|| ReplicaStore(Arc::clone(&self.token_store)))
    }

    /// The same for a gateway that is alone, of which one process takes over from the other.
    #[must_use]
    pub fn process_store(&self) -> Option<ReplicaStore> {
        (!self.is_shared()).then(|| ReplicaStore(Arc::clone(&self.token_store)))
    }
}

impl ReplicaStore {
    /// The secret that all gateways have, for this purpose.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub async fn secret(&self, purpose: &str) -> Result<[u8; 32], TokenStoreError> {
        self.0.shared_key(purpose).await
    }

    /// Says that a gateway serves, for so long.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn announce(&self, gateway: &Replica, ttl: Duration) -> Result<(), TokenStoreError> {
        let value = Value { about: gateway.address.clone(), secret: Default::default() };
        self.0.open().await?.store.put(&Key::new(GATEWAYS, &[&gateway.id]), &value, Some(ttl)).await?;
        Ok(())
    }

    /// Says that it does no more.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn withdraw(&self, gateway: &Replica) -> Result<(), TokenStoreError> {
        self.0.open().await?.store.delete(&Key::new(GATEWAYS, &[&gateway.id])).await?;
        Ok(())
    }

    /// The gateways that serve. Makes no file.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn gateways(&self) -> Result<Vec<Replica>, TokenStoreError> {
        let listed = self.0.peek(&[Key::new(GATEWAYS, &[])]).await?;
        let replica = |listed: Listed| Some(Replica { id: listed.key.parts().pop()?, address: listed.about });
        Ok(listed.into_iter().filter_map(replica).collect())
    }

    /// Writes a session down where the record has the version that is `known`; gives its new version. None if it has another
    /// one, or is gone and not to be written anew.
    ///
    /// # Errors
    /// If the store cannot be written, or the session is too large.
    pub async fn write_session(
        &self,
        digest: &str,
        owner: Option<&Replica>,
        state: Zeroizing<Vec<u8>>,
        (known, anew): (Option<Version>, bool),
        ttl: Duration,
    ) -> Result<Option<Version>, TokenStoreError> {
        // Two texts always have a form in JSON.
        let about = serde_json::to_string(&owner).unwrap_or_default();
        let (key, value) = (Key::new(SESSIONS, &[digest]), Value { about, secret: state });
        let store = &self.0.open().await?.store;
        let swapped = match store.swap(&key, known, &value, Some(ttl)).await? {
            Swap::Lost(None) if anew => store.swap(&key, None, &value, Some(ttl)).await?,
            swapped => swapped,
        };
        Ok(match swapped {
            Swap::Done(version) => Some(version),
            Swap::Lost(_) => None,
        })
    }

    /// Writes down which gateway has a stream of HTTP+SSE, and its path, whatever was there.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn write_stream(
        &self,
        digest: &str,
        owner: &Replica,
        path: &str,
        ttl: Duration,
    ) -> Result<(), TokenStoreError> {
        let about = serde_json::to_string(owner).unwrap_or_default();
        let value = Value { about, secret: Zeroizing::new(path.as_bytes().to_vec()) };
        self.0.open().await?.store.put(&Key::new(SESSIONS, &[digest]), &value, Some(ttl)).await?;
        Ok(())
    }

    /// The session of this digest.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn session(&self, digest: &str) -> Result<Option<SessionRecord>, TokenStoreError> {
        let found = self.0.open().await?.store.get(&Key::new(SESSIONS, &[digest])).await?;
        Ok(found.map(|entry| SessionRecord {
            owner: serde_json::from_str(&entry.value.about).ok().flatten(),
            state: entry.value.secret,
            version: entry.version,
        }))
    }

    /// Forgets a session.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn delete_session(&self, digest: &str) -> Result<(), TokenStoreError> {
        let store = &self.0.open().await?.store;
        store.delete(&Key::new(SESSIONS, &[digest])).await?;
        Ok(())
    }

    /// Keeps a message of a stream.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn put_event(&self, digest: &str, event: StoredEvent, ttl: Duration) -> Result<(), TokenStoreError> {
        let StoredEvent { stream, number, data } = event;
        let value = Value { about: String::new(), secret: data };
        self.0.open().await?.store.put(&event_key(digest, stream, number), &value, Some(ttl)).await?;
        Ok(())
    }

    /// Forgets a message.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn delete_event(&self, digest: &str, stream: u32, number: u64) -> Result<(), TokenStoreError> {
        self.0.open().await?.store.delete(&event_key(digest, stream, number)).await?;
        Ok(())
    }

    /// The messages of all streams of a session, in their order.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn events(&self, digest: &str) -> Result<Vec<StoredEvent>, TokenStoreError> {
        let listed = self.0.open().await?.store.list(&[Key::new(EVENTS, &[digest])]).await?;
        let (mut left, mut reading, mut events) = (listed.into_iter(), JoinSet::new(), Vec::new());
        loop {
            for listed in left.by_ref().take(READS - reading.len()) {
                let store = self.clone();
                reading.spawn(async move { store.event(&listed.key).await });
            }
            match reading.join_next().await {
                Some(Ok(read)) => events.extend(read?),
                // One that met a fault counts as one that has expired.
                Some(Err(_)) => {}
                None => break,
            }
        }
        events.sort_by_key(|event| (event.stream, event.number));
        Ok(events)
    }

    async fn event(&self, key: &Key) -> Result<Option<StoredEvent>, TokenStoreError> {
        let parts = key.parts();
        let [_, stream, number] = &parts[..] else { return Ok(None) };
        let place = u32::from_str_radix(stream, 16).ok().zip(u64::from_str_radix(number, 16).ok());
        let Some((stream, number)) = place else { return Ok(None) };
        let found = self.0.open().await?.store.get(key).await?;
        Ok(found.map(|entry| StoredEvent { stream, number, data: entry.value.secret }))
    }
}

/// Hexadecimal of one length, so that the order of the keys is that of the events.
fn event_key(digest: &str, stream: u32, number: u64) -> Key {
    Key::new(EVENTS, &[digest, &format!("{stream:08x}"), &format!("{number:016x}")])
}
