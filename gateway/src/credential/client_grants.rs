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

use super::{
    IssuerStore, TokenStoreError,
    issuer_store::{hex, seconds},
};

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
            subject: principal.subject.clone(),
            vouched_by: principal.issuer.clone().unwrap_or_default(),
            groups: principal.groups.clone(),
            scope,
            claims,
            resource,
        }
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
        let Some(Entry { value, version }) = store.get(&key).await? else { return Ok(Redeemed::Unknown) };
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

    /// How many grants of clients a principal has.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn count_grants(&self, principal: &Principal) -> Result<usize, TokenStoreError> {
        let store = self.token_store.open().await?.store.as_ref();
        Ok(store.list(&[grants_of(principal)]).await?.len())
    }

    /// Revokes all grants of a principal. Returns how many there were.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub async fn revoke_all(&self, principal: &Principal) -> Result<usize, TokenStoreError> {
        let store = self.token_store.open().await?.store.as_ref();
        let theirs = store.list(&[grants_of(principal)]).await?;
        for listed in &theirs {
            store.delete(&listed.key).await?;
        }
        Ok(theirs.len())
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
        hex(hmac::sign(&key, secret.as_bytes()).as_ref())
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
    hex(digest(&SHA256, text.as_bytes()).as_ref())
}

/// 32 random bytes in hexadecimal; none if the system has no randomness to give.
fn random() -> Option<String> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).ok()?;
    Some(hex(&random))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::{
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
        time::SystemTime,
    };

    use weir_store::Clock;

    use super::*;

    const LIFETIME: Duration = Duration::from_secs(1000);

    /// A store, and what its clock shows, in seconds.
    struct Scene {
        store: IssuerStore,
        time: Arc<AtomicU64>,
    }

    impl Scene {
        fn new() -> Self {
            let time = Arc::new(AtomicU64::new(1_000_000));
            let shown = Arc::clone(&time);
            let clock =
                Clock::from_fn(move || SystemTime::UNIX_EPOCH + Duration::from_secs(shown.load(Ordering::Relaxed)));
            Self { store: IssuerStore::in_memory(clock), time }
        }

        fn wait(&self, seconds: u64) {
            self.time.fetch_add(seconds, Ordering::Relaxed);
        }

        async fn code(&self) -> String {
            self.code_after(0).await
        }

        /// The same for a person who has signed in so many seconds ago.
        async fn code_after(&self, ago: u64) -> String {
            let grant = TokenGrant { client: "host".to_owned(), ..TokenGrant::default() };
            let binding = CodeBinding { redirect: String::new(), challenge: String::new() };
            let ago = Duration::from_secs(ago);
            self.store.issue_code(grant, binding, ago).await.unwrap().unwrap().expose().to_owned()
        }

        /// The refresh token that a code becomes; none if it is not good.
        async fn redeem(&self, code: &str) -> Option<String> {
            token(self.store.redeem_code(code, "host", LIFETIME, |_, _| true).await.unwrap())
        }

        async fn refresh(&self, old: &str) -> Option<String> {
            token(self.store.refresh(old, "host", |_| true).await.unwrap())
        }
    }

    fn token(redeemed: Redeemed) -> Option<String> {
        match redeemed {
            Redeemed::Good(_, next) => Some(next.expose().to_owned()),
            Redeemed::Reused(_) | Redeemed::Unknown => None,
        }
    }

    #[tokio::test]
    async fn a_code_expires_after_a_minute() {
        let scene = Scene::new();
        let (late, soon) = (scene.code().await, scene.code().await);
        scene.wait(59);
        assert!(scene.redeem(&soon).await.is_some());
        scene.wait(1);
        assert_eq!(scene.redeem(&late).await, None);
    }

    #[tokio::test]
    async fn no_refresh_prolongs_a_grant() {
        let scene = Scene::new();
        let first = scene.redeem(&scene.code().await).await.unwrap();
        scene.wait(999);
        let second = scene.refresh(&first).await.unwrap();
        scene.wait(1);
        assert_eq!(scene.refresh(&second).await, None);
    }

    #[tokio::test]
    async fn a_grant_is_as_old_as_its_sign_in() {
        let scene = Scene::new();
        assert_eq!(scene.redeem(&scene.code_after(1000).await).await, None);
        let first = scene.redeem(&scene.code_after(600).await).await.unwrap();
        scene.wait(399);
        let second = scene.refresh(&first).await.unwrap();
        scene.wait(1);
        assert_eq!(scene.refresh(&second).await, None);
    }

    #[tokio::test]
    async fn the_last_token_is_answered_again_for_a_moment() {
        let scene = Scene::new();
        let first = scene.redeem(&scene.code().await).await.unwrap();
        let second = scene.refresh(&first).await.unwrap();
        scene.wait(29);
        assert_eq!(scene.refresh(&first).await.as_ref(), Some(&second));
        scene.wait(1);
        assert_eq!((scene.refresh(&first).await, scene.refresh(&second).await), (None, None), "all is revoked");
    }

    #[tokio::test]
    async fn a_code_is_answered_once() {
        let scene = Scene::new();
        let code = scene.code().await;
        let token = scene.redeem(&code).await.unwrap();
        assert_eq!((scene.redeem(&code).await, scene.refresh(&token).await), (None, None));
        // Neither passes for the other.
        let code = scene.code().await;
        assert_eq!(scene.refresh(&code.replace(CODE, REFRESH)).await, None);
        let token = scene.redeem(&scene.code().await).await.unwrap();
        assert_eq!(scene.redeem(&token.replace(REFRESH, CODE)).await, None);
    }
}
