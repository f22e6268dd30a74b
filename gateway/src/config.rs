//! What the operator wrote, checked before anything starts.
//!
//! A configuration is read in three steps: the TOML text (or the file of another host: `import`) becomes a tree with
//! positions, the tree becomes the tables of
//! `written` (each value still where it was found), and `resolve` turns those into a [`Config`] that the rest of
//! Weir can use without asking again whether it makes sense. No step stops at the first mistake: whatever is wrong
//! becomes a [`Problem`] at its line and column, and the operator sees all of them in one run.
//!
//! Variables of the environment such as `WEIR__LISTEN` take the place of settings in the tree.
//!
//! `${env:NAME}` and `${file:PATH}` are expanded in values after parsing, so what a variable holds can never change
//! the structure of the file. What came from there is a [`Secret`], which cannot be printed.

mod access;
mod admin;
mod audit;
mod auth;
mod component;
mod condition;
mod console;
mod edit;
mod environment;
mod fetched_secret;
mod expand;
mod import;
mod inherit;
mod layers;
mod limits;
mod name;
mod origin;
mod overrides;
mod pattern;
mod permissions;
mod problem;
mod process;
mod quantity;
mod read;
mod redirect_uri;
mod resolve;
mod safe_url;
mod schema;
mod secret;
mod string;
mod suggest;
mod syntax;
mod telemetry;
mod value;
mod written;

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use weir_hosts::Host;

use self::problem::ProblemReport;
use self::read::{Node, SettingKind};

pub use access::{
    AccessConfig, ApprovalConfig, Approver, Effect, ItemPattern, ItemPatterns, MERGED_ENDPOINT, RuleConfig, Selection,
    Selections, ToolOverride, ToolsetConfig, Who,
};
pub use admin::{AdminConfig, ReplicaConfig};
pub use audit::{AuditArguments, AuditConfig, AuditSync, OtlpConfig, RecordConfig};
pub use auth::{
    Auth, AuthorizationServerConfig, AuthorizedClient, ClientProof, ClientSignIn, IdentityProvider, InboundAuth,
    LoginFlow, LoginOwner, LoginStore, OAuthClient, SharedStore, SubjectType, TokenIntrospection, store_password,
};
pub use component::{ComponentDigest, ComponentLock, ComponentPlace, ComponentSigner, RemoteComponent, is_here};
pub use condition::{Condition, MOST_STEPS};
pub use console::ConsoleConfig;
pub use edit::{ConfigFile, EditError, replace};
pub use environment::{Environment, SystemEnvironment, SystemUser};
pub use fetched_secret::{FetchedSecret, SecretCommand, StoredSecret, read_stored_secrets};
pub use inherit::variables as inherited_variables;
pub use layers::{DEFAULT_FILE, Layer, default_file, layers};
pub use limits::{
    API_KEY_ISSUER, CallRates, Limits, NamedLimits, OwnLimits, OwnNumbers, PolicyLimits, Timeouts, key_principal,
    own_shares,
};
pub use name::{NameError, UpstreamName, nearest as nearest_name};
pub use overrides::{Override, overrides};
pub use pattern::Pattern;
pub use permissions::{OpenPath, writable_by_others};
pub use problem::{FilePosition, Problem, Problems};
pub use process::{ProcessLimits, StdioReach};
pub use read::Unreadable;
pub use redirect_uri::{is_loopback_uri, is_redirect_uri};
pub use resolve::{default_cache_dir, default_store};
pub use safe_url::{SafeUrl, UrlError};
pub use schema::schema;
pub use secret::{SecretError, SecretSource};
pub use string::is_stored_name;
pub use suggest::similar as similar_word;
pub use telemetry::TelemetryConfig;
pub use weir_store::Secret;

/// How a component that the binary carries is told from a file.
pub const SHIPPED: &str = "weir:";

