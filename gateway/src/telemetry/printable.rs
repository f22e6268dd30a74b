//! Text from outside, made fit for a terminal and for one line of a text log.
//!
//! Names, titles and errors of upstreams, claims of clients and messages of policies are other people's words. Some
//! characters in them act on what shows them: they repaint a terminal, forge a line, or turn the reading direction.

use std::{
    borrow::Cow,
    fmt::{self, Write},
};

use super::put::is_plain;

/// The longest text that is shown, in bytes.
const LONGEST: usize = 4096;

/// The text as one line that only says something: without escape sequences (ECMA-48), control characters, and
/// characters that nobody sees. A longer text than 4 KiB is cut.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    let text = text.trim_end();
    if text.len() <= LONGEST && (is_plain(text) || !text.contains(acts)) {
        return Cow::Borrowed(text);
    }
    let mut cleaned = String::with_capacity(text.len().min(LONGEST));
    // A string takes whatever is written.
    let _ = Cleaner::new(&mut cleaned).write_str(text);
    cleaned.truncate(cleaned.trim_end().len());
    Cow::Owned(cleaned)
}

/// The same for a text that is the output itself: it keeps its lines and tabs, and is not cut.
#[must_use]
pub fn printable_text(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        for (at, cell) in line.trim_end_matches('\r').split('\t').enumerate() {
            cleaned.push_str(if at == 0 { "" } else { "\t" });
            // A string takes whatever is written.
            let _ = Cleaner { to: &mut cleaned, left: usize::MAX }.write_str(cell);
        }
        cleaned.push_str(end);
    }
    cleaned
}

/// JSON for a terminal: characters that act or that nobody sees are written as escapes, so it means the same.
#[must_use]
pub fn printable_json(json: &str) -> Cow<'_, str> {
    // Line breaks between values are no part of a string.
    let hides = |c: char| acts(c) && c != '\n';
    if !json.contains(hides) {
        return Cow::Borrowed(json);
    }
    let mut cleaned = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\t' | '\r' => cleaned.push(' '),
            c if hides(c) => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    // A string takes whatever is written.
                    let _ = write!(cleaned, "\\u{unit:04x}");
                }
            }
            c => cleaned.push(c),
        }
    }
    Cow::Owned(cleaned)
}

/// Cleans what is written through it, each piece by itself: an escape sequence does not reach into the next.
pub(super) struct Cleaner<W> {
    to: W,
    left: usize,
}

impl<W: Write> Cleaner<W> {
    pub(super) const fn new(to: W) -> Self {
        Self { to, left: LONGEST }
    }

    fn put(&mut self, text: &str) -> fmt::Result {
        if self.left == 0 || text.is_empty() {
            return Ok(());
        }
        let end = text.floor_char_boundary(self.left);
        self.to.write_str(&text[..end])?;
        if end < text.len() {
            self.left = 0;
            return self.to.write_str("…");
        }
        self.left -= end;
        Ok(())
    }
}

impl<W: Write> Write for Cleaner<W> {
    fn write_str(&mut self, mut text: &str) -> fmt::Result {
        while let Some(at) = text.find(acts) {
            self.put(&text[..at])?;
            if self.left == 0 {
                return Ok(());
            }
            if text[at..].starts_with(divides) {
                self.put(" ")?;
            }
            text = after(&text[at..]);
        }
        self.put(text)
    }
}

