//! What one upstream offers in one era, fetched to the last page.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use indexmap::IndexSet;
use weir_mcp::{
    Era, ListKind, Message, json,
    mirrored::{Mirrored, mirrored},
};

use crate::{
    caller::Caller,
    config::UpstreamName,
    policy::{CallPolicies, ClientClass, DecidedEntries},
    telemetry::step,
    upstream::{Lease, SendError, Upstream, own},
};

use super::{schema, template::Templates};

/// How many pages of a list are fetched before the server is taken to be turning in circles.
const MAX_PAGES: usize = 1000;

/// How much of a list is fetched, in bytes.
const MAX_FETCHED: usize = 64 * 1024 * 1024;

/// How many entries of a list are kept.
const MAX_ENTRIES: usize = 100_000;

/// The longest input schema that policies are given, in bytes.
const LONGEST_SCHEMA: usize = 128 << 10;

/// How many remarks on the lists of one upstream are kept.
const MAX_REMARKS: usize = 10;

/// How much of a name that an upstream gave stands in a remark, in characters.
const NAME_IN_REMARK: usize = 64;

/// What one upstream offers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CatalogSnapshot {
    /// Its `capabilities`, raw.
    pub capabilities: Bytes,
    /// Its `instructions`.
    pub instructions: Option<String>,
    /// Whether it only stands in for an upstream that waits for a login.
    pub(super) waits: bool,
    /// How long its lists may be kept.
    pub lasts: Freshness,
    /// How long what it said of itself may be kept.
    pub discovery_lasts: Freshness,
    /// The lists that could not be had this time, and why.
    pub(super) failed: Vec<(ListKind, String)>,
    /// What is not shown of the others.
    pub(super) remarks: Remarks,
    pub(super) lists: [Vec<ListEntry>; 4],
    /// The names or addresses of what the configuration does not serve.
    pub(super) unserved: [Vec<String>; 4],
    /// What policies have decided about the lists that they have looked at: whether each entry is shown.
    pub(super) decided: [Option<HashMap<String, bool>>; 4],
    /// The templates that they hide.
    pub(super) hidden: Templates,
    /// How many bytes the entries of all lists have.
    pub(super) size: usize,
    /// The tools with arguments that travel in headers too.
    pub(super) mirrored: HashMap<String, Arc<[Mirrored]>>,
    /// The input schemas of tools, raw and as they came, where policies want them with calls.
    pub(super) input_schemas: HashMap<String, Bytes>,
    /// What clients see instead for whom policies decide otherwise.
    pub(super) variants: Vec<(ClientClass, Arc<Self>)>,
}

/// How long something may be kept, and for whom. A legacy server says nothing of the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// How long (`ttlMs`); none if nothing was said.
    pub ttl: Option<Duration>,
    /// Whether callers may share it (`cacheScope`).
    pub public: bool,
}

/// What policies have decided about an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemVerdict {
    /// It is in the list.
    Shown,
    /// It was, and clients may not use it.
    Hidden,
    /// They have looked at the list, which does not have it.
    Unlisted,
    /// They have not looked at the list.
    Unknown,
}

/// One tool, prompt, resource or template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListEntry {
    /// The entry as it came.
    pub(super) raw: Bytes,
    /// Its name, address or template, decoded.
    pub(super) key: String,
    /// The name that clients know it by, where the operator has given it one.
    pub(super) public: Option<Box<str>>,
    /// Whether SDKs of the legacy era refuse it, and the whole list with it.
    pub(super) modern_only: bool,
}

/// Sentences on what is not shown of an upstream's lists; of many, the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Remarks {
    first: Vec<String>,
    more: usize,
}

impl ListEntry {
    /// The same entry with this text. What is the same for several classes of clients is there once.
    fn with_raw(&self, raw: String) -> Self {
        let raw = if raw.as_bytes() == &self.raw[..] { self.raw.clone() } else { raw.into() };
        Self { raw, ..self.clone() }
    }
}

impl Remarks {
    fn add(&mut self, remark: String) {
        if self.first.len() < MAX_REMARKS {
            self.first.push(remark);
        } else {
            self.more += 1;
        }
    }

