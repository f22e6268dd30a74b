//! `weir migrate`.

use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::json;

use crate::{cli::terminal, config::ConfigFile};

use super::{ConfigOption, save, unusable};

#[derive(clap::Args, Debug)]
pub(in crate::cli) struct MigrateOptions {
    /// Say what would change, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Say in JSON what changes. What is for people goes to standard error.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    file: ConfigOption,
}

pub(in crate::cli) fn migrate(options: &MigrateOptions) -> anyhow::Result<ExitCode> {
    let shown = options.file.config.display();
    if options.json {
        terminal::only_json();
    }
    let mut file = ConfigFile::open(&options.file.config)?;
    if !file.exists() {
        bail!("there is no {shown}; `weir init` begins one");
    }
    let changes = file.migrate();
    for change in &changes {
        terminal::say(change)?;
    }
    let mut kept = None;
    match (changes.is_empty(), options.dry_run) {
        (true, _) => terminal::say(format_args!("{shown} has the present form"))?,
        (false, true) => terminal::say("nothing was written: --dry-run")?,
        (false, false) => {
            file.missing().map_err(unusable)?;
            let backup = file.back_up().context("without a backup nothing is changed")?;
            save(file)?;
            terminal::say(format_args!("wrote {shown}; it was as in {}", backup.display()))?;
            kept = Some(backup);
        }
    }
    if options.json {
        let (file, written) = (&options.file.config, kept.is_some());
        let report = json!({ "file": file, "changes": changes, "written": written, "backup": kept });
        terminal::put_json(&report.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
