//! Finding the end of plain text within a JSON string: most bytes of most messages are passed here.
//!
//! Blocks are tested by a fold without branches, which the compiler turns into vector code on every target, and words by
//! arithmetic. `memchr` is as fast on long text, but it does not look for control characters, and a call for each
//! stretch is dear where text is full of escapes.

/// The first place at or after `at` that holds a quote, a backslash or a control character; the end if there is none.
#[inline(always)]
pub(super) fn plain(bytes: &[u8], at: usize) -> usize {
    // Most keys and values are short: one word settles them before the blocks are worth a call.
    let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk()) else {
        return plain_tail(bytes, at);
    };
    match special_in(*word) {
        Some(found) => at + found,
        None => plain_blocks(bytes, at + 8),
    }
}

#[inline(never)]
fn plain_blocks(bytes: &[u8], mut at: usize) -> usize {
    /// Bytes tested at once; four vectors of the smallest kind.
    const BLOCK: usize = 64;
    let rest = bytes.get(at..).unwrap_or_default();
    for word in rest.as_chunks::<8>().0.iter().take(4) {
        if let Some(found) = special_in(*word) {
            return at + found;
        }
        at += 8;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    for block in rest.as_chunks::<BLOCK>().0 {
        if block.iter().fold(false, |any, &b| any | special(b)) {
            break;
        }
        at += BLOCK;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    for word in rest.as_chunks::<8>().0 {
        if let Some(found) = special_in(*word) {
            return at + found;
        }
        at += 8;
    }
    plain_tail(bytes, at)
}

#[cold]
#[inline(never)]
fn plain_tail(bytes: &[u8], at: usize) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|&b| special(b)).unwrap_or(rest.len())
}

#[inline]
fn special(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\')
}

/// The first special byte of a word: the lowest of the marked high bits, which is the one that borrows cannot fake.
#[inline]
fn special_in(word: [u8; 8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let word = u64::from_le_bytes(word);
    let below = |limit: u8, x: u64| x.wrapping_sub(ONES * u64::from(limit)) & !x;
    let quote = below(1, word ^ (ONES * u64::from(b'"')));
    let backslash = below(1, word ^ (ONES * u64::from(b'\\')));
    let marked = (below(0x20, word) | quote | backslash) & HIGH;
    if marked == 0 { None } else { Some(marked.trailing_zeros() as usize / 8) }
}
