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

impl Place {
    /// Whether no path leads below it, and all of it is kept.
    const fn is_plain(self) -> bool {
        self.keep.is_none() && self.drop == 0
    }
}

struct Writer<'t> {
    document: &'t str,
    reader: Reader<'t>,
    keep: &'t Paths,
    drop: &'t Paths,
    most: usize,
    out: String,
    /// How much of the document is in `out`, or left out.
    done: usize,
    items: Items,
}

/// What has become of the elements or members of one value.
struct Progress {
    /// Where the last one that stays has ended.
    end: usize,
    read: usize,
    written: usize,
    is_gap: bool,
}

impl<'t> Writer<'t> {
    const fn of(document: &'t str, keep: &'t Paths, drop: &'t Paths, most: usize) -> Self {
        let (reader, items) = (Reader::of(document), Items { delivered: 0, total: 0, left_out: 0 });
        Self { document, reader, keep, drop, most, out: String::new(), done: 0, items }
    }

    fn run(mut self, place: Place) -> Option<Reshaped> {
        if !self.starts_container() {
            return None;
        }
        self.value(place)?;
        if !self.reader.is_at_end() || self.done == 0 {
            return None;
        }
        self.copy_to(self.document.len());
        Some(Reshaped { text: self.out, items: self.items })
    }

    fn starts_container(&mut self) -> bool {
        matches!(self.reader.peek(), Some(b'{' | b'['))
    }

    fn value(&mut self, place: Place) -> Option<()> {
        match self.reader.peek()? {
            b'{' | b'[' if place.depth == DEPTH => None,
            b'{' if !self.is_settled(place) => self.object(place),
            b'[' if !self.is_settled(place) => self.array(place),
            _ => self.reader.value().map(|_| ()),
        }
    }

    /// Whether all of a value stays.
    const fn is_settled(&self, place: Place) -> bool {
        self.most == usize::MAX && place.is_plain()
    }

    fn object(&mut self, place: Place) -> Option<()> {
        self.reader.takes(b'{');
        let mut progress = Progress::from(self.reader.end());
        while self.reader.more(b'}', progress.read == 0)? {
            let start = self.reader.place();
            let key = self.reader.key()?;
            let name = if place.is_plain() { None } else { scan::text(key) };
            let below = self.below(place, name.as_deref());
            self.child(&mut progress, start, below)?;
        }
        self.close(&progress);
        Some(())
    }

    fn array(&mut self, place: Place) -> Option<()> {
        self.reader.takes(b'[');
        let (before, below) = (self.items, self.below(place, None));
        let mut progress = Progress::from(self.reader.end());
        while self.reader.more(b']', progress.read == 0)? {
            let start = self.reader.place();
            self.child(&mut progress, start, below)?;
            if progress.written == self.most {
                self.cut_rest(&mut progress, before)?;
            }
            if below.is_none() {
                self.reader.close()?;
            }
        }
        self.close(&progress);
        Some(())
    }

    /// One element, or one member behind its key.
    fn child(&mut self, progress: &mut Progress, start: usize, below: Option<Place>) -> Option<()> {
        progress.read += 1;
        // Where a path goes on below a value, there has to be a below.
        let below = below.filter(|below| below.keep.is_none() || self.starts_container());
        let Some(below) = below else {
            progress.is_gap = true;
            return self.reader.value().map(|_| ());
        };
        if progress.is_gap {
            self.copy_to(progress.end);
            self.out.push_str(if progress.written > 0 { "," } else { "" });
            self.done = start;
            progress.is_gap = false;
        }
        self.value(below)?;
        progress.written += 1;
        progress.end = self.reader.end();
        Some(())
    }

    /// Leaves out what follows in an array that is long enough.
    fn cut_rest(&mut self, progress: &mut Progress, before: Items) -> Option<()> {
        let more = self.reader.close()?;
        if more > 0 {
            progress.is_gap = true;
            self.items = Items {
                delivered: before.delivered + progress.written,
                total: before.total + progress.read + more,
                left_out: self.items.left_out + more,
            };
        }
        Some(())
    }

    /// The closing bracket has just been read.
    fn close(&mut self, progress: &Progress) {
        if progress.is_gap {
            self.copy_to(progress.end);
            self.done = self.reader.end() - 1;
        }
    }

