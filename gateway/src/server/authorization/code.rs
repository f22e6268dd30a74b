//! What people let clients have: the code of `connect::authorize`, and the refresh tokens that follow it.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    credential::{CodeBinding, Redeemed, Secret, TokenGrant},
    telemetry::AuthRecord,
};

use super::{AuthorizationServer, OAuthError, Reply, clients::RequestClient, form::Form, short_id};

impl AuthorizationServer {
    /// What a code is for, and the refresh token that takes its place (RFC 6749 §4.1.3, RFC 7636 §4.5).
    pub(super) async fn redeem_code(
        &self,
        form: &Form,
        client: RequestClient<'_>,
    ) -> Result<(TokenGrant, Secret), OAuthError> {
        let is_configured = self.check_known(&client).await?;
        let (code, verifier) = (form.need("code")?, form.need("code_verifier")?);
        let lifetime = self.sign_in.as_ref().ok_or_else(OAuthError::grant_type)?.refresh_lifetime;
        // OAuth 2.1 leaves the redirect URI out here.
        let redirect = form.get("redirect_uri");
        let is_good = |binding: &CodeBinding, grant: &TokenGrant| {
            is_verifier(verifier, &binding.challenge)
                && redirect.is_none_or(|redirect| redirect == binding.redirect)
                && is_for(form, grant)
                && (is_configured || !grant.configured)
        };
        let redeemed = self.tokens.store.redeem_code(code, client.id, lifetime, is_good).await;
        self.granted(redeemed.map_err(|why| OAuthError::unavailable(&why))?)
    }

    /// What a refresh token is for, and the one that takes its place.
    pub(super) async fn refresh(
        &self,
        form: &Form,
        client: RequestClient<'_>,
    ) -> Result<(TokenGrant, Secret), OAuthError> {
        if self.sign_in.is_none() {
            return Err(OAuthError::grant_type());
        }
        let is_configured = self.check_known(&client).await?;
        let is_good = |grant: &TokenGrant| is_for(form, grant) && (is_configured || !grant.configured);
        let token = form.need("refresh_token")?;
        let redeemed = self.tokens.store.refresh(token, client.id, is_good).await;
        self.granted(redeemed.map_err(|why| OAuthError::unavailable(&why))?)
    }

    /// Whether the configuration has a client. What it was allowed may be older than that.
    ///
    /// # Errors
    /// If it may have no tokens any more.
    async fn check_known(&self, client: &RequestClient<'_>) -> Result<bool, OAuthError> {
        if client.is_proved || self.clients.find(client.id).is_some() {
            return Ok(true);
        }
        let Some(sign_in) = &self.sign_in else { return Err(OAuthError::grant_type()) };
        match sign_in.public_clients.may_be(&self.tokens.store, client.id).await? {
            true => Ok(false),
            false => Err(OAuthError::client("the client is not known here")),
        }
    }

    fn granted(&self, redeemed: Redeemed) -> Result<(TokenGrant, Secret), OAuthError> {
        match redeemed {
            Redeemed::Good(grant, next) if self.providers.iter().any(|one| one.issuer == grant.vouched_by) => {
                Ok((*grant, next))
            }
            Redeemed::Reused(grant) => {
                // A record of its own, so that no stranger's refusals suppress it.
                let (subject, issuer) = (Some(&*grant.subject), Some(&*grant.vouched_by));
                let record =
                    AuthRecord { subject, issuer, client: Some(short_id(&grant.client)), ..AuthRecord::default() };
                record.refused("grant revoked", "a code or refresh token came again after its use");
                Err(OAuthError::grant(&"this was used before; all that came of its sign-in is revoked"))
            }
            Redeemed::Good(..) | Redeemed::Unknown => {
                Err(OAuthError::grant(&"the code or token has expired, is revoked, or is not for this request"))
            }
        }
    }

    /// Revokes the grant of a refresh token (RFC 7009 §2). Of a token that is not known nothing is said.
    pub(super) async fn revoke(&self, body: &[u8], authorization: Option<&str>) -> (Reply, Option<TokenGrant>) {
        let revoked = async {
            let form = Form::parse(body)?;
            let client = self.clients.authenticate(&form, authorization, self).await?;
            let revoked = self.tokens.store.revoke(form.need("token")?, client.id).await;
            revoked.map_err(|why| OAuthError::unavailable(&why))
        };
        match revoked.await {
            Ok(grant) => (Ok((200, json!({}))), grant),
            Err(why) => (Err(why), None),
        }
    }
}

/// Whether a request asks for what was granted, if it says (RFC 8707 §2.2).
fn is_for(form: &Form, grant: &TokenGrant) -> bool {
    form.get("resource").is_none_or(|resource| resource.trim_end_matches('/') == grant.resource)
}

/// Whether a verifier is that of a challenge of the method S256 (RFC 7636 §4.6).
fn is_verifier(verifier: &str, challenge: &str) -> bool {
    (43..=128).contains(&verifier.len()) && URL_SAFE_NO_PAD.encode(Sha256::digest(verifier)) == challenge
}

/// Whether a text is a challenge of the method S256.
pub(in crate::server) fn is_challenge(text: &str) -> bool {
    URL_SAFE_NO_PAD.decode(text).is_ok_and(|bytes| bytes.len() == 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifier_belongs_to_its_challenge() {
        // RFC 7636, appendix B.
        let (verifier, challenge) =
            ("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
        assert!(is_verifier(verifier, challenge) && is_challenge(challenge));
        assert!(!is_verifier(challenge, challenge) && !is_verifier("", challenge));
        assert!(!is_challenge("") && !is_challenge(&"=".repeat(43)) && !is_challenge(&challenge[1..]));
    }
}
