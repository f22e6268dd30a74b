//! One upstream: which way it is reached, and that everything said about it goes with that way.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::context::Context;
use super::{Defaults, auth, http, list, policy, timeouts};
use crate::config::name::nearest;
use crate::config::read::{At, Setting};
use crate::config::string::{FilePath, Program, SystemUserName, TemplateString};
use crate::config::value::Values;
use crate::config::written::{self, AuthKind, WrittenOwner, WrittenTransport};
use crate::config::{Auth, ProcessLimits, Reach, Secret, StdioReach, SystemUser, UpstreamConfig, UpstreamName};

pub(super) fn resolve(
    name: &str,
    at: &At<written::WrittenUpstream>,
    defaults: &Defaults,
    context: &mut Context<'_, '_>,
) -> Option<UpstreamConfig> {
    let written = &at.value;
    let enabled = written.enabled.or(true);
    context.live = enabled;
    let parsed = name.parse::<UpstreamName>();
    if let Err(error) = &parsed {
        let hint =
            nearest(name).map_or("letters, digits, `-` and `_`".to_owned(), |name| format!("[upstreams.{name}]"));
        context.report.add(at.key.clone(), error.to_string(), Some(hint));
    }
    if let Some(owner) = written.owner.set().filter(|owner| owner.value == WrittenOwner::Principal && !context.callers)
    {
        let hint = "[auth]\nissuer = \"https://login.example.com\"\naudience = \"https://weir.example.com/mcp\"";
        let message = "`owner = \"principal\"` needs `[auth]`: without it every caller is the same one";
        context.report.add(owner.span.clone(), message, Some(hint.to_owned()));
    }
    let reach = reach(name, &at.key, written, defaults, context);
    let auth = match http::url(written) {
        Setting::Absent => Some(Auth::None),
        Setting::Set(_) | Setting::Unreadable(_) => auth::upstream(written, context),
    };
    let policies = policy::resolve(&written.policies, context);
    if let (Some(Reach::Http(reach)), Some(auth), Some(url)) = (&reach, &auth, http::url(written).set()) {
        http::warn_of_cleartext(reach, auth, written, &url.span, context);
    }
    context.live = true;
    let timeouts = timeouts(&written.timeouts, defaults.timeouts, context);
    Some(UpstreamConfig {
        name: parsed.ok()?,
        account: None,
        reach: reach?,
        auth: auth?,
        policies,
        owner: auth::owner(written),
        timeouts,
        serves: super::access::selection_of(written),
        enabled,
    })
}

fn reach(
    name: &str,
    key: &Range<usize>,
    written: &written::WrittenUpstream,
    defaults: &Defaults,
    context: &mut Context<'_, '_>,
) -> Option<Reach> {
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
            stdio(written.command.set()?, written, defaults, context).map(Reach::Stdio)
        }
    }
}

/// Reports what says something of a process where there is none.
fn only_with_command(written: &written::WrittenUpstream, context: &mut Context<'_, '_>) {
    let keys = [
        ("args", written.args.key()),
        ("env", written.env.key()),
        ("inherit_env", written.inherit_env.key()),
        ("cwd", written.cwd.key()),
        ("shared", written.shared.key()),
        ("wrapper", written.wrapper.key()),
        ("user", written.user.key()),
        ("process_limits", written.process_limits.key()),
    ];
    for (name, key) in keys.into_iter().filter_map(|(name, key)| Some((name, key?))) {
        context.report.add(key, format!("`{name}` goes with a `command`, and this upstream has a `url`"), None);
    }
    if let Some(at) = written.r#type.set().filter(|kind| kind.value == WrittenTransport::Stdio) {
        context.report.add(at.span.clone(), "an upstream with a `url` is of type \"http\" or \"sse\"", None);
    }
}

/// Reports what says something of requests where there are none.
fn only_with_url(written: &written::WrittenUpstream, context: &mut Context<'_, '_>) {
    let auth = written.auth.set().filter(|auth| auth.value != AuthKind::None).map(|auth| auth.key.clone());
    let keys = [
        ("headers", written.headers.key()),
        ("auth", auth),
        ("bearer", written.bearer.key()),
        ("owner", written.owner.key()),
        ("accounts", written.accounts.key()),
        ("oauth", written.oauth.key()),
    ];
    for (name, key) in keys.into_iter().filter_map(|(name, key)| Some((name, key?))) {
        let hint = "a program gets its secrets as variables: env = { TOKEN = \"${env:TOKEN}\" }".to_owned();
        let message = format!("`{name}` goes with a `url`, and this upstream has a `command`");
        context.report.add(key, message, Some(hint));
    }
    if let Some(at) = written.r#type.set().filter(|kind| kind.value != WrittenTransport::Stdio) {
        context.report.add(at.span.clone(), "an upstream with a `command` is of type \"stdio\"", None);
    }
}

