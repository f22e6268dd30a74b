//! `weir audit`: what is in the audit log, and whether it is what was written.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    audit_export::{AuditExport, AuditExporter},
    config::{Config, default_file},
    http::HttpClient,
    telemetry::{
        self,
        audit::{self, Anchor, AuditFlush, ExportFilter, ExportFormat, Since},
    },
};

use super::terminal;

/// How often a log is looked at that is followed.
const TICK: Duration = Duration::from_millis(250);

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Check that no record was changed, left out or moved.
    ///
    /// Ends with 1 and names file and line where the log is not what was written. Records that are missing at the end show
    /// only against an anchor: the hash of a record that was noted elsewhere, such as in the log of `weir serve`.
    Verify {
        #[command(flatten)]
        log: AuditLog,
        /// The hash of a record that must be there.
        #[arg(long, value_name = "HASH")]
        anchor: Option<Anchor>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the last records.
    Tail {
        #[command(flatten)]
        log: AuditLog,
        /// How many.
        #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
        lines: usize,
        /// Print what comes, until Ctrl-C.
        #[arg(short, long)]
        follow: bool,
    },
    /// Print records in the format of another system.
    Export {
        #[command(flatten)]
        log: AuditLog,
        #[arg(long, value_enum, default_value_t = Format::Jsonl)]
        format: Format,
        /// Since when: 2026-11-22, 2026-11-22T08:30:00Z, or how long ago (30m, 24h, 7d).
        #[arg(long, value_name = "TIME")]
        since: Option<Since>,
        /// Only the records of this subject.
        #[arg(long, value_name = "SUBJECT")]
        principal: Option<String>,
    },
}

