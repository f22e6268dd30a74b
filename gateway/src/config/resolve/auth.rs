//! What opens an upstream, who may call Weir, and where logins are kept.

use std::{path::PathBuf, time::Duration};

use weir_store::RedisUrlError;

use super::context::Context;
use super::login;
use crate::config::inherit::STORE_PASSWORD;
use crate::config::read::{At, Setting};
use crate::config::string::TemplateString;
use crate::config::value::Values;
use crate::config::written::{self, AuthKind, Introspection, Root, Store, WrittenInbound, WrittenUpstream};
use crate::config::{
    Auth, AuthorizationServerConfig, AuthorizedClient, ClientProof, ClientSignIn, Environment, IdentityProvider,
    InboundAuth, LoginFlow, LoginOwner, LoginStore, OAuthClient, SecretSource, SharedStore, TokenIntrospection,
    is_redirect_uri,
};

/// The claim that lists groups unless the configuration says otherwise.
const GROUPS: &str = "groups";

/// What leads to a shared store.
const URL: &str = "url = \"redis://weir@redis.internal:6379\"";

/// How long the answer to a question about a token is good for.
const ANSWER: Duration = Duration::from_secs(60);
/// The longest that it may be.
const LONGEST_ANSWER: Duration = Duration::from_secs(600);

/// How long an access token of Weir is good for, and the longest that it may be.
const ACCESS_TOKEN: Duration = Duration::from_secs(600);
const LONGEST_ACCESS_TOKEN: Duration = Duration::from_secs(3600);
/// How long after a sign-in its client gets new ones, and the longest that it may be.
const REFRESH_TOKEN: Duration = Duration::from_secs(7 * 24 * 3600);
const LONGEST_REFRESH_TOKEN: Duration = Duration::from_secs(90 * 24 * 3600);

/// The signatures that are accepted unless the configuration says otherwise.
const ALGORITHMS: [&str; 3] = ["RS256", "ES256", "EdDSA"];

pub(super) fn upstream(upstream: &WrittenUpstream, context: &mut Context<'_, '_>) -> Option<Auth> {
    let kind = upstream.auth.set().map(|at| at.value);
    let flow = match kind {
        Some(AuthKind::OAuth) => Some(LoginFlow::AuthorizationCode),
        Some(AuthKind::Device) => Some(LoginFlow::DeviceCode),
        Some(AuthKind::ClientCredentials) => Some(LoginFlow::ClientCredentials),
        Some(AuthKind::JwtBearer) => Some(LoginFlow::JwtBearer),
        Some(AuthKind::Exchange) => Some(LoginFlow::TokenExchange),
        Some(AuthKind::None | AuthKind::Bearer) | None => None,
    };
    match flow {
        Some(flow) => oauth(flow, upstream, context).map(|oauth| Auth::OAuth(Box::new(oauth))),
        None => {
            only_with_login(upstream, context);
            without_login(kind, upstream, context)
        }
    }
}

/// Whose credentials they are.
pub(super) fn owner(upstream: &WrittenUpstream) -> LoginOwner {
    match upstream.owner.set().map(|at| at.value) {
        Some(written::WrittenOwner::Principal) => LoginOwner::Principal,
        Some(written::WrittenOwner::Shared) | None => LoginOwner::Shared,
    }
}

/// Reports what says something of a login where there is none.
fn only_with_login(upstream: &WrittenUpstream, context: &mut Context<'_, '_>) {
    // A policy of one's own may have a credential for each caller without a login.
    let decides = upstream.policies.set().is_some_and(|policies| !policies.value.0.is_empty());
    let owner = upstream.owner.key().filter(|_| !decides);
    for (name, key) in [("owner", owner), ("oauth", upstream.oauth.key())] {
        if let Some(key) = key {
            let hint =
                "auth = \"oauth\", \"device\", \"client_credentials\", \"jwt_bearer\" or \"exchange\"".to_owned();
            context.report.add(key, format!("`{name}` goes with a login"), Some(hint));
        }
    }
}

