//! Components whose bytes are wrong, and guests that call their imports with anything.

use std::{
    path::Path,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use proptest::{collection::vec, prelude::*, sample::Index, test_runner::TestCaseResult};
use serde_json::{Value, json};
use weir::{
    config::{Config, SystemEnvironment},
    credential::{CredentialManager, PolicyStores},
    policy::{
        Policy, PolicyError, PolicyFault, PolicyGrant, PolicySource, Service, ServiceRequest, ServiceResponse, shipped,
    },
};
use weir_flow::facts::{CredentialDecision, Step};

use crate::bench::{MODERN, Vault, engine, load, question, scratch, try_load, upstream};

/// What a question may take by the clock, and what a busy machine adds.
const LONGEST: Duration = Duration::from_secs(20);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Another policy of the same engine answers as ever.
async fn others_are_well() -> TestCaseResult {
    static BYSTANDER: OnceLock<Policy> = OnceLock::new();
    let bystander = BYSTANDER.get_or_init(|| load("fallback", shipped::FALLBACK.wasm()));
    prop_assert_eq!(bystander.next(&upstream(), &[]).await, Ok(Step::Attempt(MODERN)));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_component_with_wrong_bytes_is_refused_or_harmless(
        changes in vec((any::<Index>(), any::<u8>()), 1..8),
        end in proptest::option::weighted(0.2, any::<Index>()),
    ) {
        let mut wasm = weir_guests::MINIMAL.to_vec();
        for (at, byte) in changes {
            let at = at.index(wasm.len());
            wasm[at] = byte;
        }
        wasm.truncate(end.map_or(wasm.len(), |end| end.index(wasm.len())));
        match try_load("damaged", &wasm, &[], "") {
            Err(refused) => {
                let said = refused.to_string();
                prop_assert!(said.starts_with("policy damaged ") && !said.contains('\n'), "{}", said);
            }
            Ok(policy) => runtime().block_on(async {
                let begun = Instant::now();
                let _any = policy.decide(&question(&["token"], None), &Vault).await;
                prop_assert!(begun.elapsed() < LONGEST);
                others_are_well().await
            })?,
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_guest_asks_of_its_imports_costs_its_own_question_only(ops in vec(op(), 1..80)) {
        let count = ops.len();
        let settings = json!({ "ops": ops }).to_string();
        let stores = stores();
        let kept = stores.of("docs", "fuzzer");
        let policy = engine().load(PolicySource {
            name: "fuzzer",
            wasm: weir_guests::IMPORT_FUZZER.into(),
            grants: &PolicyGrant::ALL,
            settings,
            service: Some(Arc::new(Echo)),
            store: Some(kept.clone()),
        }).unwrap();
        runtime().block_on(async {
            let begun = Instant::now();
            match policy.decide(&question(&["token"], None), &Vault).await {
                Ok(CredentialDecision::Stop(said)) => prop_assert_eq!(said, format!("came back {count} times")),
                Err(PolicyError { fault, .. }) => prop_assert!(
                    matches!(fault, PolicyFault::Trapped(_) | PolicyFault::TimedOut | PolicyFault::OutOfMemory
                        | PolicyFault::TooMuch(..)),
                    "{:?}", fault
                ),
                other => prop_assert!(false, "{:?}", other),
            }
            prop_assert!(begun.elapsed() < LONGEST);
            let keys = weir::policy::PolicyStore::keys(&*kept, "").await.unwrap();
            prop_assert!(keys.len() <= 1024 && keys.iter().all(|key| key.len() <= 256));
            others_are_well().await
        })?;
    }
}

/// One call of an import, with a text that may be long and a number that may be large.
fn op() -> impl Strategy<Value = Value> {
    const IMPORTS: [&str; 9] = ["log", "clock", "random", "secret", "get", "keys", "delete", "set", "http"];
    let text = prop_oneof![".{0,8}", Just("\u{0}\r\n".to_owned()), Just("token".to_owned()), Just("x".to_owned())];
    let times = prop_oneof![4 => 0_u32..4, 1 => Just(1_u32 << 10), 1 => Just(1_u32 << 18), 1 => Just(1_u32 << 22)];
    let number = prop_oneof![0_u64..10, any::<u64>()];
    (proptest::sample::select(&IMPORTS[..]), text, times, number)
        .prop_map(|(import, text, times, number)| json!([import, text, times, number]))
}

/// A service that answers with what it was sent.
struct Echo;

impl Service for Echo {
    fn send(
        &self,
        request: ServiceRequest,
    ) -> Pin<Box<dyn Future<Output = Result<ServiceResponse, String>> + Send + '_>> {
        Box::pin(async move { Ok(ServiceResponse { status: 200, headers: request.headers, body: request.body }) })
    }
}

fn stores() -> PolicyStores {
    static STORES: OnceLock<PolicyStores> = OnceLock::new();
    let open = || {
        let path = scratch("fuzzed-store").join("store.redb");
        let text = format!("[store]\npath = {path:?}\n");
        let config = Config::parse(&text, Path::new("fuzz.toml"), &SystemEnvironment).unwrap();
        CredentialManager::new(&config, true).policy_stores()
    };
    STORES.get_or_init(open).clone()
}
