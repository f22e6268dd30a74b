//! A policy's own settings, which travel as a JSON object.

use crate::{Upstream, json::Json};

/// The settings of the policy that is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings(Json);

impl Settings {
    /// Those in [`Upstream::settings`].
    pub fn of(upstream: &Upstream) -> Self {
        Self::read(&upstream.settings)
    }

    /// Those that a text holds. Weir has checked it before it asks: what is no object has no settings.
    pub fn read(text: &str) -> Self {
        Self(Json::parse(text).unwrap_or_default())
    }

    /// A value of any kind.
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.0.get(key)
    }

    /// A text; none if it is missing or something else.
    pub fn text(&self, key: &str) -> Option<String> {
        self.get(key)?.as_text().map(str::to_owned)
    }

    /// A whole number that is not negative; none if it is missing or something else.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_number()
    }

    /// A flag; none if it is missing or something else.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.get(key)?.as_bool()
    }

    /// The first setting that is none of these; it is most likely misspelt.
    pub fn unknown(&self, known: &[&str]) -> Option<&str> {
        self.0.members().iter().map(|(name, _)| name.as_str()).find(|name| !known.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_values_of_each_kind() {
        let settings = Settings::read(r#" { "a" : "x", "n":12 ,"t":true,"o":{"a":"}\""},"f":false } "#);
        assert_eq!(settings.text("a").as_deref(), Some("x"));
        assert_eq!(settings.number("n"), Some(12));
        assert_eq!(settings.flag("t"), Some(true));
        assert_eq!(settings.flag("f"), Some(false));
        assert_eq!(settings.text("o"), None);
        assert_eq!(settings.text("n"), None);
        assert_eq!(settings.number("a"), None);
        assert_eq!(settings.text("missing"), None);
        assert_eq!(settings.unknown(&["a", "n", "t", "f"]), Some("o"));
        assert_eq!(settings.unknown(&["a", "n", "t", "f", "o"]), None);
    }

    #[test]
    fn what_is_no_object_has_no_settings() {
        for text in ["", "[]", "{", "null"] {
            assert_eq!(Settings::read(text).text("a"), None, "{text}");
        }
    }
}
