//! Opening an upstream: the driver of [`weir_flow::Walk`].
//!
//! Whoever needs a legacy session brings the `initialize` to open it with, so that the walk's own success is the
//! session and nothing is opened twice. What worked is remembered and tried first the next time, without a question.

use std::time::{Duration, Instant};

use weir_flow::{
    Move, Walk,
    facts::{Attempt, Outcome, Refusal, Step, Transport, Try},
};
use weir_mcp::{Era, Message, answer, era, message::Kind};

use crate::http::HeaderValue;

use super::{
    Channel, Outgoing, Reply, SendError, Upstream, Way,
    credential::{Credential, CredentialError},
    known, lock, own,
    sse::{Connection, OpenError},
    stdio::{self, Process},
};

/// How long one attempt to open may take; a server that does not know a method may simply stay silent.
const ATTEMPT: Duration = Duration::from_secs(10);

static MODERN: HeaderValue = HeaderValue::from_static(era::LATEST_MODERN);

/// An opened upstream.
pub struct Opened {
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
    /// The same, for want of a credential.
    #[error("{0}")]
    Unauthorized(String),
    /// It does not speak this era; the other one it speaks, or may speak.
    #[error("it speaks only the {other} era of MCP and this client the {wanted} one")]
    OtherEra {
        /// What the client speaks.
        wanted: Era,
        /// What the upstream speaks.
        other: Era,
    },
}

/// One walk and what it holds on the way.
struct Journey<'a> {
    upstream: &'a Upstream,
    initialize: &'a Message,
    credential: Option<Credential>,
    refused: Option<Refusal>,
    /// Why there is no other credential.
    denied: Option<String>,
    /// A child process that has been started and may be asked again in the other era.
    process: Option<Process>,
    opened: Option<Opened>,
}

impl Upstream {
    /// Opens a legacy session with a client's own `initialize`, or joins the shared process.
    ///
    /// # Errors
    ///
    /// When no way to it works in the legacy era.
    pub async fn open_session(&self, initialize: &Message) -> Result<Opened, ConnectError> {
        if let Way::Stdio { shared: true, .. } = &self.way {
            return self.join(Some(Era::Legacy)).await;
        }
        let (ended, in_doubt) = self.walk_with(Some(Era::Legacy), initialize, false).await;
        if !in_doubt {
            return ended;
        }
        // It may dislike the era or only these words; what a client says must not decide for all others.
        let opened = self.walk(Some(Era::Legacy)).await?;
        opened.channel.close(self.credential(None).await.ok().flatten().as_ref()).await;
        Err(ConnectError::Stopped("it does not accept this client's `initialize`".into()))
    }

    /// Opens it for modern calls, which share what is open.
    ///
    /// # Errors
    ///
    /// When no way to it works in the modern era.
    pub async fn open_modern(&self) -> Result<Channel, ConnectError> {
        match &self.way {
            Way::Http(endpoint) if lock(&self.known).works(Era::Modern).is_some() => {
                Ok(Channel::Http { endpoint: endpoint.clone(), session: None, version: None })
            }
            Way::Http(_) => Ok(self.walk(Some(Era::Modern)).await?.channel),
            Way::Stdio { .. } => Ok(self.join(Some(Era::Modern)).await?.channel),
        }
    }

    /// Opens it in Weir's own name, in the era that is wanted or in whichever it speaks.
    ///
    /// # Errors
    ///
    /// When no way to it works.
    pub async fn open(&self, wanted: Option<Era>) -> Result<Opened, ConnectError> {
        match &self.way {
            Way::Stdio { .. } => self.join(wanted).await,
            Way::Http(_) => {
                let opened = self.walk(wanted).await?;
                if opened.era == Era::Legacy {
                    self.tell(&opened.channel, &own::initialized()).await;
                }
                Ok(opened)
            }
        }
    }

    /// Sends a notification of Weir's own, as well as it can be done.
    pub async fn tell(&self, channel: &Channel, notification: &Message) {
        let Ok(credential) = self.credential(None).await else { return };
        let outgoing = Outgoing {
            era: Era::Legacy,
            message: notification,
            body: notification.bytes().clone(),
            name: None,
            version: None,
            headers: &[],
            ticket: None,
            credential: credential.as_ref(),
        };
        if let Err(why) = channel.send(outgoing).await {
            tracing::debug!(upstream = %self.name, method = notification.method(), %why, "notification not taken");
        }
    }

    /// The credential for a call.
    ///
    /// # Errors
    ///
    /// When the policy gives up or fails.
    pub async fn credential(&self, refused: Option<Refusal>) -> Result<Option<Credential>, CredentialError> {
        let origin = match &self.way {
            Way::Http(endpoint) => Some(endpoint.origin()),
            Way::Stdio { .. } => None,
        };
        self.credentials.get(|| self.facts(None), origin, refused).await
    }

