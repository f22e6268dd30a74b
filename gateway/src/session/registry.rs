//! Sessions that go on at any of several gateways.
//!
//! Each session has one owner: the gateway that has it in memory. What it needs to go on elsewhere is in the store, and so
//! is its owner. Another gateway sends requests for it to the owner, and takes it over when the owner is gone. Whoever
//! changes the record does so only if it is as they know it. So a gateway that was taken for dead finds out that a session
//! is not its own any more, and ends its copy.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use ring::digest::{SHA256, digest};
use tokio::time::Instant;
use weir_store::Version;
use zeroize::Zeroizing;

use crate::{
    caller::Caller,
    credential::{SessionRecord, StoredEvent, TokenStoreError},
    replica::Replicas,
    telemetry::LogThrottle,
};

use super::{Endpoint, MirrorQueue, MirroredEvent, Session, Sessions, stored::StoredSession};

/// How often changes are written.
const PAUSE: Duration = Duration::from_secs(1);

/// How long other gateways find a stream of HTTP+SSE.
const STREAM: Duration = Duration::from_secs(7 * 24 * 3600);

/// How a session stands in the store.
pub(super) struct Registration {
    /// The record as this gateway has written it.
    version: Version,
    written: Instant,
    /// Whether it has changed since.
    pub(super) is_due: bool,
}

/// Where the sessions of all gateways stand.
pub struct SessionRegistry {
    replicas: Arc<Replicas>,
    told: LogThrottle,
}

/// What came of taking a session over.
pub enum Claim {
    /// It is here now.
    Taken(Arc<Session>),
    /// Another gateway was faster.
    Lost,
    /// There is no room for it here, or something else is served where it was opened.
    Unfit,
}

impl Session {
    /// Whether the store has to hear of it.
    pub(super) fn is_unwritten(&self, after: Duration) -> bool {
        let registration = self.registration.lock();
        registration.as_ref().is_some_and(|known| known.is_due || known.written.elapsed() >= after)
    }

    fn state(&self) -> Option<Zeroizing<Vec<u8>>> {
        serde_json::to_vec(&StoredSession::of(self)?).ok().map(Zeroizing::new)
    }

    fn registered(&self) -> Option<Version> {
        self.registration.lock().as_ref().map(|known| known.version)
    }

    fn set_registered(&self, version: Option<Version>) {
        let written = Instant::now();
        *self.registration.lock() = version.map(|version| Registration { version, written, is_due: false });
        self.streams.mirror_as(version.map(|_| session_digest(self.id.as_bytes()).into()));
    }
}

impl SessionRegistry {
    /// Where the sessions of this gateway and of others stand.
    #[must_use]
    pub fn new(replicas: Arc<Replicas>) -> Self {
        Self { replicas, told: LogThrottle::default() }
    }

    /// The other gateways.
    #[must_use]
    pub const fn replicas(&self) -> &Arc<Replicas> {
        &self.replicas
    }

    /// Has other gateways find a session.
    ///
    /// # Errors
    ///
    /// When the store cannot be written.
    pub async fn add(&self, session: &Session, sessions: &Sessions) -> Result<(), TokenStoreError> {
        let Some(state) = session.state() else { return Ok(()) };
        let (digest, me) = (session_digest(session.id.as_bytes()), self.replicas.me());
        let version = self.replicas.store().write_session(&digest, Some(me), state, None, kept(sessions)).await?;
        session.set_registered(version);
        Ok(())
    }

