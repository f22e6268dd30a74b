//! The HTTP client of the control plane: every URL in it may come from a stranger.
//!
//! Where a connection may go is decided when it is made, from the address and not the name, so a name that changes its
//! mind gains nothing. Behind a forward proxy the proxy looks names up. There Weir refuses the addresses and names that it
//! knows itself to lead where they must not; the rest is the proxy's to refuse. Redirects stay on their origin and are followed for reading alone. Answers are bounded in size
//! and time. No message holds more of a URL than its origin, and nothing of a body.

use std::{
    error::Error,
    fmt,
    net::IpAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use reqwest::redirect;
use rustls::pki_types::CertificateDer;
use thiserror::Error;
use tokio::time::timeout;
use url::{Host, Url};
use zeroize::Zeroizing;

use address::AddressKind;
use guard::{AddressGuard, Lookup, RefusedAddress, System, admitted};

mod address;
mod forward_proxy;
mod guard;

pub use forward_proxy::{ForwardProxies, ForwardProxy, UnusableProxy};

/// What no [`AddressPolicy`] opens.
const NEVER: &str = "a link-local, multicast or reserved address";

/// Where requests may go besides the internet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressPolicy {
    /// To this machine, also without TLS.
    pub loopback: bool,
    /// To private networks (RFC 1918, RFC 4193, RFC 6598).
    pub private: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// To connect, TLS included.
    pub connect: Duration,
    /// From the start to the last byte, redirects included.
    pub whole: Duration,
    /// Of a body, in bytes.
    pub body: usize,
}

/// A client with one [`AddressPolicy`]. Clones share their connections.
#[derive(Clone)]
pub struct Http {
    client: reqwest::Client,
    reach: AddressPolicy,
    limits: RequestLimits,
    tls: rustls::ClientConfig,
    names: Arc<dyn Lookup>,
    proxies: ForwardProxies,
    /// For what goes through a proxy, when that is first needed. Only `https` does, so it is always the same one.
    proxied: OnceLock<reqwest::Client>,
}

/// An answer, whatever its status.
pub(crate) struct HttpAnswer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// Perhaps with tokens in it.
    pub(crate) body: Zeroizing<Vec<u8>>,
}

/// Why there is no answer. Names origins only.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HttpError {
    #[error("{origin} leads to {place}, where a URL from outside must not go{}", opening(place))]
    Forbidden { origin: String, place: String },
    #[error("{0} is not https, which is needed everywhere but on this machine")]
    Insecure(String),
    #[error("a URL of the server cannot be used: {0}")]
    Url(String),
    #[error("{0} redirects to another origin")]
    Redirect(String),
    #[error("{0} answers with more than {1} bytes")]
    TooLarge(String, usize),
    #[error("{0} did not answer in time")]
    TimedOut(String),
    #[error("{origin} cannot be reached: {reason}")]
    Unreachable { origin: String, reason: String },
    #[error("no HTTPS on this machine: {0}")]
    Setup(String),
}

impl AddressPolicy {
    /// What the upstream at `url` may lead to: this machine, if that is where it is itself.
    pub fn toward(url: &Url) -> Self {
        Self { loopback: is_loopback(url), private: false }
    }

    /// Whether a connection to `address` may be made.
    ///
    /// # Errors
    ///
    /// With the kind of place where the address lies, if not.
    pub fn allows(self, address: IpAddr) -> Result<(), &'static str> {
        match address::place(address) {
            AddressKind::Public => Ok(()),
            AddressKind::Loopback if self.loopback => Ok(()),
            AddressKind::Private if self.private => Ok(()),
            AddressKind::Loopback => Err("this machine"),
            AddressKind::Private => Err("a private network"),
            AddressKind::Never => Err(NEVER),
        }
    }
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), whole: Duration::from_secs(20), body: 512 * 1024 }
    }
}

impl HttpError {
    /// Whether the same request may succeed later.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::TimedOut(_) | Self::Unreachable { .. })
    }
}

