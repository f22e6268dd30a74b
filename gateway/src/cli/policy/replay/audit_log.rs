//! `weir policy replay` of an audit log: what a policy decides now about the calls that are recorded there.
//!
//! A record says what became of a call, and less of the call than a policy is told. What it does not say is not guessed: the
//! call is left out, with the reason.

use std::{
    fs::File,
    future::Future,
    io::{BufRead, BufReader, Read},
    path::Path,
    pin::Pin,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context, bail};
use async_trait::async_trait;
use indexmap::IndexMap;
use serde_json::{Map, Value, json};
use weir_mcp::{json as mcp_json, method, public};

use crate::{
    policy::{
        CallInterest, Detail, Policy, PolicyStore, PolicyStoreCondition, PolicyStoreError, Service, ServiceRequest,
        ServiceResponse,
    },
    telemetry::{
        audit::{self, ExportFilter, ExportFormat},
        printable,
    },
};

use super::{Replay, terminal};

/// How much of a name a record holds, in bytes.
const NAME: usize = 1024;
/// How much of the first line is read to see what a file is, in bytes.
const FIRST: u64 = 1 << 20;

/// What the log says a policy has decided about a call.
enum RecordedDecision {
    /// The call went on; whether a person has approved it.
    Passed { approved: bool },
    /// The policy refused it with this text.
    Denied(String),
    /// The policy was only tried out, and would have done this.
    Shadow(String),
    /// It does not say, because of this.
    Unknown(String),
}

/// A call in the log.
struct AuditCall {
    line: String,
    record: Map<String, Value>,
    /// What it names, as the upstream has it: the record has what the client wrote.
    name: Option<String>,
}

/// What the log has no answers of: a service, and a store. Notes that they were asked.
#[derive(Clone, Default)]
struct Absent(Arc<AtomicBool>);

/// Whether a file is an audit log: its first record has the members of one.
pub(super) fn is_audit_log(path: &Path) -> anyhow::Result<bool> {
    let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut line = Vec::new();
    BufReader::new(file.take(FIRST)).read_until(b'\n', &mut line)?;
    let first: Value = serde_json::from_slice(&line).unwrap_or_default();
    Ok(first["event_type"].is_string() && first["seq"].is_u64())
}

