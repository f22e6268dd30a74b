//! An issuer of our own, which signs whatever it is told to, has keys that come and go, and a desk at which it signs people
//! in as a test wants it.

mod desk;

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

pub use desk::Asked;
use desk::Desk;

/// Serves its metadata and its keys until it is dropped.
pub struct Issuer {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: AbortHandle,
}

struct Shared {
    key: EcdsaKeyPair,
    id: String,
    /// How often the keys were asked for, and what is said in place of them.
    keys: Mutex<(usize, Option<Bytes>)>,
    desk: Mutex<Desk>,
}

impl Issuer {
    /// Starts one.
    ///
    /// # Panics
    /// When there is no free port, or no randomness.
    pub async fn start() -> Self {
        let random = SystemRandom::new();
        let pkcs8 =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("there is randomness");
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random);
        let key = key.expect("a key that was just made is one");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("there is a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared { key, id: "one".to_owned(), keys: Mutex::default(), desk: Mutex::default() });
        let server = tokio::spawn(serve(listener, address, Arc::clone(&shared))).abort_handle();
        Self { address, shared, server }
    }

    /// Its name.
    pub fn issuer(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Claims that are good for `audience` for an hour.
    pub fn claims(&self, subject: &str, audience: &str) -> Value {
        json!({ "iss": self.issuer(), "sub": subject, "aud": audience, "exp": now() + 3600, "iat": now() })
    }

    /// A token that is good.
    pub fn token(&self, subject: &str, audience: &str) -> String {
        self.sign(&self.claims(subject, audience))
    }

    /// A signed token with these claims.
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_as(&self.header(), claims)
    }

    /// The header of a good token.
    pub fn header(&self) -> Value {
        json!({ "alg": "ES256", "typ": "at+jwt", "kid": self.shared.id })
    }

    /// A token with any header, signed with the issuer's key whatever the header says.
    ///
    /// # Panics
    /// When there is no randomness.
    pub fn sign_as(&self, header: &Value, claims: &Value) -> String {
        self.sign_text(&header.to_string(), &claims.to_string())
    }

    /// The same of texts, which need not be JSON.
    ///
    /// # Panics
    /// When there is no randomness.
    pub fn sign_text(&self, header: &str, claims: &str) -> String {
        self.shared.sign_text(header, claims)
    }

    /// Its public key (RFC 7517).
    pub fn jwk(&self) -> Value {
        self.shared.jwk()
    }

    /// A token whose HMAC is keyed with the issuer's public key, which everybody knows.
    pub fn sign_with_public_key(&self, claims: &Value) -> String {
        let text = unsigned(&json!({ "alg": "HS256", "typ": "JWT", "kid": self.shared.id }), claims);
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.shared.key.public_key().as_ref());
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, text.as_bytes())))
    }

    /// How often its keys were asked for.
    ///
    /// # Panics
    /// Never: no request panics while it holds the lock.
    pub fn fetches(&self) -> usize {
        self.shared.keys.lock().expect("no request panics").0
    }

    /// Says this in place of its keys from now on.
    ///
    /// # Panics
    /// Never: no request panics while it holds the lock.
    pub fn say(&self, in_place_of_keys: Bytes) {
        self.shared.keys.lock().expect("no request panics").1 = Some(in_place_of_keys);
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Seconds since 1970.
///
/// # Panics
/// When it is earlier.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970").as_secs()
}

/// Another number each time, as text.
pub fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed).to_string()
}

/// The header and the claims of a token, before its signature.
pub fn unsigned(header: &Value, claims: &Value) -> String {
    format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims.to_string()))
}

async fn serve(listener: TcpListener, address: SocketAddr, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                let shared = Arc::clone(&shared);
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                    Ok::<_, Infallible>(answer(&head.uri, &body, address, &shared))
                }
            });
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

fn answer(uri: &http::Uri, body: &[u8], address: SocketAddr, shared: &Shared) -> hyper::Response<Full<Bytes>> {
    let issuer = format!("http://{address}");
    let body = match uri.path() {
        "/.well-known/openid-configuration" => {
            let mut metadata = json!({ "issuer": issuer, "jwks_uri": format!("{issuer}/keys") });
            shared.desk().describe(&issuer, &mut metadata);
            metadata.to_string().into()
        }
        "/keys" => {
            let mut keys = shared.keys.lock().expect("no request panics");
            keys.0 += 1;
            keys.1.clone().unwrap_or_else(|| json!({ "keys": [shared.jwk()] }).to_string().into())
        }
        path => return shared.desk().answer(path, uri.query().unwrap_or_default(), body),
    };
    let mut response = hyper::Response::new(Full::new(body));
    response.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static("application/json"));
    response
}

impl Shared {
    fn sign_text(&self, header: &str, claims: &str) -> String {
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = self.key.sign(&SystemRandom::new(), text.as_bytes()).expect("there is randomness");
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn desk(&self) -> std::sync::MutexGuard<'_, Desk> {
        self.desk.lock().expect("no request panics")
    }

    fn jwk(&self) -> Value {
        // An uncompressed point: a byte 4, then both coordinates.
        let (x, y) = self.key.public_key().as_ref()[1..].split_at(32);
        let encode = |part| URL_SAFE_NO_PAD.encode(part);
        json!({ "kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y), "kid": self.id, "use": "sig" })
    }
}
