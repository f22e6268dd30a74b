//! Sessions that go on at any of several gateways.
//!
//! Each session has one owner: the gateway that has it in memory. What it needs to go on elsewhere is in the store, and so
//! is its owner. Another gateway sends requests for it to the owner, and takes it over when the owner is gone. Whoever
//! changes the record does so only if it is as they know it. So a gateway that was taken for dead finds out that a session
//! is not its own any more, and ends its copy.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use tokio::{task::JoinSet, time::Instant};
use weir_store::Version;
use zeroize::Zeroizing;

use crate::{
    caller::Caller,
    counters::EVENTS_NOT_COPIED,
    credential::{Replica, SessionRecord, StoredEvent, TokenStoreError},
    quota::Reached,
    replica::Replicas,
    telemetry::LogThrottle,
    upstream::Upstream,
};

use super::{
    Endpoint, MirrorQueue, MirroredEvent, Session, SessionHold, Sessions, copies::SessionCopies, stored::StoredSession,
};

/// How often changes are written.
const PAUSE: Duration = Duration::from_secs(1);

/// How long other gateways find a stream of HTTP+SSE whose gateway has ended without a word.
const STREAM: Duration = Duration::from_secs(10 * 60);

/// How many sessions may be taken over or written at once.
const CLAIMS: usize = 64;

/// How long it is tried to leave a session while the store does not confirm that, and the pause between.
const LEFT_WITHIN: Duration = Duration::from_secs(1);
const LEFT_AGAIN: Duration = Duration::from_millis(250);

/// How long one that waits for a session to be left lets others come first.
const LEAVING: Duration = Duration::from_millis(50);

/// How many sessions that have ended here are remembered.
const ENDED: usize = 4096;

/// How long the gateway of a session is known without another look into the store, and of how many sessions it is. One
/// that has the session no more says so.
pub const OWNER_KNOWN: Duration = Duration::from_secs(2);
const OWNERS: usize = 16_384;

/// How a session stands in the store.
pub(super) struct Registration {
    /// The record as this gateway has written it.
    version: Version,
    written: Instant,
    /// How long the record is kept from then on.
    kept: Duration,
    /// Whether it has changed since.
    pub(super) is_due: bool,
}

/// The gateway that has a session, and when the store said so.
struct KnownOwner {
    gateway: Arc<Replica>,
    read: Instant,
    /// What this gateway runs calls with meanwhile.
    copy: Option<Arc<Session>>,
}

/// Where the sessions of all gateways stand.
pub struct SessionRegistry {
    replicas: Arc<Replicas>,
    /// Held while a session is taken over or its record is written, so that what comes for it meanwhile waits. Sessions
    /// share them.
    claiming: [tokio::sync::Mutex<()>; CLAIMS],
    /// The sessions that have ended here last, by their digests.
    ended: Mutex<VecDeque<String>>,
    /// The gateways that have answered for sessions and streams that are not here.
    owners: Mutex<HashMap<Box<[u8]>, KnownOwner>>,
    copies: SessionCopies,
    /// The streams of HTTP+SSE that are here, by their digests: their paths, and when they were written.
    streams: Mutex<HashMap<String, (Box<str>, Instant)>>,
    told: LogThrottle,
    told_of_copies: LogThrottle,
}

/// What came of taking a session over.
pub enum Claim {
    /// It is here now.
    Taken,
    /// Another gateway was faster.
    Lost,
    /// It is over, or something else is served where it was opened.
    Unfit,
    /// There is no room for it here.
    Full(Reached),
}

impl Session {
    /// Whether the store has to hear of it.
    pub(super) fn is_unwritten(&self) -> bool {
        let registration = self.registration.lock();
        registration.as_ref().is_some_and(|known| known.is_due || known.written.elapsed() >= known.kept / 3)
    }

    /// Whether other gateways can find it.
    pub fn is_shared(&self) -> bool {
        self.registration.lock().is_some()
    }

    fn state(&self, by: &Replica) -> Option<Zeroizing<Vec<u8>>> {
        serde_json::to_vec(&StoredSession::of(self, Some(by))?).ok().map(Zeroizing::new)
    }

