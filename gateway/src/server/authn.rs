//! Who may call, and who it is that does.
//!
//! Where the configuration names issuers ([`issuer`]), every request brings a token of one of them, which is checked before
//! anything else is looked at; whoever has none is told where to get one ([`resource`]). The token itself goes no further
//! than this: what is passed on is a [`Caller`]. Checked tokens are remembered ([`checked`]), so a call does not pay for a signature.

mod checked;
mod issuer;
mod own;
mod proof;
mod resource;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant, UNIX_EPOCH},
};

use bytes::Bytes;
use weir_mcp::answer;
use weir_oauth::{
    Clock, HttpError,
    inbound::{self, ProofError, Rejected, UsedProofs},
    proof::{DPOP_NONCE, USE_DPOP_NONCE},
};

use crate::{
    caller::Caller,
    config::{API_KEY_ISSUER, Config, SecretError},
    credential::{API_KEY_PREFIX, ApiKeys, CredentialManager, KeyLookup, KnownKey},
    http::{self, HeaderName, HeaderValue},
    quota::{Quota, Reached, Scope},
    telemetry::{AuthRecord, Refusals},
};

use super::{
    cors, deliver,
    listen::{ClientCertificate, HttpExchange},
};

pub(super) use issuer::{Provider, principal};
pub(super) use own::{MintError, OwnTokens};

use checked::{Checked, Good};
use issuer::{CallerIssuer, RECHECK};
use proof::{ProofNonces, ShownToken, is_dpop, shown_token};
use resource::Resource;

/// How long a stream that was opened with an API key may last.
const KEY_STREAM: Duration = Duration::from_secs(600);

const WWW_AUTHENTICATE: HeaderName = HeaderName::from_static("www-authenticate");

/// Who may call.
pub struct Authenticator(TokenKind);

#[allow(clippy::large_enum_variant, reason = "there is one")]
enum TokenKind {
    /// Whoever reaches Weir; the configuration says so.
    Everybody,
    /// Those of this machine, for nobody else reaches it.
    Local,
    Proved(Proved),
}

/// Those with a token.
struct Proved {
    issuers: Vec<CallerIssuer>,
    /// The tokens that Weir issues itself, if it does.
    own: Option<Arc<OwnTokens>>,
    keys: Option<Arc<ApiKeys>>,
    /// Whether a certificate alone says who calls.
    certificates: bool,
    resource: Resource,
    checked: Checked,
    proofs: UsedProofs,
    /// None if no proof needs one.
    nonces: Option<ProofNonces>,
    /// Of strangers, and of callers that are known.
    refusals: [Refusals; 2],
    introspections: Arc<Quota>,
    clock: Clock,
}

/// Why it cannot be found out who calls.
#[derive(Debug, thiserror::Error)]
pub enum AuthnError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the secret of Weir under `[auth]` cannot be had: {0}")]
    Secret(#[from] SecretError),
}

/// Why a request is not let in.
struct TokenRefused {
    status: u16,
    /// What `WWW-Authenticate` says.
    challenge: Option<String>,
    /// What the next proof must have.
    nonce: Option<String>,
    text: String,
}

impl Authenticator {
    /// Those whom a configuration lets in.
    ///
    /// # Errors
    ///
    /// When there is no HTTPS to fetch the issuer's keys with, or a secret cannot be read.
    pub fn new(config: &Config, manager: &CredentialManager) -> Result<Self, AuthnError> {
        if !config.proves_callers() {
            let local = config.listen.iter().all(|address| address.ip().is_loopback());
            return Ok(Self(if local { TokenKind::Local } else { TokenKind::Everybody }));
        }
        Ok(Self(TokenKind::Proved(Proved::new(config, manager)?)))
    }

    /// Whether each has to prove who they are.
    #[must_use]
    pub const fn are_proved(&self) -> bool {
        matches!(self.0, TokenKind::Proved(_))
    }

    /// Whether only those of this machine can call.
    #[must_use]
    pub const fn are_local(&self) -> bool {
        matches!(self.0, TokenKind::Local)
    }

    /// Those who can say who somebody is, in the order of the configuration.
    pub(super) fn providers(&self) -> impl Iterator<Item = &Provider> {
        let issuers = match &self.0 {
            TokenKind::Proved(proved) => &proved.issuers[..],
            TokenKind::Everybody | TokenKind::Local => &[],
        };
        issuers.iter().map(|issuer| &issuer.provider)
    }

