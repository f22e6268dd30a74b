//! Weir as an authorization server: it issues access tokens for its own endpoints.
//!
//! A client brings what a company's identity provider vouches for, an ID-JAG ([`assertion`]), and proves who it is
//! ([`clients`]). The tokens themselves are [`OwnTokens`]; a caller is the same principal whichever token it brings.
//! Everything here is open to strangers, so each address has a rate.

mod assertion;
mod clients;
mod error;
mod form;

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;

use crate::{
    config::Config,
    http::{self, HeaderName, HeaderValue},
    quota,
    rate::RateLimiter,
    telemetry::AuthRecord,
};

use super::{
    App,
    authn::{Authenticator, AuthnError, MintError, OwnTokens, Provider, TokenGrant},
    cors, deliver,
    listen::HttpExchange,
};

use clients::Clients;
use error::OAuthError;
use form::Form;

/// Where the metadata is (RFC 8414 §3), before the path of the issuer.
const METADATA: &str = "/.well-known/oauth-authorization-server";
const TOKEN: &str = "/oauth/token";
const KEYS: &str = "/oauth/jwks";

/// The longest form, in bytes.
const FORM: usize = 32 * 1024;
/// How many requests of one address are answered in a minute. A company may be behind one address.
const RATE: usize = 600;

/// RFC 7523 §2.1.
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
/// What an ID-JAG is called among the grants (draft-ietf-oauth-identity-assertion-authz-grant §6).
const ID_JAG: &str = "urn:ietf:params:oauth:grant-profile:id-jag";

/// Weir as an authorization server.
pub struct AuthorizationServer {
    tokens: Arc<OwnTokens>,
    /// Who vouches for callers.
    providers: Vec<Provider>,
    clients: Clients,
    rate: RateLimiter,
}

/// An answer in JSON.
type Reply = Result<Value, OAuthError>;

impl AuthorizationServer {
    /// The one of a configuration; none if Weir issues no tokens.
    ///
    /// # Errors
    ///
    /// When the secret of a client cannot be read, or there is no HTTPS to fetch keys with.
    pub fn new(config: &Config, authn: &Authenticator) -> Result<Option<Self>, AuthnError> {
        let (Some(settings), Some(tokens)) = (&config.authorization_server, authn.own()) else { return Ok(None) };
        let clients = Clients::new(settings, &tokens.issuer, &tokens.clock)?;
        let (tokens, providers) = (Arc::clone(tokens), authn.providers().cloned().collect());
        let rate = RateLimiter::new(RATE, Duration::from_secs(60));
        Ok(Some(Self { tokens, providers, clients, rate }))
    }

    /// Whether it answers at this path.
    fn serves(&self, path: &str) -> bool {
        matches!(path, TOKEN | KEYS) || self.is_metadata(path)
    }

    /// Whether its metadata is there. The path of the issuer comes last (RFC 8414 §3.1), unless a proxy has cut it off.
    fn is_metadata(&self, path: &str) -> bool {
        let own = || url::Url::parse(&self.tokens.issuer).is_ok_and(|url| path[METADATA.len()..] == *url.path());
        path == METADATA || path.starts_with(METADATA) && own()
    }

    /// RFC 8414 §2.
    fn metadata(&self) -> Value {
        let at = |path: &str| format!("{}{path}", self.tokens.issuer);
        json!({
            "issuer": self.tokens.issuer,
            "token_endpoint": at(TOKEN),
            "jwks_uri": at(KEYS),
            "response_types_supported": [],
            "grant_types_supported": [JWT_BEARER],
            "authorization_grant_profiles_supported": [ID_JAG],
            "token_endpoint_auth_methods_supported": clients::METHODS,
            "token_endpoint_auth_signing_alg_values_supported": clients::ALGORITHMS,
        })
    }

    /// The public keys of its tokens.
    async fn keys(&self) -> Reply {
        let keys = self.tokens.store.keys().await.map_err(|why| OAuthError::unavailable(&why))?;
        Ok(json!({ "keys": keys.public }))
    }
}

