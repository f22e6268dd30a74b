//! YAML: the lines of one entry below the key `extensions`, in files in plain block style.

use super::{
    Place, append, cut_lines, newline,
    shape::{Field, Fields, braces, inline, quote},
};

const OTHER_STYLE: &str = "The file is not in plain block style";

/// A line with its ending, and where it starts.
#[derive(Clone, Copy)]
struct Line<'a> {
    start: usize,
    text: &'a str,
}

impl Line<'_> {
    fn end(&self) -> usize {
        self.start + self.text.len()
    }

    fn indent(&self) -> usize {
        self.text.len() - self.text.trim_start_matches(' ').len()
    }

    fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }

    fn is_content(&self) -> bool {
        !self.is_blank() && !self.text.trim_start().starts_with('#')
    }

    /// What stands after this key.
    fn after_key(&self, key: &str) -> Option<&str> {
        let text = self.text.trim();
        let spellings = [key.to_owned(), quote(key), format!("'{key}'")];
        let after = |key: &String| text.strip_prefix(key.as_str())?.trim_start().strip_prefix(':').map(str::trim);
        spellings.iter().find_map(after)
    }
}

fn lines(text: &str) -> Vec<Line<'_>> {
    let mut start = 0;
    let line = |text: &'_ str| {
        start += text.len();
        start - text.len()
    };
    let starts: Vec<_> = text.split_inclusive('\n').map(line).collect();
    starts.into_iter().zip(text.split_inclusive('\n')).map(|(start, text)| Line { start, text }).collect()
}

/// The line of the key `extensions`, and the lines below it.
fn section<'a, 'b>(lines: &'b [Line<'a>], key: &str) -> Option<(Line<'a>, &'b [Line<'a>])> {
    let at = lines.iter().position(|line| line.indent() == 0 && line.after_key(key).is_some())?;
    let below = &lines[at + 1..];
    let count = below.iter().position(|line| line.is_content() && line.indent() == 0).unwrap_or(below.len());
    Some((lines[at], &below[..count]))
}

pub(super) fn insert(place: &Place<'_>, fields: &Fields) -> Result<String, &'static str> {
    let (text, end, key) = (place.text, newline(place.text), place.path[0]);
    let lines = lines(text);
    let Some((head, below)) = section(&lines, key) else {
        return Ok(append(text, end, &format!("{key}:{end}{}", entry(place.name, fields, 2, end))));
    };
    match head.after_key(key).unwrap_or_default() {
        rest if rest.is_empty() || rest.starts_with('#') => {}
        rest if rest == "{}" || rest.starts_with("{} #") => {
            let braces = head.start + head.text.find("{}").ok_or(OTHER_STYLE)? + 1;
            return Ok(format!("{}{}{}", &text[..braces], flow(place.name, fields), &text[braces..]));
        }
        _ => return Err(OTHER_STYLE),
    }
    let indent = below.iter().find(|line| line.is_content()).map_or(2, Line::indent);
    let block = entry(place.name, fields, indent, end);
    match head.text.ends_with('\n') {
        true => Ok(format!("{}{block}{end}{}", &text[..head.end()], &text[head.end()..])),
        false => Ok(append(text, end, &block)),
    }
}

pub(super) fn remove(place: &Place<'_>) -> Result<String, &'static str> {
    let lines = lines(place.text);
    let (head, below) = section(&lines, place.path[0]).ok_or(OTHER_STYLE)?;
    if let Some(rest) = head.after_key(place.path[0]).filter(|rest| rest.starts_with('{')) {
        return remove_flow(place, head, rest);
    }
    let indent = below.iter().find(|line| line.is_content()).map(Line::indent).ok_or(OTHER_STYLE)?;
    let own = |line: &Line<'_>| line.indent() == indent && line.after_key(place.name) == Some("");
    let first = below.iter().position(own).ok_or(OTHER_STYLE)?;
    let inner = below[first + 1..].iter().take_while(|line| line.is_blank() || line.indent() > indent);
    let last = inner.enumerate().filter(|(_, line)| !line.is_blank()).last().map_or(first, |(at, _)| first + 1 + at);
    let sole = first == 0 && !below[last + 1..].iter().any(|line| !line.is_blank() && line.indent() > 0);
    let bare = head.after_key(place.path[0]) == Some("");
    let start = if sole && bare { head.start } else { below[first].start };
    Ok(cut_lines(place.text, start, below[last].end()))
}

/// An entry alone in braces: they were empty.
fn remove_flow(place: &Place<'_>, head: Line<'_>, rest: &str) -> Result<String, &'static str> {
    let prefixes = [place.name.to_owned(), quote(place.name)].map(|name| format!("{{{name}: {{ "));
    let known = prefixes.iter().any(|prefix| rest.starts_with(prefix.as_str()));
    let length = rest.rfind(" }}").ok_or(OTHER_STYLE)? + 3;
    let at = head.text.find('{').filter(|_| known).ok_or(OTHER_STYLE)? + head.start;
    Ok(format!("{}{{}}{}", &place.text[..at], &place.text[at + length..]))
}

fn entry(name: &str, fields: &Fields, indent: usize, end: &str) -> String {
    let mut lines = format!("{:indent$}{}:", "", key(name));
    let inner = indent + 2;
    for (name, field) in fields {
        lines.push_str(&format!("{end}{:inner$}{name}:", ""));
        match field {
            Field::Map(map) => {
                let pairs =
                    map.iter().map(|(name, text)| format!("{end}{:inner$}  {}: {}", "", key(name), quote(text)));
                lines.extend(pairs);
            }
            field => lines.push_str(&format!(" {}", inline(field, key, ": "))),
        }
    }
    lines
}

fn flow(name: &str, fields: &Fields) -> String {
    let fields = fields.iter().map(|(name, field)| format!("{name}: {}", inline(field, key, ": ")));
    format!("{}: {}", key(name), braces(fields))
}

/// A word that no reader takes for another value stands plain.
fn key(key: &str) -> String {
    let word = key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let special = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let plain = word && key.starts_with(|c: char| c.is_ascii_alphabetic());
    if plain && !special.contains(&key.to_ascii_lowercase().as_str()) { key.to_owned() } else { quote(key) }
}
