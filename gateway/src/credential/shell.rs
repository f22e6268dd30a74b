//! Words of a command that somebody is told to run. Some come from an upstream, and a shell must see nothing but a word.

/// The text as one word of a POSIX shell.
pub(super) fn quoted(text: &str) -> String {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+,:@%".contains(&byte));
    if plain && !text.is_empty() { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_one_word_and_runs_nothing() {
        let all: String = ('!'..='~').collect();
        for text in ["", "mcp:read", "a b", "$(id)", "`id`", "\"; id #", "'$(id)'", "a\\", "!!", "~", "*", &all] {
            let line = format!("printf '<%s>' {}", quoted(text));
            let said = Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), format!("<{text}>"), "{line}");
        }
    }
}
