//! What must hold for whatever a client brings as sealed text: the body of a fuzz target, which an ordinary test runs over
//! the seeds too.

use std::sync::LazyLock;

use super::SealedState;

static SEAL: LazyLock<SealedState> = LazyLock::new(SealedState::default);

/// Opens what a client made up, and what it made of something sealed: only the sealed text itself opens.
pub fn seal(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    assert_eq!(SEAL.open(&text, b"tools/call"), None, "nobody sealed this");
    let Some(sealed) = SEAL.seal(input, b"tools/call") else { return };
    assert_eq!(SEAL.open(&sealed, b"tools/call").as_deref(), Some(input));
    assert_eq!(SEAL.open(&sealed, b"prompts/get"), None);
    for at in 0..input.len().min(sealed.len()) {
        let changed = [&sealed[..at], &*text, &sealed[at..]].concat();
        assert!(text.is_empty() || SEAL.open(&changed, b"tools/call").is_none(), "a change was not seen");
    }
}
