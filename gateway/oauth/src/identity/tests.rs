#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use url::Url;

use super::*;
use crate::{
    authorize,
    inbound::Issuer,
    tests::scripted::{
        Scripted, ScriptedReply, http,
        pair::{Pair, ec, sign},
    },
};

const NOW: u64 = 1_800_000_000;
const BACK: &str = "https://weir.example/oauth/callback";

/// An OpenID provider that gives what a test tells it to.
struct Provider {
    server: Scripted,
    pair: Pair,
    gives: Arc<Mutex<ScriptedReply>>,
    verifier: Verifier,
    clock: Clock,
}

async fn provider() -> Provider {
    let pair = ec("one");
    let (jwk, gives) = (pair.jwk.clone(), Arc::new(Mutex::new(ScriptedReply::status(500))));
    let given = Arc::clone(&gives);
    let server = Scripted::start(move |_, seen| match seen.path.as_str() {
        "/keys" => ScriptedReply::json(200, &json!({ "keys": [jwk] })),
        "/token" => given.lock().clone(),
        _ => ScriptedReply::status(404),
    })
    .await;
    let clock = Clock::from_fn(|| UNIX_EPOCH + Duration::from_secs(NOW));
    let issuer = Issuer {
        issuer: server.issuer(),
        audiences: vec!["https://weir.example/mcp".to_owned()],
        keys: Some(server.at("/keys")),
        leeway: Duration::from_secs(60),
        algorithms: Vec::new(),
        groups: "groups".to_owned(),
    };
    let verifier = Verifier::new(issuer, http(), clock.clone());
    Provider { server, pair, gives, verifier, clock }
}

impl Provider {
    fn metadata(&self, more: Value) -> ServerMetadata {
        let mut metadata = json!({
            "issuer": self.server.issuer(),
            "authorization_endpoint": self.server.at("/authorize"),
            "token_endpoint": self.server.at("/token"),
        });
        metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(metadata).unwrap()
    }

    fn begin(&self) -> (Url, PendingSignIn) {
        let what = sign_in(&self.metadata(json!({})), &OAuthApplication::public("weir"), BACK, false);
        authorize::begin(&http(), what).unwrap()
    }

    /// Takes a sign-in to its end, with an ID token of these claims besides the usual ones.
    async fn end(&self, claims: &Value) -> Result<VerifiedToken, IdentityError> {
        let (url, pending) = self.begin();
        let mut all = json!({
            "iss": self.server.issuer(), "sub": "ada", "aud": "weir", "exp": NOW + 60, "nonce": of(&url, "nonce"),
        });
        for (name, value) in claims.as_object().unwrap() {
            match value {
                Value::Null => drop(all.as_object_mut().unwrap().remove(name)),
                value => all[name] = value.clone(),
            }
        }
        let token = sign(&self.pair, |_| (), &all);
        *self.gives.lock() = ScriptedReply::json(200, &json!({ "access_token": "hunter2", "id_token": token }));
        self.finish(pending, "code=c").await
    }

    async fn finish(&self, pending: PendingSignIn, rest: &str) -> Result<VerifiedToken, IdentityError> {
        let callback = Callback::parse(&format!("/oauth/callback?state={}&{rest}", pending.state().expose()));
        finish(pending, &http(), &self.verifier, callback, &self.clock).await
    }
}

