//! Tokens that a real authorization server gives to those who call Weir.

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use ring::digest::{SHA256, digest};
use serde_json::Value;

use crate::browser::Browser;
use crate::http::Request;

/// The two clients that sign in without a person: each is a principal of its own.
const CLIENTS: [(&str, &str); 2] = [("weir-basic", "basic secret: +&%"), ("weir-post", "post secret: +&%")];

/// A token of the first or the second principal of `issuer`, npm `oidc-provider`, for `audience`.
///
/// # Panics
/// When it gives none.
pub async fn token(issuer: &str, principal: usize, audience: &str) -> String {
    token_for(issuer, principal, audience, "mcp:read").await
}

/// The same with another scope.
///
/// # Panics
/// When it gives none.
pub async fn token_for(issuer: &str, principal: usize, audience: &str, scope: &str) -> String {
    client_token(issuer, principal, Some(audience), scope).await
}

/// The same of a server that has tokens for one audience, and wants none named.
///
/// # Panics
/// When it gives none.
pub async fn client_token(issuer: &str, principal: usize, audience: Option<&str>, scope: &str) -> String {
    let (id, secret) = CLIENTS[principal];
    let mut form = vec![("grant_type", "client_credentials"), ("scope", scope)];
    form.extend(audience.map(|audience| ("resource", audience)));
    let mut request = Request::new("POST", "/token").header("content-type", "application/x-www-form-urlencoded");
    if principal == 0 {
        let credentials = STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)));
        request = request.header("authorization", &format!("Basic {credentials}"));
    } else {
        form.extend([("client_id", id), ("client_secret", secret)]);
    }
    given(issuer, request, &form).await
}

/// A token of whoever sits at a browser, as their MCP client gets one from `issuer`, npm `oidc-provider`, for `audience`.
///
/// # Panics
/// When it gives none.
pub async fn token_of(issuer: &str, browser: &mut Browser, audience: &str) -> String {
    const BACK: &str = "http://127.0.0.1/oauth/callback";
    const VERIFIER: &str = "a verifier that is long enough for PKCE to be used with it";
    let verifier = VERIFIER.replace(' ', "-");
    let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()));
    let page = format!(
        "{issuer}/auth?response_type=code&client_id=weir-native&redirect_uri={}&scope=mcp%3Aread&resource={}\
         &state=s&code_challenge={challenge}&code_challenge_method=S256",
        encoded(BACK),
        encoded(audience),
    );
    let back = browser.open_until(&page, |url| url.starts_with(BACK)).await.url;
    let code = back.split("code=").nth(1).and_then(|rest| rest.split('&').next());
    let code = code.unwrap_or_else(|| panic!("no code: {back}"));
    let form = [
        ("grant_type", "authorization_code"),
        ("client_id", "weir-native"),
        ("code", code),
        ("redirect_uri", BACK),
        ("code_verifier", &verifier),
        ("resource", audience),
    ];
    let request = Request::new("POST", "/token").header("content-type", "application/x-www-form-urlencoded");
    given(issuer, request, &form).await
}

async fn given(issuer: &str, request: Request, form: &[(&str, &str)]) -> String {
    let address = issuer.trim_start_matches("http://").parse().expect("the issuer is an address");
    let body: Vec<String> = form.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    let answer = request.body(body.join("&")).send(address).await.json().await;
    answer["access_token"].as_str().unwrap_or_else(|| panic!("no token: {answer}")).to_owned()
}

/// What a token says, whoever signed it.
///
/// # Panics
/// When it is no JWT.
pub fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part).ok()).expect("a JWT");
    serde_json::from_slice(&payload).expect("claims are JSON")
}

/// As a value in a form or a query.
pub fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
