//! `weir connect`: one upstream behind standard input and output.
//!
//! The options become a configuration with one upstream, so that what holds in a file holds here: which headers may be
//! set, how `${env:NAME}` is expanded, what a policy is told, and which login is used.

use std::{process::ExitCode, time::Duration};

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::{config::Config, credential::CredentialManager, server::stdio, telemetry};

use super::{BadConfig, address, assembly, front::Front, serve::StopSignals};

/// The longest message that a client may send, in bytes; as long as the longest that is gathered from a server.
pub(super) const MAX_LINE: usize = 32 * 1024 * 1024;

/// How much longer than its client a request may take, in seconds.
pub(super) const MORE: u64 = 2;

/// Where to and how.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The address of the server: its MCP endpoint, or the stream of a server that speaks HTTP+SSE.
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    url_options: UrlOptions,
    /// How long a request may take without progress, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_000))]
    timeout: u64,
    /// Use logins that are kept as plain text (`weir auth login URL --allow-plaintext-token-store`).
    #[arg(long)]
    allow_plaintext_token_store: bool,
    /// Say on standard error what happens.
    #[arg(long)]
    debug: bool,
}

/// How an address is reached.
#[derive(Debug, Default, Args)]
pub(super) struct UrlOptions {
    /// A header for every request, as NAME:VALUE; may be given several times. `${env:NAME}` and `${file:PATH}` in the
    /// value are expanded, so that no secret need stand on the command line. Values are never printed.
    #[arg(short = 'H', long = "header", value_name = "NAME:VALUE")]
    pub(super) headers: Vec<String>,
    /// Speak Streamable HTTP and try nothing else.
    #[arg(long, group = "transport")]
    pub(super) http: bool,
    /// Speak HTTP+SSE (2024-11-05) and try nothing else.
    #[arg(long, group = "transport")]
    pub(super) sse: bool,
    /// Speak HTTP+SSE in the form of mcp-hub, whose stream is at the URL itself and whose messages go elsewhere.
    #[arg(long, group = "transport")]
    pub(super) mcp_hub: bool,
}

pub(super) fn run(options: Options) -> anyhow::Result<ExitCode> {
    let _log = telemetry::start(if options.debug { "info,weir=debug" } else { "warn" });
    let config = options.url_options.config("weir connect", &options.url, options.timeout)?;
    let manager = CredentialManager::new(&config, options.allow_plaintext_token_store);
    let assembly = assembly::assemble(&config, &manager)?;
    let limits = stdio::StdioLimits { line: MAX_LINE, request: Duration::from_secs(options.timeout) };
    let runtime = super::runtime()?;
    let pipes = (tokio::io::stdin(), tokio::io::stdout());
    let stop = async {
        // Without a terminal or a host there is nobody to answer to, but sessions are to be ended.
        let hangup = signal(SignalKind::hangup());
        let hung_up = async {
            if let Ok(mut hangup) = hangup {
                hangup.recv().await;
            }
        };
        let signalled = async {
            if let Ok(mut stop) = StopSignals::new() {
                stop.next().await;
            }
        };
        tokio::select! {
            () = signalled => {}
            () = hung_up => {}
        }
    };
    let served = runtime.block_on(Front::of_one(assembly.snapshot).serve(&manager, limits, pipes, stop));
    // Standard input is read by a thread that cannot be woken; there is nothing left to wait for.
    runtime.shutdown_background();
    served.context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

impl UrlOptions {
    /// Whether any of them is given.
    pub(super) const fn are_given(&self) -> bool {
        let Self { headers, http, sse, mcp_hub } = self;
        !headers.is_empty() || *http || *sse || *mcp_hub
    }

    /// A configuration of the upstream at an address, or what is wrong with the options, for `command` to tell. Header
    /// values are never in that. `timeout` is in seconds.
    pub(super) fn config(&self, command: &str, url: &str, timeout: u64) -> Result<Config, BadConfig> {
        let mut headers = toml::Table::new();
        for header in &self.headers {
            let Some((name, value)) = header.split_once(':') else {
                return Err(BadConfig(
                    "--header: this is not NAME:VALUE, such as \"Authorization: Bearer ${env:TOKEN}\"".into(),
                ));
            };
            let taken = headers.insert(name.trim().to_owned(), value.trim().into());
            if taken.is_some() {
                return Err(BadConfig("--header: one name is given twice".into()));
            }
        }
        let mut upstream = toml::Table::new();
        if headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")) {
            // Whoever brings a token of their own wants no login.
            upstream.insert("auth".into(), "none".into());
        }
        upstream.insert("headers".into(), headers.into());
        if self.http {
            upstream.insert("type".into(), "http".into());
        } else if self.sse || self.mcp_hub {
            upstream.insert("type".into(), "sse".into());
        }
        let mut timeouts = toml::Table::new();
        for name in ["overall", "read"] {
            // A little more: the front gives up first, and tells the server so.
            timeouts.insert(name.into(), format!("{}s", timeout + MORE).into());
        }
        upstream.insert("timeouts".into(), timeouts.into());
        address::config(command, url, upstream)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use clap::Parser;

    use super::*;
    use crate::config::{HttpTransport, Reach};

    #[derive(Debug, Parser)]
    struct StatusLine {
        #[command(flatten)]
        options: Options,
    }

    fn read(args: &[&str]) -> Result<Config, String> {
        let line = StatusLine::try_parse_from([&["connect"], args].concat()).map_err(|why| why.to_string())?;
        let Options { url, url_options, timeout, .. } = line.options;
        url_options.config("weir connect", &url, timeout).map_err(|why| why.to_string())
    }

    #[test]
    fn options_become_an_upstream() {
        let url = "http://127.0.0.1:1/mcp";
        for (option, pinned) in [
            (None, None),
            (Some("--http"), Some(HttpTransport::Streamable)),
            (Some("--sse"), Some(HttpTransport::Sse)),
            (Some("--mcp-hub"), Some(HttpTransport::Sse)),
        ] {
            let args: Vec<&str> =
                [url, "--timeout", "7", "--header", "X-A: b \"c\" \\ d:e"].into_iter().chain(option).collect();
            let config = read(&args).unwrap();
            let [upstream] = &config.upstreams[..] else { panic!("{config:?}") };
            let Reach::Http(reach) = &upstream.reach else { panic!("{upstream:?}") };
            assert_eq!(reach.pinned, pinned);
            assert_eq!((reach.headers[0].0.as_str(), reach.headers[0].1.expose()), ("x-a", "b \"c\" \\ d:e"));
            assert_eq!(upstream.timeouts.overall, Duration::from_secs(7 + MORE));
        }
        assert!(read(&[url, "--http", "--sse"]).is_err());
    }

    #[test]
    fn what_is_wrong_is_said_without_the_value_of_a_header() {
        for args in [
            ["http://127.0.0.1:1/", "--header", "s3cret"],
            ["http://127.0.0.1:1/", "--header", "Mcp-Name: s3cret"],
            ["http://127.0.0.1:1/", "--header", "A: s3cret\u{1}"],
            ["http://127.0.0.1:1/", "--header", "A: s3cret ${vault:x}"],
            ["http://127.0.0.1:1/", "--header", "A: s3cret${env:NOT_SET_ANYWHERE}"],
            ["ftp://s3cret@x/", "--header", "A: s3cret"],
        ] {
            let why = read(&args).map(|_| ()).unwrap_err();
            assert!(!why.contains("s3cret") && !why.contains("weir connect:1"), "{why}");
        }
    }
}
