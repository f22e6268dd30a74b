#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::*;

fn name(text: &str) -> UpstreamName {
    text.parse().unwrap()
}

fn fits(template: &str, uri: &str) -> bool {
    Templates::new(&[(template.to_owned(), name("a"))]).find(uri).is_some()
}

#[test]
fn simple_expressions_take_one_segment() {
    assert!(fits("test://template/{id}/data", "test://template/123/data"));
    assert!(!fits("test://template/{id}/data", "test://template/1/2/data"));
    assert!(!fits("test://template/{id}/data", "test://template//data"));
    assert!(!fits("test://template/{id}", "test://template/"));
    assert!(fits("a://{x}-{y}", "a://1-2"));
}

#[test]
fn operators_take_anything() {
    assert!(fits("file:///{+path}", "file:///a/b/c.txt"));
    assert!(fits("file://{/path*}", "file:///a/b"));
    assert!(fits("x://search{?q}", "x://search?q=1"));
    assert!(fits("x://search{?q}", "x://search"));
}

#[test]
fn what_is_no_template_is_compared() {
    assert!(fits("a://b", "a://b"));
    assert!(!fits("a://b", "a://bc"));
    assert!(!fits("a://{b", "a://x"));
}

#[test]
fn characters_beyond_ascii_are_kept_whole() {
    assert!(fits("x://{a}é{b}", "x://éééé"));
    assert!(!fits("x://{a}é", "x://é"));
}

/// Every text of at most `most` of these pieces.
fn all(pieces: &[&str], most: usize) -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut last = texts.clone();
    for _ in 0..most {
        last = last.iter().flat_map(|text| pieces.iter().map(move |piece| format!("{text}{piece}"))).collect();
        texts.extend(last.iter().cloned());
    }
    texts
}

/// The same question answered as simply as it can be, in whatever time that takes.
fn may_be(template: &str, uri: &str) -> bool {
    if let Some(rest) = template.strip_prefix("{x}") {
        let segment = uri.find('/').unwrap_or(uri.len());
        return (1..=segment).any(|length| may_be(rest, &uri[length..]));
    }
    if let Some(rest) = template.strip_prefix("{+x}") {
        return (0..=uri.len()).any(|length| may_be(rest, &uri[length..]));
    }
    match (template.as_bytes(), uri.as_bytes()) {
        ([], []) => true,
        ([a, ..], [b, ..]) if a == b => may_be(&template[1..], &uri[1..]),
        _ => false,
    }
}

#[test]
fn every_short_template_fits_what_it_should() {
    let uris = all(&["a", "b", "/"], 5);
    for text in all(&["a", "b", "/", "{x}", "{+x}", "aba"], 4) {
        let template = Template::read(&text).unwrap();
        for uri in &uris {
            assert_eq!(template.fits(uri, &mut { STEPS }), may_be(&text, uri), "{text} {uri}");
        }
    }
}

/// What one match costs.
fn cost(template: &str, uri: &str) -> usize {
    let mut left = usize::MAX;
    Template::read(template).unwrap().fits(uri, &mut left);
    usize::MAX - left
}

#[test]
fn a_match_costs_two_looks_at_the_address_for_each_expression() {
    for expression in ["{+a}a", "{a}a", "{+a}aaaaaaaaab", "{+a}aaaaaaaaab{b}a"] {
        let template = format!("x://{}", expression.repeat(EXPRESSIONS / 2));
        for length in [100, 1000, ADDRESS - 4] {
            let uri = format!("x://{}", "a".repeat(length));
            let spent = cost(&template, &uri);
            assert!(spent <= 4 + 2 * EXPRESSIONS * (length + 1), "{expression}: {spent} for {length}");
        }
    }
}

#[test]
fn one_upstreams_templates_cost_a_bounded_number_of_steps_and_no_other_upstream_its_own() {
    let hostile = (0..1000).map(|at| (format!("x://{}{at}", "{+a}a{b}".repeat(EXPRESSIONS / 2)), name("a")));
    let honest = [("x://{+path}".to_owned(), name("b"))];
    let templates = Templates::new(&hostile.chain(honest).collect::<Vec<_>>());
    let uri = format!("x://{}", "a".repeat(ADDRESS - 4));
    let mut steps = STEPS;
    let tried = templates.known.iter().take_while(|(template, _)| !template.fits(&uri, &mut steps) && steps > 0);
    assert!(tried.count() < 1000, "the steps are used up");
    assert_eq!(templates.find(&uri), Some(&name("b")));
}

#[test]
fn what_is_beyond_the_limits_is_not_matched() {
    let long = format!("x://{}{{a}}", "l".repeat(LONGEST));
    let many = format!("x://{}", "{+a}".repeat(EXPRESSIONS + 1));
    let listed = [(long.clone(), name("a")), (many.clone(), name("b")), ("y://{a}".to_owned(), name("c"))];
    let templates = Templates::new(&listed);
    assert_eq!(templates.find(&long.replace("{a}", "1")), None);
    assert_eq!(templates.find("x://1"), None);
    assert_eq!(templates.find(&format!("y://{}", "1".repeat(ADDRESS))), None, "an address has its limit too");
    assert_eq!(templates.find("y://1"), Some(&name("c")));
    let unmatched: Vec<_> = templates.unmatched().collect();
    assert_eq!(unmatched, [(&name("a"), &(1, long)), (&name("b"), &(1, many))]);
}
