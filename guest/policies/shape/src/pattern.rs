//! Patterns of names: `*` stands for any text and `?` for one character.

/// The longest name that a pattern is compared with, in bytes. It keeps hostile names within the time of a question.
const NAME: usize = 1024;

pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    if name.len() > NAME {
        return false;
    }
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    // Where to go on if the text that the last `*` stands for has to be longer.
    let mut retry = None;
    loop {
        let (rest, before) = (pattern.clone(), name.clone());
        match (pattern.next(), name.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                retry = Some((rest, before.clone()));
                name = before;
            }
            (Some('?'), Some(_)) => {}
            (Some(one), Some(other)) if one == other => {}
            _ => {
                let Some((star, mut longer)) = retry.take() else { return false };
                if longer.next().is_none() {
                    return false;
                }
                (pattern, name) = (star.clone(), longer.clone());
                pattern.next();
                retry = Some((star, longer));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_match() {
        for (pattern, name, expected) in [
            ("search", "search", true),
            ("search", "searches", false),
            ("search", "sear", false),
            ("*", "", true),
            ("*", "é", true),
            ("list_*", "list_issues", true),
            ("list_*", "list_", true),
            ("list_*", "get_list_x", false),
            ("*_list", "a_list_b_list", true),
            ("*_list", "a_list_b", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXcYb", false),
            ("g?t", "get", true),
            ("g?t", "gét", true),
            ("g?t", "gt", false),
            ("?", "", false),
            ("**a**", "bab", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_hostile_name_matches_nothing() {
        assert!(!matches("*", &"a".repeat(NAME + 1)));
        assert!(!matches(&format!("{}b", "*a".repeat(60)), &"a".repeat(NAME)));
    }
}
