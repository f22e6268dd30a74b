//! The permission rules of Claude Code: `mcp__github__create_issue` in lists of `permissions`.

use std::path::PathBuf;

use crate::{
    Directories, Host, HostFile, ReadError, Scope,
    value::{self, Format, Value, without_bom},
};

/// The lists of rules.
const LISTS: &[&str] = &["allow", "ask", "deny"];

/// A server that was moved into Weir.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedServer {
    /// What the host called it.
    pub from: String,
    /// What Weir calls it.
    pub to: String,
}

/// A file whose rules name tools of Weir.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleEdit {
    pub text: String,
    /// Each rule before and after.
    pub rules: Vec<(String, String)>,
}

impl Host {
    /// The files with permission rules for tools, where the host has such files.
    pub fn permission_files(self, directories: &Directories) -> Vec<HostFile> {
        if self != Self::ClaudeCode {
            return Vec::new();
        }
        let mut files = vec![HostFile { path: directories.home.join(".claude/settings.json"), scope: Scope::User }];
        if let Some(project) = &directories.project {
            files.push(HostFile { path: project.join(".claude/settings.local.json"), scope: Scope::User });
            files.push(HostFile { path: project.join(".claude/settings.json"), scope: Scope::Project });
        }
        files
    }

    /// The folders of the projects that the host's own file, with this text, names. A file that cannot be read names none.
    pub fn projects(self, text: &str) -> Vec<PathBuf> {
        let root = value::parse(self.format(), text).ok().filter(|_| self == Self::ClaudeCode);
        let projects = root.as_ref().and_then(|root| root.at(&["projects"])?.map());
        projects.into_iter().flat_map(|projects| projects.keys()).map(PathBuf::from).collect()
    }
}

/// Rewrites the rules for single tools of servers that were moved, where the host calls Weir `entry`. All other bytes stay.
pub fn rewrite_rules(text: &str, entry: &str, moved: &[MovedServer]) -> Result<RuleEdit, ReadError> {
    replace(text, |rule| {
        let (tool, to) = moved.iter().find_map(|server| Some((covered(rule, &server.from)?, &server.to)))?;
        Some(format!("mcp__{}__{to}__{tool}", plain(entry)))
    })
}

/// A rule for all tools of a server, or for a part of them, which would lose its effect if Weir, as `entry`, served them.
///
/// Versions of Claude Code refuse or ignore a wildcard behind the beginning of a tool's name (anthropics/claude-code#65797), so
/// `mcp__weir__github__*` cannot stand for `mcp__github`.
pub fn whole_server_rule(text: &str, entry: &str, server: &str) -> Result<Option<String>, ReadError> {
    let (tools, own) = (format!("mcp__{}__", plain(server)), format!("mcp__{}__", plain(entry)));
    let is_lost = |rule: &str| match rule.split_once('*') {
        Some((start, _)) => (tools.starts_with(start) || start.starts_with(&tools)) && !own.starts_with(start),
        None => tools.strip_suffix("__") == Some(rule),
    };
    let found = replace(text, |rule| is_lost(rule).then(String::new))?;
    Ok(found.rules.into_iter().map(|(rule, _)| rule).next())
}

/// Whether the texts differ in nothing but rules that [`rewrite_rules`] may have written.
pub fn is_rewritten(text: &str, original: &str, entry: &str) -> bool {
    let without = |text: &str| {
        let edit = replace(text, |rule| rule.starts_with("mcp__").then(String::new)).ok()?;
        Some((edit.text, edit.rules.into_iter().map(|(rule, _)| rule).collect::<Vec<_>>()))
    };
    let (Some((now, rules)), Some((then, originals))) = (without(text), without(original)) else { return false };
    let prefix = format!("mcp__{}__", plain(entry));
    let pairs = || rules.iter().zip(&originals);
    now == then && rules.len() == originals.len() && pairs().all(|(rule, was)| rule == was || rule.starts_with(&prefix))
}

/// The tool of this server that a rule names.
fn covered<'r>(rule: &'r str, server: &str) -> Option<&'r str> {
    let tool = rule.strip_prefix("mcp__")?.strip_prefix(plain(server).as_str())?.strip_prefix("__")?;
    (!tool.is_empty() && !tool.contains('*')).then_some(tool)
}

