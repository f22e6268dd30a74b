//! Keeping one upstream's lists: reach it, fetch them, wait until they change, and again.
//!
//! An upstream that is away may be back at any moment. Hosts fetch lists anew whenever they change, and a model whose tools
//! vanish goes on without them. So what was known stays on offer. Calls in the meantime say why the upstream cannot be
//! reached.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{Notify, watch};
use weir_flow::{Backoff, Observation, Trouble, UpstreamState};
use weir_mcp::{Era, Message};

use crate::{
    counters::LIST_REFRESHES,
    task,
    upstream::{ConnectError, Health, Lease, Listened, Opened, ReplyBody, SendError, ServerIdentity, Upstream, own},
};

use super::{Catalog, CatalogEntry, CatalogSnapshot, FetchResult};

/// How long lists are kept when the upstream has no way to say that they changed.
const REFRESH: Duration = Duration::from_secs(60);

/// How long they are kept at least, whatever it says of them: nobody may be asking for them at all.
const SHORTEST: Duration = Duration::from_secs(5);

/// The lists of a process that Weir starts for nothing else are kept for so many times as long as that took.
const KEPT: u32 = 10;

/// How long an upstream is believed not to speak an era.
const OTHER_ERA: Duration = Duration::from_secs(10 * 60);

/// A stream that ends within this time is not worth opening again.
const SHORT: Duration = Duration::from_secs(5);

/// How long more changes are waited for after one, so that a burst is fetched once; longer each time while a server goes
/// on and on.
const SETTLE: Duration = Duration::from_millis(50);
const LONGEST_SETTLE: Duration = Duration::from_secs(2);

/// Why lists are fetched again.
enum Wake {
    /// They changed, or may have; the way to the upstream is still good.
    Changed,
    /// The way is gone.
    Lost,
}

/// Keeps the lists of an upstream until the task is ended.
pub(super) async fn keep(catalog: Arc<Catalog>, entry: Arc<CatalogEntry>, wanted: Option<Era>) {
    let upstream = &entry.upstream;
    let mut stopping = catalog.stopping.subscribe();
    let mut stopped = std::pin::pin!(async {
        tokio::select! {
            () = over(&mut stopping) => {}
            () = upstream.retired() => {}
        }
    });
    if upstream.is_held() {
        // Another takes its place once that may be opened.
        catalog.publish(&entry, FetchResult::Nothing { era: wanted, waiting: None });
        return stopped.await;
    }
    let (mut reaching, mut losing, mut asking) = (Backoff::CONNECT, Backoff::CONNECT, Backoff::LIST);
    let (mut reported, mut refused) = (None, false);
    loop {
        if wanted.is_none() {
            upstream.observe(Observation::Reaching);
        }
        let began = Instant::now();
        let lease = tokio::select! {
            lease = upstream.lease(None, wanted) => lease,
            () = &mut stopped => return,
        };
        let ended = match lease {
            Ok(lease) => {
                let refresher = Refresher { catalog: &catalog, entry: &entry, upstream, wanted, began };
                let ended = tokio::select! {
                    ended = refresher.follow(&lease, &mut refused, &mut asking) => ended,
                    () = &mut stopped => return upstream.close(None, &lease.channel).await,
                };
                upstream.close(None, &lease.channel).await;
                ended
            }
            Err(why) => Err(why),
        };
        let pause = match ended {
            Ok(()) => {
                reaching.reset();
                reported = None;
                losing.handle_stay(began.elapsed());
                // The first try comes at once, for most upstreams are back when their loss is noticed.
                let at_once = losing.failures() == 0;
                let again = task::pause(&mut losing);
                if at_once { Duration::ZERO } else { again }
            }
            Err(ConnectError::OtherEra { .. }) => {
                upstream.observe(Observation::InOtherEra(None));
                catalog.publish(&entry, FetchResult::Nothing { era: wanted, waiting: None });
                OTHER_ERA
            }
            Err(why) => {
                let pause = task::pause(&mut reaching);
                // The same failure again is no news.
                if reported.as_ref() != Some(&why) {
                    report(upstream, &why);
                }
                let waiting = why.is_for_caller().then(|| Arc::new(CatalogSnapshot::waiting(upstream.name())));
                // A limit of Weir says nothing of an upstream that has been reached.
                if !matches!(why, ConnectError::Limit(_)) || upstream.status().state == UpstreamState::Connecting {
                    upstream.observe(failed(&why, wanted, Instant::now() + pause));
                }
                reported = Some(why);
                // Whoever can sign in is offered that instead.
                if waiting.is_some() || !entry.outlasts(wanted) {
                    catalog.publish(&entry, FetchResult::Nothing { era: wanted, waiting });
                }
                pause
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = entry.poked(wanted).notified() => {}
            () = &mut stopped => return,
        }
    }
}

/// Resolves when the catalog is stopped.
pub(super) async fn over(stopping: &mut watch::Receiver<bool>) {
    drop(stopping.wait_for(|over| *over).await);
}

struct Refresher<'a> {
    catalog: &'a Catalog,
    entry: &'a CatalogEntry,
    upstream: &'a Upstream,
    wanted: Option<Era>,
    /// When the upstream was begun to be reached.
    began: Instant,
}

