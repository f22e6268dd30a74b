//! Who sits at a browser: its person signs in at the issuer of callers, and comes back (OpenID Connect Core 1.0 §3.1).
//!
//! A visit belongs to the browser that began it, by a cookie of its own, so nobody can be signed in as somebody else by an
//! address that they are led to. It ends once, and in time. What is known of the issuer is kept for a while: strangers
//! come this way, and must not make Weir ask it again and again.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use url::Url;
use weir_oauth::{
    Callback, DiscoveryError, HttpError, IdentityError, OAuthApplication, PendingSignIns, Secret, ServerMetadata,
    SignIn, SignInError, TokenError,
    authorize::{self, SIGN_IN_TIME},
    identity, server,
};

use crate::{
    caller::Caller,
    credential::{Identity, SignInFailure},
    server::authn::{self, Provider},
    sign_in_links::random,
    telemetry::LogThrottle,
};

use super::cookie::Cookie;

/// For how long what is known of the issuer is taken for true.
const KNOWN: Duration = Duration::from_secs(300);

/// How long the issuer is left alone when nothing could be found out.
const PAUSE: Duration = Duration::from_secs(5);

/// All who are on their way.
pub(super) struct OidcLogins {
    identity: Identity,
    provider: Provider,
    redirect: String,
    cookie: Cookie,
    /// With the tickets that they came with.
    invited: PendingSignIns<Box<str>>,
    /// Without one, which is apart from those, for anybody can begin some. With where they go then, if not to the page.
    uninvited: PendingSignIns<Option<Box<str>>>,
    known: tokio::sync::Mutex<Option<(Instant, DiscoveredIssuer)>>,
    /// The log has been told that Weir is nobody to the issuer.
    unregistered: OnceLock<()>,
    /// The log has been told that the issuer names nobody.
    nameless: OnceLock<()>,
    trouble: LogThrottle,
    /// When a registration was forgotten last.
    forgetting: LogThrottle,
    /// Apart from the others, for strangers can bring it about.
    disbelief: LogThrottle,
}

/// The issuer, and who Weir is there.
type DiscoveredIssuer = Result<Arc<(ServerMetadata, OAuthApplication)>, OidcFailure>;

/// A visit that has come to its end.
pub(super) struct OidcLogin {
    /// What the browser came with.
    pub(super) ticket: Option<Box<str>>,
    /// Where it goes now, if not to the page.
    pub(super) next: Option<Box<str>>,
    /// Who sits there.
    pub(super) who: Result<Arc<Caller>, OidcFailure>,
}

/// Why it is not known who sits there: sentences for that person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OidcFailure {
    /// The operator has to do something first.
    Operator(String),
    /// It is likely to pass.
    Later(String),
    /// The issuer, or the person, said no; or what came back is not to be believed.
    Refused(String),
}

impl fmt::Display for OidcFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Operator(text) | Self::Later(text) | Self::Refused(text)) = self;
        f.write_str(text)
    }
}

impl OidcLogins {
    /// None yet. Whoever is vouched for comes back to `redirect`.
    pub(super) fn new(identity: Identity, provider: Provider, redirect: String, secure: bool) -> Self {
        let (invited, uninvited) =
            (PendingSignIns::new(provider.clock.clone()), PendingSignIns::new(provider.clock.clone()));
        Self {
            identity,
            provider,
            redirect,
            cookie: Cookie::new("weir-visit", secure),
            invited,
            uninvited,
            known: tokio::sync::Mutex::default(),
            unregistered: OnceLock::new(),
            nameless: OnceLock::new(),
            trouble: LogThrottle::default(),
            forgetting: LogThrottle::default(),
            disbelief: LogThrottle::default(),
        }
    }

    /// Whether these callers say who they are there; without any, whether anybody does.
    pub(super) fn is_of(&self, caller: Option<&Caller>) -> bool {
        caller.is_none_or(|caller| caller.principal().issuer.as_deref() == Some(&self.provider.issuer))
    }

    /// Who says who people are.
    pub(super) fn issuer(&self) -> &str {
        &self.provider.issuer
    }