    /// Ends shared processes that nobody used for `idle`.
    pub async fn reap(&self, idle: Duration) {
        if let Way::Stdio { pool, .. } = &self.way {
            pool.reap(idle).await;
        }
    }

    /// Joins a child process that others may use too: in the modern era always, in the legacy era where the
    /// configuration shares it. Starts it if it does not run.
    async fn join(&self, wanted: Option<Era>) -> Result<Opened, ConnectError> {
        let Way::Stdio { pool, shared, .. } = &self.way else { return self.walk(wanted).await };
        let _starting = self.opening.lock().await;
        let eras = wanted.map_or([Era::Modern, Era::Legacy], |era| [era, era]);
        if let Some((era, member)) = eras.into_iter().find_map(|era| Some((era, pool.get(era)?))) {
            let channel = Channel::Stdio { process: member.process, shared: true };
            return Ok(Opened { channel, answer: member.answer, era });
        }
        let opened = self.walk(wanted).await?;
        let Channel::Stdio { process, .. } = &opened.channel else { return Ok(opened) };
        if opened.era == Era::Legacy {
            self.tell(&opened.channel, &own::initialized()).await;
            if !shared {
                return Ok(opened);
            }
        }
        pool.put(opened.era, process.clone(), opened.answer.clone());
        Ok(Opened { channel: Channel::Stdio { process: process.clone(), shared: true }, ..opened })
    }

    /// The era that the upstream speaks, when it is known not to speak `era`.
    fn only_other(&self, era: Era) -> Option<Era> {
        // HTTP+SSE ended before the modern era began.
        let legacy = self.pinned == Some(Transport::Sse) && era == Era::Modern;
        if legacy { Some(Era::Legacy) } else { lock(&self.known).only_other(era) }
    }

    /// Says, once, how to spare the next start the way over Streamable HTTP.
    fn advise(&self, how: Try, history: &[Attempt]) {
        let fell_back = how.transport == Transport::Sse && history.iter().any(|tried| tried.transport != how.transport);
        if fell_back && lock(&self.known).first_advice() {
            tracing::info!(
                upstream = %self.name,
                "reached over HTTP+SSE after Streamable HTTP failed; add type = \"sse\" to go there at once"
            );
        }
    }

    /// Reaches it in Weir's own words.
    async fn walk(&self, wanted: Option<Era>) -> Result<Opened, ConnectError> {
        self.walk_with(wanted, &own::initialize(), true).await.0
    }

    /// Reaches it; also says whether it turned down an `initialize` that is not Weir's own, which proves nothing.
    async fn walk_with(
        &self,
        wanted: Option<Era>,
        initialize: &Message,
        own: bool,
    ) -> (Result<Opened, ConnectError>, bool) {
        if let Some((wanted, other)) = wanted.and_then(|era| Some((era, self.only_other(era)?))) {
            return (Err(ConnectError::OtherEra { wanted, other }), false);
        }
        let start = Instant::now();
        let mut walk = Walk::new(self.facts(wanted), self.timeouts.overall);
        let mut journey = Journey::new(self, initialize);
        let first = lock(&self.known).first(wanted);
        let mut next = first.map_or(Move::Ask, |how| walk.handle_step(Step::Attempt(how), start.elapsed()));
        let ended = loop {
            next = match next {
                Move::Ask => match self.connection.next(walk.upstream(), walk.history()).await {
                    Ok(step) => walk.handle_step(step, start.elapsed()),
                    Err(why) => Move::Stop(why.to_string()),
                },
                Move::Attempt { how, authorize } => {
                    let denied = journey.authorize(authorize).await.err();
                    walk.begin(how, journey.credential.is_some(), start.elapsed());
                    let outcome = match (denied, journey.refused.take()) {
                        // No credential is to be had: what was refused would be refused again.
                        (denied, Some(refused)) if authorize && (denied.is_some() || journey.credential.is_none()) => {
                            journey.denied = denied.map(|why| why.to_string());
                            SendError::Refused(refused).into()
                        }
                        (Some(why), _) => break Err(ConnectError::Unauthorized(why.to_string())),
                        (None, _) => journey.attempt(how).await,
                    };
                    tracing::debug!(upstream = %self.name, transport = %how.transport, era = %how.era, ?outcome, "attempt");
                    walk.handle_outcome(outcome, start.elapsed())
                }
                Move::Connected(how) => {
                    self.advise(how, walk.history());
                    break journey.arrive(how);
                }
                Move::Stop(why) => break Err(stopped(why, journey.denied.take(), walk.history())),
            };
        };
        journey.end().await;
        let mut known = lock(&self.known);
        let in_doubt = !own && ended.is_err() && known::lacks_evidently(Era::Legacy, walk.history());
        if in_doubt {
            return (ended, true);
        }
        known.learn(wanted, &ended, walk.history());
        let other = wanted.and_then(|era| Some((era, known.only_other(era).or_else(|| known.may_be_legacy(era))?)));
        let ended = match (ended, other) {
            (Err(ConnectError::Stopped(_)), Some((wanted, other))) => Err(ConnectError::OtherEra { wanted, other }),
            (ended, _) => ended,
        };
        (ended, false)
    }
}

