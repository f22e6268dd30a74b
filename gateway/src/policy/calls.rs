//! What a `calls` policy is asked, and what it answers.

use std::sync::Arc;

use indexmap::IndexSet;
use wasmtime::Store;
use weir_flow::facts::{Principal, UpstreamFacts};
use weir_mcp::{Era, ListKind};

use crate::{
    config::{ApprovalConfig, Pattern},
    telemetry::CallId,
};

use super::{
    Policy, PolicyError, PolicyFault,
    bindings::exports::weir::policy::calls as wit,
    convert::{self, Broken, TooMuch},
    guest_log::Readable,
    host::HostState,
    limits::{BODY, HANDOVER, InstanceSlot},
    record::{QuestionName, contract_json},
};

/// How much of something a policy wants to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Nothing: it is not asked.
    #[default]
    Nothing,
    /// What there is beside the text.
    Facts,
    /// The text too.
    Body,
}

/// What a policy wants to see.
#[derive(Clone, Debug, Default)]
pub struct CallInterest {
    pub(super) methods: Vec<Pattern>,
    pub(super) names: Vec<Pattern>,
    /// Of a request.
    pub request: Detail,
    /// Of its answer.
    pub answer: Detail,
    /// Of what comes before the answer.
    pub event: Detail,
    /// The lists whose entries it decides about.
    pub entries: Vec<ListKind>,
    /// Which clients see different entries.
    pub clients: ClientGroups,
    /// Whether calls of tools bring the input schema of the tool.
    pub input_schema: bool,
}

/// The groups of clients that a policy tells apart, by patterns of what they call themselves.
#[derive(Clone, Debug, Default)]
pub struct ClientGroups(pub(super) Vec<(Pattern, Arc<str>)>);

/// A call, as far as policies are told of it.
#[derive(Clone, Copy, Debug)]
pub struct CallQuestion<'a> {
    /// What the log calls it; none where the answer may be kept for other calls.
    pub id: Option<CallId>,
    /// Where it goes.
    pub upstream: &'a UpstreamFacts,
    /// Where it came in.
    pub endpoint: &'a str,
    /// Who calls; none where everybody may.
    pub principal: Option<&'a Principal>,
    /// Stands for all that is known of the principal, as [`principal_digest`](crate::caller::principal_digest) has it.
    pub principal_digest: Option<&'a [u8; 32]>,
    /// What the client calls itself.
    pub client: Option<&'a str>,
    /// The group of clients to which it belongs, as the policy that is asked tells them apart.
    pub client_group: Option<&'a str>,
    /// The client's era.
    pub era: Era,
    /// The method.
    pub method: &'a str,
    /// What it names, as the upstream calls it.
    pub name: Option<&'a str>,
    /// What the policies before have said of it.
    pub labels: &'a [(String, String)],
    /// The input schema of the tool as its server listed it, raw, where the policy wants it.
    pub input_schema: Option<&'a [u8]>,
}

/// A refusal, and what a model is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The code of a JSON-RPC error; none for a tool error.
    pub code: Option<i32>,
    /// One sentence.
    pub text: String,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallVerdict {
    /// It goes on.
    Allow,
    /// It ends here.
    Deny(Denial),
    /// It goes on with these `params`.
    Replace(String),
    /// It ends here with this `result`.
    Answer(String),
    /// It goes on once a person has approved it.
    Ask(ApprovalConfig),
}

/// A decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallDecision {
    /// What becomes of it.
    pub verdict: CallVerdict,
    /// Headers for the upstream, by names in small letters.
    pub headers: Vec<(String, String)>,
    /// Words for the log.
    pub labels: Vec<(String, String)>,
    /// What the policy is told again about this call.
    pub memory: String,
    /// How long it holds for the same facts, in seconds.
    pub ttl_seconds: u32,
}

impl CallDecision {
    /// Whether a request goes on, and nothing more.
    pub(super) fn only_allows(&self) -> bool {
        self.verdict == CallVerdict::Allow && self.headers.is_empty() && self.labels.is_empty()
    }
}

