//! The decisions.

#[cfg(test)]
mod tests;

use weir_policy::calls::*;

use crate::{
    parts_store::PartStorage,
    resource, scan,
    settings::ShapeSettings,
    shaped::{self, TooManyParts},
};

const CALL: &str = "tools/call";
/// What brings the result of a call that became a task. Since 2026-07-28 the result of a finished task is within the task.
const TASK_RESULT: &str = "tasks/result";
const TASK: &str = "tasks/get";
const READ: &str = "resources/read";
/// How long the permission of a request holds, in seconds.
const HOLDS: u32 = 3600;

pub(crate) fn wants(settings: &str) -> Result<Interest, String> {
    ShapeSettings::read(settings)?;
    Ok(Interest {
        request: Detail::Facts,
        answer: Detail::Body,
        entries: vec![EntryKind::Tool],
        ..Interest::in_methods([CALL, TASK_RESULT, TASK, READ])
    })
}

pub(crate) fn before(about: &Call, store: &impl PartStorage) -> Decision {
    if let Err(why) = ShapeSettings::read(&about.upstream.settings) {
        return Decision::deny(misconfigured(&why));
    }
    match about.name.as_deref() {
        Some(uri) if about.method == READ && uri.starts_with(resource::SCHEME) => resource::read(about, uri, store),
        _ => Decision::allow().for_seconds(HOLDS),
    }
}

pub(crate) fn after(about: &Call, memory: String, what: Content, store: &impl PartStorage) -> AnswerDecision {
    let Content::Result(Some(answer)) = what else { return AnswerDecision::pass(memory) };
    let task = scan::members(&answer).filter(|_| about.method == TASK);
    let result = match (about.method.as_str(), &task) {
        (CALL | TASK_RESULT, _) => Some(answer.as_str()),
        (TASK, Some(members)) => scan::member(members, "result"),
        _ => None,
    };
    let Some(result) = result else { return AnswerDecision::pass(memory) };
    let settings = match ShapeSettings::read(&about.upstream.settings) {
        Ok(settings) => settings,
        Err(why) => return AnswerDecision::cut(misconfigured(&why)),
    };
    // A task is not known by its tool.
    let tool = about.name.as_deref().filter(|_| about.method == CALL);
    match shaped::shape(about, settings.rules(tool), settings.ttl_seconds, result, store) {
        Ok(None) => AnswerDecision::pass(memory),
        Ok(Some(shaped)) => {
            let mut labels = vec![("shaped".to_owned(), shaped.bytes.to_string())];
            if shaped.items > 0 {
                labels.push(("shaped-items".to_owned(), shaped.items.to_string()));
            }
            let answer = match task {
                Some(members) => with_result(&members, &shaped.result),
                None => shaped.result,
            };
            AnswerDecision { labels, ..AnswerDecision::replace(answer, memory) }
        }
        Err(TooManyParts) => AnswerDecision::cut("the result has too many parts to be cut; ask for less at once"),
    }
}

/// A task with another result.
fn with_result(task: &[(&str, &str)], result: &str) -> String {
    let value = |(key, value): &(&'_ str, &'_ str)| -> String {
        format!("{key}:{}", if scan::is_key(key, "result") { result } else { value })
    };
    format!("{{{}}}", task.iter().map(value).collect::<Vec<_>>().join(","))
}

/// A result that was cut may not fit its schema any more, and clients refuse it then.
pub(crate) fn entry(entry: &Entry) -> EntryVerdict {
    let members = match scan::members(&entry.body) {
        Some(members) if entry.kind == EntryKind::Tool => members,
        _ => return EntryVerdict::Show,
    };
    let is_promise = |key: &str| scan::is_key(key, "outputSchema");
    if !members.iter().any(|(key, _)| is_promise(key)) {
        return EntryVerdict::Show;
    }
    let others = members.iter().filter(|(key, _)| !is_promise(key));
    let others: Vec<_> = others.map(|(key, value)| format!("{key}:{value}")).collect();
    EntryVerdict::Edit(format!("{{{}}}", others.join(",")))
}

fn misconfigured(why: &str) -> String {
    format!("the policy that shapes results has wrong settings: {why}")
}
