//! The command line: one file for each command.

mod access;
mod address;
mod assembly;
mod audit;
mod auth;
mod call;
mod changes;
mod check;
mod completions;
mod connect;
mod demo;
mod doctor;
mod examples;
mod exec;
mod exit_code;
mod front;
mod handover;
mod hosts;
mod key;
mod live;
mod log_options;
mod logs;
mod policy;
mod reload;
mod replica;
mod running;
mod schema;
mod secret;
mod server_table;
mod servers;
mod serve;
mod status;
mod store;
mod suggestion;
mod summary;
mod terminal;
mod test;
mod tools;
mod top;
mod upgrade;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tokio::runtime::{Builder, Runtime};

use crate::{
    config::{Config, default_file, listen_address, read_stored_secrets},
    credential::{CredentialManager, read_stored},
};

/// One address for all of a team's MCP servers.
///
/// Weir is a gateway for the Model Context Protocol. Hosts such as Claude Code, VS Code, Cursor or
/// Codex point at one URL, and every server in the configuration is behind it:
///
///   /mcp           all servers together; tools are named <server>__<tool>
///   /mcp/<server>  one server, untouched
///   /healthz       200 while the process lives
///   /readyz        200 when every server has been tried; the body tells how each one stands
///
/// Try it without any configuration: `weir demo`.
#[allow(rustdoc::invalid_html_tags, reason = "this is the text of `--help`")]
#[derive(Debug, Parser)]
#[command(name = "weir", version, verbatim_doc_comment, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the upstreams of a configuration until Ctrl-C.
    ///
    /// Ctrl-C or SIGTERM stops accepting, lets running calls finish and exits with 0; a second Ctrl-C ends at once.
    /// A configuration that cannot be used is explained as a whole and ends with exit code 64.
    #[command(after_help = "Examples:
  weir serve
  weir serve --config team.toml
  weir serve --config .mcp.json --listen 127.0.0.1:9000")]
    Serve {
        /// The configuration: TOML, or the file in which another host keeps its MCP servers; see `config/` for examples.
        #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
        config: PathBuf,
        /// Where to listen on this machine instead of at the `listen` of the configuration.
        #[arg(short, long, value_name = "ADDRESS", value_parser = listen_address)]
        listen: Option<std::net::SocketAddr>,
        /// Take over the sockets of the process that serves this configuration, so that no connection is refused.
        ///
        /// That one gets SIGQUIT, hands them over, and then stops as at SIGTERM. Sessions go over. `weir upgrade` does this in
        /// the background.
        #[arg(long)]
        upgrade: bool,
        /// Keep logins as plain text: whoever reads the file has them.
        #[arg(long)]
        allow_plaintext_token_store: bool,
        #[command(flatten)]
        log: log_options::LogOptions,
    },
    /// Say how the gateway that runs stands, and each of its upstreams.
    ///
    /// Asks the `weir serve` of the same configuration and the same user on this machine. Ends with 0 if each upstream that
    /// is shown is healthy, with 1 if one is not or no gateway runs.
    Status(status::Options),
    /// Show the last lines of the log of the gateway that runs.
    ///
    /// The gateway keeps the last 256 KiB. Lines are as it writes them: text or JSON. One that comes too fast for this
    /// command is left out, and counted.
    Logs(logs::Options),
    /// Show the gateway that runs on the whole screen: upstreams, calls, logins and sessions.
    ///
    /// Asks the gateway that `weir status` asks, once a second. Keys test, enable and disable upstreams, sign in there, reload
    /// the configuration and open calls. `NO_COLOR` turns colours off. Ends with 1 if no gateway runs.
    Top(top::TopOptions),
    /// Begin a configuration.
    Init(servers::ConfigOption),
    /// Add a server to the configuration.
    ///
    /// A file that is not there is begun. What `weir check` would refuse is not written; comments and order stay.
    Add(servers::AddOptions),
    /// Take the servers of other MCP hosts into the configuration.
    ///
    /// Shows what it would add and what it cannot carry, and asks. The files of the hosts stay as they are.
    Import(servers::ImportOptions),
    /// List the servers of the configuration.
    ///
    /// `weir status` says how those stand that a gateway serves.
    List(servers::ListOptions),
    /// Show one server of the configuration, in TOML. What may be secret is left out.
    Show(servers::ShowOptions),
    /// Edit the configuration with $VISUAL or $EDITOR. What `weir check` would refuse does not take its place.
    Edit(servers::ConfigOption),
    /// Bring an older configuration to the present form, and keep the old one beside it.
    Migrate(servers::MigrateOptions),
    /// Remove servers from the configuration.
    Remove(servers::NamesOptions),
    /// Use servers that are disabled.
    Enable(servers::NamesOptions),
    /// Keep servers in the configuration without using them.
    Disable(servers::NamesOptions),
    /// Give a server another name.
    Rename(servers::RenameOptions),
    /// Have the gateway that runs put the changed configuration in force.
    ///
    /// Prints what has changed once it is in force. Ends with 1 if it cannot be, and says why; then nothing has changed. The
    /// gateway also looks at the file itself, every two seconds.
    Reload(changes::ChangesOptions),
    /// Have this version of Weir take over from the gateway that runs.
    ///
    /// Starts `weir serve --upgrade` in the background and waits until it serves. No connection is refused: the gateway that
    /// runs hands over its sockets, finishes its calls and ends. Sessions go over. Ends with 1 if the new process cannot
    /// serve; then the old one goes on.
    Upgrade(upgrade::Options),
    /// Compare a configuration with what is in force.
    #[command(subcommand)]
    Config(changes::ConfigCommand),
    /// Check a configuration and say what it would do, without opening a socket or starting a server.
    ///
    /// Parses and resolves everything, loads every policy and checks what it imports and exports, looks for the programs
    /// and folders of upstreams and tries the key of the login store. Ends with exit code 64 if anything is wrong or not
    /// on this machine.
    Check(check::CheckOptions),
    /// Reach one upstream as the gateway would, and show each step with its time.
    ///
    /// Nothing listens, and what it starts it ends. Exit codes: 0 it is fine, 1 the tool failed, 64 the configuration cannot
    /// be used, 69 it cannot be reached or opened, 75 no answer in time, 76 its answers are wrong, 77 it wants a credential.
    Test(test::Options),
    /// Look for what is wrong on this machine, in the configuration and at upstreams, and name the repair.
    ///
    /// Looks at the configuration, permissions of files, the login store, certificates, ports, runtimes of programs, proxies of
    /// the environment, the clock, each enabled upstream, logins, and names and schemas of tools that connected hosts or their models do not take.
    /// Exit codes: 0 nothing or notes, 1 warnings or errors, 64 the configuration cannot be used.
    Doctor(doctor::DoctorOptions),
    /// Call a tool of an upstream, or of any server at a URL.
    ///
    /// Arguments are checked against the schema of the tool, and nothing is sent that does not fit. Progress and questions
    /// of the server show at the terminal. Ctrl-C cancels the call. Data goes to standard output, all else to standard
    /// error. Exit codes are those of `weir test`; an error of the tool ends with 1.
    Call(call::CallOptions),
    /// Read a resource of an upstream, or of any server at a URL.
    Read(call::ReadOptions),
    /// Get a prompt of an upstream, or of any server at a URL.
    Prompt(call::PromptOptions),
    /// Be a server on standard input and output that leads to a URL, for hosts that only start programs.
    ///
    /// URL is any MCP server or a Weir. How it is reached and translated is what `weir serve` does with an upstream
    /// that has only a `url`: Streamable HTTP, else HTTP+SSE, in whichever era it speaks. Ends with 0 when the input
    /// ends or on Ctrl-C, with 64 for options that cannot be used. Only protocol goes to standard output. A server that
    /// wants a login says so in its answers: `weir auth login URL`.
    Connect(connect::Options),
    /// Serve a small built-in server, to try Weir out: no configuration, no network, nothing else to install.
    Demo {
        /// Where to listen.
        #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = listen_address)]
        listen: std::net::SocketAddr,
    },
    /// Point hosts at Weir, and away from it again.
    #[command(subcommand)]
    Client(hosts::ClientCommand),
    /// Sign in at upstreams and out again, and see how that stands.
    #[command(subcommand)]
    Auth(auth::AuthCommand),
    /// Make, list and revoke the API keys that programs call with.
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Keep secrets of upstreams in the login store: `{ stored = "NAME" }` in the configuration names one.
    #[command(subcommand)]
    Secret(secret::SecretCommand),
    /// Check the store, and copy it to another one.
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Check the audit log, and read it.
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Say what the rules have decided about a call.
    #[command(subcommand)]
    Access(access::AccessCommand),
    /// Look into components that decide, and try them.
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// List the tools of upstreams or of any server, and approve what pinned ones say of themselves.
    ///
    /// Without a name it lists the tools of all upstreams, as clients find them at `/mcp`. Exit codes are those of
    /// `weir test`.
    Tools(tools::ToolsOptions),
    /// Print what completes commands and options in a shell.
    Completions(completions::CompletionsOptions),
    /// Write a man page for each command into a folder.
    Man(completions::ManOptions),
    /// Print the JSON schema of the configuration, for editors.
    Schema,
    /// Be the built-in server on standard input and output.
    #[command(hide = true)]
    DemoServer,
    /// Become a program, with limits and as another user.
    #[command(hide = true)]
    Exec(exec::Options),
}

