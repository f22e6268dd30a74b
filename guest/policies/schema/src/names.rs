//! Names of properties that vendors reject (`$filter`), written as they take them, and read back in calls.
//!
//! A written name tells the whole name, so nothing has to be kept between a list and a call.

use weir_policy::json::Json;

/// How a written name begins.
const MARK: &str = "weir_";
/// The longest name that vendors take, in bytes.
const LONGEST: usize = 64;

/// Whether vendors take a name as it is.
pub(crate) fn is_plain(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=LONGEST).contains(&name.len()) && name.bytes().all(is_letter)
}

/// The name as vendors take it; none if that is too long.
pub(crate) fn written(name: &str) -> Option<String> {
    let letter = |byte: u8| match byte {
        b'_' | b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => char::from(byte).to_string(),
        other => format!(".{other:02x}."),
    };
    let written: String = std::iter::once(MARK.to_owned()).chain(name.bytes().map(letter)).collect();
    (written.len() <= LONGEST).then_some(written)
}

/// The name that was written so; none if it is another name.
pub(crate) fn read(text: &str) -> Option<String> {
    let (mut bytes, mut is_code) = (Vec::new(), false);
    for part in text.strip_prefix(MARK)?.split('.') {
        match is_code {
            true => bytes.push(u8::from_str_radix(part, 16).ok()?),
            false => bytes.extend(part.bytes()),
        }
        is_code = !is_code;
    }
    let name = String::from_utf8(bytes).ok()?;
    (!is_plain(&name) && written(&name).as_deref() == Some(text)).then_some(name)
}

/// Gives what is in arguments its own names again; whether anything has changed.
pub(crate) fn restore(arguments: &mut Json) -> bool {
    match arguments {
        Json::Object(members) => {
            let mut changed = false;
            for (name, value) in members {
                changed |= restore(value);
                if let Some(own) = read(name) {
                    (*name, changed) = (own, true);
                }
            }
            changed
        }
        // Each of them, not only up to the first.
        Json::Array(elements) => elements.iter_mut().fold(false, |changed, element| restore(element) | changed),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn a_written_name_is_taken_and_read_back() {
        for name in ["$filter", "a b", "", "é", "weir_ ", "x.y z", "a\u{0}", "~!@#"] {
            let written = written(name).expect(name);
            assert!(is_plain(&written), "{written}");
            assert_eq!(read(&written).as_deref(), Some(name), "{written}");
        }
        assert_eq!(written("$filter").as_deref(), Some("weir_.24.filter"));
        assert_eq!(written(&"$".repeat(40)), None);
    }

    #[test]
    fn what_was_not_written_so_is_another_name() {
        for name in ["", "filter", "weir_filter", "weir_.24", "weir_.2g.x", "weir_.61.b", "weir_.C3.x", "$filter"] {
            assert_eq!(read(name), None, "{name}");
        }
    }

    #[test]
    fn names_are_restored_wherever_they_are() {
        let text = r#"{"a":1.50,"weir_.24.top":[{"weir_.20.":"weir_.20."},{"b":[{"weir_.24.c":null}]}]}"#;
        let mut arguments = Json::parse(text).expect("it is JSON");
        assert!(restore(&mut arguments));
        assert_eq!(arguments.to_string(), r#"{"a":1.50,"$top":[{" ":"weir_.20."},{"b":[{"$c":null}]}]}"#);
        assert!(!restore(&mut arguments));
    }
}
