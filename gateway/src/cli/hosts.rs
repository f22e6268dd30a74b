//! `weir client`: hosts that are pointed at Weir, and where they keep that.

mod moving;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;
use weir_hosts::{Bearer, Command, Directories, EditError, Entry, Host, HostFile, Os, Scope};

use crate::config::{self, Config, DEFAULT_FILE, default_file};

use super::{suggestion, terminal};

#[derive(Debug, Subcommand)]
pub(super) enum ClientCommand {
    /// List the hosts that Weir knows, and which of them point at it.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: EntryOptions,
    },
    /// Print what to paste into a host's file.
    Print {
        /// The host.
        #[arg(value_name = "HOST")]
        host: HostName,
        /// As JSON, with the host's file and the link that opens the host.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: EntryOptions,
    },
    /// Point hosts at Weir: write an entry into their files. Everything else in them stays.
    #[command(after_help = "Examples:
  weir client connect cursor codex
  weir client connect claude-code --project
  weir client connect --all --dry-run
  weir client connect cursor --move")]
    Connect {
        #[command(flatten)]
        options: HostsOptions,
        #[command(flatten)]
        moving: MoveOptions,
    },
    /// Take that entry out of the files of hosts again.
    ///
    /// Servers that `connect --move` has taken out come back, if the file was not changed since.
    Disconnect(HostsOptions),
}

#[derive(Args, Debug)]
pub(super) struct MoveOptions {
    /// Move the servers of these files into Weir's configuration, as `weir import` does. A copy stays beside each file.
    ///
    /// Permission rules of Claude Code that name their tools are rewritten.
    #[arg(long = "move", conflicts_with = "endpoint")]
    moves: bool,
    /// Move them without asking. Programs are added disabled, unless `--trust` is there too.
    #[arg(long, requires = "moves")]
    yes: bool,
    /// Enable programs at once: Weir will start them as you.
    #[arg(long, requires = "moves")]
    trust: bool,
}

#[derive(Args, Debug)]
pub(super) struct HostsOptions {
    /// The hosts; `weir client list` names them.
    #[arg(value_name = "HOST", required_unless_present = "all")]
    hosts: Vec<HostName>,
    /// Every host that has a configuration here.
    #[arg(long, conflicts_with = "hosts")]
    all: bool,
    /// Use the files of this folder, such as `.mcp.json`, instead of those of the user.
    #[arg(long)]
    project: bool,
    /// Print what would be written, and write nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    options: EntryOptions,
}

#[derive(Args, Debug)]
pub(super) struct EntryOptions {
    /// What the hosts call it.
    #[arg(long, value_name = "NAME", default_value = "weir")]
    name: String,
    /// Where Weir is. Default: as the configuration has it.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The endpoint: what follows `/mcp/`, an upstream or a toolset. Default: all servers.
    #[arg(long, value_name = "NAME", conflicts_with = "url")]
    endpoint: Option<String>,
    /// The variable from which the hosts read an API key or a token. Default: `WEIR_API_KEY` where callers need a key.
    #[arg(long, value_name = "VARIABLE")]
    bearer_env: Option<String>,
    /// The configuration, as for `serve`.
    #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
    config: PathBuf,
}

/// From where hosts read the key of a gateway that needs one.
const KEY_VARIABLE: &str = "WEIR_API_KEY";

/// Where Weir is if nothing says otherwise.
const USUAL: &str = "http://127.0.0.1:8080";

/// A host by its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostName(Host);

impl std::str::FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Host::ALL.into_iter().map(Host::name);
        Host::parse(text).map(Self).ok_or_else(|| suggestion::unknown("host", text, known()))
    }
}

/// The names of hosts that Weir knows.
pub(super) fn names() -> String {
    Host::ALL.map(Host::name).join(", ")
}

/// Where files of hosts are on this machine.
pub(super) fn directories() -> anyhow::Result<Directories> {
    let home = PathBuf::from(env::var_os("HOME").context("HOME is not set, so no host's files can be found")?);
    let config = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let os = if cfg!(target_os = "macos") { Os::MacOs } else { Os::Linux };
    Ok(Directories {
        config: config.unwrap_or_else(|| home.join(".config")),
        home,
        project: env::current_dir().ok(),
        os,
    })
}

pub(super) fn run(command: &ClientCommand) -> anyhow::Result<ExitCode> {
    match command {
        ClientCommand::List { json, options } => list(options, *json),
        ClientCommand::Print { host: HostName(host), json, options } => print(*host, options, *json),
        ClientCommand::Connect { options, moving } => each(options, |host, path| {
            let connected = match moving.moves {
                true => moving::connect(host, path, options, moving),
                false => connect(host, path, options),
            };
            connected.inspect(|_| warn_of_long_names(host, &options.options))
        }),
        ClientCommand::Disconnect(options) => each(options, |host, path| disconnect(host, path, options)),
    }
}

/// A host, and the file in which it may point at Weir.
#[derive(Serialize)]
struct ListedHost {
    host: &'static str,
    title: &'static str,
    connected: bool,
    file: Option<PathBuf>,
}

