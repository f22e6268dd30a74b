//! What Weir is and has at one upstream, and what it does there on a policy's word.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use url::Url;
use weir_flow::facts::{self, Challenge};
use weir_oauth::{AddressPolicy, CredentialOwner, Http, HttpError, Login, LoginKey, LoginSummary, Renewal};
use weir_store::Key;

use crate::{
    caller::Caller,
    config::{self, Auth, Config, HttpReach, LoginFlow, OAuthClient},
};

use super::{
    Mark, Needed, Standing, TokenStoreError, TokenSubject,
    shell::quoted,
    token_store::{OpenedStore, TokenStore},
};

/// Weir at one upstream.
pub struct UpstreamAuth {
    pub(super) token_store: Arc<TokenStore>,
    pub(super) name: String,
    pub(super) url: Url,
    /// The only one that may see a token from here.
    pub(super) origin: String,
    pub(super) oauth: OAuthClient,
    configured: bool,
    /// Whether clients prove who they are; else everybody is the same local caller.
    proved: bool,
    pub(super) argument: String,
    pub(super) document: Option<Url>,
    http: OnceLock<Http>,
    /// What a refusal has asked for, for the sign-in that follows.
    wanted: Mutex<HashMap<CredentialOwner, SignInRequest>>,
}

/// What a sign-in is to bring.
#[derive(Clone, Debug)]
pub(super) struct SignInRequest {
    /// When it was found out.
    pub(super) since: SystemTime,
    pub(super) challenge: Option<weir_oauth::Challenge>,
    /// What it must be good for; empty to leave that to the servers.
    pub(super) scopes: Vec<String>,
}

/// Owners whose wishes are remembered at once. One that is forgotten is learned again from the next refusal.
const MAX_WANTED: usize = 10_000;

