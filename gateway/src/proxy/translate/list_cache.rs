//! Long lists that upstreams give again and again.
//!
//! To translate an answer is to read all of it, which for hundreds of tools costs more than everything else on its way.
//! But a list seldom changes. So the last one is kept with what became of it, and where the upstream says the same again,
//! byte for byte but for the id of the request, so does Weir. Nobody is told what their upstream has not just said.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use weir_mcp::{Era, Field, Kind, Message, method};

use crate::config::UpstreamName;

/// Which answers are worth it, in bytes: shorter ones are soon read, and of longer ones not too much is kept.
const WORTH: std::ops::RangeInclusive<usize> = 8 * 1024..=2 * 1024 * 1024;

/// The last long lists of each upstream, for clients of the other era.
#[derive(Default)]
pub(in crate::proxy) struct ListCache {
    lists: Mutex<HashMap<CachedListKey, Arc<CachedList>>>,
}

/// The upstream, the era of its clients, and the method.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct CachedListKey {
    upstream: UpstreamName,
    era: Era,
    method: String,
}

/// A list and what became of it, both without the id, which lies between.
struct CachedList {
    given: [Bytes; 2],
    /// What else it was translated with.
    with: Bytes,
    told: [Bytes; 2],
}

impl CachedListKey {
    /// The list that a method of a client of this era asks for; none if it asks for something else.
    pub(super) fn of(upstream: &UpstreamName, era: Era, method: &str) -> Option<Self> {
        method::is_list(method).then(|| Self { upstream: upstream.clone(), era, method: method.to_owned() })
    }
}

impl ListCache {
    /// What the client is told, if the upstream answers its request `key` with what it said the last time; both ids are
    /// raw.
    pub(super) fn recall(
        &self,
        list: &CachedListKey,
        (answer, key): (&[u8], &[u8]),
        with: &[u8],
        id: &[u8],
    ) -> Option<Bytes> {
        if !WORTH.contains(&answer.len()) {
            return None;
        }
        let known = self.lists.lock().get(list).cloned()?;
        let [before, behind] = &known.given;
        let same = answer.strip_prefix(&before[..])?.strip_suffix(&behind[..])? == key && known.with == with;
        let [before, behind] = &known.told;
        same.then(|| [before, id, behind].concat().into())
    }

    /// Keeps what became of an answer.
    pub(super) fn keep(&self, list: CachedListKey, answer: &Message, with: &[u8], told: &Bytes, id: &[u8]) {
        let given = answer.bytes();
        if answer.kind() != Kind::Response || !WORTH.contains(&given.len()) || !WORTH.contains(&told.len()) {
            return;
        }
        let Some(key) = answer.raw(Field::Id) else { return };
        let at = key.as_ptr().addr() - given.as_ptr().addr();
        let given = [given.slice(..at), given.slice(at + key.len()..)];
        // Most servers put the id in front, where it stays; otherwise it is not looked for.
        let same_place = told.starts_with(&given[0]) && told[at..].starts_with(id);
        let behind = at + id.len();
        if same_place && matches!(told.get(behind), Some(b',' | b'}' | b' ')) {
            let told = [told.slice(..at), told.slice(behind..)];
            let known = CachedList { given, with: Bytes::copy_from_slice(with), told };
            self.lists.lock().insert(list, Arc::new(known));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn answer(id: &str, filler: char) -> Bytes {
        let filler = String::from(filler).repeat(10_000);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":[{{"name":"{filler}"}}]}}}}"#).into()
    }

    fn list(upstream: &str, method: &str) -> Option<CachedListKey> {
        CachedListKey::of(&upstream.parse().unwrap(), Era::Modern, method)
    }

    fn told(id: &str, filler: char) -> Bytes {
        let text = String::from_utf8(answer(id, filler).to_vec()).unwrap();
        text.replace(r#"}]}"#, r#"}],"resultType":"complete"}"#).into()
    }

    #[test]
    fn only_the_very_same_is_recalled_and_under_its_own_id() {
        let list_cache = ListCache::default();
        let tools = list("a", "tools/list").unwrap();
        let first = Message::parse(answer("7", 'a')).unwrap();
        list_cache.keep(tools.clone(), &first, b"info", &told("\"one\"", 'a'), b"\"one\"");

        let recall = |list: &CachedListKey, answer: &Bytes, key: &str, with: &str| {
            list_cache.recall(list, (answer, key.as_bytes()), with.as_bytes(), b"22")
        };
        assert_eq!(recall(&tools, &answer("8", 'a'), "8", "info").unwrap(), told("22", 'a'));
        // The answer to another request, another list, another upstream, another way to say it, a broken one.
        assert_eq!(recall(&tools, &answer("8", 'a'), "9", "info"), None);
        assert_eq!(recall(&tools, &answer("8", 'b'), "8", "info"), None);
        assert_eq!(recall(&tools, &answer("8", 'a'), "8", "other"), None);
        let other = list("b", "tools/list").unwrap();
        assert_eq!(recall(&other, &answer("8", 'a'), "8", "info"), None);
        assert_eq!(recall(&tools, &answer("8,\"id\":8", 'a'), "8", "info"), None);
        assert!(list("a", "tools/call").is_none());
    }

    #[test]
    fn an_id_that_moves_is_not_guessed_at() {
        let list_cache = ListCache::default();
        let tools = list("a", "tools/list").unwrap();
        let filler = "a".repeat(10_000);
        let given = |id| format!(r#"{{"result":{{"tools":["{filler}"]}},"jsonrpc":"2.0","id":{id}}}"#);
        let first = Message::parse(given(7).into()).unwrap();
        let told = format!(r#"{{"result":{{"tools":["{filler}"],"ttlMs":0}},"jsonrpc":"2.0","id":1}}"#);
        list_cache.keep(tools.clone(), &first, b"", &told.into(), b"1");
        assert_eq!(list_cache.recall(&tools, (given(8).as_bytes(), b"8"), b"", b"2"), None);
    }
}
