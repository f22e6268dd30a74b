//! The facts and answers of a `calls` policy.

use std::{collections::HashSet, sync::Arc, time::Duration};

use weir_mcp::{ListKind, json, method};

use crate::config::{ApprovalConfig, Pattern};

use super::{
    super::{
        bindings::exports::weir::policy::calls,
        calls::{
            AnswerDecision, AnswerVerdict, CallDecision, CallInterest, CallQuestion, CallVerdict, ClientGroups,
            Content, Denial, Detail, EntryVerdict, ListedEntry,
        },
        limits::{CLIENT_GROUPS, DOCUMENT, LABEL, LABELS, PATTERNS, TEXT},
    },
    Broken, TooMuch, broken, credentials, cut, era, message, one_line, upstream_of_clients, whole,
};

/// The extension of an interest and of a call that has the input schema of a tool.
const INPUT_SCHEMA: &str = "input-schema";

/// The longest that an approval is good.
const LONGEST_APPROVAL: u32 = 24 * 3600;

/// What a policy wants to see, if that can be.
pub(in crate::policy) fn interest(answer: Result<calls::Interest, String>) -> Result<CallInterest, Broken> {
    let calls::Interest { methods, names, request, answer, event, entries, extensions } = match answer {
        Ok(interest) => interest,
        Err(why) => return broken(format!("it refuses its settings: {}", one_line(&why, TEXT))),
    };
    let interest = CallInterest {
        methods: patterns(&methods)?,
        names: patterns(&names)?,
        request: detail(request),
        answer: detail(answer),
        event: detail(event),
        entries: entries.into_iter().map(kind).collect(),
        clients: clients(&extensions)?,
        input_schema: extensions.iter().any(|(key, _)| key == INPUT_SCHEMA),
    };
    let asks = interest.request.max(interest.answer).max(interest.event) > Detail::Nothing;
    if asks == interest.methods.is_empty() {
        return broken("it names methods and wants to see nothing of them, or the reverse".to_owned());
    }
    if !asks && interest.entries.is_empty() {
        return broken("it wants to see nothing".to_owned());
    }
    Ok(interest)
}

/// A call as a policy is told of it.
pub(in crate::policy) fn call(facts: &CallQuestion<'_>, settings: &str) -> Result<calls::Call, TooMuch> {
    let schema = facts.input_schema.and_then(|raw| std::str::from_utf8(raw).ok());
    Ok(calls::Call {
        id: facts.id.map(|id| id.to_string()).unwrap_or_default(),
        upstream: upstream_of_clients(facts.upstream, settings, facts.client_group)?,
        endpoint: facts.endpoint.to_owned(),
        principal: facts.principal.map(credentials::principal).transpose()?,
        client: facts.client.map(|client| cut(client, TEXT).to_owned()),
        era: era(facts.era),
        method: whole("the method", facts.method, TEXT)?,
        name: facts.name.map(|name| whole("the name", name, DOCUMENT)).transpose()?,
        labels: facts.labels.to_vec(),
        extensions: schema.map(|text| (INPUT_SCHEMA.to_owned(), text.to_owned())).into_iter().collect(),
    })
}

/// The decision about a request, if it can be carried out.
pub(in crate::policy) fn call_decision(
    answer: calls::Decision,
    about: &CallQuestion<'_>,
    params: Option<&str>,
) -> Result<CallDecision, Broken> {
    let calls::Decision { verdict, headers, labels, memory, ttl_seconds, extensions: _ } = answer;
    let verdict = match verdict {
        calls::Verdict::Allow => CallVerdict::Allow,
        calls::Verdict::Deny(refused) => CallVerdict::Deny(denial(refused)?),
        calls::Verdict::Replace(new) => CallVerdict::Replace(replaced(new, about, params)?),
        calls::Verdict::Answer(result) => CallVerdict::Answer(object("result", result)?),
        calls::Verdict::Ask(_) if about.method != method::TOOLS_CALL => {
            return broken("it asks for an approval of what is no tool call".to_owned());
        }
        calls::Verdict::Ask(asked) => CallVerdict::Ask(approval(&asked)?),
    };
    let headers = headers.into_iter().map(header).collect::<Result<Vec<_>, _>>()?;
    if headers.len() > LABELS {
        return broken(format!("it sets more than {LABELS} headers"));
    }
    Ok(CallDecision { verdict, headers, labels: checked_labels(labels)?, memory: remembered(memory)?, ttl_seconds })
}

