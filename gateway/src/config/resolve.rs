//! From what is written to what holds: defaults filled in, references followed, and every rule checked that needs more
//! than one value to see.

mod access;
mod account;
mod admin;
mod audit;
mod auth;
mod console;
mod context;
mod http;
mod limits;
mod login;
mod policy;
mod telemetry;
mod upstream;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weir_hosts::Host;

use self::context::Context;
use super::problem::ProblemReport;
use super::quantity::Period;
use super::read::Setting;
use super::written::{self, Root};
use super::{Config, Environment, LoginStore, Reach, Timeouts, Tls, UpstreamConfig, inherit, similar_word};

pub use auth::default_store;

/// Where Weir listens unless told otherwise.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080);

/// How often an upstream may be asked whether it answers.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// Settles the whole file. What comes back is complete only if nothing was reported.
pub(super) fn resolve(
    root: &Root,
    file: &Path,
    base: &Path,
    environment: &dyn Environment,
    report: &mut ProblemReport<'_>,
) -> Config {
    let api_keys = root.api_keys.or(false);
    let certified = root.tls.set().is_some_and(|at| at.value.client_ca.key().is_some());
    let callers = api_keys || certified || root.auth.key().is_some();
    let mut context = Context::new(file, base, environment, report);
    context.callers = callers;
    let store = auth::store(root, &mut context);
    context.store = Some(Arc::new(store.clone()));
    let upstreams = upstreams(root, &mut context);
    let inbound = auth::issuers(root, &mut context);
    let mut config = Config {
        file: file.to_owned(),
        listen: listen(root, &mut context),
        tls: tls(&root.tls, api_keys || root.auth.key().is_some(), &mut context),
        allowed_hosts: list(&root.allowed_hosts, |host| host.0.clone()),
        allowed_origins: list(&root.allowed_origins, |origin| origin.0.clone()),
        name_budgets: name_budgets(root, &mut context),
        console: console::console(root, &mut context),
        cache_dir: cache_dir(root, &context),
        api_keys,
        authorization_server: auth::authorization_server(root, &inbound, &mut context),
        inbound,
        public_url: root.public_url.set().map(|at| at.value.0.trim_end_matches('/').to_owned()),
        client_metadata_url: client_metadata_url(root, &mut context),
        admin: admin::admin(root, &mut context),
        replica: admin::replica(root, store.shared.is_some(), &mut context),
        store,
        audit: audit::audit(root, &mut context),
        telemetry: telemetry::telemetry(root, &mut context),
        record: audit::record(root, &upstreams, &mut context),
        limits: limits::limits(root, &upstreams, &mut context),
        access: access::access(root, &upstreams, &mut context),
        toolsets: access::toolsets(root, &upstreams, &mut context),
        upstreams,
        warnings: Vec::new(),
        missing: Vec::new(),
    };
    // Only now all that the file refers to is known.
    for upstream in &mut config.upstreams {
        if let Reach::Stdio(reach) = &mut upstream.reach {
            reach.inherit = inherit::names(&reach.inherit, &context.variables, environment);
        }
    }
    config
}

/// Settles where logins are, and nothing else.
pub(super) fn store(
    root: &Root,
    file: &Path,
    base: &Path,
    environment: &dyn Environment,
    report: &mut ProblemReport<'_>,
) -> LoginStore {
    auth::store(root, &mut Context::new(file, base, environment, report))
}

fn name_budgets(root: &Root, context: &mut Context<'_, '_>) -> Vec<(Host, usize)> {
    let mut budgets = Vec::new();
    for (name, at) in root.name_budgets.set().map_or(&[][..], |at| &at.value.0) {
        match Host::parse(name) {
            Some(host) => budgets.push((host, at.value.0)),
            None => {
                let hint = match similar_word(name, Host::ALL.into_iter().map(Host::name)) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("known: {}", Host::ALL.map(Host::name).join(", ")),
                };
                context.report.add(at.key.clone(), format!("no host is called `{}`", name.escape_debug()), Some(hint));
            }
        }
    }
    budgets
}

