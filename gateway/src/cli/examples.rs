//! The examples in the help of commands that have none beside their options.

use clap::Command;

/// Each command by its words, with lines that a person might type.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("access explain", &["weir access explain 1a214d746d900000"]),
    ("audit export", &["weir audit export --format ocsf > records.jsonl"]),
    ("audit tail", &["weir audit tail", "weir audit tail --follow"]),
    ("audit verify", &["weir audit verify", "weir audit verify /var/log/weir/audit.jsonl"]),
    ("auth grants list", &["weir auth grants list"]),
    ("auth grants revoke", &["weir auth grants revoke --subject ada"]),
    ("auth list", &["weir auth list", "weir auth list --json"]),
    ("auth logout", &["weir auth logout github"]),
    ("auth metadata", &["weir auth metadata github"]),
    ("auth refresh", &["weir auth refresh github"]),
    ("auth status", &["weir auth status", "weir auth status github --json"]),
    ("check", &["weir check", "weir check --live --require github", "weir check --as ada --group engineering"]),
    ("client disconnect", &["weir client disconnect cursor"]),
    ("client list", &["weir client list"]),
    ("client print", &["weir client print vscode"]),
    ("config diff", &["weir config diff"]),
    ("connect", &["weir connect https://mcp.example.com/mcp"]),
    ("demo", &["weir demo", "weir demo --listen 127.0.0.1:9000"]),
    ("disable", &["weir disable github search"]),
    ("edit", &["weir edit"]),
    ("enable", &["weir enable github"]),
    ("init", &["weir init", "weir init --config team.toml"]),
    ("key add", &["weir key add ci", "weir key add nightly --expires 90d"]),
    ("key list", &["weir key list --json"]),
    ("key revoke", &["weir key revoke ci"]),
    ("list", &["weir list", "weir list --sources"]),
    ("logs", &["weir logs", "weir logs --follow"]),
    ("migrate", &["weir migrate"]),
    ("policy bench", &["weir policy bench weir:pin guest/policies/pin/cases"]),
    ("policy build", &["weir policy build no-deletes"]),
    ("policy compile", &["weir policy compile policy.wasm"]),
    ("policy explain", &["weir policy explain 1a214d746d900000 questions.jsonl"]),
    ("policy inspect", &["weir policy inspect weir:redact", "weir policy inspect policy.wasm"]),
    ("policy new", &["weir policy new no-deletes --lang rust --for calls"]),
    ("policy replay", &["weir policy replay policy.wasm questions.jsonl"]),
    ("policy test", &["weir policy test policy.wasm", "weir policy test weir:pin guest/policies/pin/cases"]),
    ("reload", &["weir reload"]),
    ("remove", &["weir remove github"]),
    ("rename", &["weir rename github code"]),
    ("schema", &["weir schema > weir.schema.json"]),
    ("secret list", &["weir secret list"]),
    ("secret remove", &["weir secret remove github-token"]),
    ("secret set", &["weir secret set github-token < token"]),
    ("show", &["weir show github"]),
    ("status", &["weir status", "weir status github --json"]),
    ("store check", &["weir store check"]),
    ("tools approve", &["weir tools approve github create_issue"]),
    ("tools diff", &["weir tools diff"]),
    ("upgrade", &["weir upgrade"]),
];

/// The commands with their examples.
pub(super) fn with(commands: Command) -> Command {
    EXAMPLES.iter().fold(commands, |commands, (path, lines)| {
        let head = if lines.len() == 1 { "Example:" } else { "Examples:" };
        let lines: String = lines.iter().map(|line| format!("\n  {line}")).collect();
        at(commands, path, format!("{head}{lines}"))
    })
}

fn at(command: Command, path: &str, text: String) -> Command {
    let (first, rest) = path.split_once(' ').unwrap_or((path, ""));
    command.mut_subcommand(first, |below| match rest {
        "" => below.after_help(text),
        rest => at(below, rest, text),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    /// Each command that does something, with its words.
    fn leaves(command: &Command, words: &str) -> Vec<(String, Command)> {
        let shown: Vec<_> = command.get_subcommands().filter(|below| !below.is_hide_set()).collect();
        match shown.is_empty() {
            true => vec![(words.to_owned(), command.clone())],
            false => {
                shown.into_iter().flat_map(|below| leaves(below, &format!("{words} {}", below.get_name()))).collect()
            }
        }
    }

    #[test]
    fn each_command_has_examples_and_each_of_them_can_be_typed() {
        let commands = with(Cli::command());
        for (words, command) in leaves(&commands, "weir") {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let one = help.strip_prefix("Example: ").map(|line| vec![line]);
            let lines = one.unwrap_or_else(|| help.lines().filter_map(|line| line.strip_prefix("  ")).collect());
            assert!(!lines.is_empty(), "`{words}` has no example");
            for line in lines {
                // What stands before is for the shell, and so is where the input comes from and the output goes.
                let line = line.find("weir ").map_or(line, |start| &line[start..]);
                let typed = line.split(" > ").flat_map(|part| part.split(" < ")).next().unwrap_or(line);
                assert!(typed.starts_with(&words), "`{words}` shows `{line}`");
                let typed = shlex::split(typed).unwrap();
                let parsed = commands.clone().try_get_matches_from(typed);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
        }
    }
}
