//! The rules that concern one caller, and what they decide.

use std::{collections::HashMap, fmt, sync::Arc};

use ahash::RandomState;
use arc_swap::ArcSwap;
use cel::common::value::Val;
use weir_flow::facts::Principal;
use weir_mcp::{ListKind, method};

use crate::config::{ApprovalConfig, Condition, Effect, Pattern, RuleConfig, Who};

use super::{
    AccessRequest, Item, address,
    arguments::Arguments,
    condition::{self, Facts, Verdict, nobody},
    rule_set::{RuleSet, names_no_item, reaches},
};

/// What the addresses of interfaces of tools begin with.
pub(super) const INTERFACE: &str = "ui://";

/// The longest name or address that rules judge, in bytes; they allow no longer one.
const LONGEST_NAME: usize = 16 * 1024;

/// Of how many upstreams it is remembered whether they are whole at their own addresses.
const MOST_UPSTREAMS: usize = 4096;

/// What one caller may do.
#[derive(Debug)]
pub struct Grants {
    /// Whose rules they are.
    pub(super) set: Arc<RuleSet>,
    key: GrantsKey,
    /// The rules that can concern the caller, whatever the call.
    rules: Vec<CallerRule>,
    /// The caller as conditions see them.
    caller: Box<dyn Val>,
    /// Whether what no rule allows is denied.
    enforced: bool,
    /// Whether some rule is only tried out.
    shadowed: bool,
    /// Whether nothing of an upstream is hidden at its own address, which each request there asks.
    whole: ArcSwap<WholeUpstreams>,
}

type WholeUpstreams = HashMap<Box<str>, bool, RandomState>;

/// The same for grants that show the same: lists made for one are good for the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GrantsKey {
    access: u64,
    rules: Arc<[usize]>,
    /// All of the caller, where a condition decides by that and by what is listed.
    caller: Option<Arc<str>>,
}

/// A rule that can concern a caller. What most calls ask of it stands here, in one place for all rules.
#[derive(Debug)]
struct CallerRule {
    /// Which of the set it is.
    index: usize,
    effect: Effect,
    enforce: bool,
    /// Whether it wants an approval.
    asks: bool,
    /// Its name, counted apart from that of other callers.
    name: Arc<str>,
    rule: Arc<RuleConfig>,
}

/// What the rules decide about a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether it may go on.
    pub allowed: bool,
    /// The rule that decided; none if none did.
    pub rule: Option<Arc<str>>,
    /// The rules that want it approved first, each by itself.
    pub approvals: Vec<Arc<RuleConfig>>,
    /// Whether the call was denied for its arguments alone.
    pub by_arguments: bool,
    /// What would have been decided if all rules were enforced, where that is something else.
    pub shadow: Option<Arc<Self>>,
}

