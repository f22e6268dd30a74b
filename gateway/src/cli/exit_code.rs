//! The exit codes of all commands. Beside 0, 1 and those of the shell they are those of sysexits.h.

/// The configuration or the arguments cannot be used (`EX_USAGE`).
pub(super) const BAD_CONFIG: u8 = 64;
/// An upstream cannot be reached or opened (`EX_UNAVAILABLE`).
pub(super) const UNREACHABLE: u8 = 69;
/// There is no answer in time (`EX_TEMPFAIL`).
pub(super) const TIMED_OUT: u8 = 75;
/// The answers of an upstream are wrong (`EX_PROTOCOL`).
pub(super) const BAD_ANSWERS: u8 = 76;
/// An upstream wants a credential (`EX_NOPERM`).
pub(super) const NO_CREDENTIAL: u8 = 77;
/// Ctrl-C: 128 and the number of the signal.
pub(super) const INTERRUPTED: u8 = 130;

/// The code for a class of failures of upstreams.
pub(super) fn of_class(class: &str) -> u8 {
    match class {
        "unreachable" | "stopped" | "crashed" | "limit" => UNREACHABLE,
        "timeout" => TIMED_OUT,
        "protocol" | "lists" => BAD_ANSWERS,
        "authentication" | "policy" => NO_CREDENTIAL,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::{collections::BTreeSet, fs, path::Path};

    /// Each command may end with these, or its arguments are wrong.
    const ANY: [u8; 3] = [0, 1, 2];

    #[test]
    fn the_page_has_each_code_and_no_other() {
        let own = include_str!("exit_code.rs").lines().filter(|line| line.starts_with("pub(super) const"));
        let own = own.map(|line| line.rsplit_once("= ").unwrap().1.trim_end_matches(';').parse::<u8>().unwrap());
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
        let page = fs::read_to_string(page).unwrap();
        let table = page.split_once("## Exit codes").unwrap().1.split("\n## ").next().unwrap();
        let table = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse::<u8>().ok());
        assert_eq!(table.collect::<BTreeSet<_>>(), own.chain(ANY).collect::<BTreeSet<_>>());
    }

    #[test]
    fn no_command_has_a_code_of_its_own() {
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli")];
        while let Some(folder) = folders.pop() {
            for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = fs::read_to_string(&path).unwrap();
                let mut literals =
                    text.split("ExitCode::from(").skip(1).filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
                assert_eq!(literals.next(), None, "{}", path.display());
            }
        }
    }
}