    /// Whether the issuer sends browsers back to this path.
    pub(super) fn comes_back_to(&self, path: &str) -> bool {
        self.redirect.ends_with(path)
    }

    /// Where a browser has to go, and the cookie that it has to bring back. A ticket must be a good one; `anew` is to be
    /// somebody else than the one whom the issuer remembers.
    pub(super) async fn begin(
        &self,
        (cookies, address): (&str, &str),
        ticket: Option<&str>,
        next: Option<&str>,
        anew: bool,
    ) -> Result<(Url, String), OidcFailure> {
        // One for all windows of a browser, so that each can end what it has begun.
        let known = self.cookie.values(cookies).find(|value| is_random(value)).map(str::to_owned);
        let Some(binding) = known.or_else(random) else {
            return Err(OidcFailure::Later("The system has no randomness to give.".to_owned()));
        };
        let found = self.found().await?;
        let (server, client) = &*found;
        let what = identity::sign_in(server, client, &self.redirect, anew);
        let (url, pending) = authorize::begin(&self.provider.http, what).map_err(|why| self.unable(&why))?;
        let set = self.cookie.set(&binding, Some(SIGN_IN_TIME));
        let binding = Secret::new(binding);
        match ticket {
            Some(ticket) => self.invited.keep(pending, address, binding, ticket.into()),
            None => self.uninvited.keep(pending, address, binding, next.map(Box::from)),
        }
        Ok((url, set))
    }

    /// Ends the visit that a browser comes back from; none if it has not begun it.
    pub(super) async fn end(&self, cookies: &str, target: &str) -> Option<OidcLogin> {
        let callback = Callback::parse(target);
        let mut bindings = self.cookie.values(cookies).map(|value| Secret::new(value.to_owned()));
        let (pending, ticket, next) = bindings.find_map(|binding| {
            let invited = self.invited.take(&callback, &binding).map(|(pending, ticket)| (pending, Some(ticket), None));
            invited
                .or_else(|_| self.uninvited.take(&callback, &binding).map(|(pending, next)| (pending, None, next)))
                .ok()
        })?;
        // A stranger may have written it, so it changes nothing of what is known.
        if let Some(why) = callback.refusal() {
            return Some(OidcLogin { ticket, next, who: Err(self.turned_away(&why)) });
        }
        let Provider { http, verifier, clock, .. } = &self.provider;
        let what = pending.what().clone();
        let who = match identity::finish(pending, http, verifier, callback, clock).await {
            Ok(found) => Ok(Caller::signed_in(authn::principal(found))),
            Err(why) => Err(self.stopped(why, &what).await),
        };
        Some(OidcLogin { ticket, next, who })
    }

    /// The issuer, and who Weir is there; asked for by one visit at a time.
    async fn found(&self) -> DiscoveredIssuer {
        let mut known = self.known.lock().await;
        if let Some((at, found)) = &*known
            && at.elapsed() < if found.is_ok() { KNOWN } else { PAUSE }
        {
            return found.clone();
        }
        let found = self.find().await;
        *known = Some((Instant::now(), found.clone()));
        found
    }

    async fn find(&self) -> DiscoveredIssuer {
        let Provider { issuer, http, .. } = &self.provider;
        let server = server::find(http, issuer).await.map_err(|why| self.undiscovered(&why))?;
        match self.identity.client(http, &server, &self.redirect).await {
            Ok(client) => Ok(Arc::new((server, client))),
            Err(why) => Err(self.unregistered(&why)),
        }
    }

    fn undiscovered(&self, why: &DiscoveryError) -> OidcFailure {
        if why.is_temporary() { self.later(why) } else { self.unable(why) }
    }

    fn unregistered(&self, why: &SignInFailure) -> OidcFailure {
        if why.is_temporary() {
            return self.later(why);
        }
        if !why.is_nobody() {
            return self.unable(why);
        }
        let Provider { issuer, .. } = &self.provider;
        if self.unregistered.set(()).is_ok() {
            tracing::error!(
                issuer,
                redirect = self.redirect,
                "nobody can sign in at /connect: {why}; what it takes is `client_id` under `[auth]`, of a client with the \
                 redirect address given here"
            );
        }
        OidcFailure::Operator(format!(
            "Weir is not registered at {issuer}, which says who people are. The operator of this gateway has to register \
             it there and to set `client_id` under `[auth]`."
        ))
    }

