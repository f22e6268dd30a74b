//! The real servers, and the proxies in front of one.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::paths::{node, peers, python1};
use crate::peer::{Launch, Peer};

/// A server that is an upstream of the gateway.
pub struct Column {
    /// The upstream's name.
    pub key: &'static str,
    /// What it is, for people, with its version.
    pub title: String,
    reach: Reach,
    /// What stands before the names of its tools.
    prefix: &'static str,
    /// How many pages its list of tools has.
    pages: usize,
    /// Whether it counts cancelled calls.
    counts: bool,
    everything: bool,
}

enum Reach {
    Http(Peer),
    Sse(Peer),
    Hub(Peer),
    Stdio(Launch),
}

impl Column {
    /// How it is reached without a gateway, in the words of a tour.
    pub(super) fn transport(&self) -> &'static str {
        match self.reach {
            Reach::Http(_) => "http",
            Reach::Sse(_) | Reach::Hub(_) => "sse",
            Reach::Stdio(_) => "stdio",
        }
    }

    /// Where it is, without a gateway.
    pub(super) fn direct(&self) -> Value {
        match &self.reach {
            Reach::Stdio(launch) => launch.command(),
            reached => json!(reached.url()),
        }
    }

    /// Its URL, if it has one.
    pub(super) fn url(&self) -> Option<String> {
        match &self.reach {
            Reach::Stdio(_) => None,
            reached => Some(reached.url()),
        }
    }

    /// Its lines of the configuration. What transport it speaks is left to be found out.
    pub(super) fn config(&self) -> String {
        match &self.reach {
            Reach::Stdio(launch) => launch.config(self.key),
            reached => format!("[upstreams.{}]\nurl = \"{}\"\n", self.key, reached.url()),
        }
    }

    /// One station of a tour.
    pub(super) fn station(&self, target: Value) -> Value {
        let slow = if self.everything {
            let arguments = |duration, steps| json!({ "duration": duration, "steps": steps });
            let tool = "trigger-long-running-operation";
            json!({ "tool": tool, "short": arguments(1, 5), "long": arguments(10, 10) })
        } else {
            json!({ "tool": "slow", "short": { "seconds": 0.5 }, "long": { "seconds": 10 } })
        };
        json!({
            "name": self.key, "target": target, "prefix": self.prefix, "slow": slow,
            "counts": self.counts, "pages": self.pages,
        })
    }
}

impl Reach {
    fn url(&self) -> String {
        match self {
            Self::Http(peer) | Self::Hub(peer) => peer.url(),
            Self::Sse(peer) => peer.sse_url(),
            Self::Stdio(_) => String::new(),
        }
    }
}

/// Starts all of them.
///
/// # Panics
/// When one does not start.
pub async fn columns() -> Vec<Column> {
    let (servers, proxies) = tokio::join!(servers(), proxies());
    servers.into_iter().chain(proxies).collect()
}

async fn servers() -> Vec<Column> {
    let (http, sse, python1, python2) =
        tokio::join!(Peer::everything(), Peer::everything_sse(), python1_server(), Peer::python());
    let (fastmcp, fastmcp_sse) = tokio::join!(Peer::fastmcp(), Peer::fastmcp_sse());
    let everything = npm("@modelcontextprotocol/server-everything");
    let everything = |key, how: &str, reach| Column {
        counts: false,
        pages: 1,
        everything: true,
        ..column(key, format!("`{everything}`, {how}"), reach)
    };
    let fastmcp_version = pypi("requirements.txt", "fastmcp");
    vec![
        everything("everything-stdio", "stdio", Reach::Stdio(Launch::everything())),
        everything("everything-sse", "HTTP+SSE", Reach::Sse(sse)),
        everything("everything-http", "Streamable HTTP", Reach::Http(http)),
        column(
            "python1-sse",
            format!("{} (Python), HTTP+SSE", pypi("requirements-sdk1.txt", "mcp")),
            Reach::Sse(python1),
        ),
        Column {
            pages: 1,
            ..column(
                "python2",
                format!("{} (Python), Streamable HTTP", pypi("requirements.txt", "mcp")),
                Reach::Http(python2),
            )
        },
        column("fastmcp", format!("{fastmcp_version}, Streamable HTTP"), Reach::Http(fastmcp)),
        column("fastmcp-sse", format!("{fastmcp_version}, HTTP+SSE"), Reach::Sse(fastmcp_sse)),
    ]
}

