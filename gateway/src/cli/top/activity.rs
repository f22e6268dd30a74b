//! What is known of the gateway, what is chosen on the screen, and what each key means.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    process::ExitStatus,
    time::Instant,
};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

use super::feed::{FeedUpdate, GatewayState};

/// How many calls of an upstream have their latency shown.
pub(super) const LATENCIES: usize = 12;

/// What is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tab {
    #[default]
    Upstreams,
    Calls,
    Logins,
    Sessions,
}

impl Tab {
    pub(super) const ALL: [Self; 4] = [Self::Upstreams, Self::Calls, Self::Logins, Self::Sessions];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Upstreams => "Upstreams",
            Self::Calls => "Calls",
            Self::Logins => "Logins",
            Self::Sessions => "Sessions",
        }
    }

    /// The tab so many places on.
    fn moved(self, by: usize) -> Self {
        let at = Self::ALL.iter().position(|tab| *tab == self).unwrap_or_default();
        Self::ALL[(at + by) % Self::ALL.len()]
    }
}

/// A text before the view, which closes again.
pub(super) struct Popup {
    pub(super) title: String,
    pub(super) lines: Vec<String>,
    pub(super) scroll: u16,
}

/// What a key has somebody do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyAction {
    None,
    Quit,
    Suspend,
    Reload,
    /// Runs this program with these words.
    Run {
        words: Vec<String>,
        /// Whether it changes the configuration.
        reloads: bool,
    },
    LogIn(String),
}

/// All that the screen shows.
#[derive(Default)]
pub(super) struct Activity {
    pub(super) state: GatewayState,
    /// Why the gateway does not answer, and since when.
    pub(super) away: Option<(Instant, String)>,
    /// The last latencies of each upstream in milliseconds, the newest last.
    pub(super) latencies: HashMap<String, VecDeque<f64>>,
    pub(super) tab: Tab,
    /// The row that is chosen in each tab.
    chosen: HashMap<&'static str, String>,
    pub(super) popup: Option<Popup>,
    /// What happened last, and whether that is good.
    pub(super) notice: Option<(String, bool)>,
    /// The upstream that is disabled if the next key agrees.
    disables: Option<String>,
    /// What somebody waits for.
    pub(super) busy: Option<String>,
    /// The ended calls that were seen.
    seen: HashSet<String>,
    /// How many rows one page has.
    pub(super) page: usize,
}

impl Activity {
    pub(super) fn take(&mut self, update: FeedUpdate) {
        match update {
            FeedUpdate::State(mut state) => {
                self.away = None;
                self.note_latencies(&state);
                for name in std::mem::take(&mut state.disabled) {
                    // Until the gateway has reloaded it still has the upstream.
                    let row = json!({ "name": name, "state": "disabled" });
                    let Some(all) = state.status["upstreams"].as_array_mut() else { break };
                    if all.iter().all(|known| known["name"] != row["name"]) {
                        all.push(row);
                    }
                }
                self.state = *state;
            }
            FeedUpdate::Away(why) => {
                let since = self.away.take().map_or_else(Instant::now, |(since, _)| since);
                self.away = Some((since, why));
            }
            FeedUpdate::Done(done) => {
                self.busy = None;
                let is_ok = done.is_ok();
                self.notice = Some((done.unwrap_or_else(|why| why), is_ok));
            }
            FeedUpdate::Output { title, text, is_ok } => {
                self.busy = None;
                let lines: Vec<String> = text.lines().map(str::to_owned).collect();
                match &*lines {
                    [] => self.notice = Some((title, is_ok)),
                    [line] => self.notice = Some((line.clone(), is_ok)),
                    _ => self.popup = Some(Popup { title: format!("weir {title}"), lines, scroll: 0 }),
                }
            }
        }
    }

