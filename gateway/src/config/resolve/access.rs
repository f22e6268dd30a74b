//! The rules on who may do what, and the toolsets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::account;
use super::context::Context;
use crate::config::access::{
    AccessConfig, ApprovalConfig, Approver, Effect, ItemPattern, ItemPatterns, RuleConfig, Selection, Selections,
    ToolOverride, ToolsetConfig, Who,
};
use crate::config::name::nearest;
use crate::config::read::{At, Setting};
use crate::config::value::OneOrMore;
use crate::config::written::{self, Root, WrittenOverride, WrittenRule, WrittenSelection, WrittenToolset};
use crate::config::{MERGED_ENDPOINT, Pattern, UpstreamConfig, UpstreamName, similar_word};

/// How many rules there may be.
const MOST_RULES: usize = 1000;

/// How long an approval is good, where nothing is said.
const EXPIRES: Duration = Duration::from_secs(10 * 60);

/// The longest that one may be good.
const LONGEST_EXPIRES: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn access(root: &Root, upstreams: &[UpstreamConfig], context: &mut Context<'_, '_>) -> Option<AccessConfig> {
    let at = root.access.set()?;
    let rules = at.value.rules.set().map_or(&[][..], |rules| &rules.value.0);
    if rules.is_empty() && matches!(at.value.rules, Setting::Absent | Setting::Set(_)) {
        let hint = "[[access.rules]]\ngroups = [\"engineering\"]\ntools = [\"*\"]".to_owned();
        context.report.add(at.key.clone(), "`access` needs a rule; without one nobody could call anything", Some(hint));
    }
    if rules.len() > MOST_RULES {
        let message = format!("there are over {MOST_RULES} rules; patterns and groups need fewer");
        context.report.add(at.key.clone(), message, None);
    }
    let mut names = BTreeSet::new();
    // Whether people can say who they are.
    let people = root.auth.set().is_some();
    let rule = |(index, rule)| self::rule(index, rule, (&mut names, people), upstreams, context);
    let resolved = rules.iter().enumerate().map(rule).collect();
    warn_of_unknown(root, rules, upstreams, context);
    let account =
        |upstream: &UpstreamConfig| Some((upstream.name.clone(), Arc::clone(&upstream.account.as_ref()?.name)));
    let accounts = upstreams.iter().filter_map(account).collect();
    Some(AccessConfig { enforce: at.value.enforce.or(true), rules: resolved, accounts })
}

/// Warns of upstreams and endpoints that rules name and that are not there: such a rule concerns nothing.
fn warn_of_unknown(
    root: &Root,
    rules: &[At<WrittenRule>],
    upstreams: &[UpstreamConfig],
    context: &mut Context<'_, '_>,
) {
    let upstreams: Vec<&str> = upstreams.iter().flat_map(names_of).map(UpstreamName::as_str).collect();
    let toolsets = root.toolsets.set().map_or(&[][..], |at| &at.value.0).iter().map(|(name, _)| name.as_str());
    let endpoints: Vec<&str> = toolsets.chain(upstreams.iter().copied()).chain([MERGED_ENDPOINT]).collect();
    for (index, rule) in rules.iter().map(|at| &at.value).enumerate() {
        let named = [("upstream", &rule.upstreams, &upstreams), ("endpoint", &rule.endpoints, &endpoints)];
        for (what, list, known) in named {
            for at in list.set().iter().flat_map(|list| &list.value.0) {
                if !known.iter().any(|name| at.value.matches(name)) {
                    let written = at.value.as_str();
                    let near = similar_word(written, known.iter().copied());
                    let hint = near.map(|near| format!("did you mean `{near}`?"));
                    let message = format!(
                        "no {what} is called `{}`, and in rule `{}` this name has no effect",
                        written.escape_debug(),
                        name_of(index, rule).escape_debug()
                    );
                    context.report.warn(at.span.clone(), message, hint);
                }
            }
        }
    }
}

/// What a rule is called, which is the `index`-th.
fn name_of(index: usize, rule: &WrittenRule) -> String {
    rule.name.set().map_or_else(|| format!("rule-{}", index + 1), |name| name.value.0.clone())
}

/// What an upstream is called: by its own name, and by that of the service that it is an account of.
fn names_of(upstream: &UpstreamConfig) -> impl Iterator<Item = &UpstreamName> {
    [Some(&upstream.name), upstream.account.as_ref().map(|account| &account.service)].into_iter().flatten()
}

