//! `weir policy`: a component looked into, tried and measured, before a gateway uses it.

mod build;
mod case;
mod inspect;
mod lock;
mod new;
mod replay;
mod serve;
mod trial;

use std::{
    borrow::Cow, convert::Infallible, fs, path::PathBuf, process::ExitCode, str::FromStr, sync::Arc, time::Instant,
};

use anyhow::Context;
use clap::{Args, Subcommand};

use crate::{
    components::{self, ComponentCache},
    config::{self, PolicyLimits, RemoteComponent, SystemEnvironment, default_file},
    credential::PolicyStores,
    policy::{Engine, Policy, PolicyGrant, PolicySource, PolicyStore, Service, shipped},
    telemetry::{self, audit::Since},
};

use self::new::{Interface, Language};
use super::terminal;

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Make a folder with a policy to start from, its cases, and everything that it is built with.
    New {
        /// The folder; its last part is the name of the policy.
        path: PathBuf,
        /// The language.
        #[arg(long, value_enum, default_value = "rust")]
        lang: Language,
        /// What it decides about.
        #[arg(long = "for", value_enum, value_name = "INTERFACE", default_value = "calls")]
        interface: Interface,
    },
    /// Build the policy of a folder into `policy.wasm`, with the tools of its language.
    Build {
        /// The folder.
        #[arg(default_value = ".")]
        folder: PathBuf,
    },
    /// Compile components for this machine and keep the result, so that no gateway waits for it.
    Compile {
        /// The components: files, those that Weir brings along, or where they are fetched.
        #[arg(required = true)]
        components: Vec<Component>,
        /// The configuration, which says where compiled policies are kept. Default: as for `serve`. Without a file, they are
        /// kept where a gateway without `cache_dir` keeps them.
        #[arg(short, long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Fetch the components that the configuration names in the network, and pin those that it names without a digest.
    ///
    /// The digests come into the lock file: `weir.lock` beside `weir.toml`. Keep it with the configuration. A gateway uses
    /// no component without a digest, and fetches what it does not have.
    #[command(after_help = "Example: weir policy lock --update")]
    Lock {
        /// The configuration, as for `serve`.
        #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
        config: PathBuf,
        /// Pin what is there now, also where the lock file has another digest.
        #[arg(long)]
        update: bool,
    },
    /// Say what a component decides, what it imports, and what it could do.
    ///
    /// Loads it as the gateway would, with every capability that it asks for. Of a policy about calls it asks which calls it
    /// wants to see. Ends with 1 if it is no policy, and says why.
    Inspect {
        /// The component: a file, one that Weir brings along, such as `weir:pin`, or a URL.
        component: Component,
        /// The settings that it would have, as JSON: what it wants to see may depend on them.
        #[arg(long, value_name = "JSON", default_value = "{}")]
        settings: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Ask a component one question, and print its answer as JSON.
    ///
    /// What the question leaves out is empty. What the component logs and prints goes to standard error, with the message of
    /// a panic or an exception.
    #[command(after_help = "Example: weir policy run policy.wasm --ask before --with \
                            '{\"about\": {\"method\": \"tools/call\", \"name\": \"echo\"}, \"params\": {\"name\": \"echo\"}}'")]
    Run {
        /// The component: a file, one that Weir brings along, such as `weir:pin`, or a URL.
        component: Component,
        /// The function of the contract: next, decide, wants, before, after or entries.
        #[arg(long, value_name = "FUNCTION")]
        ask: String,
        /// Its parameters by their names in the contract, as JSON; `-` reads them from standard input.
        #[arg(long, value_name = "JSON", default_value = "{}")]
        with: String,
        /// The settings that it has, as JSON.
        #[arg(long, value_name = "JSON", default_value = "{}")]
        settings: String,
    },
    /// Ask a component the questions of case files, and compare its answers with what they expect.
    ///
    /// Nothing is reached: services answer as the case says, and what the component keeps is forgotten after each file. Ends
    /// with 1 if an answer differs.
    Test(Cases),
    /// Ask a component recorded questions again, or about the calls of an audit log, and show where it would decide
    /// otherwise.
    ///
    /// The gateway records questions where `[record]` of its configuration says so, and calls where `[audit]` does. Nothing
    /// is reached, so a question for which a service or the store was asked is left out. A record of the audit log has less
    /// than a policy is told: each call that it cannot answer is named and counted. Ends with 1 if a decision differs.
    #[command(after_help = "Example: weir policy replay policy.wasm audit.jsonl --since 7d --upstream github")]
    Replay {
        /// The component: a file, one that Weir brings along, such as `weir:pin`, or a URL.
        component: Component,
        /// The recording: the `path` of `[record]`, or of `[audit]`.
        recording: PathBuf,
        /// Only questions for this policy, as the recording names it. Default: those for the file, or for its name in
        /// another folder; all if there are none.
        #[arg(long, value_name = "NAME")]
        policy: Option<String>,
        /// The settings that it has, as JSON. Default: those in the recording, of which an audit log has none.
        #[arg(long, value_name = "JSON")]
        settings: Option<String>,
        /// Only what is about this upstream.
        #[arg(long, value_name = "NAME")]
        upstream: Option<String>,
        /// Only calls of an audit log since then: 2026-11-22, 2026-11-22T08:30:00Z, or how long ago (30m, 24h, 7d).
        #[arg(long, value_name = "TIME")]
        since: Option<Since>,
    },
    /// Say what policies were asked about a call, and what they answered.
    ///
    /// The gateway records questions where `[record]` of its configuration says so. A decision that holds for several calls
    /// is there with the first of them.
    Explain {
        /// The `call_id` of the call, as its line in the log has it.
        #[arg(value_name = "CALL-ID")]
        call: String,
        /// The recording: the `path` of `[record]`.
        recording: PathBuf,
    },
    /// Be an MCP server on standard input and output whose interceptors decide as a component does (SEP-2624).
    ///
    /// There are two: NAME-validator refuses what the component refuses, and NAME-mutator changes what it changes. Behind a
    /// gateway, as an upstream with a `command`, the server is at a URL. What the component keeps is forgotten at the end.
    #[command(after_help = "Example: weir policy serve weir:redact")]
    Serve {
        /// The component: a file, one that Weir brings along, such as `weir:redact`, or a URL.
        component: Component,
        /// The settings that it has, as JSON.
        #[arg(long, value_name = "JSON", default_value = "{}")]
        settings: String,
        /// What the names of the interceptors begin with. Default: the name of the component.
        #[arg(long)]
        name: Option<String>,
    },
    /// Measure how long a component takes for the questions of case files.
    Bench {
        #[command(flatten)]
        cases: Cases,
        /// How often each question is asked.
        #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        count: u32,
        /// Ask all of one instance. Weir has a new one for each question.
        #[arg(long)]
        reuse: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct Cases {
    /// The component: a file, one that Weir brings along, such as `weir:pin`, or a URL.
    component: Component,
    /// Case files, or folders of them.
    #[arg(default_value = "cases")]
    cases: Vec<PathBuf>,
}

/// Where a component is found.
#[derive(Clone, Debug)]
pub(super) struct Component(String);

impl FromStr for Component {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl Component {
    /// The policy with every capability that there is, and its bytes.
    fn load(
        &self,
        settings: String,
        service: Option<Arc<dyn Service>>,
        store: Option<Arc<dyn PolicyStore>>,
    ) -> anyhow::Result<(Policy, Cow<'static, [u8]>)> {
        let _waiting = terminal::waiting(format_args!("loading {}", self.0));
        let wasm = self.read()?;
        let source =
            PolicySource { name: &self.0, wasm: wasm.clone(), grants: &PolicyGrant::ALL, settings, service, store };
        // What is compiled once is there for the next command. Where it cannot be kept, it is compiled each time.
        let cache = config::default_cache_dir(&SystemEnvironment);
        let kept = cache.and_then(|cache| Engine::new(Some(&cache), PolicyLimits::default()).ok());
        let engine = kept.map_or_else(|| Engine::new(None, PolicyLimits::default()), Ok)?;
        Ok((engine.load(source)?, wasm))
    }

    fn read(&self) -> anyhow::Result<Cow<'static, [u8]>> {
        let Self(name) = self;
        if let Some(remote) = RemoteComponent::parse(name) {
            let remote = remote.map_err(|why| anyhow::anyhow!("{name}: {why}"))?;
            let cache = ComponentCache::new(config::default_cache_dir(&SystemEnvironment).as_deref());
            // Who looks into it decides nothing yet, so it need not be pinned.
            return Ok(match remote.digest {
                Some(_) => cache.read(&remote)?,
                None => components::fetch_apart(&remote)?.into_wasm(),
            }
            .into());
        }
        Ok(match name.strip_prefix(shipped::PREFIX) {
            Some(name) => shipped::any_by_name(name)?.into(),
            None => fs::read(name).with_context(|| format!("{name} cannot be read"))?.into(),
        })
    }
}

pub(super) fn run(command: PolicyCommand) -> anyhow::Result<ExitCode> {
    match command {
        PolicyCommand::New { path, lang, interface } => new::run(&path, lang, interface),
        PolicyCommand::Build { folder } => build::run(&folder),
        PolicyCommand::Compile { components, config } => compile(&components, config),
        PolicyCommand::Lock { config, update } => lock::run(&config, update),
        PolicyCommand::Inspect { component, settings, json } => inspect::run(&component, settings, json),
        PolicyCommand::Run { component, ask, with, settings } => {
            // Who runs it by hand wants to see what it prints.
            let _log = telemetry::start("info,policy=debug");
            trial::run(&component, &ask, &with, settings)
        }
        PolicyCommand::Test(cases) => {
            let _log = telemetry::start("warn");
            trial::test(&cases)
        }
        PolicyCommand::Replay { component, recording, policy, settings, upstream, since } => {
            let _log = telemetry::start("warn");
            let settings = settings.map(|text| serde_json::from_str(&text).context("--settings takes JSON"));
            replay::run(&replay::Replay {
                component: &component,
                recording: &recording,
                policy: policy.as_deref(),
                settings: settings.transpose()?,
                upstream: upstream.as_deref(),
                since: since.as_ref(),
            })
        }
        PolicyCommand::Explain { call, recording } => replay::explain(&call, &recording),
        PolicyCommand::Serve { component, settings, name } => {
            let _log = telemetry::start("warn");
            serve::run(&component, &settings, name)
        }
        PolicyCommand::Bench { cases, count, reuse } => trial::bench(&cases, count, reuse),
    }
}

/// A store with the limits of a gateway's, which ends with the command.
fn store_in_memory() -> Arc<dyn PolicyStore> {
    PolicyStores::in_memory().of("", "")
}

/// Compiles as a gateway with this configuration would, and so into the same place.
fn compile(components: &[Component], config: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let directory = match config.or_else(|| Some(default_file()).filter(|file| file.exists())) {
        Some(file) => super::load(&file)?.cache_dir,
        None => config::default_cache_dir(&SystemEnvironment),
    };
    let directory = directory.context("there is no place for compiled policies; set `cache_dir`")?;
    let engine = Engine::new(Some(&directory), PolicyLimits::default())?;
    for component in components {
        let waiting = terminal::waiting(format_args!("compiling {}", component.0));
        let (begun, wasm) = (Instant::now(), component.read()?);
        let (service, store) = (None, None);
        let settings = String::new();
        engine.load(PolicySource { name: &component.0, wasm, grants: &PolicyGrant::ALL, settings, service, store })?;
        drop(waiting);
        terminal::say(format_args!("{}  compiled in {:.1?}", component.0, begun.elapsed()))?;
    }
    Ok(ExitCode::SUCCESS)
}