fn without_login(kind: Option<AuthKind>, upstream: &WrittenUpstream, context: &mut Context<'_, '_>) -> Option<Auth> {
    match (kind, &upstream.bearer) {
        (Some(AuthKind::None), Setting::Set(at)) => {
            let hint = "leave out one of the two".to_owned();
            context.report.add(at.key.clone(), "`auth = \"none\"` sends no `bearer`", Some(hint));
            None
        }
        (Some(AuthKind::Bearer), Setting::Absent) => {
            let at = upstream.auth.key().unwrap_or_default();
            let hint = "bearer = { env = \"NAME\" }".to_owned();
            context.report.add(at, "`auth = \"bearer\"` needs to know where the token is", Some(hint));
            None
        }
        (_, Setting::Set(at)) => context.source(at).map(Auth::Bearer),
        (Some(_), Setting::Absent) => Some(Auth::None),
        // A header opens it already, and a token would be a second one of that name (RFC 9110 §11.6.2).
        (None, Setting::Absent) if opens(upstream) => Some(Auth::None),
        (None, Setting::Absent) => Some(Auth::Unsaid),
        (_, Setting::Unreadable(_)) => None,
    }
}

/// Whether its headers have a credential among them.
fn opens(upstream: &WrittenUpstream) -> bool {
    let headers = upstream.headers.set().map_or(&[][..], |headers| &headers.value.0);
    headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"))
}

fn oauth(flow: LoginFlow, upstream: &WrittenUpstream, context: &mut Context<'_, '_>) -> Option<OAuthClient> {
    let key = upstream.auth.key().unwrap_or_default();
    if let Some(bearer) = upstream.bearer.key() {
        let hint = "leave out one of the two".to_owned();
        context.report.add(bearer, "an upstream is opened by a `bearer` or by a login, not both", Some(hint));
    }
    let owner = owner(upstream);
    let empty = written::WrittenOAuth::default();
    let written = upstream.oauth.set().map_or(&empty, |at| &at.value);
    let oauth = OAuthClient {
        flow,
        owner,
        issuer: written.issuer.set().map(|at| at.value.0.clone()),
        client_id: plain(&written.client_id, context),
        client_secret: written.client_secret.set().and_then(|at| context.source(at)),
        private_key: written.private_key.set().and_then(|at| context.document(at)),
        algorithm: written.algorithm.set().map(|at| at.value.0),
        client_assertion: written.client_assertion.set().and_then(|at| context.source(at)),
        assertion: written.assertion.set().and_then(|at| context.source(at)),
        scopes: scopes(&written.scopes, context),
        subject_token: written.subject_token.set().and_then(|at| context.source(at)),
        subject_token_type: written.subject_token_type.set().map(|at| at.value.0),
        audience: plain(&written.audience, context),
        resource: written.resource.or(true),
        dpop: written.dpop.set().map(|at| at.value),
        private_network: written.private_network.or(false),
        renew_before: written.renew_before.set().map(|at| at.value.0),
        identity_provider: written.identity_provider.set().and_then(|at| identity_provider(at, context)),
    };
    login::check(flow, owner, written, &key, context);
    Some(oauth)
}

fn identity_provider(at: &At<written::IdentityProvider>, context: &mut Context<'_, '_>) -> Option<IdentityProvider> {
    let written = &at.value;
    if matches!(written.token_endpoint, Setting::Absent) {
        let hint = "token_endpoint = \"https://login.example.com/token\"".to_owned();
        context.report.add(at.key.clone(), "an identity provider needs a `token_endpoint`", Some(hint));
    }
    Some(IdentityProvider {
        token_endpoint: written.token_endpoint.set()?.value.0.clone(),
        client_id: plain(&written.client_id, context),
        client_secret: written.client_secret.set().and_then(|at| context.source(at)),
    })
}

/// Whose tokens clients must bring.
pub(super) fn issuers(root: &Root, context: &mut Context<'_, '_>) -> Vec<InboundAuth> {
    let Some(at) = root.auth.set() else { return Vec::new() };
    let tables = &at.value.0;
    if tables.is_empty() && context.report.is_clean() {
        context.report.add(at.span.clone(), "there is no issuer whose tokens let callers in", None);
    }
    let mut issuers: Vec<InboundAuth> = Vec::new();
    for at in tables {
        let Some(inbound) = inbound(at, context) else { continue };
        if issuers.iter().any(|known| known.issuer == inbound.issuer) {
            context.report.add(at.key.clone(), format!("the issuer {} is there twice", inbound.issuer), None);
        }
        if inbound.introspection.is_some() && issuers.iter().any(|known| known.introspection.is_some()) {
            let message = "one issuer at most is asked about tokens, for an opaque token does not say whose it is";
            context.report.add(at.key.clone(), message, None);
        }
        if issuers.first().is_some_and(|first| first.trust_sign_in_links != inbound.trust_sign_in_links) {
            let hint = "trust_sign_in_links = true in each `[[auth]]`, or in none".to_owned();
            context.report.add(
                at.key.clone(),
                "links are trusted for the callers of all issuers, or of none",
                Some(hint),
            );
        }
        issuers.push(inbound);
    }
    issuers
}

