//! Quotas: how much of what all clients share one of them may hold.
//!
//! A [`Quota`] counts one kind of thing: in all, for each principal, and for each upstream. A [`Permit`] stands for one
//! of them and gives it back when dropped. Who holds nothing takes no room. Without a proved principal the caller's
//! address stands for it ([`address`]); what a client says of itself is never a key.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ahash::RandomState;
use parking_lot::Mutex;

use crate::counters::LIMITS_REACHED;

/// How many of one kind there may be at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// In all.
    pub total: usize,
    /// For each principal, or each address where nobody proves who they are.
    pub principal: usize,
    /// For each upstream.
    pub upstream: usize,
}

/// What somebody may hold instead of what each of its kind may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnShare {
    /// How many.
    pub limit: usize,
    /// The key of the configuration that says so.
    pub key: Arc<str>,
}

/// Those who have a share of their own, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnShares {
    /// By what stands for the principal.
    pub principals: HashMap<Arc<str>, OwnShare>,
    /// By the name of the upstream.
    pub upstreams: HashMap<Arc<str>, OwnShare>,
}

/// Counts one kind of thing that clients make Weir hold.
pub struct Quota {
    /// What is counted, as the keys below `limits` name it.
    name: &'static str,
    used: Mutex<QuotaUse>,
    refused: Arc<AtomicU64>,
}

/// Each call looks here.
type Counts = HashMap<Holder, usize, RandomState>;

struct QuotaUse {
    shares: Shares,
    own: OwnShares,
    total: usize,
    held: Counts,
    /// The same at other gateways, as far as they have told it.
    elsewhere: Counts,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Holder {
    Principal(Arc<str>),
    Upstream(Arc<str>),
}

/// What was taken of what a [`Quota`] counts; given back when dropped.
#[must_use]
pub struct Permit {
    quota: Arc<Quota>,
    holders: [Option<Holder>; 2],
    amount: usize,
}

/// Whose share is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Nobody can have more.
    All,
    /// This caller cannot.
    Principal,
    /// This upstream cannot.
    Upstream,
}

/// A limit was reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Reached {
    name: &'static str,
    limit: usize,
    /// Whose limit it is.
    pub scope: Scope,
    upstream: Option<Arc<str>>,
    /// What says so, if it is a share of its own.
    key: Option<Arc<str>>,
}

impl Quota {
    /// A quota for what the configuration calls `name`.
    pub fn new(name: &'static str, shares: Shares) -> Arc<Self> {
        let used = Mutex::new(QuotaUse {
            shares,
            own: OwnShares::default(),
            total: 0,
            held: Counts::default(),
            elsewhere: Counts::default(),
        });
        Arc::new(Self { name, used, refused: LIMITS_REACHED.counter(name, "") })
    }

    /// How many there may be.
    pub fn shares(&self) -> Shares {
        self.used.lock().shares
    }

    /// Allows another number. What is held beyond it stays until it is given back.
    pub fn resize(&self, shares: Shares) {
        self.used.lock().shares = shares;
    }

    /// Gives some a share of their own, and to all others that of their kind. What is held beyond it stays.
    pub fn resize_own(&self, own: OwnShares) {
        self.used.lock().own = own;
    }

    /// Takes one for a principal, at an upstream if it is held there.
    ///
    /// # Errors
    ///
    /// When a limit is reached; the narrowest is named.
    pub fn take(self: &Arc<Self>, principal: &Arc<str>, upstream: Option<&str>) -> Result<Permit, Reached> {
        self.take_many(principal, upstream, 1)
    }

    /// Takes several at once, all or none: of what is counted in bytes.
    ///
    /// # Errors
    ///
    /// As [`take`](Self::take).
    pub fn take_many(
        self: &Arc<Self>,
        principal: &Arc<str>,
        upstream: Option<&str>,
        amount: usize,
    ) -> Result<Permit, Reached> {
        self.take_within(principal, upstream, amount, None)
    }

    /// The same where the upstream has this share of its own.
    ///
    /// # Errors
    ///
    /// As [`take`](Self::take).
    pub fn take_within(
        self: &Arc<Self>,
        principal: &Arc<str>,
        upstream: Option<&str>,
        amount: usize,
        own: Option<&OwnShare>,
    ) -> Result<Permit, Reached> {
        let holders =
            [Some(Holder::Principal(Arc::clone(principal))), upstream.map(|name| Holder::Upstream(name.into()))];
        let mut used = self.used.lock();
        let shares = used.shares;
        for holder in holders.iter().flatten() {
            let (of_kind, scope, own) = match holder {
                Holder::Principal(name) => (shares.principal, Scope::Principal, used.own.principals.get(name)),
                Holder::Upstream(name) => {
                    (shares.upstream, Scope::Upstream, own.or_else(|| used.own.upstreams.get(name)))
                }
            };
            let limit = own.map_or(of_kind, |own| own.limit);
            let held = |of: &Counts| of.get(holder).copied().unwrap_or_default();
            if held(&used.held).saturating_add(held(&used.elsewhere)).saturating_add(amount) > limit {
                return Err(Reached {
                    key: own.map(|own| Arc::clone(&own.key)),
                    ..self.reached(limit, scope, upstream)
                });
            }
        }
        if used.total.saturating_add(amount) > shares.total {
            return Err(self.reached(shares.total, Scope::All, upstream));
        }
        used.add(&holders, amount);
        drop(used);
        Ok(Permit { quota: Arc::clone(self), holders, amount })
    }

