#![allow(clippy::expect_used, reason = "a test stops at the first surprise")]

use weir_policy::json::Json;

use crate::{
    family::Family,
    rewrite::{input, same},
};

/// Schemas as generators and people write them.
const CORPUS: [&str; 22] = [
    r#"{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}"#,
    // zod
    r##"{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"url":{"type":"string","format":"uri"},
        "n":{"type":"integer","exclusiveMinimum":0,"maximum":9007199254740991}},"required":["url"],"additionalProperties":false}"##,
    // pydantic
    r##"{"$defs":{"Kind":{"enum":["a","b"],"type":"string"},"Item":{"type":"object","properties":{"kind":{"$ref":"#/$defs/Kind"},
        "note":{"anyOf":[{"type":"string"},{"type":"null"}],"default":null}},"required":["kind"]}},
        "type":"object","properties":{"items":{"type":"array","items":{"$ref":"#/$defs/Item"}}},"required":["items"]}"##,
    // A tree.
    r##"{"$defs":{"Node":{"type":"object","properties":{"name":{"type":"string"},"children":{"type":"array",
        "items":{"$ref":"#/$defs/Node"}}}}},"type":"object","properties":{"root":{"$ref":"#/$defs/Node"}}}"##,
    // Forms at the root.
    r#"{"oneOf":[{"type":"object","properties":{"id":{"type":"integer"},"x":{"type":"string"}},"required":["id","x"]},
        {"type":"object","properties":{"name":{"type":"string"},"x":{"type":"string"}},"required":["name","x"]}]}"#,
    r#"{"type":"object","properties":{"v":{"anyOf":[{"type":"string"},{"type":"integer"},{"type":"null"}]}}}"#,
    r#"{"type":"object","properties":{"v":{"type":["string","null"]},"w":{"type":["integer","string"]},"x":{"type":["null"]}}}"#,
    r#"{"type":"object","properties":{"point":{"type":"array","prefixItems":[{"type":"number"},{"type":"number"}],"items":false}}}"#,
    r#"{"type":"object","properties":{"any":{},"all":true,"none":false,"list":{"type":"array"}},"required":["any","none","gone"]}"#,
    r#"{"type":"object","properties":{"v":{"const":"fixed"},"n":{"enum":[1,2,3]},"m":{"enum":["a",1,null]}}}"#,
    r#"{"type":"object","allOf":[{"properties":{"a":{"type":"string"}},"required":["a"]},{"properties":{"b":{"type":"boolean"}}}]}"#,
    r#"{"type":"object","properties":{"a":{"type":"string"}},"if":{"properties":{"a":{"const":"x"}}},"then":{"required":["b"]},
        "not":{"required":["c"]},"patternProperties":{"^x":{"type":"string"}},"propertyNames":{"minLength":1}}"#,
    r#"{}"#,
    r#"{"type":"object"}"#,
    // It refers to itself at once.
    r##"{"type":"object","properties":{"a":{"$ref":"#/properties/a"},"b":{"allOf":[{"$ref":"#/properties/b"}]}}}"##,
    r##"{"type":"object","properties":{"m":{"type":"object","additionalProperties":{"type":"integer"}},"t":{"type":"string",
        "format":"date-time","description":"When."}}}"##,
    // Either this or that.
    r#"{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"anyOf":[{"required":["a"]},{"required":["b"]}]}"#,
    // Draft 4, and mistakes.
    r#"{"type":"object","properties":{"n":{"type":"number","minimum":0,"exclusiveMinimum":true},"x":{"type":"any"},"e":{"enum":"a"},
        "s":{"type":"string","properties":{"y":{}}},"v":{"type":"string","enum":["","a"]},"p":{"type":"string","pattern":"^(?!x).*$"}}}"#,
    r#"{"type":"object","properties":{"m":{"type":"object","patternProperties":{"^x":{"type":"string"}},"additionalProperties":false}}}"#,
    r#"{"type":"object","properties":{"e":{"anyOf":[{"type":"string","enum":["a"]},{"type":"null"}],"description":"Either."}}}"#,
    r#"{"oneOf":[{"type":"object","properties":{"v":{"type":"string"}}},{"type":"object","properties":{"v":{"type":"number"}}}]}"#,
    r#"{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}"#,
];

fn schema(text: &str) -> Json {
    Json::parse(text).expect(text)
}

