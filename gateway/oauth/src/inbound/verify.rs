//! The check of a token that is a JWT (RFC 7519, RFC 8725): of who calls (RFC 9068), or of who has signed in (OpenID
//! Connect Core 1.0 §2).

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, Validation, errors::ErrorKind};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::{Map, Value};
use thiserror::Error;
use url::Url;
use weir_store::Clock;

use crate::{DiscoveryError, Http, Scopes, TokenError, authorize::same, crypto};

use super::{groups, keys::Keys, proof::ProofError};

/// Whose tokens are accepted, and for what.
#[derive(Clone, Debug)]
pub struct Issuer {
    /// Its name, letter by letter.
    pub issuer: String,
    /// Who a token must be for: any of these.
    pub audiences: Vec<String>,
    /// Where its keys are, if its metadata is not to be asked.
    pub keys: Option<Url>,
    /// How far its clock and ours may differ.
    pub leeway: Duration,
    /// With what it signs: empty for RS256, PS256, ES256 and EdDSA.
    pub algorithms: Vec<Algorithm>,
    /// The claim that lists the groups of a subject: a name, or names with dots between them that lead to it.
    pub groups: String,
}

/// Checks tokens of one issuer.
pub struct Verifier {
    issuer: Issuer,
    keys: Keys,
    clock: Clock,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedToken {
    pub subject: String,
    /// Who vouches for it.
    pub issuer: String,
    pub scopes: Scopes,
    pub groups: Vec<String>,
    /// The SHA-256 of the certificate that whoever brings it must show, in base64url (RFC 8705 §3.1). The check is the
    /// caller's of this function.
    pub certificate: Option<String>,
    /// The thumbprint of the key that whoever brings it must prove to hold (RFC 9449 §6.1). The check is the caller's of this
    /// function.
    pub key: Option<String>,
    pub expires: SystemTime,
    pub claims: Map<String, Value>,
}

/// Why a token is not accepted. Holds nothing of it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Rejected {
    #[error("the token is no signed JWT for access")]
    Malformed,
    #[error("the token is signed with an algorithm that is not accepted")]
    Algorithm,
    #[error("the token is not signed by the issuer")]
    Signature,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    Early,
    /// RFC 7515 §4.1.11.
    #[error("the token has critical header parameters (`crit`), of which none is known here")]
    Critical,
    /// RFC 7800. What can be shown is a certificate (RFC 8705) or a proof (RFC 9449).
    #[error("the token is bound to a key (`cnf`) that its client has not shown here")]
    Bound,
    #[error("the token is bound to no key, and a proof of one came with it or is needed")]
    Unbound,
    #[error(transparent)]
    Proof(#[from] ProofError),
    #[error("the token is of another issuer")]
    Issuer,
    #[error("the token is for another audience")]
    Audience,
    #[error("the token was given to another client")]
    Client,
    #[error("the token is of another sign-in")]
    Nonce,
    #[error("the token does not list its groups as at most {MAX_GROUPS} texts of at most {MAX_GROUP} bytes",
        MAX_GROUPS = groups::MAX_GROUPS, MAX_GROUP = groups::MAX_GROUP)]
    Groups,
    #[error("the token has no `{0}`")]
    Missing(&'static str),
    /// RFC 7662 §2.2.
    #[error("the issuer says that the token is not active")]
    Inactive,
    #[error("what is published by the issuer cannot be had: {0}")]
    Unavailable(DiscoveryError),
    #[error("the issuer does not say what the token is good for: {0}")]
    Unchecked(TokenError),
}

impl Rejected {
    /// Whether it says nothing about the token, and the same one may be accepted later.
    #[must_use]
    pub const fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Unchecked(_))
    }

    /// The kind of reason, in one word.
    pub const fn class(&self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Algorithm => "algorithm",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::Early => "early",
            Self::Critical => "critical",
            Self::Bound => "bound",
            Self::Unbound => "unbound",
            Self::Proof(_) => "proof",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::Client => "client",
            Self::Nonce => "nonce",
            Self::Groups => "groups",
            Self::Missing(_) => "incomplete",
            Self::Inactive => "inactive",
            Self::Unavailable(_) | Self::Unchecked(_) => "unavailable",
        }
    }
}

/// The issuer that a token names, which only picks who checks it: nothing of it is believed yet.
///
/// # Errors
/// If it is no JWT, or names none.
pub fn named_issuer(token: &str) -> Result<String, Rejected> {
    if token.len() > MAX_TOKEN {
        return Err(Rejected::Malformed);
    }
    let mut parts = token.split('.');
    let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(Rejected::Malformed);
    };
    let claims = URL_SAFE_NO_PAD.decode(claims).map_err(|_| Rejected::Malformed)?;
    let Claims(claims) = serde_json::from_slice(&claims).map_err(|_| Rejected::Malformed)?;
    claims.get("iss").and_then(Value::as_str).map(str::to_owned).ok_or(Rejected::Issuer)
}

