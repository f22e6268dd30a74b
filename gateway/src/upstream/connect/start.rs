//! A child process on its way to its first answer.
//!
//! The questions of both eras go to one process, and one answer decides. `server/discover` is asked first. Silence says
//! nothing of a process that has not read it: that one is still starting, and is waited for (`timeouts.start`). One that
//! has read it and stays silent may ignore what it does not know, so it is sent `initialize` too, and both answers are
//! waited for. From then on the answer to `initialize` decides: a server that accepts it is in the legacy era from then
//! on, whatever it said before, and one that `server/discover` has put into the modern era refuses it. Neither question is
//! ever cancelled: there are servers that take a cancellation for the beginning of the legacy era.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use weir_flow::facts::Outcome;
use weir_mcp::{Era, Kind, Message, status};

use crate::{
    quota::Permit,
    task,
    upstream::{
        SendError,
        crashes::CrashRecord,
        multiplex::{self, MultiplexExchange, OnDrop, Whose},
        own,
        stdio::{Process, StdioCommand, StdioError},
    },
};

use super::evidence::{asks_again, opening};

/// How long a process that has read a question may take to answer before it is asked in another way.
const SILENCE: Duration = Duration::from_secs(5);

/// A started process that has not been opened yet.
pub(super) struct StartedProcess {
    pub(super) process: Process,
    /// When it must have answered.
    deadline: Instant,
    /// `server/discover`, while it is not answered.
    discover: Option<MultiplexExchange>,
}

impl StartedProcess {
    /// Starts a process that must answer within `limit`.
    pub(super) async fn spawn(
        name: &str,
        command: &StdioCommand,
        (permit, crashes): (Permit, CrashRecord),
        limit: Duration,
    ) -> Result<Self, Outcome> {
        let process = Process::spawn(name, command, permit, crashes)
            .await
            .map_err(|why| Outcome::Unreachable(why.to_string()))?;
        Ok(Self { process, deadline: Instant::now() + limit, discover: None })
    }

    /// Asks in the modern era, or waits on for the answer. Unless there is nothing else to ask (`alone`), not for a
    /// process that reads and stays silent.
    pub(super) async fn discover(&mut self, alone: bool) -> Result<Message, Outcome> {
        let mut asked_again = false;
        loop {
            let mut exchange = match self.discover.take() {
                Some(asked) => asked,
                None => self.ask(&own::discover()).await?,
            };
            let silent = async {
                self.process.reads().await;
                sleep(SILENCE).await;
            };
            let answered = tokio::select! {
                answered = answer(&mut exchange) => Some(answered),
                () = silent, if !alone => None,
                () = sleep_until(self.deadline) => None,
            };
            match answered {
                Some(Ok(answer)) if !asked_again && asks_again(Era::Modern, &answer) => asked_again = true,
                Some(answered) => return self.judged(Era::Modern, answered),
                None => {
                    self.discover = Some(exchange);
                    return Err(Outcome::TimedOut);
                }
            }
        }
    }

    /// Asks in the legacy era; where `modern` will do too, a late answer to `server/discover` may open that.
    pub(super) async fn initialize(&mut self, initialize: &Message, modern: bool) -> Result<(Era, Message), Outcome> {
        if !modern {
            self.discover = None;
        }
        let mut exchange = self.ask(initialize).await?;
        let (mut discovered, mut refused) = (None, None);
        let mut deadline = self.deadline;
        while refused.is_none() || self.discover.is_some() {
            tokio::select! {
                answered = task::or_never(self.discover.as_mut().map(answer)) => {
                    self.discover = None;
                    discovered = self.judged(Era::Modern, answered).ok();
                }
                answered = answer(&mut exchange), if refused.is_none() => match self.judged(Era::Legacy, answered) {
                    Ok(answer) => return Ok((Era::Legacy, answer)),
                    Err(why) => refused = Some(why),
                },
                () = sleep_until(deadline) => break,
            }
            if discovered.is_some() || refused.is_some() {
                deadline = deadline.min(Instant::now() + SILENCE);
            }
        }
        discovered.map(|answer| (Era::Modern, answer)).ok_or(refused.unwrap_or(Outcome::TimedOut))
    }

    /// Whether it has read `server/discover` and never answered.
    pub(super) fn ignores_discover(&self) -> bool {
        self.discover.is_some() && self.process.has_read()
    }

    async fn ask(&self, question: &Message) -> Result<MultiplexExchange, Outcome> {
        let asked = self.process.request(question, OnDrop::Abandon, Whose::Weir).await;
        asked.map_err(|why| self.failed(why))
    }

    fn judged(&self, era: Era, answered: Result<Message, SendError>) -> Result<Message, Outcome> {
        let answer = answered.map_err(|why| self.failed(why))?;
        let status = answer.error_code().map_or(200, |code| status::http_status(era, code));
        opening(era, status, &answer)?;
        Ok(answer)
    }

    /// A process that ends before it has read anything does not dislike what it was asked: it cannot be started.
    fn failed(&self, why: SendError) -> Outcome {
        match self.process.end() {
            _ if self.process.has_read() => why.into(),
            Some(StdioError::Exited(status)) => Outcome::Unreachable(format!("it ended with {status}")),
            Some(StdioError::LimitReached(status, key)) => {
                Outcome::Unreachable(format!("it ended with {status} and seems to have reached `{key}`"))
            }
            _ => Outcome::Unreachable(why.to_string()),
        }
    }
}

/// The answer to a question; what comes before it is of no interest.
async fn answer(exchange: &mut MultiplexExchange) -> Result<Message, SendError> {
    loop {
        let message = exchange.next().await?.ok_or_else(multiplex::closed)?;
        if matches!(message.kind(), Kind::Response | Kind::Error) {
            return Ok(message);
        }
    }
}
