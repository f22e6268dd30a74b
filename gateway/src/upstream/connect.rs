//! Opening an upstream: who may join what is open already, and what is learned from each walk to it.
//!
//! Whoever needs a legacy session brings the `initialize` to open it with, so that the walk's own success is the
//! session and nothing is opened twice. What worked is remembered and tried first the next time, without a question.

mod evidence;
mod negotiation;
mod start;

use std::{sync::Arc, time::Duration};

use weir_flow::facts::{Refusal, Transport};
use weir_mcp::{Era, Message};

use crate::{caller::Caller, credential::Needed, quota::Reached};

use super::{
    Channel, Outgoing, Reply, SendError, Ticket, Upstream, UpstreamTransport,
    crashes::CRASHED,
    credential::{Credential, CredentialError},
    own,
    streamable::HttpSession,
};

use negotiation::NegotiationDriver;
pub(super) use negotiation::NegotiationEnd;

/// The right to use a channel to an upstream, and what is known from opening it.
pub struct Lease {
    /// The way to it.
    pub channel: Channel,
    /// What it said of itself: the answer to `initialize` or `server/discover`.
    pub answer: Message,
    /// The era it was opened in.
    pub era: Era,
}

/// Why an upstream could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No way works; the text is the policy's.
    #[error("{0}")]
    Stopped(String),
    /// Nobody is there now, or it is in trouble: the next try may find it well. The text is the policy's.
    #[error("{0}")]
    Outage(String),
    /// It gave no answer in time, which another try at once would not change. The text is the policy's.
    #[error("{0}")]
    Silent(String),
    /// The operator's policy gives no credential. The text is the policy's.
    #[error("{0}")]
    Denied(String),
    /// No way works for want of a credential that could be had.
    #[error("{0}")]
    Unauthorized(String),
    /// A person has to sign in first.
    #[error("{0}")]
    SignIn(Box<Needed>),
    /// Another gateway has the session that would open it.
    #[error("the gateway of its session opens it")]
    AtOwner,
    /// Each caller has a credential of their own, and nobody is calling.
    #[error("each caller signs in here, and Weir itself does not")]
    Personal,
    /// Its processes keep ending soon after their start, and the next one waits.
    #[error("{why}")]
    Crashed {
        /// How the last one ended.
        why: String,
        /// When the next one may start, from now.
        after: Duration,
    },
    /// There are as many processes as there may be.
    #[error("{0}")]
    Full(Reached),
    /// Weir has as many connections to it as it may; the text names the limit.
    #[error("{0}")]
    Limit(String),
    /// It does not speak this era; the other one it speaks, or may speak.
    #[error("it speaks only the {other} era of MCP and this client the {wanted} one")]
    OtherEra {
        /// What the client speaks.
        wanted: Era,
        /// What the upstream speaks.
        other: Era,
    },
}

impl From<CredentialError> for ConnectError {
    fn from(error: CredentialError) -> Self {
        match error {
            CredentialError::SignIn(needed) => Self::SignIn(needed),
            CredentialError::Personal => Self::Personal,
            CredentialError::Denied(why) => Self::Denied(why),
            CredentialError::Failed(why) => Self::Unauthorized(why),
        }
    }
}

impl ConnectError {
    /// Adds how the standard error of a process ends that came to nothing.
    fn add(&mut self, last_lines: Option<String>) {
        if let (Self::Stopped(why) | Self::Outage(why) | Self::Silent(why), Some(lines)) = (self, last_lines) {
            why.push_str("; its standard error ends with: ");
            why.push_str(&lines);
        }
    }

    /// What kind of failure it is, in one word.
    #[must_use]
    pub const fn class(&self) -> &'static str {
        match self {
            Self::Stopped(_) | Self::AtOwner => "stopped",
            Self::Outage(_) => "unreachable",
            Self::Silent(_) => "timeout",
            Self::Denied(_) => "policy",
            Self::Unauthorized(_) | Self::SignIn(_) | Self::Personal => "authentication",
            Self::Crashed { .. } => CRASHED,
            Self::Full(_) | Self::Limit(_) => "limit",
            Self::OtherEra { .. } => "protocol",
        }
    }

    /// Whether time alone may mend it.
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::Outage(_) | Self::Silent(_) | Self::Crashed { .. } | Self::Limit(_))
    }

    /// Whether whoever calls can mend it by signing in.
    pub fn is_for_caller(&self) -> bool {
        matches!(self, Self::SignIn(needed) if needed.for_caller)
    }
}