fn stdio(
    command: &At<Program>,
    written: &written::WrittenUpstream,
    defaults: &Defaults,
    context: &mut Context<'_, '_>,
) -> Option<StdioReach> {
    let mut secrets = Vec::new();
    let args = words(&written.args, &mut secrets, context);
    let wrapper = words(&written.wrapper, &mut secrets, context);
    let env = variables(written, &mut secrets, context);
    let cwd = match &written.cwd {
        Setting::Absent => Some(context.base.to_owned()),
        Setting::Set(path) => Some(folder(path, context)),
        Setting::Unreadable(_) => None,
    };
    // A name is looked up in PATH, a path begins at the folder of the file, wherever the process runs.
    let program = match command.value.0.contains('/') {
        false => command.value.0.clone(),
        true => context.base.join(&command.value.0).to_string_lossy().into_owned(),
    };
    // What a wrapper starts may be in a container.
    match (wrapper.first(), written.wrapper.set().and_then(|at| at.value.0.first())) {
        (Some(program), Some(at)) => installed(program.expose(), &at.span, &env, context),
        _ => installed(&program, &command.span, &env, context),
    }
    let inherit = match &written.inherit_env {
        Setting::Absent => defaults.inherit.clone(),
        given => list(given, |pattern| pattern.0.clone()),
    };
    let (user, limits) = (user(&written.user, context), process_limits(written, context));
    let shared = written.shared.or(false);
    Some(StdioReach { command: program, args, env, inherit, secrets, cwd: cwd?, shared, wrapper, user, limits })
}

/// The words of a command, expanded.
fn words(
    written: &Setting<Values<TemplateString>>,
    secrets: &mut Vec<Secret>,
    context: &mut Context<'_, '_>,
) -> Vec<Secret> {
    let mut words = Vec::new();
    for word in written.set().iter().flat_map(|words| &words.value.0) {
        if let Some(expanded) = context.expand(word) {
            words.push(expanded.value);
            secrets.extend(expanded.secrets);
        }
    }
    words
}

/// The user, who must be there, and whom Weir must be allowed to become.
fn user(written: &Setting<SystemUserName>, context: &mut Context<'_, '_>) -> Option<SystemUser> {
    let at = written.set()?;
    if !context.live {
        return None;
    }
    let found = context.environment.user(&at.value.0);
    if found.is_none() {
        let message = format!("this system has no user `{}`", at.value.0.escape_debug());
        context.report.add(at.span.clone(), message, Some("`useradd --system NAME` makes one".to_owned()));
    } else if !context.environment.may_change_user() {
        let hint = "start Weir as root, or leave `user` out and start Weir as that user".to_owned();
        context.report.add(at.span.clone(), "only root on Linux can start programs as another user", Some(hint));
    }
    found
}

fn process_limits(written: &written::WrittenUpstream, context: &mut Context<'_, '_>) -> ProcessLimits {
    let Some(limits) = written.process_limits.set().map(|at| &at.value) else { return ProcessLimits::default() };
    if let Some(at) = limits.processes.set().filter(|_| written.user.key().is_none()) {
        let hint = "add user = \"NAME\", or a wrapper such as systemd-run with TasksMax".to_owned();
        let message = "`processes` counts all processes of a user, Weir's own included: it needs a `user`";
        context.report.add(at.key.clone(), message, Some(hint));
    }
    if let Some(at) = limits.memory.set().filter(|_| !cfg!(target_os = "linux")) {
        context.report.add(at.key.clone(), "only Linux can limit the memory of a process", None);
    }
    ProcessLimits {
        memory: limits.memory.set().map(|at| at.value.0),
        cpu_seconds: limits.cpu_time.set().map(|at| at.value.0.as_millis().div_ceil(1000) as u64),
        open_files: limits.open_files.set().map(|at| at.value.0 as u64),
        processes: limits.processes.set().map(|at| at.value.0 as u64),
    }
}

/// The absolute path of the folder; notes if it is not there.
fn folder(path: &At<FilePath>, context: &mut Context<'_, '_>) -> PathBuf {
    let absolute = context.base.join(&path.value.0);
    if context.live && !context.environment.is_directory(&absolute) {
        let hint = "make it, or leave `cwd` out for the folder of this file".to_owned();
        context.report.miss(path.span.clone(), format!("there is no folder {}", absolute.display()), Some(hint));
    }
    absolute
}

/// Notes if there is no such program on this machine, in the `PATH` that it will be looked up in.
fn installed(program: &str, at: &Range<usize>, env: &[(String, Secret)], context: &mut Context<'_, '_>) {
    if !context.live {
        return;
    }
    let is_program = |path: &Path| context.environment.is_program(path);
    let (found, message) = if program.contains('/') {
        (is_program(Path::new(program)), format!("there is no program {program}, or it is not executable"))
    } else {
        let own = env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.expose().into());
        let path = own.or_else(|| context.environment.variable("PATH")).unwrap_or_default();
        let found = std::env::split_paths(&path).any(|folder| is_program(&folder.join(program)));
        (found, format!("there is no program `{program}` in PATH"))
    };
    if !found {
        context.report.miss(at.clone(), message, Some("install it, or write the whole path of another".to_owned()));
    }
}

fn variables(
    written: &written::WrittenUpstream,
    secrets: &mut Vec<Secret>,
    context: &mut Context<'_, '_>,
) -> Vec<(String, Secret)> {
    let mut variables = Vec::new();
    for (name, at) in written.env.set().iter().flat_map(|env| &env.value.0) {
        if name.is_empty() || name.contains(['=', '\0']) {
            context.report.add(at.key.clone(), "this cannot be the name of a variable", None);
        }
        if let Some(expanded) = context.expand(at) {
            secrets.extend(expanded.secrets);
            secrets.push(expanded.value.clone());
            variables.push((name.clone(), expanded.value));
        }
    }
    variables
}