impl Grants {
    pub(super) fn new(set: &Arc<RuleSet>, principal: Option<&Principal>) -> Self {
        let rules = &set.rules;
        let caller = condition::caller(principal);
        let (mut indices, mut concerning, mut personal) = (Vec::new(), Vec::new(), false);
        for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| concerns(&rule.who, principal)) {
            let verdict = rule.when.as_ref().map_or(Verdict::Yes, |when| Facts::of_caller(&*caller).satisfy(when));
            // What cannot be evaluated allows nothing, and denies.
            let applies =
                matches!((verdict, rule.effect), (Verdict::Yes | Verdict::Open, _) | (Verdict::Failed, Effect::Deny));
            if applies {
                personal |= rule.when.as_ref().is_some_and(Condition::tells_callers_apart_in_lists);
                indices.push(index);
                let (effect, enforce, asks) = (rule.effect, rule.enforce, rule.approve.is_some());
                let (name, rule) = (Arc::from(&*rule.name), Arc::clone(rule));
                concerning.push(CallerRule { index, effect, enforce, asks, name, rule });
            }
        }
        let caller_key = principal.filter(|_| personal).map(|principal| format!("{principal:?}").into());
        Self {
            set: Arc::clone(set),
            key: GrantsKey { access: set.id, rules: indices.into(), caller: caller_key },
            rules: concerning,
            caller,
            enforced: rules.iter().any(|rule| rule.enforce),
            shadowed: rules.iter().any(|rule| !rule.enforce),
            whole: ArcSwap::default(),
        }
    }

    /// The same for grants that show the same.
    #[must_use]
    pub const fn key(&self) -> &GrantsKey {
        &self.key
    }

    /// Whether nothing is hidden at an endpoint, of whichever upstream. Arguments may still forbid a call.
    #[must_use]
    pub fn are_whole(&self, endpoint: &str) -> bool {
        !self.enforced || self.is_whole(endpoint, None)
    }

    /// Whether nothing of an upstream is hidden at an endpoint. Arguments may still forbid a call.
    #[must_use]
    pub fn are_whole_at(&self, endpoint: &str, upstream: &str) -> bool {
        if !self.enforced {
            return true;
        }
        if endpoint != upstream {
            return self.is_whole(endpoint, Some(upstream));
        }
        if let Some(known) = self.whole.load().get(endpoint) {
            return *known;
        }
        let is_whole = self.is_whole(endpoint, Some(upstream));
        self.whole.rcu(|known| {
            let mut known = WholeUpstreams::clone(known);
            if known.len() < MOST_UPSTREAMS {
                known.insert(endpoint.into(), is_whole);
            }
            known
        });
        is_whole
    }

    fn is_whole(&self, endpoint: &str, upstream: Option<&str>) -> bool {
        let mut rules = self.rules.iter().filter(|rule| rule.rule.enforce && reaches(&rule.rule.endpoints, endpoint));
        let everything = |patterns: &[Pattern]| patterns.is_empty() || patterns.iter().any(Pattern::is_everything);
        let concerned = |rule: &RuleConfig| upstream.is_none_or(|upstream| reaches(&rule.upstreams, upstream));
        let covers = |rule: &RuleConfig| match upstream {
            Some(upstream) => reaches(&rule.upstreams, upstream),
            None => everything(&rule.upstreams),
        };
        // What arguments decide hides nothing: it is decided when they are known.
        let waits = |rule: &RuleConfig| rule.when.as_ref().is_some_and(Condition::uses_arguments);
        let here = |rule: &RuleConfig| {
            let when = rule.when.as_ref().filter(|when| when.is_of_place())?;
            let call = shown(endpoint, upstream?, Item::Any);
            Some(Facts::of_call(nobody(), (&call, self.set.account(&call)), None).satisfy(when))
        };
        let whole = |CallerRule { rule, .. }: &CallerRule| {
            let settled = rule.when.as_ref().is_none_or(Condition::is_of_caller);
            let shows = settled || waits(rule) || here(rule) == Some(Verdict::Yes);
            rule.effect == Effect::Allow && shows && names_no_item(rule) && covers(rule)
        };
        let narrows = |CallerRule { rule, .. }: &CallerRule| {
            let hides = rule.effect == Effect::Deny && !waits(rule) && here(rule) != Some(Verdict::No);
            (hides || rule.approve.is_some()) && concerned(rule)
        };
        rules.clone().any(whole) && !rules.any(narrows)
    }

    /// Whether an item is shown: it would be allowed with some arguments.
    #[must_use]
    pub fn sees(&self, endpoint: &str, upstream: &str, item: Item<'_>) -> bool {
        self.decide(&shown(endpoint, upstream, item), None, false).allowed
    }

    /// The same, with the rule that decides, and what rules would that are only tried out.
    #[must_use]
    pub fn shows(&self, endpoint: &str, upstream: &str, item: Item<'_>) -> Decision {
        let call = shown(endpoint, upstream, item);
        let decision = self.decide(&call, None, false);
        let shadow = self.shadow(&decision, &call, None);
        Decision { shadow, ..decision }
    }

    /// What would be decided if all rules were enforced, where that is something else.
    fn shadow(
        &self,
        decision: &Decision,
        call: &AccessRequest<'_>,
        arguments: Option<&Arguments<'_>>,
    ) -> Option<Arc<Decision>> {
        let shadow = self.shadowed.then(|| self.decide(call, arguments, true))?;
        let differs = shadow.allowed != decision.allowed || shadow.approvals != decision.approvals;
        differs.then(|| Arc::new(shadow))
    }

    /// What is decided about a call.
    #[must_use]
    pub fn authorize(&self, call: &AccessRequest<'_>) -> Decision {
        if self.rules.is_empty() && !self.enforced && !self.shadowed {
            return Decision { allowed: true, ..Decision::default() };
        }
        // Matching what is so long would take too long.
        if matches!(call.item, Item::One(_, name) | Item::Each(name) if name.len() > LONGEST_NAME) {
            return Decision { allowed: !self.enforced, ..Decision::default() };
        }
        // An absent object of arguments is an empty one.
        let arguments = Arguments::new(call.arguments.unwrap_or(b"{}"));
        let mut decision = self.decide(call, Some(&arguments), false);
        if !decision.allowed {
            decision.by_arguments = self.decide(call, None, false).allowed;
        }
        decision.shadow = self.shadow(&decision, call, Some(&arguments));
        decision
    }

    /// What is decided of an item, and of an address also as its server may read it.
    fn decide(&self, call: &AccessRequest<'_>, arguments: Option<&Arguments<'_>>, all: bool) -> Decision {
        let decision = self.decide_as(call, arguments, all);
        if decision.allowed
            && let Item::One(ListKind::Resource, native) = call.item
            && let Some(resolved) = address::resolved(native)
        {
            let again = AccessRequest { item: Item::One(ListKind::Resource, &resolved), ..*call };
            return self.decide_as(&again, arguments, all);
        }
        decision
    }

    /// The first rule that denies decides, else the first that wants an approval, else the first that allows. With `all`,
    /// rules that are only tried out count too.
    fn decide_as(&self, call: &AccessRequest<'_>, arguments: Option<&Arguments<'_>>, all: bool) -> Decision {
        let facts = Facts::of_call(&*self.caller, (call, self.set.account(call)), arguments);
        // Lists ask of many names and of each once; calls ask of a few again and again.
        let known = arguments.and_then(|_| self.set.verdicts(call));
        let verdict = |rule: &CallerRule| {
            let by_call = known.as_ref().map(|known| known[rule.index]);
            if let Some(verdict) = by_call.unwrap_or_else(|| self.set.judge(&rule.rule, call)) {
                return verdict;
            }
            match &rule.rule.when {
                None => Verdict::Yes,
                // What names no item may call anything arguments: they allow nothing of it, and deny it.
                Some(when) if matches!(call.item, Item::Whole) && when.uses_arguments() => match rule.effect {
                    Effect::Allow => Verdict::No,
                    Effect::Deny => Verdict::Failed,
                },
                Some(when) => facts.satisfy(when),
            }
        };
        let (mut allowing, mut approvals) = (None, Vec::new());
        for rule in self.rules.iter().filter(|rule| all || rule.enforce) {
            // The first that allows is enough.
            if rule.effect == Effect::Allow && !rule.asks && allowing.is_some() {
                continue;
            }
            match (verdict(rule), rule.effect) {
                (Verdict::Yes | Verdict::Failed, Effect::Deny) => return Decision::of(&rule.name, false),
                (Verdict::Yes | Verdict::Open, Effect::Allow) => {
                    allowing = allowing.or(Some(&rule.name));
                    if rule.asks && wants_approval(&rule.rule, call, &facts) {
                        approvals.push(Arc::clone(&rule.rule));
                    }
                }
                _ => {}
            }
        }
        match allowing {
            Some(rule) => {
                let decision = Decision::of(approvals.first().map_or(rule, |rule| &rule.name), true);
                Decision { approvals, ..decision }
            }
            None => Decision { allowed: !(self.enforced || all), ..Decision::default() },
        }
    }
}

