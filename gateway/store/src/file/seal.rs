//! Encryption of values: ChaCha20-Poly1305 (RFC 8439) with a random nonce before each text.

use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand::{SecureRandom, SystemRandom},
};
use zeroize::Zeroizing;

use crate::MasterKey;

/// What a plain text file says of itself.
pub(super) const PLAINTEXT: &[u8] = b"none";
/// What an encrypted file says of itself.
pub(super) const ENCRYPTED: &[u8] = b"chacha20-poly1305";
/// What the text to try a key on is bound to.
const CHECK: &[u8] = b"weir-store check";

/// How values are closed and opened.
#[derive(Debug)]
pub(super) enum ValueCipher {
    Encrypted(MasterKey),
    Plaintext,
}

impl ValueCipher {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Encrypted(_) => "chacha20-poly1305",
            Self::Plaintext => "none",
        }
    }

    /// A text that tells the right key from a wrong one.
    pub(super) fn check(&self) -> Result<Vec<u8>, ()> {
        self.close(CHECK, b"")
    }

    /// Fails only where the system has no random numbers.
    pub(super) fn close(&self, bound: &[u8], text: &[u8]) -> Result<Vec<u8>, ()> {
        let Self::Encrypted(key) = self else { return Ok(text.to_vec()) };
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| ())?;
        let mut sealed = Zeroizing::new(text.to_vec());
        let tag = cipher(key)?
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(bound), &mut sealed)
            .map_err(|_| ())?;
        Ok([&nonce, sealed.as_slice(), tag.as_ref()].concat())
    }

    /// None if it was not closed with this key, or is bound to something else.
    pub(super) fn open(&self, bound: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let Self::Encrypted(key) = self else { return Some(Zeroizing::new(sealed.to_vec())) };
        open(key, bound, sealed)
    }
}

/// Whether this is the key with which `check` was made.
pub(super) fn fits(key: &MasterKey, check: &[u8]) -> bool {
    open(key, CHECK, check).is_some()
}

fn open(key: &MasterKey, bound: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (nonce, text) = sealed.split_first_chunk()?;
    let mut text = Zeroizing::new(text.to_vec());
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let length = cipher(key).ok()?.open_in_place(nonce, Aad::from(bound), &mut text).ok()?.len();
    text.truncate(length);
    Some(text)
}

fn cipher(key: &MasterKey) -> Result<LessSafeKey, ()> {
    Ok(LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key.bytes()).map_err(|_| ())?))
}
