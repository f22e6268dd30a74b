//! Requests of a client to its authorization server. All grants go the same way.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue, header};
use serde::Deserialize;
use url::{Position, Url, form_urlencoded};
use weir_store::{Clock, Secret};
use zeroize::Zeroizing;

use crate::{
    ClientAuth, Http, KeyBinding, OAuthApplication, ProofKey, ServerMetadata, TokenError, Tokens,
    client::ASSERTION_TYPE,
    http::origin,
    proof::{self, USE_DPOP_NONCE},
};

/// What every request says besides its grant.
#[derive(Clone, Copy, Debug)]
pub struct TokenEndpoint<'a> {
    pub server: &'a ServerMetadata,
    pub client: &'a OAuthApplication,
    /// For which resource (RFC 8707); none for servers that do not bear it.
    pub resource: Option<&'a str>,
    /// The key that tokens are to be bound to.
    pub proof: Option<&'a KeyBinding>,
    /// For the statements of a client, and for proofs.
    pub clock: &'a Clock,
}

/// The code of a refusal (RFC 6749 §5.2).
#[derive(Deserialize)]
struct Refusal {
    error: String,
}

impl TokenEndpoint<'_> {
    /// Asks for tokens (RFC 6749 §3.2).
    pub(crate) async fn grant(&self, http: &Http, fields: &[(&str, &str)]) -> Result<Tokens, TokenError> {
        let url = self.server.token_endpoint.as_ref().ok_or(TokenError::Unsupported("token endpoint"))?;
        let key = self.proof.map(|binding| &*binding.key);
        let fields = [fields, &[("resource", self.resource.unwrap_or_default())]].concat();
        let answer = match self.send(http, url, &fields, key).await {
            // Once: the server has just named the nonce that it wants (RFC 9449 §8).
            Err(TokenError::Refused(code)) if code == USE_DPOP_NONCE && key.is_some() => {
                self.send(http, url, &fields, key).await?
            }
            answer => answer?,
        };
        let tokens: Tokens = serde_json::from_slice(&answer).map_err(|_| TokenError::Malformed(origin(url)))?;
        match self.proof {
            Some(binding) if binding.bound && !tokens.is_bound() => Err(TokenError::Unbound(origin(url))),
            _ => Ok(tokens),
        }
    }

    pub(crate) async fn post_for_resource(
        &self,
        http: &Http,
        url: &Url,
        fields: &[(&str, &str)],
    ) -> Result<Zeroizing<Vec<u8>>, TokenError> {
        self.post(http, url, &[fields, &[("resource", self.resource.unwrap_or_default())]].concat()).await
    }

    /// Sends a form from this client (RFC 6749 §2.3.1). A field without a value is as good as none (RFC 6749 §3.2).
    pub(crate) async fn post(
        &self,
        http: &Http,
        url: &Url,
        fields: &[(&str, &str)],
    ) -> Result<Zeroizing<Vec<u8>>, TokenError> {
        self.send(http, url, fields, None).await
    }

    async fn send(
        &self,
        http: &Http,
        url: &Url,
        fields: &[(&str, &str)],
        key: Option<&ProofKey>,
    ) -> Result<Zeroizing<Vec<u8>>, TokenError> {
        let (form, authorization) = self.form(fields)?;
        let mut headers = HeaderMap::new();
        headers.extend(authorization.map(|value| (header::AUTHORIZATION, value)));
        // RFC 9449 §4.2: without query and fragment.
        let place = &url[..Position::AfterPath];
        if let Some(key) = key {
            headers.insert(proof::DPOP, key.proof("POST", place, None, self.clock.now())?);
        }
        let answer = http.post(url, "application/x-www-form-urlencoded", form, headers).await?;
        if let Some(key) = key {
            key.learn(place, answer.headers.get(proof::DPOP_NONCE));
        }
        let status = answer.status.as_u16();
        if matches!(status, 408 | 425 | 429 | 500..) {
            let seconds = answer.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            let (reason, retry_after) = (format!("it answers {status}"), seconds.map(Duration::from_secs));
            return Err(TokenError::Temporary { reason, retry_after });
        }
        match serde_json::from_slice::<Refusal>(&answer.body) {
            // Some servers say no with 200.
            Ok(refusal) => Err(TokenError::from_code(&refusal.error)),
            Err(_) if answer.status.is_success() => Ok(answer.body),
            Err(_) => Err(TokenError::Unclear { origin: origin(url), status }),
        }
    }

    fn form(&self, fields: &[(&str, &str)]) -> Result<(String, Option<HeaderValue>), TokenError> {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(fields.iter().filter(|(_, value)| !value.is_empty()));
        let id = &self.client.id;
        let mut authorization = None;
        let mut state = |statement: &Secret| {
            form.append_pair("client_id", id).append_pair("client_assertion_type", ASSERTION_TYPE);
            form.append_pair("client_assertion", statement.expose());
        };
        match &self.client.auth {
            ClientAuth::Basic(secret) => authorization = Some(basic(id, secret.expose())?),
            ClientAuth::Post(secret) => {
                form.append_pair("client_id", id).append_pair("client_secret", secret.expose());
            }
            ClientAuth::None => {
                form.append_pair("client_id", id);
            }
            ClientAuth::PrivateKey(key) => {
                // For the issuer, and not for the endpoint: another server cannot use it then.
                state(&key.assertion(id, &self.server.issuer, self.clock)?);
            }
            ClientAuth::Assertion(statement) => state(statement),
        }
        Ok((form.finish(), authorization))
    }
}

/// RFC 6749 §2.3.1: both parts are encoded as in a form first.
fn basic(id: &str, secret: &str) -> Result<HeaderValue, TokenError> {
    let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let pair = Zeroizing::new(format!("{}:{}", encoded(id), encoded(secret)));
    let value = format!("Basic {}", STANDARD.encode(pair.as_bytes()));
    let mut value = HeaderValue::from_str(&value).map_err(|_| TokenError::InvalidClient)?;
    value.set_sensitive(true);
    Ok(value)
}
