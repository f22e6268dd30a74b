//! What is known of a message that was too long to be kept.

use crate::json;

/// Which request a message answers of which only the start and the end are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The one with this raw id.
    To(Vec<u8>),
    /// The message is no answer.
    None,
    /// That cannot be seen.
    Unknown,
}

impl Answered {
    /// Finds the id where most write it: before the result, or behind it.
    pub fn by(start: &[u8], end: &[u8]) -> Self {
        for (key, value) in json::members(start) {
            // What reaches the edge may go on behind it.
            if value.as_ptr_range().end >= start.as_ptr_range().end {
                break;
            }
            match &*key {
                "id" => return Self::To(value.to_vec()),
                "method" => return Self::None,
                _ => {}
            }
        }
        let Some(at) = memchr::memmem::rfind(end, b"\"id\"") else { return Self::Unknown };
        // If it is a member of the message itself, what follows closes the message and nothing else.
        let rest = [b"{", &end[at..]].concat();
        if json::scan(&rest).is_err() {
            return Self::Unknown;
        }
        json::get(&rest, &["id"]).map_or(Self::Unknown, |id| Self::To(id.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_found_at_the_start_or_at_the_end_and_nowhere_else() {
        let of = |start: &str, end: &str| Answered::by(start.as_bytes(), end.as_bytes());
        let to = |id: &str| Answered::To(id.into());
        assert_eq!(of(r#"{"jsonrpc":"2.0","id":7,"result":{"text":"xxx"#, "x"), to("7"));
        assert_eq!(of(r#"{"result":{"text":"xxx"#, "xx\"}, \"id\" : \"a\" } \r"), to("\"a\""));
        assert_eq!(of(r#"{"result":{"text":"xxx"#, r#"xx"},"id":8,"jsonrpc":"2.0"}"#), to("8"));
        assert_eq!(of(r#"{"method":"notifications/message","params":{"#, r#"xx"},"id":8}"#), Answered::None);
        for (start, end) in [
            (r#"{"result":{"text":"xxx"#, r#"xx","id":7}}"#),
            (r#"{"result":{"text":"xxx"#, r#"xx \"id\":7}"}}"#),
            (r#"{"jsonrpc":"2.0","id":12"#, "34"),
            ("", ""),
        ] {
            assert_eq!(of(start, end), Answered::Unknown, "{start} … {end}");
        }
    }
}
