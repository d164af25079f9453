//! The cluster key: what all nodes of a deployment share, and nobody else has.
//!
//! The text is stretched once to 32 bytes, and never leaves this module: what goes over the wire, and
//! what frames are sealed with, is derived from it together with both greetings of a connection. Every
//! derivation has a context of its own (BLAKE3's `derive_key`), so no value stands for another.
//!
//! The key authenticates; it does not hide. Who records a connection can try guesses at leisure, so the
//! text has to be random, not a word.

use std::fmt;

use crate::greeting::Role;

/// Least characters of a key: 16 random bytes in hexadecimal.
const TEXT_LEN_MIN: usize = 32;

const CLUSTER: &str = "blockwire 2026-11 cluster key";
const PROOF: &str = "blockwire 2026-11 tcp proof";
const FRAMES_OF_DIALLER: &str = "blockwire 2026-11 tcp frames of the dialler";
const FRAMES_OF_ACCEPTOR: &str = "blockwire 2026-11 tcp frames of the acceptor";

/// A secret that all nodes of a deployment share. It prints as nothing of itself.
#[derive(Clone)]
pub struct ClusterKey {
    secret: [u8; 32],
}

/// Text that is no cluster key. Nothing of the text is in the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterKeyError {
    /// It could be guessed.
    #[error("a cluster key has at least {TEXT_LEN_MIN} characters, this one has {len}")]
    TooShort {
        /// Bytes of the text without the white space around it.
        len: usize,
    },
}

impl ClusterKey {
    /// Makes a key of its text; white space around it does not count.
    ///
    /// # Errors
    /// [`ClusterKeyError`] for text that is too short.
    pub fn from_text(text: &str) -> Result<Self, ClusterKeyError> {
        let text = text.trim();
        if text.len() < TEXT_LEN_MIN {
            return Err(ClusterKeyError::TooShort { len: text.len() });
        }
        Ok(Self { secret: blake3::derive_key(CLUSTER, text.as_bytes()) })
    }

    /// What a side sends to prove that it has the key. Bound to both greetings, whole, to the TLS session
    /// if there is one, and to the side: neither replayed nor sent back does it prove anything.
    pub(crate) fn proof(&self, of: Role, transcript: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&blake3::derive_key(PROOF, &self.secret));
        hasher.update(&[of as u8]).update(transcript);
        hasher.finalize()
    }

    /// Key of the frames that a side sends on one connection.
    pub(crate) fn of_frames(&self, of: Role, transcript: &[u8]) -> [u8; 32] {
        let context = match of {
            Role::Dialler => FRAMES_OF_DIALLER,
            Role::Acceptor => FRAMES_OF_ACCEPTOR,
        };
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(&self.secret).update(transcript);
        hasher.finalize().into()
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn white_space_does_not_count_and_nothing_of_a_key_is_printed() {
        let key = ClusterKey::from_text(TEXT).unwrap();
        assert_eq!(key.secret, ClusterKey::from_text(&format!(" {TEXT}\n")).unwrap().secret);
        assert_ne!(key.secret, ClusterKey::from_text(&format!("{TEXT}0")).unwrap().secret);
        let short = ClusterKey::from_text(&TEXT[..31]).unwrap_err();
        assert_eq!(short, ClusterKeyError::TooShort { len: 31 });
        assert!(ClusterKey::from_text("   ").is_err());
        for shown in [format!("{key:?}"), short.to_string()] {
            assert!(!shown.contains("0123"), "{shown}");
        }
    }

    #[test]
    fn no_derived_value_stands_for_another() {
        let keys = [TEXT, "fedcba9876543210fedcba9876543210"].map(ClusterKey::from_text);
        let mut seen = std::collections::HashSet::new();
        for key in keys.map(Result::unwrap) {
            for role in [Role::Dialler, Role::Acceptor] {
                for (len, at) in [(160, 0), (160, 79), (160, 80), (160, 159), (192, 0), (192, 160)]
                {
                    let mut transcript = vec![0; len];
                    transcript[at] = 1;
                    assert!(seen.insert(*key.proof(role, &transcript).as_bytes()));
                    assert!(seen.insert(key.of_frames(role, &transcript)));
                }
            }
        }
    }
}
