//! What a person has to do, and what becomes of it: in a browser, which comes back here or to a port of the terminal, or
//! with a code on another device.

use std::fmt;

use url::Url;
use weir_oauth::{
    AddressPolicy, Callback, CredentialOwner, DeviceSignIn, LoginKey, LoginSummary, PendingSignIn, PrepareError,
    Prepared, Probed, Redirect, Scopes, Secret, SignInError, TokenError, Tokens, authorize, device, discover, prepare,
    probe, registration, resource, server,
};

use crate::{
    caller::Caller,
    config::{LoginFlow, SecretError},
    telemetry::printable,
};

use super::{CredentialManager, TokenStoreError, UpstreamAuth, settings, shell::quoted};

/// Somebody must sign in. Its text is for the one who can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    pub upstream: String,
    pub owner: CredentialOwner,
    /// Whether there was a login, and it has ended.
    pub ended: bool,
    /// What the new login must be good for; empty to leave that to the servers.
    pub scopes: Vec<String>,
    /// Where that can be done with a browser.
    pub link: Option<String>,
    /// What does it at a terminal; none where the login is that of one principal.
    pub command: Option<String>,
    /// Whether whoever calls can do it, not the operator alone.
    pub for_caller: bool,
}

/// Why a sign-in did not come to its end. What was there before is as good as before.
#[derive(Debug, thiserror::Error)]
pub enum SignInFailure {
    /// The upstream has no login that a person could make.
    #[error("{0}")]
    Not(String),
    #[error(transparent)]
    Store(#[from] TokenStoreError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    SignIn(#[from] SignInError),
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// Who makes the tokens for an upstream.
#[derive(Clone, Debug)]
pub struct TokenIssuer {
    pub name: String,
    /// Whether it names itself to those who come back from it (RFC 9207).
    pub is_named: bool,
    /// Whether the configuration names it.
    pub is_written: bool,
}

/// How an owner stands with one upstream.
#[derive(Clone, Debug)]
pub struct SignInState {
    pub upstream: String,
    pub owner: CredentialOwner,
    pub standing: Standing,
    /// The login, if there is one.
    pub login: Option<LoginSummary>,
    /// Whether a person makes it.
    pub for_people: bool,
}

/// How a login stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is there and good, as far as is known.
    Good,
    /// It is there and will do no more: somebody must sign in again.
    Ended,
    /// It is there and may do too little: somebody must sign in for more.
    TooLittle,
    /// There is none, and one is needed.
    Missing,
    /// There is none, and none has been asked for.
    Unasked,
}

impl Standing {
    /// Whether something has to be done before there is a token.
    pub const fn is_wanting(self) -> bool {
        matches!(self, Self::Missing | Self::Ended)
    }
}

/// What a pending sign-in is for.
pub(super) struct Purpose {
    owner: CredentialOwner,
    prepared: Prepared,
}

impl fmt::Display for Needed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())?;
        match (&self.command, &self.link) {
            (Some(command), Some(link)) => write!(f, ": run `{command}` or open {link}"),
            (Some(command), None) => write!(f, ": run `{command}`"),
            (None, Some(link)) => write!(f, ": open {link}"),
            (None, None) => Ok(()),
        }
    }
}

impl Needed {
    /// What is wanted, as the beginning of a sentence that says how it is done.
    pub fn what(&self) -> String {
        match self.ended {
            true => format!("the login at `{}` has ended, and it needs a new sign-in", self.upstream),
            false => format!("`{}` needs a sign-in", self.upstream),
        }
    }
}

impl UpstreamAuth {
    pub(super) fn needed(&self, owner: &CredentialOwner, scopes: &[String], ended: bool) -> Needed {
        let page = self.token_store.page.get();
        let for_all = page.is_some_and(|page| page.for_all);
        // What one principal of many has to do is done where it is known who they are.
        let terminal = !matches!(owner, CredentialOwner::Principal(issuer, _) if issuer != "local");
        let for_caller = match owner {
            CredentialOwner::Shared => for_all,
            CredentialOwner::Principal(..) => terminal || !self.is_by_code(),
        };
        let more = if scopes.is_empty() { String::new() } else { format!(" --scopes {}", quoted(&scopes.join(" "))) };
        Needed {
            upstream: self.name.clone(),
            owner: owner.clone(),
            ended,
            scopes: scopes.to_vec(),
            link: page.filter(|_| (for_all || !terminal) && !self.is_by_code()).map(|page| page.url.clone()),
            command: terminal.then(|| format!("weir auth login {}{more}", self.argument)),
            for_caller,
        }
    }

