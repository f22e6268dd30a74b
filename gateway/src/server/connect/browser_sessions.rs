//! The browsers that are known, each by a cookie and for one caller.
//!
//! They are kept in memory: after a restart a browser comes with a new link.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{caller::Caller, sign_in_links::random};

use super::{cookie::Cookie, page::Notice};

/// How long a browser is known after it came last.
const KNOWN: Duration = Duration::from_secs(60 * 60);

/// How long it is known at most: whoever is let go at the issuer must not stay here by coming again and again.
const LONGEST: Duration = Duration::from_secs(8 * 60 * 60);

/// How many are known at once; of more, the one that was away for the longest time is forgotten.
const BROWSERS: usize = 10_000;

/// How many of them may be one caller's, so that nobody crowds out others; of more, one of its own is forgotten.
const SHARE: usize = 500;

/// All of them, by their ids.
pub(super) struct BrowserSessions {
    cookie: Cookie,
    known: Mutex<HashMap<Box<str>, SeenBrowser>>,
}

/// A browser, and when it came last.
type SeenBrowser = (Arc<BrowserSession>, Instant);

/// One browser of one caller.
pub(super) struct BrowserSession {
    id: String,
    caller: Arc<Caller>,
    since: Instant,
    /// Goes into each form, so that no other site can send one.
    key: String,
    /// What to say on the next page.
    notice: Mutex<Option<Notice>>,
    /// The ticket that it has used, which is over for everybody else.
    used: Mutex<Option<Box<str>>>,
}

impl BrowserSessions {
    pub(super) fn new(secure: bool) -> Self {
        Self { cookie: Cookie::new("weir", secure), known: Mutex::default() }
    }

    /// Makes a browser a caller's; also gives the cookie that it is known by from now on.
    pub(super) fn open(&self, caller: Arc<Caller>) -> Option<(Arc<BrowserSession>, String)> {
        let (id, key) = (random()?, random()?);
        let now = Instant::now();
        let (notice, used) = (Mutex::default(), Mutex::default());
        let browser = Arc::new(BrowserSession { id, caller, since: now, key, notice, used });
        let mut known = self.known.lock();
        if known.len() >= BROWSERS {
            known.retain(|_, (_, seen)| seen.elapsed() < KNOWN);
        }
        let all = known.len() >= BROWSERS;
        let theirs = |(other, _): &SeenBrowser| other.caller.id() == browser.caller.id();
        if all || known.values().filter(|seen| theirs(seen)).count() >= SHARE {
            let oldest = known.iter().filter(|(_, seen)| all || theirs(seen)).min_by_key(|(_, (_, seen))| *seen);
            if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
                known.remove(&oldest);
            }
        }
        known.insert(browser.id.as_str().into(), (Arc::clone(&browser), now));
        let cookie = self.cookie.set(&browser.id, None);
        Some((browser, cookie))
    }

    /// The same browser after its caller has signed in anew. What it has begun is bound to its id and goes on.
    pub(super) fn renew(&self, before: &BrowserSession, caller: Arc<Caller>) {
        let (id, key, now) = (before.id.clone(), before.key.clone(), Instant::now());
        let (notice, used) = (Mutex::new(before.notice.lock().take()), Mutex::new(before.used.lock().clone()));
        let browser = Arc::new(BrowserSession { id, caller, since: now, key, notice, used });
        // One that was closed meanwhile stays so.
        if let Some(seen) = self.known.lock().get_mut(before.id()) {
            *seen = (browser, now);
        }
    }

    /// The browser that its cookies name.
    pub(super) fn get(&self, cookies: &str) -> Option<Arc<BrowserSession>> {
        let mut known = self.known.lock();
        for id in self.cookie.values(cookies) {
            if let Some((browser, seen)) = known.get_mut(id)
                && seen.elapsed() < KNOWN
                && browser.since.elapsed() < LONGEST
            {
                *seen = Instant::now();
                return Some(Arc::clone(browser));
            }
        }
        None
    }

    /// Forgets one, whose cookie is worth nothing from then on.
    pub(super) fn close(&self, browser: &BrowserSession) {
        self.known.lock().remove(browser.id());
    }
}

impl BrowserSession {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// How long ago its caller has signed in.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Whether a form comes from this browser's own page.
    pub(super) fn is_key(&self, key: &str) -> bool {
        // Without telling by the time it takes how much of it is right.
        let differ = key.bytes().zip(self.key.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
        key.len() == self.key.len() && differ == 0
    }

    /// Says something on the next page.
    pub(super) fn tell(&self, notice: Notice) {
        *self.notice.lock() = Some(notice);
    }

    /// Remembers the ticket that it came in with.
    pub(super) fn use_up(&self, ticket: &str) {
        *self.used.lock() = Some(ticket.into());
    }

    /// Whether it came in with this ticket.
    pub(super) fn has_used(&self, ticket: &str) -> bool {
        self.used.lock().as_deref() == Some(ticket)
    }

    /// What is to be said; once.
    pub(super) fn notice(&self) -> Option<Notice> {
        self.notice.lock().take()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use weir_flow::facts::Principal;

    use super::*;

    #[test]
    fn a_browser_is_known_by_its_cookie_alone() {
        let browser_sessions = BrowserSessions::new(false);
        let (browser, cookie) = browser_sessions.open(Caller::local()).unwrap();
        assert_eq!(cookie, format!("weir={}; Path=/; HttpOnly; SameSite=Lax", browser.id()));
        let sent = format!("a=b; weir={}; weir=x", browser.id());
        assert!(Arc::ptr_eq(&browser_sessions.get(&sent).unwrap(), &browser));
        assert!(browser_sessions.get(&format!("other={}", browser.id())).is_none());
        assert!(browser_sessions.get("weir=").is_none() && browser_sessions.get("").is_none());
        assert!(browser.is_key(browser.key()) && !browser.is_key("") && !browser.is_key(browser.id()));
    }

    #[test]
    fn a_browser_that_is_forgotten_is_nobody() {
        let browser_sessions = BrowserSessions::new(true);
        let (browser, _) = browser_sessions.open(Caller::local()).unwrap();
        let sent = format!("__Host-weir={}", browser.id());
        assert!(browser_sessions.get(&sent).is_some());
        browser_sessions.close(&browser);
        assert!(browser_sessions.get(&sent).is_none());
    }

    #[test]
    fn there_are_no_more_than_there_may_be() {
        let browser_sessions = BrowserSessions::new(false);
        let (first, _) = browser_sessions.open(Caller::local()).unwrap();
        let caller = |subject: String| {
            let issuer = Some("https://login.example".to_owned());
            Caller::signed_in(Principal::named(subject, issuer))
        };
        let (ada, _) = browser_sessions.open(caller("ada".to_owned())).unwrap();
        for _ in 0..SHARE {
            browser_sessions.open(Caller::local()).unwrap();
        }
        assert!(browser_sessions.get(&format!("weir={}", first.id())).is_none());
        assert!(browser_sessions.get(&format!("weir={}", ada.id())).is_some(), "others are not crowded out");
        for number in 0..BROWSERS {
            browser_sessions.open(caller((number / 100).to_string())).unwrap();
        }
        assert_eq!(browser_sessions.known.lock().len(), BROWSERS);
    }
}