/// An item as it is listed.
const fn shown<'a>(endpoint: &'a str, upstream: &'a str, item: Item<'a>) -> AccessRequest<'a> {
    let method = match item {
        Item::One(ListKind::Tool, _) => method::TOOLS_CALL,
        Item::One(ListKind::Prompt, _) => method::PROMPTS_GET,
        Item::One(ListKind::Resource | ListKind::Template, _) | Item::Each(_) => method::RESOURCES_READ,
        Item::Any | Item::Whole => "",
    };
    AccessRequest { endpoint, upstream, item, method, arguments: None }
}

/// Whether a rule allows a call only once it is approved. What cannot be evaluated wants an approval.
fn wants_approval(rule: &RuleConfig, call: &AccessRequest<'_>, facts: &Facts<'_, '_>) -> bool {
    let is_tool = matches!(call.item, Item::One(ListKind::Tool, _));
    let wanted = |approve: &ApprovalConfig| approve.when.as_ref().is_none_or(|when| facts.satisfy(when) != Verdict::No);
    is_tool && rule.approve.as_ref().is_some_and(wanted)
}

impl Decision {
    fn of(rule: &Arc<str>, allowed: bool) -> Self {
        Self { allowed, rule: Some(Arc::clone(rule)), ..Self::default() }
    }
}

/// Why, for the log.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.allowed { "allowed" } else { "denied" };
        match &self.rule {
            Some(rule) => write!(f, "{what} by rule `{rule}`")?,
            None if self.allowed => f.write_str("allowed")?,
            None => f.write_str("no rule allows it")?,
        }
        self.approvals.iter().filter_map(|rule| rule.approve.as_ref()).try_for_each(|by| write!(f, ", asks {by}"))
    }
}

/// Whether a rule is about somebody. Of whom nothing is known, only rules about everybody are.
fn concerns(who: &Who, principal: Option<&Principal>) -> bool {
    let one = |patterns: &[Pattern], value: Option<&str>| {
        patterns.is_empty() || value.is_some_and(|value| patterns.iter().any(|pattern| pattern.matches(value)))
    };
    let some = |patterns: &[Pattern], values: &[String]| {
        patterns.is_empty() || values.iter().any(|value| patterns.iter().any(|pattern| pattern.matches(value)))
    };
    one(&who.subjects, principal.map(|principal| principal.subject.as_str()))
        && one(&who.issuers, principal.and_then(|principal| principal.issuer.as_deref()))
        && one(&who.keys, principal.and_then(|principal| principal.key.as_deref()))
        && some(&who.groups, principal.map_or(&[], |principal| &principal.groups))
        && some(&who.scopes, principal.map_or(&[], |principal| &principal.scopes))
}

#[cfg(test)]
mod tests;
