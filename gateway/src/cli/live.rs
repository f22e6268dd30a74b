//! `weir test` and `weir check --live`: reach upstreams as the gateway would, and say how that went, step by step.

use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use weir_mcp::{Era, ListKind, Message};

use crate::{
    catalog::{self, CatalogSnapshot},
    telemetry::step::{self, Step},
    upstream::{ConnectError, Lease, Outgoing, SendError, Upstream, own},
};

use super::{exit_code, terminal};

/// How an upstream was found.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) name: String,
    pub(super) ok: bool,
    /// The kind of failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error_class: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) repair: Option<String>,
    /// Whether somebody has to sign in.
    #[serde(skip)]
    pub(super) needs_login: bool,
    milliseconds: f64,
    steps: Vec<StepLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    era: Option<String>,
    /// The names that it offers, by list.
    offers: Vec<(&'static str, Vec<String>)>,
    /// The input schema of each tool.
    #[serde(skip)]
    pub(super) schemas: Vec<(String, Value)>,
    /// What is not shown of the lists.
    pub(super) warnings: Vec<String>,
    /// The answer of the tool that was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<Value>,
}

#[derive(Debug, Serialize)]
struct StepLine {
    step: String,
    milliseconds: f64,
    outcome: String,
}

/// A tool to call, and its arguments as JSON.
pub(super) struct ToolCall<'a> {
    pub(super) name: &'a str,
    pub(super) arguments: &'a Value,
}

/// Why an upstream is not fine.
enum Fault {
    Connect(ConnectError),
    Lists(String),
    Call(String),
}

/// Reaches an upstream, fetches its lists, and calls a tool if asked to. What was started is ended.
pub(super) async fn probe(upstream: &Upstream, call: Option<&ToolCall<'_>>) -> Report {
    let began = Instant::now();
    let mut report = Report { name: upstream.name().to_owned(), ..Report::default() };
    let (tried, steps) = step::record(Box::pin(tried(upstream, call, &mut report))).await;
    report.milliseconds = milliseconds(began.elapsed());
    report.steps = steps.into_iter().map(StepLine::from).collect();
    report.ok = tried.is_ok();
    if let Err(fault) = tried {
        let (class, error) = match &fault {
            Fault::Connect(why) => (why.class(), why.to_string()),
            Fault::Lists(why) => ("lists", why.clone()),
            Fault::Call(why) => ("call", why.clone()),
        };
        report.needs_login = matches!(fault, Fault::Connect(ConnectError::SignIn(_)));
        report.repair = repair(upstream.name(), &fault, class);
        (report.error_class, report.error) = (Some(class), Some(error));
    }
    upstream.stop().await;
    report
}

async fn tried(upstream: &Upstream, call: Option<&ToolCall<'_>>, report: &mut Report) -> Result<(), Fault> {
    let lease = upstream.lease(None, None).await.map_err(Fault::Connect)?;
    (report.transport, report.era) = (Some(lease.channel.transport().to_string()), Some(lease.era.to_string()));
    let used = used(upstream, &lease, call, report).await;
    upstream.close(None, &lease.channel).await;
    used
}

async fn used(
    upstream: &Upstream,
    lease: &Lease,
    call: Option<&ToolCall<'_>>,
    report: &mut Report,
) -> Result<(), Fault> {
    let limit = upstream.timeouts.overall;
    let late = || "no answer within `timeouts.overall`".to_owned();
    let lists = tokio::time::timeout(limit, CatalogSnapshot::fetch(None, upstream, lease)).await;
    let lists = lists.map_err(|_| Fault::Lists(late()))?.map_err(|why| Fault::Lists(why.to_string()))?;
    let offer = |kind: ListKind| (kind.list(), lists.names(kind).map(str::to_owned).collect::<Vec<_>>());
    report.offers = ListKind::ALL.into_iter().map(offer).collect();
    let schema = |(name, raw): (&str, &bytes::Bytes)| {
        let mut tool: Value = serde_json::from_slice(raw).ok()?;
        Some((name.to_owned(), tool["inputSchema"].take()))
    };
    report.schemas = lists.bodies(ListKind::Tool).filter_map(schema).collect();
    report.warnings = lists.warnings();
    if let Some(why) = lists.failure() {
        return Err(Fault::Lists(why));
    }
    let Some(call) = call else { return Ok(()) };
    let name = format!("tools/call {}", call.name);
    let answered = step::timed(
        &name,
        async { tokio::time::timeout(limit, ask(upstream, lease, &lists, call)).await.unwrap_or_else(|_| Err(late())) },
        |answer| if is_error(answer) { "an error of the tool" } else { "answered" },
    );
    let answer = answered.await.map_err(Fault::Call)?;
    let failed = is_error(&answer);
    report.answer = Some(answer);
    if failed { Err(Fault::Call("the tool answered with an error".into())) } else { Ok(()) }
}

