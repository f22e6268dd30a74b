//! Rates of one kind: one that all have, and those of some who have their own.

use std::{sync::Arc, time::Duration};

use crate::{quota::OwnShare, rate::RateLimiter};

const MINUTE: Duration = Duration::from_secs(60);

/// How often calls may come, by whose they are.
pub(super) struct Rates<T> {
    /// Of each of the others; any number if it is none.
    kind: Option<Arc<RateLimiter>>,
    /// Of those who have a rate of their own, with the key of the configuration that says so.
    own: Vec<(T, Arc<str>, Arc<RateLimiter>)>,
}

impl<T> Default for Rates<T> {
    fn default() -> Self {
        Self { kind: None, own: Vec::new() }
    }
}

impl<T> Rates<T> {
    /// The same with other numbers of calls in a minute. Rates that stay count on.
    pub(super) fn with(&self, kind: Option<usize>, own: Vec<(T, OwnShare)>) -> Self {
        let limiter = |(whose, OwnShare { limit, key }): (T, OwnShare)| {
            let before = self.own.iter().find(|(_, before, _)| *before == key).map(|(_, _, limiter)| limiter);
            Some((whose, key, again(before, Some(limit), MINUTE)?))
        };
        Self { kind: again(self.kind.as_ref(), kind, MINUTE), own: own.into_iter().filter_map(limiter).collect() }
    }

    /// The rate of whoever is meant, and the key that says so if it is its own; none if there is no limit.
    pub(super) fn of(&self, is_it: impl Fn(&T) -> bool) -> Option<(&RateLimiter, Option<&Arc<str>>)> {
        let own = self.own.iter().find(|(whose, ..)| is_it(whose));
        let own = own.map(|(_, key, limiter)| (&**limiter, Some(key)));
        own.or_else(|| self.kind.as_deref().map(|limiter| (limiter, None)))
    }
}

/// The limiter that there was, if it is the same still.
pub(super) fn again(
    before: Option<&Arc<RateLimiter>>,
    count: Option<usize>,
    period: Duration,
) -> Option<Arc<RateLimiter>> {
    let same = before.filter(|before| (Some(before.count()), before.period()) == (count, period));
    same.cloned().or_else(|| Some(Arc::new(RateLimiter::new(count?, period))))
}
