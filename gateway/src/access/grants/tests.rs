#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use proptest::prelude::*;

use super::*;
use crate::{
    access::Access,
    config::{AccessConfig, Config, SystemEnvironment},
};

/// The rules of a configuration.
fn rules(text: &str) -> AccessConfig {
    let text = format!("{text}\n[upstreams.github]\nurl = \"https://a.example/mcp\"\n");
    let config = Config::parse(&text, std::path::Path::new("weir.toml"), &SystemEnvironment);
    config.unwrap_or_else(|problems| panic!("{problems}")).access.unwrap()
}

fn principal(subject: &str, groups: &[&str]) -> Principal {
    let mut principal = Principal::named(subject, Some("https://issuer.example".to_owned()));
    principal.groups = groups.iter().map(|group| (*group).to_owned()).collect();
    principal.claims = r#"{"department":"sales"}"#.to_owned();
    principal
}

fn call<'a>(tool: &'a str, arguments: &'a str) -> AccessRequest<'a> {
    AccessRequest {
        endpoint: "mcp",
        upstream: "github",
        item: Item::One(ListKind::Tool, tool),
        method: "tools/call",
        arguments: Some(arguments.as_bytes()),
    }
}

fn decided(access: &str, who: &Principal, tool: &str, arguments: &str) -> Decision {
    Access::new(Some(&rules(access))).grants(Some(who)).authorize(&call(tool, arguments))
}

#[test]
fn without_rules_everything_is_allowed() {
    let access = Access::new(None);
    assert!(access.grants(None).authorize(&call("x", "{}")).allowed);
    assert!(access.grants(Some(&principal("ada", &[]))).are_whole("mcp"));
}

#[test]
fn what_no_rule_allows_is_denied() {
    let text = "[[access.rules]]\ngroups = [\"ops\"]\ntools = [\"read_*\", \"github__list\"]";
    let ops = principal("ada", &["dev", "ops"]);
    for (tool, allowed) in [("read_file", true), ("list", true), ("delete", false)] {
        assert_eq!(decided(text, &ops, tool, "{}").allowed, allowed, "{tool}");
        assert!(!decided(text, &principal("eve", &["dev"]), tool, "{}").allowed);
    }
    // Of whom nothing is known, no group is.
    assert!(!Access::new(Some(&rules(text))).grants(None).authorize(&call("list", "{}")).allowed);
}

#[test]
fn a_template_is_completed_where_each_of_its_addresses_is_allowed() {
    let allow = |pattern: &str| format!("[[access.rules]]\nresources = [\"{pattern}\"]\n");
    let deny = |pattern: &str| allow(pattern) + "effect = \"deny\"\n";
    for (text, template, listed, completed) in [
        (allow("db://public/*"), "db://public/{x}", true, true),
        (allow("db://public/*"), "db://{+path}", true, false),
        (allow("db://*") + &deny("db://private/*"), "db://{+path}", true, false),
        (allow("db://*") + &deny("db://private/*"), "db://public/{x}", true, true),
        (allow("db://public/*"), "db://private/{x}", false, false),
        // A condition is about an address, and a template stands for many.
        (allow("*") + "when = \"call.name != 'db://secret'\"\n", "db://{x}", true, false),
        (allow("*") + &deny("*") + "when = \"call.name == 'db://secret'\"\n", "db://{x}", true, false),
        (allow("*") + "when = \"call.name != 'x' && caller.subject == 'ada'\"\n", "db://{x}", true, false),
        (allow("*") + "when = \"call.kind == 'resource' && caller.subject == 'ada'\"\n", "db://{x}", true, true),
    ] {
        let grants = Access::new(Some(&rules(&text))).grants(Some(&principal("ada", &[])));
        let call = |item| AccessRequest { item, method: "completion/complete", ..call("", "{}") };
        let is_listed = grants.sees("mcp", "github", Item::One(ListKind::Template, template));
        assert_eq!(is_listed, listed, "{text} {template}");
        assert_eq!(grants.authorize(&call(Item::Each(template))).allowed, completed, "{text} {template}");
    }
}

