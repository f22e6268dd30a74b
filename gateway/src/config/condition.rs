//! Conditions in CEL, the Common Expression Language.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use cel::Program;
use cel::common::ast::{EntryExpr, Expr, IdedExpr, operators};

use super::read::Unreadable;
use super::string::strings;

/// The longest condition, in bytes.
const LONGEST: usize = 2048;

/// How often something may stand in a list macro (`all`, `exists`, `map`, `filter`) in another.
const DEEPEST: u32 = 2;

/// How many steps a decision may take at most, by estimate.
pub const MOST_STEPS: u64 = 2_000_000;

/// How many steps it takes to compile a regular expression, which is done anew each time.
const REGEX: u64 = 2000;

/// What takes a single step whatever it is done with.
const SINGLE: [&str; 6] = [
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::NOT_STRICTLY_FALSE,
    operators::CONDITIONAL,
    operators::INDEX,
];

/// What a condition may refer to.
const VARIABLES: [&str; 3] = ["caller", "call", "args"];

/// What of a call is the same for all that an endpoint has of an upstream.
const PLACE: [&str; 3] = ["endpoint", "upstream", "account"];

/// What else of a call can be known without its name.
const NAMELESS: [&str; 2] = ["kind", "method"];

/// A condition that was compiled.
#[derive(Clone)]
pub struct Condition {
    text: String,
    program: Arc<Program>,
    uses: [bool; 3],
    /// Whether it looks at nothing of the call but its [`PLACE`].
    placed: bool,
    /// Whether it may look at the name of the call.
    named: bool,
    /// How many steps it takes where each list has one element.
    parts: u64,
    /// How often the size of the arguments multiplies with itself: once for each list macro in another, and once more for
    /// what looks at all of a value again for each element.
    power: u32,
}

impl Condition {
    /// What is evaluated.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Whether it is about the caller alone.
    #[must_use]
    pub const fn is_of_caller(&self) -> bool {
        !self.uses[1] && !self.uses[2]
    }

    /// Whether it is about the call alone, and not about its arguments.
    #[must_use]
    pub const fn is_of_call(&self) -> bool {
        !self.uses[0] && !self.uses[2]
    }

    /// Whether it is about the endpoint and the upstream alone.
    #[must_use]
    pub const fn is_of_place(&self) -> bool {
        self.is_of_call() && self.uses[1] && self.placed
    }

    /// Whether the name of what is called may decide.
    #[must_use]
    pub const fn is_of_name(&self) -> bool {
        self.named
    }

    /// Whether the arguments of a call decide.
    #[must_use]
    pub const fn uses_arguments(&self) -> bool {
        self.uses[2]
    }

    /// Whether it decides by the caller and by what is listed, so that lists differ from caller to caller.
    #[must_use]
    pub const fn tells_callers_apart_in_lists(&self) -> bool {
        self.uses[0] && self.uses[1] && !self.uses[2]
    }

    /// How many steps it takes with arguments of a size, by estimate.
    #[must_use]
    pub const fn steps(&self, size: u64) -> u64 {
        self.parts.saturating_mul(size.saturating_pow(self.power))
    }
}

