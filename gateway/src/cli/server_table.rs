//! The table of servers that `weir serve` shows below its log on a terminal.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};
use weir_flow::UpstreamState;

use crate::{
    proxy::Proxy,
    snapshot::Snapshot,
    task,
    telemetry::{LiveView, metrics::Latency, printable, terminal_size},
    upstream::Upstream,
};

/// How often it is looked at.
const TICK: Duration = Duration::from_secs(1);

/// How long calls count for latency and errors, and how often they are counted.
const MINUTE: Duration = Duration::from_secs(60);
const SAMPLE: Duration = Duration::from_secs(5);

/// For how long nobody wonders that a server has not answered.
const NO_WONDER: Duration = Duration::from_secs(3);

/// The longest name that is shown whole, in characters.
const NAME: usize = 16;

/// The counters of each upstream at several moments of the last minute, the oldest first.
#[derive(Default)]
struct LastMinute(VecDeque<(Instant, BTreeMap<String, CallSample>)>);

/// The counters of one upstream.
#[derive(Clone, Default)]
struct CallSample {
    calls: u64,
    errors: u64,
    /// The calls in each bucket of latency.
    buckets: Vec<(f64, u64)>,
}

impl CallSample {
    fn of(upstream: &Upstream) -> Self {
        let outcomes = || upstream.calls.outcomes();
        Self {
            calls: outcomes().map(|(_, count)| count).sum(),
            errors: outcomes().filter(|(outcome, _)| outcome.blame() == "upstream").map(|(_, count)| count).sum(),
            buckets: upstream.calls.latency().buckets,
        }
    }

    /// What has come since `before`. Counters begin anew where an upstream is configured otherwise.
    fn since(&self, before: &Self) -> Self {
        let earlier = before.buckets.iter().map(|(_, count)| *count).chain(std::iter::repeat(0));
        Self {
            calls: self.calls.saturating_sub(before.calls),
            errors: self.errors.saturating_sub(before.errors),
            buckets: self
                .buckets
                .iter()
                .zip(earlier)
                .map(|((bound, now), was)| (*bound, now.saturating_sub(was)))
                .collect(),
        }
    }

    /// The latency that half of the calls do not go over.
    fn median(&self) -> String {
        let count = self.buckets.iter().map(|(_, count)| count).sum();
        if count == 0 {
            return "-".to_owned();
        }
        match (Latency { seconds: 0.0, count, buckets: self.buckets.clone() }).quantile(0.5) {
            Some(bound) if bound < 1.0 => format!("<{} ms", (bound * 1e3).round()),
            Some(bound) => format!("<{bound} s"),
            None => "long".to_owned(),
        }
    }
}

impl LastMinute {
    /// Counts now, if that is due.
    fn sample(&mut self, snapshot: &Snapshot, now: Instant) {
        if self.0.back().is_some_and(|(at, _)| now - *at < SAMPLE) {
            return;
        }
        // The first one is as old as the minute, or older.
        while self.0.get(1).is_some_and(|(at, _)| now - *at >= MINUTE) {
            self.0.pop_front();
        }
        let all = snapshot.upstreams().map(|upstream| (upstream.name().to_owned(), CallSample::of(upstream)));
        self.0.push_back((now, all.collect()));
    }

    /// What came of an upstream's calls in the last minute, or since the start.
    fn of(&self, upstream: &Upstream) -> CallSample {
        let before = self.0.front().and_then(|(_, all)| all.get(upstream.name())).cloned().unwrap_or_default();
        CallSample::of(upstream).since(&before)
    }
}

/// Keeps the table up to date until it is dropped.
pub(super) async fn run(view: LiveView, url: String, proxy: Arc<Proxy>) {
    // Without the signal the table may leave a copy behind after Ctrl-Z.
    let mut resumed = signal(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw())).ok();
    let (mut minute, mut size) = (LastMinute::default(), terminal_size());
    loop {
        let snapshot = proxy.snapshot();
        minute.sample(&snapshot, Instant::now());
        let before = std::mem::replace(&mut size, terminal_size());
        view.show(table(&snapshot, &minute, &url, size.map_or(0, |(_, rows)| rows)));
        if before != size {
            view.redraw();
        }
        tokio::select! {
            () = tokio::time::sleep(TICK) => {}
            _ = task::or_never(resumed.as_mut().map(|resumed| resumed.recv())) => view.forget(),
        }
    }
}

