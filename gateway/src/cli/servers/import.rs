//! `weir import`: servers out of the files of other hosts.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use toml_edit::{Array, InlineTable};
use weir_hosts::{DockerFiles, Host, HostServers, Piece, Server, Template, detect, read, read_command, read_gateway};

use crate::{
    cli::{hosts, terminal},
    config::{ConfigFile, EditError, UpstreamName, nearest_name},
};

use super::{
    BEGIN, ConfigOption,
    new::{KeptSecrets, NewUpstream},
    save, unusable,
};

/// The largest file that is read.
const LARGEST: u64 = weir_hosts::MAX_BYTES as u64;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  weir import\n  weir import cursor\n  weir import agentgateway.yaml\n  weir import -- \
                        npx -y supergateway --stdio 'npx -y @modelcontextprotocol/server-everything'"
)]
pub(in crate::cli) struct ImportOptions {
    /// Hosts such as `cursor`, or files of hosts and of other gateways; all hosts of this user and this folder if nothing
    /// is named.
    #[arg(value_name = "HOST|FILE")]
    from: Vec<String>,
    /// The command line of `supergateway`, `mcp-proxy` or `mcp-remote`, after `--`: Weir serves what is behind it.
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<String>,
    /// Add them without asking. Programs are added disabled, unless `--trust` is there too.
    #[arg(long)]
    yes: bool,
    /// Also take the servers that Claude Code keeps for other projects. Their programs start in the folder of the project.
    #[arg(long)]
    all_projects: bool,
    /// Enable programs at once: Weir will start them as you.
    #[arg(long)]
    trust: bool,
    /// Say in JSON which servers were found. What is for people goes to standard error.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    file: ConfigOption,
}

/// One server that may be added.
struct Candidate {
    new: NewUpstream,
    /// Whether it starts a program.
    is_program: bool,
    /// Why it cannot be used yet.
    missing: Vec<String>,
    /// What of it is lost.
    lost: Vec<String>,
}

pub(in crate::cli) fn import(options: &ImportOptions) -> anyhow::Result<ExitCode> {
    let path = &options.file.config;
    if options.json {
        terminal::only_json();
    }
    let mut intake = Intake::open(path, options.trust)?;
    if !options.command.is_empty() {
        let found = read_command(&options.command);
        let found = found.context("it is no bridge that Weir knows; `weir add NAME -- COMMAND` adds a program")?;
        terminal::say("the command line:")?;
        intake.take_all(&found)?;
    }
    let nothing_else = !options.command.is_empty() && options.from.is_empty();
    for source in if nothing_else { Vec::new() } else { sources(&options.from)? } {
        terminal::say(format_args!("{}:", source.display()))?;
        let found = servers(&source, !options.from.is_empty())?;
        intake.take_all(&match options.all_projects {
            true => found.in_all_projects(&here()),
            false => in_this_project(found)?,
        })?;
    }
    let (count, found) = (intake.added.len(), options.json.then(|| intake.found()));
    let report = |written: bool| match &found {
        Some(servers) => {
            terminal::put_json(&json!({ "file": path, "written": written, "servers": servers }).to_string())
        }
        None => Ok(()),
    };
    if count == 0 {
        terminal::say("there is nothing to add")?;
        report(false)?;
        return Ok(ExitCode::SUCCESS);
    }
    let question = format!("Add {} to {}? [y/N] ", counted(count), path.display());
    if !options.yes && !terminal::asks(&question, false)? {
        terminal::say("nothing was written; --yes writes it")?;
        report(false)?;
        return Ok(ExitCode::FAILURE);
    }
    intake.save()?;
    report(true)?;
    Ok(ExitCode::SUCCESS)
}

/// Servers on their way into the configuration, which is not written yet.
pub(in crate::cli) struct Intake<'p> {
    file: ConfigFile,
    path: &'p Path,
    /// Where this gateway is, so that it does not become its own upstream.
    own: Option<String>,
    kept: KeptSecrets,
    /// The names of secrets that the store has already.
    taken: Arc<[String]>,
    trust: bool,
    added: Vec<Candidate>,
}

impl<'p> Intake<'p> {
    pub(in crate::cli) fn open(path: &'p Path, trust: bool) -> anyhow::Result<Self> {
        let mut file = ConfigFile::open(path)?;
        if !file.exists() {
            file.begin(BEGIN)?;
        }
        let (own, kept) = (hosts::gateway_url(path), KeptSecrets::of(path)?);
        let taken = kept.names()?.into();
        Ok(Self { file, path, own, kept, taken, trust, added: Vec::new() })
    }

