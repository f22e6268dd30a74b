//! Asks the gateway how it stands, time and again, and has it and other commands do what keys say.

use std::{
    path::Path,
    process::Stdio,
    sync::mpsc::SyncSender,
    time::{Duration, SystemTime},
};

use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::mpsc::{Receiver, Sender, channel},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::signals;
use crate::{cli::running::RunningGateway, config::Config, http::Method};

/// How often it is asked.
const EVERY: Duration = Duration::from_secs(1);
/// How much of what a command prints is shown, in bytes.
const MAX_OUTPUT: u64 = 64 * 1024;

/// What the screen is told.
pub(super) enum FeedUpdate {
    /// How the gateway stands, and what goes on.
    State(Box<GatewayState>),
    /// Why it is not known.
    Away(String),
    /// What became of a request.
    Done(Result<String, String>),
    /// What a command has printed, and whether it ended well.
    Output { title: String, text: String, is_ok: bool },
}

/// The answers of the gateway.
#[derive(Default)]
pub(super) struct GatewayState {
    pub(super) status: Value,
    pub(super) calls: Value,
    pub(super) sessions: Value,
    /// The upstreams that the configuration has disabled.
    pub(super) disabled: Vec<String>,
}

/// What is to be done.
#[allow(clippy::large_enum_variant, reason = "one waits at a time")]
pub(super) enum FeedRequest {
    Reload,
    Run {
        title: String,
        command: std::process::Command,
        /// Whether it changes the configuration.
        reloads: bool,
    },
}

/// Goes on until nobody can ask it any more.
pub(super) fn run(
    gateway: &RunningGateway,
    socket: &str,
    updates: SyncSender<FeedUpdate>,
    requested: Receiver<FeedRequest>,
) -> anyhow::Result<()> {
    let runtime = crate::cli::runtime()?;
    runtime.block_on(async {
        let (waiting, next) = channel(1);
        let feed = Feed { gateway, socket, updates, disabled: (None, Vec::new()) };
        tokio::select! {
            // What is under way does not hold up the end.
            () = pass_on(requested, waiting) => {}
            () = feed.run(next) => {}
            () = signals::watch() => {}
        }
    });
    // A command that still runs is killed here.
    runtime.shutdown_background();
    Ok(())
}

/// Resolves when nobody can ask any more.
async fn pass_on(mut requested: Receiver<FeedRequest>, waiting: Sender<FeedRequest>) {
    while let Some(request) = requested.recv().await {
        if waiting.send(request).await.is_err() {
            return;
        }
    }
}

struct Feed<'g> {
    gateway: &'g RunningGateway,
    socket: &'g str,
    updates: SyncSender<FeedUpdate>,
    /// The upstreams that are disabled, and when the file that says so was written.
    disabled: (Option<SystemTime>, Vec<String>),
}

impl Feed<'_> {
    async fn run(mut self, mut requests: Receiver<FeedRequest>) {
        let mut tick = interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut commands = JoinSet::new();
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                Some(request) = requests.recv() => match request {
                    FeedRequest::Reload => self.reload().await,
                    FeedRequest::Run { title, command, reloads } => {
                        commands.spawn(output(title, command, reloads));
                    }
                },
                Some(Ok((update, reloads))) = commands.join_next() => {
                    self.tell(update);
                    if reloads {
                        self.reload().await;
                    }
                }
            }
            let update = match self.look().await {
                Ok(state) => FeedUpdate::State(Box::new(state)),
                Err(why) => FeedUpdate::Away(format!("{why:#}")),
            };
            self.tell(update);
        }
    }

    fn tell(&self, update: FeedUpdate) {
        // A screen that is given to a command takes none. It asks again soon enough.
        drop(self.updates.try_send(update));
    }

    async fn look(&mut self) -> anyhow::Result<GatewayState> {
        let status = self.gateway.ask(self.socket, Method::GET, "/status").await?;
        let calls = self.gateway.ask(self.socket, Method::GET, "/calls").await?;
        let sessions = self.gateway.ask(self.socket, Method::GET, "/sessions").await?;
        self.look_at_file();
        Ok(GatewayState { status, calls, sessions, disabled: self.disabled.1.clone() })
    }

    /// The gateway knows of no upstream that is disabled.
    fn look_at_file(&mut self) {
        let path: &Path = self.gateway.options().0;
        let written = std::fs::metadata(path).and_then(|data| data.modified()).ok();
        if written != self.disabled.0
            && let Ok(config) = Config::load(path)
        {
            let names = config.upstreams.iter().filter(|upstream| !upstream.enabled).map(|it| it.name.to_string());
            self.disabled = (written, names.collect());
        }
    }

    async fn reload(&self) {
        let done = self.gateway.ask(self.socket, Method::POST, "/reload").await;
        self.tell(FeedUpdate::Done(match done {
            Ok(report) => Ok(changes(&report)),
            Err(why) => Err(format!("nothing was reloaded: {why:#}").replace('\n', "; ")),
        }));
    }
}

/// What a reload has changed, in a line.
fn changes(report: &Value) -> String {
    let mut said = Vec::new();
    for what in ["added", "changed", "removed", "restart"] {
        let names: Vec<&str> = report[what].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if !names.is_empty() {
            let what = if what == "restart" { "needs a restart:" } else { what };
            said.push(format!("{what} {}", names.join(", ")));
        }
    }
    let others = ["access", "toolsets", "record", "telemetry", "limits"].into_iter().filter(|key| report[key] == true);
    said.extend(others.map(str::to_owned));
    if said.is_empty() { "reloaded; nothing has changed".to_owned() } else { format!("reloaded: {}", said.join("; ")) }
}

/// What a command prints, once it has ended.
async fn output(title: String, command: std::process::Command, reloads: bool) -> (FeedUpdate, bool) {
    let mut command = tokio::process::Command::from(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let printed = async {
        let mut child = command.spawn()?;
        let (out, error) = (child.stdout.take(), child.stderr.take());
        let (out, error) = tokio::join!(text(out), text(error));
        Ok::<_, std::io::Error>((out + &error, child.wait().await?.success()))
    };
    let (text, is_ok) = printed.await.unwrap_or_else(|why| (format!("it cannot be started: {why}"), false));
    (FeedUpdate::Output { title, text, is_ok }, reloads && is_ok)
}

/// As much of a pipe as is shown. The rest is read too: nobody waits for room in it.
async fn text(pipe: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut pipe) = pipe else { return String::new() };
    let mut bytes = Vec::new();
    // What was read until an error is all there is.
    drop((&mut pipe).take(MAX_OUTPUT).read_to_end(&mut bytes).await);
    drop(tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await);
    String::from_utf8_lossy(&bytes).into_owned()
}
