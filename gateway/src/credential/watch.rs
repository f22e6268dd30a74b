//! Who is told that a login has come, changed or gone: here, or by another process that shares the store.
//!
//! The store has no bell. Its file, or the last version at its server, is looked at twice a second, which costs next to
//! nothing; only when it has changed is it read, and only what is about another writing of a login than before is news.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::fs::StatVfsMountFlags;
use tokio::sync::watch;
use weir_oauth::{CredentialOwner, LoginKey, LoginSummary};
use weir_store::{StoreError, Version};

use super::{
    CredentialManager,
    token_store::{StorePlace, StoreStanding},
};

/// How often to look.
pub(super) const LOOK: Duration = Duration::from_millis(500);

/// How often to try whether a shared store takes writes.
const WRITE_LOOK: Duration = Duration::from_secs(5);

/// Tells whether a login is still the one it was: one number to read.
#[derive(Clone, Debug)]
pub struct Mark {
    cell: Arc<AtomicU64>,
    seen: u64,
}

/// The news.
pub(super) struct LoginChanges {
    all: watch::Sender<u64>,
    cells: Mutex<Cells>,
    /// What the store held when it was last read, by its writings; and what is used here since, whose news are still to come.
    known: Mutex<HashMap<LoginKey, Option<Version>>>,
}

/// One number for each owner and upstream of whom somebody may want to know.
#[derive(Default)]
struct Cells {
    all: HashMap<(String, CredentialOwner), Arc<AtomicU64>>,
    /// When those were last looked for that nobody has a mark of.
    looked: Option<Instant>,
}

/// How often to look for them.
const IDLE_LOOK: Duration = Duration::from_secs(600);

impl Mark {
    /// Whether there was no news since it was made.
    pub fn holds(&self) -> bool {
        self.cell.load(Ordering::Acquire) == self.seen
    }
}

impl Default for LoginChanges {
    fn default() -> Self {
        Self { all: watch::Sender::new(0), cells: Mutex::default(), known: Mutex::default() }
    }
}

impl LoginChanges {
    /// Whoever owns a login at an upstream has news from now on.
    pub(super) fn mark(&self, upstream: &str, owner: &CredentialOwner) -> Mark {
        let mut cells = self.cells.lock();
        cells.forget_idle(Instant::now());
        let cell = Arc::clone(cells.all.entry((upstream.to_owned(), owner.clone())).or_default());
        let seen = cell.load(Ordering::Acquire);
        Mark { cell, seen }
    }

    /// There is news of a login.
    pub(super) fn tell(&self, upstream: &str, owner: &CredentialOwner) {
        if let Some(cell) = self.cells.lock().all.get(&(upstream.to_owned(), owner.clone())) {
            cell.fetch_add(1, Ordering::AcqRel);
        }
        self.all.send_modify(|count| *count += 1);
    }

    /// This login is in use here: that it goes is news, even if it came and goes between two looks at the store.
    pub(super) fn seen(&self, login: &LoginSummary) {
        self.known.lock().entry(login.key.clone()).or_insert(None);
    }

    /// Compares what is in the store with what was there.
    fn compare(&self, found: Vec<LoginSummary>) {
        let found: HashMap<LoginKey, Option<Version>> =
            found.into_iter().map(|login| (login.key, Some(login.version))).collect();
        let mut known = self.known.lock();
        let changed = found.iter().filter(|(key, version)| known.get(key) != Some(version));
        let gone = known.iter().filter(|(key, _)| !found.contains_key(key));
        let news: Vec<LoginKey> = changed.chain(gone).map(|(key, _)| key.clone()).collect();
        *known = found;
        drop(known);
        for key in news {
            self.tell(&key.upstream, &key.owner);
        }
    }
}

impl Cells {
    fn forget_idle(&mut self, now: Instant) {
        if self.looked.is_none_or(|at| now.duration_since(at) >= IDLE_LOOK) {
            self.all.retain(|_, cell| Arc::strong_count(cell) > 1);
            self.looked = Some(now);
        }
    }
}

impl CredentialManager {
    /// Takes note of whether a shared store answers and takes writes, and tells the log when that changes. One that can be
    /// read has credentials, so nobody has to wait for it.
    fn note_standing(&self, unread: Option<&StoreError>, unwritten: Option<&StoreError>) {
        let mut standing = self.token_store.standing.lock();
        let next = match (unread, unwritten, &*standing) {
            (_, _, StoreStanding::Local | StoreStanding::Unwritable(_)) => return,
            (None, None, _) => StoreStanding::Reached,
            (None, Some(why), _) => StoreStanding::Away(why.to_string()),
            (Some(why), _, StoreStanding::Reached | StoreStanding::Away(_)) => StoreStanding::Away(why.to_string()),
            (Some(why), _, StoreStanding::Unasked | StoreStanding::Awaited(_)) => {
                StoreStanding::Awaited(why.to_string())
            }
        };
        match (standing.failure(), next.failure()) {
            (None, Some(why)) => {
                tracing::error!("credentials in memory are used until they expire, and sign-ins wait: {why}")
            }
            (Some(_), None) => tracing::info!("the store is back"),
            _ => {}
        }
        *standing = next;
    }