    /// All of them, and how many more there are.
    pub(super) fn lines(&self) -> Vec<String> {
        let more = (self.more > 0).then(|| format!("and {} more", self.more));
        self.first.iter().cloned().chain(more).collect()
    }
}

impl CatalogSnapshot {
    /// Fetches everything from an opened upstream.
    ///
    /// # Errors
    /// When the upstream is lost meanwhile, or gives nothing without another credential.
    pub async fn fetch(caller: Option<&Arc<Caller>>, upstream: &Upstream, lease: &Lease) -> Result<Self, SendError> {
        let said = lease.answer.result().unwrap_or(b"{}");
        let capabilities = Bytes::copy_from_slice(json::get(said, &["capabilities"]).unwrap_or(b"{}"));
        let instructions = json::get(said, &["instructions"]).and_then(json::string).map(|text| text.into_owned());
        let mut view = Self { capabilities, instructions, ..Self::default() };
        if lease.era == Era::Modern {
            // Until a page says otherwise.
            view.lasts.public = true;
            view.discovery_lasts = Freshness { ttl: None, public: true }.and(said);
        }
        let source = ListSource { caller, upstream, lease };
        let classes = upstream.policies().map_or(&[][..], CallPolicies::classes);
        let mut variants = vec![Self::default(); classes.len()];
        for kind in ListKind::ALL {
            if json::get(&view.capabilities, &[kind.capability()]).is_some() {
                let (began, failed) = (Instant::now(), view.failed.len());
                source.list(kind, &mut view).await.inspect_err(|why| step::note(kind.method(), began, why))?;
                match view.failed.get(failed) {
                    Some((_, why)) => step::note(kind.method(), began, why),
                    None => step::note(kind.method(), began, view.entries(kind).len()),
                }
                if kind == ListKind::Tool && upstream.policies().is_some_and(CallPolicies::want_input_schemas) {
                    view.input_schemas = view.bodies(kind).filter_map(input_schema).collect();
                }
                view.decide(kind, upstream, &mut variants).await;
            }
        }
        if caller.is_some() {
            // Nobody looks at those of one caller.
            view.unserved = Default::default();
        }
        if !classes.is_empty() {
            // Who shares it may be of another class.
            view.lasts.public = false;
            let shared = Self { unserved: Default::default(), input_schemas: HashMap::new(), ..view.clone() };
            let whole = |Self { lists, decided, hidden, .. }| Self { lists, decided, hidden, ..shared.clone() };
            let variants = variants.into_iter().map(|variant| Arc::new(whole(variant)));
            view.variants = classes.iter().cloned().zip(variants).collect();
        }
        Ok(view)
    }

    /// Has the upstream's policies decide about the entries of a list: for this view, and for the other classes of clients.
    async fn decide(&mut self, kind: ListKind, upstream: &Upstream, variants: &mut [Self]) {
        let Some(policies) = upstream.policies().filter(|policies| policies.see_entries(kind)) else {
            variants.iter_mut().for_each(|other| other.lists[kind as usize].clone_from(&self.lists[kind as usize]));
            return;
        };
        let text = |entry: &ListEntry| (entry.key.clone(), String::from_utf8_lossy(&entry.raw).into_owned());
        let listed: Vec<_> = self.entries(kind).iter().map(text).collect();
        let entries = std::mem::take(&mut self.lists[kind as usize]);
        let all = match policies.entries(kind, &listed).await {
            Ok(all) => all,
            Err(why) => return self.failed.push((kind, why.to_string())),
        };
        let for_all: IndexSet<_> = all.first().map_or(&[][..], |decided| &decided.reasons).iter().cloned().collect();
        let mut for_some = IndexSet::new();
        for (view, decided) in std::iter::once(&mut *self).chain(variants).zip(all) {
            let DecidedEntries { shown, reasons: why } = decided;
            for_some.extend(why.into_iter().filter(|why| !for_all.contains(why)));
            if policies.decide_entries(Some(kind)) {
                view.note(kind, upstream.key(), entries.iter().map(|entry| &entry.key).zip(&shown));
            }
            let decided = entries.iter().zip(shown);
            let decided = decided.filter_map(|(entry, raw)| Some(entry.with_raw(raw?)));
            view.lists[kind as usize] = decided.collect();
        }
        let for_some = for_some.into_iter().map(|reason| format!("for some clients {reason}"));
        for_all.into_iter().chain(for_some).for_each(|reason| self.remarks.add(reason));
    }

