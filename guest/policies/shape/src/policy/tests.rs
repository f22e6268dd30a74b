use std::cell::{Cell, RefCell};

use serde_json::{Value, json};
use weir_policy::{
    Era, Principal, Upstream,
    capability::store::{Condition, Item, StoreError},
};

use super::*;
use crate::parts_store::Granted;

const SMALL: &str = r#"{"budget_bytes":1024}"#;

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
        principal: subject.map(|subject| Principal {
            subject: subject.into(),
            issuer: Some("https://login.example.com".into()),
            scopes: Vec::new(),
            claims: "{}".into(),
            extensions: Vec::new(),
        }),
        client: None,
        era: Era::Modern,
        method: CALL.into(),
        name: Some("find".into()),
        labels: Vec::new(),
        extensions: Vec::new(),
    }
}

fn decision(about: &Call, result: &str, store: &impl PartStorage) -> AnswerDecision {
    let decision = after(about, "kept".into(), Content::Result(Some(result.into())), store);
    assert_eq!(decision.memory, "kept");
    decision
}

/// The result that replaces another, if one does.
fn shaped(about: &Call, result: &Value) -> Option<Value> {
    match decision(about, &result.to_string(), &Granted).verdict {
        AnswerVerdict::Replace(text) => Some(serde_json::from_str(&text).expect("it stays JSON")),
        AnswerVerdict::Pass => None,
        other => panic!("{other:?}"),
    }
}

