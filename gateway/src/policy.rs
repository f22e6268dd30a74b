//! Policies: sandboxed components that turn facts into decisions. The only module that knows wasmtime.
//!
//! A component is compiled, linked and type-checked when it is loaded ([`Engine::load`]); each question gets a fresh
//! instance with bounded memory and time, so nothing of one caller reaches the next and a guest that hangs, traps or
//! overgrows costs its own question only. A policy decides and never acts: what it answers is checked here for form and
//! carried out elsewhere.

mod bindings;
mod breaker;
mod calls;
mod chain;
mod convert;
mod engine;
mod error;
mod grant;
mod host;
mod json;
mod kept;
mod limits;
mod guest_log;
mod load;
mod record;
mod service;
mod store;
pub mod shipped;
mod ticker;
mod trial;

use std::{fmt, sync::Arc, time::Instant};

use serde::Serialize;
use serde_json::Value;
use tokio::time::timeout;
use wasmtime::{PoolConcurrencyLimitError, Store, UpdateDeadline};
use weir_flow::facts;

use crate::telemetry::metrics::PolicyMetrics;

use self::{
    bindings::exports::weir::policy::credentials::Decision,
    convert::{Broken, TooMuch},
    engine::EngineShared,
    guest_log::{GuestLines, GuestLogRate, Readable, redacted},
    host::HostState,
    limits::{
        Busy, HANDOVER, InstanceSlot, InstanceSlots, Meter, Overgrown, ProcessorTime, Spent, WALL, WALL_WITH_WAITING,
    },
    load::Loaded,
    record::{QuestionName, contract_json},
};
pub use self::{
    calls::{
        AnswerDecision, AnswerVerdict, CallDecision, CallInterest, CallQuestion, CallVerdict, ClientGroups, Content,
        Denial, Detail, EntryVerdict, ListedEntry,
    },
    chain::{Asked, CallPolicies, CallPolicy, ClientClass, DecidedEntries},
    engine::{Engine, PolicySource},
    error::{EngineError, LoadError, LoadFault, PolicyError, PolicyFault},
    grant::{PolicyGrant, UnknownGrant},
    record::{QuestionRecorder, RecordedQuestion, mask_token},
    service::{Service, ServiceRequest, ServiceResponse},
    store::{PolicyStore, PolicyStoreCondition, PolicyStoreError},
    trial::{OpenInstance, PreparedQuestion},
};

/// Where the text of secrets comes from, for the policies that may read it.
pub trait Secrets: Send + Sync {
    /// The secret of that name.
    fn read(&self, name: &str) -> Option<String>;
}

/// A component with its settings, ready to be asked. Cheap to clone.
#[derive(Clone)]
pub struct Policy(Arc<Inner>);

struct Inner {
    name: Arc<str>,
    settings: String,
    grants: Arc<[PolicyGrant]>,
    service: Option<Arc<dyn Service>>,
    store: Option<Arc<dyn PolicyStore>>,
    loaded: Arc<Loaded>,
    engine: Arc<EngineShared>,
    slots: InstanceSlots,
    rate: Arc<GuestLogRate>,
    metrics: Arc<PolicyMetrics>,
}

