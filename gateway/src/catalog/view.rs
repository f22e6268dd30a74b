//! What a caller sees at an endpoint: of the lists of all upstreams the part that is served there and that the rules allow.
//!
//! Callers for whom the same rules count see the same, so a list is merged once for all of them, and anew when the lists
//! of all upstreams have changed.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use weir_mcp::{ListKind, json};

use crate::{
    access::{Grants, GrantsKey, Item, Toolset},
    caller::Caller,
    config::ToolOverride,
    policy::ClientClass,
    snapshot::Snapshot,
};

use super::{CatalogSnapshot, MergedLists, merge::KnownUpstream, snapshot::ListEntry};

/// How many views are kept; of more, the one that was not used for the longest time is forgotten.
const VIEWS: usize = 1024;

/// How many bytes of lists they may have together, of which the one that was made last may have more.
const BYTES: usize = 64 << 20;

/// Who looks at which endpoint.
#[derive(Clone, Copy)]
pub struct Viewer<'a> {
    /// Who it is; none where everybody may.
    pub caller: Option<&'a Arc<Caller>>,
    /// What is served there.
    pub toolset: &'a Toolset,
    /// What the client says of itself, as far as it is known.
    pub client: Option<ClientInfo<'a>>,
}

/// What a client says of itself. It proves nothing.
#[derive(Clone, Copy, Debug)]
pub enum ClientInfo<'a> {
    /// Its name, as [`client_name`] has it.
    Name(&'a str),
    /// Its `clientInfo`, raw.
    Raw(&'a [u8]),
}

impl<'a> ClientInfo<'a> {
    /// Its name, in small letters.
    #[must_use]
    pub fn name(self) -> Cow<'a, str> {
        match self {
            Self::Name(name) => Cow::Borrowed(name),
            Self::Raw(info) => Cow::Owned(client_name(info)),
        }
    }
}

/// The name in a `clientInfo`, raw: cut to a bearable length, and in small letters. Empty if there is none.
#[must_use]
pub fn client_name(info: &[u8]) -> String {
    /// In bytes.
    const LONGEST: usize = 64;
    let name = json::get(info, &["name"]).and_then(json::string).unwrap_or_default();
    name[..name.floor_char_boundary(LONGEST)].to_lowercase()
}

impl Viewer<'_> {
    /// What the rules allow.
    #[must_use]
    pub fn grants(&self, snapshot: &Snapshot) -> Arc<Grants> {
        Caller::grants(self.caller, snapshot.access())
    }
}

/// What tells views apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ViewKey {
    toolset: (Box<str>, u64),
    /// None where the rules hide nothing.
    grants: Option<GrantsKey>,
    /// The caller, where some upstream wants a login of each.
    caller: Option<Arc<str>>,
    /// The client's class at each upstream whose policies tell clients apart; nothing if none of them knows it.
    classes: Vec<Option<ClientClass>>,
}

impl ViewKey {
    /// None for what everybody sees at `/mcp`.
    pub(super) fn of(
        viewer: &Viewer<'_>,
        grants: &Grants,
        personal: Option<&Arc<str>>,
        classes: Vec<Option<ClientClass>>,
    ) -> Option<Self> {
        let grants = (!grants.are_whole(viewer.toolset.name())).then(|| grants.key().clone());
        if viewer.toolset.is_all() && grants.is_none() && personal.is_none() && classes.is_empty() {
            return None;
        }
        let toolset = (viewer.toolset.name().into(), viewer.toolset.id());
        Some(Self { toolset, grants, caller: personal.cloned(), classes })
    }
}

/// The views that are in use.
#[derive(Default)]
pub(super) struct Views(Mutex<HashMap<ViewKey, View>>);

struct View {
    lists: [Option<MergedFor>; 2],
    used: Instant,
}

impl View {
    fn bytes(&self) -> usize {
        self.lists.iter().flatten().map(|made| made.merged.bytes()).sum()
    }
}

/// A merged list, and what it was made of.
struct MergedFor {
    shared: Arc<MergedLists>,
    /// What one caller is offered besides.
    personal: Vec<Option<Arc<CatalogSnapshot>>>,
    merged: Arc<MergedLists>,
}

impl Views {
    /// The merged list that was made of these, or a new one.
    pub(super) fn merged(
        &self,
        key: ViewKey,
        era: usize,
        (shared, personal): (Arc<MergedLists>, Vec<Option<Arc<CatalogSnapshot>>>),
        merge: impl FnOnce() -> MergedLists,
    ) -> Arc<MergedLists> {
        let same = |a: &Option<Arc<CatalogSnapshot>>, b: &Option<Arc<CatalogSnapshot>>| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        if let Some(view) = lock(&self.0).get_mut(&key) {
            view.used = Instant::now();
            if let Some(made) = &view.lists[era]
                && Arc::ptr_eq(&made.shared, &shared)
                && made.personal.len() == personal.len()
                && made.personal.iter().zip(&personal).all(|(a, b)| same(a, b))
            {
                return Arc::clone(&made.merged);
            }
        }
        // Without the lock: a long list must not hold up other views.
        let merged = Arc::new(merge());
        let mut views = lock(&self.0);
        let mut view = views.remove(&key).unwrap_or_else(|| View { lists: [None, None], used: Instant::now() });
        view.lists[era] = Some(MergedFor { shared, personal, merged: Arc::clone(&merged) });
        let mut bytes = view.bytes() + views.values().map(View::bytes).sum::<usize>();
        while (views.len() >= VIEWS || bytes > BYTES)
            && let Some(oldest) = views.iter().min_by_key(|(_, view)| view.used).map(|(key, _)| key.clone())
        {
            bytes -= views.remove(&oldest).map_or(0, |view| view.bytes());
        }
        views.insert(key, view);
        merged
    }
}