/// Something that comes back.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// The `result` of the answer.
    Result(&'a str),
    /// The `error` of the answer.
    Error(&'a str),
    /// A message before the answer.
    Event(&'a str),
}

/// What becomes of something that comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerVerdict {
    /// It goes on.
    Pass,
    /// It goes on as this.
    Replace(String),
    /// The client does not get it.
    Drop,
    /// The call ends here.
    Cut(Denial),
}

/// A decision about something that comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerDecision {
    /// What becomes of it.
    pub verdict: AnswerVerdict,
    /// Words for the log.
    pub labels: Vec<(String, String)>,
    /// What the policy is told again about this call.
    pub memory: String,
}

/// What becomes of an entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryVerdict {
    /// Clients see it.
    Show,
    /// They do not, and may not use it.
    Hide(String),
    /// Clients see this instead.
    Edit(String),
}

/// One entry of a list: which list, its name, and its JSON.
pub type ListedEntry<'a> = (ListKind, &'a str, &'a str);

impl ClientGroups {
    /// The group of a client with this name in small letters: that of the first pattern that fits.
    #[must_use]
    pub fn find(&self, client: &str) -> Option<&Arc<str>> {
        self.0.iter().find(|(pattern, _)| pattern.matches(client)).map(|(_, group)| group)
    }

    /// Each group once.
    #[must_use]
    pub fn names(&self) -> IndexSet<&Arc<str>> {
        self.0.iter().map(|(_, group)| group).collect()
    }
}

impl CallInterest {
    /// The patterns of the methods.
    pub fn methods(&self) -> impl Iterator<Item = &str> {
        self.methods.iter().map(Pattern::as_str)
    }

    /// The patterns of the names; all if there are none.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(Pattern::as_str)
    }

    /// Whether it concerns a method, for some names at least.
    #[must_use]
    pub fn concerns_method(&self, method: &str) -> bool {
        self.methods.iter().any(|pattern| pattern.matches(method))
    }

    /// Whether it concerns a request.
    #[must_use]
    pub fn concerns(&self, method: &str, name: Option<&str>) -> bool {
        self.concerns_method(method)
            && (self.names.is_empty()
                || name.is_some_and(|name| self.names.iter().any(|pattern| pattern.matches(name))))
    }
}

impl Policy {
    /// Whether it can be asked about calls.
    pub fn decides_calls(&self) -> bool {
        self.0.loaded.calls.is_some()
    }

    /// What it wants to see.
    ///
    /// # Errors
    ///
    /// When it has no usable answer, or refuses its settings.
    pub async fn wants(&self) -> Result<CallInterest, PolicyError> {
        let (guest, _slot, mut store) = self.asks_of_calls("", 0).await?;
        let settings = self.0.settings.as_str();
        let answer = self
            .bounded(async {
                let instance = self.0.loaded.ready.instantiate_async(&mut store).await?;
                guest.load(&mut store, &instance)?.call_wants(&mut store, settings).await
            })
            .await?;
        self.kept_rules(convert::interest(answer))
    }

    /// What becomes of a request with these `params`, where it wants to see them.
    ///
    /// # Errors
    ///
    /// When it has no usable answer.
    pub async fn before(&self, about: &CallQuestion<'_>, params: Option<&str>) -> Result<CallDecision, PolicyError> {
        let size = self.within("the params", params)?;
        // The id of one call would be kept for others, where the answer may be kept.
        let told = CallQuestion { id: about.id.filter(|_| params.is_some()), ..*about };
        let call = self.told(convert::call(&told, &self.0.settings))?;
        let (guest, _slot, mut store) = self.asks_of_calls(&about.upstream.name, size).await?;
        let answer = self
            .bounded(async {
                let instance = self.0.loaded.ready.instantiate_async(&mut store).await?;
                guest.load(&mut store, &instance)?.call_before(&mut store, &call, params).await
            })
            .await;
        let question = QuestionName { function: "before", upstream: &about.upstream.name, call: about.id };
        self.record(
            question,
            || [("about", contract_json(&call)), ("params", contract_json(&params))],
            &answer,
            &store,
        );
        self.kept_rules(convert::call_decision(answer?, about, params))
    }

