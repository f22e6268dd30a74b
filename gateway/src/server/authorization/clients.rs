//! The clients of Weir as an authorization server, and how they prove who they are.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};
use url::form_urlencoded;
use weir_oauth::{
    AddressPolicy, Clock, Http, RequestLimits,
    inbound::{Algorithm, Issuer, Verifier, named_issuer},
};

use crate::{
    config::{AuthorizationServerConfig, ClientProof},
    server::authn::AuthnError,
};

use super::{AuthorizationServer, TOKEN, error::OAuthError, form::Form, public_clients::PublicClient};

/// How clients prove who they are (RFC 8414 §2).
pub(super) const METHODS: [&str; 3] = ["client_secret_basic", "client_secret_post", "private_key_jwt"];
/// With what they sign.
pub(super) const ALGORITHMS: [&str; 4] = ["RS256", "PS256", "ES256", "EdDSA"];

/// RFC 7523 §2.2.
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// How far the clock of a client and this one may differ.
const LEEWAY: Duration = Duration::from_secs(60);

/// Those of the configuration.
pub(super) struct Clients(Vec<ConfiguredClient>);

struct ConfiguredClient {
    id: String,
    proof: Proof,
    /// What a browser is told of it.
    public: Arc<PublicClient>,
}

/// The client of a request.
#[derive(Clone, Copy)]
pub(super) struct RequestClient<'a> {
    pub(super) id: &'a str,
    /// Whether it has proved who it is.
    pub(super) is_proved: bool,
}

enum Proof {
    None,
    /// The SHA-256 of its secret: how long a comparison takes says nothing of the secret.
    Secret([u8; 32]),
    Keys(Box<Verifier>),
}

/// What a client has shown.
enum Shown<'f> {
    Secret(String, String),
    Assertion(&'f str),
}

impl Clients {
    pub(super) fn new(settings: &AuthorizationServerConfig, issuer: &str, clock: &Clock) -> Result<Self, AuthnError> {
        let mut all = Vec::new();
        for client in &settings.clients {
            let proof = match &client.proof {
                ClientProof::None => Proof::None,
                ClientProof::Secret(source) => Proof::Secret(Sha256::digest(source.read()?.expose()).into()),
                ClientProof::Keys(jwks) => {
                    let keys = jwks.parse().ok();
                    // The operator has named the place.
                    let loopback = keys.as_ref().is_some_and(|keys| AddressPolicy::toward(keys).loopback);
                    let http = Http::new(AddressPolicy { loopback, private: true }, RequestLimits::default(), &[])?;
                    let issuer = Issuer {
                        issuer: client.client_id.clone(),
                        audiences: vec![issuer.to_owned(), format!("{issuer}{TOKEN}")],
                        keys,
                        leeway: LEEWAY,
                        algorithms: ALGORITHMS.iter().filter_map(|name| name.parse::<Algorithm>().ok()).collect(),
                        groups: "groups".to_owned(),
                    };
                    Proof::Keys(Box::new(Verifier::new(issuer, http, clock.clone())))
                }
            };
            let public = Arc::new(PublicClient::configured(&client.client_id, &client.redirect_uris));
            all.push(ConfiguredClient { id: client.client_id.clone(), proof, public });
        }
        Ok(Self(all))
    }

    /// What a browser is told of the client with this name.
    pub(super) fn find(&self, id: &str) -> Option<Arc<PublicClient>> {
        self.0.iter().find(|client| client.id == id).map(|client| Arc::clone(&client.public))
    }

    /// The client of a request. One that can prove who it is must do so.
    pub(super) async fn authenticate<'a>(
        &'a self,
        form: &'a Form,
        authorization: Option<&str>,
        server: &AuthorizationServer,
    ) -> Result<RequestClient<'a>, OAuthError> {
        let unknown = || OAuthError::client("the client is not known here, or has not proved who it is");
        let Some(shown) = shown(form, authorization)? else {
            let id = form.get("client_id").ok_or_else(unknown)?;
            let is_public = |client: &ConfiguredClient| client.id != id || matches!(client.proof, Proof::None);
            return if self.0.iter().all(is_public) {
                Ok(RequestClient { id, is_proved: false })
            } else {
                Err(unknown())
            };
        };
        let id = match &shown {
            Shown::Secret(id, _) => id.clone(),
            Shown::Assertion(token) => named_issuer(token).map_err(|_| unknown())?,
        };
        if form.get("client_id").is_some_and(|named| named != id) {
            return Err(unknown());
        }
        let client = self.0.iter().find(|client| client.id == id).ok_or_else(unknown)?;
        match (&client.proof, shown) {
            (Proof::Secret(hash), Shown::Secret(_, secret)) if Sha256::digest(secret.as_bytes())[..] == hash[..] => {}
            (Proof::Keys(verifier), Shown::Assertion(token)) => {
                let found = verifier.verify(token).await.map_err(|why| match why.is_unavailable() {
                    true => OAuthError::unavailable(&why),
                    false => OAuthError::client(why),
                })?;
                if found.subject != id {
                    return Err(unknown());
                }
                server.once(&found).await?;
            }
            _ => return Err(unknown()),
        }
        Ok(RequestClient { id: &client.id, is_proved: true })
    }
}

/// What a client has shown, in one way (RFC 6749 §2.3).
fn shown<'f>(form: &'f Form, authorization: Option<&str>) -> Result<Option<Shown<'f>>, OAuthError> {
    let posted = form.get("client_secret");
    let assertion = form.get("client_assertion");
    if [authorization.is_some(), posted.is_some(), assertion.is_some()].iter().filter(|way| **way).count() > 1 {
        return Err(OAuthError::request("a client proves who it is in one way"));
    }
    if let Some(value) = authorization {
        let basic = basic(value).ok_or_else(|| OAuthError::client("`Authorization` is not of the scheme Basic"))?;
        return Ok(Some(Shown::Secret(basic.0, basic.1)));
    }
    if let Some(token) = assertion {
        let is_jwt = form.get("client_assertion_type") == Some(ASSERTION_TYPE);
        return if is_jwt { Ok(Some(Shown::Assertion(token))) } else { Err(OAuthError::request("unknown assertion")) };
    }
    Ok(posted.zip(form.get("client_id")).map(|(secret, id)| Shown::Secret(id.to_owned(), secret.to_owned())))
}

/// The name and the secret of a client, which it has encoded as in a form (RFC 6749 §2.3.1).
fn basic(value: &str) -> Option<(String, String)> {
    let (scheme, encoded) = value.trim().split_once(' ')?;
    let plain = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (id, secret) = plain.split_once(':')?;
    let decoded = |text: &str| form_urlencoded::parse(text.as_bytes()).next().map(|(name, _)| name.into_owned());
    scheme.eq_ignore_ascii_case("basic").then(|| Some((decoded(id)?, decoded(secret)?)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_comes_as_in_a_form() {
        let header = |text: &str| format!("Basic {}", STANDARD.encode(text));
        let pair = |id: &str, secret: &str| Some((id.to_owned(), secret.to_owned()));
        assert_eq!(basic(&header("host:s3cret")), pair("host", "s3cret"));
        assert_eq!(basic(&header("a%3Ab:a+b%26%25")), pair("a:b", "a b&%"));
        for odd in ["Basic", "Basic ?", "Bearer aG9zdDp4", &header("host")] {
            assert_eq!(basic(odd), None, "{odd}");
        }
    }
}