/// The claims of a token. One that is there twice makes it unreadable: two readers might take different ones
/// (RFC 7519 §4).
pub(super) struct Claims(pub(super) Map<String, Value>);

impl<'de> Deserialize<'de> for Claims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ClaimsVisitor;

        impl<'de> Visitor<'de> for ClaimsVisitor {
            type Value = Claims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("claims")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Claims, A::Error> {
                let mut claims = Map::new();
                while let Some((name, value)) = access.next_entry::<String, Value>()? {
                    if claims.insert(name, value).is_some() {
                        return Err(A::Error::custom("a claim is there twice"));
                    }
                }
                Ok(Claims(claims))
            }
        }

        deserializer.deserialize_map(ClaimsVisitor)
    }
}

/// The `typ` of an ID-JAG.
const ASSERTION_KIND: &str = "oauth-id-jag+jwt";

/// Longer than any token that fits into a header.
const MAX_TOKEN: usize = 16 * 1024;

impl Verifier {
    /// A checker. Fetches nothing yet.
    pub fn new(issuer: Issuer, http: Http, clock: Clock) -> Self {
        let keys = Keys::new(issuer.issuer.clone(), issuer.keys.clone(), http, clock.clone());
        Self::with(issuer, keys, clock)
    }

    /// A checker of what this program has signed itself, with the keys of [`set_keys`](Self::set_keys).
    pub fn local(issuer: Issuer, clock: Clock) -> Self {
        let keys = Keys::given(issuer.issuer.clone(), clock.clone());
        Self::with(issuer, keys, clock)
    }

    /// Gives a [`local`](Self::local) checker its keys, as JWKs (RFC 7517).
    pub fn set_keys(&self, keys: Vec<Value>) {
        self.keys.set(keys);
    }

    fn with(mut issuer: Issuer, keys: Keys, clock: Clock) -> Self {
        crypto::install();
        if issuer.algorithms.is_empty() {
            issuer.algorithms = vec![Algorithm::RS256, Algorithm::PS256, Algorithm::ES256, Algorithm::EdDSA];
        }
        issuer.algorithms.retain(|algorithm| algorithm.family() != jsonwebtoken::AlgorithmFamily::Hmac);
        Self { issuer, keys, clock }
    }

    /// Who calls with this token.
    ///
    /// # Errors
    /// If it is not accepted; only [`Rejected::Unavailable`] is no answer about the token.
    pub async fn verify(&self, token: &str) -> Result<VerifiedToken, Rejected> {
        // RFC 8725 §3.11: a token that says that it is of another kind opens nothing here. One that says nothing, as most ID
        // tokens do, is told by its audience.
        let claims = self.signed(token, &["jwt", "at+jwt", "application/at+jwt"], &[]).await?;
        let is_ours = |named: &str| self.issuer.audiences.iter().any(|audience| audience == named);
        if !audiences(&claims).any(is_ours) {
            return Err(Rejected::Audience);
        }
        subject(&self.issuer, claims, self.clock.now())
    }

    /// Who has signed in, by the ID token that `client` was given for the sign-in with this `nonce` (OpenID Connect Core
    /// §3.1.3.7).
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub async fn verify_identity(&self, token: &str, client: &str, nonce: &str) -> Result<VerifiedToken, Rejected> {
        // OpenID Connect Registration §2: RS256 unless the client has asked for something else.
        let claims = self.signed(token, &["jwt"], &[Algorithm::RS256]).await?;
        if claims.contains_key("cnf") {
            return Err(Rejected::Bound);
        }
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if !text("nonce").is_some_and(|named| same(named, nonce)) {
            return Err(Rejected::Nonce);
        }
        let (ours, all) = (audiences(&claims).any(|named| named == client), audiences(&claims).count());
        // One for several must name the one that it was given to; and whoever is named must be us.
        let given = claims.get("azp").map_or(all == 1, |party| party.as_str() == Some(client));
        if !ours || !given {
            return Err(Rejected::Audience);
        }
        subject(&self.issuer, claims, self.clock.now())
    }

