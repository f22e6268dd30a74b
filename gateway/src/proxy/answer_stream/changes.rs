//! What a client hears of changes: of the lists that Weir merges, and of what it watches at upstreams.

use std::{pin::Pin, sync::Arc};

use bytes::Bytes;
use tokio::sync::watch;
use weir_mcp::{ListKind, json};

use crate::{
    catalog::{ListVersions, SeenLists},
    proxy::watch::{UpstreamWatch, WatchedPart},
    session::Session,
    task,
};

use super::{AnswerStream, AnsweredRequest, StreamClose, StreamItem, StreamSource};

/// Which lists a client wants to hear about.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::proxy) struct ListFilter {
    pub(in crate::proxy) tools: bool,
    pub(in crate::proxy) prompts: bool,
    pub(in crate::proxy) resources: bool,
}

impl ListFilter {
    /// All lists.
    pub(super) const ALL: Self = Self { tools: true, prompts: true, resources: true };
}

/// Changes of the merged lists and of what is watched at upstreams.
pub(super) struct MergedChanges {
    /// The subscription's own.
    pub(super) id: Bytes,
    changes: watch::Receiver<ListVersions>,
    known: ListVersions,
    /// The lists that the client has seen, and how to see what they are.
    lists: (SeenLists, Looker),
    wants: ListFilter,
    watch: Option<UpstreamWatch>,
    first: Option<Bytes>,
    moved: Moved,
}

/// What a client's lists are whenever one looks; none if that is not known.
pub(in crate::proxy) type Looker = Box<dyn Fn() -> Option<SeenLists> + Send + Sync>;

/// What a legacy session hears of the merged lists.
pub(super) type SessionChanges = (watch::Receiver<ListVersions>, Arc<Session>, Looker);

/// Resolves when something else is served to the client where it listens, or nothing.
pub(super) type Moved = Pin<Box<dyn Future<Output = ()> + Send>>;

impl MergedChanges {
    /// What a subscription hears, from its acknowledgement on.
    pub(super) fn new(
        id: &[u8],
        ((changes, known), lists): ((watch::Receiver<ListVersions>, ListVersions), (SeenLists, Looker)),
        wants: ListFilter,
        (granted, watch): (WatchedPart, Option<UpstreamWatch>),
        moved: Moved,
    ) -> Self {
        let id = Bytes::copy_from_slice(id);
        let first = Some(acknowledged(&id, wants, &granted));
        Self { id, changes, known, lists, wants, watch, first, moved }
    }

    /// What comes next; nothing if nothing more will come.
    pub(super) async fn next(&mut self) -> Vec<Bytes> {
        if let Some(first) = self.first.take() {
            return vec![first];
        }
        loop {
            tokio::select! {
                changed = self.changes.changed() => {
                    if changed.is_err() {
                        return Vec::new();
                    }
                    let now = *self.changes.borrow_and_update();
                    let (seen, looks) = &mut self.lists;
                    let differs = |kinds: &[ListKind]| looks().is_none_or(|now| seen.note(now, kinds));
                    let news = news(&mut self.known, now, self.wants, Some(&self.id), differs);
                    if !news.is_empty() {
                        return news;
                    }
                }
                () = &mut self.moved => return Vec::new(),
                message = task::or_never(self.watch.as_mut().map(UpstreamWatch::next)) => return vec![message],
            }
        }
    }
}

