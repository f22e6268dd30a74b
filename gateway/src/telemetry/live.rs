//! A table below the log on a terminal, drawn again in place while lines come above it.
//!
//! The thread that writes the log draws it, so nothing else writes between. All that is changed at the terminal is the text
//! below the log: whatever ends the process leaves the terminal as it was.

use std::{io, sync::Arc};

use rustix::{process::getpgrp, termios};

use super::writer::WriterShared;

/// Lines wrap no more, so that each line of the table is one on the screen, and wrap again.
const NO_WRAP: &[u8] = b"\x1b[?7l";
const WRAP: &[u8] = b"\x1b[?7h";

/// The smallest terminal that has room for a table, in columns and rows.
const SMALLEST: (usize, usize) = (40, 10);

/// A table below the log, until this is dropped.
pub struct LiveView(pub(super) Arc<WriterShared>);

/// What is drawn below the log, and the last line above it.
#[derive(Default)]
pub(super) struct LiveScreen {
    /// How many lines are drawn.
    drawn: usize,
    /// The last line of the log without its time, and how often it came again.
    last: Vec<u8>,
    repeats: usize,
}

impl LiveView {
    /// Shows these lines from now on. They have no control characters but for colours.
    pub fn show(&self, lines: Vec<String>) {
        self.0.show(Some(Arc::new(lines)));
    }

    /// Writes text above the table, as it is.
    pub fn say(&self, text: &str) {
        self.0.gather(text.as_bytes());
    }

    /// Has it drawn again, as after a change of the terminal's size.
    pub fn redraw(&self) {
        self.0.redraw(false);
    }

    /// Takes note that something else may have written to the terminal: what is drawn stays as it is.
    pub fn forget(&self) {
        self.0.redraw(true);
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        self.0.show(None);
    }
}

/// Columns and rows of the terminal at standard error; none where that is too small, or belongs to another job of the shell.
#[must_use]
pub fn terminal_size() -> Option<(usize, usize)> {
    let size = termios::tcgetwinsize(io::stderr()).ok()?;
    let size = (usize::from(size.ws_col), usize::from(size.ws_row));
    let is_ours = termios::tcgetpgrp(io::stderr()).is_ok_and(|group| group == getpgrp());
    (is_ours && size.0 >= SMALLEST.0 && size.1 >= SMALLEST.1).then_some(size)
}

impl LiveScreen {
    /// Whether there is anything to erase.
    pub(super) fn is_drawn(&self) -> bool {
        self.drawn > 0
    }

    /// Leaves what is drawn where it is.
    pub(super) fn forget(&mut self) {
        self.drawn = 0;
    }

    /// What the terminal gets: lines of the log, and the table below them if it has room.
    pub(super) fn frame(&mut self, batch: &[u8], table: Option<&[String]>, size: Option<(usize, usize)>) -> Vec<u8> {
        let mut out = Vec::with_capacity(batch.len() + 1024);
        self.erase(&mut out);
        for line in batch.split_inclusive(|byte| *byte == b'\n') {
            let text = without_time(line);
            if text == self.last && text.len() > 1 {
                self.repeats += 1;
                continue;
            }
            self.end_repeats(&mut out);
            self.last = text.to_vec();
            out.extend_from_slice(line);
        }
        match (table, size) {
            (Some(table), Some((columns, rows))) => self.draw(&mut out, table, columns, rows - 1),
            _ => self.end_repeats(&mut out),
        }
        out
    }

    /// A terminal that has become narrower may show a line in two, so that a part of it stays. When a terminal does that is
    /// not known, and to erase more might take a line of the log.
    fn erase(&mut self, out: &mut Vec<u8>) {
        let rows = std::mem::take(&mut self.drawn);
        if rows > 0 {
            out.extend_from_slice(format!("\x1b[{rows}F\x1b[J").as_bytes());
        }
    }

