//! What one upstream offers in one era, fetched to the last page.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use weir_flow::facts::Transport;
use weir_mcp::{
    Era, Message, json,
    mirrored::{Mirrored, mirrored},
};

use crate::{
    caller::Caller,
    upstream::{Opened, Outgoing, SendError, Upstream, own},
};

use super::merge::Kind;

/// How many pages of a list are fetched before the server is taken to be turning in circles.
const MAX_PAGES: usize = 1000;

/// How much of a list is fetched, in bytes.
const MAX_SIZE: usize = 64 * 1024 * 1024;

/// How many entries of a list are kept.
const MAX_ENTRIES: usize = 100_000;

/// What one upstream offers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
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
    /// The lists that the upstream answered with an error; they are empty here.
    pub(super) faults: Vec<String>,
    pub(super) lists: [Vec<Entry>; 4],
    /// The tools with arguments that travel in headers too.
    pub(super) mirrored: HashMap<String, Arc<[Mirrored]>>,
}

/// How long something may be kept, and for whom. A legacy server says nothing of the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// How long (`ttlMs`); none if nothing was said.
    pub ttl: Option<Duration>,
    /// Whether callers may share it (`cacheScope`).
    pub public: bool,
}

/// One tool, prompt, resource or template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The entry as it came.
    pub(super) raw: Bytes,
    /// Its name, address or template, decoded.
    pub(super) key: String,
}

impl View {
    /// Fetches everything from an opened upstream.
    pub(super) async fn fetch(
        caller: Option<&Arc<Caller>>,
        upstream: &Upstream,
        opened: &Opened,
    ) -> Result<Self, SendError> {
        let said = opened.answer.result().unwrap_or(b"{}");
        let capabilities = Bytes::copy_from_slice(json::get(said, &["capabilities"]).unwrap_or(b"{}"));
        let instructions = json::get(said, &["instructions"]).and_then(json::string).map(|text| text.into_owned());
        let mut view = Self { capabilities, instructions, ..Self::default() };
        if opened.era == Era::Modern {
            // Until a page says otherwise.
            view.lasts.public = true;
            view.discovery_lasts = Freshness { ttl: None, public: true }.and(said);
        }
        let source = Source { caller, upstream, opened };
        for kind in Kind::ALL {
            if json::get(&view.capabilities, &[kind.capability()]).is_some() {
                source.list(kind, &mut view).await?;
            }
        }
        Ok(view)
    }

    /// The arguments of one tool that travel in headers too, asked of the upstream itself.
    pub(super) async fn look_up(
        caller: Option<&Arc<Caller>>,
        upstream: &Upstream,
        opened: &Opened,
        tool: &str,
    ) -> Option<Arc<[Mirrored]>> {
        let mut view = Self::default();
        Source { caller, upstream, opened }.list(Kind::Tool, &mut view).await.ok()?;
        Some(view.mirrored.remove(tool).unwrap_or_default())
    }

    /// The entries of a kind, in the upstream's order.
    pub(super) fn entries(&self, kind: Kind) -> &[Entry] {
        &self.lists[kind as usize]
    }

    /// The arguments of a tool that travel in headers too.
    pub(super) fn mirrored(&self, tool: &str) -> Option<&Arc<[Mirrored]>> {
        self.mirrored.get(tool)
    }

    /// Adds an entry. Over HTTP a tool that nobody could call there is left out (MCP 2026-07-28, basic/transports).
    fn add(&mut self, kind: Kind, entry: Entry, opened: &Opened) {
        if kind == Kind::Tool {
            match mirrored(&entry.raw) {
                Ok(mirrored) if mirrored.is_empty() => {}
                Ok(mirrored) => drop(self.mirrored.insert(entry.key.clone(), mirrored.into())),
                Err(why) if opened.era == Era::Modern && opened.channel.transport() == Transport::Http => {
                    self.faults.push(format!("tool `{}` is left out: {why}", entry.key));
                    return;
                }
                Err(_) => {}
            }
        }
        self.lists[kind as usize].push(entry);
    }

    /// How many tools there are.
    #[must_use]
    pub fn tools(&self) -> usize {
        self.entries(Kind::Tool).len()
    }

    /// The same view with other entries of a kind.
    #[cfg(test)]
    pub(super) fn with(mut self, kind: Kind, entries: Vec<Entry>) -> Self {
        self.lists[kind as usize] = entries;
        self
    }
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
struct Source<'a> {
    caller: Option<&'a Arc<Caller>>,
    upstream: &'a Upstream,
    opened: &'a Opened,
}

impl Source<'_> {
    async fn list(&self, kind: Kind, view: &mut View) -> Result<(), SendError> {
        let mut cursor: Option<Vec<u8>> = None;
        let mut size = 0;
        for _ in 0..MAX_PAGES {
            let request = own::page(self.opened.era, kind.method(), cursor.as_deref());
            let answer = self.ask(&request).await?;
            let Some(page) = answer.result() else {
                // A server may declare `resources` and have no templates.
                let code = answer.error_code().unwrap_or_default();
                if code != weir_mcp::answer::METHOD_NOT_FOUND {
                    // One list that cannot be had must not cost the others.
                    view.faults.push(format!("`{}` answered with error {code}", kind.method()));
                }
                return Ok(());
            };
            if self.opened.era == Era::Modern {
                view.lasts = view.lasts.and(page);
            }
            size += page.len();
            for raw in json::get(page, &[kind.list()]).into_iter().flat_map(json::elements) {
                let key = json::get(raw, &[kind.key()]).and_then(json::string);
                if let Some(key) = key.filter(|_| view.entries(kind).len() < MAX_ENTRIES) {
                    view.add(kind, Entry { raw: Bytes::copy_from_slice(raw), key: key.into_owned() }, self.opened);
                }
            }
            let next = json::get(page, &["nextCursor"]).filter(|raw| raw.first() == Some(&b'"')).map(<[u8]>::to_vec);
            if next.is_none() {
                return Ok(());
            }
            if next == cursor || size > MAX_SIZE {
                break;
            }
            cursor = next;
        }
        tracing::warn!(
            upstream = self.upstream.name(),
            list = kind.method(),
            "its pages do not end, or are over 64 MiB together; the rest is left out"
        );
        Ok(())
    }

    async fn ask(&self, request: &Message) -> Result<Message, SendError> {
        let credential =
            self.upstream.credential(self.caller, None).await.map_err(|why| SendError::Unsent(why.to_string()))?;
        let outgoing = Outgoing {
            era: self.opened.era,
            message: request,
            body: request.bytes().clone(),
            name: None,
            version: None,
            headers: &[],
            ticket: None,
            credential: credential.as_ref(),
        };
        self.opened.channel.send(outgoing).await?.answer().await
    }
}