/// What a viewer sees of all upstreams, in the order of the endpoint.
pub(super) fn narrowed(known: Vec<KnownUpstream>, toolset: &Toolset, grants: &Grants) -> Vec<KnownUpstream> {
    let place = |known: KnownUpstream| Some((toolset.order(known.name.as_str())?, known));
    let mut placed: Vec<_> = known.into_iter().filter_map(place).collect();
    placed.sort_by_key(|(order, _)| *order);
    placed.into_iter().filter_map(|(_, known)| one(known, toolset, grants)).collect()
}

fn one(known: KnownUpstream, toolset: &Toolset, grants: &Grants) -> Option<KnownUpstream> {
    let (endpoint, name) = (toolset.name(), known.name.as_str());
    if !grants.sees(endpoint, name, Item::Any) {
        return None;
    }
    let Some(view) = known.view.as_ref().filter(|view| !view.waits) else { return Some(known) };
    let allowed = grants.are_whole_at(endpoint, name);
    if allowed && toolset.is_all() {
        return Some(known);
    }
    let mut narrowed = CatalogSnapshot::clone(view);
    let mut hidden = false;
    for kind in ListKind::ALL {
        let mut placed: Vec<(usize, ListEntry)> = Vec::new();
        for entry in view.entries(kind) {
            let sees = || allowed || grants.sees(endpoint, name, Item::One(kind, &entry.key));
            match toolset.place(kind, name, &entry.key).filter(|_| sees()) {
                Some(place) => placed
                    .push((place.order, place.changed.map_or_else(|| entry.clone(), |changed| shown(entry, changed)))),
                None => hidden = true,
            }
        }
        placed.sort_by_key(|(order, _)| *order);
        narrowed.lists[kind as usize] = placed.into_iter().map(|(_, entry)| entry).collect();
    }
    if hidden && narrowed.lists.iter().all(Vec::is_empty) {
        return None;
    }
    if hidden && !allowed {
        // They are about all that the server has.
        narrowed.instructions = None;
    }
    Some(KnownUpstream { view: Some(Arc::new(narrowed)), ..known })
}

/// A tool as the operator wants it shown.
fn shown(entry: &ListEntry, changed: &ToolOverride) -> ListEntry {
    let quoted = |text: &Option<String>| text.as_deref().map(json::quote);
    let members = [
        ("title", quoted(&changed.title)),
        ("description", quoted(&changed.description)),
        ("annotations", changed.annotations.clone()),
    ];
    let mut parts: Vec<String> = Vec::new();
    for (key, raw) in json::members(&entry.raw) {
        let instead = members.iter().find(|(own, _)| *own == key).and_then(|(_, text)| text.clone());
        let raw = String::from_utf8_lossy(raw);
        let value = match &*key {
            "inputSchema" => without_arguments(&raw, changed),
            _ => instead.unwrap_or_else(|| raw.into_owned()),
        };
        parts.push(format!("{}:{value}", json::quote(&key)));
    }
    let there = |key: &str| json::get(&entry.raw, &[key]).is_some();
    let added = members.into_iter().filter(|(key, _)| !there(key));
    parts.extend(added.filter_map(|(key, text)| Some(format!("\"{key}\":{}", text?))));
    let raw = Bytes::from(format!("{{{}}}", parts.join(",")));
    ListEntry { raw, public: changed.name.as_deref().map(Into::into), ..entry.clone() }
}

/// A schema without the arguments that clients do not send.
fn without_arguments(schema: &str, changed: &ToolOverride) -> String {
    let is_hidden = |name: &str| changed.hides(name);
    let member = |(key, raw): (Cow<'_, str>, &[u8])| {
        let value = match &*key {
            "properties" => {
                let left = json::members(raw).filter(|(name, _)| !is_hidden(name));
                let left: Vec<String> = left
                    .map(|(name, raw)| format!("{}:{}", json::quote(&name), String::from_utf8_lossy(raw)))
                    .collect();
                format!("{{{}}}", left.join(","))
            }
            "required" => {
                let left = json::elements(raw).filter(|name| !json::string(name).is_some_and(|name| is_hidden(&name)));
                let left: Vec<_> = left.map(String::from_utf8_lossy).collect();
                format!("[{}]", left.join(","))
            }
            _ => String::from_utf8_lossy(raw).into_owned(),
        };
        format!("{}:{value}", json::quote(&key))
    };
    let members: Vec<String> = json::members(schema.as_bytes()).map(member).collect();
    format!("{{{}}}", members.join(","))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;
    use crate::{
        access::Access,
        config::{Selections, ToolsetConfig},
    };

    #[test]
    fn what_is_made_for_a_toolset_is_not_taken_for_one_of_the_same_name() {
        let chosen = |prefix| {
            Toolset::chosen(&ToolsetConfig {
                name: "desk".parse().unwrap(),
                upstreams: Vec::new(),
                items: Selections::default(),
                prefix,
                instructions: None,
                overrides: Vec::new(),
            })
        };
        let (before, again, now) = (chosen(true), chosen(true), chosen(false));
        assert!(before == again && before != now);
        let grants = Access::new(None).grants(None);
        let key = |toolset: &Arc<Toolset>| {
            ViewKey::of(&Viewer { caller: None, toolset, client: None }, &grants, None, Vec::new())
        };
        assert_eq!(key(&before), key(&before));
        assert_ne!(key(&before), key(&now));
    }
}
