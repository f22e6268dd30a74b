//! One walk to an upstream: the driver of [`weir_flow::Negotiation`].

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::SemaphorePermit;
use weir_flow::{
    Negotiation, NegotiationStep,
    facts::{Attempt, Candidate, Outcome, Refusal, Step, Transport},
};
use weir_mcp::{Era, Message};

use crate::{
    caller::Caller,
    http::HeaderValue,
    quota::{Permit, Quota, Reached},
    telemetry::step,
    upstream::{
        Channel, Outgoing, Reply, SendError, Upstream, UpstreamTransport,
        crashes::CrashRecord,
        credential::{Credential, CredentialError},
        own,
        sse::{OpenError, SseConnection},
        streamable::HttpSession,
    },
};

use super::{
    ConnectError, Lease,
    evidence::{agreed, asks_again, is_evidence, opening, stopped},
    start::StartedProcess,
};

/// One walk and what it holds on the way.
pub(super) struct NegotiationDriver<'a> {
    upstream: &'a Upstream,
    caller: Option<&'a Arc<Caller>>,
    /// The principal of whose share a process is; none if it is Weir's own.
    share: Option<Arc<str>>,
    /// Room for the process that is to be started.
    permit: Option<Permit>,
    wanted: Option<Era>,
    initialize: &'a Message,
    begun: Instant,
    walk: Negotiation,
    /// What worked the last time, until it has been tried.
    remembered: Option<Candidate>,
    credential: Option<Credential>,
    refused: Option<Refusal>,
    /// Why there is no other credential.
    denied: Option<CredentialError>,
    /// The limit of Weir that kept a request from being sent.
    limit: Option<String>,
    /// A child process that has been started and may be asked in both eras.
    start: Option<StartedProcess>,
    opened: Option<Lease>,
}

/// How a walk ended.
pub(in crate::upstream) struct NegotiationEnd {
    pub(in crate::upstream) opened: Result<Lease, ConnectError>,
    /// What was tried, oldest first.
    pub(in crate::upstream) history: Vec<Attempt>,
    /// Whether a process has answered in the legacy era and not in the modern one, in which it was asked before.
    ignores_modern: bool,
}

impl NegotiationEnd {
    /// Whether it has tried `era` and shown that it is not spoken.
    pub(in crate::upstream) fn speaks_against(&self, era: Era) -> bool {
        let mut tried = self.history.iter().filter(|attempt| attempt.era == era).peekable();
        let ignored = self.ignores_modern && era == Era::Modern;
        ignored || tried.peek().is_some() && tried.all(|attempt| is_evidence(&attempt.outcome))
    }

    /// Whether HTTP+SSE works after Streamable HTTP was tried.
    pub(super) fn fell_back(&self) -> bool {
        let by = |transport| move |tried: &Attempt| tried.transport == transport;
        self.opened.is_ok()
            && self.history.last().is_some_and(by(Transport::Sse))
            && self.history.iter().any(by(Transport::Http))
    }
}

impl<'a> NegotiationDriver<'a> {
    pub(super) fn new(
        upstream: &'a Upstream,
        caller: Option<&'a Arc<Caller>>,
        share: Option<Arc<str>>,
        wanted: Option<Era>,
        initialize: &'a Message,
    ) -> Self {
        Self {
            upstream,
            caller,
            share,
            permit: None,
            wanted,
            initialize,
            begun: Instant::now(),
            walk: Negotiation::new(upstream.facts(wanted), limit(upstream)),
            remembered: upstream.known.lock().first(wanted),
            credential: None,
            refused: None,
            denied: None,
            limit: None,
            start: None,
            opened: None,
        }
    }