    fn set_registered(&self, version: Option<Version>, kept: Duration) {
        let written = Instant::now();
        *self.registration.lock() = version.map(|version| Registration { version, written, kept, is_due: false });
        self.streams.mirror_as(version.map(|_| session_digest(self.id.as_bytes()).into()));
    }
}

impl KnownOwner {
    fn is_known(&self) -> bool {
        self.read.elapsed() < OWNER_KNOWN
    }
}

impl SessionRegistry {
    /// Where the sessions of this gateway and of others stand.
    #[must_use]
    pub fn new(replicas: Arc<Replicas>) -> Self {
        let claiming = [const { tokio::sync::Mutex::const_new(()) }; CLAIMS];
        Self {
            replicas,
            claiming,
            ended: Mutex::default(),
            owners: Mutex::default(),
            copies: SessionCopies::default(),
            streams: Mutex::default(),
            told: LogThrottle::default(),
            told_of_copies: LogThrottle::default(),
        }
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
        let Some(state) = session.state(self.replicas.me()) else { return Ok(()) };
        let (digest, me) = (session_digest(session.id.as_bytes()), self.replicas.me());
        let (new, kept) = ((None, true), kept(sessions));
        let version = self.replicas.store().write_session(&digest, Some(me), state, new, kept).await?;
        session.set_registered(version, kept);
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

    /// The gateway that has answered for a session a moment ago, and what calls can be run with here.
    pub fn owner(&self, id: &[u8]) -> Option<(Arc<Replica>, Option<SessionHold>)> {
        let owners = self.owners.lock();
        let owner = owners.get(id).filter(|owner| owner.is_known())?;
        Some((Arc::clone(&owner.gateway), owner.copy.as_ref().filter(|copy| !copy.is_over()).map(SessionHold::new)))
    }

    /// The copy of a session, for what its own gateway passes on.
    pub fn held_copy(&self, id: &[u8]) -> Option<SessionHold> {
        self.copies.hold(id)
    }

    /// A copy of a session that another gateway has, with its upstreams as the record has them; none of what an older Weir
    /// has written, or where there is no room.
    pub fn copied(
        &self,
        record: &SessionRecord,
        sessions: &Sessions,
        endpoint: impl Fn(&str, Option<&Arc<Caller>>) -> Option<Endpoint>,
        upstream: impl Fn(&str) -> Option<Arc<Upstream>>,
    ) -> Option<Arc<Session>> {
        let mut stored = serde_json::from_slice::<StoredSession>(&record.state).ok()?;
        let channels = stored.channels.take()?.of(record.owner.as_ref())?;
        let copy = match self.copies.get(stored.id.as_bytes()).filter(|copy| stored.is_of(copy, &endpoint)) {
            Some(copy) => {
                if let Some(level) = stored.level() {
                    copy.set_level(&level);
                }
                // What is in use again is not idle.
                copy.touch();
                copy
            }
            None => {
                let copy = Arc::new(sessions.copied(stored, endpoint, &self.copies)?);
                copy.streams.mirror_as(Some(session_digest(copy.id.as_bytes()).into()));
                self.copies.put(copy)
            }
        };
        if let Some(owner) = &record.owner {
            copy.set_owner(owner);
        }
        copy.attach(&channels, upstream);
        Some(copy)
    }

    /// Whether calls run here with copies.
    pub fn runs_copies(&self) -> bool {
        self.copies.all().iter().any(|copy| copy.is_busy())
    }

    /// Waits until the store has all that is kept of the copies of this gateway.
    pub async fn flush_copies(&self, sessions: &Sessions) {
        for copy in self.copies.all().iter().filter(|copy| copy.streams.has_answers()) {
            sessions.memory().flush(&session_digest(copy.id.as_bytes())).await;
        }
    }

    /// Reads what another gateway has written of a stream that it began with a copy, for it is gone.
    pub async fn read_stream(&self, session: &Session, stream: u32) {
        let digest = session_digest(session.id.as_bytes());
        let Ok(events) = self.replicas.store().events(&digest).await else { return };
        session.streams.add_written(mirrored(&digest, events).filter(|event| event.stream == stream).collect());
    }

    /// Notes that a gateway has answered for a session, as the store said at this time.
    pub fn set_owner(&self, id: &[u8], gateway: Replica, read: Instant, copy: Option<Arc<Session>>) {
        let mut owners = self.owners.lock();
        if owners.len() >= OWNERS {
            owners.retain(|_, owner| owner.is_known());
        }
        if owners.len() < OWNERS {
            owners.insert(id.into(), KnownOwner { gateway: Arc::new(gateway), read, copy });
        }
    }

    /// Has the store be asked next time.
    pub fn forget_owner(&self, id: &[u8]) {
        self.owners.lock().remove(id);
    }

    /// Has other gateways find a stream of HTTP+SSE at this path.
    ///
    /// # Errors
    ///
    /// When the store cannot be written.
    pub async fn add_stream(&self, id: &[u8], path: &str) -> Result<(), TokenStoreError> {
        let digest = session_digest(id);
        self.replicas.store().write_stream(&digest, self.replicas.me(), path, STREAM).await?;
        self.streams.lock().insert(digest, (path.into(), Instant::now()));
        Ok(())
    }

    /// Writes streams of HTTP+SSE anew that the store forgets soon.
    async fn renew_streams(&self) {
        let is_due = |(_, (_, written)): &(&String, &(Box<str>, Instant))| written.elapsed() >= STREAM / 3;
        let due: Vec<_> =
            self.streams.lock().iter().filter(is_due).map(|(id, (path, _))| (id.clone(), path.clone())).collect();
        for (digest, path) in due {
            let store = self.replicas.store();
            if store.write_stream(&digest, self.replicas.me(), &path, STREAM).await.is_err() {
                return;
            }
            let renewed = self.streams.lock().get_mut(&digest).map(|(_, written)| *written = Instant::now());
            if renewed.is_none() {
                // It has ended meanwhile.
                drop(store.delete_session(&digest).await);
            }
        }
    }

    /// The path of a stream of HTTP+SSE that another gateway has.
    pub async fn stream_path(&self, id: Option<&[u8]>) -> Option<Box<str>> {
        let record = self.find(id?).await.ok()??;
        Some(str::from_utf8(&record.state).ok()?.into())
    }

    /// Forgets a stream of HTTP+SSE.
    pub async fn remove_stream(&self, id: &[u8]) {
        let digest = session_digest(id);
        self.streams.lock().remove(&digest);
        // What is left of it expires.
        drop(self.replicas.store().delete_session(&digest).await);
    }

    /// Takes a session over, whose owner is gone.
    ///
    /// # Errors
    ///
    /// When the store cannot be read or written.
    pub async fn claim(
        &self,
        id: &[u8],
        record: SessionRecord,
        sessions: &Sessions,
        endpoint: impl Fn(&str, Option<&Arc<Caller>>) -> Option<Endpoint>,
        upstream: impl Fn(&str) -> Option<Arc<Upstream>>,
    ) -> Result<Claim, TokenStoreError> {
        let _claiming = self.claim_of(id).lock().await;
        if sessions.has(id) {
            return Ok(Claim::Taken);
        }
        let digest = session_digest(id);
        if self.ended.lock().contains(&digest) {
            return Ok(Claim::Unfit);
        }
        let Ok(mut stored) = serde_json::from_slice::<StoredSession>(&record.state) else { return Ok(Claim::Unfit) };
        let channels = stored.channels.take().and_then(|all| all.of(record.owner.as_ref())).unwrap_or_default();
        let session = match sessions.restore(stored, endpoint) {
            Ok(Some(session)) => Arc::new(session),
            Ok(None) => return Ok(Claim::Unfit),
            Err(full) => return Ok(Claim::Full(full)),
        };
        let (store, kept) = (self.replicas.store(), kept(sessions));
        // What a copy has written is asked for where that is, as long as it is.
        let own = |event: &MirroredEvent| !session.streams.is_of_copy(event.stream);
        session.streams.restore(mirrored(&digest, store.events(&digest).await?).filter(own).collect());
        let (me, found) = (self.replicas.me(), (Some(record.version), false));
        let Some(version) = store.write_session(&digest, Some(me), record.state, found, kept).await? else {
            return Ok(Claim::Lost);
        };
        session.set_registered(Some(version), kept);
        session.attach(&channels, upstream);
        // What it has open is this gateway's to tell of now.
        session.note_change();
        sessions.add(Arc::clone(&session));
        tracing::info!(session = %session.shown, "a session of another gateway goes on here");
        Ok(Claim::Taken)
    }

    fn claim_of(&self, id: &[u8]) -> &tokio::sync::Mutex<()> {
        let place = digest(&SHA256, id).as_ref().first().map_or(0, |byte| usize::from(*byte) % CLAIMS);
        &self.claiming[place]
    }

    /// Forgets a session that is over. What the store does not hear of it forgets by itself.
    pub async fn remove(&self, session: &Session) {
        if !session.is_shared() {
            return;
        }
        let (store, digest) = (self.replicas.store(), session_digest(session.id.as_bytes()));
        // Nobody takes it over here again, also where the store cannot be told.
        {
            let mut ended = self.ended.lock();
            if ended.len() >= ENDED {
                ended.pop_front();
            }
            ended.push_back(digest.clone());
        }
        let _claiming = self.claim_of(session.id.as_bytes()).lock().await;
        match store.session(&digest).await {
            // Another gateway has it by now, and goes on with its streams.
            Ok(Some(record)) if record.owner.as_ref() != Some(self.replicas.me()) => {
                session.set_registered(None, Duration::ZERO);
            }
            Ok(Some(_)) => {
                drop(store.delete_session(&digest).await);
                *session.registration.lock() = None;
            }
            Ok(None) | Err(_) => *session.registration.lock() = None,
        }
    }

    /// Leaves a session to the other gateways, for this one ends.
    pub async fn leave(&self, session: &Session, sessions: &Sessions) {
        let mut claiming = self.claim_of(session.id.as_bytes()).lock().await;
        let known = session.registration.lock().as_ref().map(|known| known.version);
        let (Some(mut version), Some(state)) = (known, session.state(self.replicas.me())) else { return };
        session.set_registered(None, Duration::ZERO);
        let digest = session_digest(session.id.as_bytes());
        // Whoever takes it over reads the copy of its streams then.
        sessions.memory().flush(&digest).await;
        let end = Instant::now() + LEFT_WITHIN;
        while Instant::now() < end {
            let (store, known) = (self.replicas.store(), (Some(version), false));
            if let Ok(Some(_)) = store.write_session(&digest, None, state.clone(), known, kept(sessions)).await {
                return;
            }
            match self.own_version(&digest).await {
                Ok(Some(own)) => version = own,
                // It was left and nobody has confirmed that, or it is of another gateway by now.
                Ok(None) => return,
                Err(_) => {}
            }
            // Other sessions need not wait for the store as well.
            drop(claiming);
            tokio::time::sleep(LEFT_AGAIN).await;
            claiming = self.claim_of(session.id.as_bytes()).lock().await;
        }
        // One that cannot be told finds nobody where this gateway was.
    }

    /// Waits while a session that is on its way out is left to the other gateways.
    pub async fn left(&self, id: &[u8]) {
        // Whoever leaves it has come for the lock by then.
        tokio::time::sleep(LEAVING).await;
        drop(self.claim_of(id).lock().await);
    }

    /// The version of a session's record that is this gateway's own, such as one whose writing was not confirmed.
    async fn own_version(&self, digest: &str) -> Result<Option<Version>, TokenStoreError> {
        let record = self.replicas.store().session(digest).await?;
        Ok(record.filter(|record| record.owner.as_ref() == Some(self.replicas.me())).map(|record| record.version))
    }

    /// Writes what has changed, time and again until it is dropped. `lost` is given sessions that are of another gateway by
    /// now.
    pub async fn write<F: Future<Output = ()> + Send + 'static>(
        &self,
        sessions: &Sessions,
        lost: impl Fn(Arc<Session>) -> F,
    ) {
        loop {
            tokio::time::sleep(PAUSE).await;
            self.renew_streams().await;
            self.owners.lock().retain(|_, owner| owner.is_known());
            self.copies.expire();
            let mut ending = JoinSet::new();
            for session in sessions.unwritten() {
                match self.write_one(&session, sessions).await {
                    Ok(true) => {}
                    Ok(false) => {
                        session.set_registered(None, Duration::ZERO);
                        if let Some(session) = sessions.remove(session.id.as_bytes()) {
                            ending.spawn(lost(session));
                        }
                    }
                    // That the store is away is told already.
                    Err(why) if why.is_away() => break,
                    Err(why) => {
                        if self.told.is_due() {
                            tracing::warn!(session = %session.shown, "a session cannot go on at other gateways: {why}");
                        }
                        // The others need not wait for it.
                        if let Some(known) = &mut *session.registration.lock() {
                            (known.is_due, known.written) = (false, Instant::now());
                        }
                    }
                }
            }
            ending.join_all().await;
        }
    }

