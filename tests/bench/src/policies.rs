//! What policies cost beside calls: a question in a fresh instance and in one that is reused, a decision that is kept, the
//! memory and the start of 16 of them, and what guests that mean harm cost the calls of other upstreams.

use crate::load::{self, Load};
use crate::messages::{Era, Target, Workload};
use crate::note;
use crate::process::{Process, free_address};
use crate::subjects::{self, Place};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weir_policy_bearer::machine;

/// How often each question is asked.
const QUESTIONS: &str = "2000";
/// How often a native decision is made.
const NATIVE: u32 = 100_000;
/// Policies in one gateway.
const MANY: usize = 16;
/// Starts that are timed; the median counts.
const STARTS: usize = 5;
/// What guests do that mean harm. None of it ends by itself.
const HARM: [&str; 5] = ["trap", "spin", "recurse", "fill", "huge"];

#[derive(Debug, Serialize)]
pub(crate) struct PolicyFigures {
    questions: Vec<QuestionTime>,
    /// A decision that is kept, nanoseconds.
    kept_ns: f64,
    /// What each of the policies adds to a start with a warm cache, milliseconds.
    load_ms: f64,
    /// What all of them add to the resident memory, bytes.
    bytes: u64,
    harms: Vec<HarmFigures>,
    /// Languages whose tools are not here.
    missing: Vec<String>,
}

/// Medians in microseconds.
#[derive(Debug, Serialize)]
struct QuestionTime {
    policy: String,
    facts: &'static str,
    native: Option<f64>,
    fresh: f64,
    /// None where the memory of one instance does not last for all questions.
    reused: Option<f64>,
}

/// The p99 of calls to another upstream beside a guest, microseconds.
#[derive(Debug, Serialize)]
struct HarmFigures {
    what: &'static str,
    harmless_p99: f64,
    harmful_p99: f64,
}

impl fmt::Display for PolicyFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| policy | facts | native µs | fresh instance µs | reused instance µs |")?;
        writeln!(f, "| --- | --- | ---: | ---: | ---: |")?;
        for QuestionTime { policy, facts, native, fresh, reused } in &self.questions {
            let native = native.map(|native| format!("{native:.2}")).unwrap_or_default();
            let reused = reused.map(|reused| format!("{reused:.1}")).unwrap_or_default();
            writeln!(f, "| {policy} | {facts} | {native} | {fresh:.1} | {reused} |")?;
        }
        writeln!(f, "\nA decision that is kept takes {:.0} ns.", self.kept_ns)?;
        let mib = self.bytes as f64 / 1_048_576.0;
        writeln!(f, "{MANY} policies take {mib:.1} MiB, and {:.1} ms each to load with a warm cache.\n", self.load_ms)?;
        writeln!(f, "| guest of another upstream | p99 µs beside one that does nothing | beside it | times |")?;
        writeln!(f, "| --- | ---: | ---: | ---: |")?;
        for HarmFigures { what, harmless_p99, harmful_p99 } in &self.harms {
            let times = harmful_p99 / harmless_p99;
            writeln!(f, "| {what} | {harmless_p99:.0} | {harmful_p99:.0} | {times:.2} |")?;
        }
        self.missing.iter().try_for_each(|missing| writeln!(f, "\nNot measured: {missing}"))
    }
}

/// Measures all of it with the binary of this run.
pub(crate) async fn measure(place: &Place, window: Duration) -> Result<PolicyFigures> {
    let (mut questions, mut missing) = (Vec::new(), Vec::new());
    for (facts, claims) in [("1 KiB", claims(1 << 10)), ("10 KiB", claims(10 << 10))] {
        let about = json!({ "upstream": { "name": "docs" }, "secrets": ["token"], "principal": principal(&claims) });
        questions.push(QuestionTime {
            native: Some(native(&claims)),
            ..question(place, "weir:bearer", "bearer, Rust", (facts, &about), true)?
        });
        // A policy in Go collects no memory.
        for (language, folder, reuse) in
            [("JavaScript", "javascript", true), ("Go", "go", false), ("Python", "python", true)]
        {
            note(&format!("a policy in {language}"));
            let about = json!({ "upstream": { "name": "docs" }, "principal": principal(&claims) });
            let policy = format!("example, {language}");
            let timed = built(place, folder).and_then(|file| question(place, &file, &policy, (facts, &about), reuse));
            match timed {
                Ok(time) => questions.push(time),
                Err(why) => missing.push(format!("{policy}: {why:#}")),
            }
        }
    }
    note("a decision that is kept");
    let call = json!({
        "upstream": { "name": "docs" }, "endpoint": "docs", "client": "claude-code", "method": "tools/call", "name": "echo",
        "principal": principal(&claims(1 << 10)),
    });
    let judge = place.dir.join("kept.wasm");
    std::fs::write(&judge, weir_guests::JUDGE)?;
    let settings = json!({ "see": "facts", "do": "keep" });
    let said = bench(place, &judge.display().to_string(), ("before", &settings, &call), false)?;
    let kept_ns = time_after(&said, "kept ")? * 1000.0;
    note(&format!("{MANY} policies"));
    let (load_ms, bytes) = many(place).await?;
    let mut harms = Vec::new();
    for what in HARM {
        note(&format!("a guest that means harm: {what}"));
        harms.push(harm(place, what, window).await?);
    }
    Ok(PolicyFigures { questions, kept_ns, load_ms, bytes, harms, missing })
}

