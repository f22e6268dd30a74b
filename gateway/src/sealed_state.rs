//! Text that a client carries for Weir and can neither read nor change.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::RwLock;
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};
use zeroize::Zeroizing;

/// The longest text that is looked at, in bytes.
const LONGEST: usize = 16 * 1024;

/// Binds text to a key and to a purpose. The key lives as long as this process, unless it is [given](Self::keyed) or
/// [shared](Self::share).
pub struct SealedState {
    /// None if the system had no randomness to give; then nothing can be sealed.
    key: RwLock<Option<SealKey>>,
    shared: OnceLock<LessSafeKey>,
    random: SystemRandom,
    /// Whether anybody has text that was sealed.
    is_used: AtomicBool,
}

struct SealKey {
    bytes: Zeroizing<[u8; 32]>,
    key: LessSafeKey,
}

impl SealKey {
    fn new(bytes: Zeroizing<[u8; 32]>) -> Option<Self> {
        let key = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &*bytes).ok()?);
        Some(Self { bytes, key })
    }
}

impl Default for SealedState {
    fn default() -> Self {
        let random = SystemRandom::new();
        let mut bytes = Zeroizing::new([0; 32]);
        let key = random.fill(&mut *bytes).ok().and_then(|()| SealKey::new(bytes));
        Self { key: RwLock::new(key), shared: OnceLock::new(), random, is_used: AtomicBool::default() }
    }
}

impl SealedState {
    /// With a key that outlives this process.
    pub fn keyed(key: &[u8; 32]) -> Self {
        let shared = OnceLock::new();
        let sealed =
            Self { key: RwLock::default(), shared, random: SystemRandom::new(), is_used: AtomicBool::default() };
        sealed.adopt(key);
        sealed
    }

    /// From now on seals what others can open who share this secret for the same use. What was sealed before opens here.
    pub fn share(&self, secret: &[u8; 32], name: &str) {
        let key = digest(&SHA256, &[&secret[..], name.as_bytes()].concat());
        if let Ok(key) = UnboundKey::new(&CHACHA20_POLY1305, key.as_ref()) {
            // The first one counts.
            drop(self.shared.set(LessSafeKey::new(key)));
        }
    }

    /// Takes the key of the process before in place of its own, with which nothing was sealed yet.
    pub fn adopt(&self, key: &[u8; 32]) {
        *self.key.write() = SealKey::new(Zeroizing::new(*key));
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// The key, for the process that takes over; none where nobody has text that was sealed with it.
    pub fn key_in_use(&self) -> Option<Zeroizing<[u8; 32]>> {
        let key = self.key.read().as_ref().map(|key| key.bytes.clone());
        key.filter(|_| self.is_used.load(Ordering::Relaxed))
    }

    /// Seals `plain`; it opens only with the same `bound`. None if the system had no randomness, or it gets too long.
    pub fn seal(&self, plain: &[u8], bound: &[u8]) -> Option<String> {
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).ok()?;
        let mut sealed = plain.to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        let own = self.key.read();
        let key = self.shared.get().or(own.as_ref().map(|own| &own.key))?;
        key.seal_in_place_append_tag(unique, Aad::from(bound), &mut sealed).ok()?;
        self.is_used.store(true, Ordering::Relaxed);
        let text = URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat());
        (text.len() <= LONGEST).then_some(text)
    }

    /// Opens what [`sealed_state`](Self::seal) made with the same `bound`; nothing else opens.
    pub fn open(&self, text: &str, bound: &[u8]) -> Option<Vec<u8>> {
        let bytes = URL_SAFE_NO_PAD.decode(text.get(..).filter(|text| text.len() <= LONGEST)?).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let own = self.key.read();
        self.shared.get().into_iter().chain(own.as_ref().map(|own| &own.key)).find_map(|key| {
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let mut sealed = sealed.to_vec();
            let plain = key.open_in_place(nonce, Aad::from(bound), &mut sealed).ok()?;
            Some(plain.to_vec())
        })
    }
}

#[cfg(test)]
#[path = "../mcp/fuzz/seal_check.rs"]
#[allow(unreachable_pub, reason = "the fuzz target is a crate of its own")]
mod check;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn seeds_of_the_fuzz_target() {
        let seeds = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/mcp/fuzz/seeds/seal")).unwrap();
        let seeds: Vec<_> = seeds.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
        assert!(seeds.len() > 4, "it has lost its seeds");
        seeds.iter().for_each(|seed| check::seal(seed));
    }

    #[test]
    fn only_what_was_sealed_here_for_the_same_purpose_opens() {
        let seal = SealedState::default();
        let text = seal.seal(b"42", b"tools/call").unwrap();
        assert_eq!(seal.open(&text, b"tools/call").unwrap(), b"42");
        assert_eq!(seal.open(&text, b"prompts/get"), None);
        assert_eq!(SealedState::default().open(&text, b"tools/call"), None);
        assert_ne!(seal.seal(b"42", b"tools/call").unwrap(), text);
    }

    #[test]
    fn what_is_shared_opens_for_the_same_use_and_what_was_sealed_before_opens_still() {
        let [one, other, another] = [(), (), ()].map(|()| SealedState::default());
        let before = one.seal(b"42", b"x").unwrap();
        one.share(&[1; 32], "cursor");
        other.share(&[1; 32], "cursor");
        another.share(&[1; 32], "sign-in");
        let text = one.seal(b"42", b"x").unwrap();
        assert_eq!(other.open(&text, b"x").unwrap(), b"42");
        assert_eq!(another.open(&text, b"x"), None);
        assert_eq!(one.open(&before, b"x").unwrap(), b"42");
    }

    #[test]
    fn the_process_that_takes_over_opens_what_was_sealed() {
        let (before, next) = (SealedState::default(), SealedState::default());
        assert!(before.key_in_use().is_none(), "nobody has anything yet");
        let text = before.seal(b"42", b"x").unwrap();
        next.adopt(&before.key_in_use().unwrap());
        assert_eq!(next.open(&text, b"x").unwrap(), b"42");
        assert!(next.key_in_use().is_some(), "and the one after that");
    }

    #[test]
    fn no_change_goes_unnoticed() {
        let seal = SealedState::default();
        let text = seal.seal(b"42", b"x").unwrap();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(seal.open(&String::from_utf8(bytes).unwrap(), b"x"), None, "{at}");
            assert_eq!(seal.open(&text[..at], b"x"), None, "{at}");
        }
        for odd in ["", "?", "A", &"A".repeat(2 * LONGEST)] {
            assert_eq!(seal.open(odd, b"x"), None);
        }
    }
}
