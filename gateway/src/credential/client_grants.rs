//! What people let clients have: an authorization code, then refresh tokens (RFC 6749 §4.1.2 and §6, RFC 9700 §4.14).
//!
//! A grant has one secret at a time. It begins as a code, which is good for a minute. A refresh token takes the place of the
//! code, and each refresh token is replaced when it is used. Who brings a secret that was replaced has stolen it, or was
//! stolen from, so the grant is revoked. Only the last refresh token is answered again for a moment, with the same successor:
//! answers get lost, and processes of one client share a token. The store has the SHA-256 of the secret, never the secret.
//! How long a grant is good for counts from the sign-in of its person: nothing prolongs it.

use std::time::{Duration, UNIX_EPOCH};

use ring::{
    digest::{SHA256, digest},
    hmac,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use weir_flow::facts::Principal;
use weir_oauth::Secret;
use weir_store::{Entry, Key, Swap, Value};
use zeroize::Zeroizing;

use super::{IssuerStore, TokenStoreError, issuer_store::seconds};

/// How long a code is good.
const CODE_TIME: Duration = Duration::from_secs(60);
/// How long after its use a refresh token is answered again.
const AGAIN: Duration = Duration::from_secs(30);
/// How many grants of one principal are good at once. With more, the oldest is revoked.
const SHARE: usize = 50;
/// How many there may be in all. With more, clients get none.
const MOST: usize = 50_000;
/// The namespace of the store.
const GRANTS: &str = "client-grant";
/// The claims of a person that tokens of Weir pass on.
const PROFILE: [&str; 3] = ["email", "name", "preferred_username"];
/// What codes and refresh tokens begin with.
const CODE: &str = "weirac";
const REFRESH: &str = "weirrt";

/// What a client may have access tokens for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct TokenGrant {
    pub client: String,
    /// What the client called itself; empty where it proves who it is.
    #[serde(default)]
    pub client_name: String,
    /// Whether the operator had configured the client. Its grants end with that: a name that is a URL makes it no other
    /// client.
    #[serde(default)]
    pub configured: bool,
    /// Whom the tokens are for, as the issuer of the company names them.
    pub subject: String,
    /// The issuer of the company.
    pub vouched_by: String,
    pub groups: Vec<String>,
    pub scope: String,
    /// What the company says of a person, as far as tokens of Weir pass it on.
    pub claims: Map<String, Json>,
    /// The endpoint that the tokens open (RFC 8707).
    pub resource: String,
}

/// A client that is signed in.
#[derive(Clone, Debug)]
pub struct ClientGrant {
    /// Names it on a page. It is no secret, and the same for as long as the grant is good.
    pub id: String,
    /// In seconds since 1970.
    pub since: u64,
    pub until: u64,
    pub grant: TokenGrant,
}

/// What must come with a code.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct CodeBinding {
    /// The redirect URI that the code was sent to.
    pub redirect: String,
    /// The PKCE challenge, of the method S256 (RFC 7636).
    pub challenge: String,
}

/// What became of a code or a refresh token.
#[derive(Debug)]
pub enum Redeemed {
    /// It was good, and this refresh token takes its place.
    Good(Box<TokenGrant>, Secret),
    /// It was used before. This grant is revoked.
    Reused(Box<TokenGrant>),
    Unknown,
}

#[derive(Serialize, Deserialize)]
struct GrantRecord {
    /// Of the secret.
    hash: String,
    /// In seconds since 1970.
    until: u64,
    /// When its person signed in, in the same way.
    signed_in: u64,
    /// None once the code is used.
    code: Option<CodeBinding>,
    /// The hash of the last refresh token, and until when it is answered again.
    last: Option<(String, u64)>,
    /// From which each secret makes the next.
    seed: String,
    grant: TokenGrant,
}

impl TokenGrant {
    /// What a principal lets a client have.
    #[must_use]
    pub fn new(principal: &Principal, client: String, scope: String, resource: String) -> Self {
        let mut claims: Map<String, Json> = serde_json::from_str(&principal.claims).unwrap_or_default();
        claims.retain(|name, value| PROFILE.contains(&name.as_str()) && value.is_string());
        Self {
            client,
            client_name: String::new(),
            configured: false,
            subject: principal.subject.clone(),
            vouched_by: principal.issuer.clone().unwrap_or_default(),
            groups: principal.groups.clone(),
            scope,
            claims,
            resource,
        }
    }
}

impl ClientGrant {
    /// What people know the client by: its own word, or else its `client_id`.
    #[must_use]
    pub fn name(&self) -> &str {
        let TokenGrant { client, client_name, .. } = &self.grant;
        if client_name.is_empty() { client } else { client_name }
    }
}

