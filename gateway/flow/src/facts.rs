//! What a policy is told, and what it may answer.
//!
//! Plain data in the shape of `wit/policy.wit`, so that a decision can be logged, replayed and tested from a file.

use std::fmt;

use weir_mcp::Era;

/// How bytes travel to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Streamable HTTP (2025-03-26 and later).
    Http,
    /// HTTP+SSE (2024-11-05).
    Sse,
    /// A child process that speaks one message per line.
    Stdio,
}

/// The upstream that a policy decides about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamFacts {
    /// Its name in the configuration.
    pub name: String,
    /// Which account of its service it is, where that has several.
    pub account: Option<String>,
    /// Its address; none for a child process.
    pub url: Option<String>,
    /// The transport that the configuration insists on. No other may be tried.
    pub required_transport: Option<Transport>,
    /// The era that the waiting client needs; none when either will do.
    pub required_era: Option<Era>,
    /// The transports that this gateway can carry.
    pub transports: Vec<Transport>,
    /// The policy's own settings, as JSON.
    pub settings: String,
}

/// A way to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The transport to use.
    pub transport: Transport,
    /// The era to open with.
    pub era: Era,
}

/// What a `connection` policy wants next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Try this candidate, with the credential in hand if there is one.
    Attempt(Candidate),
    /// Get a new credential, then try this candidate.
    Authorize(Candidate),
    /// Give up, with a message for the operator.
    Stop(String),
}

/// What the server asked for when it refused (RFC 9110 §11.6.1, RFC 6750 §3, RFC 9728 §5.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Challenge {
    /// The authentication scheme in small letters, such as `bearer`; empty if the server sent no challenge.
    pub scheme: String,
    /// The `error` parameter.
    pub error: Option<String>,
    /// The `scope` parameter.
    pub scope: Option<String>,
    /// The `resource_metadata` parameter.
    pub resource_metadata: Option<String>,
}

/// How an attempt to connect ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server spoke MCP.
    Connected,
    /// An HTTP status that says nothing of transport or era: 408, 429, any 5xx, a redirect that may not be followed, or a
    /// 400 that carries an error of the modern era.
    Inconclusive(u16),
    /// 401.
    Unauthorized(Challenge),
    /// 403.
    Forbidden(Challenge),
    /// Any other HTTP status from 400 to 499: the server does not support what was sent to it. Another transport or era may do.
    Unsupported(u16),
    /// No connection; the text says why.
    Unreachable(String),
    /// No answer in time.
    TimedOut,
    /// The connection ended before the answer was whole.
    ConnectionTerminated,
    /// An answer that is not MCP; the text says what came instead.
    NotMcp(String),
}

impl Outcome {
    /// What a status without an opening means: trouble or haste at the server says nothing of the transport.
    pub const fn of_status(status: u16) -> Self {
        match status {
            408 | 429 => Self::Inconclusive(status),
            400..500 => Self::Unsupported(status),
            _ => Self::Inconclusive(status),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => f.write_str("connected"),
            Self::Inconclusive(status) | Self::Unsupported(status) => write!(f, "status {status}"),
            Self::Unauthorized(_) => f.write_str("status 401: it wants a credential"),
            Self::Forbidden(_) => f.write_str("status 403: the credential is not enough"),
            Self::Unreachable(why) => f.write_str(why),
            Self::TimedOut => f.write_str("no answer in time"),
            Self::ConnectionTerminated => f.write_str("the connection ended before the answer was whole"),
            Self::NotMcp(what) => write!(f, "not MCP: {what}"),
        }
    }
}

/// One attempt to connect and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The transport used.
    pub transport: Transport,
    /// The era opened with.
    pub era: Era,
    /// Whether a credential went along.
    pub credential: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took, in milliseconds.
    pub duration_ms: u32,
}

/// Who the client has proved to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The subject, unique within the issuer.
    pub subject: String,
    /// The authorization server that issued its token; none for a local caller.
    pub issuer: Option<String>,
    /// The scopes granted.
    pub scopes: Vec<String>,
    /// The groups it belongs to, as the issuer calls them.
    pub groups: Vec<String>,
    /// The name of the API key that it used; none for any other credential.
    pub key: Option<String>,
    /// The token's claims, as JSON.
    pub claims: String,
}

impl Principal {
    /// A principal of which nothing but its name is known.
    #[must_use]
    pub fn named(subject: impl Into<String>, issuer: Option<String>) -> Self {
        let (scopes, groups) = (Vec::new(), Vec::new());
        Self { subject: subject.into(), issuer, scopes, groups, key: None, claims: "{}".to_owned() }
    }
}

