//! Weir as an authorization server: it issues access tokens for its own endpoints.
//!
//! A client sends a browser to the page of `connect::authorize`, and gets a code when its person agrees ([`code`]). Most such
//! clients are not in the configuration ([`public_clients`]). Or a client brings what a company's identity provider vouches
//! for, an ID-JAG ([`assertion`]), and proves who it is ([`clients`]). The tokens themselves are [`OwnTokens`]; a caller is the same principal whichever token it brings.
//! Everything here is open to strangers, so each address has a rate.

mod assertion;
mod clients;
mod code;
mod error;
mod form;
mod public_clients;

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;

use crate::{
    config::Config,
    credential::{IssuerStore, Secret, TokenGrant},
    http::{self, HeaderName, HeaderValue},
    quota,
    rate::RateLimiter,
    telemetry::{AuthRecord, audit},
};

use super::{
    App,
    authn::{Authenticator, AuthnError, MintError, OwnTokens, Provider},
    connect::AUTHORIZE,
    cors, deliver,
    listen::HttpExchange,
};

pub(super) use code::is_challenge;
pub(super) use form::Form;
pub(super) use public_clients::PublicClient;

use clients::Clients;
use error::OAuthError;
use public_clients::PublicClients;

/// Where the metadata is (RFC 8414 §3), before the path of the issuer.
const METADATA: &str = "/.well-known/oauth-authorization-server";
const TOKEN: &str = "/oauth/token";
const REGISTER: &str = "/oauth/register";
const REVOKE: &str = "/oauth/revoke";
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
    /// None if people do not sign in here with their clients.
    sign_in: Option<ClientSignIn>,
    rate: RateLimiter,
}

/// How people sign in with their clients.
struct ClientSignIn {
    public_clients: PublicClients,
    /// How long after it a client gets new access tokens.
    refresh_lifetime: Duration,
}

