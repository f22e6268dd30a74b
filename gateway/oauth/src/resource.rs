//! Second step: what the upstream says of itself, its protected resource metadata (RFC 9728).
//!
//! Looked for where the refusal points, then at the well-known place for its path, then for its host. The document must
//! be about the upstream: else anybody could have tokens made for somebody else's.

use serde::Deserialize;
use url::Url;

use crate::{
    DiscoveryError, Http,
    discover::{lenient, read},
};

/// The metadata of a protected resource, as far as it is used.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct ResourceMetadata {
    /// The identifier of the resource, which tokens are asked for.
    pub resource: String,
    /// The issuers that make tokens for it, best first.
    #[serde(default, deserialize_with = "lenient")]
    pub authorization_servers: Vec<String>,
    /// All scopes that a client may need.
    #[serde(default, deserialize_with = "lenient")]
    pub scopes_supported: Vec<String>,
    /// The signatures of proofs that it checks, if it takes tokens that are bound to keys (RFC 9728 §2).
    #[serde(default, deserialize_with = "lenient")]
    pub dpop_signing_alg_values_supported: Vec<String>,
    /// Whether it takes no other tokens (RFC 9728 §2).
    #[serde(default, deserialize_with = "lenient")]
    pub dpop_bound_access_tokens_required: bool,
}

/// Finds the metadata of the upstream at `url`; none if it has none. `pointer` is from its refusal.
///
/// # Errors
/// If the document is about another resource, or a server did not answer: that is an outage and no evidence.
pub async fn find(http: &Http, url: &Url, pointer: Option<&str>) -> Result<Option<ResourceMetadata>, DiscoveryError> {
    let mut places = Vec::new();
    if let Some(pointer) = pointer {
        // It may lie on another host. One that is no URL at all is as good as none.
        places.extend(url.join(pointer).ok());
    }
    for place in well_known(url, "oauth-protected-resource") {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    for place in places {
        let Some(found) = read::<ResourceMetadata>(http, &place).await? else { continue };
        if !is_about(&found.resource, url) {
            return Err(DiscoveryError::OtherResource { upstream: crate::http::origin(url) });
        }
        return Ok(Some(found));
    }
    Ok(None)
}

/// The identifier of an upstream that says none (RFC 8707 §2): its URL without query and fragment.
pub fn identifier(url: &Url) -> String {
    let mut url = url.clone();
    url.set_fragment(None);
    url.set_query(None);
    let text = url.to_string();
    if url.path() == "/" { text.trim_end_matches('/').to_owned() } else { text }
}

/// Whether `resource` is the upstream at `url`, or a resource that it lies in.
fn is_about(resource: &str, url: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else { return false };
    if resource.origin() != url.origin() || resource.fragment().is_some() {
        return false;
    }
    let (outer, inner) = (resource.path().trim_end_matches('/'), url.path());
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The well-known places for the path of `url` and for its host (RFC 8615, RFC 9728 §3.1).
pub(crate) fn well_known(url: &Url, name: &str) -> Vec<Url> {
    let mut places = Vec::new();
    let path = url.path().trim_end_matches('/');
    for path in [path, ""] {
        let mut place = url.clone();
        place.set_path(&format!("/.well-known/{name}{path}"));
        place.set_query(None);
        place.set_fragment(None);
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn a_document_must_be_about_the_upstream() {
        let url = Url::parse("https://mcp.example.com/team/mcp").unwrap();
        for (resource, about) in [
            ("https://mcp.example.com/team/mcp", true),
            ("https://mcp.example.com/team/mcp/", true),
            ("https://MCP.example.com:443/team", true),
            ("https://mcp.example.com", true),
            ("https://mcp.example.com/", true),
            ("https://mcp.example.com/tea", false),
            ("https://mcp.example.com/team/mcp/more", false),
            ("https://mcp.example.com/team/mcp#x", false),
            ("http://mcp.example.com/team/mcp", false),
            ("https://mcp.example.com:8443/team/mcp", false),
            ("https://mcp.example.com.evil.example/team/mcp", false),
            ("https://evil.example.com/mcp", false),
            ("team/mcp", false),
            ("", false),
        ] {
            assert_eq!(is_about(resource, &url), about, "{resource}");
        }
    }

    #[test]
    fn the_places_are_tried_from_the_narrow_to_the_wide() {
        let places = |url: &str| -> Vec<String> {
            let url = Url::parse(url).unwrap();
            well_known(&url, "oauth-protected-resource").iter().map(Url::to_string).collect()
        };
        assert_eq!(
            places("https://a.example/team/mcp?x=1#y"),
            [
                "https://a.example/.well-known/oauth-protected-resource/team/mcp",
                "https://a.example/.well-known/oauth-protected-resource"
            ]
        );
        assert_eq!(places("https://a.example"), ["https://a.example/.well-known/oauth-protected-resource"]);
        assert_eq!(identifier(&Url::parse("https://a.example/?x=1").unwrap()), "https://a.example");
        assert_eq!(identifier(&Url::parse("https://a.example/mcp/#x").unwrap()), "https://a.example/mcp/");
    }
}
