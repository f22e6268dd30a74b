//! One line for whatever lets somebody in or out: sign-ins, sign-outs, opened links and refused tokens. All have the same
//! fields, and none for a token.

use std::{
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use weir_flow::facts::Principal;

use super::audit;

/// Who did something, and where. What is not known is left out of the line.
#[derive(Clone, Copy, Debug, Default)]
pub struct AuthRecord<'a> {
    /// The upstream; none for Weir itself.
    pub upstream: Option<&'a str>,
    /// Who, at the issuer of callers.
    pub subject: Option<&'a str>,
    /// Who vouches for them, or should.
    pub issuer: Option<&'a str>,
    /// The name of an API key.
    pub key: Option<&'a str>,
    /// The tool, prompt or resource that is approved.
    pub entry: Option<&'a str>,
    /// The client that asked Weir for a token.
    pub client: Option<&'a str>,
    /// The other end of the connection.
    pub address: Option<IpAddr>,
    /// How many lines like this one were suppressed before it.
    pub suppressed: Option<u64>,
}

impl<'a> AuthRecord<'a> {
    /// Of a principal, or of nobody who is known.
    #[must_use]
    pub fn of(who: Option<&'a Principal>, address: Option<IpAddr>) -> Self {
        let (subject, issuer) = (who.map(|who| who.subject.as_str()), who.and_then(|who| who.issuer.as_deref()));
        Self { subject, issuer, address, ..Self::default() }
    }

    /// At an upstream.
    #[must_use]
    pub fn at(self, upstream: &'a str) -> Self {
        Self { upstream: Some(upstream), ..self }
    }

    /// Writes that it was done.
    pub fn done(&self, what: &str) {
        let Self { upstream, subject, issuer, key, entry, client, suppressed, .. } = self;
        let client_address = self.address.map(tracing::field::display);
        tracing::info!(target: "weir::auth", upstream, subject, issuer, key, entry, client, client_address, suppressed, "{what}");
        self.audit(what, "allowed", None);
    }

    /// Writes that it was refused, for a reason without a secret.
    pub fn refused(&self, what: &str, why: &str) {
        let Self { upstream, subject, issuer, client, suppressed, .. } = self;
        let client_address = self.address.map(tracing::field::display);
        tracing::warn!(target: "weir::auth", upstream, subject, issuer, client, client_address, error = why, suppressed, "{what}");
        self.audit(what, "denied", Some(why));
    }

    /// Has the audit log alone know that it was refused: the log has it in other words.
    pub fn refused_unsaid(&self, what: &str, why: &str) {
        self.audit(what, "denied", Some(why));
    }

    /// The audit log has the same; its type is what was done, as one word.
    fn audit(&self, what: &str, decision: &str, why: Option<&str>) {
        audit::write(&what.replace([' ', '-'], "_"), |record| {
            record.maybe("principal_id", self.subject);
            record.maybe("issuer", self.issuer);
            record.maybe("key", self.key);
            record.maybe("entry", self.entry);
            record.maybe("client_id", self.client);
            record.maybe("client_address", self.address.map(|address| address.to_string()).as_deref());
            record.maybe("upstream", self.upstream);
            record.text("decision", decision);
            record.maybe("error", why);
            if let Some(suppressed) = self.suppressed {
                record.number("suppressed", suppressed);
            }
        });
    }
}

/// Refusals that strangers can bring about: so many lines a second, and the count of what was left out.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    began: Option<Instant>,
    written: u32,
    suppressed: u64,
}

impl Refusals {
    /// None so far.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Window { began: None, written: 0, suppressed: 0 }))
    }

    /// How many lines were left out before this one; none if it is left out too.
    #[must_use]
    pub fn admit(&self, now: Instant) -> Option<u64> {
        const A_SECOND: u32 = 10;
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if window.began.is_none_or(|began| now.duration_since(began) >= Duration::from_secs(1)) {
            (window.began, window.written) = (Some(now), 0);
        }
        if window.written >= A_SECOND {
            window.suppressed += 1;
            return None;
        }
        window.written += 1;
        Some(std::mem::take(&mut window.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_do_not_fill_the_log() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let written = (0..1000).filter(|_| refusals.admit(now).is_some()).count();
        assert_eq!(written, 10);
        assert_eq!(refusals.admit(now + Duration::from_secs(1)), Some(990));
        assert_eq!(refusals.admit(now + Duration::from_secs(1)), Some(0));
    }
}
