//! Weir as a protected resource (RFC 9728): what it is called, and where it says so.
//!
//! Each address that a client may be given is a resource of its own, because a client compares the name it reads with the
//! address it has (§3.3). A token for one upstream's address opens that upstream; a token for the audience of the
//! configuration, or for all upstreams, opens all.

use crate::{
    config::Config,
    server::{listen::HttpExchange, sse},
};

/// Where the document is, before the path of what it describes (RFC 9728 §3.1).
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// The addresses under which all upstreams are.
const WHOLE: [&str; 2] = ["/mcp", "/sse"];

/// What Weir is called.
pub(super) struct Resource {
    /// What stands before the paths; none to take what the client has in `Host`.
    root: Option<String>,
    scheme: &'static str,
    /// The upstreams and toolsets that have an address of their own.
    names: Vec<String>,
}

impl Resource {
    pub(super) fn new(config: &Config) -> Self {
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        Self { root: root(config), scheme, names: config.endpoints().map(ToString::to_string).collect() }
    }

    /// All that `aud` may name, where one issuer calls all of Weir `audience`.
    pub(super) fn audiences(&self, audience: &str) -> Vec<String> {
        let mut all = vec![audience.to_owned()];
        all.extend(self.addresses());
        all
    }

    /// All that Weir serves, by its address; nothing if only clients know what it is called.
    pub(super) fn addresses(&self) -> Vec<String> {
        let mut all = Vec::new();
        if let Some(root) = &self.root {
            for path in WHOLE {
                all.push(format!("{root}{path}"));
                all.extend(self.names.iter().map(|name| format!("{root}{path}/{name}")));
            }
        }
        all
    }

    /// The resource that a client names as `text` (RFC 8707), all of Weir if it names none. One for every name that an
    /// upstream could have, as in [`described_at`](Self::described_at).
    pub(super) fn named(&self, text: Option<&str>) -> Option<String> {
        let root = self.root.as_deref()?;
        let Some(text) = text else { return Some(format!("{root}{}", WHOLE[0])) };
        let path = text.strip_prefix(root)?.trim_end_matches('/');
        (WHOLE.contains(&path) || upstream(path).is_some()).then(|| format!("{root}{path}"))
    }

    /// Whether one of these audiences is all of Weir, which the issuer calls `name`.
    pub(super) fn is_whole(&self, name: &str, audiences: &[String]) -> bool {
        let whole = |audience: &String| {
            let path = self.root.as_ref().and_then(|root| audience.strip_prefix(root.as_str()));
            audience == name || path.is_some_and(|path| WHOLE.contains(&path))
        };
        audiences.iter().any(whole)
    }

    /// The upstreams that these audiences are.
    pub(super) fn endpoints(&self, audiences: &[String]) -> Vec<String> {
        let name = |audience: &String| upstream(audience.strip_prefix(self.root.as_deref()?)?).map(str::to_owned);
        audiences.iter().filter_map(name).collect()
    }

    /// Whether one of these upstreams is at a path. A message to a stream that is not there is for nothing,
    /// and its client is told so.
    pub(super) fn is_at(endpoints: &[String], path: &str) -> bool {
        let Some(name) = upstream(path) else { return sse::is_beside(path) };
        endpoints.iter().any(|endpoint| endpoint == name)
    }

    /// Where the document is that describes what a request asks for.
    pub(super) fn metadata_url(&self, exchange: &HttpExchange) -> String {
        let path = if sse::is_beside(exchange.path()) { WHOLE[0] } else { exchange.path() };
        format!("{}{WELL_KNOWN}{}", self.root(exchange), path.trim_end_matches('/'))
    }

    /// The name of the resource that the document at a path describes; none if there is no document. There is one for
    /// every name that an upstream could have, so nobody learns from it which there are.
    pub(super) fn described_at(&self, exchange: &HttpExchange) -> Option<String> {
        let path = exchange.path().strip_prefix(WELL_KNOWN)?.trim_end_matches('/');
        let path = if path.is_empty() { WHOLE[0] } else { path };
        if !WHOLE.contains(&path) && upstream(path).is_none() {
            return None;
        }
        Some(format!("{}{path}", self.root(exchange)))
    }