    /// What becomes of something that comes back; without its text if it is empty.
    ///
    /// # Errors
    ///
    /// When it has no usable answer.
    pub async fn after(
        &self,
        about: &CallQuestion<'_>,
        memory: &str,
        what: Content<'_>,
    ) -> Result<AnswerDecision, PolicyError> {
        let (Content::Result(text) | Content::Error(text) | Content::Event(text)) = what;
        let size = self.within("what came back", Some(text))?;
        let call = self.told(convert::call(about, &self.0.settings))?;
        let content = convert::content(what);
        let (guest, _slot, mut store) = self.asks_of_calls(&about.upstream.name, size).await?;
        let answer = self
            .bounded(async {
                let instance = self.0.loaded.ready.instantiate_async(&mut store).await?;
                guest.load(&mut store, &instance)?.call_after(&mut store, &call, memory, &content).await
            })
            .await;
        let question = QuestionName { function: "after", upstream: &about.upstream.name, call: about.id };
        let with = || [("about", contract_json(&call)), ("memory", memory.into()), ("what", contract_json(&content))];
        self.record(question, with, &answer, &store);
        self.kept_rules(convert::answer_decision(answer?, what))
    }

    /// What becomes of entries of the upstream's lists for a group of clients: a verdict for each.
    ///
    /// # Errors
    ///
    /// When it has no usable answer.
    pub async fn entries(
        &self,
        of: &UpstreamFacts,
        clients: Option<&str>,
        (batch, entries): (Option<String>, &[ListedEntry<'_>]),
    ) -> Result<Vec<EntryVerdict>, PolicyError> {
        let size: usize = entries.iter().map(|(_, name, raw)| name.len() + raw.len()).sum();
        let mut upstream = self.told(convert::upstream_of_clients(of, &self.0.settings, clients))?;
        upstream.extensions.extend(batch.map(|batch| ("batch".to_owned(), batch)));
        let told: Vec<wit::Entry> = entries.iter().map(convert::entry).collect();
        let (guest, _slot, mut store) = self.asks_of_calls(&of.name, size).await?;
        let answer = self
            .bounded(async {
                let instance = self.0.loaded.ready.instantiate_async(&mut store).await?;
                guest.load(&mut store, &instance)?.call_entries(&mut store, &upstream, &told).await
            })
            .await;
        let question = QuestionName { function: "entries", upstream: &of.name, call: None };
        self.record(
            question,
            || [("of", contract_json(&upstream)), ("entries", contract_json(&told))],
            &answer,
            &store,
        );
        self.kept_rules(convert::entry_verdicts(answer?, entries))
    }

    /// What a question needs. The guest may hand over twice as much as it is given, and what any guest may beside that.
    async fn asks_of_calls(
        &self,
        upstream: &str,
        given: usize,
    ) -> Result<(&wit::GuestIndices, InstanceSlot, Store<HostState>), PolicyError> {
        let Some(guest) = &self.0.loaded.calls else { return Err(self.fault(PolicyFault::NotDecided("calls"))) };
        let slot = self.slot().await?;
        let mut store = self.store(upstream, Readable::default());
        store.set_hostcall_fuel(HANDOVER + 2 * given);
        Ok((guest, slot, store))
    }

    fn within(&self, what: &'static str, text: Option<&str>) -> Result<usize, PolicyError> {
        let size = text.map_or(0, str::len);
        if size > BODY { Err(self.fault(PolicyFault::TooMuch(what, BODY))) } else { Ok(size) }
    }

    fn told<T>(&self, facts: Result<T, TooMuch>) -> Result<T, PolicyError> {
        facts.map_err(|TooMuch(what, most)| self.fault(PolicyFault::TooMuch(what, most)))
    }

    fn kept_rules<T>(&self, answer: Result<T, Broken>) -> Result<T, PolicyError> {
        answer.map_err(|Broken(rule)| self.fault(PolicyFault::Malformed(rule)))
    }
}
