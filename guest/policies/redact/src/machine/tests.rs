mod cases;

use std::cell::{Cell, RefCell};

use weir_policy::{
    Era, Principal, Upstream,
    capability::store::{Condition, Item, StoreError},
};

use super::*;
use crate::vault::Granted;

const CARD: &str = "4111 1111 1111 1111";
const IBAN: &str = "DE89 3704 0044 0532 0130 00";
const REVERSIBLE: &str = r#"{"reversible":true}"#;

fn call(settings: &str, subject: Option<&str>) -> Call {
    Call {
        id: "1".into(),
        upstream: Upstream {
            name: "crm".into(),
            url: None,
            required_transport: None,
            required_era: None,
            transports: Vec::new(),
            settings: settings.into(),
            extensions: Vec::new(),
        },
        endpoint: "mcp".into(),
        principal: subject.map(|subject| principal("https://login.example.com", subject)),
        client: None,
        era: Era::Modern,
        method: "tools/call".into(),
        name: Some("find".into()),
        labels: Vec::new(),
        extensions: Vec::new(),
    }
}

fn principal(issuer: &str, subject: &str) -> Principal {
    Principal {
        subject: subject.into(),
        issuer: Some(issuer.into()),
        scopes: Vec::new(),
        claims: "{}".into(),
        extensions: Vec::new(),
    }
}

/// The text of a result with one text, if it is replaced, and the labels.
fn answer(about: &Call, vault: &impl Vault, text: &str) -> (Option<String>, Labels) {
    let json = serde_json::json!({"content": [{"type": "text", "text": text}]}).to_string();
    let decision = after(about, "kept".into(), Content::Result(Some(json)), vault);
    assert_eq!(decision.memory, "kept");
    let text = match decision.verdict {
        AnswerVerdict::Pass => None,
        AnswerVerdict::Replace(json) => {
            let json: serde_json::Value = serde_json::from_str(&json).expect("it stays JSON");
            Some(json["content"][0]["text"].as_str().expect("it stays a text").to_owned())
        }
        other => panic!("{other:?}"),
    };
    (text, decision.labels)
}

fn redacted_text(about: &Call, text: &str) -> String {
    answer(about, &Granted, text).0.expect("something is found")
}

fn replaced(about: &Call, json: &str) -> Option<String> {
    match after(about, String::new(), Content::Result(Some(json.into())), &Granted).verdict {
        AnswerVerdict::Replace(text) => Some(text),
        AnswerVerdict::Pass => None,
        other => panic!("{other:?}"),
    }
}

/// The arguments of a request with one argument, if they are replaced.
fn request(about: &Call, text: &str) -> Option<String> {
    let params = serde_json::json!({"name": "<card:1>", "arguments": {"<card:1>": [text]}}).to_string();
    match before(about, Some(&params), &Granted).verdict {
        Verdict::Allow => None,
        Verdict::Replace(json) => {
            let json: serde_json::Value = serde_json::from_str(&json).expect("it stays JSON");
            assert_eq!(json["name"], "<card:1>");
            Some(json["arguments"]["<card:1>"][0].as_str().expect("it stays a text").to_owned())
        }
        other => panic!("{other:?}"),
    }
}

fn label<'a>(labels: &'a Labels, name: &str) -> Option<&'a str> {
    labels.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
}

