//! The sign-ins that wait for their users to come back.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use weir_store::{Clock, Secret};

use super::{Callback, PendingSignIn, SignInError, same};

/// The sign-ins under way, each with what it is for. Each is taken once, by the one it was made for, before its time is
/// over.
pub struct PendingSignIns<T> {
    clock: Clock,
    waiting: Mutex<HashMap<String, PendingAuthorization<T>>>,
}

struct PendingAuthorization<T> {
    whose: Box<str>,
    until: SystemTime,
    binding: Secret,
    sign_in: PendingSignIn,
    purpose: T,
}

/// How long a user has to sign in.
pub const SIGN_IN_TIME: Duration = Duration::from_secs(600);
/// Sign-ins that wait at the same time. With more, the oldest gives way.
pub(super) const MAX_WAITING: usize = 10_000;
/// How many of them one may have begun, so that nobody crowds out others. With more, its own oldest gives way.
pub(super) const SHARE: usize = 500;

impl<T> PendingSignIns<T> {
    pub fn new(clock: Clock) -> Self {
        Self { clock, waiting: Mutex::new(HashMap::new()) }
    }

    /// Keeps one until its user comes back. `whose` names who has begun it: one known user, or an address. `binding` is what
    /// only that user can bring: of his browser and his identity.
    pub fn keep(&self, sign_in: PendingSignIn, whose: &str, binding: Secret, purpose: T) {
        let now = self.clock.now();
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MAX_WAITING {
            waiting.retain(|_, one| now < one.until);
        }
        let all = waiting.len() >= MAX_WAITING;
        let theirs = |one: &PendingAuthorization<T>| *one.whose == *whose;
        if all || waiting.values().filter(|one| theirs(one)).count() >= SHARE {
            let oldest = waiting.iter().filter(|(_, one)| all || theirs(one)).min_by_key(|(_, one)| one.until);
            if let Some(oldest) = oldest.map(|(state, _)| state.clone()) {
                waiting.remove(&oldest);
            }
        }
        let state = sign_in.state.expose().to_owned();
        waiting.insert(
            state,
            PendingAuthorization { whose: whose.into(), until: now + SIGN_IN_TIME, binding, sign_in, purpose },
        );
    }

    /// Takes out the sign-in that `callback` ends, with what it is for. Somebody else's attempt leaves it where it is.
    ///
    /// # Errors
    /// If there is none for this state and this binding.
    pub fn take(&self, callback: &Callback, binding: &Secret) -> Result<(PendingSignIn, T), SignInError> {
        let state = callback.state.as_ref().map(Secret::expose).ok_or(SignInError::Unknown)?;
        let mut waiting = self.waiting.lock();
        let one = waiting.get(state).ok_or(SignInError::Unknown)?;
        if self.clock.now() >= one.until || !same(one.binding.expose(), binding.expose()) {
            return Err(SignInError::Unknown);
        }
        waiting.remove(state).map(|one| (one.sign_in, one.purpose)).ok_or(SignInError::Unknown)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.waiting.lock().len()
    }
}
