//! Conditions in CEL, the Common Expression Language.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use cel::Program;
use cel::common::ast::{EntryExpr, Expr, IdedExpr};

use super::read::Unreadable;
use super::string::strings;

/// The longest condition, in bytes.
const LONGEST: usize = 2048;

/// How often something may stand in a list macro (`all`, `exists`, `map`, `filter`) in another.
const DEEPEST: u32 = 2;

/// How many steps a decision may take at most, by estimate.
const MOST_STEPS: u64 = 2_000_000;

/// What a condition may refer to.
const VARIABLES: [&str; 3] = ["caller", "call", "args"];

/// A condition that was compiled.
#[derive(Clone)]
pub struct Condition {
    text: String,
    program: Arc<Program>,
    uses: [bool; 3],
    /// How many parts it has, and how deep list macros are nested.
    parts: u64,
    depth: u32,
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

    /// Whether the arguments of a call decide.
    #[must_use]
    pub const fn uses_arguments(&self) -> bool {
        self.uses[2]
    }

    /// Whether arguments of so many bytes are too long for it: an element of a list has two bytes at least.
    #[must_use]
    pub fn is_too_costly(&self, arguments: usize) -> bool {
        let elements = u64::try_from(arguments / 2 + 1).unwrap_or(u64::MAX);
        let rounds = elements.checked_pow(self.depth).unwrap_or(u64::MAX);
        self.parts.saturating_mul(rounds) > MOST_STEPS
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
        let (mut parts, mut depth, mut unknown) = (0, 0, None);
        let mut walk = |part: &IdedExpr, within: &[String], nested: u32| {
            parts += 1;
            depth = depth.max(nested);
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
        Ok(Self { text: text.to_owned(), program: Arc::new(program), uses, parts, depth })
    }
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
        for bad in ["", "args.", "argz.a", "true && user.name == 'x'", "args.items.all(i, j < 1)"] {
            assert!(bad.parse::<Condition>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_would_take_too_long_is_known_before() {
        let deep = "args.a.all(x, args.a.all(y, args.a.all(z, x == y && y == z)))";
        assert!(deep.parse::<Condition>().unwrap_err().message.contains("nested"));
        let plain = "args.amount < 100".parse::<Condition>().unwrap();
        assert!(!plain.is_too_costly(4 << 20));
        let list = "args.a.all(x, x < 100)".parse::<Condition>().unwrap();
        assert!(!list.is_too_costly(64 << 10) && list.is_too_costly(4 << 20));
        let square = "args.a.all(x, args.b.exists(y, x == y))".parse::<Condition>().unwrap();
        assert!(!square.is_too_costly(200) && square.is_too_costly(64 << 10));
    }
}
