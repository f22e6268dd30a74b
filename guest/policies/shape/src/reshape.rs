//! Projection of a JSON document, and the cutting of its arrays.

use crate::{
    path::{Open, Paths},
    scan::{self, Reader},
};

/// As deep as arrays and objects may lie in each other.
const DEPTH: usize = 128;

/// A document that has become another.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reshaped {
    pub(crate) text: String,
    pub(crate) items: Items,
}

/// The elements of arrays that were cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Items {
    /// In cut arrays that lie in no other cut array.
    pub(crate) delivered: usize,
    /// The same, before they were cut.
    pub(crate) total: usize,
    /// Of all cut arrays.
    pub(crate) left_out: usize,
}

/// The document with what is on a path of `keep`, if there are any, and without what is on a path of `drop`. None if nothing
/// changes, or it is no document.
pub(crate) fn project(document: &str, keep: &Paths, drop: &Paths) -> Option<Reshaped> {
    let kept = (!keep.is_empty()).then(|| keep.open());
    let place = Place { keep: kept, drop: drop.open(), depth: 0 };
    Writer::of(document, keep, drop, usize::MAX).run(place)
}

/// The document with arrays of at most so many elements. None if nothing changes, or it is no document.
pub(crate) fn cut(document: &str, most: usize) -> Option<Reshaped> {
    let none = Paths::default();
    Writer::of(document, &none, &none, most).run(Place { keep: None, drop: 0, depth: 0 })
}

/// Where in the document a value is.
#[derive(Clone, Copy)]
struct Place {
    /// The paths that lead below it; none if all of it is kept.
    keep: Option<Open>,
    drop: Open,
    depth: usize,
}

struct Writer<'t> {
    reader: Reader<'t>,
    keep: &'t Paths,
    drop: &'t Paths,
    most: usize,
    out: String,
    changed: bool,
    items: Items,
}

impl<'t> Writer<'t> {
    const fn of(document: &'t str, keep: &'t Paths, drop: &'t Paths, most: usize) -> Self {
        let items = Items { delivered: 0, total: 0, left_out: 0 };
        Self { reader: Reader::of(document), keep, drop, most, out: String::new(), changed: false, items }
    }

    fn run(mut self, place: Place) -> Option<Reshaped> {
        if !self.starts_container() {
            return None;
        }
        self.value(place)?;
        (self.reader.is_at_end() && self.changed).then_some(Reshaped { text: self.out, items: self.items })
    }

    fn starts_container(&mut self) -> bool {
        matches!(self.reader.peek(), Some(b'{' | b'['))
    }

    fn value(&mut self, place: Place) -> Option<()> {
        match self.reader.peek()? {
            b'{' | b'[' if place.depth == DEPTH => None,
            b'{' => self.object(place),
            b'[' => self.array(place),
            _ => {
                self.out.push_str(self.reader.scalar()?);
                Some(())
            }
        }
    }

    fn object(&mut self, place: Place) -> Option<()> {
        self.reader.takes(b'{');
        self.out.push('{');
        let (mut first, mut empty) = (true, true);
        while self.reader.more(b'}', first)? {
            first = false;
            let key = self.reader.key()?;
            let Some(below) = self.below(place, Some(key)) else {
                self.leave_out()?;
                continue;
            };
            self.out.push_str(if empty { "" } else { "," });
            empty = false;
            self.out.push_str(key);
            self.out.push(':');
            self.value(below)?;
        }
        self.out.push('}');
        Some(())
    }

    fn array(&mut self, place: Place) -> Option<()> {
        self.reader.takes(b'[');
        self.out.push('[');
        let (before, mut read, mut written) = (self.items, 0, 0);
        while self.reader.more(b']', read == 0)? {
            read += 1;
            let below = if written < self.most { self.below(place, None) } else { None };
            let Some(below) = below else {
                self.leave_out()?;
                continue;
            };
            self.out.push_str(if written == 0 { "" } else { "," });
            written += 1;
            self.value(below)?;
        }
        self.out.push(']');
        if written == self.most && read > written {
            let left_out = self.items.left_out + (read - written);
            self.items = Items { delivered: before.delivered + written, total: before.total + read, left_out };
        }
        Some(())
    }

    /// The place of a member or an element; none if it is left out.
    fn below(&mut self, place: Place, key: Option<&str>) -> Option<Place> {
        let depth = place.depth + 1;
        if place.keep.is_none() && place.drop == 0 {
            return Some(Place { depth, ..place });
        }
        let name = key.and_then(scan::text);
        let (drop, dropped) = self.drop.step(place.drop, place.depth, name.as_deref());
        if dropped {
            return None;
        }
        let Some(open) = place.keep else { return Some(Place { keep: None, drop, depth }) };
        let (open, kept) = self.keep.step(open, place.depth, name.as_deref());
        if kept {
            return Some(Place { keep: None, drop, depth });
        }
        // A path ends below this value, so there has to be a below.
        (open != 0 && self.starts_container()).then_some(Place { keep: Some(open), drop, depth })
    }

