//! `weir upgrade`: this version takes over from the gateway that runs.

use std::{
    env,
    fs::File,
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::{
    fs::OFlags,
    process::{Pid, test_kill_process},
};
use tokio::time::{Instant, sleep};

use crate::http::Method;

use super::running::{RunningGateway, process_at};

/// How long the new process may take until it serves. It compiles policies that are new to this version.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long the new process may take, after the old one ended, to show its socket for operators or to fail.
const LAST_LOOK: Duration = Duration::from_secs(10);

/// How often to look whether it does.
const LOOK: Duration = Duration::from_millis(50);

/// The options of `weir upgrade`.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    gateway: RunningGateway,
    /// Keep logins as plain text, as the gateway that runs does.
    #[arg(long)]
    allow_plaintext_token_store: bool,
    /// Say in JSON which process took over from which.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let socket = options.gateway.socket()?;
    super::runtime()?.block_on(async {
        let (config, listen) = options.gateway.options();
        let Some(old) = process_at(&socket).await else {
            bail!("no gateway serves {} here for this user; `weir serve` starts one", config.display());
        };
        let mut new = start(options, old).context("the new process cannot be started")?;
        let mut end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = new.try_wait()? {
                bail!("the new process ended ({status}), and process {old} goes on. Its log says why");
            }
            // Its socket for operators takes the place of the old one when it serves.
            if process_at(&socket).await.is_some_and(|id| id.as_raw_pid().unsigned_abs() == new.id()) {
                break;
            }
            if test_kill_process(old).is_err() {
                end = end.min(Instant::now() + LAST_LOOK);
            }
            if Instant::now() >= end {
                if goes_on(&options.gateway, &socket, old).await {
                    new.kill()?;
                    new.wait()?;
                    bail!("the new process did not serve within {} seconds and was ended", PATIENCE.as_secs());
                }
                eprintln!("`weir status` cannot ask process {}. Its log says why", new.id());
                break;
            }
            sleep(LOOK).await;
        }
        if options.json {
            let took_over = serde_json::json!({ "process": new.id(), "from": old.as_raw_pid(), "file": config });
            super::terminal::put_json(&took_over.to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        let address = listen.map(|address| format!(" at {address}")).unwrap_or_default();
        super::terminal::say(format_args!(
            "Process {} serves {}{address}. Process {old} finishes its calls and ends.",
            new.id(),
            config.display()
        ))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Whether the process before still serves. One that has handed over its sockets drains.
async fn goes_on(gateway: &RunningGateway, socket: &str, old: Pid) -> bool {
    if process_at(socket).await != Some(old) {
        return false;
    }
    let status = gateway.ask(socket, Method::GET, "/status").await;
    status.is_ok_and(|status| status["state"] != "draining")
}

/// It outlives this command: its own group, nothing to read, and its log where that of the process before goes.
fn start(options: &Options, old: Pid) -> anyhow::Result<Child> {
    let (config, listen) = options.gateway.options();
    let mut command = Command::new(env::current_exe()?);
    // It shares the terminal, if there is one: no place for a table.
    command.args(["serve", "--upgrade", "--plain", "--config"]).arg(config);
    if let Some(log) = standard_error(old) {
        command.stderr(log);
    }
    if let Some(address) = listen {
        command.args(["--listen", &address.to_string()]);
    }
    if options.allow_plaintext_token_store {
        command.arg("--allow-plaintext-token-store");
    }
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0).spawn()?)
}

/// Where a process writes its log, if that can be opened: a socket, such as that of journald, cannot.
fn standard_error(process: Pid) -> Option<File> {
    let path = format!("/proc/{}/fd/2", process.as_raw_pid());
    File::options().append(true).custom_flags(OFlags::NOCTTY.bits().cast_signed()).open(path).ok()
}
