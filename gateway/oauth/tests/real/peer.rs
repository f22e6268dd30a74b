//! The authorization server as a child process.

use std::{path::PathBuf, process::Stdio};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};
use weir_store::Secret;

/// It ends with the test.
pub(crate) struct Peer {
    pub(crate) issuer: String,
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// npm `oidc-provider`.
    pub(crate) async fn start(settings: &Value) -> Self {
        let folder = folder();
        let node = folder.join("../.tools/bin/node");
        let mut command = Command::new(needed(node));
        needed(folder.join("node_modules/oidc-provider"));
        command.arg(folder.join("server.js")).arg(settings.to_string()).env("NODE_NO_WARNINGS", "1");
        Self::run(command).await
    }

    /// PyPI `Authlib`.
    pub(crate) async fn authlib() -> Self {
        let folder = folder();
        let mut command = Command::new(needed(folder.join(".venv/bin/python")));
        command.arg(folder.join("authlib_server.py")).env("AUTHLIB_INSECURE_TRANSPORT", "1");
        Self::run(command).await
    }

    async fn run(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = line(&mut output).await;
        let issuer = first["issuer"].as_str().unwrap().to_owned();
        Self { issuer, input: child.stdin.take().unwrap(), output, _child: child }
    }

    /// How often each grant was asked for.
    pub(crate) async fn stats(&mut self) -> Value {
        self.input.write_all(b"stats\n").await.unwrap();
        line(&mut self.output).await
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers/oauth")
}

fn needed(path: PathBuf) -> PathBuf {
    assert!(path.exists(), "{} is missing: run tests/peers/setup.sh", path.display());
    path
}

async fn line(output: &mut Lines<BufReader<ChildStdout>>) -> Value {
    loop {
        let line = output.next_line().await.unwrap().unwrap();
        if let Ok(value) = serde_json::from_str(&line) {
            return value;
        }
    }
}

/// A new key: the private half in PEM, the public one as a JWK.
pub(crate) fn key() -> (Secret, Value) {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).unwrap();
    let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
    let jwk = json!({ "kty": "EC", "crv": "P-256", "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y) });
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(pkcs8.as_ref()));
    (Secret::new(pem), jwk)
}
