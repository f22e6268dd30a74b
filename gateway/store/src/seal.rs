//! Encryption of values: ChaCha20-Poly1305 (RFC 8439) with a random nonce before each text.

use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand::{SecureRandom, SystemRandom},
};
use zeroize::Zeroizing;

use crate::{Key, KeySources, MasterKey, StoreError};

/// What a plain text store says of itself.
const PLAINTEXT: &[u8] = b"none";
/// What an encrypted store says of itself.
const ENCRYPTED: &[u8] = b"chacha20-poly1305";
/// What the text to try a key on is bound to.
const CHECK: &[u8] = b"weir-store check";

/// How values are protected in a store.
#[derive(Debug)]
pub enum Protection {
    /// With ChaCha20-Poly1305 (RFC 8439) and a key from one of these places.
    Encrypted(KeySources),
    /// Not at all: whoever reads the store has the tokens.
    Plaintext,
}

/// How values are closed and opened.
#[derive(Debug)]
pub(crate) enum ValueCipher {
    Encrypted(MasterKey),
    Plaintext,
}

impl ValueCipher {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Encrypted(_) => "chacha20-poly1305",
            Self::Plaintext => "none",
        }
    }

    /// That of the store at `place`, which says this of itself; none where it says nothing that is known. Blocks the
    /// thread.
    pub(crate) fn of_existing(
        place: &str,
        name: &[u8],
        check: &[u8],
        protection: &Protection,
    ) -> Option<Result<Self, StoreError>> {
        let mismatch = |found, asked| StoreError::Protection { place: place.to_owned(), found, asked };
        Some(match (name, protection) {
            (PLAINTEXT, Protection::Plaintext) => Ok(Self::Plaintext),
            (ENCRYPTED, Protection::Encrypted(sources)) => {
                sources.find(|key| fits(key, check)).map(Self::Encrypted).map_err(Into::into)
            }
            (PLAINTEXT, Protection::Encrypted(_)) => Err(mismatch("plain text", "an encrypted store")),
            (ENCRYPTED, Protection::Plaintext) => Err(mismatch("encrypted", "a plain text store")),
            _ => return None,
        })
    }

    /// A text that tells the right key from a wrong one.
    pub(crate) fn check(&self) -> Result<Vec<u8>, ()> {
        self.close(CHECK, b"")
    }

    /// Fails only where the system has no random numbers.
    pub(crate) fn close(&self, bound: &[u8], text: &[u8]) -> Result<Vec<u8>, ()> {
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
    pub(crate) fn open(&self, bound: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let Self::Encrypted(key) = self else { return Some(Zeroizing::new(sealed.to_vec())) };
        open(key, bound, sealed)
    }
}

/// What a value is bound to: it cannot be moved to another key, nor get another description.
pub(crate) fn bound(key: &Key, about: &[u8]) -> Vec<u8> {
    let mut bytes = key.text().as_bytes().to_vec();
    bytes.push(0);
    bytes.extend_from_slice(about);
    bytes
}

/// Whether this is the key with which `check` was made.
fn fits(key: &MasterKey, check: &[u8]) -> bool {
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