impl Upstream {
    /// A legacy session for a caller, opened with a client's own `initialize`; or the process that all share. What is
    /// started is of the share of `principal`.
    ///
    /// # Errors
    ///
    /// When no way to it works in the legacy era.
    pub async fn lease_session(
        &self,
        caller: Option<&Arc<Caller>>,
        principal: &Arc<str>,
        initialize: &Message,
    ) -> Result<Lease, ConnectError> {
        if let UpstreamTransport::Stdio { shared: true, .. } = &self.way {
            return self.join(caller, Some(Era::Legacy)).await;
        }
        let share = Some(Arc::clone(principal));
        let ended = self.walk_with(caller, share, Some(Era::Legacy), initialize).await?;
        if !ended.speaks_against(Era::Legacy) {
            return self.settle(Some(Era::Legacy), ended);
        }
        // It may dislike the era or only these words; what a client says must not decide for all others.
        let opened = self.walk(caller, Some(Era::Legacy)).await?;
        self.close(caller, &opened.channel).await;
        Err(ConnectError::Stopped("it does not accept this client's `initialize`".into()))
    }

    /// The channel of a caller's modern calls, which share what is open.
    ///
    /// # Errors
    ///
    /// When no way to it works in the modern era.
    pub async fn lease_modern(&self, caller: Option<&Arc<Caller>>) -> Result<Channel, ConnectError> {
        match &self.way {
            UpstreamTransport::Http(endpoint) if self.known.lock().works(Era::Modern).is_some() => {
                Ok(Channel::Http(HttpSession::none_at(endpoint)))
            }
            _ => Ok(self.join(caller, Some(Era::Modern)).await?.channel),
        }
    }

    /// A channel for Weir's own requests, in the era that is wanted or in whichever the upstream speaks.
    ///
    /// # Errors
    ///
    /// When no way to it works.
    pub async fn lease(&self, caller: Option<&Arc<Caller>>, wanted: Option<Era>) -> Result<Lease, ConnectError> {
        match &self.way {
            UpstreamTransport::Stdio { .. } => self.join(caller, wanted).await,
            UpstreamTransport::Http(_) => {
                let opened = Box::pin(self.walk(caller, wanted)).await?;
                if opened.era == Era::Legacy {
                    opened.channel.serve_unasked();
                    Box::pin(self.tell(caller, &opened.channel, &own::initialized(), None)).await;
                }
                Ok(opened)
            }
        }
    }

    /// Sends a request of Weir's own on an open channel, in a caller's name.
    ///
    /// # Errors
    ///
    /// When there is no credential or no answer.
    pub async fn send(
        &self,
        caller: Option<&Arc<Caller>>,
        channel: &Channel,
        era: Era,
        request: &Message,
    ) -> Result<Reply, SendError> {
        let credential = self.credential(caller, None).await.map_err(|why| SendError::Unsent(why.to_string()))?;
        channel.send(Outgoing::own(era, request, credential.as_ref())).await
    }