impl Refresher<'_> {
    /// Fetches and publishes until the way to the upstream is gone. `refused` if the last thing that was heard is that it
    /// gives its lists to nobody without another credential.
    async fn follow(&self, lease: &Lease, refused: &mut bool, asking: &mut Backoff) -> Result<(), ConnectError> {
        // A server may not say a word on its stream, not even its head, before it has something to tell.
        let listen = tokio::time::timeout(self.upstream.timeouts.list, self.listen(lease));
        let mut changes = listen.await.unwrap_or_default();
        let mut health = Health::of(self.upstream);
        let mut settle = SETTLE;
        loop {
            let fetch = CatalogSnapshot::fetch(None, self.upstream, lease);
            let fetched = tokio::time::timeout(self.upstream.timeouts.overall, fetch).await;
            let outcome = match &fetched {
                Ok(Ok(view)) if view.failed.is_empty() => "done",
                Ok(Ok(_)) => "partial",
                Ok(Err(_)) | Err(_) => "failed",
            };
            LIST_REFRESHES.count(self.upstream.name(), outcome);
            let view = match fetched {
                Ok(Ok(view)) => view,
                Ok(Err(SendError::SessionLost)) => return Ok(()),
                // What it offered stays: this says nothing of it.
                Ok(Err(SendError::Full(why))) if self.entry.knows(self.wanted) => {
                    tracing::warn!(upstream = self.upstream.name(), error = %why, "its lists are not fetched anew yet");
                    task::back_off(asking).await;
                    continue;
                }
                Ok(Err(SendError::Full(why))) => return Err(ConnectError::Limit(why)),
                // Some say hello to everybody and ask for a credential later.
                Ok(Err(SendError::Refused(refusal))) if !*refused => {
                    *refused = true;
                    self.upstream.credential(None, Some(refusal)).await?;
                    return Ok(());
                }
                Ok(Err(why)) => {
                    // A login that ends just now is what there is to say.
                    self.upstream.credential(None, None).await?;
                    return Err(ConnectError::Stopped(format!("its lists cannot be had: {why}")));
                }
                Err(_) => return Err(ConnectError::Stopped("its lists did not come within `timeouts.overall`".into())),
            };
            *refused = false;
            let ttl = view.lasts.ttl;
            let again = if view.failed.is_empty() {
                asking.reset();
                None
            } else {
                Some(task::pause(asking))
            };
            self.publish(lease, view);
            let since = Instant::now();
            match self.wait(lease, &mut changes, &mut health, again, ttl).await {
                Wake::Changed => {
                    let busy = since.elapsed() < 2 * settle;
                    settle = if busy { LONGEST_SETTLE.min(2 * settle) } else { SETTLE };
                    tokio::time::sleep(settle).await;
                }
                Wake::Lost => return Ok(()),
            }
        }
    }

    fn publish(&self, lease: &Lease, mut view: CatalogSnapshot) {
        let alone = self.wanted.is_none();
        let known = self.entry.view(lease.era);
        if alone {
            view.tell(self.upstream.name(), known.as_deref());
        }
        known.iter().for_each(|known| view.keep(known));
        let (tools, why, remarks) = (view.tools(), view.failure(), view.remarks.lines());
        let partly = why.map(|why| Trouble::new("lists", why));
        let before = self.upstream.status().state;
        self.upstream.observe(match alone {
            true => Observation::Reached(partly),
            false => Observation::InOtherEra(partly),
        });
        if alone {
            let (era, transport) = (Some(lease.era), Some(lease.channel.transport()));
            let identity = ServerIdentity::of(lease.answer.result().unwrap_or_default());
            self.upstream.note_opened(Opened { era, transport, tools: Some(tools), warnings: remarks, identity });
        }
        self.upstream.note_answer();
        self.entry.note_asked();
        let news = before != UpstreamState::Healthy && self.upstream.status().state == UpstreamState::Healthy;
        if news {
            let (name, transport) = (self.upstream.name(), lease.channel.transport());
            tracing::info!(upstream = name, %transport, era = %lease.era, tools, "upstream is healthy");
        }
        self.catalog.publish(self.entry, FetchResult::View { era: lease.era, view: Arc::new(view), alone });
    }

    /// Opens the stream on which the upstream says that its lists changed; none if it offers none.
    async fn listen(&self, lease: &Lease) -> Option<Listened> {
        let reply = match lease.era {
            // A process of Weir's own is ended after the lists are fetched.
            Era::Legacy if lease.channel.has_own_process() => return None,
            Era::Legacy => {
                let credential = self.upstream.credential(None, None).await.ok()?;
                lease.channel.listen(None, credential.as_ref()).await
            }
            Era::Modern => self.upstream.send(None, &lease.channel, Era::Modern, &own::listen()).await,
        };
        match reply.ok()?.body {
            ReplyBody::Events(events) => Some(events),
            ReplyBody::Empty | ReplyBody::Json(_) => None,
        }
    }

    /// Waits until the lists are worth fetching again; not longer than until `again`.
    async fn wait(
        &self,
        lease: &Lease,
        changes: &mut Option<Listened>,
        health: &mut Health,
        again: Option<Duration>,
        ttl: Option<Duration>,
    ) -> Wake {
        let poke = self.entry.poked(self.wanted);
        let Some(events) = changes else {
            if lease.channel.has_own_process() {
                self.upstream.close(None, &lease.channel).await;
                self.rest(poke, again).await;
                return Wake::Lost;
            }
            let refresh = ttl.filter(|ttl| !ttl.is_zero()).map_or(REFRESH, |ttl| ttl.max(SHORTEST));
            tokio::select! {
                // Elapsed or poked: either way they are fetched again.
                _ = tokio::time::timeout(again.unwrap_or(refresh), poke.notified()) => {}
                () = health.lost(self.upstream, lease, self.wanted.is_none()) => return Wake::Lost,
            }
            return Wake::Changed;
        };
        let elapsed = elapsed(again);
        tokio::pin!(elapsed);
        let since = Instant::now();
        loop {
            tokio::select! {
                () = poke.notified() => break,
                () = &mut elapsed => break,
                () = health.lost(self.upstream, lease, self.wanted.is_none()) => return Wake::Lost,
                event = events.next() => match event {
                    Ok(Some(event)) if tells_of_change(&event.data) => break,
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => {
                        *changes = None;
                        drop(tokio::time::timeout(SETTLE * 20, poke.notified()).await);
                        // A server that ends its stream at once would be opened in a tight loop; it is asked now and then.
                        let short = since.elapsed() < SHORT;
                        return if lease.era == Era::Legacy && !short { Wake::Lost } else { Wake::Changed };
                    }
                },
            }
        }
        Wake::Changed
    }

    /// Waits while no process of Weir's own runs: until one is started for a caller, which may be of another version, and
    /// the lists are old by then. Nobody's lists are worth a process that nobody uses.
    async fn rest(&self, poke: &Notify, again: Option<Duration>) {
        let (since, kept) = (Instant::now(), SHORTEST.max(KEPT * self.began.elapsed()));
        let elapsed = elapsed(again);
        tokio::pin!(elapsed);
        loop {
            tokio::select! {
                () = poke.notified() => return,
                () = &mut elapsed => return,
                () = self.upstream.started() => {
                    if since.elapsed() >= kept {
                        return;
                    }
                }
            }
        }
    }
}

