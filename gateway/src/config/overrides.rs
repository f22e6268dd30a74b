//! Settings that the environment has instead of the file: `WEIR__LISTEN=0.0.0.0:8080`.
//!
//! They are put into the tree before it is read, so they are checked as the file is. What is wrong with one is told by
//! the name of its variable.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::Environment;
use super::problem::ProblemReport;
use super::read::Node;

/// How such variables begin. Two underscores keep them apart from others of Weir, such as `WEIR_CONFIG`.
const PREFIX: &str = "WEIR__";

/// The table below which names stay as they are written: variables of a program.
const VERBATIM: &str = "env";

/// A variable that overrides a setting. Its value may be secret, so there is no `Debug`.
pub struct Override {
    /// The variable.
    pub variable: String,
    /// The setting, as a dotted key.
    pub setting: String,
    text: String,
}

/// The overrides of an environment, in the order of their names: a table comes before what is in it.
#[must_use]
pub fn overrides(environment: &dyn Environment) -> Vec<Override> {
    let mut variables = environment.names();
    variables.retain(|name| name.starts_with(PREFIX));
    variables.sort();
    let found = |variable: String| {
        let text = environment.variable(&variable)?.into_string().ok()?;
        Some(Override { setting: keys(&variable).join("."), variable, text })
    };
    variables.into_iter().filter_map(found).collect()
}

/// Puts overrides into a tree.
pub(super) fn apply<'n>(tree: &mut Node<'n>, overrides: &'n [Override], report: &mut ProblemReport<'_>) {
    for Override { variable, text, .. } in overrides {
        let (keys, at) = (keys(variable), report.variable(variable));
        if keys.iter().any(String::is_empty) {
            let hint = "a key between two underscores and the next, such as WEIR__LIMITS__SESSIONS";
            report.add(at, "this variable names no setting", Some(hint.to_owned()));
        } else if let Err(message) = put(tree, &keys, value(text, &at), &at) {
            report.add(at, message, None);
        }
    }
}

fn keys(variable: &str) -> Vec<String> {
    let written: Vec<&str> = variable[PREFIX.len()..].split("__").collect();
    let verbatim = written.iter().position(|key| key.eq_ignore_ascii_case(VERBATIM)).unwrap_or(written.len());
    let key = |(at, key): (usize, &&str)| if at > verbatim { (*key).to_owned() } else { key.to_ascii_lowercase() };
    written.iter().enumerate().map(key).collect()
}

/// What a variable holds: a value of TOML, or else text.
fn value<'n>(text: &'n str, at: &Range<usize>) -> Node<'n> {
    match DeValue::parse(text) {
        Ok(value) => moved(value, at),
        Err(_) => Spanned::new(at.clone(), DeValue::String(text.into())),
    }
}

/// The value with all that is in it at this place: its own positions are none of the file.
fn moved<'n>(value: Node<'n>, at: &Range<usize>) -> Node<'n> {
    let entry = |(key, value): (Spanned<DeString<'n>>, Node<'n>)| {
        (Spanned::new(at.clone(), key.into_inner()), moved(value, at))
    };
    let value = match value.into_inner() {
        DeValue::Array(array) => DeValue::Array(array.into_iter().map(|value| moved(value, at)).collect()),
        DeValue::Table(table) => DeValue::Table(table.into_iter().map(entry).collect()),
        single => single,
    };
    Spanned::new(at.clone(), value)
}

/// Sets one key of the tree. Tables that are not there are begun.
fn put<'n>(node: &mut Node<'n>, keys: &[String], value: Node<'n>, at: &Range<usize>) -> Result<(), String> {
    let Some((key, rest)) = keys.split_first() else {
        *node = value;
        return Ok(());
    };
    let DeValue::Table(table) = node.get_mut() else {
        return Err(format!("there is no table that could have the key `{}`", key.escape_debug()));
    };
    let key = written(table, key);
    let (key, mut inner) = match table.remove_entry(key.as_str()) {
        Some(there) if !rest.is_empty() => there,
        _ => (Spanned::new(at.clone(), key.into()), Spanned::new(at.clone(), DeValue::Table(DeTable::new()))),
    };
    let done = put(&mut inner, rest, value, at);
    table.insert(key, inner);
    done
}

