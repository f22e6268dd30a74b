//! What a guest finds on the other side of its imports: the capabilities, and an empty WASI for components from
//! languages that cannot do without one.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use wasmtime::component::{HasSelf, Linker, ResourceTable};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxView, WasiView, random::Deterministic};

use super::{
    PolicyStore, PolicyStoreCondition, PolicyStoreError, Service, ServiceRequest,
    bindings::weir::policy::{clock, http, log, random, secrets, store, types},
    grant::PolicyGrant,
    guest_log::{GuestLines, Printed},
    limits::{Meter, OPERATIONS, ProcessorTime, REQUESTS},
};

/// The most bytes of randomness in one call.
const RANDOM: usize = 1024;
/// The same for WASI, whose callers take a shorter answer for a fault.
const RANDOM_OF_WASI: u64 = 64 << 10;

/// What the host keeps for one question.
pub(super) struct HostState {
    pub(super) meter: Meter,
    pub(super) lines: GuestLines,
    /// The services that may be asked; none unless that is granted.
    pub(super) service: Option<Arc<dyn Service>>,
    pub(super) requests: u32,
    /// What it keeps; none unless that is granted.
    pub(super) store: Option<Arc<dyn PolicyStore>>,
    pub(super) operations: u32,
    pub(super) time: ProcessorTime,
    pub(super) grants: Arc<[PolicyGrant]>,
    pub(super) wasi: Option<Box<Wasi>>,
}

/// The empty WASI of one question.
pub(super) struct Wasi {
    context: WasiCtx,
    table: ResourceTable,
}

/// A clock that stands still, for guests that were not granted one.
struct FrozenClock;

/// Links what is granted, and WASI where it is imported.
pub(super) fn link(linker: &mut Linker<HostState>, grants: &[PolicyGrant], wasi: bool) -> wasmtime::Result<()> {
    types::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state)?;
    for grant in grants {
        match grant {
            PolicyGrant::Log => log::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state),
            PolicyGrant::Clock => clock::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state),
            PolicyGrant::Random => random::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state),
            PolicyGrant::Secrets => secrets::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state),
            PolicyGrant::Http => http::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state),
            PolicyGrant::Store => store::add_to_linker::<HostState, HasSelf<HostState>>(linker, |state| state),
        }?;
    }
    if wasi {
        wasmtime_wasi::p2::add_to_linker_async(linker)?;
    }
    Ok(())
}

impl types::Host for HostState {}

impl log::Host for HostState {
    fn write(&mut self, level: log::Level, message: String) {
        self.lines.write(level, &message);
    }
}

impl clock::Host for HostState {
    fn now(&mut self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

impl random::Host for HostState {
    fn bytes(&mut self, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(RANDOM).min(RANDOM)];
        // Without randomness there is no safe answer; an empty list is one that no caller takes for random.
        if getrandom::fill(&mut bytes).is_err() {
            bytes.clear();
        }
        bytes
    }
}

impl secrets::Host for HostState {
    fn read(&mut self, name: String) -> Option<String> {
        self.lines.secrets.iter().find(|(known, _)| *known == name).map(|(_, text)| text.clone())
    }
}

impl http::Host for HostState {
    async fn send(&mut self, request: http::Request) -> Result<http::Response, String> {
        let Some(service) = self.service.clone() else { return Err("no service is configured".to_owned()) };
        if self.requests >= REQUESTS {
            return Err(format!("{REQUESTS} requests were sent already, as many as one question may send"));
        }
        self.requests += 1;
        let method = match request.method {
            http::Method::Get => "GET",
            http::Method::Head => "HEAD",
            http::Method::Post => "POST",
            http::Method::Put => "PUT",
            http::Method::Patch => "PATCH",
            http::Method::Delete => "DELETE",
        };
        let request = ServiceRequest { method, url: request.url, headers: request.headers, body: request.body };
        let response = self.waiting(service.send(request)).await?;
        Ok(http::Response {
            status: response.status,
            headers: response.headers,
            body: response.body,
            extensions: Vec::new(),
        })
    }
}

impl store::Host for HostState {
    async fn get(&mut self, key: String) -> Result<Option<store::Item>, store::StoreError> {
        let kept = self.kept()?;
        let found = self.waiting(kept.get(&key)).await?;
        Ok(found.map(|(value, version)| store::Item { value, version, extensions: Vec::new() }))
    }

