//! What is written into the log, and how.

use std::{
    env,
    io::{self, IsTerminal},
};

use clap::{ArgAction, Args, ValueEnum};

use crate::{
    server::process,
    telemetry::{self, Flush, LogFormat},
};

/// What of the log a person wants to see. `RUST_LOG` says it in detail, where none of the two is given.
#[derive(Debug, Default, Args)]
pub(super) struct LogOptions {
    /// How the log is written. Default: text on a terminal, JSON otherwise.
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<WrittenFormat>,
    /// Log warnings and errors only.
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Log more: what Weir does; twice also what its libraries do.
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Write plain lines: no table of servers below the log on a terminal.
    #[arg(long)]
    plain: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WrittenFormat {
    Text,
    Json,
}

impl LogOptions {
    /// Whether a table of servers is shown below the log: on a terminal that has room and can move its cursor, to whoever
    /// wants it.
    pub(super) fn shows_table(&self) -> bool {
        let is_json = matches!(self.log_format, Some(WrittenFormat::Json));
        let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
        let has_room = io::stderr().is_terminal() && telemetry::terminal_size().is_some();
        has_room && !is_json && !self.plain && !is_dumb && !is_set("NO_COLOR")
    }

    /// Starts the log of a gateway.
    pub(super) fn start(&self) -> Flush {
        let filter = match (self.quiet, self.verbose) {
            (true, _) => Some("warn"),
            (false, 0) => None,
            (false, 1) => Some(process::VERBOSE_LOG_FILTER),
            (false, _) => Some("debug"),
        };
        let format = self.log_format.map(|format| match format {
            WrittenFormat::Text => LogFormat::Text,
            WrittenFormat::Json => LogFormat::Json,
        });
        telemetry::start_as(filter, process::LOG_FILTER, format)
    }
}
