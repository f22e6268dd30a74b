//! Where browsers may return to a client of Weir as an authorization server.

use url::{Host, Url};

/// The longest redirect URI, in bytes.
const LONGEST: usize = 512;
/// Schemes that browsers run or read themselves.
const SCHEMES: [&str; 10] =
    ["javascript", "data", "vbscript", "file", "blob", "about", "filesystem", "view-source", "ws", "wss"];

/// Whether a browser may be sent there: `https`, `http` on this machine, or the scheme of an app (RFC 8252 §7).
#[must_use]
pub fn is_redirect_uri(text: &str) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    let plain = url.fragment().is_none() && url.username().is_empty() && url.password().is_none();
    let known = match url.scheme() {
        "https" => true,
        "http" => is_loopback_uri(&url),
        scheme => !SCHEMES.contains(&scheme),
    };
    text.len() <= LONGEST && plain && known && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether it leads to this machine, where any port will do (RFC 8252 §7.3).
#[must_use]
pub fn is_loopback_uri(url: &Url) -> bool {
    url.scheme() == "http"
        && match url.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        }
}
