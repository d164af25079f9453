//! The one place that copies payload bytes in user space, and counts them.
//!
//! Every transport declares how many copies a payload byte makes on its way; these counters are what
//! a test compares the declaration with. Control frames are not payload.
//!
//! # How bytes are stored
//! A copy and its digest are one pass over memory (`stripes`, `digest`). [`Stores::Streaming`] writes
//! past the caches: from memory to memory that is worth 1.1 to 1.6 times glibc's `memcpy`, digest
//! included, because the target's old bytes are never read, and because the source is fetched ahead
//! across the borders of pages and of blocks. [`Stores::Cached`] leaves the bytes where the next
//! reader is fast, and wins while both sides fit into the caches. `benches/shm_get.rs` measures it.
//!
//! # One thread
//! A second thread would move 1.2 to 1.5 times as much on two cores (7.4 against 5.4 GB/s for 1,024
//! blocks of 16 KiB, 8.9 against 6.3 for blocks of 64 KiB), and half as much for 1 MiB in all, started
//! for each transfer. But XXH3 is one chain from the first byte to the last: two threads would need two
//! digests, which is another wire format, and the second core is the one that computes. So there is
//! none.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::digest::{Digest, Flow};
use super::stripes::{self, STRIPE, Store};

/// Payloads of this many bytes and more are stored past the caches: half of a common core's own cache.
const STREAMING_MIN: u64 = 512 << 10;

/// Payload traffic of one link. All links of a process add up in [`TransferStats::of_process`].
#[derive(Debug, Default)]
pub struct TransferStats {
    sent: AtomicU64,
    landed: AtomicU64,
    copied: AtomicU64,
    stripes: AtomicU64,
}

static PROCESS: TransferStats = TransferStats {
    sent: AtomicU64::new(0),
    landed: AtomicU64::new(0),
    copied: AtomicU64::new(0),
    stripes: AtomicU64::new(0),
};

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

    /// Connections that a link of several has now; 0 of every other link.
    pub fn stripes(&self) -> u64 {
        self.stripes.load(Relaxed)
    }

    /// Says how many connections a link of several has now.
    pub fn set_stripes(&self, stripes: u64) {
        self.stripes.store(stripes, Relaxed);
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

    /// Counts payload bytes that a library copied. What this crate copies itself is counted where it is
    /// copied.
    pub fn add_copied(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Relaxed);
        PROCESS.copied.fetch_add(bytes, Relaxed);
    }
}

/// Where a copy leaves its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// In the caches of this core.
    Cached,
    /// In memory, past the caches; the processor may not be able to, then like `Cached`.
    Streaming,
}

impl Stores {
    /// What suits a payload of `len` bytes.
    pub fn for_payload(len: u64) -> Self {
        if len < STREAMING_MIN { Self::Cached } else { Self::Streaming }
    }
}

/// Copies payload and digests what was written, in one pass over memory.
///
/// # Panics
/// When the lengths differ.
pub fn copy_payload(from: &[u8], to: &mut [u8], digest: &mut Digest, stats: &TransferStats) {
    assert_eq!(from.len(), to.len(), "a copy has two sides of one length");
    // SAFETY: `from` is readable for its length for as long as the borrow lives.
    unsafe { copy_payload_from_peer([(from.as_ptr(), to)], Stores::Cached, Some(digest), stats) };
}

/// Like [`copy_payload`], piece after piece, from memory that a peer may write at any time.
///
/// The digest is taken over the bytes as they arrived here: each byte of the peer's is read once. Where
/// nobody will compare a digest, none is taken. Returns how many bytes were copied.
///
/// # Safety
/// The first of each pair is mapped and readable for as many bytes as the second has. Its contents may
/// change under the copy: what arrives is then any mixture of old and new bytes, which the digest shows.
pub unsafe fn copy_payload_from_peer<'a>(
    pieces: impl IntoIterator<Item = (*const u8, &'a mut [u8])>,
    stores: Stores,
    mut digest: Option<&mut Digest>,
    stats: &TransferStats,
) -> usize {
    let fence = Fence(stores);
    let store = match stores {
        Stores::Cached => Store::Cached,
        Stores::Streaming => Store::Streaming,
    };
    let mut copied = 0;
    let mut pieces = pieces.into_iter().peekable();
    while let Some((from, to)) = pieces.next() {
        let next = pieces.peek().map_or(from, |(next, _)| *next);
        let flow = Flow { from, to: to.as_mut_ptr(), len: to.len(), store, next };
        // SAFETY: the source is readable for `to.len()` bytes (caller); `to` is exclusive memory of this
        // process, so the two cannot overlap.
        unsafe {
            match digest.as_deref_mut() {
                Some(digest) => digest.take(flow),
                None => copy_only(flow),
            }
        }
        copied += to.len();
    }
    drop(fence);
    stats.add_copied(copied as u64);
    copied
}

