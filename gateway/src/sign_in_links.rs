//! Where people come with their browsers to sign in, and how a browser is known to be a caller's.
//!
//! A browser brings no token. So the link that a caller is given carries a ticket, which says for whom it was made and is
//! good once. By itself it opens nothing: who brings it has to show that it was made for them. On a listener that only
//! this machine reaches everybody is the same caller, and the link is the bare address of the page.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{caller::Caller, credential::Redirect};

/// Below which authorization servers send browsers back.
pub const CALLBACK: &str = "/oauth/callback";

/// At and below which issuers of callers send browsers back.
pub const VISIT: &str = "/connect/callback";

/// How long a ticket is good.
const GOOD: Duration = Duration::from_secs(15 * 60);

/// A ticket that has less left is not given out again.
const LEAST: Duration = Duration::from_secs(5 * 60);

/// How many callers may have a ticket at once; of more, the oldest is no longer good.
const TICKETS: usize = 10_000;

/// What stands between the name of a gateway and the rest of a ticket.
const GATEWAY_END: char = '.';

/// The page, and the tickets that lead to it.
pub struct SignInLinks {
    /// What stands before every path, without a slash at its end.
    root: String,
    /// What tells this gateway from others that share its store; none where it is alone.
    gateway: Option<String>,
    tickets: Mutex<LinkTickets>,
}

/// What becomes of a ticket that somebody brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redeemed {
    /// It was made for them, and is used up from now on.
    Theirs,
    /// It was made for somebody else, for whom it is as good as before.
    Another,
    /// It is not good, or not any more.
    Gone,
}

#[derive(Default)]
struct LinkTickets {
    open: HashMap<Box<str>, (Arc<Caller>, Instant)>,
    /// The ticket of each caller: who is told twice is told the same.
    of: HashMap<Arc<str>, Box<str>>,
}

impl SignInLinks {
    /// For a page below this address.
    pub fn new(root: &str) -> Self {
        Self { root: root.trim_end_matches('/').to_owned(), gateway: None, tickets: Mutex::default() }
    }

    /// The same with tickets that say which gateway knows them.
    #[must_use]
    pub fn of_gateway(self, gateway: Option<&str>) -> Self {
        Self { gateway: gateway.map(str::to_owned), ..self }
    }

    /// The gateway that knows a ticket, if it says so.
    #[must_use]
    pub fn gateway_of(ticket: &str) -> Option<&str> {
        ticket.split_once(GATEWAY_END).map(|(gateway, _)| gateway)
    }

    /// What stands before every path of Weir, as browsers know it.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The page.
    pub fn page(&self) -> String {
        format!("{}/connect", self.root)
    }

    /// Where authorization servers send browsers back to, each to an address of its own.
    pub fn redirect(&self) -> Redirect {
        Redirect::Below(format!("{}{CALLBACK}", self.root))
    }

    /// Where each issuer of callers sends them back to. No upstream's server sends anybody there, so that none can have a
    /// code of that issuer brought to itself (RFC 9700 §4.4.2.2). The first has the shortest address; each other one its
    /// own below.
    pub fn visit_redirects<'a>(
        &self,
        issuers: impl IntoIterator<Item = &'a str>,
    ) -> impl Iterator<Item = (&'a str, String)> {
        let first = format!("{}{VISIT}", self.root);
        issuers.into_iter().enumerate().map(move |(place, issuer)| match place {
            0 => (issuer, first.clone()),
            _ => (issuer, Redirect::Below(first.clone()).of(issuer)),
        })
    }

    /// What a caller opens to sign in; none where nobody knows who is calling.
    pub fn link(&self, caller: Option<&Arc<Caller>>) -> Option<String> {
        let caller = caller?;
        if caller.is_local() {
            return Some(self.page());
        }
        let now = Instant::now();
        let mut tickets = self.tickets.lock();
        let known = tickets
            .of
            .get(caller.id())
            .filter(|ticket| tickets.open.get(*ticket).is_some_and(|(_, until)| *until > now + LEAST));
        let ticket = match known {
            Some(ticket) => ticket.clone(),
            None => tickets.issue(caller, self.gateway.as_deref(), now)?,
        };
        Some(format!("{}?ticket={ticket}", self.page()))
    }

    /// Whose ticket this is, if it is good.
    pub fn see(&self, ticket: &str) -> Option<Arc<Caller>> {
        let tickets = self.tickets.lock();
        let (caller, until) = tickets.open.get(ticket)?;
        (*until > Instant::now()).then(|| Arc::clone(caller))
    }

    /// Uses a ticket up if it was made for this caller.
    pub fn redeem(&self, ticket: &str, caller: &Caller) -> Redeemed {
        let mut tickets = self.tickets.lock();
        match tickets.open.get(ticket) {
            Some((_, until)) if *until <= Instant::now() => Redeemed::Gone,
            Some((owner, _)) if owner.id() != caller.id() => Redeemed::Another,
            Some(_) => {
                tickets.close(ticket);
                Redeemed::Theirs
            }
            None => Redeemed::Gone,
        }
    }

    /// Uses a ticket up, whoever brings it, and says for whom it was made.
    pub fn take(&self, ticket: &str) -> Option<Arc<Caller>> {
        let mut tickets = self.tickets.lock();
        let (caller, until) = tickets.close(ticket)?;
        (until > Instant::now()).then_some(caller)
    }
}