impl UpstreamAuth {
    pub(super) fn new(
        token_store: Arc<TokenStore>,
        config: &Config,
        upstream: &config::UpstreamConfig,
        reach: &HttpReach,
    ) -> Self {
        let url = reach.url.as_url().clone();
        let (oauth, configured) = match &upstream.auth {
            Auth::OAuth(oauth) => ((**oauth).clone(), true),
            _ => (OAuthClient { resource: true, ..OAuthClient::default() }, false),
        };
        let argument = argument(config, upstream, &reach.url.to_string(), token_store.plaintext);
        Self {
            name: upstream.name.to_string(),
            origin: url.origin().ascii_serialization(),
            url,
            oauth,
            configured,
            proved: config.proves_callers(),
            argument,
            document: config.client_metadata_url.as_deref().and_then(|url| url.parse().ok()),
            http: OnceLock::new(),
            wanted: Mutex::default(),
            token_store,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// What names it to `weir auth login`, as a shell reads it, with the options that go along.
    pub fn argument(&self) -> &str {
        &self.argument
    }

    /// Whether the configuration says that it takes a login; else it is only if the upstream asks for one.
    pub const fn is_configured(&self) -> bool {
        self.configured
    }

    /// Whether a person has to sign in.
    pub const fn is_for_people(&self) -> bool {
        matches!(self.oauth.flow, LoginFlow::AuthorizationCode | LoginFlow::DeviceCode)
    }

    /// Whether each caller has a login of their own.
    pub fn is_personal(&self) -> bool {
        let is_exchanged = self.oauth.flow == LoginFlow::TokenExchange && self.oauth.subject_token.is_none();
        is_exchanged || self.oauth.owner == config::LoginOwner::Principal
    }

    /// Whether a person signs in with a code and another device, and not with a browser.
    pub fn is_by_code(&self) -> bool {
        self.oauth.flow == LoginFlow::DeviceCode
    }

    /// How long before its end a token is to be renewed, if the configuration says.
    pub const fn renew_before(&self) -> Option<Duration> {
        self.oauth.renew_before
    }

    /// Whose credential a caller uses; none for Weir itself where each caller has their own.
    pub fn asker(&self, caller: Option<&Arc<Caller>>) -> Option<TokenSubject> {
        let owner = if self.is_personal() { config::LoginOwner::Principal } else { config::LoginOwner::Shared };
        TokenSubject::of(owner, self.proved, caller)
    }

    /// The ways to a token, as a policy is told them.
    pub fn flows(&self) -> Vec<facts::Flow> {
        vec![match self.oauth.flow {
            LoginFlow::AuthorizationCode => facts::Flow::AuthorizationCode,
            LoginFlow::DeviceCode => facts::Flow::DeviceCode,
            // To a policy they are one: Weir shows who it is itself.
            LoginFlow::ClientCredentials | LoginFlow::JwtBearer => facts::Flow::ClientCredentials,
            LoginFlow::TokenExchange => facts::Flow::TokenExchange,
        }]
    }

    /// The login that an owner has here. Needs no key, and makes no file.
    ///
    /// # Errors
    /// If there is a store that cannot be read.
    pub async fn stored(&self, owner: &CredentialOwner) -> Result<Option<LoginSummary>, TokenStoreError> {
        Ok(self.stored_in(&self.token_store.list(&[self.range(owner)]).await?, owner))
    }

    /// Where the logins of an owner here are in the store.
    pub(super) fn range(&self, owner: &CredentialOwner) -> Key {
        LoginKey::range(Some(&self.name), Some(owner))
    }

    /// The latest login of an owner, of whatever issuer, even if it has ended: whoever had signed in elsewhere before that had
    /// left it. One for another place or from another server than the configuration says now is none.
    pub(super) fn stored_in(&self, listed: &[LoginSummary], owner: &CredentialOwner) -> Option<LoginSummary> {
        let theirs = listed.iter().filter(|login| login.key.upstream == self.name && login.key.owner == *owner);
        let issuer = self.oauth.issuer.as_ref();
        let fitting =
            theirs.filter(|login| login.origin == self.origin && issuer.is_none_or(|one| *one == login.key.issuer));
        // What is bound to no key is not sent where the configuration wants a key.
        let fitting = fitting.filter(|login| login.bound || self.oauth.dpop != Some(true));
        let found = fitting.max_by_key(|login| login.version)?;
        self.token_store.changes.seen(found);
        Some(found.clone())
    }

    /// What a policy is told of a login; `accepted` if the upstream has let somebody in with it.
    pub fn fact(&self, login: &LoginSummary, accepted: bool) -> facts::Token {
        let now = self.token_store.clock.now();
        facts::Token {
            issuer: login.key.issuer.clone(),
            scopes: login.scopes.iter().map(str::to_owned).collect(),
            age_seconds: seconds(now.duration_since(login.issued).unwrap_or_default()),
            expires_in_seconds: login.expires.map(|end| seconds(end.duration_since(now).unwrap_or_default())),
            accepted,
            renewable: !self.is_for_people() || (login.refreshable && !login.ended),
        }
    }

    /// Tells from now on whether an owner's login is still the one that it is now.
    pub fn mark(&self, owner: &CredentialOwner) -> Mark {
        self.token_store.changes.mark(&self.name, owner)
    }

    /// A login with its token, and for how much longer that is good, if anybody has said.
    ///
    /// # Errors
    /// In words, if it cannot be had.
    pub async fn token(&self, login: &LoginSummary) -> Result<(Arc<Login>, Option<Duration>), String> {
        let (opened, http) = self.tools().await?;
        let login = opened.logins.access(http, &login.key, None, &Renewal::Refresh(None)).await;
        let login = login.map_err(|why| why.to_string())?;
        let left = login.expires.map(|end| end.duration_since(self.token_store.clock.now()).unwrap_or_default());
        Ok((login, left))
    }

    /// What a person has to do; remembered for when they come.
    pub async fn need(&self, owner: &CredentialOwner, scopes: &[String], refused: Option<&facts::Refusal>) -> Needed {
        let challenge = refused.map(|refused| challenge(&refused.challenge));
        let since = self.token_store.clock.now();
        {
            let mut wanted = self.wanted.lock();
            if wanted.len() >= MAX_WANTED {
                wanted.clear();
            }
            if challenge.is_some() || !scopes.is_empty() {
                wanted.insert(owner.clone(), SignInRequest { since, challenge, scopes: scopes.to_vec() });
            }
        }
        self.keep_wanted(owner, scopes).await;
        let ended = self.state(owner).await.is_ok_and(|state| state.standing == Standing::Ended);
        self.needed(owner, scopes, ended)
    }

    pub(super) fn wanted(&self, owner: &CredentialOwner) -> Option<SignInRequest> {
        self.wanted.lock().get(owner).cloned()
    }

    pub(super) fn satisfied(&self, owner: &CredentialOwner) {
        self.wanted.lock().remove(owner);
    }

    /// The client for this upstream's servers: this machine only if that is where the upstream is, or if the
    /// configuration opens the private network.
    pub(super) fn http(&self) -> Result<&Http, HttpError> {
        if let Some(http) = self.http.get() {
            return Ok(http);
        }
        let toward = AddressPolicy::toward(&self.url);
        let private = self.oauth.private_network;
        let made = self.token_store.http(AddressPolicy { loopback: toward.loopback || private, private })?;
        Ok(self.http.get_or_init(|| made))
    }

    pub(super) async fn tools(&self) -> Result<(&OpenedStore, &Http), String> {
        let opened = self.token_store.open().await.map_err(|why| why.to_string())?;
        Ok((opened, self.http().map_err(|why| why.to_string())?))
    }
}

/// What names an upstream to `weir auth login`, as a shell reads it.
fn argument(config: &Config, upstream: &config::UpstreamConfig, url: &str, plaintext: bool) -> String {
    let file = config.file.display().to_string();
    let mut argument = if !file.is_empty() {
        upstream.name.to_string()
    } else if url.contains('?') {
        // The values of a query are masked, and what is masked leads nowhere.
        "URL".to_owned()
    } else {
        quoted(url)
    };
    if !file.is_empty() && file != config::DEFAULT_FILE {
        argument.push_str(&format!(" --config {}", quoted(&file)));
    }
    if plaintext {
        argument.push_str(" --allow-plaintext-token-store");
    }
    argument
}

pub(super) fn challenge(fact: &Challenge) -> weir_oauth::Challenge {
    let parameters = [("error", &fact.error), ("scope", &fact.scope), ("resource_metadata", &fact.resource_metadata)];
    let parameters =
        parameters.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?))).collect();
    weir_oauth::Challenge { scheme: fact.scheme.clone(), parameters }
}

fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}
