//! TOML: a table of its own at the end of the file.

use super::{
    Place, append, cut_lines, newline,
    shape::{Fields, inline, quote},
};
use crate::value::toml_blocks;

pub(super) fn insert(place: &Place<'_>, fields: &Fields) -> String {
    let end = newline(place.text);
    let keys: Vec<_> = place.path.iter().copied().chain([place.name]).map(key).collect();
    let blank = if place.text.is_empty() { "" } else { end };
    let mut lines = format!("[{}]", keys.join("."));
    for (name, field) in fields {
        lines.push_str(&format!("{end}{} = {}", key(name), inline(field, key, " = ")));
    }
    if !place.text.is_empty() && !place.text.ends_with('\n') {
        return append(place.text, end, &format!("{blank}{lines}"));
    }
    format!("{}{blank}{lines}{end}", place.text)
}

/// Removes the entry's tables, each with the blank line before it.
pub(super) fn remove(place: &Place<'_>) -> Result<String, &'static str> {
    let mut path: Vec<String> = place.path.iter().map(|key| (*key).to_owned()).collect();
    path.push(place.name.to_owned());
    let mut blocks = toml_blocks(place.text).map_err(|_| "The file is no valid TOML")?;
    blocks.retain(|block| block.path.starts_with(&path));
    if blocks.is_empty() {
        return Err("The entry is no table with a header of its own");
    }
    let mut text = place.text.to_owned();
    for block in blocks.iter().rev() {
        let start = text[..block.range.start].rfind('\n').map_or(0, |end| end + 1);
        let end = text[block.range.end..].find('\n').map_or(text.len(), |end| block.range.end + end + 1);
        let blank = ["\r\n\r\n", "\n\n"].iter().find(|blank| text[..start].ends_with(*blank));
        text = cut_lines(&text, start - blank.map_or(0, |blank| blank.len() / 2), end);
    }
    Ok(text)
}

fn key(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if bare { key.to_owned() } else { quote(key) }
}
