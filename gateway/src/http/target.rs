//! Where requests go: one URL, taken apart once, with the addresses of its host.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use pingora_core::{protocols::ALPN, upstreams::peer::HttpPeer};
use url::{Host, Url};

use super::{Error, HeaderValue, Timeouts};

/// How long the addresses of a name are believed.
const RESOLVED: Duration = Duration::from_secs(30);

/// The origin of a URL (RFC 6454 §4).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Whether the connection is secured.
    pub https: bool,
    /// The host, in lower case; an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// One URL to send requests to.
pub struct Target {
    origin: Origin,
    path: String,
    host: HeaderValue,
    timeouts: Timeouts,
    peers: Mutex<Option<(Instant, Arc<[Arc<HttpPeer>]>)>>,
}

impl Target {
    /// Takes a URL apart; nothing is resolved yet.
    ///
    /// # Errors
    ///
    /// When it is neither `http` nor `https`, or has no host.
    pub fn new(url: &Url, timeouts: Timeouts) -> Result<Self, Error> {
        let https = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(Error::Url("it is neither http nor https")),
        };
        let host = match url.host().ok_or(Error::Url("it has no host"))? {
            Host::Domain(name) => name.to_ascii_lowercase(),
            Host::Ipv4(address) => address.to_string(),
            Host::Ipv6(address) => address.to_string(),
        };
        let port = url.port_or_known_default().ok_or(Error::Url("it has no port"))?;
        let authority = &url[url::Position::BeforeHost..url::Position::AfterPort];
        let header = HeaderValue::from_str(authority).map_err(|_| Error::Url("its host fits no header"))?;
        let path = url[url::Position::BeforePath..url::Position::AfterQuery].to_owned();
        Ok(Self { origin: Origin { https, host, port }, path, host: header, timeouts, peers: Mutex::default() })
    }

    /// Its origin.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Path and query.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// `Host`.
    pub(super) fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// Path and query of a redirect from `path`, if it stays within the origin.
    pub(super) fn redirected(&self, path: &str, location: &HeaderValue) -> Result<String, Error> {
        let scheme = if self.origin.https { "https" } else { "http" };
        let base = format!("{scheme}://{}{path}", self.host.to_str().unwrap_or_default());
        let base = Url::parse(&base).map_err(|_| Error::BadResponse)?;
        let url = location.to_str().ok().and_then(|location| base.join(location).ok()).ok_or(Error::BadResponse)?;
        let next = Self::new(&url, self.timeouts).map_err(|_| Error::CrossOrigin)?;
        if next.origin == self.origin { Ok(next.path) } else { Err(Error::CrossOrigin) }
    }

    /// Whom to connect to, in the order of the resolver.
    pub(super) async fn peers(&self) -> Result<Arc<[Arc<HttpPeer>]>, Error> {
        if let Some((since, peers)) = self.lock().as_ref()
            && since.elapsed() < RESOLVED
        {
            return Ok(Arc::clone(peers));
        }
        let addresses: Vec<SocketAddr> = match self.origin.host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, self.origin.port)],
            Err(_) => {
                let lookup = tokio::net::lookup_host((self.origin.host.as_str(), self.origin.port));
                let found = tokio::time::timeout(self.timeouts.connect, lookup).await;
                found.map_err(|_| Error::Resolve)?.map_err(|_| Error::Resolve)?.collect()
            }
        };
        let peers: Arc<[_]> = addresses.into_iter().map(|address| Arc::new(self.peer(address))).collect();
        *self.lock() = Some((Instant::now(), Arc::clone(&peers)));
        Ok(peers)
    }

    fn peer(&self, address: SocketAddr) -> HttpPeer {
        let mut peer = HttpPeer::new(address, self.origin.https, self.origin.host.clone());
        peer.options.alpn = ALPN::H1;
        peer.options.connection_timeout = Some(self.timeouts.connect);
        peer.options.total_connection_timeout = Some(self.timeouts.connect);
        peer.options.read_timeout = Some(self.timeouts.read);
        peer.options.write_timeout = Some(self.timeouts.read);
        peer
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Instant, Arc<[Arc<HttpPeer>]>)>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", if self.https { "https" } else { "http" }, self.host, self.port)
    }
}