    fn take_all(&mut self, found: &HostServers) -> anyhow::Result<()> {
        for lost in &found.not_carried {
            terminal::say(format_args!("  {lost}"))?;
        }
        for server in &found.servers {
            self.take(server)?;
        }
        Ok(())
    }

    /// Adds a server, and says what it would be. Its name in Weir; none if it is left out, which is said too.
    pub(in crate::cli) fn take(&mut self, server: &Server) -> anyhow::Result<Option<UpstreamName>> {
        if self.own.as_ref().is_some_and(|own| leads_to(server, own)) {
            terminal::say(format_args!("  {}: it is Weir itself", server.name))?;
            return Ok(None);
        }
        let Some(candidate) = candidate(server, &self.taken) else {
            terminal::say(format_args!("  {}: no name for it; add it with `weir add`", server.name))?;
            return Ok(None);
        };
        let added = add(&mut self.file, &self.kept, candidate, self.trust)?;
        let name = added.as_ref().map(|added| added.new.name.clone());
        self.added.extend(added);
        Ok(name)
    }

    /// The servers that would be added.
    fn found(&self) -> Vec<Value> {
        let found = |candidate: &Candidate| {
            let notes: Vec<&String> = candidate.missing.iter().chain(&candidate.lost).collect();
            json!({ "name": candidate.new.name.as_str(), "enabled": !candidate.is_disabled(self.trust), "notes": notes })
        };
        self.added.iter().map(found).collect()
    }

    /// Writes the configuration, and says which of the servers are disabled. If it cannot be written, no secret stays.
    pub(in crate::cli) fn save(self) -> anyhow::Result<()> {
        let (path, kept, trust) = (self.path, self.kept, self.trust);
        let secrets: Vec<_> = self.added.iter().flat_map(|candidate| candidate.new.secrets.clone()).collect();
        kept.keep(&secrets)?;
        if let Err(why) = save(self.file) {
            kept.forget(&secrets);
            return Err(why);
        }
        terminal::say(format_args!("added {} to {}", counted(self.added.len()), path.display()))?;
        let disabled = self.added.iter().filter(|candidate| candidate.is_disabled(trust));
        let disabled: Vec<&str> = disabled.map(|candidate| candidate.new.name.as_str()).collect();
        if !disabled.is_empty() {
            terminal::say(format_args!("disabled until you have looked at them: weir enable {}", disabled.join(" ")))?;
        }
        Ok(())
    }
}

/// Whether a server is the gateway at this address.
fn leads_to(server: &Server, own: &str) -> bool {
    let is_own = |template: &Template| template.as_literal().is_some_and(|text| text.starts_with(own));
    server.url.as_ref().is_some_and(is_own) || (server.url.is_none() && server.args.iter().any(is_own))
}

fn counted(count: usize) -> String {
    if count == 1 { "1 server".to_owned() } else { format!("{count} servers") }
}

/// Adds a server to the file that is not written yet, and says what it would be; none if it is left out.
fn add(
    file: &mut ConfigFile,
    kept: &KeptSecrets,
    mut candidate: Candidate,
    trust: bool,
) -> anyhow::Result<Option<Candidate>> {
    let name = candidate.new.name.clone();
    if let Some(secret) = candidate.new.taken_secret(file) {
        terminal::say(format_args!(
            "  {name}: it is left out: another server has a secret called {secret}; add it with `weir add`"
        ))?;
        return Ok(None);
    }
    if let Err(EditError::Taken(_)) = file.add(&name, candidate.new.keys.clone()) {
        terminal::say(format_args!("  {name}: there is one of this name already, so it is left out"))?;
        return Ok(None);
    }
    // Whether Weir would take it can be seen once its secrets are there. They are kept with the configuration.
    kept.assume(&candidate.new.secrets);
    if candidate.is_disabled(trust) {
        file.enable(name.as_str(), false).map_err(unusable)?;
    }
    match file.missing() {
        Ok(missing) => candidate.missing.extend(missing.into_iter().map(|problem| problem.message)),
        Err(EditError::Refused(problems)) => {
            for problem in problems.0 {
                terminal::say(format_args!("  {name}: it is left out: {}", problem.message))?;
            }
            file.remove(name.as_str()).map_err(unusable)?;
            return Ok(None);
        }
        Err(why) => return Err(unusable(why)),
    }
    if candidate.is_disabled(trust) {
        file.enable(name.as_str(), false).map_err(unusable)?;
    }
    for line in file.shown(name.as_str()).map_err(unusable)?.trim_end().lines() {
        terminal::say(format_args!("    {line}"))?;
    }
    for (secret, _) in &candidate.new.secrets {
        terminal::say(format_args!("  {name}: a secret goes into the login store: {secret}"))?;
    }
    for note in candidate.missing.iter().chain(&candidate.lost) {
        terminal::say(format_args!("  {name}: {note}"))?;
    }
    Ok(Some(candidate))
}

