//! The table of servers below the log, on the screen of a real terminal.

use rustix::process::{Pid, Signal};
use serde_json::json;
use weir_tests::screen::Screen;
use weir_tests::wait::until;
use weir_tests::{Client, Stub, paths, peer::free_port};

/// A terminal in which `weir serve` runs.
struct Served {
    screen: Screen,
    _folder: tempfile::TempDir,
    port: u16,
}

impl Served {
    /// One with these upstreams, where this stands before the command and these options behind it.
    fn start(upstreams: &str, before: &str, options: &str) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let config = folder.path().join("weir.toml");
        std::fs::write(
            &config,
            format!("listen = \"127.0.0.1:{port}\"\ncache_dir = {:?}\n{upstreams}", paths::cache()),
        )
        .unwrap();
        let weir = paths::weir();
        let state = folder.path().display();
        let line = format!(
            "env XDG_STATE_HOME={state} {before} {} serve --config {} {options}",
            weir.display(),
            config.display()
        );
        Self { screen: Screen::start(&port.to_string(), &line), _folder: folder, port }
    }
}

impl std::ops::Deref for Served {
    type Target = Screen;

    fn deref(&self) -> &Screen {
        &self.screen
    }
}

/// The row of a server, in words.
fn row<'a>(screen: &'a str, name: &str) -> Vec<&'a str> {
    let mut rows = screen.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|row| row.first() == Some(&name)).unwrap_or_default()
}

#[tokio::test]
async fn the_table_stays_below_the_log_and_goes_with_the_gateway() {
    let stub = Stub::start().await;
    let nobody = format!("[upstreams.nobody]\nurl = \"http://127.0.0.1:{}/mcp\"\n", free_port());
    let screen = Served::start(&(stub.config("stub") + &nobody), "", "");
    until("both stand", || {
        let text = screen.text();
        row(&text, "stub").get(1) == Some(&"healthy") && row(&text, "nobody").get(1) == Some(&"error")
    })
    .await;
    screen.shows("  no connection: ").await;
    let address = ([127, 0, 0, 1], screen.port).into();
    let client = Client::modern_at(address, "/mcp");
    for number in 0..30 {
        client.call("stub__echo", json!({ "message": number.to_string() })).await;
    }
    until("the calls are counted", || row(&screen.text(), "stub").get(5) == Some(&"30")).await;
    let text = screen.text();
    let head = text.lines().position(|line| line.starts_with("SERVER ")).unwrap();
    let last = text.trim_end().lines().count();
    assert!(text.lines().nth(head).unwrap().ends_with("ERRORS"), "the head has room:\n{text}");
    assert!(last - head <= 5 && text.lines().take(head).any(|line| line.contains("stub__echo")), "{text}");
    assert_eq!(screen.history().matches("SERVER ").count(), 1, "it leaves no copy:\n{}", screen.history());

    // A terminal that becomes narrow, and wide again, while lines come.
    for width in ["50", "80"] {
        screen.tmux(&["resize-window", "-x", width, "-y", "24"]);
        client.call("stub__echo", json!({ "message": width })).await;
        let calls = if width == "50" { "31" } else { "32" };
        until("it is drawn again", || row(&screen.text(), "stub").get(5).is_none_or(|count| *count == calls)).await;
    }
    screen.tmux(&["send-keys", "C-c"]);
    screen.shows("ENDED 0").await;
    let history = screen.history();
    let end: Vec<&str> = history.trim_end().lines().rev().take(2).collect();
    assert!(end[0] == "ENDED 0" && end[1].ends_with("INFO stopped"), "{history}");
    assert_eq!(history.matches("call upstream=\"stub\"").count(), 32, "no line of the log is lost:\n{history}");
}

#[tokio::test]
async fn a_kill_leaves_the_terminal_as_it_was() {
    let stub = Stub::start().await;
    let screen = Served::start(&stub.config("stub"), "", "");
    screen.shows("SERVER ").await;
    rustix::process::kill_process(Pid::from_raw(screen.process(" serve ").try_into().unwrap()).unwrap(), Signal::KILL)
        .unwrap();
    screen.shows("ENDED 137").await;
    assert_eq!(screen.tmux(&["display-message", "-p", "#{wrap_flag} #{cursor_flag}"]).trim(), "1 1");
}

#[tokio::test]
async fn who_wants_plain_lines_gets_them() {
    let stub = Stub::start().await;
    for (before, options) in [("", "--plain"), ("NO_COLOR=1", ""), ("TERM=dumb", ""), ("", "--log-format json")] {
        let screen = Served::start(&stub.config("stub"), before, options);
        screen.shows("Weir is at http://").await;
        let address = ([127, 0, 0, 1], screen.port).into();
        Client::modern_at(address, "/mcp").call("stub__echo", json!({ "message": "hello" })).await;
        until("the call is in the log", || screen.history().contains("stub__echo")).await;
        assert!(!screen.history().contains("SERVER "), "{before} {options}: {}", screen.history());
    }
}
