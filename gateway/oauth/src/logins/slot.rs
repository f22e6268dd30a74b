//! What this process knows of the renewal of a login that the store cannot tell.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::sync::watch;
use weir_flow::Backoff;
use weir_store::Version;

use crate::{Login, LoginKey, TokenError};

use super::Outcome;

/// The renewal of one login.
pub(super) type RenewalSlot = Mutex<RenewalState>;

#[derive(Default)]
pub(super) struct RenewalState {
    pub(super) running: Option<watch::Receiver<Option<Outcome>>>,
    pub(super) paused: Option<Pause>,
    /// When the server last made a token.
    pub(super) made: Option<SystemTime>,
    /// When that was the one that was there already.
    pub(super) repeated: Option<SystemTime>,
}

/// A login, and what the store has of it.
#[derive(Clone, Default)]
pub(super) struct StoredLogin {
    pub(super) login: Option<Arc<Login>>,
    pub(super) version: Option<Version>,
}

/// The server is left alone for a while.
#[derive(Clone)]
pub(super) struct Pause {
    /// For this writing of the login: a new sign-in starts with a clean slate.
    pub(super) version: Option<Version>,
    pub(super) until: SystemTime,
    pub(super) why: TokenError,
    pub(super) backoff: Backoff,
}

/// A token that was made within this time and is refused will not get better by making another; and a server that gave
/// the one that was there has no other yet.
const JUST_MADE: Duration = Duration::from_secs(10);

pub(super) fn is_recent(at: Option<SystemTime>, now: SystemTime) -> bool {
    at.is_some_and(|at| now.duration_since(at).is_ok_and(|age| age < JUST_MADE))
}

/// All slots in use. Where each caller has a login, they come and go.
#[derive(Default)]
pub(super) struct RenewalSlots {
    table: Mutex<SlotTable>,
    /// The logins that servers have given and the disk has refused: they are nowhere else.
    pub(super) unsaved: Mutex<HashMap<LoginKey, StoredLogin>>,
}

#[derive(Default)]
struct SlotTable {
    /// With when each was last asked for.
    slots: HashMap<LoginKey, (Arc<RenewalSlot>, SystemTime)>,
    /// When it was last looked who is idle.
    looked: Option<SystemTime>,
}

/// How long nobody has asked for what is forgotten.
const IDLE: Duration = Duration::from_secs(3600);
/// How often to look for that.
const LOOK: Duration = Duration::from_secs(600);

impl RenewalSlots {
    /// The slot of a login, made if there is none.
    pub(super) fn of(&self, key: &LoginKey, now: SystemTime) -> Arc<RenewalSlot> {
        let mut table = self.table.lock();
        table.forget_idle(now);
        if let Some((slot, used)) = table.slots.get_mut(key) {
            *used = now;
            return Arc::clone(slot);
        }
        let slot = Arc::<RenewalSlot>::default();
        table.slots.insert(key.clone(), (Arc::clone(&slot), now));
        slot
    }
}

impl SlotTable {
    /// Whoever waits for a slot, or works on it, holds it.
    fn forget_idle(&mut self, now: SystemTime) {
        let is_past = |at: SystemTime, time: Duration| now.duration_since(at).is_ok_and(|passed| passed >= time);
        if self.looked.is_some_and(|at| at <= now && !is_past(at, LOOK)) {
            return;
        }
        self.looked = Some(now);
        self.slots.retain(|_, (slot, used)| !is_past(*used, IDLE) || Arc::strong_count(slot) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CredentialOwner;

    fn key(number: u32) -> LoginKey {
        let owner = CredentialOwner::Principal("https://idp.example".to_owned(), number.to_string());
        LoginKey { upstream: "u".to_owned(), owner, issuer: "https://as.example".to_owned() }
    }

    #[test]
    fn what_nobody_asks_for_is_forgotten() {
        let (slots, start) = (RenewalSlots::default(), SystemTime::UNIX_EPOCH + IDLE);
        for number in 0..100 {
            slots.of(&key(number), start);
        }
        let count = || slots.table.lock().slots.len();
        let held = slots.of(&key(1), start);
        slots.unsaved.lock().insert(key(2), StoredLogin::default());
        slots.of(&key(3), start + LOOK);
        slots.of(&key(1000), start + IDLE - Duration::from_secs(1));
        assert_eq!(count(), 101, "not before its time");
        slots.of(&key(1000), start + IDLE + LOOK - Duration::from_secs(1));
        assert_eq!(count(), 3, "held, and used since");
        drop(held);
        slots.of(&key(1000), start + 3 * IDLE);
        assert_eq!((count(), slots.unsaved.lock().len()), (1, 1));
        // A clock that was put back.
        slots.of(&key(5), start);
        assert_eq!(count(), 2);
    }
}
