//! What the model is told of what it does not get.

use weir_policy::json::Json;

use crate::{
    part::{Kind, Part},
    parts_store::NewPart,
};

/// From so many bytes on, sizes are told in KiB.
const KIB_FROM: usize = 10 << 10;

/// What is missing of a part: the beginning of a sentence.
pub(crate) fn missing(part: &Part<'_>) -> String {
    if part.is_left_out {
        return left_out(noun(part.kind), part.whole.len());
    }
    let (delivered, total, unit) = in_unit(part.delivered(), part.whole.len());
    let items = part.items;
    let items =
        if items.total > 0 { format!("{} of {} items and ", items.delivered, items.total) } else { String::new() };
    format!("{items}{delivered} of {total} {unit} were delivered")
}

pub(crate) fn left_out(what: &str, bytes: usize) -> String {
    let (_, total, unit) = in_unit(0, bytes);
    format!("{what} of {total} {unit} was left out")
}

/// The part that names the resource.
pub(crate) fn link(uri: &str, name: &str, part: &NewPart<'_>, missing: &str) -> String {
    let size = if part.is_blob { decoded(&part.text) } else { part.text.len() };
    let link: Json = [
        ("type", "resource_link".into()),
        ("uri", uri.into()),
        ("name", name.into()),
        ("mimeType", (&*part.mime).into()),
        ("size", (size as u64).into()),
        ("description", format!("{missing}; read this resource for the rest").into()),
    ]
    .into();
    link.to_string()
}

/// The part that says that there is no resource.
pub(crate) fn lost(missing: &[String]) -> String {
    let text = format!("{}; the rest could not be kept, so ask for less", missing.join("; "));
    Json::from([("type", "text".into()), ("text", text.into())]).to_string()
}

const fn noun(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "a text",
        Kind::Structured => "structured content",
        Kind::Image => "an image",
        Kind::Audio => "audio",
        Kind::Resource => "a resource",
        Kind::Other => "a part",
    }
}

/// Both numbers in a unit that suits the larger one. What is there is never 0.
const fn in_unit(delivered: usize, total: usize) -> (usize, usize, &'static str) {
    if total < KIB_FROM { (delivered, total, "bytes") } else { (delivered.div_ceil(1024), total.div_ceil(1024), "KiB") }
}

/// How many bytes a base64 text stands for.
fn decoded(base64: &str) -> usize {
    base64.trim_end_matches('=').len() * 3 / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_says_what_is_missing() {
        let raw = format!(r#"{{"type":"text","text":"{}"}}"#, "a".repeat(90_000));
        let mut part = Part::of(&raw);
        part.fit(&mut 12_000);
        assert_eq!(missing(&part), "12 of 88 KiB were delivered");
        let mut image = Part::of(r#"{"type":"image","data":"QUJD","mimeType":"image/png"}"#);
        image.fit(&mut 0);
        assert_eq!(missing(&image), "an image of 4 bytes was left out");
    }

    #[test]
    fn sizes_are_those_of_the_content() {
        assert_eq!(["", "QQ==", "QUI=", "QUJD"].map(decoded), [0, 1, 2, 3]);
    }
}
