//! The MCP servers behind Weir: how each is reached, opened and spoken to.
//!
//! An [`Upstream`] is one entry of the configuration. Reaching it is a [`flow::Walk`](weir_flow::Negotiation) that asks its
//! `connection` policy ([`connect`]); what opened it last is remembered. A [`Channel`] is the way to it that a call
//! takes: an HTTP endpoint with or without a session ([`streamable`]), the stream of the older HTTP transport
//! ([`sse`]), or a child process ([`stdio`]). Credentials come
//! from its `credentials` policy and are kept for as long as the policy says ([`credential`]).

pub mod channel;
mod children;
mod connect;
mod crashes;
mod credential;
mod echo;
mod events;
mod guard;
mod health;
mod identity;
mod known;
mod loss;
mod multiplex;
pub mod own;
mod pool;
mod replies;
mod reply;
mod service;
mod status;
pub mod sse;
pub mod stdio;
mod streamable;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use weir_flow::{
    UpstreamState,
    facts::{self, Transport},
};
use weir_mcp::{Era, ListKind};

use crate::{
    access::{is_each_served, is_served},
    config::{Account, HttpTransport, Reach, Secret, Selections, Timeouts, UpstreamName},
    http::{HeaderValue, HttpClient, HttpProxy},
    policy::{CallPolicies, CallPolicy, Policy, PolicyError},
    quota::Quota,
    telemetry::metrics::CallMetrics,
};

pub use channel::{Channel, Outgoing, SendError, Ticket};
pub use connect::{ConnectError, Lease};
pub use credential::{Credential, CredentialError, CredentialSource};
pub use events::Events;
pub use guard::{AdmittedCall, GuardReport};
pub use health::Health;
pub use identity::ServerIdentity;
pub use replies::Replies;
pub use reply::{JsonBody, Listened, Reply, ReplyBody};
pub use service::Services;
pub use status::{Opened, Status};

use children::Children;
use crashes::Crashes;
use credential::Credentials;
use guard::CallGuard;
use known::KnownEras;
use pool::ProcessPool;
use status::StatusRecord;
use streamable::{HttpEndpoint, HttpSession};

/// The transports that this version carries.
const CARRIED: [Transport; 3] = [Transport::Http, Transport::Sse, Transport::Stdio];

/// One upstream of the configuration, ready to be reached.
pub struct Upstream {
    name: UpstreamName,
    account: Option<Account>,
    reach_digest: [u8; 32],
    way: UpstreamTransport,
    /// How long what may take.
    pub timeouts: Timeouts,
    connection: Policy,
    required_transport: Option<Transport>,
    credentials: Credentials,
    /// What decides about its calls.
    policies: Option<CallPolicies>,
    /// Whether each caller has a credential of their own here.
    pub is_personal: bool,
    /// What of it is served at all.
    serves: Selections,
    known: Mutex<KnownEras>,
    status: Mutex<StatusRecord>,
    guard: CallGuard,
    /// Where it stands, and why, as long as nothing of it may be opened.
    held: Mutex<Option<(UpstreamState, String)>>,
    /// Tells that a process was started.
    started: Notify,
    /// Whether the configuration in force has it no more.
    retired: watch::Sender<bool>,
    users: Arc<()>,
    /// How large a list of its may be, in bytes.
    list_limit: AtomicUsize,
    /// What became of its calls.
    pub calls: CallMetrics,
}

