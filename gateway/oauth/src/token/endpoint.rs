//! Requests to the token endpoint.
//!
//! Those of RFC 6749 are made by the `oauth2` crate, those of its extensions here; all go the same way.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderValue, StatusCode, header};
use oauth2::{
    AuthType, ClientId, ClientSecret, EndpointNotSet, EndpointSet, HttpRequest, StandardRevocableToken, TokenUrl,
    basic::{BasicErrorResponse, BasicRevocationErrorResponse, BasicTokenIntrospectionResponse},
};
use url::{Url, form_urlencoded};
use weir_store::Clock;
use zeroize::Zeroizing;

use crate::{
    ClientAuth, Http, HttpError, OAuthApplication, ServerMetadata, TokenError, Tokens, client::ASSERTION_TYPE,
    http::origin,
};

use super::{
    call::{call, refusal},
    reply::TokenReply,
};

/// What every request says besides its grant.
#[derive(Clone, Copy, Debug)]
pub struct TokenEndpoint<'a> {
    /// Where.
    pub server: &'a ServerMetadata,
    /// Who.
    pub client: &'a OAuthApplication,
    /// For which resource (RFC 8707); none for servers that do not bear it.
    pub resource: Option<&'a str>,
    /// For the statements of a client.
    pub clock: &'a Clock,
}

/// The client of the `oauth2` crate with our way to read answers.
pub(crate) type Oauth = oauth2::Client<
    BasicErrorResponse,
    TokenReply,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointSet,
>;

/// More parameters of a request.
pub(crate) type Extra = Vec<(&'static str, Zeroizing<String>)>;
impl TokenEndpoint<'_> {
    /// The token endpoint as the `oauth2` crate knows it.
    pub(crate) fn oauth(&self) -> Result<Oauth, TokenError> {
        let client = oauth2::Client::new(ClientId::new(self.client.id.clone()))
            .set_token_uri(TokenUrl::from_url(self.token_url()?.clone()));
        Ok(match &self.client.auth {
            ClientAuth::None | ClientAuth::PrivateKey(_) => client.set_auth_type(AuthType::RequestBody),
            ClientAuth::Basic(secret) => client
                .set_auth_type(AuthType::BasicAuth)
                .set_client_secret(ClientSecret::new(secret.expose().to_owned())),
            ClientAuth::Post(secret) => client
                .set_auth_type(AuthType::RequestBody)
                .set_client_secret(ClientSecret::new(secret.expose().to_owned())),
        })
    }

    /// What that crate does not know: the resource, and statements of clients.
    pub(crate) fn extra(&self) -> Result<Extra, TokenError> {
        let mut extra = Vec::new();
        if let Some(resource) = self.resource {
            extra.push(("resource", Zeroizing::new(resource.to_owned())));
        }
        if let ClientAuth::PrivateKey(key) = &self.client.auth {
            // For the issuer, and not for the endpoint: another server cannot use it then.
            let signed = key.assertion(&self.client.id, &self.server.issuer, self.clock)?;
            extra.push(("client_assertion_type", Zeroizing::new(ASSERTION_TYPE.to_owned())));
            extra.push(("client_assertion", Zeroizing::new(signed.expose().to_owned())));
        }
        Ok(extra)
    }

    /// A request of one of the extensions.
    pub(crate) async fn grant(&self, http: &Http, fields: &[(&str, &str)]) -> Result<Tokens, TokenError> {
        let url = self.token_url()?;
        let request = self.form(url, fields, self.extra()?)?;
        let answer = call(http, request).await.map_err(TokenError::from)?;
        if answer.status() != StatusCode::OK {
            return Err(refusal(answer.body()));
        }
        let reply: TokenReply =
            serde_json::from_slice(answer.body()).map_err(|_| TokenError::Malformed(origin(url)))?;
        Ok(reply.into())
    }

    /// A form from this client (RFC 6749 §2.3.1).
    pub(crate) fn form(&self, url: &Url, fields: &[(&str, &str)], extra: Extra) -> Result<HttpRequest, TokenError> {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(fields).extend_pairs(extra.iter().map(|(name, value)| (*name, value.as_str())));
        let mut request = http::Request::post(url.as_str())
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(header::ACCEPT, "application/json");
        match &self.client.auth {
            ClientAuth::Basic(secret) => {
                let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
                let pair = Zeroizing::new(format!("{}:{}", encoded(&self.client.id), encoded(secret.expose())));
                let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(pair.as_bytes())))
                    .map_err(|_| TokenError::InvalidClient)?;
                value.set_sensitive(true);
                request = request.header(header::AUTHORIZATION, value);
            }
            ClientAuth::Post(secret) => {
                form.append_pair("client_id", &self.client.id).append_pair("client_secret", secret.expose());
            }
            ClientAuth::None | ClientAuth::PrivateKey(_) => {
                form.append_pair("client_id", &self.client.id);
            }
        }
        request.body(form.finish().into_bytes()).map_err(|error| TokenError::Http(HttpError::Url(error.to_string())))
    }

    pub(crate) fn token_url(&self) -> Result<&Url, TokenError> {
        self.server.token_endpoint.as_ref().ok_or(TokenError::Unsupported("token endpoint"))
    }
}
/// A borrowed list of parameters for the `oauth2` crate.
pub(crate) fn borrowed(extra: &Extra) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    extra.iter().map(|(name, value)| (Cow::Borrowed(*name), Cow::Borrowed(value.as_str())))
}
