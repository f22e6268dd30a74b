//! From a decision to a header.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use url::Url;
use weir_flow::{
    Origin,
    facts::{Attachment, MintedToken, Presentation},
};

use weir_oauth::{LoginSummary, ProofKey, Secret, proof};

use crate::{
    credential::UpstreamAuth,
    http::{HeaderName, HeaderValue},
};

use super::{
    BoundToken, Credential, CredentialError, CredentialSource, Issued,
    ask::failed,
    slot::{CachedCredential, next_mark},
};

/// How long "no credential" holds. A refusal and a new login end it at once.
const UNASKED: Duration = Duration::from_secs(3600);

/// How long before its end a token is not sent any more, at most: it has a way to go.
const ON_THE_WAY: Duration = Duration::from_secs(2);

impl CachedCredential {
    /// No credential.
    pub(super) fn nothing() -> Self {
        let until = Instant::now() + UNASKED;
        Self {
            credential: None,
            attachment: None,
            login: None,
            due: until,
            good: until,
            news: None,
            renewed: None,
            trouble: None,
        }
    }

    fn of(credential: Credential, ttl_seconds: u32) -> Self {
        let until = Instant::now() + Duration::from_secs(ttl_seconds.into());
        Self { credential: Some(credential), due: until, good: until, ..Self::nothing() }
    }
}

impl CredentialSource {
    /// The same choice with the secret as it is now, if it is another one: a file that was replaced.
    pub(super) fn changed(&self, before: &CachedCredential, origin: &Origin) -> Option<CachedCredential> {
        let attachment = before.attachment.clone()?;
        if let Some((_, source)) = self.secrets.iter().find(|(name, _)| *name == attachment.secret) {
            source.refused();
        }
        let now = self.place(attachment, origin).ok()?;
        let same = now.credential.as_ref().map(|c| &c.value) == before.credential.as_ref().map(|c| &c.value);
        (!same).then_some(now)
    }

    /// A secret of the configuration.
    pub(super) fn place(&self, attachment: Attachment, origin: &Origin) -> Result<CachedCredential, CredentialError> {
        let policy = self.policy.name();
        let secret = &attachment.secret;
        let (_, source) = self.secrets.iter().find(|(name, _)| name == secret).ok_or_else(|| {
            failed(format!("policy `{policy}` asked for the secret `{secret}`, which it was not given"))
        })?;
        let value = source.read().map_err(|why| failed(why.to_string()))?;
        let (header, scheme) = (&attachment.header, attachment.scheme.as_deref());
        let credential = credential(header, scheme, value.expose(), Issued::new(origin.clone()))
            .ok_or_else(|| failed(format!("policy `{policy}` placed {source} in a header that cannot hold it")))?;
        Ok(CachedCredential {
            attachment: Some(attachment.clone()),
            ..CachedCredential::of(credential, attachment.ttl_seconds)
        })
    }

    /// A token of the policy's own making.
    pub(super) fn mint(&self, minted: &MintedToken, origin: &Origin) -> Result<CachedCredential, CredentialError> {
        let issued = Issued::new(origin.clone());
        let credential = credential(&minted.header, minted.scheme.as_deref(), &minted.text, issued);
        let credential = credential
            .ok_or_else(|| failed(format!("policy `{}` made a token that no header can hold", self.policy.name())))?;
        Ok(CachedCredential::of(credential, minted.ttl_seconds))
    }

    /// The token of a login. It is for the origin that it was issued for, whatever upstream asks for it. `before` is what
    /// was kept of the same token.
    pub(super) async fn present(
        &self,
        account: &UpstreamAuth,
        stored: &LoginSummary,
        chosen: &Presentation,
        origin: &Origin,
        before: Option<&CachedCredential>,
    ) -> Result<CachedCredential, CredentialError> {
        let (login, left) = account.token(stored).await.map_err(failed)?;
        let name = account.name();
        let home = parse(&login.origin)
            .filter(|home| home.admits(origin))
            .ok_or_else(|| failed(format!("the login of `{name}` is for {}; sign in again", login.origin)))?;
        let bound = login.proof.as_ref().filter(|proof| proof.bound);
        let bound = bound.map(|proof| BoundToken::new(Arc::clone(&proof.key), &login.access));
        let (header, scheme) = match bound {
            // Its place is not the policy's to choose (RFC 9449 §7.1).
            Some(_) => ("authorization", Some("DPoP")),
            None => (chosen.header.as_str(), chosen.scheme.as_deref()),
        };
        // Who is let in with the one that was placed before is let in with this.
        let issued = before.and_then(|kept| kept.credential.as_ref()).map(|credential| Arc::clone(&credential.issued));
        let credential = credential(header, scheme, login.access.expose(), issued.unwrap_or_else(|| Issued::new(home)))
            .ok_or_else(|| failed(format!("the token of `{name}` is nothing that a header can hold")))?;
        let credential = Credential { bound: bound.map(Arc::new), ..credential };
        let kept = CachedCredential::of(credential, chosen.ttl_seconds);
        let good = left.map_or(kept.due, |left| Instant::now() + left.saturating_sub(ON_THE_WAY.min(left / 10)));
        let (due, login) = (kept.due.min(good), Some(stored.clone()));
        Ok(CachedCredential {
            due,
            good: good.max(due),
            login,
            renewed: before.and_then(|before| before.renewed),
            ..kept
        })
    }
}

/// A header of this text; none if it cannot be one.
fn credential(header: &str, scheme: Option<&str>, text: &str, issued: Arc<Issued>) -> Option<Credential> {
    let name = HeaderName::from_bytes(header.as_bytes()).ok()?;
    let mut value = match scheme {
        Some(scheme) => HeaderValue::from_str(&format!("{scheme} {text}")).ok()?,
        None => HeaderValue::from_str(text).ok()?,
    };
    value.set_sensitive(true);
    Some(Credential { name, value, issued, mark: next_mark(), bound: None })
}

impl BoundToken {
    fn new(key: Arc<ProofKey>, token: &Secret) -> Self {
        Self { key, hash: proof::hash(token.expose().as_bytes()) }
    }
}

impl Issued {
    /// A token that nobody has shown yet.
    fn new(origin: Origin) -> Arc<Self> {
        Arc::new(Self { origin, accepted: AtomicBool::new(false) })
    }
}

/// An origin as a login has it: `https://api.example.com`.
fn parse(text: &str) -> Option<Origin> {
    let url = Url::parse(text).ok()?;
    let host = url.host_str()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some(Origin { scheme: url.scheme().to_owned(), host, port: url.port_or_known_default()? })
}