/// Resolves after a while, if there is one.
async fn elapsed(again: Option<Duration>) {
    match again {
        Some(again) => tokio::time::sleep(again).await,
        None => std::future::pending().await,
    }
}

fn tells_of_change(data: &bytes::Bytes) -> bool {
    Message::parse(data.clone()).is_ok_and(|message| message.method().ends_with("/list_changed"))
}

/// What it says of an upstream that it could not be reached, in its own era or in the other one.
fn failed(why: &ConnectError, wanted: Option<Era>, retry: Instant) -> Observation {
    let trouble = Trouble { retry: Some(retry), ..Trouble::new(why.class(), why.to_string()) };
    match why {
        _ if wanted.is_some() => Observation::InOtherEra(Some(trouble)),
        ConnectError::SignIn(needed) => Observation::Unauthorized { ended: needed.ended, trouble },
        ConnectError::Personal => Observation::OfEachCaller(Trouble { retry: None, ..trouble }),
        ConnectError::Unauthorized(_) => Observation::Unauthorized { ended: false, trouble },
        _ => Observation::Unreached(trouble),
    }
}

fn report(upstream: &Upstream, why: &ConnectError) {
    let name = upstream.name();
    match why {
        // Said where it was found out, with what to do, once for all who need it.
        ConnectError::SignIn(_) => {}
        ConnectError::Personal => {
            tracing::debug!(upstream = name, error = %why, "upstream is known to its callers only")
        }
        why => tracing::error!(upstream = name, error = %why, "upstream cannot be reached"),
    }
}