/// Each in front of the same small server over stdio.
async fn proxies() -> Vec<Column> {
    let (stateful, stateless, sse) = tokio::join!(
        supergateway(&["--outputTransport", "streamableHttp", "--stateful", "--streamableHttpPath", "/mcp"]),
        supergateway(&["--outputTransport", "streamableHttp", "--streamableHttpPath", "/mcp"]),
        supergateway(&["--outputTransport", "sse", "--ssePath", "/sse", "--messagePath", "/message"]),
    );
    let [program, argument] = pages();
    let proxied = Launch::new(Path::new(&program), [argument.as_str()]);
    let (npm_http, npm_sse, pypi_http, pypi_sse, hub) =
        tokio::join!(Peer::npm_proxy(&proxied), Peer::npm_proxy(&proxied), pypi_proxy(), pypi_proxy(), hub());
    let supergateway = npm("supergateway");
    let npm_proxy = npm("mcp-proxy");
    let pypi_proxy = pypi("requirements-sdk1.txt", "mcp-proxy");
    let one_page = |column| Column { pages: 1, ..column };
    vec![
        column("supergateway-stateful", format!("`{supergateway}`, Streamable HTTP, stateful"), Reach::Http(stateful)),
        column(
            "supergateway-stateless",
            format!("`{supergateway}`, Streamable HTTP, stateless"),
            Reach::Http(stateless),
        ),
        column("supergateway-sse", format!("`{supergateway}`, HTTP+SSE"), Reach::Sse(sse)),
        // It gathers the pages of the server behind it.
        one_page(column("npm-proxy", format!("`{npm_proxy}` (npm), Streamable HTTP"), Reach::Http(npm_http))),
        one_page(column("npm-proxy-sse", format!("`{npm_proxy}` (npm), HTTP+SSE"), Reach::Sse(npm_sse))),
        column("pypi-proxy", format!("{pypi_proxy} (PyPI), Streamable HTTP"), Reach::Http(pypi_http)),
        column("pypi-proxy-sse", format!("{pypi_proxy} (PyPI), HTTP+SSE"), Reach::Sse(pypi_sse)),
        // It shows the first page of the server behind it, on which nothing counts.
        Column {
            prefix: "pages__",
            counts: false,
            ..one_page(column("mcp-hub", format!("`{}`, its split HTTP+SSE", npm("mcp-hub")), Reach::Hub(hub)))
        },
    ]
}

fn column(key: &'static str, title: String, reach: Reach) -> Column {
    Column { key, title, reach, prefix: "", pages: 2, counts: true, everything: false }
}

async fn python1_server() -> Peer {
    Peer::on_free_port("the server on version 1 of the Python SDK", |port| {
        let mut command = Command::new(python1("python"));
        command.arg(peers("python1_server.py")).args(["--port", &port.to_string()]);
        command
    })
    .await
}

async fn supergateway(arguments: &[&str]) -> Peer {
    Peer::on_free_port("supergateway", |port| {
        let mut command = Command::new(node());
        command.arg(peers("node_modules/.bin/supergateway")).args(["--stdio", &pages().join(" ")]).args(arguments);
        command.args(["--port", &port.to_string()]);
        command
    })
    .await
}

async fn pypi_proxy() -> Peer {
    Peer::on_free_port("mcp-proxy of PyPI", |port| {
        let mut command = Command::new(python1("mcp-proxy"));
        command.args(["--port", &port.to_string(), "--"]).args(pages());
        command
    })
    .await
}

async fn hub() -> Peer {
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made").keep();
    let config = directory.join("hub.json");
    let [program, argument] = pages();
    let servers = json!({ "mcpServers": { "pages": { "command": program, "args": [argument] } } });
    fs::write(&config, servers.to_string()).expect("the configuration can be written");
    // It would fetch its list of servers from afar before it starts those that it has.
    let cache = directory.join("mcp-hub/cache");
    fs::create_dir_all(&cache).expect("a folder can be made");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs() * 1000;
    let known = json!({ "registry": { "servers": [{}] }, "lastFetchedAt": now, "serverDocumentation": {} });
    fs::write(cache.join("registry.json"), known.to_string()).expect("what is known can be written");
    let mut hub = Peer::on_free_port("mcp-hub", |port| {
        let mut command = Command::new(node());
        command.arg(peers("node_modules/.bin/mcp-hub")).args(["--port", &port.to_string(), "--config"]).arg(&config);
        command.env("HOME", &directory).env("XDG_STATE_HOME", &directory).env("XDG_DATA_HOME", &directory);
        command
    })
    .await;
    hub.says("that its servers run", |line| line.contains("started successfully").then_some(())).await;
    // It has been read.
    drop(fs::remove_dir_all(directory));
    hub
}

/// The small server that stands behind the proxies.
fn pages() -> [String; 2] {
    [node(), peers("pages.mjs")].map(|path| path.to_str().expect("the path of this repository is UTF-8").to_owned())
}

/// `name version` of an npm package, as it is pinned.
pub(super) fn npm(name: &str) -> String {
    let manifest = fs::read_to_string(peers("package.json")).expect("the peers have a manifest");
    let manifest: Value = serde_json::from_str(&manifest).expect("the manifest is JSON");
    let version = manifest["dependencies"][name].as_str().expect("the package is pinned");
    format!("{name} {version}")
}

/// The same for a Python package, as a word of code.
pub(super) fn pypi(file: &str, name: &str) -> String {
    let text = fs::read_to_string(peers(file)).expect("the peers have requirements");
    let version = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("=="));
    format!("`{name} {}`", version.expect("the package is pinned"))
}