/// The name of a server within the names of its tools.
fn plain(server: &str) -> String {
    server.chars().map(|c| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' }).collect()
}

fn replace(text: &str, new: impl Fn(&str) -> Option<String>) -> Result<RuleEdit, ReadError> {
    let root = value::parse(Format::Jsonc, text)?;
    let body = without_bom(text);
    let mut found = Vec::new();
    for list in LISTS.iter().filter_map(|list| root.at(&["permissions", list])?.list()) {
        for rule in list {
            let Some(old) = rule.text() else { continue };
            // A rule that is written with escapes is no rule that this has to find.
            let literal = body.get(rule.at + 1..).is_some_and(|rest| rest.starts_with(old));
            found.extend(new(old).filter(|_| literal).map(|new| (rule, old, new)));
        }
    }
    found.sort_by_key(|(rule, ..)| rule.at);
    let mut edited = String::from(&text[..text.len() - body.len()]);
    let mut end = 0;
    let mut rules = Vec::new();
    for (&Value { at, .. }, old, new) in found {
        edited += &body[end..=at];
        edited += &new;
        end = at + 1 + old.len();
        rules.push((old.to_owned(), new));
    }
    edited += &body[end..];
    Ok(RuleEdit { text: edited, rules })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "\u{feff}{ // mine\n  \"permissions\": {\n    \"allow\": [\"mcp__my_files__read\", \"Bash(ls)\", \"mcp__github\"],\n    \"deny\": [\"mcp__githubs__x\", \"mcp__other__y\", \"mcp__github__delete\"]\n  }\n}\n";

    fn moved() -> Vec<MovedServer> {
        let server = |from: &str, to: &str| MovedServer { from: from.into(), to: to.into() };
        vec![server("my files", "my-files"), server("github", "github")]
    }

    #[test]
    fn rules_of_moved_servers_alone_are_rewritten() {
        let edit = rewrite_rules(RULES, "weir", &moved()).unwrap_or_else(|why| panic!("{why}"));
        let expected = RULES
            .replace("mcp__my_files__read", "mcp__weir__my-files__read")
            .replace("mcp__github__delete", "mcp__weir__github__delete");
        assert_eq!(edit.text, expected);
        assert_eq!(edit.rules.len(), 2);
        assert!(is_rewritten(&edit.text, RULES, "weir"));
        assert!(!is_rewritten(&edit.text.replace("Bash(ls)", "Bash(rm)"), RULES, "weir"), "somebody has changed it");
        assert!(!is_rewritten(&RULES.replace("mcp__other__y", "mcp__other__z"), RULES, "weir"));
    }

    #[test]
    fn a_rule_for_more_than_single_tools_is_found() {
        let rule = |rule: &str| {
            let text = format!("{{\"permissions\": {{\"deny\": [\"Bash(rm *)\", \"mcp__github__x\", \"{rule}\"]}}}}");
            whole_server_rule(&text, "weir", "github").unwrap_or_else(|why| panic!("{why}"))
        };
        for lost in ["mcp__github", "mcp__github__*", "mcp__git*", "mcp__github__delete_*"] {
            assert_eq!(rule(lost).as_deref(), Some(lost));
        }
        // The last two name the tools of Weir, too.
        for kept in ["mcp__githubs", "mcp__githubs__*", "mcp__github__y", "mcp__*", "*"] {
            assert_eq!(rule(kept), None, "{kept}");
        }
    }

    #[test]
    fn the_host_names_its_projects() {
        let text = "{\"projects\": {\"/work/a\": {}, \"/work/b\": {\"mcpServers\": {}}}, \"mcpServers\": {}}";
        let mut projects = Host::ClaudeCode.projects(text);
        projects.sort();
        assert_eq!(projects, ["/work/a", "/work/b"].map(PathBuf::from));
        assert!(Host::Cursor.projects(text).is_empty());
        assert!(["", "{", "{\"projects\": []}"].iter().all(|text| Host::ClaudeCode.projects(text).is_empty()));
    }

    #[test]
    fn a_file_without_rules_stays() {
        for text in ["", "{}", "{\"permissions\": {\"allow\": [1, null]}}"] {
            let edit = rewrite_rules(text, "weir", &moved());
            assert_eq!(edit, Ok(RuleEdit { text: text.to_owned(), rules: Vec::new() }));
        }
        assert!(rewrite_rules("{", "weir", &moved()).is_err());
    }
}