impl<'a> Journey<'a> {
    fn new(upstream: &'a Upstream, initialize: &'a Message) -> Self {
        Self { upstream, initialize, credential: None, refused: None, denied: None, process: None, opened: None }
    }

    async fn authorize(&mut self, anew: bool) -> Result<(), CredentialError> {
        let refused = if anew { self.refused.clone() } else { None };
        self.credential = self.upstream.credential(refused).await?;
        Ok(())
    }

    async fn attempt(&mut self, how: Try) -> Outcome {
        let attempt = async {
            let channel = self.channel(how).await?;
            let discover;
            let message = match how.era {
                Era::Legacy => self.initialize,
                Era::Modern => {
                    discover = own::discover();
                    &discover
                }
            };
            let reply = self.send(&channel, how.era, message).await?;
            let (status, session) = (reply.status, reply.session.clone());
            let answer = reply.answer().await.map_err(|why| match why {
                SendError::NotMcp(_) if status >= 300 => of_status(status),
                why => why.into(),
            })?;
            opening(how.era, status, &answer)?;
            let channel = match channel {
                Channel::Http { endpoint, .. } => {
                    Channel::Http { endpoint, session, version: agreed(how.era, &answer) }
                }
                shared @ (Channel::Sse { .. } | Channel::Stdio { .. }) => shared,
            };
            Ok(Opened { channel, answer, era: how.era })
        };
        match tokio::time::timeout(ATTEMPT, attempt).await {
            Ok(Ok(opened)) => {
                self.opened = Some(opened);
                Outcome::Connected
            }
            Ok(Err(outcome)) => outcome,
            Err(_) => Outcome::TimedOut,
        }
    }

    async fn channel(&mut self, how: Try) -> Result<Channel, Outcome> {
        match (&self.upstream.way, how.transport) {
            (Way::Http(endpoint), Transport::Http) => {
                Ok(Channel::Http { endpoint: endpoint.clone(), session: None, version: None })
            }
            (Way::Http(_), Transport::Sse) if how.era == Era::Modern => {
                Err(Outcome::NotMcp("a transport without a modern era".into()))
            }
            (Way::Http(endpoint), Transport::Sse) => {
                let opened = Connection::open(self.upstream.name(), endpoint, self.credential.as_ref()).await;
                let connection = opened.map_err(|why| match why {
                    OpenError::Status(status) => of_status(status),
                    OpenError::Failed(why) => self.failed(why),
                })?;
                Ok(Channel::Sse { connection })
            }
            (Way::Stdio { command, .. }, Transport::Stdio) => {
                let running = self.process.take().filter(Process::alive);
                let process = match running {
                    Some(process) => process,
                    None => Process::spawn(self.upstream.name(), command).await.map_err(unreachable)?,
                };
                self.process = Some(process.clone());
                Ok(Channel::Stdio { process, shared: false })
            }
            (_, transport) => {
                Err(Outcome::Unreachable(format!("this version of Weir does not carry {transport} here")))
            }
        }
    }

    async fn send(&mut self, channel: &Channel, era: Era, message: &Message) -> Result<Reply, Outcome> {
        let outgoing = Outgoing {
            era,
            message,
            body: message.bytes().clone(),
            name: None,
            version: (era == Era::Modern).then_some(&MODERN),
            headers: &[],
            ticket: None,
            credential: self.credential.as_ref(),
        };
        let sent = match channel {
            // The status of a refusal is the evidence here, so nothing is judged on the way.
            Channel::Http { endpoint, session, .. } => endpoint.post(&outgoing, session.as_ref()).await,
            Channel::Sse { .. } | Channel::Stdio { .. } => channel.send(outgoing).await,
        };
        sent.map_err(|why| match (channel, why) {
            (Channel::Sse { connection }, SendError::NotMcp(what)) => {
                connection.turned_away().map_or(Outcome::NotMcp(what), of_status)
            }
            (_, why) => self.failed(why),
        })
    }