    fn nameless(&self, why: &IdentityError) -> OidcFailure {
        let Provider { issuer, .. } = &self.provider;
        if self.nameless.set(()).is_ok() {
            tracing::error!(
                issuer,
                redirect = self.redirect,
                "nobody can sign in at /connect: {why}; have the issuer let the client that is Weir sign people in with the \
                 scope `openid`"
            );
        }
        OidcFailure::Operator(format!(
            "{issuer} does not say who has signed in. The operator of this gateway has to have it do so for Weir (OpenID \
             Connect, scope `openid`)."
        ))
    }

    /// What only the operator can change; the log says what it is.
    fn unable(&self, why: &dyn fmt::Display) -> OidcFailure {
        if self.trouble.is_due() {
            tracing::error!(issuer = self.provider.issuer, "nobody can sign in at /connect: {why}");
        }
        OidcFailure::Operator("The operator of this gateway finds the reason in its log.".to_owned())
    }

    fn later(&self, why: &dyn fmt::Display) -> OidcFailure {
        let Provider { issuer, .. } = &self.provider;
        if self.trouble.is_due() {
            tracing::warn!(issuer, "nobody can sign in at /connect for now: {why}");
        }
        OidcFailure::Later(format!(
            "{issuer}, which says who people are, does not answer as it should. Try again in a moment."
        ))
    }

    /// The issuer has sent somebody back without a code, or somebody says that it has.
    fn turned_away(&self, why: &TokenError) -> OidcFailure {
        let issuer = &self.provider.issuer;
        if *why == TokenError::Denied {
            return OidcFailure::Refused(format!("{issuer} did not let you in, or you went no further there."));
        }
        self.disbelieved(why)
    }

    fn disbelieved(&self, why: &dyn fmt::Display) -> OidcFailure {
        let issuer = &self.provider.issuer;
        if self.disbelief.is_due() {
            tracing::warn!(issuer, "a sign-in at /connect was not believed: {why}");
        }
        OidcFailure::Refused(format!("What came back from {issuer} does not say who you are: {why}."))
    }

    /// Why a sign-in came to nothing.
    async fn stopped(&self, why: IdentityError, what: &SignIn) -> OidcFailure {
        match why {
            IdentityError::Nobody(_) => self.nameless(&why),
            IdentityError::Rejected(why) if why.is_unavailable() => self.later(&why),
            IdentityError::SignIn(SignInError::Token(TokenError::InvalidClient)) => self.unknown(what).await,
            IdentityError::SignIn(SignInError::Token(why)) if why.is_temporary() => self.later(&why),
            IdentityError::SignIn(SignInError::Http(why) | SignInError::Token(TokenError::Http(why))) => {
                self.unreachable(&why)
            }
            why => self.disbelieved(&why),
        }
    }

    /// The issuer does not know the client of a sign-in any more: what it registered is forgotten, so that it is registered
    /// again, unless that was done a moment ago.
    async fn unknown(&self, what: &SignIn) -> OidcFailure {
        let mut known = self.known.lock().await;
        let is_current =
            |(_, found): &(Instant, DiscoveredIssuer)| matches!(found, Ok(found) if found.1.id == what.client.id);
        if !known.as_ref().is_some_and(is_current) || !self.forgetting.is_due() {
            return self.later(&TokenError::InvalidClient);
        }
        *known = None;
        match self.identity.forget(&what.server, &what.client, &self.redirect).await {
            Ok(true) => self.later(&TokenError::InvalidClient),
            Ok(false) => self.unable(&TokenError::InvalidClient),
            Err(why) => self.unable(&why),
        }
    }

    fn unreachable(&self, why: &HttpError) -> OidcFailure {
        if why.is_temporary() { self.later(why) } else { self.unable(why) }
    }
}

/// Whether it is what [`random`] makes.
fn is_random(value: &str) -> bool {
    value.len() == 64 && value.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