/// Everything Weir was told, checked and complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file this came from, as it was named; for messages. Empty if a command was told all there is.
    pub file: PathBuf,
    /// The addresses to listen on, at least one. Port 0 lets the system choose.
    pub listen: Vec<SocketAddr>,
    /// The certificate to serve with; plain HTTP without it.
    pub tls: Option<Tls>,
    /// Host names that clients may call Weir by, beside `localhost` and IP addresses. Lower case, without port.
    pub allowed_hosts: Vec<String>,
    /// Browser origins that may call Weir, beside those on loopback; lower case, as in `Origin` (RFC 6454 §6.2).
    pub allowed_origins: Vec<String>,
    /// How long names of tools may be for hosts, where that is not what they are known to take.
    pub name_budgets: Vec<(Host, usize)>,
    /// What the pages for browsers show.
    pub console: ConsoleConfig,
    /// Where compiled policies are kept; none if neither the file nor the system names a place.
    pub cache_dir: Option<PathBuf>,
    /// Whose tokens let callers in, the first of them first.
    pub inbound: Vec<InboundAuth>,
    /// How Weir issues access tokens itself; none if it does not.
    pub authorization_server: Option<AuthorizationServerConfig>,
    /// Whether API keys let callers in.
    pub api_keys: bool,
    /// What browsers and clients reach Weir by; none for the address that it listens on.
    pub public_url: Option<String>,
    /// Where the document is that describes Weir to authorization servers.
    pub client_metadata_url: Option<String>,
    /// Where logins are kept.
    pub store: LoginStore,
    /// Where programs ask how Weir stands; none if only the Unix socket is there.
    pub admin: Option<AdminConfig>,
    /// Where other gateways at the same store reach this one; none if they do not.
    pub replica: Option<ReplicaConfig>,
    /// Where and how calls are recorded for an audit; none if they are not.
    pub audit: Option<AuditConfig>,
    /// Where spans and metrics are sent; none if they are not.
    pub telemetry: Option<TelemetryConfig>,
    /// Which questions for policies are recorded; none if this is none.
    pub record: Option<RecordConfig>,
    /// The bounds on what a client may take.
    pub limits: Limits,
    /// Who may see and call what; none if everybody may who may call.
    pub access: Option<AccessConfig>,
    /// What is served together, in the order of the file.
    pub toolsets: Vec<ToolsetConfig>,
    /// The upstreams in the order of the file, disabled ones included.
    pub upstreams: Vec<UpstreamConfig>,
    /// What works and should be written otherwise.
    pub warnings: Vec<Problem>,
    /// What is not on this machine, and without which one upstream or another cannot start.
    pub missing: Vec<Problem>,
}

/// A certificate and its key, both PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate chain, leaf first.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The CAs of clients' certificates; none if clients are asked for none.
    pub client_ca: Option<PathBuf>,
    /// The revocation lists of these CAs; none if none are read.
    pub client_crl: Option<PathBuf>,
    /// Whether a certificate alone, without a token or an API key, says who calls.
    pub client_is_caller: bool,
    /// What of a certificate names its caller's groups; none if nothing does.
    pub client_groups: Option<SubjectPart>,
    /// Whether each client must show one.
    pub client_required: bool,
}

/// A part of the subject of a certificate, which may be there several times (RFC 5280 §4.1.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubjectPart {
    /// `O`.
    Organization,
    /// `OU`.
    OrganizationalUnit,
}

/// One MCP server that Weir calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// Its name, unique without regard to case; the prefix of its tools.
    pub name: UpstreamName,
    /// Which account of a service it is, where several are written as one upstream.
    pub account: Option<Account>,
    /// How to get there.
    pub reach: Reach,
    /// What opens it.
    pub auth: Auth,
    /// The components that decide about it, one for each decision at most.
    pub policies: Vec<PolicyConfig>,
    /// Whose credentials a policy of one's own decides about.
    pub owner: LoginOwner,
    /// How long to wait for it.
    pub timeouts: Timeouts,
    /// What of it is served at all.
    pub serves: Selections,
    /// Whether to use it at all. The secrets of a disabled upstream have not been read.
    pub enabled: bool,
}

/// One of several accounts of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The upstream as it is written: `github`, where this one is `github-work`.
    pub service: UpstreamName,
    /// Its name: `work`.
    pub name: Arc<str>,
    /// Whether callers choose it by an argument of each tool; otherwise by the prefix of names.
    pub by_argument: bool,
}

/// How to get to an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Over the network.
    Http(HttpReach),
    /// As a child process.
    Stdio(StdioReach),
}

impl Reach {
    /// The SHA-256 of the server that is meant, by its URL or by its command. Credentials in headers and in the
    /// environment do not count.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        let mut add = |part: &[u8]| {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        };
        match self {
            Self::Http(HttpReach { url, .. }) => add(url.as_url().as_str().as_bytes()),
            Self::Stdio(StdioReach { command, args, cwd, .. }) => {
                add(cwd.as_os_str().as_encoded_bytes());
                add(command.as_bytes());
                args.iter().for_each(|argument| add(argument.expose().as_bytes()));
            }
        }
        digest.finalize().into()
    }
}

/// An upstream behind a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpReach {
    /// Its endpoint.
    pub url: SafeUrl,
    /// The transport that the file insists on, which forbids trying any other.
    pub pinned: Option<HttpTransport>,
    /// Headers to send with every request, names in lower case.
    pub headers: Vec<(String, Secret)>,
}

