//! JSON: one property, placed by the ranges of the parsed text.

use std::ops::Range;

use jsonc_parser::{
    CollectOptions,
    ast::{Object, ObjectProp, Value},
    parse_to_ast,
};

use super::{
    Place, append, newline,
    shape::{Field, Fields, braces, inline, quote},
};
use crate::value::{Format, json_options};

const NO_MAP: &str = "A key on the way to the servers is no map";

/// White space, comments and a comma between two values.
struct Trivia {
    comma: Option<usize>,
    /// Behind the last comment or comma.
    end: usize,
    comment: bool,
    /// Whether the last comment ends with its line.
    line_comment: bool,
}

fn scan_trivia(text: &str, range: Range<usize>) -> Trivia {
    let mut found = Trivia { comma: None, end: range.start, comment: false, line_comment: false };
    let mut at = range.start;
    while let Some(c) = text[at..range.end].chars().next() {
        let rest = &text[at..range.end];
        let length = match c {
            ',' => {
                found.comma.get_or_insert(at);
                found.line_comment = false;
                1
            }
            '/' => {
                let line = rest.starts_with("//");
                (found.comment, found.line_comment) = (true, line);
                match line {
                    true => rest.find('\n').map_or(rest.len(), |end| rest[..end].trim_end_matches('\r').len()),
                    false => rest.find("*/").map_or(rest.len(), |end| end + 2),
                }
            }
            c => {
                at += c.len_utf8();
                continue;
            }
        };
        at += length;
        found.end = at;
    }
    found
}

/// How new lines look.
struct Layout {
    newline: &'static str,
    unit: String,
}

impl Layout {
    fn of(text: &str, root: Option<&Object<'_>>) -> Self {
        let first = root.and_then(|root| root.properties.first());
        let indent = first.and_then(|first| own_line(text, first.range.start)).filter(|indent| !indent.is_empty());
        Self { newline: newline(text), unit: indent.unwrap_or("  ").to_owned() }
    }

    /// A property whose value has lines of its own.
    fn property(&self, name: &str, fields: &Fields, indent: &str) -> String {
        let inner = format!("{indent}{}", self.unit);
        let lines = fields.iter().map(|(key, field)| match field {
            Field::Map(map) => {
                let pairs = map.iter().map(|(key, value)| format!("{}: {}", quote(key), quote(value)));
                format!("{}: {}", quote(key), self.braces(pairs, &inner))
            }
            field => format!("{}: {}", quote(key), inline(field, quote, ": ")),
        });
        format!("{}: {}", quote(name), self.braces(lines, indent))
    }

    fn braces(&self, lines: impl Iterator<Item = String>, indent: &str) -> String {
        let Self { newline, unit } = self;
        let lines: Vec<_> = lines.map(|line| format!("{newline}{indent}{unit}{line}")).collect();
        format!("{{{}{newline}{indent}}}", lines.join(","))
    }

    /// The property below the keys that are missing, in braces of Weir's own.
    fn nested(&self, missing: &[&str], name: &str, fields: &Fields, indent: &str) -> String {
        match missing.split_first() {
            None => self.property(name, fields, indent),
            Some((key, rest)) => {
                let inner = self.nested(rest, name, fields, &format!("{indent}{}", self.unit));
                format!("{}: {}", quote(key), self.braces(std::iter::once(inner), indent))
            }
        }
    }
}

/// The white space before something that starts its line.
fn own_line(text: &str, at: usize) -> Option<&str> {
    let start = text[..at].rfind('\n')? + 1;
    Some(&text[start..at]).filter(|indent| indent.chars().all(|c| c == ' ' || c == '\t'))
}

/// The white space at the start of the line of something.
fn indent_of(text: &str, at: usize) -> &str {
    let line = &text[text[..at].rfind('\n').map_or(0, |end| end + 1)..at];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

/// The fields on one line.
pub(super) fn line(fields: &Fields) -> String {
    braces(fields.iter().map(|(key, field)| format!("{}: {}", quote(key), inline(field, quote, ": "))))
}

fn root<'a>(place: &Place<'a>) -> Result<Option<Object<'a>>, &'static str> {
    let options = json_options(place.format == Format::Json5);
    let parsed = parse_to_ast(place.text, &CollectOptions::default(), &options);
    match parsed.map_err(|_| "The file is no valid JSON")?.value {
        None => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object)),
        Some(_) => Err(NO_MAP),
    }
}

/// The last property of a name, which is the one that readers take.
fn property<'a, 'b>(object: &'b Object<'a>, name: &str) -> Option<&'b ObjectProp<'a>> {
    object.properties.iter().rev().find(|property| property.name.as_str() == name)
}