    fn draw(&mut self, out: &mut Vec<u8>, table: &[String], columns: usize, rows: usize) {
        let repeats = (self.repeats > 0).then(|| repeated(self.repeats));
        out.extend_from_slice(NO_WRAP);
        for line in repeats.iter().chain(table).take(rows) {
            out.extend_from_slice(cut(line, columns).as_bytes());
            out.extend_from_slice(b"\x1b[0m\n");
            self.drawn += 1;
        }
        out.extend_from_slice(WRAP);
    }

    /// Has the log itself say how often its last line came again.
    fn end_repeats(&mut self, out: &mut Vec<u8>) {
        let repeats = std::mem::take(&mut self.repeats);
        if repeats > 0 {
            out.extend_from_slice(repeated(repeats).as_bytes());
            out.push(b'\n');
        }
    }
}

fn repeated(times: usize) -> String {
    let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
    format!("… the line above came {times} more")
}

/// A line of the log behind its time of day, `12:34:56Z`, which may have a colour.
fn without_time(line: &[u8]) -> &[u8] {
    let end = line.iter().take(20).position(|byte| *byte == b'Z');
    end.map_or(line, |end| &line[end + 1..])
}

/// As much of a line as has room in so many columns. Colours take none.
fn cut(line: &str, columns: usize) -> &str {
    let (mut width, mut is_colour) = (0, false);
    for (at, character) in line.char_indices() {
        match character {
            '\x1b' => is_colour = true,
            'm' if is_colour => is_colour = false,
            _ if is_colour => {}
            _ if width == columns => return &line[..at],
            _ => width += 1,
        }
    }
    line
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    const SIZE: Option<(usize, usize)> = Some((40, 10));

    fn frame(screen: &mut LiveScreen, batch: &str, table: &[&str]) -> String {
        let table: Vec<String> = table.iter().map(|line| (*line).to_owned()).collect();
        String::from_utf8(screen.frame(batch.as_bytes(), Some(&table), SIZE)).unwrap()
    }

    #[test]
    fn the_table_makes_room_for_lines_and_comes_back_below_them() {
        let mut screen = LiveScreen::default();
        assert_eq!(frame(&mut screen, "a\n", &["one", "two"]), "a\n\x1b[?7lone\x1b[0m\ntwo\x1b[0m\n\x1b[?7h");
        let next = frame(&mut screen, "b\n", &["three"]);
        assert_eq!(next, "\x1b[2F\x1b[Jb\n\x1b[?7lthree\x1b[0m\n\x1b[?7h");
        let last = String::from_utf8(screen.frame(b"c\n", None, SIZE)).unwrap();
        assert_eq!(last, "\x1b[1F\x1b[Jc\n", "the end leaves nothing but the log");
        assert!(!screen.is_drawn());
    }

    #[test]
    fn lines_that_are_the_same_but_for_their_time_are_counted() {
        let mut screen = LiveScreen::default();
        let line = |second: u32| format!("\x1b[2m12:00:{second:02}Z\x1b[0m WARN no answer\n");
        let first = frame(&mut screen, &(line(1) + &line(2)), &["table"]);
        assert_eq!((first.matches("no answer").count(), first.matches("came once more").count()), (1, 1));
        let more = frame(&mut screen, &line(3), &["table"]);
        assert!(!more.contains("no answer") && more.contains("2 times more"), "{more:?}");
        let other = frame(&mut screen, "12:00:04Z INFO well\n", &["table"]);
        let (said, drawn) = other.split_once("12:00:04Z INFO well\n").unwrap();
        assert!(said.contains("2 times more\n") && !drawn.contains("times more"), "{other:?}");
    }

    #[test]
    fn a_line_has_no_more_than_its_columns_and_a_table_no_more_than_its_rows() {
        assert_eq!(cut("\x1b[31mred\x1b[0m and more", 5), "\x1b[31mred\x1b[0m a");
        assert_eq!(cut("äöü", 3), "äöü");
        let mut screen = LiveScreen::default();
        let rows = ["x"; 50];
        assert_eq!(frame(&mut screen, "", &rows).matches('\n').count(), 9);
        assert_eq!(screen.frame(b"", None, SIZE), b"\x1b[9F\x1b[J");
    }
}