impl IssuerStore {
    /// Makes the code of a new grant; none if there are too many grants. The person has signed in so long ago.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub async fn issue_code(
        &self,
        grant: TokenGrant,
        code: CodeBinding,
        ago: Duration,
    ) -> Result<Option<Secret>, TokenStoreError> {
        let store = self.token_store.open().await?.store.as_ref();
        let owner = owner(&grant.subject, &grant.vouched_by);
        let mut theirs = store.list(&[Key::new(GRANTS, &[&owner])]).await?;
        // What is listed says when the grant began, in microseconds since 1970.
        theirs.sort_by_key(|listed| listed.about.parse::<u128>().unwrap_or_default());
        for listed in theirs.iter().take((theirs.len() + 1).saturating_sub(SHARE)) {
            store.delete(&listed.key).await?;
        }
        if store.list(&[Key::new(GRANTS, &[])]).await?.len() >= MOST {
            tracing::warn!("clients have {MOST} grants, which is the most; a client got none");
            return Ok(None);
        }
        let (Some(id), Some(secret), Some(seed)) = (random(), random(), random()) else { return Ok(None) };
        let now = self.token_store.clock.now();
        let began = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros().to_string();
        let until = seconds(now) + CODE_TIME.as_secs();
        let signed_in = seconds(now).saturating_sub(ago.as_secs());
        let record = GrantRecord { hash: hash(&secret), until, signed_in, code: Some(code), last: None, seed, grant };
        store.put(&Key::new(GRANTS, &[&owner, &id]), &record.value(began), Some(CODE_TIME)).await?;
        Ok(Some(Secret::new(format!("{CODE}_{owner}_{id}_{secret}"))))
    }

    /// Uses the code of a client up, if `is_good` says that all came with it that must. Refresh tokens follow
    /// until `lifetime` after the sign-in.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub async fn redeem_code(
        &self,
        code: &str,
        client: &str,
        lifetime: Duration,
        is_good: impl Fn(&CodeBinding, &TokenGrant) -> bool,
    ) -> Result<Redeemed, TokenStoreError> {
        let now = seconds(self.token_store.clock.now());
        let until = |record: &GrantRecord| record.signed_in + lifetime.as_secs();
        let judge = |record: &GrantRecord| match &record.code {
            Some(binding) if is_good(binding, &record.grant) && until(record) > now => SecretCheck::Good(until(record)),
            Some(_) => SecretCheck::NotNow,
            None => SecretCheck::Replaced,
        };
        self.redeem(CODE, code, client, judge).await
    }

    /// Uses a refresh token of a client up, if `is_good` says so.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub async fn refresh(
        &self,
        token: &str,
        client: &str,
        is_good: impl Fn(&TokenGrant) -> bool,
    ) -> Result<Redeemed, TokenStoreError> {
        let judge = |record: &GrantRecord| match record.code {
            Some(_) => SecretCheck::Replaced,
            None if is_good(&record.grant) => SecretCheck::Good(record.until),
            None => SecretCheck::NotNow,
        };
        self.redeem(REFRESH, token, client, judge).await
    }

    async fn redeem(
        &self,
        prefix: &str,
        token: &str,
        client: &str,
        judge: impl Fn(&GrantRecord) -> SecretCheck,
    ) -> Result<Redeemed, TokenStoreError> {
        let store = self.token_store.open().await?.store.as_ref();
        let Some((key, secret)) = parse(prefix, token) else { return Ok(Redeemed::Unknown) };
        let Some(Entry { value, version, .. }) = store.get(&key).await? else { return Ok(Redeemed::Unknown) };
        let Some(record) = GrantRecord::parse(&value) else { return Ok(Redeemed::Unknown) };
        let now = seconds(self.token_store.clock.now());
        // Another client's grant is left alone: a client that has stolen its secret must not be able to end it.
        if record.grant.client != client || record.until <= now {
            return Ok(Redeemed::Unknown);
        }
        let next = record.next(secret);
        let stem = token.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(secret)).unwrap_or_default();
        let refresh = Secret::new(format!("{REFRESH}{stem}{next}"));
        let shown = hash(secret);
        let check = match &record.last {
            _ if record.hash == shown => judge(&record),
            Some((last, again)) if *last == shown && now < *again && record.hash == hash(&next) => match judge(&record)
            {
                SecretCheck::Good(_) => SecretCheck::Again,
                check => check,
            },
            _ => SecretCheck::Replaced,
        };
        let until = match check {
            SecretCheck::Good(until) => until,
            SecretCheck::Again => return Ok(Redeemed::Good(Box::new(record.grant), refresh)),
            SecretCheck::NotNow => return Ok(Redeemed::Unknown),
            SecretCheck::Replaced => {
                store.delete(&key).await?;
                return Ok(Redeemed::Reused(Box::new(record.grant)));
            }
        };
        let last = record.code.is_none().then(|| (shown, now + AGAIN.as_secs()));
        let successor = GrantRecord { hash: hash(&next), until, code: None, last, ..record };
        let left = Duration::from_secs(until.saturating_sub(now));
        match store.swap(&key, Some(version), &successor.value(value.about), Some(left)).await? {
            Swap::Done(_) => Ok(Redeemed::Good(Box::new(successor.grant), refresh)),
            // It came twice at the same time.
            Swap::Lost(_) if successor.last.is_some() => Box::pin(self.redeem(prefix, token, client, judge)).await,
            Swap::Lost(_) => {
                store.delete(&key).await?;
                Ok(Redeemed::Reused(Box::new(successor.grant)))
            }
        }
    }

    /// The clients that are signed in: of a principal, or of all. The latest comes first.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn grants(&self, of: Option<&Principal>) -> Result<Vec<ClientGrant>, TokenStoreError> {
        let all = self.read_grants(of).await?.into_iter();
        let mut all: Vec<ClientGrant> = all.filter(|(_, _, is_code)| !is_code).map(|(_, grant, _)| grant).collect();
        all.sort_by_key(|grant| std::cmp::Reverse(grant.since));
        Ok(all)
    }

    /// Revokes the grants of a principal, or of all, that `is_meant` chooses. Returns them.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub async fn revoke_grants(
        &self,
        of: Option<&Principal>,
        is_meant: impl Fn(&ClientGrant) -> bool,
    ) -> Result<Vec<ClientGrant>, TokenStoreError> {
        let store = self.token_store.open().await?.store.as_ref();
        let mut revoked = Vec::new();
        for (key, grant, is_code) in self.read_grants(of).await? {
            if is_meant(&grant) && store.delete(&key).await? && !is_code {
                revoked.push(grant);
            }
        }
        Ok(revoked)
    }

    /// Where each grant is, what it is, and whether its client has but a code so far.
    async fn read_grants(&self, of: Option<&Principal>) -> Result<Vec<(Key, ClientGrant, bool)>, TokenStoreError> {
        let store = self.token_store.open().await?.store.as_ref();
        let mut all = Vec::new();
        for listed in store.list(&[of.map_or_else(|| Key::new(GRANTS, &[]), grants_of)]).await? {
            let Some(entry) = store.get(&listed.key).await? else { continue };
            let Some(record) = GrantRecord::parse(&entry.value) else { continue };
            // Microseconds since 1970.
            let since = listed.about.parse::<u64>().unwrap_or_default() / 1_000_000;
            // Not the one in the tokens: whoever sends that with a wrong secret has the grant revoked.
            let id = hash(&listed.key.parts().join("_"));
            let grant = ClientGrant { id, since, until: record.until, grant: record.grant };
            all.push((listed.key, grant, record.code.is_some()));
        }
        Ok(all)
    }

    /// Revokes the grant of a refresh token of this client (RFC 7009). Returns what was granted.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub async fn revoke(&self, token: &str, client: &str) -> Result<Option<TokenGrant>, TokenStoreError> {
        let store = self.token_store.open().await?.store.as_ref();
        let Some((key, _)) = parse(REFRESH, token) else { return Ok(None) };
        let Some(entry) = store.get(&key).await? else { return Ok(None) };
        let record = GrantRecord::parse(&entry.value).filter(|record| record.grant.client == client);
        let Some(record) = record else { return Ok(None) };
        Ok(store.delete(&key).await?.then_some(record.grant))
    }
}

