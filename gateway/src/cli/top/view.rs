//! What the screen looks like.

use std::{env, time::Duration};

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    symbols::border,
    text::{Line, Span},
    widgets::{Block, Borders, Clear, List, ListItem, ListState, Paragraph, Wrap},
};
use serde_json::Value;

use super::activity::{Activity, LATENCIES, Tab};
use crate::{
    cli::{
        auth::show::span,
        status::{details, reasons, seconds},
    },
    telemetry::printable,
};

/// How many lines the chosen upstream has below the list, and how many the list has at least.
const DETAILS: u16 = 5;
const LIST: u16 = 6;

/// What the terminal can show.
pub(super) struct Look {
    has_colour: bool,
    has_unicode: bool,
    /// The heights of a column in a sparkline, from low to high.
    bars: [char; 8],
    more: char,
    border: border::Set<'static>,
}

impl Look {
    pub(super) fn of_terminal() -> Self {
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default().to_ascii_uppercase();
        Self::new(set("NO_COLOR").is_none(), locale.contains("UTF-8") || locale.contains("UTF8"))
    }

    pub(super) const fn new(has_colour: bool, has_unicode: bool) -> Self {
        let bars = match has_unicode {
            true => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
            false => ['_', '.', '-', '~', '=', '+', '*', '#'],
        };
        let border = match has_unicode {
            true => border::PLAIN,
            false => border::Set { horizontal_top: "-", horizontal_bottom: "-", ..border::PLAIN },
        };
        Self { has_colour, has_unicode, bars, more: if has_unicode { '…' } else { '>' }, border }
    }

    fn state(&self, state: &str) -> Style {
        let (colour, is_bad) = match state {
            "healthy" | "good" | "ok" | "running" => (Color::Green, false),
            "error" | "failed" | "expired" | "missing" | "auth_required" | "auth_expired" => (Color::Red, true),
            "disabled" | "of_each_caller" => (Color::Reset, false),
            _ => (Color::Yellow, false),
        };
        match (self.has_colour, is_bad) {
            (true, _) => Style::new().fg(colour),
            (false, true) => Style::new().add_modifier(Modifier::BOLD),
            (false, false) => Style::new(),
        }
    }

    /// Latencies from low to high, the highest one as high as can be.
    fn sparkline(&self, latencies: impl Iterator<Item = f64> + Clone) -> String {
        let highest = latencies.clone().fold(0.0, f64::max);
        let bar = |latency: f64| {
            let share = if highest > 0.0 { latency / highest } else { 0.0 };
            let at = (0..7).find(|step| share * 8.0 <= f64::from(*step) + 1.0).unwrap_or(7);
            self.bars[usize::try_from(at).unwrap_or_default()]
        };
        latencies.map(bar).collect()
    }