/// The answer to a call of a tool, as JSON.
async fn ask(
    upstream: &Upstream,
    lease: &Lease,
    lists: &CatalogSnapshot,
    call: &ToolCall<'_>,
) -> Result<Value, String> {
    let credential = upstream.credential(None, None).await.map_err(|why| why.to_string())?;
    let request = own::call(lease.era, call.name, call.arguments);
    let headers = match lists.mirrored(call.name) {
        Some(mirrored) if lease.era == Era::Modern => catalog::headers(mirrored, &request),
        _ => Vec::new(),
    };
    let own = Outgoing::own(lease.era, &request, credential.as_ref());
    let sent = lease.channel.send(Outgoing { name: Some(call.name), headers: &headers, ..own });
    let answered = async { sent.await?.answer().await };
    let answer = answered.await.map_err(|why: SendError| why.to_string())?;
    value(&answer)
}

fn value(answer: &Message) -> Result<Value, String> {
    let mut answer: Value = serde_json::from_slice(answer.bytes()).map_err(|_| "its answer is no JSON".to_owned())?;
    let key = if answer["error"].is_object() { "error" } else { "result" };
    Ok(json!({ key: answer[key].take() }))
}

fn is_error(answer: &Value) -> bool {
    answer["error"].is_object() || answer["result"]["isError"] == true
}

/// What an operator can do about a failure.
fn repair(name: &str, fault: &Fault, class: &str) -> Option<String> {
    Some(match (fault, class) {
        (Fault::Connect(ConnectError::Personal), _) => {
            "each caller signs in by themselves; `owner = \"shared\"` has one login for all".to_owned()
        }
        (Fault::Connect(ConnectError::SignIn(needed)), _) => match &needed.command {
            Some(command) => format!("run `{command}`"),
            None => format!("run `weir auth login {name}`"),
        },
        (_, "authentication") => {
            format!("run `weir auth status {name}`, and compare `auth` and `bearer` of the upstream")
        }
        (_, "policy") => "the policy of the upstream gives no credential; look at its settings".to_owned(),
        _ => return None,
    })
}

impl From<Step> for StepLine {
    fn from(step: Step) -> Self {
        Self { step: step.name, milliseconds: milliseconds(step.took), outcome: step.outcome }
    }
}

fn milliseconds(time: Duration) -> f64 {
    // Tenths are enough for people and for programs.
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}

impl Report {
    /// The whole of it, for people.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n", self.name);
        let width = self.steps.iter().map(|step| step.step.chars().count()).max().unwrap_or_default();
        for step in &self.steps {
            let StepLine { step, milliseconds, outcome } = step;
            text += &format!("  {step:width$}  {milliseconds:>9.1} ms  {}\n", one_line(outcome));
        }
        for (list, names) in &self.offers {
            if !names.is_empty() {
                text += &format!("  {} {list}: {}\n", names.len(), one_line(&names.join(", ")));
            }
        }
        for warning in &self.warnings {
            text += &format!("  warning: {}\n", one_line(warning));
        }
        if let Some(answer) = &self.answer {
            text += &format!("  {answer}\n");
        }
        text + &self.line()
    }

    /// The tools that it offers.
    pub(super) fn tools(&self) -> impl Iterator<Item = &str> {
        let tools = self.offers.iter().filter(|(list, _)| *list == ListKind::Tool.list());
        tools.flat_map(|(_, names)| names.iter().map(String::as_str))
    }

    /// How it went, in a line or two.
    pub(super) fn line(&self) -> String {
        let mut line = self.summary();
        if let Some(repair) = &self.repair {
            line += &format!("\n{}: {repair}", self.name);
        }
        line
    }

    /// How it went, in a line.
    pub(super) fn summary(&self) -> String {
        let Self { name, milliseconds, .. } = self;
        match (&self.error_class, &self.error) {
            (Some(class), Some(error)) => {
                format!("{name}: failed after {milliseconds:.0} ms: {class}: {}", one_line(error))
            }
            _ => {
                let how = [&self.transport, &self.era].into_iter().flatten().map(String::as_str);
                let tools = self.tools().count();
                format!(
                    "{name}: fine after {milliseconds:.0} ms ({}), {tools} tools",
                    how.collect::<Vec<_>>().join(", ")
                )
            }
        }
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Probes upstreams, all at once. The reports are in the order of their names.
pub(super) async fn probe_all(upstreams: impl Iterator<Item = Arc<Upstream>>) -> Vec<Report> {
    let _waiting = terminal::waiting("reaching upstreams");
    let probe = |upstream: Arc<Upstream>| async move { probe(&upstream, None).await };
    let mut reports = upstreams.map(probe).collect::<JoinSet<_>>().join_all().await;
    reports.sort_by(|one, other| one.name.cmp(&other.name));
    reports
}

/// What a command ends with after these upstreams: 0 if all are fine, else the code of their failures, 1 if they differ.
pub(super) fn exit_code<'a>(reports: impl IntoIterator<Item = &'a Report>) -> ExitCode {
    let mut codes: Vec<u8> =
        reports.into_iter().filter_map(|report| report.error_class).map(exit_code::of_class).collect();
    codes.dedup();
    match codes[..] {
        [] => ExitCode::SUCCESS,
        [code] => ExitCode::from(code),
        _ => ExitCode::FAILURE,
    }
}