    /// Whether the session is still this gateway's.
    async fn write_one(&self, session: &Session, sessions: &Sessions) -> Result<bool, TokenStoreError> {
        // Where another session is just being taken over, this one is written the next time.
        let Ok(_claiming) = self.claim_of(session.id.as_bytes()).try_lock() else { return Ok(true) };
        let known = session.registration.lock().as_mut().map(|known| {
            // What changes from here on is written the next time.
            known.is_due = false;
            // What the store has forgotten by itself nobody has ended.
            (Some(known.version), known.written.elapsed() >= known.kept)
        });
        let (Some(known), Some(state)) = (known, session.state(self.replicas.me())) else { return Ok(true) };
        let (digest, me, kept) = (session_digest(session.id.as_bytes()), self.replicas.me(), kept(sessions));
        let store = self.replicas.store();
        let wrote = store.write_session(&digest, Some(me), state, known, kept).await;
        let mut version = wrote.inspect_err(|_| session.note_change())?;
        if version.is_none() {
            version = self.own_version(&digest).await.inspect_err(|_| session.note_change())?;
            session.note_change();
        }
        if let (Some(version), Some(known)) = (version, &mut *session.registration.lock()) {
            (known.version, known.written, known.kept) = (version, Instant::now(), kept);
        }
        Ok(version.is_some())
    }