pub(super) fn insert(place: &Place<'_>, fields: &Fields) -> Result<String, &'static str> {
    let root = root(place)?;
    let layout = Layout::of(place.text, root.as_ref());
    let Some(root) = root else {
        let property = layout.nested(place.path, place.name, fields, &layout.unit);
        let braces = layout.braces(std::iter::once(property), "");
        return Ok(append(place.text, layout.newline, &braces));
    };
    let mut object = &root;
    let mut missing = place.path;
    while let Some((key, rest)) = missing.split_first() {
        match property(object, key).map(|property| &property.value) {
            Some(Value::Object(inner)) => (object, missing) = (inner, rest),
            Some(_) => return Err(NO_MAP),
            None => break,
        }
    }
    Ok(match object.properties.last() {
        Some(last) => insert_after(place, &layout, object, last, missing, fields),
        None => insert_into_empty(place, &layout, object, missing, fields),
    })
}

/// Adds a property behind the last one and the comments that follow it.
fn insert_after(
    place: &Place<'_>,
    layout: &Layout,
    object: &Object<'_>,
    last: &ObjectProp<'_>,
    missing: &[&str],
    fields: &Fields,
) -> String {
    let text = place.text;
    let tail = scan_trivia(text, last.range.end..object.range.end - 1);
    let line = own_line(text, last.range.start);
    let (indent, break_line) = (line.unwrap_or_else(|| indent_of(text, object.range.start)), line.is_some());
    let separator = match break_line || tail.line_comment {
        true => format!("{}{indent}", layout.newline),
        false => " ".to_owned(),
    };
    let property = match (missing, break_line) {
        ([], false) => format!("{}: {}", quote(place.name), self::line(fields)),
        _ => layout.nested(missing, place.name, fields, indent),
    };
    let (first, comma) = if tail.comma.is_some() { ("", ",") } else { (",", "") };
    let (end, last) = (tail.end, last.range.end);
    format!("{}{first}{}{separator}{property}{comma}{}", &text[..last], &text[last..end], &text[end..])
}

/// Adds the first property of braces that were there: on their line, unless a comment ends it.
fn insert_into_empty(
    place: &Place<'_>,
    layout: &Layout,
    object: &Object<'_>,
    missing: &[&str],
    fields: &Fields,
) -> String {
    let text = place.text;
    let inside = scan_trivia(text, object.range.start + 1..object.range.end - 1);
    let outer = indent_of(text, object.range.start);
    let indent = format!("{outer}{}", layout.unit);
    let lines = inside.comment && text[object.range.start..object.range.end].contains('\n');
    let property = match (missing, lines) {
        ([], false) => format!("{}: {}", quote(place.name), line(fields)),
        _ => layout.nested(missing, place.name, fields, if lines { &indent } else { outer }),
    };
    let separator = match lines {
        true => format!("{}{indent}", layout.newline),
        false if inside.comment || text[inside.end..].starts_with(' ') => " ".to_owned(),
        false => String::new(),
    };
    format!("{}{separator}{property}{}", &text[..inside.end], &text[inside.end..])
}

pub(super) fn remove(place: &Place<'_>) -> Result<String, &'static str> {
    let root = root(place)?.ok_or(NO_MAP)?;
    let mut objects = vec![&root];
    for key in place.path {
        let inner = objects.last().and_then(|object| property(object, key));
        match inner.map(|property| &property.value) {
            Some(Value::Object(object)) => objects.push(object),
            _ => return Err(NO_MAP),
        }
    }
    let mut name = place.name;
    while let Some(object) = objects.pop() {
        let index = object.properties.iter().rposition(|property| property.name.as_str() == name).ok_or(NO_MAP)?;
        if !is_own(place.text, object) {
            return Ok(remove_property(place.text, object, index));
        }
        name = place.path.get(objects.len().wrapping_sub(1)).copied().unwrap_or_default();
    }
    Ok(without_root(place.text, root.range.start, root.range.end))
}

/// Whether these are braces that Weir wrote: with a line of its own for the only property, and nothing else.
fn is_own(text: &str, object: &Object<'_>) -> bool {
    let [property] = object.properties.as_slice() else { return false };
    let before = &text[object.range.start + 1..property.range.start];
    let tail = scan_trivia(text, property.range.end..object.range.end - 1);
    before.trim().is_empty() && before.contains('\n') && !tail.comment
}

/// What is left of a file that Weir wrote.
fn without_root(text: &str, start: usize, end: usize) -> String {
    let (before, after) = (&text[..start], &text[end..]);
    match after {
        "\n" | "\r\n" if before.is_empty() || before.ends_with('\n') => before.to_owned(),
        "" => {
            let before = before.strip_suffix('\n').unwrap_or(before);
            before.strip_suffix('\r').unwrap_or(before).to_owned()
        }
        _ => format!("{before}{{}}{after}"),
    }
}

/// Takes out one property with the white space before it and the comma that it needed.
fn remove_property(text: &str, object: &Object<'_>, index: usize) -> String {
    let removed = object.properties[index].range;
    let previous = index.checked_sub(1).map(|index| object.properties[index].range.end);
    let head = scan_trivia(text, previous.unwrap_or(object.range.start + 1)..removed.start);
    let next = object.properties.get(index + 1).map_or(object.range.end - 1, |next| next.range.start);
    let tail = scan_trivia(text, removed.end..next);
    let mut after = text[removed.end..].to_owned();
    if let Some(comma) = tail.comma {
        after.remove(comma - removed.end);
    }
    // A comment must not swallow what follows it.
    let breaks = after.trim_start_matches([' ', '\t', '\r']).starts_with('\n');
    let keep = if head.line_comment && !breaks { removed.start } else { head.end };
    let mut before = text[..keep].to_owned();
    if let (None, Some(comma)) = (tail.comma, head.comma) {
        before.remove(comma);
    }
    before + &after
}