#[test]
fn each_rule_that_wants_an_approval_gets_one() {
    let text = r#"
        [[access.rules]]
        [[access.rules]]
        name = "large"
        tools = ["pay"]
        approve = { by = ["caller", "group:ops"], when = "args.amount > 10" }
        [[access.rules]]
        name = "abroad"
        tools = ["pay"]
        when = "args.abroad"
        approve = { by = "subject:bob" }
        [[access.rules]]
        name = "tried"
        tools = ["look"]
        approve = { by = "caller" }
        enforce = false
    "#;
    let ada = principal("ada", &["ops"]);
    let asks = |tool: &str, arguments: &str| {
        let decision = decided(text, &ada, tool, arguments);
        assert!(decision.allowed, "{decision}");
        decision.approvals.iter().map(|rule| rule.name.to_string()).collect::<Vec<_>>()
    };
    assert!(asks("pay", r#"{"amount":1,"abroad":false}"#).is_empty());
    assert_eq!(asks("pay", r#"{"amount":11,"abroad":true}"#), ["large", "abroad"]);
    // What cannot be evaluated wants an approval; a rule that does not match wants none.
    assert_eq!(asks("pay", r#"{"amount":"1"}"#), ["large"]);
    assert_eq!(asks("pay", r#"{"amount":1,"amount":2}"#), ["large"]);
    assert!(asks("look", "{}").is_empty());
    let shadow = decided(text, &ada, "look", "{}").shadow.unwrap();
    assert!(shadow.to_string().contains("asks caller"), "{shadow}");
    let shown = Access::new(Some(&rules(text))).grants(Some(&ada)).shows("mcp", "github", call("pay", "").item);
    assert!(shown.allowed && shown.to_string().contains("asks caller or group:ops"), "{shown}");
}

#[test]
fn a_rule_that_denies_wins() {
    let text = "[[access.rules]]\n[[access.rules]]\nname = \"no deletes\"\neffect = \"deny\"\ntools = [\"delete*\"]";
    let decision = decided(text, &principal("ada", &[]), "delete_all", "{}");
    assert!(!decision.allowed && decision.rule.as_deref() == Some("no deletes"));
    assert!(decided(text, &principal("ada", &[]), "read", "{}").allowed);
}

#[test]
fn arguments_decide_when_they_are_known() {
    let text = "[[access.rules]]\ntools = [\"pay\"]\nwhen = \"args.amount <= 100\"";
    let ada = principal("ada", &[]);
    let grants = Access::new(Some(&rules(text))).grants(Some(&ada));
    assert!(grants.sees("mcp", "github", Item::One(ListKind::Tool, "pay")));
    for (arguments, allowed) in [
        (r#"{"amount":100}"#, true),
        (r#"{"amount":99.5}"#, true),
        (r#"{"amount":-1}"#, true),
        (r#"{"amount":101}"#, false),
        // What cannot be evaluated allows nothing.
        (r#"{"amount":"1"}"#, false),
        ("{}", false),
    ] {
        let decision = grants.authorize(&call("pay", arguments));
        assert_eq!(decision.allowed, allowed, "{arguments}");
        assert_eq!(decision.by_arguments, !allowed, "{arguments}");
    }
    let absent = AccessRequest { arguments: None, ..call("pay", "") };
    assert!(!grants.authorize(&absent).allowed);
    let other = grants.authorize(&call("other", "{}"));
    assert!(!other.allowed && !other.by_arguments);
}

#[test]
fn a_condition_that_fails_denies() {
    let text = "[[access.rules]]\n[[access.rules]]\neffect = \"deny\"\nwhen = \"args.amount > 100\"";
    let ada = principal("ada", &[]);
    assert!(decided(text, &ada, "pay", r#"{"amount":1}"#).allowed);
    for arguments in [r#"{"amount":101}"#, r#"{"amount":"1"}"#, "{}"] {
        assert!(!decided(text, &ada, "pay", arguments).allowed, "{arguments}");
    }
}

#[test]
fn a_condition_knows_caller_and_call() {
    let ada = principal("ada", &["ops"]);
    for (when, allowed) in [
        ("'ops' in caller.groups", true),
        ("caller.subject == 'eve'", false),
        ("caller.issuer == 'https://issuer.example'", true),
        ("caller.claims.department == 'sales'", true),
        ("caller.claims.missing == 'sales'", false),
        ("call.upstream == 'github' && call.kind == 'tool' && call.name == 'pay'", true),
        ("call.endpoint == 'mcp' && call.method == 'tools/call'", true),
        ("call.name.startsWith(caller.subject)", false),
        ("args.tags.all(tag, tag != 'secret')", true),
        ("args.tags.exists(tag, tag == 'b')", true),
        ("args.tags.size() > 2", false),
        ("args.text.matches('^[a-z]+$')", true),
        ("has(args.text) && !has(args.other)", true),
        ("args.text", false),
        ("args.count + 1 == 3 && args.count * 2 < 5 && args.ratio < 1.0", true),
    ] {
        let text = format!("[[access.rules]]\nwhen = {}", toml::Value::from(when));
        let decision = decided(&text, &ada, "pay", r#"{"tags":["a","b"],"text":"abc","count":2,"ratio":0.5}"#);
        assert_eq!(decision.allowed, allowed, "{when}");
    }
}

#[test]
fn what_is_tried_out_changes_nothing_and_is_told() {
    let ada = principal("ada", &[]);
    let text =
        "[[access.rules]]\n[[access.rules]]\nname = \"later\"\neffect = \"deny\"\nenforce = false\ntools = [\"pay\"]";
    let decision = decided(text, &ada, "pay", "{}");
    assert!(decision.allowed && decision.rule.as_deref() == Some("rule-1"));
    let shadow = decision.shadow.unwrap();
    assert!(!shadow.allowed && shadow.rule.as_deref() == Some("later"));
    assert_eq!(decided(text, &ada, "read", "{}").shadow, None);
    let all = "[access]\nenforce = false\n[[access.rules]]\ntools = [\"read\"]";
    let decision = decided(all, &ada, "pay", "{}");
    assert!(decision.allowed && !decision.shadow.unwrap().allowed);
    assert!(Access::new(Some(&rules(all))).grants(Some(&ada)).are_whole("mcp"));
}

#[test]
fn callers_for_whom_the_same_rules_count_see_the_same() {
    let access = Access::new(Some(&rules("[[access.rules]]\ngroups = [\"ops\"]")));
    let key = |subject: &str, groups: &[&str]| access.grants(Some(&principal(subject, groups))).key().clone();
    assert_eq!(key("ada", &["ops"]), key("bob", &["ops", "dev"]));
    assert_ne!(key("ada", &["ops"]), key("ada", &["dev"]));
    let access = Access::new(Some(&rules("[[access.rules]]\nwhen = \"call.name.startsWith(caller.subject)\"")));
    let key = |subject: &str| access.grants(Some(&principal(subject, &[]))).key().clone();
    assert_ne!(key("ada"), key("bob"));
    // What arguments decide hides nothing, so no list depends on it.
    for when in ["args.amount < 10", "call.name != 'x'", "args.owner == caller.subject && call.name != 'x'"] {
        let access = Access::new(Some(&rules(&format!("[[access.rules]]\nwhen = \"{when}\""))));
        let key = |subject: &str| access.grants(Some(&principal(subject, &[]))).key().clone();
        assert_eq!(key("ada"), key("bob"), "{when}");
    }
}

fn names() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "ab", "read_a", "delete_b", "ui://a", "x://a/1"]).prop_map(str::to_owned)
}

fn patterns() -> impl Strategy<Value = String> {
    let pattern = prop::sample::select(vec!["*", "a", "a*", "*_b", "read_?", "github__*", "other__a", "x://a/*"]);
    prop::collection::vec(pattern, 1..3).prop_map(|all| toml::Value::from(all).to_string())
}

fn written_rule() -> impl Strategy<Value = String> {
    let when = prop::sample::select(vec![
        "",
        "when = \"args.n > 1\"\n",
        "when = \"'g' in caller.groups\"\n",
        "when = \"call.name != 'b'\"\n",
        "when = \"call.endpoint == 'set'\"\n",
        "when = \"call.upstream == 'github' && call.endpoint != 'mcp'\"\n",
        "when = \"call.name.startsWith(caller.subject)\"\n",
    ]);
    let lists = prop::collection::vec((prop::sample::select(vec!["tools", "prompts", "resources"]), patterns()), 0..3);
    let upstreams = prop::sample::select(vec!["", "upstreams = [\"github\"]\n", "upstreams = [\"other\"]\n"]);
    let endpoints = prop::sample::select(vec!["", "endpoints = [\"mcp\"]\n", "endpoints = [\"set\"]\n"]);
    let flags = (any::<bool>(), prop::bool::weighted(0.8));
    (when, lists, upstreams, endpoints, flags).prop_map(|(when, lists, upstreams, endpoints, (deny, enforce))| {
        let lists: std::collections::BTreeMap<_, _> = lists.into_iter().collect();
        let lists: String = lists.into_iter().map(|(key, list)| format!("{key} = {list}\n")).collect();
        let effect = if deny { "deny" } else { "allow" };
        format!("[[access.rules]]\neffect = \"{effect}\"\nenforce = {enforce}\n{when}{upstreams}{endpoints}{lists}")
    })
}

proptest! {
    /// Whatever the rules: what is not shown cannot be called, with whichever arguments, and where nothing is hidden
    /// everything may be called that no argument forbids.
    #[test]
    fn what_is_hidden_cannot_be_called(
        written in prop::collection::vec(written_rule(), 1..5),
        (name, subject) in (names(), names()),
        (in_group, n) in (any::<bool>(), 0..3),
        kind in prop::sample::select(vec![ListKind::Tool, ListKind::Prompt, ListKind::Resource]),
        endpoint in prop::sample::select(vec!["mcp", "set", "github"]),
        upstream in prop::sample::select(vec!["github", "other"]),
    ) {
        let access = Access::new(Some(&rules(&written.concat())));
        let grants = access.grants(Some(&principal(&subject, if in_group { &["g"] } else { &[] })));
        let item = Item::One(kind, &name);
        let arguments = format!("{{\"n\":{n}}}");
        let method = match kind {
            ListKind::Tool => "tools/call",
            ListKind::Prompt => "prompts/get",
            ListKind::Resource | ListKind::Template => "resources/read",
        };
        let facts = AccessRequest { endpoint, upstream, item, method, arguments: Some(arguments.as_bytes()) };
        let (sees, decision) = (grants.sees(endpoint, upstream, item), grants.authorize(&facts));
        prop_assert!(sees || !decision.allowed, "hidden and called: {}", written.concat());
        prop_assert_eq!(decision.by_arguments, sees && !decision.allowed);
        if decision.allowed {
            prop_assert!(grants.sees(endpoint, upstream, Item::Any), "called at an upstream that is hidden");
        }
        if grants.are_whole_at(endpoint, upstream) {
            prop_assert!(sees, "whole, and yet hidden: {}", written.concat());
            prop_assert!(decision.allowed || decision.by_arguments);
        }
        if grants.are_whole(endpoint) {
            prop_assert!(grants.are_whole_at(endpoint, upstream));
        }
    }
}

/// However many rules there are, and whatever a client sends.
#[test]
fn no_call_takes_long_to_judge() {
    let rule = |at: u32| format!("[[access.rules]]\nname = \"r{at}\"\nwhen = \"args.a.all(x, !(x in args.b))\"\n");
    let many = (0..300).map(rule).collect::<String>();
    let grants = Access::new(Some(&rules(&many))).grants(None);
    let list = |length: usize| vec!["\"x\""; length].join(",");
    let started = std::time::Instant::now();
    for arguments in [
        format!(r#"{{"a":[{}],"b":[{}]}}"#, list(300_000), list(300_000)),
        format!(r#"{{"a":[{}],"b":[{}]}}"#, list(20_000), list(20_000)),
        format!(r#"{{"a":[{}],"b":"{}"}}"#, list(10_000), "x".repeat(1 << 20)),
        format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000)),
    ] {
        assert!(!grants.authorize(&call("pay", &arguments)).allowed);
    }
    assert!(grants.authorize(&call("pay", r#"{"a":["x"],"b":["y"]}"#)).allowed);
    let long = "a".repeat(4 << 20);
    let patterns = "[[access.rules]]\ntools = [\"*a*a*a*a*a*b\"]";
    assert!(!decided(patterns, &principal("ada", &[]), &long, "{}").allowed);
    assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn what_is_remembered_of_a_call_is_true_of_no_other() {
    let text = "[[access.rules]]\nupstreams = ['github*']\nwhen = \"call.name == 'b' && call.method == 'tools/call'\"\n\
                [[access.rules]]\ntools = ['open']\nwhen = \"caller.subject == 'ada' && call.upstream == 'github'\"";
    let access = Access::new(Some(&rules(text)));
    let [ada, eve] = ["ada", "eve"].map(|name| access.grants(Some(&principal(name, &[]))));
    let allowed = |grants: &Grants, upstream: &str, method: &str, name: &str| {
        let item = Item::One(ListKind::Tool, name);
        let call = AccessRequest { endpoint: "mcp", upstream, item, method, arguments: Some(b"{}") };
        grants.authorize(&call).allowed
    };
    // Each twice: found out, and remembered.
    for _ in 0..2 {
        for grants in [&ada, &eve] {
            assert!(allowed(grants, "github", "tools/call", "b") && allowed(grants, "githubx", "tools/call", "b"));
            assert!(!allowed(grants, "x", "tools/call", "b") && !allowed(grants, "github", "tools/callb", ""));
            assert!(
                !allowed(grants, "github", "tools/cal", "lb")
                    && !allowed(grants, "github", "tools/call", &"b".repeat(999))
            );
        }
        assert!(allowed(&ada, "github", "tools/call", "open") && !allowed(&eve, "github", "tools/call", "open"));
    }
}