fn of(url: &Url, name: &str) -> Option<String> {
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

#[tokio::test]
async fn the_server_is_asked_for_a_name_and_nothing_else() {
    let provider = provider().await;
    let (url, _) = provider.begin();
    let (second, _) = provider.begin();
    assert_eq!((of(&url, "scope").as_deref(), of(&url, "resource"), of(&url, "prompt")), (Some("openid"), None, None));
    assert_eq!(
        of(&url, "code_challenge_method").as_deref(),
        Some("S256"),
        "whether or not the server says that it can"
    );
    assert!(of(&url, "nonce").is_some_and(|nonce| nonce.len() >= 20) && of(&url, "nonce") != of(&second, "nonce"));

    let named = provider.metadata(json!({ "scopes_supported": ["email", "phone", "profile"] }));
    let scopes = sign_in(&named, &OAuthApplication::public("weir"), BACK, false).scopes;
    assert_eq!(scopes.render().split(' ').count(), 3, "{}", scopes.render());
    for (said, prompt) in
        [(json!(null), "login"), (json!(["none", "login"]), "login"), (json!(["select_account"]), "select_account")]
    {
        let metadata = provider.metadata(json!({ "prompt_values_supported": said }));
        assert_eq!(sign_in(&metadata, &OAuthApplication::public("weir"), BACK, true).prompt, Some(prompt));
        let google = ServerMetadata { issuer: GOOGLE.to_owned(), ..metadata };
        let asked = sign_in(&google, &OAuthApplication::public("weir"), BACK, true);
        assert_eq!(asked.prompt, Some("select_account"));
    }
}

#[tokio::test]
async fn who_signed_in_is_what_the_token_of_this_sign_in_says() {
    let provider = provider().await;
    let principal = provider.end(&json!({ "email": "ada@example.com" })).await.unwrap();
    assert_eq!((principal.subject.as_str(), principal.issuer), ("ada", provider.server.issuer()));
    assert_eq!(principal.claims["email"], "ada@example.com");
    for good in [
        json!({ "aud": ["weir"] }),
        json!({ "aud": ["weir"], "azp": "weir" }),
        json!({ "aud": ["weir", "other"], "azp": "weir" }),
        json!({ "exp": NOW - 59 }),
    ] {
        assert!(provider.end(&good).await.is_ok(), "{good}");
    }
    for (claims, why) in [
        (json!({ "nonce": null }), Rejected::Nonce),
        (json!({ "nonce": "" }), Rejected::Nonce),
        (json!({ "nonce": ["x"] }), Rejected::Nonce),
        (json!({ "nonce": "of another" }), Rejected::Nonce),
        (json!({ "iss": "https://evil.example" }), Rejected::Issuer),
        (json!({ "iss": format!("{}/", provider.server.issuer()) }), Rejected::Issuer),
        (json!({ "aud": "https://weir.example/mcp" }), Rejected::Audience),
        (json!({ "aud": [] }), Rejected::Audience),
        (json!({ "aud": null }), Rejected::Audience),
        (json!({ "aud": ["weir", "other"] }), Rejected::Audience),
        (json!({ "aud": ["weir", "other"], "azp": "other" }), Rejected::Audience),
        (json!({ "aud": ["weir"], "azp": "other" }), Rejected::Audience),
        (json!({ "azp": 1 }), Rejected::Audience),
        (json!({ "exp": NOW - 60 }), Rejected::Expired),
        (json!({ "exp": null }), Rejected::Missing("exp")),
        (json!({ "nbf": NOW + 61 }), Rejected::Early),
        (json!({ "sub": null }), Rejected::Missing("sub")),
    ] {
        assert_eq!(provider.end(&claims).await, Err(why.into()), "{claims}");
    }
}

#[tokio::test]
async fn the_token_of_one_sign_in_is_no_good_for_another() {
    let provider = provider().await;
    let (first, _) = provider.begin();
    assert_eq!(provider.end(&json!({ "nonce": of(&first, "nonce") })).await, Err(Rejected::Nonce.into()));
    // An access token of this issuer, even one that has everything else.
    let (url, pending) = provider.begin();
    let claims = json!({
        "iss": provider.server.issuer(), "sub": "ada", "aud": "weir", "exp": NOW + 60, "nonce": of(&url, "nonce"),
    });
    let token = sign(&provider.pair, |head| head.typ = Some("at+jwt".to_owned()), &claims);
    *provider.gives.lock() = ScriptedReply::json(200, &json!({ "access_token": token, "id_token": token }));
    assert_eq!(provider.finish(pending, "code=c").await, Err(Rejected::Malformed.into()));
}

#[tokio::test]
async fn whatever_goes_wrong_is_told_without_what_was_given() {
    let provider = provider().await;
    let nobody = IdentityError::Nobody(provider.server.issuer());
    let garbage = json!({ "access_token": "hunter2", "id_token": "hunter2.hunter2.hunter2" });
    for (gives, why) in [
        (ScriptedReply::json(200, &json!({ "access_token": "hunter2" })), nobody.clone()),
        (ScriptedReply::json(200, &garbage), Rejected::Malformed.into()),
        (ScriptedReply::error(400, "invalid_scope"), nobody.clone()),
        (ScriptedReply::error(400, "invalid_grant"), SignInError::from(TokenError::InvalidGrant).into()),
    ] {
        *provider.gives.lock() = gives;
        let failed = provider.finish(provider.begin().1, "code=hunter2").await.unwrap_err();
        assert_eq!(failed, why);
        assert!(!format!("{failed} {failed:?}").contains("hunter2"), "{failed:?}");
    }
    let denied = provider.finish(provider.begin().1, "error=access_denied").await;
    assert_eq!(denied, Err(SignInError::from(TokenError::Denied).into()));
    assert_eq!(provider.finish(provider.begin().1, "error=invalid_scope").await, Err(nobody));
    let elsewhere = provider.finish(provider.begin().1, "code=c&iss=https://evil.example").await;
    assert_eq!(elsewhere, Err(SignInError::Issuer.into()));
}
