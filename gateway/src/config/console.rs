//! What the pages for browsers are called, and what they show at the top.

use std::str::FromStr;

use super::read::Unreadable;
use super::string::strings;

/// The longest name of the pages, in characters.
const LONGEST_NAME: usize = 64;

/// What the operator has the pages for browsers show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleConfig {
    /// What they are called.
    pub name: String,
    /// An image at their top, as a `data:` URL (RFC 2397).
    pub logo: Option<String>,
}

impl Default for ConsoleConfig {
    fn default() -> Self {
        Self { name: "Weir".to_owned(), logo: None }
    }
}

/// The name of the pages.
pub(super) struct PageName(pub(super) String);

strings! {
    PageName: "a name, as a string", { "type": "string", "minLength": 1, "maxLength": 64 };
}

impl FromStr for PageName {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let fits = (1..=LONGEST_NAME).contains(&text.trim().chars().count()) && !text.contains(char::is_control);
        let refused = || Unreadable::new("this is not a name for pages", "one line of 1 to 64 characters");
        if fits { Ok(Self(text.trim().to_owned())) } else { Err(refused()) }
    }
}

/// The type of an image that browsers show without running anything, by how its file begins.
pub(super) fn image_type(content: &[u8]) -> Option<&'static str> {
    match content {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => {
            let text = std::str::from_utf8(content).ok()?.trim_start_matches('\u{feff}').trim_start();
            (text.starts_with("<svg") || text.starts_with("<?xml") && text.contains("<svg")).then_some("image/svg+xml")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_known_by_how_they_begin() {
        for (content, expected) in [
            (&b"\x89PNG\r\n\x1a\n"[..], Some("image/png")),
            (b"\xff\xd8\xff\xe0", Some("image/jpeg")),
            (b"RIFF\0\0\0\0WEBPVP8 ", Some("image/webp")),
            (b"\xef\xbb\xbf\n<svg xmlns='x'/>", Some("image/svg+xml")),
            (b"<?xml version='1.0'?><svg/>", Some("image/svg+xml")),
            (b"<?xml version='1.0'?><html/>", None),
            (b"<html><svg/></html>", None),
            (b"\xff\xfe<svg", None),
            (b"", None),
        ] {
            assert_eq!(image_type(content), expected, "{content:?}");
        }
    }

    #[test]
    fn a_name_is_one_short_line() {
        assert!(" Example tools ".parse::<PageName>().is_ok_and(|name| name.0 == "Example tools"));
        for bad in ["", "  ", "a\nb", &"é".repeat(65)] {
            assert!(bad.parse::<PageName>().is_err(), "{bad}");
        }
    }
}
