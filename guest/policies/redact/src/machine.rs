//! The decisions.

mod restore;
#[cfg(test)]
mod tests;

use weir_policy::calls::*;

use crate::{
    detect::{Detectors, TooMuch},
    document::Place,
    search::Found,
    settings::RedactSettings,
    vault::{self, Keys, Vault},
};

/// `tasks/get` has the result of a finished task since 2026-07-28, and so have the events of `subscriptions/listen`.
const METHODS: [&str; 6] =
    ["tools/call", "resources/read", "prompts/get", "tasks/result", "tasks/get", "subscriptions/listen"];
/// The labels of kinds. Weir takes 16 labels, and two may say something else.
const LABELS: usize = 14;

pub(crate) fn wants(settings: &str) -> Result<Interest, String> {
    let settings = RedactSettings::read(settings)?;
    Ok(Interest {
        request: if settings.reversible { Detail::Body } else { Detail::Nothing },
        answer: Detail::Body,
        event: Detail::Body,
        ..Interest::in_methods(METHODS)
    })
}

pub(crate) fn before(about: &Call, params: Option<&str>, vault: &impl Vault) -> Decision {
    match (RedactSettings::read(&about.upstream.settings), params) {
        (Ok(settings), Some(params)) if settings.reversible => restore::restored(about, &settings, params, vault),
        (Ok(_), _) => Decision::allow(),
        (Err(why), _) => Decision::deny(misconfigured(&why)),
    }
}

pub(crate) fn after(about: &Call, memory: String, what: Content, vault: &impl Vault) -> AnswerDecision {
    let settings = match RedactSettings::read(&about.upstream.settings) {
        Ok(settings) => settings,
        Err(why) => return AnswerDecision::cut(misconfigured(&why)),
    };
    let (json, root) = match what {
        Content::Result(json) => (json, Place::Protocol),
        Content::Error(json) => (json, Place::Error),
        Content::Event(json) => (json, Place::Message),
    };
    let Some(json) = json else { return AnswerDecision::pass(memory) };
    match redacted(about, &settings, &json, root, vault) {
        Ok(None) => AnswerDecision::pass(memory),
        Ok(Some((text, labels))) => AnswerDecision { labels, ..AnswerDecision::replace(text, memory) },
        Err(TooMuch) => AnswerDecision::cut(
            "the answer has too much that looks like personal data to be redacted; ask for less at once",
        ),
    }
}

type Labels = Vec<(String, String)>;

/// The message without personal data, and the labels; none if there is none in it.
fn redacted(
    about: &Call,
    settings: &RedactSettings,
    json: &str,
    root: Place,
    vault: &impl Vault,
) -> Result<Option<(String, Labels)>, TooMuch> {
    let found = Found::in_message(json, root, &settings.detectors)?;
    if found.is_empty() {
        return Ok(None);
    }
    let mut labels = labels("redacted", found.kinds(), &settings.detectors);
    let mut numbers = Vec::new();
    if settings.reversible {
        let values = found.values();
        let keys = Keys::of(about.principal.as_ref());
        let why = match vault::assign(vault, &keys, settings.ttl_seconds, &values.wanted) {
            Ok(assigned) => {
                numbers = values.numbers(&assigned);
                numbers.contains(&None).then_some("there is no room for all values")
            }
            Err(why) => Some(why),
        };
        labels.extend(why.map(|why| ("redaction-irreversible".to_owned(), why.to_owned())));
    }
    Ok(Some((found.redacted(&numbers, settings.keep_last)?, labels)))
}

/// How often each kind occurred. Kinds beyond the room for labels share one.
fn labels(what: &str, kinds: impl Iterator<Item = u8>, detectors: &Detectors) -> Labels {
    let mut counts = [0_usize; 256];
    for kind in kinds {
        counts[usize::from(kind)] += 1;
    }
    let counted: Vec<_> = (0..=u8::MAX).zip(counts).filter(|(_, count)| *count > 0).collect();
    let (named, others) = counted.split_at(counted.len().min(LABELS));
    let mut labels: Labels =
        named.iter().map(|(kind, count)| (format!("{what}-{}", detectors.name(*kind)), count.to_string())).collect();
    if !others.is_empty() {
        let count: usize = others.iter().map(|(_, count)| count).sum();
        labels.push((format!("{what}-others"), count.to_string()));
    }
    labels
}

fn misconfigured(why: &str) -> String {
    format!("the policy that redacts has wrong settings: {why}")
}
