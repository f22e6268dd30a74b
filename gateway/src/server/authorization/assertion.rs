//! The grant of an ID-JAG: a company's identity provider vouches for a person, to one client, for this gateway
//! (draft-ietf-oauth-identity-assertion-authz-grant §4; RFC 7523 §2.1).

use std::time::Duration;

use serde_json::Value;
use weir_flow::facts::Principal;
use weir_oauth::{
    Scopes,
    inbound::{VerifiedToken, named_issuer},
};

use crate::{credential::TokenGrant, server::authn::principal};

use super::{AuthorizationServer, clients::RequestClient, error::OAuthError, form::Form};

/// How long an assertion may be good: Weir remembers its use for as long.
const LONGEST: Duration = Duration::from_secs(3600);
/// How long its use is remembered after it has expired, for clocks that differ.
const LEEWAY: Duration = Duration::from_secs(120);

/// For whom an assertion vouches.
pub(super) struct Vouched {
    principal: Principal,
    scope: String,
    /// What the assertion, or else the request, is for.
    pub(super) resource: Option<String>,
}

impl Vouched {
    pub(super) fn grant(self, client: &str, resource: String) -> TokenGrant {
        TokenGrant::new(&self.principal, client.to_owned(), self.scope, resource)
    }
}

impl AuthorizationServer {
    /// Checks the assertion of a request, and uses it up.
    pub(super) async fn vouched(&self, form: &Form, client: RequestClient<'_>) -> Result<Vouched, OAuthError> {
        // Who has stolen an assertion must not be able to use it.
        if !client.is_proved {
            return Err(OAuthError::client("a client that brings an ID-JAG has to prove who it is"));
        }
        let token = form.need("assertion")?;
        let issuer = named_issuer(token).map_err(|why| OAuthError::grant(&why))?;
        let provider = self.providers.iter().find(|provider| provider.issuer == issuer);
        let provider =
            provider.ok_or_else(|| OAuthError::grant(&"the assertion is of an issuer that `auth` does not name"))?;
        let found = provider.verifier.verify_assertion(token, &self.tokens.issuer, client.id).await;
        let found = found.map_err(|why| match why.is_unavailable() {
            true => OAuthError::unavailable(&why),
            false => OAuthError::grant(&why),
        })?;
        let resource = resource(&found, form.get("resource"))?;
        let scope = scope(&found.scopes, form.get("scope"))?;
        // Last, so that a mistake of the client costs no assertion.
        self.once(&found).await?;
        Ok(Vouched { principal: principal(found), scope, resource })
    }

    /// Uses up a statement that is good once.
    pub(super) async fn once(&self, found: &VerifiedToken) -> Result<(), OAuthError> {
        let left = found.expires.duration_since(self.tokens.now()).unwrap_or_default();
        if left > LONGEST {
            return Err(OAuthError::grant(&"a statement is good for an hour at most"));
        }
        let id = found.claims.get("jti").and_then(Value::as_str);
        let id = id.ok_or_else(|| OAuthError::grant(&"a statement that is good once has a `jti`"))?;
        match self.tokens.store.use_once(&found.issuer, id, left + LEEWAY).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(OAuthError::grant(&"this statement was used already")),
            Err(why) => Err(OAuthError::unavailable(&why)),
        }
    }
}

/// What a token is asked for: what the assertion names, which the request must not change.
fn resource(found: &VerifiedToken, asked: Option<&str>) -> Result<Option<String>, OAuthError> {
    let same = |one: &str, other: &str| one.trim_end_matches('/') == other.trim_end_matches('/');
    let named = match found.claims.get("resource") {
        None => return Ok(asked.map(str::to_owned)),
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        Some(_) => Vec::new(),
    };
    match (asked, named.as_slice()) {
        (None, [one]) => Ok(Some((*one).to_owned())),
        (Some(asked), all) if all.iter().any(|one| same(one, asked)) => Ok(Some(asked.to_owned())),
        _ => Err(OAuthError::target()),
    }
}

/// What the token allows: what the provider has granted, or the part of it that is asked for.
fn scope(granted: &Scopes, asked: Option<&str>) -> Result<String, OAuthError> {
    let Some(asked) = asked else { return Ok(granted.render()) };
    let both: Scopes = Scopes::parse(asked)
        .iter()
        .filter(|scope| granted.iter().any(|known| known == *scope))
        .map(str::to_owned)
        .collect();
    if both.iter().next().is_none() {
        return Err(OAuthError::scope("the assertion allows none of these scopes"));
    }
    Ok(both.render())
}
