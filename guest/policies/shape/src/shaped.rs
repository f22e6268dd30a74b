//! A result that is held to its rules.

use std::borrow::Cow;

use weir_policy::calls::Call;

use crate::{
    caller, notice,
    part::{Kind, Part},
    parts_store::{self, NewPart, PartStorage, Terms},
    resource, scan,
    settings::Rules,
};

/// The most parts of `content`. It keeps hostile results within the memory of a guest.
const PARTS: usize = 4096;
/// The most links in one result. What is cut beyond that is stored as one.
const LINKS: usize = 8;
/// The longest name of a tool in a link, in characters.
const NAME: usize = 64;

/// A result that was changed.
#[derive(Debug)]
pub(crate) struct Shaped {
    pub(crate) result: String,
    /// The bytes and the items that were left out.
    pub(crate) bytes: usize,
    pub(crate) items: usize,
}

/// A result with more parts than can be handled.
#[derive(Debug)]
pub(crate) struct TooManyParts;

/// Something that was cut, and what is said of it.
struct CutOff<'p> {
    part: NewPart<'p>,
    missing: String,
}

/// The result as the rules allow it; none if it is that already.
pub(crate) fn shape(
    about: &Call,
    rules: &Rules,
    ttl_seconds: u32,
    result: &str,
    store: &impl PartStorage,
) -> Result<Option<Shaped>, TooManyParts> {
    // No part is longer than what is written.
    if rules.is_budget_only() && result.len() <= rules.budget {
        return Ok(None);
    }
    let Some(members) = scan::members(result) else { return Ok(None) };
    let Some(content) = scan::elements(scan::member(&members, "content").unwrap_or("[]")) else { return Ok(None) };
    if content.len() > PARTS {
        return Err(TooManyParts);
    }
    let mut content: Vec<_> = content.into_iter().map(Part::of).collect();
    let mut structured = scan::member(&members, "structuredContent").map(Part::structured);
    let is_error = scan::member(&members, "isError") == Some("true");
    let rules = if is_error { &rules.budget_only() } else { rules };
    hold(&mut content, structured.as_mut(), rules);
    let parts = || content.iter().chain(&structured);
    if !parts().any(Part::is_changed) {
        return Ok(None);
    }
    let cut_off = cut_off(&content, structured.as_ref());
    let terms = Terms { caller: &caller::key(about.principal.as_ref()), page_bytes: rules.budget, ttl_seconds };
    let new: Vec<String> = content
        .iter()
        .filter_map(Part::written)
        .map(Cow::into_owned)
        .chain(notices(about, &terms, &cut_off, store))
        .collect();
    Ok(Some(Shaped {
        result: rewritten(&members, &new.join(","), structured.as_ref().and_then(Part::written).as_deref()),
        bytes: parts().map(Part::left_out).sum(),
        items: parts().map(|part| part.items_left_out).sum(),
    }))
}

/// Cuts all parts to what the rules allow.
fn hold<'r>(content: &mut [Part<'r>], structured: Option<&mut Part<'r>>, rules: &Rules) {
    let mut left = rules.budget;
    for part in content.iter_mut().chain(structured) {
        part.reshape(rules);
        part.fit(&mut left);
    }
}

/// What is to be stored. Structured content that a text says too is not stored again.
fn cut_off<'p>(content: &'p [Part<'_>], structured: Option<&'p Part<'_>>) -> Vec<CutOff<'p>> {
    let said =
        |part: &Part<'_>| content.iter().any(|one| one.kind == Kind::Text && scan::is_same(&one.whole, &part.whole));
    let structured = structured.filter(|part| part.is_cut() && !said(part));
    let cut: Vec<_> = structured.into_iter().chain(content.iter().filter(|part| part.is_cut())).collect();
    let singles = if cut.len() > LINKS { LINKS - 1 } else { cut.len() };
    let (singles, others) = cut.split_at(singles);
    let single = |part: &&'p Part<'_>| CutOff { part: part.stored(), missing: notice::missing(part) };
    singles.iter().map(single).chain(bundle(others)).collect()
}

/// Parts that are stored as one: an array of them.
fn bundle<'p>(parts: &[&Part<'_>]) -> Option<CutOff<'p>> {
    if parts.is_empty() {
        return None;
    }
    let all: Vec<String> = parts.iter().map(|part| part.complete().into_owned()).collect();
    let bytes = parts.iter().map(|part| part.whole.len()).sum();
    Some(CutOff {
        part: NewPart { mime: "application/json".into(), is_blob: false, text: format!("[{}]", all.join(",")).into() },
        missing: notice::left_out(&format!("a list of {} parts", parts.len()), bytes),
    })
}

/// Stores what was cut. The parts that say where it is, or that it is nowhere.
fn notices(about: &Call, terms: &Terms<'_>, cut_off: &[CutOff<'_>], store: &impl PartStorage) -> Vec<String> {
    if cut_off.is_empty() {
        return Vec::new();
    }
    let tool = if about.method == "tools/call" { about.name.as_deref() } else { None };
    let tool: String = tool.unwrap_or("result").chars().take(NAME).collect();
    let ids = parts_store::keep(store, terms, cut_off.iter().map(|one| &one.part));
    let (mut all, mut lost) = (Vec::new(), Vec::new());
    for ((one, id), number) in cut_off.iter().zip(ids).zip(1..) {
        match id {
            Some(id) => {
                let uri = resource::uri(&about.upstream.name, &id);
                all.push(notice::link(&uri, &format!("{tool}-rest-{number}"), &one.part, &one.missing));
            }
            None => lost.push(one.missing.clone()),
        }
    }
    if !lost.is_empty() {
        all.push(notice::lost(&lost));
    }
    all
}

/// The result with other content.
fn rewritten(members: &[(&str, &str)], content: &str, structured: Option<&str>) -> String {
    let (mut out, mut has_content, mut has_structured) = (String::new(), false, false);
    let mut put = |key: &str, value: &[&str]| {
        out.push(if out.is_empty() { '{' } else { ',' });
        out.push_str(key);
        out.push(':');
        value.iter().for_each(|text| out.push_str(text));
    };
    for (key, value) in members {
        if scan::is_key(key, "content") {
            if !std::mem::replace(&mut has_content, true) {
                put(key, &["[", content, "]"]);
            }
        } else if scan::is_key(key, "structuredContent") {
            if let (Some(structured), false) = (structured, std::mem::replace(&mut has_structured, true)) {
                put(key, &[structured]);
            }
        } else {
            put(key, &[value]);
        }
    }
    if !has_content {
        put("\"content\"", &["[", content, "]"]);
    }
    out.push('}');
    out
}
