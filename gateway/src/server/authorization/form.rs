//! The parameters of a request, each of which is there once (RFC 6749 §3.1, §3.2).

use url::form_urlencoded;

use super::error::OAuthError;

/// The most parameters of one request.
const MOST: usize = 32;

/// The parameters of a form or a query.
pub(in crate::server) struct Form(Vec<(String, String)>);

impl Form {
    /// Reads them. One without a value counts as not sent.
    pub(in crate::server) fn parse(text: &[u8]) -> Result<Self, OAuthError> {
        let mut all: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(text) {
            if all.iter().any(|(known, _)| *known == name) || all.len() == MOST {
                return Err(OAuthError::request("a parameter is there twice, or there are too many"));
            }
            if !value.is_empty() {
                all.push((name.into_owned(), value.into_owned()));
            }
        }
        Ok(Self(all))
    }

    pub(in crate::server) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(in crate::server) fn need(&self, name: &str) -> Result<&str, OAuthError> {
        self.get(name).ok_or_else(|| OAuthError::request(format!("`{name}` is missing")))
    }
}
