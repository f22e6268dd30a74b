//! How a token is made anew on a policy's word: with the refresh token of a sign-in, or without anybody.

use std::{sync::Arc, time::Duration};

use weir_flow::facts::{self, TokenOutcome};
use weir_oauth::{Challenge, Http, LoginError, LoginKey, LoginSummary, Logins, Renewal, Stale, TokenError, discover};

use super::{TokenSubject, UpstreamAuth, settings, upstream_auth::challenge};

/// How long an upstream may take to say whose tokens it takes, when a call waits for that.
const PATIENCE: Duration = Duration::from_secs(5);

impl UpstreamAuth {
    /// Renews a login. `refused` is what the upstream said to its token, if it does not accept that, rather than that its end
    /// is near.
    pub async fn renew(
        self: &Arc<Self>,
        asker: &TokenSubject,
        stored: &LoginSummary,
        refused: Option<&facts::Refusal>,
    ) -> TokenOutcome {
        let renewed = async {
            let (opened, http) = self.tools().await.map_err(TokenOutcome::Failed)?;
            let (logins, key) = (&opened.logins, &stored.key);
            let kept = logins.get(key).await.map_err(|why| TokenOutcome::Failed(why.to_string()))?;
            let kept = kept.ok_or_else(|| TokenOutcome::Denied("the login is gone".to_owned()))?;
            if kept.issued != stored.issued {
                return Ok(());
            }
            let challenge = refused.map(|refused| challenge(&refused.challenge));
            let (home, renewal) = if self.is_for_people() {
                if let Some(challenge) = &challenge
                    && self.has_moved(http, key, challenge).await
                {
                    return Err(TokenOutcome::Denied(
                        "the upstream takes tokens of another authorization server now".to_owned(),
                    ));
                }
                let client = settings::client(&self.oauth).map_err(|why| TokenOutcome::Failed(why.to_string()))?;
                (key.clone(), Renewal::Refresh(client))
            } else {
                self.prepared_alone(asker, &[], challenge.as_ref(), Some(&kept)).await?
            };
            let done = if home != *key {
                anew(logins, http, &home, None, &renewal).await
            } else {
                let stale = Stale { token: kept.access.clone(), refused: refused.is_some() };
                logins.access(http, key, Some(&stale), &renewal).await.map(drop)
            };
            if self.is_for_people() && matches!(done, Err(LoginError::Token(TokenError::InvalidClient))) {
                // Should that fail, the next sign-in finds it out.
                drop(self.disowned(&key.issuer, &kept.client.id, None).await);
            }
            done.map_err(outcome_of)
        };
        renewed.await.err().unwrap_or(TokenOutcome::Done)
    }

    /// Gets a token without anybody, in place of `held` if there was one. `refused` is what the upstream said to that, if it
    /// refused it.
    pub async fn obtain(
        self: &Arc<Self>,
        asker: &TokenSubject,
        scopes: &[String],
        held: Option<&LoginSummary>,
        refused: Option<&facts::Refusal>,
    ) -> TokenOutcome {
        let obtained = async {
            let (opened, http) = self.tools().await.map_err(TokenOutcome::Failed)?;
            let challenge = refused.map(|refused| challenge(&refused.challenge));
            let (key, renewal) = self.prepared_alone(asker, scopes, challenge.as_ref(), None).await?;
            let kept = opened.logins.get(&key).await.map_err(|why| TokenOutcome::Failed(why.to_string()))?;
            match (kept, refused) {
                // It has come since: somebody has asked for it before, and could not wait for it.
                (Some(kept), None) if held.is_none() && kept.origin == self.origin => return Ok(()),
                (Some(kept), refused) if refused.is_none_or(|refused| refused.status != 401) => {
                    let stale = Stale { token: kept.access, refused: false };
                    opened.logins.access(http, &key, Some(&stale), &renewal).await.map(drop)
                }
                (kept, _) => {
                    let refused = kept.map(|kept| Stale { token: kept.access, refused: true });
                    anew(&opened.logins, http, &key, refused.as_ref(), &renewal).await
                }
            }
            .map_err(outcome_of)
        };
        obtained.await.err().unwrap_or(TokenOutcome::Done)
    }

    /// Whether the upstream says that it takes tokens of others, and not of who made this login. If that cannot be found out
    /// now, it has not said so.
    async fn has_moved(&self, http: &Http, key: &LoginKey, challenge: &Challenge) -> bool {
        if self.oauth.issuer.is_some() {
            return false;
        }
        let said = discover::names_others(http, &self.url, Some(challenge), &key.issuer);
        matches!(tokio::time::timeout(PATIENCE, said).await, Ok(Ok(true)))
    }
}

/// Makes a login where there is none, or one that is refused; it takes the place of those of other issuers.
async fn anew(
    logins: &Logins,
    http: &Http,
    key: &LoginKey,
    refused: Option<&Stale>,
    renewal: &Renewal,
) -> Result<(), LoginError> {
    let made = logins.access(http, key, refused, renewal).await?;
    if let Err(why) = logins.supersede(key, &made.origin).await {
        tracing::warn!(upstream = key.upstream, error = %why, "the login before is still kept");
    }
    Ok(())
}

/// Only what the authorization server has said itself is a no. An answer that is none, or that did not come, says nothing
/// of the login: it may be from whatever stands in between.
fn outcome_of(why: LoginError) -> TokenOutcome {
    let text = why.to_string();
    match why {
        LoginError::Token(
            TokenError::Temporary { .. }
            | TokenError::Unclear { .. }
            | TokenError::Malformed(_)
            | TokenError::Http(_)
            | TokenError::Key(_),
        )
        | LoginError::Store(_) => TokenOutcome::Failed(text),
        LoginError::Token(_) | LoginError::Missing | LoginError::Ended | LoginError::NotAccepted => {
            TokenOutcome::Denied(text)
        }
    }
}
