//! The logins of OCI registries that `docker login`, `podman login` and the like keep: in their file, or with a credential
//! helper (docker-credential-helpers, "Development").

use std::{fs, path::Path, process::Stdio, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;
use serde_json::Value;
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

/// How long a helper may take: it may ask a keyring, and that a person.
const HELPER: Duration = Duration::from_secs(30);
/// The user of a helper's answer that is a token for the registry's OAuth 2 endpoint, and no password.
const IDENTITY_TOKEN: &str = "<token>";

/// What a registry is told of who asks.
pub(super) struct RegistryLogin {
    /// Anonymous where no login is kept.
    pub(super) auth: RegistryAuth,
    /// Why a helper had none, for the case that the registry wants one.
    pub(super) problem: Option<String>,
}

/// What a helper prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

/// Looks up the login of a registry, in the first file that has one or names a helper for it.
pub(super) async fn find(registry: &str) -> RegistryLogin {
    let folder = |name: &str, below: &str| std::env::var_os(name).map(|folder| Path::new(&folder).join(below));
    let files = [
        folder("DOCKER_CONFIG", "config.json"),
        folder("HOME", ".docker/config.json"),
        folder("XDG_RUNTIME_DIR", "containers/auth.json"),
    ];
    let mut problem = None;
    for file in files.into_iter().flatten() {
        let Some(file) = fs::read(file).ok().and_then(|file| serde_json::from_slice::<Value>(&file).ok()) else {
            continue;
        };
        if let Some(auth) = in_file(&file, registry) {
            return RegistryLogin { auth, problem: None };
        }
        let Some(helper) = file["credHelpers"][registry].as_str().or(file["credsStore"].as_str()) else { continue };
        match ask(helper, registry).await {
            Ok(auth) => return RegistryLogin { auth, problem: None },
            Err(why) => problem = Some(format!("the credential helper `docker-credential-{helper}` {why}")),
        }
    }
    RegistryLogin { auth: RegistryAuth::Anonymous, problem }
}

fn in_file(file: &Value, registry: &str) -> Option<RegistryAuth> {
    let text = file["auths"][registry]["auth"].as_str()?;
    let text = String::from_utf8(BASE64_STANDARD.decode(text).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some(RegistryAuth::Basic(user.to_owned(), password.to_owned()))
}

/// Asks a helper. What it writes to standard error may be a secret, so it is not repeated.
async fn ask(helper: &str, registry: &str) -> Result<RegistryAuth, String> {
    if !helper.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        return Err("has no usable name".to_owned());
    }
    let mut command = Command::new(format!("docker-credential-{helper}"));
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|why| format!("cannot be started: {why}"))?;
    if let Some(mut input) = child.stdin.take() {
        // One that does not read has its answer ready.
        let _ = input.write_all(registry.as_bytes()).await;
    }
    let output = timeout(HELPER, child.wait_with_output()).await;
    let output = output.map_err(|_| format!("took more than {} s", HELPER.as_secs()))?;
    let output = output.map_err(|why| format!("has failed: {why}"))?;
    if !output.status.success() {
        return Err("has no login for it".to_owned());
    }
    let answer: HelperAnswer =
        serde_json::from_slice(&output.stdout).map_err(|_| "gave no readable answer".to_owned())?;
    match answer.username == IDENTITY_TOKEN {
        true => {
            Err("keeps an identity token, which Weir cannot use; log in with a password or an access token".to_owned())
        }
        false => Ok(RegistryAuth::Basic(answer.username, answer.secret)),
    }
}
