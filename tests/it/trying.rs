//! `weir tools`, `weir call`, `weir read` and `weir prompt`: one request to one server, as a client would send it.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use weir_tests::peer::{Launch, Peer, free_port};
use weir_tests::stub::Offer;
use weir_tests::wait::{until, within};
use weir_tests::{Stub, paths};

/// What a command leaves: exit code, standard output, standard error.
struct Ended {
    code: i32,
    out: String,
    log: String,
}

/// A folder with a configuration in it.
struct Place(TempDir);

impl Place {
    fn of(config: &str) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("weir.toml"), format!("cache_dir = {:?}\n{config}", paths::cache())).unwrap();
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn start(&self, program: &Path, arguments: &[&str]) -> Child {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.path()).env("XDG_STATE_HOME", self.path()).env("HOME", self.path());
        command.env("TERM", "xterm");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command.spawn().unwrap()
    }

    /// Runs `weir` with this on standard input.
    async fn feed(&self, arguments: &[&str], input: &str) -> Ended {
        let mut child = self.start(&paths::weir(), arguments);
        child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
        end(child).await
    }

    async fn run(&self, arguments: &[&str]) -> Ended {
        self.feed(arguments, "").await
    }

    /// The same at a terminal, at which this is typed. What it shows is all on standard output.
    async fn at_terminal(&self, arguments: &[&str], typed: &str) -> Ended {
        const PTY: &str = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
        let weir = paths::weir();
        let words = [&["-c", PTY, weir.to_str().unwrap()], arguments].concat();
        let mut child = self.start(&paths::python(), &words);
        let mut input = child.stdin.take().unwrap();
        input.write_all(typed.as_bytes()).await.unwrap();
        // Its end would be the end of what is typed.
        let ended = end(child).await;
        drop(input);
        ended
    }
}

async fn end(child: Child) -> Ended {
    let Output { status, stdout, stderr } = within("the command", child.wait_with_output()).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: status.code().unwrap_or(-1), out: text(stdout), log: text(stderr) }
}

#[tokio::test]
async fn tools_of_one_server_and_of_all_are_listed_and_searched() {
    let (peer, stub) = tokio::join!(Peer::everything(), Stub::start());
    let place = Place::of(&[Launch::everything().config("process"), stub.config("stub")].concat());
    for server in ["process", &peer.url()] {
        let listed = place.run(&["tools", server]).await;
        assert_eq!(listed.code, 0, "{}", listed.log);
        assert!(
            listed.out.lines().any(|line| line.starts_with("echo(message) ") && line.contains("Echoes")),
            "{}",
            listed.out
        );
    }
    let found = place.run(&["tools", "--search", "SUM numbers"]).await;
    assert_eq!((found.code, found.out.lines().count()), (0, 1), "{}{}", found.out, found.log);
    assert!(found.out.starts_with("process__get-sum(a, b)"), "{}", found.out);
    let all: Value = serde_json::from_str(&place.run(&["tools", "--json"]).await.out).unwrap();
    let names: Vec<&str> = all.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"stub__echo") && names.contains(&"process__echo"), "{names:?}");
}

#[tokio::test]
async fn an_upstream_that_is_down_is_told_and_hides_no_other() {
    let stub = Stub::start().await;
    let nobody = format!("[upstreams.nobody]\nurl = \"http://127.0.0.1:{}/mcp\"\n", free_port());
    let place = Place::of(&[nobody, stub.config("stub")].concat());
    let listed = place.run(&["tools"]).await;
    assert_eq!(listed.code, 69, "{}", listed.log);
    assert!(
        listed.out.contains("stub__echo") && listed.log.contains("`weir test nobody`"),
        "{}{}",
        listed.out,
        listed.log
    );
    for command in [&["call", "nobody", "echo"][..], &["tools", "nobody"], &["read", "nobody", "x://y"]] {
        let ended = place.run(command).await;
        assert_eq!((ended.code, ended.out.as_str()), (69, ""), "{}", ended.log);
        assert!(ended.log.contains("http, modern") && ended.log.contains("check its url"), "{}", ended.log);
    }
}

