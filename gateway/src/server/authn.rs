//! Who may call, and who it is that does.
//!
//! Where the configuration names an issuer, every request brings a token of it, which is checked before anything else is
//! looked at; whoever has none is told where to get one ([`resource`]). The token itself goes no further than this: what
//! is passed on is a [`Caller`]. Checked tokens are remembered ([`checked`]), so a call does not pay for a signature.

mod checked;
mod resource;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use serde_json::Value;
use weir_flow::facts::Principal;
use weir_mcp::answer;
use weir_oauth::{
    AddressPolicy, Clock, Http, HttpError, RequestLimits,
    inbound::{self, Algorithm, Issuer, Rejected, Verifier},
};

use crate::{
    caller::Caller,
    config::{Config, InboundAuth, Secret},
    http::{self, HeaderName, HeaderValue},
    telemetry::{AuthRecord, LogThrottle, Refusals},
};

use super::{cors, deliver, listen::HttpExchange};

use checked::{Checked, Good};
use resource::Resource;

/// How far the issuer's clock and this one may differ.
const LEEWAY: Duration = Duration::from_secs(60);

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
    provider: Provider,
    resource: Resource,
    /// What each token must allow.
    scopes: Vec<String>,
    checked: Checked,
    unavailable: LogThrottle,
    refusals: Refusals,
}

/// The issuer of those with a token, and the way to it.
#[derive(Clone)]
pub(super) struct Provider {
    /// Its name.
    pub(super) issuer: String,
    /// Checks what it has signed.
    pub(super) verifier: Arc<Verifier>,
    /// May go where it is.
    pub(super) http: Http,
    pub(super) clock: Clock,
}

/// Why a request is not let in.
struct TokenRefused {
    status: u16,
    /// What `WWW-Authenticate` says.
    challenge: Option<String>,
    text: String,
}

