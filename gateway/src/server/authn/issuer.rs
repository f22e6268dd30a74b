//! One issuer of callers: its tokens, and what they open.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde_json::Value;
use weir_flow::facts::Principal;
use weir_oauth::{
    AddressPolicy, Clock, Http, OAuthApplication, RequestLimits,
    inbound::{self, Algorithm, Introspector, Issuer, Rejected, Verifier},
};

use crate::{
    caller::Caller,
    config::{InboundAuth, Secret},
    credential::application,
    telemetry::LogThrottle,
};

use super::{AuthnError, checked::Good, resource::Resource};

/// How far the issuer's clock and this one may differ.
pub(super) const LEEWAY: Duration = Duration::from_secs(60);

/// How long a signature is good for: the key may have been taken back since.
pub(super) const RECHECK: Duration = Duration::from_secs(600);

/// An issuer, and the way to it.
#[derive(Clone)]
pub(in crate::server) struct Provider {
    /// Its name.
    pub(in crate::server) issuer: String,
    /// Checks what it has signed.
    pub(in crate::server) verifier: Arc<Verifier>,
    /// May go where it is.
    pub(in crate::server) http: Http,
    pub(in crate::server) clock: Clock,
}

/// An issuer whose tokens open something.
pub(super) struct CallerIssuer {
    pub(super) provider: Provider,
    /// What `aud` names for all of Weir.
    audience: String,
    /// What each token must allow.
    pub(super) scopes: Vec<String>,
    /// Whether each token must be bound to a key.
    pub(super) require_dpop: bool,
    /// Whether proofs must have a nonce of Weir.
    pub(super) dpop_nonce: bool,
    /// When the log was told that its tokens cannot be checked.
    pub(super) unavailable: LogThrottle,
    /// What it is asked about its tokens; none where its keys check them.
    introspection: Option<TokenQuestions>,
}

/// How an issuer is asked what a token is good for.
struct TokenQuestions {
    introspector: Introspector,
    /// How long an answer is good for.
    cache: Duration,
}

impl CallerIssuer {
    /// The issuer that a configuration names.
    ///
    /// # Errors
    ///
    /// When there is no HTTPS to fetch its keys with, or the secret that Weir has there cannot be read.
    pub(super) fn new(inbound: &InboundAuth, resource: &Resource, clock: Clock) -> Result<Self, AuthnError> {
        let issuer = Issuer {
            issuer: inbound.issuer.clone(),
            audiences: resource.audiences(&inbound.audience),
            keys: inbound.jwks.as_deref().and_then(|place| place.parse().ok()),
            leeway: LEEWAY,
            groups: inbound.groups_claim.clone(),
            algorithms: inbound.algorithms.iter().filter_map(|name| name.parse::<Algorithm>().ok()).collect(),
        };
        // The operator has named the issuer and where its keys are, so they may be within the operator's network.
        let named = [Some(&inbound.issuer), inbound.jwks.as_ref()];
        let loopback =
            named.into_iter().flatten().any(|text| text.parse().is_ok_and(|url| AddressPolicy::toward(&url).loopback));
        let asked = inbound.introspection.as_ref().and_then(|asked| asked.endpoint.as_ref());
        let loopback =
            loopback || asked.is_some_and(|at| at.parse().is_ok_and(|at| AddressPolicy::toward(&at).loopback));
        let http = Http::new(AddressPolicy { loopback, private: true }, RequestLimits::default(), &[])?;
        let introspection = match &inbound.introspection {
            Some(asked) => Some(TokenQuestions {
                introspector: Introspector::new(
                    issuer.clone(),
                    application(inbound)?.unwrap_or_else(|| OAuthApplication::public("")),
                    asked.endpoint.as_deref().and_then(|place| place.parse().ok()),
                    http.clone(),
                    clock.clone(),
                ),
                cache: asked.cache,
            }),
            None => None,
        };
        let verifier = Arc::new(Verifier::new(issuer, http.clone(), clock.clone()));
        let provider = Provider { issuer: inbound.issuer.clone(), verifier, http, clock };
        let (audience, scopes) = (inbound.audience.clone(), inbound.scopes.clone());
        let (require_dpop, dpop_nonce) = (inbound.require_dpop, inbound.dpop_nonce);
        let unavailable = LogThrottle::default();
        Ok(Self { provider, audience, scopes, require_dpop, dpop_nonce, unavailable, introspection })
    }

