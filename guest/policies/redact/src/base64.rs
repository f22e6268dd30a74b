//! Base64 (RFC 4648 section 4), as MCP uses it for content that is no text.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The bytes that a text stands for; none if it is no base64. Line breaks do not count, and padding may be missing.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches(['\r', '\n']);
    let text = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let (mut bits, mut count) = (0_u32, 0_u32);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'\r' | b'\n' => continue,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0x00ff_ffff;
        count += 1;
        if count.is_multiple_of(4) {
            bytes.extend_from_slice(&bits.to_be_bytes()[1..]);
        }
    }
    match count % 4 {
        0 => {}
        2 => bytes.push((bits >> 4).to_be_bytes()[3]),
        3 => bytes.extend_from_slice(&(bits >> 2).to_be_bytes()[2..]),
        _ => return None,
    }
    Some(bytes)
}

/// The base64 of these bytes, with padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let index = (bits >> (18 - 6 * place) & 63) as usize;
            text.push(if place > chunk.len() { '=' } else { ALPHABET[index].into() });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_agree_with_the_standard() {
        for (plain, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), encoded);
            assert_eq!(decode(encoded).as_deref(), Some(plain.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
        assert_eq!(decode("Zm9v\r\nYmFy\n").as_deref(), Some(&b"foobar"[..]));
        assert_eq!(decode("Zg").as_deref(), Some(&b"f"[..]));
    }

    #[test]
    fn other_texts_are_none() {
        for text in ["Z", "Zm9vY", "Zm 9v", "Zm9v-_", "é", "Zg=a"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