    /// The address that a request is for, as its client knows it.
    pub(super) fn url(&self, exchange: &HttpExchange) -> String {
        format!("{}{}", self.root(exchange), exchange.path())
    }

    /// Whether the configuration says what clients call Weir, rather than each client.
    pub(super) const fn is_named(&self) -> bool {
        self.root.is_some()
    }

    fn root(&self, exchange: &HttpExchange) -> String {
        match &self.root {
            Some(root) => root.clone(),
            // The origin check has looked at it.
            None => format!("{}://{}", self.scheme, exchange.host().unwrap_or("localhost")),
        }
    }
}

/// The upstream that a path names.
fn upstream(path: &str) -> Option<&str> {
    let name = WHOLE.iter().find_map(|whole| path.strip_prefix(whole)?.strip_prefix('/'))?.trim_end_matches('/');
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (!name.is_empty() && name != "messages" && name.chars().all(is_name)).then_some(name)
}

/// What stands before the paths of Weir: as the configuration says, or in the first audience that is an address.
pub(super) fn root(config: &Config) -> Option<String> {
    config.public_url.clone().or_else(|| config.inbound.iter().find_map(|inbound| root_of(&inbound.audience)))
}

/// What stands before `/mcp` in an audience that is an address.
fn root_of(audience: &str) -> Option<String> {
    let url = url::Url::parse(audience).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    match audience.trim_end_matches('/').strip_suffix(WHOLE[0]) {
        Some(root) => Some(root.to_owned()),
        None => Some(url.origin().ascii_serialization()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIR: &str = "https://weir.example/mcp";

    fn resource(audience: &str, root: Option<&str>) -> Resource {
        let root = root.map(str::to_owned).or_else(|| root_of(audience));
        Resource { root, scheme: "http", names: vec!["github".into(), "docs".into()] }
    }

    fn list(all: &[&str]) -> Vec<String> {
        all.iter().map(|&one| one.to_owned()).collect()
    }

    #[test]
    fn each_address_is_an_audience() {
        let weir = resource(WEIR, None);
        let all = weir.audiences(WEIR);
        for audience in ["https://weir.example/mcp", "https://weir.example/mcp/docs", "https://weir.example/sse"] {
            assert!(all.iter().any(|known| known == audience), "{all:?}");
        }
        assert_eq!(resource("api://weir", None).audiences("api://weir"), ["api://weir"]);
        let behind = resource("api://weir", Some("https://example.com/weir"));
        assert!(behind.audiences("api://weir").iter().any(|known| known == "https://example.com/weir/mcp/github"));
    }

    #[test]
    fn a_token_for_one_upstream_opens_that_one() {
        let weir = resource(WEIR, None);
        let (all, one) = (list(&["x", "https://weir.example/mcp"]), list(&["https://weir.example/mcp/docs"]));
        assert!(weir.is_whole(WEIR, &all) && weir.is_whole(WEIR, &list(&["https://weir.example/sse"])));
        assert!(!weir.is_whole(WEIR, &one) && !weir.is_whole(WEIR, &list(&["https://weir.example", "/mcp", ""])));
        for (path, opens) in [
            ("/mcp/docs", true),
            ("/mcp/docs/", true),
            ("/sse/docs", true),
            ("/mcp", false),
            ("/mcp/", false),
            ("/sse", false),
            ("/mcp/github", false),
            ("/mcp/docs/x", false),
            ("/mcpdocs", false),
            ("/connect", false),
            // Of no stream.
            ("/messages", true),
            ("/sse/messages", true),
        ] {
            assert_eq!(Resource::is_at(&weir.endpoints(&one), path), opens, "{path}");
        }
    }

    #[test]
    fn an_upstream_has_a_name() {
        for (path, name) in [
            ("/mcp/docs", Some("docs")),
            ("/sse/a.b-c_d", Some("a.b-c_d")),
            ("/mcp/", None),
            ("/mcp/a/b", None),
            ("/mcp/%22", None),
            ("/other/docs", None),
        ] {
            assert_eq!(upstream(path), name, "{path}");
        }
    }
}