/// What a `credentials` policy is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialQuestion {
    /// The upstream to be opened.
    pub upstream: UpstreamFacts,
    /// For whom; none when the credential is shared.
    pub principal: Option<Principal>,
    /// The names of the secrets that the policy may place.
    pub secrets: Vec<String>,
    /// The flows that the configuration allows, the preferred one first.
    pub flows: Vec<Flow>,
    /// The token that the host keeps, if it does.
    pub token: Option<Token>,
    /// How the upstream refused the credential in hand, if it did.
    pub refusal: Option<Refusal>,
    /// The token operations for this question so far, oldest first; and the renewal of the token that is refused, if it was
    /// in vain.
    pub attempts: Vec<TokenAttempt>,
}

/// How a token is got from an authorization server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    /// A person signs in with a browser (RFC 6749 §4.1, RFC 7636).
    AuthorizationCode,
    /// A person types a code on another device (RFC 8628).
    DeviceCode,
    /// Weir proves who it is itself (RFC 6749 §4.4).
    ClientCredentials,
    /// The caller's own identity is exchanged (RFC 8693).
    TokenExchange,
}

/// What may be known of a token; its text may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The authorization server that issued it.
    pub issuer: String,
    /// The scopes that it grants, as far as the server said.
    pub scopes: Vec<String>,
    /// How long ago it was issued, in seconds.
    pub age_seconds: u32,
    /// How long it is still valid, in seconds; 0 when it has expired, none when the server did not say.
    pub expires_in_seconds: Option<u32>,
    /// Whether the upstream has accepted it, as far as is remembered.
    pub accepted: bool,
    /// Whether it can be renewed (RFC 6749 §6).
    pub renewable: bool,
}

/// What the host does to get a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenOperation {
    /// Renew the token.
    Renew,
    /// Get a new one.
    Obtain(Flow),
}

/// How a token operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenOutcome {
    /// There is a new token.
    Done,
    /// The authorization server refused, and would refuse again; the text says why.
    Denied(String),
    /// It did not work this time, and nothing was lost; the text says why.
    Failed(String),
}

/// A token operation and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenAttempt {
    /// What was done.
    pub operation: TokenOperation,
    /// How it ended.
    pub outcome: TokenOutcome,
}

/// The upstream's refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// 401 or 403.
    pub status: u16,
    /// The credential that went along, as the host numbers them; none if there was none.
    pub credential: Option<u64>,
    /// What the server asked for.
    pub challenge: Challenge,
}

impl Refusal {
    /// Whether it asks for a token that may do more (RFC 6750 §3.1).
    pub fn wants_scopes(&self) -> bool {
        self.status == 403 && self.challenge.error.as_deref() == Some("insufficient_scope")
    }
}

/// What a `credentials` policy answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialDecision {
    /// Go without.
    None,
    /// Place a secret in a header, without reading it.
    Attach(Attachment),
    /// Place the token that the host keeps, without reading it.
    Present(Presentation),
    /// Place a token of the policy's own making.
    Mint(MintedToken),
    /// Renew the token, and ask again.
    Renew,
    /// Get a new token, and ask again.
    Obtain(TokenRequest),
    /// Give up, with a message for the operator.
    Stop(String),
}

/// A secret on its way into a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The header's name, such as `authorization`.
    pub header: String,
    /// The authentication scheme before the secret, such as `Bearer`; none for the bare secret.
    pub scheme: Option<String>,
    /// The name of the secret, one of [`CredentialQuestion::secrets`].
    pub secret: String,
    /// How long this decision holds, in seconds.
    pub ttl_seconds: u32,
}

/// The token that the host keeps, on its way into a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presentation {
    /// The header's name, such as `authorization`.
    pub header: String,
    /// The authentication scheme before the token, such as `Bearer`; none for the bare token.
    pub scheme: Option<String>,
    /// How long this decision holds, in seconds.
    pub ttl_seconds: u32,
}

/// A token that a policy made. Nothing prints its text.
#[derive(Clone, PartialEq, Eq)]
pub struct MintedToken {
    /// The header's name, such as `authorization`.
    pub header: String,
    /// The authentication scheme before the token, such as `Bearer`; none for the bare token.
    pub scheme: Option<String>,
    /// The token.
    pub text: String,
    /// How long this decision holds, in seconds.
    pub ttl_seconds: u32,
}

/// A request for a new token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRequest {
    /// The flow to use, one of [`CredentialQuestion::flows`].
    pub flow: Flow,
    /// The scopes to ask for; none leaves it to the servers' metadata.
    pub scopes: Vec<String>,
}

impl fmt::Debug for MintedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MintedToken").field("header", &self.header).finish_non_exhaustive()
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AuthorizationCode => "authorization code",
            Self::DeviceCode => "device code",
            Self::ClientCredentials => "client credentials",
            Self::TokenExchange => "token exchange",
        })
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http",
            Self::Sse => "sse",
            Self::Stdio => "stdio",
        })
    }
}