    fn note_latencies(&mut self, state: &GatewayState) {
        let mut seen = HashSet::new();
        for call in all(&state.calls["ended"]).rev() {
            let (Some(id), Some(upstream)) = (call["id"].as_str(), call["upstream"].as_str()) else { continue };
            seen.insert(id.to_owned());
            let (true, Some(took)) = (!self.seen.contains(id), call["duration_ms"].as_f64()) else { continue };
            let latencies = self.latencies.entry(upstream.to_owned()).or_default();
            latencies.push_back(took);
            if latencies.len() > LATENCIES {
                latencies.pop_front();
            }
        }
        self.seen = seen;
        let upstreams = &state.status["upstreams"];
        self.latencies.retain(|name, _| all(upstreams).any(|upstream| upstream["name"] == name.as_str()));
    }

    /// The rows of a tab. Calls that run come first.
    pub(super) fn rows(&self, tab: Tab) -> Vec<&Value> {
        match tab {
            Tab::Upstreams => all(&self.state.status["upstreams"]).collect(),
            Tab::Calls => all(&self.state.calls["running"]).chain(all(&self.state.calls["ended"])).collect(),
            Tab::Logins => all(&self.state.status["upstreams"]).filter(|row| row["login"].is_object()).collect(),
            Tab::Sessions => all(&self.state.sessions["sessions"]).collect(),
        }
    }

    /// The place of the row that is chosen: the first one, if that is gone.
    pub(super) fn chosen_row(&self) -> Option<usize> {
        let rows = self.rows(self.tab);
        let chosen = self.chosen.get(self.tab.title());
        let at = chosen.and_then(|chosen| rows.iter().position(|row| key_of(row) == Some(chosen)));
        at.or_else(|| (!rows.is_empty()).then_some(0))
    }

    fn chosen_name(&self) -> Option<String> {
        let row = *self.rows(self.tab).get(self.chosen_row()?)?;
        let name = if self.tab == Tab::Calls { &row["upstream"] } else { &row["name"] };
        name.as_str().map(str::to_owned)
    }

    fn choose(&mut self, moved: impl Fn(usize, usize) -> usize) {
        let (Some(at), rows) = (self.chosen_row(), self.rows(self.tab)) else { return };
        let last = rows.len() - 1;
        if let Some(key) = key_of(rows[moved(at, last).min(last)]).map(str::to_owned) {
            self.chosen.insert(self.tab.title(), key);
        }
    }

    /// Notes that something was asked for.
    pub(super) fn asked(&mut self, is_taken: bool, what: &str) {
        match is_taken {
            true => (self.busy, self.notice) = (Some(what.to_owned()), None),
            false => self.notice = Some((format!("not `{what}`: the command before it still runs"), false)),
        }
    }

    pub(super) fn signed_in(&mut self, upstream: &str, ended: io::Result<ExitStatus>) {
        self.notice = Some(match ended {
            Ok(status) if status.success() => (format!("signed in at {upstream}"), true),
            Ok(_) => (format!("nobody has signed in at {upstream}"), false),
            Err(why) => (format!("`weir auth login` cannot be started: {why}"), false),
        });
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> KeyAction {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return KeyAction::Quit,
            KeyCode::Char('z') if control => return KeyAction::Suspend,
            _ => {}
        }
        if let Some(popup) = &mut self.popup {
            let last = u16::try_from(popup.lines.len().saturating_sub(1)).unwrap_or(u16::MAX);
            let page = u16::try_from(self.page).unwrap_or(1).max(1);
            popup.scroll = match key.code {
                KeyCode::Up | KeyCode::Char('k') => popup.scroll.saturating_sub(1),
                KeyCode::Down | KeyCode::Char('j') => popup.scroll.saturating_add(1).min(last),
                KeyCode::PageUp => popup.scroll.saturating_sub(page),
                KeyCode::PageDown | KeyCode::Char(' ') => popup.scroll.saturating_add(page).min(last),
                _ => {
                    self.popup = None;
                    return KeyAction::None;
                }
            };
            return KeyAction::None;
        }
        self.notice = None;
        if let Some(name) = self.disables.take() {
            return match key.code {
                KeyCode::Char('y') => KeyAction::Run { words: vec!["disable".to_owned(), name], reloads: true },
                _ => KeyAction::None,
            };
        }
        self.move_or_act(key.code)
    }

