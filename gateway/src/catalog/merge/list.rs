//! One merged list being written, page by page.

use std::collections::{HashMap, HashSet};

use bytes::{BufMut, Bytes, BytesMut};
use sha2::{Digest, Sha256};
use weir_mcp::{Era, cursor::CursorPosition, json, public};

use crate::{
    catalog::{names, snapshot::ListEntry},
    config::UpstreamName,
    sealed_state::SealedState,
};

use super::{Interfaces, KnownUpstream, ListKind, Offer, Services};

/// A list that is ready to be sent.
#[derive(Clone, Debug, Default)]
pub(super) struct PreparedList {
    /// The whole `result` of each page.
    pages: Vec<Bytes>,
    /// Made from the content, so that the same list has the same version after whatever happened in between.
    pub(super) version: u64,
    pub(super) offers: HashMap<String, Offer>,
    /// What an earlier upstream offers too.
    pub(super) hidden: HashSet<(UpstreamName, String)>,
}

/// One list being written.
pub(super) struct ListWriter {
    kind: ListKind,
    /// Whether names begin with that of their upstream.
    prefix: bool,
    size: usize,
    /// The pages so far, each without its end.
    pages: Vec<BytesMut>,
    offers: HashMap<String, Offer>,
    order: Vec<(String, UpstreamName)>,
    hidden: HashSet<(UpstreamName, String)>,
}

impl PreparedList {
    /// The first page. A list that was written has one, if only an empty one.
    pub(super) fn first(&self) -> &Bytes {
        static NOTHING: Bytes = Bytes::from_static(b"{}");
        self.pages.first().unwrap_or(&NOTHING)
    }

    pub(super) fn bytes(&self) -> usize {
        self.pages.iter().map(Bytes::len).sum()
    }

    /// The page that a cursor leads to. The empty cursor, which Weir never gives out, is taken for the beginning.
    pub(super) fn page(&self, purpose: &[u8], cursor: &str, seal: &SealedState) -> Option<&Bytes> {
        if cursor.is_empty() {
            return Some(self.first());
        }
        match CursorPosition::decode(&seal.open(cursor, purpose)?)? {
            CursorPosition::Held { version, page } if version == self.version => self.pages.get(page as usize),
            CursorPosition::Held { .. } | CursorPosition::Read(_) => None,
        }
    }
}

impl ListWriter {
    pub(super) fn new(kind: ListKind, prefix: bool, size: usize) -> Self {
        let mut writer = Self {
            kind,
            prefix,
            size: size.max(1),
            pages: Vec::new(),
            offers: HashMap::new(),
            order: Vec::new(),
            hidden: HashSet::new(),
        };
        writer.begin_page();
        writer
    }

    /// Adds an entry unless its name or address is taken: the first in the configuration has it.
    pub(super) fn add(
        &mut self,
        known: &KnownUpstream,
        entry: &ListEntry,
        interfaces: &Interfaces,
        services: &Services<'_>,
    ) {
        let upstream = &known.name;
        let renamed = (self.kind == ListKind::Resource).then(|| interfaces.renamed(upstream, &entry.key)).flatten();
        let public = match renamed {
            Some(public) => public.to_owned(),
            None if entry.public.is_some() => entry.public.as_deref().unwrap_or_default().to_owned(),
            None if self.kind.is_renamed() && self.prefix => names::public(known.prefix().as_str(), &entry.key),
            None => entry.key.clone(),
        };
        if let Some(taken) = self.offers.get(&public) {
            if taken.upstream != *upstream && !services.are_one(&taken.upstream, upstream) {
                self.hidden.insert((upstream.clone(), public));
            }
            return;
        }
        if !self.order.is_empty() && self.order.len().is_multiple_of(self.size) {
            self.begin_page();
        }
        let mut parts = Vec::new();
        if public != entry.key
            && let Some(key) = json::get(&entry.raw, &[self.kind.key()])
        {
            parts.push((key, json::quote(&public)));
        }
        if self.kind == ListKind::Tool {
            parts.extend(interfaces.changes(upstream, &entry.raw));
        }
        let raw = public::replaced(&entry.raw, parts);
        let accounts = services.choice(self.kind, known, entry);
        self.push(&accounts.as_ref().map_or_else(|| raw.clone(), |choice| choice.shown(self.kind, &raw)));
        self.order.push((public.clone(), upstream.clone()));
        self.offers.insert(public, Offer { upstream: upstream.clone(), native: entry.key.clone(), accounts });
    }

    /// Adds an entry of Weir's own, which leads to no upstream.
    pub(super) fn push(&mut self, entry: &Bytes) {
        if let Some(page) = self.pages.last_mut() {
            if !page.ends_with(b"[") {
                page.put_u8(b',');
            }
            page.put_slice(entry);
        }
    }

    /// Adds what can be asked for and is not listed, where the name is free.
    pub(super) fn offer(&mut self, unlisted: impl Iterator<Item = (String, Offer)>) {
        for (public, offer) in unlisted {
            self.offers.entry(public).or_insert(offer);
        }
    }

    /// What is listed, in order, and whose it is.
    pub(super) fn order(&self) -> &[(String, UpstreamName)] {
        &self.order
    }

    pub(super) fn finish(self, era: Era, freshness: &str, seal: &SealedState) -> PreparedList {
        let mut hash = Sha256::new();
        for page in &self.pages {
            hash.update(page);
        }
        let version = hash.finalize().first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
        let purpose = purpose(era, self.kind);
        let last = self.pages.len() - 1;
        let end = |(at, mut page): (usize, BytesMut)| {
            page.put_slice(b"]");
            let next = u32::try_from(at + 1).ok().filter(|_| at < last);
            let next = next.map(|page| CursorPosition::Held { version, page }.encode());
            if let Some(cursor) = next.and_then(|next| seal.seal(&next, &purpose)) {
                page.put_slice(format!(r#","nextCursor":"{cursor}""#).as_bytes());
            }
            page.put_slice(freshness.as_bytes());
            page.put_slice(b"}");
            page.freeze()
        };
        let pages = self.pages.into_iter().enumerate().map(end).collect();
        PreparedList { pages, version, offers: self.offers, hidden: self.hidden }
    }

    fn begin_page(&mut self) {
        self.pages.push(BytesMut::from(format!(r#"{{"{}":["#, self.kind.list()).as_bytes()));
    }
}

/// What the cursors of a list are good for.
pub(super) fn purpose(era: Era, kind: ListKind) -> Vec<u8> {
    format!("cursor {era} {}", kind.method()).into_bytes()
}
