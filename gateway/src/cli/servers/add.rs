//! `weir add`.

use std::{
    fs,
    io::{self, IsTerminal, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::ValueEnum;
use toml_edit::{Array, InlineTable, Value};

use crate::{
    cli::{auth, terminal, test},
    config::{ConfigFile, UpstreamName},
};

use super::{BEGIN, ConfigOption, save, unusable};

/// Where secrets are kept that were on a command line: beside the configuration, for its owner alone.
const SECRETS: &str = "secrets";
/// Parts of names whose values are secret.
const SECRET: [&str; 7] = ["auth", "cookie", "credential", "key", "pass", "secret", "token"];

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  weir add github https://api.githubcopilot.com/mcp/ --header 'Authorization: Bearer \
                        ${env:GITHUB_TOKEN}'\n  weir add everything -- npx -y @modelcontextprotocol/server-everything"
)]
pub(in crate::cli) struct AddOptions {
    /// What it is called: letters, digits, `-` and `_`. Its tools are `<name>__<tool>` on `/mcp`.
    #[arg(value_name = "NAME")]
    name: UpstreamName,
    /// Its address.
    #[arg(value_name = "URL", required_unless_present = "command", conflicts_with = "command")]
    url: Option<String>,
    /// The program that is the server, and its arguments, after `--`.
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<String>,
    /// Which transport it speaks, where Weir should not find out.
    #[arg(long, value_enum, value_name = "TRANSPORT")]
    transport: Option<Transport>,
    /// A header for each request, as `NAME: VALUE`; may be repeated. `${env:NAME}` and `${file:PATH}` are expanded later.
    ///
    /// What looks secret goes into a file that only its owner can read, in `secrets` beside the configuration.
    #[arg(long = "header", value_name = "NAME: VALUE", requires = "url")]
    headers: Vec<String>,
    /// A variable for the program, as `NAME=VALUE`; may be repeated. What looks secret goes into a file, too.
    #[arg(long = "env", value_name = "NAME=VALUE", requires = "command")]
    variables: Vec<String>,
    /// What opens it, as `auth` of the configuration: `oauth`, `device`, `none` and so on.
    #[arg(long, value_name = "KIND", requires = "url")]
    auth: Option<String>,
    /// Do not reach it; otherwise a server with a URL is reached, and a login that it needs is offered.
    #[arg(long)]
    no_test: bool,
    #[command(flatten)]
    pub(super) file: ConfigOption,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// Streamable HTTP.
    Http,
    /// HTTP+SSE.
    Sse,
    /// Standard input and output.
    Stdio,
}

/// Keys of a new upstream, and the secrets among them.
struct NewUpstream<'a> {
    options: &'a AddOptions,
    keys: Vec<(&'static str, Value)>,
    secrets: Vec<(PathBuf, String)>,
}

