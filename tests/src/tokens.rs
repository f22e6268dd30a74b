//! Tokens that a real authorization server gives to those who call Weir.

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::http::Request;

/// The two clients that sign in without a person: each is a principal of its own.
const CLIENTS: [(&str, &str); 2] = [("weir-basic", "basic secret: +&%"), ("weir-post", "post secret: +&%")];

/// A token of the first or the second principal of `issuer`, npm `oidc-provider`, for `audience`.
///
/// # Panics
/// When it gives none.
pub async fn token(issuer: &str, principal: usize, audience: &str) -> String {
    let (id, secret) = CLIENTS[principal];
    let address = issuer.trim_start_matches("http://").parse().expect("the issuer is an address");
    let mut form = vec![("grant_type", "client_credentials"), ("resource", audience), ("scope", "mcp:read")];
    let mut request = Request::new("POST", "/token").header("content-type", "application/x-www-form-urlencoded");
    if principal == 0 {
        let credentials = STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)));
        request = request.header("authorization", &format!("Basic {credentials}"));
    } else {
        form.extend([("client_id", id), ("client_secret", secret)]);
    }
    let body: Vec<String> = form.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    let answer = request.body(body.join("&")).send(address).await.json().await;
    answer["access_token"].as_str().unwrap_or_else(|| panic!("no token: {answer}")).to_owned()
}

/// As a value in a form or a query.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
