//! A policy about calls: no card number reaches the model. Numbers of 13 to 19 digits whose check digit is right (Luhn, ISO/IEC
//! 7812-1) are masked but for the last four, in results, in errors and in what comes before them.
//!
//! `cargo build --release --target wasm32-wasip2 -p mask-cards` makes the component; `docs/calls-policies.md` shows the
//! configuration for it.

use weir_policy::{Upstream, calls::*};

/// What brings texts of an upstream. The result of a task comes with `tasks/get` and with the events of
/// `subscriptions/listen` since 2026-07-28.
const METHODS: [&str; 6] =
    ["tools/call", "resources/read", "prompts/get", "tasks/result", "tasks/get", "subscriptions/listen"];

struct MaskCards;

impl Calls for MaskCards {
    fn wants(_settings: String) -> Result<Interest, String> {
        Ok(Interest { answer: Detail::Body, event: Detail::Body, ..Interest::in_methods(METHODS) })
    }

    fn before(_: Call, _: Option<String>) -> Decision {
        Decision::allow()
    }

    fn after(_: Call, memory: String, what: Content) -> AnswerDecision {
        let (Content::Result(text) | Content::Error(text) | Content::Event(text)) = what;
        match text.as_deref().and_then(masked) {
            Some((text, count)) => {
                let mut decision = AnswerDecision::replace(text, memory);
                decision.labels.push(("masked-cards".into(), count.to_string()));
                decision
            }
            None => AnswerDecision::pass(memory),
        }
    }

    fn entries(_: Upstream, entries: Vec<Entry>) -> Vec<EntryVerdict> {
        entries.iter().map(|_| EntryVerdict::Show).collect()
    }
}

/// The JSON with its card numbers masked, and how many there were; none if there were none. Only texts are looked into, for a
/// number in JSON may stand for anything.
fn masked(json: &str) -> Option<(String, usize)> {
    let (mut out, mut count, mut in_text, mut rest) = (String::with_capacity(json.len()), 0, false, json);
    while let Some(first) = rest.chars().next() {
        let length = if in_text { card(rest) } else { 0 };
        if length > 0 {
            let digits = rest[..length].bytes().filter(u8::is_ascii_digit).count();
            let mut seen = 0;
            for one in rest[..length].chars() {
                seen += usize::from(one.is_ascii_digit());
                out.push(if one.is_ascii_digit() && seen <= digits - 4 { '*' } else { one });
            }
            count += 1;
            rest = &rest[length..];
            continue;
        }
        // A run of digits that is no card is passed as a whole: its end is none either.
        let step = match first {
            '\\' if in_text => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            '0'..='9' => rest.bytes().take_while(u8::is_ascii_digit).count(),
            _ => first.len_utf8(),
        };
        in_text ^= first == '"';
        out.push_str(&rest[..step]);
        rest = &rest[step..];
    }
    (count > 0).then_some((out, count))
}

/// How long the card number is that a text begins with, in bytes; 0 if it begins with none. Groups of digits may have a blank or
/// a hyphen between them.
fn card(text: &str) -> usize {
    let (mut digits, mut length) = (Vec::new(), 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'0'..=b'9' => {
                digits.push(byte - b'0');
                length = at + 1;
            }
            b' ' | b'-' if at == length && at > 0 => {}
            _ => break,
        }
    }
    if (13..=19).contains(&digits.len()) && luhn(&digits) { length } else { 0 }
}

fn luhn(digits: &[u8]) -> bool {
    let doubled = |(at, digit): (usize, &u8)| match (at % 2, *digit * 2) {
        (0, _) => u32::from(*digit),
        (_, twice) => u32::from(twice / 10 + twice % 10),
    };
    digits.iter().rev().enumerate().map(doubled).sum::<u32>() % 10 == 0
}

weir_policy::export_calls!(MaskCards);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn card_numbers_are_masked_but_for_the_last_four() {
        let result = r#"{"text":"4111 1111 1111 1111 and 5500-0000-0000-0004, café","n":4111111111111111}"#;
        let (text, count) = masked(result).expect("there are cards");
        assert_eq!(count, 2);
        assert_eq!(text, r#"{"text":"**** **** **** 1111 and ****-****-****-0004, café","n":4111111111111111}"#);
    }

    #[test]
    fn other_numbers_stay() {
        for text in [
            r#"{"order":"4111111111111112"}"#,
            r#"{"id":"41111111111111111111111"}"#,
            r#"{"short":"411111111111"}"#,
            r#"{"quote":"\"4111\" \\"}"#,
            "{}",
        ] {
            assert_eq!(masked(text), None, "{text}");
        }
    }
}