/// What is in braces stands for the issuer, and nothing else can.
fn client_metadata_url(root: &Root, context: &mut Context<'_, '_>) -> Option<String> {
    let written = root.client_metadata_url.set()?;
    let url = &written.value.0;
    if url.replace("{issuer}", "").contains(['{', '}']) {
        let hint = "such as \"https://weir.example.com/client/{issuer}.json\"".to_owned();
        context.report.add(written.span.clone(), "only `{issuer}` can be in braces here", Some(hint));
        return None;
    }
    Some(url.clone())
}

fn listen(root: &Root, context: &mut Context<'_, '_>) -> Vec<SocketAddr> {
    let Some(written) = root.listen.set() else {
        return vec![LISTEN];
    };
    let addresses = &written.value.0;
    if addresses.is_empty() && context.report.is_clean() {
        let hint = "leave `listen` out to listen on 127.0.0.1:8080".to_owned();
        context.report.add(written.span.clone(), "there is no address to listen on", Some(hint));
    }
    // What cannot be read there has been reported; that it is not `true` need not be said as well.
    let meant = match &root.allow_unauthenticated {
        Setting::Absent => false,
        Setting::Set(at) => at.value,
        Setting::Unreadable(_) => true,
    };
    let meant = meant || context.callers;
    let mut listen = Vec::new();
    for address in addresses {
        let socket = address.value.0;
        if listen.contains(&socket) && socket.port() != 0 {
            context.report.add(address.span.clone(), format!("{socket} is listed twice"), None);
        }
        if !socket.ip().is_loopback() && !meant {
            context.report.add(
                address.span.clone(),
                format!(
                    "whoever reaches {socket} could call every upstream, because there is no `[auth]`"
                ),
                Some("name the issuer of your clients' tokens in [auth], or say that this is meant:\nallow_unauthenticated = true".to_owned()),
            );
        }
        listen.push(socket);
    }
    listen
}

/// `has_callers` if something else than a certificate says who callers are.
fn tls(written: &Setting<written::Tls>, has_callers: bool, context: &mut Context<'_, '_>) -> Option<Tls> {
    let at = written.set()?;
    let mut part = |field, name: &str| {
        if matches!(field, &Setting::Absent) {
            context.report.add(
                at.key.clone(),
                format!("`tls` needs a `{name}`"),
                Some(format!("{name} = \"{name}.pem\"")),
            );
        }
        context.existing(field.set()?)
    };
    let certificate = part(&at.value.certificate, "certificate");
    let key = part(&at.value.key, "key");
    let client_ca = at.value.client_ca.set().and_then(|file| context.existing(file));
    let client_required = at.value.client_required.or(false);
    if let (true, None) = (client_required, at.value.client_ca.key()) {
        let hint = "client_ca = \"clients.pem\"".to_owned();
        context.report.add(at.key.clone(), "`client_required` needs to know whose certificates", Some(hint));
    }
    let client_crl = at.value.client_crl.set().and_then(|file| context.existing(file));
    let has_ca = at.value.client_ca.key().is_some();
    let of_clients = [
        (at.value.client_crl.key(), "client_crl"),
        (at.value.client_is_caller.key(), "client_is_caller"),
        (at.value.client_groups.key(), "client_groups"),
    ];
    for (named, key) in of_clients {
        if let Some(span) = named.filter(|_| !has_ca) {
            let hint = "client_ca = \"clients.pem\"".to_owned();
            context.report.add(span, format!("`{key}` needs to know whose certificates"), Some(hint));
        }
    }
    // Where tokens or keys say who calls, a certificate that opens a connection is not meant to be a caller too.
    let client_is_caller = has_ca && at.value.client_is_caller.or(!has_callers);
    if has_ca && !client_is_caller && !has_callers {
        let hint = "an `[auth]` table, or `api_keys = true`".to_owned();
        context.report.add(at.key.clone(), "`client_is_caller = false` leaves nobody who may call", Some(hint));
    }
    let client_groups = at.value.client_groups.set().map(|part| part.value);
    if let Some(span) = at.value.client_groups.key().filter(|_| has_ca && !client_is_caller) {
        let hint = "client_is_caller = true".to_owned();
        context.report.add(span, "`client_groups` has no effect: no certificate alone is a caller", Some(hint));
    }
    Some(Tls {
        certificate: certificate?,
        key: key?,
        client_ca,
        client_crl,
        client_is_caller,
        client_groups,
        client_required,
    })
}