    /// Takes note of whether the place of a file takes anything, and tells the log when that changes. That the file itself
    /// cannot be written shows when it is.
    async fn note_room(&self) {
        let StorePlace::File(path) = &self.token_store.place else { return };
        let path = path.clone();
        let Ok(failure) = tokio::task::spawn_blocking(move || no_room(&path)).await else { return };
        let mut standing = self.token_store.standing.lock();
        match (&*standing, &failure) {
            (StoreStanding::Local, Some(why)) => {
                tracing::error!("credentials in memory are used until they expire, and sign-ins fail: {why}");
            }
            (StoreStanding::Unwritable(_), None) => tracing::info!("the store takes logins again"),
            _ => {}
        }
        *standing = failure.map_or(StoreStanding::Local, StoreStanding::Unwritable);
    }

    /// A number that grows with each login that comes, changes or goes, here or elsewhere.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.token_store.changes.all.subscribe()
    }

    /// Looks out for what other processes do to the store, until it is dropped. Ends at once where nothing can be kept.
    pub async fn look_out(&self) {
        if matches!(self.token_store.place, StorePlace::Nowhere) {
            return;
        }
        let mut before = None;
        let mut writing = WriteCheck::default();
        loop {
            let now = self.token_store.state(LoginKey::NAMESPACE).await;
            if now.is_ok() {
                writing.look(&self.token_store.place).await;
            }
            self.note_standing(now.as_ref().err(), writing.failure.as_ref());
            self.note_room().await;
            let now = now.ok();
            if now.is_some() && now != before {
                match self.token_store.list(&[LoginKey::range(None, None)]).await {
                    Ok(found) => {
                        self.token_store.changes.compare(found);
                        before = now;
                    }
                    Err(why) => tracing::debug!(error = %why, "the login store cannot be read"),
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Whether a shared store takes writes.
#[derive(Default)]
struct WriteCheck {
    checked: Option<Instant>,
    failure: Option<StoreError>,
}

impl WriteCheck {
    /// Looks when it is time, and each time as long as the store takes none.
    async fn look(&mut self, place: &StorePlace) {
        let StorePlace::Shared(server) = place else { return };
        if self.failure.is_some() || self.checked.is_none_or(|at| at.elapsed() >= WRITE_LOOK) {
            self.failure = server.check_write().await.err();
            self.checked = Some(Instant::now());
        }
    }
}

/// Why nothing can be written into this file, as far as its file system says; none if that says nothing of the kind.
fn no_room(path: &Path) -> Option<String> {
    // Where there is no store, nobody may need one.
    let found = rustix::fs::statvfs(path).ok()?;
    let free = if rustix::process::geteuid().is_root() { found.f_bfree } else { found.f_bavail };
    let what = match (found.f_flag.contains(StatVfsMountFlags::RDONLY), free) {
        (true, _) => "is read-only",
        (false, 0) => "is full",
        _ => return None,
    };
    Some(format!("the file system of the login store {what} ({})", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::time::SystemTime;

    use weir_oauth::Scopes;
    use weir_store::{Key, Store, Value};

    use super::*;

    #[test]
    fn only_what_somebody_has_a_mark_of_is_remembered() {
        let changes = LoginChanges::default();
        let owner = |number: u32| CredentialOwner::Principal("https://idp.example".to_owned(), number.to_string());
        let marks: Vec<Mark> = (0..100).map(|number| changes.mark("u", &owner(number))).collect();
        let kept: Vec<Mark> = marks.into_iter().take(10).collect();
        let later = Instant::now() + IDLE_LOOK;
        changes.cells.lock().forget_idle(later);
        assert_eq!(changes.cells.lock().all.len(), 10);
        changes.tell("u", &owner(3));
        changes.tell("u", &owner(50));
        assert_eq!(kept.iter().filter(|mark| !mark.holds()).count(), 1);
        assert!(changes.mark("u", &owner(50)).holds());
    }
    #[tokio::test]
    async fn news_is_what_comes_and_what_goes_however_short_it_was_there() {
        let (changes, store) = (LoginChanges::default(), weir_store::MemoryStore::default());
        let key = LoginKey {
            upstream: "u".to_owned(),
            owner: CredentialOwner::Shared,
            issuer: "https://idp.example".to_owned(),
        };
        let version = store.put(&Key::new("login", &["u"]), &nothing(), None).await.unwrap();
        let login = LoginSummary {
            key,
            origin: "https://mcp.example".to_owned(),
            issued: SystemTime::UNIX_EPOCH,
            scopes: Scopes::default(),
            expires: None,
            refreshable: true,
            bound: false,
            ended: false,
            version,
        };
        let told = |found: Vec<LoginSummary>| {
            let mark = changes.mark("u", &CredentialOwner::Shared);
            changes.compare(found);
            !mark.holds()
        };
        // Somebody has used it before it was noticed that it came.
        changes.seen(&login);
        assert!(told(vec![login.clone()]));
        assert!(!told(vec![login.clone()]));
        changes.seen(&login);
        assert!(!told(vec![login.clone()]));
        assert!(told(Vec::new()));
        assert!(!told(Vec::new()));
        // It came and went between two looks.
        changes.seen(&login);
        assert!(told(Vec::new()));
    }

    fn nothing() -> Value {
        Value { about: String::new(), secret: Default::default() }
    }
}
