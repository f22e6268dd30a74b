//! Who calls Weir: a bearer token is checked and becomes a principal, or the caller is told where to get one.

use serde_json::{Value, json};

pub use introspect::Introspector;
pub use jsonwebtoken::Algorithm;
pub use proof::{ProofError, ProvedRequest, UsedProofs};
pub use verify::{Issuer, Rejected, VerifiedToken, Verifier, named_issuer};

mod groups;
mod introspect;
mod keys;
mod proof;
mod verify;

/// The value of `WWW-Authenticate` for a 401 or a 403 (RFC 6750 §3, RFC 9449 §7.1, RFC 9728 §5.1). `bound` if the token has
/// to be bound to a key. `metadata` is the URL of [`metadata`]'s document, if there is an authorization server to go to;
/// `scopes` are those that are needed.
pub fn challenge(bound: bool, metadata: Option<&str>, error: Option<&str>, scopes: &[String]) -> String {
    let mut value = if bound { "DPoP " } else { "Bearer " }.to_owned();
    match metadata {
        Some(metadata) => value.push_str(&format!("resource_metadata=\"{}\"", quotable(metadata))),
        None => value.push_str("realm=\"weir\""),
    }
    if bound {
        value.push_str(&format!(", algs=\"{}\"", proof::algorithms().collect::<Vec<_>>().join(" ")));
    }
    if let Some(error) = error {
        value.push_str(&format!(", error=\"{}\"", quotable(error)));
    }
    if !scopes.is_empty() {
        value.push_str(&format!(", scope=\"{}\"", quotable(&scopes.join(" "))));
    }
    value
}

/// The metadata of Weir itself as a protected resource (RFC 9728 §2). `offline_access` is left out of the scopes: it is
/// between the client and its authorization server. `bound` says whether every token must be bound to a key; none says
/// nothing of such tokens.
pub fn metadata(resource: &str, issuers: &[&str], scopes: &[&str], bound: Option<bool>) -> Value {
    let scopes: Vec<&str> = scopes.iter().copied().filter(|scope| *scope != "offline_access").collect();
    let mut document = json!({
        "resource": resource,
        "authorization_servers": issuers,
        "bearer_methods_supported": ["header"],
        "resource_name": "Weir",
    });
    if !scopes.is_empty() {
        document["scopes_supported"] = scopes.into();
    }
    if let Some(required) = bound {
        document["dpop_signing_alg_values_supported"] = proof::algorithms().collect();
        document["dpop_bound_access_tokens_required"] = required.into();
    }
    document
}

fn quotable(text: &str) -> String {
    text.chars().filter(|letter| matches!(letter, ' '..='~') && !matches!(letter, '"' | '\\')).collect()
}

#[cfg(test)]
mod tests;
