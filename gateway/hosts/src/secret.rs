//! Which values should not stand in a file as text.

use crate::{Piece, Template};

/// What the name of a secret ends with.
const LAST_WORDS: &[&str] = &[
    "TOKEN",
    "KEY",
    "APIKEY",
    "AUTHTOKEN",
    "ACCESSTOKEN",
    "PAT",
    "JWT",
    "AUTH",
    "AUTHORIZATION",
    "COOKIE",
    "CREDENTIAL",
    "CREDENTIALS",
];
/// What occurs in the name of a secret, unless it names where the secret is.
const WORDS: &[&str] = &["SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "PRIVATEKEY"];
const PLACES: &[&str] = &["FILE", "PATH", "DIR", "URL", "URI", "NAME", "ID", "ENV", "HELPER", "COMMAND", "TYPE"];
/// How issued tokens start.
const PREFIXES: &[&str] = &[
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "sk-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "xoxb-",
    "xoxp-",
    "xoxa-",
    "xoxe-",
    "xoxs-",
    "xapp-",
    "AIza",
    "ya29.",
    "hf_",
    "npm_",
    "pypi-",
    "dop_v1_",
    "shpat_",
    "lin_api_",
    "ntn_",
    "SG.",
    "-----BEGIN",
];

/// Whether a header or variable holds a secret as text. A value with a reference never does.
pub fn looks_secret(key: &str, value: &Template) -> bool {
    let references = value.0.iter().any(|piece| !matches!(piece, Piece::Literal(_)));
    let text = value.as_literal().unwrap_or_default().trim();
    !references && !text.is_empty() && (is_secret_value(text) || is_secret_key(key) && !is_flag(text))
}

/// Such as `AUTH=false`.
fn is_flag(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "true" | "false" | "none" | "null" | "0" | "1" | "oauth")
}

fn is_secret_key(key: &str) -> bool {
    let upper = words(key).join("_").to_ascii_uppercase();
    let last = upper.rsplit('_').next().unwrap_or_default();
    let public = upper.split('_').any(|word| word == "PUBLIC");
    let named = LAST_WORDS.contains(&last) || WORDS.iter().any(|word| upper.contains(word));
    named && !public && !PLACES.contains(&last)
}

/// The words of `X-Api-Key`, `API_KEY` and `apiKey`.
fn words(key: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut lower = false;
    for c in key.chars() {
        if !c.is_ascii_alphanumeric() || lower && c.is_ascii_uppercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphanumeric()) {
            word.push(c);
        }
        lower = c.is_ascii_lowercase();
    }
    words
}

fn is_secret_value(text: &str) -> bool {
    let token = match text.split_once(' ') {
        Some((scheme, token)) if ["bearer", "basic"].contains(&scheme.to_ascii_lowercase().as_str()) => {
            return !token.trim().is_empty();
        }
        _ => text,
    };
    PREFIXES.iter().any(|prefix| token.starts_with(prefix) && token.len() > prefix.len() + 3)
        || is_aws_key(token)
        || token.starts_with("eyJ") && token.matches('.').count() == 2
        || has_password(token)
}

fn is_aws_key(text: &str) -> bool {
    let known = text.starts_with("AKIA") || text.starts_with("ASIA");
    known && text.len() == 20 && text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
}

/// `scheme://user:password@host`
fn has_password(text: &str) -> bool {
    let authority = text.split_once("://").and_then(|(_, rest)| rest.split(['/', '?', '#']).next());
    let user = authority.and_then(|authority| authority.rsplit_once('@'));
    user.and_then(|(user, _)| user.split_once(':')).is_some_and(|(_, password)| !password.is_empty())
}