/// What a secret is good for.
enum SecretCheck {
    /// The grant goes on until then, in seconds since 1970.
    Good(u64),
    /// It was used a moment ago, and is answered as before.
    Again,
    /// The request is wrong, and the secret is as good as before.
    NotNow,
    /// It was used before.
    Replaced,
}

impl GrantRecord {
    fn value(&self, about: String) -> Value {
        Value { about, secret: Zeroizing::new(serde_json::to_vec(self).unwrap_or_default()) }
    }

    /// The secret that takes the place of another one.
    fn next(&self, secret: &str) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.seed.as_bytes());
        hex::encode(hmac::sign(&key, secret.as_bytes()))
    }

    fn parse(value: &Value) -> Option<Self> {
        serde_json::from_slice(&value.secret).ok()
    }
}

/// Where a grant is kept, and the secret that was shown.
fn parse<'a>(prefix: &str, shown: &'a str) -> Option<(Key, &'a str)> {
    let mut parts = shown.strip_prefix(prefix)?.strip_prefix('_')?.split('_');
    let (owner, id, secret) = (parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let good = parts.next().is_none() && [owner, id, secret].into_iter().all(is_hex);
    good.then(|| (Key::new(GRANTS, &[owner, id]), secret))
}

/// Where the grants of a principal are.
fn grants_of(principal: &Principal) -> Key {
    Key::new(GRANTS, &[&owner(&principal.subject, principal.issuer.as_deref().unwrap_or_default())])
}

fn owner(subject: &str, issuer: &str) -> String {
    hash(&format!("{issuer}\n{subject}"))
}

fn hash(text: &str) -> String {
    hex::encode(digest(&SHA256, text.as_bytes()))
}

/// 32 random bytes in hexadecimal; none if the system has no randomness to give.
fn random() -> Option<String> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).ok()?;
    Some(hex::encode(random))
}

#[cfg(test)]
mod tests;