fn inbound(at: &At<WrittenInbound>, context: &mut Context<'_, '_>) -> Option<InboundAuth> {
    let written = &at.value;
    let needed = [
        ("issuer", matches!(written.issuer, Setting::Absent), "https://login.example.com"),
        ("audience", matches!(written.audience, Setting::Absent), "https://weir.example.com/mcp"),
    ];
    for (name, absent, example) in needed {
        if absent {
            let hint = format!("{name} = \"{example}\"");
            context.report.add(at.key.clone(), format!("`auth` needs an `{name}`"), Some(hint));
        }
    }
    let mut algorithms: Vec<&'static str> =
        written.algorithms.set().iter().flat_map(|all| &all.value.0).map(|algorithm| algorithm.value.0).collect();
    if algorithms.is_empty() {
        algorithms = ALGORITHMS.to_vec();
    }
    let client_id = plain(&written.client_id, context);
    let client_secret = written.client_secret.set().and_then(|at| context.source(at));
    let private_key = written.private_key.set().and_then(|at| context.document(at));
    client_of_issuer(written, context);
    let introspection = written.introspection.set().map(|asked| introspection(asked, written, context));
    Some(InboundAuth {
        issuer: written.issuer.set()?.value.0.clone(),
        audience: plain(&written.audience, context)?,
        scopes: scopes(&written.scopes, context),
        algorithms,
        jwks: written.jwks.set().map(|at| at.value.0.clone()),
        groups_claim: plain(&written.groups_claim, context).unwrap_or_else(|| GROUPS.to_owned()),
        client_id,
        client_secret,
        private_key,
        introspection,
        require_dpop: written.require_dpop.or(false),
        dpop_nonce: written.dpop_nonce.or(false),
        trust_sign_in_links: written.trust_sign_in_links.or(false),
    })
}

fn introspection(
    at: &At<Introspection>,
    inbound: &WrittenInbound,
    context: &mut Context<'_, '_>,
) -> TokenIntrospection {
    let secret = inbound.client_secret.key().or_else(|| inbound.private_key.key());
    if inbound.client_id.key().is_none() || secret.is_none() {
        let hint = "client_id = \"weir\"\nclient_secret = { env = \"NAME\" }".to_owned();
        let message = "a server says what a token is good for only to a client with a `client_id`, and a \
                       `client_secret` or `private_key`";
        context.report.add(at.key.clone(), message, Some(hint));
    }
    let cache = at.value.cache.set();
    if let Some(cache) = cache.filter(|cache| cache.value.0 > LONGEST_ANSWER) {
        context.report.add(cache.span.clone(), "an answer about a token is good for 10m at most", None);
    }
    TokenIntrospection {
        endpoint: at.value.endpoint.set().map(|at| at.value.0.clone()),
        cache: cache.map_or(ANSWER, |cache| cache.value.0),
    }
}

/// Reports what does not go together in who Weir is to the issuer.
fn client_of_issuer(written: &WrittenInbound, context: &mut Context<'_, '_>) {
    let parts = [
        ("client_id", written.client_id.key()),
        ("client_secret", written.client_secret.key()),
        ("private_key", written.private_key.key()),
    ];
    if let [_, (_, Some(_)), (_, Some(key))] = &parts {
        context.report.add(key.clone(), "a client has a `client_secret` or a `private_key`, not both", None);
    }
    if written.trust_sign_in_links.or(false) && written.introspection.key().is_none() {
        for (name, key) in parts {
            if let Some(key) = key {
                let hint = "leave out one of the two".to_owned();
                let message =
                    format!("with `trust_sign_in_links` nobody signs in at the issuer, so `{name}` is not used");
                context.report.add(key, message, Some(hint));
            }
        }
    } else if let [(_, None), (name, Some(key)), _] | [(_, None), _, (name, Some(key))] = parts {
        let hint = "client_id = \"weir\"".to_owned();
        context.report.add(key, format!("a `{name}` goes with a `client_id`"), Some(hint));
    }
}