    /// The tokens that Weir issues itself, if it does.
    pub(super) const fn own(&self) -> Option<&Arc<OwnTokens>> {
        match &self.0 {
            TokenKind::Proved(proved) => proved.own.as_ref(),
            TokenKind::Everybody | TokenKind::Local => None,
        }
    }

    /// What each token of an issuer must allow.
    pub(super) fn scopes(&self, issuer: Option<&str>) -> &[String] {
        match &self.0 {
            TokenKind::Proved(proved) => proved.issuer(issuer).map_or(&[][..], |issuer| &issuer.scopes),
            TokenKind::Everybody | TokenKind::Local => &[],
        }
    }

    /// The name of what a client asks a token for (RFC 8707), all of Weir if it does not say; none if that is not here.
    pub(super) fn resource(&self, text: Option<&str>) -> Option<String> {
        match &self.0 {
            TokenKind::Proved(proved) => proved.resource.named(text),
            TokenKind::Everybody | TokenKind::Local => None,
        }
    }

    /// How many tokens may be checked by introspection at once; none if no token is checked.
    #[must_use]
    pub const fn introspections(&self) -> Option<&Arc<Quota>> {
        match &self.0 {
            TokenKind::Proved(proved) => Some(&proved.introspections),
            TokenKind::Everybody | TokenKind::Local => None,
        }
    }

    /// The keys that programs call with, if any do.
    #[must_use]
    pub const fn api_keys(&self) -> Option<&Arc<ApiKeys>> {
        match &self.0 {
            TokenKind::Proved(proved) => proved.keys.as_ref(),
            TokenKind::Everybody | TokenKind::Local => None,
        }
    }

    /// Finds out who sent a request. One that is not let in is answered, and there is nothing more to do. `beside` is the
    /// address of the stream that it is a message to.
    pub(super) async fn admit(&self, exchange: &mut HttpExchange, beside: Option<&str>) -> bool {
        match &self.0 {
            TokenKind::Everybody => exchange.set_caller(None, None),
            TokenKind::Local => exchange.set_caller(Some(Caller::local()), None),
            TokenKind::Proved(proved) => match proved.caller(exchange, beside).await {
                Ok(good) => exchange.set_caller(Some(Arc::clone(&good.caller)), good.ends),
                Err(refused) => {
                    refuse(exchange, refused).await;
                    return false;
                }
            },
        }
        true
    }

    /// What Weir says of itself as a protected resource (RFC 9728 §3), if `path` asks for that.
    pub(super) fn metadata(&self, exchange: &HttpExchange) -> Option<Bytes> {
        let TokenKind::Proved(proved) = &self.0 else { return None };
        let resource = proved.resource.described_at(exchange)?;
        let mut issuers: Vec<&str> = proved.issuers.iter().map(|issuer| issuer.provider.issuer.as_str()).collect();
        if let Some(own) = &proved.own {
            // People sign in at the first: most clients look at no other.
            let place = if own.signs_in { 0 } else { issuers.len() };
            issuers.insert(place, &own.issuer);
        }
        if issuers.is_empty() {
            return None;
        }
        let mut scopes: Vec<&str> = Vec::new();
        for scope in proved.issuers.iter().flat_map(|issuer| &issuer.scopes) {
            if !scopes.contains(&scope.as_str()) {
                scopes.push(scope);
            }
        }
        Some(inbound::metadata(&resource, &issuers, &scopes, proved.demand()).to_string().into())
    }
}

impl Proved {
    fn new(config: &Config, manager: &CredentialManager) -> Result<Self, AuthnError> {
        let (resource, clock) = (Resource::new(config), Clock::system());
        let issuers = config.inbound.iter().map(|inbound| CallerIssuer::new(inbound, &resource, clock.clone()));
        let issuers = issuers.collect::<Result<_, _>>()?;
        let introspections = Quota::new("introspections", config.limits.introspections);
        let keys = config.api_keys.then(|| Arc::new(manager.api_keys()));
        let settings = config.authorization_server.as_ref();
        let own = settings.and_then(|settings| OwnTokens::new(config, settings, manager, &resource, clock.clone()));
        let nonces = config.inbound.iter().any(|inbound| inbound.dpop_nonce);
        let nonces = nonces.then(|| ProofNonces::new(manager.issuer_store()));
        let certificates = config.tls.as_ref().is_some_and(|tls| tls.client_is_caller);
        Ok(Self {
            issuers,
            own,
            keys,
            certificates,
            resource,
            checked: Checked::default(),
            proofs: UsedProofs::default(),
            nonces,
            refusals: Default::default(),
            introspections,
            clock,
        })
    }