/// Something that comes back, as a policy is told of it.
pub(in crate::policy) fn content(what: Content<'_>) -> calls::Content {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    match what {
        Content::Result(result) => calls::Content::Result(text(result)),
        Content::Error(error) => calls::Content::Error(text(error)),
        Content::Event(event) => calls::Content::Event(text(event)),
    }
}

/// The decision about something that comes back, if it can be carried out.
pub(in crate::policy) fn answer_decision(
    answer: calls::AnswerDecision,
    about: Content<'_>,
) -> Result<AnswerDecision, Broken> {
    let calls::AnswerDecision { verdict, labels, memory, extensions: _ } = answer;
    let (Content::Result(seen) | Content::Error(seen) | Content::Event(seen)) = about;
    let verdict = match verdict {
        calls::AnswerVerdict::Pass => AnswerVerdict::Pass,
        calls::AnswerVerdict::Replace(_) if seen.is_empty() => return broken(UNSEEN.to_owned()),
        calls::AnswerVerdict::Replace(new) => AnswerVerdict::Replace(same_form(object("replacement", new)?, about)?),
        calls::AnswerVerdict::Drop if matches!(about, Content::Event(_)) => AnswerVerdict::Drop,
        calls::AnswerVerdict::Drop => return broken("it drops the answer, which a client waits for".to_owned()),
        calls::AnswerVerdict::Cut(refused) => AnswerVerdict::Cut(denial(refused)?),
    };
    Ok(AnswerDecision { verdict, labels: checked_labels(labels)?, memory: remembered(memory)? })
}

/// An entry as a policy is told of it.
pub(in crate::policy) fn entry(&(kind, name, raw): &ListedEntry<'_>) -> calls::Entry {
    let kind = match kind {
        ListKind::Tool => calls::EntryKind::Tool,
        ListKind::Prompt => calls::EntryKind::Prompt,
        ListKind::Resource => calls::EntryKind::Resource,
        ListKind::Template => calls::EntryKind::Template,
    };
    calls::Entry { kind, name: name.to_owned(), body: raw.to_owned(), extensions: Vec::new() }
}

