use super::*;

/// The case files are run against the component elsewhere; this keeps them in step with the crate.
#[test]
fn the_case_files_hold() {
    let files = ["irreversible", "keep-last", "reversible", "settings"];
    for name in files {
        let path = format!("{}/cases/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("the file is there");
        let file: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        for key in weir_policy::capability::store::keys("").expect("the stand-in works") {
            weir_policy::capability::store::delete(&key).expect("the stand-in works");
        }
        for question in file["questions"].as_array().expect("it has questions") {
            let (with, expect) = (&question["with"], &question["expect"]);
            let subject = with["about"]["principal"]["subject"].as_str();
            let about = call(&file["settings"].to_string(), subject);
            let verdict = match question["ask"].as_str() {
                Some("wants") => {
                    let answer = wants(with["settings"].as_str().expect("it has settings"));
                    assert_eq!(answer.err().as_deref(), expect["err"].as_str(), "{question}");
                    continue;
                }
                Some("before") => match before(&about, with["params"].as_str(), &Granted).verdict {
                    Verdict::Replace(text) => serde_json::json!({"replace": text}),
                    Verdict::Allow => "allow".into(),
                    other => panic!("{other:?}"),
                },
                _ => {
                    let text = |case: &str| with["what"][case].as_str().map(str::to_owned);
                    let what = text("error").map(|text| Content::Error(Some(text)));
                    let what = what.or_else(|| text("event").map(|text| Content::Event(Some(text))));
                    let decision =
                        after(&about, String::new(), what.unwrap_or_else(|| Content::Result(text("result"))), &Granted);
                    if let Some(labels) = expect["labels"].as_array() {
                        assert_eq!(&serde_json::json!(decision.labels), &serde_json::json!(labels), "{question}");
                    }
                    match decision.verdict {
                        AnswerVerdict::Replace(text) => serde_json::json!({"replace": text}),
                        AnswerVerdict::Pass => "pass".into(),
                        other => panic!("{other:?}"),
                    }
                }
            };
            assert_eq!(verdict, expect["verdict"], "{question}");
        }
    }
}