    /// Finds out all that a sign-in takes. `redirect` is where it comes back to, none for one with a code;
    /// `more` is what it must be good for beside what the servers say.
    ///
    /// # Errors
    /// If that cannot be found out, or there is nothing to sign in for.
    pub async fn prepare(
        &self,
        owner: &CredentialOwner,
        redirect: Option<Redirect>,
        more: Option<Vec<String>>,
    ) -> Result<Prepared, SignInFailure> {
        if !self.is_for_people() {
            let name = &self.name;
            return Err(SignInFailure::Not(format!(
                "Weir signs in at `{name}` by itself; nobody else can (see `auth` in the configuration)"
            )));
        }
        let by_code = redirect.is_none();
        let opened = self.token_store.open().await?;
        opened.logins.check().await.map_err(TokenStoreError::from)?;
        let http = self.http().map_err(TokenError::from)?;
        let (mut challenge, mut scopes) =
            self.wanted(owner).map(|wanted| (wanted.challenge, wanted.scopes)).unwrap_or_default();
        let is_said = more.is_some();
        if let Some(more) = more {
            scopes = more;
        }
        if challenge.is_none() {
            challenge = self.knock().await?;
        }
        let upstream =
            settings::upstream(&self.name, &self.url, &self.oauth, self.document.as_ref(), redirect, by_code)?;
        let before = self.stored(owner).await?.map(|login| login.key.issuer);
        let (store, clock) = (opened.store.as_ref(), &self.token_store.clock);
        let find = async || prepare(http, store, clock, &upstream, challenge.as_ref(), before.as_deref()).await;
        let mut prepared = find().await?;
        // Where a server gives a code it says itself that it does not know Weir any more.
        if !by_code && registration::is_doubtful(store, &prepared, owner).await.map_err(TokenStoreError::from)? {
            self.refused(&prepared).await?;
            prepared = find().await?;
        }
        if !by_code {
            registration::begun(store, &prepared, owner).await.map_err(TokenStoreError::from)?;
        }
        if scopes.is_empty() && !is_said {
            let kept = self.kept_wanted(owner, &prepared).await?;
            prepared.scopes = prepared.scopes.union(&kept);
        } else if !scopes.is_empty() {
            prepared.scopes = prepared.scopes.union(&scopes.into_iter().collect::<Scopes>());
        }
        Ok(prepared)
    }

    /// Who makes the tokens for this upstream, as it says itself.
    ///
    /// # Errors
    /// If that cannot be found out.
    pub async fn issuer(&self) -> Result<TokenIssuer, SignInFailure> {
        let http = self.http().map_err(TokenError::from)?;
        let written = self.oauth.issuer.as_deref();
        let found = match written {
            Some(issuer) => server::find(http, issuer).await,
            None => discover(http, &self.url, self.knock().await?.as_ref(), None, None).await.map(|found| found.server),
        };
        let server = found.map_err(PrepareError::from)?;
        let is_named = server.authorization_response_iss_parameter_supported;
        Ok(TokenIssuer { name: server.issuer, is_named, is_written: written.is_some() })
    }

    /// What the upstream says to somebody without a credential. It may be where no URL from outside may lead, for its own
    /// address is from the configuration.
    async fn knock(&self) -> Result<Option<weir_oauth::Challenge>, SignInFailure> {
        let http = self.token_store.http(AddressPolicy { loopback: true, private: true }).map_err(TokenError::from)?;
        match probe(&http, &self.url).await {
            Ok(Probed::Refused(challenge)) => Ok(challenge),
            Ok(Probed::Answered(200..300)) if !self.is_configured() && !self.has_metadata().await => {
                Err(SignInFailure::Not(format!("`{}` asks for no login", self.name)))
            }
            // It may ask for one later. Whatever is wrong with it is seen better where its metadata is looked for.
            Ok(Probed::Answered(_)) => Ok(None),
            Err(why) if why.is_temporary() => Err(TokenError::from(why).into()),
            Err(_) => Ok(None),
        }
    }

    /// Whether it says who makes tokens for it, though it has not asked for one.
    async fn has_metadata(&self) -> bool {
        let Ok(http) = self.http() else { return false };
        matches!(resource::find(http, &self.url, None).await, Ok(Some(_)))
    }