pub(super) fn run(options: &AddOptions) -> anyhow::Result<ExitCode> {
    let path = &options.file.config;
    let mut new = NewUpstream { options, keys: Vec::new(), secrets: Vec::new() };
    new.fill()?;
    let mut file = ConfigFile::open(path)?;
    if !file.exists() {
        file.begin(BEGIN)?;
    }
    file.add(&options.name, new.keys).map_err(unusable)?;
    let shown = file.shown(options.name.as_str()).map_err(unusable)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    keep(folder, &new.secrets)?;
    if let Err(why) = save(file) {
        new.secrets.iter().for_each(|(secret, _)| drop(fs::remove_file(folder.join(secret))));
        return Err(why);
    }
    terminal::say(format_args!("added to {}:\n\n{}\n", path.display(), shown.trim_end()))?;
    for (secret, _) in &new.secrets {
        terminal::say(format_args!("its secret is in {}, which only you can read", folder.join(secret).display()))?;
    }
    match options.url.is_some() && !options.no_test {
        true => tried(options),
        false => {
            terminal::say(format_args!("try it: weir test {}", options.name))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Reaches it, and offers to sign in where that is what it needs. That it cannot be reached is no failure: it was added.
fn tried(options: &AddOptions) -> anyhow::Result<ExitCode> {
    let report = test::probe_one(options.name.as_str(), &options.file.config)?;
    terminal::say(report.line())?;
    if report.needs_login && asks("Sign in now? [Y/n] ")? {
        return auth::sign_in(options.name.as_str(), &options.file.config);
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the person at the terminal agrees; nobody does where there is none.
fn asks(question: &str) -> io::Result<bool> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(false);
    }
    eprint!("{question}");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "" | "y" | "yes"))
}

impl NewUpstream<'_> {
    fn fill(&mut self) -> anyhow::Result<()> {
        let AddOptions { url, command, transport, headers, variables, auth, .. } = self.options;
        if transport.is_some_and(|transport| (transport == Transport::Stdio) == command.is_empty()) {
            bail!("--transport stdio goes with a command after `--`, the others with a URL");
        }
        if let Some(url) = url {
            self.put("url", url.as_str());
        }
        match transport {
            Some(Transport::Http) => self.put("type", "http"),
            Some(Transport::Sse) => self.put("type", "sse"),
            Some(Transport::Stdio) | None => {}
        }
        if let Some((program, arguments)) = command.split_first() {
            self.put("command", program.as_str());
            if !arguments.is_empty() {
                self.put("args", arguments.iter().map(String::as_str).collect::<Array>());
            }
        }
        if let Some(kind) = auth {
            self.put("auth", kind.as_str());
        }
        self.headers(headers)?;
        self.variables(variables)
    }

    fn put(&mut self, key: &'static str, value: impl Into<Value>) {
        self.keys.push((key, value.into()));
    }

    fn headers(&mut self, headers: &[String]) -> anyhow::Result<()> {
        let mut table = InlineTable::new();
        for header in headers {
            let (name, value) = header.split_once(':').with_context(|| format!("`{header}` is no `NAME: VALUE`"))?;
            let (name, value) = (name.trim(), value.trim());
            let token = value.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            match token.filter(|_| name.eq_ignore_ascii_case("authorization")) {
                Some((_, token)) => self.bearer(token.trim()),
                None => drop(table.insert(name, self.value(name, value).into())),
            }
        }
        if !table.is_empty() {
            self.put("headers", table);
        }
        Ok(())
    }

    fn variables(&mut self, variables: &[String]) -> anyhow::Result<()> {
        let mut table = InlineTable::new();
        for variable in variables {
            let (name, value) = variable.split_once('=').with_context(|| format!("`{variable}` is no `NAME=VALUE`"))?;
            table.insert(name, self.value(name, value).into());
        }
        if !table.is_empty() {
            self.put("env", table);
        }
        Ok(())
    }

    /// A bearer token, which Weir sends to this origin alone.
    fn bearer(&mut self, token: &str) {
        let reference = token.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        let (kind, place) = match reference.map(|inner| inner.split_once(':').unwrap_or(("env", inner))) {
            Some((kind @ ("env" | "file"), place)) => (kind, place.to_owned()),
            _ => ("file", self.secret("token", token)),
        };
        self.put("bearer", InlineTable::from_iter([(kind, place)]));
    }

    /// A value as it is written: what is secret is elsewhere.
    fn value(&mut self, name: &str, value: &str) -> String {
        let named = name.to_ascii_lowercase();
        match !value.contains("${") && SECRET.iter().any(|word| named.contains(word)) {
            true => format!("${{file:{}}}", self.secret(&named, value)),
            false => value.to_owned(),
        }
    }

    /// Where a secret is going to be.
    fn secret(&mut self, name: &str, value: &str) -> String {
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
        let name: String = name.chars().map(plain).collect();
        let path = PathBuf::from(SECRETS).join(format!("{}-{name}", self.options.name));
        let shown = path.display().to_string();
        self.secrets.push((path, value.to_owned()));
        shown
    }
}

/// Writes secrets, each where only its owner can read it.
fn keep(folder: &Path, secrets: &[(PathBuf, String)]) -> anyhow::Result<()> {
    for (path, value) in secrets {
        let path = folder.join(path);
        let context = || format!("the secret cannot be kept in {}", path.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder.join(SECRETS)).with_context(context)?;
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).with_context(context)?;
        file.write_all(value.as_bytes()).with_context(context)?;
    }
    Ok(())
}