    fn move_or_act(&mut self, code: KeyCode) -> KeyAction {
        let page = self.page.max(1);
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Char('1') => self.tab = Tab::Upstreams,
            KeyCode::Char('2') => self.tab = Tab::Calls,
            KeyCode::Char('3') => self.tab = Tab::Logins,
            KeyCode::Char('4') => self.tab = Tab::Sessions,
            KeyCode::Tab | KeyCode::Right => self.tab = self.tab.moved(1),
            KeyCode::BackTab | KeyCode::Left => self.tab = self.tab.moved(Tab::ALL.len() - 1),
            KeyCode::Up | KeyCode::Char('k') => self.choose(|at, _| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.choose(|at, _| at + 1),
            KeyCode::PageUp => self.choose(|at, _| at.saturating_sub(page)),
            KeyCode::PageDown => self.choose(|at, _| at + page),
            KeyCode::Home => self.choose(|_, _| 0),
            KeyCode::End => self.choose(|_, last| last),
            KeyCode::Char('?') => {
                let lines = KEYS.lines().map(str::to_owned).collect();
                self.popup = Some(Popup { title: "Keys".to_owned(), lines, scroll: 0 });
            }
            KeyCode::Enter => self.open(),
            KeyCode::Char('r') => return KeyAction::Reload,
            KeyCode::Char(letter @ ('t' | 'e' | 'd' | 'l')) => return self.act(letter),
            _ => {}
        }
        KeyAction::None
    }

    /// Does something with the upstream of the row that is chosen.
    fn act(&mut self, letter: char) -> KeyAction {
        let Some(name) = self.chosen_name().filter(|_| self.tab != Tab::Sessions) else {
            self.notice = Some(("choose an upstream first: 1".to_owned(), false));
            return KeyAction::None;
        };
        // What it is done to stays chosen, wherever its row goes.
        self.choose(|at, _| at);
        match letter {
            't' => KeyAction::Run { words: vec!["test".to_owned(), name], reloads: false },
            'e' => KeyAction::Run { words: vec!["enable".to_owned(), name], reloads: true },
            'l' => KeyAction::LogIn(name),
            _ => {
                self.notice = Some((format!("disable {name} in the configuration? y disables it"), true));
                self.disables = Some(name);
                KeyAction::None
            }
        }
    }

    /// Shows all that is known of a row.
    fn open(&mut self) {
        let rows = self.rows(self.tab);
        let Some(row) = self.chosen_row().and_then(|at| rows.get(at)) else { return };
        let lines = match serde_json::to_string_pretty(row) {
            Ok(text) => details(&text),
            Err(_) => return,
        };
        let title = format!("{} {}", self.tab.title(), key_of(row).unwrap_or_default());
        self.popup = Some(Popup { title, lines, scroll: 0 });
    }
}

fn all(list: &Value) -> impl DoubleEndedIterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// The members of an object, one in a line, without those that say nothing.
fn details(json: &str) -> Vec<String> {
    let lines = json.lines().filter_map(|line| line.strip_prefix("  "));
    let lines = lines.filter(|line| !line.trim_end_matches(',').ends_with(": null"));
    lines.map(|line| line.trim_end_matches(',').replacen('"', "", 2)).collect()
}

/// What no other row of its tab has.
pub(super) fn key_of(row: &Value) -> Option<&str> {
    ["id", "session", "name"].into_iter().find_map(|key| row[key].as_str())
}

const KEYS: &str = "\
1 2 3 4   Upstreams, Calls, Logins, Sessions; Tab and the arrows go on
Up Down   choose a row; PageUp, PageDown, Home and End too
Return    all that is known of the row
t         test the upstream: weir test NAME
e         enable it: weir enable NAME
d         disable it: weir disable NAME
l         log in there: weir auth login NAME
r         reload the configuration: weir reload
q         quit; so do Esc and Ctrl-C";
