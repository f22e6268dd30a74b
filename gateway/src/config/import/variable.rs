//! `${…}` in the JSON of other hosts, and what Weir writes for it.

use std::ops::Range;

use crate::config::Environment;
use crate::config::problem::ProblemReport;

/// The text with each `${…}` as Weir has it. Reports what only the other host could know.
pub(super) fn translated(
    text: &str,
    at: &Range<usize>,
    environment: &dyn Environment,
    report: &mut ProblemReport<'_>,
) -> String {
    let mut translated = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((inside, after)) = after.split_once('}') else { break };
        translated.push_str(before);
        match meaning(inside, environment) {
            Ok(ours) => translated.push_str(&ours),
            Err((message, hint)) => report.add(at.clone(), message, Some(hint)),
        }
        rest = after;
    }
    translated + rest
}

fn meaning(inside: &str, environment: &dyn Environment) -> Result<String, (String, String)> {
    if let Some((name, default)) = inside.split_once(":-").filter(|(name, _)| is_name(name)) {
        let is_set = environment.variable(name).is_some_and(|value| !value.is_empty());
        return Ok(if is_set { format!("${{env:{name}}}") } else { default.to_owned() });
    }
    match inside.split_once(':') {
        Some(("input", id)) => {
            let name = id.to_ascii_uppercase().replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
            let hint = format!("write ${{env:{name}}} instead, and export {name}=… before Weir starts");
            Err((format!("`${{input:{}}}` is asked for by VS Code; Weir has nobody to ask", id.escape_debug()), hint))
        }
        // Of Weir's own, or nothing that Weir knows: whoever expands it says so.
        Some(("env" | "file", _)) => Ok(format!("${{{inside}}}")),
        None if inside == "userHome" => Ok("${env:HOME}".to_owned()),
        None if is_name(inside) && !inside.starts_with(|first: char| first.is_ascii_lowercase()) => {
            Ok(format!("${{env:{inside}}}"))
        }
        _ => {
            let message =
                format!("`${{{}}}` means nothing outside of the host that this file is for", inside.escape_debug());
            Err((message, "write what it stands for, such as the path of the folder".to_owned()))
        }
    }
}

fn is_name(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !text.is_empty() && text.bytes().all(letter) && !text.starts_with(|first: char| first.is_ascii_digit())
}
