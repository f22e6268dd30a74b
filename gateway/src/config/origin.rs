//! Who may be addressed and who may ask: host names and browser origins, as they are compared with request headers.

use std::{net::Ipv6Addr, str::FromStr};

use url::{Host, Url};

use super::read::Unreadable;
use super::string::strings;

/// A host name, lower case, without port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostName(pub(super) String);

/// A host by which other gateways reach this one, and a port if it is another than the one that Weir listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplicaAddress {
    pub(super) host: String,
    pub(super) port: Option<u16>,
}

/// An origin as browsers write it in the `Origin` header (RFC 6454 §6.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WebOrigin(pub(super) String);

/// The origin of a service that a policy may ask (RFC 6454 §6.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceOrigin(pub(super) String);

/// A URL of the web that is compared and printed as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WebUrl(pub(super) String);

strings! {
    HostName: "a host name, as a string", { "type": "string", "minLength": 1 };
    WebOrigin: "an origin such as \"https://app.example.com\"", { "type": "string", "pattern": "://" };
    WebUrl: "a URL such as \"https://login.example.com\"", { "type": "string", "pattern": "^https?://" };
    ServiceOrigin: "an origin such as \"https://tokens.example.com\"", { "type": "string", "pattern": "^https?://" };
}

impl FromStr for HostName {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let refused = |hint: &'static str| Unreadable::new("this is not a host name", hint);
        if text.contains("://") || text.contains('/') {
            return Err(refused("the name alone, without scheme and path: \"weir.example.com\""));
        }
        if text.contains('*') {
            return Err(refused("name each host; there are no patterns"));
        }
        match Host::parse(text) {
            Ok(Host::Domain(name)) => Ok(Self(name)),
            Ok(Host::Ipv4(_) | Host::Ipv6(_)) => {
                Err(Unreadable::new("IP addresses are always allowed", "leave this one out"))
            }
            Err(_) if text.contains(':') => Err(refused("without port: \"weir.example.com\"")),
            Err(_) => Err(refused("such as \"weir.example.com\"")),
        }
    }
}

impl FromStr for ReplicaAddress {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let refused = || Unreadable::new("this is not an address", "such as \"10.0.0.5\" or \"weir-0.weir:9465\"");
        let host = |text: &str| Host::parse(text).map(|host| host.to_string()).map_err(|_| refused());
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Ok(Self { host: format!("[{address}]"), port: None });
        }
        match text.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => {
                let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(refused)?;
                Ok(Self { host: host(name)?, port: Some(port) })
            }
            _ => Ok(Self { host: host(text)?, port: None }),
        }
    }
}

impl FromStr for WebOrigin {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let refused = || {
            Unreadable::new(
                "this is not a browser origin",
                "scheme, host and port alone: \"https://app.example.com\"; name each, there are no patterns",
            )
        };
        let url = Url::parse(text).map_err(|_| refused())?;
        let bare = url.path().trim_end_matches('/').is_empty() && url.query().is_none() && url.fragment().is_none();
        let anonymous = url.username().is_empty() && url.password().is_none();
        if !bare || !anonymous || text.contains('*') {
            return Err(refused());
        }
        if url.origin().is_tuple() {
            return Ok(Self(url.origin().ascii_serialization()));
        }
        // Editors and desktop applications send origins such as `vscode-file://vscode-app`.
        match url.host_str() {
            Some(host) => Ok(Self(format!("{}://{host}", url.scheme()))),
            None => Err(refused()),
        }
    }
}

impl FromStr for WebUrl {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let refused = |message| Unreadable::new(message, "such as \"https://login.example.com\"");
        let url = Url::parse(text).map_err(|_| refused("this is not a URL"))?;
        let local = match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(refused("this URL can have no user name, no password and no part after `#`"));
        }
        match url.scheme() {
            "https" => Ok(Self(text.to_owned())),
            "http" if local => Ok(Self(text.to_owned())),
            "http" => Err(refused("only `https` will do, but on this machine")),
            _ => Err(refused("this is not a URL of the web")),
        }
    }
}

impl FromStr for ServiceOrigin {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let refused = || {
            let hint = "scheme, host and port alone: \"https://tokens.example.com\"";
            Unreadable::new("this is not the origin of a service", hint)
        };
        let url = Url::parse(text).map_err(|_| refused())?;
        let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        let anonymous = url.username().is_empty() && url.password().is_none();
        let web = matches!(url.scheme(), "http" | "https") && !text.contains('*');
        if bare && anonymous && web { Ok(Self(url.origin().ascii_serialization())) } else { Err(refused()) }
    }
}

#[cfg(test)]
mod tests {
    use super::{HostName, ReplicaAddress, ServiceOrigin, WebOrigin, WebUrl};

    #[test]
    fn reads_addresses_of_gateways() {
        for (text, host, port) in [
            ("10.0.0.5", "10.0.0.5", None),
            ("10.0.0.5:9465", "10.0.0.5", Some(9465)),
            ("weir-0.weir:9465", "weir-0.weir", Some(9465)),
            ("fd00::1", "[fd00::1]", None),
            ("[fd00::1]", "[fd00::1]", None),
            ("[fd00::1]:9465", "[fd00::1]", Some(9465)),
        ] {
            assert_eq!(text.parse(), Ok(ReplicaAddress { host: host.to_owned(), port }), "{text}");
        }
        for bad in ["", "weir:", "weir:0", "weir:x", "http://weir", "we ir", "weir:70000"] {
            assert!(bad.parse::<ReplicaAddress>().is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_urls_of_the_web() {
        for good in
            ["https://Login.example.com/tenant/", "http://localhost:9000", "http://127.0.0.1/x", "http://[::1]/"]
        {
            assert_eq!(good.parse(), Ok(WebUrl(good.to_owned())));
        }
        for bad in ["", "login", "http://login.example.com", "https://me@a", "https://a#b", "ftp://a"] {
            assert!(bad.parse::<WebUrl>().is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_origins_of_services() {
        assert_eq!(
            "https://Tokens.Example.com:443".parse(),
            Ok(ServiceOrigin("https://tokens.example.com".to_owned()))
        );
        assert_eq!("http://127.0.0.1:9000/".parse(), Ok(ServiceOrigin("http://127.0.0.1:9000".to_owned())));
        for bad in ["", "tokens.example.com", "https://a/x", "https://a?b", "https://*.a", "https://me@a", "ftp://a"] {
            assert!(bad.parse::<ServiceOrigin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_host_names() {
        assert_eq!("Weir.Example.com".parse(), Ok(HostName("weir.example.com".to_owned())));
        for bad in ["", "a:80", "https://a", "a/b", "*.a", "127.0.0.1", "[::1]", "a b"] {
            assert!(bad.parse::<HostName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_origins() {
        for (text, origin) in [
            ("https://App.example.com", "https://app.example.com"),
            ("https://app.example.com:443/", "https://app.example.com"),
            ("http://app.example.com:3000", "http://app.example.com:3000"),
            ("vscode-file://vscode-app", "vscode-file://vscode-app"),
        ] {
            assert_eq!(text.parse(), Ok(WebOrigin(origin.to_owned())));
        }
        for bad in
            ["", "*", "null", "app.example.com", "https://a/x", "https://a?b", "https://*.a", "https://me@a", "data:x"]
        {
            assert!(bad.parse::<WebOrigin>().is_err(), "{bad}");
        }
    }
}