/// The key as the file has it: variables know neither `-` nor, by custom, small letters.
fn written(table: &DeTable<'_>, key: &str) -> String {
    let plain = |key: &str| key.replace('-', "_").to_ascii_lowercase();
    let mut there = table.keys().map(|there| there.get_ref().as_ref());
    match table.contains_key(key) {
        true => key.to_owned(),
        false => there.find(|there: &&str| plain(there) == plain(key)).unwrap_or(key).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

    use std::path::Path;

    use super::*;

    fn overridden(file: &str, variables: &[(&str, &str)]) -> Result<String, String> {
        let overrides: Vec<Override> = variables
            .iter()
            .map(|(variable, text)| Override {
                variable: (*variable).to_owned(),
                setting: String::new(),
                text: (*text).to_owned(),
            })
            .collect();
        let mut report = ProblemReport::new(Path::new("weir.toml"), file);
        let table = DeTable::parse(file).unwrap();
        let mut tree = Spanned::new(table.span(), DeValue::Table(table.into_inner()));
        apply(&mut tree, &overrides, &mut report);
        let shown = shown(&tree);
        if report.is_clean() { Ok(shown) } else { Err(report.into_problems().to_string()) }
    }

    fn shown(node: &Node<'_>) -> String {
        match node.get_ref() {
            DeValue::Table(table) => {
                let entry =
                    |(key, value): (&Spanned<DeString<'_>>, &Node<'_>)| format!("{}={}", key.get_ref(), shown(value));
                format!("{{{}}}", table.iter().map(entry).collect::<Vec<_>>().join(","))
            }
            DeValue::Array(array) => format!("[{}]", array.iter().map(shown).collect::<Vec<_>>().join(",")),
            DeValue::String(text) => format!("'{text}'"),
            DeValue::Boolean(value) => value.to_string(),
            DeValue::Integer(value) => value.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_variable_takes_the_place_of_a_setting_or_begins_its_table() {
        let file = "listen = '127.0.0.1:1'\n[upstreams.my-files]\nurl = 'http://a/'";
        let variables = [("WEIR__LISTEN", "0.0.0.0:8080"), ("WEIR__LIMITS__SESSIONS", "5")];
        assert_eq!(
            overridden(file, &variables).unwrap(),
            "{limits={sessions=5},listen='0.0.0.0:8080',upstreams={my-files={url='http://a/'}}}"
        );
        let variables = [("WEIR__UPSTREAMS__MY_FILES__ENABLED", "false"), ("WEIR__UPSTREAMS__NEW__URL", "http://b/")];
        assert_eq!(
            overridden(file, &variables).unwrap(),
            "{listen='127.0.0.1:1',upstreams={my-files={enabled=false,url='http://a/'},new={url='http://b/'}}}"
        );
    }

    #[test]
    fn variables_of_programs_keep_their_letters_and_lists_are_taken_whole() {
        let variables = [("WEIR__UPSTREAMS__A__ARGS", "['x', 'y']"), ("WEIR__UPSTREAMS__A__ENV__API_KEY", "k v")];
        let expected = "{upstreams={a={args=['x','y'],env={API_KEY='k v'}}}}";
        assert_eq!(overridden("[upstreams.a]\nargs = ['z']", &variables).unwrap(), expected);
    }

    #[test]
    fn what_is_wrong_is_told_by_the_name_of_the_variable() {
        let told = overridden("listen = 'x'", &[("WEIR__", "1"), ("WEIR__LISTEN__PORT", "secret")]).unwrap_err();
        assert!(told.contains("WEIR__: this variable names no setting"), "{told}");
        assert!(told.contains("WEIR__LISTEN__PORT: there is no table that could have the key `port`"), "{told}");
        assert!(!told.contains("secret"), "{told}");
    }
}