impl Policy {
    fn new(engine: Arc<EngineShared>, loaded: Arc<Loaded>, source: &PolicySource<'_>, settings: String) -> Self {
        let service = source.service.clone().filter(|_| source.grants.contains(&PolicyGrant::Http));
        let store = source.store.clone().filter(|_| source.grants.contains(&PolicyGrant::Store));
        let (slots, limits) = match service.is_some() || store.is_some() {
            true => (&engine.slots_that_wait, Some(engine.limits)),
            false => (&engine.slots, None),
        };
        Self(Arc::new(Inner {
            name: source.name.into(),
            settings,
            grants: source.grants.into(),
            slots: InstanceSlots::among(slots, limits),
            service,
            store,
            loaded,
            engine,
            rate: Arc::default(),
            metrics: PolicyMetrics::of(source.name),
        }))
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether Weir brings it along, and not the operator.
    pub fn is_shipped(&self) -> bool {
        shipped::NAMES.contains(&self.name())
    }

    /// What is said when it stops with this text. One that the operator has brought is named: the words are its own.
    pub fn stopped(&self, text: &str) -> String {
        match self.is_shipped() {
            true => text.to_owned(),
            false => format!("policy {} stopped: {text}", self.name()),
        }
    }

    /// Whether [`Self::next`] can be asked.
    pub fn decides_connections(&self) -> bool {
        self.0.loaded.connection.is_some()
    }

    /// Whether [`Self::decide`] can be asked.
    pub fn decides_credentials(&self) -> bool {
        self.0.loaded.credentials.is_some()
    }

    /// What the component imports, by name.
    pub fn imports(&self) -> Vec<String> {
        load::imported(&self.0.engine.wasm, self.0.loaded.ready.component())
    }

    /// The capabilities among its imports.
    pub fn imported_grants(&self) -> Vec<PolicyGrant> {
        let imports = self.imports();
        let mut grants: Vec<_> = imports.iter().filter_map(|import| load::grant(import)).collect();
        grants.dedup();
        grants
    }

    /// The next step towards `upstream`, after the attempts in `history` (oldest first). The answer keeps to the upstream's
    /// transports, pin and era.
    pub async fn next(
        &self,
        upstream: &facts::UpstreamFacts,
        history: &[facts::Attempt],
    ) -> Result<facts::Step, PolicyError> {
        let Some(guest) = &self.0.loaded.connection else {
            return Err(self.fault(PolicyFault::NotDecided("connections")));
        };
        let to = convert::upstream(upstream, &self.0.settings)
            .map_err(|TooMuch(what, most)| self.fault(PolicyFault::TooMuch(what, most)))?;
        let past = convert::history(history);
        let _slot = self.slot().await?;
        let mut store = self.store(&upstream.name, Readable::default());
        let answer = self
            .bounded(async {
                let instance = self.0.loaded.ready.instantiate_async(&mut store).await?;
                guest.load(&mut store, &instance)?.call_next(&mut store, &to, &past).await
            })
            .await;
        let question = QuestionName { function: "next", upstream: &upstream.name, call: None };
        self.record(question, || [("to", contract_json(&to)), ("history", contract_json(&past))], &answer, &store);
        convert::step(answer?, upstream).map_err(|Broken(rule)| self.fault(PolicyFault::Malformed(rule)))
    }

    /// The credential that opens an upstream. `secrets` is read only if the policy was granted their text, and only for the
    /// names in [`facts::CredentialQuestion::secrets`].
    pub async fn decide(
        &self,
        question: &facts::CredentialQuestion,
        secrets: &dyn Secrets,
    ) -> Result<facts::CredentialDecision, PolicyError> {
        let Some(guest) = &self.0.loaded.credentials else {
            return Err(self.fault(PolicyFault::NotDecided("credentials")));
        };
        let about = convert::question(question, &self.0.settings)
            .map_err(|TooMuch(what, most)| self.fault(PolicyFault::TooMuch(what, most)))?;
        let _slot = self.slot().await?;
        let readable: Readable = self.readable(question, secrets).into();
        let mut store = self.store(&question.upstream.name, Arc::clone(&readable));
        let answer = self
            .bounded(async {
                let instance = self.0.loaded.ready.instantiate_async(&mut store).await?;
                guest.load(&mut store, &instance)?.call_decide(&mut store, &about).await
            })
            .await;
        let asked = QuestionName { function: "decide", upstream: &question.upstream.name, call: None };
        self.record(asked, || [("about", contract_json(&about))], &answer, &store);
        let answer = match answer? {
            // As it is: once it is fit for a log, a secret of several lines is another text.
            Decision::Stop(text) => Decision::Stop(redacted(&text, &readable).into_owned()),
            answer => answer,
        };
        convert::decision(answer, question).map_err(|Broken(rule)| self.fault(PolicyFault::Malformed(rule)))
    }

    /// Whether an instance can be made of it, within the limits of a question. Nothing is asked.
    ///
    /// # Errors
    ///
    /// When it traps, or takes too long or too much, before the first question.
    pub async fn try_instance(&self) -> Result<(), PolicyError> {
        let _slot = self.slot().await?;
        let mut store = self.store("", Readable::default());
        self.bounded(async { self.0.loaded.ready.instantiate_async(&mut store).await.map(drop) }).await
    }

    /// Records a question, if that is wanted.
    fn record<const N: usize>(
        &self,
        asked: QuestionName<'_>,
        with: impl FnOnce() -> [(&'static str, Value); N],
        answer: &Result<impl Serialize, PolicyError>,
        store: &Store<HostState>,
    ) {
        let recorder = self.0.engine.recorder.load();
        let Some(recorder) = recorder.as_ref().filter(|recorder| recorder.takes(self.name())) else { return };
        let state = store.data();
        let question = RecordedQuestion {
            at: String::new(),
            policy: self.name().to_owned(),
            upstream: asked.upstream.to_owned(),
            call: asked.call.map(|id| id.to_string()).unwrap_or_default(),
            ask: asked.function.to_owned(),
            with: with().map(|(name, value)| (name.to_owned(), value)).into_iter().collect(),
            answer: answer.as_ref().ok().map(contract_json),
            error: answer.as_ref().err().map(ToString::to_string),
            without: state.has_waited().then(|| "what services or the store told the policy".to_owned()),
        };
        recorder.write(question, &state.lines.secrets);
    }

    async fn slot(&self) -> Result<InstanceSlot, PolicyError> {
        self.0.metrics.wait(self.0.slots.take()).await.map_err(|busy| match busy {
            Busy::Running => self.fault(PolicyFault::TooBusy),
            Busy::Queued(most) => self.fault(PolicyFault::QueueFull(most)),
        })
    }

    fn readable(&self, question: &facts::CredentialQuestion, secrets: &dyn Secrets) -> Vec<(String, String)> {
        if !self.0.grants.contains(&PolicyGrant::Secrets) {
            return Vec::new();
        }
        question.secrets.iter().filter_map(|name| Some((name.clone(), secrets.read(name)?))).collect()
    }

    /// A store for one question, with every limit in place.
    fn store(&self, upstream: &str, secrets: Readable) -> Store<HostState> {
        let state = HostState {
            meter: Meter::default(),
            lines: GuestLines::new(Arc::clone(&self.0.name), upstream, Arc::clone(&self.0.rate), secrets),
            service: self.0.service.clone(),
            requests: 0,
            store: self.0.store.clone(),
            operations: 0,
            time: ProcessorTime::default(),
            grants: Arc::clone(&self.0.grants),
            wasi: None,
        };
        let mut store = Store::new(&self.0.engine.wasm, state);
        store.limiter(|state| &mut state.meter);
        store.set_hostcall_fuel(HANDOVER);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|mut store| {
            let others = store.data_mut().time.tick()?;
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(others)))
        });
        store
    }

