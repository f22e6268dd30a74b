//! The server that a command calls: an upstream of the configuration, any URL, or all upstreams together.

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use tokio::{sync::oneshot, time::timeout};
use weir_flow::UpstreamState;

use super::{ClientSession, RequestError};
use crate::{
    cli::{
        BadConfig, address, assembly, audit,
        connect::{MAX_LINE, MORE, UrlOptions},
        exit_code::{self, INTERRUPTED, NO_CREDENTIAL, TIMED_OUT, UNREACHABLE},
        front::Front,
        live, suggestion, terminal,
    },
    config::{Config, default_file},
    credential::CredentialManager,
    server::stdio::StdioLimits,
    snapshot::Snapshot,
    telemetry,
};

/// How long an answer from a URL may take, in seconds; upstreams of the configuration have `timeouts.overall`.
const URL_TIMEOUT: u64 = 60;

/// How long the server may take to end what was cancelled.
const END: Duration = Duration::from_secs(2);

/// How long a call may take, whatever its server reports and asks.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// How many bytes wait in the pipe.
const PIPE: usize = 64 * 1024;

/// "URL elicitation is required" (MCP 2025-11-25, client/elicitation).
const URL_REQUIRED: i64 = -32042;

/// How the server is reached.
#[derive(Debug, Args)]
pub(in crate::cli) struct TargetOptions {
    /// The configuration, as for `serve`.
    #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
    config: PathBuf,
    #[command(flatten)]
    url: UrlOptions,
    /// How long an answer may take without progress, in seconds. Default: `timeouts.overall` of the upstream.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_000))]
    timeout: Option<u64>,
    /// Use logins that are kept as plain text.
    #[arg(long)]
    allow_plaintext_token_store: bool,
    /// Say on standard error what happens.
    #[arg(long)]
    debug: bool,
}

/// A session that a command wants.
pub(in crate::cli) struct Visit<'a> {
    /// What messages call the command.
    pub(in crate::cli) command: &'a str,
    /// An upstream or a URL; all upstreams if it is none.
    pub(in crate::cli) server: Option<&'a str>,
    pub(in crate::cli) target: &'a TargetOptions,
    /// Whether it only lists. Then nothing is recorded, and each upstream that cannot be reached is told.
    pub(in crate::cli) is_list: bool,
}

/// Opens a session, does `work` in it, and ends all that was started. Gives the exit code.
pub(in crate::cli) fn visit(
    visit: &Visit<'_>,
    work: impl AsyncFnOnce(&mut ClientSession) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let Visit { server, target, is_list, .. } = *visit;
    let _log = telemetry::start(if target.debug { "info,weir=debug" } else { "off" });
    let (config, limit) = visit.config()?;
    let _audit = if is_list { None } else { audit::start(&config)? };
    let manager = CredentialManager::new(&config, target.allow_plaintext_token_store);
    let assembly = assembly::assemble(&config, &manager)?;
    let runtime = crate::cli::runtime()?;
    let snapshot = assembly.snapshot;
    let all = Arc::clone(&snapshot);
    let ended = runtime.block_on(run(snapshot, &manager, server.is_some(), limit, async |session| {
        let code = work(session).await?;
        Ok(if is_list && server.is_none() { tell_of_missing(&all).unwrap_or(code) } else { code })
    }));
    // Standard input is read by a thread that cannot be woken; there is nothing left to wait for.
    runtime.shutdown_background();
    let shown = server.unwrap_or("the server");
    ended.or_else(|why| match why.downcast::<RequestError>() {
        Ok(why) => Ok(explain(shown, &why)),
        Err(why) => Err(why),
    })
}

async fn run(
    snapshot: Arc<Snapshot>,
    manager: &Arc<CredentialManager>,
    is_one: bool,
    limit: Duration,
    work: impl AsyncFnOnce(&mut ClientSession) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let (ours, theirs) = tokio::io::duplex(PIPE);
    let (stop, stopped) = oneshot::channel::<()>();
    let limits = StdioLimits { line: MAX_LINE, request: LONGEST.max(limit + Duration::from_secs(MORE)) };
    let stopped = async { drop(stopped.await) };
    let front = if is_one { Front::of_one(Arc::clone(&snapshot)) } else { Front::of_all(Arc::clone(&snapshot)) };
    let served = front.serve(manager, limits, tokio::io::split(theirs), stopped);
    let mut served = std::pin::pin!(served);
    let visited = async {
        let mut session = ClientSession::new(ours, limit);
        let begun = session.begin().await;
        match found_fault(&snapshot, is_one, limit, &begun).await {
            Some(code) => Ok(code),
            None => {
                begun?;
                work(&mut session).await
            }
        }
    };
    let ended = tokio::select! {
        ended = visited => ended,
        // It serves until the input ends, so this is the end of the output.
        _ = &mut served => return Err(RequestError::Closed.into()),
    };
    let closed = async {
        if timeout(END, &mut served).await.is_err() {
            drop(stop);
            drop(served.await);
        }
    };
    tokio::select! {
        () = closed => {}
        // Whoever presses it again does not want to wait.
        _ = tokio::signal::ctrl_c() => {}
    }
    ended
}

