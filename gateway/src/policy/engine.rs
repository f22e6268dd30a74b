//! The engine that all policies share: wasmtime's configuration, the pool of slots, and the cache of compiled code.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt, fs,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::Path,
    sync::{Arc, Weak},
};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use wasmtime::{Cache, CacheConfig, Config, Enabled, PoolingAllocationConfig};

use crate::config::PolicyLimits;

use super::{
    Policy, QuestionRecorder,
    error::{EngineError, LoadError},
    grant::PolicyGrant,
    limits::{MEMORIES, MEMORY, MODULES, RESIDENT, RESIDENT_TABLE, SLOTS, SLOTS_THAT_WAIT, TABLE, TABLES},
    load::{self, Loaded},
    service::Service,
    store::PolicyStore,
    ticker::Ticker,
};

/// Compiles policies and runs them. Cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<EngineShared>);

/// A component and what it is given.
#[derive(Clone)]
pub struct PolicySource<'a> {
    /// What messages call it: `fallback`, or the path in the configuration.
    pub name: &'a str,
    /// The component.
    pub wasm: Cow<'a, [u8]>,
    /// The capabilities that it may use.
    pub grants: &'a [PolicyGrant],
    /// Its settings as a JSON object. The policy is told them in place of [`weir_flow::facts::UpstreamFacts::settings`]; empty
    /// means none.
    pub settings: String,
    /// The services that it may ask, if it is granted [`PolicyGrant::Http`].
    pub service: Option<Arc<dyn Service>>,
    /// What it keeps, if it is granted [`PolicyGrant::Store`].
    pub store: Option<Arc<dyn PolicyStore>>,
}

/// What the policies of an engine have in common.
pub(super) struct EngineShared {
    pub(super) wasm: wasmtime::Engine,
    pub(super) ticker: Ticker,
    pub(super) slots: Arc<Semaphore>,
    pub(super) slots_that_wait: Arc<Semaphore>,
    pub(super) limits: PolicyLimits,
    /// Who records questions; nobody as a rule.
    pub(super) recorder: ArcSwapOption<QuestionRecorder>,
    /// What is compiled, by key.
    loaded: Mutex<HashMap<[u8; 32], LoadedSlot>>,
}

/// One component, if it is in use. Who compiles it holds the lock, so that others wait for it.
type LoadedSlot = Arc<Mutex<Weak<Loaded>>>;

impl Engine {
    /// An engine that keeps compiled code in the directory `cache`, or compiles anew at each start without one. The
    /// directory is made if it is missing; it has to be private, for code in it is run unseen. `limits` are those of each
    /// policy that may ask services or a store.
    pub fn new(cache: Option<&Path>, limits: PolicyLimits) -> Result<Self, EngineError> {
        let failed = |error: wasmtime::Error| EngineError::Engine(format!("{error:#}"));
        let mut config = configuration();
        if let Some(cache) = cache {
            let refused = |reason| EngineError::Cache { path: cache.display().to_string(), reason };
            // wasmtime removes what it does not know from the directory that it is given.
            let directory = cache.join("compiled");
            private(cache).and_then(|()| private(&directory)).map_err(refused)?;
            let path = directory.canonicalize().map_err(|error| refused(error.to_string()))?;
            let mut settings = CacheConfig::new();
            settings.with_directory(path);
            config.cache(Some(Cache::new(settings).map_err(|error| refused(format!("{error:#}")))?));
        }
        let wasm = wasmtime::Engine::new(&config).map_err(failed)?;
        let ticker = Ticker::start(wasm.weak()).map_err(|error| EngineError::Engine(error.to_string()))?;
        let slots = |count| Arc::new(Semaphore::new(usize::try_from(count).unwrap_or(1)));
        let (slots, slots_that_wait) = (slots(SLOTS), slots(SLOTS_THAT_WAIT));
        let (recorder, loaded) = (ArcSwapOption::empty(), Mutex::default());
        Ok(Self(Arc::new(EngineShared { wasm, ticker, slots, slots_that_wait, limits, recorder, loaded })))
    }

    /// From now on has questions recorded, or not any more.
    pub fn record(&self, recorder: Option<QuestionRecorder>) {
        self.0.recorder.store(recorder.map(Arc::new));
    }

    /// A policy that can be asked. The same component with the same grants is compiled and kept once, whatever its
    /// settings.
    pub fn load(&self, source: PolicySource<'_>) -> Result<Policy, LoadError> {
        let failed = |fault| LoadError { policy: source.name.to_owned(), fault };
        let settings = load::settings(&source).map_err(failed)?;
        let slot = {
            let mut all = self.0.loaded.lock();
            all.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.lock().strong_count() > 0);
            Arc::clone(all.entry(key(&source)).or_default())
        };
        let mut slot = slot.lock();
        let loaded = match slot.upgrade() {
            Some(loaded) => loaded,
            None => {
                let loaded = Arc::new(load::load(&self.0.wasm, &source).map_err(failed)?);
                *slot = Arc::downgrade(&loaded);
                loaded
            }
        };
        drop(slot);
        Ok(Policy::new(Arc::clone(&self.0), loaded, &source, settings))
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// Wasm as it is everywhere, minus what no policy needs, in slots that are reserved once and filled when used.
///
/// Each slot has what the largest component needs, so no component takes from the questions of others.
fn configuration() -> Config {
    let mut pool = PoolingAllocationConfig::new();
    let slots = SLOTS + SLOTS_THAT_WAIT;
    pool.total_component_instances(slots)
        .max_core_instances_per_component(MODULES)
        .total_core_instances(slots * MODULES)
        .max_memories_per_component(MEMORIES)
        .total_memories(slots * MEMORIES)
        .max_tables_per_component(TABLES)
        .total_tables(slots * TABLES)
        .total_stacks(slots)
        .max_memory_size(MEMORY)
        .table_elements(TABLE)
        .linear_memory_keep_resident(RESIDENT)
        .table_keep_resident(RESIDENT_TABLE)
        // Only what a question has changed is cleared, where Linux can tell (6.7 and later).
        .pagemap_scan(Enabled::Auto)
        .max_unused_warm_slots(4);
    let reservation = u64::try_from(MEMORY).unwrap_or(u64::MAX);
    let mut config = Config::new();
    config
        .allocation_strategy(pool)
        .memory_reservation(reservation)
        // Compiled code compares each address with the size of its memory, as it must where less than 4 GiB are reserved. So
        // no memory has to be protected anew for each question, which takes two system calls and disturbs other threads.
        .memory_guard_size(0)
        .signals_based_traps(false)
        .epoch_interruption(true)
        .concurrency_support(false)
        .wasm_backtrace_max_frames(None)
        .generate_address_map(false)
        .native_unwind_info(false);
    config
}

/// Which compiled component will do.
fn key(source: &PolicySource<'_>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for grant in PolicyGrant::ALL {
        hash.update([u8::from(source.grants.contains(&grant))]);
    }
    hash.update(&source.wasm);
    hash.finalize().into()
}

/// Makes the directory if it is missing, and makes sure that it is ours and closed to others.
fn private(directory: &Path) -> Result<(), String> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| error.to_string())?;
    let found = fs::metadata(directory).map_err(|error| error.to_string())?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err("it belongs to another user; name a directory of your own".to_owned());
    }
    if found.permissions().mode() & 0o077 != 0 {
        return Err(format!("others may enter it; run: chmod 700 {}", directory.display()));
    }
    Ok(())
}
