//! Who is calling.
//!
//! A [`Caller`] is made where a request comes in and goes with it to wherever something is opened, asked or kept on its
//! behalf. Nothing that one caller has opened is given to another: whatever is shared is keyed by [`Caller::apart`]. No
//! caller at all is Weir itself, or somebody at a gateway that is open to everybody.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use arc_swap::ArcSwapOption;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use weir_flow::facts::Principal;

use crate::{
    access::{Access, Grants},
    config::Secret,
    rate::Pace,
};

/// The subject of whoever calls from this machine.
const LOCAL: &str = "local";

/// A caller, as one gateway tells another or keeps it.
#[derive(Clone, Serialize, Deserialize)]
pub struct CallerRecord {
    subject: String,
    issuer: Option<String>,
    scopes: Vec<String>,
    groups: Vec<String>,
    key: Option<String>,
    claims: String,
    /// What they came with, where that goes along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl CallerRecord {
    /// Without a token: that comes with the next request.
    #[must_use]
    pub fn of(caller: &Caller) -> Self {
        let Principal { subject, issuer, scopes, groups, key, claims } = caller.principal().clone();
        Self { subject, issuer, scopes, groups, key, claims, token: None }
    }

    /// With all that they came with.
    #[must_use]
    pub fn with_token(caller: &Caller) -> Self {
        Self { token: caller.token().map(|token| token.expose().to_owned()), ..Self::of(caller) }
    }

    /// The caller.
    #[must_use]
    pub fn caller(&self) -> Arc<Caller> {
        let Self { subject, issuer, scopes, groups, key, claims, token } = self.clone();
        let Some(issuer) = issuer else { return Caller::local() };
        let principal = Principal { subject, issuer: Some(issuer), scopes, groups, key, claims };
        match token {
            Some(token) => Caller::new(principal, Secret::new(token)),
            None => Caller::signed_in(principal),
        }
    }
}

/// One who has proved who they are, or calls from this machine.
pub struct Caller {
    facts: Arc<CallerFacts>,
    id: Arc<str>,
    /// What the rules allow that were asked last.
    grants: ArcSwapOption<Grants>,
}

/// What is known of a caller, which all copies share.
struct CallerFacts {
    principal: Principal,
    /// Stands for all that is known of the principal.
    digest: OnceLock<[u8; 32]>,
    token: Option<Secret>,
    /// How many of their calls are traced.
    traced: Pace,
}

impl Caller {
    /// Whoever calls from this machine, where no tokens are asked for.
    #[must_use]
    pub fn local() -> Arc<Self> {
        static CALLER: OnceLock<Arc<Caller>> = OnceLock::new();
        Arc::clone(CALLER.get_or_init(|| Arc::new(Self::of(Principal::named(LOCAL, None), LOCAL.into(), None))))
    }

    /// Who a checked token is for.
    #[must_use]
    pub fn new(principal: Principal, token: Secret) -> Arc<Self> {
        let id = id(&principal);
        Arc::new(Self::of(principal, id, Some(token)))
    }

    /// One who has signed in with a browser.
    #[must_use]
    pub fn signed_in(principal: Principal) -> Arc<Self> {
        let id = id(&principal);
        Arc::new(Self::of(principal, id, None))
    }

    fn of(principal: Principal, id: Arc<str>, token: Option<Secret>) -> Self {
        let facts = Arc::new(CallerFacts { principal, digest: OnceLock::new(), token, traced: Pace::default() });
        Self { facts, id, grants: ArcSwapOption::const_empty() }
    }

    /// The same for the calls of one thread: each of them counts the owners of what it uses, and no other thread counts
    /// these.
    #[must_use]
    pub fn apart_of_thread(&self) -> Arc<Self> {
        let (facts, id) = (Arc::clone(&self.facts), Arc::from(&*self.id));
        Arc::new(Self { facts, id, grants: ArcSwapOption::const_empty() })
    }

