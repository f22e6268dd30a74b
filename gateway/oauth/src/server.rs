//! Third step: what the authorization server says of itself (RFC 8414, OpenID Connect Discovery 1.0).

use serde::Deserialize;
use url::Url;

use crate::{
    DiscoveryError, Http,
    discover::{lenient, read},
    resource::well_known,
};

/// The metadata of an authorization server, as far as it is used.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct ServerMetadata {
    /// Who it is. Credentials belong to this text, letter by letter.
    pub issuer: String,
    #[serde(default, deserialize_with = "lenient")]
    pub authorization_endpoint: Option<Url>,
    #[serde(default, deserialize_with = "lenient")]
    pub token_endpoint: Option<Url>,
    /// Where clients register (RFC 7591).
    #[serde(default, deserialize_with = "lenient")]
    pub registration_endpoint: Option<Url>,
    /// Where the device flow starts (RFC 8628).
    #[serde(default, deserialize_with = "lenient")]
    pub device_authorization_endpoint: Option<Url>,
    /// Where tokens are revoked (RFC 7009).
    #[serde(default, deserialize_with = "lenient")]
    pub revocation_endpoint: Option<Url>,
    /// Where it says what a token is good for (RFC 7662).
    #[serde(default, deserialize_with = "lenient")]
    pub introspection_endpoint: Option<Url>,
    /// Its keys (RFC 7517).
    #[serde(default, deserialize_with = "lenient")]
    pub jwks_uri: Option<Url>,
    /// Its ways of PKCE (RFC 7636).
    #[serde(default, deserialize_with = "lenient")]
    pub code_challenge_methods_supported: Vec<String>,
    /// Its scopes, perhaps not all.
    #[serde(default, deserialize_with = "lenient")]
    pub scopes_supported: Vec<String>,
    /// How clients may show who they are; if it says nothing, `client_secret_basic`.
    #[serde(default, deserialize_with = "lenient")]
    pub token_endpoint_auth_methods_supported: Option<Vec<String>>,
    /// Whether the URL of a document may be a client's id.
    #[serde(default, deserialize_with = "lenient")]
    pub client_id_metadata_document_supported: bool,
    /// What it can be told to ask its user (Initiating User Registration via OpenID Connect 1.0 §4), perhaps not all.
    #[serde(default, deserialize_with = "lenient")]
    pub prompt_values_supported: Vec<String>,
    /// Whether it names itself when it sends the user back (RFC 9207).
    #[serde(default, deserialize_with = "lenient")]
    pub authorization_response_iss_parameter_supported: bool,
    /// The signatures of proofs that it checks, if it binds tokens to keys (RFC 9449 §5.1).
    #[serde(default, deserialize_with = "lenient")]
    pub dpop_signing_alg_values_supported: Vec<String>,
}

impl ServerMetadata {
    /// Whether it has PKCE with S256, without which a stolen code is a token.
    pub fn has_pkce(&self) -> bool {
        self.code_challenge_methods_supported.iter().any(|method| method == "S256")
    }

    /// Whether a client may show itself in this way (RFC 8414 §2: with its secret in the header, if it does not say).
    pub fn has_auth(&self, method: &str) -> bool {
        match &self.token_endpoint_auth_methods_supported {
            Some(methods) => methods.iter().any(|known| known == method),
            None => method == "client_secret_basic",
        }
    }
}

/// Finds the metadata of `issuer`.
///
/// # Errors
/// If there is none, if it names another issuer, or if the server did not answer.
pub async fn find(http: &Http, issuer: &str) -> Result<ServerMetadata, DiscoveryError> {
    let url = Url::parse(issuer).map_err(|_| DiscoveryError::Issuer)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err(DiscoveryError::Issuer);
    }
    for place in places(&url) {
        let Some(found) = read::<ServerMetadata>(http, &place).await? else { continue };
        if found.issuer != issuer {
            return Err(DiscoveryError::OtherIssuer { asked: crate::http::origin(&url) });
        }
        return Ok(found);
    }
    Err(DiscoveryError::NoServerMetadata { issuer: crate::http::origin(&url) })
}

/// RFC 8414 with the path inserted, OpenID Connect with the path inserted, OpenID Connect with it in front.
fn places(issuer: &Url) -> Vec<Url> {
    let mut places = Vec::new();
    places.extend(well_known(issuer, "oauth-authorization-server").into_iter().next());
    places.extend(well_known(issuer, "openid-configuration").into_iter().next());
    let mut appended = issuer.clone();
    appended.set_path(&format!("{}/.well-known/openid-configuration", issuer.path().trim_end_matches('/')));
    if !places.contains(&appended) {
        places.push(appended);
    }
    places
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn the_places_come_in_the_order_of_the_specification() {
        let places =
            |issuer: &str| -> Vec<String> { places(&Url::parse(issuer).unwrap()).iter().map(Url::to_string).collect() };
        assert_eq!(
            places("https://a.example/tenant1"),
            [
                "https://a.example/.well-known/oauth-authorization-server/tenant1",
                "https://a.example/.well-known/openid-configuration/tenant1",
                "https://a.example/tenant1/.well-known/openid-configuration",
            ]
        );
        assert_eq!(
            places("https://a.example"),
            [
                "https://a.example/.well-known/oauth-authorization-server",
                "https://a.example/.well-known/openid-configuration"
            ]
        );
    }

    #[test]
    fn one_field_that_is_wrong_takes_no_other_with_it() {
        let text = r#"{"issuer":"https://a.example","token_endpoint":"https://a.example/t","revocation_endpoint":"",
            "scopes_supported":null,"prompt_values_supported":"all","code_challenge_methods_supported":["S256"]}"#;
        let metadata: ServerMetadata = serde_json::from_str(text).unwrap();
        assert!(metadata.has_pkce() && metadata.token_endpoint.is_some());
        assert_eq!((metadata.revocation_endpoint, metadata.prompt_values_supported), (None, Vec::new()));
    }

    #[test]
    fn what_is_not_said_has_its_default() {
        let metadata: ServerMetadata = serde_json::from_str(r#"{"issuer":"https://a.example","x":[1]}"#).unwrap();
        assert!(!metadata.has_pkce());
        assert!(metadata.has_auth("client_secret_basic") && !metadata.has_auth("none"));
    }
}
