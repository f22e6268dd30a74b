//! The machine: ports, runtimes of upstreams, the proxies of the environment, and the clock.

use std::{
    collections::BTreeSet,
    env,
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Stdio,
    time::{Duration, SystemTime},
};

use tokio::{process::Command, time::timeout};

use super::{Findings, Severity};
use crate::{
    cli::running,
    config::{Config, HttpReach, Reach},
    http::{HeaderName, HttpClient, HttpTimeouts, Method, Request},
};

/// How long a program may take to say its version, and a server to say the time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tokens are refused where clocks differ by more.
const SKEW: Duration = Duration::from_secs(60);

/// The oldest major version of Node that the SDK of MCP runs on.
const OLDEST_NODE: u32 = 18;

/// Commands that start servers, and the runtimes that they need. Each says its version with these arguments.
const RUNTIMES: [(&[&str], &str, &[&str]); 7] = [
    (&["node", "npx", "npm", "pnpm", "yarn"], "node", &["--version"]),
    (&["npx"], "npx", &["--version"]),
    (&["bun", "bunx"], "bun", &["--version"]),
    (&["deno"], "deno", &["--version"]),
    (&["uv", "uvx"], "uv", &["--version"]),
    (&["python", "python3", "pipx"], "python3", &["--version"]),
    // This fails where the daemon does not answer.
    (&["docker"], "docker", &["version", "--format", "{{.Server.Version}}"]),
];

/// Looks whether the addresses are free, or the gateway has them.
pub(super) fn ports(config: &Config, findings: &mut Findings) {
    let process = running::process_id(config).map(|process| process.as_raw_nonzero());
    let admin = config.admin.iter().map(|admin| admin.listen);
    for address in config.listen.iter().copied().chain(admin) {
        if address.port() == 0 {
            findings.ok("ports", format_args!("the system chooses the port of {}", address.ip()));
            continue;
        }
        match (TcpListener::bind(address), process) {
            (Ok(_), None) => findings.ok("ports", format_args!("{address} is free")),
            (Ok(_), Some(process)) => findings.add(
                Severity::Warning,
                "ports",
                format_args!("the gateway that runs (process {process}) does not listen on {address}"),
                Some("weir upgrade".to_owned()),
            ),
            (Err(why), Some(process)) if why.kind() == ErrorKind::AddrInUse => {
                findings.ok("ports", format_args!("{address} is in use while the gateway runs as process {process}"));
            }
            (Err(why), _) => findings.add(
                Severity::Error,
                "ports",
                format_args!("{address} cannot be listened on: {why}"),
                Some(repair_of_port(&why, address)),
            ),
        }
    }
}

fn repair_of_port(why: &std::io::Error, address: SocketAddr) -> String {
    match why.kind() {
        ErrorKind::AddrInUse => {
            format!("`ss -ltnp 'sport = :{}'` says who has it; or choose another `listen`", address.port())
        }
        ErrorKind::PermissionDenied => "choose a port above 1023 as `listen`".to_owned(),
        _ => "choose an address of this machine as `listen`".to_owned(),
    }
}

/// Looks for the runtimes of those upstreams that are programs.
pub(super) async fn runtimes(config: &Config, findings: &mut Findings) {
    let used: BTreeSet<&str> = config
        .upstreams
        .iter()
        .filter(|upstream| upstream.enabled)
        .filter_map(|upstream| match &upstream.reach {
            Reach::Stdio(reach) => Path::new(&reach.command).file_name()?.to_str(),
            Reach::Http(_) => None,
        })
        .collect();
    for (commands, program, arguments) in RUNTIMES {
        let Some(command) = commands.iter().find(|command| used.contains(**command)) else { continue };
        let for_whom = if *command == program { String::new() } else { format!(", which `{command}` needs,") };
        match version(program, arguments).await {
            Ok(version) => match node_is_old(program, &version) {
                true => findings.add(
                    Severity::Warning,
                    "runtimes",
                    format_args!("`node` is {version}; most servers need {OLDEST_NODE} or later"),
                    Some("install a current Node.js: https://nodejs.org/".to_owned()),
                ),
                false => findings.ok("runtimes", format_args!("`{program}` is {version}")),
            },
            Err(why) => findings.add(
                Severity::Warning,
                "runtimes",
                format_args!("`{program}`{for_whom} does not work: {why}"),
                Some(format!("run `{program} {}` yourself, and install or start what is missing", arguments.join(" "))),
            ),
        }
    }
}

