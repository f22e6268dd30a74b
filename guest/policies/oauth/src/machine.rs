//! The decision, from what the token is, what the upstream said to it, and what was done about that already.
//!
//! ```text
//! no token ─────────────────────────────→ obtain; go without until refused, if the settings say so
//! token    ├─ good for longer than the skew → present
//!          ├─ about to end ─ renewable → renew ─ denied → present what is left, or obtain
//!          │                                  └─ failed → present what is left, or stop: the login is kept
//!          ├─ 401 ─ old, renewable → renew, then present
//!          │      ├─ renewed, and never accepted → obtain, if a person can; else stop
//!          │      ├─ old → obtain
//!          │      └─ just issued, never accepted → stop: a newer one would be refused too
//!          └─ 403 for want of scopes → obtain with all of them, once; any other 403 → stop
//! ```
//!
//! Each task is given at most once for a question, so every question ends.

use weir_policy::{Choice, Effort, Ending, Flow, Presentation, Question, Refusal, Settings, Task, Token, Wish};

use crate::message;

/// How long before its end a token is renewed, in seconds, unless the settings say otherwise (`skew`). It covers clocks that
/// differ and calls that are under way.
const SKEW: u32 = 60;

/// How long an answer holds at the most, in seconds.
const HOLDS_FOR: u32 = 3600;

/// How long a token is kept in use after its renewal failed, in seconds, before the next try.
const PAUSE: u32 = 30;

/// How old a token is that was never accepted, in seconds, when a refusal can no longer mean that the upstream does not want such tokens at all.
const JUST_ISSUED: u32 = 60;

/// Which credential to use.
pub fn choose(about: &Question) -> Choice {
    let Some(token) = &about.token else { return without(about) };
    match &about.refused {
        Some(refused) if refused.credential && refused.status == 403 => forbidden(about, token, refused),
        Some(refused) if refused.credential => refused_token(about, token),
        _ => in_use(about, token),
    }
}

/// No token. Where the configuration does not speak of one (`only_if_refused`), the upstream may be open to all.
fn without(about: &Question) -> Choice {
    if about.refused.is_none() && Settings::of(&about.upstream).flag("only_if_refused") == Some(true) {
        return Choice::None;
    }
    obtain(about, Vec::new())
}

/// A token that nobody has refused.
fn in_use(about: &Question, token: &Token) -> Choice {
    let Some(ends_in) = token.ends_in else { return present(HOLDS_FOR) };
    if ends_in > skew(about, token) {
        return present(ends_in - skew(about, token));
    }
    match ending(about, Task::Renew) {
        None if token.renewable => Choice::Renew,
        // The server said no to a renewal and may still have said yes to the token itself.
        _ if ends_in > 0 => present(ends_in.min(PAUSE)),
        Some(Ending::Failed(why)) => Choice::Stop(message::renewal_failed(why)),
        _ => obtain(about, Vec::new()),
    }
}

/// A token that the upstream answered with 401.
fn refused_token(about: &Question, token: &Token) -> Choice {
    match last(about) {
        Some(Effort { task: Task::Renew, ending: Ending::Done }) => renewed_in_vain(about, token),
        Some(Effort { ending: Ending::Done, .. }) => in_use(about, token),
        Some(Effort { task: Task::Renew, ending: Ending::Failed(why) }) => Choice::Stop(message::renewal_failed(why)),
        Some(_) => obtain(about, Vec::new()),
        None if token.age < JUST_ISSUED && !token.accepted => Choice::Stop(message::refused_at_once(token)),
        None if token.renewable => Choice::Renew,
        None => obtain(about, Vec::new()),
    }
}

/// A token that took the place of one that was refused, and is refused too. Whoever has withdrawn what the login was good
/// for has told the upstream and not the authorization server; a new sign-in may bring it back.
fn renewed_in_vain(about: &Question, token: &Token) -> Choice {
    match about.flows.iter().find(|flow| matches!(flow, Flow::AuthorizationCode | Flow::DeviceCode)) {
        Some(flow) => Choice::Obtain(Wish { flow: *flow, scopes: Vec::new() }),
        None => Choice::Stop(message::refused_at_once(token)),
    }
}

/// A token that the upstream answered with 403.
fn forbidden(about: &Question, token: &Token, refused: &Refusal) -> Choice {
    if matches!(last(about), Some(Effort { ending: Ending::Done, .. })) {
        return in_use(about, token);
    }
    let asked: Vec<&str> = refused.challenge.scope.as_deref().unwrap_or_default().split_ascii_whitespace().collect();
    let wants_more = refused.challenge.error.as_deref() == Some("insufficient_scope");
    let news = asked.iter().any(|scope| !token.scopes.iter().any(|held| held == scope));
    if !wants_more || !news {
        return Choice::Stop(message::forbidden(refused));
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
fn obtain(about: &Question, scopes: Vec<String>) -> Choice {
    let untried = |flow: &&Flow| ending(about, Task::Obtain(**flow)).is_none();
    match about.flows.iter().find(untried) {
        Some(flow) => Choice::Obtain(Wish { flow: *flow, scopes }),
        None => Choice::Stop(message::no_token(about)),
    }
}

fn present(holds_for: u32) -> Choice {
    Choice::Present(Presentation {
        header: "authorization".into(),
        scheme: Some("Bearer".into()),
        holds_for: holds_for.clamp(1, HOLDS_FOR),
    })
}

/// A token that lives for minutes only must not be renewed with every call.
fn skew(about: &Question, token: &Token) -> u32 {
    let wished = Settings::of(&about.upstream).number("skew").and_then(|skew| u32::try_from(skew).ok());
    let lifetime = token.age.saturating_add(token.ends_in.unwrap_or_default());
    wished.unwrap_or(SKEW).min(lifetime / 4)
}

/// How a task ended, if it was given.
fn ending(about: &Question, task: Task) -> Option<&Ending> {
    about.efforts.iter().rev().find(|effort| effort.task == task).map(|effort| &effort.ending)
}

fn last(about: &Question) -> Option<&Effort> {
    about.efforts.last()
}

#[cfg(test)]
mod tests;
