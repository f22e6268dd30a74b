//! TOML through `toml_edit`, which tells where everything stands.

use std::ops::Range;

use toml_edit::{Document, Item, Table, TableLike, Value as Toml};

use super::{MAX_DEPTH, Map, Node, ReadError, Value, error, too_deep};

pub(super) fn parse(text: &str) -> Result<Value, ReadError> {
    let document = document(text)?;
    Ok(Value { node: Node::Map(table(text, document.as_table(), 1)?), at: 0 })
}

fn document(text: &str) -> Result<Document<&str>, ReadError> {
    Document::parse(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        error(text, at, e.message().replace('\n', ", "), "Correct the TOML there")
    })
}

fn table(text: &str, table: &dyn TableLike, depth: usize) -> Result<Map, ReadError> {
    let mut map = Map::new();
    for (key, value) in table.iter() {
        map.insert(key.to_owned(), item(text, value, depth + 1)?);
    }
    Ok(map)
}

fn item(text: &str, item: &Item, depth: usize) -> Result<Value, ReadError> {
    let at = item.span().map_or(0, |span| span.start);
    if depth > MAX_DEPTH {
        return Err(too_deep(text, at));
    }
    let node = match item {
        Item::None => Node::Null,
        Item::Value(value) => return convert(text, value, depth),
        Item::Table(inner) => Node::Map(table(text, inner, depth)?),
        Item::ArrayOfTables(tables) => {
            let at = |inner: &Table| inner.span().map_or(0, |span| span.start);
            let each = |inner: &Table| Ok(Value { node: Node::Map(table(text, inner, depth + 1)?), at: at(inner) });
            Node::List(tables.iter().map(each).collect::<Result<_, ReadError>>()?)
        }
    };
    Ok(Value { node, at })
}

fn convert(text: &str, value: &Toml, depth: usize) -> Result<Value, ReadError> {
    let at = value.span().map_or(0, |span| span.start);
    if depth > MAX_DEPTH {
        return Err(too_deep(text, at));
    }
    let node = match value {
        Toml::String(string) => Node::Text(string.value().clone()),
        Toml::Integer(number) => Node::Number(number.value().to_string()),
        Toml::Float(number) => Node::Number(number.value().to_string()),
        Toml::Boolean(bool) => Node::Bool(*bool.value()),
        Toml::Datetime(time) => Node::Text(time.value().to_string()),
        Toml::Array(array) => {
            Node::List(array.iter().map(|element| convert(text, element, depth + 1)).collect::<Result<_, _>>()?)
        }
        Toml::InlineTable(inner) => Node::Map(table(text, inner, depth)?),
    };
    Ok(Value { node, at })
}

/// A table with a header of its own: its path, and its text from the header to the end of its last value.
pub(crate) struct Block {
    pub(crate) path: Vec<String>,
    pub(crate) range: Range<usize>,
}

/// The tables of a document in the order of the text.
pub(crate) fn blocks(text: &str) -> Result<Vec<Block>, ReadError> {
    let mut blocks = Vec::new();
    collect(document(text)?.as_table(), &mut Vec::new(), &mut blocks);
    blocks.sort_by_key(|block| block.range.start);
    Ok(blocks)
}

fn collect(table: &Table, path: &mut Vec<String>, blocks: &mut Vec<Block>) {
    for (key, item) in table.iter() {
        path.push(key.to_owned());
        let inner: Box<dyn Iterator<Item = &Table>> = match item {
            Item::Table(inner) => Box::new(std::iter::once(inner)),
            Item::ArrayOfTables(tables) => Box::new(tables.iter()),
            Item::None | Item::Value(_) => Box::new(std::iter::empty()),
        };
        for inner in inner {
            if let Some(header) = inner.span().filter(|_| !inner.is_dotted() && !inner.is_implicit()) {
                blocks.push(Block { path: path.clone(), range: header.start..end_of(inner, header.end) });
            }
            collect(inner, path, blocks);
        }
        path.pop();
    }
}

fn end_of(table: &Table, header: usize) -> usize {
    let values = table.get_values();
    let ends = values.iter().filter_map(|(_, value)| Some(value.span()?.end));
    ends.max().unwrap_or(header)
}