    /// For whom an ID-JAG vouches, which the issuer gave to `client` for the authorization server `server`
    /// (draft-ietf-oauth-identity-assertion-authz-grant). The caller of this function keeps `jti` to one use.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub async fn verify_assertion(&self, token: &str, server: &str, client: &str) -> Result<VerifiedToken, Rejected> {
        if jsonwebtoken::decode_header(token).ok().is_none_or(|head| head.typ.is_none()) {
            return Err(Rejected::Malformed);
        }
        let claims = self.signed(token, &[ASSERTION_KIND], &[]).await?;
        if claims.contains_key("cnf") {
            return Err(Rejected::Bound);
        }
        if !audiences(&claims).eq([server]) {
            return Err(Rejected::Audience);
        }
        if claims.get("client_id").and_then(Value::as_str) != Some(client) {
            return Err(Rejected::Client);
        }
        if claims.get("jti").and_then(Value::as_str).is_none_or(str::is_empty) {
            return Err(Rejected::Missing("jti"));
        }
        subject(&self.issuer, claims, self.clock.now())
    }

    /// What a token says that is of one of these kinds, and made by the issuer; `also` with these algorithms.
    async fn signed(&self, token: &str, kinds: &[&str], also: &[Algorithm]) -> Result<Map<String, Value>, Rejected> {
        if token.len() > MAX_TOKEN {
            return Err(Rejected::Malformed);
        }
        let head = jsonwebtoken::decode_header(token).map_err(|_| Rejected::Malformed)?;
        let kind = head.typ.as_deref().map(str::to_ascii_lowercase);
        if kind.is_some_and(|kind| !kinds.contains(&kind.as_str())) {
            return Err(Rejected::Malformed);
        }
        if head.crit.is_some() {
            return Err(Rejected::Critical);
        }
        if !self.issuer.algorithms.contains(&head.alg) && !also.contains(&head.alg) {
            return Err(Rejected::Algorithm);
        }
        let fits = |key: &super::keys::VerificationKey| key.may_sign(head.kid.as_deref(), head.alg);
        let keys = self.keys.get(fits).await.map_err(Rejected::Unavailable)?;
        let validation = signature_only(head.alg);
        let decoded = keys
            .iter()
            .filter(|key| fits(key))
            .map(|key| jsonwebtoken::decode::<Claims>(token, &key.key, &validation))
            .find(|decoded| decoded.as_ref().map_or_else(|why| matches!(why.kind(), ErrorKind::Json(_)), |_| true));
        let Claims(claims) = decoded.ok_or(Rejected::Signature)?.map_err(|_| Rejected::Malformed)?.claims;
        match claims.get("iss").and_then(Value::as_str) {
            Some(named) if named == self.issuer.issuer => {}
            _ => return Err(Rejected::Issuer),
        }
        Ok(claims)
    }
}

/// Of whom a token is, if its time is now. The claims are checked here and not by the library, by a clock that tests
/// can set.
pub(super) fn subject(issuer: &Issuer, claims: Map<String, Value>, now: SystemTime) -> Result<VerifiedToken, Rejected> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let leeway = issuer.leeway.as_secs_f64();
    let number = |name: &str| claims.get(name).and_then(Value::as_f64);
    let expires = number("exp").ok_or(Rejected::Missing("exp"))?;
    let in_time = now < expires + leeway;
    if !in_time {
        return Err(Rejected::Expired);
    }
    if claims.contains_key("nbf") && !number("nbf").is_some_and(|from| from <= now + leeway) {
        return Err(Rejected::Early);
    }
    let subject = text("sub").filter(|subject| !subject.is_empty()).ok_or(Rejected::Missing("sub"))?;
    Ok(VerifiedToken {
        subject: subject.to_owned(),
        issuer: issuer.issuer.clone(),
        scopes: scopes(&claims),
        groups: groups::find(&claims, &issuer.groups).ok_or(Rejected::Groups)?,
        certificate: bound_to(&claims, "x5t#S256")?,
        key: bound_to(&claims, "jkt")?,
        expires: Duration::try_from_secs_f64(expires)
            .ok()
            .and_then(|at| UNIX_EPOCH.checked_add(at))
            .ok_or(Rejected::Missing("exp"))?,
        claims,
    })
}

/// What a token is bound to in this way: to a certificate (`x5t#S256`) or to a key (`jkt`). In any other way, or in both, is
/// more than is checked.
fn bound_to(claims: &Map<String, Value>, way: &str) -> Result<Option<String>, Rejected> {
    let Some(bound) = claims.get("cnf") else { return Ok(None) };
    let only = bound.as_object().filter(|bound| bound.len() == 1).and_then(|bound| bound.iter().next());
    match only {
        Some((name, Value::String(thumbprint))) if matches!(name.as_str(), "x5t#S256" | "jkt") => {
            Ok((name == way).then(|| thumbprint.clone()))
        }
        _ => Err(Rejected::Bound),
    }
}

/// Whom a token is for: `aud` is a text or a list (RFC 7519 §4.1.3).
pub(super) fn audiences(claims: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let (one, all) = match claims.get("aud") {
        Some(Value::String(one)) => (Some(one.as_str()), &[][..]),
        Some(Value::Array(all)) => (None, &all[..]),
        _ => (None, &[][..]),
    };
    one.into_iter().chain(all.iter().filter_map(Value::as_str))
}

/// `scope` as a text (RFC 9068), or the `scp` of some servers, a text or a list.
fn scopes(claims: &Map<String, Value>) -> Scopes {
    match claims.get("scope").or_else(|| claims.get("scp")) {
        Some(Value::String(text)) => Scopes::parse(text),
        Some(Value::Array(all)) => all.iter().filter_map(|scope| scope.as_str().map(str::to_owned)).collect(),
        _ => Scopes::default(),
    }
}

pub(super) fn signature_only(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    (validation.validate_exp, validation.validate_nbf, validation.validate_aud) = (false, false, false);
    validation
}
