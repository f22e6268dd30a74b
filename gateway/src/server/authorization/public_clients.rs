//! Clients without a secret: what they say of themselves, and where browsers may return to them.
//!
//! A client registers itself (RFC 7591), or its `client_id` is the URL of a document that describes it (Client ID Metadata
//! Documents). Weir keeps no registration: the `client_id` holds it, sealed. A document is fetched for a person who has
//! signed in, so a stranger cannot have Weir fetch any.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use url::Url;
use weir_oauth::{AddressPolicy, Http, HttpError, RequestLimits, registration};

use crate::{
    config::{self, is_loopback_uri, is_redirect_uri},
    credential::IssuerStore,
    quota::{Quota, Shares},
    sealed_state::SealedState,
};

use super::error::OAuthError;

/// The most redirect URIs of one client.
const REDIRECTS: usize = 10;
/// The longest name of a client, in characters.
const LONGEST_NAME: usize = 80;
/// The longest `client_id`, in bytes: it is part of URLs.
const LONGEST_ID: usize = 2048;
/// How long a document is good for, and how long one that could not be read is not asked for again.
const FRESH: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_secs(10);
/// How many documents are cached. With more, the oldest is dropped.
const CACHED: usize = 1000;
/// How many documents are fetched at once, in all and for each principal.
const FETCHES: Shares = Shares { total: 16, principal: 2, upstream: 0 };
/// What a document may take.
const LIMITS: RequestLimits =
    RequestLimits { connect: Duration::from_secs(5), whole: Duration::from_secs(10), body: 16 * 1024 };
/// To what a registration is bound.
const REGISTRATION: &[u8] = b"client registration";

/// A client without a secret.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(in crate::server) struct PublicClient {
    /// What it calls itself.
    #[serde(rename = "n")]
    pub(in crate::server) name: String,
    #[serde(rename = "r")]
    redirects: Vec<String>,
    /// The host that publishes its document, or the operator; none for a client that has registered itself.
    #[serde(skip)]
    pub(in crate::server) publisher: Option<String>,
}

/// The clients that are not in the configuration.
pub(super) struct PublicClients {
    /// None if only clients of the configuration may be used.
    http: Option<Http>,
    /// Whether documents may be at private addresses, and there without TLS.
    private: bool,
    cache: Mutex<HashMap<String, CachedDocument>>,
    fetches: Arc<Quota>,
    /// Opens registrations; made when the first is needed.
    seal: OnceCell<SealedState>,
}

/// What was found at a URL, and when.
type CachedDocument = (Instant, Result<Arc<PublicClient>, String>);

impl PublicClients {
    /// Those of the authorization server of this address.
    pub(super) fn new(settings: &config::ClientSignIn, issuer: &str) -> Result<Self, HttpError> {
        let private = settings.private_network;
        let http = || Http::new(reach(private, issuer), LIMITS, &[]);
        Ok(Self {
            http: settings.registration.then(http).transpose()?,
            private,
            cache: Mutex::default(),
            fetches: Quota::new("client_documents", FETCHES),
            seal: OnceCell::new(),
        })
    }

    /// Whether clients that are not in the configuration may be used.
    pub(super) const fn are_open(&self) -> bool {
        self.http.is_some()
    }

    /// Registers a client: the answer of RFC 7591 §3.2.1.
    pub(super) async fn register(&self, store: &IssuerStore, body: &[u8]) -> Result<Value, OAuthError> {
        if !self.are_open() {
            return Err(OAuthError::method());
        }
        let document: Value =
            serde_json::from_slice(body).map_err(|_| OAuthError::metadata("the client is not described in JSON"))?;
        let client = PublicClient::parse(&document, None).map_err(OAuthError::metadata)?;
        let seal = self.seal(store).await?;
        let id = serde_json::to_vec(&client).ok().and_then(|plain| seal.seal(&plain, REGISTRATION));
        let id = id.filter(|id| id.len() <= LONGEST_ID);
        let id = id.ok_or_else(|| OAuthError::metadata("the `redirect_uris` are too long together"))?;
        Ok(json!({
            "client_id": id,
            "client_id_issued_at": SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            "client_name": client.name,
            "redirect_uris": client.redirects,
            "token_endpoint_auth_method": "none",
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
        }))
    }

