//! `weir demo`: a gateway over the built-in server.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::Context;

use crate::config::{
    Auth, Config, Limits, LoginOwner, LoginStore, Reach, Secret, StdioReach, SystemEnvironment, Timeouts,
    UpstreamConfig, default_cache_dir,
};

use super::serve;

pub(super) fn run(listen: SocketAddr) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        listen.ip().is_loopback(),
        "the demo listens on this machine only; use an address such as 127.0.0.1"
    );
    let program = std::env::current_exe().context("where this program is")?;
    serve::gateway(config(listen, program)?, false, false)
}

/// The built-in server itself.
pub(super) fn server() -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(crate::demo::run(tokio::io::stdin(), tokio::io::stdout()))?;
    // Standard input is read by a thread that cannot be woken; there is nothing left to wait for.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

fn config(listen: SocketAddr, program: PathBuf) -> anyhow::Result<Config> {
    let reach = StdioReach {
        command: program.into_os_string().into_string().ok().context("this program lies at a path that is no text")?,
        args: vec![Secret::new("demo-server".into())],
        env: Vec::new(),
        inherit: Vec::new(),
        secrets: Vec::new(),
        cwd: std::env::current_dir()?,
        shared: false,
    };
    let upstream = UpstreamConfig {
        name: "demo".parse()?,
        reach: Reach::Stdio(reach),
        auth: Auth::None,
        policies: Vec::new(),
        owner: LoginOwner::Shared,
        timeouts: Timeouts::default(),
        enabled: true,
    };
    Ok(Config {
        file: PathBuf::from("weir demo"),
        listen: vec![listen],
        tls: None,
        allowed_hosts: Vec::new(),
        allowed_origins: Vec::new(),
        cache_dir: default_cache_dir(&SystemEnvironment),
        inbound: Vec::new(),
        api_keys: false,
        public_url: None,
        client_metadata_url: None,
        store: LoginStore::default(),
        audit: None,
        limits: Limits::default(),
        upstreams: vec![upstream],
        warnings: Vec::new(),
        missing: Vec::new(),
    })
}
