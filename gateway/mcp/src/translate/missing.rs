//! Finding out that a legacy server wanted to ask what its client has not declared.
//!
//! The modern era has an error for it, which tells the client what to declare; the legacy era has none. There a server
//! either asks all the same, and is refused, or its SDK says in the result of the tool which question could not be put.
//! Only a call that failed counts: a server that can do without is not held up.

use super::Asks;
use crate::{Field, Kind, Message, json};

/// The ways in which the SDKs say that a client cannot be asked.
const SAYINGS: [&str; 2] = ["Client does not support ", "did not declare the required capability"];

/// How long the text of such a failure is at most, in bytes: a text that only talks of it is longer.
const LONGEST: usize = 512;

/// What each question is called in these sayings, its own name first.
const QUESTIONS: [(&str, &[&str]); 3] = [
    ("elicitation/create", &["elicitation"]),
    ("sampling/createMessage", &["sampling"]),
    ("roots/list", &["listing roots"]),
];

/// The capability that a failed call lacked, as `requiredCapabilities`; none if it failed for another reason, or did not
/// fail. `refused` is what the server asked and could not be told.
pub fn missing(answer: &Message, asks: Asks, refused: Option<&Message>) -> Option<&'static str> {
    if !has_failed(answer) {
        return None;
    }
    if let Some(question) = refused.filter(|question| !asks.allows(question)) {
        let mode = question.params().and_then(|params| json::get(params, &["mode"])).and_then(json::string);
        return capability(question.method(), mode.as_deref() == Some("url"));
    }
    let said = text(answer)?;
    let said = said.as_str();
    if said.len() > LONGEST || !SAYINGS.iter().any(|saying| said.contains(saying)) {
        return None;
    }
    let (method, _) = QUESTIONS
        .iter()
        .find(|(method, names)| said.contains(method) || names.iter().any(|name| said.contains(name)))?;
    let url = said.to_ascii_lowercase().contains("url elicitation");
    let declared = match *method {
        "elicitation/create" if url => asks.url,
        "elicitation/create" => asks.form,
        "sampling/createMessage" => asks.sampling,
        _ => asks.roots,
    };
    if declared { None } else { capability(method, url) }
}

fn has_failed(answer: &Message) -> bool {
    match answer.kind() {
        Kind::Error => true,
        Kind::Response => answer.member("isError") == Some(b"true"),
        Kind::Request | Kind::Notification => false,
    }
}

/// The one text of a failure.
fn text(answer: &Message) -> Option<String> {
    if answer.kind() == Kind::Error {
        return answer.text(Field::ErrorMessage).map(|text| text.into_owned());
    }
    let mut content = json::elements(answer.member("content")?);
    let text = json::get(content.next()?, &["text"]).and_then(json::string)?.into_owned();
    content.next().is_none().then_some(text)
}

fn capability(method: &str, url: bool) -> Option<&'static str> {
    match method {
        "elicitation/create" if url => Some(r#"{"elicitation":{"url":{}}}"#),
        "elicitation/create" => Some(r#"{"elicitation":{"form":{}}}"#),
        "sampling/createMessage" => Some(r#"{"sampling":{}}"#),
        "roots/list" => Some(r#"{"roots":{}}"#),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn message(text: &str) -> Message {
        Message::parse(bytes::Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn failed(text: &str) -> Message {
        message(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{{"isError":true,"content":[{{"type":"text","text":"{text}"}}]}}}}"#
        ))
    }

    #[test]
    fn what_sdks_say_is_understood_unless_the_client_has_declared_it() {
        let nothing = Asks::default();
        for (said, capability) in [
            ("Client does not support sampling (required for sampling/createMessage)", r#"{"sampling":{}}"#),
            ("MCP error -32603: Client does not support form elicitation.", r#"{"elicitation":{"form":{}}}"#),
            ("Client does not support url elicitation.", r#"{"elicitation":{"url":{}}}"#),
            ("Client does not support listing roots (required for roots/list)", r#"{"roots":{}}"#),
            (
                "Cannot request input 'sample' (sampling/createMessage): the client on this 2025-era connection did not declare the required capability",
                r#"{"sampling":{}}"#,
            ),
        ] {
            assert_eq!(missing(&failed(said), nothing, None), Some(capability), "{said}");
        }
        let asks = Asks { sampling: true, ..nothing };
        let said = "Client does not support sampling (required for sampling/createMessage)";
        assert_eq!(missing(&failed(said), asks, None), None);
        assert_eq!(missing(&failed("sampling failed"), nothing, None), None);
        assert_eq!(missing(&failed(&format!("{said}{}", "x".repeat(LONGEST))), nothing, None), None);
    }

    #[test]
    fn only_a_failure_counts() {
        let nothing = Asks::default();
        let question = message(r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#);
        let fine = message(r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#);
        assert_eq!(missing(&fine, nothing, Some(&question)), None);
        assert_eq!(missing(&failed("no roots"), nothing, Some(&question)), Some(r#"{"roots":{}}"#));
        let error = message(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}"#);
        assert_eq!(missing(&error, nothing, Some(&question)), Some(r#"{"roots":{}}"#));
        assert_eq!(missing(&error, nothing, None), None);
        assert_eq!(missing(&error, Asks { roots: true, ..nothing }, Some(&question)), None);
    }
}
