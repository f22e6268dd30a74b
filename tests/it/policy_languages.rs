//! Policies in each language: what `weir policy new` makes is built with the tools of the language and passes its cases, as
//! do the examples. The commands are those of `docs/first-policy.md`.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Output},
};

use serde_json::json;
use tempfile::TempDir;
use weir_tests::paths;

/// How a command in a folder ends, and what it says.
fn run(folder: &Path, mut command: Command) -> (ExitStatus, String) {
    // What policies in Rust have in common is built once, and what is compiled is kept.
    command.env("CARGO_TARGET_DIR", paths::cache().join("policies")).env("XDG_CACHE_HOME", paths::cache());
    // Go takes its module from a folder, and keeps it in one.
    command.env("GOPROXY", format!("file://{}", paths::go_proxy().display())).env("GOSUMDB", "off");
    command.env("GOPATH", paths::cache().join("go")).env("GOTOOLCHAIN", "local");
    let Output { status, stdout, stderr } = command.current_dir(folder).output().unwrap();
    (status, [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat())
}

/// What a command in a folder says, which ends well.
fn weir(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(paths::weir());
    command.args(arguments);
    let (status, said) = run(folder, command);
    assert!(status.success(), "weir {} ended with {status}:\n{said}", arguments.join(" "));
    said
}

/// The folder of a new policy.
fn made(folder: &Path, language: &str, interface: &str) -> PathBuf {
    let name = format!("{language}-{interface}");
    weir(folder, &["policy", "new", &name, "--lang", language, "--for", interface]);
    folder.join(name)
}

fn passes(folder: PathBuf, interface: &str) -> PathBuf {
    weir(&folder, &["policy", "build"]);
    let said = weir(&folder, &["policy", "test", "policy.wasm"]);
    assert!(said.contains("0 files failed"), "{said}");
    let said = weir(&folder, &["policy", "inspect", "policy.wasm"]);
    assert!(said.contains(&format!("decides  {interface}")), "{said}");
    folder.join("policy.wasm")
}

/// A copy of an example, with what its links lead to.
fn copied(example: &str, into: &Path) -> PathBuf {
    let from = paths::tests().with_file_name("guest").join("examples").join(example);
    let to = into.join(example);
    assert!(Command::new("cp").arg("-rL").args([&from, &to]).status().unwrap().success());
    for made in ["node_modules", ".venv"] {
        drop(fs::remove_dir_all(to.join(made)));
    }
    to
}

/// A block of the page for newcomers, below a heading.
fn block(heading: &str, kind: &str) -> String {
    let page = fs::read_to_string(paths::tests().with_file_name("docs").join("first-policy.md")).unwrap();
    let below = page.split_once(heading).unwrap().1.split_once(&format!("```{kind}\n")).unwrap().1;
    below.split_once("```").unwrap().0.trim().to_owned()
}

/// Whether a command of the page ends well, and what it says.
fn shell(folder: &Path, line: &str) -> (bool, String) {
    let mut command = Command::new("sh");
    let path = std::env::var("PATH").unwrap();
    command.args(["-c", line]).env("PATH", format!("{}:{path}", folder.join("bin").display()));
    command.env("XDG_STATE_HOME", folder);
    let (status, said) = run(folder, command);
    (status.success(), said)
}

/// Makes, builds and tries a policy as the page says, in an empty folder. Something comes before the build.
fn newcomer(language: &str, before_build: impl FnOnce(&Path)) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    symlink(paths::weir(), folder.path().join("bin/weir")).unwrap();
    fs::write(folder.path().join("weir.toml"), block("# Your first policy\n", "toml")).unwrap();
    let all_good = |lines: &str| {
        for line in lines.lines() {
            let (is_good, said) = shell(folder.path(), line);
            assert!(is_good, "{line}: {said}");
        }
    };
    let commands = block(&format!("## In {language}\n"), "sh");
    let (make, build) = commands.split_at(commands.find("weir policy build").unwrap());
    all_good(make);
    before_build(folder.path());
    all_good(build);
    folder
}

/// Has the policy decide about calls, as the page says.
fn decides(folder: &Path) {
    let commands = block("## Run it\n", "sh");
    let [allowed, refused] = commands.lines().collect::<Vec<_>>()[..] else { panic!("{commands}") };
    let (is_good, said) = shell(folder, allowed);
    assert!(is_good && said.contains("hello"), "{allowed}: {said}");
    let (is_good, said) = shell(folder, refused);
    assert!(!is_good && said.contains(&block("## Run it\n", "text")), "{refused}: {said}");
}

