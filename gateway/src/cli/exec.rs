//! `weir exec`: becomes a program, with limits and as another user. For Weir itself, before it starts an upstream.

use std::{ffi::OsString, process::ExitCode};

use crate::{config::ProcessLimits, upstream::stdio::Confinement};

use super::terminal;

/// What shells exit with for a program that cannot be started (POSIX.1-2024, XCU 2.8.2).
const NOT_STARTED: u8 = 126;

/// What the program is confined to.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    #[arg(long)]
    user: Option<String>,
    /// In bytes.
    #[arg(long)]
    memory: Option<u64>,
    /// In seconds.
    #[arg(long)]
    cpu: Option<u64>,
    #[arg(long)]
    open_files: Option<u64>,
    #[arg(long)]
    processes: Option<u64>,
    program: String,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

pub(super) fn run(options: Options) -> ExitCode {
    let Options { user, memory, cpu, open_files, processes, program, args } = options;
    let limits = ProcessLimits { memory, cpu_seconds: cpu, open_files, processes };
    let why = Confinement { user, limits }.become_program(&program, &args);
    terminal::complain(format_args!("weir: `{program}` cannot be started: {why}"));
    ExitCode::from(NOT_STARTED)
}
