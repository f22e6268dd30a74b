//! `weir top` on a real terminal.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use weir_tests::process::runs;
use weir_tests::screen::Screen;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, LEGACY, Stub, paths, peer::free_port};

/// A terminal in which `weir top` watches a gateway.
fn watch(gateway: &Gateway, before: &str) -> Screen {
    let (state, weir) = (gateway.directory().display(), paths::weir());
    let line = format!("env XDG_STATE_HOME={state} {before} {} top --config {state}/weir.toml", weir.display());
    Screen::start(&format!("top-{}", gateway.address().port()), &line)
}

/// Whether the terminal is as it was: the cursor is there, and keys are lines again.
fn is_restored(screen: &Screen) -> bool {
    screen.tmux(&["display-message", "-p", "#{cursor_flag} #{alternate_on}"]).trim() == "1 0"
}

#[tokio::test]
async fn what_goes_on_is_shown_and_keys_act_on_it() {
    let stub = Stub::start().await;
    let dead = format!("[upstreams.dead]\nurl = \"http://127.0.0.1:{}/mcp\"\n", free_port());
    let gateway = Gateway::start(&(stub.config("stub") + &dead)).await;
    gateway.healthy(&["stub"]).await;
    gateway.settle(&["dead"], "error").await;
    let screen = watch(&gateway, "");
    screen.shows("1 of 2 healthy").await;
    screen.shows("dead             error").await;
    screen.shows("  no connection: ").await;

    let client = Client::legacy(&gateway, "/mcp").await;
    client.call("stub__echo", json!({ "message": "hello" })).await;
    let (_, request) = client.request("tools/call", json!({ "name": "stub__hold", "arguments": {} }));
    let address = gateway.address();
    let held = tokio::spawn(async move { request.send(address).await.bytes().await });
    screen.shows("Calls (1 running)").await;
    screen.press(&["2"]);
    screen.shows("running").await;
    until("both calls have a row", || {
        let text = screen.text();
        let row = |words: [&str; 2]| text.lines().any(|line| words.iter().all(|word| line.contains(word)));
        row(["running", "stub__hold"]) && row(["ok", "stub__echo"])
    })
    .await;
    screen.press(&["Enter"]);
    screen.shows("name: \"stub__hold\"").await;
    screen.press(&["x", "4"]);
    screen.shows(LEGACY).await;
    held.abort();

    // A terminal that becomes small, and large again.
    screen.press(&["1"]);
    screen.tmux(&["resize-window", "-x", "40", "-y", "10"]);
    let last = || screen.text().lines().nth(9).is_some_and(|line| line.starts_with("Return open"));
    until("it is drawn in 40 columns", last).await;
    screen.tmux(&["resize-window", "-x", "80", "-y", "24"]);
    screen.shows("? keys  q quit").await;

    screen.press(&["t"]);
    screen.shows("weir test stub").await;
    screen.shows("stub: fine after").await;
    screen.press(&["x", "d"]);
    screen.shows("y disables it").await;
    screen.press(&["y"]);
    screen.shows("stub             disabled").await;
    let written = std::fs::read_to_string(gateway.directory().join("weir.toml")).unwrap();
    assert!(written.contains("enabled = false"), "{written}");
    screen.press(&["e"]);
    screen.shows("stub             healthy").await;
    screen.press(&["r"]);
    screen.shows("reloaded; nothing has changed").await;
    screen.press(&["q"]);
    screen.shows("ENDED 0").await;
    assert!(is_restored(&screen));
}

#[tokio::test]
async fn the_terminal_is_given_back_however_it_ends() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let screen = watch(&gateway, "");
        screen.shows("? keys  q quit").await;
        let process = Pid::from_raw(screen.process(" top ").try_into().unwrap()).unwrap();
        kill_process(process, signal).unwrap();
        screen.shows(&format!("ENDED {code}")).await;
        assert!(is_restored(&screen), "{signal:?}");
    }
    let screen = watch(&gateway, "");
    screen.shows("? keys  q quit").await;
    screen.press(&["C-c"]);
    screen.shows("ENDED 0").await;
    assert!(is_restored(&screen));
}

#[tokio::test]
async fn it_ends_with_its_terminal() {
    let gateway = Gateway::start("").await;
    let screen = watch(&gateway, "");
    screen.shows("? keys  q quit").await;
    let process = screen.process(" top ");
    assert!(runs(process));
    drop(screen);
    until("it has ended", || !runs(process)).await;
}

#[tokio::test]
async fn a_login_has_the_terminal_until_it_ends() {
    let dead = format!("[upstreams.locked]\nurl = \"http://127.0.0.1:{}/mcp\"\nauth = \"oauth\"\n", free_port());
    let gateway = Gateway::start(&dead).await;
    let screen = watch(&gateway, "");
    screen.shows("locked").await;
    screen.press(&["3"]);
    screen.shows("l logs in").await;
    screen.press(&["l"]);
    screen.shows("Press Return to go back.").await;
    assert!(is_restored(&screen), "its words are on the terminal itself: {}", screen.text());
    screen.press(&["Enter"]);
    screen.shows("nobody has signed in at locked").await;
    screen.press(&["q"]);
    screen.shows("ENDED 0").await;
}

#[tokio::test]
async fn a_gateway_that_goes_away_is_told_of_and_found_again() {
    let gateway = Gateway::start("").await;
    let screen = watch(&gateway, "NO_COLOR=1 LC_ALL=C");
    screen.shows("The configuration has no upstreams").await;
    let colours = screen.tmux(&["capture-pane", "-p", "-e"]);
    let has_colour = (31..=37).any(|code| colours.contains(&format!("\x1b[{code}m")));
    assert!(!has_colour && screen.text().is_ascii(), "{colours:?}");
    gateway.signal(Signal::TERM);
    screen.shows("no answer for").await;
    screen.press(&["q"]);
    screen.shows("ENDED 0").await;
    let screen = watch(&gateway, "");
    screen.shows("ENDED 1").await;
    assert!(screen.text().contains("`weir serve` starts one"), "{}", screen.text());
    let screen = watch(&gateway, "TERM=dumb");
    screen.shows("weir status --watch").await;
}
