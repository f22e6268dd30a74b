//! What may leave for an upstream: credentials for their own origin, and a client's headers by an allow-list.

use std::fmt;

/// The origin of an address (RFC 6454 §4): what a credential is given for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// `http` or `https`.
    pub scheme: String,
    /// The host, in lower case.
    pub host: String,
    /// The port, with the scheme's default filled in.
    pub port: u16,
}

impl Origin {
    /// Whether what is sent there is secured.
    pub fn is_https(&self) -> bool {
        self.scheme == "https"
    }

    /// Whether a credential given for this origin may be sent to `target`.
    pub fn admits(&self, target: &Self) -> bool {
        self == target
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "{}://[{}]:{}", self.scheme, self.host, self.port),
            false => write!(f, "{}://{}:{}", self.scheme, self.host, self.port),
        }
    }
}

/// Whether a header that a client sent may go on to an upstream.
///
/// An allow-list, so that `Authorization`, cookies and whatever else a client holds stay here: passing a client's token
/// on is forbidden (MCP 2026-07-28, basic/authorization, "Token Passthrough"). `name` is in lower case.
pub fn may_travel(name: &str) -> bool {
    name.starts_with("mcp-param-") || matches!(name, "traceparent" | "tracestate" | "baggage")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(scheme: &str, host: &str, port: u16) -> Origin {
        Origin { scheme: scheme.into(), host: host.into(), port }
    }

    #[test]
    fn a_credential_stays_with_its_origin() {
        let home = origin("https", "api.example.com", 443);
        assert!(home.admits(&home.clone()));
        for other in [
            origin("http", "api.example.com", 443),
            origin("https", "api.example.com.evil.test", 443),
            origin("https", "api.example.com", 8443),
        ] {
            assert!(!home.admits(&other), "{other}");
        }
    }

    #[test]
    fn a_clients_own_secrets_stay_here() {
        for name in ["authorization", "cookie", "proxy-authorization", "x-api-key", "mcp-session-id", "host"] {
            assert!(!may_travel(name), "{name}");
        }
        for name in ["mcp-param-region", "traceparent", "tracestate", "baggage"] {
            assert!(may_travel(name), "{name}");
        }
    }
}