/// A call that uses an upstream, for as long as it lasts.
#[derive(Debug)]
pub struct UpstreamUse(#[allow(dead_code, reason = "it is counted")] Arc<()>);

/// What stands between Weir and the server.
#[allow(clippy::large_enum_variant, reason = "one for each upstream, never moved")]
enum UpstreamTransport {
    Http(Arc<HttpEndpoint>),
    Stdio {
        command: stdio::StdioCommand,
        shared: bool,
        pool: ProcessPool,
        children: Children,
        crashes: Arc<Crashes>,
        processes: Arc<Quota>,
        starts: Arc<Semaphore>,
    },
}

/// What an upstream is made of.
pub struct UpstreamParts {
    /// The configuration's entry.
    pub config: crate::config::UpstreamConfig,
    /// The policy that decides how it is reached.
    pub connection: Policy,
    /// The policy that decides with which credential; none to go without.
    pub credentials: Option<CredentialSource>,
    /// The policies that decide about its calls, in order.
    pub calls: Vec<CallPolicy>,
    /// How many processes there may be of all upstreams.
    pub processes: Arc<Quota>,
    /// What a process waits for that is to be started (`limits.concurrent_starts`).
    pub starts: Arc<Semaphore>,
    /// How long its messages and lists may be.
    pub limits: crate::config::Limits,
}

impl Upstream {
    /// Prepares an upstream; nothing is sent and nothing is started.
    ///
    /// # Errors
    ///
    /// When its address cannot be used.
    pub fn new(parts: UpstreamParts, client: &HttpClient) -> Result<Self, crate::http::Error> {
        let UpstreamParts { config, connection, credentials, calls, processes, starts, limits } = parts;
        let timeouts = config.timeouts;
        let reach_digest = config.reach.digest();
        let (way, required_transport) = match config.reach {
            Reach::Http(reach) => {
                let required = reach.pinned.map(|pinned| match pinned {
                    HttpTransport::Streamable => Transport::Http,
                    HttpTransport::Sse => Transport::Sse,
                });
                (
                    UpstreamTransport::Http(Arc::new(HttpEndpoint::new(
                        client.clone(),
                        &reach,
                        &timeouts,
                        limits.message,
                    )?)),
                    required,
                )
            }
            Reach::Stdio(reach) => {
                let shared = reach.shared;
                let command = stdio_command(&reach, limits.message);
                let (pool, children, crashes) = Default::default();
                (
                    UpstreamTransport::Stdio { command, shared, pool, children, crashes, processes, starts },
                    Some(Transport::Stdio),
                )
            }
        };
        let credentials = Credentials::new(credentials);
        let mut upstream = Self {
            name: config.name,
            account: config.account,
            reach_digest,
            way,
            timeouts,
            connection,
            required_transport,
            is_personal: credentials.are_personal(),
            credentials,
            policies: None,
            serves: config.serves,
            known: Mutex::default(),
            status: Mutex::default(),
            guard: CallGuard::default(),
            held: Mutex::default(),
            started: Notify::new(),
            retired: watch::Sender::default(),
            users: Arc::default(),
            list_limit: limits.list.into(),
            calls: CallMetrics::new(),
        };
        upstream.policies = CallPolicies::new(upstream.facts(None), calls);
        Ok(upstream)
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The way to a session that another gateway has opened there; none if that is one of a process.
    pub fn attached(&self, id: Option<HeaderValue>, version: Option<HeaderValue>) -> Option<Channel> {
        match &self.way {
            UpstreamTransport::Http(endpoint) => {
                Some(Channel::Http(HttpSession { id, version, ..HttpSession::none_at(endpoint) }))
            }
            UpstreamTransport::Stdio { .. } => None,
        }
    }

    /// The same, for what is kept by the names of upstreams.
    pub const fn key(&self) -> &UpstreamName {
        &self.name
    }

    /// The SHA-256 of which server it is ([`Reach::digest`]).
    pub const fn reach_digest(&self) -> &[u8; 32] {
        &self.reach_digest
    }

    /// Which account of a service it is, where several are written as one upstream.
    pub const fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }

    /// How large a list of its may be, in bytes.
    pub fn list_limit(&self) -> usize {
        self.list_limit.load(Ordering::Relaxed)
    }

    /// Lets its lists be of another size from now on.
    pub fn limit_lists(&self, limit: usize) {
        self.list_limit.store(limit, Ordering::Relaxed);
    }

    /// Host and port of its address; none of a process.
    pub fn server_address(&self) -> Option<(String, u16)> {
        match &self.way {
            UpstreamTransport::Http(endpoint) => endpoint.server_address(),
            UpstreamTransport::Stdio { .. } => None,
        }
    }

    /// The forward proxy of the environment that requests to it go through.
    pub fn forward_proxy(&self) -> Option<&HttpProxy> {
        match &self.way {
            UpstreamTransport::Http(endpoint) => endpoint.proxy(),
            UpstreamTransport::Stdio { .. } => None,
        }
    }

    /// Why it is reached over the transport that it is: `configured`, `first_choice`, or `fallback` where Streamable HTTP
    /// failed before HTTP+SSE.
    pub fn transport_reason(&self) -> &'static str {
        match self.required_transport {
            Some(_) => "configured",
            None if self.known.lock().fell_back() => "fallback",
            None => "first_choice",
        }
    }

    /// Whether what fails one caller there may fail the others too: a process of a caller's own is nobody else's trouble.
    pub const fn is_shared(&self) -> bool {
        !matches!(self.way, UpstreamTransport::Stdio { shared: false, .. })
    }

    /// Whether headers may travel with the messages to it.
    pub const fn carries_headers(&self) -> bool {
        matches!(self.way, UpstreamTransport::Http(_))
    }

    /// What of it is served at all.
    #[must_use]
    pub const fn served(&self) -> &Selections {
        &self.serves
    }

    /// Whether an item is served at all, whoever asks.
    #[must_use]
    pub fn serves(&self, kind: ListKind, native: &str) -> bool {
        is_served(&self.serves, kind, self.name(), native)
    }

    /// Whether each address that a template stands for is served.
    #[must_use]
    pub fn serves_each(&self, template: &str) -> bool {
        is_each_served(&self.serves, self.name(), template)
    }

    /// What decides about its calls; none if nothing does.
    #[must_use]
    pub const fn policies(&self) -> Option<&CallPolicies> {
        self.policies.as_ref()
    }

    /// Whether everything that it has is served.
    #[must_use]
    pub fn serves_whole(&self) -> bool {
        let Selections { tools, prompts, resources } = &self.serves;
        let decided = self.policies.as_ref().is_some_and(|policies| policies.decide_entries(None));
        tools.is_none() && prompts.is_none() && resources.is_none() && !decided
    }

    /// Whether a sign-in may be what it wants.
    pub fn takes_sign_ins(&self) -> bool {
        self.credentials.come_from_sign_ins()
    }

    /// How many of its processes run.
    pub fn processes(&self) -> usize {
        match &self.way {
            UpstreamTransport::Stdio { children, .. } => children.count(),
            UpstreamTransport::Http(_) => 0,
        }
    }

    /// From now on opens nothing, and stands so.
    pub fn hold(&self, state: UpstreamState, why: String) {
        *self.held.lock() = Some((state, why));
    }

    /// Whether nothing of it may be opened.
    pub fn is_held(&self) -> bool {
        self.held.lock().is_some()
    }

    /// Whether that is so because its policies cannot be used.
    pub fn has_unusable_policies(&self) -> bool {
        self.held.lock().as_ref().is_some_and(|(state, _)| *state == UpstreamState::Error)
    }

    /// Resolves when a process of this upstream is started, for whoever it is.
    pub async fn started(&self) {
        self.started.notified().await;
    }

    /// Says that the configuration in force has it no more. What runs may finish; what would go on for ever ends.
    pub fn retire(&self) {
        self.retired.send_replace(true);
    }

    /// Turns true when the configuration in force has it no more.
    pub fn retirement(&self) -> watch::Receiver<bool> {
        self.retired.subscribe()
    }

    /// Resolves when the configuration in force has it no more.
    pub async fn retired(&self) {
        drop(self.retirement().wait_for(|retired| *retired).await);
    }

    /// Whether the configuration in force has it no more.
    pub fn is_retired(&self) -> bool {
        *self.retired.borrow()
    }

    /// Stands for a call that uses it.
    pub fn used(&self) -> UpstreamUse {
        UpstreamUse(Arc::clone(&self.users))
    }

    /// Whether a call uses it.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.users) > 1
    }

    /// Ends every process that calls share, and waits until none is left: those of which somebody has let go are ending,
    /// each within its own time.
    pub async fn stop(&self) {
        if let UpstreamTransport::Stdio { pool, children, .. } = &self.way {
            pool.stop().await;
            children.done().await;
        }
    }

    /// Tests the policies that decide how it is reached and with what, before it takes the place of another. Nothing is
    /// sent: the first step to it is asked for and not taken.
    ///
    /// # Errors
    ///
    /// The first policy that gives no answer.
    pub async fn test_policies(&self) -> Result<(), PolicyError> {
        self.connection.next(&self.facts(None), &[]).await?;
        self.credentials.test().await
    }

    /// What a policy is told of it.
    fn facts(&self, wanted: Option<Era>) -> facts::UpstreamFacts {
        facts::UpstreamFacts {
            name: self.name.to_string(),
            account: self.account.as_ref().map(|account| account.name.to_string()),
            url: match &self.way {
                UpstreamTransport::Http(endpoint) => Some(endpoint.url.clone()),
                UpstreamTransport::Stdio { .. } => None,
            },
            required_transport: self.required_transport,
            required_era: wanted,
            transports: CARRIED.to_vec(),
            // Each policy is told its own.
            settings: String::new(),
        }
    }
}

fn stdio_command(reach: &crate::config::StdioReach, limit: usize) -> stdio::StdioCommand {
    let command = Secret::new(reach.command.clone());
    let mut words = reach.wrapper.iter().chain([&command]).chain(&reach.args).map(|word| word.expose().to_owned());
    stdio::StdioCommand {
        program: words.next().unwrap_or_default(),
        args: words.collect(),
        env: reach.env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect(),
        inherit: reach.inherit.clone(),
        cwd: Some(reach.cwd.clone()),
        user: reach.user.clone(),
        limits: reach.limits,
        secrets: reach.secrets.iter().map(|secret| secret.expose().to_owned()).collect(),
        limit,
    }
}
