//! What `calls` policies decide about a request while its upstream works. They hold back its answer, not the request.

use std::{pin::pin, sync::Arc};

use weir_mcp::answer;

use crate::{
    policy::{Asked, CallPolicy, CallVerdict, Denial},
    telemetry::CallOutcome,
};

use super::{
    Answer, CallLog, Proxy, RequestContext, approval, decide::complete, decided_answer::DecidedCall, route::Target,
};

/// The policies that decide meanwhile, by their places, and what they see.
#[derive(Default)]
pub(super) struct ChecksBeside {
    policies: Vec<usize>,
    params: Option<String>,
}

/// What a client gets in place of the answer, and why where the call has failed.
pub(super) struct EndedCheck {
    pub(super) answer: Answer,
    failure: Option<String>,
}

impl EndedCheck {
    /// The answer, whose failure is noted.
    pub(super) fn recorded_in(self, record: &mut CallLog) -> Answer {
        if let Some(why) = self.failure {
            record.fail(CallOutcome::Denied, why);
        }
        self.answer
    }
}

impl DecidedCall {
    /// Has a policy decide while the upstream works.
    pub(super) fn check_beside(&mut self, at: usize) {
        self.beside.policies.push(at);
    }

    /// What the policies beside see of the request, as it goes out.
    pub(super) fn show(&mut self, params: Option<String>) {
        self.beside.params = params;
    }

    /// Whether some policy decides while the upstream works.
    pub(super) const fn is_checked(&self) -> bool {
        !self.beside.policies.is_empty()
    }

    /// Asks the policies in their order. None if the answer may go on.
    pub(super) async fn check(&mut self) -> Option<EndedCheck> {
        let upstream = Arc::clone(&self.upstream);
        let policies = upstream.policies()?;
        let checks = std::mem::take(&mut self.beside);
        for at in checks.policies {
            let policy = policies.all().get(at)?;
            let labels = self.labels();
            let asked =
                policy.before(&self.facts(policy, policies.upstream(), &labels), || checks.params.as_deref()).await;
            let decision = match asked {
                Asked::Decided(decision) => decision,
                Asked::Skipped => continue,
                Asked::Refused(why) => return Some(self.end(why.to_string())),
            };
            self.remember(at, decision.memory.clone());
            self.label(&decision.labels);
            match &decision.verdict {
                CallVerdict::Allow if decision.headers.is_empty() => {}
                CallVerdict::Deny(denial) => {
                    let failure = Some(format!("policy {}: {}", policy.name(), denial.text));
                    return Some(EndedCheck { answer: self.refusal(denial), failure });
                }
                CallVerdict::Answer(result) => return Some(self.answer_of(at, result).await),
                CallVerdict::Allow | CallVerdict::Replace(_) | CallVerdict::Ask(_) => {
                    return Some(self.end(too_late(policy)));
                }
            }
        }
        None
    }

    /// What the client gets where a policy answers a request before it goes out. Those before it that decide meanwhile decide
    /// first.
    pub(super) async fn answered_by(&mut self, at: usize, result: &str) -> EndedCheck {
        match self.check().await {
            Some(ended) => ended,
            None => self.answer_of(at, result).await,
        }
    }

    /// What the policies before the one that answers make of its answer.
    async fn answer_of(&mut self, at: usize, result: &str) -> EndedCheck {
        self.followed.retain(|(place, _)| *place < at);
        let answer = answer::result(&self.request, complete(self.era, result).as_bytes());
        let (answer, failure) = self.whole(answer).await;
        EndedCheck { answer: Answer::whole(200, answer), failure }
    }

    fn end(&self, why: String) -> EndedCheck {
        let answer = self.refusal(&Denial { code: None, text: why.clone() });
        EndedCheck { answer, failure: Some(why) }
    }
}

fn too_late(policy: &CallPolicy) -> String {
    let name = policy.name();
    format!("policy {name} changes a call that has gone out; at the upstream set `mode = \"enforce\"` for it")
}

impl Proxy {
    /// Takes a request to its answer while policies decide about it. An answer waits for them; a refusal (`Err`) waits for
    /// nobody.
    pub(super) async fn check_and_drive(
        self: &Arc<Self>,
        context: &RequestContext,
        target: Target,
        reply: Option<approval::Reply>,
        call: &mut DecidedCall,
        record: &mut CallLog,
    ) -> Result<Answer, Answer> {
        let ended = {
            let mut check = pin!(call.check());
            let mut drive = pin!(self.approve_and_drive(context, target, reply, record));
            tokio::select! {
                ended = &mut check => match ended {
                    None => return Ok(drive.await),
                    Some(ended) => ended,
                },
                answer = &mut drive => match check.await {
                    None => return Ok(answer),
                    Some(ended) => ended,
                },
            }
        };
        Err(ended.recorded_in(record))
    }
}
