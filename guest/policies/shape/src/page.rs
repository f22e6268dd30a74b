//! How a stored part is divided: into chunks that fit into the store, and those into pages that fit into an answer.

/// The longest chunk, in bytes. With its header it is a value of the store. Base64 is parted at groups of four.
const CHUNK: usize = 120 << 10;
/// The longest page as it is written in JSON, in bytes: an answer has to cross to Weir.
const WRITTEN: usize = 192 << 10;
/// The most bytes that one byte takes in JSON.
const ESCAPE: usize = 6;

/// The chunks of a text; one at least.
pub(crate) fn chunks(text: &str) -> Vec<&str> {
    let (mut rest, mut all) = (text, Vec::new());
    while rest.len() > CHUNK {
        let (chunk, after) = rest.split_at(rest.floor_char_boundary(CHUNK));
        all.push(chunk);
        rest = after;
    }
    all.push(rest);
    all
}

/// The pages of a chunk, of at most so many bytes; one at least.
pub(crate) fn pages(chunk: &str, most: usize) -> Vec<&str> {
    let most = most & !3;
    let (mut rest, mut all) = (chunk, Vec::new());
    loop {
        let (page, after) = rest.split_at(end(rest, most));
        all.push(page);
        rest = after;
        if rest.is_empty() || page.is_empty() {
            return all;
        }
    }
}

fn end(text: &str, most: usize) -> usize {
    let mut written = 0;
    let fits = |byte: u8| {
        written += match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
            0..0x20 => ESCAPE,
            _ => 1,
        };
        written <= WRITTEN
    };
    let most = text.len().min(most);
    let end = if most * ESCAPE <= WRITTEN {
        most
    } else {
        text.bytes().take(most).map(fits).take_while(|fits| *fits).count()
    };
    text.floor_char_boundary(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_between_chunks_and_pages() {
        for (text, most) in [
            (String::new(), 1024),
            ("a".repeat(1024), 1024),
            ("é€😀".repeat(40_000), 1025),
            ("\u{1}".repeat(300_000), 262_144),
            ("x".repeat(CHUNK + 1), 262_144),
        ] {
            let chunks = chunks(&text);
            assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK));
            let pages: Vec<_> = chunks.iter().flat_map(|chunk| pages(chunk, most)).collect();
            assert_eq!(pages.concat(), text);
            assert!(pages.iter().all(|page| page.len() <= most));
            let written = |page: &str| weir_policy::json::Json::from(page).to_string().len();
            assert!(pages.iter().all(|page| written(page) <= WRITTEN + 2));
        }
    }

    #[test]
    fn what_fits_is_one_page() {
        assert_eq!(pages(&"a".repeat(2048), 2048).len(), 1);
        assert_eq!(pages("", 1024), [""]);
        assert_eq!(chunks(""), [""]);
    }

    #[test]
    fn base64_is_parted_between_groups() {
        let blob = "QUJD".repeat(50_000);
        for chunk in chunks(&blob) {
            assert!(pages(chunk, 1026).iter().all(|page| page.len() % 4 == 0));
        }
    }
}