    fn copy_to(&mut self, end: usize) {
        self.out.push_str(self.document.get(self.done..end).unwrap_or_default());
        self.done = end;
    }

    /// The place of a member or an element; none if it is left out.
    fn below(&self, place: Place, key: Option<&str>) -> Option<Place> {
        let depth = place.depth + 1;
        if place.is_plain() {
            return Some(Place { depth, ..place });
        }
        let (drop, dropped) = self.drop.step(place.drop, place.depth, key);
        if dropped {
            return None;
        }
        let Some(open) = place.keep else { return Some(Place { keep: None, drop, depth }) };
        let (open, kept) = self.keep.step(open, place.depth, key);
        if kept {
            return Some(Place { keep: None, drop, depth });
        }
        (open != 0).then_some(Place { keep: Some(open), drop, depth })
    }
}

impl Progress {
    const fn from(end: usize) -> Self {
        Self { end, read: 0, written: 0, is_gap: false }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn paths(texts: &[&str]) -> Paths {
        Paths::read(texts.iter().copied()).expect("these are paths")
    }

    fn projected(document: &str, keep: &[&str], drop: &[&str]) -> Option<String> {
        project(document, &paths(keep), &paths(drop)).map(|reshaped| reshaped.text)
    }

    const ISSUES: &str = r#"{"total":1.0,"items":[{"title":"a\u0020b","body":"x","user":{"id":1,"url":"u"}},{"body":"y"},7],"next":null}"#;

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
    fn what_stays_is_written_as_it_was() {
        let document = "{ \"a\" : 1 ,\n \"b\" : [ 2, 3 ] , \"c\" : {} }";
        assert_eq!(projected(document, &[], &["a"]).as_deref(), Some("{\"b\" : [ 2, 3 ] , \"c\" : {} }"));
        assert_eq!(projected(document, &[], &["b"]).as_deref(), Some("{ \"a\" : 1,\"c\" : {} }"));
        assert_eq!(projected(document, &[], &["c"]).as_deref(), Some("{ \"a\" : 1 ,\n \"b\" : [ 2, 3 ]}"));
        assert_eq!(projected(document, &[], &["*"]).as_deref(), Some("{}"));
    }

    #[test]
    fn keys_are_compared_by_what_they_say() {
        assert_eq!(projected(r#"{"\u0061":1,"b":2}"#, &["a"], &[]).as_deref(), Some(r#"{"\u0061":1}"#));
    }

    #[test]
    fn arrays_are_cut_from_the_outside() {
        let cut = |document: &str, most: usize| cut(document, most).map(|cut| (cut.text, cut.items));
        let items = |delivered, total, left_out| Items { delivered, total, left_out };
        assert_eq!(cut("[ 1, 2 , 3 ]", 2), Some(("[ 1, 2]".into(), items(2, 3, 1))));
        assert_eq!(cut("[1,2,3]", 3), None);
        assert_eq!(cut("[[1,2,3],[4],[5]]", 2), Some(("[[1,2],[4]]".into(), items(2, 3, 2))));
        assert_eq!(cut(r#"{"a":[1,2],"b":[3,4,5]}"#, 1), Some((r#"{"a":[1],"b":[3]}"#.into(), items(2, 5, 3))));
    }

    #[test]
    fn what_is_no_document_stays() {
        for text in ["", "7", "\"[1,2]\"", "[1,2", "[1,2] x", "[,2]", "{1:2}", "see [1,2]"] {
            assert_eq!(cut(text, 1), None, "{text}");
        }
        let nested = |depth: usize| format!("{}1,2{}", "[".repeat(depth), "]".repeat(depth));
        assert!(cut(&nested(DEPTH), 1).is_some());
        assert_eq!(cut(&nested(DEPTH + 1), 1), None);
        assert_eq!(cut(&"[".repeat(1 << 20), 1), None);
    }

    /// The same, slowly. A path that goes on below nothing is left out.
    fn expected(value: &Value, keep: Option<&[&[&str]]>, drop: &[&[&str]]) -> Value {
        let child = |key: Option<&str>, value: &Value| {
            let step = |paths: &[&[&str]]| -> Vec<usize> {
                let fits = |path: &&[&str]| path.first().is_some_and(|step| *step == "*" || Some(*step) == key);
                paths.iter().enumerate().filter(|(_, path)| fits(path)).map(|(at, _)| at).collect()
            };
            let dropped: Vec<_> = step(drop).into_iter().map(|at| &drop[at][1..]).collect();
            let kept: Option<Vec<_>> = keep.map(|keep| step(keep).into_iter().map(|at| &keep[at][1..]).collect());
            let kept = kept.filter(|kept| !kept.iter().any(|path| path.is_empty()));
            let is_scalar = !value.is_object() && !value.is_array();
            if dropped.iter().any(|path| path.is_empty())
                || kept.as_ref().is_some_and(|kept| kept.is_empty() || is_scalar)
            {
                return None;
            }
            Some(expected(value, kept.as_deref(), &dropped))
        };
        match value {
            Value::Object(members) => {
                let members = members.iter().filter_map(|(key, value)| Some((key.clone(), child(Some(key), value)?)));
                members.collect::<serde_json::Map<_, _>>().into()
            }
            Value::Array(elements) => elements.iter().filter_map(|value| child(None, value)).collect(),
            other => other.clone(),
        }
    }

    /// A document of some kind: the same number gives the same one.
    fn some_document(seed: &mut u32, depth: usize) -> Value {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (kind, count) = ((*seed >> 20) % 5, (*seed >> 10) % 4);
        match kind {
            0 | 1 if depth < 4 => (0..count).map(|_| some_document(seed, depth + 1)).collect(),
            2 | 3 if depth < 4 => {
                let member = |at| (["a", "b", "c\"\\"][at as usize % 3].to_owned(), some_document(seed, depth + 1));
                (0..count).map(member).collect::<serde_json::Map<_, _>>().into()
            }
            3 => "],\"{\\".into(),
            _ => count.into(),
        }
    }

    #[test]
    fn a_projection_is_what_a_slow_one_is() {
        let lists: [&[&str]; 6] =
            [&[], &["a"], &["*.b", "a.*"], &["*.*.a", "b", "a.b.c\"\\"], &["*.*"], &["b.*", "c\"\\"]];
        let mut seed = 1;
        for round in 0..300 {
            let value = Value::Array(vec![some_document(&mut seed, 0), some_document(&mut seed, 0)]);
            let value = if round % 2 == 0 { value } else { serde_json::json!({"a": value[0], "b": value[1]}) };
            let pretty = serde_json::to_string_pretty(&value).expect("it is JSON");
            for document in [value.to_string(), pretty] {
                for (keep, drop) in lists.iter().flat_map(|keep| lists.iter().map(move |drop| (*keep, *drop))) {
                    let split = |list: &[&'static str]| -> Vec<Vec<&'static str>> {
                        list.iter().map(|path| path.split('.').collect()).collect()
                    };
                    let (kept, dropped) = (split(keep), split(drop));
                    let kept: Vec<_> = kept.iter().map(Vec::as_slice).collect();
                    let dropped: Vec<_> = dropped.iter().map(Vec::as_slice).collect();
                    let expected = expected(&value, (!kept.is_empty()).then_some(&kept[..]), &dropped);
                    let found = projected(&document, keep, drop).unwrap_or_else(|| document.clone());
                    let found: Value = serde_json::from_str(&found).expect(&found);
                    assert_eq!(found, expected, "{document} {keep:?} {drop:?}");
                }
            }
        }
    }

    fn shortened(value: &Value, most: usize) -> Value {
        match value {
            Value::Object(members) => {
                let members = members.iter().map(|(key, value)| (key.clone(), shortened(value, most)));
                members.collect::<serde_json::Map<_, _>>().into()
            }
            Value::Array(elements) => elements.iter().take(most).map(|value| shortened(value, most)).collect(),
            other => other.clone(),
        }
    }

    #[test]
    fn a_cut_is_what_a_slow_one_is() {
        let mut seed = 7;
        for round in 0..3000 {
            let (value, most) = (Value::Array(vec![some_document(&mut seed, 0)]), round % 3 + 1);
            let pretty = serde_json::to_string_pretty(&value).expect("it is JSON");
            for document in [value.to_string(), pretty] {
                let found = cut(&document, most).map_or_else(|| document.clone(), |cut| cut.text);
                let found: Value = serde_json::from_str(&found).expect(&found);
                assert_eq!(found, shortened(&value, most), "{document} {most}");
            }
        }
    }
}
