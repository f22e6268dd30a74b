//! Changes to a message, made by splicing: every byte outside of what is named stays as it was.

use std::ops::Range;

use bytes::Bytes;
use memchr::{memchr, memchr_iter, memmem};

use super::{Field, Kind, Message};
use crate::json::{self, Member, Span};

/// An object of a message that members can be put into or taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// The message itself.
    Message,
    /// `params` of a request or notification, `result` of a response, `error` of an error.
    Body,
    /// `_meta` of `params` or `result`. Errors have none: for them this does nothing.
    Meta,
}

/// Changes to one message, collected and then made at once.
///
/// Every value is raw JSON and must be valid: it is copied as it is. Where two changes touch the same bytes, the one to
/// the enclosing value wins; of two changes to the same field or member, the later one wins.
#[must_use]
pub struct Edit<'m> {
    message: &'m Message,
    /// The new bytes of all changes, one after the other.
    fresh: Vec<u8>,
    fields: Vec<(Field, Range<usize>)>,
    members: Vec<Change>,
}

struct Change {
    object: Object,
    key: String,
    /// The new value within `fresh`; none to remove the member.
    value: Option<Range<usize>>,
}

/// Replace these bytes of the message with those of `fresh`.
struct Splice {
    old: Range<usize>,
    new: Range<usize>,
}

impl<'m> Edit<'m> {
    pub(super) fn new(message: &'m Message) -> Self {
        Self { message, fresh: Vec::new(), fields: Vec::new(), members: Vec::new() }
    }

    /// Replaces the value of a field. **Does nothing if the message has no such field**; see [`Edit::put`] for that.
    pub fn set(mut self, field: Field, raw: impl AsRef<[u8]>) -> Self {
        let value = self.keep(raw.as_ref());
        self.fields.retain(|(earlier, _)| *earlier != field);
        self.fields.push((field, value));
        self
    }

    /// Sets a member of an object, whether it was there or not; a new one goes to the end.
    ///
    /// An object that is absent or not an object is made. This reads the object once more, but for its longest member, where
    /// the name may be in it.
    pub fn put(mut self, object: Object, key: &str, raw: impl AsRef<[u8]>) -> Self {
        let value = self.keep(raw.as_ref());
        self.change(object, key, Some(value));
        self
    }

    /// Takes a member out of an object, every time it occurs; nothing happens if it does not.
    pub fn remove(mut self, object: Object, key: &str) -> Self {
        self.change(object, key, None);
        self
    }

    /// The changed message. Without effective changes these are the same bytes, not copied.
    pub fn finish(mut self) -> Bytes {
        let mut splices = Vec::with_capacity(self.fields.len() + self.members.len());
        for object in [Object::Meta, Object::Body, Object::Message] {
            self.resolve(object, &mut splices);
        }
        for (field, new) in &self.fields {
            let old = self.message.parts.span(*field);
            if !old.is_none() {
                splices.push(Splice { old: range(old), new: new.clone() });
            }
        }
        // What encloses comes first, so that what lies inside it can be skipped.
        splices.sort_by_key(|splice| (splice.old.start, std::cmp::Reverse(splice.old.end)));
        let mut end = 0;
        splices.retain(|splice| {
            let apart = splice.old.start >= end;
            end = end.max(splice.old.end);
            apart
        });
        self.splice(&splices)
    }

    fn splice(&self, splices: &[Splice]) -> Bytes {
        let old = self.message.bytes();
        if splices.is_empty() {
            return old.clone();
        }
        let grown: usize = splices.iter().map(|splice| splice.new.len()).sum();
        let mut out = Vec::with_capacity(old.len() + grown);
        let mut at = 0;
        for splice in splices {
            out.extend_from_slice(&old[at..splice.old.start]);
            out.extend_from_slice(&self.fresh[splice.new.clone()]);
            at = splice.old.end;
        }
        out.extend_from_slice(&old[at..]);
        out.into()
    }

    fn keep(&mut self, raw: &[u8]) -> Range<usize> {
        debug_assert!(json::scan(raw).is_ok(), "a change must be valid JSON");
        let start = self.fresh.len();
        self.fresh.extend_from_slice(raw);
        start..self.fresh.len()
    }

    fn change(&mut self, object: Object, key: &str, value: Option<Range<usize>>) {
        self.members.retain(|change| change.object != object || change.key != key);
        self.members.push(Change { object, key: key.to_owned(), value });
    }

    /// Turns the changes to one object into splices, or into one change of the object around it that makes it.
    fn resolve(&mut self, object: Object, splices: &mut Vec<Splice>) {
        let (changes, others) = std::mem::take(&mut self.members).into_iter().partition(|c| c.object == object);
        self.members = others;
        let changes: Vec<Change> = changes;
        let Some((span, parent)) = self.place(object).filter(|_| !changes.is_empty()) else {
            return;
        };
        let message = self.message;
        match span.of(message.bytes()).filter(|raw| raw.first() == Some(&b'{')) {
            Some(raw) => self.amend(span, raw, &changes, splices),
            None => {
                let fresh = self.make(&changes);
                if let (Some((around, key)), Some(fresh)) = (parent, fresh)
                    && !self.members.iter().any(|change| change.object == around && change.key == key)
                {
                    self.change(around, key, Some(fresh));
                }
            }
        }
    }

