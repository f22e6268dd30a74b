//! Which scopes to ask for.

use std::collections::BTreeSet;

use crate::Challenge;

/// A set of scopes (RFC 6749 §3.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scopes(BTreeSet<String>);

/// What the choice depends on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes<'a> {
    /// From the config: it is taken as it is.
    pub configured: Option<&'a Scopes>,
    /// From the refusal.
    pub challenge: Option<&'a Challenge>,
    /// From the metadata of the resource.
    pub resource: &'a [String],
    /// From the metadata of the authorization server.
    pub server: &'a [String],
    /// Whether a refresh token is of use: not where one program logs in for itself.
    pub offline: bool,
}

/// What OpenID Connect Core §11 calls a refresh token.
const OFFLINE: &str = "offline_access";
/// More is a mistake or an attack.
const MAX_SCOPES: usize = 256;

impl Scopes {
    /// Reads the words of a text; those with characters that no scope may have are left out.
    pub fn parse(text: &str) -> Self {
        text.split_ascii_whitespace().map(str::to_owned).collect()
    }

    /// The text of a request.
    pub fn render(&self) -> String {
        self.iter().collect::<Vec<_>>().join(" ")
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    pub fn union(&self, other: &Self) -> Self {
        self.0.union(&other.0).cloned().collect()
    }

    /// Whether every one of the others is here.
    pub fn covers(&self, other: &Self) -> bool {
        other.0.is_subset(&self.0)
    }
}

impl FromIterator<String> for Scopes {
    fn from_iter<T: IntoIterator<Item = String>>(words: T) -> Self {
        // RFC 6749 §3.3: printable ASCII without the space, the quote and the backslash.
        let is_scope =
            |word: &String| !word.is_empty() && word.bytes().all(|b| matches!(b, b'!' | b'#'..=b'[' | b']'..=b'~'));
        Self(words.into_iter().filter(is_scope).take(MAX_SCOPES).collect())
    }
}

/// The scopes to ask for: as configured, else as the refusal says, else all that the resource knows. Empty means to ask
/// for none in particular. `offline_access` is added only if the server lists it.
pub fn choose(wishes: &Wishes<'_>) -> Scopes {
    if let Some(configured) = wishes.configured {
        return configured.clone();
    }
    let named = wishes.challenge.and_then(Challenge::scope).map(Scopes::parse);
    let mut scopes = named.unwrap_or_else(|| wishes.resource.iter().cloned().collect());
    // The resource has no say in this one: whether tokens can be refreshed is between client and server.
    let offline = wishes.offline && wishes.server.iter().any(|scope| scope == OFFLINE);
    scopes.0.remove(OFFLINE);
    // Alone it would turn "the usual scopes" into none.
    if offline && !scopes.is_empty() {
        scopes.0.insert(OFFLINE.to_owned());
    }
    scopes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn challenge(scope: &str) -> Challenge {
        Challenge { scheme: "bearer".to_owned(), parameters: vec![("scope".to_owned(), scope.to_owned())] }
    }

    fn list(words: &str) -> Vec<String> {
        words.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn each_source_is_asked_in_its_turn() {
        let (said, resource, server) = (challenge("write read"), list("a b"), list("a b offline_access"));
        let full =
            Wishes { challenge: Some(&said), resource: &resource, server: &server, offline: true, configured: None };
        assert_eq!(choose(&full).render(), "offline_access read write");
        assert_eq!(choose(&Wishes { challenge: None, ..full }).render(), "a b offline_access");
        assert_eq!(choose(&Wishes { offline: false, ..full }).render(), "read write");
        assert_eq!(choose(&Wishes { server: &resource, ..full }).render(), "read write");
        assert_eq!(choose(&Wishes { challenge: None, resource: &[], ..full }).render(), "");
        let configured = Scopes::parse("mine");
        assert_eq!(choose(&Wishes { configured: Some(&configured), ..full }).render(), "mine");
        let asked = list("a offline_access");
        let unlisted = Wishes { challenge: None, resource: &asked, server: &resource, ..full };
        assert_eq!(choose(&unlisted).render(), "a", "the server does not list it");
    }

    #[test]
    fn what_is_no_scope_is_left_out() {
        assert_eq!(Scopes::parse("a\"b \\ ü ok https://x.example/y").render(), "https://x.example/y ok");
        assert_eq!(Scopes::parse(&"x y ".repeat(100_000)).iter().count(), 2);
    }
}
