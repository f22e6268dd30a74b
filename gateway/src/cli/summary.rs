//! What `weir serve` says when it is ready: where it is, how its upstreams stand, and what to paste into a host.

use std::{
    io::{self, IsTerminal},
    sync::Arc,
    time::Duration,
};

use crate::{
    proxy::Proxy,
    snapshot::Snapshot,
    telemetry::{LiveView, printable},
};

use super::{server_table, terminal};

/// How long the summary waits for upstreams that are slow to say hello.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// Says where Weir is: to a person how each upstream stands and what to paste into a host, to a log one line. Nothing of
/// it is data, and a log in JSON stays JSON.
pub(super) async fn run(url: String, proxy: Arc<Proxy>, view: Option<LiveView>) {
    if let Some(view) = view {
        view.say(&format!("\n{}\n", hints(&url)));
        return server_table::run(view, url, proxy).await;
    }
    let catalog = proxy.catalog();
    let mut changes = catalog.changes();
    let settled = async { while !catalog.settled() && changes.changed().await.is_ok() {} };
    // Whoever is not there by now is shown as it stands.
    drop(tokio::time::timeout(FIRST_LOOK, settled).await);
    let text = summary(&url, &catalog.snapshot());
    let (on_stderr, on_stdout) = (io::stderr().is_terminal(), io::stdout().is_terminal());
    if !on_stderr && !on_stdout {
        tracing::info!(url, "Weir is ready for clients");
        return;
    }
    // A terminal that is stopped is no reason to wait: this thread alone may.
    let say = move || if on_stderr { terminal::complain(text) } else { drop(terminal::say(text)) };
    drop(std::thread::Builder::new().name("summary".into()).spawn(say));
}

fn summary(url: &str, snapshot: &Snapshot) -> String {
    let width = snapshot.upstreams().map(|upstream| upstream.name().len()).max().unwrap_or(0);
    let mut text = format!("\nWeir is at {url}\n\n");
    for upstream in snapshot.upstreams() {
        let status = upstream.status();
        let detail = match (status.tools, &status.error) {
            (_, Some(error)) => printable(error).into_owned(),
            (Some(tools), None) => {
                let (era, transport) = (status.era, status.transport);
                let how: Vec<String> =
                    transport.map(|t| t.to_string()).into_iter().chain(era.map(|e| e.to_string())).collect();
                format!("{tools} tools  ({})", how.join(", "))
            }
            (None, None) => String::new(),
        };
        text.push_str(&format!("  {:width$}  {:13}  {detail}\n", upstream.name(), status.state.to_string()));
    }
    text.push_str(&format!("\n{}", hints(url)));
    text
}

/// What to paste into a host.
fn hints(url: &str) -> String {
    format!(
        "Claude Code:\n  claude mcp add --transport http weir {url}\n\nAny host with an mcp.json:\n  {{\"mcpServers\":{{\"weir\":{{\"type\":\"http\",\"url\":\"{url}\"}}}}}}\n\nCtrl-C ends Weir.\n"
    )
}
