//! `weir completions` and `weir man`: what shells and `man` know of the commands.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use weir_tests::paths;

fn weir(arguments: &[&str], folder: &Path) -> String {
    let output = Command::new(paths::weir()).args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_shell_completes_commands_and_options() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = weir(&["completions", shell], folder.path());
        assert!(script.contains("doctor") && script.contains("offline"), "{shell}");
    }
    fs::write(folder.path().join("weir"), weir(&["completions", "bash"], folder.path())).unwrap();
    for (typed, offered) in
        [("weir doc", "doctor"), ("weir auth log", "login logout"), ("weir call x y --sa", "--save")]
    {
        let (words, last) = (typed.split(' ').count() - 1, typed.rsplit(' ').next().unwrap());
        let line = format!(
            "source ./weir; COMP_WORDS=({typed}); COMP_CWORD={words}; _weir weir '{last}' ''; echo ${{COMPREPLY[*]}}"
        );
        let output = Command::new("bash").args(["-c", &line]).current_dir(folder.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), offered, "{typed}: {output:?}");
    }
}

#[test]
fn each_command_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    weir(&["man", "pages"], folder.path());
    let names = |folder: &Path, suffix: &str| -> BTreeSet<String> {
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        files.map(|name| name.strip_suffix(suffix).unwrap().to_owned()).collect()
    };
    // Each file there is the help of one command.
    let commands = names(&paths::tests().join("commands"), ".txt");
    assert_eq!(names(&folder.path().join("pages"), ".1"), commands);
    let page = fs::read_to_string(folder.path().join("pages/weir-call.1")).unwrap();
    assert!(page.contains("weir call github search_issues") && page.contains("Call a tool"), "{page}");
}