#[test]
fn a_new_policy_in_rust_is_built_passes_its_cases_and_decides() {
    decides(newcomer("Rust", |_| ()).path());
    let folder = TempDir::new().unwrap();
    passes(made(folder.path(), "rust", "credentials"), "credentials");
}

/// The policy depends on what `cargo publish` would upload, instead of the copy that it comes with.
#[test]
fn the_crate_of_the_kit_is_complete_as_a_package() {
    let folder = TempDir::new().unwrap();
    let mut cargo = Command::new("cargo");
    cargo.args(["package", "-p", "weir-policy", "--offline", "--allow-dirty", "--no-verify", "--target-dir"]);
    let output = cargo.arg(folder.path()).current_dir(paths::tests()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("warning"), "{said}");
    let mut packaged = fs::read_dir(folder.path().join("package")).unwrap().map(|entry| entry.unwrap().path());
    let package = packaged.find(|file| file.extension().is_some_and(|extension| extension == "crate")).unwrap();
    let policy = made(folder.path(), "rust", "connection");
    fs::remove_dir_all(policy.join("weir-policy")).unwrap();
    fs::create_dir(policy.join("weir-policy")).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["-xzf".as_ref(), package.as_os_str(), "--strip-components=1".as_ref()]);
    assert!(tar.current_dir(policy.join("weir-policy")).status().unwrap().success());
    passes(policy, "connection");
}

#[test]
fn a_new_policy_in_javascript_is_built_passes_its_cases_and_decides() {
    decides(newcomer("JavaScript", |_| ()).path());
    let folder = TempDir::new().unwrap();
    for interface in ["credentials", "connection"] {
        passes(made(folder.path(), "js", interface), interface);
    }
}

#[test]
fn the_example_in_javascript_is_built_and_passes_its_cases() {
    let folder = TempDir::new().unwrap();
    passes(copied("javascript", folder.path()), "credentials");
}

/// As `docs/writing-policies.md` has it: the same policy with the engine of Firefox in place of QuickJS.
#[test]
fn a_policy_in_javascript_is_built_with_the_other_engine_too() {
    let folder = TempDir::new().unwrap();
    let policy = made(folder.path(), "js", "calls");
    let package = policy.join("package.json");
    let text = fs::read_to_string(&package).unwrap();
    let script = "componentize-js --wit wit --world-name policy --disable http fetch-event --out policy.wasm policy.js";
    let mut written: serde_json::Value = serde_json::from_str(&text).unwrap();
    written["scripts"]["build"] = script.into();
    written["devDependencies"] = json!({ "@bytecodealliance/componentize-js": "0.23.0" });
    fs::write(&package, written.to_string()).unwrap();
    passes(policy, "calls");
}

/// The policy that all of Python's are in: each component takes half a minute to build and to compile.
const ALL_OF_PYTHON: &str = "
import example, new_credentials
from new_calls import Calls
from new_connection import Connection
from wit_world.exports import Credentials as Contract

class Credentials(Contract):
    def decide(self, about):
        is_new = about.upstream.settings == '{}' and about.principal is None
        return (new_credentials if is_new else example).Credentials().decide(about)
";

#[test]
fn new_policies_in_python_and_the_example_are_built_and_pass_their_cases() {
    newcomer("Python", |folder| {
        let (all, example) = (folder.join("no-adding"), copied("python", folder));
        fs::rename(all.join("policy.py"), all.join("new_calls.py")).unwrap();
        fs::rename(example.join("policy.py"), all.join("example.py")).unwrap();
        fs::write(all.join("policy.py"), ALL_OF_PYTHON).unwrap();
        for case in fs::read_dir(example.join("cases")).unwrap().map(|entry| entry.unwrap()) {
            fs::copy(case.path(), all.join("cases").join(case.file_name())).unwrap();
        }
        let mut world = fs::read_to_string(all.join("wit/world.wit"))
            .unwrap()
            .replace("// import weir:policy/http", "import weir:policy/http");
        for interface in ["credentials", "connection"] {
            let new = made(folder, "python", interface);
            fs::copy(new.join("policy.py"), all.join(format!("new_{interface}.py"))).unwrap();
            fs::copy(new.join("cases/first.json"), all.join(format!("cases/{interface}.json"))).unwrap();
            let own = fs::read_to_string(new.join("wit/world.wit")).unwrap();
            let export = own.lines().find(|line| line.contains("    export ")).unwrap();
            world = world.replacen("    export ", &format!("{export}\n    export "), 1);
        }
        fs::write(all.join("wit/world.wit"), &world).unwrap();
        let example_world = fs::read_to_string(example.join("wit/world.wit")).unwrap();
        example_world.lines().for_each(|line| assert!(world.contains(line), "{line}"));
        for file in ["requirements.txt", "wit/deps/weir-policy/policy.wit"] {
            assert_eq!(fs::read(example.join(file)).unwrap(), fs::read(all.join(file)).unwrap(), "{file}");
        }
    });
}

