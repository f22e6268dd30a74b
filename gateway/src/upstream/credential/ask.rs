//! One question to a `credentials` policy, from the facts to what it comes to: each decision that asks for a token operation is
//! carried out, and the policy is asked again with what came of it.

use std::time::{Duration, Instant};

use weir_flow::{
    Origin,
    facts::{
        CredentialDecision, CredentialQuestion, Flow, Refusal, Token, TokenAttempt, TokenOperation, TokenOutcome,
        TokenRequest, UpstreamFacts,
    },
};

use weir_oauth::LoginSummary;
use weir_store::Version;

use crate::{
    counters::TOKEN_RENEWALS,
    credential::{TokenSubject, UpstreamAuth},
};

use super::{
    Credential, CredentialError, CredentialSource,
    slot::{CachedCredential, Renewed},
    step_up::{self, StepUpLimiter},
};

/// How long after it was renewed ahead of its end a token that is refused, and has never been let in, counts as renewed in
/// vain. One that took the place of a refused one counts for as long as it is there.
const IN_VAIN: Duration = Duration::from_secs(60);

/// A renewal that went well.
const RENEWED: TokenAttempt = TokenAttempt { operation: TokenOperation::Renew, outcome: TokenOutcome::Done };

/// How many token operations there are for one question at most, whatever the policy says.
const TOKEN_OPERATIONS: usize = 4;

impl CredentialSource {
    /// What the policy decides now. `before` is what is kept, `refused` what the upstream said to it or to nothing at all.
    pub(super) async fn answer(
        &self,
        asker: &TokenSubject,
        upstream: UpstreamFacts,
        origin: &Origin,
        before: Option<CachedCredential>,
        refused: Option<Refusal>,
        steps: &StepUpLimiter<Version>,
    ) -> Result<CachedCredential, CredentialError> {
        if refused.is_some()
            && let Some(changed) = before.as_ref().and_then(|before| self.changed(before, origin))
        {
            return Ok(changed);
        }
        let news = self.account.as_ref().map(|account| account.mark(&asker.owner));
        let mut attempts = Vec::new();
        // What was refused says nothing of what has been made since.
        let mut made = false;
        // Whether what was renewed had been refused, rather than near its end.
        let mut was_refused = false;
        loop {
            let stored = self.stored(asker).await?;
            let refused =
                refused.clone().filter(|refused| !made && concerns(refused, before.as_ref(), stored.as_ref()));
            if attempts.is_empty() {
                attempts.extend(in_vain(refused.as_ref(), before.as_ref()));
            }
            let fact = stored.as_ref().zip(self.account.as_ref());
            let fact = fact.map(|(stored, account)| account.fact(stored, is_accepted(before.as_ref(), stored)));
            let question = self.question(asker, &upstream, fact, refused.clone(), attempts.clone());
            let decision = self.policy.decide(&question, self).await.map_err(|why| denied(why.to_string()))?;
            let (operation, outcome) = match (decision, &self.account) {
                (CredentialDecision::None, _) => return Ok(CachedCredential { news, ..CachedCredential::nothing() }),
                (CredentialDecision::Attach(attachment), _) => return self.place(attachment, origin),
                (CredentialDecision::Mint(minted), _) => return self.mint(&minted, origin),
                // Those that Weir brings along stop for want of a login or a token.
                (CredentialDecision::Stop(why), _) if self.policy.is_shipped() => return Err(failed(why)),
                (CredentialDecision::Stop(why), _) => return Err(denied(self.policy.stopped(&why))),
                (CredentialDecision::Present(chosen), Some(account)) => {
                    let Some(stored) = stored else { return Err(failed("there is no token".to_owned())) };
                    let same = before.as_ref().filter(|before| before.is_of(&stored));
                    let kept = self.present(account, &stored, &chosen, origin, same).await?;
                    let renewed = attempts.contains(&RENEWED).then(|| Renewed { at: Instant::now(), was_refused });
                    let renewed = kept.renewed.or(renewed);
                    return Ok(CachedCredential { news, renewed, trouble: trouble(&attempts), ..kept });
                }
                (CredentialDecision::Renew, Some(account)) => {
                    let Some(stored) = stored else { return Err(failed("there is no token".to_owned())) };
                    let refused = refused.filter(|refused| refused.status == 401);
                    was_refused |= refused.is_some();
                    (TokenOperation::Renew, account.renew(asker, &stored, refused.as_ref()).await)
                }
                (CredentialDecision::Obtain(request), Some(account)) => {
                    let held = stored.as_ref().map(|stored| stored.version);
                    check(refused.as_ref(), held, steps, &upstream.name)?;
                    obtain(account, asker, request, stored.as_ref(), refused.as_ref()).await?
                }
                (CredentialDecision::Present(_) | CredentialDecision::Renew | CredentialDecision::Obtain(_), None) => {
                    let name = self.policy.name();
                    return Err(failed(format!(
                        "policy `{name}` asked for a token, and the configuration has no way to one here; set `auth`"
                    )));
                }
            };
            tracing::debug!(upstream = upstream.name, ?operation, ?outcome, "credential");
            count(&upstream.name, &outcome);
            made |= outcome == TokenOutcome::Done;
            attempts.push(TokenAttempt { operation, outcome });
            if attempts.len() >= TOKEN_OPERATIONS {
                let name = self.policy.name();
                return Err(failed(format!(
                    "policy `{name}` asked for more than {TOKEN_OPERATIONS} token operations for one credential"
                )));
            }
        }
    }