/// The claims of a token, of about this size.
fn claims(bytes: usize) -> String {
    let groups: Vec<String> = (0..bytes / 16).map(|number| format!("group-{number:07}")).collect();
    json!({ "sub": "ada", "groups": groups }).to_string()
}

fn principal(claims: &str) -> Value {
    json!({ "subject": "ada", "issuer": "https://login.example.com", "claims": claims })
}

/// The same decision by the same code, as a function of this program; microseconds.
fn native(claims: &str) -> f64 {
    let about = weir_policy::Question {
        upstream: weir_policy::Upstream {
            name: "docs".into(),
            url: None,
            required_transport: None,
            required_era: None,
            transports: Vec::new(),
            settings: "{}".into(),
            extensions: Vec::new(),
        },
        principal: Some(weir_policy::Principal {
            subject: "ada".into(),
            issuer: Some("https://login.example.com".into()),
            scopes: Vec::new(),
            claims: claims.to_owned(),
            extensions: Vec::new(),
        }),
        secrets: vec!["token".into()],
        flows: Vec::new(),
        token: None,
        refusal: None,
        attempts: Vec::new(),
        extensions: Vec::new(),
    };
    let start = Instant::now();
    for _ in 0..NATIVE {
        drop(black_box(machine::decide(black_box(&about))));
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(NATIVE)
}

/// How long a question about a credential takes.
fn question(
    place: &Place,
    component: &str,
    policy: &str,
    (facts, about): (&'static str, &Value),
    reuse: bool,
) -> Result<QuestionTime> {
    let ask = |reuse: bool| -> Result<f64> {
        time_after(&bench(place, component, ("decide", &json!({}), about), reuse)?, "median ")
    };
    let reused = reuse.then(|| ask(true)).transpose()?;
    Ok(QuestionTime { policy: policy.to_owned(), facts, native: None, fresh: ask(false)?, reused })
}

/// What `weir policy bench` says of one question.
fn bench(
    place: &Place,
    component: &str,
    (function, settings, about): (&str, &Value, &Value),
    reuse: bool,
) -> Result<String> {
    let case = place.dir.join("case.json");
    let question = json!({ "ask": function, "with": { "about": about }, "expect": {} });
    std::fs::write(&case, json!({ "settings": settings, "questions": [question] }).to_string())?;
    let mut command = command(place)?;
    command.args(["policy", "bench", component]).arg(&case).args(["--count", QUESTIONS]);
    if reuse {
        command.arg("--reuse");
    }
    said(&mut command)
}

fn command(place: &Place) -> Result<Command> {
    let mut command = Command::new(place.weir.as_ref().context("there is no weir binary")?);
    command.env("XDG_CACHE_HOME", place.dir.join("cache")).env("XDG_STATE_HOME", place.dir.join("state"));
    Ok(command)
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{}: {}", crate::process::shown(command), text(&output.stderr).trim());
    Ok(text(&output.stdout))
}

/// The time behind a word, such as `12.3µs`, in microseconds.
fn time_after(said: &str, word: &str) -> Result<f64> {
    let (_, rest) = said.split_once(word).with_context(|| format!("no `{word}` in: {said}"))?;
    let time = rest.split_whitespace().next().unwrap_or_default();
    let number = time.trim_end_matches(|unit: char| !unit.is_ascii_digit());
    let micros = match &time[number.len()..] {
        "ns" => 0.001,
        "µs" => 1.0,
        "ms" => 1000.0,
        "s" => 1_000_000.0,
        unit => bail!("`{unit}` is no unit of time"),
    };
    Ok(number.parse::<f64>()? * micros)
}

/// The component that the tools of a language make of its example; once for each run.
fn built(place: &Place, language: &str) -> Result<String> {
    let folder = place.dir.join(language);
    let component = folder.join("policy.wasm");
    if !component.is_file() {
        let examples: PathBuf =
            [env!("CARGO_MANIFEST_DIR"), "..", "..", "guest", "examples", language].iter().collect();
        copy(&examples, &folder)?;
        said(command(place)?.args(["policy", "build"]).arg(&folder))?;
    }
    Ok(component.display().to_string())
}

/// Copies a folder, with what its links lead to.
fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let (from, name) =
            (entry.as_ref().map(std::fs::DirEntry::path), entry.as_ref().map(std::fs::DirEntry::file_name));
        let (Ok(from), Ok(name)) = (from, name) else { bail!("{} cannot be read", to.display()) };
        if name == "node_modules" || name == ".venv" {
            continue;
        }
        match from.is_dir() {
            true => copy(&from, &to.join(name))?,
            false => drop(std::fs::copy(&from, to.join(name))?),
        }
    }
    Ok(())
}