fn list(options: &EntryOptions, as_json: bool) -> anyhow::Result<ExitCode> {
    let directories = directories()?;
    let listed = |host: Host| {
        let files: Vec<HostFile> = host.files(&directories).into_iter().filter(|file| file.path.exists()).collect();
        let connected = files.iter().find(|file| is_connected(host, &file.path, &options.name));
        let file = connected.or_else(|| files.first()).map(|file| file.path.clone());
        ListedHost { host: host.name(), title: host.title(), connected: connected.is_some(), file }
    };
    let all = Host::ALL.map(listed);
    if as_json {
        terminal::put_json(&serde_json::to_string(&all)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for ListedHost { host, connected, file, .. } in &all {
        let state = match (connected, file) {
            (true, Some(file)) => format!("connected  {}", file.display()),
            (false, Some(file)) => format!("-          {}", file.display()),
            (_, None) => "no file".to_owned(),
        };
        terminal::say(format_args!("{host:<14}  {state}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn is_connected(host: Host, path: &Path, name: &str) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    matches!(weir_hosts::disconnect(host, &text, name), Ok(Some(_)))
}

fn print(host: Host, options: &EntryOptions, as_json: bool) -> anyhow::Result<ExitCode> {
    let entry = entry(host, options)?;
    let snippet = weir_hosts::snippet(host, &entry)?;
    if as_json {
        let (file, text, link) = (snippet.file, snippet.text, weir_hosts::link(host, &entry));
        terminal::put_json(&json!({ "host": host.name(), "file": file, "text": text, "link": link }).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    terminal::complain(format_args!("for {}:", snippet.file));
    terminal::say(snippet.text.trim_end())?;
    if let Some(link) = weir_hosts::link(host, &entry) {
        terminal::complain(format_args!("or open: {link}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Does something about each host. One that fails is told, and the others go on.
fn each(
    options: &HostsOptions,
    act: impl Fn(Host, &Path) -> anyhow::Result<Option<String>>,
) -> anyhow::Result<ExitCode> {
    let directories = directories()?;
    let scope = if options.project { Scope::Project } else { Scope::User };
    let file = |host: Host| {
        let mut files = host.files(&directories).into_iter().filter(|file| file.scope == scope).map(|file| file.path);
        let first = files.next();
        first.as_ref().filter(|path| path.exists()).cloned().or_else(|| files.find(|path| path.exists())).or(first)
    };
    let hosts: Vec<Host> = match options.all {
        true => Host::ALL.into_iter().filter(|host| file(*host).is_some_and(|path| path.exists())).collect(),
        false => options.hosts.iter().map(|HostName(host)| *host).collect(),
    };
    let mut failed = false;
    for host in hosts {
        let done = match file(host) {
            Some(path) => act(host, &path),
            None => {
                Err(anyhow::anyhow!("it has no such file; `weir client print {}` shows what to paste", host.name()))
            }
        };
        match done {
            Ok(Some(done)) => terminal::say(format_args!("{}: {done}", host.name()))?,
            Ok(None) => {}
            Err(why) => {
                failed = true;
                terminal::complain(format_args!("{}: {why:#}", host.name()));
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn connect(host: Host, path: &Path, options: &HostsOptions) -> anyhow::Result<Option<String>> {
    let entry = entry(host, &options.options)?;
    let before = text_of(path)?;
    let after = weir_hosts::connect(host, before.as_deref(), &entry).map_err(|why| match why {
        EditError::Taken { name } => {
            anyhow::anyhow!("it has another server called `{name}`; choose a name with --name")
        }
        why => why.into(),
    })?;
    let shown = path.display();
    if before.as_deref() == Some(&*after) {
        return Ok(Some(format!("{shown} says so already")));
    }
    if options.dry_run {
        terminal::say(format_args!("{shown} would be:\n{}", after.trim_end()))?;
        return Ok(None);
    }
    let Some(before) = before else {
        replace(path, None, &after)?;
        return Ok(Some(format!("wrote {shown}")));
    };
    let backup = backup(path);
    fs::copy(path, &backup).with_context(|| backup.display().to_string())?;
    replace(path, Some(&before), &after)?;
    Ok(Some(format!("wrote {shown}; what was there is in {}", backup.display())))
}

fn disconnect(host: Host, path: &Path, options: &HostsOptions) -> anyhow::Result<Option<String>> {
    let before = text_of(path)?;
    let text = before.as_deref().unwrap_or_default();
    let Some(after) = weir_hosts::disconnect(host, text, &options.options.name)? else {
        return Ok(Some("there is nothing to take out".to_owned()));
    };
    let shown = path.display();
    if options.dry_run {
        terminal::say(format_args!("{shown} would be:\n{}", after.trim_end()))?;
        return Ok(None);
    }
    let original = moving::restored(host, path, &after, &options.options.name)?;
    if let Some(original) = original {
        replace(path, before.as_deref(), &original)?;
        moving::finish(host, path, options)?;
        let note = "with the servers that were moved; Weir keeps them too, until `weir remove`";
        return Ok(Some(format!("wrote {shown} {note}")));
    }
    if after.is_empty() {
        fs::remove_file(path).with_context(|| shown.to_string())?;
        return Ok(Some(format!("removed {shown}, which held nothing else")));
    }
    replace(path, before.as_deref(), &after)?;
    let backup = backup(path);
    if fs::read_to_string(&backup).is_ok_and(|kept| kept == after) {
        fs::remove_file(&backup).with_context(|| backup.display().to_string())?;
    }
    Ok(Some(format!("wrote {shown}")))
}

/// Warns of tools whose names are too long for the host, as far as the configuration names tools.
fn warn_of_long_names(host: Host, options: &EntryOptions) {
    let Ok(config) = Config::load(&options.config) else { return };
    let mut names = Vec::new();
    for upstream in config.upstreams.iter().filter(|upstream| upstream.enabled) {
        let allowed = upstream.serves.tools.iter().filter_map(|tools| tools.allow.as_ref()).flatten();
        let exact = allowed.filter_map(|tool| tool.native.exact());
        names.extend(exact.map(|tool| format!("{}__{tool}", upstream.name)));
    }
    let Some(budget) = config.name_budget(host) else { return };
    let prefix = host.tool_prefix(&options.name);
    for name in host.over_budget(budget, &options.name, names.iter().map(String::as_str)) {
        terminal::complain(format_args!(
            "warning: {} takes names of {budget} characters, and `{prefix}{name}` is longer; give the tool a shorter name \
             in `[toolsets.<name>.overrides.<tool>]`",
            host.title()
        ));
    }
}

/// Where that is kept which was in a host's file before.
fn backup(path: &Path) -> PathBuf {
    beside(path, ".before-weir")
}

/// A file beside another one, with more at the end of its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut beside = path.to_owned().into_os_string();
    beside.push(suffix);
    beside.into()
}

fn text_of(path: &Path) -> anyhow::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why).with_context(|| path.display().to_string()),
    }
}

fn replace(path: &Path, before: Option<&str>, after: &str) -> anyhow::Result<()> {
    let shown = || path.display().to_string();
    let replaced = config::replace(path, before, after).with_context(shown)?;
    replaced.with_context(|| format!("{} has changed meanwhile, so nothing was written; try again", shown()))
}

/// What a host is told of Weir.
fn entry(host: Host, options: &EntryOptions) -> anyhow::Result<Entry> {
    let (url, needs_key) = match &options.url {
        Some(url) => (url.clone(), false),
        None if !options.config.exists() && options.config.as_os_str() == DEFAULT_FILE => {
            (at(USUAL, options.endpoint.as_deref()), false)
        }
        None => {
            let config = super::load(&options.config)?;
            (url(&config, options.endpoint.as_deref())?, config.api_keys && config.inbound.is_empty())
        }
    };
    // Where nobody can sign in, a host without a key is refused.
    let bearer_env = options.bearer_env.as_deref().or_else(|| {
        needs_key.then(|| {
            let name = host.name();
            terminal::complain(format_args!(
                "{name}: callers need a key here: `weir key add {name}` makes one, and the host reads it from {KEY_VARIABLE}"
            ));
            KEY_VARIABLE
        })
    });
    let needs_command = host == Host::ClaudeDesktop;
    let program = if needs_command { env::current_exe()?.display().to_string() } else { String::new() };
    let command = needs_command.then(|| {
        let mut args = vec!["connect".to_owned(), url.clone()];
        if let Some(variable) = bearer_env {
            args.extend(["--header".to_owned(), format!("Authorization: Bearer ${{env:{variable}}}")]);
        }
        Command { program, args, env: Vec::new() }
    });
    let bearer = bearer_env.filter(|_| !needs_command).map(|variable| Bearer::Env(variable.to_owned()));
    Ok(Entry { name: options.name.clone(), url, bearer, command })
}

/// Where clients reach a gateway of this configuration.
fn url(config: &Config, endpoint: Option<&str>) -> anyhow::Result<String> {
    let base = match (&config.public_url, config.listen.first()) {
        (Some(url), _) => url.clone(),
        (None, Some(address)) if address.port() == 0 => {
            bail!("the port is chosen at the start; name the address with --url")
        }
        (None, Some(address)) => {
            let scheme = if config.tls.is_some() { "https" } else { "http" };
            let host = if address.ip().is_unspecified() { "127.0.0.1".to_owned() } else { address.ip().to_string() };
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            format!("{scheme}://{host}:{}", address.port())
        }
        (None, None) => bail!("name the address with --url"),
    };
    Ok(at(&base, endpoint))
}

fn at(base: &str, endpoint: Option<&str>) -> String {
    match endpoint {
        Some(endpoint) => format!("{base}/mcp/{endpoint}"),
        None => format!("{base}/mcp"),
    }
}

/// Where clients reach a gateway of this configuration; none if that cannot be known.
pub(super) fn gateway_url(config: &Path) -> Option<String> {
    if !config.exists() {
        return Some(at(USUAL, None));
    }
    url(&Config::load(config).ok()?, None).ok()
}