/// Whether the server cannot be used. Then its steps are shown as `weir test` does, and this is the exit code.
async fn found_fault(
    snapshot: &Snapshot,
    is_one: bool,
    limit: Duration,
    begun: &Result<(), RequestError>,
) -> Option<ExitCode> {
    if !is_one || matches!(begun, Err(RequestError::Late(_) | RequestError::Interrupted)) {
        return None;
    }
    let upstream = snapshot.upstreams().next()?;
    if begun.is_ok() && upstream.status().error.is_none() {
        return None;
    }
    let report = timeout(limit, live::probe(upstream, None)).await.ok().filter(|report| !report.ok)?;
    terminal::complain(report.text());
    Some(live::exit_code([&report]))
}

/// Says which upstreams are in no list of all, and gives the exit code if there are any.
fn tell_of_missing(snapshot: &Snapshot) -> Option<ExitCode> {
    let mut codes = Vec::new();
    for upstream in snapshot.upstreams() {
        let (status, name) = (upstream.status(), upstream.name());
        if status.state != UpstreamState::Healthy {
            let why = status.error.unwrap_or_else(|| status.state.to_string()).replace('\n', " ");
            terminal::complain(format_args!("{name}: {why}; `weir test {name}` shows each step"));
            codes.push(status.error_class.map_or(1, exit_code::of_class));
        }
    }
    codes.dedup();
    match codes[..] {
        [] => None,
        [code] => Some(ExitCode::from(code)),
        _ => Some(ExitCode::FAILURE),
    }
}

/// Says why a request has no result, and gives the exit code.
fn explain(server: &str, why: &RequestError) -> ExitCode {
    match why {
        RequestError::Interrupted => terminal::complain("Interrupted; the server was told."),
        RequestError::Late(_) => {
            terminal::complain(format_args!(
                "{server}: {why}; `--timeout SECONDS` waits longer, and the server was told"
            ));
        }
        _ => terminal::complain(format_args!("{server}: {why}")),
    }
    ExitCode::from(match why {
        RequestError::Interrupted => INTERRUPTED,
        RequestError::Late(_) => TIMED_OUT,
        RequestError::Closed => UNREACHABLE,
        RequestError::Answered { code: URL_REQUIRED, data, .. } => {
            for wanted in data["elicitations"].as_array().into_iter().flatten() {
                let text = |key: &str| wanted[key].as_str().unwrap_or_default();
                terminal::complain(format_args!("{}\n  open: {}", text("message"), text("url")));
            }
            NO_CREDENTIAL
        }
        RequestError::Answered { .. } => 1,
    })
}

impl Visit<'_> {
    /// The configuration with what is called and nothing else, and how long an answer may take without progress.
    fn config(&self) -> Result<(Config, Duration), BadConfig> {
        let mut config = self.written()?;
        // Whoever can read the configuration can use its credentials, so rules would keep nobody from anything.
        (config.access, config.toolsets) = (None, Vec::new());
        let enabled = config.upstreams.iter().filter(|upstream| upstream.enabled);
        let overall = enabled.map(|upstream| upstream.timeouts.overall).max().unwrap_or_default();
        let limit = self.target.timeout.map_or(overall, Duration::from_secs);
        // The session ends a call that is late. Only the session knows how long a person takes to answer.
        let longest = LONGEST.max(limit + Duration::from_secs(MORE));
        for upstream in &mut config.upstreams {
            (upstream.timeouts.overall, upstream.timeouts.read) = (longest, longest);
        }
        Ok((config, limit))
    }

    fn written(&self) -> Result<Config, BadConfig> {
        let Visit { command, server, target: TargetOptions { url, timeout, config, .. }, .. } = self;
        if let Some(server) = server.filter(|server| address::is_address(server)) {
            return url.config(command, server, timeout.unwrap_or(URL_TIMEOUT));
        }
        if url.are_given() {
            return Err(BadConfig(format!("{command}: --header, --http, --sse and --mcp-hub go with a URL")));
        }
        let mut config = crate::cli::load(config)?;
        if let Some(name) = server {
            let Some(at) = config.upstreams.iter().position(|upstream| upstream.name.as_str() == *name) else {
                let known = config.upstreams.iter().map(|upstream| upstream.name.as_str());
                return Err(BadConfig(suggestion::unknown("upstream", name, known)));
            };
            config.upstreams = vec![config.upstreams.swap_remove(at)];
            config.upstreams.iter_mut().for_each(|upstream| upstream.enabled = true);
        }
        Ok(config)
    }
}