#[tokio::test]
async fn arguments_are_typed_by_the_schema_in_both_eras() {
    let (legacy, modern) = tokio::join!(Peer::everything(), Peer::fixture("modern"));
    let place = Place::of(&[legacy.config("legacy"), modern.config("modern")].concat());
    let sum = place.run(&["call", "legacy", "get-sum", "a=2", "b=40"]).await;
    assert_eq!((sum.code, sum.out.as_str()), (0, "The sum of 2 and 40 is 42.\n"), "{}", sum.log);
    let text = place.run(&["call", &legacy.url(), "echo", "message=42"]).await;
    assert_eq!((text.code, text.out.as_str()), (0, "Echo: 42\n"), "{}", text.log);
    let piped = place.feed(&["call", "legacy", "echo", "--json", "-"], "{\"message\":\n\"from a pipe\"}").await;
    assert_eq!((piped.code, piped.out.as_str()), (0, "Echo: from a pipe\n"), "{}", piped.log);
    let simple = place.run(&["call", "modern", "test_simple_text"]).await;
    assert_eq!(
        (simple.code, simple.out.as_str()),
        (0, "This is a simple text response for testing.\n"),
        "{}",
        simple.log
    );
}

#[tokio::test]
async fn what_does_not_fit_is_refused_before_anything_is_sent() {
    let stub = Stub::offering(Offer { tools: vec!["echo".into(), "regional".into()], ..Offer::default() }).await;
    let place = Place::of(&stub.config("stub"));
    for (words, why) in [
        (&["echo", "--json", "[1]"][..], "no JSON object"),
        (&["ecko", "message=x"], "there is no tool `ecko` at `stub`; did you mean `echo`?"),
        (&["echo", "message=x", "--http"], "go with a URL"),
    ] {
        let ended = place.run(&[&["call", "stub"], words].concat()).await;
        assert_eq!((ended.code, ended.log.contains(why)), (64, true), "{}", ended.log);
    }
    let ended = place.run(&["call", "stbu", "echo"]).await;
    assert_eq!((ended.code, ended.log.contains("did you mean `stub`?")), (64, true), "{}", ended.log);
    assert!(stub.asked("tools/call").is_empty());

    let peer = Peer::everything().await;
    for (words, why) in [
        (&["get-sum", "a=1", "b=two"][..], "`b` has to be number, not `two` (Second number)"),
        (&["get-sum", "a=1"], "`b` is missing: number (Second number)"),
        (&["get-sum", "--json", r#"{"a":1,"b":"two"}"#], "`b` has to be number, not \"two\""),
        (&["echo", "mesage=x"], "there is no argument `mesage`; did you mean `message`?"),
    ] {
        let ended = place.run(&[&["call", &peer.url()], words].concat()).await;
        assert_eq!((ended.code, ended.log.contains(why)), (64, true), "{}", ended.log);
    }
}

#[tokio::test]
async fn results_go_to_standard_output_and_binaries_to_files() {
    let peer = Peer::everything().await;
    let place = Place::of(&peer.config("every"));
    let structured = place.run(&["call", "every", "get-structured-content", "location=Chicago"]).await;
    let value: Value = serde_json::from_str(&structured.out).unwrap_or_else(|_| panic!("{}", structured.out));
    assert!(structured.code == 0 && value["temperature"].is_number(), "{value}");
    let raw = place.run(&["call", "every", "echo", "message=x", "--output", "json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&raw.out).unwrap()["content"][0]["text"], "Echo: x", "{}", raw.log);

    let image = place.run(&["call", "every", "get-tiny-image"]).await;
    assert!(image.code == 0 && image.log.contains("image/png, 4033 bytes"), "{}", image.log);
    for name in ["image.png", "image-2.png"] {
        let saved = place.run(&["call", "every", "get-tiny-image", "--save", "pictures"]).await;
        assert!(saved.out.contains(&format!("pictures/{name}")), "{}", saved.out);
        assert!(fs::read(place.path().join("pictures").join(name)).unwrap().starts_with(b"\x89PNG"));
    }
    let links = place.run(&["call", "every", "get-resource-links", "count=2"]).await;
    assert!(links.out.contains("demo://resource/dynamic/text/2  Text Resource 2"), "{}", links.out);
}

#[tokio::test]
async fn resources_and_prompts_are_read() {
    let peer = Peer::everything().await;
    let place = Place::of(&peer.config("every"));
    for words in [&["read", "every", "demo://resource/dynamic/text/1"][..], &["read", "demo://resource/dynamic/text/1"]]
    {
        let read = place.run(words).await;
        assert!(read.code == 0 && read.out.starts_with("Resource 1: This is a plaintext"), "{}{}", read.out, read.log);
    }
    let missing = place.run(&["read", "every", "demo://nowhere"]).await;
    assert!(missing.code == 1 && missing.out.is_empty() && missing.log.contains("not found"), "{}", missing.log);
    let prompt = place.run(&["prompt", "every", "args-prompt", "city=Paris"]).await;
    assert_eq!((prompt.code, prompt.out.as_str()), (0, "[user]\nWhat's weather in Paris?\n"), "{}", prompt.log);
    let prompt = place.run(&["prompt", "every", "args-prompt", "state=Texas"]).await;
    assert!(prompt.code == 64 && prompt.log.contains("`city` is missing"), "{}", prompt.log);
}

#[tokio::test]
async fn an_error_of_the_tool_and_one_of_the_protocol_end_with_1() {
    let peer = Peer::fixture("both").await;
    let place = Place::of(&peer.config("fixture"));
    let failed = place.run(&["call", "fixture", "test_error_handling"]).await;
    assert!(
        failed.code == 1 && !failed.out.is_empty() && failed.log.contains("answered with an error"),
        "{}",
        failed.log
    );
    let stub = Stub::start().await;
    let failed = place.run(&["call", &stub.url(), "fail", "message=x"]).await;
    assert!(failed.code == 1 && failed.out.is_empty() && !failed.log.is_empty(), "{}", failed.log);
}

#[tokio::test]
async fn what_acts_on_a_terminal_is_left_out() {
    let stub = Stub::start().await;
    let place = Place::of(&stub.config("stub"));
    let long = "x".repeat(10_000);
    let arguments = json!({ "message": format!("a\u{1b}[2Jb\tc\u{202e}\n{long}") }).to_string();
    let text = place.run(&["call", "stub", "echo", "--json", &arguments]).await;
    assert_eq!(text.out, format!("ab\tc\n{long}\n"));
    let raw = place.run(&["call", "stub", "echo", "--json", &arguments, "--output", "json"]).await;
    assert!(!raw.out.contains(['\u{1b}', '\u{202e}']), "{}", raw.out);
    let raw: Value = serde_json::from_str(&raw.out).unwrap();
    assert_eq!(raw["content"][0]["text"], format!("a\u{1b}[2Jb\tc\u{202e}\n{long}"));
}

#[tokio::test]
async fn ctrl_c_cancels_the_call_and_so_does_the_time() {
    let stub = Stub::start().await;
    let place = Place::of(&stub.config("stub"));
    let child = place.start(&paths::weir(), &["call", "stub", "hold", "message=x"]);
    until("the call runs", || stub.held() == 1).await;
    let id = i32::try_from(child.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(id).unwrap(), Signal::INT).unwrap();
    let ended = end(child).await;
    assert_eq!((ended.code, ended.out.as_str()), (130, ""), "{}", ended.log);
    until("the server has let go", || stub.held() == 0 || stub.asked("notifications/cancelled").len() == 1).await;

    let late = place.run(&["call", "stub", "hold", "message=x", "--timeout", "1"]).await;
    assert!(late.code == 75 && late.log.contains("no answer within 1 s"), "{} {}", late.code, late.log);
    assert_eq!(stub.sessions(), Vec::<String>::new(), "sessions are ended");
}

#[tokio::test]
async fn questions_of_the_server_are_asked_at_the_terminal() {
    for era in ["legacy", "modern"] {
        let peer = Peer::fixture(era).await;
        let place = Place::of(&peer.config("fixture"));
        let call = ["call", "fixture", "test_elicitation", "message=Who?"];
        let answered = place.at_terminal(&call, "y\nada\na@example.com\n").await;
        assert_eq!(answered.code, 0, "{}", answered.out);
        assert!(answered.out.contains("The server asks: Who?"), "{}", answered.out);
        let content = r#"action=accept, content={"email":"a@example.com","username":"ada"}"#;
        assert!(answered.out.contains(content), "{era}: {}", answered.out);
        let declined = place.at_terminal(&call, "n\n").await;
        assert!(declined.out.contains("action=decline"), "{era}: {}", declined.out);
        let nobody = place.run(&call).await;
        assert!(nobody.out.contains("action=decline") && nobody.log.contains("no terminal"), "{era}: {}", nobody.log);
    }
}

#[tokio::test]
async fn a_form_has_defaults_and_choices() {
    let peer = Peer::fixture("both").await;
    let place = Place::of(&peer.config("fixture"));
    let call = ["call", "fixture", "test_elicitation_sep1034_defaults"];
    let filled = place.at_terminal(&call, "y\n\nold\n31\n\nactive\n\n").await;
    assert!(filled.out.contains("It has to be integer."), "{}", filled.out);
    let content = r#"content={"age":31,"name":"John Doe","score":95.5,"status":"active","verified":true}"#;
    assert!(filled.out.contains(content), "{}", filled.out);
    let call = ["call", "fixture", "test_elicitation_sep1330_enums"];
    let chosen = place.at_terminal(&call, "y\noption2\n\n\noption1, option3\n\n").await;
    let content = r#"content={"untitledMulti":["option1","option3"],"untitledSingle":"option2"}"#;
    assert!(chosen.out.contains(content), "{}", chosen.out);
}

#[tokio::test]
async fn progress_is_a_bar_on_a_terminal_and_nothing_elsewhere() {
    let peer = Peer::everything().await;
    let place = Place::of(&peer.config("every"));
    let call = ["call", "every", "trigger-long-running-operation", "duration=1", "steps=2"];
    let shown = place.at_terminal(&call, "").await;
    assert!(shown.code == 0 && shown.out.contains("[############------------]  50%"), "{}", shown.out);
    let piped = place.run(&call).await;
    assert!(piped.code == 0 && piped.log.is_empty() && piped.out.contains("completed"), "{}{}", piped.out, piped.log);
}

#[tokio::test]
async fn an_address_to_open_is_printed() {
    let peer = Peer::everything().await;
    let place = Place::of(&peer.config("every"));
    let call = ["call", "every", "trigger-url-elicitation", "url=https://example.com/sign-in"];
    let agreed = place.at_terminal(&call, "y\n").await;
    assert!(agreed.out.contains("https://example.com/sign-in") && agreed.out.contains("\"accept\""), "{}", agreed.out);
    let refused = place.run(&[&call[..], &["errorPath=true"]].concat()).await;
    assert!(refused.code == 77 && refused.log.contains("open: https://"), "{} {}", refused.code, refused.log);
}

/// Of an upstream of which a part is served, the rest cannot be called: what is tried is what clients get.
#[tokio::test]
async fn only_what_clients_get_can_be_called() {
    let stub = Stub::start().await;
    let place = Place::of(&format!("{}tools = [\"echo\"]\n", stub.config("stub")));
    for (words, name) in [(&["tools", "stub"][..], "echo("), (&["tools"], "stub__echo(")] {
        let listed = place.run(words).await;
        assert_eq!((listed.code, listed.out.lines().count()), (0, 1), "{}{}", listed.out, listed.log);
        assert!(listed.out.starts_with(name), "{}", listed.out);
    }
    let called = place.run(&["call", "stub", "echo", "message=x"]).await;
    assert_eq!((called.code, called.out.as_str()), (0, "x\n"), "{}", called.log);
    let refused = place.run(&["call", "stub", "burst", "message=x"]).await;
    assert_eq!(refused.code, 64, "{}", refused.log);
}

#[tokio::test]
async fn a_terminal_shows_for_how_long_a_command_has_been_at_something() {
    let place = Place::of(&Launch::fixture("both").by("sleep 3; exec \"$@\"").config("slow"));
    let seen = place.at_terminal(&["test", "slow"], "").await;
    assert!(seen.code == 0 && seen.out.contains("reaching slow: 1 s\r"), "{}", seen.out);
    assert!(seen.out.contains("\x1b[Kslow\r\n"), "it goes before the result: {:?}", seen.out);
    let piped = place.run(&["test", "slow"]).await;
    assert!(piped.code == 0 && !piped.log.contains("reaching"), "{}", piped.log);
}