#[test]
fn wants_no_more_than_it_needs() {
    let interest = wants("{}").expect("nothing is needed");
    assert_eq!((interest.request, interest.answer, interest.event), (Detail::Nothing, Detail::Body, Detail::Body));
    assert_eq!(interest.methods, METHODS);
    assert_eq!(wants(REVERSIBLE).expect("it is a flag").request, Detail::Body);
    assert!(wants(r#"{"reversible":1}"#).is_err_and(|why| why.contains("`reversible`")));
}

#[test]
fn values_are_replaced_for_good() {
    let (text, labels) = answer(&call("{}", None), &Granted, &format!("{CARD}, {CARD} and {IBAN}"));
    assert_eq!(text.as_deref(), Some("[card], [card] and [iban]"));
    assert_eq!(labels, [("redacted-card".into(), "2".into()), ("redacted-iban".into(), "1".into())]);
    let keep = call(r#"{"keep_last":4}"#, None);
    assert_eq!(redacted_text(&keep, &format!("{CARD}, {IBAN}")), "[card …1111], [iban …3000]");
}

#[test]
fn only_what_is_found_changes() {
    let about = call("{}", None);
    let json = "{ \"content\" : [\n{\"type\":\"text\",\"text\":\"\\u00e9 4111\\u00201111\\u0020 1111 111\\u0031 \\/ \\ud83d\"},\
                {\"text\":\"caf\\u00e9\"}], \"n\": 4111111111111111, \"4111111111111111\": 1.0e5}";
    let expected = json.replace("4111\\u00201111\\u0020 1111 111\\u0031", "[card]");
    assert_eq!(replaced(&about, json).as_deref(), Some(expected.as_str()));
    assert_eq!(replaced(&about, r#"{"content":[{"type":"text","text":"caf\u00e9"}],"n":4111111111111111}"#), None);
}

#[test]
fn kept_characters_are_written_as_json() {
    let about = call(r#"{"patterns":{"quote":"Q????"},"keep_last":3}"#, None);
    assert_eq!(redacted_text(&about, "Q1\"\\\n"), "[quote …\\\n]");
}

#[test]
fn binary_content_stays_and_encoded_text_does_not() {
    let about = call(r#"{"patterns":{"any":"@@@@"}}"#, None);
    let binary = "iVBORw0KGgo/abcd/AAAANSUhEUgAAAAE+abcd/CAYAAAAfFcSJ";
    assert_eq!(replaced(&about, &format!(r#"{{"content":[{{"type":"image","data":"{binary}"}}]}}"#)), None);
    let mailed = |text: &str| format!(r#"{{"contents":[{{"uri":"file:///a","blob":"{text}"}}]}}"#);
    let (plain, redacted) = ("name;jane@example.com\n", "name;[email]\n");
    let encoded = |text: &str| crate::base64::encode(text.as_bytes());
    let about = call("{}", None);
    assert_eq!(replaced(&about, &mailed(&encoded(plain))), Some(mailed(&encoded(redacted))));
    assert_eq!(replaced(&about, &mailed("4111111111111111")), Some(mailed("[card]")));
    assert_eq!(
        replaced(&about, r#"{"structuredContent":{"data":"4111111111111111"}}"#).as_deref(),
        Some(r#"{"structuredContent":{"data":"[card]"}}"#)
    );
}

#[test]
fn errors_and_events_are_looked_at_too() {
    let about = call("{}", None);
    let error = Content::Error(Some(format!(r#"{{"code":-1,"message":"no {CARD}","data":{{"id":"{CARD}"}}}}"#)));
    let AnswerVerdict::Replace(text) = after(&about, String::new(), error, &Granted).verdict else {
        panic!("it has two")
    };
    assert_eq!(text, r#"{"code":-1,"message":"no [card]","data":{"id":"[card]"}}"#);
    let event =
        |id: &str| format!(r#"{{"jsonrpc":"2.0","id":"4111111111111111","method":"x","params":{{"message":"{id}"}}}}"#);
    let AnswerVerdict::Replace(text) =
        after(&about, String::new(), Content::Event(Some(event(CARD))), &Granted).verdict
    else {
        panic!("it has one")
    };
    assert_eq!(text, event("[card]"));
    assert_eq!(after(&about, "m".into(), Content::Result(None), &Granted), AnswerDecision::pass("m".into()));
}

#[test]
fn the_same_value_gets_the_same_placeholder() {
    let about = call(REVERSIBLE, Some("jane"));
    let (text, labels) = answer(&about, &Granted, &format!("{IBAN}, a@example.com, b@example.com, a@example.com"));
    assert_eq!(text.as_deref(), Some("<iban:1>, <email:1>, <email:2>, <email:1>"));
    assert_eq!((label(&labels, "redacted-email"), label(&labels, "redaction-irreversible")), (Some("3"), None));
    assert_eq!(redacted_text(&about, "c@example.com, b@example.com"), "<email:3>, <email:2>");
}

#[test]
fn placeholders_in_arguments_get_their_values_back() {
    let about = call(r#"{"reversible":true,"patterns":{"quote":"Q????"}}"#, Some("jane"));
    redacted_text(&about, &format!("{CARD} {IBAN} Q1\"\\\n"));
    assert_eq!(request(&about, "pay <iban:1> by <card:1>"), Some(format!("pay {IBAN} by {CARD}")));
    assert_eq!(request(&about, "<quote:1>"), Some("Q1\"\\\n".into()));
    assert_eq!(request(&about, "<card:1> <card:2> <x:1> <iban:01>"), Some(format!("{CARD} <card:2> <x:1> <iban:01>")));
    assert_eq!(request(&about, "<card:2>"), None);
    let params = r#"{"name":"x","arguments":{"a":"\u003ccard:1\u003e","n":1.0}}"#;
    let decision = before(&about, Some(params), &Granted);
    assert_eq!(decision.verdict, Verdict::Replace(format!(r#"{{"name":"x","arguments":{{"a":"{CARD}","n":1.0}}}}"#)));
    assert_eq!(decision.labels, [("restored-card".into(), "1".into())]);
    assert_eq!(before(&call("{}", Some("jane")), Some(params), &Granted).verdict, Verdict::Allow);
}

#[test]
fn no_caller_gets_the_value_of_another() {
    let jane = call(REVERSIBLE, Some("jane"));
    redacted_text(&jane, CARD);
    let mut others = vec![call(REVERSIBLE, Some("joe")), call(REVERSIBLE, None), call(REVERSIBLE, Some("all"))];
    let mut other_issuer = call(REVERSIBLE, None);
    other_issuer.principal = Some(principal("https://evil.example.com", "jane"));
    let mut no_issuer = call(REVERSIBLE, None);
    no_issuer.principal = Some(Principal { issuer: None, ..principal("", "jane") });
    let mut shifted = call(REVERSIBLE, None);
    shifted.principal = Some(principal("https://login.example.comj", "ane"));
    others.extend([other_issuer, no_issuer, shifted]);
    for other in &others {
        assert_eq!(request(other, "<card:1>"), None, "{:?}", other.principal);
    }
    assert_eq!(request(&jane, "<card:1>"), Some(CARD.into()));
    assert_eq!(redacted_text(&others[0], "5500-0000-0000-0004"), "<card:1>");
    assert_eq!(request(&jane, "<card:1>"), Some(CARD.into()));
}

/// A store that fails or is written by others.
#[derive(Default)]
struct Difficult {
    error: Option<StoreError>,
    /// How many writes still come too late.
    late: Cell<usize>,
    operations: Cell<usize>,
    last: RefCell<Vec<String>>,
}

impl Vault for Difficult {
    fn get(&self, key: &str) -> Result<Option<Item>, StoreError> {
        self.operations.set(self.operations.get() + 1);
        self.error.clone().map_or_else(|| Granted.get(key), Err)
    }

    fn set(&self, key: &str, value: &[u8], ttl_seconds: u32, when: Condition) -> Result<u64, StoreError> {
        self.operations.set(self.operations.get() + 1);
        self.last.borrow_mut().push(format!("{} {ttl_seconds}", key.split('/').next().unwrap_or_default()));
        if let Some(late) = self.late.get().checked_sub(1) {
            self.late.set(late);
            return Err(StoreError::Changed);
        }
        Granted.set(key, value, ttl_seconds, when)
    }
}

#[test]
fn a_store_that_fails_makes_it_irreversible() {
    let about = call(r#"{"reversible":true,"keep_last":4}"#, Some("jane"));
    for (error, word) in [
        (StoreError::Unavailable("x".into()), "unavailable"),
        (StoreError::Limit("x".into()), "full"),
        (StoreError::Changed, "busy"),
    ] {
        let vault = Difficult { error: Some(error), ..Difficult::default() };
        let (text, labels) = answer(&about, &vault, CARD);
        assert_eq!(text.as_deref(), Some("[card …1111]"));
        assert!(label(&labels, "redaction-irreversible").is_some_and(|why| why.contains(word)), "{labels:?}");
        let decision = before(&about, Some(r#"{"arguments":{"a":"<card:1>"}}"#), &vault);
        assert!(matches!(decision.verdict, Verdict::Deny(_)), "{decision:?}");
        let decision = before(&about, Some(r#"{"arguments":{"a":"<x:1>"}}"#), &vault);
        assert_eq!(decision.verdict, Verdict::Allow);
    }
}

#[test]
fn writes_are_tried_again_within_the_limit_of_operations() {
    let about = call(REVERSIBLE, Some("jane"));
    let vault = Difficult { late: Cell::new(3), ..Difficult::default() };
    assert_eq!(answer(&about, &vault, CARD).0.as_deref(), Some("<card:1>"));
    let vault = Difficult { late: Cell::new(usize::MAX), ..Difficult::default() };
    let (text, labels) = answer(&about, &vault, CARD);
    assert_eq!(
        (text.as_deref(), label(&labels, "redaction-irreversible")),
        (Some("[card]"), Some("the store is busy"))
    );
    assert!(vault.operations.get() <= 64);
}

#[test]
fn each_use_prolongs_the_mapping() {
    let about = call(r#"{"reversible":true,"ttl_seconds":60}"#, Some("jane"));
    let vault = Difficult::default();
    for _ in 0..2 {
        answer(&about, &vault, CARD);
    }
    before(&about, Some(r#"{"arguments":{"a":"<card:1>"}}"#), &vault);
    assert_eq!(*vault.last.borrow(), ["next 86460", "map 60", "next 86460", "map 60", "map 60"]);
}

#[test]
fn a_number_never_stands_for_another_value() {
    let about = call(REVERSIBLE, Some("jane"));
    redacted_text(&about, CARD);
    let keys = weir_policy::capability::store::keys("map/").expect("the stand-in works");
    for key in keys {
        weir_policy::capability::store::delete(&key).expect("the stand-in works");
    }
    assert_eq!(request(&about, "<card:1>"), None);
    assert_eq!(redacted_text(&about, "5500-0000-0000-0004"), "<card:2>");
    assert_eq!(request(&about, "<card:1>"), None);
}

#[test]
fn more_values_than_fit_are_partly_irreversible() {
    let about = call(REVERSIBLE, Some("jane"));
    let text: Vec<_> = (0..5000).map(|at| format!("person{at}@example.com")).collect();
    let (text, labels) = answer(&about, &Granted, &text.join(" "));
    let text = text.expect("there are many");
    assert!(text.starts_with("<email:1> <email:2> ") && text.ends_with(" [email] [email]"));
    assert_eq!(label(&labels, "redacted-email"), Some("5000"));
    assert_eq!(label(&labels, "redaction-irreversible"), Some("there is no room for all values"));
}

#[test]
fn labels_are_few_and_tell_no_value() {
    let patterns: Vec<_> = (10..40).map(|at| format!(r#""p{at}":"P{at}-#""#)).collect();
    let settings = format!(r#"{{"patterns":{{{}}}}}"#, patterns.join(","));
    let text: Vec<_> = (10..40).map(|at| format!("P{at}-1")).collect();
    let (_, labels) = answer(&call(&settings, None), &Granted, &text.join(" "));
    assert_eq!(labels.len(), LABELS + 1);
    assert_eq!(label(&labels, "redacted-others"), Some("16"));
    assert!(labels.iter().all(|(_, text)| text.len() < 3));
}

#[test]
fn what_cannot_be_handled_does_not_pass() {
    let long = call(r##"{"patterns":{"a-name-of-almost-32-characters":"#"}}"##, None);
    for json in [format!(r#"{{"a":"{}"}}"#, "1 ".repeat(40_000)), format!(r#"{{"a":"{}"}}"#, "1 ".repeat(200_000))] {
        let decision = after(&long, String::new(), Content::Result(Some(json)), &Granted);
        assert!(matches!(decision.verdict, AnswerVerdict::Cut(_)));
    }
    let wrong = call(r#"{"find":1}"#, None);
    let content = Content::Result(Some("{}".into()));
    assert!(matches!(after(&wrong, String::new(), content, &Granted).verdict, AnswerVerdict::Cut(_)));
    assert!(matches!(before(&wrong, Some("{}"), &Granted).verdict, Verdict::Deny(_)));
}

#[test]
fn arguments_that_grow_too_long_are_refused() {
    let about = call(r#"{"reversible":true,"find":["key"]}"#, Some("jane"));
    redacted_text(&about, &format!("sk-1{}", "a".repeat(4000)));
    let params = format!(r#"{{"arguments":{{"a":"{}"}}}}"#, "<key:1>".repeat(1000));
    assert!(matches!(before(&about, Some(&params), &Granted).verdict, Verdict::Deny(_)));
}