/// A way of MCP over HTTP, as `type` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpTransport {
    /// `http`: Streamable HTTP (2025-03-26 and later).
    Streamable,
    /// `sse`: HTTP+SSE (2024-11-05).
    Sse,
}

/// A component that decides about an upstream's calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyConfig {
    /// The component.
    pub component: PolicyComponent,
    /// Whose signature the component must have, if it must have one.
    pub signed_by: Option<ComponentSigner>,
    /// The imports it may use: any of `log`, `clock`, `random`, `secrets`, `http`, `store`.
    pub grants: Vec<String>,
    /// What its store is called, if the configuration says so.
    pub store: Option<String>,
    /// Its own settings: a JSON object.
    pub settings: String,
    /// The secrets it may place, by the names it knows them under.
    pub secrets: Vec<(String, SecretSource)>,
    /// The origins of the services that it may ask.
    pub http: Vec<String>,
    /// The methods of its requests.
    pub http_methods: Vec<&'static str>,
    /// How many requests it may send in a minute.
    pub http_requests_per_minute: usize,
    /// Whether what it decides about calls is carried out.
    pub mode: PolicyMode,
    /// What becomes of calls while it fails.
    pub on_failure: PolicyFailure,
    /// The line of the configuration where it begins; for messages.
    pub line: usize,
}

/// Where a component comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyComponent {
    /// A file. Absolute.
    File(PathBuf),
    /// One of those that the binary carries, by its name; `weir:pin` in the configuration.
    Shipped(String),
    /// One that is fetched.
    Remote(RemoteComponent),
}

impl PolicyComponent {
    /// What messages call it.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Shipped(name) => format!("{SHIPPED}{name}"),
            Self::Remote(component) => component.to_string(),
        }
    }

    /// The file, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Shipped(_) | Self::Remote(_) => None,
        }
    }
}

impl PolicyConfig {
    /// Whether it may keep something in the store.
    #[must_use]
    pub fn keeps(&self) -> bool {
        matches!(self.component, PolicyComponent::Shipped(_)) || self.grants.iter().any(|grant| grant == "store")
    }

    /// What its store is called among those of its upstream.
    #[must_use]
    pub fn store_name(&self) -> String {
        let of_component = || match &self.component {
            PolicyComponent::Remote(RemoteComponent { place: ComponentPlace::Registry(reference), .. }) => {
                last_part(reference.repository())
            }
            other => last_part(&other.name()),
        };
        self.store.clone().unwrap_or_else(of_component)
    }
}

/// The last part of a path or a URL.
fn last_part(name: &str) -> String {
    Path::new(name).file_name().map_or(name.into(), OsStr::to_string_lossy).into_owned()
}

/// How a policy takes part in calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyMode {
    /// What it decides is carried out.
    #[default]
    Enforce,
    /// What it decides is logged.
    Shadow,
    /// The same as [`Self::Enforce`], and a request that only reads goes out meanwhile: its answer waits for the decision.
    Beside,
}

/// What becomes of calls whose policy fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyFailure {
    /// They are refused.
    #[default]
    Refuse,
    /// They go on without it.
    Skip,
    /// The last decision about the same facts stands; without one they are refused.
    LastGood,
}

impl Config {
    /// How long the name of a tool may be for a host, its prefix included; none for one that shows names to no model.
    #[must_use]
    pub fn name_budget(&self, host: Host) -> Option<usize> {
        let set = self.name_budgets.iter().find(|(known, _)| *known == host).map(|(_, budget)| *budget);
        set.or_else(|| host.name_budget())
    }

    /// The names below `/mcp/` at which something is: those of the enabled upstreams and of the toolsets.
    pub fn endpoints(&self) -> impl Iterator<Item = &UpstreamName> {
        let upstreams = self.upstreams.iter().filter(|upstream| upstream.enabled).map(|upstream| &upstream.name);
        upstreams.chain(self.toolsets.iter().map(|toolset| &toolset.name))
    }

    /// Whether callers prove who they are; else everybody who reaches Weir may call.
    #[must_use]
    pub fn proves_callers(&self) -> bool {
        let certified = self.tls.as_ref().is_some_and(|tls| tls.client_is_caller);
        self.api_keys || certified || !self.inbound.is_empty()
    }

