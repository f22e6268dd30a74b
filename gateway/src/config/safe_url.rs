//! A URL that can stand in a log: it has no user name, no password, and prints without the values of its query.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use url::Url;

/// What is printed in place of a value.
const MASK: &str = "***";

/// An absolute `http` or `https` URL without credentials in it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SafeUrl {
    url: Url,
    shown: String,
}

/// Why a text is not a URL that Weir can call.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum UrlError {
    /// It has a part after `#`, which is never sent (RFC 9110 §7.1).
    #[error("a URL to call has no part after `#`")]
    Fragment,
    /// It is not an absolute URL.
    #[error("this is not a URL: {0}")]
    Malformed(#[from] url::ParseError),
    /// It is neither `http` nor `https`.
    #[error("only `http` and `https` URLs can be called")]
    Scheme,
    /// It carries a user name or a password.
    #[error("a URL cannot carry a user name or a password, because URLs end up in logs")]
    UserInfo,
}

impl SafeUrl {
    /// The URL itself, query values included; not for printing.
    pub fn as_url(&self) -> &Url {
        &self.url
    }

    /// Whether the scheme is `https`.
    pub fn is_https(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// Whether both URLs have the same scheme, host and port (RFC 6454 §4).
    pub fn same_origin(&self, other: &Self) -> bool {
        self.url.origin() == other.url.origin()
    }

    /// The URL of what is below this one; none if it cannot have parts.
    pub(super) fn below(&self, parts: &[&str]) -> Option<Self> {
        let mut url = self.url.clone();
        url.path_segments_mut().ok()?.pop_if_empty().extend(parts);
        Some(Self { url, shown: self.shown.clone() })
    }

    /// The same URL, printed as this text, which stands for it where its parts are secret.
    pub(super) fn shown_as(mut self, written: &str) -> Self {
        self.shown = masked(written);
        self
    }
}

impl FromStr for SafeUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        Url::parse(text)?.try_into()
    }
}

impl TryFrom<Url> for SafeUrl {
    type Error = UrlError;

    fn try_from(url: Url) -> Result<Self, UrlError> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(UrlError::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlError::UserInfo);
        }
        if url.fragment().is_some() {
            return Err(UrlError::Fragment);
        }
        let shown = masked(url.as_str());
        Ok(Self { url, shown })
    }
}

impl fmt::Display for SafeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for SafeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.shown, f)
    }
}

/// The URL with every value of its query replaced; a query without `=` is a value as a whole.
pub(super) fn masked(url: &str) -> String {
    let Some((path, query)) = url.split_once('?') else {
        return url.to_owned();
    };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((key, _)) => format!("{key}={MASK}"),
        None => MASK.to_owned(),
    });
    format!("{path}?{}", pairs.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used, reason = "a failed test may panic")]

    use super::{SafeUrl, UrlError};

    #[test]
    fn hides_the_values_of_a_query() {
        for (url, shown) in [
            ("https://a.example/mcp", "https://a.example/mcp"),
            ("http://localhost:80", "http://localhost/"),
            ("https://a.example/mcp?key=s3cret&x=1", "https://a.example/mcp?key=***&x=***"),
            ("https://a.example/?s3cret", "https://a.example/?***"),
        ] {
            let parsed = url.parse::<SafeUrl>().expect(url);
            assert_eq!(parsed.to_string(), shown);
            assert!(!format!("{parsed:?}").contains("s3cret"));
        }
    }

    #[test]
    fn refuses_what_cannot_be_called_or_printed() {
        for (url, error) in [
            ("ftp://a.example", UrlError::Scheme),
            ("https://me:pw@a.example", UrlError::UserInfo),
            ("https://me@a.example", UrlError::UserInfo),
            ("https://a.example/#x", UrlError::Fragment),
            ("/mcp", UrlError::Malformed(url::ParseError::RelativeUrlWithoutBase)),
        ] {
            assert_eq!(url.parse::<SafeUrl>(), Err(error));
        }
    }

    #[test]
    fn compares_origins() {
        let url = |text: &str| text.parse::<SafeUrl>().expect(text);
        assert!(url("https://a.example/x").same_origin(&url("https://A.example:443/y")));
        assert!(!url("https://a.example/x").same_origin(&url("http://a.example/x")));
    }
}
