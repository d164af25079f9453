//! What a model keeps of a sequence outside the pool, on its way beside the blocks.
//!
//! It is small next to a cache, so that it travels in the `meta` of an offer and not as payload: within what a peer
//! may say there. It is known only when the prompt is computed, and so the offer is made then. Whoever carries it
//! checks its digest.

use std::fmt;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// Longest state that goes along with a handoff: half of what a frame may hold.
pub const STATE_LEN_MAX: usize = 8 << 20;

/// State of a model's own, opaque to all but models with the same weights.
#[derive(Clone, PartialEq, Eq)]
pub struct StateSegment {
    /// The model's family.
    pub family: String,
    /// What [`ModelState::to_bytes`](crate::pool::ModelState::to_bytes) gave.
    pub bytes: Bytes,
}

impl StateSegment {
    /// XXH3-64 of the bytes.
    pub fn digest(&self) -> u64 {
        xxh3_64(&self.bytes)
    }
}

impl fmt::Debug for StateSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateSegment({}, {} bytes)", self.family, self.bytes.len())
    }
}
