//! The `calls` policies of an upstream, in the order of the configuration.
//!
//! Requests go through them from first to last, and what comes back from last to first. This is where decisions about mere
//! facts are kept, and where a policy that fails is dealt with.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use indexmap::IndexMap;
use parking_lot::Mutex;
use weir_flow::{
    BreakerEvent,
    facts::{Principal, UpstreamFacts},
};
use weir_mcp::ListKind;

use crate::{
    config::{PolicyFailure, PolicyMode, RuleConfig},
    rate::RateLimiter,
    task::on_heap,
};

use super::{
    AnswerDecision, CallDecision, CallInterest, CallQuestion, ClientGroups, Content, Detail, EntryVerdict, ListedEntry,
    Policy, PolicyError, PolicyFault,
    breaker::PolicyBreaker,
    kept::{CallFacts, KeptDecision, KeptDecisions},
    limits::{BODY, CLIENT_CLASSES},
};

/// How many entries of lists cross to a policy at once.
const ENTRIES: usize = 256;

/// One policy, and how it takes part.
pub struct CallPolicy {
    policy: Policy,
    interest: CallInterest,
    mode: PolicyMode,
    on_failure: PolicyFailure,
    kept: Mutex<KeptDecisions>,
    failures: RateLimiter,
    breaker: PolicyBreaker,
}

/// The policies of one upstream.
pub struct CallPolicies {
    upstream: UpstreamFacts,
    all: Vec<CallPolicy>,
    classes: Vec<ClientClass>,
}

/// Clients that see the same lists: for each policy the group to which they belong.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientClass(Arc<[Option<Arc<str>>]>);

/// What has been decided about the entries of a list.
#[derive(Clone, Debug, Default)]
pub struct DecidedEntries {
    /// In their order; none where an entry is not shown.
    pub shown: Vec<Option<String>>,
    /// Why.
    pub reasons: Vec<String>,
}

/// What became of asking a policy.
pub enum Asked<T> {
    /// It has decided.
    Decided(T),
    /// It has failed, and the call goes on without it.
    Skipped,
    /// It has failed, and the call may not go on.
    Refused(PolicyError),
}

impl CallPolicy {
    /// A policy that wants to see this.
    #[must_use]
    pub fn new(policy: Policy, interest: CallInterest, mode: PolicyMode, on_failure: PolicyFailure) -> Self {
        let failures = RateLimiter::new(1, Duration::from_secs(60));
        let breaker = PolicyBreaker::new(Instant::now());
        Self { policy, interest, mode, on_failure, kept: Mutex::default(), failures, breaker }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.policy.name()
    }

    /// Whether what it decides is carried out; otherwise it is logged.
    pub fn is_enforced(&self) -> bool {
        self.mode != PolicyMode::Shadow
    }

    /// Whether requests that only read go out while it decides about them.
    pub fn runs_beside(&self) -> bool {
        self.mode == PolicyMode::Beside
    }

    /// What it wants to see.
    #[must_use]
    pub const fn interest(&self) -> &CallInterest {
        &self.interest
    }

    /// Whether it wants to see the `params` of requests.
    pub fn sees_params(&self) -> bool {
        self.interest.request == Detail::Body
    }

    /// Stands for it where a rule wants a call approved.
    pub fn as_rule(&self, approve: crate::config::ApprovalConfig) -> Arc<RuleConfig> {
        Arc::new(RuleConfig::asking(format!("policy {}", self.name()).into(), approve))
    }