    async fn caller(&self, exchange: &HttpExchange, beside: Option<&str>) -> Result<Arc<Good>, TokenRefused> {
        // Nearly every token is known, and compared as it came. What is known was text.
        let value = exchange.value(&http::AUTHORIZATION).map(HeaderValue::as_bytes);
        let known = value.and_then(|value| self.checked.get(value.strip_prefix(b"Bearer ")?, self.clock.now()));
        let (good, shown_as) = match known {
            Some(good) => (good, None),
            None => {
                let shown = exchange.header(&http::AUTHORIZATION).and_then(shown_token);
                if let Some(keys) = &self.keys
                    && let Some(key) = shown.map_or_else(
                        || exchange.header("x-api-key"),
                        |shown| (shown.is_bearer() && shown.token.starts_with(API_KEY_PREFIX)).then_some(shown.token),
                    )
                {
                    return self.keyed(exchange, beside, keys.find(key, self.clock.now()));
                }
                let Some(ShownToken { scheme, token }) = shown else {
                    if let Some(certificate) = exchange.certificate().filter(|_| self.certificates) {
                        return self.certified(exchange, certificate);
                    }
                    let mut ways: Vec<String> = self
                        .issuers
                        .iter()
                        .map(|issuer| format!("a bearer token of {}", issuer.provider.issuer))
                        .collect();
                    ways.extend(self.keys.as_ref().map(|_| "an API key".to_owned()));
                    ways.extend(self.certificates.then(|| "a client certificate".to_owned()));
                    return Err(self.refused(
                        exchange,
                        self.issuers.first(),
                        None,
                        format!("{} is needed", ways.join(" or ")),
                    ));
                };
                let good = match self.checked.get(token.as_bytes(), self.clock.now()) {
                    Some(good) => good,
                    // Boxed, for it is seldom.
                    None => Box::pin(self.check(exchange, token)).await?,
                };
                (good, Some(ShownToken { scheme, token }))
            }
        };
        let shown = exchange.certificate().map(|certificate| certificate.thumbprint.as_str());
        if good.certificate.is_some() && good.certificate.as_deref() != shown {
            let issuer = self.issuer(good.caller.principal().issuer.as_deref());
            return Err(self.rejected(exchange, issuer, Some(&good.caller), &Rejected::Bound));
        }
        if !good.everywhere && !Resource::is_at(&good.endpoints, beside.unwrap_or(exchange.path())) {
            let issuer = self.issuer(good.caller.principal().issuer.as_deref());
            return Err(self.rejected(exchange, issuer, Some(&good.caller), &Rejected::Audience));
        }
        if !good.enough {
            let issuer = self.issuer(good.caller.principal().issuer.as_deref());
            self.note(exchange, self.name(issuer), Some(&good.caller), "scope");
            let text = "the token allows too little".to_owned();
            let refused = self.refused(exchange, issuer, Some("insufficient_scope"), text);
            return Err(TokenRefused { status: 403, ..refused });
        }
        // Last, since what is seen is remembered: a token that opens nothing here fills nothing.
        let nonces = match good.key.is_some() {
            true => Box::pin(self.nonces_for(&good)).await?,
            false => Vec::new(),
        };
        if let Err(why) = self.prove(exchange, &good, shown_as, &nonces) {
            let issuer = self.issuer(good.caller.principal().issuer.as_deref());
            let refused = self.rejected(exchange, issuer, Some(&good.caller), &why);
            return Err(TokenRefused { nonce: nonces.into_iter().next(), ..refused });
        }
        Ok(good)
    }

    /// The nonces of which the proof for a token must have one, the newest first; none if it needs none.
    async fn nonces_for(&self, good: &Good) -> Result<Vec<String>, TokenRefused> {
        let issuer = self.issuer(good.caller.principal().issuer.as_deref()).filter(|issuer| issuer.dpop_nonce);
        let (Some(nonces), Some(issuer)) = (&self.nonces, issuer) else { return Ok(Vec::new()) };
        nonces.at(self.clock.now()).await.map(Vec::from).map_err(|why| {
            if issuer.unavailable.is_due() {
                tracing::error!(issuer = issuer.provider.issuer, "callers cannot be let in: {why}");
            }
            let text = "the proof cannot be checked now; try again".to_owned();
            TokenRefused { status: 503, challenge: None, nonce: None, text }
        })
    }

