//! All rules of a configuration, and what they come to by the call alone: by its endpoint, its upstream, its method and
//! what it names. Clients call the same few tools again and again, so that is found out once for each.

use std::{cell::RefCell, collections::HashMap, rc::Rc, sync::Arc};

use ahash::RandomState;
use weir_mcp::ListKind;

use crate::config::{Effect, ItemPattern, Pattern, RuleConfig, UpstreamName};

use super::{
    AccessRequest, Item,
    condition::{Facts, Verdict, nobody},
    grants::INTERFACE,
};

/// How many calls each thread remembers, of all callers. Whoever makes up names makes others wait for no more than a look.
const MOST: usize = 1024;

/// The longest key that is remembered, in bytes: names, and what stands between them.
const LONGEST: usize = 256;

/// What each rule comes to; none where the caller or the arguments decide.
pub(super) type CallVerdicts = Rc<[Option<Verdict>]>;

/// What calls come to by the rules of one set.
#[derive(Default)]
struct KnownCalls {
    set: u64,
    /// The hash has a key, as clients choose names, and takes less than the usual one.
    verdicts: HashMap<Box<[u8]>, CallVerdicts, RandomState>,
}

thread_local! {
    /// Of each thread: what all threads write to, such as a lock or a count, goes from core to core with each call.
    static KNOWN: RefCell<KnownCalls> = RefCell::default();
}

/// The rules, in the order of the configuration.
pub(super) struct RuleSet {
    /// Apart for each, so that grants of one are not taken for those of another.
    pub(super) id: u64,
    pub(super) rules: Vec<Arc<RuleConfig>>,
    accounts: HashMap<UpstreamName, Arc<str>>,
}

impl RuleSet {
    pub(super) fn new(id: u64, rules: Vec<Arc<RuleConfig>>, accounts: HashMap<UpstreamName, Arc<str>>) -> Self {
        Self { id, rules, accounts }
    }

    /// The account that a call goes to; empty where its upstream has none.
    pub(super) fn account(&self, call: &AccessRequest<'_>) -> &str {
        self.accounts.get(call.upstream).map_or("", |account| account)
    }

    /// What all rules come to by the call alone; none of a call that is not worth remembering.
    pub(super) fn verdicts(&self, call: &AccessRequest<'_>) -> Option<CallVerdicts> {
        let mut buffer = [0; LONGEST];
        let key = key(call, &mut buffer)?;
        KNOWN.with_borrow_mut(|known| {
            if known.set != self.id || known.verdicts.len() >= MOST {
                known.set = self.id;
                known.verdicts.clear();
            }
            if let Some(verdicts) = known.verdicts.get(key) {
                return Some(Rc::clone(verdicts));
            }
            let verdicts: CallVerdicts = self.rules.iter().map(|rule| self.judge(rule, call)).collect();
            known.verdicts.insert(key.into(), Rc::clone(&verdicts));
            Some(verdicts)
        })
    }

    /// What a rule comes to by the call alone, for callers whom it concerns; none where they or the arguments decide.
    pub(super) fn judge(&self, rule: &RuleConfig, call: &AccessRequest<'_>) -> Option<Verdict> {
        let concerned = reaches(&rule.endpoints, call.endpoint)
            && reaches(&rule.upstreams, call.upstream)
            && concerns_item(rule, call);
        match &rule.when {
            _ if !concerned => Some(Verdict::No),
            // What is of the caller alone was asked before.
            None => Some(Verdict::Yes),
            Some(when) if when.is_of_caller() => Some(Verdict::Yes),
            // It may hold for some of it.
            Some(_) if matches!(call.item, Item::Any) => Some(Verdict::Open),
            Some(when) if when.is_of_call() => {
                Some(Facts::of_call(nobody(), (call, self.account(call)), None).satisfy(when))
            }
            Some(_) => None,
        }
    }
}

impl std::fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuleSet").field("id", &self.id).field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// What stands for a call; the same for no other. None where it would be long.
fn key<'k>(call: &AccessRequest<'_>, buffer: &'k mut [u8; LONGEST]) -> Option<&'k [u8]> {
    let (kind, name) = match call.item {
        Item::One(kind, name) => (1 + kind as u8, name),
        Item::Each(name) => (u8::MAX - 1, name),
        Item::Any => (0, ""),
        Item::Whole => (u8::MAX, ""),
    };
    buffer[0] = kind;
    let mut len = 1;
    for part in [call.endpoint, call.upstream, call.method, name] {
        let end = len + 2 + part.len();
        let (length, text) = buffer.get_mut(len..end)?.split_at_mut(2);
        // Each is shorter than all of them.
        length.copy_from_slice(&(part.len() as u16).to_be_bytes());
        text.copy_from_slice(part.as_bytes());
        len = end;
    }
    Some(&buffer[..len])
}

pub(super) fn names_no_item(rule: &RuleConfig) -> bool {
    let items = &rule.items;
    items.tools.is_none() && items.prompts.is_none() && items.resources.is_none()
}

/// Whether a rule is about what is asked for. To deny some of an upstream is not to deny something of it.
fn concerns_item(rule: &RuleConfig, call: &AccessRequest<'_>) -> bool {
    let items = &rule.items;
    if names_no_item(rule) {
        return true;
    }
    let upstream = call.upstream;
    match call.item {
        Item::Whole => false,
        Item::Any => {
            let lists = [&items.tools, &items.prompts, &items.resources];
            let mut patterns = lists.into_iter().flatten().flatten();
            rule.effect == Effect::Allow && patterns.any(|pattern| of_upstream(pattern, upstream))
        }
        Item::Each(template) => items.resources.iter().flatten().any(|pattern| match rule.effect {
            Effect::Allow => pattern.matches(upstream, template),
            Effect::Deny => pattern.may_match(upstream, template),
        }),
        Item::One(kind, native) => {
            let list = match kind {
                ListKind::Tool => &items.tools,
                ListKind::Prompt => &items.prompts,
                ListKind::Resource | ListKind::Template => &items.resources,
            };
            let matches = |pattern: &ItemPattern| match (kind, rule.effect) {
                (ListKind::Template, Effect::Allow) => pattern.may_match(upstream, native),
                _ => pattern.matches(upstream, native),
            };
            // The interface of a tool (MCP Apps) goes with the tools of its upstream.
            let interface = rule.effect == Effect::Allow && native.starts_with(INTERFACE);
            let of_tools = items.tools.iter().flatten().any(|tool| interface && of_upstream(tool, upstream));
            of_tools || list.as_ref().is_some_and(|list| list.iter().any(matches))
        }
    }
}

fn of_upstream(pattern: &ItemPattern, upstream: &str) -> bool {
    pattern.upstream.as_ref().is_none_or(|pattern| pattern.matches(upstream))
}

pub(super) fn reaches(patterns: &[Pattern], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name))
}