fn rule(
    index: usize,
    at: &At<WrittenRule>,
    (names, people): (&mut BTreeSet<String>, bool),
    upstreams: &[UpstreamConfig],
    context: &mut Context<'_, '_>,
) -> RuleConfig {
    let written = &at.value;
    let name = name_of(index, written);
    if !names.insert(name.clone()) {
        context.report.add(at.key.clone(), format!("two rules are called `{}`", name.escape_debug()), None);
    }
    let items =
        |at: &At<OneOrMore<ItemPattern>>| values(at).into_iter().map(|one| account::item(one, upstreams)).collect();
    let items = ItemPatterns {
        tools: written.tools.set().map(items),
        prompts: written.prompts.set().map(items),
        resources: written.resources.set().map(items),
    };
    let who = Who {
        subjects: patterns(&written.subjects),
        groups: patterns(&written.groups),
        scopes: patterns(&written.scopes),
        issuers: patterns(&written.issuers),
        keys: patterns(&written.keys),
    };
    refuse_empty(written, context);
    let mut rule = RuleConfig {
        name: name.into(),
        effect: written.effect.or(Effect::Allow),
        who,
        endpoints: of_upstreams(&written.endpoints, upstreams),
        upstreams: of_upstreams(&written.upstreams, upstreams),
        items,
        when: written.when.set().map(|at| at.value.clone()),
        approve: approval(written, people, context),
        enforce: written.enforce.or(true),
    };
    if let Some(accounts) = written.accounts.set() {
        account::restrict(&mut rule, accounts, upstreams, context);
    }
    rule
}

/// Refuses empty lists. Of callers and places one would restrict nothing, and of items it would match nothing.
fn refuse_empty(rule: &WrittenRule, context: &mut Context<'_, '_>) {
    let names = [&rule.subjects, &rule.groups, &rule.scopes, &rule.issuers, &rule.keys];
    let places = [&rule.endpoints, &rule.upstreams, &rule.accounts];
    let items = [&rule.tools, &rule.prompts, &rule.resources].into_iter().filter_map(Setting::set);
    let lists =
        names.into_iter().chain(places).filter_map(Setting::set).map(|list| (&list.key, list.value.0.is_empty()));
    for (key, is_empty) in lists.chain(items.map(|list| (&list.key, list.value.0.is_empty()))) {
        if is_empty {
            let hint = Some("leave the key out if the rule does not depend on it".to_owned());
            context.report.add(key.clone(), "an empty list matches nobody and nothing", hint);
        }
    }
}

fn approval(rule: &WrittenRule, people: bool, context: &mut Context<'_, '_>) -> Option<ApprovalConfig> {
    let at = rule.approve.set()?;
    let named = [rule.prompts.key(), rule.resources.key()];
    let misplaced = if rule.effect.or(Effect::Allow) == Effect::Deny {
        Some("a rule that denies asks nobody")
    } else if rule.tools.key().is_none() || named.iter().any(Option::is_some) {
        Some("`approve` is for tools: the rule must name `tools`, and no prompts or resources")
    } else {
        None
    };
    if let Some(why) = misplaced {
        let hint = "tools = [\"pay\"]\napprove = { by = \"group:ops\" }".to_owned();
        context.report.add(at.key.clone(), why, Some(hint));
    }
    let by = at.value.by.set().map(values).unwrap_or_default();
    if by.is_empty() && matches!(at.value.by, Setting::Absent | Setting::Set(_)) {
        let hint = "by = \"group:ops\"".to_owned();
        context.report.add(at.key.clone(), "`approve` needs `by`: who may approve", Some(hint));
    }
    if !people && !by.is_empty() && !by.contains(&Approver::Caller) {
        let message = "nobody can approve these calls: without `[auth]` nobody signs in at `/connect`";
        context.report.warn(at.key.clone(), message, Some("by = \"caller\", or an `[auth]` table".to_owned()));
    }
    if let Some(expires) = at.value.expires.set().filter(|at| at.value.0 > LONGEST_EXPIRES) {
        context.report.add(expires.span.clone(), "an approval is good for a day at most", None);
    }
    let expires = at.value.expires.set().map_or(EXPIRES, |at| at.value.0);
    Some(ApprovalConfig { by, when: at.value.when.set().map(|at| at.value.clone()), expires })
}

pub(super) fn toolsets(root: &Root, upstreams: &[UpstreamConfig], context: &mut Context<'_, '_>) -> Vec<ToolsetConfig> {
    let named = root.toolsets.set().map_or(&[][..], |at| &at.value.0);
    let written = named.iter().filter_map(|(name, at)| toolset(name, at, upstreams, context));
    written.chain(account::toolsets(upstreams)).collect()
}

