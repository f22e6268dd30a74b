//! What this process remembers of all logins, until nobody has asked for one for a while: where each caller has one, they
//! come and go, and what is remembered holds tokens.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use crate::LoginKey;

use super::slot::{KnownLogin, TokenSlot};

/// All slots in use.
#[derive(Default)]
pub(super) struct TokenSlots(Mutex<All>);

#[derive(Default)]
struct All {
    slots: HashMap<LoginKey, Remembered>,
    /// When it was last looked who is idle.
    looked: Option<SystemTime>,
}

struct Remembered {
    slot: Arc<TokenSlot>,
    used: SystemTime,
}

/// How long nobody has asked for what is forgotten.
const IDLE: Duration = Duration::from_secs(3600);
/// How often to look for that.
const LOOK: Duration = Duration::from_secs(600);

impl TokenSlots {
    /// The slot of a login, made if there is none.
    pub(super) fn of(&self, key: &LoginKey, now: SystemTime) -> Arc<TokenSlot> {
        let mut all = self.lock();
        all.forget_idle(now);
        if let Some(known) = all.slots.get_mut(key) {
            known.used = now;
            return Arc::clone(&known.slot);
        }
        let slot = Arc::<TokenSlot>::default();
        all.slots.insert(key.clone(), Remembered { slot: Arc::clone(&slot), used: now });
        slot
    }

    /// What `tell` has to say of each.
    pub(super) fn each<T>(&self, tell: impl Fn(&LoginKey, &KnownLogin) -> Option<T>) -> Vec<T> {
        self.lock().slots.iter().filter_map(|(key, known)| tell(key, &known.slot.lock())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    /// Whoever waits for a slot, or works on it, holds it; and what could not be saved is nowhere else.
    fn forget_idle(&mut self, now: SystemTime) {
        let is_past = |at: SystemTime, time: Duration| now.duration_since(at).is_ok_and(|passed| passed >= time);
        if self.looked.is_some_and(|at| at <= now && !is_past(at, LOOK)) {
            return;
        }
        self.looked = Some(now);
        self.slots.retain(|_, known| {
            !is_past(known.used, IDLE) || Arc::strong_count(&known.slot) > 1 || known.slot.lock().unsaved
        });
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
        let (slots, start) = (TokenSlots::default(), SystemTime::UNIX_EPOCH + IDLE);
        for number in 0..100 {
            slots.of(&key(number), start);
        }
        let count = || slots.each(|_, _| Some(())).len();
        let held = slots.of(&key(1), start);
        slots.of(&key(2), start).lock().unsaved = true;
        slots.of(&key(3), start + LOOK);
        slots.of(&key(1000), start + IDLE - Duration::from_secs(1));
        assert_eq!(count(), 101, "not before its time");
        slots.of(&key(1000), start + IDLE + LOOK - Duration::from_secs(1));
        assert_eq!(count(), 4, "held, unsaved, and used since");
        drop(held);
        slots.of(&key(1000), start + 3 * IDLE);
        assert_eq!(count(), 2);
        // A clock that was put back.
        slots.of(&key(5), start);
        assert_eq!(count(), 3);
    }
}