    /// Whether it is asked what a token is good for.
    pub(super) const fn is_asked(&self) -> bool {
        self.introspection.is_some()
    }

    /// Who calls with a token, and what it opens.
    pub(super) async fn check(&self, token: &str, resource: &Resource) -> Result<Good, Rejected> {
        let (found, recheck) = match &self.introspection {
            Some(asked) => (asked.introspector.verify(token).await?, asked.cache),
            None => (self.provider.verifier.verify(token).await?, RECHECK),
        };
        let until = self.provider.clock.now() + recheck;
        Ok(self.opens(found, token, (&self.audience, resource), until))
    }

    /// What a checked token opens, if it is not checked again before `until`. All of Weir has the audience `whole`.
    pub(super) fn opens(
        &self,
        found: inbound::VerifiedToken,
        token: &str,
        (whole, resource): (&str, &Resource),
        until: SystemTime,
    ) -> Good {
        let expires = found.expires;
        let audiences = audiences(found.claims.get("aud"));
        let allows = |needed: &String| found.scopes.iter().any(|scope| is_scope(needed, scope, &audiences));
        let enough = self.scopes.iter().all(allows);
        let bound = |thumbprint: &Option<String>| thumbprint.as_deref().map(Arc::from);
        let (certificate, key) = (bound(&found.certificate), bound(&found.key));
        let caller = Caller::new(principal(found), Secret::new(token.to_owned()));
        let everywhere = resource.is_whole(whole, &audiences);
        let endpoints = resource.endpoints(&audiences).into();
        let (until, ends) = (expires.min(until), expires.checked_add(LEEWAY));
        Good { caller, everywhere, endpoints, certificate, key, enough, until, ends }
    }
}

/// What is known of one whom the issuer vouches for.
pub(in crate::server) fn principal(found: inbound::VerifiedToken) -> Principal {
    Principal {
        subject: found.subject,
        issuer: Some(found.issuer),
        scopes: found.scopes.iter().map(str::to_owned).collect(),
        groups: found.groups,
        key: None,
        claims: Value::Object(found.claims).to_string(),
    }
}

/// Whether a token has a scope, by its own name or by that which clients ask Entra ID for: the audience stands before it.
fn is_scope(needed: &str, scope: &str, audiences: &[String]) -> bool {
    let of = |audience: &String| {
        let rest = needed.strip_prefix("api://").and_then(|rest| rest.strip_prefix(audience.as_str()));
        rest.or_else(|| needed.strip_prefix(audience.as_str())).and_then(|rest| rest.strip_prefix('/'))
    };
    needed == scope || audiences.iter().any(|audience| of(audience) == Some(scope))
}

fn audiences(claim: Option<&Value>) -> Vec<String> {
    match claim {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_may_have_its_audience_before_it() {
        let audiences = ["1234".to_owned(), "api://weir".to_owned()];
        for (needed, scope, same) in [
            ("Mcp.Call", "Mcp.Call", true),
            ("api://1234/Mcp.Call", "Mcp.Call", true),
            ("api://weir/Mcp.Call", "Mcp.Call", true),
            ("api://1234/Mcp.Call", "api://1234/Mcp.Call", true),
            ("api://other/Mcp.Call", "Mcp.Call", false),
            ("api://12345/Mcp.Call", "Mcp.Call", false),
            ("api://1234/Mcp.Call", "Call", false),
            ("Mcp.Call", "Mcp.Caller", false),
        ] {
            assert_eq!(is_scope(needed, scope, &audiences), same, "{needed} {scope}");
        }
    }
}
