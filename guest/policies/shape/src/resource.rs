//! The resources that are what was cut off: `weir-shape://UPSTREAM/ID`, and `/2` and so on for the pages after the first.

use weir_policy::{Era, calls::*, json::Json};

use crate::{
    caller,
    parts_store::{self, Page, PartStorage},
};

/// What the URIs of this policy begin with.
pub(crate) const SCHEME: &str = "weir-shape://";
/// Resource not found (MCP 2024-11-05 to 2025-11-25, server/resources).
const NOT_FOUND: i32 = -32002;
/// The same in 2026-07-28, which reserves -32002.
const INVALID_PARAMS: i32 = -32602;
/// How long a client may take a page for the same, in milliseconds. It never changes.
const TTL_MS: u64 = 300_000;

pub(crate) fn uri(upstream: &str, id: &str) -> String {
    format!("{SCHEME}{upstream}/{id}")
}

/// The answer to a client that reads one.
pub(crate) fn read(about: &Call, requested: &str, store: &impl PartStorage) -> Decision {
    let caller = caller::key(about.principal.as_ref());
    let page = match parse(requested, &about.upstream.name) {
        Some((id, number)) => {
            parts_store::read(store, &caller, id, number).map(|page| page.map(|page| (id, number, page)))
        }
        None => Ok(None),
    };
    match page {
        Ok(Some((id, number, page))) => {
            let next = format!("{}/{}", uri(&about.upstream.name, id), number + 1);
            Decision::answer(contents(about.era, requested, number, &next, page).to_string())
        }
        Ok(None) => refused(about.era),
        Err(_) => Decision::deny("the resource cannot be read now; try again later"),
    }
}

/// Nobody learns whether another caller has such a resource.
fn refused(era: Era) -> Decision {
    let code = match era {
        Era::Modern => INVALID_PARAMS,
        Era::Legacy => NOT_FOUND,
    };
    let denial = Denial { code: Some(code), ..Denial::new("no such resource, or it has expired; call the tool again") };
    Decision { verdict: Verdict::Deny(denial), ..Decision::allow() }
}

fn contents(era: Era, requested: &str, number: usize, next: &str, page: Page) -> Json {
    let key = if page.is_blob { "blob" } else { "text" };
    let mut contents =
        vec![Json::from([("uri", requested.into()), ("mimeType", page.mime.into()), (key, page.text.into())])];
    if number < page.pages {
        let text = format!("page {number} of {}; read {next} for the next", page.pages);
        contents.push([("uri", requested.into()), ("mimeType", "text/plain".into()), ("text", text.into())].into());
    }
    let mut result = Json::from([("contents", contents.into())]);
    if era == Era::Modern {
        result.set("resultType", "complete");
        result.set("ttlMs", TTL_MS);
        result.set("cacheScope", "private");
    }
    result
}

/// The id and the page of a URI.
fn parse<'u>(requested: &'u str, upstream: &str) -> Option<(&'u str, usize)> {
    let path = requested.strip_prefix(SCHEME)?.strip_prefix(upstream)?.strip_prefix('/')?;
    let (id, number) = path.split_once('/').unwrap_or((path, "1"));
    let is_id = id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_number = !number.starts_with(['0', '+']);
    if is_id && is_number { Some((id, number.parse().ok()?)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_an_id_and_a_page() {
        let id = "0123456789abcdef0123456789abcdef";
        assert_eq!(parse(&uri("up", id), "up"), Some((id, 1)));
        assert_eq!(parse(&format!("weir-shape://up/{id}/12"), "up"), Some((id, 12)));
        for wrong in ["", "/0", "/01", "/+1", "/", "/x", "/1/2", "/99999999999999999999999", "a"] {
            let wrong =
                if wrong.is_empty() { "weir-shape://up/".to_owned() } else { format!("{}{wrong}", uri("up", id)) };
            assert_eq!(parse(&wrong, "up"), None, "{wrong}");
        }
        assert_eq!(parse(&uri("other", id), "up"), None);
        assert_eq!(parse(&uri("up", &id.to_uppercase()), "up"), None);
        assert_eq!(parse("weir-shape://up/index", "up"), None);
    }
}