fn list<T>(written: &Setting<super::value::Values<T>>, value: impl Fn(&T) -> String) -> Vec<String> {
    let mut values: Vec<String> = Vec::new();
    for at in written.set().iter().flat_map(|list| &list.value.0) {
        let value = value(&at.value);
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

fn cache_dir(root: &Root, context: &Context<'_, '_>) -> Option<PathBuf> {
    match root.cache_dir.set() {
        Some(written) => Some(context.base.join(&written.value.0)),
        None => default_cache_dir(context.environment),
    }
}

/// Where compiled policies are kept unless the configuration says otherwise; none if the system names no place (XDG
/// Base Directory Specification: only absolute values of variables count).
pub fn default_cache_dir(environment: &dyn Environment) -> Option<PathBuf> {
    let variable = |name| environment.variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(caches.join("weir"))
}

/// The timeouts written, each with the default given where it is not.
fn timeouts(written: &Setting<written::WrittenTimeouts>, default: Timeouts, context: &mut Context<'_, '_>) -> Timeouts {
    let Some(written) = written.set().map(|at| &at.value) else {
        return default;
    };
    if let Some(at) = written.probe_interval.set().filter(|at| at.value.0 < SHORTEST_INTERVAL) {
        context.report.add(at.span.clone(), "an upstream is asked once a second at most", Some("\"1s\"".to_owned()));
    }
    Timeouts {
        connect: written.connect.or(Period(default.connect)).0,
        initialize: written.initialize.or(Period(default.initialize)).0,
        read: written.read.or(Period(default.read)).0,
        overall: written.overall.or(Period(default.overall)).0,
        progress: written.progress.or(Period(default.progress)).0,
        list: written.list.or(Period(default.list)).0,
        start: written.start.or(Period(default.start)).0,
        probe: written.probe.or(Period(default.probe)).0,
        probe_interval: written.probe_interval.or(Period(default.probe_interval)).0,
    }
}

/// What holds for an upstream that says nothing else.
struct Defaults {
    timeouts: Timeouts,
    inherit: Vec<String>,
}

fn defaults(written: &Setting<written::Defaults>, context: &mut Context<'_, '_>) -> Defaults {
    let mut defaults =
        Defaults { timeouts: Timeouts::default(), inherit: inherit::DEFAULT.map(str::to_owned).to_vec() };
    if let Some(at) = written.set() {
        defaults.timeouts = timeouts(&at.value.timeouts, defaults.timeouts, context);
        if at.value.inherit_env.set().is_some() {
            defaults.inherit = list(&at.value.inherit_env, |pattern| pattern.0.clone());
        }
    }
    defaults
}

fn upstreams(root: &Root, context: &mut Context<'_, '_>) -> Vec<UpstreamConfig> {
    let named = root.upstreams.set().map_or(&[][..], |at| &at.value.0);
    if named.is_empty() && context.report.is_clean() {
        let hint = "add one: weir add NAME URL, or weir add NAME -- COMMAND".to_owned();
        context.report.warn(0..0, "there is no upstream to call yet", Some(hint));
    }
    let defaults = defaults(&root.defaults, context);
    let mut taken: BTreeMap<String, String> = BTreeMap::new();
    let mut upstreams = Vec::new();
    for (name, at) in named {
        let resolved = upstream::resolve(name, at, &defaults, context);
        let expanded = resolved.map_or_else(Vec::new, |one| account::expand(one, &at.value, context));
        let accounts = expanded.iter().filter(|one| one.account.is_some()).map(|one| one.name.as_str());
        for name in std::iter::once(name.as_str()).chain(accounts) {
            if let Some(other) = taken.insert(name.to_ascii_lowercase(), name.to_owned()) {
                let message = if other == name {
                    format!("two upstreams are called `{name}`: one is an account of another")
                } else {
                    format!("`{name}` and `{other}` differ only in case, which clients may not tell apart")
                };
                context.report.add(at.key.clone(), message, None);
            }
        }
        upstreams.extend(expanded);
    }
    upstreams
}
