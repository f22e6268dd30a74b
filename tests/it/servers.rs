//! `weir init`, `add`, `list`, `show`, `edit`, `remove`, `enable`, `disable` and `rename`, and what they leave in the file.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use weir_tests::{Client, Gateway, Stub, paths, wait::until};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(paths::weir());
        let here = self.path().to_str().unwrap();
        command.args(arguments).current_dir(self.path()).env("XDG_CACHE_HOME", here).env("XDG_STATE_HOME", here);
        command
    }

    /// What a command prints, and how it ends.
    fn weir(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.command(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    }

    /// The same for a command that ends well.
    fn done(&self, arguments: &[&str]) -> String {
        let (code, text) = self.weir(arguments);
        assert_eq!(code, Some(0), "weir {arguments:?}: {text}");
        text
    }

    /// The JSON on the standard output of a command, and how it ends.
    fn json(&self, arguments: &[&str]) -> (Option<i32>, Value) {
        let output = self.command(arguments).output().unwrap();
        let json = serde_json::from_slice(&output.stdout);
        (output.status.code(), json.unwrap_or_else(|why| panic!("weir {arguments:?}: {why}: {output:?}")))
    }

    fn file(&self) -> String {
        fs::read_to_string(self.path().join("weir.toml")).unwrap()
    }

    fn write(&self, text: &str) {
        fs::write(self.path().join("weir.toml"), text).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn from_nothing_to_a_server_that_is_served() {
    let (folder, stub) = (Folder::new(), Stub::start().await);
    assert!(folder.done(&["init"]).contains("weir add NAME URL"));
    assert_eq!(folder.weir(&["init"]).0, Some(1), "what is there is not replaced");
    let text = folder.done(&["add", "stub", &stub.url()]);
    assert!(text.contains("[upstreams.stub]") && text.contains("stub: fine after"), "{text}");
    assert!(folder.done(&["list"]).starts_with("stub  http://127.0.0.1:"));
    let listed: Value = serde_json::from_str(&folder.done(&["list", "--json"])).unwrap();
    assert_eq!((&listed[0]["name"], &listed[0]["enabled"]), (&"stub".into(), &true.into()));

    // A gateway that runs follows the file.
    let gateway = Gateway::start(&folder.file().replace("listen = \"127.0.0.1:8080\"\n", "")).await;
    gateway.healthy(&["stub"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_read_what_commands_say_as_json() {
    let (folder, stub) = (Folder::new(), Stub::start().await);
    let (code, added) = folder.json(&["add", "stub", &stub.url(), "--header", "Authorization: Bearer t0ken", "--json"]);
    assert_eq!((code, &added["name"], &added["test"]["ok"]), (Some(0), &json!("stub"), &json!(true)), "{added}");
    assert_eq!(added["secrets"], json!(["stub-token"]), "{added}");
    let (code, checked) = folder.json(&["check", "--live", "--json"]);
    assert_eq!((code, &checked["ok"], &checked["problems"]), (Some(0), &json!(true), &json!([])), "{checked}");
    assert_eq!((&checked["upstreams"][0]["name"], &checked["reached"][0]["ok"]), (&json!("stub"), &json!(true)));
    let (_, seen) = folder.json(&["check", "--as", "ada", "--json"]);
    assert_eq!((&seen[0]["path"], &seen[0]["upstreams"][0]["name"]), (&json!("/mcp"), &json!("stub")), "{seen}");
    assert!(seen[0]["upstreams"][0]["items"].as_array().unwrap().iter().all(|item| item["sees"] == true), "{seen}");

    fs::write(folder.path().join("mcp.json"), json!({ "mcpServers": { "more": { "command": "echo" } } }).to_string())
        .unwrap();
    let (code, found) = folder.json(&["import", "mcp.json", "--json"]);
    assert_eq!((code, &found["written"], &found["servers"][0]["name"]), (Some(1), &json!(false), &json!("more")));
    let (code, found) = folder.json(&["import", "mcp.json", "--yes", "--json"]);
    assert_eq!((code, &found["written"], &found["servers"][0]["enabled"]), (Some(0), &json!(true), &json!(false)));

    let (_, entry) = folder.json(&["client", "print", "cursor", "--json"]);
    assert!(entry["text"].as_str().unwrap().contains("/mcp") && entry["link"].is_string(), "{entry}");

    folder.write("[upstreams.one]\nhttpUrl = 'https://one.example.com/mcp'\nwrong = 1\n");
    let (code, checked) = folder.json(&["check", "--json"]);
    assert_eq!(
        (code, &checked["ok"], &checked["problems"][0]["line"]),
        (Some(64), &json!(false), &json!(3)),
        "{checked}"
    );
    folder.write("[upstreams.one]\nhttpUrl = 'https://one.example.com/mcp'\n");
    let (_, migrated) = folder.json(&["migrate", "--json"]);
    assert_eq!((&migrated["written"], migrated["changes"].as_array().unwrap().len()), (&json!(true), 1), "{migrated}");
}

#[tokio::test]
async fn a_variable_overrides_the_file() {
    let folder = Folder::new();
    folder.write("[upstreams.my-server]\nurl = 'https://one.example.com/mcp'\n");
    let with = |arguments: &[&str], variable: (&str, &str)| {
        let output = folder.command(arguments).env(variable.0, variable.1).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let listed = with(&["list"], ("WEIR__UPSTREAMS__MY_SERVER__URL", "https://two.example.com/mcp")).1;
    assert!(listed.contains("my-server  https://two.example.com/mcp"), "{listed}");
    let (code, text) = with(&["check"], ("WEIR__UPSTREAMS__MY_SERVER__ENABLED", "s3cret"));
    assert!(code == Some(64) && text.starts_with("WEIR__UPSTREAMS__MY_SERVER__ENABLED: expected"), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
    let sources = with(&["list", "--sources"], ("WEIR__LISTEN", "s3cret")).1;
    assert!(sources.ends_with("WEIR__LISTEN\n  of the environment: overrides `listen`\n"), "{sources}");
    folder.done(&["disable", "my-server"]);
    let stub = Stub::start().await;
    let gateway = Gateway::start_with("", &[("WEIR__UPSTREAMS__STUB__URL", &stub.url())]).await;
    gateway.healthy(&["stub"]).await;
}

#[test]
fn the_first_configuration_that_exists_is_read() {
    let folder = Folder::new();
    let user = folder.path().join("home/weir/weir.toml");
    fs::create_dir_all(user.parent().unwrap()).unwrap();
    fs::write(&user, "[upstreams.of-user]\nurl = \"https://a.example/mcp\"\n").unwrap();
    let other = folder.path().join("other.toml");
    fs::write(&other, "[upstreams.of-variable]\nurl = \"https://a.example/mcp\"\n").unwrap();
    let weir = |arguments: &[&str], variable: &str| {
        let mut command = folder.command(arguments);
        command.env("XDG_CONFIG_HOME", folder.path().join("home")).env("WEIR_CONFIG", variable);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    assert!(weir(&["list"], "").1.starts_with("of-user "));
    folder.write("[upstreams.of-folder]\nurl = \"https://a.example/mcp\"\n");
    assert!(weir(&["list"], "").1.starts_with("of-folder "));
    let sources = weir(&["list", "--sources"], "").1;
    assert!(sources.starts_with("weir.toml\n  of the current folder: in force\n"), "{sources}");
    assert!(sources.contains("of the user: not read: the one in force comes before it"), "{sources}");
    assert!(weir(&["list"], "other.toml").1.starts_with("of-variable "));
    let (code, text) = weir(&["list"], "missing.toml");
    assert!(code != Some(0) && text.contains("missing.toml"), "{text}");
    assert!(weir(&["list", "--config", "other.toml"], "missing.toml").1.starts_with("of-variable "));
}

#[test]
fn what_an_edit_does_not_mean_stays_byte_for_byte() {
    let folder = Folder::new();
    let before = "# The servers of the desk.\nlisten   = '127.0.0.1:0' # any port\n\n[upstreams.one]   # first\n\
                  url=\"https://one.example.com/mcp\"\n\n# Slow on Mondays.\n[upstreams.two]\nurl = \"https://two.example.com/mcp\"\n\
                  timeouts.overall = \"2m\"\n\n[limits]\ncalls = 100\n";
    folder.write(before);
    folder.done(&["add", "three", "https://three.example.com/mcp", "--no-test"]);
    folder.done(&["disable", "two"]);
    assert!(folder.file().contains("timeouts.overall = \"2m\"\nenabled = false\n"), "{}", folder.file());
    assert!(folder.done(&["list"]).contains("disabled"));
    folder.done(&["rename", "one", "first"]);
    let renamed = folder.file();
    assert!(
        renamed.contains("listen   = '127.0.0.1:0' # any port\n\n[upstreams.first]   # first\nurl=\"https"),
        "{renamed}"
    );
    assert!(renamed.find("first").unwrap() < renamed.find("[upstreams.two]").unwrap(), "the order stays: {renamed}");
    folder.done(&["rename", "first", "one"]);
    folder.done(&["remove", "three"]);
    let (code, text) = folder.weir(&["remove", "tow"]);
    assert!(code == Some(64) && text.contains("did you mean `two`?"), "{text}");
    assert_eq!(folder.file().replace("enabled = false\n", ""), before);
}

#[test]
fn older_keys_get_their_present_names_and_the_old_file_stays() {
    let folder = Folder::new();
    let before = "[upstreams.one]\n# Fast.\nhttpUrl = 'https://one.example.com/mcp' # always\nurl = \"https://one.example.com/sse\"\n\
                  timeouts = { read = \"1s\" }\n\n[upstreams.two]\ntype = \"http\"\nhttpUrl = \"https://two.example.com/mcp\"\n";
    folder.write(before);
    let text = folder.done(&["migrate", "--dry-run"]);
    assert!(text.contains("`one`") && text.contains("`two`") && text.contains("nothing was written"), "{text}");
    assert_eq!(folder.file(), before);
    folder.done(&["migrate"]);
    let after = "[upstreams.one]\n# Fast.\nurl = 'https://one.example.com/mcp' # always\ntype = \"http\"\n\
                 timeouts = { read = \"1s\" }\n\n[upstreams.two]\ntype = \"http\"\nurl = \"https://two.example.com/mcp\"\n";
    assert_eq!(folder.file(), after);
    assert_eq!(fs::read_to_string(folder.path().join("weir.toml.bak")).unwrap(), before);
    assert!(folder.done(&["migrate"]).contains("has the present form"));
    folder.write(before);
    let (code, text) = folder.weir(&["migrate"]);
    assert!(code == Some(1) && text.contains("weir.toml.bak"), "an older backup is not replaced: {text}");
    assert_eq!(folder.file(), before);
}

#[test]
fn the_file_of_another_host_is_read_and_never_written() {
    let folder = Folder::new();
    let codex = "model = \"o4\"\n[mcp_servers.one]\nurl = \"https://one.example.com/mcp\"\n";
    fs::write(folder.path().join("config.toml"), codex).unwrap();
    assert!(folder.done(&["list", "--config", "config.toml"]).starts_with("one  https://one.example.com/mcp"));
    for edit in [&["add", "two", "https://two.example.com/mcp"][..], &["remove", "one"], &["migrate"]] {
        let (code, text) = folder.weir(&[edit, &["--config", "config.toml"]].concat());
        assert!(code == Some(1) && text.contains("weir import"), "{edit:?}: {text}");
    }
    assert_eq!(fs::read_to_string(folder.path().join("config.toml")).unwrap(), codex);
    folder.done(&["import", "config.toml", "--yes"]);
    assert!(folder.file().contains("[upstreams.one]"), "{}", folder.file());
}

#[test]
fn what_weir_would_refuse_is_not_written() {
    let folder = Folder::new();
    folder.write("listen = \"127.0.0.1:0\"\n[upstreams.one]\nurl = \"https://one.example.com/mcp\"\n");
    fs::set_permissions(folder.path().join("weir.toml"), fs::Permissions::from_mode(0o664)).unwrap();
    let before = folder.file();
    for (arguments, why) in [
        (&["add", "bad", "ftp://one.example.com/"][..], "http"),
        (&["add", "bad", "--", "no-such-program-anywhere"], "no-such-program-anywhere"),
        (&["add", "one", "https://two.example.com/mcp"], "weir remove one"),
        (&["add", "bad", "https://two.example.com/mcp", "--auth", "magic"], "magic"),
        (&["add", "bad", "https://two.example.com/mcp", "--transport", "stdio"], "after `--`"),
        (
            &["add", "bad", "https://two.example.com/mcp", "--header", "Authorization: Bearer ${env:NOT_THERE}"],
            "NOT_THERE",
        ),
        (&["rename", "one", "two words"], "cannot contain"),
    ] {
        let (code, text) = folder.weir(arguments);
        assert!(code != Some(0) && text.contains(why), "{arguments:?}: {text}");
        assert_eq!(folder.file(), before, "{arguments:?}");
    }
    assert!(!folder.path().join("weir/logins.redb").exists(), "nothing was kept");
    folder.done(&["disable", "one"]);
    let mode = fs::metadata(folder.path().join("weir.toml")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o664, "who may read the file stays");
    folder.write(
        "[upstreams.one]\nurl = \"magic\"\n[upstreams.two]\nurl = \"https://two.example.com/mcp\"\n\
                  bearer = { env = \"NOT_THERE\" }\n",
    );
    folder.done(&["remove", "one"]);
    assert!(folder.file().starts_with("[upstreams.two]"), "what is wrong can be removed: {}", folder.file());
    folder.write("{ \"mcpServers\": {} }");
    assert!(folder.weir(&["add", "one", "https://one.example.com/mcp"]).1.contains("JSON of another host"));
}

#[test]
fn secrets_of_a_command_line_are_in_the_login_store() {
    let folder = Folder::new();
    let arguments =
        ["add", "one", "https://one.example.com/mcp", "--no-test", "--header", "Authorization: Bearer t0p-s3cret"];
    let text = folder.done(&[&arguments[..], &["--header", "X-Api-Key: k3y-k3y", "--header", "X-Team: desk"]].concat());
    let script = "echo"; // any program that is there
    let more =
        folder.done(&["add", "two", "--env", "SOME_TOKEN=v3ry-s3cret", "--env", "MODE=fast", "--", script, "hello"]);
    assert_eq!(folder.done(&["secret", "list"]), "one-token\none-x-api-key\ntwo-some-token\n");
    let store = folder.path().join("weir/logins.redb");
    assert_eq!(fs::metadata(&store).unwrap().permissions().mode() & 0o777, 0o600);
    let store = String::from_utf8_lossy(&fs::read(&store).unwrap()).into_owned();
    for secret in ["t0p-s3cret", "k3y-k3y", "v3ry-s3cret"] {
        let shown = [&text, &more, &folder.file(), &folder.done(&["show", "one"]), &store];
        assert!(!shown.iter().any(|text| text.contains(secret)), "{secret}");
    }
    // Another configuration of the same user has the same store.
    folder.done(&[&arguments[..], &["--config", "other.toml"]].concat());
    let other = fs::read_to_string(folder.path().join("other.toml")).unwrap();
    assert!(other.contains("bearer = { stored = \"one-token-2\" }"), "{other}");
    folder.done(&["remove", "one", "--config", "other.toml"]);
    assert!(folder.done(&["secret", "list"]).starts_with("one-token\none-x-api-key\n"));

    let file = folder.file();
    assert!(file.contains("bearer = { stored = \"one-token\" }") && file.contains("X-Team = \"desk\""), "{file}");
    assert!(file.contains("SOME_TOKEN = \"${stored:two-some-token}\"") && file.contains("MODE = \"fast\""), "{file}");
    folder.done(&["check"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_secret_opens_an_upstream() {
    let (folder, stub) = (Folder::new(), Stub::start().await);
    let config = format!(
        "{}bearer = {{ stored = \"the-token\" }}\nheaders = {{ X-Key = \"key ${{stored:the-key}}\" }}\n",
        stub.config("stub")
    );
    folder.write(&config);
    let (code, text) = folder.weir(&["check"]);
    assert!(code == Some(64) && text.contains("hint: weir secret set the-token"), "{text}");
    let set = |name: &str, secret: &str| {
        let mut command = folder.command(&["secret", "set", name]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // A name that cannot be is refused before anything is read.
        drop(child.stdin.take().unwrap().write_all(secret.as_bytes()));
        child.wait_with_output().unwrap().status.code()
    };
    assert_eq!(set("not a name", "x"), Some(1));
    assert_eq!(set("the-token", "\n"), Some(1), "nothing is no secret");
    assert_eq!((set("the-token", "t0p-s3cret\n"), set("the-key", "k3y")), (Some(0), Some(0)));
    folder.done(&["check"]);
    let here = folder.path().to_str().unwrap();
    let gateway = Gateway::start_with(&config, &[("XDG_STATE_HOME", here)]).await;
    gateway.healthy(&["stub"]).await;
    Client::modern(&gateway, "/mcp").call("stub__echo", json!({ "message": "hello" })).await;
    let seen = stub.asked("tools/call");
    let call = seen.last().unwrap();
    assert_eq!((call.header("authorization"), call.header("x-key")), (Some("Bearer t0p-s3cret"), Some("key k3y")));
    assert!(!gateway.log().contains("s3cret") && !gateway.log().contains("k3y"));
    assert_eq!(folder.json(&["secret", "list", "--json"]).1, json!(["the-key", "the-token"]));
    folder.done(&["remove", "stub"]);
    assert_eq!(folder.done(&["secret", "list"]), "the-key\nthe-token\n", "what was put there by hand stays");
    folder.done(&["secret", "remove", "the-key"]);
    assert_eq!(folder.weir(&["secret", "remove", "the-key"]).0, Some(1));
    folder.write("[store]\nkey = { stored = \"a\" }\n");
    let text = folder.weir(&["check"]).1;
    assert!(text.contains("what opens the store cannot be in it"), "{text}");
}

#[tokio::test]
async fn an_edit_takes_the_place_of_the_file_only_if_weir_takes_it() {
    let folder = Folder::new();
    folder.write("listen = \"127.0.0.1:0\"\n[upstreams.one]\nurl = \"https://one.example.com/mcp\"\n");
    let edit = |editor: &str| {
        let output = folder.command(&["edit"]).env("EDITOR", editor).env_remove("VISUAL").output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = edit("sed -i s/listen/lisen/");
    assert!(code == Some(64) && text.contains("did you mean `listen`?"), "{text}");
    assert!(folder.file().starts_with("listen"));
    // What was written is not lost, and goes on from there.
    assert_eq!(edit("sed -i s/lisen/listen/;s/one.example/two.example/").0, Some(0));
    assert!(folder.file().contains("two.example.com"));
    assert!(!folder.path().join("weir.toml.edited").exists());
    until("an editor that fails changes nothing", || edit("false").0 == Some(1)).await;
}
