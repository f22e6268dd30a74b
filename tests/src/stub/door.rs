//! Who may come in: whoever brings a token of one issuer for this server.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use serde_json::{Value, json};

use super::{Body, Seen, lock, status};

const METADATA: &str = "/.well-known/oauth-protected-resource/mcp";

pub(super) struct Door {
    issuer: String,
    keys: Value,
    /// What a token must be good for.
    scopes: Mutex<Vec<String>>,
    /// How far its clock is ahead, in seconds.
    ahead: AtomicU64,
}

impl Door {
    pub(super) fn new(issuer: &str, keys: Value) -> Self {
        Self {
            issuer: issuer.to_owned(),
            keys,
            scopes: Mutex::new(vec!["mcp:read".to_owned()]),
            ahead: AtomicU64::new(0),
        }
    }

    pub(super) fn demand(&self, scope: &str) {
        lock(&self.scopes).push(scope.to_owned());
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
        let metadata = json!({
            "resource": format!("http://{host}/mcp"),
            "authorization_servers": [self.issuer],
            "scopes_supported": ["mcp:read"],
        });
        let mut response = hyper::Response::new(Body::from(metadata.to_string()));
        response.headers_mut().insert("content-type", "application/json".parse().expect("a header"));
        Some(response)
    }

    /// Its no, if the request brings no token that is good enough.
    pub(super) fn refuses(&self, seen: &Seen, host: &str) -> Option<hyper::Response<Body>> {
        let token = seen.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let claims = token.and_then(|token| self.claims(token, &format!("http://{host}/mcp")));
        let metadata = format!("resource_metadata=\"http://{host}{METADATA}\"");
        let (code, challenge) = match claims {
            None if token.is_some() => {
                (StatusCode::UNAUTHORIZED, format!("Bearer error=\"invalid_token\", {metadata}"))
            }
            None => (StatusCode::UNAUTHORIZED, format!("Bearer {metadata}")),
            Some(claims) => {
                let scopes = lock(&self.scopes).clone();
                let granted = claims["scope"].as_str().unwrap_or_default();
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

    /// What a token says, if it is signed by the issuer, for this server, and not over.
    fn claims(&self, token: &str, audience: &str) -> Option<Value> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (head, payload) = signed.split_once('.')?;
        let read = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let head: Value = serde_json::from_slice(&read(head)?).ok()?;
        let key = self.keys["keys"].as_array()?.iter().find(|key| key["kid"] == head["kid"])?;
        let key = RsaPublicKeyComponents { n: read(key["n"].as_str()?)?, e: read(key["e"].as_str()?)? };
        key.verify(&RSA_PKCS1_2048_8192_SHA256, signed.as_bytes(), &read(signature)?).ok()?;
        let claims: Value = serde_json::from_slice(&read(payload)?).ok()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs() + self.ahead.load(Ordering::SeqCst);
        let good = claims["iss"] == self.issuer.as_str() && claims["aud"] == audience && claims["exp"].as_u64()? > now;
        good.then_some(claims)
    }
}