    /// Whether both are one, or one is a copy of the other.
    #[must_use]
    pub fn is_copy_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.facts, &other.facts)
    }

    /// Looks at what the rules allow a caller. That raises no count, which all threads would write to.
    pub fn with_grants<T>(caller: Option<&Arc<Self>>, access: &Access, look: impl FnOnce(&Grants) -> T) -> T {
        if let Some(kept) = caller.map(|caller| caller.grants.load())
            && let Some(kept) = kept.as_ref().filter(|kept| access.made(kept))
        {
            return look(kept);
        }
        look(&Self::grants(caller, access))
    }

    /// What the rules allow a caller; none for whoever need not prove who they are.
    #[must_use]
    pub fn grants(caller: Option<&Arc<Self>>, access: &Access) -> Arc<Grants> {
        let Some(caller) = caller else { return access.grants(None) };
        if let Some(kept) = &*caller.grants.load()
            && access.made(kept)
        {
            return Arc::clone(kept);
        }
        let made = access.grants(Some(caller.principal()));
        caller.grants.store(Some(Arc::clone(&made)));
        made
    }

    /// What is known of them.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.facts.principal
    }

    /// The same for callers of whom the same is known, and for no others.
    pub fn digest(&self) -> &[u8; 32] {
        self.facts.digest.get_or_init(|| principal_digest(self.principal()))
    }

    /// The same text for the same principal, and for no other. Good as a key; not meant to be shown.
    #[must_use]
    pub const fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// The token that they came with, to be exchanged for others. It goes to no upstream.
    #[must_use]
    pub fn token(&self) -> Option<&Secret> {
        self.facts.token.as_ref()
    }

    /// The same principal, with nothing that could be passed on.
    #[must_use]
    pub fn without_token(&self) -> Arc<Self> {
        Arc::new(Self::of(self.principal().clone(), Arc::clone(&self.id), None))
    }

    /// How many of their calls are traced; none where nobody else can be calling.
    #[must_use]
    pub fn traced(&self) -> Option<&Pace> {
        Some(&self.facts.traced).filter(|_| !self.is_local())
    }

    /// Whether nobody else can be calling, so that Weir's own is theirs.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.principal().issuer.is_none()
    }

    /// What to keep apart by what is opened for a caller; none for what may be shared with Weir's own.
    #[must_use]
    pub fn apart(caller: Option<&Arc<Self>>) -> Option<Arc<str>> {
        caller.filter(|caller| !caller.is_local()).map(|caller| Arc::clone(&caller.id))
    }

    /// Whether both are the same principal.
    #[must_use]
    pub fn is_same(one: Option<&Arc<Self>>, other: Option<&Arc<Self>>) -> bool {
        match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one.id == other.id,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

/// An issuer is a URL and has no line break, so no two principals come to the same text.
fn id(principal: &Principal) -> Arc<str> {
    [principal.issuer.as_deref().unwrap_or_default(), &principal.subject].join("\n").into()
}

/// The same for the same facts about a principal, and for no others.
pub fn principal_digest(principal: &Principal) -> [u8; 32] {
    let Principal { subject, issuer, scopes, groups, key, claims } = principal;
    let mut facts = FactsHash(Sha256::new());
    facts.text(subject);
    facts.maybe(issuer.as_deref());
    facts.maybe(key.as_deref());
    facts.text(claims);
    facts.texts(scopes);
    facts.texts(groups);
    facts.0.finalize().into()
}

/// Facts one after the other, such that none can be taken for a part of another.
struct FactsHash(Sha256);

impl FactsHash {
    fn text(&mut self, text: &str) {
        self.0.update(text.len().to_le_bytes());
        self.0.update(text);
    }

    /// What is not there is not empty.
    fn maybe(&mut self, text: Option<&str>) {
        self.0.update([u8::from(text.is_some())]);
        self.text(text.unwrap_or_default());
    }

    fn texts(&mut self, texts: &[String]) {
        self.0.update(texts.len().to_le_bytes());
        texts.iter().for_each(|text| self.text(text));
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("subject", &self.principal().subject).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(issuer: &str, subject: &str, token: &str) -> Arc<Caller> {
        Caller::new(Principal::named(subject, Some(issuer.to_owned())), Secret::new(token.to_owned()))
    }

    #[test]
    fn a_principal_is_its_issuer_and_its_subject() {
        let ada = caller("https://a.example", "ada", "t1");
        assert!(Caller::is_same(Some(&ada), Some(&caller("https://a.example", "ada", "t2"))));
        for other in
            [caller("https://b.example", "ada", "t1"), caller("https://a.example", "eve", "t1"), Caller::local()]
        {
            assert!(!Caller::is_same(Some(&ada), Some(&other)), "{other:?}");
            assert_ne!(Caller::apart(Some(&ada)), Caller::apart(Some(&other)), "{other:?}");
        }
        assert!(!Caller::is_same(Some(&ada), None));
        // One who calls himself as those of this machine are called is none of them.
        let posing = caller("https://a.example", "local", "t1");
        assert!(!Caller::is_same(Some(&posing), Some(&Caller::local())) && Caller::apart(Some(&posing)).is_some());
    }

    #[test]
    fn those_of_this_machine_share_with_weir() {
        assert_eq!(Caller::apart(Some(&Caller::local())), Caller::apart(None));
    }

    #[test]
    fn what_is_remembered_are_the_rules_that_were_asked_last() {
        let ada = caller("https://a.example", "ada", "t1");
        let [before, now] = [Access::new(None), Access::new(None)];
        for access in [&before, &now, &before] {
            let grants = Caller::grants(Some(&ada), access);
            assert!(access.made(&grants), "other rules decide nothing");
            assert!(ada.grants.load().as_ref().is_some_and(|kept| Arc::ptr_eq(kept, &grants)));
        }
    }

    #[test]
    fn nothing_prints_the_token() {
        assert!(!format!("{:?}", caller("https://a.example", "ada", "s3cret")).contains("s3cret"));
    }
}
