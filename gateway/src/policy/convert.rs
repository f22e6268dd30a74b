//! Facts into the words of the contract, and answers back, with the rules that an answer has to keep.
//!
//! What a server wrote may be cut, for it only informs; what the policy has to know whole is refused when it is too large.

use weir_flow::facts;
use weir_mcp::Era;

use super::{
    bindings::{
        exports::weir::policy::{connection, credentials},
        weir::policy::types,
    },
    limits::{DOCUMENT, HISTORY, MESSAGE, TEXT},
};

/// A fact over its limit: which, and the limit in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMuch(pub(super) &'static str, pub(super) usize);

/// The rule that an answer breaks, in words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) String);

/// The upstream, with the settings of the policy that is asked.
pub(super) fn upstream(fact: &facts::Upstream, settings: &str) -> Result<types::Upstream, TooMuch> {
    Ok(types::Upstream {
        name: whole("the upstream's name", &fact.name, TEXT)?,
        url: fact.url.as_deref().map(|url| whole("the upstream's url", url, TEXT)).transpose()?,
        pinned: fact.pinned.map(transport),
        wanted: fact.wanted.map(era),
        transports: fact.transports.iter().copied().map(transport).collect(),
        settings: whole("the policy's settings", settings, DOCUMENT)?,
        more: Vec::new(),
    })
}

/// The latest attempts, oldest first.
pub(super) fn history(facts: &[facts::Attempt]) -> Vec<types::Attempt> {
    facts[facts.len().saturating_sub(HISTORY)..].iter().map(attempt).collect()
}

/// What a `credentials` policy is asked.
pub(super) fn question(fact: &facts::Question, settings: &str) -> Result<credentials::Question, TooMuch> {
    Ok(credentials::Question {
        upstream: upstream(&fact.upstream, settings)?,
        principal: fact.principal.as_ref().map(principal).transpose()?,
        secrets: all("the names of secrets", &fact.secrets)?,
        refused: fact.refused.as_ref().map(|refused| types::Refusal {
            status: refused.status,
            credential: refused.credential,
            challenge: challenge(&refused.challenge),
        }),
    })
}

/// The step, if it may be taken for this upstream.
pub(super) fn step(answer: connection::Step, to: &facts::Upstream) -> Result<facts::Step, Broken> {
    match answer {
        connection::Step::Attempt(chosen) => Ok(facts::Step::Attempt(allowed(chosen, to)?)),
        connection::Step::Authorize(chosen) => Ok(facts::Step::Authorize(allowed(chosen, to)?)),
        connection::Step::Stop(text) => Ok(facts::Step::Stop(message(&text)?)),
    }
}

/// The choice, if it names a secret that may be placed and a header that may carry it.
pub(super) fn choice(answer: credentials::Choice, about: &facts::Question) -> Result<facts::Choice, Broken> {
    match answer {
        credentials::Choice::None => Ok(facts::Choice::None),
        credentials::Choice::Stop(text) => Ok(facts::Choice::Stop(message(&text)?)),
        credentials::Choice::Attach(attachment) => Ok(facts::Choice::Attach(attach(attachment, about)?)),
    }
}

/// Text of a guest for one line: nothing that could forge lines, move a terminal's cursor, or turn the reading direction.
pub(super) fn one_line(text: &str, most: usize) -> String {
    let steers = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    cut(text, most).chars().map(|c| if steers(c) { ' ' } else { c }).collect()
}

/// The longest beginning of `text` that fits.
pub(super) fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

fn whole(what: &'static str, text: &str, most: usize) -> Result<String, TooMuch> {
    if text.len() > most { Err(TooMuch(what, most)) } else { Ok(text.to_owned()) }
}

fn all(what: &'static str, texts: &[String]) -> Result<Vec<String>, TooMuch> {
    let size: usize = texts.iter().map(String::len).sum();
    if size.saturating_add(texts.len()) > DOCUMENT { Err(TooMuch(what, DOCUMENT)) } else { Ok(texts.to_vec()) }
}

fn principal(fact: &facts::Principal) -> Result<types::Principal, TooMuch> {
    Ok(types::Principal {
        subject: whole("the principal's subject", &fact.subject, TEXT)?,
        issuer: fact.issuer.as_deref().map(|issuer| whole("the principal's issuer", issuer, TEXT)).transpose()?,
        scopes: all("the principal's scopes", &fact.scopes)?,
        claims: whole("the principal's claims", &fact.claims, DOCUMENT)?,
    })
}

fn attempt(fact: &facts::Attempt) -> types::Attempt {
    types::Attempt {
        transport: transport(fact.transport),
        era: era(fact.era),
        credential: fact.credential,
        outcome: outcome(&fact.outcome),
        millis: fact.millis,
    }
}