impl AnswerStream {
    /// What the gateway says on an endless stream when it stops.
    pub fn close(&self) -> StreamClose {
        let id = match (&self.source, &self.answers) {
            (StreamSource::Queue { .. } | StreamSource::Replay(_), _) => return StreamClose::Retry,
            (StreamSource::Subscription(changes), _) => &changes.id,
            (StreamSource::Subscribed(subscription), _) => return StreamClose::Answer(subscription.last()),
            (StreamSource::Upstream { .. }, Some(AnsweredRequest { id, .. })) => id,
            _ => return StreamClose::Nothing,
        };
        let result = format!(r#"{{"resultType":"complete","_meta":{}}}"#, meta(id));
        let id = String::from_utf8_lossy(id);
        StreamClose::Answer(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#).into())
    }

    /// The last item of a stream that Weir closes of its own accord.
    pub(super) fn closing(&self) -> StreamItem {
        match self.close() {
            StreamClose::Answer(answer) => StreamItem::Last(answer),
            StreamClose::Retry | StreamClose::Nothing => StreamItem::End,
        }
    }
}

/// What a legacy client hears of the merged lists in its own stream; nothing ever where it hears of one upstream only.
pub(super) async fn told(changes: &mut Option<SessionChanges>) -> Vec<Bytes> {
    let Some((changes, session, looks)) = changes else { return std::future::pending().await };
    while changes.changed().await.is_ok() {
        let now = *changes.borrow_and_update();
        let differs = |kinds: &[ListKind]| looks().is_none_or(|now| session.sees(now, kinds));
        let news = news(&mut session.tell(now), now, ListFilter::ALL, None, differs);
        if !news.is_empty() {
            return news;
        }
    }
    std::future::pending().await
}

/// The notifications that tell of what changed since `known`, which may be later than what is announced `now`, and
/// `differs` from what the client has seen: what it sees nothing of is no news. What nobody knows may differ.
pub(super) fn news(
    known: &mut ListVersions,
    now: ListVersions,
    wants: ListFilter,
    subscription: Option<&[u8]>,
    mut differs: impl FnMut(&[ListKind]) -> bool,
) -> Vec<Bytes> {
    let before = std::mem::replace(known, known.or_later(now));
    let kinds = [
        (wants.tools && before.tools < now.tools, &[ListKind::Tool][..], "tools"),
        (wants.prompts && before.prompts < now.prompts, &[ListKind::Prompt], "prompts"),
        (wants.resources && before.resources < now.resources, &[ListKind::Resource, ListKind::Template], "resources"),
    ];
    let params = subscription.map_or_else(String::new, |id| format!(r#","params":{{"_meta":{}}}"#, meta(id)));
    kinds
        .into_iter()
        .filter(|(changed, kinds, _)| *changed && differs(kinds))
        .map(|(.., kind)| format!(r#"{{"jsonrpc":"2.0","method":"notifications/{kind}/list_changed"{params}}}"#).into())
        .collect()
}

/// The `_meta` of what belongs to a subscription.
fn meta(id: &[u8]) -> String {
    format!(r#"{{"io.modelcontextprotocol/subscriptionId":{}}}"#, String::from_utf8_lossy(id))
}

/// The first message of a subscription: the part of the wish that is granted.
fn acknowledged(id: &[u8], wants: ListFilter, watched: &WatchedPart) -> Bytes {
    let mut granted: Vec<String> = [
        (wants.tools, r#""toolsListChanged":true"#),
        (wants.prompts, r#""promptsListChanged":true"#),
        (wants.resources, r#""resourcesListChanged":true"#),
    ]
    .into_iter()
    .filter(|(wanted, _)| *wanted)
    .map(|(_, text)| text.to_owned())
    .collect();
    for (key, values) in [("resourceSubscriptions", &watched.uris), ("taskIds", &watched.tasks)] {
        if !values.is_empty() {
            let values: Vec<String> = values.iter().map(|value| json::quote(value)).collect();
            granted.push(format!("\"{key}\":[{}]", values.join(",")));
        }
    }
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{},"notifications":{{{}}}}}}}"#,
        meta(id),
        granted.join(",")
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(tools: u64, prompts: u64, resources: u64) -> ListVersions {
        let mut versions = ListVersions::default();
        (versions.tools, versions.prompts, versions.resources) = (tools, prompts, resources);
        versions
    }

    fn texts(news: Vec<Bytes>) -> Vec<String> {
        news.into_iter().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
    }

    #[test]
    fn a_client_hears_once_of_the_lists_that_it_wants() {
        let (mut known, now) = (ListVersions::default(), versions(2, 1, 0));
        let wants = ListFilter { prompts: false, ..ListFilter::ALL };
        let told = texts(news(&mut known, now, wants, None, |_| true));
        assert_eq!(told, [r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#]);
        assert_eq!(known, now);
        assert!(news(&mut known, now, ListFilter::ALL, None, |_| true).is_empty());
        // A list that was fetched meanwhile is younger than what is announced.
        assert!(news(&mut known, versions(1, 1, 0), ListFilter::ALL, None, |_| true).is_empty());
        assert_eq!(known, now);
    }

    #[test]
    fn what_belongs_to_a_subscription_says_to_which() {
        let (mut known, now) = (ListVersions::default(), versions(0, 0, 1));
        let told = texts(news(&mut known, now, ListFilter::ALL, Some(b"\"s\""), |_| true));
        assert_eq!(
            told,
            [
                r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"s"}}}"#
            ]
        );
        let granted = WatchedPart { uris: vec!["a\"b".to_owned()], tasks: Vec::new() };
        let wants = ListFilter { tools: true, ..ListFilter::default() };
        assert_eq!(
            acknowledged(b"7", wants, &granted),
            r#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"notifications":{"toolsListChanged":true,"resourceSubscriptions":["a\"b"]}}}"#
        );
    }
}
