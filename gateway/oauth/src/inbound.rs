//! Who calls Weir: a bearer token is checked and becomes a principal, or the caller is told where to get one.

use serde_json::{Value, json};

pub use introspect::Introspector;
pub use jsonwebtoken::Algorithm;
pub use verify::{Issuer, Rejected, VerifiedToken, Verifier, named_issuer};

mod groups;
mod introspect;
mod keys;
mod verify;

/// The value of `WWW-Authenticate` for a 401 or a 403 (RFC 6750 §3, RFC 9728 §5.1). `metadata` is the URL of
/// [`metadata`]'s document, if there is an authorization server to go to; `scopes` are those that are needed.
pub fn challenge(metadata: Option<&str>, error: Option<&str>, scopes: &[String]) -> String {
    let mut value = match metadata {
        Some(metadata) => format!("Bearer resource_metadata=\"{}\"", quotable(metadata)),
        None => "Bearer realm=\"weir\"".to_owned(),
    };
    if let Some(error) = error {
        value.push_str(&format!(", error=\"{}\"", quotable(error)));
    }
    if !scopes.is_empty() {
        value.push_str(&format!(", scope=\"{}\"", quotable(&scopes.join(" "))));
    }
    value
}

/// The metadata of Weir itself as a protected resource (RFC 9728 §2). `offline_access` is left out of the scopes: it is
/// between the client and its authorization server.
pub fn metadata(resource: &str, issuers: &[&str], scopes: &[&str]) -> Value {
    let scopes: Vec<&str> = scopes.iter().copied().filter(|scope| *scope != "offline_access").collect();
    let mut document = json!({
        "resource": resource,
        "authorization_servers": issuers,
        "bearer_methods_supported": ["header"],
        "resource_name": "Weir",
    });
    if let Some(fields) = document.as_object_mut()
        && !scopes.is_empty()
    {
        fields.insert("scopes_supported".to_owned(), scopes.into());
    }
    document
}

fn quotable(text: &str) -> String {
    text.chars().filter(|letter| matches!(letter, ' '..='~') && !matches!(letter, '"' | '\\')).collect()
}

#[cfg(test)]
mod tests;
