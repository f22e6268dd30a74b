//! `weir policy replay` and `explain`: questions that a gateway has recorded, or calls of its audit log.

mod audit_log;

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::{
    policy::{Policy, RecordedQuestion, mask_token},
    telemetry::audit::Since,
};

use super::{
    Component,
    case::{self, WrittenServices},
    store_in_memory, terminal,
};

/// What is replayed.
pub(super) struct Replay<'a> {
    pub(super) component: &'a Component,
    /// Questions, or an audit log.
    pub(super) recording: &'a Path,
    /// What the recording calls the policy.
    pub(super) policy: Option<&'a str>,
    /// The settings that it has now, where they are not those of the recording.
    pub(super) settings: Option<Value>,
    pub(super) upstream: Option<&'a str>,
    pub(super) since: Option<&'a Since>,
}

/// How many of the questions came to what.
#[derive(Default)]
struct Tally {
    same: usize,
    differ: usize,
    left_out: usize,
}

pub(super) fn run(replay: &Replay<'_>) -> anyhow::Result<ExitCode> {
    let Replay { component, recording, policy, settings, upstream, since } = replay;
    if audit_log::is_audit_log(recording)? {
        return audit_log::run(replay);
    }
    if since.is_some() {
        bail!("--since is for audit logs; {} has recorded questions", recording.display());
    }
    let mut questions = read(recording)?;
    if let Some(named) = policy.map(str::to_owned).or_else(|| meant(component, &questions)) {
        questions.retain(|question| question.policy == named);
    }
    questions.retain(|question| upstream.is_none_or(|upstream| upstream == question.upstream));
    if let Some(settings) = settings {
        questions.iter_mut().for_each(|question| case::set_settings(&question.ask, &mut question.with, settings));
    }
    if questions.is_empty() {
        bail!("{} has no questions for this policy", recording.display());
    }
    let services = WrittenServices::new(&[]);
    let (policy, _) = component.load("{}".to_owned(), Some(Arc::new(services)), Some(store_in_memory()))?;
    let runtime = super::super::runtime()?;
    let mut tally = Tally::default();
    for question in questions {
        if question.without.is_some() {
            tally.left_out += 1;
            continue;
        }
        let differences = runtime.block_on(differences(&policy, &question));
        if differences.is_empty() {
            tally.same += 1;
            continue;
        }
        tally.differ += 1;
        terminal::say(title(&question))?;
        for difference in differences {
            terminal::say(super::trial::indented(&difference))?;
        }
    }
    let Tally { same, differ, left_out } = tally;
    terminal::say(format_args!("{same} decisions are the same, {differ} differ"))?;
    if left_out > 0 {
        terminal::say(format_args!(
            "{left_out} questions cannot be asked again: the recording has not all that was told"
        ))?;
    }
    Ok(if differ == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn explain(call: &str, recording: &Path) -> anyhow::Result<ExitCode> {
    let questions: Vec<_> = read(recording)?.into_iter().filter(|question| question.call == call).collect();
    if questions.is_empty() {
        bail!("{} has no question about the call `{call}`", recording.display());
    }
    for question in questions {
        terminal::say(title(&question))?;
        let answer = match (&question.answer, &question.error) {
            (Some(answer), _) => serde_json::to_string_pretty(answer)?,
            (None, why) => format!("no answer: {}", why.as_deref().unwrap_or("unknown")),
        };
        terminal::say(super::trial::indented(&answer))?;
        if let Some(without) = &question.without {
            terminal::say(format_args!("      not recorded: {without}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The recording, the part before it first.
fn read(recording: &Path) -> anyhow::Result<Vec<RecordedQuestion>> {
    let mut before = recording.to_owned().into_os_string();
    before.push(".1");
    let mut all = Vec::new();
    for path in [PathBuf::from(before), recording.to_owned()] {
        if path != recording && !path.exists() {
            continue;
        }
        let file = File::open(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        for (number, line) in BufReader::new(file).lines().enumerate() {
            let place = || format!("{}:{}", path.display(), number + 1);
            let line = line.with_context(place)?;
            // The gateway may be writing the last line.
            match serde_json::from_str(&line) {
                Ok(question) => all.push(question),
                Err(why) if why.is_eof() => {}
                Err(why) => return Err(why).with_context(|| format!("{} is no recorded question", place())),
            }
        }
    }
    Ok(all)
}

impl Component {
    /// Whether a gateway calls it so.
    fn is_named(&self, name: &str) -> bool {
        name == self.0 || Some(name) == self.0.strip_prefix("weir:")
    }

    /// The same for its file in another folder too.
    fn is_called(&self, name: &str) -> bool {
        self.is_named(name) || Path::new(name).file_name() == Path::new(&self.0).file_name()
    }
}

/// The policy that a component is another version of; none if the recording has none of that name.
fn meant(component: &Component, questions: &[RecordedQuestion]) -> Option<String> {
    let names = || questions.iter().map(|question| &question.policy);
    let same = names().find(|name| component.is_named(name));
    same.or_else(|| names().find(|name| component.is_called(name))).cloned()
}

/// How a policy answers now, where that is not as it was recorded.
async fn differences(policy: &Policy, question: &RecordedQuestion) -> Vec<String> {
    let mut differences = Vec::new();
    match policy.ask(&question.ask, &Value::Object(question.with.clone()), &[]).await {
        Ok(mut now) => {
            mask_token(Some(&mut now));
            let recorded = question.answer.clone().unwrap_or_default();
            case::differences(&recorded, &now, "", &mut differences);
        }
        Err(why) if question.answer.is_some() => differences.push(why.to_string()),
        Err(_) => {}
    }
    differences
}

fn title(question: &RecordedQuestion) -> String {
    let RecordedQuestion { at, policy, upstream, call, ask, .. } = question;
    let about = ["method", "name"].map(|fact| question.with.get("about").and_then(|about| about[fact].as_str()));
    let about: String = about.into_iter().flatten().map(|fact| format!(" {fact}")).collect();
    let call = if call.is_empty() { String::new() } else { format!(", call {call}") };
    format!("{at}  {policy}  {ask}{about}  ({upstream}{call})")
}