    /// What becomes of a request. `params` are read if it wants to see them.
    pub async fn before<'a>(
        &self,
        about: &CallQuestion<'_>,
        params: impl FnOnce() -> Option<&'a str>,
    ) -> Asked<Arc<CallDecision>> {
        // Boxed: a question is large, and a call whose decision is kept would have room for it.
        if self.sees_params() {
            let question = on_heap(|| self.policy.before(about, Some(params().unwrap_or("{}"))));
            return self.settled(self.run(about.principal, question).await.map(Arc::new));
        }
        let facts = CallFacts::of(about);
        let mut last = None;
        if let Some(kept) = self.kept.lock().get(&facts) {
            if kept.holds() {
                return Asked::Decided(Arc::clone(&kept.decision));
            }
            last = Some(Arc::clone(&kept.decision));
        }
        let question = on_heap(|| self.policy.before(about, None));
        let decided = self.run(about.principal, question).await.map(Arc::new);
        match (&decided, last) {
            (Ok(decision), _) if decision.ttl_seconds > 0 => self.keep(facts, about, decision),
            // What it said before is not its last word any more.
            (Ok(_), Some(_)) => self.kept.lock().remove(&facts.into_owned()),
            (Err(why), Some(last)) if self.on_failure == PolicyFailure::LastGood => {
                self.tell(why, "its last decision stands");
                return Asked::Decided(last);
            }
            _ => {}
        }
        self.settled(decided)
    }

    /// Whether a request goes on as it is, as far as this policy is concerned: it has said so, and that still holds.
    fn lets_pass(&self, about: &CallQuestion<'_>) -> bool {
        let CallInterest { request, answer, event, .. } = self.interest;
        if !self.interest.concerns(about.method, about.name) {
            return true;
        }
        if request == Detail::Body || answer > Detail::Nothing || event > Detail::Nothing {
            return false;
        }
        let facts = CallFacts::of(about);
        let says_so = |kept: &KeptDecision| kept.holds() && kept.decision.only_allows();
        request == Detail::Nothing || self.kept.lock().get(&facts).is_some_and(says_so)
    }

    /// What becomes of something that comes back; its text crosses if the policy wants to see it.
    pub async fn after(&self, about: &CallQuestion<'_>, memory: &str, what: Content<'_>) -> Asked<AnswerDecision> {
        let shown = match what {
            Content::Result(text) => Content::Result(self.seen(self.interest.answer, text)),
            Content::Error(text) => Content::Error(self.seen(self.interest.answer, text)),
            Content::Event(text) => Content::Event(self.seen(self.interest.event, text)),
        };
        let question = on_heap(|| self.policy.after(about, memory, shown));
        self.settled(self.run(about.principal, question).await)
    }

    /// Decides about the entries of a list that are still shown, for a group of clients.
    async fn decide_list(
        &self,
        of: &UpstreamFacts,
        clients: Option<&str>,
        (kind, listed): (ListKind, &[(String, String)]),
        decided: &mut DecidedEntries,
    ) -> Result<(), PolicyError> {
        let DecidedEntries { shown, reasons } = decided;
        let length = |at: usize| shown[at].as_ref().map_or(0, String::len);
        let there = (0..listed.len()).filter(|at| shown[*at].is_some());
        let (open, long): (Vec<usize>, Vec<usize>) = there.partition(|at| length(*at) <= BODY);
        // One that nobody can look at must not cost the others.
        for at in long.into_iter().filter(|_| self.on_failure != PolicyFailure::Skip) {
            let verdict = EntryVerdict::Hide(format!("it is over {BODY} bytes and cannot be looked at"));
            reasons.extend(self.carry_out(verdict, (kind, &listed[at].0), &mut shown[at]));
        }
        let all = batches(&open, shown);
        for (number, some) in all.iter().enumerate() {
            let told = some.iter().filter_map(|at| Some((kind, listed[*at].0.as_str(), shown[*at].as_deref()?)));
            let told: Vec<ListedEntry<'_>> = told.collect();
            let batch = (all.len() > 1).then(|| format!("{}/{}", number + 1, all.len()));
            // Not through the breaker: what an upstream lists keeps no call from the policy.
            let verdicts = match self.settled(self.policy.entries(of, clients, (batch, &told)).await) {
                Asked::Decided(verdicts) => verdicts,
                Asked::Skipped => continue,
                Asked::Refused(why) => return Err(why),
            };
            for (at, verdict) in some.iter().zip(verdicts) {
                let (name, entry) = (&listed[*at].0, &mut shown[*at]);
                reasons.extend(self.carry_out(verdict, (kind, name), entry));
            }
        }
        Ok(())
    }

    /// Changes an entry as it was decided. The reason, if it is not shown any more.
    fn carry_out(
        &self,
        verdict: EntryVerdict,
        (kind, name): (ListKind, &str),
        entry: &mut Option<String>,
    ) -> Option<String> {
        let would = match &verdict {
            EntryVerdict::Show => return None,
            EntryVerdict::Hide(_) => "hide",
            EntryVerdict::Edit(_) => "edit",
        };
        let policy = self.name();
        if !self.is_enforced() {
            self.policy.note_shadowed_entry();
            tracing::info!(target: "policy", policy, name, would, "decided in shadow mode");
            return None;
        }
        match verdict {
            EntryVerdict::Show => None,
            EntryVerdict::Hide(why) => {
                *entry = None;
                Some(format!("{} `{name}` is hidden by policy {policy}: {why}", kind.noun()))
            }
            EntryVerdict::Edit(new) => {
                *entry = Some(new);
                None
            }
        }
    }

    fn seen<'a>(&self, detail: Detail, text: &'a str) -> &'a str {
        if detail == Detail::Body { text } else { "" }
    }

    fn keep(&self, facts: CallFacts<'_>, about: &CallQuestion<'_>, decision: &Arc<CallDecision>) {
        let now = Instant::now();
        let until = now + Duration::from_secs(decision.ttl_seconds.into());
        let subject = about.principal.map_or("", |principal| &principal.subject).into();
        let kept = KeptDecision { decision: Arc::clone(decision), until, subject };
        self.kept.lock().insert(facts.into_owned(), kept, now);
    }

    /// Whether it is disabled, because question after question ended in a trap.
    #[must_use]
    pub fn is_disabled(&self) -> bool {
        self.breaker.is_open()
    }

    /// The answer to a question of a caller, which is asked unless the policy is disabled.
    async fn run<T>(
        &self,
        caller: Option<&Principal>,
        question: impl Future<Output = Result<T, PolicyError>>,
    ) -> Result<T, PolicyError> {
        let policy = self.name();
        let disabled = |fault| PolicyError { policy: policy.to_owned(), fault };
        let admission = self.breaker.admit(Instant::now()).map_err(disabled)?;
        let answer = question.await;
        let fault = answer.as_ref().err();
        match self.breaker.end(admission, caller, fault.map(|error| &error.fault), Instant::now()) {
            Some(BreakerEvent::Opened { failures, after }) => {
                self.policy.note_disabled(true);
                let (error, retry_ms) = (fault.map(tracing::field::display), after.as_millis());
                tracing::error!(target: "policy", policy, failures, retry_ms, error, "policy is disabled: it traps time and again; {}", self.consequence());
            }
            Some(BreakerEvent::StillOpen { after }) => {
                let retry_ms = after.as_millis();
                tracing::debug!(target: "policy", policy, retry_ms, "policy stays disabled: it traps again");
            }
            Some(BreakerEvent::Closed) => {
                self.policy.note_disabled(false);
                tracing::info!(target: "policy", policy, "policy works again");
            }
            None => {}
        }
        answer
    }

    const fn consequence(&self) -> &'static str {
        match (self.mode, self.on_failure) {
            (PolicyMode::Shadow, _) | (_, PolicyFailure::Skip) => "calls go on without it",
            (_, PolicyFailure::Refuse | PolicyFailure::LastGood) => "its calls are refused",
        }
    }

    fn settled<T>(&self, decided: Result<T, PolicyError>) -> Asked<T> {
        match decided {
            Ok(decision) => Asked::Decided(decision),
            Err(why) if self.mode == PolicyMode::Shadow || self.on_failure == PolicyFailure::Skip => {
                self.tell(&why, self.consequence());
                Asked::Skipped
            }
            Err(why) => {
                self.tell(&why, self.consequence());
                Asked::Refused(why)
            }
        }
    }

    /// Once a minute: each call has a line of its own.
    fn tell(&self, why: &PolicyError, consequence: &str) {
        // That it is disabled has been said.
        let is_known = matches!(why.fault, PolicyFault::Disabled { .. });
        if !is_known && self.failures.take(&(), Instant::now()).is_ok() {
            tracing::error!(target: "policy", policy = self.name(), error = %why, "policy fails; {consequence}");
        }
    }
}