    /// A text in so many columns, and a mark where it is cut.
    fn column(&self, text: &str, width: usize) -> String {
        let text = printable(text);
        match text.chars().nth(width) {
            None => format!("{text:width$}"),
            Some(_) => text.chars().take(width - 1).chain([self.more]).collect(),
        }
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, activity: &mut Activity, look: &Look) {
    let [head, tabs, body, notice, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(header(activity, look), head);
    frame.render_widget(tab_line(activity), tabs);
    let detail = if activity.tab == Tab::Upstreams && body.height >= LIST + DETAILS { DETAILS } else { 0 };
    let [list, detail] = Layout::vertical([Constraint::Min(1), Constraint::Length(detail)]).areas(body);
    activity.page = usize::from(list.height.saturating_sub(1)).max(1);
    rows(frame, list, activity, look);
    if detail.height > 0 {
        let block = Block::new().borders(Borders::TOP).border_set(look.border);
        frame.render_widget(Paragraph::new(chosen(activity, look)).block(block), detail);
    }
    frame.render_widget(notice_line(activity, look), notice);
    let text = match activity.tab {
        Tab::Sessions => "Return open  r reload  ? keys  q quit",
        _ => "Return open  t test  e enable  d disable  l log in  r reload  ? keys  q quit",
    };
    frame.render_widget(Paragraph::new(text).style(Style::new().add_modifier(Modifier::DIM)), keys);
    popup(frame, body, activity, look);
}

fn header<'a>(activity: &Activity, look: &Look) -> Paragraph<'a> {
    if let Some((since, why)) = &activity.away {
        let text = format!("no answer for {}: {}", span(since.elapsed()), printable(why));
        return Paragraph::new(text).style(look.state("error").add_modifier(Modifier::BOLD));
    }
    let status = &activity.state.status;
    let text = |key: &str| printable(status[key].as_str().unwrap_or_default());
    if !status.is_object() {
        return Paragraph::new("asking the gateway");
    }
    let upstreams = activity.rows(Tab::Upstreams);
    let enabled: Vec<&&Value> = upstreams.iter().filter(|upstream| upstream["state"] != "disabled").collect();
    let healthy = enabled.iter().filter(|upstream| upstream["state"] == "healthy").count();
    let head = format!(
        "weir {} at {}: {}, {healthy} of {} healthy, for {}",
        text("version"),
        text("url"),
        text("state"),
        enabled.len(),
        span(seconds(&status["uptime_seconds"]))
    );
    let trouble = ["audit", "store", "reload"].into_iter().find_map(|key| Some((key, status[key].as_str()?)));
    let mut line = vec![Span::styled(head, Style::new().add_modifier(Modifier::BOLD))];
    if let Some((what, why)) = trouble {
        line.push(Span::styled(format!("  {what}: {}", printable(&why.replace('\n', "; "))), look.state("error")));
    }
    Paragraph::new(Line::from(line))
}

fn tab_line<'a>(activity: &Activity) -> Paragraph<'a> {
    let count = |tab: Tab| match tab {
        Tab::Calls => activity.state.calls["running_count"].as_u64().filter(|count| *count > 0),
        Tab::Sessions => activity.state.sessions["count"].as_u64(),
        Tab::Upstreams | Tab::Logins => None,
    };
    let mut line = Vec::new();
    for (number, tab) in Tab::ALL.into_iter().enumerate() {
        let count = count(tab).map_or_else(String::new, |count| match tab {
            Tab::Calls => format!(" ({count} running)"),
            _ => format!(" ({count})"),
        });
        let is_chosen = tab == activity.tab;
        let style = if is_chosen { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        line.push(Span::styled(format!(" {} {}{count} ", number + 1, tab.title()), style));
    }
    Paragraph::new(Line::from(line))
}

fn rows(frame: &mut Frame<'_>, area: Rect, activity: &Activity, look: &Look) {
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let title = match activity.tab {
        Tab::Upstreams => "NAME             STATE         VIA          TOOLS   CALLS  LATENCY    LAST CALLS",
        Tab::Calls => "OUTCOME         TIME UPSTREAM       METHOD       NAME                 CALLER",
        Tab::Logins => "UPSTREAM         LOGIN          EXPIRES",
        Tab::Sessions => "CLIENT               CALLER           ENDPOINT         VERSION    OPEN  SILENT",
    };
    frame.render_widget(Paragraph::new(title).style(Style::new().add_modifier(Modifier::DIM)), head);
    let rows = activity.rows(activity.tab);
    if rows.is_empty() {
        if !activity.state.status.is_object() {
            return;
        }
        let text = match activity.tab {
            Tab::Upstreams => "The configuration has no upstreams: `weir add` adds one.",
            Tab::Calls => "No call has come yet.",
            Tab::Logins => "No upstream takes a login.",
            Tab::Sessions => "No client has a session. Clients of the modern era have none.",
        };
        frame.render_widget(Paragraph::new(text), body);
        return;
    }
    let item = |row: &&Value| match activity.tab {
        Tab::Upstreams => upstream(row, activity, look),
        Tab::Calls => call(row, look),
        Tab::Logins => login(row, look),
        Tab::Sessions => session(row, look),
    };
    let list = List::new(rows.iter().map(item)).highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = ListState::default().with_selected(activity.chosen_row());
    frame.render_stateful_widget(list, body, &mut state);
}

fn upstream<'a>(row: &Value, activity: &Activity, look: &Look) -> ListItem<'a> {
    let text = |key: &str| row[key].as_str().unwrap_or_default();
    let (name, state) = (text("name"), text("state"));
    let way = [text("transport"), text("era")].join(" ");
    let tools = row["tools"].as_u64().map_or_else(|| "-".to_owned(), |tools| tools.to_string());
    let calls: u64 = row["calls"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum();
    let median = row["latency_ms"]["p50"].as_f64().map_or_else(|| "-".to_owned(), |bound| format!("<{bound} ms"));
    let latencies = activity.latencies.get(name).into_iter().flatten().copied();
    let line = Line::from(vec![
        Span::raw(format!("{} ", look.column(name, 16))),
        Span::styled(look.column(state, 13), look.state(state)),
        Span::raw(format!(
            " {} {tools:>5} {calls:>7} {median:>8} {:>LATENCIES$}",
            look.column(way.trim(), 12),
            look.sparkline(latencies)
        )),
    ]);
    let error = row["error"]
        .as_str()
        .map(|why| Line::styled(format!("  {}", printable(&why.replace('\n', " "))), look.state(state)));
    ListItem::new(std::iter::once(line).chain(error).collect::<Vec<_>>())
}

fn call<'a>(row: &Value, look: &Look) -> ListItem<'a> {
    let text = |key: &str| row[key].as_str().unwrap_or_default();
    let outcome = row["outcome"].as_str().unwrap_or("running");
    let milliseconds = row["duration_ms"].as_f64().or_else(|| row["age_ms"].as_f64()).unwrap_or_default();
    let upstream = row["upstream"].as_str().unwrap_or("-");
    let caller = if text("principal").is_empty() { text("client") } else { text("principal") };
    ListItem::new(Line::from(vec![
        Span::styled(look.column(outcome, 10), look.state(outcome)),
        Span::raw(format!(
            " {:>9} {} {} {} {}",
            duration(milliseconds),
            look.column(upstream, 14),
            look.column(text("method"), 12),
            look.column(text("name"), 20),
            printable(caller)
        )),
    ]))
}

fn duration(milliseconds: f64) -> String {
    match milliseconds {
        short if short < 10.0 => format!("{short:.1} ms"),
        short if short < 10_000.0 => format!("{short:.0} ms"),
        long => format!("{:.0} s", long / 1000.0),
    }
}

fn login<'a>(row: &Value, look: &Look) -> ListItem<'a> {
    let (name, login) = (row["name"].as_str().unwrap_or_default(), &row["login"]);
    let state = login["state"].as_str().unwrap_or_default();
    let left = login["expires_in_seconds"].as_u64().map(|left| format!("in {}", span(Duration::from_secs(left))));
    let repair = match state {
        "good" | "of_each_caller" => String::new(),
        _ => "l logs in".to_owned(),
    };
    ListItem::new(Line::from(vec![
        Span::raw(format!("{} ", look.column(name, 16))),
        Span::styled(look.column(&state.replace('_', " "), 14), look.state(state)),
        Span::raw(format!(" {:12} {repair}", left.unwrap_or_default())),
    ]))
}

fn session<'a>(row: &Value, look: &Look) -> ListItem<'a> {
    let text = |key: &str| row[key].as_str().unwrap_or_default();
    let silent = row["idle_seconds"].as_u64().map(|idle| span(Duration::from_secs(idle)));
    ListItem::new(format!(
        "{} {} {} {} {:>4}  {}",
        look.column(text("client"), 20),
        look.column(text("principal"), 16),
        look.column(text("endpoint"), 16),
        look.column(text("version"), 10),
        row["upstreams"].as_u64().unwrap_or_default(),
        silent.as_deref().unwrap_or("-"),
    ))
}

/// What there is to say of the chosen upstream.
fn chosen<'a>(activity: &Activity, look: &Look) -> Vec<Line<'a>> {
    let rows = activity.rows(Tab::Upstreams);
    let Some(row) = activity.chosen_row().and_then(|at| rows.get(at)) else { return Vec::new() };
    let name = row["name"].as_str().unwrap_or_default();
    let state = row["state"].as_str().unwrap_or_default();
    let since = row["since_seconds"].as_u64().map(|since| span(Duration::from_secs(since)));
    let since = since.map_or_else(String::new, |since| format!(" for {since}"));
    let mut lines = vec![format!("{name}: {state}{since}")];
    lines.extend(reasons(row));
    lines.extend(details(row));
    let line = |line: String| if look.has_unicode { line } else { line.replace('≤', "<=") };
    lines.into_iter().map(|text| Line::from(printable(&line(text)).into_owned())).collect()
}

fn notice_line<'a>(activity: &Activity, look: &Look) -> Paragraph<'a> {
    match (&activity.notice, &activity.busy) {
        (Some((text, true)), _) => Paragraph::new(printable(text).into_owned()),
        (Some((text, false)), _) => Paragraph::new(printable(text).into_owned()).style(look.state("error")),
        (None, Some(what)) => Paragraph::new(format!("{what} ...")),
        (None, None) => Paragraph::new(""),
    }
}

fn popup(frame: &mut Frame<'_>, area: Rect, activity: &Activity, look: &Look) {
    let Some(popup) = &activity.popup else { return };
    let block = Block::new()
        .borders(Borders::TOP | Borders::BOTTOM)
        .border_set(look.border)
        .title(printable(&popup.title).into_owned());
    let block = block.title_bottom("Up and Down scroll, any other key closes");
    let lines = popup.lines.iter().map(|line| Line::from(printable(line).into_owned()));
    let text = Paragraph::new(lines.collect::<Vec<_>>()).scroll((popup.scroll, 0));
    frame.render_widget(Clear, area);
    frame.render_widget(text.wrap(Wrap { trim: false }).block(block), area);
}

#[cfg(test)]
mod tests;