/// The lines of the table: at most half of a terminal with so many rows, and those in trouble before the others.
fn table(snapshot: &Snapshot, minute: &LastMinute, url: &str, rows: usize) -> Vec<String> {
    let most = (rows / 2).saturating_sub(3).max(3);
    let mut all: Vec<(bool, Vec<String>)> =
        snapshot.upstreams().map(|upstream| row(upstream, &minute.of(upstream))).collect();
    if all.iter().map(|(_, lines)| lines.len()).sum::<usize>() > most {
        // Stable, so the rest stays in the order of the configuration.
        all.sort_by_key(|(is_fine, _)| *is_fine);
    }
    let head = format!(
        "{:NAME$}  {:13} {:12} {:>5} {:>7} {:>8} {:>6}",
        "SERVER", "STATE", "VIA", "TOOLS", "CALLS", "P50", "ERRORS"
    );
    let mut lines =
        vec![String::new(), format!("\x1b[1mWeir is at {}\x1b[0m", printable(url)), format!("\x1b[2m{head}\x1b[0m")];
    let (mut shown, mut left) = (0, most);
    for (_, row) in &all {
        if row.len() > left {
            break;
        }
        (shown, left) = (shown + 1, left - row.len());
        lines.extend_from_slice(row);
    }
    if shown < all.len() {
        lines.push(format!("\x1b[2m… and {} more: `weir status`\x1b[0m", all.len() - shown));
    }
    lines
}

/// The lines of one server, and whether it is fine.
fn row(upstream: &Upstream, minute: &CallSample) -> (bool, Vec<String>) {
    let status = upstream.status();
    let colour = match status.state {
        UpstreamState::Healthy => "32",
        UpstreamState::Error => "31",
        _ => "33",
    };
    let via: Vec<String> =
        status.transport.map(|it| it.to_string()).into_iter().chain(status.era.map(|it| it.to_string())).collect();
    let name: String = upstream.name().chars().take(NAME).collect();
    let tools = status.tools.map_or_else(|| "-".to_owned(), |tools| tools.to_string());
    let total = CallSample::of(upstream).calls;
    let mut lines = vec![format!(
        "{name:NAME$}  \x1b[{colour}m{:13}\x1b[0m {:12} {tools:>5} {total:>7} {:>8} {:>6}",
        status.state.to_string(),
        via.join(" "),
        minute.median(),
        minute.errors,
    )];
    let is_program = !upstream.carries_headers();
    let why = status.error.or_else(|| starting(status.state, status.since.elapsed(), is_program));
    lines.extend(why.map(|why| format!("  \x1b[{colour}m{}\x1b[0m", printable(&why))));
    (status.state == UpstreamState::Healthy, lines)
}

/// What is said of a server that has not answered yet; nothing while that is no wonder.
fn starting(state: UpstreamState, since: Duration, is_program: bool) -> Option<String> {
    let is_starting = matches!(state, UpstreamState::Configured | UpstreamState::Connecting);
    let hint = if is_program { "; npx and uvx download a program before its first start" } else { "" };
    (is_starting && since >= NO_WONDER).then(|| format!("starting for {} s{hint}", since.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_takes_long_to_start_says_for_how_long() {
        let said = |state, seconds, is_program| starting(state, Duration::from_secs(seconds), is_program);
        assert_eq!(said(UpstreamState::Connecting, 1, true), None);
        assert_eq!(said(UpstreamState::Healthy, 60, true), None);
        assert_eq!(said(UpstreamState::Connecting, 12, false).as_deref(), Some("starting for 12 s"));
        let program = said(UpstreamState::Configured, 12, true);
        assert!(program.is_some_and(|text| text.len() <= 78 && text.contains("download")), "it fits 80 columns");
    }

    #[test]
    fn what_came_in_the_last_minute_is_told_from_what_came_before() {
        let sample =
            |calls, errors, fast, slow| CallSample { calls, errors, buckets: vec![(0.005, fast), (2.0, slow)] };
        let before = sample(100, 90, 100, 0);
        let minute = sample(103, 91, 101, 2).since(&before);
        assert_eq!((minute.calls, minute.errors, minute.median()), (3, 1, "<2 s".to_owned()));
        assert_eq!(before.since(&before).median(), "-");
        assert_eq!(before.since(&CallSample::default()).median(), "<5 ms");
        assert_eq!(sample(1, 0, 1, 0).since(&before).calls, 0, "the counters began anew");
    }
}
