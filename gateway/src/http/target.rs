//! Where requests go: one URL, taken apart once, with the addresses of its host and its idle connections.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use url::{Host, Position, Url};
use weir_flow::Origin;
use weir_oauth::{AddressPolicy, ForwardProxy};

use super::{Error, HeaderValue, HttpTimeouts, address_cache::AddressCache, connection_pool::ConnectionPool};

/// How many addresses of a name are tried.
const MAX_ADDRESSES: usize = 8;

/// A forward proxy in front of a target.
pub struct HttpProxy {
    origin: Origin,
    forward: ForwardProxy,
}

/// One URL to send requests to. Its idle connections end with it.
pub struct HttpTarget {
    pub origin: Origin,
    /// What connections go to instead.
    proxy: Option<HttpProxy>,
    host: HeaderValue,
    pub(super) path: String,
    /// The head of a request between its method and its headers, `Host` included.
    pub(super) line: Vec<u8>,
    pub(super) timeouts: HttpTimeouts,
    addresses: AddressCache,
    /// Where the addresses of its host may lie, if not anywhere.
    reach: Option<AddressPolicy>,
    pub(super) pool: Arc<ConnectionPool>,
}

impl HttpTarget {
    pub(super) fn new(url: &Url, timeouts: HttpTimeouts, proxy: Option<ForwardProxy>) -> Result<Self, Error> {
        let (origin, path) = split(url)?;
        let proxy = proxy.map(HttpProxy::new).transpose()?;
        let authority = &url[Position::BeforeHost..Position::AfterPort];
        let host = HeaderValue::from_str(authority).map_err(|_| Error::Url("its host fits no header"))?;
        let (addresses, pool) = (AddressCache::default(), Arc::default());
        let mut target = Self { origin, proxy, host, path, line: Vec::new(), timeouts, addresses, reach: None, pool };
        target.line = target.line_to(&target.path);
        Ok(target)
    }

    /// The same where the host's name must not lead elsewhere. An address that the URL itself names is no surprise.
    pub fn within(self, reach: AddressPolicy) -> Self {
        Self { reach: Some(reach), ..self }
    }

    /// What a request for another path of the origin begins with.
    pub(super) fn line_to(&self, path: &str) -> Vec<u8> {
        let (origin, authorization) = match self.reader() {
            None => (String::new(), None),
            Some(proxy) => (format!("http://{}", self.authority()), proxy.authorization()),
        };
        let mut line =
            [b" ", origin.as_bytes(), path.as_bytes(), b" HTTP/1.1\r\nhost: ", self.host.as_bytes()].concat();
        if let Some(authorization) = authorization {
            line.extend_from_slice(b"\r\nproxy-authorization: ");
            line.extend_from_slice(authorization.as_bytes());
        }
        line.extend_from_slice(b"\r\n");
        line
    }

    /// The forward proxy that requests go through.
    pub fn proxy(&self) -> Option<&HttpProxy> {
        self.proxy.as_ref()
    }

    /// The same where it reads the requests: those that are not secured (RFC 9112 §3.2.2).
    pub(super) fn reader(&self) -> Option<&HttpProxy> {
        self.proxy.as_ref().filter(|_| !self.origin.is_https())
    }

    /// What connections are made to.
    pub(super) fn first_hop(&self) -> &Origin {
        self.proxy.as_ref().map_or(&self.origin, |proxy| &proxy.origin)
    }

    /// Its URL without query, which is what a proof is about (RFC 9449 §4.2).
    pub fn url(&self) -> String {
        let path = self.path.split('?').next().unwrap_or_default();
        format!("{}://{}{path}", self.origin.scheme, self.authority())
    }