/// What one of many policies adds to a start in milliseconds, and all of them to the memory in bytes.
async fn many(place: &Place) -> Result<(f64, u64)> {
    let mut policies = String::new();
    for name in ["weir:redact", "weir:schema", "weir:pin", "weir:shape"] {
        policies += &format!("[[upstreams.bench.policies]]\ncomponent = {name:?}\nmode = \"shadow\"\n");
    }
    for number in 4..MANY {
        let file = place.dir.join(format!("judge-{number}.wasm"));
        std::fs::write(&file, another(number))?;
        policies += &format!(
            "[[upstreams.bench.policies]]\ncomponent = {file:?}\ngrants = [\"clock\", \"store\"]\n\
             settings = {{ see = \"facts\", do = \"keep\" }}\n"
        );
    }
    let (without, few) = started(place, "").await?;
    let (with, all) = started(place, &policies).await?;
    Ok(((with - without) / MANY as f64, all.saturating_sub(few)))
}

/// The same guest as other code: a custom section makes it another component.
fn another(number: usize) -> Vec<u8> {
    let name = format!("number-{number:02}");
    let mut component = weir_guests::JUDGE.to_vec();
    component.extend([0, name.len() as u8 + 1, name.len() as u8]);
    component.extend(name.as_bytes());
    component
}

/// How long a gateway takes to its first answer with a warm cache, in milliseconds, and what it then has resident, in
/// bytes.
async fn started(place: &Place, policies: &str) -> Result<(f64, u64)> {
    let (mut times, mut bytes) = (Vec::new(), 0);
    for number in 0..=STARTS {
        let (process, _, took) = gateway(place, policies).await?;
        bytes = process.family()?.resident()?;
        // The first fills the cache.
        times.extend((number > 0).then_some(took.as_secs_f64() * 1000.0));
    }
    times.sort_by(f64::total_cmp);
    Ok((times[STARTS / 2], bytes))
}

/// A gateway with these tables besides, once it has made a call.
async fn gateway(place: &Place, tables: &str) -> Result<(Process, Target, Duration)> {
    let address = free_address()?;
    let reach = format!("url = \"http://{}/modern/20\"\nauth = \"none\"\n{tables}", place.upstream);
    let target = Target { address, path: "/mcp/bench".into(), prefix: "", token: None, other: None };
    let begin = Instant::now();
    let mut process = Process::start(&mut subjects::weir(place, address, &reach)?)?;
    let client =
        subjects::first_answer(&target, Era::Modern, 20, (Some(&mut process), Duration::from_secs(60))).await?;
    let took = begin.elapsed();
    client.close().await?;
    Ok((process, target, took))
}

/// Times calls to one upstream beside calls that a guest of another upstream sees: one that means harm, and one that does not.
async fn harm(place: &Place, what: &'static str, window: Duration) -> Result<HarmFigures> {
    let harmless_p99 = beside(place, "nothing", window).await?;
    Ok(HarmFigures { what, harmless_p99, harmful_p99: beside(place, what, window).await? })
}

/// The p99 of calls to one upstream beside calls that such a guest of another upstream sees.
async fn beside(place: &Place, what: &str, window: Duration) -> Result<f64> {
    let judge = place.dir.join("kept.wasm");
    let tables = format!(
        "\n[upstreams.hostile]\nurl = \"http://{}/modern/20\"\nauth = \"none\"\n[[upstreams.hostile.policies]]\n\
         component = {judge:?}\ngrants = [\"clock\", \"store\"]\non_failure = \"skip\"\n\
         settings = {{ see = \"body\", do = {what:?} }}\n",
        place.upstream
    );
    let (_process, target, _) = gateway(place, &tables).await?;
    let load = |path: &str, window| Load {
        target: Target { path: path.into(), ..target.clone() },
        era: Era::Modern,
        workload: Workload::Call(128),
        connections: 16,
        warm_up: Duration::ZERO,
        window,
    };
    let own = load("/mcp/bench", 4 * window);
    let hostile = load("/mcp/hostile", 8 * window);
    tokio::select! {
        figures = load::measure(&own, || Ok(0.0)) => Ok(figures?.p99),
        ended = load::measure(&hostile, || Ok(0.0)) => bail!("the calls that the guest sees ended too soon: {ended:?}"),
    }
}
