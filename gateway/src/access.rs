//! Who may see and call what: the compiled rules, and the one place where they decide.
//!
//! [`Access`] holds the rules of the configuration, [`Grants`] those of them that concern one caller. The same rules decide
//! what is listed ([`Grants::sees`]) and what is called ([`Grants::authorize`]), so no list shows what no call reaches. A
//! rule whose condition depends on the arguments hides nothing: it decides when they are known.
//!
//! A [`Toolset`] is what an endpoint for several upstreams serves.

mod address;
mod arguments;
mod condition;
mod evaluation;
mod grants;
mod rule_set;
mod toolset;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use weir_flow::facts::Principal;
use weir_mcp::ListKind;

use crate::config::{AccessConfig, RuleConfig, Selection, Selections};

pub use grants::{Decision, Grants, GrantsKey};
use rule_set::RuleSet;
pub use toolset::{EntryPlace, Toolset};

/// What somebody wants to see or call at an upstream.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// A tool, a prompt or a resource, as the upstream calls it.
    One(ListKind, &'a str),
    /// Whatever a template (RFC 6570) of resources stands for: a server completes it with any of its addresses.
    Each(&'a str),
    /// Something of it, whatever that is.
    Any,
    /// What belongs to no single item, such as a method of an extension.
    Whole,
}

/// A call, as far as rules can know it.
#[derive(Clone, Copy, Debug)]
pub struct AccessRequest<'a> {
    /// The endpoint: [`MERGED_ENDPOINT`](crate::config::MERGED_ENDPOINT), or what follows `/mcp/`.
    pub endpoint: &'a str,
    /// The upstream.
    pub upstream: &'a str,
    /// What of it.
    pub item: Item<'a>,
    /// The JSON-RPC method; for what is only listed, that by which it is used.
    pub method: &'a str,
    /// Its `arguments`, as JSON that has been checked; none where they are not known yet.
    pub arguments: Option<&'a [u8]>,
}

/// The compiled rules.
pub struct Access {
    set: Arc<RuleSet>,
    /// Those of whom nothing is known.
    anonymous: Arc<Grants>,
}

impl Access {
    /// Compiles the rules; without any everybody may use everything.
    #[must_use]
    pub fn new(config: Option<&AccessConfig>) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let all = config.is_some_and(|config| config.enforce);
        let rules = config.iter().flat_map(|config| &config.rules).cloned();
        // Where nothing is enforced, nothing of a rule is.
        let rules: Vec<_> = rules.map(|rule| Arc::new(RuleConfig { enforce: all && rule.enforce, ..rule })).collect();
        let accounts = config.map(|config| config.accounts.clone()).unwrap_or_default();
        let set = Arc::new(RuleSet::new(id, rules, accounts));
        let anonymous = Arc::new(Grants::new(&set, None));
        Self { set, anonymous }
    }

    /// The rules that concern a principal; none for whoever has not proved who they are.
    #[must_use]
    pub fn grants(&self, principal: Option<&Principal>) -> Arc<Grants> {
        match principal {
            Some(_) if !self.rules().is_empty() => Arc::new(Grants::new(&self.set, principal)),
            _ => Arc::clone(&self.anonymous),
        }
    }

    /// The rules, in the order of the configuration.
    #[must_use]
    pub fn rules(&self) -> &[Arc<RuleConfig>] {
        &self.set.rules
    }

    /// Whether some call needs an approval.
    #[must_use]
    pub fn wants_approvals(&self) -> bool {
        self.rules().iter().any(|rule| rule.enforce && rule.approve.is_some())
    }

    /// Whether callers may see different lists.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.rules().iter().any(|rule| rule.enforce)
    }

    /// Whether these grants were made by these rules.
    #[must_use]
    pub fn made(&self, grants: &Grants) -> bool {
        grants.set.id == self.set.id
    }
}

/// Whether an item of an upstream is served at all. Once nothing but other kinds is named, a kind is served whole.
#[must_use]
pub fn is_served(serves: &Selections, kind: ListKind, upstream: &str, native: &str) -> bool {
    selection(serves, kind).is_none_or(|selection| selects(selection, kind, upstream, native).is_some())
}

fn selection(selections: &Selections, kind: ListKind) -> Option<&Selection> {
    match kind {
        ListKind::Tool => selections.tools.as_ref(),
        ListKind::Prompt => selections.prompts.as_ref(),
        ListKind::Resource | ListKind::Template => selections.resources.as_ref(),
    }
}

/// Whether each address that a template stands for is served. What matches the template itself matches all of them.
#[must_use]
pub fn is_each_served(serves: &Selections, upstream: &str, template: &str) -> bool {
    serves.resources.as_ref().is_none_or(|selection| {
        !selection.deny.iter().any(|pattern| pattern.may_match(upstream, template))
            && selection.allow.as_ref().is_none_or(|allow| allow.iter().any(|it| it.matches(upstream, template)))
    })
}

/// Which of the patterns that allow an item is the first; none if it is not selected, or is not as its server may read it.
fn selects(selection: &Selection, kind: ListKind, upstream: &str, native: &str) -> Option<usize> {
    let place = selects_as(selection, kind, upstream, native)?;
    let resolved = (kind == ListKind::Resource).then(|| address::resolved(native)).flatten();
    let selected = |native: String| selects_as(selection, kind, upstream, &native).is_some();
    resolved.is_none_or(selected).then_some(place)
}

fn selects_as(selection: &Selection, kind: ListKind, upstream: &str, native: &str) -> Option<usize> {
    let matches = |pattern: &crate::config::ItemPattern| match kind {
        ListKind::Template => pattern.may_match(upstream, native),
        ListKind::Tool | ListKind::Prompt | ListKind::Resource => pattern.matches(upstream, native),
    };
    // A template is taken out only as it is written: some of its addresses may be left.
    if selection.deny.iter().any(|pattern| pattern.matches(upstream, native)) {
        return None;
    }
    selection.allow.as_ref().map_or(Some(0), |allow| allow.iter().position(matches))
}