/// What a family rejects, wherever it stands; its words and where.
fn rejected(value: &Json, family: Family, at: &str, all: &mut Vec<String>) {
    for (key, inner) in value.members() {
        let here = format!("{at}/{key}");
        if !family.takes(key) || (key == "format" && !family.takes_format(inner.as_text().unwrap_or_default())) {
            all.push(here.clone());
        }
        match key.as_str() {
            "properties" => {
                inner.members().iter().for_each(|(name, it)| rejected(it, family, &format!("{here}/{name}"), all))
            }
            "items" => rejected(inner, family, &here, all),
            "anyOf" => inner.elements().iter().for_each(|it| rejected(it, family, &here, all)),
            "type" if inner.as_text().is_none() && !family.has_type_lists() => all.push(here),
            "enum" if !family.has_mixed_enums() && inner.elements().iter().any(|it| it.as_text().is_none()) => {
                all.push(here)
            }
            "required" => {
                let properties = value.get("properties").cloned().unwrap_or_default();
                let lost = inner.elements().iter().filter_map(Json::as_text).any(|name| properties.get(name).is_none());
                all.extend(lost.then_some(here));
            }
            _ => {}
        }
    }
    if value.get("anyOf").is_some() && (at.is_empty() || value.get("type").is_some() && family == Family::Gemini) {
        all.push(format!("{at}: a union at the root, or beside a type"));
    }
    let is_text = |key: &str| value.get(key).is_none_or(|value| value.as_text().is_some());
    let lookaround = value.get("pattern").and_then(Json::as_text).is_some_and(|pattern| pattern.contains("(?"));
    let bound = value.get("exclusiveMinimum").is_some_and(|bound| bound.as_bool().is_some());
    let empty = !family.has_mixed_enums() && value.get("enum").is_some_and(|all| all.elements().contains(&"".into()));
    if lookaround || bound || empty || !is_text("pattern") || value.get("type") == Some(&"any".into()) {
        all.push(format!("{at}: a value that it does not take"));
    }
    let is_array = value.get("type") == Some(&"array".into());
    if is_array && value.get("items").is_none() {
        all.push(format!("{at}: an array of nothing"));
    }
    if !family.has_untyped() && value.get("type").is_none() && value.get("anyOf").is_none() {
        all.push(format!("{at}: no type"));
    }
}

#[test]
fn nothing_is_left_that_the_family_rejects_and_a_second_time_changes_nothing() {
    for text in CORPUS {
        for family in Family::EACH {
            let once =
                input(&schema(text), family, (1024, false)).unwrap_or_else(|why| panic!("{family:?} {text}: {why}"));
            let mut all = Vec::new();
            rejected(&once, family, "", &mut all);
            assert!(all.is_empty(), "{family:?} {text}: {all:?} in {once}");
            assert_eq!(once.get("type"), Some(&"object".into()), "{family:?} {text}: {once}");
            let twice = input(&once, family, (1024, false)).expect("it was good before");
            assert!(same(&once, &twice), "{family:?} {text}: {once} became {twice}");
        }
    }
}

fn rewritten(text: &str, family: Family) -> String {
    input(&schema(text), family, (1024, false)).expect(text).to_string()
}