    /// Whether the upstream asks somebody without a credential for one.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub async fn asks(&self) -> Result<bool, SignInFailure> {
        let http = self.token_store.http(AddressPolicy { loopback: true, private: true }).map_err(TokenError::from)?;
        let said = probe(&http, &self.url).await.map_err(TokenError::from)?;
        Ok(matches!(said, Probed::Refused(_)))
    }

    /// Starts a sign-in with a browser: the page to open, and what to keep until then.
    ///
    /// # Errors
    /// If the server cannot do it.
    pub fn begin(&self, prepared: &Prepared) -> Result<(Url, PendingSignIn), SignInFailure> {
        let http = self.http().map_err(TokenError::from)?;
        Ok(authorize::begin(http, prepared.sign_in())?)
    }

    /// Ends a sign-in with a browser, and keeps the login.
    ///
    /// # Errors
    /// If what came back is not good, or cannot be kept.
    pub async fn end(
        &self,
        owner: &CredentialOwner,
        prepared: &Prepared,
        pending: PendingSignIn,
        callback: Callback,
    ) -> Result<(), SignInFailure> {
        let (http, asked) = (self.http().map_err(TokenError::from)?, self.token_store.clock.now());
        let store = self.token_store.open().await?.store.as_ref();
        registration::returned(store, prepared, owner).await.map_err(TokenStoreError::from)?;
        let tokens = pending.finish(http, callback, &self.token_store.clock).await;
        if matches!(tokens, Err(SignInError::Token(TokenError::InvalidClient))) {
            self.refused(prepared).await?;
        }
        self.keep(owner, prepared, tokens?, asked).await
    }

    /// Starts a sign-in with a code and another device; `more` as for [`prepare`](Self::prepare).
    ///
    /// # Errors
    /// If the server cannot do it.
    pub async fn begin_with_code(
        &self,
        owner: &CredentialOwner,
        more: Option<Vec<String>>,
    ) -> Result<(Prepared, DeviceSignIn), SignInFailure> {
        let http = self.http().map_err(TokenError::from)?;
        let mut again = true;
        loop {
            let prepared = self.prepare(owner, None, more.clone()).await?;
            match device::begin(http, &prepared.endpoint(&self.token_store.clock), &prepared.scopes).await {
                // It has forgotten whom it has registered: once more, as somebody new.
                Err(TokenError::InvalidClient) if self.refused(&prepared).await? && again => again = false,
                begun => return Ok((prepared, begun?)),
            }
        }
    }

    /// Waits for it, and keeps the login.
    ///
    /// # Errors
    /// If nobody signs in, or it cannot be kept.
    pub async fn end_with_code(
        &self,
        owner: &CredentialOwner,
        prepared: &Prepared,
        begun: DeviceSignIn,
    ) -> Result<(), SignInFailure> {
        let (http, clock) = (self.http().map_err(TokenError::from)?, &self.token_store.clock);
        let tokens = begun.finish(http, &prepared.endpoint(clock)).await;
        if matches!(tokens, Err(TokenError::InvalidClient)) {
            self.refused(prepared).await?;
        }
        self.keep(owner, prepared, tokens?, clock.now()).await
    }

    /// Forgets what an owner has here, of whatever issuer, and has the servers forget it. Says whether there was anything,
    /// and what was said to it.
    ///
    /// # Errors
    /// If the store cannot be used.
    pub async fn sign_out(&self, owner: &CredentialOwner) -> Result<Option<Result<(), TokenError>>, SignInFailure> {
        if !self.token_store.list(&[self.range(owner)]).await?.iter().any(|login| login.origin == self.origin) {
            return Ok(None);
        }
        let http = self.http().map_err(TokenError::from)?;
        Ok(self.token_store.sign_out(http, &self.name, owner, Some(&self.origin)).await?)
    }

    /// Takes over the logins of all owners that are kept under a former name of this upstream; gives how many there were.
    /// Opens no store if there are none.
    ///
    /// # Errors
    /// If the store cannot be used, or a login is being renewed.
    pub async fn take_over(&self, former: &str) -> Result<usize, TokenStoreError> {
        let kept = self.token_store.list(&[LoginKey::range(Some(former), None)]).await?;
        if !kept.iter().any(|login| login.origin == self.origin) {
            return Ok(0);
        }
        let logins = &self.token_store.open().await?.logins;
        Ok(logins.rename(former, &self.name, &self.origin).await?)
    }

    /// How an owner stands here.
    ///
    /// # Errors
    /// If there is a store that cannot be read.
    pub async fn state(&self, owner: &CredentialOwner) -> Result<SignInState, TokenStoreError> {
        Ok(self.state_in(&self.token_store.list(&[self.range(owner)]).await?, owner))
    }

    fn state_in(&self, listed: &[LoginSummary], owner: &CredentialOwner) -> SignInState {
        let login = self.stored_in(listed, owner);
        let now = self.token_store.clock.now();
        let standing = match &login {
            None if self.is_configured() || self.wanted(owner).is_some() => Standing::Missing,
            None => Standing::Unasked,
            Some(login) if login.ended => Standing::Ended,
            Some(login) if !login.refreshable && login.expires.is_some_and(|end| end <= now) => Standing::Ended,
            Some(login) => match self.wanted(owner) {
                Some(wanted) if !login.scopes.covers(&wanted.scopes.iter().cloned().collect()) => Standing::TooLittle,
                // The upstream has thrown it out, whatever its authorization server thinks of it.
                Some(wanted) if wanted.challenge.is_some() && wanted.since > login.issued => Standing::Ended,
                _ => Standing::Good,
            },
        };
        let (upstream, for_people) = (self.name.clone(), self.is_for_people());
        SignInState { upstream, owner: owner.clone(), standing, login, for_people }
    }

    async fn keep(
        &self,
        owner: &CredentialOwner,
        prepared: &Prepared,
        tokens: Tokens,
        asked: std::time::SystemTime,
    ) -> Result<(), SignInFailure> {
        let login = prepared.login(tokens, asked);
        let opened = self.token_store.open().await?;
        let key = prepared.key(owner.clone());
        opened.logins.save(&key, &login).await.map_err(TokenStoreError::from)?;
        self.forget_wanted(&key).await?;
        self.satisfied(owner);
        self.token_store.changes.tell(&self.name, owner);
        Ok(())
    }
}