    /// What clients of a class see.
    pub(super) fn seen_by(self: Arc<Self>, class: Option<&ClientClass>) -> Arc<Self> {
        let variant = class.and_then(|class| self.variants.iter().find(|(of, _)| of == class));
        variant.map(|(_, variant)| Arc::clone(variant)).unwrap_or(self)
    }

    /// Remembers what policies have decided about a list.
    fn note<'a>(
        &mut self,
        kind: ListKind,
        upstream: &UpstreamName,
        decided: impl Iterator<Item = (&'a String, &'a Option<String>)>,
    ) {
        let decided: HashMap<String, bool> = decided.map(|(name, shown)| (name.clone(), shown.is_some())).collect();
        if kind == ListKind::Template {
            let hidden = decided.iter().filter(|(_, shown)| !**shown);
            self.hidden = Templates::new(&hidden.map(|(name, _)| (name.clone(), upstream.clone())).collect::<Vec<_>>());
        }
        self.decided[kind as usize] = Some(decided);
    }

    /// What policies have decided about an item of this name or address.
    pub(super) fn verdict(&self, kind: ListKind, name: &str) -> ItemVerdict {
        let listed = |kind: ListKind| self.decided[kind as usize].as_ref().map(|decided| decided.get(name).copied());
        match listed(kind) {
            Some(Some(true)) => return ItemVerdict::Shown,
            Some(Some(false)) => return ItemVerdict::Hidden,
            Some(None) | None => {}
        }
        let is_resource = kind == ListKind::Resource;
        if is_resource && listed(kind).is_none() && self.names(kind).any(|known| known == name) {
            ItemVerdict::Shown
        } else if is_resource && self.hidden.find(name).is_some() {
            ItemVerdict::Hidden
        } else if listed(kind).is_some() || is_resource && self.decided[ListKind::Template as usize].is_some() {
            ItemVerdict::Unlisted
        } else {
            ItemVerdict::Unknown
        }
    }

    /// The arguments of one tool that travel in headers too, asked of the upstream itself.
    pub(super) async fn look_up(
        caller: Option<&Arc<Caller>>,
        upstream: &Upstream,
        lease: &Lease,
        tool: &str,
    ) -> Option<Arc<[Mirrored]>> {
        let mut view = Self::default();
        ListSource { caller, upstream, lease }.list(ListKind::Tool, &mut view).await.ok()?;
        Some(view.mirrored.remove(tool).unwrap_or_default())
    }

    /// The entries of a kind, in the upstream's order.
    pub(super) fn entries(&self, kind: ListKind) -> &[ListEntry] {
        &self.lists[kind as usize]
    }

    /// The names or addresses of a kind, in the upstream's order.
    pub fn names(&self, kind: ListKind) -> impl Iterator<Item = &str> {
        self.entries(kind).iter().map(|entry| entry.key.as_str())
    }

    /// The entries of a kind by their names, as the upstream has them.
    pub fn bodies(&self, kind: ListKind) -> impl Iterator<Item = (&str, &Bytes)> {
        self.entries(kind).iter().map(|entry| (entry.key.as_str(), &entry.raw))
    }

    /// What is not shown of the lists.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.remarks.lines()
    }

    /// Whether a tool says of itself that it changes nothing (`readOnlyHint`).
    #[must_use]
    pub fn only_reads(&self, tool: &str) -> bool {
        let body = self.bodies(ListKind::Tool).find(|(name, _)| *name == tool).map(|(_, body)| body);
        body.is_some_and(|body| json::get(body, &["annotations", "readOnlyHint"]) == Some(b"true"))
    }

    /// The arguments of a tool that travel in headers too.
    #[must_use]
    pub fn mirrored(&self, tool: &str) -> Option<&Arc<[Mirrored]>> {
        self.mirrored.get(tool)
    }

    /// Adds an entry, unless clients would refuse the list because of it, or there is one with its name already. `keys`
    /// are those of the list until now.
    fn add(&mut self, kind: ListKind, raw: &[u8], (upstream, lease): (&Upstream, &Lease), keys: &mut HashSet<String>) {
        let noun = kind.noun();
        let fault = schema::fault(kind, raw);
        let Some(key) = json::get(raw, &[kind.key()]).and_then(json::string) else {
            let why = fault.map_or_else(|| format!("`{}` is no text", kind.key()), |fault| fault.why);
            self.remarks.add(format!("a {noun} is left out: {why}"));
            return;
        };
        if !upstream.serves(kind, &key) {
            let unserved = &mut self.unserved[kind as usize];
            if unserved.len() < MAX_ENTRIES {
                unserved.push(key.into_owned());
            }
            return;
        }
        let shown: String = key.chars().take(NAME_IN_REMARK).collect();
        // Whoever calls it anyway still needs the headers.
        let unsendable = (kind == ListKind::Tool).then(|| self.mirror(&key, raw, lease)).flatten();
        if let Some(why) = unsendable.or_else(|| fault.as_ref().filter(|fault| !fault.legacy).map(|it| it.why.clone()))
        {
            self.remarks.add(format!("{noun} `{shown}` is left out: {why}"));
            return;
        }
        if !keys.insert(key.clone().into_owned()) {
            self.remarks.add(format!("{noun} `{shown}` is offered more than once; the first is taken"));
            return;
        }
        if let Some(fault) = &fault {
            self.remarks.add(format!("{noun} `{shown}` is left out for legacy clients: {}", fault.why));
        }
        let raw = Bytes::copy_from_slice(raw);
        self.lists[kind as usize].push(ListEntry {
            raw,
            key: key.into_owned(),
            public: None,
            modern_only: fault.is_some(),
        });
    }

    /// Notes the arguments of a tool that travel in headers too. Over HTTP a tool that nobody could call there is left out
    /// (MCP 2026-07-28, basic/transports): then says why.
    fn mirror(&mut self, tool: &str, raw: &[u8], lease: &Lease) -> Option<String> {
        match mirrored(raw) {
            Ok(mirrored) if mirrored.is_empty() => None,
            Ok(mirrored) => {
                self.mirrored.entry(tool.to_owned()).or_insert(mirrored.into());
                None
            }
            Err(why) => (lease.era == Era::Modern && lease.channel.carries_headers()).then(|| why.to_string()),
        }
    }

    /// Why lists could not be had, if any could not.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let why: Vec<&str> = self.failed.iter().map(|(_, why)| why.as_str()).collect();
        (!why.is_empty()).then(|| why.join("; "))
    }

    /// Tells the operator what is not shown, and which lists could not be had, unless that is as it was `before`.
    pub(super) fn tell(&self, upstream: &str, before: Option<&Self>) {
        let (remarks, why) = (self.remarks.lines(), self.failure());
        if !remarks.is_empty() && before.is_none_or(|before| before.remarks != self.remarks) {
            let remarks = remarks.join("; ");
            tracing::warn!(
                upstream,
                remarks,
                "not all of its lists is on /mcp, where clients would refuse all or lose some"
            );
        }
        if let Some(why) = why.filter(|_| before.is_none_or(|before| before.failed != self.failed)) {
            tracing::warn!(upstream, error = why, "some of its lists cannot be had");
        }
    }

    /// Takes the lists that could not be had from what was known before.
    pub(super) fn keep(&mut self, before: &Self) {
        for (kind, _) in &self.failed {
            self.lists[*kind as usize].clone_from(&before.lists[*kind as usize]);
            self.unserved[*kind as usize].clone_from(&before.unserved[*kind as usize]);
            self.decided[*kind as usize].clone_from(&before.decided[*kind as usize]);
            if *kind == ListKind::Template {
                self.hidden.clone_from(&before.hidden);
            }
            if *kind == ListKind::Tool {
                self.mirrored.clone_from(&before.mirrored);
                self.input_schemas.clone_from(&before.input_schemas);
            }
        }
        for (class, variant) in &mut self.variants {
            let known = before.variants.iter().find(|(of, _)| of == class);
            Arc::make_mut(variant).keep(known.map_or(before, |(_, known)| known));
        }
    }

    /// How many tools there are.
    #[must_use]
    pub fn tools(&self) -> usize {
        self.entries(ListKind::Tool).len()
    }

    /// The same view with other entries of a kind.
    #[cfg(test)]
    pub(super) fn with(mut self, kind: ListKind, entries: Vec<ListEntry>) -> Self {
        self.lists[kind as usize] = entries;
        self
    }
}