fn outcome(fact: &facts::Outcome) -> types::Outcome {
    match fact {
        facts::Outcome::Connected => types::Outcome::Connected,
        facts::Outcome::Answered(status) => types::Outcome::Answered(*status),
        facts::Outcome::Unauthorized(asked) => types::Outcome::Unauthorized(challenge(asked)),
        facts::Outcome::Forbidden(asked) => types::Outcome::Forbidden(challenge(asked)),
        facts::Outcome::NotThisTransport(status) => types::Outcome::NotThisTransport(*status),
        facts::Outcome::Unreachable(text) => types::Outcome::Unreachable(cut(text, TEXT).to_owned()),
        facts::Outcome::TimedOut => types::Outcome::TimedOut,
        facts::Outcome::BrokenOff => types::Outcome::BrokenOff,
        facts::Outcome::NotMcp(text) => types::Outcome::NotMcp(cut(text, TEXT).to_owned()),
    }
}

fn challenge(fact: &facts::Challenge) -> types::Challenge {
    let text = |text: &Option<String>| text.as_deref().map(|text| cut(text, TEXT).to_owned());
    types::Challenge {
        scheme: cut(&fact.scheme, TEXT).to_owned(),
        error: text(&fact.error),
        scope: text(&fact.scope),
        resource_metadata: text(&fact.resource_metadata),
    }
}

fn transport(fact: facts::Transport) -> types::Transport {
    match fact {
        facts::Transport::Http => types::Transport::Http,
        facts::Transport::Sse => types::Transport::Sse,
        facts::Transport::Stdio => types::Transport::Stdio,
    }
}

fn era(fact: Era) -> types::Era {
    match fact {
        Era::Modern => types::Era::Modern,
        Era::Legacy => types::Era::Legacy,
    }
}

/// The configuration and the waiting client have the last word on transport and era.
fn allowed(chosen: connection::Try, to: &facts::Upstream) -> Result<facts::Try, Broken> {
    let transport = match chosen.transport {
        types::Transport::Http => facts::Transport::Http,
        types::Transport::Sse => facts::Transport::Sse,
        types::Transport::Stdio => facts::Transport::Stdio,
    };
    let era = match chosen.era {
        types::Era::Modern => Era::Modern,
        types::Era::Legacy => Era::Legacy,
    };
    if !to.transports.contains(&transport) {
        return broken(format!("it chose {transport}, which this gateway does not carry"));
    }
    if to.pinned.is_some_and(|pinned| pinned != transport) {
        return broken(format!("it chose {transport}, and the configuration insists on another transport"));
    }
    if to.url.is_some() == (transport == facts::Transport::Stdio) {
        return broken(format!("it chose {transport}, which the upstream cannot have"));
    }
    if transport == facts::Transport::Sse && era == Era::Modern {
        return broken("it chose sse in the modern era, which does not have it".to_owned());
    }
    if to.wanted.is_some_and(|wanted| wanted != era) {
        return broken(format!("it chose the {era} era, and the client needs the other"));
    }
    Ok(facts::Try { transport, era })
}

fn attach(answer: credentials::Attachment, about: &facts::Question) -> Result<facts::Attachment, Broken> {
    let credentials::Attachment { header, scheme, secret, holds_for } = answer;
    if !about.secrets.contains(&secret) {
        return broken(format!("it chose the secret {:?}, which this upstream does not have", cut(&secret, TEXT)));
    }
    let header = header.to_ascii_lowercase();
    if header.len() > TEXT || !token(&header) {
        return broken("it chose a header whose name is not a token".to_owned());
    }
    if !may_carry(&header) {
        return broken(format!("it chose the header {header}, which belongs to the gateway"));
    }
    if scheme.as_deref().is_some_and(|scheme| scheme.len() > TEXT || !token(scheme)) {
        return broken("it chose an authentication scheme that is not a token".to_owned());
    }
    Ok(facts::Attachment { header, scheme, secret, holds_for })
}

/// Headers that frame or route the message are never a policy's to set.
fn may_carry(header: &str) -> bool {
    const OURS: [&str; 18] = [
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "last-event-id",
        "origin",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
        "user-agent",
    ];
    !OURS.contains(&header) && !header.starts_with("mcp-")
}

/// RFC 9110 §5.6.2.
fn token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn message(text: &str) -> Result<String, Broken> {
    if text.len() > MESSAGE {
        return broken(format!("its message has {} bytes; at most {MESSAGE} are passed on", text.len()));
    }
    let line = one_line(text, MESSAGE);
    match line.trim() {
        "" => broken("it stopped without a message".to_owned()),
        line => Ok(line.to_owned()),
    }
}

fn broken<T>(rule: String) -> Result<T, Broken> {
    Err(Broken(rule))
}

#[cfg(test)]
mod tests;
