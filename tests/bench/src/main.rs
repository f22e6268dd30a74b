//! What a call through Weir costs, in one table from one run: the upstream alone, a bare pingora pass-through (the floor),
//! nginx where it is installed, and Weir. Everything runs on loopback and is started and ended here.
//!
//! The figure to look at is CPU time per call: it holds still where calls per second on a small machine do not. Subjects
//! take turns within each block, so that what disturbs the machine disturbs all of them.

mod crowd;
mod floor;
mod load;
mod messages;
mod policies;
mod process;
mod redis;
mod rounds;
mod sessions;
mod startup;
mod subjects;
mod table;
mod upstream;
mod wire;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use process::Process;
use redis::Redis;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use subjects::Place;
use table::Report;

/// Measures what a call through Weir costs, beside a bare pass-through, and prints one table.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    /// 16 connections only and shorter windows: about a minute
    #[arg(long)]
    quick: bool,
    /// Only rows that contain every word of PATTERN, such as "legacy x16 128"; "rest" means start and memory, "a crowd" idle
    /// connections, "policies alone" what policies cost beside calls. May be given again for more rows
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// The binary to measure [default: `weir` beside this program; its rows are left out if there is none]
    #[arg(long, value_name = "PATH")]
    weir: Option<PathBuf>,
    /// Length of each measured window; a quarter of it goes before as warm-up [default: 0.4, quick: 0.25]
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
    /// How often each subject has its turn after a start; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How often all subjects start: two processes of one program differ by some percent, wherever they lie in memory.
    /// From three on, ratios over all of each start are printed too
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    starts: u32,
    /// Count instructions with valgrind instead of CPU time, and leave the profiles in DIR
    #[arg(long, value_name = "DIR")]
    instructions: Option<PathBuf>,
    /// Instead of calls, measure what this many idle legacy sessions take in a shared store
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["quick", "only", "out"])]
    sessions: Option<usize>,
    /// Also write everything to FILE: rows as CSV if it ends in .csv, else all as JSON
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Run only the bench's own MCP server
    #[command(hide = true)]
    Upstream { port: u16 },
    /// Run only the bench's own MCP server, on standard input and output
    #[command(hide = true)]
    Stdio { era: String, tools: usize },
    /// Run only the bare pass-through
    #[command(hide = true)]
    Floor { port: u16, upstream: SocketAddr },
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    match arguments.part {
        Some(Part::Upstream { port }) => {
            process::end_with_parent();
            upstream::serve(port)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Part::Stdio { era, tools }) => {
            let era = if era == "modern" { messages::Era::Modern } else { messages::Era::Legacy };
            upstream::serve_stdio(era, tools)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Part::Floor { port, upstream }) => {
            process::end_with_parent();
            floor::serve(port, upstream);
            Ok(ExitCode::SUCCESS)
        }
        None => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                tokio::select! {
                    done = bench(&arguments) => done,
                    _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(130)),
                }
            })
        }
    }
}

async fn bench(arguments: &Arguments) -> Result<ExitCode> {
    let dir = tempfile::tempdir()?;
    let upstream_address = process::free_address()?;
    let mut command = std::process::Command::new(std::env::current_exe()?);
    let mut upstream = Process::start(command.args(["upstream", &upstream_address.port().to_string()]))?;
    while load::Connection::open_at(upstream_address).await.is_err() {
        upstream.still_running()?;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let place = Place {
        dir: dir.path().to_owned(),
        upstream: upstream_address,
        weir: weir(arguments)?,
        nginx: on_path("nginx"),
        instructions: arguments.instructions.clone(),
        redis: match on_path("redis-server") {
            Some(program) => Some(Redis::start(&program, dir.path()).await?),
            None => None,
        },
    };
    if let Some(count) = arguments.sessions {
        writeln!(std::io::stdout(), "{}", sessions::measure(&place, count).await?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(dir) = &place.instructions {
        std::fs::create_dir_all(dir)?;
    }
    if place.weir.is_none() {
        note("no weir binary beside this program: its rows are left out (build it, or give --weir PATH)");
    }
    let mut at_rest = Vec::new();
    let mut failures = Vec::new();
    for subject in [&subjects::FLOOR, &subjects::SHIPPED_POLICIES] {
        if place.has(subject) && arguments.wants(&format!("rest {}", subject.name)) {
            note(&format!("{}, start and memory", subject.name));
            match startup::measure(&place, subject).await {
                Ok(figures) => at_rest.push(figures),
                Err(error) => failures.push(format!("{} at rest: {error:#}", subject.name)),
            }
        }
    }
    let mut crowded = Vec::new();
    let subject = &subjects::WITH_A_CROWD;
    if place.has(subject) && arguments.wants(subject.name) {
        note(subject.name);
        match crowd::measure(&place, subject, arguments.window(), arguments.rounds).await {
            Ok(figures) => crowded.push(figures),
            Err(error) => failures.push(format!("{}: {error:#}", subject.name)),
        }
    }
    let mut of_policies = None;
    if place.weir.is_some() && place.instructions.is_none() && arguments.wants("policies alone") {
        note("policies alone");
        match policies::measure(&place, arguments.window()).await {
            Ok(figures) => of_policies = Some(figures),
            Err(error) => failures.push(format!("policies alone: {error:#}")),
        }
    }
    let cells = rounds::all(arguments, &place, &upstream).await;
    ensure!(
        !cells.is_empty()
            || !at_rest.is_empty()
            || !crowded.is_empty()
            || of_policies.is_some()
            || !failures.is_empty(),
        "no row contains every word of the pattern"
    );
    failures.extend(cells.iter().filter_map(table::Cell::told_failure));
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let rows = table::rows(&cells, subjects::FLOOR.name, subjects::without);
    let counts = place.instructions.is_some();
    let report =
        Report { command, machine: machine(), counts, rows, at_rest, crowded, policies: of_policies, failures };
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}\n\n{}", report.machine, report.markdown())?;
    if let Some(file) = &arguments.out {
        let csv = file.extension().is_some_and(|extension| extension == "csv");
        let text = if csv { report.csv() } else { serde_json::to_string_pretty(&report)? };
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Arguments {
    fn connections(&self) -> &'static [usize] {
        if self.quick { &[16] } else { &[1, 16, 64] }
    }

    fn window(&self) -> Duration {
        let default = if self.quick { 0.25 } else { 0.4 };
        Duration::from_secs_f64(self.seconds.unwrap_or(default).clamp(0.05, 60.0))
    }

    fn wants(&self, label: &str) -> bool {
        let fits = |pattern: &String| pattern.split_whitespace().all(|word| label.contains(word));
        self.only.is_empty() || self.only.iter().any(fits)
    }
}

fn weir(arguments: &Arguments) -> Result<Option<PathBuf>> {
    if let Some(path) = &arguments.weir {
        return Ok(Some(path.canonicalize().with_context(|| format!("no binary at {}", path.display()))?));
    }
    let beside = std::env::current_exe()?.with_file_name("weir");
    Ok(beside.is_file().then_some(beside))
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Processor and cores, so that a table can be compared to another.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let info = std::fs::read_to_string(Path::new("/proc/cpuinfo")).unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    format!("{}, {cores} cores", model.trim_start_matches(['\t', ' ', ':']))
}

/// One line of progress, beside the table rather than in it.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
