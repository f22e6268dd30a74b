//! Images on the terminal itself, where it can show them.

use std::{
    env,
    io::{self, IsTerminal, Write},
};

use base64::{Engine, engine::general_purpose::STANDARD};

/// The largest image that is shown, in bytes.
const LARGEST: usize = 4 << 20;
/// How much of the data goes into one piece, in characters (the graphics protocol of kitty says so).
const PIECE: usize = 4096;
/// What each format begins with.
const FORMATS: [&[u8]; 4] = [PNG, b"\xff\xd8\xff", b"GIF8", b"RIFF"];
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// How a terminal is told to show an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImageProtocol {
    /// Of kitty and Ghostty: PNG alone.
    Kitty,
    /// Of iTerm2 and WezTerm.
    Iterm,
}

/// Shows an image; whether it did.
pub(super) fn show(bytes: &[u8]) -> io::Result<bool> {
    if !io::stdout().is_terminal() {
        return Ok(false);
    }
    let protocol = ImageProtocol::of(|name| env::var(name).unwrap_or_default());
    let Some(sequence) = protocol.and_then(|protocol| protocol.sequence(bytes)) else { return Ok(false) };
    let mut out = io::stdout().lock();
    out.write_all(sequence.as_bytes())?;
    out.write_all(b"\n")?;
    Ok(true)
}

impl ImageProtocol {
    fn of(variable: impl Fn(&str) -> String) -> Option<Self> {
        // Multiplexers pass neither on.
        if !variable("TMUX").is_empty() || !variable("STY").is_empty() {
            return None;
        }
        let is_kitty = matches!(&*variable("TERM"), "xterm-kitty" | "xterm-ghostty");
        let is_iterm =
            matches!(&*variable("TERM_PROGRAM"), "iTerm.app" | "WezTerm") || variable("LC_TERMINAL") == "iTerm2";
        match (is_kitty, is_iterm) {
            (true, _) => Some(Self::Kitty),
            (false, true) => Some(Self::Iterm),
            (false, false) => None,
        }
    }

    /// What shows an image. The data is encoded anew, so that nothing in it acts on the terminal.
    fn sequence(self, bytes: &[u8]) -> Option<String> {
        let is_image = FORMATS.iter().any(|format| bytes.starts_with(format));
        if bytes.len() > LARGEST || !is_image {
            return None;
        }
        let data = STANDARD.encode(bytes);
        match self {
            Self::Iterm => Some(format!("\x1b]1337;File=inline=1;size={}:{data}\x07", bytes.len())),
            Self::Kitty if bytes.starts_with(PNG) => {
                let (mut sequence, mut start, mut rest) = (String::new(), "a=T,f=100,", &*data);
                while !rest.is_empty() {
                    let (piece, after) = rest.split_at(rest.len().min(PIECE));
                    let more = u8::from(!after.is_empty());
                    sequence += &format!("\x1b_G{start}m={more};{piece}\x1b\\");
                    (start, rest) = ("", after);
                }
                Some(sequence)
            }
            Self::Kitty => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_terminals_that_can_are_sent_images() {
        let of = |set: &[(&str, &str)]| {
            ImageProtocol::of(|name| {
                set.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value).to_owned()
            })
        };
        assert_eq!(of(&[("TERM", "xterm-kitty")]), Some(ImageProtocol::Kitty));
        assert_eq!(of(&[("TERM", "xterm-256color"), ("TERM_PROGRAM", "WezTerm")]), Some(ImageProtocol::Iterm));
        assert_eq!(of(&[("LC_TERMINAL", "iTerm2")]), Some(ImageProtocol::Iterm));
        assert_eq!(of(&[("TERM", "xterm-kitty"), ("TMUX", "/tmp/tmux")]), None);
        assert_eq!(of(&[("TERM", "xterm-256color")]), None);
    }

    #[test]
    fn an_image_is_sent_in_pieces_and_nothing_else_is_sent() {
        let png = [PNG, &[7; 5000]].concat();
        let sequence = ImageProtocol::Kitty.sequence(&png).unwrap_or_default();
        let pieces: Vec<&str> = sequence.split("\x1b\\").collect();
        assert!(pieces.len() == 3 && pieces[0].starts_with("\x1b_Ga=T,f=100,m=1;"), "{}", pieces.len());
        assert!(pieces[1].starts_with("\x1b_Gm=0;") && pieces[0].len() < PIECE + 32);
        assert!(ImageProtocol::Iterm.sequence(&png).is_some_and(|text| text.ends_with('\x07')));
        assert_eq!(ImageProtocol::Kitty.sequence(b"GIF89a"), None);
        assert_eq!(ImageProtocol::Iterm.sequence(b"\x1b]0;title\x07"), None);
        assert_eq!(ImageProtocol::Iterm.sequence(&vec![0x89; LARGEST + 1]), None);
    }
}