    /// Has all sessions written anew, for other gateways may have taken some.
    pub fn check_all(&self, sessions: &Sessions) {
        sessions.list().iter().for_each(|session| session.note_change());
    }

    /// Copies what may be asked for again into the store, until it is dropped.
    pub async fn copy(&self, queue: &mut MirrorQueue, sessions: &Sessions) {
        while let Some(MirroredEvent { session, stream, number, data }) = queue.next().await {
            let store = self.replicas.store();
            let Some(data) = data else {
                // What is left of it expires.
                drop(store.delete_event(&session, stream, number).await);
                continue;
            };
            let event = StoredEvent { stream, number, data: Zeroizing::new(data.to_vec()) };
            if let Err(why) = store.put_event(&session, event, kept(sessions)).await {
                EVENTS_NOT_COPIED.fetch_add(1, Relaxed);
                // That the store is away is told already, and that long answers have no copy is as it should be.
                if !why.is_away() && !why.is_too_large() && self.told_of_copies.is_due() {
                    tracing::warn!(
                        "the store has no copy of an event, which cannot be resumed at other gateways: {why}"
                    );
                }
            }
        }
    }
}

/// Events as the store has them.
fn mirrored(digest: &str, events: Vec<StoredEvent>) -> impl Iterator<Item = MirroredEvent> {
    let session: Arc<str> = digest.into();
    events.into_iter().map(move |event| MirroredEvent {
        session: Arc::clone(&session),
        stream: event.stream,
        number: event.number,
        data: Some(Bytes::copy_from_slice(&event.data)),
    })
}

/// How long the store keeps what it does not hear of: longer than a session may be idle.
fn kept(sessions: &Sessions) -> Duration {
    sessions.idle() * 2
}

/// What the store calls a session: whoever knows it from there cannot take part in it.
fn session_digest(id: &[u8]) -> String {
    hex::encode(digest(&SHA256, id))
}
