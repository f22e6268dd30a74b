//! `weir completions` and `weir man`: what shells and `man` know of the commands.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;
use clap_complete::Shell;

use super::{commands, terminal};

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  weir completions bash > ~/.local/share/bash-completion/completions/weir
  weir completions zsh > ~/.zfunc/_weir
  weir completions fish > ~/.config/fish/completions/weir.fish")]
pub(super) struct CompletionsOptions {
    /// The shell.
    shell: Shell,
}

#[derive(Args, Debug)]
#[command(after_help = "Example: weir man ~/.local/share/man/man1")]
pub(super) struct ManOptions {
    /// The folder; it is made where it is not there.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// `weir completions`.
pub(super) fn completions(options: &CompletionsOptions) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut commands(), "weir", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// `weir man`.
pub(super) fn man(options: &ManOptions) -> anyhow::Result<ExitCode> {
    let folder: &Path = &options.folder;
    let shown = || folder.display().to_string();
    fs::create_dir_all(folder).with_context(shown)?;
    clap_mangen::generate_to(commands(), folder).with_context(shown)?;
    terminal::say(format_args!("wrote a page for each command to {}", shown()))?;
    Ok(ExitCode::SUCCESS)
}
