//! YAML from the events of `saphyr-parser`. What a plain scalar means follows the core schema of YAML 1.2.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::{MAX_DEPTH, Map, Node, ReadError, Value, error, too_deep};

/// How many values aliases may add, so that a small file cannot grow without bound.
const MAX_ALIASED: usize = 100_000;

pub(super) fn parse(text: &str) -> Result<Value, ReadError> {
    let offsets = if text.is_ascii() { Vec::new() } else { text.char_indices().map(|(at, _)| at).collect() };
    let mut reader = Reader { text, offsets, events: Parser::new_from_str(text), anchors: HashMap::new(), aliased: 0 };
    reader.document()
}

struct Reader<'a> {
    text: &'a str,
    /// The byte of each character; empty for ASCII.
    offsets: Vec<usize>,
    events: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Value>,
    aliased: usize,
}

impl<'a> Reader<'a> {
    fn document(&mut self) -> Result<Value, ReadError> {
        let mut root = Value { node: Node::Map(Map::new()), at: 0 };
        let mut documents = 0;
        while let Some((event, at)) = self.event()? {
            match event {
                Event::DocumentStart(_) if documents > 0 => {
                    return Err(error(self.text, at, "A second YAML document starts", "Keep one document in the file"));
                }
                Event::DocumentStart(_) => documents += 1,
                Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
                event => root = self.value(event, at, 1)?,
            }
        }
        if root.node == Node::Null {
            root.node = Node::Map(Map::new());
        }
        Ok(root)
    }

    fn event(&mut self) -> Result<Option<(Event<'a>, usize)>, ReadError> {
        match self.events.next_event() {
            None => Ok(None),
            Some(Ok((event, Span { start, .. }))) => Ok(Some((event, self.byte(start.index())))),
            Some(Err(e)) => Err(self.syntax(&e)),
        }
    }

    fn syntax(&self, e: &ScanError) -> ReadError {
        error(self.text, self.byte(e.marker().index()), e.info(), "Correct the YAML there")
    }

    fn byte(&self, index: usize) -> usize {
        match self.offsets.is_empty() {
            true => index.min(self.text.len()),
            false => self.offsets.get(index).copied().unwrap_or(self.text.len()),
        }
    }

    fn value(&mut self, event: Event<'a>, at: usize, depth: usize) -> Result<Value, ReadError> {
        if depth > MAX_DEPTH {
            return Err(too_deep(self.text, at));
        }
        let (node, anchor) = match event {
            Event::Alias(anchor) => (self.alias(anchor, at, depth)?, 0),
            Event::Scalar(text, ScalarStyle::Plain, anchor, None) => (plain(&text), anchor),
            Event::Scalar(text, _, anchor, _) => (Node::Text(text.into_owned()), anchor),
            Event::SequenceStart(anchor, _) => (self.list(depth)?, anchor),
            Event::MappingStart(anchor, _) => (self.map(depth)?, anchor),
            _ => (Node::Null, 0),
        };
        let value = Value { node, at };
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Ok(value)
    }

    fn list(&mut self, depth: usize) -> Result<Node, ReadError> {
        let mut list = Vec::new();
        while let Some((event, at)) = self.event()? {
            if event == Event::SequenceEnd {
                break;
            }
            list.push(self.value(event, at, depth + 1)?);
        }
        Ok(Node::List(list))
    }

    fn map(&mut self, depth: usize) -> Result<Node, ReadError> {
        let mut map = Map::new();
        while let Some((event, key_at)) = self.event()? {
            if event == Event::MappingEnd {
                break;
            }
            let key = self.value(event, key_at, depth + 1)?.scalar().unwrap_or_default();
            let Some((event, at)) = self.event()? else { break };
            let value = self.value(event, at, depth + 1)?;
            // A map in block style starts only below its key.
            let at = if value.map().is_some() { key_at } else { at };
            map.insert(key, Value { at, ..value });
        }
        Ok(Node::Map(map))
    }

    /// A copy of what the anchor names, unless all copies together grow too large or too deep.
    fn alias(&mut self, anchor: usize, at: usize, depth: usize) -> Result<Node, ReadError> {
        let Some(value) = self.anchors.get(&anchor) else { return Ok(Node::Null) };
        let (count, height) = size(value);
        self.aliased += count;
        if self.aliased > MAX_ALIASED || depth + height > MAX_DEPTH {
            return Err(error(self.text, at, "Aliases repeat too much", "Write the values out"));
        }
        Ok(value.node.clone())
    }
}

/// How many values there are, and how deep they nest.
fn size(value: &Value) -> (usize, usize) {
    let add = |(count, height): (usize, usize), inner: &Value| {
        let (more, below) = size(inner);
        (count + more, height.max(below + 1))
    };
    match &value.node {
        Node::List(list) => list.iter().fold((1, 1), add),
        Node::Map(map) => map.values().fold((1, 1), add),
        _ => (1, 1),
    }
}

fn plain(text: &str) -> Node {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Node::Null,
        "true" | "True" | "TRUE" => Node::Bool(true),
        "false" | "False" | "FALSE" => Node::Bool(false),
        text if is_number(text) => Node::Number(text.to_owned()),
        text => Node::Text(text.to_owned()),
    }
}

fn is_number(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E'))
        && text.parse::<f64>().is_ok()
}
