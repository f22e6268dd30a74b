//! What the policy stops with: one sentence that says what happened and what to do about it. Whoever says it names the
//! upstream before.

use weir_policy::{Question, Refusal, Token, TokenOutcome};

/// The longest piece of somebody else's text in a message, in bytes.
const QUOTE: usize = 200;

/// The token could not be renewed this time.
pub(crate) fn renewal_failed(why: &str) -> String {
    format!("its login is kept but could not be renewed ({}); try again later", cut(why))
}

/// A token was refused as soon as it was issued.
pub(crate) fn refused_at_once(token: &Token) -> String {
    format!(
        "it refuses tokens that {} has just issued for it; check the upstream's url, its audience and its scopes",
        cut(&token.issuer)
    )
}

/// The upstream does not allow this, whatever the token.
pub(crate) fn forbidden(refused: &Refusal) -> String {
    match refused.challenge.scope.as_deref() {
        Some(scope) if !scope.is_empty() => format!(
            "it does not allow this (403) and asks for the scope {}, which its token has; ask its owner for access",
            cut(scope)
        ),
        _ => "it accepts the login but does not allow this (403); ask its owner for access".to_owned(),
    }
}

/// Every way to a token was tried, or there is none.
pub(crate) fn no_token(about: &Question) -> String {
    let name = &about.upstream.name;
    let why = about.attempts.iter().rev().find_map(|attempt| match &attempt.outcome {
        TokenOutcome::Denied(why) | TokenOutcome::Failed(why) => Some(cut(why)),
        TokenOutcome::Done => None,
    });
    match why {
        Some(why) => format!("no token for it could be had ({why}); check its auth settings"),
        None => format!("it needs a token and no way to one is configured; set auth under [upstreams.{name}]"),
    }
}

/// As much of somebody else's text as fits, without what could forge a line.
fn cut(text: &str) -> String {
    let end = (0..=QUOTE.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
