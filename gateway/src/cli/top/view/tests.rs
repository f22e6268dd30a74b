#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::{Terminal, backend::TestBackend};
use serde_json::json;

use super::*;
use crate::cli::top::{
    activity::KeyAction,
    feed::{FeedUpdate, GatewayState},
};

fn state() -> GatewayState {
    let status = json!({
        "version": "0.1.0", "url": "http://127.0.0.1:8080/mcp", "state": "ready", "uptime_seconds": 180,
        "upstreams": [
            { "name": "github", "state": "healthy", "transport": "http", "era": "modern", "tools": 12, "since_seconds": 60,
              "calls": { "ok": 340, "tool_error": 5 }, "attempts": 345, "latency_ms": { "p50": 25.0 },
              "login": { "state": "good", "expires_in_seconds": 3600 } },
            { "name": "a-name-that-is-rather-long", "state": "error", "since_seconds": 3, "failures": 2,
              "retry_in_seconds": 4, "error": "no connection: \u{1b}[31mrefused", "calls": {}, "latency_ms": {},
              "login": { "state": "missing", "expires_in_seconds": null } },
        ],
    });
    let call = |id: &str, duration: f64, outcome: &str| {
        json!({ "id": id, "upstream": "github", "method": "tools/call", "name": "get_me", "client": "inspector/1",
                "duration_ms": duration, "outcome": outcome, "age_ms": 1, "rule": "people", "error": null })
    };
    let calls = json!({
        "running_count": 1,
        "running": [{ "id": "9", "upstream": "github", "method": "tools/call", "name": "search", "client": "",
                      "principal": "ada", "age_ms": 12_345 }],
        "ended": [call("3", 80.0, "tool_error"), call("2", 40.0, "ok"), call("1", 1.5, "ok")],
    });
    let sessions = json!({ "count": 1, "sessions": [
        { "session": "abcd", "client": "claude-code/2.1", "principal": "ada", "endpoint": "all", "version": "2025-11-25",
          "upstreams": 2, "idle_seconds": 7 },
    ] });
    GatewayState { status, calls, sessions, disabled: vec!["later".to_owned()] }
}

fn known() -> Activity {
    let mut activity = Activity::default();
    activity.take(FeedUpdate::State(Box::new(state())));
    activity
}

/// The screen as lines.
fn shown(activity: &mut Activity, look: &Look, (columns, rows): (u16, u16)) -> (String, bool) {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(frame, activity, look)).unwrap();
    let buffer = terminal.backend().buffer();
    let cells = buffer.content();
    let lines = cells.chunks(usize::from(columns)).map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    let text = lines.map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n");
    (text, cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset))
}

fn press(activity: &mut Activity, keys: &str) -> KeyAction {
    let mut last = KeyAction::None;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            'v' => KeyCode::Down,
            '^' => KeyCode::Up,
            key => KeyCode::Char(key),
        };
        last = activity.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    last
}

#[test]
fn upstreams_have_their_state_latencies_and_last_error() {
    let (text, has_colour) = shown(&mut known(), &Look::new(true, true), (80, 24));
    let expected = "weir 0.1.0 at http://127.0.0.1:8080/mcp: ready, 1 of 2 healthy, for 3 min
 1 Upstreams  2 Calls (1 running)  3 Logins  4 Sessions (1)
NAME             STATE         VIA          TOOLS   CALLS  LATENCY    LAST CALLS
github           healthy       http modern     12     345   <25 ms          ▁▄█
a-name-that-is-… error                          -       0        -
  no connection: refused
later            disabled                       -       0        -";
    assert!(text.starts_with(expected), "{text}");
    assert!(has_colour);
    assert!(text.contains("\ngithub: healthy for 60 s\ncalls: ok 340, tool_error 5; 345 attempts\n"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80));
    assert!(text.ends_with("? keys  q quit"), "{text}");
}

#[test]
fn a_plain_terminal_gets_neither_colours_nor_other_letters() {
    let mut activity = known();
    for tab in "1234?".chars() {
        press(&mut activity, &tab.to_string());
        let (text, has_colour) = shown(&mut activity, &Look::new(false, false), (80, 24));
        assert!(text.is_ascii() && !has_colour, "{text}");
    }
}

