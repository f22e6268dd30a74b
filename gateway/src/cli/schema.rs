//! `weir schema`.

use std::{
    io::{self, Write},
    process::ExitCode,
};

pub(super) fn run() -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &crate::config::schema())?;
    writeln!(out)?;
    Ok(ExitCode::SUCCESS)
}
