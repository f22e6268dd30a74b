//! `weir demo`: a gateway over the built-in server.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;

use crate::config::{Config, LoginStore, SystemEnvironment};

use super::{log_options::LogOptions, serve};

pub(super) fn run(listen: SocketAddr) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        listen.ip().is_loopback(),
        "the demo listens on this machine only; use an address such as 127.0.0.1"
    );
    let program = std::env::current_exe().context("where this program is")?;
    serve::gateway(config(listen, program)?, None, false, false, &LogOptions::default())
}

/// The built-in server itself.
pub(super) fn server() -> anyhow::Result<ExitCode> {
    let runtime = super::runtime()?;
    runtime.block_on(crate::demo::run(tokio::io::stdin(), tokio::io::stdout()))?;
    // Standard input is read by a thread that cannot be woken; there is nothing left to wait for.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

fn config(listen: SocketAddr, program: PathBuf) -> anyhow::Result<Config> {
    let program = program.into_os_string().into_string().ok().context("this program lies at a path that is no text")?;
    let text = format!(
        "listen = \"{listen}\"\n[upstreams.demo]\ncommand = {}\nargs = [\"demo-server\"]\ninherit_env = []",
        toml::Value::from(program)
    );
    let config = Config::parse(&text, Path::new("weir demo"), &SystemEnvironment)?;
    // No file says it, so none is read again.
    Ok(Config { file: PathBuf::new(), store: LoginStore::default(), ..config })
}

#[cfg(test)]
mod tests {
    use super::config;

    #[test]
    fn it_has_no_file_that_could_change() {
        let demo = config(([127, 0, 0, 1], 8080).into(), "weir".into());
        assert!(demo.is_ok_and(|demo| demo.file.as_os_str().is_empty()));
    }
}
