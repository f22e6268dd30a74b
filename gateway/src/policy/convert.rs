//! Facts into the words of the contract, and answers back, with the rules that an answer has to keep.
//!
//! What a server wrote may be cut, for it only informs; what the policy has to know whole is refused when it is too large.

mod calls;
mod credentials;

use weir_flow::facts;
use weir_mcp::Era;

use crate::telemetry::printable;

use super::{
    bindings::{exports::weir::policy::connection, weir::policy::types},
    limits::{DOCUMENT, HISTORY, MESSAGE, TEXT},
};

pub(super) use calls::{answer_decision, call, call_decision, content, entry, entry_verdicts, interest};
pub(super) use credentials::{decision, question};

/// A fact over its limit: which, and the limit in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMuch(pub(super) &'static str, pub(super) usize);

/// The rule that an answer breaks, in words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) String);

/// The upstream, with the settings of the policy that is asked.
pub(super) fn upstream(fact: &facts::UpstreamFacts, settings: &str) -> Result<types::Upstream, TooMuch> {
    Ok(types::Upstream {
        name: whole("the upstream's name", &fact.name, TEXT)?,
        url: fact.url.as_deref().map(|url| whole("the upstream's url", url, TEXT)).transpose()?,
        required_transport: fact.required_transport.map(transport),
        required_era: fact.required_era.map(era),
        transports: fact.transports.iter().copied().map(transport).collect(),
        settings: whole("the policy's settings", settings, DOCUMENT)?,
        extensions: fact.account.iter().map(|account| ("account".to_owned(), account.clone())).collect(),
    })
}

/// The same for a group of clients.
pub(super) fn upstream_of_clients(
    fact: &facts::UpstreamFacts,
    settings: &str,
    group: Option<&str>,
) -> Result<types::Upstream, TooMuch> {
    let mut upstream = upstream(fact, settings)?;
    upstream.extensions.extend(group.map(|group| ("client-group".to_owned(), group.to_owned())));
    Ok(upstream)
}

/// The latest attempts, oldest first.
pub(super) fn history(facts: &[facts::Attempt]) -> Vec<types::Attempt> {
    facts[facts.len().saturating_sub(HISTORY)..].iter().map(attempt).collect()
}

/// The step, if it may be taken for this upstream.
pub(super) fn step(answer: connection::Step, to: &facts::UpstreamFacts) -> Result<facts::Step, Broken> {
    match answer {
        connection::Step::Attempt(chosen) => Ok(facts::Step::Attempt(allowed(chosen, to)?)),
        connection::Step::Authorize(chosen) => Ok(facts::Step::Authorize(allowed(chosen, to)?)),
        connection::Step::Stop(text) => Ok(facts::Step::Stop(message(&text)?)),
    }
}

/// Text of a guest for one line.
pub(super) fn one_line(text: &str, most: usize) -> String {
    printable(cut(text, most)).into_owned()
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

fn attempt(fact: &facts::Attempt) -> types::Attempt {
    types::Attempt {
        transport: transport(fact.transport),
        era: era(fact.era),
        credential: fact.credential,
        outcome: outcome(&fact.outcome),
        duration_ms: fact.duration_ms,
        extensions: Vec::new(),
    }
}

fn outcome(fact: &facts::Outcome) -> types::Outcome {
    match fact {
        facts::Outcome::Connected => types::Outcome::Connected,
        facts::Outcome::Inconclusive(status) => types::Outcome::Inconclusive(*status),
        facts::Outcome::Unauthorized(asked) => types::Outcome::Unauthorized(challenge(asked)),
        facts::Outcome::Forbidden(asked) => types::Outcome::Forbidden(challenge(asked)),
        facts::Outcome::Unsupported(status) => types::Outcome::Unsupported(*status),
        facts::Outcome::Unreachable(text) => types::Outcome::Unreachable(cut(text, TEXT).to_owned()),
        facts::Outcome::TimedOut => types::Outcome::TimedOut,
        facts::Outcome::ConnectionTerminated => types::Outcome::ConnectionTerminated,
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
        extensions: Vec::new(),
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
fn allowed(chosen: connection::Candidate, to: &facts::UpstreamFacts) -> Result<facts::Candidate, Broken> {
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
    if to.required_transport.is_some_and(|required| required != transport) {
        return broken(format!("it chose {transport}, and the configuration insists on another transport"));
    }
    if to.url.is_some() == (transport == facts::Transport::Stdio) {
        return broken(format!("it chose {transport}, which the upstream cannot have"));
    }
    if transport == facts::Transport::Sse && era == Era::Modern {
        return broken("it chose sse in the modern era, which does not have it".to_owned());
    }
    if to.required_era.is_some_and(|required| required != era) {
        return broken(format!("it chose the {era} era, and the client needs the other"));
    }
    Ok(facts::Candidate { transport, era })
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
