//! Keys and tokens with well-known beginnings.

use super::{before, byte, run};

/// What the rest of a key is made of.
#[derive(Clone, Copy)]
enum Rest {
    /// Letters and digits.
    Alphanumeric,
    /// The same and `_`.
    Word,
    /// The same and `-`.
    Url,
    /// Capital letters and digits, as many as given.
    Capitals,
}

/// How keys begin, what follows, and how much of it at least.
const KEYS: [(&str, Rest, usize); 25] = [
    ("ghp_", Rest::Alphanumeric, 30),
    ("gho_", Rest::Alphanumeric, 30),
    ("ghu_", Rest::Alphanumeric, 30),
    ("ghs_", Rest::Url, 30),
    ("ghr_", Rest::Alphanumeric, 30),
    ("github_pat_", Rest::Word, 22),
    ("glpat-", Rest::Url, 20),
    ("sk-", Rest::Url, 20),
    ("sk_live_", Rest::Alphanumeric, 16),
    ("sk_test_", Rest::Alphanumeric, 16),
    ("rk_live_", Rest::Alphanumeric, 16),
    ("rk_test_", Rest::Alphanumeric, 16),
    ("whsec_", Rest::Alphanumeric, 24),
    ("xoxb-", Rest::Url, 20),
    ("xoxa-", Rest::Url, 20),
    ("xoxp-", Rest::Url, 20),
    ("xoxr-", Rest::Url, 20),
    ("xoxs-", Rest::Url, 20),
    ("xapp-", Rest::Url, 20),
    ("AKIA", Rest::Capitals, 16),
    ("ASIA", Rest::Capitals, 16),
    ("AIza", Rest::Url, 35),
    ("npm_", Rest::Alphanumeric, 36),
    ("hf_", Rest::Alphanumeric, 30),
    ("pypi-", Rest::Url, 50),
];

/// The end of the key at this place.
pub(super) fn find(text: &str, at: usize) -> Option<usize> {
    // Most words end here, so that long texts take little time.
    let first = byte(text, at);
    if before(text, at) == b'_' || !matches!(first, b'e' | b'g' | b's' | b'r' | b'w' | b'x' | b'A' | b'n' | b'h' | b'p')
    {
        return None;
    }
    let here = text.get(at..)?;
    if here.starts_with("eyJ") {
        return web_token(text, at);
    }
    let (prefix, rest, least) = KEYS.iter().find(|(prefix, ..)| {
        let start = prefix.as_bytes();
        start[0] == first && start[1] == byte(text, at + 1) && here.starts_with(prefix)
    })?;
    // Behind a hyphen it is the middle of a name. To look further from each hyphen would take quadratic time.
    if matches!(rest, Rest::Url) && before(text, at) == b'-' {
        return None;
    }
    let start = at + prefix.len();
    let end = run(text, start, |byte| match rest {
        Rest::Alphanumeric | Rest::Capitals => byte.is_ascii_alphanumeric(),
        Rest::Word => byte.is_ascii_alphanumeric() || byte == b'_',
        Rest::Url => in_url(byte),
    });
    let key = text.get(start..end)?;
    let right = match rest {
        Rest::Capitals => key.len() == *least && key.bytes().all(|byte| !byte.is_ascii_lowercase()),
        // Names with hyphens begin like this too, but seldom have digits.
        Rest::Url => key.len() >= *least && key.bytes().any(|byte| byte.is_ascii_digit()),
        _ => key.len() >= *least,
    };
    right.then_some(end)
}

/// The end of a JSON Web Token (RFC 7519): three parts when it is signed, five when it is encrypted.
fn web_token(text: &str, at: usize) -> Option<usize> {
    if matches!(before(text, at), b'.' | b'-') {
        return None;
    }
    let (mut end, mut parts) = (run(text, at, in_url), 1);
    if end - at < 12 {
        return None;
    }
    while parts < 5 && byte(text, end) == b'.' {
        let next = run(text, end + 1, in_url);
        // Behind three parts an empty one is the end of a sentence.
        if next == end + 1 && parts >= 3 {
            break;
        }
        (end, parts) = (next, parts + 1);
    }
    (parts >= 3 && end - at >= 30).then_some(end)
}

fn in_url(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::tests::found;

    #[test]
    fn finds_keys_of_well_known_services() {
        for key in [
            "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
            "github_pat_11ABCDEFG0123456789abc_defghijklmnopqrstuvwxyz",
            "glpat-aB3dE5gH7jK9mN1pQ3sT",
            "sk-proj-aB3dE5gH7jK9mN1pQ3sTuV",
            "sk-ant-api03-aB3dE5gH7jK9mN1pQ3sTuV_wX-yZ",
            "xoxb-123456789012-1234567890123-aB3dE5gH7jK9mN1pQ3sTuVwX",
            "AKIAIOSFODNN7EXAMPLE",
            "AIzaSyA1234567890abcdefghijklmnopqrstuv",
            "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
            "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxMjM0NTY3ODkwIn0.",
            "eyJhbGciOiJkaXIiLCJlbmMiOiJBMTI4R0NNIn0..48V1_ALb6US04U3b.5eym8TW_c8SuK0ltJ3rpYIzOeDQz7TALvtu6UG9oMo4.XFBoMYUZodet",
        ] {
            assert_eq!(found(key), [("key", key)]);
            for (front, back) in [("Bearer ", ""), ("?token=", "&x=1"), ("\"", "\"")] {
                assert_eq!(found(&format!("{front}{key}{back}")), [("key", key)]);
            }
        }
    }

    #[test]
    fn no_prefix_is_passed_over() {
        for (prefix, rest, least) in KEYS {
            let unit = if matches!(rest, Rest::Capitals) { "A" } else { "1" };
            let key = format!("{prefix}{}", unit.repeat(least));
            assert_eq!(found(&key), [("key", key.as_str())]);
        }
    }

    #[test]
    fn a_sentence_may_end_behind_a_key() {
        let token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N";
        assert_eq!(found(&format!("It is {token}. Keep it.")), [("key", token)]);
    }

    #[test]
    fn what_only_begins_like_a_key_is_none() {
        for text in [
            "ghp_short",
            "AKIAIOSFODNN7EXAMPLE1",
            "AKIAiosfodnn7example",
            "xAKIAIOSFODNN7EXAMPLE",
            "sk-some-long-name-of-a-class-in-css",
            "css-sk-some-long-name-of-a-class-1",
            "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9",
            "eyJ.eyJ.eyJ",
            "my_ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        ] {
            assert_eq!(found(text), [], "{text}");
        }
    }
}