impl Drop for CallPolicy {
    fn drop(&mut self) {
        if self.is_disabled() {
            self.policy.note_disabled(false);
        }
    }
}

impl CallPolicies {
    /// The policies of an upstream; none if there are none.
    #[must_use]
    pub fn new(upstream: UpstreamFacts, mut all: Vec<CallPolicy>) -> Option<Self> {
        let mut classes: Vec<Vec<Option<Arc<str>>>> = vec![Vec::new()];
        for policy in &mut all {
            let is_enforced = policy.is_enforced();
            let too_many = classes.len() * (policy.interest.clients.names().len() + 1) > CLIENT_CLASSES;
            if is_enforced && too_many {
                let (name, policy) = (&upstream.name, policy.name());
                tracing::warn!(target: "policy", upstream = name, policy, "it tells no clients apart: all policies of an upstream may tell {CLIENT_CLASSES} classes apart");
            }
            if !is_enforced || too_many {
                policy.interest.clients = ClientGroups::default();
            }
            let groups = policy.interest.clients.names();
            let each = || std::iter::once(None).chain(groups.iter().map(|group| Some(Arc::clone(group))));
            let with = |class: &Vec<_>| each().map(|group| [&class[..], &[group]].concat()).collect::<Vec<_>>();
            classes = classes.iter().flat_map(with).collect();
        }
        // The first is that of all whom no policy knows.
        let classes = classes.into_iter().skip(1).map(|class| ClientClass(class.into())).collect();
        (!all.is_empty()).then(|| Self { upstream, all, classes })
    }

