//! Guests that mean harm: each costs its own question only, and another policy of the same engine answers all the while.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;
use weir::config::PolicyLimits;
use weir::policy::{
    Engine, Policy, PolicyError, PolicyFault, PolicyGrant, PolicySource, Service, ServiceRequest, ServiceResponse,
    shipped,
};
use weir_flow::facts::{CredentialDecision, CredentialQuestion, Principal, Step};

use crate::bench::{MODERN, Vault, engine, load, question, try_load, upstream};

/// Asks the shipped policy over and over while `hostile` runs; answers with what became of it, and how often the
/// shipped policy answered.
async fn beside<T>(hostile: impl Future<Output = T>) -> (T, u32) {
    static BYSTANDER: OnceLock<Policy> = OnceLock::new();
    let bystander = BYSTANDER.get_or_init(|| load("fallback", shipped::FALLBACK.wasm()));
    let to = upstream();
    let mut hostile = std::pin::pin!(hostile);
    let mut answered = 0;
    loop {
        tokio::select! {
            biased;
            end = &mut hostile => return (end, answered),
            step = bystander.next(&to, &[]) => {
                assert_eq!(step, Ok(Step::Attempt(MODERN)));
                answered += 1;
                tokio::task::yield_now().await;
            }
        }
    }
}

#[tokio::test]
async fn a_trap_fails_its_own_question() {
    let policy = load("trap", weir_guests::TRAP);
    for _ in 0..100 {
        let (step, _) = beside(policy.next(&upstream(), &[])).await;
        assert!(
            matches!(&step, Err(PolicyError { policy, fault: PolicyFault::Trapped(_) }) if policy == "trap"),
            "{step:?}"
        );
    }
    let choice = policy.decide(&question(&[], None), &Vault).await;
    let error = choice.unwrap_err().to_string();
    assert_eq!(error, "policy trap failed: wasm trap: wasm `unreachable` instruction executed");
    let (_, answered) = beside(tokio::task::yield_now()).await;
    assert!(answered > 0);
}

#[tokio::test]
async fn a_trap_fails_the_question_what_a_policy_wants_to_see() {
    let grants = [PolicyGrant::Clock, PolicyGrant::Store];
    let policy = try_load("judge", weir_guests::JUDGE, &grants, r#"{"see":"trap"}"#).unwrap();
    let (wants, _) = beside(policy.wants()).await;
    assert_eq!(
        wants.unwrap_err().to_string(),
        "policy judge failed: wasm trap: wasm `unreachable` instruction executed"
    );
}

#[tokio::test]
async fn a_spinning_guest_yields_and_is_stopped() {
    let policy = load("spin", weir_guests::SPIN);
    // One thread: whatever the other policy answers, it answers between two ticks of this one.
    let (step, answered) = beside(policy.next(&upstream(), &[])).await;
    assert_eq!(step, Err(PolicyError { policy: "spin".into(), fault: PolicyFault::TimedOut }));
    assert!(answered >= 5, "only {answered} answers while a guest was spinning");
}

#[tokio::test]
async fn too_many_spinning_guests_are_turned_away() {
    let policy = load("spin", weir_guests::SPIN);
    let ask = |policy: Policy| async move { policy.next(&upstream(), &[]).await };
    let mut questions = JoinSet::new();
    for _ in 0..24 {
        questions.spawn(ask(policy.clone()));
    }
    let (ends, answered) = beside(questions.join_all()).await;
    let busy = ends
        .iter()
        .filter(|end| **end == Err(PolicyError { policy: "spin".into(), fault: PolicyFault::TooBusy }))
        .count();
    let late = ends
        .iter()
        .filter(|end| **end == Err(PolicyError { policy: "spin".into(), fault: PolicyFault::TimedOut }))
        .count();
    assert_eq!(busy + late, 24, "{ends:?}");
    assert!(busy > 0 && late >= 16, "{busy} were turned away and {late} were stopped");
    assert!(answered >= 5, "only {answered} answers");
}

#[tokio::test]
async fn ten_thousand_questions_at_once_have_an_end_each() {
    let policy = load("bearer", shipped::BEARER.wasm());
    let about = Arc::new(question(&["token"], None));
    let mut questions = JoinSet::new();
    for _ in 0..10_000 {
        let (policy, about) = (policy.clone(), Arc::clone(&about));
        questions.spawn(async move { policy.decide(&about, &Vault).await });
    }
    let (ends, answered) = beside(questions.join_all()).await;
    for end in &ends {
        let busy = matches!(end, Err(PolicyError { fault: PolicyFault::TooBusy, .. }));
        assert!(busy || matches!(end, Ok(CredentialDecision::Attach(_))), "{end:?}");
    }
    assert!(ends.iter().any(Result::is_ok));
    assert!(answered >= 5, "only {answered} answers");
}

#[tokio::test]
async fn a_memory_bomb_meets_its_limit() {
    let policy = load("bomb", weir_guests::BOMB);
    for _ in 0..20 {
        let (step, _) = beside(policy.next(&upstream(), &[])).await;
        assert_eq!(step, Err(PolicyError { policy: "bomb".into(), fault: PolicyFault::OutOfMemory }));
    }
}

/// The text of a module that lets its table grow for as long as it may, and says how far it came.
const TABLE_BOMB: &str = r#"(module
  (memory (export "memory") 1)
  (table $bomb 1 funcref)
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
  (func (export "weir:policy/connection@0.1.0#next") (param i32) (result i32)
    (local $times i32)
    (loop $grow
      (if (i32.ne (table.grow $bomb (ref.null func) (i32.const 999)) (i32.const -1))
        (then
          (local.set $times (i32.add (local.get $times) (i32.const 1)))
          (br $grow))))
    ;; The third case of `step`, with a text at 16 that has a letter for each time.
    (i32.store8 (i32.const 0) (i32.const 2))
    (i32.store (i32.const 4) (i32.const 16))
    (i32.store (i32.const 8) (local.get $times))
    (i32.const 0))
  (data (i32.const 16) "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"))"#;

