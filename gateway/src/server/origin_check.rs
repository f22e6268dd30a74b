//! DNS rebinding: a page in a browser must not be able to talk to a gateway on the same machine or network.
//!
//! Rebinding needs a name, so a request for an address or for `localhost` is as good as any; another name must be in
//! the configuration. A page that says where it comes from (`Origin`) must come from this machine or be configured.

use std::net::{IpAddr, Ipv6Addr};

use url::{Host, Url};

/// Whom to serve.
#[derive(Clone, Debug, Default)]
pub struct OriginCheck {
    hosts: Vec<String>,
    origins: Vec<String>,
}

/// Why a request is turned away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OriginRefusal {
    /// A name that nobody configured.
    #[error("this Host is not served here; add it to `allowed_hosts` if it should be")]
    Host,
    /// A page from elsewhere.
    #[error("pages of this Origin may not call; add it to `allowed_origins` if they should")]
    Origin,
}

impl OriginCheck {
    /// A check that admits these names and origins besides those that are always safe.
    pub fn new(hosts: &[String], origins: &[String]) -> Self {
        let lower = |all: &[String]| all.iter().map(|one| one.trim_end_matches('/').to_ascii_lowercase()).collect();
        Self { hosts: lower(hosts), origins: lower(origins) }
    }

    /// Judges the `Host` and `Origin` of a request.
    ///
    /// # Errors
    ///
    /// When one of them is not to be served.
    pub fn admit(&self, host: Option<&str>, origin: Option<&str>) -> Result<(), OriginRefusal> {
        if !host.is_some_and(|host| self.admits_host(host)) {
            return Err(OriginRefusal::Host);
        }
        match origin {
            Some(origin) if !self.admits_origin(origin) => Err(OriginRefusal::Origin),
            _ => Ok(()),
        }
    }

    fn admits_host(&self, authority: &str) -> bool {
        let Some(name) = without_port(authority) else { return false };
        // The shape of nearly every request, decided without an allocation.
        if name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok() {
            return true;
        }
        let name = name.to_ascii_lowercase();
        self.hosts.iter().any(|known| *known == name || known.eq_ignore_ascii_case(authority))
    }

    fn admits_origin(&self, origin: &str) -> bool {
        let Ok(url) = Url::parse(origin) else { return false };
        let is_local = match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        is_local || self.origins.contains(&origin.trim_end_matches('/').to_ascii_lowercase())
    }
}

/// The host of an authority, without brackets and port (RFC 3986 §3.2); none if it is no authority. What is in brackets is
/// an address, and what follows the host is a port.
fn without_port(authority: &str) -> Option<&str> {
    let (host, rest) = match authority.strip_prefix('[') {
        Some(inner) => inner.split_once(']').filter(|(host, _)| host.parse::<Ipv6Addr>().is_ok())?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin_check() -> OriginCheck {
        OriginCheck::new(&["weir.example.com".into()], &["https://app.example.com".into()])
    }

    #[test]
    fn addresses_and_localhost_are_served_and_other_names_only_if_configured() {
        for host in [
            "127.0.0.1:8080",
            "localhost",
            "LOCALHOST:1",
            "[::1]:8080",
            "10.0.0.1",
            "weir.example.com:443",
            "Weir.Example.com",
        ] {
            assert_eq!(origin_check().admit(Some(host), None), Ok(()), "{host}");
        }
        for host in
            ["evil.example.com", "evil.example.com:8080", "localhost.evil.test", "127.0.0.1.evil.test", "", "[", ":80"]
        {
            assert_eq!(origin_check().admit(Some(host), None), Err(OriginRefusal::Host), "{host}");
        }
        assert_eq!(origin_check().admit(None, None), Err(OriginRefusal::Host));
    }

    /// Weir tells its clients addresses that begin with what they have in `Host`.
    #[test]
    fn nothing_but_a_port_follows_a_host() {
        for host in ["[::1]", "[::1]:", "[::1]:80", "127.0.0.1:", "localhost:8080"] {
            assert_eq!(origin_check().admit(Some(host), None), Ok(()), "{host}");
        }
        for host in [
            "[::1]evil.example",
            "[::1].evil.example:80",
            "[::1]:80@evil.example",
            "[::1",
            "[localhost]",
            "[127.0.0.1]",
            "[::1]:evil",
            "localhost:evil.example",
            "localhost:80/evil",
            "127.0.0.1:80:80",
            "weir.example.com:x",
        ] {
            assert_eq!(origin_check().admit(Some(host), None), Err(OriginRefusal::Host), "{host}");
        }
    }

    #[test]
    fn pages_call_from_this_machine_or_from_configured_origins() {
        for origin in ["http://localhost:6274", "http://127.0.0.1", "https://app.example.com", "http://[::1]:3000"] {
            assert_eq!(origin_check().admit(Some("localhost"), Some(origin)), Ok(()), "{origin}");
        }
        for origin in [
            "http://evil.example.com",
            "null",
            "",
            "https://app.example.com.evil.test",
            "http://203.0.113.5",
            "http://app.example.com",
        ] {
            assert_eq!(origin_check().admit(Some("localhost"), Some(origin)), Err(OriginRefusal::Origin), "{origin}");
        }
    }
}