impl Http {
    /// A client that trusts the certificates of this machine and the `roots` given, in DER.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn new(reach: AddressPolicy, limits: RequestLimits, roots: &[Vec<u8>]) -> Result<Self, HttpError> {
        Self::build(reach, limits, tls(roots)?, Arc::new(System), ForwardProxies::from_env())
    }

    /// A client with another reach, which shares what it took to read the certificates.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn with_reach(&self, reach: AddressPolicy) -> Result<Self, HttpError> {
        Self::build(reach, self.limits, self.tls.clone(), Arc::clone(&self.names), self.proxies.clone())
    }

    fn build(
        reach: AddressPolicy,
        limits: RequestLimits,
        tls: rustls::ClientConfig,
        names: Arc<dyn Lookup>,
        proxies: ForwardProxies,
    ) -> Result<Self, HttpError> {
        let guard = AddressGuard { reach, names: Arc::clone(&names) };
        // A proxy would connect in our place, past the guard.
        let client = builder(limits, &tls).no_proxy().dns_resolver(guard).build();
        let client = client.map_err(|error| HttpError::Setup(reason(&error)))?;
        Ok(Self { client, reach, limits, tls, names, proxies, proxied: OnceLock::new() })
    }

    /// Whether a request to `url` may be sent, as far as that shows before its name is looked up.
    ///
    /// # Errors
    /// If not.
    pub fn check(&self, url: &Url) -> Result<(), HttpError> {
        let origin = origin(url);
        match url.scheme() {
            "https" => {}
            "http" if self.reach.loopback && is_loopback(url) => {}
            "http" => return Err(HttpError::Insecure(origin)),
            other => return Err(HttpError::Url(format!("it is of the scheme `{other}`"))),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(HttpError::Url("it has a user name or a password in it".to_owned()));
        }
        let address = match url.host() {
            Some(Host::Ipv4(address)) => IpAddr::V4(address),
            Some(Host::Ipv6(address)) => IpAddr::V6(address),
            Some(Host::Domain(_)) => return Ok(()),
            None => return Err(HttpError::Url("it has no host".to_owned())),
        };
        self.reach.allows(address).map_err(|place| HttpError::Forbidden { origin, place: place.to_owned() })
    }

    /// Reads JSON, following redirects on the same origin.
    pub(crate) async fn get(&self, url: &Url) -> Result<HttpAnswer, HttpError> {
        /// More is a loop.
        const REDIRECTS: usize = 3;
        let mut at = url.clone();
        for _ in 0..=REDIRECTS {
            let answer = self.send(Method::GET, &at, HeaderMap::new(), None).await?;
            if !answer.status.is_redirection() {
                return Ok(answer);
            }
            let next = answer.headers.get(header::LOCATION).and_then(|to| at.join(to.to_str().ok()?).ok());
            match next {
                Some(next) if next.origin() == at.origin() => at = next,
                _ => break,
            }
        }
        Err(HttpError::Redirect(origin(url)))
    }

    /// Reads JSON from this very address.
    pub(crate) async fn get_here(&self, url: &Url) -> Result<HttpAnswer, HttpError> {
        self.send(Method::GET, url, HeaderMap::new(), None).await
    }

    /// Sends a body of this media type.
    pub(crate) async fn post(
        &self,
        url: &Url,
        media_type: &'static str,
        body: String,
        mut headers: HeaderMap,
    ) -> Result<HttpAnswer, HttpError> {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        self.send(Method::POST, url, headers, Some(body.into())).await
    }

    async fn send(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
        body: Option<Vec<u8>>,
    ) -> Result<HttpAnswer, HttpError> {
        let mut response = self.request(method, url, headers, body).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let too_large = || HttpError::TooLarge(origin(url), self.limits.body);
        if response.content_length().is_some_and(|length| length > self.limits.body as u64) {
            return Err(too_large());
        }
        let mut body = Zeroizing::new(Vec::new());
        while let Some(chunk) = response.chunk().await.map_err(|error| failure(url, &error))? {
            if body.len() + chunk.len() > self.limits.body {
                return Err(too_large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(HttpAnswer { status, headers, body })
    }

    /// Sends a request and reads the head of its answer.
    pub(crate) async fn request(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
        body: Option<Vec<u8>>,
    ) -> Result<reqwest::Response, HttpError> {
        self.check(url)?;
        let unreachable = |reason| HttpError::Unreachable { origin: origin(url), reason };
        let proxy = self.proxies.for_url(url).map_err(|error| unreachable(error.to_string()))?;
        let client = match &proxy {
            None => &self.client,
            Some(proxy) => {
                self.admit(url).await?;
                self.proxied(proxy)?
            }
        };
        let mut request = client.request(method, url.clone()).headers(headers);
        if let Some(body) = body {
            request = request.body(body);
        }
        request.send().await.map_err(|error| match (proxy, failure(url, &error)) {
            (Some(proxy), HttpError::Unreachable { reason, .. }) => {
                unreachable(proxy.fault(format_args!("gives no connection ({reason})")))
            }
            (_, error) => error,
        })
    }

    /// Refuses a name that this machine knows to lead where it must not. The proxy may know names that it does not.
    async fn admit(&self, url: &Url) -> Result<(), HttpError> {
        /// Where only the proxy reaches the internet, the resolver may never answer.
        const LOOKUP: Duration = Duration::from_secs(1);
        let Some(Host::Domain(name)) = url.host() else { return Ok(()) };
        let Ok(Ok(found)) = timeout(LOOKUP, self.names.lookup(name)).await else { return Ok(()) };
        let place = |place: &str| HttpError::Forbidden { origin: origin(url), place: place.to_owned() };
        admitted(self.reach, found).map(drop).map_err(place)
    }

    fn proxied(&self, proxy: &ForwardProxy) -> Result<&reqwest::Client, HttpError> {
        if let Some(made) = self.proxied.get() {
            return Ok(made);
        }
        let setup = |error: reqwest::Error| HttpError::Setup(reason(&error));
        let mut every = reqwest::Proxy::https(proxy.url.clone()).map_err(setup)?;
        if let Some(authorization) = &proxy.authorization {
            every = every.custom_http_auth(authorization.clone());
        }
        let made = builder(self.limits, &self.tls).proxy(every).build().map_err(setup)?;
        Ok(self.proxied.get_or_init(|| made))
    }
}

/// What every client has.
fn builder(limits: RequestLimits, tls: &rustls::ClientConfig) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls.clone())
        .redirect(redirect::Policy::none())
        .connect_timeout(limits.connect)
        .timeout(limits.whole)
        .pool_idle_timeout(Duration::from_secs(30))
        .default_headers(HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static("application/json"))]))
        .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("reach", &self.reach).finish_non_exhaustive()
    }
}