/// What a program says its version is.
async fn version(program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(PATIENCE, command.output()).await;
    let output = output.map_err(|_| format!("it says nothing within {} s", PATIENCE.as_secs()))?;
    let output = output.map_err(|why| match why.kind() {
        ErrorKind::NotFound => "it is not on PATH".to_owned(),
        _ => why.to_string(),
    })?;
    let first = |text: &[u8]| String::from_utf8_lossy(text).trim().lines().next().unwrap_or_default().to_owned();
    match output.status.success() {
        true => Ok(first(&output.stdout)),
        false => Err(format!("it ends with {}: {}", output.status, first(&output.stderr))),
    }
}

fn node_is_old(program: &str, version: &str) -> bool {
    let major = version.trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok());
    program == "node" && major.is_some_and(|major| major < OLDEST_NODE)
}

/// Looks whether hosts and servers on this machine would look for Weir at a proxy.
pub(super) fn proxies(findings: &mut Findings) {
    match caught(|name| env::var(name).ok()) {
        Some(variable) => findings.add(
            Severity::Warning,
            "proxies",
            format_args!(
                "`{variable}` is set, and `NO_PROXY` leaves out localhost or 127.0.0.1: hosts on this machine may look for Weir \
                 at the proxy"
            ),
            Some("export NO_PROXY=localhost,127.0.0.1,::1".to_owned()),
        ),
        None => findings.ok("proxies", "no proxy of the environment stands between this machine and Weir"),
    }
}

/// The variable that sends requests for this machine to a proxy.
fn caught(variable: impl Fn(&str) -> Option<String>) -> Option<&'static str> {
    let value = |name: &str| {
        let some = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        some(name).or_else(|| some(&name.to_ascii_lowercase()))
    };
    // Hosts reach Weir over HTTP; `https` is for a gateway with a certificate.
    let named = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"].into_iter().find(|name| value(name).is_some())?;
    let no = value("NO_PROXY").unwrap_or_default();
    let left_out: Vec<&str> = no.split([',', ' ']).map(str::trim).collect();
    let is_left_out = |host: &str| {
        left_out.iter().any(|entry| {
            *entry == "*" || *entry == host || host == "127.0.0.1" && entry.starts_with("127.") && entry.contains('/')
        })
    };
    (!is_left_out("localhost") || !is_left_out("127.0.0.1")).then_some(named)
}

/// Compares the clock with that of the first upstream that says the time.
pub(super) async fn clock(config: &Config, findings: &mut Findings) {
    let client = HttpClient::new();
    for upstream in config.upstreams.iter().filter(|upstream| upstream.enabled) {
        let Reach::Http(reach) = &upstream.reach else { continue };
        let Ok(Some(theirs)) = timeout(PATIENCE, date_of(&client, reach)).await else { continue };
        let now = SystemTime::now();
        let skew = now.duration_since(theirs).unwrap_or_else(|behind| behind.duration());
        let text = format!("the clock differs from that of `{}` by {} s", upstream.name, skew.as_secs());
        return match skew > SKEW {
            true => findings.add(Severity::Warning, "clock", text, Some("timedatectl set-ntp true".to_owned())),
            false => findings.ok("clock", text),
        };
    }
    findings.ok("clock", "no upstream says the time");
}

/// The `Date` of an answer (RFC 9110 §6.6.1). Whatever else the answer says does not matter, so no credential is sent.
async fn date_of(client: &HttpClient, reach: &HttpReach) -> Option<SystemTime> {
    let timeouts = HttpTimeouts { connect: PATIENCE, read: PATIENCE };
    let target = client.target(reach.url.as_url(), timeouts).ok()?;
    let response = client.send(&target, Request { method: Method::GET, headers: &[], body: None }).await.ok()?;
    let date = response.header(&HeaderName::from_static("date"))?.to_str().ok()?;
    httpdate::parse_http_date(date).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_catches_this_machine_unless_it_is_left_out() {
        let with = |variables: &[(&str, &str)]| {
            caught(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        let proxy = ("HTTP_PROXY", "http://proxy:3128");
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[proxy]), Some("HTTP_PROXY"));
        assert_eq!(with(&[("https_proxy", "http://proxy:3128")]), Some("HTTPS_PROXY"));
        assert_eq!(with(&[proxy, ("NO_PROXY", "localhost")]), Some("HTTP_PROXY"));
        for all in ["localhost,127.0.0.1", "*", "localhost, 127.0.0.0/8"] {
            assert_eq!(with(&[proxy, ("no_proxy", all)]), None, "{all}");
        }
    }

    #[test]
    fn old_versions_of_node_are_known() {
        for (program, version, is_old) in
            [("node", "v16.20.2", true), ("node", "v18.0.0", false), ("node", "?", false), ("npx", "9.1.0", false)]
        {
            assert_eq!(node_is_old(program, version), is_old, "{program} {version}");
        }
    }
}