    /// Path and query of a redirect from `path` (its own if there is none), if it stays within the origin.
    pub(super) fn redirected(&self, path: Option<&str>, location: &HeaderValue) -> Result<String, Error> {
        let base = format!("{}://{}{}", self.origin.scheme, self.authority(), path.unwrap_or(&self.path));
        let base = Url::parse(&base).map_err(|_| Error::BadResponse)?;
        let url = location.to_str().ok().and_then(|location| base.join(location).ok()).ok_or(Error::BadResponse)?;
        match split(&url) {
            Ok((origin, path)) if origin == self.origin => Ok(path),
            _ => Err(Error::CrossOrigin),
        }
    }

    /// Whom to connect to: both families in turn, each in the order of the resolver (RFC 8305 §4).
    pub(super) async fn addresses(&self) -> Result<Arc<[SocketAddr]>, Error> {
        let Origin { host, port, .. } = self.first_hop();
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Arc::new([SocketAddr::new(address, *port)]));
        }
        let name = (host.clone(), *port);
        let found = self.addresses.get(|| tokio::net::lookup_host(name)).await.ok_or(Error::Resolve)?;
        match self.reach {
            // Behind a proxy the name is the proxy's to look up.
            Some(reach) if self.proxy.is_none() => admitted(reach, &found),
            _ => Ok(found),
        }
    }

    /// `Host`, which is always text.
    pub(super) fn authority(&self) -> &str {
        self.host.to_str().unwrap_or_default()
    }
}

impl HttpProxy {
    fn new(forward: ForwardProxy) -> Result<Self, Error> {
        Ok(Self { origin: split(&forward.url)?.0, forward })
    }

    /// An error in whose way it is; `what` follows its name.
    pub(super) fn fault(&self, what: impl fmt::Display) -> Error {
        Error::Proxy(self.forward.fault(what))
    }

    pub(super) fn unreachable(&self, error: &Error) -> Error {
        self.fault(format_args!("gives no connection ({error})"))
    }

    pub(super) fn unauthorized(&self) -> Error {
        self.fault("wants another user and password (407), written as http://user:password@host:port")
    }

    /// `Proxy-Authorization`.
    pub(super) fn authorization(&self) -> Option<&HeaderValue> {
        self.forward.authorization.as_ref()
    }
}

impl fmt::Display for HttpProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.forward.fmt(f)
    }
}

/// Those of the addresses of one name that may be connected to.
pub(super) fn admitted(reach: AddressPolicy, found: &[SocketAddr]) -> Result<Arc<[SocketAddr]>, Error> {
    let mut refused = None;
    let allowed = |address: &&SocketAddr| reach.allows(address.ip()).map_err(|place| refused = Some(place)).is_ok();
    let admitted: Arc<[SocketAddr]> = found.iter().filter(allowed).copied().collect();
    match refused {
        Some(place) if admitted.is_empty() => Err(Error::Forbidden(place)),
        _ => Ok(admitted),
    }
}

/// The families in turn, that of the first address first.
pub(super) fn interleaved(found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut found = found.peekable();
    let v6_first = found.peek().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = found.partition(|address| address.is_ipv6() == v6_first);
    let both = first.len().max(second.len());
    let of = |family: &[SocketAddr], at: usize| family.get(at).copied();
    (0..both).flat_map(|at| [of(&first, at), of(&second, at)]).flatten().take(MAX_ADDRESSES).collect()
}

/// Origin, and path with query.
fn split(url: &Url) -> Result<(Origin, String), Error> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Error::Url("it is neither http nor https"));
    }
    let host = match url.host().ok_or(Error::Url("it has no host"))? {
        Host::Domain(name) => name.to_ascii_lowercase(),
        Host::Ipv4(address) => address.to_string(),
        Host::Ipv6(address) => address.to_string(),
    };
    let port = url.port_or_known_default().ok_or(Error::Url("it has no port"))?;
    // `Url` escapes blanks and control characters, so that this cannot end the request line.
    Ok((
        Origin { scheme: url.scheme().to_owned(), host, port },
        url[Position::BeforePath..Position::AfterQuery].to_owned(),
    ))
}