pub(super) fn run(replay: &Replay<'_>) -> anyhow::Result<ExitCode> {
    let absent = Absent::default();
    let settings = replay.settings();
    let (service, store) = (Arc::new(absent.clone()), Arc::new(absent.clone()));
    let (policy, _) = replay.component.load(settings, Some(service), Some(store))?;
    let runtime = super::super::super::runtime()?;
    let interest = runtime.block_on(policy.wants())?;
    if interest.request == Detail::Nothing {
        bail!("{} decides nothing about requests, and the audit log has nothing else", replay.component.0);
    }
    let (mut same, mut differ, mut left_out) = (0, 0, IndexMap::<String, usize>::new());
    for line in lines(replay)? {
        let Some(call) = AuditCall::read(line?) else { continue };
        let is_wanted = replay.upstream.is_none_or(|upstream| upstream == call.text("upstream"));
        if !is_wanted || !interest.concerns(call.text("method"), call.name.as_deref()) {
            continue;
        }
        absent.0.store(false, Ordering::Relaxed);
        let compared = match runtime.block_on(compared(replay, &policy, &interest, &call)) {
            _ if absent.0.load(Ordering::Relaxed) => {
                Err("it asks a service or its store, which are not there".to_owned())
            }
            compared => compared,
        };
        match compared {
            Ok(None) => same += 1,
            Ok(Some((before, now))) => {
                differ += 1;
                let title = call.title();
                terminal::say(format_args!("{title}\n      recorded  {before}\n      now       {now}"))?;
            }
            Err(why) => {
                terminal::say(format_args!("{}\n      left out  {why}", call.title()))?;
                *left_out.entry(why).or_default() += 1;
            }
        }
    }
    if same + differ + left_out.values().sum::<usize>() == 0 {
        bail!("{} has no call that this policy decides about", replay.recording.display());
    }
    terminal::say(format_args!("{same} decisions are the same, {differ} differ"))?;
    for (why, count) in left_out {
        terminal::say(format_args!("{count} calls are left out: {why}"))?;
    }
    terminal::say("the audit log has no endpoint, scopes, claims and addresses: the policy was asked without them")?;
    Ok(if differ == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The lines of all files of the log, oldest first.
fn lines(replay: &Replay<'_>) -> anyhow::Result<impl Iterator<Item = std::io::Result<String>> + use<>> {
    let (from, mut to) = std::io::pipe()?;
    let (path, filter) = (replay.recording.to_owned(), ExportFilter { since: replay.since.cloned(), principal: None });
    // It ends with the log, or when nobody reads any more.
    thread::Builder::new()
        .name("audit-log".into())
        .spawn(move || audit::export(&path, ExportFormat::Jsonl, &filter, &mut to).map(drop))?;
    Ok(BufReader::new(from).lines())
}

/// What was decided and what is decided now, where that differs.
async fn compared(
    replay: &Replay<'_>,
    policy: &Policy,
    interest: &CallInterest,
    call: &AuditCall,
) -> Result<Option<(String, String)>, String> {
    let recorded = match call.decision(replay) {
        RecordedDecision::Unknown(why) => return Err(why),
        recorded => recorded,
    };
    let params = match interest.request {
        Detail::Body => Some(call.params()?),
        Detail::Nothing | Detail::Facts => None,
    };
    let question = json!({ "about": call.about(replay, interest, params.is_some())?, "params": params });
    let answer = policy.ask("before", &question, &[]).await.map_err(|why| why.to_string())?;
    let (now, denied) = told(&answer["verdict"]);
    let (kind, _) = now.split_once(':').unwrap_or((&now, ""));
    let sees_more = interest.answer.max(interest.event) > Detail::Nothing;
    match (recorded, kind) {
        (RecordedDecision::Passed { .. }, "allow") => Ok(None),
        (RecordedDecision::Passed { approved: true }, "ask") => {
            Err("a person has approved it, and the record does not say for whom".to_owned())
        }
        (RecordedDecision::Passed { .. }, "replace" | "answer") => {
            Err(format!("the policy would {kind}, and the record does not say whether it did"))
        }
        (RecordedDecision::Passed { .. }, _) => Ok(Some(("goes on".to_owned(), now))),
        (RecordedDecision::Denied(text), "deny") if denied.as_deref() == Some(&text) => Ok(None),
        (RecordedDecision::Denied(_), kind) if sees_more && kind != "deny" => {
            Err("the policy refused it, perhaps for its answer, which is not in the record".to_owned())
        }
        (RecordedDecision::Denied(text), _) => Ok(Some((format!("deny: {text}"), now))),
        (RecordedDecision::Shadow(would), _) if would.starts_with(&now) => Ok(None),
        (RecordedDecision::Shadow(would), _) => Ok(Some((format!("would {would}"), now))),
        (RecordedDecision::Unknown(why), _) => Err(why),
    }
}

impl Replay<'_> {
    /// The settings of the policy, as it is told of them.
    fn settings(&self) -> String {
        self.settings.as_ref().map_or_else(|| "{}".to_owned(), Value::to_string)
    }
}

impl AuditCall {
    /// Reads a line; none if it is no call at an upstream.
    fn read(line: String) -> Option<Self> {
        let record: Map<String, Value> = serde_json::from_str(&line).ok()?;
        let mut call = Self { line, record, name: None };
        if call.text("event_type") != "call" || call.text("upstream") == "-" {
            return None;
        }
        let (name, uri) = (call.text("name"), call.some("arguments"));
        let native = match public::split(name) {
            Some((prefix, native)) if prefix == call.text("upstream") || call.some("account").is_some() => native,
            _ => uri.unwrap_or(name),
        };
        call.name = (!native.is_empty()).then(|| native.to_owned());
        Some(call)
    }

    /// What became of it, as far as that is the policy's doing.
    fn decision(&self, replay: &Replay<'_>) -> RecordedDecision {
        let is_meant = |name: &str| match replay.policy {
            Some(meant) => meant == name,
            None => replay.component.is_called(name),
        };
        let unknown = |why: &str| RecordedDecision::Unknown(why.to_owned());
        for would in self.text("shadow").split("policy ").skip(1) {
            if let Some((name, would)) = would.split_once(" would ")
                && is_meant(name)
            {
                return RecordedDecision::Shadow(would.to_owned());
            }
        }
        match self.text("outcome") {
            "ok" | "error" | "tool_error" | "failed" => {
                RecordedDecision::Passed { approved: self.some("approved_by").is_some() }
            }
            "denied" => match self.text("error").strip_prefix("policy ").and_then(|why| why.split_once(": ")) {
                Some((name, text)) if is_meant(name) => RecordedDecision::Denied(text.to_owned()),
                Some((name, _)) => RecordedDecision::Unknown(format!("the policy {name} refused it")),
                None => unknown("a policy failed"),
            },
            "refused" | "limited" => unknown("a rule or a limit refused it, and no policy was asked"),
            "approval" => unknown("it waited for an approval, and the record does not say for whom"),
            outcome => RecordedDecision::Unknown(format!("its outcome is {outcome}")),
        }
    }

    /// The facts about it, as the contract has them.
    fn about(&self, replay: &Replay<'_>, interest: &CallInterest, has_params: bool) -> Result<Value, String> {
        if self.name.as_ref().is_some_and(|name| name.len() >= NAME) {
            return Err("its name is cut in the record".to_owned());
        }
        let groups = self.record.get("groups").map(|groups| json!(["groups", groups.to_string()]));
        let key = self.some("key").map(|key| json!(["key", key]));
        let identity: Vec<Value> = groups.into_iter().chain(key).collect();
        let principal = self.some("principal_id").map(|subject| {
            json!({ "subject": subject, "issuer": self.some("issuer"), "claims": "{}", "extensions": identity })
        });
        let client = self.text("client").rsplit_once('/').map_or(self.text("client"), |(name, _)| name).to_lowercase();
        let account = self.some("account").map(|account| json!(["account", account]));
        let group = interest.clients.find(&client).map(|group| json!(["client-group", &**group]));
        let extensions: Vec<Value> = account.into_iter().chain(group).collect();
        let labels: Vec<_> = self.record.get("labels").and_then(Value::as_object).into_iter().flatten().collect();
        Ok(json!({
            "id": if has_params { self.text("call_id") } else { "" },
            "upstream": { "name": self.text("upstream"), "settings": replay.settings(), "extensions": extensions },
            "principal": principal,
            "client": self.some("client"),
            "era": self.text("era"),
            "method": self.text("method"),
            "name": self.name,
            "labels": labels,
        }))
    }

    /// Its `params`, as far as policies see them.
    fn params(&self) -> Result<String, String> {
        let arguments = mcp_json::get(self.line.as_bytes(), &["arguments"]).map(String::from_utf8_lossy);
        if arguments.is_none() && self.record.contains_key("arguments_digest") {
            let why = "its arguments are not in the record (`arguments = \"full\"` of `[audit]` records them)";
            return Err(why.to_owned());
        }
        let name = mcp_json::quote(self.name.as_deref().unwrap_or_default());
        match (self.text("method"), arguments) {
            (method::TOOLS_CALL | method::PROMPTS_GET, Some(arguments)) => {
                Ok(format!(r#"{{"name":{name},"arguments":{arguments}}}"#))
            }
            (method::TOOLS_CALL | method::PROMPTS_GET, None) => Ok(format!(r#"{{"name":{name}}}"#)),
            ("resources/read", _) => Ok(format!(r#"{{"uri":{name}}}"#)),
            (method, _) => Err(format!("the params of `{method}` are not in the record")),
        }
    }

    fn title(&self) -> String {
        let [at, method, name, upstream, call] =
            ["occurred_at", "method", "name", "upstream", "call_id"].map(|key| self.text(key));
        printable(&format!("{at}  {method} {name}  ({upstream}, call {call})")).into_owned()
    }

    fn some(&self, key: &str) -> Option<&str> {
        self.record.get(key).and_then(Value::as_str)
    }

    fn text(&self, key: &str) -> &str {
        self.some(key).unwrap_or_default()
    }
}

/// A verdict as the log has it, and the text of a refusal.
fn told(verdict: &Value) -> (String, Option<String>) {
    let Some((case, with)) = verdict.as_object().and_then(|cases| cases.iter().next()) else {
        return (verdict.as_str().unwrap_or_default().to_owned(), None);
    };
    match with["text"].as_str().map(|text| printable(text).trim().to_owned()) {
        Some(text) if case == "deny" => (format!("deny: {text}"), Some(text)),
        _ => (case.clone(), None),
    }
}

impl Absent {
    const WHY: &str = "the audit log does not have what it answered";

    fn asked(&self) -> PolicyStoreError {
        self.0.store(true, Ordering::Relaxed);
        PolicyStoreError::Unavailable(Self::WHY.to_owned())
    }
}

impl Service for Absent {
    fn send(&self, _: ServiceRequest) -> Pin<Box<dyn Future<Output = Result<ServiceResponse, String>> + Send + '_>> {
        self.0.store(true, Ordering::Relaxed);
        Box::pin(async { Err(Self::WHY.to_owned()) })
    }
}

#[async_trait]
impl PolicyStore for Absent {
    async fn get(&self, _: &str) -> Result<Option<(Vec<u8>, u64)>, PolicyStoreError> {
        Err(self.asked())
    }

    async fn set(&self, _: &str, _: Vec<u8>, _: u32, _: PolicyStoreCondition) -> Result<u64, PolicyStoreError> {
        Err(self.asked())
    }

    async fn delete(&self, _: &str) -> Result<(), PolicyStoreError> {
        Err(self.asked())
    }

    async fn keys(&self, _: &str) -> Result<Vec<String>, PolicyStoreError> {
        Err(self.asked())
    }
}