    /// The answer within the time that a guest has, or what became of it.
    async fn bounded<T>(&self, answer: impl Future<Output = wasmtime::Result<T>>) -> Result<T, PolicyError> {
        let _running = self.0.engine.ticker.run();
        let wall = if self.0.service.is_some() || self.0.store.is_some() { WALL_WITH_WAITING } else { WALL };
        let start = Instant::now();
        let answer = timeout(wall, answer).await;
        self.0.metrics.count(start);
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.failure(&error)),
            Err(_) => Err(self.fault(PolicyFault::TimedOut)),
        }
    }

    fn failure(&self, error: &wasmtime::Error) -> PolicyError {
        self.fault(if error.is::<Spent>() {
            PolicyFault::TimedOut
        } else if error.is::<Overgrown>() {
            PolicyFault::OutOfMemory
        } else if error.is::<PoolConcurrencyLimitError>() {
            PolicyFault::TooBusy
        } else {
            PolicyFault::Trapped(error.root_cause().to_string())
        })
    }

    /// Counts the upstreams at which it is disabled.
    fn note_disabled(&self, is_disabled: bool) {
        self.0.metrics.disable(is_disabled);
    }

    /// Counts an entry of a list that it would have hidden or changed.
    fn note_shadowed_entry(&self) {
        self.0.metrics.count_shadowed_entry();
    }

    fn fault(&self, fault: PolicyFault) -> PolicyError {
        self.0.metrics.fail();
        PolicyError { policy: self.name().to_owned(), fault }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("name", &self.name()).finish_non_exhaustive()
    }
}