    /// Notes what was refused, for the next credential.
    fn failed(&mut self, why: SendError) -> Outcome {
        if let SendError::Refused(refusal) = &why {
            self.refused = Some(refusal.clone());
        }
        why.into()
    }

    fn arrive(&mut self, how: Try) -> Result<Opened, ConnectError> {
        self.process = None;
        self.opened.take().ok_or_else(|| ConnectError::Stopped(format!("{} was not opened", how.transport)))
    }

    /// Ends a process that was started and came to nothing.
    async fn end(self) {
        if let Some(process) = self.process {
            process.stop().await;
        }
    }
}

/// Whether an answer opens the era that was asked for (mcp.md's ladder: MCP 2026-07-28, streamable-http, "Backward
/// Compatibility").
fn opening(era: Era, status: u16, answer: &Message) -> Result<(), Outcome> {
    let speaks = match (era, answer.kind()) {
        // A clean answer is no proof: some servers answer `server/discover` and negotiate down.
        (Era::Modern, Kind::Response) => answer
            .result()
            .and_then(|result| weir_mcp::json::get(result, &["supportedVersions"]))
            .is_some_and(|versions| {
                weir_mcp::json::elements(versions)
                    .any(|v| weir_mcp::json::string(v).as_deref() == Some(era::LATEST_MODERN))
            }),
        (Era::Legacy, Kind::Response) => {
            answer.result().is_some_and(|result| weir_mcp::json::get(result, &["protocolVersion"]).is_some())
        }
        _ => false,
    };
    match status {
        _ if speaks => Ok(()),
        // A server of the modern era that refuses this one request: no other transport will do.
        400 if era == Era::Modern && refuses_as_modern(answer) => Err(Outcome::Answered(status)),
        200..300 => Err(Outcome::NotMcp("it answered, but not with what opens this era".into())),
        status => Err(of_status(status)),
    }
}

/// Whether an error is one that only the modern era has, and leaves no legacy version to try.
fn refuses_as_modern(answer: &Message) -> bool {
    match answer.error_code() {
        Some(answer::UNSUPPORTED_VERSION) => {
            let error = serde_json::from_slice::<serde_json::Value>(answer.bytes()).unwrap_or_default();
            let supported = error["error"]["data"]["supported"].as_array();
            supported.is_some_and(|all| {
                !all.is_empty() && all.iter().filter_map(|v| v.as_str()).all(|v| v >= era::LATEST_MODERN)
            })
        }
        Some(answer::HEADER_MISMATCH | answer::MISSING_CAPABILITY) => true,
        _ => false,
    }
}

/// What a status without an opening means: trouble or haste at the server says nothing of the transport.
const fn of_status(status: u16) -> Outcome {
    match status {
        408 | 429 => Outcome::Answered(status),
        400..500 => Outcome::NotThisTransport(status),
        _ => Outcome::Answered(status),
    }
}

/// What `MCP-Protocol-Version` says from now on.
fn agreed(era: Era, answer: &Message) -> Option<HeaderValue> {
    match era {
        Era::Modern => Some(MODERN.clone()),
        Era::Legacy => {
            let raw = weir_mcp::json::get(answer.result()?, &["protocolVersion"])?;
            HeaderValue::from_str(&weir_mcp::json::string(raw)?).ok()
        }
    }
}

/// What a policy's stop means to the caller; `denied` is why there is no other credential than the one refused.
fn stopped(why: String, denied: Option<String>, history: &[Attempt]) -> ConnectError {
    let refused = |attempt: &Attempt| matches!(attempt.outcome, Outcome::Unauthorized(_));
    match history.last().map(|attempt| &attempt.outcome) {
        Some(Outcome::Forbidden(_)) => ConnectError::Unauthorized(why),
        // One transport asks for a credential and the rest are not there: that is what the operator can mend.
        Some(Outcome::Unauthorized(_) | Outcome::NotThisTransport(_) | Outcome::NotMcp(_))
            if history.iter().any(refused) =>
        {
            ConnectError::Unauthorized(denied.unwrap_or(why))
        }
        _ => ConnectError::Stopped(why),
    }
}

fn unreachable(why: stdio::StdioError) -> Outcome {
    Outcome::Unreachable(why.to_string())
}

impl From<SendError> for Outcome {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Refused(refusal) if refusal.status == 401 => Self::Unauthorized(refusal.challenge),
            SendError::Refused(refusal) => Self::Forbidden(refusal.challenge),
            SendError::SessionLost => Self::NotThisTransport(404),
            SendError::Unsent(why) => Self::Unreachable(why),
            SendError::BrokenOff(_) => Self::BrokenOff,
            SendError::TimedOut => Self::TimedOut,
            SendError::NotMcp(what) => Self::NotMcp(what),
        }
    }
}
