//! Where people come with their browsers to sign in, and how a browser is known to be a caller's.
//!
//! A browser brings no token. So the link that a caller is given carries a ticket, which is good once and for the browser
//! that brings it first; what follows is between that browser and the page. On a listener that only this machine reaches
//! everybody is the same caller, and the link is the bare address of the page.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::caller::Caller;

/// How long a ticket is good.
const GOOD: Duration = Duration::from_secs(15 * 60);

/// A ticket that has less left is not given out again.
const LEAST: Duration = Duration::from_secs(5 * 60);

/// How many callers may have a ticket at once; of more, the oldest is no longer good.
const TICKETS: usize = 10_000;

/// The page, and the tickets that lead to it.
pub struct Invitations {
    /// What stands before every path, without a slash at its end.
    root: String,
    tickets: Mutex<Tickets>,
}

#[derive(Default)]
struct Tickets {
    open: HashMap<Box<str>, (Arc<Caller>, Instant)>,
    /// The ticket of each caller: who is told twice is told the same.
    of: HashMap<Arc<str>, Box<str>>,
}

impl Invitations {
    /// For a page below this address.
    #[must_use]
    pub fn new(root: &str) -> Self {
        Self { root: root.trim_end_matches('/').to_owned(), tickets: Mutex::default() }
    }

    /// What stands before every path of Weir, as browsers know it.
    #[must_use]
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> String {
        format!("{}/connect", self.root)
    }

    /// Where authorization servers send browsers back to.
    #[must_use]
    pub fn redirect(&self) -> String {
        format!("{}/oauth/callback", self.root)
    }

    /// What a caller opens to sign in; none where nobody knows who is calling.
    #[must_use]
    pub fn link(&self, caller: Option<&Arc<Caller>>) -> Option<String> {
        let caller = caller?;
        if caller.is_local() {
            return Some(self.page());
        }
        let now = Instant::now();
        let mut tickets = crate::session::lock(&self.tickets);
        let known = tickets
            .of
            .get(caller.id())
            .filter(|ticket| tickets.open.get(*ticket).is_some_and(|(_, until)| *until > now + LEAST));
        let ticket = match known {
            Some(ticket) => ticket.clone(),
            None => tickets.issue(caller, now)?,
        };
        Some(format!("{}?ticket={ticket}", self.page()))
    }

    /// Whose ticket this is, if it is good.
    #[must_use]
    pub fn see(&self, ticket: &str) -> Option<Arc<Caller>> {
        let tickets = crate::session::lock(&self.tickets);
        let (caller, until) = tickets.open.get(ticket)?;
        (*until > Instant::now()).then(|| Arc::clone(caller))
    }

    /// The same, and from now on it is not good any more.
    #[must_use]
    pub fn take(&self, ticket: &str) -> Option<Arc<Caller>> {
        let mut tickets = crate::session::lock(&self.tickets);
        let (caller, until) = tickets.open.remove(ticket)?;
        if tickets.of.get(caller.id()).is_some_and(|own| &**own == ticket) {
            tickets.of.remove(caller.id());
        }
        (until > Instant::now()).then_some(caller)
    }
}

impl Tickets {
    fn issue(&mut self, caller: &Arc<Caller>, now: Instant) -> Option<Box<str>> {
        let ticket: Box<str> = random()?.into();
        if self.open.len() >= TICKETS {
            self.open.retain(|_, (_, until)| *until > now);
        }
        if self.open.len() >= TICKETS
            && let Some(oldest) = self.open.iter().min_by_key(|(_, (_, until))| *until).map(|(key, _)| key.clone())
        {
            self.open.remove(&oldest);
        }
        let open = &self.open;
        self.of.retain(|_, ticket| open.contains_key(ticket));
        self.open.insert(ticket.clone(), (caller.without_token(), now + GOOD));
        self.of.insert(Arc::clone(caller.id()), ticket.clone());
        Some(ticket)
    }
}

/// 32 random bytes in hexadecimal; none if the system has no randomness to give.
#[must_use]
pub fn random() -> Option<String> {
    let mut random = [0_u8; 32];
    getrandom::fill(&mut random).ok()?;
    Some(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use weir_flow::facts::Principal;

    use super::*;
    use crate::config::Secret;

    fn caller(subject: &str) -> Arc<Caller> {
        let issuer = Some("https://login.example".to_owned());
        let principal = Principal { subject: subject.into(), issuer, scopes: Vec::new(), claims: "{}".into() };
        Caller::new(principal, Secret::new("token".into()))
    }

    fn ticket(link: &str) -> &str {
        link.strip_prefix("https://weir.example/connect?ticket=").unwrap()
    }

    #[test]
    fn a_ticket_is_its_callers_and_good_once() {
        let weir = Invitations::new("https://weir.example/");
        let (ada, eve) = (weir.link(Some(&caller("ada"))).unwrap(), weir.link(Some(&caller("eve"))).unwrap());
        assert_ne!(ada, eve);
        assert_eq!(weir.link(Some(&caller("ada"))).unwrap(), ada, "who is told twice is told the same");
        assert_eq!(weir.see(ticket(&ada)).unwrap().principal().subject, "ada");
        let taken = weir.take(ticket(&ada)).unwrap();
        assert!(taken.principal().subject == "ada" && taken.token().is_none(), "a browser needs no token");
        assert!(weir.see(ticket(&ada)).is_none() && weir.take(ticket(&ada)).is_none());
        assert_ne!(weir.link(Some(&caller("ada"))).unwrap(), ada);
        assert!(weir.see("").is_none() && weir.see(ticket(&eve)).is_some());
    }

    #[test]
    fn whoever_is_here_needs_no_ticket() {
        let weir = Invitations::new("http://127.0.0.1:8080");
        assert_eq!(weir.link(Some(&Caller::local())).unwrap(), "http://127.0.0.1:8080/connect");
        assert_eq!(weir.link(None), None);
        assert_eq!(weir.redirect(), "http://127.0.0.1:8080/oauth/callback");
    }
}