    fn leave_out(&mut self) -> Option<()> {
        self.changed = true;
        self.reader.value().map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(texts: &[&str]) -> Paths {
        Paths::read(texts.iter().copied()).expect("these are paths")
    }

    fn projected(document: &str, keep: &[&str], drop: &[&str]) -> Option<String> {
        project(document, &paths(keep), &paths(drop)).map(|reshaped| reshaped.text)
    }

    const ISSUES: &str = r#"{ "total": 1.0, "items": [
        {"title":"a\u0020b","body":"x","user":{"id":1,"url":"u"}}, {"body":"y"}, 7 ], "next": null }"#;

    #[test]
    fn only_what_is_kept_stays() {
        let of = |keep: &[&str]| projected(ISSUES, keep, &[]);
        assert_eq!(of(&["items.*.title"]).as_deref(), Some(r#"{"items":[{"title":"a\u0020b"},{}]}"#));
        assert_eq!(of(&["total", "next"]).as_deref(), Some(r#"{"total":1.0,"next":null}"#));
        assert_eq!(of(&["items.*.user.id"]).as_deref(), Some(r#"{"items":[{"user":{"id":1}},{}]}"#));
        assert_eq!(
            of(&["*.*.user", "items.*.user.id"]).as_deref(),
            Some(r#"{"items":[{"user":{"id":1,"url":"u"}},{}]}"#)
        );
        assert_eq!(of(&["total.x"]).as_deref(), Some("{}"));
        assert_eq!(of(&["*"]), None);
        assert_eq!(projected("[[1,2],{\"a\":3}]", &["*.a"], &[]).as_deref(), Some(r#"[[],{"a":3}]"#));
    }

    #[test]
    fn what_is_dropped_goes() {
        let of = |drop: &[&str]| projected(ISSUES, &[], drop);
        assert_eq!(of(&["items"]).as_deref(), Some(r#"{"total":1.0,"next":null}"#));
        assert_eq!(
            of(&["items.*.body", "items.*.user.url", "next"]).as_deref(),
            Some(r#"{"total":1.0,"items":[{"title":"a\u0020b","user":{"id":1}},{},7]}"#)
        );
        assert_eq!(of(&["items.*"]).as_deref(), Some(r#"{"total":1.0,"items":[],"next":null}"#));
        assert_eq!(of(&["item", "items.*.title.x"]), None);
    }

    #[test]
    fn what_is_kept_can_be_dropped() {
        let document = r#"{"a":{"b":1,"c":2},"d":3}"#;
        assert_eq!(projected(document, &["a"], &["a.b"]).as_deref(), Some(r#"{"a":{"c":2}}"#));
        assert_eq!(projected(document, &["a.b"], &["a"]).as_deref(), Some("{}"));
    }

    #[test]
    fn keys_are_compared_by_what_they_say() {
        assert_eq!(projected(r#"{"\u0061":1,"b":2}"#, &["a"], &[]).as_deref(), Some(r#"{"\u0061":1}"#));
    }

    #[test]
    fn arrays_are_cut_from_the_outside() {
        let cut = |document: &str, most: usize| cut(document, most).map(|cut| (cut.text, cut.items));
        let items = |delivered, total, left_out| Items { delivered, total, left_out };
        assert_eq!(cut("[1, 2,3]", 2), Some(("[1,2]".into(), items(2, 3, 1))));
        assert_eq!(cut("[1,2,3]", 3), None);
        assert_eq!(cut("[[1,2,3],[4],[5]]", 2), Some(("[[1,2],[4]]".into(), items(2, 3, 2))));
        assert_eq!(cut(r#"{"a":[1,2],"b":[3,4,5]}"#, 1), Some((r#"{"a":[1],"b":[3]}"#.into(), items(2, 5, 3))));
    }

    #[test]
    fn what_is_no_document_stays() {
        for text in ["", "7", "\"[1,2]\"", "[1,2", "[1,2] x", "[1,2,]", "{1:2}", "see [1,2]"] {
            assert_eq!(cut(text, 1), None, "{text}");
        }
        let nested = |depth: usize| format!("{}1,2{}", "[".repeat(depth), "]".repeat(depth));
        assert!(cut(&nested(DEPTH), 1).is_some());
        assert_eq!(cut(&nested(DEPTH + 1), 1), None);
        assert_eq!(cut(&"[".repeat(1 << 20), 1), None);
    }
}