fn text_result(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn reading(about: &Call, uri: &str) -> Call {
    Call { method: READ.into(), name: Some(uri.into()), ..about.clone() }
}

/// The contents of a resource, if the caller can read it.
fn read(about: &Call, uri: &str) -> Option<Vec<Value>> {
    match before(&reading(about, uri), &Granted).verdict {
        Verdict::Answer(text) => {
            let result: Value = serde_json::from_str(&text).expect("it is JSON");
            Some(result["contents"].as_array().expect("it has contents").clone())
        }
        Verdict::Deny(_) => None,
        other => panic!("{other:?}"),
    }
}

/// All pages of a resource, from what each says of the next.
fn pages(about: &Call, uri: &str) -> Vec<String> {
    let (mut all, mut next) = (Vec::new(), Some(uri.to_owned()));
    while let Some(uri) = next {
        let contents = read(about, &uri).expect("there is a page");
        let page = &contents[0];
        assert_eq!(page["uri"], uri.as_str());
        all.push(page["text"].as_str().or(page["blob"].as_str()).expect("it has text").to_owned());
        let named = |text: &str| text.split(' ').find(|word| word.starts_with("weir-shape://")).map(str::to_owned);
        next = contents.get(1).and_then(|note| named(note["text"].as_str().expect("it is a text")));
    }
    all
}

/// The link of a result with one.
fn link(result: &Value) -> &Value {
    let links: Vec<_> = links(result);
    assert_eq!(links.len(), 1, "{result}");
    links[0]
}

fn links(result: &Value) -> Vec<&Value> {
    let content = result["content"].as_array().expect("it has content");
    content.iter().filter(|part| part["type"] == "resource_link").collect()
}

fn uri(link: &Value) -> &str {
    link["uri"].as_str().expect("it has a URI")
}

#[test]
fn wants_facts_of_requests_and_the_body_of_answers() {
    let interest = wants("{}").expect("nothing is needed");
    assert_eq!((interest.request, interest.answer, interest.event), (Detail::Facts, Detail::Body, Detail::Nothing));
    assert_eq!(
        (interest.methods, interest.entries),
        (vec![CALL.into(), TASK_RESULT.into(), TASK.into(), READ.into()], vec![EntryKind::Tool])
    );
    assert!(wants(r#"{"items":"x"}"#).is_err_and(|why| why.contains("`items`")));
}

#[test]
fn requests_are_allowed_for_an_hour() {
    let expected = Decision::allow().for_seconds(3600);
    assert_eq!(before(&call("{}", None), &Granted), expected);
    assert_eq!(before(&reading(&call("{}", None), "file:///a"), &Granted), expected);
    assert!(matches!(before(&call("[]", None), &Granted).verdict, Verdict::Deny(_)));
}

#[test]
fn tools_promise_no_schema_of_their_results() {
    let entry = |kind, body: &str| entry(&Entry { kind, name: "a".into(), body: body.into(), extensions: Vec::new() });
    let body = r#"{ "name": "a", "outputSchema": {"type": "object"}, "x": 1.0 }"#;
    assert_eq!(entry(EntryKind::Tool, body), EntryVerdict::Edit(r#"{"name":"a","x":1.0}"#.into()));
    assert_eq!(entry(EntryKind::Prompt, body), EntryVerdict::Show);
    assert_eq!(entry(EntryKind::Tool, r#"{"name":"a"}"#), EntryVerdict::Show);
}

#[test]
fn what_fits_passes() {
    let about = call(r#"{"budget_bytes":1024,"items":3,"tools":[{"names":["find"],"drop":["x"]}]}"#, None);
    for result in [
        json!({"content": [{"type": "text", "text": "[1,2,3]"}], "structuredContent": [1, 2, 3]}),
        json!({"content": []}),
        json!({"resultType": "input_required", "requestState": "x".repeat(5000)}),
        json!({"content": "x".repeat(5000)}),
        text_result(&"x".repeat(1024)),
    ] {
        assert_eq!(shaped(&about, &result), None);
    }
    let error = Content::Error(Some("{}".into()));
    assert_eq!(after(&about, "m".into(), error, &Granted), AnswerDecision::pass("m".into()));
    let long = text_result(&"x".repeat(5000)).to_string();
    let read = reading(&about, "file:///a");
    assert_eq!(decision(&read, &long, &Granted), AnswerDecision::pass("kept".into()));
}

#[test]
fn a_long_text_is_cut_and_the_rest_can_be_read() {
    let about = call(SMALL, Some("jane"));
    let text = "é€ ".repeat(900);
    let result = shaped(&about, &text_result(&text)).expect("it is too long");
    let delivered = result["content"][0]["text"].as_str().expect("it is a text");
    assert!(text.starts_with(delivered) && (1020..=1024).contains(&delivered.len()));
    let link = link(&result);
    assert!(uri(link).starts_with("weir-shape://crm/"));
    assert_eq!((&link["mimeType"], &link["size"]), (&json!("text/plain"), &json!(5400)));
    assert_eq!(link["name"], "find-rest-1");
    assert_eq!(link["description"], "1022 of 5400 bytes were delivered; read this resource for the rest");
    let pages = pages(&about, uri(link));
    assert_eq!((pages.len(), pages.concat()), (6, text));
    assert!(pages.iter().all(|page| page.len() <= 1024));
}

#[test]
fn long_arrays_are_cut_and_stored_once() {
    let about = call(r#"{"items":2}"#, None);
    let list = json!({"rows": [{"n": 1}, {"n": 2}, {"n": 3}]});
    let text = serde_json::to_string_pretty(&list).expect("it is JSON");
    let result = json!({"content": [{"type": "text", "text": text}], "structuredContent": list, "_meta": {"a": 1}});
    let decision = decision(&about, &result.to_string(), &Granted);
    assert_eq!(decision.labels[1], ("shaped-items".into(), "2".into()));
    let result = shaped(&about, &result).expect("it is too long");
    let cut = json!({"rows": [{"n": 1}, {"n": 2}]});
    assert_eq!((&result["structuredContent"], &result["_meta"]), (&cut, &json!({"a": 1})));
    let delivered = result["content"][0]["text"].as_str().expect("it is a text");
    assert_eq!(serde_json::from_str::<Value>(delivered).expect("it stays JSON"), cut);
    let link = link(&result);
    assert_eq!(link["mimeType"], "application/json");
    assert!(link["description"].as_str().is_some_and(|text| text.starts_with("2 of 3 items and ")), "{link}");
    assert_eq!(pages(&about, uri(link)), [text]);
}

#[test]
fn a_projection_needs_no_store() {
    let about = call(r#"{"tools":[{"names":["f*"],"keep":["items.*.title"],"drop":["items.*.title.x"]}]}"#, None);
    let raw = r#"{"structuredContent":{"items":[{"title":1.0,"b":2}]},"content":[{"type":"text","text":"see {}"},{"type":"text","text":"{\"a\":1}"}]}"#;
    let decision = decision(&about, raw, &Difficult::failing(StoreError::Unavailable("x".into())));
    let expected = r#"{"structuredContent":{"items":[{"title":1.0}]},"content":[{"type":"text","text":"see {}"},{"type":"text","text":"{}"}]}"#;
    assert_eq!(decision.verdict, AnswerVerdict::Replace(expected.into()));
    assert_eq!(decision.labels, [("shaped".into(), "11".into())]);
    let task = Call { method: TASK_RESULT.into(), ..about.clone() };
    assert_eq!(self::decision(&task, raw, &Granted).verdict, AnswerVerdict::Pass, "the tool of a task is unknown");
    let error = raw.replacen('{', "{\"isError\":true,", 1);
    assert_eq!(self::decision(&about, &error, &Granted).verdict, AnswerVerdict::Pass);
}

#[test]
fn the_result_within_a_task_is_cut_and_the_task_stays() {
    let about = Call { method: TASK.into(), name: None, ..call(r#"{"items":1}"#, None) };
    let raw = r#"{ "taskId": "t", "result": {"content":[],"structuredContent":[1,2]}, "ttl": 1.0 }"#;
    let AnswerVerdict::Replace(task) = decision(&about, raw, &Granted).verdict else { panic!("it is too long") };
    assert!(task.starts_with(r#"{"taskId":"t","result":{"#) && task.ends_with(r#","ttl":1.0}"#), "{task}");
    let task: Value = serde_json::from_str(&task).expect("it stays JSON");
    assert_eq!(task["result"]["structuredContent"], json!([1]));
    assert_eq!(pages(&about, uri(link(&task["result"]))), ["[1,2]"]);
    let running = r#"{"taskId":"t","status":"working"}"#;
    assert_eq!(decision(&about, running, &Granted).verdict, AnswerVerdict::Pass);
}

#[test]
fn what_is_projected_is_what_is_stored() {
    let about = call(r#"{"items":1,"tools":[{"names":["*"],"drop":["*.secret"]}]}"#, None);
    let result =
        shaped(&about, &json!({"content": [], "structuredContent": [{"a": 1, "secret": 2}, {"a": 3, "secret": 4}]}));
    let result = result.expect("it is too long");
    assert_eq!(result["structuredContent"], json!([{"a": 1}]));
    assert_eq!(pages(&about, uri(link(&result))), [r#"[{"a":1},{"a":3}]"#]);
}

#[test]
fn structured_content_that_does_not_fit_is_left_out_whole() {
    let about = call(SMALL, None);
    let list: Vec<_> = (0..150).map(|number| format!("row {number}")).collect();
    let text = json!(list).to_string();
    assert!((1025..2048).contains(&text.len()));
    let both = json!({"content": [{"type": "text", "text": text}], "structuredContent": list});
    let result = shaped(&about, &both).expect("it is too long");
    assert_eq!(result.get("structuredContent"), None);
    assert_eq!(pages(&about, uri(link(&result))).concat(), text);
    // What the text says whole is nowhere else.
    let half = call(r#"{"budget_bytes":2048}"#, None);
    let result = shaped(&half, &both).expect("it is too long");
    assert_eq!(result, text_result(&text));
    // Without a text there is a link.
    let result = shaped(&about, &json!({"structuredContent": list})).expect("it is too long");
    let link = link(&result);
    assert!(link["description"].as_str().is_some_and(|text| text.starts_with("structured content of ")), "{link}");
    assert_eq!(pages(&about, uri(link)).concat(), text);
}

#[test]
fn images_and_resources_are_left_out_whole() {
    let about = call(SMALL, None);
    let blob = "QUJD".repeat(600);
    let result = json!({"content": [
        {"type": "text", "text": "see"},
        {"type": "image", "data": blob, "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "a:b", "mimeType": "text/csv", "text": "1,2\n".repeat(400)}},
        {"type": "text", "text": "above"}]});
    let result = shaped(&about, &result).expect("it is too long");
    assert_eq!(result["content"][0]["text"], "see");
    assert_eq!(result["content"][1]["text"], "above");
    let links = links(&result);
    assert_eq!((links.len(), &links[0]["size"], &links[0]["mimeType"]), (2, &json!(1800), &json!("image/png")));
    let contents = read(&about, uri(links[0])).expect("it is stored");
    assert_eq!((&contents[0]["mimeType"], contents.len()), (&json!("image/png"), 2));
    assert_eq!(pages(&about, uri(links[0])).concat(), blob);
    assert_eq!(read(&about, uri(links[1])).expect("it is stored")[0]["mimeType"], "text/csv");
}

#[test]
fn many_parts_share_a_link() {
    let about = call(SMALL, None);
    let part = |number: usize| json!({"type": "text", "text": format!("{number:100}")});
    let content: Vec<_> = (0..100).map(part).collect();
    let result = shaped(&about, &json!({"content": content})).expect("it is too long");
    let links = links(&result);
    assert_eq!(links.len(), 8);
    let text = pages(&about, uri(links[7])).concat();
    assert_eq!(serde_json::from_str::<Vec<Value>>(&text).expect("it is an array"), content[17..]);
    let hostile = format!(r#"{{"content":[{}0]}}"#, "0,".repeat(500_000));
    let hostile = after(&about, String::new(), Content::Result(Some(hostile)), &Granted);
    assert!(matches!(hostile.verdict, AnswerVerdict::Cut(_)));
}

#[test]
fn no_caller_reads_what_is_stored_for_another() {
    let jane = call(SMALL, Some("jane"));
    let result = shaped(&jane, &text_result(&"x".repeat(2000))).expect("it is too long");
    let uri = uri(link(&result));
    assert!(read(&jane, uri).is_some());
    for other in [call(SMALL, Some("joe")), call(SMALL, None)] {
        assert_eq!(read(&other, uri), None);
    }
    for missing in [format!("{uri}/3"), format!("{uri}/0"), "weir-shape://crm/index".into(), uri.replace("crm", "crn")]
    {
        assert_eq!(read(&jane, &missing), None, "{missing}");
    }
}

#[test]
fn each_era_gets_its_own_answer() {
    let mut about = call(SMALL, None);
    let result = shaped(&about, &text_result(&"x".repeat(2000))).expect("it is too long");
    let uri = uri(link(&result)).to_owned();
    for (era, code, members) in [(Era::Modern, -32602, 4), (Era::Legacy, -32002, 1)] {
        about.era = era;
        let Verdict::Answer(text) = before(&reading(&about, &uri), &Granted).verdict else { panic!("it is there") };
        let answer: Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(answer.as_object().map(serde_json::Map::len), Some(members), "{answer}");
        let decision = before(&reading(&about, "weir-shape://crm/x"), &Granted);
        let Verdict::Deny(denial) = decision.verdict else { panic!("it is not there") };
        assert_eq!((denial.code, decision.ttl_seconds), (Some(code), 0));
    }
}

/// A store that fails or is written by others.
#[derive(Default)]
struct Difficult {
    error: Option<StoreError>,
    /// The keys that fail with it; all if it is empty.
    fails: &'static str,
    /// How many writes of an index still come too late.
    late: Cell<usize>,
    operations: Cell<usize>,
    ttls: RefCell<Vec<u32>>,
}

impl Difficult {
    fn failing(error: StoreError) -> Self {
        Self { error: Some(error), ..Self::default() }
    }

    fn count(&self, key: &str) -> Result<(), StoreError> {
        self.operations.set(self.operations.get() + 1);
        self.error.clone().filter(|_| key.ends_with(self.fails)).map_or(Ok(()), Err)
    }
}

impl PartStorage for Difficult {
    fn get(&self, key: &str) -> Result<Option<Item>, StoreError> {
        self.count(key)?;
        Granted.get(key)
    }

    fn set(&self, key: &str, value: &[u8], ttl_seconds: u32, when: Condition) -> Result<u64, StoreError> {
        self.count(key)?;
        assert!(key.len() <= 256 && value.len() <= 128 << 10);
        self.ttls.borrow_mut().push(ttl_seconds);
        if let (true, Some(late)) = (key.ends_with("/index"), self.late.get().checked_sub(1)) {
            self.late.set(late);
            return Err(StoreError::Changed);
        }
        Granted.set(key, value, ttl_seconds, when)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.count(key)?;
        Granted.delete(key)
    }
}

/// The last part of the result of a long text.
fn notice(about: &Call, length: usize, store: &impl PartStorage) -> Value {
    let decision = decision(about, &text_result(&"x".repeat(length)).to_string(), store);
    let AnswerVerdict::Replace(text) = decision.verdict else { panic!("{decision:?}") };
    let mut result: Value = serde_json::from_str(&text).expect("it is JSON");
    assert!(result["content"][0]["text"].as_str().is_some_and(|text| text.len() == 1024));
    result["content"][1].take()
}

#[test]
fn what_cannot_be_kept_is_cut_all_the_same() {
    let about = call(SMALL, None);
    let lost = |notice: Value| {
        assert_eq!(notice["type"], "text");
        let text = notice["text"].as_str().expect("it is a text").to_owned();
        assert!(text.ends_with("were delivered; the rest could not be kept, so ask for less"), "{text}");
    };
    for error in [StoreError::Unavailable("x".into()), StoreError::Limit("x".into()), StoreError::Changed] {
        lost(notice(&about, 5000, &Difficult::failing(error)));
    }
    lost(notice(&about, (512 << 10) + 1, &Granted));
    lost(notice(&about, 5000, &Difficult { late: Cell::new(9), ..Difficult::default() }));
    // The second chunk finds no room, so the first goes too.
    let full = Difficult { fails: "/1", ..Difficult::failing(StoreError::Limit("x".into())) };
    lost(notice(&about, 200_000, &full));
    let keys = weir_policy::capability::store::keys("anonymous/").expect("the stand-in works");
    assert_eq!(keys, ["anonymous/index"]);
}

#[test]
fn reads_that_fail_say_so() {
    let store = Difficult::failing(StoreError::Unavailable("x".into()));
    let uri = format!("weir-shape://crm/{}", "a".repeat(32));
    let Verdict::Deny(denial) = before(&reading(&call("{}", None), &uri), &store).verdict else { panic!("it fails") };
    assert!(denial.text.contains("try again later") && denial.code.is_none());
}

#[test]
fn writes_are_tried_again() {
    let about = call(r#"{"budget_bytes":1024,"ttl_seconds":60}"#, Some("jane"));
    let store = Difficult { late: Cell::new(2), ..Difficult::default() };
    assert_eq!(notice(&about, 5000, &store)["type"], "resource_link");
    assert!(store.ttls.borrow().iter().all(|ttl| *ttl == 60));
}

#[test]
fn a_question_never_does_more_than_64_operations() {
    let about = call(SMALL, Some("jane"));
    for _ in 0..64 {
        notice(&about, 1025, &Granted);
    }
    let part = |length: usize| json!({"type": "text", "text": "x".repeat(length)});
    let many: Vec<_> = (0..9).map(|_| part(50_000)).chain((0..50).map(|_| part(1000))).collect();
    for late in 0..4 {
        let store = Difficult { late: Cell::new(late), ..Difficult::default() };
        decision(&about, &json!({"content": many}).to_string(), &store);
        let operations = store.operations.get();
        assert!((10..=64).contains(&operations), "{operations}");
    }
}

#[test]
fn the_oldest_parts_of_a_caller_go_first() {
    let about = call(SMALL, Some("jane"));
    let store = |text: &str| {
        let result = shaped(&about, &text_result(&text.repeat(200_000))).expect("it is too long");
        uri(link(&result)).to_owned()
    };
    let (first, second, third) = (store("a"), store("b"), store("c"));
    assert_eq!(read(&about, &first), None);
    assert!(read(&about, &second).is_some() && read(&about, &third).is_some());
}

#[test]
fn large_results_end_in_time() {
    let settings = r#"{"items":10,"tools":[{"names":["*"],"keep":["*.a","*.*.b"],"drop":["*.c"]}]}"#;
    let about = call(settings, None);
    for unit in ["[],", "0,", "{\"a\":1},", "\"\\n\",", "{\"\\u0061\":[1,2]},", "[[[[1,2],3],4],5],"] {
        let document = format!("[{}0]", unit.repeat((400 << 10) / unit.len()));
        let result = format!(
            r#"{{"content":[{{"type":"text","text":{}}}],"structuredContent":{document}}}"#,
            Value::from(document.as_str())
        );
        let begun = std::time::Instant::now();
        let decision = decision(&about, &result, &Granted);
        assert!(begun.elapsed().as_millis() < 2000, "{unit} {:?}", begun.elapsed());
        assert!(matches!(decision.verdict, AnswerVerdict::Replace(_)), "{unit}");
    }
}
