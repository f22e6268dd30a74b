#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::*;

fn view(tools: &[&str], resources: &[&str]) -> Option<Arc<View>> {
    let entry = |key: &str, raw: String| Entry { raw: raw.into(), key: key.to_owned() };
    let tools = tools.iter().map(|name| entry(name, format!(r#"{{"x":1e400,"name":"{name}","y":[]}}"#))).collect();
    let resources = resources.iter().map(|uri| entry(uri, format!(r#"{{"uri":"{uri}"}}"#))).collect();
    let capabilities = r#"{"tools":{},"resources":{"subscribe":true}}"#.into();
    Some(Arc::new(
        View { capabilities, public: true, ..View::default() }.with(Kind::Tool, tools).with(Kind::Resource, resources),
    ))
}

fn text(merged: &Merged, kind: Kind) -> &str {
    std::str::from_utf8(merged.result(kind)).unwrap()
}

#[test]
fn names_are_public_and_the_rest_of_an_entry_is_untouched() {
    let merged = Merged::new(Era::Legacy, &["a", "b"], &[view(&["t"], &[]), view(&["t"], &[])]);
    assert_eq!(
        text(&merged, Kind::Tool),
        r#"{"tools":[{"x":1e400,"name":"a__t","y":[]},{"x":1e400,"name":"b__t","y":[]}]}"#
    );
    assert_eq!(merged.find(Kind::Tool, "b__t"), Some(&Offer { upstream: 1, native: "t".into() }));
    assert_eq!(merged.find(Kind::Tool, "t"), None);
}

#[test]
fn the_first_in_the_configuration_has_an_address() {
    let merged = Merged::new(Era::Legacy, &["a", "b"], &[view(&[], &["x://1"]), view(&[], &["x://1", "x://2"])]);
    assert_eq!(text(&merged, Kind::Resource), r#"{"resources":[{"uri":"x://1"},{"uri":"x://2"}]}"#);
    assert_eq!(merged.find_resource("x://1"), Some(0));
    assert_eq!(merged.find_resource("x://2"), Some(1));
    assert_eq!(merged.find_resource("x://3"), None);
}

#[test]
fn an_upstream_that_is_not_there_costs_the_others_nothing() {
    let merged = Merged::new(Era::Legacy, &["dead", "b"], &[None, view(&["t"], &[])]);
    assert_eq!(merged.find(Kind::Tool, "b__t").unwrap().upstream, 1);
}

#[test]
fn a_modern_list_lives_as_long_as_its_shortest_part() {
    let with = |ttl, public| {
        let view = View { ttl, public, ..View::default() };
        Some(Arc::new(view))
    };
    let end = |views: &[Option<Arc<View>>]| {
        let merged = Merged::new(Era::Modern, &["a", "b"], views);
        text(&merged, Kind::Tool).to_owned()
    };
    let (minute, hour) = (Some(Duration::from_secs(60)), Some(Duration::from_secs(3600)));
    assert_eq!(
        end(&[with(minute, true), with(hour, true)]),
        r#"{"tools":[],"resultType":"complete","ttlMs":60000,"cacheScope":"public"}"#
    );
    assert!(end(&[with(minute, true), with(hour, false)]).ends_with(r#""cacheScope":"private"}"#));
    assert!(end(&[with(minute, true), with(None, true)]).contains(r#""ttlMs":0"#));
    assert!(end(&[]).contains(r#""cacheScope":"private""#), "nothing known is nothing to share");
}

#[test]
fn capabilities_are_what_some_upstream_has() {
    let merged = Merged::new(Era::Legacy, &["a"], &[view(&[], &[])]);
    assert_eq!(
        merged.capabilities,
        r#"{"tools":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true}}"#
    );
    let modern = Merged::new(Era::Modern, &["a"], &[view(&[], &[])]);
    assert!(modern.capabilities.contains(r#""subscribe":false"#));
}
