//! What the configuration says of an upstream's login, in the words of those who do it.

use base64::{Engine, engine::general_purpose::STANDARD};
use url::Url;
use weir_oauth::{
    ClientAuth, KnownClient, OAuthApplication, PreparedUpstream, PrivateKey, Redirect, Registration, Scopes, Secret,
};

use crate::config::{InboundAuth, LoginFlow, OAuthClient, SecretError, SecretSource};

/// The name that people read when they are asked whether they agree.
pub const NAME: &str = "Weir";

/// An upstream as the crate knows it. Secrets are read now, so that one that was replaced is the one that is used.
pub(super) fn upstream(
    name: &str,
    url: &Url,
    oauth: &OAuthClient,
    document: Option<&Url>,
    redirect: Option<Redirect>,
    by_code: bool,
) -> Result<PreparedUpstream, SecretError> {
    let people = matches!(oauth.flow, LoginFlow::AuthorizationCode | LoginFlow::DeviceCode);
    let known = client(oauth)?.map(|client| {
        // A statement of the platform is as secret as a password.
        let secret = client.auth != ClientAuth::None || oauth.flow == LoginFlow::JwtBearer;
        KnownClient { client, issuer: oauth.issuer.clone(), upstream: secret.then(|| name.to_owned()) }
    });
    let grants = match oauth.flow {
        // Nobody comes back from a device, and a server that hears of such a way wants to know where to.
        _ if by_code => vec!["urn:ietf:params:oauth:grant-type:device_code", "refresh_token"],
        LoginFlow::AuthorizationCode | LoginFlow::DeviceCode => vec!["authorization_code", "refresh_token"],
        LoginFlow::ClientCredentials => vec!["client_credentials"],
        LoginFlow::JwtBearer => vec!["urn:ietf:params:oauth:grant-type:jwt-bearer"],
        LoginFlow::TokenExchange => vec!["urn:ietf:params:oauth:grant-type:token-exchange"],
    };
    Ok(PreparedUpstream {
        name: name.to_owned(),
        url: url.clone(),
        issuer: oauth.issuer.clone(),
        registration: Registration {
            key: Some("oauth = { client_id = \"…\" }"),
            ..registration(known, document, redirect, grants)
        },
        scopes: (!oauth.scopes.is_empty()).then(|| oauth.scopes.iter().cloned().collect::<Scopes>()),
        names_resource: oauth.resource,
        signs_in: people,
        dpop: oauth.dpop,
    })
}

/// Who Weir is to the issuer of its callers, and what it is there.
pub(super) fn of_callers(
    inbound: &InboundAuth,
    document: Option<&Url>,
    redirect: &str,
) -> Result<Registration, SecretError> {
    let known = application(inbound)?;
    let known = known.map(|client| KnownClient { client, issuer: Some(inbound.issuer.clone()), upstream: None });
    let grants = vec!["authorization_code", "refresh_token"];
    Ok(registration(known, document, Some(Redirect::At(redirect.to_owned())), grants))
}

fn registration(
    known: Option<KnownClient>,
    document: Option<&Url>,
    redirect: Option<Redirect>,
    grants: Vec<&'static str>,
) -> Registration {
    Registration { known, document: document.cloned(), name: NAME.to_owned(), redirect, grants, key: None }
}

/// Who Weir is to the issuer of its callers, if somebody has registered it there.
///
/// # Errors
/// If its secret cannot be read.
pub fn application(inbound: &InboundAuth) -> Result<Option<OAuthApplication>, SecretError> {
    let InboundAuth { client_id, private_key, client_secret, .. } = inbound;
    registered(client_id.as_ref(), private_key.as_ref(), client_secret.as_ref(), None)
}

/// Who Weir is, if somebody has registered it.
pub(super) fn client(oauth: &OAuthClient) -> Result<Option<OAuthApplication>, SecretError> {
    let OAuthClient { client_id, private_key, client_secret, client_assertion, algorithm, .. } = oauth;
    let (Some(id), Some(source)) = (client_id, client_assertion) else {
        return registered(client_id.as_ref(), private_key.as_ref(), client_secret.as_ref(), *algorithm);
    };
    Ok(Some(OAuthApplication { id: id.clone(), auth: ClientAuth::Assertion(source.read()?) }))
}

fn registered(
    id: Option<&String>,
    key: Option<&SecretSource>,
    secret: Option<&SecretSource>,
    algorithm: Option<&'static str>,
) -> Result<Option<OAuthApplication>, SecretError> {
    let Some(id) = id.cloned() else { return Ok(None) };
    let auth = match (key, secret) {
        (Some(source), _) => {
            let pem = source.read_document()?;
            let algorithm = algorithm.unwrap_or_else(|| usual(&pem)).to_owned();
            ClientAuth::PrivateKey(PrivateKey { pem, algorithm, id: None })
        }
        (None, Some(source)) => ClientAuth::Basic(source.read()?),
        (None, None) => ClientAuth::None,
    };
    Ok(Some(OAuthApplication { id, auth }))
}

/// What a key signs with as a rule, by the kind that its PEM says it is of (RFC 5958, RFC 7518 §3.1).
fn usual(pem: &Secret) -> &'static str {
    /// Object identifiers as they stand in the file.
    const KINDS: [(&[u8], &str); 4] = [
        (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07], "ES256"),
        (&[0x2b, 0x81, 0x04, 0x00, 0x22], "ES384"),
        (&[0x2b, 0x65, 0x70], "EdDSA"),
        (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01], "RS256"),
    ];
    let lines = pem.expose().lines().filter(|line| !line.starts_with("-----")).map(str::trim);
    let text = zeroize::Zeroizing::new(lines.collect::<String>());
    let bytes = zeroize::Zeroizing::new(STANDARD.decode(text.as_bytes()).unwrap_or_default());
    let holds = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    KINDS.iter().find(|(part, _)| holds(part)).map_or("RS256", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use ring::{
        rand::SystemRandom,
        signature::{ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair},
    };

    use super::*;

    #[test]
    fn a_key_says_of_which_kind_it_is() {
        let random = SystemRandom::new();
        let pem = |der: &[u8]| {
            Secret::new(format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(der)))
        };
        let p256 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let p384 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, &random).unwrap();
        let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        assert_eq!(usual(&pem(p256.as_ref())), "ES256");
        assert_eq!(usual(&pem(p384.as_ref())), "ES384");
        assert_eq!(usual(&pem(ed.as_ref())), "EdDSA");
        assert_eq!(usual(&Secret::new("no key".to_owned())), "RS256");
    }
}