/// The files to read, without those that are not there where nobody has named them.
fn sources(from: &[String]) -> anyhow::Result<Vec<PathBuf>> {
    let directories = hosts::directories()?;
    let files = |host: Host| host.files(&directories).into_iter().map(|file| file.path).filter(|path| path.exists());
    if from.is_empty() {
        return Ok(Host::ALL.into_iter().flat_map(files).collect());
    }
    let mut all = Vec::new();
    for named in from {
        match Host::parse(named) {
            Some(host) => {
                let before = all.len();
                all.extend(files(host));
                if all.len() == before {
                    bail!("{} has no configuration here; name its file", host.title());
                }
            }
            None if Path::new(named).exists() => all.push(named.into()),
            None => bail!("`{named}` is no file and no host; hosts are {}", hosts::names()),
        }
    }
    Ok(all)
}

/// The servers of a file. One that is no host's is an error only where it was named.
fn servers(path: &Path, named: bool) -> anyhow::Result<HostServers> {
    let shown = path.display();
    let text = text_of(path)?;
    if named {
        let folder = path.parent().unwrap_or(Path::new(""));
        // Docker keeps catalogs in a folder of their own.
        let above = folder.parent().filter(|_| folder.file_name().is_some_and(|name| name == "catalogs"));
        let beside = |name: &str| {
            let beside = above.unwrap_or(folder).join(name);
            beside.exists().then(|| text_of(&beside)).transpose()
        };
        let (registry, config) = (beside("registry.yaml")?, beside("config.yaml")?);
        let beside = DockerFiles { registry: registry.as_deref(), config: config.as_deref() };
        if let Some(found) = read_gateway(&text, beside) {
            return found.map_err(|why| anyhow::anyhow!("{shown}:{why}"));
        }
    }
    let Some(host) = detect(path, &text) else {
        if named {
            bail!("{shown} has no servers in a form that Weir knows");
        }
        return Ok(HostServers::default());
    };
    read(host, &text).map_err(|why| anyhow::anyhow!("{shown}:{why}"))
}

/// The current folder.
fn here() -> String {
    env::current_dir().unwrap_or_default().to_string_lossy().into_owned()
}

/// The servers for all projects and for the current folder. Says how many are left out.
fn in_this_project(found: HostServers) -> anyhow::Result<HostServers> {
    let here = here();
    match found.elsewhere(&here) {
        0 => {}
        1 => terminal::say("  1 server is of another project; --all-projects takes it too")?,
        count => terminal::say(format_args!("  {count} servers are of other projects; --all-projects takes them too"))?,
    }
    Ok(found.in_project(&here))
}

fn text_of(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let size = fs::metadata(path).with_context(|| format!("{shown} cannot be read"))?.len();
    if size > LARGEST {
        bail!("{shown} is larger than {LARGEST} bytes");
    }
    fs::read_to_string(path).with_context(|| format!("{shown} cannot be read"))
}

/// A server as Weir has it; none if it has no name that Weir can take.
fn candidate(server: &Server, taken: &Arc<[String]>) -> Option<Candidate> {
    let name: UpstreamName = server.name.parse().ok().or_else(|| nearest_name(&server.name))?;
    let mut candidate = Candidate {
        new: NewUpstream::new(name, Arc::clone(taken)),
        is_program: server.url.is_none(),
        missing: Vec::new(),
        lost: server.not_carried.clone(),
    };
    candidate.reach(server);
    candidate.credentials(server);
    candidate.rest(server);
    Some(candidate)
}

impl Candidate {
    fn is_disabled(&self, trust: bool) -> bool {
        (self.is_program && !trust) || !self.missing.is_empty()
    }