    /// Takes one for Weir itself, which is counted and never refused: there are few, whatever clients do.
    pub fn take_own(self: &Arc<Self>, upstream: Option<&str>) -> Permit {
        let holders = [None, upstream.map(|name| Holder::Upstream(name.into()))];
        self.used.lock().add(&holders, 1);
        Permit { quota: Arc::clone(self), holders, amount: 1 }
    }

    /// What the keys below `limits` call it.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// How many there are.
    pub fn used(&self) -> usize {
        self.used.lock().total
    }

    /// What is held here of shares, for other gateways. An address is nobody whom an issuer vouches for: it is told to nobody.
    pub fn held(&self) -> BTreeMap<String, usize> {
        let used = self.used.lock();
        let told =
            used.held.iter().filter(|(holder, _)| !matches!(holder, Holder::Principal(name) if !name.contains('\n')));
        told.map(|(holder, held)| (holder.text(), *held)).collect()
    }

    /// What other gateways hold, by the same names.
    pub fn hold_elsewhere(&self, held: &BTreeMap<&str, usize>) {
        let held = held.iter().filter_map(|(holder, held)| Some((Holder::parse(holder)?, *held)));
        self.used.lock().elsewhere = held.collect();
    }

    fn reached(&self, limit: usize, scope: Scope, upstream: Option<&str>) -> Reached {
        self.refused.fetch_add(1, Ordering::Relaxed);
        Reached { name: self.name, limit, scope, upstream: upstream.map(Arc::from), key: None }
    }
}

impl Holder {
    /// As gateways name it to each other.
    fn text(&self) -> String {
        match self {
            Self::Principal(name) => format!("principal:{name}"),
            Self::Upstream(name) => format!("upstream:{name}"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("principal", name) => Some(Self::Principal(name.into())),
            ("upstream", name) => Some(Self::Upstream(name.into())),
            _ => None,
        }
    }
}

impl QuotaUse {
    fn add(&mut self, holders: &[Option<Holder>], amount: usize) {
        self.total += amount;
        for holder in holders.iter().flatten() {
            *self.held.entry(holder.clone()).or_default() += amount;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut used = self.quota.used.lock();
        used.total -= self.amount;
        for holder in self.holders.iter().flatten() {
            if let Some(held) = used.held.get_mut(holder) {
                *held -= self.amount;
                if *held == 0 {
                    used.held.remove(holder);
                }
            }
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("of", &self.quota.name).finish_non_exhaustive()
    }
}

impl Reached {
    /// The status that says so over HTTP: it is the caller's doing, or it is not.
    pub const fn status(&self) -> u16 {
        match self.scope {
            Scope::Principal => 429,
            Scope::All | Scope::Upstream => 503,
        }
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, name, what) = (self.limit, self.name, self.name.replace('_', " "));
        let of_kind = match (self.scope, &self.upstream) {
            (Scope::Principal, _) => {
                write!(f, "this caller has {limit} {what} already")?;
                format!("limits.principal.{name}")
            }
            (Scope::Upstream, Some(tool)) if name == "tool.calls" => {
                write!(f, "tool `{tool}` has {limit} calls already")?;
                format!("limits.{name}")
            }
            (Scope::Upstream, Some(upstream)) => {
                write!(f, "upstream `{upstream}` has {limit} {what} already")?;
                format!("limits.upstream.{name}")
            }
            (Scope::All | Scope::Upstream, _) => {
                write!(f, "there are already {limit} {what}")?;
                format!("limits.{name}")
            }
        };
        write!(f, ", as many as `{}` allows", self.key.as_deref().unwrap_or(&of_kind))
    }
}

/// What stands for a caller at this address who has not proved who they are. Whoever has one IPv6 address has all of its
/// network (RFC 4291 §2.5.1), so these count together. No principal has the same text, which has a line break in it.
pub fn address(address: IpAddr) -> Arc<str> {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string().into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64").into()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn quota(total: usize, principal: usize, upstream: usize) -> Arc<Quota> {
        Quota::new("pooled_sessions", Shares { total, principal, upstream })
    }