/// A configuration that cannot be used, and what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BadConfig(String);

fn load(path: &Path) -> Result<Config, BadConfig> {
    Config::load(path).map_err(|problems| BadConfig(problems.to_string()))
}

/// All commands, as their help shows them.
fn commands() -> clap::Command {
    examples::with(Cli::command())
}

/// Where a command does its work that is not the gateway's.
fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("nothing to run on")
}

/// What is wrong with the key of the login store, if anything is: at the first call that needs a login it would be late.
fn check_key(manager: &CredentialManager) -> anyhow::Result<Option<String>> {
    Ok(runtime()?.block_on(manager.check_key()).err().map(|why| format!("the login store cannot be opened: {why}")))
}

/// Whether a store may be plain text. Each command that opens one has this option.
fn allows_plaintext() -> bool {
    std::env::args_os().any(|word| word == "--allow-plaintext-token-store")
}

/// Runs the command line and returns its exit code.
#[must_use]
pub fn run() -> ExitCode {
    let plaintext = allows_plaintext();
    read_stored_secrets(Box::new(move |secret| read_stored(secret, plaintext)));
    let command = match Cli::from_arg_matches(&commands().get_matches()) {
        Ok(Cli { command }) => command,
        Err(why) => why.exit(),
    };
    let ended = match command {
        Command::Serve { config, listen, upgrade, allow_plaintext_token_store, log } => {
            serve::run(&config, listen, upgrade, allow_plaintext_token_store, &log)
        }
        Command::Status(options) => status::run(&options),
        Command::Logs(options) => logs::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Init(file) => servers::init(&file),
        Command::Add(options) => servers::add(&options),
        Command::Import(options) => servers::import(&options),
        Command::List(options) => servers::list(&options),
        Command::Show(options) => servers::show(&options),
        Command::Edit(file) => servers::edit(&file),
        Command::Migrate(options) => servers::migrate(&options),
        Command::Remove(options) => servers::remove(&options),
        Command::Enable(options) => servers::enable(&options, true),
        Command::Disable(options) => servers::enable(&options, false),
        Command::Rename(options) => servers::rename(&options),
        Command::Upgrade(options) => upgrade::run(&options),
        Command::Reload(options) => changes::reload(&options),
        Command::Config(command) => changes::run(&command),
        Command::Check(options) => check::run(options),
        Command::Test(options) => test::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Call(options) => call::call(&options),
        Command::Read(options) => call::read(&options),
        Command::Prompt(options) => call::prompt(&options),
        Command::Connect(options) => connect::run(options),
        Command::Demo { listen } => demo::run(listen),
        Command::Client(command) => hosts::run(&command),
        Command::Auth(command) => auth::run(command),
        Command::Key(command) => key::run(command),
        Command::Secret(command) => secret::run(&command),
        Command::Store(command) => store::run(&command),
        Command::Audit(command) => audit::run(command),
        Command::Access(command) => access::explain(&command),
        Command::Policy(command) => policy::run(command),
        Command::Tools(command) => tools::run(command),
        Command::Completions(options) => completions::completions(&options),
        Command::Man(options) => completions::man(&options),
        Command::Schema => schema::run(),
        Command::DemoServer => demo::server(),
        Command::Exec(options) => Ok(exec::run(options)),
    };
    ended.unwrap_or_else(|error| match error.downcast::<BadConfig>() {
        Ok(problems) => {
            terminal::complain(problems);
            ExitCode::from(exit_code::BAD_CONFIG)
        }
        Err(error) => {
            terminal::complain(format_args!("weir: {error:#}"));
            ExitCode::FAILURE
        }
    })
}
