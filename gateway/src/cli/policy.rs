//! `weir policy`: a component looked into, tried and measured, before a gateway uses it.

mod case;
mod inspect;
mod trial;

use std::{borrow::Cow, convert::Infallible, fs, path::PathBuf, process::ExitCode, str::FromStr, sync::Arc};

use anyhow::Context;
use clap::{Args, Subcommand};

use crate::{
    config::PolicyLimits,
    policy::{Engine, Policy, PolicyGrant, PolicySource, PolicyStore, Service, shipped},
    telemetry,
};

use super::terminal;

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Say what a component decides, what it imports, and what it could do.
    ///
    /// Loads it as the gateway would, with every capability that it asks for. Of a policy about calls it asks which calls it
    /// wants to see. Ends with 1 if it is no policy, and says why.
    Inspect {
        /// The component: a file, or one that Weir brings along, such as `weir:pin`.
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
    /// What the question leaves out is empty. Lines that the component logs go to standard error.
    #[command(after_help = "Example: weir policy run policy.wasm --ask before --with \
                            '{\"about\": {\"method\": \"tools/call\", \"name\": \"echo\"}, \"params\": {\"name\": \"echo\"}}'")]
    Run {
        /// The component: a file, or one that Weir brings along, such as `weir:pin`.
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
    /// Measure how long a component takes for the questions of case files.
    Bench {
        #[command(flatten)]
        cases: Cases,
        /// How often each question is asked.
        #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        count: u32,
    },
}

#[derive(Debug, Args)]
pub(super) struct Cases {
    /// The component: a file, or one that Weir brings along, such as `weir:pin`.
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
        let name = self.0.as_str();
        let wasm: Cow<'static, [u8]> = match name.strip_prefix(shipped::PREFIX) {
            Some(name) => shipped::by_name(name)?.into(),
            None => fs::read(name).with_context(|| format!("{name} cannot be read"))?.into(),
        };
        let engine = Engine::new(None, PolicyLimits::default())?;
        let source = PolicySource { name, wasm: wasm.clone(), grants: &PolicyGrant::ALL, settings, service, store };
        Ok((engine.load(source)?, wasm))
    }
}

pub(super) fn run(command: PolicyCommand) -> anyhow::Result<ExitCode> {
    match command {
        PolicyCommand::Inspect { component, settings, json } => inspect::run(&component, settings, json),
        PolicyCommand::Run { component, ask, with, settings } => {
            let _log = telemetry::start("info");
            trial::run(&component, &ask, &with, settings)
        }
        PolicyCommand::Test(cases) => {
            let _log = telemetry::start("warn");
            trial::test(&cases)
        }
        PolicyCommand::Bench { cases, count } => trial::bench(&cases, count),
    }
}
