//! Where people sign in at a scripted issuer: they are let in as whom a test says, or with whatever it wants to go wrong.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::tokens::claims;

use super::{Issuer, now, unique};

/// What a client has asked for: the parameters of its authorization request.
#[derive(Clone, Debug, Default)]
pub struct Asked(BTreeMap<String, String>);

impl Asked {
    fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(name, value)| (name.to_owned(), decoded(value))).collect())
    }

    /// A parameter; empty if it was not there.
    pub fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

type Back = Box<dyn Fn(&Asked) -> String + Send>;
type Gives = Box<dyn Fn(&Asked) -> Value + Send>;

/// RFC 8693 §2.1.
const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";

/// Closed until a test opens it.
#[derive(Default)]
pub(super) struct Desk {
    open: bool,
    registers: bool,
    back: Option<Back>,
    gives: Option<Gives>,
    vouches: Option<Gives>,
    /// The last is the one whose code is taken.
    asked: Vec<Asked>,
    registered: usize,
}

impl Issuer {
    /// Signs people in from now on; registers clients if `registers`.
    pub fn open(&self, registers: bool) {
        let mut desk = self.shared.desk();
        (desk.open, desk.registers) = (true, registers);
    }

    /// With which query browsers are sent back; with a code and the state, unless a test says so.
    pub fn sends_back(&self, query: impl Fn(&Asked) -> String + Send + 'static) {
        self.shared.desk().back = Some(Box::new(query));
    }

    /// What is given for a code: the answer of the token endpoint.
    pub fn gives(&self, answer: impl Fn(&Asked) -> Value + Send + 'static) {
        self.shared.desk().gives = Some(Box::new(answer));
    }

    /// Exchanges the tokens of its people for ID-JAGs to `client`, with these claims beside the usual ones.
    pub fn vouches(&self, client: &str, more: &Value) {
        let (shared, issuer, client, more) = (Arc::clone(&self.shared), self.issuer(), client.to_owned(), more.clone());
        self.shared.desk().vouches = Some(Box::new(move |asked| {
            let subject = claims(asked.get("subject_token"))["sub"].clone();
            let mut said = json!({
                "iss": issuer, "sub": subject, "aud": asked.get("audience"), "client_id": client,
                "resource": asked.get("resource"), "scope": asked.get("scope"), "jti": unique(),
                "iat": now(), "exp": now() + 300,
            });
            let more = more.as_object().expect("claims are an object").clone();
            said.as_object_mut().expect("claims are an object").extend(more);
            let header = json!({ "alg": "ES256", "typ": "oauth-id-jag+jwt", "kid": shared.id });
            json!({
                "access_token": shared.sign_text(&header.to_string(), &said.to_string()), "token_type": "N_A",
                "issued_token_type": "urn:ietf:params:oauth:token-type:id-jag", "expires_in": 300,
            })
        }));
    }

    /// What clients have asked for until now.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.desk().asked.clone()
    }

    /// How many clients it has registered.
    pub fn registered(&self) -> usize {
        self.shared.desk().registered
    }
}

impl Desk {
    pub(super) fn describe(&self, issuer: &str, metadata: &mut Value) {
        if self.open {
            metadata["authorization_endpoint"] = json!(format!("{issuer}/authorize"));
            metadata["token_endpoint"] = json!(format!("{issuer}/token"));
            metadata["token_endpoint_auth_methods_supported"] = json!(["none", "client_secret_basic"]);
        }
        if self.registers {
            metadata["registration_endpoint"] = json!(format!("{issuer}/register"));
        }
    }

    pub(super) fn answer(&mut self, path: &str, query: &str, body: &[u8]) -> Response<Full<Bytes>> {
        let asked = Asked::parse(&String::from_utf8_lossy(body));
        let said = match path {
            "/token" if asked.get("grant_type") == EXCHANGE => match &self.vouches {
                Some(vouches) => vouches(&asked),
                None => return status(StatusCode::BAD_REQUEST),
            },
            "/authorize" if self.open => return self.authorize(query),
            "/token" => match (&self.gives, self.asked.last()) {
                (Some(gives), Some(asked)) => gives(asked),
                _ => return status(StatusCode::SERVICE_UNAVAILABLE),
            },
            "/register" => {
                self.registered += 1;
                let mut client: Value = serde_json::from_slice(body).expect("a client describes itself in JSON");
                client["client_id"] = json!(format!("registered-{}", self.registered));
                client
            }
            _ => return status(StatusCode::NOT_FOUND),
        };
        let code = if said.get("error").is_some() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
        let mut response = status(code);
        response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
        *response.body_mut() = Full::new(said.to_string().into());
        response
    }

    fn authorize(&mut self, query: &str) -> Response<Full<Bytes>> {
        let asked = Asked::parse(query);
        let back = match &self.back {
            Some(back) => back(&asked),
            None => format!("code=c&state={}", asked.get("state")),
        };
        let to = format!("{}?{back}", asked.get("redirect_uri"));
        self.asked.push(asked);
        let mut response = status(StatusCode::SEE_OTHER);
        response.headers_mut().insert("location", to.parse().expect("a test sends browsers to a URL"));
        response
    }
}

fn status(code: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::default();
    *response.status_mut() = code;
    response
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