impl CredentialManager {
    /// Starts a sign-in of `owner` with a browser that comes back to `redirect`, and says which page to open. `binding` is
    /// what only that browser and that principal can bring back.
    ///
    /// # Errors
    /// If there is no such upstream, or no sign-in there.
    pub async fn begin_sign_in(
        &self,
        upstream: &str,
        owner: &CredentialOwner,
        redirect: Redirect,
        binding: Secret,
    ) -> Result<Url, SignInFailure> {
        let account = self.account(upstream).ok_or_else(|| unknown(upstream))?;
        if account.oauth.flow == LoginFlow::DeviceCode {
            let how = format!("sign in at `{upstream}` with a code: run `weir auth login {}`", account.argument);
            return Err(SignInFailure::Not(how));
        }
        let prepared = account.prepare(owner, Some(redirect), None).await?;
        let (url, pending) = account.begin(&prepared)?;
        let whose = match owner {
            CredentialOwner::Shared => "",
            CredentialOwner::Principal(_, subject) => subject,
        };
        self.pending.keep(pending, whose, binding, Purpose { owner: owner.clone(), prepared });
        Ok(url)
    }

    /// Ends a sign-in: `target` is the path and the query with which the browser came back. Says at which upstream, and as
    /// whom.
    ///
    /// # Errors
    /// If nobody waits for it, it was begun by somebody else, or the server does not give a token for it.
    pub async fn finish_sign_in(
        &self,
        target: &str,
        binding: &Secret,
    ) -> Result<(String, CredentialOwner), SignInFailure> {
        let callback = Callback::parse(target);
        let (pending, Purpose { owner, prepared }) = self.pending.take(&callback, binding)?;
        let account = self.account(&prepared.upstream).ok_or_else(|| unknown(&prepared.upstream))?;
        account.end(&owner, &prepared, pending, callback).await?;
        Ok((prepared.upstream, owner))
    }

    /// How a caller stands with every upstream that may need a login, in the order of the configuration.
    ///
    /// # Errors
    /// If there is a store that cannot be read.
    pub async fn states(&self, caller: Option<&std::sync::Arc<Caller>>) -> Result<Vec<SignInState>, TokenStoreError> {
        let askers = self.accounts().into_iter().filter_map(|account| Some((account.asker(caller)?, account)));
        let askers: Vec<_> = askers.collect();
        let ranges: Vec<_> = askers.iter().map(|(asker, account)| account.range(&asker.owner)).collect();
        let listed = self.token_store.list(&ranges).await?;
        Ok(askers.into_iter().map(|(asker, account)| account.state_in(&listed, &asker.owner)).collect())
    }
}

fn unknown(upstream: &str) -> SignInFailure {
    let name = printable(&upstream[..upstream.floor_char_boundary(64)]);
    SignInFailure::Not(format!("there is no upstream `{name}` that takes a login"))
}
