//! What Weir tells authorization servers of itself: to which addresses they may send users back, and, where the
//! configuration has it so, the documents that say this (Client ID Metadata Documents).

use serde_json::Value;
use weir_oauth::{Loopback, Redirect, redirect, registration};

use crate::{config::Config, credential::CLIENT_NAME, sign_in_links::SignInLinks};

/// What stands for the issuer in the address of a document.
const ISSUER: &str = "{issuer}";

/// Weir as a client of authorization servers.
pub struct ClientMetadata {
    /// Where the documents are; none if there are none.
    url: Option<String>,
    root: String,
    /// For servers of upstreams: the page, and a terminal on this machine.
    redirects: [Redirect; 2],
    /// Who says at the page who people are, and where each sends them back to.
    page: Vec<(String, String)>,
}

impl ClientMetadata {
    /// Of a gateway whose pages are where these links lead.
    pub fn new(config: &Config, invitations: &SignInLinks) -> Self {
        let asked = config.inbound.iter().filter(|inbound| !inbound.trust_sign_in_links);
        let page = invitations.visit_redirects(asked.map(|inbound| inbound.issuer.as_str()));
        Self {
            url: config.client_metadata_url.clone(),
            root: invitations.root().to_owned(),
            redirects: [invitations.redirect(), Loopback::redirect_at(Loopback::PORT)],
            page: page.map(|(issuer, address)| (redirect::name(issuer), address)).collect(),
        }
    }

    /// Whether each issuer reads a document of its own.
    pub fn is_apart(&self) -> bool {
        self.url.as_ref().is_some_and(|url| url.contains(ISSUER))
    }

    /// What these issuers are told, or those who register Weir there by hand.
    pub fn of(&self, issuers: &[String]) -> Value {
        let names: Vec<String> = issuers.iter().map(|issuer| redirect::name(issuer)).collect();
        self.named(&names.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The document at a path of this gateway. There is one for whatever an issuer may be called, so nobody learns from it
    /// which there are.
    pub fn at(&self, path: &str) -> Option<Value> {
        let place = self.url.as_ref()?.strip_prefix(self.root.as_str())?;
        let (before, after) = place.split_once(ISSUER)?;
        let name = path.strip_prefix(before)?.strip_suffix(after)?;
        redirect::is_name(name).then(|| self.named(&[name]))
    }

    fn named(&self, names: &[&str]) -> Value {
        let servers = names.iter().flat_map(|name| self.redirects.iter().map(|redirect| redirect.named(name)));
        // A document that all read is for the issuer of callers too.
        let page = self.page.iter().filter(|(of, _)| !self.is_apart() || names.contains(&of.as_str()));
        let redirects: Vec<String> = servers.chain(page.map(|(_, address)| address.clone())).collect();
        let url = self.url.as_ref().map(|url| url.replace(ISSUER, names.first().unwrap_or(&"")));
        registration::document(url.as_deref(), CLIENT_NAME, &redirects)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(url: Option<&str>) -> ClientMetadata {
        ClientMetadata {
            url: url.map(str::to_owned),
            root: "https://weir.example".to_owned(),
            redirects: [SignInLinks::new("https://weir.example").redirect(), Loopback::redirect_at(Loopback::PORT)],
            page: vec![(redirect::name("https://idp.example"), "https://weir.example/connect/callback".to_owned())],
        }
    }

    #[test]
    fn each_issuer_has_a_document_with_its_own_addresses() {
        let apart = metadata(Some("https://weir.example/client/{issuer}.json"));
        let name = redirect::name("https://login.example");
        let path = format!("/client/{name}.json");
        let document = apart.at(&path).unwrap_or_default();
        assert_eq!(document["client_id"], format!("https://weir.example{path}"));
        let own = [
            format!("https://weir.example/oauth/callback/{name}"),
            format!("http://127.0.0.1:41789/oauth/callback/{name}"),
        ];
        assert_eq!(document["redirect_uris"], json!(own));
        assert_eq!(apart.of(&["https://login.example".to_owned()]), document);
        let authn = apart.of(&["https://idp.example".to_owned()]);
        assert_eq!(authn["redirect_uris"][2], "https://weir.example/connect/callback");
        for path in ["/client/.json", "/client/{issuer}.json", "/client/x.json", "/mcp", "", &path.to_uppercase()] {
            assert_eq!(apart.at(path), None, "{path}");
        }
        // One that stands elsewhere is published by whoever has it.
        assert_eq!(metadata(Some("https://other.example/client/{issuer}.json")).at(&path), None);
    }

    #[test]
    fn one_document_for_all_has_the_addresses_of_all() {
        let (one, other) = ("https://one.example".to_owned(), "https://other.example".to_owned());
        let all = metadata(Some("https://weir.example/client.json")).of(&[one.clone(), other]);
        assert_eq!(all["redirect_uris"].as_array().map(Vec::len), Some(5));
        assert_eq!(all["client_id"], "https://weir.example/client.json");
        let by_hand = metadata(None).of(&[one]);
        assert_eq!(by_hand.get("client_id"), None);
    }
}
