//! `weir add`.

use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::json;

use crate::{
    cli::{auth, live::Report, terminal, test},
    config::{ConfigFile, UpstreamName},
};

use super::{
    BEGIN, ConfigOption,
    new::{KeptSecrets, NewUpstream},
    save, unusable,
};

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
    #[arg(long, value_name = "TRANSPORT", value_parser = ["http", "sse", "stdio"])]
    transport: Option<String>,
    /// A header for each request, as `NAME: VALUE`; may be repeated. `${env:NAME}` and `${file:PATH}` are expanded later.
    ///
    /// What looks secret goes into the login store, where it is encrypted.
    #[arg(long = "header", value_name = "NAME: VALUE", requires = "url")]
    headers: Vec<String>,
    /// A variable for the program, as `NAME=VALUE`; may be repeated. What looks secret goes into the store, too.
    #[arg(long = "env", value_name = "NAME=VALUE", requires = "command")]
    variables: Vec<String>,
    /// What opens it, as `auth` of the configuration: `oauth`, `device`, `none` and so on.
    #[arg(long, value_name = "KIND", requires = "url")]
    auth: Option<String>,
    /// Do not reach it; otherwise a server with a URL is reached, and a login that it needs is offered.
    #[arg(long)]
    no_test: bool,
    /// Say in JSON what was added, and how it was reached. What is for people goes to standard error.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) file: ConfigOption,
}

pub(super) fn run(options: &AddOptions) -> anyhow::Result<ExitCode> {
    let path = &options.file.config;
    if options.json {
        terminal::only_json();
    }
    let kept = KeptSecrets::of(path)?;
    let new = written(options, &kept)?;
    let mut file = ConfigFile::open(path)?;
    if !file.exists() {
        file.begin(BEGIN)?;
    }
    if let Some(secret) = new.taken_secret(&file) {
        bail!("the secret would be called {secret}, as one of another server; choose another name");
    }
    file.add(&options.name, new.keys).map_err(unusable)?;
    let shown = file.shown(options.name.as_str()).map_err(unusable)?;
    kept.keep(&new.secrets)?;
    if let Err(why) = save(file) {
        kept.forget(&new.secrets);
        return Err(why);
    }
    terminal::say(format_args!("added to {}:\n\n{}\n", path.display(), shown.trim_end()))?;
    for (secret, _) in &new.secrets {
        terminal::say(format_args!("its secret is in the login store: {secret}"))?;
    }
    let tests = options.url.is_some() && !options.no_test;
    let report = tests.then(|| test::probe_one(options.name.as_str(), path)).transpose()?;
    if options.json {
        let secrets: Vec<&String> = new.secrets.iter().map(|(secret, _)| secret).collect();
        let added = json!({ "file": path, "name": options.name.as_str(), "secrets": secrets, "test": report });
        terminal::put_json(&added.to_string())?;
    }
    match report {
        Some(report) => tried(options, &report),
        None => {
            terminal::say(format_args!("try it: weir test {}", options.name))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Says how it was reached, and offers to sign in where that is what it needs. That it cannot be reached is no failure: it was
/// added.
fn tried(options: &AddOptions, report: &Report) -> anyhow::Result<ExitCode> {
    terminal::say(report.line())?;
    if report.needs_login && terminal::asks("Sign in now? [Y/n] ", true)? {
        return auth::sign_in(options.name.as_str(), &options.file.config);
    }
    Ok(ExitCode::SUCCESS)
}

/// What the options say.
fn written(options: &AddOptions, kept: &KeptSecrets) -> anyhow::Result<NewUpstream> {
    let AddOptions { name, url, command, transport, headers, variables, auth, .. } = options;
    if transport.as_ref().is_some_and(|transport| (transport == "stdio") == command.is_empty()) {
        bail!("--transport stdio goes with a command after `--`, the others with a URL");
    }
    let mut new = NewUpstream::new(name.clone(), kept.names()?.into());
    if let Some(url) = url {
        new.url(url);
    }
    if let Some(transport) = transport.as_ref().filter(|_| url.is_some()) {
        new.put("type", transport.as_str());
    }
    if let Some((program, arguments)) = command.split_first() {
        new.command(program, arguments);
    }
    if let Some(kind) = auth {
        new.put("auth", kind.as_str());
    }
    let pairs = |all: &[String], separator: char, like: &str| {
        let pair = |text: &String| {
            let (name, value) = text.split_once(separator).with_context(|| format!("`{text}` is no `{like}`"))?;
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        };
        all.iter().map(pair).collect::<anyhow::Result<Vec<_>>>()
    };
    new.headers(&pairs(headers, ':', "NAME: VALUE")?);
    new.variables(&pairs(variables, '=', "NAME=VALUE")?);
    Ok(new)
}