#[test]
fn references_and_nulls_are_said_in_place() {
    assert_eq!(
        rewritten(CORPUS[2], Family::Gemini),
        r#"{"type":"object","properties":{"items":{"type":"array","items":{"type":"object","properties":{"kind":{"enum":["a","b"],"type":"string"},"note":{"default":null,"type":"string","nullable":true}},"required":["kind"]}}},"required":["items"]}"#
    );
    let node = rewritten(CORPUS[3], Family::Any);
    assert!(node.contains("children") && node.contains("(goes on in the same way)"), "{node}");
    assert!(
        rewritten(CORPUS[6], Family::OpenAi)
            .contains(r#""v":{"type":["string","null"]},"w":{"type":["integer","string"]}"#)
    );
}

#[test]
fn forms_become_one_object_that_takes_each_of_them() {
    let one = rewritten(CORPUS[4], Family::Any);
    let one = schema(&one);
    let names: Vec<&str> =
        one.get("properties").expect("it has some").members().iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["id", "x", "name"]);
    assert_eq!(one.get("required").map(ToString::to_string).as_deref(), Some(r#"["x"]"#));
}

#[test]
fn what_cannot_be_rewritten_says_why() {
    let bomb = {
        let levels: Vec<String> = (0..30)
            .map(|level| {
                let next = format!(r##"{{"$ref":"#/$defs/l{}"}}"##, level + 1);
                format!(r#""l{level}":{{"type":"object","properties":{{"a":{next},"b":{next}}}}}"#)
            })
            .collect();
        format!(
            r##"{{"$defs":{{{},"l30":{{}}}},"type":"object","properties":{{"x":{{"$ref":"#/$defs/l0"}}}}}}"##,
            levels.join(",")
        )
    };
    for (text, why) in [
        (r#"{"type":"string"}"#, "no object"),
        (r#"{"type":"object","properties":{"a b":{}}}"#, "property"),
        (r##"{"type":"object","properties":{"a":{"$ref":"#/nowhere"}}}"##, "leads nowhere"),
        (r##"{"type":"object","properties":{"a":{"$ref":"https://example.com/schema"}}}"##, "leads nowhere"),
        (&bomb, "too large"),
    ] {
        let refused = input(&schema(text), Family::Any, (1024, false)).expect_err(text);
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn depth_has_an_end() {
    let deep = r#"{"type":"object","properties":{"a":"#.repeat(60) + "{}" + &"}}".repeat(60);
    let rewritten = rewritten(&deep, Family::Any);
    assert!(rewritten.contains("(goes on in the same way)") && rewritten.len() < deep.len(), "{rewritten}");
}

#[test]
fn descriptions_are_cut_at_a_character() {
    let text = format!(r#"{{"type":"object","description":"{}"}}"#, "é".repeat(200));
    let rewritten = input(&schema(&text), Family::Any, (64, false)).expect("it is good");
    let description = rewritten.get("description").and_then(Json::as_text).expect("it has one");
    assert_eq!((description.chars().count(), description.ends_with('…')), (64, true));
}

#[test]
fn what_is_valid_stays_valid_where_it_can_be_said() {
    let rewritten = |at: usize, family| rewritten(CORPUS[at], family);
    let either = rewritten(16, Family::OpenAi);
    assert!(
        !either.contains("anyOf") && !either.contains("required") && either.contains(r#""b":{"type":"string"}"#),
        "{either}"
    );
    assert!(!rewritten(18, Family::Anthropic).contains("additionalProperties"));
    assert!(
        rewritten(19, Family::OpenAi).contains(r#""enum":["a",null],"type":["string","null"]"#)
            || rewritten(19, Family::OpenAi).contains(r#""type":["string","null"],"enum":["a",null]"#),
        "{}",
        rewritten(19, Family::OpenAi)
    );
    assert!(rewritten(20, Family::OpenAi).contains(r#""v":{"anyOf":[{"type":"string"},{"type":"number"}]}"#));
    assert!(rewritten(9, Family::Gemini).contains("One of: 1, 2, 3."));
    for family in Family::EACH {
        assert!(rewritten(21, family).contains(r#""x-mcp-header":"Region""#), "calls without the header are refused");
    }
}

#[test]
fn text_that_is_referred_to_over_and_over_is_counted() {
    let uses: Vec<String> = (0..400).map(|at| format!(r##""p{at}":{{"$ref":"#/$defs/long"}}"##)).collect();
    let long = "x".repeat(40_000);
    let text = format!(
        r##"{{"$defs":{{"long":{{"type":"string","default":"{long}"}}}},"type":"object","properties":{{{}}}}}"##,
        uses.join(",")
    );
    assert!(input(&schema(&text), Family::OpenAi, (1024, false)).expect_err("it is 16 MB").contains("too large"));
}

#[test]
fn a_property_gets_a_name_that_is_taken_where_that_is_wanted() {
    let odd = schema(
        r#"{"type":"object","properties":{"$top":{"type":"integer"},"o":{"type":"object","properties":{"a b":{"type":"string"}},
            "required":["a b"]}},"required":["$top","o"]}"#,
    );
    let renamed = input(&odd, Family::OpenAi, (1024, true)).expect("it is renamed").to_string();
    let expected = r#"{"type":"object","properties":{"weir_.24.top":{"type":"integer"},"o":{"type":"object",
        "properties":{"weir_a.20.b":{"type":"string"}},"required":["weir_a.20.b"]}},"required":["weir_.24.top","o"]}"#;
    assert!(same(&schema(&renamed), &schema(expected)), "{renamed}");
    let kept = input(&odd, Family::Gemini, (1024, true)).expect("Gemini takes it").to_string();
    assert!(kept.contains("$top"), "{kept}");
    assert!(input(&odd, Family::OpenAi, (1024, false)).is_err());
    // A name that would be read as another one in a call.
    let taken = schema(r#"{"type":"object","properties":{"weir_.24.top":{}}}"#);
    assert!(input(&taken, Family::OpenAi, (1024, true)).is_err());
}