/// Whether a character does something, or cannot be seen: controls, and the format characters of Unicode that join, hide
/// and turn what stands around them.
pub(super) fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Whether a character stands between words or lines.
fn divides(c: char) -> bool {
    matches!(c, '\t'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// What follows the first character of `text`, and the escape sequence that begins with it if there is one.
fn after(text: &str) -> &str {
    let mut chars = text.chars();
    let first = chars.next();
    let rest = chars.as_str();
    match first {
        Some('\u{1b}') => after_escape(rest),
        Some('\u{9b}') => after_control(rest),
        Some('\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}') => after_string(rest),
        _ => rest,
    }
}

fn after_escape(text: &str) -> &str {
    let mut chars = text.chars();
    let introducer = chars.next();
    let rest = chars.as_str();
    match introducer {
        Some('[') => after_control(rest),
        Some(']' | 'P' | 'X' | '^' | '_') => after_string(rest),
        Some(' '..='/') => after_final(rest, '0'),
        Some('0'..='~') => rest,
        _ => text,
    }
}

/// Behind a control sequence: parameters, then one letter (ECMA-48 §5.4).
fn after_control(text: &str) -> &str {
    after_final(text.trim_start_matches(|c| ('0'..='?').contains(&c)), '@')
}

/// Behind intermediate bytes and the byte that ends a sequence, if there is one.
fn after_final(text: &str, least: char) -> &str {
    let text = text.trim_start_matches(|c| (' '..='/').contains(&c));
    text.strip_prefix(|c| (least..='~').contains(&c)).unwrap_or(text)
}

/// Behind a control string, such as the title of a window (ECMA-48 §5.6). One without an end takes nothing with it.
fn after_string(text: &str) -> &str {
    let Some(end) = text.find(char::is_control) else { return text };
    let (_, ending) = text.split_at(end);
    let ends = ["\u{7}", "\u{9c}", "\u{1b}\\"].into_iter().find_map(|end| ending.strip_prefix(end));
    ends.unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_are_left_out_whole() {
        for (text, shown) in [
            ("\x1b[1;31mred\x1b[0m\tcell\x07\r\n", "red cell"),
            ("\x1b[?25l\x1b[2J\x1b[Hclean", "clean"),
            ("caf\u{e9} \u{9b}31mred", "caf\u{e9} red"),
            ("\x1b]0;title\x07after", "after"),
            ("\x1b]8;;https://evil.test/\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\u{9d}52;c;cm0gLXJm\u{9c}after", "after"),
            ("\x1bP1$r\x1b\\a\x1b_b\x1b\\c\x1b^d\x1b\\e\x1bXf\x1b\\g", "aceg"),
            ("\x1b(0\x1b)B\x1bc\x1b7ok", "ok"),
        ] {
            assert_eq!(printable(text), shown, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_whole_sequence_hides_nothing_behind_it() {
        for (text, shown) in [
            ("\x1b[unfinished", "nfinished"),
            ("\x1b]0;no end", "0;no end"),
            ("\x1b]0;a\nb\x07", "0;a b"),
            ("end \x1b", "end"),
            ("\x1b[31", ""),
            ("\x1b\u{e9}", "\u{e9}"),
            ("\x1b]a\x1b]b\x07c", "ac"),
        ] {
            assert_eq!(printable(text), shown, "{text:?}");
        }
    }

    #[test]
    fn nothing_unseen_and_no_second_line_is_left() {
        for (text, shown) in [
            ("pay\u{202e}lap\u{202c}", "paylap"),
            ("a\u{2066}b\u{2069}c\u{200f}d\u{61c}e", "abcde"),
            ("z\u{200b}e\u{200d}r\u{feff}o\u{2060}\u{ad}", "zero"),
            ("tag\u{e0041}\u{e007f}", "tag"),
            ("one\ntwo\r\nthree\u{2028}four\u{85}five", "one two  three four five"),
            ("\u{80}\u{7f}\u{0}x", "x"),
            (" \r\n", ""),
            ("¡Grüße, 世界! 🎉", "¡Grüße, 世界! 🎉"),
        ] {
            assert_eq!(printable(text), shown, "{text:?}");
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let whole = "x".repeat(LONGEST);
        assert_eq!(printable(&whole), whole);
        let long = printable(&"é".repeat(LONGEST)).into_owned();
        assert_eq!(long.len(), LONGEST + "…".len());
        assert!(long.ends_with("é…"), "{}", &long[long.len() - 9..]);
        let hostile = "\x1b]\u{9d}".repeat(200_000);
        assert_eq!(printable(&hostile), "");
    }

    #[test]
    fn a_text_that_is_output_keeps_its_lines_and_its_length() {
        let long = "x".repeat(LONGEST + 1);
        assert_eq!(printable_text(&long), long);
        assert_eq!(printable_text("a\tb  \r\n\n\x1b[31mc\x1b[0m\u{202e}\n"), "a\tb  \n\nc\n");
    }

    #[test]
    fn json_is_the_same_document_without_what_acts() {
        let json = "{\"a\":\"\u{9b}31m\u{202e}\u{e0041}\u{7f}é\",\r\n\t\"b\":1e400}";
        let shown = printable_json(json);
        assert_eq!(shown, "{\"a\":\"\\u009b31m\\u202e\\udb40\\udc41\\u007fé\", \n \"b\":1e400}");
        assert!(matches!(printable_json("{\n  \"a\": 1\n}"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_sequence_ends_with_the_piece_that_began_it() {
        let (mut shown, title) = (String::new(), "no\x1b]0;title");
        assert!(write!(Cleaner::new(&mut shown), "{title}; run `weir auth login`").is_ok());
        assert_eq!(shown, "no0;title; run `weir auth login`");
    }
}