    /// The record of a session; none if no gateway has it.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn find(&self, id: &[u8]) -> Result<Option<SessionRecord>, TokenStoreError> {
        self.replicas.store().session(&session_digest(id)).await
    }

    /// Has other gateways find a stream of HTTP+SSE at this path.
    ///
    /// # Errors
    ///
    /// When the store cannot be written.
    pub async fn add_stream(&self, id: &[u8], path: &str) -> Result<(), TokenStoreError> {
        let (digest, path) = (session_digest(id), Zeroizing::new(path.as_bytes().to_vec()));
        self.replicas.store().write_session(&digest, Some(self.replicas.me()), path, None, STREAM).await?;
        Ok(())
    }

    /// The path of a stream of HTTP+SSE that another gateway has.
    pub async fn stream_path(&self, id: Option<&[u8]>) -> Option<Box<str>> {
        let record = self.find(id?).await.ok()??;
        Some(str::from_utf8(&record.state).ok()?.into())
    }

    /// Forgets a stream of HTTP+SSE.
    pub async fn remove_stream(&self, id: &[u8]) {
        // What is left of it expires.
        drop(self.replicas.store().delete_session(&session_digest(id)).await);
    }

    /// Takes a session over, whose owner is gone.
    ///
    /// # Errors
    ///
    /// When the store cannot be read or written.
    pub async fn claim(
        &self,
        record: SessionRecord,
        sessions: &Sessions,
        endpoint: impl Fn(&str, Option<&Arc<Caller>>) -> Option<Endpoint>,
    ) -> Result<Claim, TokenStoreError> {
        let Ok(stored) = serde_json::from_slice::<StoredSession>(&record.state) else { return Ok(Claim::Unfit) };
        let Some(session) = sessions.restore(stored, endpoint) else { return Ok(Claim::Unfit) };
        let (store, digest) = (self.replicas.store(), session_digest(session.id.as_bytes()));
        let (me, version) = (self.replicas.me(), Some(record.version));
        let Some(version) = store.write_session(&digest, Some(me), record.state, version, kept(sessions)).await? else {
            return Ok(Claim::Lost);
        };
        let events = store.events(&digest).await?.into_iter().map(|event| MirroredEvent {
            session: digest.as_str().into(),
            stream: event.stream,
            number: event.number,
            data: Some(Bytes::copy_from_slice(&event.data)),
        });
        session.streams.restore(events.collect());
        session.set_registered(Some(version));
        let session = Arc::new(session);
        sessions.add(Arc::clone(&session));
        tracing::info!(session = %session.shown, "a session of another gateway goes on here");
        Ok(Claim::Taken(session))
    }

    /// Forgets a session that is over. What the store does not hear of it forgets by itself.
    pub async fn remove(&self, session: &Session) {
        let Some(known) = session.registered() else { return };
        let (store, digest) = (self.replicas.store(), session_digest(session.id.as_bytes()));
        match store.session(&digest).await {
            // Another gateway has it by now.
            Ok(Some(record)) if record.version != known => session.set_registered(None),
            Ok(Some(_)) => drop(store.delete_session(&digest).await),
            Ok(None) | Err(_) => {}
        }
    }

    /// Leaves a session to the other gateways, for this one ends.
    pub async fn leave(&self, session: &Session, sessions: &Sessions) {
        let (Some(version), Some(state)) = (session.registered(), session.state()) else { return };
        session.set_registered(None);
        let digest = session_digest(session.id.as_bytes());
        // One that cannot be told finds nobody where this gateway was.
        drop(self.replicas.store().write_session(&digest, None, state, Some(version), kept(sessions)).await);
    }

    /// Writes what has changed, time and again until it is dropped. `lost` is given sessions that are of another gateway by
    /// now.
    pub async fn write<F: Future<Output = ()>>(&self, sessions: &Sessions, lost: impl Fn(Arc<Session>) -> F) {
        loop {
            tokio::time::sleep(PAUSE).await;
            for session in sessions.unwritten(kept(sessions) / 3) {
                match self.write_one(&session, sessions).await {
                    Ok(true) => {}
                    Ok(false) => {
                        session.set_registered(None);
                        if let Some(session) = sessions.remove(session.id.as_bytes()) {
                            lost(session).await;
                        }
                    }
                    Err(why) => {
                        // That the store is away is told already.
                        if !why.is_away() && self.told.is_due() {
                            tracing::warn!(session = %session.shown, "a session cannot go on at other gateways: {why}");
                        }
                        break;
                    }
                }
            }
        }
    }

    /// Whether the session is still this gateway's.
    async fn write_one(&self, session: &Session, sessions: &Sessions) -> Result<bool, TokenStoreError> {
        let (Some(known), Some(state)) = (session.registered(), session.state()) else { return Ok(true) };
        // What changes from here on is written the next time.
        if let Some(registration) = &mut *session.registration.lock() {
            registration.is_due = false;
        }
        let (digest, me) = (session_digest(session.id.as_bytes()), self.replicas.me());
        let wrote = self.replicas.store().write_session(&digest, Some(me), state, Some(known), kept(sessions)).await;
        let wrote = wrote.inspect_err(|_| session.note_change())?;
        if let (Some(version), Some(registration)) = (wrote, &mut *session.registration.lock()) {
            (registration.version, registration.written) = (version, Instant::now());
        }
        Ok(wrote.is_some())
    }

    /// Has all sessions written anew, for other gateways may have taken some.
    pub fn check_all(&self, sessions: &Sessions) {
        sessions.list().iter().for_each(|session| session.note_change());
    }

    /// Copies what may be asked for again into the store, until it is dropped.
    pub async fn copy(&self, queue: &mut MirrorQueue, sessions: &Sessions) {
        while let Some(MirroredEvent { session, stream, number, data }) = queue.next().await {
            let store = self.replicas.store();
            let copied = match data {
                Some(data) => {
                    let event = StoredEvent { stream, number, data: Zeroizing::new(data.to_vec()) };
                    store.put_event(&session, event, kept(sessions)).await
                }
                None => store.delete_event(&session, stream, number).await,
            };
            if let Err(why) = copied {
                tracing::debug!(error = %why, "the store has no copy of an event");
            }
        }
    }
}

/// How long the store keeps what it does not hear of: longer than a session may be idle.
fn kept(sessions: &Sessions) -> Duration {
    sessions.idle() * 2
}

/// What the store calls a session: whoever knows it from there cannot take part in it.
fn session_digest(id: &[u8]) -> String {
    digest(&SHA256, id).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