/// By text.
impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Condition {}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Condition").field(&self.text).finish()
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Condition {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        if text.len() > LONGEST {
            return Err(Unreadable::new(format!("a condition has at most {LONGEST} bytes"), ""));
        }
        let program = Program::compile(text).map_err(|why| {
            let why = why.to_string();
            let first = why.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned();
            Unreadable::new(format!("this is no condition in CEL: {first}"), r#"such as "args.amount <= 100""#)
        })?;
        let (mut parts, mut depth, mut power, mut unknown) = (0, 0, 0, None);
        let (mut calls, mut places, mut nameless) = (0, 0, 0);
        let mut walk = |part: &IdedExpr, within: &[String], nested: u32| {
            parts += steps(part);
            let is_call = |part: &IdedExpr| matches!(&part.expr, Expr::Ident(name) if name == VARIABLES[1]);
            calls += u32::from(is_call(part));
            if let Expr::Select(select) = &part.expr
                && is_call(&select.operand)
            {
                places += u32::from(PLACE.contains(&select.field.as_str()));
                nameless += u32::from(NAMELESS.contains(&select.field.as_str()));
            }
            depth = depth.max(nested);
            power = power.max(nested + u32::from(nested > 0 && looks_at_much(part)));
            if let Expr::Ident(name) = &part.expr
                && !name.starts_with('@')
                && !VARIABLES.contains(&name.as_str())
                && !within.contains(name)
            {
                unknown.get_or_insert_with(|| name.clone());
            }
        };
        visit(program.expression(), &mut Vec::new(), 0, &mut walk);
        if let Some(name) = unknown {
            let message = format!("a condition knows `caller`, `call` and `args`, and not `{name}`");
            return Err(Unreadable::new(message, r#"such as "'ops' in caller.groups""#));
        }
        if depth > DEEPEST {
            return Err(Unreadable::new(format!("over {DEEPEST} list macros are nested here"), ""));
        }
        let references = program.references();
        let uses = VARIABLES.map(|name| references.has_variable(name));
        drop(references);
        let (placed, named) = (calls == places, calls > places + nameless);
        Ok(Self { text: text.to_owned(), program: Arc::new(program), uses, placed, named, parts, power })
    }
}

/// How many steps a part takes by itself.
fn steps(part: &IdedExpr) -> u64 {
    let compiles = matches!(&part.expr, Expr::Call(call) if call.func_name == "matches");
    if compiles { REGEX } else { 1 }
}

/// Whether a part may look at all of a value that is the same for each element: to compare it, to search it, to copy it.
fn looks_at_much(part: &IdedExpr) -> bool {
    let Expr::Call(call) = &part.expr else { return false };
    let mut common = false;
    let mut seen = |part: &IdedExpr, within: &[String], _| {
        common |=
            matches!(&part.expr, Expr::Ident(name) if VARIABLES.contains(&name.as_str()) && !within.contains(name));
    };
    visit(part, &mut Vec::new(), 0, &mut seen);
    common && !SINGLE.contains(&call.func_name.as_str())
}

/// Visits each part, with the variables of the macros that it stands in and how many they are.
fn visit(part: &IdedExpr, within: &mut Vec<String>, nested: u32, seen: &mut impl FnMut(&IdedExpr, &[String], u32)) {
    seen(part, within, nested);
    let mut inner = |part: &IdedExpr| visit(part, within, nested, seen);
    match &part.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
        Expr::Call(call) => call.target.iter().map(AsRef::as_ref).chain(&call.args).for_each(inner),
        Expr::List(list) => list.elements.iter().for_each(inner),
        Expr::Select(select) => inner(&select.operand),
        Expr::Map(map) => map.entries.iter().for_each(|entry| entry_parts(&entry.expr, &mut inner)),
        Expr::Struct(fields) => fields.entries.iter().for_each(|entry| entry_parts(&entry.expr, &mut inner)),
        Expr::Comprehension(each) => {
            inner(&each.iter_range);
            inner(&each.accu_init);
            let before = within.len();
            within.extend([each.iter_var.clone(), each.accu_var.clone()]);
            within.extend(each.iter_var2.clone());
            for part in [&each.loop_cond, &each.loop_step, &each.result] {
                visit(part, within, nested + 1, seen);
            }
            within.truncate(before);
        }
    }
}

fn entry_parts(entry: &EntryExpr, inner: &mut impl FnMut(&IdedExpr)) {
    match entry {
        EntryExpr::StructField(field) => inner(&field.value),
        EntryExpr::MapEntry(entry) => {
            inner(&entry.key);
            inner(&entry.value);
        }
    }
}

strings! { Condition: "a condition in CEL, as a string", { "type": "string", "minLength": 1 }; }

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn a_condition_knows_what_it_refers_to() {
        let of = |text: &str| text.parse::<Condition>().unwrap();
        assert!(of("'ops' in caller.groups").is_of_caller());
        assert!(!of("call.tool == 'x'").is_of_caller() && !of("call.tool == 'x'").uses_arguments());
        assert!(of("args.items.all(item, item.price < 10)").uses_arguments());
        for place in ["call.endpoint == 'x'", "call.upstream in ['x'] || call.account != call.endpoint"] {
            assert!(of(place).is_of_place(), "{place}");
        }
        for item in [
            "call.name == 'x'",
            "call.endpoint == 'x' && call.kind == 'tool'",
            "call.endpoint == caller.subject",
            "call.endpoint == args.a",
            "call['name'] == call.endpoint",
            "call == {}",
            "true",
        ] {
            assert!(!of(item).is_of_place(), "{item}");
        }
        for (text, named) in [
            ("call.name == 'x'", true),
            ("call == {}", true),
            ("call['kind'] == 'x'", true),
            ("call.kind == 'x' && call.method == call.endpoint", false),
            ("'name' in caller.groups", false),
        ] {
            assert_eq!(of(text).is_of_name(), named, "{text}");
        }
        for bad in ["", "args.", "argz.a", "true && user.name == 'x'", "args.items.all(i, j < 1)"] {
            assert!(bad.parse::<Condition>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_would_take_too_long_is_known_before() {
        let deep = "args.a.all(x, args.a.all(y, args.a.all(z, x == y && y == z)))";
        assert!(deep.parse::<Condition>().unwrap_err().message.contains("nested"));
        let steps = |text: &str, size: u64| text.parse::<Condition>().unwrap().steps(size);
        assert!(steps("args.amount < 100", 100_000) < 100);
        let list = "args.a.all(x, x < 100)";
        assert!(steps(list, 30_000) < MOST_STEPS && steps(list, 1_000_000) > MOST_STEPS);
        // Each of these looks at one list, or at a long text, for each element of another.
        for square in [
            "args.a.all(x, args.b.exists(y, x == y))",
            "args.a.all(x, x in args.b)",
            "args.a.all(x, args.b == args.c)",
            "args.a.all(x, args.b.contains(x))",
            "args.a.all(x, size(args.b + args.c) < 3)",
        ] {
            assert!(steps(square, 100) < MOST_STEPS && steps(square, 10_000) > MOST_STEPS, "{square}");
        }
        let compiled = "args.a.all(x, x.matches('a+'))";
        assert!(steps(compiled, 100) < MOST_STEPS && steps(compiled, 2000) > MOST_STEPS);
    }
}