    #[test]
    fn each_has_a_share_and_nobody_else_notices() {
        let quota = quota(4, 2, 3);
        let (ada, eve): (Arc<str>, Arc<str>) = ("ada".into(), "eve".into());
        let _first = quota.take(&eve, Some("x")).unwrap();
        let second = quota.take(&eve, Some("y")).unwrap();
        let reached = quota.take(&eve, Some("x")).unwrap_err();
        assert_eq!((reached.scope, reached.status()), (Scope::Principal, 429));
        assert_eq!(
            reached.to_string(),
            "this caller has 2 pooled sessions already, as many as `limits.principal.pooled_sessions` allows"
        );
        let _ada = quota.take(&ada, Some("x")).unwrap();
        drop(second);
        assert!(quota.take(&eve, None).is_ok(), "what is given back can be taken");
    }

    #[test]
    fn an_upstream_and_all_together_have_limits_that_are_named() {
        let quota = quota(3, 9, 2);
        let taken: Vec<Permit> = ["a", "b"].map(|who| quota.take(&who.into(), Some("x")).unwrap()).into();
        let reached = quota.take(&"c".into(), Some("x")).unwrap_err();
        assert_eq!((reached.scope, reached.status()), (Scope::Upstream, 503));
        assert!(
            reached.to_string().contains("`x`") && reached.to_string().contains("`limits.upstream.pooled_sessions`")
        );
        let _third = quota.take(&"c".into(), Some("y")).unwrap();
        let reached = quota.take(&"d".into(), Some("y")).unwrap_err();
        assert_eq!((reached.scope, reached.status()), (Scope::All, 503));
        assert!(reached.to_string().contains("`limits.pooled_sessions`"), "{reached}");
        let own = quota.take_own(Some("x"));
        assert_eq!(quota.used(), 4, "Weir's own is counted and never refused");
        drop((taken, own));
        assert_eq!(quota.used(), 1);
    }

    #[test]
    fn bytes_are_counted_all_or_none() {
        let (quota, ada) = (quota(100, 60, 0), Arc::from("ada"));
        let first = quota.take_many(&ada, None, 50).unwrap();
        assert_eq!(quota.take_many(&ada, None, 20).unwrap_err().scope, Scope::Principal);
        assert_eq!(quota.take_many(&"eve".into(), None, 60).unwrap_err().scope, Scope::All);
        let _second = quota.take_many(&"eve".into(), None, 50).unwrap();
        drop(first);
        assert_eq!(quota.used(), 50);
    }

    #[test]
    fn what_is_held_beyond_a_smaller_limit_stays() {
        let (quota, ada) = (quota(3, 3, 3), Arc::from("ada"));
        let mut held: Vec<Permit> = [(); 3].map(|()| quota.take(&ada, None).unwrap()).into();
        quota.resize(Shares { total: 1, principal: 1, upstream: 1 });
        assert_eq!(quota.used(), 3);
        while held.pop().is_some() {
            let refused = quota.take(&ada, None);
            assert_eq!(refused.is_err(), !held.is_empty());
        }
        quota.resize(Shares { total: 2, principal: 2, upstream: 2 });
        let _two = [quota.take(&ada, None).unwrap(), quota.take(&ada, None).unwrap()];
        assert!(quota.take(&ada, None).unwrap_err().to_string().contains("has 2"));
    }

    #[test]
    fn a_share_of_its_own_counts_instead_of_that_of_its_kind() {
        let (quota, ada, eve) = (quota(9, 2, 3), Arc::from("ada"), Arc::from("eve"));
        let own = |limit, key: &str| OwnShare { limit, key: key.into() };
        let principals = HashMap::from([(Arc::clone(&ada), own(4, "limits.keys.ada.calls"))]);
        let upstreams = HashMap::from([("x".into(), own(1, "upstreams.x.limits.calls"))]);
        quota.resize_own(OwnShares { principals, upstreams });
        let _four = [(); 4].map(|()| quota.take(&ada, None).unwrap());
        let why = quota.take(&ada, None).unwrap_err();
        assert!(why.to_string().ends_with("already, as many as `limits.keys.ada.calls` allows"), "{why}");
        let _one = quota.take(&eve, Some("x")).unwrap();
        let why = quota.take(&eve, Some("x")).unwrap_err();
        assert!(why.to_string().contains("`upstreams.x.limits.calls`"), "{why}");
        let _other = quota.take(&eve, Some("y")).unwrap();
        assert!(quota.take(&eve, Some("y")).unwrap_err().to_string().contains("has 2"));
        // Without one it has that of its kind again, and gives back what it holds beyond.
        quota.resize_own(OwnShares::default());
        assert!(quota.take(&ada, None).unwrap_err().to_string().contains("has 2"));
    }

    #[test]
    fn who_holds_nothing_takes_no_room() {
        let quota = quota(9, 9, 9);
        for number in 0..100 {
            drop(quota.take(&number.to_string().into(), Some("x")).unwrap());
        }
        assert!(quota.used.lock().held.is_empty());
    }

    #[test]
    fn an_address_stands_for_its_network() {
        let key = |text: &str| address(text.parse().unwrap());
        assert_eq!(&*key("192.0.2.7"), "192.0.2.7");
        assert_eq!(key("::ffff:192.0.2.7"), key("192.0.2.7"));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
    }
}
