//! What a command says of a name that it does not know: which one was probably meant, or which there are.

use crate::config::similar_word;

/// How many names are listed.
const LISTED: usize = 20;

/// "There is no WHAT `name`", and a hint.
pub(super) fn unknown<'n>(what: &str, name: &str, known: impl IntoIterator<Item = &'n str>) -> String {
    format!("there is no {what} `{name}`; {}", hint(name, known))
}

/// The known name that is spelled like this one, or else those that there are.
pub(super) fn hint<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match similar_word(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => "there are none".to_owned(),
        None => {
            let more = known.len().saturating_sub(LISTED);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            format!("known: {}{more}", known[..known.len().min(LISTED)].join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::unknown;

    #[test]
    fn names_what_was_meant_or_what_there_is() {
        let known = ["github", "Files", "wiki"];
        assert_eq!(unknown("upstream", "gihtub", known), "there is no upstream `gihtub`; did you mean `github`?");
        assert_eq!(unknown("upstream", "file", known), "there is no upstream `file`; did you mean `Files`?");
        assert_eq!(unknown("upstream", "slack", known), "there is no upstream `slack`; known: github, Files, wiki");
        assert_eq!(unknown("tool", "x", []), "there is no tool `x`; there are none");
        let many: Vec<String> = (0..25).map(|at| format!("tool-number-{at}")).collect();
        assert!(unknown("tool", "x", many.iter().map(String::as_str)).ends_with(" and 5 more"));
    }
}