#[test]
fn a_new_policy_in_go_is_built_passes_its_cases_and_decides() {
    decides(newcomer("Go", |_| ()).path());
    let folder = TempDir::new().unwrap();
    for interface in ["credentials", "connection"] {
        passes(made(folder.path(), "go", interface), interface);
    }
}

/// What else a policy in Go needs stays in its `go.mod`, although the generator of bindings writes one.
#[test]
fn the_example_in_go_is_built_and_passes_its_cases() {
    let folder = TempDir::new().unwrap();
    let example = copied("go", folder.path());
    let module = fs::read_to_string(example.join("go.mod")).unwrap() + "\n// Mine.\n";
    fs::write(example.join("go.mod"), &module).unwrap();
    passes(example.clone(), "credentials");
    assert_eq!(fs::read_to_string(example.join("go.mod")).unwrap(), module);
    // Its memory is not collected: Go would look at the clock while Weir hands over a value, which no instance survives.
    let groups: Vec<_> = (0..640).map(|number| format!("group-{number:07}")).collect();
    let about = json!({ "upstream": { "name": "docs" }, "principal": { "claims": { "groups": groups } } });
    let question = json!({ "ask": "decide", "with": { "about": about }, "expect": {} });
    fs::write(example.join("large.json"), json!({ "questions": [question] }).to_string()).unwrap();
    weir(&example, &["policy", "bench", "policy.wasm", "large.json", "--reuse", "--count", "400"]);
}

/// A policy in Go lies in a repository that has a workspace, beside files of its own.
#[test]
fn a_policy_in_go_is_built_for_itself() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("go.work"), "go 1.27.1\n").unwrap();
    assert!(Command::new("git").args(["init", "--quiet"]).current_dir(&folder).status().unwrap().success());
    let policy = made(folder.path(), "go", "calls");
    fs::write(policy.join("core.wasm"), "mine").unwrap();
    // What an import has brought that is there no more.
    fs::create_dir(policy.join("weir_policy_http")).unwrap();
    fs::write(policy.join("weir_policy_http/old.go"), "not Go").unwrap();
    passes(policy.clone(), "calls");
    assert_eq!(fs::read_to_string(policy.join("core.wasm")).unwrap(), "mine");
    assert!(!policy.join("weir_policy_http").exists());
}

#[test]
fn the_words_of_a_panic_in_go_reach_the_log() {
    let folder = TempDir::new().unwrap();
    let policy = made(folder.path(), "go", "calls");
    let source = policy.join("export_weir_policy_calls/policy.go");
    let text = fs::read_to_string(&source).unwrap();
    fs::write(
        &source,
        text.replace("\ttext := about", "\tvar none map[string]int\n\tnone[\"x\"] = 1\n\ttext := about"),
    )
    .unwrap();
    weir(&policy, &["policy", "build"]);
    let mut command = Command::new(paths::weir());
    command.args(["policy", "run", "policy.wasm", "--ask", "before", "--with", "{}"]);
    let (status, said) = run(&policy, command);
    assert!(!status.success() && said.contains("panic: assignment to entry in nil map"), "{said}");
    assert!(said.contains("wit_component/export_weir_policy_calls/policy.go:"), "{said}");
}

#[test]
fn a_folder_is_not_overwritten_and_a_name_is_checked() {
    let folder = TempDir::new().unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(paths::weir()).current_dir(&folder).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    fs::create_dir(folder.path().join("there")).unwrap();
    let (code, said) = run(&["policy", "new", "there"]);
    assert!(code == Some(1) && said.contains("the folder there cannot be made"), "{said}");
    for name in ["Mine", "../up/..", "a b", "9", "x_y"] {
        let (code, said) = run(&["policy", "new", name]);
        assert!(code == Some(1) && said.contains("cannot be"), "{name}: {said}");
    }
    let (code, said) = run(&["policy", "build", "there"]);
    assert!(code == Some(1) && said.contains("`weir policy new` makes a policy"), "{said}");
}