#[derive(Args, Debug)]
pub(super) struct AuditLog {
    /// The file that records are appended to; the `audit.path` of the configuration if it is left out.
    path: Option<PathBuf>,
    /// The configuration, as for `weir serve`.
    #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
    config: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Format {
    /// As they are.
    Jsonl,
    /// Open Cybersecurity Schema Framework 1.6.
    Ocsf,
    /// Common Event Format.
    Cef,
    /// Logs of OpenTelemetry (OTLP in JSON).
    Otlp,
}

/// The audit log of a gateway. Has the rest written when it is dropped, and then sent.
pub(super) struct ServedLog {
    _flush: AuditFlush,
    _export: Option<AuditExport>,
}

/// Starts the audit log that a configuration wants.
pub(super) fn start(config: &Config) -> anyhow::Result<Option<AuditFlush>> {
    Ok(config.audit.as_ref().map(audit::start).transpose()?)
}

/// The same for a gateway, which sends what it and commands write to a collector.
pub(super) fn serve(config: &Config) -> anyhow::Result<Option<ServedLog>> {
    let (Some(flush), Some(audit)) = (start(config)?, &config.audit) else { return Ok(None) };
    let export = audit.otlp.as_ref().map(|otlp| {
        let exporter = AuditExporter::new(audit, otlp, HttpClient::new());
        exporter.context("the address of `audit.otlp` cannot be used")?.start().context("audit records cannot be sent")
    });
    Ok(Some(ServedLog { _flush: flush, _export: export.transpose()? }))
}

/// Records which configuration comes into force.
pub(super) fn note_configuration(config: &Config) {
    audit::write("configuration_loaded", |record| {
        record.text("file", &config.file.display().to_string());
        // What is secret does not print.
        record.digest("config_digest", "sha256", &Sha256::digest(format!("{config:?}")));
        record.text("version", env!("CARGO_PKG_VERSION"));
    });
}

/// Records that a configuration does not come into force.
pub(super) fn note_refused_configuration(file: &Path, why: &str) {
    audit::write("configuration_refused", |record| {
        record.text("file", &file.display().to_string());
        record.text("decision", "denied");
        record.text("error", why);
    });
}

pub(super) fn run(command: AuditCommand) -> anyhow::Result<ExitCode> {
    let _log = telemetry::start("warn");
    let (AuditCommand::Verify { log, .. } | AuditCommand::Tail { log, .. } | AuditCommand::Export { log, .. }) =
        &command;
    let path = match &log.path {
        Some(path) => path.clone(),
        None => {
            let (audit, file) = (super::load(&log.config)?.audit, log.config.display());
            audit.with_context(|| format!("{file} has no `[audit]`; name a file"))?.path
        }
    };
    let done = match command {
        AuditCommand::Verify { anchor, json, .. } => verify(&path, anchor.as_ref(), json),
        AuditCommand::Tail { lines, follow, .. } => tail(&path, lines, follow).map(|()| ExitCode::SUCCESS),
        AuditCommand::Export { format, since, principal, .. } => {
            export(&path, format.into(), &ExportFilter { since, principal }).map(|()| ExitCode::SUCCESS)
        }
    };
    match done {
        // Nobody reads any more, as behind `head`.
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        done => done.with_context(|| format!("the audit log {}", path.display())),
    }
}

fn verify(path: &Path, anchor: Option<&Anchor>, json: bool) -> io::Result<ExitCode> {
    let report = audit::verify(path, anchor)?;
    let done = if report.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if json {
        let faults: Vec<_> = report.faults.iter().map(ToString::to_string).collect();
        let last = (report.records > 0).then(|| json!({ "seq": report.last.seq, "hash": report.last.hex() }));
        let report = json!({
            "records": report.records, "first": report.first, "last": last, "faults": faults,
            "unfinished_bytes": report.unfinished, "torn": report.torn,
        });
        terminal::put_json(&format!("{report:#}"))?;
        return Ok(done);
    }
    for fault in &report.faults {
        terminal::complain(fault);
    }
    if report.torn > 0 {
        terminal::complain(format_args!("{} torn lines are kept, each with a record that says so", report.torn));
    }
    if report.unfinished > 0 {
        let count = report.unfinished;
        terminal::complain(format_args!("{count} bytes at the end are no whole line: it is being written, or torn"));
    }
    if report.records == 0 {
        terminal::say("there are no records")?;
    } else {
        let (count, first, last) = (report.records, report.first, report.last);
        terminal::say(format_args!("{count} records, {first} to {}; hash of the last: {}", last.seq, last.hex()))?;
    }
    Ok(done)
}

fn tail(path: &Path, count: usize, follow: bool) -> io::Result<()> {
    let (last, mut lines) = audit::tail(path, count)?;
    for line in last {
        print(&line)?;
    }
    if !follow {
        return Ok(());
    }
    loop {
        while let Some(line) = lines.next_line()? {
            print(&line)?;
        }
        match audit::follow(path, &lines)? {
            // What was written before it was complete has been read by now, but for the very last.
            Some(next) => {
                while let Some(line) = lines.next_line()? {
                    print(&line)?;
                }
                lines = next;
            }
            None => std::thread::sleep(TICK),
        }
    }
}

/// Prints a record whole, and of anything else what only says something.
fn print(line: &[u8]) -> io::Result<()> {
    match audit::shown(line) {
        Some(record) => io::stdout().lock().write_all(&[&record, &b"\n"[..]].concat()),
        None => terminal::say(String::from_utf8_lossy(line)),
    }
}

fn export(path: &Path, format: ExportFormat, filter: &ExportFilter) -> io::Result<()> {
    let mut to = io::BufWriter::new(io::stdout().lock());
    let strange = audit::export(path, format, filter, &mut to)?;
    to.flush()?;
    if strange > 0 {
        terminal::complain(format_args!("{strange} lines are no records and were left out; see `weir audit verify`"));
    }
    Ok(())
}

impl From<Format> for ExportFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Jsonl => Self::Jsonl,
            Format::Ocsf => Self::Ocsf,
            Format::Cef => Self::Cef,
            Format::Otlp => Self::Otlp,
        }
    }
}