    /// The client with this name, for the browser of `principal`; else why there is none.
    pub(super) async fn find(
        &self,
        store: &IssuerStore,
        id: &str,
        principal: &Arc<str>,
    ) -> Result<Arc<PublicClient>, String> {
        let unknown = || "it is not registered here; have it register again".to_owned();
        let http = self.http.as_ref().filter(|_| id.len() <= LONGEST_ID).ok_or_else(unknown)?;
        if !id.contains(':') {
            let seal = self.seal(store).await.map_err(|why| why.to_string())?;
            let opened = seal.open(id, REGISTRATION).and_then(|plain| serde_json::from_slice(&plain).ok());
            return opened.map(Arc::new).ok_or_else(unknown);
        }
        if let Some((at, found)) = self.cache.lock().get(id)
            && at.elapsed() < if found.is_ok() { FRESH } else { PAUSE }
        {
            return found.clone();
        }
        let url = document_url(id, self.private)?;
        let _permit = self.fetches.take(principal, None).map_err(|why| why.to_string())?;
        let found = fetch(http, &url).await.map(Arc::new);
        let mut cache = self.cache.lock();
        if cache.len() >= CACHED
            && let Some(oldest) = cache.iter().min_by_key(|(_, (at, _))| *at).map(|(id, _)| id.clone())
        {
            cache.remove(&oldest);
        }
        cache.insert(id.to_owned(), (Instant::now(), found.clone()));
        found
    }

    /// Whether a client may have this name. No document is fetched for that.
    pub(super) async fn may_be(&self, store: &IssuerStore, id: &str) -> Result<bool, OAuthError> {
        if !self.are_open() || id.len() > LONGEST_ID {
            return Ok(false);
        }
        if id.contains(':') {
            return Ok(document_url(id, self.private).is_ok());
        }
        Ok(self.seal(store).await?.open(id, REGISTRATION).is_some())
    }

    async fn seal(&self, store: &IssuerStore) -> Result<&SealedState, OAuthError> {
        let made =
            self.seal.get_or_try_init(|| async { store.registration_key().await.map(|key| SealedState::keyed(&key)) });
        made.await.map_err(|why| OAuthError::unavailable(&why))
    }
}

/// Reads a document (draft-ietf-oauth-client-id-metadata-document §4).
async fn fetch(http: &Http, url: &Url) -> Result<PublicClient, String> {
    let document = registration::client_document(http, url).await;
    // Why not would tell the person at the browser what there is in Weir's network.
    let document = document.map_err(|why| {
        tracing::info!(%url, "the document of a client cannot be read: {why}");
        "its document cannot be read; the log of the gateway says why".to_owned()
    })?;
    if document["client_id"] != *url.as_str() {
        return Err("its document has another `client_id`".to_owned());
    }
    PublicClient::parse(&document, url.host_str())
}

impl PublicClient {
    /// A client of the configuration.
    pub(super) fn configured(name: &str, redirects: &[String]) -> Self {
        Self {
            name: name.to_owned(),
            redirects: redirects.to_vec(),
            publisher: Some("the operator of this gateway".to_owned()),
        }
    }

    /// Reads what a client says of itself (RFC 7591 §2).
    fn parse(document: &Value, publisher: Option<&str>) -> Result<Self, String> {
        let method = document["token_endpoint_auth_method"].as_str();
        // A client that registers itself reads in the answer that it needs none.
        if publisher.is_some() && method.is_some_and(|method| method != "none") {
            return Err("its `token_endpoint_auth_method` is not `none`, the only one here".to_owned());
        }
        let listed = document["redirect_uris"].as_array().map_or(&[][..], Vec::as_slice);
        let redirects: Vec<String> = listed.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        if redirects.is_empty() || redirects.len() != listed.len() || redirects.len() > REDIRECTS {
            return Err(format!("it has no `redirect_uris`, or more than {REDIRECTS}"));
        }
        if !redirects.iter().all(|redirect| is_redirect_uri(redirect)) {
            return Err("browsers may not go to one of its `redirect_uris`".to_owned());
        }
        let name = document["client_name"].as_str().unwrap_or("a client without a name");
        let name = name.chars().take(LONGEST_NAME).collect();
        Ok(Self { name, redirects, publisher: publisher.map(str::to_owned) })
    }