#[test]
fn calls_logins_and_sessions_have_a_view_each() {
    let mut activity = known();
    let look = Look::new(false, true);
    press(&mut activity, "2");
    let (text, _) = shown(&mut activity, &look, (80, 24));
    let (running, ended) =
        ("running         12 s github         tools/call   search               ada", "tool_error     80 ms");
    assert!(text.contains(running) && text.contains(ended), "{text}");
    press(&mut activity, "v\n");
    let (text, _) = shown(&mut activity, &look, (80, 24));
    assert!(text.contains("rule: \"people\"") && text.contains("Calls 3") && !text.contains("null"), "{text}");
    press(&mut activity, "x3");
    let (text, _) = shown(&mut activity, &look, (80, 24));
    assert!(
        text.contains("good           in 60 min") && text.contains("missing                     l logs in"),
        "{text}"
    );
    press(&mut activity, "4");
    let (text, _) = shown(&mut activity, &look, (80, 24));
    assert!(text.contains("claude-code/2.1") && text.contains("2025-11-25    2  7 s"), "{text}");
}

#[test]
fn no_size_is_too_small() {
    for size in [(1, 1), (2, 3), (20, 5), (80, 2), (300, 100)] {
        for tab in "1234?".chars() {
            let mut activity = known();
            press(&mut activity, &tab.to_string());
            shown(&mut activity, &Look::new(true, true), size);
            shown(&mut Activity::default(), &Look::new(true, true), size);
        }
    }
}

#[test]
fn keys_act_on_the_row_that_is_chosen() {
    let mut activity = known();
    let run = |words: [&str; 2], reloads| KeyAction::Run { words: words.map(str::to_owned).to_vec(), reloads };
    assert_eq!(press(&mut activity, "t"), run(["test", "github"], false));
    assert_eq!(press(&mut activity, "vvvv"), KeyAction::None);
    assert_eq!(press(&mut activity, "e"), run(["enable", "later"], true));
    assert_eq!(press(&mut activity, "^l"), KeyAction::LogIn("a-name-that-is-rather-long".into()));
    assert_eq!(press(&mut activity, "dn"), KeyAction::None, "nobody has agreed");
    assert_eq!(press(&mut activity, "y"), KeyAction::None, "that was asked before");
    assert_eq!(press(&mut activity, "dy"), run(["disable", "a-name-that-is-rather-long"], true));
    assert_eq!(press(&mut activity, "2t"), run(["test", "github"], false), "the upstream of a call");
    assert_eq!(press(&mut activity, "4t"), KeyAction::None);
    assert_eq!(press(&mut activity, "r"), KeyAction::Reload);
    assert_eq!(press(&mut activity, "?q"), KeyAction::None, "it closes the keys");
    assert_eq!(press(&mut activity, "q"), KeyAction::Quit);
    let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(activity.key(control), KeyAction::Quit);
}

#[test]
fn the_choice_stays_with_its_row() {
    let mut activity = known();
    press(&mut activity, "v");
    let mut next = state();
    let upstreams = next.status["upstreams"].as_array_mut().unwrap();
    upstreams.insert(0, json!({ "name": "new", "state": "healthy" }));
    activity.take(FeedUpdate::State(Box::new(next)));
    assert_eq!(activity.chosen_row(), Some(2));
    let mut activity = known();
    press(&mut activity, "dy");
    let mut next = state();
    next.status["upstreams"].as_array_mut().unwrap().remove(0);
    next.disabled.push("github".to_owned());
    activity.take(FeedUpdate::State(Box::new(next)));
    assert_eq!(activity.chosen_row(), Some(2), "the upstream that was disabled");
}

#[test]
fn what_a_command_says_is_shown() {
    let mut activity = known();
    activity.asked(true, "test github");
    let look = Look::new(true, true);
    assert!(shown(&mut activity, &look, (80, 24)).0.contains("test github ..."));
    let output = |text: &str| FeedUpdate::Output { title: "test github".into(), text: text.into(), is_ok: true };
    activity.take(output("disabled `github`\n"));
    assert!(shown(&mut activity, &look, (80, 24)).0.contains("disabled `github`"));
    activity.take(output("github\n  connect  1 ms\u{1b}[2J\n"));
    let (text, _) = shown(&mut activity, &look, (80, 24));
    assert!(text.contains("weir test github") && text.contains("  connect  1 ms\n"), "{text}");
    activity.take(FeedUpdate::Away("no gateway serves weir.toml here".into()));
    assert!(shown(&mut activity, &look, (80, 24)).0.starts_with("no answer for 0 s: no gateway serves"));
}
