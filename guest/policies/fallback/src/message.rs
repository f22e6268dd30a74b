//! What the policy stops with: one sentence that says what happened and what to do about it. Whoever says it names the
//! upstream before, as in "upstream `docs` cannot be reached: it …".

use weir_policy::{Attempt, Candidate, Challenge, Era, Outcome, Transport, Upstream};

/// The longest piece of somebody else's text in a message, in bytes.
const QUOTE: usize = 200;

/// The walk stopped at `last`, which points to no other way.
pub(crate) fn stopped(last: &Attempt) -> String {
    let stdio = last.transport == Transport::Stdio;
    match &last.outcome {
        Outcome::Inconclusive(status @ 300..=399) => {
            format!("it sends its callers elsewhere ({status}); set url to the address that it redirects to")
        }
        Outcome::Inconclusive(429) => {
            "it turns requests away because there are too many (429); try again later".to_string()
        }
        Outcome::Inconclusive(status @ (408 | 500..)) => {
            format!("it is out of order ({status} over {}); try again when it has recovered", last.transport)
        }
        Outcome::Inconclusive(status) => {
            format!("it speaks MCP but refused to begin ({status}); check which versions of the protocol it supports")
        }
        Outcome::Forbidden(asked) => forbidden(last, asked),
        Outcome::Unreachable(why) if stdio => {
            format!("starting it failed ({}); check its command and args", cut(why))
        }
        Outcome::Unreachable(why) => {
            format!("{}; check its url and that it is running", cut(why))
        }
        Outcome::TimedOut if stdio => {
            "it gave no answer in time; give it more with timeouts.start, or run its command by hand to see what it does".to_string()
        }
        Outcome::TimedOut => {
            format!(
                "it gave no answer in time over {}; check that it is running, or give it more with timeouts.initialize",
                last.transport
            )
        }
        Outcome::ConnectionTerminated if stdio => "it ended before it answered; check its command and args".into(),
        _ => format!("it broke the connection off over {}; check that it is running", last.transport),
    }
}

/// No rung is left that could be tried; `rest` are those that this Weir cannot carry.
pub(crate) fn exhausted(to: &Upstream, rest: &[Candidate], walk: &[Attempt]) -> String {
    if walk.is_empty() {
        return impossible(to, rest);
    }
    if let Some(attempt) = walk.iter().rev().find(|attempt| matches!(attempt.outcome, Outcome::Unauthorized(_))) {
        return credential(to, attempt, walk);
    }
    let failed = failures(walk);
    if let Some(next) = rest.iter().find(|rung| !to.transports.contains(&rung.transport)) {
        return format!(
            "it does not answer as MCP ({failed}), and {}, which would be next, is not carried by this Weir; check its url",
            next.transport
        );
    }
    let hint = if to.url.is_none() { "check its command and args" } else { "check its url" };
    match (to.required_era, to.required_transport) {
        (Some(era), _) => {
            let other = if era == Era::Modern { Era::Legacy } else { Era::Modern };
            format!(
                "it does not answer in the {era} era, which the client needs ({failed}); {hint}, or use a client of the {other} era"
            )
        }
        (None, Some(required)) if to.url.is_some() => {
            format!(
                "it does not answer as MCP over {required} ({failed}); {hint}, or leave out type to try other transports"
            )
        }
        _ => format!("it does not answer as MCP ({failed}); {hint}"),
    }
}

/// Nothing can be tried at all.
fn impossible(to: &Upstream, rest: &[Candidate]) -> String {
    match (rest.first(), to.required_transport) {
        (Some(rung), _) => {
            format!("it needs {}, which is not carried by this Weir; give it another address", rung.transport)
        }
        (None, Some(Transport::Stdio)) if to.url.is_some() => {
            "it has a url and no command, so it cannot use stdio; take out its type".to_string()
        }
        (None, Some(Transport::Sse)) if to.url.is_some() => {
            "it is set to HTTP+SSE, which has no modern era, and the client needs that era; take out its type"
                .to_string()
        }
        (None, Some(required)) => {
            format!("it has a command and no url, so it cannot use {required}; take out its type")
        }
        (None, None) => "it has no way that could be tried; check its url or command".to_string(),
    }
}

/// Somewhere on the way a credential was asked for, which is worth more than what else failed.
fn credential(to: &Upstream, attempt: &Attempt, walk: &[Attempt]) -> String {
    let name = &to.name;
    let others: Vec<_> =
        walk.iter().filter(|other| !matches!(other.outcome, Outcome::Unauthorized(_))).cloned().collect();
    let others =
        if others.is_empty() { String::new() } else { format!("; it also failed otherwise: {}", failures(&others)) };
    if attempt.credential {
        let over = attempt.transport;
        format!("it refused the credential that it was sent (401 over {over}{others}); replace it with a valid one")
    } else {
        let over = attempt.transport;
        format!(
            r#"it asks for a credential (401 over {over}{others}); give it one, such as bearer = {{ env = "NAME" }} under [upstreams.{name}]"#
        )
    }
}

fn forbidden(last: &Attempt, asked: &Challenge) -> String {
    match &asked.scope {
        _ if !last.credential => "it does not let Weir in (403); check its url, or give it a credential".to_string(),
        Some(scope) => format!(
            "it accepts the credential but does not allow this (403); it asks for the scope {}, so use one that has it",
            cut(scope)
        ),
        None => "it accepts the credential but does not allow this (403); use one with more rights".to_string(),
    }
}

/// Each way that was tried, and how it ended.
fn failures(walk: &[Attempt]) -> String {
    let one = |attempt: &Attempt| {
        let (transport, era) = (attempt.transport, attempt.era);
        let way = if transport == Transport::Sse { transport.to_string() } else { format!("{transport}, {era} era") };
        format!("{way}: {}", described(&attempt.outcome))
    };
    walk.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn described(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Connected => "connected".into(),
        Outcome::Inconclusive(status) | Outcome::Unsupported(status) => status.to_string(),
        Outcome::Unauthorized(_) => "401".into(),
        Outcome::Forbidden(_) => "403".into(),
        Outcome::Unreachable(why) => cut(why).into(),
        Outcome::TimedOut => "no answer in time".into(),
        Outcome::ConnectionTerminated => "broken off".into(),
        Outcome::NotMcp(what) => format!("not MCP but {}", cut(what)),
    }
}

/// The longest beginning that fits a sentence.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(QUOTE)]
}
