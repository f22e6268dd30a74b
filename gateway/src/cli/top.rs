//! `weir top`: the gateway that runs, on the whole screen of a terminal.
//!
//! What it shows comes from the socket that `weir status` asks. What it changes it has other commands do, so that keys and
//! commands cannot differ.

mod activity;
mod feed;
mod signals;
mod terminal_screen;
mod view;

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    process::{Command, ExitCode},
    sync::mpsc::{Receiver, sync_channel},
    time::Duration,
};

use anyhow::{Context, bail};
use crossterm::event::{self, Event, KeyEventKind};
use rustix::process::Signal;
use tokio::sync::mpsc::{Sender, channel};

use crate::http::Method;

use super::running::RunningGateway;
use activity::{Activity, KeyAction};
use feed::{FeedRequest, FeedUpdate};
use terminal_screen::TerminalScreen;
use view::Look;

/// How long a key or an update may wait for the other.
const POLL: Duration = Duration::from_millis(100);
/// How many updates wait for the screen. More are dropped: the next one says all that they did.
const UPDATES: usize = 16;

/// The options of `weir top`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Keys: 1 2 3 4 or Tab choose a view, the arrows a row. Return opens it, ? lists all keys, q quits.

Examples:
  weir top
  weir top --config team.toml
  NO_COLOR=1 weir top"
)]
pub(super) struct TopOptions {
    #[command(flatten)]
    gateway: RunningGateway,
    /// Sign-ins are kept as plain text.
    #[arg(long)]
    allow_plaintext_token_store: bool,
}

pub(super) fn run(options: &TopOptions) -> anyhow::Result<ExitCode> {
    let socket = options.gateway.socket()?;
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() || is_dumb {
        bail!("`weir top` needs a terminal; `weir status --watch` prints lines");
    }
    // That no gateway runs is told before the screen is taken.
    super::runtime()?.block_on(options.gateway.ask(&socket, Method::GET, "/status"))?;
    let (updates, received) = sync_channel(UPDATES);
    let (requests, requested) = channel(1);
    std::thread::scope(|scope| {
        let feed = scope.spawn(|| feed::run(&options.gateway, &socket, updates, requested));
        // The feed ends when nobody can ask it any more, whatever it waits for.
        let ended = drive(options, &received, requests);
        feed.join().map_err(|_| anyhow::anyhow!("the gateway cannot be watched any more"))??;
        ended
    })
}

/// Shows what comes and does what keys say, until one says to quit.
fn drive(
    options: &TopOptions,
    received: &Receiver<FeedUpdate>,
    requests: Sender<FeedRequest>,
) -> anyhow::Result<ExitCode> {
    let mut screen = TerminalScreen::enter().context("the terminal cannot be used")?;
    let (mut activity, look) = (Activity::default(), Look::of_terminal());
    loop {
        match signals::take() {
            None => {}
            Some(signal) if signal == Signal::TSTP => screen.suspend()?,
            Some(signal) => return Ok(ExitCode::from(signals::exit_code(signal))),
        }
        received.try_iter().for_each(|update| activity.take(update));
        screen.draw(|frame| view::draw(frame, &mut activity, &look))?;
        if !event::poll(POLL)? {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        if key.kind != KeyEventKind::Press {
            continue;
        }
        match activity.key(key) {
            KeyAction::None => {}
            KeyAction::Quit => return Ok(ExitCode::SUCCESS),
            KeyAction::Suspend => screen.suspend()?,
            KeyAction::Reload => activity.asked(requests.try_send(FeedRequest::Reload).is_ok(), "reload"),
            KeyAction::Run { words, reloads } => {
                let title = words.join(" ");
                let request = FeedRequest::Run { title: title.clone(), command: command(options, &words)?, reloads };
                activity.asked(requests.try_send(request).is_ok(), &title);
            }
            KeyAction::LogIn(upstream) => {
                let command = log_in(options, &upstream)?;
                let ended = screen.aside(command);
                // Ctrl-C at the sign-in was for the sign-in.
                signals::forget(Signal::INT);
                activity.signed_in(&upstream, ended);
            }
        }
    }
}

/// This program, with these words and the configuration of the gateway.
fn command(options: &TopOptions, words: &[String]) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("this program cannot be found")?);
    command.args(words).arg("--config").arg(options.gateway.options().0);
    Ok(command)
}

fn log_in(options: &TopOptions, upstream: &str) -> anyhow::Result<Command> {
    let mut command = command(options, &["auth".to_owned(), "login".to_owned(), upstream.to_owned()])?;
    if options.allow_plaintext_token_store {
        command.arg(OsString::from("--allow-plaintext-token-store"));
    }
    Ok(command)
}