impl LinkTickets {
    fn close(&mut self, ticket: &str) -> Option<(Arc<Caller>, Instant)> {
        let (caller, until) = self.open.remove(ticket)?;
        if self.of.get(caller.id()).is_some_and(|own| &**own == ticket) {
            self.of.remove(caller.id());
        }
        Some((caller, until))
    }

    fn issue(&mut self, caller: &Arc<Caller>, gateway: Option<&str>, now: Instant) -> Option<Box<str>> {
        let random = random()?;
        let ticket: Box<str> = match gateway {
            Some(gateway) => format!("{gateway}{GATEWAY_END}{random}").into(),
            None => random.into(),
        };
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
pub fn random() -> Option<String> {
    let mut random = [0_u8; 32];
    getrandom::fill(&mut random).ok()?;
    Some(hex::encode(random))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use weir_flow::facts::Principal;

    use super::*;
    use crate::config::Secret;

    fn caller(subject: &str) -> Arc<Caller> {
        let issuer = Some("https://login.example".to_owned());
        Caller::new(Principal::named(subject, issuer), Secret::new("token".into()))
    }

    fn ticket(link: &str) -> &str {
        link.strip_prefix("https://weir.example/connect?ticket=").unwrap()
    }

    #[test]
    fn a_ticket_is_its_callers_and_good_once() {
        let weir = SignInLinks::new("https://weir.example/");
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
    fn a_ticket_is_used_up_by_its_caller_alone() {
        let weir = SignInLinks::new("https://weir.example");
        let link = weir.link(Some(&caller("ada"))).unwrap();
        for _ in 0..2 {
            assert_eq!(weir.redeem(ticket(&link), &caller("eve")), Redeemed::Another);
            assert_eq!(weir.redeem(ticket(&link), &Caller::local()), Redeemed::Another);
        }
        assert_eq!(weir.redeem(ticket(&link), &caller("ada").without_token()), Redeemed::Theirs);
        for name in ["ada", "eve"] {
            assert_eq!(weir.redeem(ticket(&link), &caller(name)), Redeemed::Gone);
        }
        assert_ne!(weir.link(Some(&caller("ada"))).unwrap(), link);
    }

    #[test]
    fn whoever_is_here_needs_no_ticket() {
        let weir = SignInLinks::new("http://127.0.0.1:8080");
        assert_eq!(weir.link(Some(&Caller::local())).unwrap(), "http://127.0.0.1:8080/connect");
        assert_eq!(weir.link(None), None);
        let below = Redirect::Below("http://127.0.0.1:8080/oauth/callback".to_owned());
        assert_eq!(weir.redirect(), below);
        let visits: Vec<_> = weir.visit_redirects(["https://a.example", "https://b.example"]).collect();
        assert_eq!(visits[0], ("https://a.example", "http://127.0.0.1:8080/connect/callback".to_owned()));
        assert!(
            visits[1].1.starts_with("http://127.0.0.1:8080/connect/callback/"),
            "each issuer has its own: {visits:?}"
        );
    }
}