/// An answer in JSON, and its status.
type Reply = Result<(u16, Value), OAuthError>;

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
        let sign_in = match &settings.sign_in {
            Some(settings) => Some(ClientSignIn {
                public_clients: PublicClients::new(settings, &tokens.issuer)?,
                refresh_lifetime: settings.refresh_token_lifetime,
            }),
            None => None,
        };
        Ok(Some(Self { tokens, providers, clients, sign_in, rate }))
    }

    /// Whether it answers at this path.
    fn serves(&self, path: &str) -> bool {
        matches!(path, TOKEN | KEYS)
            || self.sign_in.is_some() && matches!(path, REGISTER | REVOKE)
            || self.is_metadata(path)
    }

    /// Whether its metadata is there. The path of the issuer comes last (RFC 8414 §3.1), unless a proxy has cut it off.
    fn is_metadata(&self, path: &str) -> bool {
        let own = || url::Url::parse(&self.tokens.issuer).is_ok_and(|url| path[METADATA.len()..] == *url.path());
        path == METADATA || path.starts_with(METADATA) && own()
    }

    /// RFC 8414 §2.
    fn metadata(&self) -> Value {
        let at = |path: &str| format!("{}{path}", self.tokens.issuer);
        let mut metadata = json!({
            "issuer": self.tokens.issuer,
            "token_endpoint": at(TOKEN),
            "jwks_uri": at(KEYS),
            "response_types_supported": [],
            "grant_types_supported": [JWT_BEARER],
            "authorization_grant_profiles_supported": [ID_JAG],
            "token_endpoint_auth_methods_supported": clients::METHODS,
            "token_endpoint_auth_signing_alg_values_supported": clients::ALGORITHMS,
        });
        let Some(sign_in) = &self.sign_in else { return metadata };
        metadata["authorization_endpoint"] = at(AUTHORIZE).into();
        metadata["revocation_endpoint"] = at(REVOKE).into();
        metadata["response_types_supported"] = json!(["code"]);
        metadata["response_modes_supported"] = json!(["query"]);
        metadata["grant_types_supported"] = json!(["authorization_code", "refresh_token", JWT_BEARER]);
        metadata["token_endpoint_auth_methods_supported"] = [&["none"], &clients::METHODS[..]].concat().into();
        metadata["code_challenge_methods_supported"] = json!(["S256"]);
        metadata["authorization_response_iss_parameter_supported"] = true.into();
        if sign_in.public_clients.are_open() {
            metadata["registration_endpoint"] = at(REGISTER).into();
            metadata["client_id_metadata_document_supported"] = true.into();
        }
        metadata
    }

    /// Its name.
    pub(super) fn issuer(&self) -> &str {
        &self.tokens.issuer
    }

    /// How long an access token is good for.
    pub(super) fn access_lifetime(&self) -> Duration {
        self.tokens.lifetime
    }

    /// What it keeps.
    pub(super) fn store(&self) -> &IssuerStore {
        &self.tokens.store
    }

    /// How long after a sign-in clients get tokens for it.
    pub(super) fn refresh_lifetime(&self) -> Duration {
        self.sign_in.as_ref().map_or(Duration::ZERO, |sign_in| sign_in.refresh_lifetime)
    }

    /// Whether people sign in here with their clients.
    pub(super) const fn signs_in(&self) -> bool {
        self.sign_in.is_some()
    }

    /// The client that sends the browser of `principal` under this name; else why there is none.
    pub(super) async fn public_client(&self, id: &str, principal: &Arc<str>) -> Result<Arc<PublicClient>, String> {
        if let Some(client) = self.clients.find(id) {
            return Ok(client);
        }
        let sign_in = self.sign_in.as_ref().ok_or("nobody signs in here")?;
        sign_in.public_clients.find(&self.tokens.store, id, principal).await
    }

    /// Whether the operator has configured the client with this name.
    pub(super) fn has_configured(&self, id: &str) -> bool {
        self.clients.find(id).is_some()
    }

    /// Registers a client (RFC 7591 §3).
    async fn register(&self, exchange: &mut HttpExchange) -> Reply {
        let sign_in = self.sign_in.as_ref().ok_or_else(OAuthError::method)?;
        let body = exchange.read_body(FORM).await.map_err(|_| OAuthError::metadata("the document did not arrive"))?;
        Ok((201, sign_in.public_clients.register(&self.tokens.store, &body).await?))
    }

    /// The public keys of its tokens.
    async fn keys(&self) -> Reply {
        let keys = self.tokens.store.keys().await.map_err(|why| OAuthError::unavailable(&why))?;
        Ok((200, json!({ "keys": keys.public })))
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
            ("POST", TOKEN) if let Some(why) = audit::refusal() => Err(OAuthError::unavailable(&why)),
            ("POST", TOKEN) => self.token(server, exchange).await,
            ("GET", KEYS) => server.keys().await,
            ("POST", REGISTER) => server.register(exchange).await,
            ("POST", REVOKE) => self.revoke(server, exchange).await,
            ("GET", path) if server.is_metadata(path) => Ok((200, server.metadata())),
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
        Ok((200, reply))
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
        *named = Some(short_id(client.id).to_owned());
        let (granted, refresh) = match form.need("grant_type")? {
            JWT_BEARER => {
                let vouched = server.vouched(&form, client).await?;
                let resource = self.authn.resource(vouched.resource.as_deref()).ok_or_else(OAuthError::target)?;
                (vouched.grant(client.id, resource), None)
            }
            "authorization_code" => server.redeem_code(&form, client).await.map(|(grant, next)| (grant, Some(next)))?,
            "refresh_token" => server.refresh(&form, client).await.map(|(grant, next)| (grant, Some(next)))?,
            _ => return Err(OAuthError::grant_type()),
        };
        let reply = server.issue(&granted, refresh.as_ref()).await?;
        Ok((reply, granted.subject, granted.vouched_by))
    }

    /// The revocation endpoint (RFC 7009).
    async fn revoke(&self, server: &AuthorizationServer, exchange: &mut HttpExchange) -> Reply {
        let authorization = exchange.header("authorization").map(str::to_owned);
        let body = exchange.read_body(FORM).await.map_err(|_| OAuthError::request("the form did not arrive"))?;
        let (reply, revoked) = server.revoke(&body, authorization.as_deref()).await;
        if let Some(TokenGrant { client, subject, vouched_by, .. }) = &revoked {
            let record = AuthRecord { client: Some(short_id(client)), ..AuthRecord::of(None, address(exchange)) };
            AuthRecord { subject: Some(subject), issuer: Some(vouched_by), ..record }.done("grant revoked");
        }
        reply
    }
}

impl AuthorizationServer {
    /// The answer with a token (RFC 6749 §5.1).
    async fn issue(&self, grant: &TokenGrant, refresh: Option<&Secret>) -> Result<Value, OAuthError> {
        let token = self.tokens.mint(grant).await.map_err(|why| match why {
            MintError::TooLong => OAuthError::grant(&why),
            MintError::Unavailable(_) => OAuthError::unavailable(&why),
        })?;
        let mut reply = json!({
            "access_token": token,
            "token_type": "Bearer",
            "expires_in": self.tokens.lifetime.as_secs(),
            "scope": grant.scope,
        });
        if let Some(refresh) = refresh {
            reply["refresh_token"] = refresh.expose().into();
        }
        Ok(reply)
    }
}

/// As much of the name of a client as a log needs: a client that has registered itself has a long one.
pub(super) fn short_id(id: &str) -> &str {
    const LONGEST: usize = 64;
    id.char_indices().nth(LONGEST).map_or(id, |(end, _)| &id[..end])
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
        Ok(reply) => reply,
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
