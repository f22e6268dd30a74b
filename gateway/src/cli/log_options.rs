//! What is written into the log, and how.

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
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WrittenFormat {
    Text,
    Json,
}

impl LogOptions {
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