impl Authenticator {
    /// Those whom a configuration lets in.
    ///
    /// # Errors
    ///
    /// When there is no HTTPS to fetch the issuer's keys with.
    pub fn new(config: &Config) -> Result<Self, HttpError> {
        let Some(inbound) = &config.inbound else {
            let local = config.listen.iter().all(|address| address.ip().is_loopback());
            return Ok(Self(if local { TokenKind::Local } else { TokenKind::Everybody }));
        };
        Ok(Self(TokenKind::Proved(Proved::new(inbound, Resource::new(config, inbound), Clock::system())?)))
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

    /// Who can say who somebody is; none where nobody has to prove it.
    pub(super) const fn provider(&self) -> Option<&Provider> {
        match &self.0 {
            TokenKind::Proved(proved) => Some(&proved.provider),
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
                Ok(good) => exchange.set_caller(Some(good.caller), good.ends),
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
        Some(inbound::metadata(&resource, &proved.provider.issuer, &proved.scopes).to_string().into())
    }
}

impl Proved {
    fn new(inbound: &InboundAuth, resource: Resource, clock: Clock) -> Result<Self, HttpError> {
        let issuer = Issuer {
            issuer: inbound.issuer.clone(),
            audiences: resource.audiences(),
            keys: inbound.jwks.as_deref().and_then(|place| place.parse().ok()),
            leeway: LEEWAY,
            groups: inbound.groups_claim.clone(),
            algorithms: inbound.algorithms.iter().filter_map(|name| name.parse::<Algorithm>().ok()).collect(),
        };
        // The operator has named the issuer and where its keys are, so they may be within the operator's network.
        let named = [Some(&inbound.issuer), inbound.jwks.as_ref()];
        let loopback =
            named.into_iter().flatten().any(|text| text.parse().is_ok_and(|url| AddressPolicy::toward(&url).loopback));
        let http = Http::new(AddressPolicy { loopback, private: true }, RequestLimits::default(), &[])?;
        let name = issuer.issuer.clone();
        let verifier = Arc::new(Verifier::new(issuer, http.clone(), clock.clone()));
        let provider = Provider { issuer: name, verifier, http, clock };
        let scopes = inbound.scopes.clone();
        Ok(Self {
            provider,
            resource,
            scopes,
            checked: Checked::default(),
            unavailable: LogThrottle::default(),
            refusals: Refusals::default(),
        })
    }

    async fn caller(&self, exchange: &HttpExchange, beside: Option<&str>) -> Result<Good, TokenRefused> {
        let Some(token) = exchange.header("authorization").and_then(bearer) else {
            let text = format!("a bearer token of {} is needed", self.provider.issuer);
            return Err(self.refused(exchange, None, text));
        };
        let good = match self.checked.get(token, self.provider.clock.now()) {
            Some(good) => good,
            // Boxed: nearly every token is known.
            None => Box::pin(self.check(token)).await.map_err(|why| self.rejected(exchange, None, &why))?,
        };
        if !good.everywhere && !self.resource.is_for(&good.audiences, beside.unwrap_or(exchange.path())) {
            return Err(self.rejected(exchange, Some(&good.caller), &Rejected::Audience));
        }
        if !good.enough {
            self.note(exchange, Some(&good.caller), "scope");
            let refused = self.refused(exchange, Some("insufficient_scope"), "the token allows too little".to_owned());
            return Err(TokenRefused { status: 403, ..refused });
        }
        Ok(good)
    }

    async fn check(&self, token: &str) -> Result<Good, Rejected> {
        let found = self.provider.verifier.verify(token).await?;
        let expires = found.expires;
        let audiences = audiences(found.claims.get("aud"));
        let enough = self.scopes.iter().all(|needed| found.scopes.iter().any(|scope| scope == needed));
        let caller = Caller::new(principal(found), Secret::new(token.to_owned()));
        let everywhere = self.resource.is_whole(&audiences);
        let ends = expires.checked_add(LEEWAY);
        let good = Good { caller, everywhere, audiences: audiences.into(), enough, ends };
        self.checked.keep(token, &good, expires, self.provider.clock.now());
        Ok(good)
    }

    fn rejected(&self, exchange: &HttpExchange, who: Option<&Caller>, why: &Rejected) -> TokenRefused {
        if let Rejected::Unavailable(_) = why {
            if self.unavailable.is_due() {
                tracing::error!(issuer = self.provider.issuer, "callers cannot be let in: {why}");
            }
            let text = "the token cannot be checked now; try again".to_owned();
            return TokenRefused { status: 503, challenge: None, text };
        }
        self.note(exchange, who, why.class());
        self.refused(exchange, Some("invalid_token"), why.to_string())
    }

    /// Has the log know that a token was refused. Whose it is, is not known of one that was not found good.
    fn note(&self, exchange: &HttpExchange, who: Option<&Caller>, why: &str) {
        let Some(suppressed) = self.refusals.admit(Instant::now()) else { return };
        let issuer = Some(self.provider.issuer.as_str());
        let suppressed = Some(suppressed).filter(|count| *count > 0);
        let record = AuthRecord::of(who.map(Caller::principal), Some(exchange.peer().ip()));
        AuthRecord { issuer, suppressed, ..record }.refused("token refused", why);
    }

    fn refused(&self, exchange: &HttpExchange, error: Option<&str>, text: String) -> TokenRefused {
        let challenge = inbound::challenge(&self.resource.metadata_url(exchange), error, &self.scopes);
        TokenRefused { status: 401, challenge: Some(challenge), text }
    }
}

/// What is known of one whom the issuer vouches for.
pub(super) fn principal(found: inbound::VerifiedToken) -> Principal {
    Principal {
        subject: found.subject,
        issuer: Some(found.issuer),
        scopes: found.scopes.iter().map(str::to_owned).collect(),
        groups: found.groups,
        key: None,
        claims: Value::Object(found.claims).to_string(),
    }
}

/// What browsers and clients have before the paths of Weir, which listens at `address`.
#[must_use]
pub fn root(config: &Config, address: SocketAddr) -> String {
    let named = config.inbound.as_ref().and_then(|inbound| resource::root_of(&inbound.audience));
    if let Some(root) = config.public_url.clone().or(named) {
        return root;
    }
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let here = match address.ip() {
        ip if ip.is_unspecified() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port()),
        _ => address,
    };
    format!("{scheme}://{here}")
}

/// The token of an `Authorization` header (RFC 6750 §2.1).
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn audiences(claim: Option<&Value>) -> Vec<String> {
    match claim {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

async fn refuse(exchange: &mut HttpExchange, refused: TokenRefused) {
    let TokenRefused { status, challenge, text } = refused;
    tracing::debug!(status, error = text, "request not let in");
    let mut head = Vec::with_capacity(6);
    cors::add(exchange, &mut head);
    head.push((http::CONTENT_TYPE, deliver::JSON));
    if let Some(value) = challenge.and_then(|text| HeaderValue::from_str(&text).ok()) {
        head.push((WWW_AUTHENTICATE, value));
    }
    let body = answer::error(None, answer::INVALID_REQUEST, &text, None);
    exchange.respond(status, &head, body).await;
}

/// When what was checked at `now` has to be checked again: a key may have been taken back since.
fn until(expires: SystemTime, now: SystemTime) -> SystemTime {
    const AT_MOST: Duration = Duration::from_secs(600);
    expires.min(now + AT_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_in_one_header_and_one_scheme() {
        for (value, token) in [
            ("Bearer a.b.c", Some("a.b.c")),
            ("bearer  a.b.c ", Some("a.b.c")),
            ("Basic a.b.c", None),
            ("Bearer", None),
            ("Bearer ", None),
            ("a.b.c", None),
            ("", None),
        ] {
            assert_eq!(bearer(value), token, "{value:?}");
        }
    }
}
