//! Several accounts of one service: what is written as one upstream becomes one for each account.
//!
//! So an account has its own credential, connections, sessions, lists and endpoint as every upstream has, and nothing
//! of it can meet another's. What the file says of the written name holds for all of its accounts.

use std::collections::BTreeSet;

use super::context::Context;
use crate::config::access::{ItemPattern, RuleConfig, Selection, Selections, ToolsetConfig};
use crate::config::read::At;
use crate::config::value::OneOrMore;
use crate::config::written::{AccountBy, WrittenUpstream};
use crate::config::{Account, Auth, LoginFlow, Pattern, Reach, UpstreamConfig, UpstreamName};

/// How many accounts of one service there may be.
const MOST: usize = 8;

/// An upstream for each account that is written, or the one that it is.
pub(super) fn expand(
    upstream: UpstreamConfig,
    written: &WrittenUpstream,
    context: &mut Context<'_, '_>,
) -> Vec<UpstreamConfig> {
    let Some(at) = written.accounts.set() else {
        if let Some(key) = written.account_by.key() {
            let hint = "accounts = [\"work\", \"home\"]".to_owned();
            context.report.add(key, "`account_by` goes with `accounts`", Some(hint));
        }
        return vec![upstream];
    };
    let signs_in = match &upstream.auth {
        Auth::Unsaid => true,
        Auth::OAuth(oauth) => matches!(oauth.flow, LoginFlow::AuthorizationCode | LoginFlow::DeviceCode),
        Auth::None | Auth::Bearer(_) => false,
    };
    // Of a program it is said elsewhere.
    if !signs_in && upstream.policies.is_empty() && matches!(upstream.reach, Reach::Http(_)) {
        let hint = "auth = \"oauth\", or a policy of your own; else write an upstream for each".to_owned();
        context.report.add(at.key.clone(), "`accounts` goes with logins of people", Some(hint));
    }
    if !(1..=MOST).contains(&at.value.0.len()) {
        context.report.add(at.span.clone(), format!("`accounts` names from 1 to {MOST} accounts"), None);
    }
    let by_argument = written.account_by.or(AccountBy::Argument) == AccountBy::Argument;
    let (mut names, mut expanded) = (BTreeSet::new(), Vec::new());
    for name in &at.value.0 {
        let account = name.value.0.as_str();
        if !names.insert(account) {
            context.report.add(name.span.clone(), format!("the account `{account}` is listed twice"), None);
            continue;
        }
        match format!("{}-{account}", upstream.name).parse::<UpstreamName>() {
            Ok(own) => {
                let account = Account { service: upstream.name.clone(), name: account.into(), by_argument };
                expanded.push(UpstreamConfig { name: own, account: Some(account), ..upstream.clone() });
            }
            Err(why) => {
                let message = format!("`{}-{account}` cannot be its upstream: {why}", upstream.name);
                context.report.add(name.span.clone(), message, None);
            }
        }
    }
    // What it serves may be written with its name.
    let all = expanded.clone();
    for one in &mut expanded {
        one.serves = selections(one.serves.clone(), &all);
    }
    expanded
}

/// `/mcp/<service>`, where all accounts are, for each service that has some.
pub(super) fn toolsets(upstreams: &[UpstreamConfig]) -> Vec<ToolsetConfig> {
    let mut toolsets: Vec<ToolsetConfig> = Vec::new();
    for upstream in upstreams.iter().filter(|upstream| upstream.enabled) {
        let Some(Account { service, by_argument, .. }) = &upstream.account else { continue };
        let pattern = Pattern::exactly(&upstream.name);
        match toolsets.last_mut().filter(|toolset| toolset.name == *service) {
            Some(toolset) => toolset.upstreams.push(pattern),
            None => toolsets.push(ToolsetConfig {
                name: service.clone(),
                upstreams: vec![pattern],
                items: Selections::default(),
                prefix: !by_argument,
                instructions: None,
                overrides: Vec::new(),
            }),
        }
    }
    toolsets
}

/// A pattern of upstreams. Who names a service means all of its accounts.
pub(super) fn pattern(written: Pattern, upstreams: &[UpstreamConfig]) -> Pattern {
    let is_meant = |upstream: &&UpstreamConfig| {
        upstream.account.as_ref().is_some_and(|account| written.matches(account.service.as_str()))
    };
    let meant = upstreams.iter().filter(is_meant).map(|upstream| upstream.name.clone()).collect();
    written.or(meant)
}

/// The same for a pattern of what upstreams have.
pub(super) fn item(written: ItemPattern, upstreams: &[UpstreamConfig]) -> ItemPattern {
    ItemPattern { upstream: written.upstream.map(|named| pattern(named, upstreams)), ..written }
}

/// The same for what is selected.
pub(super) fn selections(written: Selections, upstreams: &[UpstreamConfig]) -> Selections {
    let items = |list: Vec<ItemPattern>| list.into_iter().map(|one| item(one, upstreams)).collect();
    let changed = |selection: Option<Selection>| {
        selection.map(|Selection { allow, deny }| Selection { allow: allow.map(items), deny: items(deny) })
    };
    let Selections { tools, prompts, resources } = written;
    Selections { tools: changed(tools), prompts: changed(prompts), resources: changed(resources) }
}

/// Has a rule concern those of its upstreams only that are such accounts.
pub(super) fn restrict(
    rule: &mut RuleConfig,
    accounts: &At<OneOrMore<Pattern>>,
    upstreams: &[UpstreamConfig],
    context: &mut Context<'_, '_>,
) {
    let concerned = |upstream: &&UpstreamConfig| {
        let account = upstream.account.as_ref().map(|account| &*account.name);
        account.is_some_and(|account| accounts.value.0.iter().any(|pattern| pattern.value.matches(account)))
            && (rule.upstreams.is_empty() || rule.upstreams.iter().any(|own| own.matches(upstream.name.as_str())))
    };
    let named: Vec<Pattern> =
        upstreams.iter().filter(concerned).map(|upstream| Pattern::exactly(&upstream.name)).collect();
    // An empty list would concern all upstreams. One that cannot be read may have the account.
    if named.is_empty() && context.report.is_clean() {
        let hint = "such as accounts = [\"work\"] below [upstreams.<name>]".to_owned();
        context.report.add(accounts.key.clone(), "no upstream of this rule has such an account", Some(hint));
    }
    rule.upstreams = named;
}