    /// Who calls with nothing but a certificate.
    fn certified(&self, exchange: &HttpExchange, certificate: &ClientCertificate) -> Result<Arc<Good>, TokenRefused> {
        let ClientCertificate { caller, ends, .. } = certificate;
        // It was good when the connection began.
        if *ends <= self.clock.now() {
            let issuer = caller.principal().issuer.as_deref();
            self.note(exchange, issuer, Some(caller), "expired");
            return Err(self.refused(exchange, None, None, "the client's certificate has expired".to_owned()));
        }
        Ok(Arc::new(Good::everywhere(Arc::clone(caller), *ends)))
    }

    /// Who calls with an API key.
    fn keyed(
        &self,
        exchange: &HttpExchange,
        beside: Option<&str>,
        found: KeyLookup,
    ) -> Result<Arc<Good>, TokenRefused> {
        let refused = |who: Option<&Caller>, why: &str, text: &str| {
            self.note(exchange, Some(API_KEY_ISSUER), who, why);
            self.refused(exchange, None, Some("invalid_token"), text.to_owned())
        };
        let known = match found {
            KeyLookup::Known(known) => known,
            KeyLookup::Expired(known) => {
                return Err(refused(Some(&known.caller), "expired", "the API key has expired"));
            }
            KeyLookup::Unknown => return Err(refused(None, "unknown", "there is no such API key, or not any more")),
            KeyLookup::Unavailable => {
                let text = "the API key cannot be checked now; try again".to_owned();
                return Err(TokenRefused { status: 503, challenge: None, nonce: None, text });
            }
        };
        let KnownKey { key, caller, .. } = &*known;
        let endpoints = key.endpoints.as_slice();
        if !endpoints.is_empty() && !Resource::is_at(endpoints, beside.unwrap_or(exchange.path())) {
            let refused = refused(Some(caller), "endpoint", "the API key is not for this endpoint");
            return Err(TokenRefused { status: 403, challenge: None, ..refused });
        }
        // A stream ends by then, so that one whose key was revoked does.
        let again = self.clock.now() + KEY_STREAM;
        let until = key.expires.map_or(again, |at| again.min(UNIX_EPOCH + Duration::from_secs(at)));
        Ok(Arc::new(Good::everywhere(Arc::clone(caller), until)))
    }

    /// Has the issuer that a token names say whose it is. What it names is believed only once that issuer has.
    async fn check(&self, exchange: &HttpExchange, token: &str) -> Result<Arc<Good>, TokenRefused> {
        // No issuer is to see a key, whether or not keys are accepted here.
        let is_key = token.starts_with(API_KEY_PREFIX);
        let named = inbound::named_issuer(token);
        if let (Ok(named), Some(own)) = (&named, &self.own)
            && *named == own.issuer
        {
            return self.issued(exchange, own, token).await;
        }
        let issuer = match named {
            Ok(named) => self.issuer(Some(&named)).ok_or(Rejected::Issuer),
            // An opaque token is of the one issuer that is asked about such.
            Err(why) => self.issuers.iter().find(|issuer| issuer.is_asked() && !is_key).ok_or(why),
        };
        let issuer = issuer.map_err(|why| self.rejected(exchange, None, None, &why))?;
        let _permit = match issuer.is_asked() {
            true => Some(self.introspections.take(exchange.principal(), None).map_err(|why| too_many(&why))?),
            false => None,
        };
        let good = issuer.check(token, &self.resource).await;
        let good = Arc::new(good.map_err(|why| self.rejected(exchange, Some(issuer), None, &why))?);
        self.checked.keep(token, &good, self.clock.now());
        Ok(good)
    }

    /// The same for a token of Weir itself. Its caller is one of the issuer that vouched for it.
    async fn issued(&self, exchange: &HttpExchange, own: &OwnTokens, token: &str) -> Result<Arc<Good>, TokenRefused> {
        let found = own.check(token).await.map_err(|why| self.rejected(exchange, None, None, &why))?;
        let issuer = self.issuer(Some(&found.issuer));
        let issuer = issuer.ok_or_else(|| self.rejected(exchange, None, None, &Rejected::Issuer))?;
        let (now, whole) = (self.clock.now(), format!("{}/mcp", own.issuer));
        let good = Arc::new(issuer.opens(found, token, (&whole, &self.resource), now + RECHECK));
        self.checked.keep(token, &good, now);
        Ok(good)
    }

    fn issuer(&self, name: Option<&str>) -> Option<&CallerIssuer> {
        self.issuers.iter().find(|issuer| Some(issuer.provider.issuer.as_str()) == name)
    }