    async fn set(
        &mut self,
        key: String,
        value: Vec<u8>,
        ttl_seconds: u32,
        when: store::Condition,
    ) -> Result<u64, store::StoreError> {
        let when = match when {
            store::Condition::Always => PolicyStoreCondition::Always,
            store::Condition::Absent => PolicyStoreCondition::Absent,
            store::Condition::Version(version) => PolicyStoreCondition::Version(version),
        };
        let kept = self.kept()?;
        Ok(self.waiting(kept.set(&key, value, ttl_seconds, when)).await?)
    }

    async fn delete(&mut self, key: String) -> Result<(), store::StoreError> {
        let kept = self.kept()?;
        Ok(self.waiting(kept.delete(&key)).await?)
    }

    async fn keys(&mut self, prefix: String) -> Result<Vec<String>, store::StoreError> {
        let kept = self.kept()?;
        Ok(self.waiting(kept.keys(&prefix)).await?)
    }
}

impl HostState {
    /// Whether it has asked a service or its store.
    pub(super) const fn has_waited(&self) -> bool {
        self.requests > 0 || self.operations > 0
    }

    /// What the policy keeps, for one more operation.
    fn kept(&mut self) -> Result<Arc<dyn PolicyStore>, store::StoreError> {
        let Some(kept) = &self.store else {
            return Err(store::StoreError::Unavailable("no store is configured".to_owned()));
        };
        if self.operations >= OPERATIONS {
            let text = format!("{OPERATIONS} operations were done already, as many as one question may do");
            return Err(store::StoreError::Limit(text));
        }
        self.operations += 1;
        Ok(Arc::clone(kept))
    }

    /// What the guest waits for; others have its thread meanwhile.
    async fn waiting<T>(&mut self, wanted: impl Future<Output = T>) -> T {
        self.time.pause();
        let got = wanted.await;
        self.time.resume();
        got
    }
}

impl From<PolicyStoreError> for store::StoreError {
    fn from(error: PolicyStoreError) -> Self {
        match error {
            PolicyStoreError::Changed => Self::Changed,
            PolicyStoreError::Limit(text) => Self::Limit(text),
            PolicyStoreError::Unavailable(text) => Self::Unavailable(text),
        }
    }
}

impl WasiView for HostState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let wasi = self.wasi.get_or_insert_with(|| Box::new(Wasi::empty(&self.grants, self.lines.printed())));
        WasiCtxView { ctx: &mut wasi.context, table: &mut wasi.table }
    }
}

impl Wasi {
    /// No files, no sockets, no environment, no arguments, no input. Time and randomness are capabilities like any other:
    /// without their grants the clocks stand still and the random numbers are always the same. What is printed is for the
    /// log, if somebody follows it so closely.
    fn empty(grants: &[PolicyGrant], printed: Option<Printed>) -> Self {
        let mut context = WasiCtx::builder();
        if let Some(printed) = printed {
            context.stdout(printed.clone()).stderr(printed);
        }
        context.allow_tcp(false).allow_udp(false).max_random_size(RANDOM_OF_WASI);
        if !grants.contains(&PolicyGrant::Clock) {
            context.wall_clock(FrozenClock).monotonic_clock(FrozenClock);
        }
        if !grants.contains(&PolicyGrant::Random) {
            context
                .secure_random(Deterministic::new((0..=u8::MAX).collect()))
                .insecure_random(Deterministic::new((0..=u8::MAX).collect()))
                .insecure_random_seed(0);
        }
        Self { context: context.build(), table: ResourceTable::new() }
    }
}

impl HostWallClock for FrozenClock {
    fn resolution(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

impl HostMonotonicClock for FrozenClock {
    fn resolution(&self) -> u64 {
        1_000_000_000
    }

    /// Go's runtime takes zero for a clock that does not work, and stops.
    fn now(&self) -> u64 {
        1_000_000_000
    }
}
