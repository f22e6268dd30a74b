//! The examples of `docs/migrating/`: what `weir import` makes of "before" is what stands there as "after".
//! `UPDATE=1` rewrites the results in the pages.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use weir_tests::paths;

/// The variables that the examples name.
const VARIABLES: [&str; 5] =
    ["DOCS_TOKEN", "GITHUB_TOKEN", "GITHUB_PERSONAL_ACCESS_TOKEN", "SEARCH_KEY", "TICKETS_TOKEN"];
/// The programs that the examples start.
const PROGRAMS: [&str; 4] = ["npx", "uvx", "docker", "sh"];

#[test]
fn each_example_gives_what_the_page_shows() {
    let pages = fs::read_dir(paths::tests().parent().unwrap().join("docs/migrating")).unwrap();
    let examples: Vec<usize> = pages.map(|page| examples_of(&page.unwrap().path())).collect();
    assert!(examples.len() >= 7 && examples.iter().all(|count| *count > 0), "each page has an example: {examples:?}");
}

/// Tries the examples of a page. How many it has.
fn examples_of(path: &Path) -> usize {
    let page = fs::read_to_string(path).unwrap();
    let mut examples = 0;
    let mut rest = page.as_str();
    let mut updated = String::new();
    let (mut folder, mut result) = (tempfile::tempdir().unwrap(), (String::new(), String::new()));
    while let Some((before, (language, after))) =
        rest.split_once("```").and_then(|(before, after)| Some((before, after.split_once('\n')?)))
    {
        let (block, after) = after.split_once("```").unwrap();
        let shown = match language {
            "console" => {
                result = import(folder.path(), block.trim());
                folder = tempfile::tempdir().unwrap();
                examples += 1;
                block
            }
            "toml" => result.0.as_str(),
            "text" => result.1.as_str(),
            _ => {
                let name = before.rsplit('`').nth(1).expect("the name of the file");
                let file = folder.path().join(name);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, block).unwrap();
                block
            }
        };
        updated += &format!("{before}```{language}\n{shown}```");
        rest = after;
    }
    updated += rest;
    if std::env::var_os("UPDATE").is_some() {
        fs::write(path, &updated).unwrap();
    }
    let differs = updated.lines().zip(page.lines()).find(|(now, then)| now != then);
    assert!(updated == page, "{} shows something else; UPDATE=1 rewrites it: {differs:?}", path.display());
    examples
}

/// What an import writes, and what it says beside.
fn import(folder: &Path, command: &str) -> (String, String) {
    let programs = folder.join("bin");
    fs::create_dir(&programs).unwrap();
    PROGRAMS.iter().for_each(|name| symlink("/bin/sh", programs.join(name)).unwrap());
    symlink(paths::weir(), programs.join("weir")).unwrap();
    let run = |command: &str| {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("exec {command}")]).current_dir(folder).env_clear();
        shell.env("HOME", folder).env("PATH", &programs).envs(VARIABLES.map(|name| (name, "a-value")));
        let output = shell.output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success(), "`{command}`: {said}");
        said
    };
    let said = run(command);
    run("weir check");
    let written = fs::read_to_string(folder.join("weir.toml")).unwrap();
    let begin = written.find("[upstreams").unwrap();
    let notes = said.lines().filter(|line| !line.starts_with("    ") && line.starts_with("  "));
    let notes: String = notes.map(|line| format!("{}\n", line.trim_start())).collect();
    (written[begin..].to_owned(), notes)
}