    /// Whether whoever brings a link to sign in is taken for the caller it was made for.
    #[must_use]
    pub fn trusts_sign_in_links(&self) -> bool {
        self.inbound.iter().any(|inbound| inbound.trust_sign_in_links)
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// Everything that is wrong with it; or that it cannot be read, which is one problem without a position.
    pub fn load(path: &Path) -> Result<Self, Problems> {
        let environment = SystemEnvironment;
        let unreadable = |reason: String, hint: Option<&str>| {
            let message = format!("the configuration cannot be read: {reason}");
            Problems(vec![Problem { file: path.to_owned(), at: None, message, hint: hint.map(str::to_owned) }])
        };
        let bytes = environment.file(path).map_err(|error| {
            let hint = (error.kind() == io::ErrorKind::NotFound)
                .then_some("name another file with --config, or try Weir out without one: weir demo");
            unreadable(secret::reason(&error), hint)
        })?;
        let text = String::from_utf8(bytes).map_err(|_| unreadable("it is not UTF-8 text".to_owned(), None))?;
        let mut config = Self::parse_overridden(&text, path, &environment)?;
        config.warnings.extend(permissions::warning(path));
        Ok(config)
    }

    /// Checks the text of a file that is, or would be, at `path`: relative paths in it begin there.
    ///
    /// # Errors
    /// Everything that is wrong with it. A text that is neither Weir's TOML nor a file of another host is not looked into any further.
    pub fn parse(text: &str, path: &Path, environment: &dyn Environment) -> Result<Self, Problems> {
        Self::parse_with(text, path, environment, &[])
    }

    /// The same, with the settings that the environment has instead.
    ///
    /// # Errors
    /// As for [`Self::parse`]. What is wrong with a variable is told by its name.
    pub fn parse_overridden(text: &str, path: &Path, environment: &dyn Environment) -> Result<Self, Problems> {
        Self::parse_with(text, path, environment, &overrides(environment))
    }

    fn parse_with(
        text: &str,
        path: &Path,
        environment: &dyn Environment,
        overrides: &[Override],
    ) -> Result<Self, Problems> {
        let mut report = ProblemReport::new(path, text);
        let Some(root) = Self::root(text, path, environment, overrides, &mut report) else {
            return Err(report.into_problems());
        };
        let config = resolve::resolve(&root, path, &base(path), environment, &mut report);
        if !report.is_clean() {
            return Err(report.into_problems());
        }
        Ok(Self { warnings: report.take_warnings(), missing: report.take_missing(), ..config })
    }

    /// The tables of a text; none if it is neither Weir's TOML nor a file of another host.
    fn root(
        text: &str,
        path: &Path,
        environment: &dyn Environment,
        overrides: &[Override],
        report: &mut ProblemReport<'_>,
    ) -> Option<written::Root> {
        let mut tree = match import::host::host(path, text) {
            _ if import::is_json(text) => import::tree(text, environment, report),
            Some(host) => import::host::tree(host, text, environment, report),
            None => toml_tree(text, report),
        }?;
        overrides::apply(&mut tree, overrides, report);
        written::Root::read(&tree, report)
    }

    /// Where the logins of a file are, whatever else is wrong with it. One that does not exist has them in the usual place.
    ///
    /// # Errors
    /// What is wrong with that.
    pub fn load_store(path: &Path) -> Result<LoginStore, Problems> {
        let environment = SystemEnvironment;
        let text = environment.file(path).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let overrides = overrides(&environment);
        let mut others = ProblemReport::new(path, &text);
        let root = Self::root(&text, path, &environment, &overrides, &mut others);
        let Some(root) = root else { return Err(others.into_problems()) };
        let mut report = ProblemReport::new(path, &text);
        let store = resolve::store(&root, path, &base(path), &environment, &mut report);
        if report.is_clean() { Ok(store) } else { Err(report.into_problems()) }
    }
}

/// The folder in which relative paths of a file begin. Without a working directory they stay relative, and whoever opens
/// them says what is wrong.
fn base(path: &Path) -> PathBuf {
    let folder = path.parent().unwrap_or(Path::new("")).join(".");
    std::path::absolute(&folder).unwrap_or(folder)
}

/// Reads an address to listen on, as `listen` has it.
///
/// # Errors
/// What to write instead.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let refused = |Unreadable { message, hint }| format!("{message}: {hint}");
    text.parse::<string::Address>().map(|address| address.0).map_err(refused)
}

/// Reads a duration as the file has it: `"90d"`.
///
/// # Errors
/// What to write instead.
pub fn period(text: &str) -> Result<Duration, String> {
    let refused = |Unreadable { message, hint }| format!("{message}: {hint}");
    text.parse::<quantity::Period>().map(|period| period.0).map_err(refused)
}

/// The tree of a TOML file; none if it has mistakes, which have been reported.
fn toml_tree<'t>(text: &'t str, report: &mut ProblemReport<'_>) -> Option<Node<'t>> {
    let (tree, errors) = DeTable::parse_recoverable(text);
    syntax::report(&errors, text, report);
    report.is_clean().then(|| Spanned::new(tree.span(), DeValue::Table(tree.into_inner())))
}
