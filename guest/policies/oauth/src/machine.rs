//! The decision, from what the token is, what the upstream said to it, and what was done about that already.
//!
//! ```text
//! no token ─────────────────────────────→ obtain; go without until refused, if the settings say so
//! token    ├─ good for longer than `renew_before` → present
//!          ├─ about to end ─ renewable → renew ─ denied → present what is left, or obtain
//!          │                                  └─ failed → present what is left, or stop: the login is kept
//!          ├─ 401 ─ old, renewable → renew, then present
//!          │      ├─ renewed, and never accepted → obtain, if a person can; else stop
//!          │      ├─ old → obtain
//!          │      └─ just issued, never accepted → stop: a newer one would be refused too
//!          └─ 403 for want of scopes → obtain with all of them, once; any other 403 → stop
//! ```
//!
//! Each token operation is made at most once for a question, so every question ends.

use weir_policy::{
    Decision, Flow, Presentation, Question, Refusal, Settings, Token, TokenAttempt, TokenOperation, TokenOutcome,
    TokenRequest,
};

use crate::message;

/// How long before its end a token is renewed, in seconds, unless the settings say otherwise (`renew_before`). It covers clocks that
/// differ and calls that are under way.
const RENEW_BEFORE: u32 = 60;

/// How long a decision holds at the most, in seconds.
const TTL_SECONDS: u32 = 3600;

/// How long a token is kept in use after its renewal failed, in seconds, before the next try.
const PAUSE: u32 = 30;

/// How old a token is that was never accepted, in seconds, when a refusal can no longer mean that the upstream does not want such tokens at all.
const JUST_ISSUED: u32 = 60;

/// Which credential to use.
pub fn decide(about: &Question) -> Decision {
    let Some(token) = &about.token else { return without(about) };
    match &about.refusal {
        Some(refused) if refused.credential && refused.status == 403 => forbidden(about, token, refused),
        Some(refused) if refused.credential => refused_token(about, token),
        _ => in_use(about, token),
    }
}

/// No token. Where the configuration does not speak of one (`only_if_refused`), the upstream may be open to all.
fn without(about: &Question) -> Decision {
    if about.refusal.is_none() && Settings::of(&about.upstream).flag("only_if_refused") == Some(true) {
        return Decision::None;
    }
    obtain(about, Vec::new())
}

/// A token that nobody has refused.
fn in_use(about: &Question, token: &Token) -> Decision {
    let Some(left) = token.expires_in_seconds else { return present(TTL_SECONDS) };
    if left > renew_before(about, token) {
        return present(left - renew_before(about, token));
    }
    match outcome(about, TokenOperation::Renew) {
        None if token.renewable => Decision::Renew,
        // The server said no to a renewal and may still have said yes to the token itself.
        _ if left > 0 => present(left.min(PAUSE)),
        Some(TokenOutcome::Failed(why)) => Decision::Stop(message::renewal_failed(why)),
        _ => obtain(about, Vec::new()),
    }
}

/// A token that the upstream answered with 401.
fn refused_token(about: &Question, token: &Token) -> Decision {
    match last(about) {
        Some(TokenAttempt { operation: TokenOperation::Renew, outcome: TokenOutcome::Done, .. }) => {
            renewed_in_vain(about, token)
        }
        Some(TokenAttempt { outcome: TokenOutcome::Done, .. }) => in_use(about, token),
        Some(TokenAttempt { operation: TokenOperation::Renew, outcome: TokenOutcome::Failed(why), .. }) => {
            Decision::Stop(message::renewal_failed(why))
        }
        Some(_) => obtain(about, Vec::new()),
        None if token.age_seconds < JUST_ISSUED && !token.accepted => Decision::Stop(message::refused_at_once(token)),
        None if token.renewable => Decision::Renew,
        None => obtain(about, Vec::new()),
    }
}

/// A token that took the place of one that was refused, and is refused too. Whoever has withdrawn what the login was good
/// for has told the upstream and not the authorization server; a new sign-in may bring it back.
fn renewed_in_vain(about: &Question, token: &Token) -> Decision {
    match about.flows.iter().find(|flow| matches!(flow, Flow::AuthorizationCode | Flow::DeviceCode)) {
        Some(flow) => Decision::Obtain(TokenRequest { flow: *flow, scopes: Vec::new(), extensions: Vec::new() }),
        None => Decision::Stop(message::refused_at_once(token)),
    }
}

/// A token that the upstream answered with 403.
fn forbidden(about: &Question, token: &Token, refused: &Refusal) -> Decision {
    if matches!(last(about), Some(TokenAttempt { outcome: TokenOutcome::Done, .. })) {
        return in_use(about, token);
    }
    let asked: Vec<&str> = refused.challenge.scope.as_deref().unwrap_or_default().split_ascii_whitespace().collect();
    let wants_more = refused.challenge.error.as_deref() == Some("insufficient_scope");
    let news = asked.iter().any(|scope| !token.scopes.iter().any(|held| held == scope));
    if !wants_more || !news {
        return Decision::Stop(message::forbidden(refused));
    }
    // What is held already is asked for too: a new token replaces the old one (MCP 2026-07-28, "Step-Up Authorization").
    let mut all = token.scopes.clone();
    for scope in asked {
        if !all.iter().any(|held| held == scope) {
            all.push(scope.to_owned());
        }
    }
    obtain(about, all)
}

/// A new token by the first way that has not been tried.
fn obtain(about: &Question, scopes: Vec<String>) -> Decision {
    let untried = |flow: &&Flow| outcome(about, TokenOperation::Obtain(**flow)).is_none();
    match about.flows.iter().find(untried) {
        Some(flow) => Decision::Obtain(TokenRequest { flow: *flow, scopes, extensions: Vec::new() }),
        None => Decision::Stop(message::no_token(about)),
    }
}

fn present(ttl_seconds: u32) -> Decision {
    Decision::Present(Presentation {
        header: "authorization".into(),
        scheme: Some("Bearer".into()),
        ttl_seconds: ttl_seconds.clamp(1, TTL_SECONDS),
        extensions: Vec::new(),
    })
}

/// A token that lives for minutes only must not be renewed with every call.
fn renew_before(about: &Question, token: &Token) -> u32 {
    let chosen =
        Settings::of(&about.upstream).number("renew_before").and_then(|renew_before| u32::try_from(renew_before).ok());
    let lifetime = token.age_seconds.saturating_add(token.expires_in_seconds.unwrap_or_default());
    chosen.unwrap_or(RENEW_BEFORE).min(lifetime / 4)
}

/// How a token operation ended, if it was made.
fn outcome(about: &Question, operation: TokenOperation) -> Option<&TokenOutcome> {
    about.attempts.iter().rev().find(|attempt| attempt.operation == operation).map(|attempt| &attempt.outcome)
}

fn last(about: &Question) -> Option<&TokenAttempt> {
    about.attempts.last()
}

#[cfg(test)]
mod tests;
