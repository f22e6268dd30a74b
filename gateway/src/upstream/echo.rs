//! What a server says of a request must not show what opened it: neither to a policy nor in the log.

use crate::http::{HeaderName, HeaderValue};

/// What stands for a secret.
const MASK: &str = "[secret]";

/// What is shorter is no secret: to take it out would change words that only look like it.
const SHORTEST: usize = 6;

/// A text of a server, without the secrets of the request that it answers: the values of headers that are marked sensitive.
pub(super) fn masked(text: &str, sent: &[(HeaderName, HeaderValue)]) -> String {
    let values = sent.iter().filter(|(_, value)| value.is_sensitive()).filter_map(|(_, value)| value.to_str().ok());
    // What stands before the secret is its scheme.
    let secrets = values.map(|value| value.rsplit_once(' ').map_or(value, |(_, secret)| secret));
    secrets.filter(|secret| secret.len() >= SHORTEST).fold(text.to_owned(), |text, secret| text.replace(secret, MASK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_opened_a_request_is_not_shown_again() {
        let header = |name: &'static str, value: &str, secret: bool| {
            let mut value = HeaderValue::from_str(value).unwrap_or_else(|_| HeaderValue::from_static(""));
            value.set_sensitive(secret);
            (HeaderName::from_static(name), value)
        };
        let sent = [
            header("accept", "application/json", false),
            header("authorization", "Bearer hunter2hunter2", true),
            header("x-key", "s3cret-key", true),
            header("x-short", "read", true),
        ];
        for (text, shown) in [
            ("bad token hunter2hunter2", "bad token [secret]"),
            ("hunter2hunter2,s3cret-key", "[secret],[secret]"),
            ("Bearer read application/json", "Bearer read application/json"),
            ("", ""),
        ] {
            assert_eq!(masked(text, &sent), shown);
        }
        assert_eq!(masked("hunter2hunter2", &[]), "hunter2hunter2");
    }
}
