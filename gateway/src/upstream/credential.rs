//! With which credential an upstream is opened: a `credentials` policy chooses, this keeps and places what it chose.
//!
//! The policy names a secret and never reads it. Its answer holds for as long as it said, so that a call in the steady
//! state crosses into no guest.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use weir_flow::{
    Origin,
    facts::{Attachment, Choice, Minted, Question, Refusal, Upstream},
};

use crate::{
    caller::Caller,
    config::SecretSource,
    http::{HeaderName, HeaderValue},
    policy::{Policy, Secrets},
};

use super::lock;

/// What opens an upstream: a header, for one origin only.
#[derive(Clone)]
pub struct Credential {
    pub(super) name: HeaderName,
    /// Marked sensitive, so that it cannot be printed.
    pub(super) value: HeaderValue,
    pub(super) origin: Arc<Origin>,
}

/// Where credentials come from.
pub struct Source {
    /// Who chooses.
    pub policy: Policy,
    /// What may be placed, by name.
    pub secrets: Vec<(String, SecretSource)>,
}

/// Why there is no credential; the text is for the operator and holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CredentialError(pub String);

/// The credentials of one upstream.
pub(super) struct Credentials {
    source: Option<Source>,
    kept: Mutex<Option<Kept>>,
    /// Held while the policy is asked, so that many calls ask once.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Kept {
    credential: Option<Credential>,
    attachment: Option<Attachment>,
    until: Instant,
}

impl Credentials {
    pub(super) fn new(source: Option<Source>) -> Self {
        Self { source, kept: Mutex::default(), asking: tokio::sync::Mutex::default() }
    }

    /// The credential to use now; none to go without. `refused` is what the upstream said to the last one.
    pub(super) async fn get(
        &self,
        _caller: Option<&Arc<Caller>>,
        upstream: impl FnOnce() -> Upstream,
        origin: Option<&Origin>,
        refused: Option<Refusal>,
    ) -> Result<Option<Credential>, CredentialError> {
        let (Some(source), Some(origin)) = (&self.source, origin) else { return Ok(None) };
        if refused.is_none()
            && let Some(kept) = self.fresh()
        {
            return Ok(kept.credential);
        }
        let before = lock(&self.kept).clone();
        let _asking = self.asking.lock().await;
        // Whoever held the lock may have done the work.
        if let Some(kept) = self.fresh()
            && (refused.is_none() || !same(before.as_ref(), &kept))
        {
            return Ok(kept.credential);
        }
        if refused.is_some()
            && let Some(changed) = before.and_then(|before| source.changed(before, origin))
        {
            *lock(&self.kept) = Some(changed.clone());
            return Ok(changed.credential);
        }
        *lock(&self.kept) = None;
        let kept = source.ask(upstream(), origin, refused).await?;
        *lock(&self.kept) = Some(kept.clone());
        Ok(kept.credential)
    }

    fn fresh(&self) -> Option<Kept> {
        lock(&self.kept).as_ref().filter(|kept| Instant::now() < kept.until).cloned()
    }
}

impl Source {
    async fn ask(
        &self,
        upstream: Upstream,
        origin: &Origin,
        refused: Option<Refusal>,
    ) -> Result<Kept, CredentialError> {
        let question = Question {
            upstream,
            principal: None,
            secrets: self.secrets.iter().map(|(name, _)| name.clone()).collect(),
            flows: Vec::new(),
            token: None,
            refused,
            efforts: Vec::new(),
        };
        let choice = self.policy.choose(&question, self).await.map_err(|why| CredentialError(why.to_string()))?;
        match choice {
            Choice::None => Ok(Kept { credential: None, attachment: None, until: Instant::now() + UNASKED }),
            Choice::Attach(attachment) => self.place(attachment, origin),
            Choice::Mint(minted) => self.mint(&minted, origin),
            Choice::Stop(why) => Err(CredentialError(why)),
            Choice::Present(_) | Choice::Renew | Choice::Obtain(_) => Err(CredentialError("LATER".to_owned())),
        }
    }

    /// The same choice with the secret as it is now, if it is another one: a file that was replaced.
    fn changed(&self, before: Kept, origin: &Origin) -> Option<Kept> {
        let now = self.place(before.attachment?, origin).ok()?;
        let same = now.credential.as_ref().map(|c| &c.value) == before.credential.as_ref().map(|c| &c.value);
        (!same).then_some(now)
    }

    fn place(&self, attachment: Attachment, origin: &Origin) -> Result<Kept, CredentialError> {
        let policy = self.policy.name();
        let secret = &attachment.secret;
        let (_, source) = self.secrets.iter().find(|(name, _)| name == secret).ok_or_else(|| {
            CredentialError(format!("policy `{policy}` asked for the secret `{secret}`, which it was not given"))
        })?;
        let value = source.read().map_err(|why| CredentialError(why.to_string()))?;
        let (header, scheme) = (&attachment.header, attachment.scheme.as_deref());
        let credential = credential(header, scheme, value.expose(), origin).ok_or_else(|| {
            CredentialError(format!("policy `{policy}` placed {source} in a header that cannot hold it"))
        })?;
        let until = Instant::now() + Duration::from_secs(attachment.holds_for.into());
        Ok(Kept { credential: Some(credential), attachment: Some(attachment), until })
    }

    fn mint(&self, minted: &Minted, origin: &Origin) -> Result<Kept, CredentialError> {
        let credential = credential(&minted.header, minted.scheme.as_deref(), &minted.text, origin);
        let credential = credential.ok_or_else(|| {
            CredentialError(format!("policy `{}` made a token that no header can hold", self.policy.name()))
        })?;
        let until = Instant::now() + Duration::from_secs(minted.holds_for.into());
        Ok(Kept { credential: Some(credential), attachment: None, until })
    }
}

/// How long "no credential" holds.
const UNASKED: Duration = Duration::from_secs(60);

impl Secrets for Source {
    fn read(&self, name: &str) -> Option<String> {
        let (_, source) = self.secrets.iter().find(|(known, _)| known == name)?;
        source.read().ok().map(|secret| secret.expose().to_owned())
    }
}

/// A header of this text; none if it cannot be one.
fn credential(header: &str, scheme: Option<&str>, text: &str, origin: &Origin) -> Option<Credential> {
    let name = HeaderName::from_bytes(header.as_bytes()).ok()?;
    let mut value = match scheme {
        Some(scheme) => HeaderValue::from_str(&format!("{scheme} {text}")).ok()?,
        None => HeaderValue::from_str(text).ok()?,
    };
    value.set_sensitive(true);
    Some(Credential { name, value, origin: Arc::new(origin.clone()) })
}

/// Whether nothing happened between two looks.
fn same(before: Option<&Kept>, now: &Kept) -> bool {
    before.is_some_and(|before| before.until == now.until)
}