impl App {
    /// Answers what asks for tokens, or for what is said of them; false if that is not asked for.
    pub(super) async fn authorization(&self, exchange: &mut HttpExchange) -> bool {
        let Some(server) = self.authorization.as_ref().filter(|server| server.serves(exchange.path())) else {
            return false;
        };
        let address = quota::address(exchange.peer().ip());
        let reply = match (exchange.method().to_owned().as_str(), exchange.path().to_owned().as_str()) {
            _ if let Err(wait) = server.rate.take(&address, Instant::now()) => Err(OAuthError::too_many(wait)),
            ("POST", TOKEN) => self.token(server, exchange).await,
            ("GET", KEYS) => server.keys().await,
            ("GET", TOKEN) | ("POST", KEYS) => Err(OAuthError::method()),
            ("GET", _) => Ok(server.metadata()),
            _ => Err(OAuthError::method()),
        };
        respond(exchange, reply).await;
        true
    }

    /// The token endpoint (RFC 6749 §3.2).
    async fn token(&self, server: &AuthorizationServer, exchange: &mut HttpExchange) -> Reply {
        let authorization = exchange.header("authorization").map(str::to_owned);
        let body = exchange.read_body(FORM).await.map_err(|_| OAuthError::request("the form did not arrive"))?;
        let mut client = None;
        let reply = self.grant(server, &body, authorization.as_deref(), &mut client).await;
        if let Err(why) = &reply
            && let Some(suppressed) = self.refusals.admit(Instant::now())
        {
            let suppressed = Some(suppressed).filter(|count| *count > 0);
            let record =
                AuthRecord { client: client.as_deref(), suppressed, ..AuthRecord::of(None, address(exchange)) };
            record.refused("token not issued", &why.to_string());
        }
        let (reply, subject, issuer) = reply?;
        let record = AuthRecord { client: client.as_deref(), ..AuthRecord::of(None, address(exchange)) };
        AuthRecord { subject: Some(&subject), issuer: Some(&issuer), ..record }.done("token issued");
        Ok(reply)
    }

    /// What a grant gives, and to whom: the subject and the issuer that vouches for it.
    async fn grant(
        &self,
        server: &AuthorizationServer,
        body: &[u8],
        authorization: Option<&str>,
        named: &mut Option<String>,
    ) -> Result<(Value, String, String), OAuthError> {
        let form = Form::parse(body)?;
        let client = server.clients.authenticate(&form, authorization, server).await?;
        *named = Some(client.to_owned());
        match form.need("grant_type")? {
            JWT_BEARER => {
                let vouched = server.vouched(&form, client).await?;
                let resource = self.authn.resource(vouched.resource.as_deref()).ok_or_else(OAuthError::target)?;
                let granted = vouched.grant(client, &resource);
                let reply = server.issue(&granted).await?;
                Ok((reply, granted.subject.to_owned(), granted.vouched_by.to_owned()))
            }
            _ => Err(OAuthError::grant_type()),
        }
    }
}

impl AuthorizationServer {
    /// The answer with a token (RFC 6749 §5.1).
    async fn issue(&self, grant: &TokenGrant<'_>) -> Reply {
        let token = self.tokens.mint(grant).await.map_err(|why| match why {
            MintError::TooLong => OAuthError::grant(&why),
            MintError::Unavailable => OAuthError::unavailable(&why),
        })?;
        Ok(json!({
            "access_token": token,
            "token_type": "Bearer",
            "expires_in": self.tokens.lifetime.as_secs(),
            "scope": grant.scope,
        }))
    }
}

fn address(exchange: &HttpExchange) -> Option<std::net::IpAddr> {
    Some(exchange.peer().ip())
}

async fn respond(exchange: &mut HttpExchange, reply: Reply) {
    const CACHE_CONTROL: HeaderName = HeaderName::from_static("cache-control");
    const WWW_AUTHENTICATE: HeaderName = HeaderName::from_static("www-authenticate");
    let mut head = Vec::with_capacity(6);
    cors::add(exchange, &mut head);
    head.push((http::CONTENT_TYPE, deliver::JSON));
    head.push((CACHE_CONTROL, HeaderValue::from_static("no-store")));
    let (status, body) = match reply {
        Ok(body) => (200, body),
        Err(why) => {
            if why.status == 401 {
                head.push((WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"weir\"")));
            }
            if let Some(wait) = why.retry_after {
                head.push((http::RETRY_AFTER, HeaderValue::from(wait)));
            }
            (why.status, why.body())
        }
    };
    exchange.respond(status, &head, Bytes::from(body.to_string())).await;
}
