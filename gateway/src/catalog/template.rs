//! Whether an address fits a URI template (RFC 6570), to find whose resource it is.
//!
//! This is the question turned round: RFC 6570 says how to expand and leaves matching open (§1.5). A simple expression
//! stands for one path segment, every other kind for anything.
//!
//! Templates and addresses come from strangers, so both have a length, and all the matching of one upstream's templates
//! against one address has a number of steps. A template beyond the limits is listed, since a client can expand it, and
//! never matched: its resources are found by their scheme, or at `/mcp/<name>`.

use std::collections::BTreeMap;

use crate::config::UpstreamName;

/// The longest template that is matched, in bytes.
const LONGEST: usize = 2048;

/// How many expressions it may have.
const EXPRESSIONS: usize = 32;

/// The longest address that is matched, in bytes.
const ADDRESS: usize = 8 * 1024;

/// How many bytes are looked at to match one address against all templates of one upstream. The longest address takes
/// two such looks for each expression of a template, and a common one some hundred steps.
const STEPS: usize = 1 << 18;

/// The templates of all upstreams, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Templates {
    known: Vec<(Template, UpstreamName)>,
    /// How many of each upstream are listed and not matched, and the first of them.
    unmatched: BTreeMap<UpstreamName, (usize, String)>,
}

impl Templates {
    /// Reads what is listed, each with its upstream.
    pub(super) fn new(listed: &[(String, UpstreamName)]) -> Self {
        let mut templates = Self::default();
        for (text, upstream) in listed {
            match Template::read(text) {
                Some(template) => templates.known.push((template, upstream.clone())),
                None => templates.unmatched.entry(upstream.clone()).or_insert_with(|| (0, text.clone())).0 += 1,
            }
        }
        templates
    }

    /// The first upstream with a template that `uri` may have been made from.
    pub(super) fn find(&self, uri: &str) -> Option<&UpstreamName> {
        if uri.len() > ADDRESS {
            return None;
        }
        let (mut of, mut steps) = (None, STEPS);
        for (template, upstream) in &self.known {
            if of.replace(upstream) != Some(upstream) {
                steps = STEPS;
            }
            if template.fits(uri, &mut steps) {
                return of;
            }
        }
        None
    }

    /// For each upstream how many templates cannot be matched, and the first.
    pub(super) fn unmatched(&self) -> impl Iterator<Item = (&UpstreamName, &(usize, String))> {
        self.unmatched.iter()
    }
}

/// One template, read.
#[derive(Clone, Debug, PartialEq)]
struct Template {
    prefix: String,
    /// Each expression with the text behind it.
    parts: Vec<(Expression, Literal)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Expression {
    /// At least one character, and no `/`.
    Segment,
    /// Anything, also nothing.
    Anything,
}

impl Template {
    /// Reads a template; none if it is beyond the limits, or none at all.
    fn read(text: &str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        let mut pieces = text.split('{');
        let prefix = pieces.next()?.to_owned();
        let parts: Option<Vec<_>> = pieces.map(part).collect();
        let parts = parts.filter(|parts| parts.len() <= EXPRESSIONS)?;
        Some(Self { prefix, parts })
    }

    /// Whether `uri` may have been made from it. Takes from `steps` what that costs, and does not fit if they are used up.
    fn fits(&self, uri: &str, steps: &mut usize) -> bool {
        let Some(rest) = uri.strip_prefix(&self.prefix).filter(|_| spend(steps, self.prefix.len())) else {
            return false;
        };
        let rest = rest.as_bytes();
        // Where in the address what was read of the template may end.
        let mut ends = vec![false; rest.len() + 1];
        ends[0] = true;
        for (expression, literal) in &self.parts {
            if !spend(steps, 2 * ends.len()) {
                return false;
            }
            ends = literal.after(rest, expression.after(rest, &ends));
            if !ends.contains(&true) {
                return false;
            }
        }
        ends.last() == Some(&true)
    }
}

/// `expression}literal`
fn part(piece: &str) -> Option<(Expression, Literal)> {
    let (expression, literal) = piece.split_once('}')?;
    let operator = expression.starts_with(['+', '#', '.', '/', ';', '?', '&']) || expression.ends_with('*');
    let expression = if operator { Expression::Anything } else { Expression::Segment };
    Some((expression, Literal::new(literal.as_bytes())))
}

fn spend(steps: &mut usize, cost: usize) -> bool {
    let left = steps.checked_sub(cost);
    *steps = left.unwrap_or(0);
    left.is_some()
}

impl Expression {
    /// Where it may end that begins at one of `starts`.
    fn after(self, uri: &[u8], starts: &[bool]) -> Vec<bool> {
        let mut open = false;
        let mut goes_on = |(start, byte): (&bool, &u8)| {
            open = (open || *start) && (matches!(self, Self::Anything) || *byte != b'/');
            open
        };
        let longer = starts.iter().zip(uri).map(&mut goes_on);
        let mut ends: Vec<bool> = std::iter::once(false).chain(longer).collect();
        if matches!(self, Self::Anything) {
            ends.iter_mut().zip(starts).for_each(|(end, start)| *end |= *start);
        }
        ends
    }
}

/// Text of a template, ready to be found wherever it is, overlaps included, in one pass (Knuth, Morris, Pratt).
#[derive(Clone, Debug, PartialEq)]
struct Literal {
    bytes: Box<[u8]>,
    /// For each length of a beginning, the length of the longest shorter beginning that it ends with.
    borders: Vec<usize>,
}

impl Literal {
    fn new(bytes: &[u8]) -> Self {
        let mut literal = Self { bytes: bytes.into(), borders: vec![0; bytes.len() + 1] };
        let mut known = 0;
        for (at, byte) in bytes.iter().enumerate().skip(1) {
            known = literal.next(known, *byte);
            literal.borders[at + 1] = known;
        }
        literal
    }

    /// How much of it is there after one more byte, where `known` was there before.
    fn next(&self, mut known: usize, byte: u8) -> usize {
        while known > 0 && self.bytes.get(known) != Some(&byte) {
            known = self.borders[known];
        }
        known + usize::from(self.bytes.get(known) == Some(&byte))
    }

    /// Where it ends when it begins at one of `starts`.
    fn after(&self, uri: &[u8], starts: Vec<bool>) -> Vec<bool> {
        let length = self.bytes.len();
        if length == 0 {
            return starts;
        }
        let mut ends = vec![false; starts.len()];
        let mut known = 0;
        for (at, byte) in uri.iter().enumerate() {
            known = self.next(known, *byte);
            if known == length {
                ends[at + 1] = starts[at + 1 - length];
            }
        }
        ends
    }
}

#[cfg(test)]
mod tests;