    /// In their order.
    #[must_use]
    pub fn all(&self) -> &[CallPolicy] {
        &self.all
    }

    /// What they are told of the upstream.
    #[must_use]
    pub const fn upstream(&self) -> &UpstreamFacts {
        &self.upstream
    }

    /// Whether a request goes on as it is, and so does its answer: none of them need be asked. Most calls are such, and so
    /// this takes nothing that only a question needs.
    #[must_use]
    pub fn let_pass(&self, about: &CallQuestion<'_>) -> bool {
        self.all.iter().all(|policy| policy.lets_pass(about))
    }

    /// Whether one decides about the entries of a list.
    #[must_use]
    pub fn decide_entries(&self, kind: Option<ListKind>) -> bool {
        let decides = |one: &CallPolicy| match kind {
            Some(kind) => one.interest.entries.contains(&kind),
            None => !one.interest.entries.is_empty(),
        };
        self.all.iter().any(|one| one.is_enforced() && decides(one))
    }

    /// Whether one decides about what is called by the names of a list: resources are listed, or fit a template.
    #[must_use]
    pub fn decide_item(&self, kind: ListKind) -> bool {
        self.decide_entries(Some(kind)) || kind == ListKind::Resource && self.decide_entries(Some(ListKind::Template))
    }

    /// Whether one is to see the entries of a list, if only to try it out.
    #[must_use]
    pub fn see_entries(&self, kind: ListKind) -> bool {
        self.all.iter().any(|one| one.interest.entries.contains(&kind))
    }

    /// Whether some policy wants the input schema of a tool with its calls.
    #[must_use]
    pub fn want_input_schemas(&self) -> bool {
        self.all.iter().any(|one| one.interest.input_schema)
    }

    /// The class of a client that calls itself this, in small letters; none if no policy knows it.
    #[must_use]
    pub fn class_of(&self, client: &str) -> Option<&ClientClass> {
        let groups = self.all.iter().map(|policy| policy.interest.clients.find(client));
        self.classes.iter().find(|class| class.0.iter().map(Option::as_ref).eq(groups.clone()))
    }

    /// The classes of clients that may see other lists than all the rest.
    #[must_use]
    pub fn classes(&self) -> &[ClientClass] {
        &self.classes
    }

    /// What becomes of the entries of a list: for clients that no policy knows, and then for each class in turn.
    ///
    /// # Errors
    ///
    /// When a policy has failed without which nothing may be shown.
    pub async fn entries(
        &self,
        kind: ListKind,
        listed: &[(String, String)],
    ) -> Result<Vec<DecidedEntries>, PolicyError> {
        let everything =
            DecidedEntries { shown: listed.iter().map(|(_, raw)| Some(raw.clone())).collect(), reasons: Vec::new() };
        let class = |at: usize| at.checked_sub(1).and_then(|at| self.classes.get(at));
        // Those who see the same so far, and what that is: a policy is asked once for all of them.
        let mut shared: Vec<(Vec<usize>, DecidedEntries)> = vec![((0..=self.classes.len()).collect(), everything)];
        for (at, policy) in self.all.iter().enumerate().filter(|(_, policy)| policy.interest.entries.contains(&kind)) {
            let mut apart = Vec::new();
            for (members, decided) in shared {
                let mut groups: IndexMap<Option<&Arc<str>>, Vec<usize>> = IndexMap::new();
                for member in members {
                    groups.entry(class(member).and_then(|class| class.0[at].as_ref())).or_default().push(member);
                }
                for (group, members) in groups {
                    let mut decided = decided.clone();
                    policy.decide_list(&self.upstream, group.map(AsRef::as_ref), (kind, listed), &mut decided).await?;
                    apart.push((members, decided));
                }
            }
            shared = apart;
        }
        let mut all: Vec<(usize, DecidedEntries)> = Vec::new();
        for (members, decided) in shared {
            all.extend(members.into_iter().map(|member| (member, decided.clone())));
        }
        all.sort_unstable_by_key(|(member, _)| *member);
        Ok(all.into_iter().map(|(_, decided)| decided).collect())
    }
}

/// The entries in parts that cross at once, none over the longest message.
fn batches<'a>(open: &'a [usize], shown: &[Option<String>]) -> Vec<&'a [usize]> {
    let (mut parts, mut start, mut size) = (Vec::new(), 0, 0);
    for (at, entry) in open.iter().enumerate() {
        let length = shown[*entry].as_ref().map_or(0, String::len);
        if at > start && (at - start >= ENTRIES || size + length > BODY) {
            parts.push(&open[start..at]);
            (start, size) = (at, 0);
        }
        size += length;
    }
    parts.push(&open[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}