    /// The same, and waits for the answer past all that comes before it.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub async fn ask(
        &self,
        caller: Option<&Arc<Caller>>,
        channel: &Channel,
        era: Era,
        request: &Message,
    ) -> Result<Message, SendError> {
        self.send(caller, channel, era, request).await?.answer().await
    }

    /// Sends a notification, as well as it can be done; with the ticket of the running request of a client that it concerns.
    pub async fn tell(
        &self,
        caller: Option<&Arc<Caller>>,
        channel: &Channel,
        notification: &Message,
        ticket: Option<&Ticket>,
    ) {
        let Ok(credential) = self.credential(caller, None).await else { return };
        let outgoing = Outgoing { ticket, ..Outgoing::own(Era::Legacy, notification, credential.as_ref()) };
        if let Err(why) = channel.send(outgoing).await {
            tracing::debug!(upstream = %self.name, method = notification.method(), error = %why, "notification not taken");
        }
    }

    /// Ends what a channel holds open here in a caller's name.
    pub async fn close(&self, caller: Option<&Arc<Caller>>, channel: &Channel) {
        let credential = self.credential(caller, None).await.ok().flatten();
        channel.close(credential.as_ref()).await;
    }

    /// The credential for what a caller does.
    ///
    /// # Errors
    ///
    /// When the policy gives up or fails.
    pub async fn credential(
        &self,
        caller: Option<&Arc<Caller>>,
        refused: Option<Refusal>,
    ) -> Result<Option<Credential>, CredentialError> {
        self.credential_within(self.timeouts.overall, caller, refused).await
    }

    /// The same for a call that has so much time left.
    ///
    /// # Errors
    ///
    /// As [`credential`](Self::credential), and when it takes longer.
    pub async fn credential_within(
        &self,
        left: Duration,
        caller: Option<&Arc<Caller>>,
        refused: Option<Refusal>,
    ) -> Result<Option<Credential>, CredentialError> {
        let origin = match &self.way {
            UpstreamTransport::Http(endpoint) => Some(&endpoint.target.origin),
            UpstreamTransport::Stdio { .. } => None,
        };
        self.credentials.get(caller, || self.facts(None), origin, refused, left).await
    }

    /// Ends shared processes that nobody used for `idle`.
    pub async fn reap(&self, idle: Duration) {
        if let UpstreamTransport::Stdio { pool, .. } = &self.way {
            pool.reap(idle).await;
        }
    }

    /// Joins a child process that others may use too: in the modern era always, in the legacy era where the
    /// configuration shares it. Starts it if it does not run.
    async fn join(&self, caller: Option<&Arc<Caller>>, wanted: Option<Era>) -> Result<Lease, ConnectError> {
        let UpstreamTransport::Stdio { pool, shared, .. } = &self.way else {
            return Box::pin(self.walk(caller, wanted)).await;
        };
        // What is started for one principal is no other's, unless the configuration shares it.
        let whose = if *shared { None } else { Caller::apart(caller) };
        let pool = pool.of(whose);
        let _starting = pool.starting.lock().await;
        let eras = wanted.map_or([Era::Modern, Era::Legacy], |era| [era, era]);
        if let Some((era, member)) = eras.into_iter().find_map(|era| Some((era, pool.get(era)?))) {
            let channel = Channel::Stdio { process: member.process, shared: true };
            return Ok(Lease { channel, answer: member.answer, era });
        }
        let opened = Box::pin(self.walk(caller, wanted)).await?;
        let Channel::Stdio { process, .. } = &opened.channel else { return Ok(opened) };
        if opened.era == Era::Legacy {
            opened.channel.serve_unasked();
            Box::pin(self.tell(caller, &opened.channel, &own::initialized(), None)).await;
            if !shared {
                return Ok(opened);
            }
        }
        pool.put(opened.era, process.clone(), opened.answer.clone());
        Ok(Lease { channel: Channel::Stdio { process: process.clone(), shared: true }, ..opened })
    }

    /// Says that a call has shown that it does not speak `era`, or does not any more: the next client walks anew.
    pub fn doubt(&self, era: Era) {
        self.known.lock().doubt(era);
    }

    /// The era that the upstream speaks, when it is known not to speak `era`.
    pub fn only_other(&self, era: Era) -> Option<Era> {
        // HTTP+SSE ended before the modern era began.
        let legacy = self.required_transport == Some(Transport::Sse) && era == Era::Modern;
        if legacy { Some(Era::Legacy) } else { self.known.lock().only_other(era) }
    }

    /// Reaches it in Weir's own words.
    async fn walk(&self, caller: Option<&Arc<Caller>>, wanted: Option<Era>) -> Result<Lease, ConnectError> {
        // What a principal does not have alone is Weir's own.
        let shared = matches!(&self.way, UpstreamTransport::Stdio { shared: true, .. });
        let share = if shared { None } else { Caller::apart(caller) };
        let ended = self.walk_with(caller, share, wanted, &own::initialize()).await?;
        self.settle(wanted, ended)
    }

    /// Reaches it; nothing is learned from how that ends.
    async fn walk_with(
        &self,
        caller: Option<&Arc<Caller>>,
        share: Option<Arc<str>>,
        wanted: Option<Era>,
        initialize: &Message,
    ) -> Result<NegotiationEnd, ConnectError> {
        if self.is_held() {
            // Why they cannot be used is the operator's to know.
            let what = if self.has_unusable_policies() { "cannot be used" } else { "are being compiled" };
            return Err(ConnectError::Outage(format!("its policies {what}; try again later")));
        }
        if let Some((wanted, other)) = wanted.and_then(|era| Some((era, self.only_other(era)?))) {
            return Err(ConnectError::OtherEra { wanted, other });
        }
        // Boxed: most calls find the way open, and would carry the state of a walk for nothing.
        Ok(Box::pin(NegotiationDriver::new(self, caller, share, wanted, initialize).run()).await)
    }

    /// Learns from how a walk in Weir's own words ended, or one that succeeded.
    fn settle(&self, wanted: Option<Era>, ended: NegotiationEnd) -> Result<Lease, ConnectError> {
        if let Ok(Lease { channel: Channel::Stdio { .. }, .. }) = &ended.opened {
            self.started.notify_waiters();
        }
        let mut known = self.known.lock();
        known.learn(&ended);
        if ended.fell_back() && known.first_advice() {
            tracing::info!(
                upstream = %self.name,
                "reached over HTTP+SSE after Streamable HTTP failed; add type = \"sse\" to go there at once"
            );
        }
        let other = wanted.and_then(|era| Some((era, known.only_other(era).or_else(|| known.may_be_other(era))?)));
        match (ended.opened, other) {
            (Err(ConnectError::Stopped(_)), Some((wanted, other))) => Err(ConnectError::OtherEra { wanted, other }),
            (opened, _) => opened,
        }
    }
}
