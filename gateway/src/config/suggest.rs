//! "Did you mean": the word an operator was after, by spelling or by what other gateways call it.

/// Words from other configurations, and ours for them.
const ELSEWHERE: &[(&str, &str)] = &[
    ("address", "listen"),
    ("bind", "listen"),
    ("cert", "certificate"),
    ("disabled", "enabled"),
    ("environment", "env"),
    ("host", "listen"),
    ("local", "stdio"),
    ("mcp_servers", "upstreams"),
    ("mcpservers", "upstreams"),
    ("path", "component"),
    ("permissions", "grants"),
    ("port", "listen"),
    ("process", "stdio"),
    ("servers", "upstreams"),
    ("streamable-http", "http"),
    ("streamable_http", "http"),
    ("streamablehttp", "http"),
    ("token", "bearer"),
    ("transport", "type"),
    ("wasm", "component"),
    ("working_dir", "cwd"),
];

/// The known word that was most likely meant, if any comes near.
pub(super) fn closest<'w>(word: &str, known: &[&'w str]) -> Option<&'w str> {
    let word = word.to_ascii_lowercase();
    let ours = ELSEWHERE.iter().find(|(theirs, _)| *theirs == word).map(|(_, ours)| *ours);
    if let Some(found) = known.iter().find(|each| Some(**each) == ours) {
        return Some(found);
    }
    nearest(&word, known.iter().map(|each| ((*each).to_owned(), *each)))
}

/// The word that is spelled most like another one, whatever the case of its letters; none if no word is similar.
pub fn similar<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    nearest(&word.to_ascii_lowercase(), known.into_iter().map(|each| (each.to_ascii_lowercase(), each)))
}

/// The second of the pair whose first is spelled most like the word, if any comes near.
fn nearest<'w>(word: &str, known: impl Iterator<Item = (String, &'w str)>) -> Option<&'w str> {
    let far = (word.chars().count() / 3).max(1);
    let known = known.map(|(spelled, each)| (strsim::damerau_levenshtein(word, &spelled), each));
    // Words that have no letter in common are not similar, however short they are.
    let near = known.filter(|(distance, each)| *distance <= far && *distance < word.len().max(each.len()));
    near.min().map(|(_, each)| each)
}

/// A hint that names the word meant, or else all that would do.
pub(super) fn hint(word: &str, known: &[&str]) -> String {
    match closest(word, known) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::closest;

    #[test]
    fn finds_what_was_meant() {
        let keys = ["url", "type", "timeouts", "command", "listen"];
        assert_eq!(closest("tpye", &keys), Some("type"));
        assert_eq!(closest("transport", &keys), Some("type"));
        assert_eq!(closest("Timeout", &keys), Some("timeouts"));
        assert_eq!(closest("port", &keys), Some("listen"));
        assert_eq!(closest("colour", &keys), None);
        assert_eq!(closest("", &keys), None);
        assert_eq!(closest("c", &["a", "b"]), None);
        assert_eq!(closest("URI", &["url", "type"]), Some("url"));
    }
}