/// Weir as an authorization server.
pub(super) fn authorization_server(
    root: &Root,
    inbound: &[InboundAuth],
    context: &mut Context<'_, '_>,
) -> Option<AuthorizationServerConfig> {
    let at = root.authorization_server.set()?;
    let needed = [
        ("public_url", root.public_url.key().is_none(), "public_url = \"https://weir.example.com\""),
        ("auth", root.auth.key().is_none(), "[auth]\nissuer = \"https://login.example.com\""),
    ];
    for (name, absent, hint) in needed {
        if absent {
            let message = format!("`authorization_server` needs `{name}`");
            context.report.add(at.key.clone(), message, Some(hint.to_owned()));
        }
    }
    let own = root.public_url.set().map(|at| at.value.0.trim_end_matches('/'));
    if inbound.iter().any(|inbound| Some(inbound.issuer.as_str()) == own) {
        context.report.add(
            at.key.clone(),
            "`public_url` is Weir's own name as an issuer, which `auth` names too",
            None,
        );
    }
    if inbound.iter().any(|inbound| inbound.require_dpop) {
        let message = "the tokens that Weir issues are bound to no key, and `require_dpop` refuses such tokens";
        context.report.add(at.key.clone(), message, Some("leave out one of the two".to_owned()));
    }
    let lifetime = at.value.access_token_lifetime.set();
    if let Some(lifetime) = lifetime.filter(|lifetime| lifetime.value.0 > LONGEST_ACCESS_TOKEN) {
        context.report.add(lifetime.span.clone(), "an access token is good for 1h at most", None);
    }
    let mut clients: Vec<AuthorizedClient> = Vec::new();
    for at in at.value.clients.set().iter().flat_map(|clients| &clients.value.0) {
        let Some(client) = authorized_client(at, context) else { continue };
        if clients.iter().any(|known| known.client_id == client.client_id) {
            context.report.add(at.key.clone(), format!("the client {} is there twice", client.client_id), None);
        }
        clients.push(client);
    }
    Some(AuthorizationServerConfig {
        access_token_lifetime: lifetime.map_or(ACCESS_TOKEN, |lifetime| lifetime.value.0),
        sign_in: client_sign_in(at, inbound, context),
        clients,
    })
}

fn client_sign_in(
    at: &At<written::AuthorizationServer>,
    inbound: &[InboundAuth],
    context: &mut Context<'_, '_>,
) -> Option<ClientSignIn> {
    let written = &at.value;
    if !written.sign_in.or(true) {
        return None;
    }
    if inbound.iter().any(|inbound| inbound.trust_sign_in_links) {
        let message = "with `trust_sign_in_links` nobody says who sits at a browser, so people cannot sign in to Weir";
        context.report.add(at.key.clone(), message, Some("sign_in = false".to_owned()));
    }
    let lifetime = written.refresh_token_lifetime.set();
    if let Some(lifetime) = lifetime.filter(|lifetime| lifetime.value.0 > LONGEST_REFRESH_TOKEN) {
        context.report.add(lifetime.span.clone(), "a refresh token is good for 90d at most", None);
    }
    Some(ClientSignIn {
        registration: written.registration.or(true),
        private_network: written.private_network.or(false),
        refresh_token_lifetime: lifetime.map_or(REFRESH_TOKEN, |lifetime| lifetime.value.0),
    })
}

fn authorized_client(at: &At<written::AuthorizedClient>, context: &mut Context<'_, '_>) -> Option<AuthorizedClient> {
    let written = &at.value;
    if matches!(written.client_id, Setting::Absent) {
        let hint = "client_id = \"host\"".to_owned();
        context.report.add(at.key.clone(), "a client needs a `client_id`", Some(hint));
    }
    for at in written.redirect_uris.set().iter().flat_map(|all| &all.value.0) {
        if !is_redirect_uri(&at.value.0) {
            let hint = "https://host.example.com/back, http://127.0.0.1/back, or the scheme of an app".to_owned();
            context.report.add(at.span.clone(), "browsers cannot be sent there", Some(hint));
        }
    }
    let redirect_uris = plain_list(&written.redirect_uris, context);
    let proof = match (&written.client_secret, &written.jwks) {
        (Setting::Set(secret), Setting::Absent) => context.source(secret).map(ClientProof::Secret),
        (Setting::Absent, Setting::Set(jwks)) => Some(ClientProof::Keys(jwks.value.0.clone())),
        (Setting::Unreadable(_), _) | (_, Setting::Unreadable(_)) => None,
        (Setting::Absent, Setting::Absent) if written.redirect_uris.key().is_some() => Some(ClientProof::None),
        (Setting::Absent, Setting::Absent) | (Setting::Set(_), Setting::Set(_)) => {
            let hint = "client_secret = { env = \"HOST_SECRET\" }".to_owned();
            context.report.add(
                at.key.clone(),
                "a client has a `client_secret` or `jwks`, or `redirect_uris` alone",
                Some(hint),
            );
            None
        }
    };
    Some(AuthorizedClient { client_id: plain(&written.client_id, context)?, proof: proof?, redirect_uris })
}

