//! The one place that copies payload bytes in user space, and counts them.
//!
//! Every transport declares how many copies a payload byte makes on its way; these counters are what
//! a test compares the declaration with. Control frames are not payload.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use xxhash_rust::xxh3::Xxh3;

/// Bytes copied and hashed at a time: small enough that the hash reads them from the cache.
const PIECE: usize = 32 * 1024;

/// Payload digest: XXH3, 64 bits, over the bytes in wire order.
#[derive(Clone, Default)]
pub struct Digest(Xxh3);

impl Digest {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes added so far.
    pub fn value(&self) -> u64 {
        self.0.digest()
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Digest({:016x})", self.value())
    }
}

/// Payload traffic of one link. All links of a process add up in [`TransferStats::of_process`].
#[derive(Debug, Default)]
pub struct TransferStats {
    sent: AtomicU64,
    landed: AtomicU64,
    copied: AtomicU64,
}

static PROCESS: TransferStats =
    TransferStats { sent: AtomicU64::new(0), landed: AtomicU64::new(0), copied: AtomicU64::new(0) };

impl TransferStats {
    /// The traffic of all links that this process ever had.
    pub fn of_process() -> &'static Self {
        &PROCESS
    }

    /// Payload bytes handed to the wire or taken by the peer.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Payload bytes that arrived in pool blocks.
    pub fn landed(&self) -> u64 {
        self.landed.load(Relaxed)
    }

    /// Payload bytes copied in user space, each time they were.
    pub fn copied(&self) -> u64 {
        self.copied.load(Relaxed)
    }

    /// Counts payload bytes that left.
    pub fn add_sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Relaxed);
        PROCESS.sent.fetch_add(bytes, Relaxed);
    }

    /// Counts payload bytes that arrived.
    pub fn add_landed(&self, bytes: u64) {
        self.landed.fetch_add(bytes, Relaxed);
        PROCESS.landed.fetch_add(bytes, Relaxed);
    }
}

/// Copies payload and digests what was written, in one pass over memory.
///
/// # Panics
/// When the lengths differ.
pub fn copy_payload(from: &[u8], to: &mut [u8], digest: &mut Digest, stats: &TransferStats) {
    assert_eq!(from.len(), to.len(), "a copy has two sides of one length");
    // SAFETY: `from` is readable for its length for as long as the borrow lives.
    unsafe { copy_payload_from_peer(from.as_ptr(), to, digest, stats) }
}

/// Like [`copy_payload`], from memory that a peer may write at any time.
///
/// The digest is taken over the bytes as they arrived here, never over the peer's memory.
///
/// # Safety
/// `from` is mapped and readable for `to.len()` bytes. Its contents may change under the copy: what
/// arrives is then any mixture of old and new bytes, which the digest shows.
#[expect(clippy::disallowed_methods, reason = "this is the module that counts payload copies")]
pub unsafe fn copy_payload_from_peer(
    mut from: *const u8,
    to: &mut [u8],
    digest: &mut Digest,
    stats: &TransferStats,
) {
    for piece in to.chunks_mut(PIECE) {
        // SAFETY: the caller vouches for `from`; `piece` is exclusive memory of this process, so the
        // two cannot overlap; the pieces together have the length that the caller vouched for.
        unsafe {
            std::ptr::copy_nonoverlapping(from, piece.as_mut_ptr(), piece.len());
            from = from.add(piece.len());
        }
        digest.update(piece);
    }
    stats.copied.fetch_add(to.len() as u64, Relaxed);
    PROCESS.copied.fetch_add(to.len() as u64, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_counted_and_digested_once() {
        let from: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let mut to = vec![0; from.len()];
        let (mut digest, stats) = (Digest::default(), TransferStats::default());
        copy_payload(&from, &mut to, &mut digest, &stats);
        assert_eq!(to, from);
        assert_eq!(stats.copied(), from.len() as u64);
        assert_eq!(digest.value(), xxhash_rust::xxh3::xxh3_64(&from));
    }
}