    /// Walks to the end.
    pub(super) async fn run(mut self) -> NegotiationEnd {
        // Held until a process that came to nothing is gone: it may still be busy with what it shares with others.
        let (_slot, mut opened) = match self.room().await {
            Ok(slot) => (slot, self.go().await),
            Err(why) => (None, Err(why)),
        };
        let ignores_modern = opened.as_ref().is_ok_and(|opened| opened.era == Era::Legacy)
            && self.start.as_ref().is_some_and(StartedProcess::ignores_discover);
        if let (Err(why), Some(start)) = (&mut opened, self.start.take()) {
            // What it says to being stopped is of no interest.
            let before = start.process.alive().then(|| start.process.last_lines());
            start.process.stop().await;
            let ended_by_itself = before.is_none();
            why.add(before.unwrap_or_else(|| start.process.last_lines()));
            if ended_by_itself {
                start.process.failed_to_start(why.to_string());
            }
        }
        NegotiationEnd { opened, history: self.walk.history().to_vec(), ignores_modern }
    }

    /// Waits for a turn to start a process (`limits.concurrent_starts`). Whoever waits has room for one (`limits.processes`), so that
    /// the queue is bounded too.
    async fn room(&mut self) -> Result<Option<SemaphorePermit<'a>>, ConnectError> {
        let UpstreamTransport::Stdio { starts, processes, crashes, .. } = &self.upstream.way else { return Ok(None) };
        if let Some((why, after)) = crashes.hold(&self.share, Instant::now()) {
            return Err(ConnectError::Crashed { why, after });
        }
        self.permit = Some(self.permit(processes).map_err(ConnectError::Full)?);
        let slot = starts.acquire().await.ok();
        self.begun = Instant::now();
        Ok(slot)
    }

    async fn go(&mut self) -> Result<Lease, ConnectError> {
        let mut next = match self.remembered {
            Some(how) => self.walk.handle_step(Step::Attempt(how), self.begun.elapsed()),
            None => NegotiationStep::Ask,
        };
        loop {
            next = match next {
                NegotiationStep::Ask => self.ask().await?,
                NegotiationStep::Attempt { how, authorize } => self.try_way(how, authorize).await?,
                NegotiationStep::Connected(how) => {
                    if let Some(credential) = &self.credential {
                        credential.accept();
                    }
                    let opened = self.opened.take();
                    return opened.ok_or_else(|| ConnectError::Stopped(format!("{} was not opened", how.transport)));
                }
                NegotiationStep::Stop(why) => return Err(stopped(why, self.denied.take(), self.walk.history())),
            };
        }
    }

    async fn ask(&mut self) -> Result<NegotiationStep, ConnectError> {
        let step = self.step(self.walk.history()).await?;
        Ok(self.walk.handle_step(step, self.begun.elapsed()))
    }

    async fn step(&self, history: &[Attempt]) -> Result<Step, ConnectError> {
        let policy = &self.upstream.connection;
        match policy.next(self.walk.upstream(), history).await {
            Ok(Step::Stop(why)) => Ok(Step::Stop(policy.stopped(&why))),
            step => step.map_err(|why| ConnectError::Stopped(why.to_string())),
        }
    }

    async fn try_way(&mut self, how: Candidate, authorize: bool) -> Result<NegotiationStep, ConnectError> {
        let denied = self.authorize(authorize).await.err();
        let began = Instant::now();
        self.walk.begin(how, self.credential.is_some(), self.begun.elapsed());
        let outcome = match (denied, self.refused.take()) {
            // No credential is to be had: what was refused would be refused again.
            (denied, Some(refused)) if authorize && (denied.is_some() || self.credential.is_none()) => {
                self.denied = denied;
                SendError::Refused(refused).into()
            }
            (Some(why), _) => return Err(why.into()),
            (None, _) => self.attempt(how).await,
        };
        // It says nothing of the upstream.
        if let Some(limit) = self.limit.take() {
            return Err(ConnectError::Limit(limit));
        }
        let (name, transport, era) = (self.upstream.name(), how.transport, how.era);
        tracing::debug!(upstream = name, %transport, %era, ?outcome, "attempt");
        let tried = format!("{transport}, {era}");
        match (transport, &outcome) {
            // A process answers with errors, and has no status.
            (Transport::Stdio, Outcome::Unsupported(_)) => step::note(tried, began, "it answered with an error"),
            _ => step::note(tried, began, &outcome),
        }
        let outdated = self.remembered.take().is_some() && is_evidence(&outcome);
        let next = self.walk.handle_outcome(outcome, self.begun.elapsed());
        if outdated { self.set_out_anew(how).await } else { Ok(next) }
    }

    /// What worked the last time is not there any more: the walk begins where it would have without it.
    async fn set_out_anew(&mut self, tried: Candidate) -> Result<NegotiationStep, ConnectError> {
        let first = self.step(&[]).await?;
        if first == Step::Attempt(tried) {
            return Ok(NegotiationStep::Ask);
        }
        self.walk = Negotiation::new(self.upstream.facts(self.wanted), limit(self.upstream));
        Ok(self.walk.handle_step(first, self.begun.elapsed()))
    }

    async fn authorize(&mut self, anew: bool) -> Result<(), CredentialError> {
        let refused = if anew { self.refused.clone() } else { None };
        let began = Instant::now();
        let chosen = self.upstream.credential(self.caller, refused).await;
        match &chosen {
            Ok(None) => {}
            Ok(Some(_)) => step::note("credential", began, "there is one"),
            Err(why) => step::note("credential", began, why),
        }
        self.credential = chosen?;
        Ok(())
    }

    async fn attempt(&mut self, how: Candidate) -> Outcome {
        let opened = match &self.upstream.way {
            // A server that does not know a method may simply stay silent.
            UpstreamTransport::Http(_) => {
                let limit = self.upstream.timeouts.initialize;
                tokio::time::timeout(limit, self.open(how)).await.unwrap_or(Err(Outcome::TimedOut))
            }
            UpstreamTransport::Stdio { .. } => self.open_process(how.era).await,
        };
        match opened {
            Ok(opened) => {
                if opened.era != how.era {
                    self.walk.begin(
                        Candidate { era: opened.era, ..how },
                        self.credential.is_some(),
                        self.begun.elapsed(),
                    );
                }
                self.opened = Some(opened);
                Outcome::Connected
            }
            Err(outcome) => outcome,
        }
    }

    /// Opens a process, which is started if none runs.
    async fn open_process(&mut self, era: Era) -> Result<Lease, Outcome> {
        let UpstreamTransport::Stdio { command, children, crashes, processes, .. } = &self.upstream.way else {
            return Err(Outcome::Unreachable("there is no `command`".into()));
        };
        let start = match self.start.take().filter(|start| start.process.alive()) {
            Some(start) => self.start.insert(start),
            None => {
                let permit = match self.permit.take() {
                    Some(permit) => permit,
                    None => self.permit(processes).map_err(|full| Outcome::Unreachable(full.to_string()))?,
                };
                let limit = self.upstream.timeouts.start;
                let (crashes, whose, started) = (Arc::clone(crashes), self.share.clone(), Instant::now());
                let crashes = CrashRecord { crashes, whose, started };
                let start = StartedProcess::spawn(self.upstream.name(), command, (permit, crashes), limit).await?;
                children.add(&start.process);
                self.start.insert(start)
            }
        };
        let (era, answer) = match era {
            Era::Modern => (Era::Modern, start.discover(self.wanted.is_some()).await?),
            Era::Legacy => start.initialize(self.initialize, self.wanted.is_none()).await?,
        };
        Ok(Lease { channel: Channel::Stdio { process: start.process.clone(), shared: false }, answer, era })
    }

    async fn open(&mut self, how: Candidate) -> Result<Lease, Outcome> {
        let channel = self.channel(how).await?;
        let discover;
        let message = match how.era {
            Era::Legacy => self.initialize,
            Era::Modern => {
                discover = own::discover();
                &discover
            }
        };
        let (mut status, mut session, mut answer) = self.exchange(&channel, how.era, message).await?;
        if asks_again(how.era, &answer) {
            (status, session, answer) = self.exchange(&channel, how.era, message).await?;
        }
        opening(how.era, status, &answer)?;
        let channel = match channel {
            Channel::Http(open) => {
                Channel::Http(HttpSession { id: session, version: agreed(how.era, &answer), ..open })
            }
            stream => stream,
        };
        Ok(Lease { channel, answer, era: how.era })
    }

    async fn channel(&mut self, how: Candidate) -> Result<Channel, Outcome> {
        match (&self.upstream.way, how.transport) {
            (UpstreamTransport::Http(endpoint), Transport::Http) => Ok(Channel::Http(HttpSession::none_at(endpoint))),
            (UpstreamTransport::Http(_), Transport::Sse) if how.era == Era::Modern => {
                Err(Outcome::NotMcp("a transport without a modern era".into()))
            }
            (UpstreamTransport::Http(endpoint), Transport::Sse) => {
                let opened = SseConnection::open(self.upstream.name(), endpoint, self.credential.as_ref()).await;
                let connection = opened.map_err(|why| match why {
                    OpenError::Status(status) => Outcome::of_status(status),
                    OpenError::Failed(why) => self.failed(why),
                })?;
                Ok(Channel::Sse { connection })
            }
            (_, transport) => {
                Err(Outcome::Unreachable(format!("this version of Weir does not carry {transport} here")))
            }
        }
    }

    /// Room for a process.
    fn permit(&self, processes: &Arc<Quota>) -> Result<Permit, Reached> {
        let name = Some(self.upstream.name());
        match &self.share {
            Some(principal) => processes.take(principal, name),
            None => Ok(processes.take_own(name)),
        }
    }

    /// Sends a message and hears the answer to it, with its status and the session that it opens.
    async fn exchange(
        &mut self,
        channel: &Channel,
        era: Era,
        message: &Message,
    ) -> Result<(u16, Option<HeaderValue>, Message), Outcome> {
        let reply = self.send(channel, era, message).await?;
        let (status, session) = (reply.status, reply.session.clone());
        let answer = reply.answer().await.map_err(|why| match why {
            SendError::NotMcp(_) if status >= 300 => Outcome::of_status(status),
            why => why.into(),
        })?;
        Ok((status, session, answer))
    }

    async fn send(&mut self, channel: &Channel, era: Era, message: &Message) -> Result<Reply, Outcome> {
        let outgoing = Outgoing::own(era, message, self.credential.as_ref());
        let sent = match channel {
            // The status of a refusal is the evidence here, so nothing is judged on the way.
            Channel::Http(session) => session.endpoint.post(&outgoing).await,
            Channel::Sse { .. } | Channel::Stdio { .. } => channel.send(outgoing).await,
        };
        sent.map_err(|why| match (channel, why) {
            (Channel::Sse { connection }, SendError::NotMcp(what)) => {
                connection.turned_away().map_or(Outcome::NotMcp(what), Outcome::of_status)
            }
            (_, why) => self.failed(why),
        })
    }

    /// Notes what was refused, for the next credential, and by which limit of Weir.
    fn failed(&mut self, why: SendError) -> Outcome {
        match &why {
            SendError::Refused(refusal) => self.refused = Some(refusal.clone()),
            SendError::Full(limit) => self.limit = Some(limit.clone()),
            _ => {}
        }
        why.into()
    }
}

/// How long a walk may take. Of a process only the start counts, however long its calls may take.
const fn limit(upstream: &Upstream) -> Duration {
    match &upstream.way {
        UpstreamTransport::Http(_) => upstream.timeouts.overall,
        UpstreamTransport::Stdio { .. } => upstream.timeouts.start,
    }
}
