#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use serde_json::{Value, json};
use weir_flow::facts::Principal;
use weir_mcp::ListKind;

use super::*;
use crate::{
    access::{
        AccessRequest, Item,
        arguments::Arguments,
        condition::{Verdict, caller},
    },
    config::Condition,
};

/// Has both evaluate a condition over these arguments.
fn judge<T>(condition: &Condition, arguments: &str, with: impl FnOnce(&Facts<'_, '_>) -> T) -> T {
    let mut principal = Principal::named("ada", Some("https://issuer.example".to_owned()));
    principal.groups = vec!["a".to_owned(), "ops".to_owned()];
    principal.claims = r#"{"s":"ab","n":1,"o":{"s":"a"},"l":["a",1]}"#.to_owned();
    let caller = caller(Some(&principal));
    let item = Item::One(ListKind::Tool, "ab");
    let call = AccessRequest { endpoint: "mcp", upstream: "a", item, method: "tools/call", arguments: None };
    let arguments = Arguments::new(arguments.as_bytes());
    if condition.uses_arguments() && !arguments.may_be_judged_by(condition) {
        panic!("such arguments are judged");
    }
    with(&Facts::of_call(&*caller, (&call, "work"), Some(&arguments)))
}

fn members() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2i64..3).prop_map(Value::from),
        prop::sample::select(vec![u64::MAX, 1 << 63, 2]).prop_map(Value::from),
        prop::sample::select(vec![1.0, 1.5, -0.0, 1e300]).prop_map(Value::from),
        prop::sample::select(vec!["", "a", "ab", "b", "\u{e9}", "ops"]).prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(2, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(prop::sample::select(vec!["s", "n", "a"]), inner, 0..3)
                .prop_map(|all| all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    });
    prop::collection::btree_map(prop::sample::select(vec!["s", "n", "l", "o", "b"]), value, 0..5)
        .prop_map(|all| all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// Plain conditions, of all types and of those that do not fit.
fn written() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "args",
        "args.s",
        "args.n",
        "args.l",
        "args.o",
        "args.b",
        "args.o.s",
        "args['s']",
        "caller.subject",
        "caller.groups",
        "caller.claims",
        "caller.claims.n",
        "caller.claims.o.s",
        "caller.missing",
        "call",
        "call.name",
        "call.kind",
        "call.account",
        "call.missing",
        "call['name']",
        "1",
        "2u",
        "1.5",
        "'a'",
        "'ab'",
        "''",
        "true",
        "false",
        "null",
        "b'a'",
        "args.n <= 1",
        "args.s.startsWith('a')",
        "has(args.s)",
        "has(call.name)",
        "'a' in args.l",
        "'s' in args.o",
        "args.b == true",
        "args.s in ['a', 'b']",
        "args.l.size() > 1",
        "args.n != 1",
    ]);
    leaf.prop_map(|leaf| format!("({leaf})")).prop_recursive(4, 24, 3, |inner| {
        let operator = prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">=", "in", "&&", "||", "&&", "||"]);
        let function = prop::sample::select(vec!["startsWith", "endsWith", "contains"]);
        let around = prop::sample::select(vec!["!", "size", "has", ".size()", ".s", "['s']"]);
        prop_oneof![
            4 => (inner.clone(), operator, inner.clone()).prop_map(|(left, operator, right)| format!("({left} {operator} {right})")),
            2 => (inner.clone(), around).prop_map(|(part, around)| match around {
                "!" => format!("(!{part})"),
                "size" => format!("size({part})"),
                "has" => format!("has({part}.s)"),
                after => format!("({part}{after})"),
            }),
            1 => (inner.clone(), function, inner.clone()).prop_map(|(text, function, part)| format!("{text}.{function}({part})")),
            1 => (inner.clone(), prop::collection::vec(inner.clone(), 0..3))
                .prop_map(|(element, all)| format!("({element} in [{}])", all.join(", "))),
            1 => (inner.clone(), inner.clone(), inner).prop_map(|(is, yes, no)| format!("({is} ? {yes} : {no})")),
        ]
    })
}

/// Arguments of the types that [`fitting`] conditions ask for.
fn typed_members() -> impl Strategy<Value = Value> {
    let text = || prop::sample::select(vec!["", "a", "ab", "b"]);
    let number = prop_oneof![(-2i64..3).prop_map(Value::from), Just(Value::from(1.5)), Just(Value::from(u64::MAX))];
    (text(), number, prop::collection::vec(text(), 0..3), any::<bool>(), prop::option::of(text())).prop_map(
        |(text, number, list, flag, inner)| {
            let inner: serde_json::Map<_, _> = inner.map(|inner| ("s".to_owned(), inner.into())).into_iter().collect();
            json!({ "s": text, "n": number, "l": list, "b": flag, "o": inner })
        },
    )
}

