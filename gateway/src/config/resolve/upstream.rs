//! One upstream: which way it is reached, and that everything said about it goes with that way.

use std::ops::Range;
use std::path::Path;

use super::context::Context;
use super::{auth, http, policy, timeouts};
use crate::config::read::{At, Field};
use crate::config::string::{Program, Text};
use crate::config::written::{self, AuthKind, Kind};
use crate::config::{Auth, Reach, Secret, StdioReach, Timeouts, Upstream, UpstreamName};

pub(super) fn resolve(
    name: &str,
    at: &At<written::Upstream>,
    defaults: Timeouts,
    context: &mut Context<'_, '_>,
) -> Option<Upstream> {
    let written = &at.value;
    let enabled = written.enabled.or(true);
    context.live = enabled;
    let parsed = name.parse::<UpstreamName>();
    if let Err(error) = &parsed {
        context.report.add(at.key.clone(), error.to_string(), None);
    }
    let reach = reach(name, &at.key, written, context);
    let auth = match http::url(written) {
        Field::Absent => Some(Auth::None),
        Field::Set(_) | Field::Unreadable(_) => auth::upstream(written, context),
    };
    let policies = policy::resolve(&written.policies, context);
    context.live = true;
    Some(Upstream {
        name: parsed.ok()?,
        reach: reach?,
        auth: auth?,
        policies,
        timeouts: timeouts(&written.timeouts, defaults),
        enabled,
    })
}

fn reach(name: &str, key: &Range<usize>, written: &written::Upstream, context: &mut Context<'_, '_>) -> Option<Reach> {
    match (http::url(written).key(), written.command.key()) {
        (Some(_), Some(command)) => {
            let hint = "make two upstreams of it, or leave out one of the two".to_owned();
            context.report.add(command, "an upstream has a `url` or a `command`, not both", Some(hint));
            None
        }
        (None, None) => {
            let hint = "url = \"https://mcp.example.com/mcp\", or command = \"npx\"".to_owned();
            let message = format!("upstream `{}` has neither `url` nor `httpUrl` nor `command`", name.escape_debug());
            context.report.add(key.clone(), message, Some(hint));
            None
        }
        (Some(_), None) => {
            only_with_command(written, context);
            http::reach(written, context).map(Reach::Http)
        }
        (None, Some(_)) => {
            only_with_url(written, context);
            stdio(written.command.set()?, written, context).map(Reach::Stdio)
        }
    }
}

/// Reports what says something of a process where there is none.
fn only_with_command(written: &written::Upstream, context: &mut Context<'_, '_>) {
    let keys = [
        ("args", written.args.key()),
        ("env", written.env.key()),
        ("cwd", written.cwd.key()),
        ("shared", written.shared.key()),
    ];
    for (name, key) in keys.into_iter().filter_map(|(name, key)| Some((name, key?))) {
        context.report.add(key, format!("`{name}` goes with a `command`, and this upstream has a `url`"), None);
    }
    if let Some(at) = written.r#type.set().filter(|kind| kind.value == Kind::Stdio) {
        context.report.add(at.span.clone(), "an upstream with a `url` is of type \"http\" or \"sse\"", None);
    }
}

/// Reports what says something of requests where there are none.
fn only_with_url(written: &written::Upstream, context: &mut Context<'_, '_>) {
    let auth = written.auth.set().filter(|auth| auth.value != AuthKind::None).map(|auth| auth.key.clone());
    let keys = [
        ("headers", written.headers.key()),
        ("auth", auth),
        ("bearer", written.bearer.key()),
        ("owner", written.owner.key()),
        ("oauth", written.oauth.key()),
    ];
    for (name, key) in keys.into_iter().filter_map(|(name, key)| Some((name, key?))) {
        let hint = "a program gets its secrets as variables: env = { TOKEN = \"${env:TOKEN}\" }".to_owned();
        let message = format!("`{name}` goes with a `url`, and this upstream has a `command`");
        context.report.add(key, message, Some(hint));
    }
    if let Some(at) = written.r#type.set().filter(|kind| kind.value != Kind::Stdio) {
        context.report.add(at.span.clone(), "an upstream with a `command` is of type \"stdio\"", None);
    }
}

fn stdio(command: &At<Program>, written: &written::Upstream, context: &mut Context<'_, '_>) -> Option<StdioReach> {
    let expanded = |texts: Vec<&At<Text>>, context: &mut Context<'_, '_>| -> Vec<Secret> {
        texts.into_iter().filter_map(|text| Some(context.expand(text)?.value)).collect()
    };
    let args = expanded(written.args.set().iter().flat_map(|args| &args.value.0).collect(), context);
    let env = variables(written, context);
    let cwd = match &written.cwd {
        Field::Absent => Some(context.base.to_owned()),
        Field::Set(path) => context.existing(path),
        Field::Unreadable(_) => None,
    };
    // A name is looked up in PATH, a path begins at the folder of the file, wherever the process runs.
    let program = Path::new(&command.value.0);
    let command = match program.components().count() {
        1 if !command.value.0.contains('/') => command.value.0.clone(),
        _ => context.base.join(program).to_string_lossy().into_owned(),
    };
    Some(StdioReach { command, args, env, cwd: cwd?, shared: written.shared.or(false) })
}

fn variables(written: &written::Upstream, context: &mut Context<'_, '_>) -> Vec<(String, Secret)> {
    let mut variables = Vec::new();
    for (name, at) in written.env.set().iter().flat_map(|env| &env.value.0) {
        if name.is_empty() || name.contains(['=', '\0']) {
            context.report.add(at.key.clone(), "this cannot be the name of a variable", None);
        }
        variables.extend(context.expand(at).map(|expanded| (name.clone(), expanded.value)));
    }
    variables
}
