//! `weir policy run`, `test` and `bench`: questions for a component, without a gateway.

use std::{
    hint::black_box,
    io::Read,
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde_json::Value;
use weir_flow::facts::{Principal, UpstreamFacts};
use weir_mcp::Era;

use crate::{
    caller::principal_digest,
    config::{PolicyFailure, PolicyMode},
    policy::{Asked, CallPolicy, CallQuestion, Detail, Policy},
};

use super::{
    Cases, Component,
    case::{self, CaseFile, WrittenServices},
    store_in_memory, terminal,
};

pub(super) fn run(component: &Component, function: &str, with: &str, settings: String) -> anyhow::Result<ExitCode> {
    let mut text = with.to_owned();
    if with == "-" {
        text.clear();
        std::io::stdin().read_to_string(&mut text).context("standard input cannot be read")?;
    }
    let with = serde_json::from_str(&text).context("--with takes a JSON object")?;
    let services = WrittenServices::new(&[]);
    let with = case::parameters(function, with, &serde_json::from_str(&settings).context("--settings takes JSON")?);
    let (policy, _) = component.load(settings, Some(Arc::new(services)), Some(store_in_memory()))?;
    let answer = super::super::runtime()?.block_on(policy.ask(function, &with, &[]))?;
    terminal::put_json(&serde_json::to_string_pretty(&answer)?)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn test(cases: &Cases) -> anyhow::Result<ExitCode> {
    let (mut files, mut questions, mut failed) = (0, 0, 0);
    let runtime = super::super::runtime()?;
    for path in case::found(&cases.cases)? {
        let file = CaseFile::read(&path)?;
        let differences = runtime.block_on(tried(&cases.component, &file))?;
        let verdict = if differences.is_empty() { "ok  " } else { "FAIL" };
        terminal::say(format_args!("{verdict}  {}  {} questions", path.display(), file.questions.len()))?;
        for difference in &differences {
            terminal::say(indented(difference))?;
        }
        (files, questions, failed) =
            (files + 1, questions + file.questions.len(), failed + usize::from(!differences.is_empty()));
    }
    terminal::say(format_args!("{files} files, {questions} questions, {failed} files failed"))?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn bench(cases: &Cases, count: u32, reuse: bool) -> anyhow::Result<ExitCode> {
    let runtime = super::super::runtime()?;
    for path in case::found(&cases.cases)? {
        let file = CaseFile::read(&path)?;
        let policy = loaded(&cases.component, &file)?;
        let secrets: Vec<_> = file.secrets.clone().into_iter().collect();
        for (number, question) in file.questions.iter().enumerate() {
            let with = file.parameters(question);
            let prepared = policy.prepare(&question.ask, &with, &secrets)?;
            let mut instance = if reuse { Some(runtime.block_on(prepared.open())?) } else { None };
            let mut taken: Vec<Duration> = Vec::new();
            for _ in 0..count {
                let start = Instant::now();
                match &mut instance {
                    Some(instance) => runtime.block_on(instance.ask())?,
                    None => runtime.block_on(prepared.ask())?,
                };
                taken.push(start.elapsed());
            }
            taken.sort_unstable();
            let (median, slow) = (taken[taken.len() / 2], taken[taken.len() * 99 / 100]);
            let place = name(&path, number, &question.ask);
            terminal::say(format_args!("{place}  median {median:.1?}  p99 {slow:.1?}"))?;
            if question.ask == "before"
                && let Some(kept) = runtime.block_on(time_kept(&policy, &with["about"]))?
            {
                terminal::say(format_args!("{place}  kept {kept:.1?}"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How long Weir takes for a decision that it keeps; none if it keeps none about such a call.
async fn time_kept(policy: &Policy, about: &Value) -> anyhow::Result<Option<Duration>> {
    const TIMES: u32 = 10_000;
    let interest = policy.wants().await?;
    if interest.request != Detail::Facts {
        return Ok(None);
    }
    let text = |key: &str| about[key].as_str();
    let principal = about["principal"].as_object().map(|principal| {
        let text = |key: &str| principal.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Principal { claims: text("claims"), ..Principal::named(text("subject"), Some(text("issuer"))) }
    });
    let digest = principal.as_ref().map(principal_digest);
    let upstream = UpstreamFacts {
        name: about["upstream"]["name"].as_str().unwrap_or_default().to_owned(),
        account: None,
        url: None,
        required_transport: None,
        required_era: None,
        transports: Vec::new(),
        settings: String::new(),
    };
    let question = CallQuestion {
        id: None,
        upstream: &upstream,
        endpoint: text("endpoint").unwrap_or_default(),
        principal: principal.as_ref(),
        principal_digest: digest.as_ref(),
        client: text("client"),
        client_group: None,
        era: Era::Modern,
        method: text("method").unwrap_or_default(),
        name: text("name"),
        labels: &[],
        input_schema: None,
    };
    let policy = CallPolicy::new(policy.clone(), interest, PolicyMode::Enforce, PolicyFailure::Refuse);
    match policy.before(&question, || None).await {
        Asked::Decided(decision) if decision.ttl_seconds > 0 => {}
        Asked::Refused(why) => return Err(why.into()),
        Asked::Decided(_) | Asked::Skipped => return Ok(None),
    }
    let start = Instant::now();
    for _ in 0..TIMES {
        drop(black_box(policy.before(black_box(&question), || None).await));
    }
    Ok(Some(start.elapsed() / TIMES))
}

fn loaded(component: &Component, file: &CaseFile) -> anyhow::Result<Policy> {
    let settings = Value::Object(file.settings.clone()).to_string();
    let services = WrittenServices::new(&file.services);
    let (policy, _) = component.load(settings, Some(Arc::new(services)), Some(store_in_memory()))?;
    Ok(policy)
}

/// How the answers differ from what a file expects.
async fn tried(component: &Component, file: &CaseFile) -> anyhow::Result<Vec<String>> {
    let policy = loaded(component, file)?;
    let secrets: Vec<_> = file.secrets.clone().into_iter().collect();
    let mut all = Vec::new();
    for (number, question) in file.questions.iter().enumerate() {
        let mut differences = Vec::new();
        match policy.ask(&question.ask, &file.parameters(question), &secrets).await {
            Ok(answer) => case::differences(&question.expect, &answer, "", &mut differences),
            Err(why) => differences.push(why.to_string()),
        }
        let place = format!("question {} ({})", number + 1, question.ask);
        all.extend(differences.into_iter().map(|difference| format!("{place}: {difference}")));
    }
    Ok(all)
}

fn name(path: &Path, number: usize, function: &str) -> String {
    format!("{}  question {} ({function})", path.display(), number + 1)
}

pub(super) fn indented(text: &str) -> String {
    text.lines().map(|line| format!("      {line}")).collect::<Vec<_>>().join("\n")
}
