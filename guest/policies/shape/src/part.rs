//! The parts of a result: those of `content`, and `structuredContent`.

use std::borrow::Cow;

use weir_policy::json::Json;

use crate::{
    parts_store::NewPart,
    reshape::{self, Items},
    scan,
    settings::Rules,
};

/// The longest media type that is passed on, in bytes.
const MIME: usize = 128;

/// What a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Structured,
    Image,
    Audio,
    Resource,
    /// A link, or what later versions of the protocol may add.
    Other,
}

/// One part, and what becomes of it.
pub(crate) struct Part<'r> {
    /// The part as it came.
    raw: &'r str,
    pub(crate) kind: Kind,
    /// The media type that the part says it has.
    mime: Option<Cow<'r, str>>,
    is_blob: bool,
    /// How much of it counted as it came, in bytes.
    before: usize,
    /// What counts of it, without what `keep` and `drop` leave out: a text, a document or base64.
    pub(crate) whole: Cow<'r, str>,
    is_projected: bool,
    /// What is delivered, where that is less.
    cut: Option<String>,
    pub(crate) is_left_out: bool,
    /// The items that were cut off; none once the budget has cut too.
    pub(crate) items: Items,
    pub(crate) items_left_out: usize,
}

impl<'r> Part<'r> {
    /// A part of `content`.
    pub(crate) fn of(raw: &'r str) -> Self {
        Self::read(raw).unwrap_or_else(|| Self::new(raw, Kind::Other, None, Cow::Borrowed(raw)))
    }

    /// The value of `structuredContent`.
    pub(crate) fn structured(raw: &'r str) -> Self {
        Self::new(raw, Kind::Structured, None, Cow::Borrowed(raw))
    }

    fn read(raw: &'r str) -> Option<Self> {
        let members = scan::members(raw)?;
        let text = |key: &str| scan::member(&members, key).and_then(scan::text);
        let kind = text("type")?;
        let mime = text("mimeType");
        match &*kind {
            "text" => Some(Self::new(raw, Kind::Text, None, text("text")?)),
            "image" => Some(Self { is_blob: true, ..Self::new(raw, Kind::Image, mime, text("data")?) }),
            "audio" => Some(Self { is_blob: true, ..Self::new(raw, Kind::Audio, mime, text("data")?) }),
            "resource" => Self::resource(raw, scan::member(&members, "resource")?),
            _ => None,
        }
    }

    fn resource(raw: &'r str, resource: &'r str) -> Option<Self> {
        let members = scan::members(resource)?;
        let text = |key: &str| scan::member(&members, key).and_then(scan::text);
        let mime = text("mimeType");
        let of = |whole| Self::new(raw, Kind::Resource, mime, whole);
        match text("text") {
            Some(text) => Some(of(text)),
            None => text("blob").map(|blob| Self { is_blob: true, ..of(blob) }),
        }
    }

    fn new(raw: &'r str, kind: Kind, mime: Option<Cow<'r, str>>, whole: Cow<'r, str>) -> Self {
        Self {
            raw,
            kind,
            mime,
            is_blob: false,
            before: whole.len(),
            whole,
            is_projected: false,
            cut: None,
            is_left_out: false,
            items: Items::default(),
            items_left_out: 0,
        }
    }

    /// Leaves out what the rules leave out of documents.
    pub(crate) fn reshape(&mut self, rules: &Rules) {
        if !matches!(self.kind, Kind::Text | Kind::Structured) || rules.is_budget_only() {
            return;
        }
        if let Some(projected) = reshape::project(&self.whole, &rules.keep, &rules.drop) {
            self.whole = Cow::Owned(projected.text);
            self.is_projected = true;
        }
        if let Some(cut) = rules.items.and_then(|most| reshape::cut(&self.whole, most)) {
            self.cut = Some(cut.text);
            self.items = cut.items;
            self.items_left_out = cut.items.left_out;
        }
    }

    /// Takes what it needs from the budget. A text is cut to what is left, all else is left out.
    pub(crate) fn fit(&mut self, left: &mut usize) {
        let text = self.cut.as_deref().unwrap_or(&self.whole);
        if let Some(less) = left.checked_sub(text.len()) {
            *left = less;
            return;
        }
        self.items = Items::default();
        let end = if self.kind == Kind::Text { text.floor_char_boundary(*left) } else { 0 };
        self.is_left_out = end == 0;
        if end > 0 {
            self.cut = Some(text[..end].to_owned());
            *left = 0;
        }
    }

    /// Whether something of it is to be had in the store only.
    pub(crate) const fn is_cut(&self) -> bool {
        self.is_left_out || self.cut.is_some()
    }