fn toolset(
    name: &str,
    at: &At<WrittenToolset>,
    upstreams: &[UpstreamConfig],
    context: &mut Context<'_, '_>,
) -> Option<ToolsetConfig> {
    let parsed = name.parse::<UpstreamName>();
    if let Err(error) = &parsed {
        let message = error.to_string().replace("upstream", "toolset");
        let hint = nearest(name).map_or("letters, digits, `-` and `_`".to_owned(), |name| format!("[toolsets.{name}]"));
        context.report.add(at.key.clone(), message, Some(hint));
    }
    if upstreams.iter().flat_map(names_of).any(|taken| taken.as_str().eq_ignore_ascii_case(name)) {
        let message = format!("`/mcp/{}` is the endpoint of the upstream of this name", name.escape_debug());
        context.report.add(at.key.clone(), message, Some("call the toolset otherwise".to_owned()));
    }
    let written = &at.value;
    for picked in written.upstreams.set().iter().flat_map(|list| &list.value.0) {
        if !upstreams.iter().flat_map(names_of).any(|known| picked.value.matches(known.as_str())) {
            let message = format!("no upstream is called `{}`", picked.value.as_str().escape_debug());
            context.report.add(picked.span.clone(), message, None);
        }
    }
    let overrides = written.overrides.set().map_or(&[][..], |at| &at.value.0);
    let overrides = overrides.iter().filter_map(|(tool, at)| tool_override(tool, at, context));
    let overrides = overrides.map(|(tool, changed)| (account::item(tool, upstreams), changed)).collect();
    Some(ToolsetConfig {
        name: parsed.ok()?,
        upstreams: of_upstreams(&written.upstreams, upstreams),
        items: account::selections(selections(&written.tools, &written.prompts, &written.resources), upstreams),
        prefix: written.prefix.or(true),
        instructions: written.instructions.set().map(|at| at.value.0.clone()),
        overrides,
    })
}

fn tool_override(
    tool: &str,
    at: &At<WrittenOverride>,
    context: &mut Context<'_, '_>,
) -> Option<(ItemPattern, ToolOverride)> {
    let written = &at.value;
    let pattern = tool.parse::<ItemPattern>().ok().filter(|pattern| {
        pattern.native.exact().is_some() && pattern.upstream.as_ref().is_some_and(|name| name.exact().is_some())
    });
    if pattern.is_none() {
        let hint = "the tool `search` of the upstream `github` is `github__search`".to_owned();
        context.report.add(at.key.clone(), "an override concerns one tool: `<upstream>__<tool>`", Some(hint));
    }
    let text = |setting: &Setting<crate::config::string::TemplateString>| setting.set().map(|at| at.value.0.clone());
    let fixed = written.fixed.set().map(|at| serde_json::from_str(&at.value.0).unwrap_or_default());
    let fixed: serde_json::Map<String, serde_json::Value> = fixed.unwrap_or_default();
    let changed = ToolOverride {
        name: text(&written.name),
        title: text(&written.title),
        description: text(&written.description),
        annotations: written.annotations.set().map(|at| at.value.0.clone()),
        fixed: fixed.into_iter().map(|(name, value)| (name, value.to_string())).collect(),
        hidden: super::list(&written.hidden, |name| name.0.clone()),
    };
    Some((pattern?, changed))
}

/// What of an upstream is served at all.
pub(super) fn selection_of(written: &written::WrittenUpstream) -> Selections {
    selections(&written.tools, &written.prompts, &written.resources)
}

fn selections(
    tools: &Setting<WrittenSelection>,
    prompts: &Setting<WrittenSelection>,
    resources: &Setting<WrittenSelection>,
) -> Selections {
    let selection = |setting: &Setting<WrittenSelection>| {
        setting.set().map(|at| Selection {
            allow: at.value.allow.set().map(|list| list.value.0.iter().map(|at| at.value.clone()).collect()),
            deny: at.value.deny.set().iter().flat_map(|list| &list.value.0).map(|at| at.value.clone()).collect(),
        })
    };
    Selections { tools: selection(tools), prompts: selection(prompts), resources: selection(resources) }
}

/// Patterns of upstreams, or of their endpoints.
fn of_upstreams(setting: &Setting<OneOrMore<Pattern>>, upstreams: &[UpstreamConfig]) -> Vec<Pattern> {
    patterns(setting).into_iter().map(|one| account::pattern(one, upstreams)).collect()
}

fn patterns(setting: &Setting<OneOrMore<Pattern>>) -> Vec<Pattern> {
    setting.set().map(values).unwrap_or_default()
}

fn values<T: Clone>(at: &At<OneOrMore<T>>) -> Vec<T> {
    at.value.0.iter().map(|at| at.value.clone()).collect()
}