/// Conditions whose types fit, so that nearly all of them hold or do not.
fn fitting() -> impl Strategy<Value = String> {
    let text =
        || prop::sample::select(vec!["args.s", "call.name", "caller.subject", "caller.claims.s", "'a'", "'ab'", "''"]);
    let number = || {
        prop::sample::select(vec!["args.n", "caller.claims.n", "args.l.size()", "size(args.s)", "1", "-1", "1.5", "2u"])
    };
    let list = || prop::sample::select(vec!["args.l", "caller.groups", "['a', args.s]", "args.o", "caller.claims"]);
    let order = || prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]);
    let find = prop::sample::select(vec!["startsWith", "endsWith", "contains"]);
    let plain = prop::sample::select(vec!["args.b", "has(args.o.s)", "has(args.missing)", "true", "args.o.s == 'a'"]);
    let leaf = prop_oneof![
        (text(), order(), text()).prop_map(|(left, order, right)| format!("{left} {order} {right}")),
        (number(), order(), number()).prop_map(|(left, order, right)| format!("{left} {order} {right}")),
        (text(), list()).prop_map(|(element, list)| format!("{element} in {list}")),
        (text(), find, text()).prop_map(|(text, find, part)| format!("{text}.{find}({part})")),
        plain.prop_map(str::to_owned),
    ];
    leaf.prop_map(|leaf| format!("({leaf})")).prop_recursive(3, 12, 3, |inner| {
        let operator = prop::sample::select(vec!["&&", "||", "==", "!="]);
        prop_oneof![
            3 => (inner.clone(), operator, inner.clone()).prop_map(|(left, operator, right)| format!("({left} {operator} {right})")),
            1 => inner.clone().prop_map(|part| format!("(!{part})")),
            1 => (inner.clone(), inner.clone(), inner).prop_map(|(is, yes, no)| format!("({is} ? {yes} : {no})")),
        ]
    })
}

/// Has both evaluate a condition, and compares what they come to.
fn compare(text: &str, arguments: &Value) -> Result<Option<Verdict>, TestCaseError> {
    let Ok(condition) = text.parse::<Condition>() else { return Ok(None) };
    judge(&condition, &arguments.to_string(), |facts| {
        let truth = evaluate(condition.program().expression(), facts).and_then(truth);
        prop_assert_ne!(truth, Err(NotPlain), "it is plain");
        let verdict = facts.satisfy(&condition);
        prop_assert_eq!(verdict, facts.interpret(&condition), "{} of {}", text, arguments);
        Ok(Some(verdict))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_interpreter_comes_to_the_same(text in written(), arguments in members()) {
        compare(&text, &arguments)?;
    }
}

#[test]
fn the_interpreter_comes_to_the_same_where_types_fit() {
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() });
    let (mut holding, mut failing) = (0, 0);
    let both = (fitting(), typed_members());
    for _ in 0..runner.config().cases {
        let (text, arguments) = both.new_tree(&mut runner).unwrap().current();
        match compare(&text, &arguments).unwrap() {
            Some(Verdict::Yes) => holding += 1,
            Some(Verdict::Failed) | None => failing += 1,
            _ => {}
        }
    }
    assert!(holding > 400 && failing < 600, "{holding} hold and {failing} fail: the cases say little");
}

#[test]
fn what_is_not_plain_is_the_interpreters() {
    let arguments = json!({ "l": ["a", "b"], "s": "abc", "n": 2 }).to_string();
    for (text, verdict) in [
        ("args.l.all(x, x != 'c')", Verdict::Yes),
        ("args.s.matches('^[a-z]+$')", Verdict::Yes),
        ("args.n + 1 == 4", Verdict::No),
        ("args.l[0] == 'a'", Verdict::Yes),
        ("args.n > 1 && args.l.exists(x, x == 'c')", Verdict::No),
        ("args.l.exists(x, x == 'b') || args.missing", Verdict::Yes),
        ("type(args.n) == type(1)", Verdict::Yes),
        ("args.missing.all(x, true)", Verdict::Failed),
    ] {
        let condition: Condition = text.parse().unwrap();
        judge(&condition, &arguments, |facts| {
            let evaluation = evaluate(condition.program().expression(), facts).and_then(truth);
            assert_eq!(evaluation, Err(NotPlain), "{text}");
            assert_eq!(facts.satisfy(&condition), verdict, "{text}");
        });
    }
}

#[test]
fn what_settles_a_condition_is_not_looked_at_further() {
    let arguments = json!({ "n": 2 }).to_string();
    for (text, verdict) in [
        ("args.n > 1 || args.l.all(x, x)", Verdict::Yes),
        ("args.missing == 1 || args.n == 2", Verdict::Yes),
        ("args.n == 2 || args.missing == 1", Verdict::Yes),
        ("args.missing == 1 && args.n == 3", Verdict::No),
        ("args.missing == 1 && args.n == 2", Verdict::Failed),
        ("args.n", Verdict::Failed),
        ("args.n < 'a'", Verdict::Failed),
    ] {
        let condition: Condition = text.parse().unwrap();
        judge(&condition, &arguments, |facts| {
            assert_ne!(evaluate(condition.program().expression(), facts).and_then(truth), Err(NotPlain), "{text}");
            assert_eq!(facts.satisfy(&condition), verdict, "{text}");
        });
    }
}
