//! Who may come in: whoever brings a token of one issuer for this server.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::StatusCode;
use serde_json::{Value, json};

use super::{Body, Seen, lock, status};
use crate::verify;

const METADATA: &str = "/.well-known/oauth-protected-resource/mcp";

pub(super) struct Door {
    /// Whose tokens it takes, and their keys.
    trusted: Mutex<(String, Value)>,
    /// Whom it names before that one.
    named: Mutex<Vec<String>>,
    /// Whether it takes none at all.
    shut: AtomicBool,
    /// What a token must be good for.
    scopes: Mutex<Vec<String>>,
    /// How far its clock is ahead, in seconds.
    ahead: AtomicU64,
    /// Tokens that it takes no more.
    revoked: Mutex<Vec<String>>,
    /// Whether a call wants one scope more than any token has.
    greedy: AtomicBool,
}

/// What a greedy one asks for, one after the other.
const MORE: [&str; 5] = ["mcp:read", "mcp:write", "mcp:admin", "mcp:audit", "mcp:owner"];

impl Door {
    pub(super) fn new(issuer: &str, keys: Value) -> Self {
        Self {
            trusted: Mutex::new((issuer.to_owned(), keys)),
            named: Mutex::default(),
            shut: AtomicBool::new(false),
            scopes: Mutex::new(vec!["mcp:read".to_owned()]),
            ahead: AtomicU64::new(0),
            revoked: Mutex::default(),
            greedy: AtomicBool::new(false),
        }
    }

    pub(super) fn demand(&self, scope: &str) {
        lock(&self.scopes).push(scope.to_owned());
    }

    pub(super) fn trust(&self, issuer: &str, keys: Value) {
        *lock(&self.trusted) = (issuer.to_owned(), keys);
    }

    pub(super) fn name(&self, issuer: &str) {
        lock(&self.named).insert(0, issuer.to_owned());
    }

    pub(super) fn shut(&self, shut: bool) {
        self.shut.store(shut, Ordering::SeqCst);
    }

    pub(super) fn be_greedy(&self) {
        self.greedy.store(true, Ordering::SeqCst);
    }

    pub(super) fn revoke(&self, tokens: Vec<String>) {
        lock(&self.revoked).extend(tokens);
    }

    pub(super) fn hurry(&self, seconds: u64) {
        self.ahead.store(seconds, Ordering::SeqCst);
    }

    /// What it says of itself at this path, if that is the place for it.
    pub(super) fn tells(&self, path: &str, host: &str) -> Option<hyper::Response<Body>> {
        if !path.starts_with("/.well-known/") {
            return None;
        }
        if path != METADATA {
            return Some(status(StatusCode::NOT_FOUND));
        }
        let mut issuers = lock(&self.named).clone();
        issuers.push(lock(&self.trusted).0.clone());
        let metadata = json!({
            "resource": format!("http://{host}/mcp"),
            "authorization_servers": issuers,
            "scopes_supported": ["mcp:read"],
        });
        let mut response = hyper::Response::new(Body::from(metadata.to_string()));
        response.headers_mut().insert("content-type", "application/json".parse().expect("a header"));
        Some(response)
    }

    /// Its no, if the request brings no token that is good enough.
    pub(super) fn refuses(&self, seen: &Seen, host: &str) -> Option<hyper::Response<Body>> {
        let token = seen.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let (audience, ahead) = (format!("http://{host}/mcp"), self.ahead.load(Ordering::SeqCst));
        let is_open = !self.shut.load(Ordering::SeqCst);
        let good = token.filter(|token| is_open && !lock(&self.revoked).iter().any(|revoked| revoked == token));
        let (issuer, keys) = lock(&self.trusted).clone();
        let claims = good.and_then(|token| verify::claims(token, &keys, &issuer, &audience, ahead).ok());
        let metadata = format!("resource_metadata=\"http://{host}{METADATA}\"");
        let (code, challenge) = match claims {
            None if token.is_some() => {
                (StatusCode::UNAUTHORIZED, format!("Bearer error=\"invalid_token\", {metadata}"))
            }
            None => (StatusCode::UNAUTHORIZED, format!("Bearer {metadata}")),
            Some(claims) => {
                let mut scopes = lock(&self.scopes).clone();
                let granted = claims["scope"].as_str().unwrap_or_default();
                if self.greedy.load(Ordering::SeqCst) && seen.envelope().method.as_deref() == Some("tools/call") {
                    let next = MORE.iter().find(|scope| !granted.split(' ').any(|granted| granted == **scope));
                    scopes.push((*next.unwrap_or(&"mcp:all")).to_owned());
                }
                if scopes.iter().all(|scope| granted.split(' ').any(|granted| granted == scope)) {
                    return None;
                }
                let scope = scopes.join(" ");
                let text = format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\", {metadata}");
                (StatusCode::FORBIDDEN, text)
            }
        };
        let mut response = status(code);
        response.headers_mut().insert("www-authenticate", challenge.parse().expect("a header"));
        Some(response)
    }
}