/// The name of a tool, and its input schema: a part of the entry, which is shared.
fn input_schema((name, raw): (&str, &Bytes)) -> Option<(String, Bytes)> {
    let schema = json::get(raw, &["inputSchema"]).filter(|schema| schema.len() <= LONGEST_SCHEMA)?;
    Some((name.to_owned(), raw.slice_ref(schema)))
}

impl Freshness {
    /// What holds for both, this and another result.
    fn and(self, result: &[u8]) -> Self {
        let number =
            |key: &str| json::get(result, &[key]).and_then(|raw| std::str::from_utf8(raw).ok()?.parse::<f64>().ok());
        let ttl = number("ttlMs").filter(|ms| *ms >= 0.0).map(|ms| Duration::from_secs_f64((ms / 1000.0).min(1e6)));
        let ttl = match (self.ttl, ttl) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let scope = json::get(result, &["cacheScope"]).and_then(json::string);
        Self { ttl, public: self.public && scope.as_deref() == Some("public") }
    }
}

/// Where lists come from.
struct ListSource<'a> {
    caller: Option<&'a Arc<Caller>>,
    upstream: &'a Upstream,
    lease: &'a Lease,
}

impl ListSource<'_> {
    async fn list(&self, kind: ListKind, view: &mut CatalogSnapshot) -> Result<(), SendError> {
        let mut cursor: Option<Vec<u8>> = None;
        let (mut cursors, mut keys, mut fetched) = (HashSet::new(), HashSet::new(), 0);
        let limit = self.upstream.list_limit();
        let method = kind.method();
        for _ in 0..MAX_PAGES {
            let request = own::page(self.lease.era, method, cursor.as_deref());
            let answer = self.ask(&request).await?;
            let Some(page) = answer.result() else {
                // A server may declare `resources` and have no templates.
                let code = answer.error_code().unwrap_or_default();
                if code != weir_mcp::answer::METHOD_NOT_FOUND {
                    // One list that cannot be had must not cost the others.
                    view.failed.push((kind, format!("`{method}` answered with error {code}")));
                }
                return Ok(());
            };
            if self.lease.era == Era::Modern {
                view.lasts = view.lasts.and(page);
            }
            let Some(entries) = json::get(page, &[kind.list()]).filter(|entries| entries.starts_with(b"[")) else {
                view.failed.push((kind, format!("`{method}` answered without an array of `{}`", kind.list())));
                return Ok(());
            };
            fetched += page.len();
            for raw in json::elements(entries) {
                if view.size + raw.len() > limit {
                    view.remarks.add(format!("`{method}` goes over `limits.list`; the rest of it is left out"));
                    return Ok(());
                }
                view.size += raw.len();
                if view.entries(kind).len() < MAX_ENTRIES {
                    view.add(kind, raw, (self.upstream, self.lease), &mut keys);
                }
            }
            cursor = json::get(page, &["nextCursor"]).filter(|raw| raw.first() == Some(&b'"')).map(<[u8]>::to_vec);
            match &cursor {
                None => return Ok(()),
                Some(cursor) if !cursors.insert(cursor.clone()) => {
                    view.remarks.add(format!("`{method}` gives the same cursor again; the rest of it is left out"));
                    return Ok(());
                }
                Some(_) if fetched > MAX_FETCHED => break,
                Some(_) => {}
            }
        }
        view.remarks.add(format!("`{method}` has over {MAX_PAGES} pages or 64 MiB; the rest of it is left out"));
        Ok(())
    }

    async fn ask(&self, request: &Message) -> Result<Message, SendError> {
        self.upstream.ask(self.caller, &self.lease.channel, self.lease.era, request).await
    }
}