    /// Where an object lies, and which member of which object it is.
    fn place(&self, object: Object) -> Option<(Span, Option<(Object, &'static str)>)> {
        let parts = &self.message.parts;
        match object {
            Object::Message => Some((parts.whole(), None)),
            Object::Body => {
                let (field, key) = match self.message.kind {
                    Kind::Request | Kind::Notification => (Field::Params, "params"),
                    Kind::Response => (Field::Result, "result"),
                    Kind::Error => (Field::Error, "error"),
                };
                Some((parts.span(field), Some((Object::Message, key))))
            }
            Object::Meta if self.message.kind == Kind::Error => None,
            Object::Meta => Some((parts.span(Field::Meta), Some((Object::Body, "_meta")))),
        }
    }

    /// A new object with what is put into it; none if nothing is.
    fn make(&mut self, changes: &[Change]) -> Option<Range<usize>> {
        let start = self.fresh.len();
        for change in changes {
            let Some(value) = &change.value else { continue };
            self.fresh.push(if self.fresh.len() == start { b'{' } else { b',' });
            self.write_member(&change.key, value.clone());
        }
        if self.fresh.len() == start {
            return None;
        }
        self.fresh.push(b'}');
        Some(start..self.fresh.len())
    }

    /// The splices that make `changes` to the object at `span`.
    fn amend(&mut self, span: Span, raw: &[u8], changes: &[Change], splices: &mut Vec<Splice>) {
        let base = span.start as usize;
        if let Some((end, has_members)) = end_without(raw, changes) {
            return self.append(base + end, has_members, changes, &[], splices);
        }
        let members: Vec<Member> = json::spans_knowing(raw, self.message.longest_in(span)).collect();
        let find = |member: &Member| changes.iter().position(|change| json::key_is(raw, member.key, &change.key));
        let found: Vec<Option<usize>> = members.iter().map(find).collect();
        let removed = |at: usize| found[at].is_some_and(|change| changes[change].value.is_none());

        let mut kept = false;
        for (at, member) in members.iter().enumerate() {
            if removed(at) {
                // A member goes together with the comma before it; at the front, with the one behind.
                let start = if kept { members[at - 1].value.end } else { member.key.start } as usize;
                let next = members.get(at + 1).filter(|_| !kept).map_or(member.value.end, |next| next.key.start);
                splices.push(Splice { old: base + start..base + next as usize, new: 0..0 });
                continue;
            }
            kept = true;
            if let Some(change) = found[at]
                && let Some(new) = &changes[change].value
                && !found[at + 1..].contains(&Some(change))
            {
                splices.push(Splice { old: offset(member.value, base), new: new.clone() });
            }
        }
        let end = members.last().map_or(raw.len() - 1, |last| last.value.end as usize);
        self.append(base + end, kept, changes, &found, splices);
    }

    /// Writes the members that were not there at `end`, behind the last one that was.
    fn append(
        &mut self,
        end: usize,
        mut comma: bool,
        changes: &[Change],
        found: &[Option<usize>],
        splices: &mut Vec<Splice>,
    ) {
        let start = self.fresh.len();
        for (at, change) in changes.iter().enumerate() {
            let Some(value) = change.value.clone().filter(|_| !found.contains(&Some(at))) else {
                continue;
            };
            if std::mem::replace(&mut comma, true) {
                self.fresh.push(b',');
            }
            self.write_member(&change.key, value);
        }
        if self.fresh.len() > start {
            splices.push(Splice { old: end..end, new: start..self.fresh.len() });
        }
    }

    fn write_member(&mut self, key: &str, value: Range<usize>) {
        self.fresh.extend_from_slice(json::quote(key).as_bytes());
        self.fresh.push(b':');
        self.fresh.extend_from_within(value);
    }
}

/// Where a new member of the object `raw` goes, and whether others are there; none if it may have a member that is changed.
fn end_without(raw: &[u8], changes: &[Change]) -> Option<(usize, bool)> {
    // A name that is written with escapes has a backslash.
    let has = |change: &Change| contains(raw, change.key.as_bytes());
    if memchr(b'\\', raw).is_some() || changes.iter().any(has) {
        return None;
    }
    let inside = raw.strip_suffix(b"}")?;
    match inside.trim_ascii_end().len() {
        1 => Some((inside.len(), false)),
        end => Some((end, true)),
    }
}

fn contains(raw: &[u8], key: &[u8]) -> bool {
    /// In what is shorter, a look at each first letter takes less time than to make a searcher.
    const SHORT: usize = 1024;
    match key.first() {
        Some(first) if raw.len() < SHORT => {
            memchr_iter(*first, raw).any(|at| raw.get(at..).is_some_and(|rest| rest.starts_with(key)))
        }
        _ => memmem::find(raw, key).is_some(),
    }
}

fn range(span: Span) -> Range<usize> {
    offset(span, 0)
}

fn offset(span: Span, base: usize) -> Range<usize> {
    base + span.start as usize..base + span.end as usize
}