    fn rejected(
        &self,
        exchange: &HttpExchange,
        issuer: Option<&CallerIssuer>,
        who: Option<&Caller>,
        why: &Rejected,
    ) -> TokenRefused {
        if let (true, Some(issuer)) = (why.is_unavailable(), issuer) {
            if issuer.unavailable.is_due() {
                tracing::error!(issuer = issuer.provider.issuer, "callers cannot be let in: {why}");
            }
            let text = "the token cannot be checked now; try again".to_owned();
            return TokenRefused { status: 503, challenge: None, nonce: None, text };
        }
        // Everybody has to ask for a nonce first, so that is no refusal.
        if matches!(why, Rejected::Proof(ProofError::Nonce)) {
            return self.refused(exchange, issuer, Some(USE_DPOP_NONCE), why.to_string());
        }
        self.note(exchange, self.name(issuer), who, why.class());
        let error = match why {
            Rejected::Proof(ProofError::Full) => {
                return TokenRefused { status: 429, challenge: None, nonce: None, text: why.to_string() };
            }
            Rejected::Proof(_) => "invalid_dpop_proof",
            _ => "invalid_token",
        };
        self.refused(exchange, issuer, Some(error), why.to_string())
    }

    /// What an issuer is called. Where there is but one, it is the one that was meant.
    fn name<'a>(&'a self, issuer: Option<&'a CallerIssuer>) -> Option<&'a str> {
        let only = self.issuers.first().filter(|_| self.issuers.len() == 1);
        issuer.or(only).map(|issuer| issuer.provider.issuer.as_str())
    }

    /// Has the log know that a token was refused. Whose it is, is not known of one that was not found good. What strangers
    /// send hides no refusal of a known caller.
    fn note(&self, exchange: &HttpExchange, issuer: Option<&str>, who: Option<&Caller>, why: &str) {
        let Some(suppressed) = self.refusals[usize::from(who.is_some())].admit(Instant::now()) else { return };
        let suppressed = Some(suppressed).filter(|count| *count > 0);
        let record = AuthRecord::of(who.map(Caller::principal), Some(exchange.peer().ip()));
        AuthRecord { issuer, suppressed, ..record }.refused("token refused", why);
    }

    /// A refusal that leads to a token: the client asks for the scopes of the issuer whose token it has, or else of the
    /// first, which clients go to.
    fn refused(
        &self,
        exchange: &HttpExchange,
        issuer: Option<&CallerIssuer>,
        error: Option<&str>,
        text: String,
    ) -> TokenRefused {
        let scopes = issuer.or(self.issuers.first()).map_or(&[][..], |issuer| &issuer.scopes);
        let metadata = (!self.issuers.is_empty()).then(|| self.resource.metadata_url(exchange));
        let bound = self.demand() == Some(true) || exchange.header("authorization").is_some_and(is_dpop);
        let challenge = inbound::challenge(bound, metadata.as_deref(), error, scopes);
        TokenRefused { status: 401, challenge: Some(challenge), nonce: None, text }
    }
}

/// What browsers and clients have before the paths of Weir, which listens at `address`.
#[must_use]
pub fn root(config: &Config, address: SocketAddr) -> String {
    let named = resource::root(config);
    if let Some(root) = named {
        return root;
    }
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let here = match address.ip() {
        ip if ip.is_unspecified() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port()),
        _ => address,
    };
    format!("{scheme}://{here}")
}

fn too_many(why: &Reached) -> TokenRefused {
    let status = if why.scope == Scope::All { 503 } else { 429 };
    TokenRefused { status, challenge: None, nonce: None, text: why.to_string() }
}

async fn refuse(exchange: &mut HttpExchange, refused: TokenRefused) {
    let TokenRefused { status, challenge, nonce, text } = refused;
    tracing::debug!(status, error = text, "request not let in");
    let mut head = Vec::with_capacity(7);
    cors::add(exchange, &mut head);
    if matches!(status, 429 | 503) {
        head.push((http::RETRY_AFTER, HeaderValue::from_static("5")));
    }
    head.push((http::CONTENT_TYPE, deliver::JSON));
    if let Some(value) = challenge.and_then(|text| HeaderValue::from_str(&text).ok()) {
        head.push((WWW_AUTHENTICATE, value));
    }
    if let Some(value) = nonce.and_then(|nonce| HeaderValue::from_str(&nonce).ok()) {
        head.push((DPOP_NONCE, value));
    }
    let body = answer::error(None, answer::INVALID_REQUEST, &text, None);
    exchange.respond(status, &head, body).await;
}
