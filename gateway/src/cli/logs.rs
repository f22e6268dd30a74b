//! `weir logs`: the last lines of the gateway that runs, and those that come.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::ValueEnum;

use super::{running::RunningGateway, suggestion, terminal};

/// The options of `weir logs`.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    gateway: RunningGateway,
    /// Go on with the lines that come, until Ctrl-C.
    #[arg(short, long)]
    follow: bool,
    /// How many of the last lines to begin with.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 100)]
    lines: usize,
    /// Only lines about this upstream.
    #[arg(long, value_name = "NAME")]
    upstream: Option<String>,
    /// Only lines of this level and above.
    #[arg(long, value_name = "LEVEL", default_value = "trace")]
    level: Level,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Level {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let socket = options.gateway.socket()?;
    if let Some(name) = &options.upstream {
        let config = super::load(options.gateway.options().0)?;
        let known = || config.upstreams.iter().map(|upstream| upstream.name.as_str());
        // The log may still have lines of one that was removed.
        if !known().any(|known| known == name) {
            terminal::complain(suggestion::unknown("upstream", name, known()));
        }
    }
    let path = if options.follow { "/logs/follow" } else { "/logs" };
    let (mut rest, mut begun) = (Vec::new(), false);
    let mut out = anstream::AutoStream::auto(io::stdout());
    let shown = |bytes: &[u8]| {
        rest.extend_from_slice(bytes);
        let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let text: Vec<u8> = rest.drain(..whole).collect();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|line| options.concerns(line)).collect();
        // What there is comes in one piece.
        let skipped = if begun { 0 } else { lines.len().saturating_sub(options.lines) };
        begun = true;
        lines[skipped..].iter().try_for_each(|line| writeln!(out, "{line}"))?;
        out.flush()
    };
    super::runtime()?.block_on(options.gateway.read(&socket, path, shown))?;
    Ok(ExitCode::SUCCESS)
}

impl Options {
    /// Whether a line of either format is one to be shown.
    fn concerns(&self, line: &str) -> bool {
        let plain = anstream::adapter::strip_str(line).to_string();
        let concerned = self.upstream.as_ref().is_none_or(|name| is_about(&plain, name));
        concerned && level(&plain).is_none_or(|level| level >= self.level)
    }
}

/// Whether a line is about this upstream.
fn is_about(line: &str, upstream: &str) -> bool {
    let fields = [format!("\"upstream\":\"{upstream}\""), format!(" upstream=\"{upstream}\"")];
    fields.iter().any(|field| line.contains(field))
        || line.split(' ').any(|word| word == format!("upstream={upstream}"))
}

/// The level of a line; none if it is a line of something else.
fn level(line: &str) -> Option<Level> {
    let of = |word: &str| Level::from_str(word, true).ok();
    match line.split_once("\"level\":\"") {
        Some((_, rest)) if line.starts_with('{') => of(rest.split('"').next()?),
        _ => line.split_whitespace().take(2).find_map(of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_line_is_about_is_found_in_both_formats() {
        assert_eq!(level(r#"{"timestamp":"t","level":"WARN","fields":{}}"#), Some(Level::Warn));
        assert_eq!(level("12:00:01Z  INFO call upstream=a"), Some(Level::Info));
        assert_eq!(level("2026-11-23T12:05:20.479877Z ERROR no"), Some(Level::Error));
        assert!(
            is_about(r#"{"fields":{"upstream":"a"}}"#, "a") && is_about("INFO call upstream=\"a\" era=modern", "a")
        );
        assert!(is_about("INFO through a proxy upstream=a", "a") && !is_about("INFO call upstream=\"ab\"", "a"));
        assert_eq!(level("   what a panic says in its second line"), None);
    }
}
