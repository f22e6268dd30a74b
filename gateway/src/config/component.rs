//! Components that come over the network: what names them, and which bytes they are.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use minisign_verify::{PublicKey, Signature};
use oci_client::Reference;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use url::Url;

use super::Environment;

/// What begins the name of a component in an OCI registry.
const OCI: &str = "oci://";

/// A component that Weir fetches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteComponent {
    /// Where it is.
    pub place: ComponentPlace,
    /// What it must be: the file at a URL, the manifest in a registry. None if nothing says it, and then it is not used.
    pub digest: Option<ComponentDigest>,
    /// Whether the lock file has the last word about the digest, not the configuration.
    pub is_locked: bool,
}

/// Where a component is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComponentPlace {
    /// A file at a web server. HTTPS, or on this machine.
    Url(Url),
    /// An artifact in an OCI registry, without its digest.
    Registry(Reference),
}

/// A SHA-256, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentDigest(String);

/// Whose signature a component must have: a public key of minisign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentSigner(String);

/// The lock file: the digest of each component that the configuration names without one.
#[derive(Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ComponentLock {
    /// By the names in the configuration.
    pub components: BTreeMap<String, String>,
}

impl FromStr for ComponentSigner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let key = PublicKey::from_base64(text).map(|_| Self(text.to_owned()));
        key.map_err(|_| "this is not a public key of minisign".to_owned())
    }
}

impl ComponentSigner {
    /// Whether a signature is this key's, of these bytes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn verify(&self, bytes: &[u8], signature: &str) -> Result<(), String> {
        let signature = Signature::decode(signature).map_err(|_| "it is not a signature of minisign".to_owned())?;
        let key = PublicKey::from_base64(&self.0).map_err(|why| why.to_string())?;
        // Signatures of the whole file at once are left behind by minisign itself.
        key.verify(bytes, &signature, false).map_err(|why| why.to_string())
    }
}

impl RemoteComponent {
    /// Reads what a configuration names. None if it names no place in the network.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        if let Some(reference) = text.strip_prefix(OCI) {
            return Some(in_registry(reference));
        }
        (text.starts_with("https://") || text.starts_with("http://")).then(|| at_url(text))
    }
}

fn in_registry(text: &str) -> Result<RemoteComponent, String> {
    // What is short for Docker's own registry elsewhere would surprise here.
    if !text.split_once('/').is_some_and(|(host, _)| host.contains(['.', ':']) || host == "localhost") {
        return Err("the registry is missing; write oci://HOST/REPOSITORY:TAG".to_owned());
    }
    let reference: Reference = text.parse().map_err(|why| format!("this is no reference to an OCI artifact: {why}"))?;
    let digest = reference.digest().map(ComponentDigest::from_str).transpose()?;
    let (host, repository) = (reference.registry().to_owned(), reference.repository().to_owned());
    let place = match (reference.tag(), &digest) {
        // The tag is for people: the digest says which it is.
        (_, Some(digest)) => Reference::with_digest(host, repository, digest.to_string()),
        (Some(tag), None) => Reference::with_tag(host, repository, tag.to_owned()),
        (None, None) => reference,
    };
    Ok(RemoteComponent { place: ComponentPlace::Registry(place), digest, is_locked: false })
}

fn at_url(text: &str) -> Result<RemoteComponent, String> {
    let url = Url::parse(text).map_err(|why| format!("this is no URL: {why}"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("a URL holds no user and no password".to_owned());
    }
    // Messages and the lock file name the URL, and such a query is often what opens the file.
    if url.query().is_some() || url.fragment().is_some() {
        return Err("the URL of a component ends with its path: `?` and `#` cannot be used".to_owned());
    }
    if url.scheme() == "http" && !url.host_str().is_some_and(is_here) {
        return Err("a component from another machine needs https".to_owned());
    }
    Ok(RemoteComponent { place: ComponentPlace::Url(url), digest: None, is_locked: false })
}

/// Whether a host, with or without a port, is this machine.
#[must_use]
pub fn is_here(host: &str) -> bool {
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    matches!(name.map_or(host, |(name, _)| name), "localhost" | "127.0.0.1" | "[::1]")
}

impl fmt::Display for RemoteComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            ComponentPlace::Url(url) => f.write_str(url.as_str()),
            ComponentPlace::Registry(reference) => write!(f, "{OCI}{}", reference.whole()),
        }
    }
}

impl ComponentDigest {
    /// That of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(hex::encode(Sha256::digest(bytes)))
    }

    /// Without the name of the algorithm.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.0
    }
}

impl FromStr for ComponentDigest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        match hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            true => Ok(Self(hex.to_ascii_lowercase())),
            false => Err("a SHA-256 has 64 hexadecimal digits".to_owned()),
        }
    }
}

impl fmt::Display for ComponentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

impl ComponentLock {
    /// The lock file of a configuration: `weir.lock` beside `weir.toml`.
    #[must_use]
    pub fn path(config: &Path) -> PathBuf {
        config.with_extension("lock")
    }

    /// Reads a lock file. One that is not there is empty.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn read(path: &Path, environment: &dyn Environment) -> Result<Self, String> {
        let wrong = |why: &dyn fmt::Display| format!("{} cannot be used: {why}", path.display());
        match environment.file(path) {
            Ok(bytes) => toml::from_slice(&bytes).map_err(|why| wrong(&why.message())),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(why) => Err(wrong(&why)),
        }
    }

    /// The digest of a component.
    ///
    /// # Errors
    /// If what the file says is no digest.
    pub fn digest(&self, component: &RemoteComponent) -> Result<Option<ComponentDigest>, String> {
        self.components.get(&component.to_string()).map(|text| text.parse()).transpose()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef";

    fn parsed(text: &str) -> Result<RemoteComponent, String> {
        RemoteComponent::parse(text).unwrap()
    }

    #[test]
    fn names_lead_to_places() {
        assert!(RemoteComponent::parse("policies/one.wasm").is_none());
        assert!(RemoteComponent::parse("weir:pin").is_none());
        let tagged = parsed("oci://registry.example.com/team/policy:1.4").unwrap();
        assert_eq!(tagged.to_string(), "oci://registry.example.com/team/policy:1.4");
        assert_eq!(tagged.digest, None);
        let pinned = parsed(&format!("oci://registry.example.com:5000/team/policy:1.4@{DIGEST}")).unwrap();
        assert_eq!(pinned.digest.unwrap().to_string(), DIGEST.to_ascii_lowercase());
        assert_eq!(parsed("https://example.com/p.wasm").unwrap().to_string(), "https://example.com/p.wasm");
        assert!(parsed("http://127.0.0.1:9/p.wasm").is_ok() && parsed("http://localhost/p.wasm").is_ok());
    }

    #[test]
    fn what_may_lead_elsewhere_is_refused() {
        for (text, why) in [
            ("oci://policy:1", "the registry is missing"),
            ("oci://team/policy:1", "the registry is missing"),
            ("oci://registry.example.com/team/policy@sha256:12", "no reference"),
            ("oci://registry.example.com/Team/Policy", "no reference"),
            ("http://example.com/p.wasm", "needs https"),
            ("http://localhost.example.com/p.wasm", "needs https"),
            ("https://me:secret@example.com/p.wasm", "no user and no password"),
            ("https://example.com/p.wasm?signature=secret", "ends with its path"),
            ("https://example.com/p.wasm#1", "ends with its path"),
        ] {
            let found = parsed(text).unwrap_err();
            assert!(found.contains(why), "{text}: {found}");
        }
    }
}