/// The verdicts about entries, if there is one for each and each can be carried out.
pub(in crate::policy) fn entry_verdicts(
    answer: Vec<calls::EntryVerdict>,
    entries: &[ListedEntry<'_>],
) -> Result<Vec<EntryVerdict>, Broken> {
    if answer.len() != entries.len() {
        return broken(format!("it has {} verdicts for {} entries", answer.len(), entries.len()));
    }
    let verdict = |(verdict, (kind, name, _)): (calls::EntryVerdict, &ListedEntry<'_>)| match verdict {
        calls::EntryVerdict::Show => Ok(EntryVerdict::Show),
        calls::EntryVerdict::Hide(why) => Ok(EntryVerdict::Hide(message(&why)?)),
        calls::EntryVerdict::Edit(new) => {
            let new = object("entry", new)?;
            let named = json::get(new.as_bytes(), &[kind.key()]).and_then(json::string);
            if named.as_deref() != Some(*name) {
                return broken(format!("it gives an entry another `{}`", kind.key()));
            }
            Ok(EntryVerdict::Edit(new))
        }
    };
    answer.into_iter().zip(entries).map(verdict).collect()
}

const UNSEEN: &str = "it replaces what it did not want to see";

fn patterns(texts: &[String]) -> Result<Vec<Pattern>, Broken> {
    if texts.len() > PATTERNS {
        return broken(format!("it has more than {PATTERNS} patterns"));
    }
    texts.iter().map(|text| text.parse().map_err(|_| Broken(format!("{text:?} is no pattern")))).collect()
}

fn clients(extensions: &[(String, String)]) -> Result<ClientGroups, Broken> {
    let Some((_, text)) = extensions.iter().find(|(key, _)| key == "clients") else {
        return Ok(ClientGroups::default());
    };
    let Ok(pairs) = serde_json::from_str::<Vec<(String, String)>>(text) else {
        return broken("its `clients` are no JSON array of pairs of texts".to_owned());
    };
    let (names, groups): (Vec<_>, Vec<Arc<str>>) =
        pairs.into_iter().map(|(name, group)| (name.to_lowercase(), group.into())).unzip();
    if groups.iter().any(|group| group.is_empty() || group.len() > LABEL) {
        return broken(format!("a group of clients has a name of 1 to {LABEL} bytes"));
    }
    let groups = ClientGroups(patterns(&names)?.into_iter().zip(groups).collect());
    match groups.names().len() > CLIENT_GROUPS {
        true => broken(format!("it tells more than {CLIENT_GROUPS} groups of clients apart")),
        false => Ok(groups),
    }
}

const fn detail(detail: calls::Detail) -> Detail {
    match detail {
        calls::Detail::Nothing => Detail::Nothing,
        calls::Detail::Facts => Detail::Facts,
        calls::Detail::Body => Detail::Body,
    }
}

const fn kind(kind: calls::EntryKind) -> ListKind {
    match kind {
        calls::EntryKind::Tool => ListKind::Tool,
        calls::EntryKind::Prompt => ListKind::Prompt,
        calls::EntryKind::Resource => ListKind::Resource,
        calls::EntryKind::Template => ListKind::Template,
    }
}

fn denial(refused: calls::Denial) -> Result<Denial, Broken> {
    let calls::Denial { code, text, extensions: _ } = refused;
    Ok(Denial { code, text: message(&text)? })
}

fn replaced(new: String, about: &CallQuestion<'_>, params: Option<&str>) -> Result<String, Broken> {
    let Some(params) = params else { return broken(UNSEEN.to_owned()) };
    let new = object("params", new)?;
    let mut keys = HashSet::new();
    // Of two members of one name upstreams take the one or the other.
    if let Some((twice, _)) = json::members(new.as_bytes()).find(|(key, _)| !keys.insert(key.clone())) {
        return broken(format!("its params have `{twice}` twice"));
    }
    for key in ["name", "uri", "ref", "taskId"] {
        let of = |object: &str| {
            let raw = json::get(object.as_bytes(), &[key])?;
            Some(json::string(raw).map_or_else(|| raw.to_vec(), |text| text.as_bytes().to_vec()))
        };
        if of(&new) != of(params) {
            return broken(format!("it changes `{key}` of a `{}`", about.method));
        }
    }
    Ok(new)
}

fn same_form(new: String, about: Content<'_>) -> Result<String, Broken> {
    let Content::Event(event) = about else { return Ok(new) };
    for key in ["jsonrpc", "id", "method"] {
        if json::get(new.as_bytes(), &[key]) != json::get(event.as_bytes(), &[key]) {
            return broken(format!("it changes `{key}` of a message"));
        }
    }
    Ok(new)
}

/// A JSON object in one line: a line break in valid JSON can only stand between tokens.
fn object(what: &str, text: String) -> Result<String, Broken> {
    let text = if text.contains(['\n', '\r']) { text.replace(['\n', '\r'], " ") } else { text };
    let trimmed = text.trim();
    if !trimmed.starts_with('{') || json::scan(trimmed.as_bytes()).is_err() {
        return broken(format!("its {what} is no JSON object"));
    }
    Ok(if trimmed.len() == text.len() { text } else { trimmed.to_owned() })
}

fn approval(asked: &calls::Approval) -> Result<ApprovalConfig, Broken> {
    if asked.by.is_empty() || asked.by.len() > LABELS || !(1..=LONGEST_APPROVAL).contains(&asked.expires_in_seconds) {
        return broken("it asks for an approval by nobody, by too many, or for longer than a day".to_owned());
    }
    let by = asked.by.iter().map(|by| by.parse()).collect::<Result<Vec<_>, _>>();
    let Ok(by) = by else { return broken("an approver is `caller`, `group:NAME` or `subject:NAME`".to_owned()) };
    Ok(ApprovalConfig { by, when: None, expires: Duration::from_secs(asked.expires_in_seconds.into()) })
}

fn header((name, value): (String, String)) -> Result<(String, String), Broken> {
    const CREDENTIALS: [&str; 5] = ["authorization", "cookie", "dpop", "proxy-authorization", "set-cookie"];
    let (name, _) = credentials::place(&name, None)?;
    if CREDENTIALS.contains(&name.as_str()) {
        return broken(format!("it sets the header {name}; credentials are for a `credentials` policy"));
    }
    if value.len() > TEXT || !value.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return broken(format!("it sets the header {name} to what no header can hold"));
    }
    Ok((name, value))
}

fn checked_labels(labels: Vec<(String, String)>) -> Result<Vec<(String, String)>, Broken> {
    let plain = |key: &str| key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if labels.len() > LABELS || labels.iter().any(|(key, _)| key.is_empty() || key.len() > LABEL || !plain(key)) {
        return broken(format!("it has more than {LABELS} labels, or one whose name is no word"));
    }
    Ok(labels.into_iter().map(|(key, value)| (key, one_line(&value, LABEL))).collect())
}

fn remembered(memory: String) -> Result<String, Broken> {
    if memory.len() > DOCUMENT { broken(format!("its memory has over {DOCUMENT} bytes")) } else { Ok(memory) }
}