    /// Whether browsers may return to `redirect`: letter by letter, but for the port on this machine (RFC 8252 §7.3).
    pub(in crate::server) fn may_return_to(&self, redirect: &str) -> bool {
        let without_port = |text: &str| {
            let mut url = Url::parse(text).ok().filter(is_loopback_uri)?;
            url.set_port(None).ok()?;
            Some(url)
        };
        let is_same = |known: &String| {
            known == redirect || without_port(known).is_some_and(|known| without_port(redirect) == Some(known))
        };
        is_redirect_uri(redirect) && self.redirects.iter().any(is_same)
    }
}

/// Where a document may be (draft-ietf-oauth-client-id-metadata-document §3).
/// Where documents may be. Only who signs in on this machine may have Weir look around there.
fn reach(private: bool, issuer: &str) -> AddressPolicy {
    let here = Url::parse(issuer).is_ok_and(|issuer| AddressPolicy::toward(&issuer).loopback);
    AddressPolicy { loopback: private && here, private }
}

fn document_url(id: &str, private: bool) -> Result<Url, String> {
    let url = Url::parse(id).ok().filter(|url| url.as_str() == id && url.path() != "/" && url.fragment().is_none());
    let plain = |url: &Url| url.username().is_empty() && url.password().is_none() && url.query().is_none();
    let secure = |url: &Url| url.scheme() == "https" || (private && url.scheme() == "http");
    url.filter(plain).filter(secure).ok_or_else(|| "its `client_id` is not the URL of a document".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn client(redirects: &[&str]) -> Result<PublicClient, String> {
        PublicClient::parse(&json!({ "client_name": "Host", "redirect_uris": redirects }), None)
    }

    #[test]
    fn who_signs_in_elsewhere_learns_nothing_of_this_machine() {
        for (private, issuer, loopback) in [
            (true, "http://127.0.0.1:8080", true),
            (true, "http://localhost:8080", true),
            (true, "https://weir.example", false),
            (true, "https://10.0.0.1", false),
            (false, "http://127.0.0.1:8080", false),
        ] {
            assert_eq!(reach(private, issuer), AddressPolicy { loopback, private }, "{issuer}");
        }
    }

    #[test]
    fn browsers_go_back_to_what_was_registered() {
        let known =
            ["https://host.example/back", "http://127.0.0.1:4000/cb", "http://localhost/cb", "cursor://host/cb"];
        let host = client(&known).unwrap();
        for (to, may) in [
            ("https://host.example/back", true),
            ("https://host.example/back?x=1", false),
            ("https://host.example/back/", false),
            ("https://host.example:444/back", false),
            ("https://host.example.evil.example/back", false),
            ("http://127.0.0.1:5000/cb", true),
            ("http://127.0.0.1/cb", true),
            ("http://127.0.0.1:5000/other", false),
            ("http://127.0.0.2:5000/cb", false),
            ("http://localhost:5000/cb", true),
            ("http://evil.example:5000/cb", false),
            ("http://x@127.0.0.1:4000/cb", false),
            ("http://127.0.0.1:4000/cb#x", false),
            ("cursor://host/cb", true),
            ("cursor://other/cb", false),
            ("", false),
        ] {
            assert_eq!(host.may_return_to(to), may, "{to}");
        }
        for odd in ["http://host.example/cb", "javascript:alert(1)", "data:text/html,x", "/cb", "https://a.example/#x"]
        {
            assert!(client(&[odd]).is_err(), "{odd}");
        }
        assert!(client(&[]).is_err() && client(&["https://a.example/"; REDIRECTS + 1]).is_err());
    }

    #[test]
    fn a_document_is_at_one_plain_address() {
        assert!(document_url("https://host.example/client.json", false).is_ok());
        for odd in [
            "https://host.example",
            "https://host.example/",
            "https://host.example/a/../client.json",
            "https://u@host.example/client.json",
            "https://host.example/client.json#x",
            "HTTPS://host.example/client.json",
        ] {
            assert!(document_url(odd, false).is_err(), "{odd}");
        }
        let plain = "http://host.example/client.json";
        assert!(document_url(plain, false).is_err() && document_url(plain, true).is_ok());
    }
}