    async fn stored(&self, asker: &TokenSubject) -> Result<Option<LoginSummary>, CredentialError> {
        let Some(account) = &self.account else { return Ok(None) };
        match account.stored(&asker.owner).await {
            Ok(stored) => Ok(stored),
            // Of an upstream that may need no login at all nothing is asked of the store.
            Err(_) if !account.is_configured() => Ok(None),
            Err(why) => Err(failed(why.to_string())),
        }
    }

    fn question(
        &self,
        asker: &TokenSubject,
        upstream: &UpstreamFacts,
        token: Option<Token>,
        refused: Option<Refusal>,
        attempts: Vec<TokenAttempt>,
    ) -> CredentialQuestion {
        CredentialQuestion {
            upstream: upstream.clone(),
            principal: asker.principal.clone(),
            secrets: self.secrets.iter().map(|(name, _)| name.clone()).collect(),
            flows: self.account.as_ref().map(|account| account.flows()).unwrap_or_default(),
            token,
            refusal: refused,
            attempts,
        }
    }
}

/// Whether the upstream may have another token for one that it let in and found too narrow.
fn check(
    refused: Option<&Refusal>,
    held: Option<Version>,
    steps: &StepUpLimiter<Version>,
    upstream: &str,
) -> Result<(), CredentialError> {
    let (Some(refused), Some(held)) = (refused.filter(|refused| refused.status == 403), held) else { return Ok(()) };
    match steps.take(held, Instant::now()) {
        true => Ok(()),
        false => Err(failed(step_up::too_many(upstream, refused.challenge.scope.as_deref()))),
    }
}

/// Carries out a request for a new token, if that takes no person.
async fn obtain(
    account: &std::sync::Arc<UpstreamAuth>,
    asker: &TokenSubject,
    request: TokenRequest,
    held: Option<&LoginSummary>,
    refused: Option<&Refusal>,
) -> Result<(TokenOperation, TokenOutcome), CredentialError> {
    let TokenRequest { flow, scopes } = request;
    match flow {
        Flow::AuthorizationCode | Flow::DeviceCode => {
            Err(CredentialError::SignIn(Box::new(account.need(&asker.owner, &scopes, refused).await)))
        }
        Flow::ClientCredentials | Flow::TokenExchange => {
            Ok((TokenOperation::Obtain(flow), account.obtain(asker, &scopes, held, refused).await))
        }
    }
}

fn count(upstream: &str, outcome: &TokenOutcome) {
    let word = match outcome {
        TokenOutcome::Done => "done",
        TokenOutcome::Denied(_) => "denied",
        TokenOutcome::Failed(_) => "failed",
    };
    TOKEN_RENEWALS.count(upstream, word);
}

/// Whether what is stored has opened the upstream before.
fn is_accepted(before: Option<&CachedCredential>, stored: &LoginSummary) -> bool {
    before.is_some_and(|kept| kept.is_of(stored) && kept.credential.as_ref().is_some_and(Credential::is_accepted))
}

/// Whether what was refused is what there is now: somebody may have renewed it or signed in since.
fn concerns(refused: &Refusal, before: Option<&CachedCredential>, stored: Option<&LoginSummary>) -> bool {
    let was =
        before.filter(|kept| kept.login.is_some()).and_then(|kept| Some((kept.credential.as_ref()?.mark(), kept)));
    match (refused.credential, was, stored) {
        (Some(mark), Some((current, kept)), Some(stored)) if mark == current => kept.is_of(stored),
        // It went along, and what it was is not known any more: something older than what there is now.
        (Some(_), Some(_), Some(_)) => false,
        _ => true,
    }
}

/// The renewal of the token that is refused, if that was a moment ago and it has never been let in: it belongs to the same
/// story, and another would change nothing.
fn in_vain(refused: Option<&Refusal>, before: Option<&CachedCredential>) -> Option<TokenAttempt> {
    let before = before.filter(|before| !before.credential.as_ref().is_some_and(Credential::is_accepted))?;
    let counts = before.renewed.is_some_and(|renewed| renewed.was_refused || renewed.at.elapsed() < IN_VAIN);
    refused.filter(|refused| refused.status == 401 && counts).map(|_| RENEWED)
}

impl CachedCredential {
    /// Whether a login has still the token that this is. One whose server has ended it was written anew, and has.
    fn is_of(&self, stored: &LoginSummary) -> bool {
        self.login.as_ref().is_some_and(|login| login.key == stored.key && login.issued == stored.issued)
    }
}

/// What went wrong on the way to a credential all the same.
fn trouble(attempts: &[TokenAttempt]) -> Option<String> {
    attempts.iter().rev().find_map(|attempt| match &attempt.outcome {
        TokenOutcome::Denied(why) | TokenOutcome::Failed(why) => Some(why.clone()),
        TokenOutcome::Done => None,
    })
}

pub(super) const fn failed(why: String) -> CredentialError {
    CredentialError::Failed(why)
}

const fn denied(why: String) -> CredentialError {
    CredentialError::Denied(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_the_place_of_a_refused_token_is_not_renewed_again() {
        let long_ago = Instant::now().checked_sub(2 * IN_VAIN);
        let refused = Refusal { status: 401, credential: Some(1), challenge: Default::default() };
        for (was_refused, vain) in [(true, true), (false, false)] {
            let before = CachedCredential {
                renewed: long_ago.map(|at| Renewed { at, was_refused }),
                ..CachedCredential::nothing()
            };
            assert_eq!(in_vain(Some(&refused), Some(&before)), vain.then_some(RENEWED));
            assert_eq!(in_vain(None, Some(&before)), None);
        }
    }
}
