//! What an entry of a list must look like, or clients refuse the list with all other upstreams' entries in it.
//!
//! The tables hold what at least one official SDK refuses: TypeScript 1 and 2 (Zod) and Python 1 and 2 (pydantic). Where
//! they differ, the stricter one counts, as `null` for a member that may be missing. The modern era allows some of what no
//! SDK accepts of the legacy era; a fault of that kind hides an entry from legacy clients only.

use url::Url;
use weir_mcp::json;

use super::ListKind;

/// What a value must be.
enum Rule {
    Text,
    Flag,
    /// A whole number.
    Whole,
    /// A number from 0 to 1.
    Share,
    /// A moment (RFC 3339).
    Moment,
    /// An absolute address.
    Address,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    ListOf(&'static Self),
    /// An object with these members among others.
    Object(&'static [SchemaMember]),
    /// An entry, which is an object with what all entries have, and these.
    Entry(&'static [SchemaMember]),
    /// An object, all of whose members are like this.
    MapOf(&'static Self),
}

use Rule::{Address, Entry, Flag, ListOf, MapOf, Moment, Object, OneOf, Share, Text, Whole};

/// One member of an object.
struct SchemaMember {
    key: &'static str,
    rule: Rule,
    is_required: bool,
    /// Whether only SDKs of the legacy era insist.
    legacy: bool,
}

const fn needs(key: &'static str, rule: Rule) -> SchemaMember {
    SchemaMember { key, rule, is_required: true, legacy: false }
}

const fn may(key: &'static str, rule: Rule) -> SchemaMember {
    SchemaMember { key, rule, is_required: false, legacy: false }
}

const fn legacy(member: SchemaMember) -> SchemaMember {
    SchemaMember { legacy: true, ..member }
}

const ANY: Rule = Object(&[]);

const ICONS: Rule = ListOf(&Object(&[
    needs("src", Text),
    may("mimeType", Text),
    may("sizes", ListOf(&Text)),
    may("theme", OneOf(&["light", "dark"])),
]));

const ANNOTATIONS: Rule = Object(&[
    may("audience", ListOf(&OneOf(&["user", "assistant"]))),
    may("priority", Share),
    may("lastModified", Moment),
]);

const INPUT: Rule = Object(&[
    needs("type", OneOf(&["object"])),
    may("$schema", Text),
    legacy(may("properties", MapOf(&ANY))),
    legacy(may("required", ListOf(&Text))),
]);

const OUTPUT: Rule = Object(&[
    legacy(needs("type", OneOf(&["object"]))),
    may("$schema", Text),
    legacy(may("properties", MapOf(&ANY))),
    legacy(may("required", ListOf(&Text))),
]);

const HINTS: Rule = Object(&[
    may("title", Text),
    may("readOnlyHint", Flag),
    may("destructiveHint", Flag),
    may("idempotentHint", Flag),
    may("openWorldHint", Flag),
]);

const ARGUMENTS: Rule =
    ListOf(&Object(&[needs("name", Text), may("title", Text), may("description", Text), may("required", Flag)]));

/// What all entries have.
const COMMON: &[SchemaMember] =
    &[needs("name", Text), may("title", Text), may("description", Text), may("icons", ICONS), may("_meta", ANY)];

const TOOL: Rule = Entry(&[
    needs("inputSchema", INPUT),
    may("outputSchema", OUTPUT),
    may("annotations", HINTS),
    may("execution", Object(&[may("taskSupport", OneOf(&["required", "optional", "forbidden"]))])),
]);

const PROMPT: Rule = Entry(&[may("arguments", ARGUMENTS)]);

const RESOURCE: Rule = Entry(&[
    needs("uri", Text),
    legacy(needs("uri", Address)),
    may("mimeType", Text),
    may("size", Whole),
    may("annotations", ANNOTATIONS),
]);

const TEMPLATE: Rule = Entry(&[needs("uriTemplate", Text), may("mimeType", Text), may("annotations", ANNOTATIONS)]);

/// By [`ListKind`].
const ENTRIES: [Rule; 4] = [TOOL, PROMPT, RESOURCE, TEMPLATE];

/// How many members a table and [`COMMON`] have together, at most.
const MOST: usize = 16;

/// Why clients refuse an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SchemaFault {
    /// In words, as the end of a sentence.
    pub(super) why: String,
    /// Whether modern clients accept it.
    pub(super) legacy: bool,
}

/// What is wrong with an entry, which is JSON; a fault that concerns all clients before one that does not.
pub(super) fn fault(kind: ListKind, entry: &[u8]) -> Option<SchemaFault> {
    let mut search = Search::default();
    search.look(&ENTRIES[kind as usize], entry, &Path::ROOT, false);
    search.found
}

/// Where a value is; it is only written out for a fault.
struct Path<'a> {
    parent: Option<&'a Self>,
    key: &'a str,
}

impl<'a> Path<'a> {
    const ROOT: Self = Self { parent: None, key: "" };

    const fn below(&'a self, key: &'a str) -> Self {
        Self { parent: Some(self), key }
    }

    fn text(&self) -> String {
        match self.parent {
            None => String::new(),
            Some(parent) => {
                let before = parent.text();
                let dot = if before.is_empty() || self.key == "[]" { "" } else { "." };
                [&before, dot, self.key].concat()
            }
        }
    }
}

#[derive(Default)]
struct Search {
    found: Option<SchemaFault>,
}

impl Search {
    fn look(&mut self, rule: &Rule, raw: &[u8], path: &Path<'_>, legacy: bool) {
        match rule {
            Entry(_) | Object(_) | MapOf(_) if !raw.starts_with(b"{") => self.note(path, "is no object", legacy),
            ListOf(_) if !raw.starts_with(b"[") => self.note(path, "is no array", legacy),
            Entry(members) => self.look_into(COMMON.iter().chain(*members), raw, path, legacy),
            Object(members) => self.look_into(members.iter(), raw, path, legacy),
            MapOf(rule) => {
                for (key, value) in json::members(raw) {
                    self.look(rule, value, &path.below(&key), legacy);
                }
            }
            ListOf(rule) => json::elements(raw).for_each(|value| self.look(rule, value, &path.below("[]"), legacy)),
            plain => {
                if let Some(what) = wrong(plain, raw) {
                    self.note(path, &what, legacy);
                }
            }
        }
    }

    fn look_into(
        &mut self,
        members: impl Iterator<Item = &'static SchemaMember> + Clone,
        raw: &[u8],
        path: &Path<'_>,
        legacy: bool,
    ) {
        // Where a key occurs twice the last one counts.
        let mut values = [None; MOST];
        for (key, value) in json::members(raw) {
            for (place, _) in values.iter_mut().zip(members.clone()).filter(|(_, member)| member.key == key) {
                *place = Some(value);
            }
        }
        for (value, SchemaMember { key, rule, is_required, legacy: only }) in values.into_iter().zip(members) {
            let (path, legacy) = (path.below(key), legacy || *only);
            match value {
                Some(value) => self.look(rule, value, &path, legacy),
                None if *is_required => self.note(&path, "is missing", legacy),
                None => {}
            }
        }
    }

    /// The first fault that concerns all clients counts, else the first.
    fn note(&mut self, path: &Path<'_>, what: &str, legacy: bool) {
        if self.found.as_ref().is_none_or(|fault| fault.legacy && !legacy) {
            let path = path.text();
            let path = if path.is_empty() { "it".to_owned() } else { format!("`{path}`") };
            self.found = Some(SchemaFault { why: format!("{path} {what}"), legacy });
        }
    }
}

/// What a value without parts is not.
fn wrong(rule: &Rule, raw: &[u8]) -> Option<String> {
    let number = || std::str::from_utf8(raw).ok()?.parse::<f64>().ok().filter(|number| number.is_finite());
    let text = || json::string(raw);
    let (holds, what) = match rule {
        Text => (raw.starts_with(b"\""), "is no string"),
        Flag => (matches!(raw, b"true" | b"false"), "is neither true nor false"),
        Whole => (number().is_some_and(|number| number.fract() == 0.0), "is no whole number"),
        Share => (number().is_some_and(|number| (0.0..=1.0).contains(&number)), "is no number from 0 to 1"),
        Moment => (text().is_some_and(|text| is_moment(text.as_bytes())), "is no time like 2026-01-31T12:00:00Z"),
        Address => (text().is_some_and(|text| Url::parse(&text).is_ok()), "is no absolute URI"),
        OneOf(texts) => {
            let holds = text().is_some_and(|text| texts.contains(&&*text));
            return (!holds).then(|| format!("is not \"{}\"", texts.join("\" or \"")));
        }
        ListOf(_) | Object(_) | Entry(_) | MapOf(_) => (true, ""),
    };
    (!holds).then(|| what.to_owned())
}

/// Whether a text is a date and time with `Z` or an offset.
fn is_moment(text: &[u8]) -> bool {
    let Some((date, rest)) = text.split_at_checked(10) else { return false };
    let [b'T', h1, h2, b':', m1, m2, b':', s1, s2, rest @ ..] = rest else { return false };
    let pair =
        |a: &u8, b: &u8, last: u8| a.is_ascii_digit() && b.is_ascii_digit() && 10 * (a - b'0') + (b - b'0') <= last;
    let zone = match rest {
        [b'.', fraction @ ..] => {
            let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits == 0 {
                return false;
            }
            fraction.get(digits..).unwrap_or_default()
        }
        zone => zone,
    };
    let zone = match zone {
        [b'Z'] => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => pair(h1, h2, 23) && pair(m1, m2, 59),
        _ => false,
    };
    zone && pair(h1, h2, 23) && pair(m1, m2, 59) && pair(s1, s2, 59) && is_date(date)
}

fn is_date(text: &[u8]) -> bool {
    let number = |text: &[u8]| {
        text.iter().try_fold(0_u32, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + u32::from(byte - b'0')))
    };
    let [y @ .., b'-', m1, m2, b'-', d1, d2] = text else { return false };
    let (Some(year), Some(month), Some(day)) = (number(y), number(&[*m1, *m2]), number(&[*d1, *d2])) else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => 0,
    };
    y.len() == 4 && (1..=days).contains(&day)
}

#[cfg(test)]
mod tests;