/// The origin of a URL, which is all that messages say of it.
pub(crate) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// Whether a URL names this machine (RFC 6761 §6.3 for the name).
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address::place(IpAddr::V6(address)) == AddressKind::Loopback,
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

/// What opens a place, as the rest of a sentence.
fn opening(place: &str) -> &'static str {
    match place {
        NEVER => "",
        _ => "; if it is yours, and an upstream's, oauth = { private_network = true } allows it",
    }
}

fn failure(url: &Url, error: &reqwest::Error) -> HttpError {
    let origin = origin(url);
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(at) = cause {
        if let Some(RefusedAddress(place)) = at.downcast_ref() {
            return HttpError::Forbidden { origin, place: (*place).to_owned() };
        }
        cause = at.source();
    }
    if error.is_timeout() {
        HttpError::TimedOut(origin)
    } else {
        HttpError::Unreachable { origin, reason: reason(error) }
    }
}

/// The innermost cause: the outer ones repeat the URL.
fn reason(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    if std::ptr::eq(cause, error as &dyn Error) { "the request failed".to_owned() } else { cause.to_string() }
}

fn tls(roots: &[Vec<u8>]) -> Result<rustls::ClientConfig, HttpError> {
    let mut store = rustls::RootCertStore::empty();
    // Some machines have one that cannot be read among many that can.
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for root in roots {
        store.add(CertificateDer::from(root.clone())).map_err(|error| HttpError::Setup(error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| HttpError::Setup(error.to_string()))?;
    Ok(versions.with_root_certificates(store).with_no_client_auth())
}

#[cfg(test)]
mod tests;