/// Where logins are kept.
pub(super) fn store(root: &Root, context: &mut Context<'_, '_>) -> LoginStore {
    let written = root.store.set().map(|at| &at.value);
    let path = written.and_then(|store| store.path.set()).map(|path| context.base.join(&path.value.0));
    let key = written.and_then(|store| store.key.set()).and_then(|at| context.source(at));
    let shared = written.and_then(|store| shared_store(store, context));
    LoginStore { path: path.or_else(|| default_store(context.environment)), shared, key }
}

/// The server that has the store.
fn shared_store(written: &Store, context: &mut Context<'_, '_>) -> Option<SharedStore> {
    let of_server = [written.password.key(), written.sentinel_password.key(), written.ca.key(), written.prefix.key()];
    let Some(url) = written.url.set() else {
        for key in of_server.into_iter().flatten() {
            context.report.add(key, "this goes with the `url` of a store", Some(URL.to_owned()));
        }
        return None;
    };
    if let Some(key) = written.path.key() {
        context.report.add(key, "a store has a `path` or a `url`", None);
    }
    let mut password = written.password.set().and_then(|at| context.source(at));
    if written.password.key().is_none() && context.environment.variable(STORE_PASSWORD).is_some() {
        password = Some(SecretSource::Env(STORE_PASSWORD.to_owned()));
    }
    let shared = SharedStore {
        url: plain(&written.url, context)?,
        prefix: plain(&written.prefix, context),
        password,
        sentinel_password: written.sentinel_password.set().and_then(|at| context.source(at)),
        ca: written.ca.set().map(|path| context.base.join(&path.value.0)),
    };
    match shared.target() {
        Ok(_) => Some(shared),
        Err(why) => {
            let (span, hint) = match why {
                RedisUrlError::Password => (&url.span, "password = { env = \"REDIS_PASSWORD\" }"),
                RedisUrlError::Prefix => (&written.prefix.set()?.span, "prefix = \"weir\""),
                _ => (&url.span, URL),
            };
            context.report.add(span.clone(), why.to_string(), Some(hint.to_owned()));
            None
        }
    }
}

/// Where logins are kept unless the configuration says otherwise; none if the system names no place (XDG Base Directory
/// Specification: only absolute values of variables count).
pub fn default_store(environment: &dyn Environment) -> Option<PathBuf> {
    let variable = |name| environment.variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    Some(state.join("weir/logins.redb"))
}

/// A text that is printed, so that nothing secret may be expanded in it.
fn plain(written: &Setting<TemplateString>, context: &mut Context<'_, '_>) -> Option<String> {
    one(written.set()?, context)
}

/// Scopes, each as RFC 6749 §3.3 has it: one with a blank or a quote in it could be in no token.
fn scopes(written: &Setting<Values<TemplateString>>, context: &mut Context<'_, '_>) -> Vec<String> {
    let letter = |byte: u8| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
    let all: Vec<_> = written.set().iter().flat_map(|all| &all.value.0).collect();
    for at in all.iter().filter(|at| !at.value.0.bytes().all(letter)) {
        let hint = Some("one scope for each entry: [\"read\", \"write\"]".to_owned());
        context.report.add(at.span.clone(), "a scope has no blanks, quotes or backslashes in it", hint);
    }
    plain_list(written, context)
}

fn plain_list(written: &Setting<Values<TemplateString>>, context: &mut Context<'_, '_>) -> Vec<String> {
    let all: Vec<_> = written.set().iter().flat_map(|all| &all.value.0).collect();
    all.into_iter().filter_map(|at| one(at, context)).collect()
}

fn one(at: &At<TemplateString>, context: &mut Context<'_, '_>) -> Option<String> {
    if at.value.0.is_empty() || at.value.0.contains("${") {
        context.report.add(at.span.clone(), "this cannot be empty, and `${…}` is not expanded in it", None);
        return None;
    }
    Some(at.value.0.clone())
}