#[tokio::test]
async fn a_table_bomb_meets_its_limit() {
    let mut contract = wit_parser::Resolve::default();
    let (package, _) = contract.push_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../wit")).unwrap();
    let world = contract.select_world(&[package], Some("connection-policy")).unwrap();
    let mut module = wat::parse_str(TABLE_BOMB).unwrap();
    let encoding = wit_component::StringEncoding::UTF8;
    wit_component::embed_component_metadata(&mut module, &contract, world, encoding).unwrap();
    let bomb = wit_component::ComponentEncoder::default().module(&module).unwrap().encode().unwrap();
    let policy = load("table bomb", &bomb);
    for _ in 0..20 {
        let (step, _) = beside(policy.next(&upstream(), &[])).await;
        // Each question begins with a small table, and ends with at most 20,000 elements.
        assert_eq!(step, Ok(Step::Stop("x".repeat(20))));
    }
}

#[tokio::test]
async fn answers_that_break_a_rule() {
    let rule = async |lie: &str| {
        let policy = try_load("liar", weir_guests::LIAR, &[], &format!(r#"{{"lie":"{lie}"}}"#)).unwrap();
        let error = if lie.contains('=') {
            policy.decide(&question(&["token"], None), &Vault).await.unwrap_err()
        } else {
            policy.next(&upstream(), &[]).await.unwrap_err()
        };
        match error.fault {
            PolicyFault::Malformed(rule) => rule,
            _ => error.to_string(),
        }
    };
    assert_eq!(rule("stdio").await, "it chose stdio, which the upstream cannot have");
    assert_eq!(rule("empty").await, "it stopped without a message");
    assert_eq!(rule("long").await, "its message has 65536 bytes; at most 2048 are passed on");
    assert!(rule("huge").await.starts_with("policy liar failed: too much data"), "{}", rule("huge").await);
    let broken = rule("broken").await;
    assert!(broken.starts_with("policy liar failed: ") && broken.contains("utf-8"), "{broken}");
    let endless = rule("endless").await;
    assert!(endless.starts_with("policy liar failed: ") && endless.contains("out of bounds"), "{endless}");
    assert_eq!(rule("secret=other").await, r#"it chose the secret "other", which this upstream does not have"#);
    assert_eq!(rule("header=Host").await, "it chose the header host, which belongs to the gateway");
    assert_eq!(rule("header=Mcp-Session-Id").await, "it chose the header mcp-session-id, which belongs to the gateway");
    assert_eq!(rule("header=a b").await, "it chose a header whose name is not a token");
    assert_eq!(rule("scheme=Bearer x").await, "it chose an authentication scheme that is not a token");
}

#[tokio::test]
async fn facts_that_are_too_large_do_not_reach_a_guest() {
    let policy = load("bearer", shipped::BEARER.wasm());
    let mut about = question(&["token"], None);
    about.upstream.name = "x".repeat(64 << 10);
    let error = policy.decide(&about, &Vault).await.unwrap_err();
    assert_eq!(error.to_string(), "policy bearer was not asked: the upstream's name is over 2048 bytes");
    let error = policy.next(&upstream(), &[]).await.unwrap_err();
    assert_eq!(error.to_string(), "policy bearer does not decide connections");
}

#[tokio::test]
async fn capabilities_give_what_was_granted_and_no_more() {
    let policy = try_load("curious", weir_guests::CURIOUS, &PolicyGrant::ALL, r#"{"a":1}"#).unwrap();
    let choice = policy.decide(&question(&["token"], None), &Vault).await.unwrap();
    let CredentialDecision::Stop(found) = choice else { panic!("{choice:?}") };
    let year: u32 = found.strip_prefix("year ").and_then(|rest| rest.get(..4)?.parse().ok()).unwrap();
    assert!((2025..2100).contains(&year), "{found}");
    let rest = r#", 1024 random bytes, token Some("[secret token]"), other None, store Err(StoreError::Unavailable("no store is configured")), settings {"a":1}"#;
    assert!(found.ends_with(rest), "{found}");
}

#[tokio::test]
async fn wasi_is_there_and_empty() {
    let policy = load("wasi", weir_guests::WASI);
    let step = policy.next(&upstream(), &[]).await;
    assert_eq!(step, Ok(Step::Stop("found []".into())));
}

#[tokio::test]
async fn a_forged_handle_fails_its_own_question() {
    for handle in ["77", "1000000", "4294967295"] {
        let settings = format!(r#"{{"handle":{handle}}}"#);
        let policy = try_load("wasi", weir_guests::WASI, &[], &settings).unwrap();
        let (step, _) = beside(policy.next(&upstream(), &[])).await;
        let error = step.unwrap_err().to_string();
        assert!(error.starts_with("policy wasi failed: ") && error.contains("handle index"), "{error}");
    }
}

/// A log that a test reads.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    /// Has what is logged on this thread written here.
    fn open(&self, most: tracing::Level) -> tracing::subscriber::DefaultGuard {
        let theirs = self.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_max_level(most);
        tracing::subscriber::set_default(log.with_writer(move || theirs.clone()).finish())
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn what_a_guest_prints_and_why_it_panics_is_logged_for_those_who_look() {
    let page = Page::default();
    let _log = page.open(tracing::Level::DEBUG);
    let policy = try_load("wasi", weir_guests::WASI, &[], r#"{"panic":true,"lines":3}"#).unwrap();
    let step = policy.next(&upstream(), &[]).await;
    assert!(matches!(&step, Err(PolicyError { fault: PolicyFault::Trapped(_), .. })), "{step:?}");
    let text = page.text();
    let said: Vec<_> = text.lines().filter(|line| line.contains("DEBUG") && line.contains("policy=\"wasi\"")).collect();
    for expected in ["on the way to the machine", "2", "panicked at", "on purpose"] {
        assert!(said.iter().any(|line| line.contains(expected)), "{expected}: {text}");
    }
    // It may go on and on, and is answered all the same.
    let policy = try_load("wasi", weir_guests::WASI, &[], r#"{"lines":5000}"#).unwrap();
    assert_eq!(policy.next(&upstream(), &[]).await, Ok(Step::Stop("found []".into())));
    assert!(page.text().contains("lines of this policy were dropped"), "{}", page.text());
}

#[tokio::test]
async fn a_secret_that_a_guest_has_read_is_masked_in_what_it_logs() {
    let page = Page::default();
    let _log = page.open(tracing::Level::DEBUG);
    let policy = try_load("leaker", weir_guests::LEAKER, &[PolicyGrant::Log, PolicyGrant::Secrets], "").unwrap();
    policy.decide(&question(&["token"], None), &Vault).await.unwrap_err();
    let text = page.text();
    assert!(text.contains("panicked at") && text.contains("[secret token]"), "{text}");
    assert!(!text.contains("the text of token"), "{text}");
}

#[tokio::test]
async fn a_secret_of_several_lines_or_with_quotes_is_masked_too() {
    struct Pem;

    impl weir::policy::Secrets for Pem {
        fn read(&self, _: &str) -> Option<String> {
            Some("the \"first\" line\nthe second line".to_owned())
        }
    }

    let page = Page::default();
    let _log = page.open(tracing::Level::DEBUG);
    let load = |settings: &str| {
        try_load("leaker", weir_guests::LEAKER, &[PolicyGrant::Log, PolicyGrant::Secrets], settings).unwrap()
    };
    load("").decide(&question(&["token"], None), &Pem).await.unwrap_err();
    let text = page.text();
    assert!(text.contains("[secret token]"), "{text}");
    assert!(!text.contains("first") && !text.contains("second line"), "{text}");
    let stopped = load(r#"{"stop":true}"#).decide(&question(&["token"], None), &Pem).await;
    assert_eq!(stopped, Ok(CredentialDecision::Stop("it is [secret token]".into())));
}

/// A service that answers nobody before it is told to.
struct Closed(tokio::sync::Semaphore, AtomicUsize);

impl Service for Closed {
    fn send(&self, _: ServiceRequest) -> Pin<Box<dyn Future<Output = Result<ServiceResponse, String>> + Send + '_>> {
        Box::pin(async {
            self.1.fetch_add(1, Ordering::SeqCst);
            let _turn = self.0.acquire().await.map_err(|why| why.to_string())?;
            Ok(ServiceResponse {
                status: 200,
                headers: Vec::new(),
                body: br#"{"key":"minted","expires_in":60}"#.to_vec(),
            })
        })
    }
}

/// A question about somebody who has a team.
fn of_a_team() -> CredentialQuestion {
    let mut ada = Principal::named("ada", None);
    ada.claims = r#"{"team":"blue"}"#.to_owned();
    CredentialQuestion { principal: Some(ada), ..question(&[], None) }
}

/// A policy that asks this service.
fn asks(engine: &Engine, name: &str, service: &Arc<Closed>) -> Policy {
    let service = Some(Arc::clone(service) as Arc<dyn Service>);
    let settings = r#"{"service":"https://tokens.example.com/mcp"}"#.to_owned();
    let wasm = weir_guests::TOKEN_SERVICE.into();
    engine
        .load(PolicySource {
            name,
            wasm,
            grants: &[PolicyGrant::Http, PolicyGrant::Log],
            settings,
            service,
            store: None,
        })
        .unwrap()
}

#[tokio::test]
async fn a_full_queue_of_a_policy_names_its_limit() {
    let service = Arc::new(Closed(tokio::sync::Semaphore::new(0), AtomicUsize::new(0)));
    let engine = Engine::new(None, PolicyLimits { running: 2, queued: 3 }).unwrap();
    let policy = asks(&engine, "tokens", &service);
    let mut questions = JoinSet::new();
    for _ in 0..6 {
        let policy = policy.clone();
        questions.spawn(async move { policy.decide(&of_a_team(), &Vault).await });
    }
    // Two run and three are queued: the only one that ends is refused.
    let refused = questions.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "policy tokens has 3 decisions queued already, as many as `limits.policy.queued` allows"
    );
    while service.1.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    service.0.add_permits(1);
    for choice in questions.join_all().await {
        assert!(matches!(&choice, Ok(CredentialDecision::Mint(minted)) if minted.text == "minted"), "{choice:?}");
    }
    assert_eq!(service.1.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn questions_that_wait_for_a_service_wait_for_one_another_and_keep_nobody_else() {
    let service = Arc::new(Closed(tokio::sync::Semaphore::new(0), AtomicUsize::new(0)));
    let mut questions = JoinSet::new();
    for policy in ["one", "other"].map(|name| asks(engine(), name, &service)) {
        for _ in 0..40 {
            let policy = policy.clone();
            questions.spawn(async move { policy.decide(&of_a_team(), &Vault).await });
        }
    }
    while service.1.load(Ordering::SeqCst) < 32 {
        tokio::task::yield_now().await;
    }
    // Whoever asks no service has an answer, and of those that wait nobody is turned away.
    let bystander = load("fallback", shipped::FALLBACK.wasm());
    assert_eq!(bystander.next(&upstream(), &[]).await, Ok(Step::Attempt(MODERN)));
    let ended = tokio::time::timeout(Duration::from_secs(1), questions.join_next()).await;
    assert!(ended.is_err(), "{ended:?}");
    assert_eq!(service.1.load(Ordering::SeqCst), 32, "16 at once of each");
    service.0.add_permits(1);
    for choice in questions.join_all().await {
        assert!(matches!(&choice, Ok(CredentialDecision::Mint(minted)) if minted.text == "minted"), "{choice:?}");
    }
}

#[tokio::test]
async fn a_flood_of_log_is_cut_and_cannot_forge_lines() {
    let page = Page::default();
    let policy = try_load("flood", weir_guests::FLOOD, &[PolicyGrant::Log], "").unwrap();
    {
        let _log = page.open(tracing::Level::INFO);
        for _ in 0..10 {
            assert_eq!(policy.next(&upstream(), &[]).await, Ok(Step::Stop("dry again".into())));
        }
    }
    let text = page.text();
    let lines: Vec<_> = text.lines().collect();
    // Thirty-two for each question, and a hundred in any second.
    assert!((32..=330).contains(&lines.len()), "{} lines", lines.len());
    for line in &lines {
        assert!(line.contains("policy=\"flood\"") && line.contains("upstream=\"docs\""), "{line}");
        assert!(line.len() < 1300 && !line.contains('\u{1b}'), "{line}");
    }
    assert!(text.contains("lines of this policy were dropped: it logs too much"));
}
