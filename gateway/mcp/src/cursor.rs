//! Where a client is in a list that is made of many: what stands inside a cursor, under its seal.

/// The most servers that one cursor has a place in.
pub const MAX_PLACES: usize = 4096;

/// A place in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CursorPosition {
    /// A page of a list that is held as a whole.
    Held {
        /// Which state of the list it is a page of.
        version: u64,
        /// The page, counted from 0.
        page: u32,
    },
    /// How far lists have been read that servers give out page by page: each server's name and its own cursor.
    Read(Vec<(String, String)>),
}

impl CursorPosition {
    /// The position as bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Held { version, page } => [&[HELD][..], &version.to_be_bytes(), &page.to_be_bytes()].concat(),
            Self::Read(places) => {
                let mut out = vec![READ];
                for (server, cursor) in places {
                    for text in [server, cursor] {
                        // What is too long for its length cannot be decoded, and so is no place at all.
                        out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
                        out.extend_from_slice(text.as_bytes());
                    }
                }
                out
            }
        }
    }

    /// Reads what [`encode`](Self::encode) wrote; nothing else is read.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, mut rest) = bytes.split_first()?;
        match *kind {
            HELD => {
                let (version, page) = rest.split_first_chunk()?;
                let (version, page) = (u64::from_be_bytes(*version), u32::from_be_bytes(page.try_into().ok()?));
                Some(Self::Held { version, page })
            }
            READ => {
                let mut places = Vec::new();
                while !rest.is_empty() {
                    if places.len() == MAX_PLACES {
                        return None;
                    }
                    places.push((text(&mut rest)?, text(&mut rest)?));
                }
                Some(Self::Read(places))
            }
            _ => None,
        }
    }
}

const HELD: u8 = 0;
const READ: u8 = 1;

fn text(rest: &mut &[u8]) -> Option<String> {
    let (length, after) = rest.split_first_chunk()?;
    let (text, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    *rest = after;
    String::from_utf8(text.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let places = vec![("a".to_owned(), String::new()), ("b".to_owned(), "é\0".to_owned())];
        for position in [
            CursorPosition::Held { version: u64::MAX, page: 7 },
            CursorPosition::Read(places),
            CursorPosition::Read(vec![]),
        ] {
            let bytes = position.encode();
            assert_eq!(CursorPosition::decode(&bytes).as_ref(), Some(&position));
            for end in 1..bytes.len() {
                assert_ne!(CursorPosition::decode(&bytes[..end]).as_ref(), Some(&position));
            }
        }
        for odd in [&b""[..], b"\x02", b"\0", b"\x01\xff\xff\xff\xff", b"\x01\0\0\0\x01\xff\0\0\0\0"] {
            assert_eq!(CursorPosition::decode(odd), None);
        }
    }
}