    pub(crate) const fn is_changed(&self) -> bool {
        self.is_cut() || self.is_projected
    }

    /// The bytes that count of what is delivered.
    pub(crate) fn delivered(&self) -> usize {
        if self.is_left_out { 0 } else { self.cut.as_ref().map_or(self.whole.len(), String::len) }
    }

    /// The bytes that the client does not get.
    pub(crate) fn left_out(&self) -> usize {
        self.before.saturating_sub(self.delivered())
    }

    /// The part as the client gets it; none if it does not.
    pub(crate) fn written(&self) -> Option<Cow<'r, str>> {
        match &self.cut {
            _ if self.is_left_out => None,
            Some(cut) => Some(self.with(cut)),
            None => Some(self.complete()),
        }
    }

    /// The part as it is without cuts.
    pub(crate) fn complete(&self) -> Cow<'r, str> {
        if self.is_projected { self.with(&self.whole) } else { Cow::Borrowed(self.raw) }
    }

    /// The part with another text.
    fn with(&self, text: &str) -> Cow<'r, str> {
        if self.kind == Kind::Structured {
            return Cow::Owned(text.to_owned());
        }
        let members = scan::members(self.raw).unwrap_or_default();
        let mut out = String::with_capacity(self.raw.len() - self.before.min(self.raw.len()) + text.len());
        for (key, value) in members {
            out.push_str(if out.is_empty() { "{" } else { "," });
            out.push_str(key);
            out.push(':');
            if scan::is_key(key, "text") {
                out.push_str(&Json::from(text).to_string());
            } else {
                out.push_str(value);
            }
        }
        out.push('}');
        Cow::Owned(out)
    }

    /// What is stored of it.
    pub(crate) fn stored(&self) -> NewPart<'_> {
        let mime = match self.kind {
            Kind::Text if !scan::is_document(&self.whole) => "text/plain",
            Kind::Text | Kind::Structured | Kind::Other => "application/json",
            Kind::Image | Kind::Audio | Kind::Resource if self.is_blob => "application/octet-stream",
            Kind::Image | Kind::Audio | Kind::Resource => "text/plain",
        };
        let mime = self.mime.as_deref().filter(|mime| mime.len() <= MIME).unwrap_or(mime);
        NewPart { mime: Cow::Borrowed(mime), is_blob: self.is_blob, text: Cow::Borrowed(&self.whole) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_by_their_type() {
        for (raw, kind, whole, blob) in [
            (r#"{"type":"text","text":"a\n"}"#, Kind::Text, "a\n", false),
            (r#"{"type":"image","data":"QQ==","mimeType":"image/png"}"#, Kind::Image, "QQ==", true),
            (r#"{"type":"audio","data":"QQ==","mimeType":"audio/wav"}"#, Kind::Audio, "QQ==", true),
            (r#"{"type":"resource","resource":{"uri":"a:b","text":"c"}}"#, Kind::Resource, "c", false),
            (r#"{"type":"resource","resource":{"uri":"a:b","blob":"QQ=="}}"#, Kind::Resource, "QQ==", true),
            (r#"{"type":"resource_link","uri":"a:b"}"#, Kind::Other, r#"{"type":"resource_link","uri":"a:b"}"#, false),
            (r#"{"type":"text"}"#, Kind::Other, r#"{"type":"text"}"#, false),
            ("7", Kind::Other, "7", false),
        ] {
            let part = Part::of(raw);
            assert_eq!((part.kind, &*part.whole, part.is_blob), (kind, whole, blob), "{raw}");
            assert_eq!(part.written().as_deref(), Some(raw));
        }
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let mut part = Part::of(r#"{"annotations":{"x":1.0},"type":"text","text":"aé\"b"}"#);
        let mut left = 2;
        part.fit(&mut left);
        assert_eq!(part.written().as_deref(), Some(r#"{"annotations":{"x":1.0},"type":"text","text":"a"}"#));
        assert_eq!((left, part.delivered(), part.left_out()), (0, 1, 4));
        let mut none = Part::of(r#"{"type":"text","text":"é"}"#);
        none.fit(&mut 1);
        assert!(none.is_left_out && none.written().is_none());
    }

    #[test]
    fn what_is_no_text_is_left_out_whole() {
        let mut left = 3;
        let mut image = Part::of(r#"{"type":"image","data":"QUJD","mimeType":"image/png"}"#);
        image.fit(&mut left);
        assert!(image.is_left_out && left == 3);
        assert_eq!((&*image.stored().mime, image.stored().is_blob), ("image/png", true));
        let mut text = Part::of(r#"{"type":"text","text":"abc"}"#);
        text.fit(&mut left);
        assert!(!text.is_changed() && left == 0);
    }
}