/// Makes streaming stores visible before whatever this thread stores next, also when it unwinds.
struct Fence(Stores);

impl Drop for Fence {
    fn drop(&mut self) {
        if self.0 == Stores::Streaming {
            stripes::fence();
        }
    }
}

/// # Safety
/// What [`Flow`] says of its pointers.
#[expect(clippy::disallowed_methods, reason = "this is the module that counts payload copies")]
unsafe fn copy_only(mut flow: Flow) {
    // SAFETY: the caller's; the flow has at least as many stripes.
    unsafe {
        if flow.store() == Store::Streaming {
            let stripes = flow.len / STRIPE;
            stripes::stream(flow.pass(stripes));
            flow.advance(stripes * STRIPE);
        }
        std::ptr::copy_nonoverlapping(flow.from, flow.to, flow.len);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PIECE_LEN_MAX: usize = if cfg!(miri) { 400 } else { 3000 };

    #[test]
    fn a_copy_is_counted_and_digested_once() {
        let len = if cfg!(miri) { 5000u32 } else { 100_000 };
        let from: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let mut to = vec![0; from.len()];
        let (mut digest, stats) = (Digest::default(), TransferStats::default());
        copy_payload(&from, &mut to, &mut digest, &stats);
        assert_eq!(to, from);
        assert_eq!(stats.copied(), from.len() as u64);
        assert_eq!(digest.value(), xxhash_rust::xxh3::xxh3_64(&from));
    }

    proptest! {
        #[test]
        fn pieces_of_any_length_and_alignment_arrive_whole(
            cuts in proptest::collection::vec((0..PIECE_LEN_MAX, 0usize..70, 0usize..70), 0..12),
            streaming: bool,
            digested: bool,
        ) {
            let stores = if streaming { Stores::Streaming } else { Stores::Cached };
            let len: usize = cuts.iter().map(|(len, ..)| len).sum();
            let gaps: usize = cuts.iter().map(|(_, gap, other)| gap + other).sum();
            let from: Vec<u8> = (0..len + gaps).map(|i| (i * 7 % 251) as u8 | 1).collect();
            let mut to = vec![0u8; len + gaps];
            let (mut expected, mut target) = (Vec::new(), vec![0u8; to.len()]);
            let (mut pieces, mut rest) = (Vec::new(), &mut to[..]);
            let (mut source, mut place) = (0, 0);
            for (len, skip, leave) in cuts {
                (source, place) = (source + skip, place + leave);
                expected.extend_from_slice(&from[source..source + len]);
                target[place..place + len].copy_from_slice(&from[source..source + len]);
                let (now, later) = rest.split_at_mut(leave + len);
                pieces.push((from[source..].as_ptr(), &mut now[leave..]));
                rest = later;
                (source, place) = (source + len, place + len);
            }
            let (mut digest, stats) = (Digest::default(), TransferStats::default());
            // SAFETY: each source is a part of `from` as long as its target.
            let copied = unsafe {
                copy_payload_from_peer(pieces, stores, digested.then_some(&mut digest), &stats)
            };
            prop_assert_eq!(&to, &target);
            prop_assert_eq!((copied, stats.copied()), (len, len as u64));
            let value = xxhash_rust::xxh3::xxh3_64(if digested { &expected } else { &[] });
            prop_assert_eq!(digest.value(), value);
        }
    }
}
