//! Tags behind the frames of a link whose sides have a cluster key.
//!
//! A tag is the first 16 bytes of BLAKE3, keyed with the key of the direction, over the number of the
//! frame in its direction (64 bits, from 0), its header, and its body or payload. The header says how
//! long the rest is, so no two frames are the same input; the number makes a frame that is replayed,
//! left out or moved as wrong as one that is changed. The key is new with every connection.
//!
//! A frame means nothing before its tag is checked: control is not handed on, a payload is not complete.
//! Its bytes lie in reserved blocks by then, where nobody sees them before the commit.

use std::fmt;

use constant_time_eq::constant_time_eq_16;

/// Bytes of a tag.
pub(crate) const SEAL_LEN: usize = 16;

/// Makes or checks the tags of one direction.
pub(crate) struct Sealer {
    key: [u8; 32],
    /// Of the frame that was begun.
    hasher: blake3::Hasher,
    next: u64,
}

impl Sealer {
    /// Starts with frame 0.
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self { key, hasher: blake3::Hasher::new_keyed(&key), next: 0 }
    }

    /// Number of the next frame.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Counts a frame whose tag came from [`of_frame`](Self::of_frame).
    pub(crate) fn skip(&mut self) {
        self.next += 1;
    }

    /// The tag of a whole frame. It does not disturb the one that was begun.
    pub(crate) fn of_frame(&self, number: u64, frame: &[u8]) -> [u8; SEAL_LEN] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&number.to_le_bytes()).update(frame);
        cut(&hasher)
    }

    /// Begins the next frame.
    pub(crate) fn begin(&mut self, header: &[u8]) {
        self.hasher.reset();
        self.hasher.update(&self.next.to_le_bytes()).update(header);
        self.next += 1;
    }

    /// Adds bytes to the frame that was begun.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// The tag of the frame that was begun, now that it is whole.
    pub(crate) fn seal(&self) -> [u8; SEAL_LEN] {
        cut(&self.hasher)
    }

    /// Whether this is the tag of the frame that was begun. Takes the same time whatever differs.
    pub(crate) fn is_sealed_by(&self, tag: &[u8; SEAL_LEN]) -> bool {
        constant_time_eq_16(&self.seal(), tag)
    }
}

fn cut(hasher: &blake3::Hasher) -> [u8; SEAL_LEN] {
    *hasher.finalize().as_bytes().first_chunk().expect("a hash is longer than a tag")
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealer(next {})", self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_in_pieces_has_the_tag_of_the_whole() {
        let mut sealer = Sealer::new([9; 32]);
        let frame: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
        for number in 0..3 {
            let whole = sealer.of_frame(number, &frame);
            sealer.begin(&frame[..64]);
            for piece in frame[64..].chunks(777) {
                sealer.update(piece);
                sealer.of_frame(5, b"another frame meanwhile");
            }
            assert!(sealer.is_sealed_by(&whole));
            assert_eq!(sealer.seal(), whole);
            assert_ne!(sealer.of_frame(number + 1, &frame), whole);
        }
        assert_eq!(sealer.next(), 3);
        assert!(!format!("{sealer:?}").contains("9, 9"));
    }
}
