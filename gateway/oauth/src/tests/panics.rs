//! A process that panics while it holds secrets: whatever the message is made of, and with every frame of the stack, it
//! tells none of them.

#![allow(clippy::unwrap_used, reason = "to panic is what this is about")]

use std::{
    process::Command,
    sync::Arc,
    time::{Duration, SystemTime},
};

use weir_store::{Key, KeySources, Protection, Store, Value};

use crate::{
    Callback, ClientAuth, CredentialOwner, KeyBinding, KnownClient, Login, LoginError, LoginKey, OAuthApplication,
    Prepared, PreparedUpstream, PrivateKey, ProofKey, Registration, Scopes, Secret, ServerMetadata, SignIn, TokenError,
    Tokens, tests::scripted,
};

/// What all secrets here have in common.
const MARK: &str = "hunter2";
/// Which of the panics the child is to end with.
const WHICH: &str = "WEIR_OAUTH_TEST_PANIC";

fn secret() -> Secret {
    Secret::new(MARK.to_owned())
}

fn tokens() -> Tokens {
    Tokens {
        access: secret(),
        scheme: None,
        refresh: Some(secret()),
        lifetime: Some(Duration::from_secs(1)),
        scopes: Some(Scopes::parse("read")),
        identity: Some(secret()),
        kind: None,
    }
}

fn clients() -> Vec<OAuthApplication> {
    let key = PrivateKey { pem: secret(), algorithm: "ES256".to_owned(), id: None };
    [ClientAuth::Basic(secret()), ClientAuth::Post(secret()), ClientAuth::PrivateKey(key)]
        .map(|auth| OAuthApplication { id: "weir".to_owned(), auth })
        .to_vec()
}

fn login() -> Login {
    let (url, server) = ("https://mcp.example/mcp".parse().unwrap(), ServerMetadata::default());
    Login::new(tokens(), &url, None, &Scopes::default(), clients().remove(0), server, SystemTime::UNIX_EPOCH)
}

fn prepared(client: OAuthApplication) -> Prepared {
    let key = Arc::new(ProofKey::generate().unwrap());
    Prepared {
        upstream: "github".to_owned(),
        url: "https://mcp.example/mcp".parse().unwrap(),
        server: ServerMetadata::default(),
        client,
        resource: None,
        redirect: Some("http://127.0.0.1/".to_owned()),
        scopes: Scopes::default(),
        begun: SystemTime::UNIX_EPOCH,
        proof: Some(KeyBinding { key, bound: true }),
    }
}

fn upstream(client: OAuthApplication) -> PreparedUpstream {
    let known = Some(KnownClient { client, issuer: None, upstream: None });
    let registration =
        Registration { known, document: None, name: "Weir".to_owned(), redirect: None, grants: Vec::new(), key: None };
    PreparedUpstream {
        name: "github".to_owned(),
        url: "https://mcp.example/mcp".parse().unwrap(),
        issuer: None,
        registration,
        scopes: None,
        names_resource: true,
        signs_in: true,
        dpop: None,
    }
}

fn reply() -> Tokens {
    serde_json::from_str(r#"{"access_token":"hunter2","refresh_token":"hunter2","id_token":"hunter2"}"#).unwrap()
}

/// What a server says, with secrets where none belong.
fn error() -> LoginError {
    TokenError::from_code(&format!("{MARK} {MARK}")).into()
}

/// What is not expected to fail, and does.
fn failed() -> Result<(), Box<impl std::fmt::Debug>> {
    if clients().is_empty() { Ok(()) } else { Err(Box::new((login(), tokens(), error(), reply()))) }
}

async fn kept() -> impl std::fmt::Debug {
    let store = weir_store::MemoryStore::new(weir_store::Clock::system());
    let key = LoginKey {
        upstream: "github".to_owned(),
        owner: CredentialOwner::Shared,
        issuer: "https://as.example".to_owned(),
    };
    store.put(&key.place(), &login().value(), None).await.unwrap();
    let sources = KeySources { keyring: None, file: None, variable: Some(("KEY".to_owned(), secret())) };
    let found = store.get(&key.place()).await.unwrap();
    let plain = Value { about: String::new(), secret: MARK.as_bytes().to_vec().into() };
    (
        found,
        store.list(&[Key::new("login", &[])]).await.unwrap(),
        Protection::Encrypted(sources),
        plain,
        Key::new("login", &["github"]),
    )
}

/// Ends as it is told, if it is told anything.
#[tokio::test]
async fn child() {
    let Ok(which) = std::env::var(WHICH) else { return };
    let held =
        (login(), tokens(), clients(), Callback::parse("/?code=hunter2&state=hunter2&error_description=hunter2"));
    match which.as_str() {
        "printed" => {
            let access = crate::Stale { token: secret(), refused: true };
            let (prepared, upstream): (Vec<_>, Vec<_>) =
                clients().into_iter().map(|client| (prepared(client.clone()), upstream(client))).unzip();
            let sign_in: SignIn = prepared[0].sign_in();
            let kept = kept().await;
            panic!("{held:#?} {access:?} {prepared:?} {upstream:?} {sign_in:?} {:?} {kept:?}", reply());
        }
        "unwrapped" => failed().unwrap(),
        "compared" => assert_eq!(held.1, Tokens { kind: Some("other".to_owned()), ..tokens() }),
        "in a task" => {
            let refreshing = async move {
                let login = held.0;
                let server = scripted::Scripted::start(|_, _| scripted::ScriptedReply::status(500)).await;
                let endpoint = format!("{}?{}", server.url, login.access.expose());
                assert!(endpoint.is_empty(), "the text of the condition is shown, and not what it is about");
            };
            tokio::spawn(refreshing).await.unwrap();
        }
        other => unreachable!("{other}"),
    }
}

#[test]
fn no_panic_tells_a_secret() {
    for which in ["printed", "unwrapped", "compared", "in a task"] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "tests::panics::child", "--nocapture"]).env(WHICH, which).env("RUST_BACKTRACE", "full");
        let ended = child.output().unwrap();
        let said = [ended.stdout, ended.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!ended.status.success() && said.contains("panicked at"), "{which}: {said}");
        assert!(!said.contains(MARK), "{which}: {said}");
    }
}