    fn reach(&mut self, server: &Server) {
        if let Some(url) = &server.url {
            let url = self.text(url);
            self.new.url(&url);
            if let Some(required) = server.required_type() {
                self.new.put("type", required);
            }
            if let Some(bridge) = &server.bridge {
                self.lost.push(format!("Weir reaches it itself, without `{bridge}`"));
            }
        } else if let Some(command) = &server.command {
            let program = self.text(command);
            let arguments: Vec<String> = server.args.iter().map(|argument| self.text(argument)).collect();
            if self.new.command(&program, &arguments) {
                self.lost.push(
                    "an argument is secret, and every user can read arguments of programs; `env` hides it".to_owned(),
                );
            }
            if let Some(bridge) = &server.bridge {
                self.lost.push(format!("Weir starts it itself, without `{bridge}`"));
            }
        }
        if let Some(cwd) = &server.cwd {
            let cwd = self.text(cwd);
            self.new.put("cwd", cwd);
        }
    }

    fn credentials(&mut self, server: &Server) {
        let pairs = |this: &mut Self, all: &[(String, Template)]| -> Vec<(String, String)> {
            all.iter().map(|(name, value)| (name.clone(), this.text(value))).collect()
        };
        let (headers, variables) = (pairs(self, &server.headers), pairs(self, &server.env));
        self.new.headers(&headers);
        self.new.variables(&variables);
        if let Some(variable) = &server.bearer_env {
            let reference = self.text(&Template::env(variable.clone()));
            self.new.bearer(&reference);
        }
        let Some(oauth) = &server.oauth else { return };
        if self.new.keys.iter().any(|(key, _)| *key == "bearer") {
            self.lost.push("its OAuth is left out, since it has a token".to_owned());
            return;
        }
        self.new.put("auth", "oauth");
        let mut table = InlineTable::new();
        if let Some(id) = &oauth.client_id {
            table.insert("client_id", self.text(id).into());
        }
        if let Some(secret) = &oauth.client_secret {
            let secret = self.text(secret);
            let source = self.new.source("client-secret", &secret);
            table.insert("client_secret", toml_edit::Value::InlineTable(source));
        }
        if !oauth.scopes.is_empty() {
            table.insert("scopes", toml_edit::Value::Array(oauth.scopes.iter().map(String::as_str).collect()));
        }
        self.new.table("oauth", table);
        for (given, key) in [
            (oauth.resource.is_some(), "resource"),
            (oauth.callback_port.is_some(), "callback port"),
            (oauth.metadata_url.is_some(), "metadata URL"),
        ] {
            if given {
                self.lost.push(format!("the {key} of its OAuth is left out; Weir finds it out"));
            }
        }
    }

    fn rest(&mut self, server: &Server) {
        if let Some(seconds) = server.timeout_seconds {
            self.new.put("timeouts", InlineTable::from_iter([("overall", format!("{seconds}s"))]));
        }
        let mut tools = InlineTable::new();
        let list = |names: &[String]| toml_edit::Value::Array(names.iter().map(String::as_str).collect::<Array>());
        if let Some(allowed) = &server.tools.allowed {
            tools.insert("allow", list(allowed));
        }
        if !server.tools.denied.is_empty() {
            tools.insert("deny", list(&server.tools.denied));
        }
        self.new.table("tools", tools);
        if !server.enabled {
            self.missing.push("the host has it disabled".to_owned());
        }
        if server.env_file.is_some() {
            self.lost.push("its file of variables is left out; name them in `env`".to_owned());
        }
    }

    /// A text with its references as Weir writes them.
    fn text(&mut self, template: &Template) -> String {
        template.0.iter().map(|piece| self.piece(piece)).collect()
    }

    fn piece(&mut self, piece: &Piece) -> String {
        match piece {
            Piece::Literal(text) => text.replace("${", "$${"),
            Piece::Env { name, default } => match default.as_ref().filter(|_| env::var_os(name).is_none()) {
                Some(default) => default.clone(),
                None => self.variable(name, ""),
            },
            Piece::Input { id, description, .. } => {
                let plain =
                    |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' };
                let name: String = id.chars().map(plain).collect();
                let about = description.as_ref().map_or_else(String::new, |about| format!(" ({about})"));
                self.variable(&name, &about)
            }
            Piece::WorkspaceFolder => env::current_dir().unwrap_or_default().display().to_string(),
            Piece::UserHome => env::var("HOME").unwrap_or_default(),
            Piece::Command(command) => {
                self.missing.push(format!(
                    "the output of `{command}` is left out; `bearer = {{ command = [...] }}` can have it"
                ));
                String::new()
            }
        }
    }

    /// A reference to a variable, which has to be there before Weir can use the server.
    fn variable(&mut self, name: &str, about: &str) -> String {
        let missing = format!("set {name}{about} in Weir's environment");
        if env::var_os(name).is_none() && !self.missing.contains(&missing) {
            self.missing.push(missing);
        }
        format!("${{env:{name}}}")
    }
}
