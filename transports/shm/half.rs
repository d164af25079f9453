//! The control memory of a link: two halves, each written by one side only.
//!
//! ```text
//! offset   my half (I write, the peer maps it read-only)
//!      0   tail         bytes that I ever put into my ring
//!    128   head         bytes that I ever took out of the peer's ring
//!    256   sleeping     odd while I sleep and want to be rung for new bytes
//!    384   wants_space  odd while I sleep and want to be rung for space in my ring
//!  16384   my ring      a power of two of bytes
//! ```
//! Every word has one writer, and lies on a pair of cache lines of its own (128 bytes: Apple's line,
//! and the pair that x86 fetches together).
//!
//! Invariants, named by the SAFETY comments of this file:
//! - H1: both halves stay mapped over `RING_OFFSET + ring_len` bytes for as long as their value lives:
//!   mine for reads and writes ([`Region`], R1), the peer's for reads. The peer's descriptor passed
//!   [`check_memory`], so no access inside that range faults.
//! - H2: the words are accessed by atomics only, on both sides of the link.
//! - H3: a mapping is page-aligned and a word's offset is a multiple of 128, so words are aligned.
//! - H4: ring positions are masked by `ring_len - 1`, and a run is cut where the ring ends, so every
//!   access lies inside the ring.
//! - H5: bytes of a ring are reached through raw pointers only. No reference to them ever exists, so
//!   a peer that scribbles changes what is read, never what the compiler may assume.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use blockwire::pool::{Backing, REGION_ALIGN, Region};
use blockwire::transport::Violation;
use bytes::BytesMut;
use memmap2::{MmapOptions, MmapRaw};

use crate::sys::descriptors::check_memory;

/// Where the ring starts: the words have a page of their own on every system.
pub(crate) const RING_OFFSET: usize = REGION_ALIGN;
/// Smallest ring.
pub(crate) const RING_LEN_MIN: usize = 4096;
/// Largest ring that a peer may ask this side to map.
pub(crate) const RING_LEN_MAX: usize = 64 << 20;

/// A shared word, by its offset.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum Word {
    Tail = 0,
    Head = 128,
    Sleeping = 256,
    WantsSpace = 384,
}

/// Whether a ring of this length is one.
pub(crate) fn valid_ring_len(len: usize) -> bool {
    len.is_power_of_two() && (RING_LEN_MIN..=RING_LEN_MAX).contains(&len)
}

/// The half that this side writes.
#[derive(Debug)]
pub(crate) struct OwnHalf {
    region: Region,
    ring_len: usize,
}

impl OwnHalf {
    /// Fresh, zeroed memory.
    ///
    /// # Panics
    /// When the length is not [`valid_ring_len`].
    pub(crate) fn new(ring_len: usize) -> io::Result<Self> {
        assert!(valid_ring_len(ring_len), "a ring of {ring_len} bytes");
        Ok(Self { region: Region::new(RING_OFFSET + ring_len, Backing::Shared)?, ring_len })
    }

    /// The descriptor for the peer.
    pub(crate) fn file(&self) -> &File {
        self.region.shared_file().expect("the memory was asked to be shared")
    }

    pub(crate) fn ring_len(&self) -> usize {
        self.ring_len
    }

    pub(crate) fn store(&self, word: Word, value: u64, order: Ordering) {
        // SAFETY: mapped for writes over the words' page (H1), aligned (H3), atomics only (H2).
        let word = unsafe {
            AtomicU64::from_ptr(self.region.base().as_ptr().add(word as usize).cast::<u64>())
        };
        word.store(value, order);
    }

    /// Copies `bytes` into the ring from position `at` on.
    ///
    /// # Panics
    /// When there are more bytes than the ring has.
    #[expect(clippy::disallowed_methods, reason = "control bytes are not payload")]
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        for (start, run) in runs(self.ring_len, at, bytes.len()) {
            let from = &bytes[run];
            // SAFETY: `start..start + from.len()` lies in the ring (H4), which is mapped for writes
            // (H1); `from` is this process's private memory, so the two do not overlap.
            unsafe {
                let to = self.region.base().as_ptr().add(RING_OFFSET + start);
                std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
            }
        }
    }
}

/// The half that the peer writes.
#[derive(Debug)]
pub(crate) struct PeerHalf {
    map: MmapRaw,
    ring_len: usize,
}

/// Why a peer's memory is not mapped.
#[derive(Debug)]
pub(crate) enum MapError {
    /// It is not what was announced.
    Violation(Violation),
    /// The system refused.
    System(io::Error),
}

impl PeerHalf {
    /// Maps what a peer handed over and announced as `ring_len` bytes of ring.
    pub(crate) fn map(descriptor: OwnedFd, ring_len: u64) -> Result<Self, MapError> {
        let ring_len = usize::try_from(ring_len)
            .ok()
            .filter(|len| valid_ring_len(*len))
            .ok_or(MapError::Violation(Violation::Greeting("ring length out of bounds")))?;
        let map = map_checked(descriptor, RING_OFFSET + ring_len)?;
        Ok(Self { map, ring_len })
    }

    pub(crate) fn ring_len(&self) -> usize {
        self.ring_len
    }

    /// Loads a word, relaxed: only such loads are defined on pages that are mapped read-only
    /// (`std::sync::atomic`, "Atomic accesses to read-only memory"). Callers add the fence.
    pub(crate) fn load(&self, word: Word) -> u64 {
        // SAFETY: mapped for reads over the words' page (H1), aligned (H3), atomics only (H2).
        let word = unsafe { &*self.map.as_ptr().add(word as usize).cast::<AtomicU64>() };
        word.load(Ordering::Relaxed)
    }

    /// Reads bytes of the ring from position `at` on.
    ///
    /// # Panics
    /// When there are more bytes than the ring has.
    #[expect(clippy::disallowed_methods, reason = "control bytes are not payload")]
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        for (start, run) in runs(self.ring_len, at, into.len()) {
            let to = &mut into[run];
            // SAFETY: `start..start + to.len()` lies in the ring (H4), which is mapped for reads (H1)
            // and read through a raw pointer (H5); `to` is private memory of that length.
            unsafe {
                let from = self.map.as_ptr().add(RING_OFFSET + start);
                std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
            }
        }
    }

    /// Appends `len` bytes of the ring from position `at` on.
    ///
    /// # Panics
    /// When `len` is more than the ring has.
    #[expect(clippy::disallowed_methods, reason = "control bytes are not payload")]
    pub(crate) fn append(&self, at: u64, len: usize, into: &mut BytesMut) {
        into.reserve(len);
        for (start, run) in runs(self.ring_len, at, len) {
            let to = &mut into.spare_capacity_mut()[..run.len()];
            // SAFETY: `start..start + run.len()` lies in the ring (H4), which is mapped for reads (H1)
            // and read through a raw pointer (H5); `to` is private memory of at least that length,
            // every byte of which is written before the length grows over it.
            unsafe {
                let from = self.map.as_ptr().add(RING_OFFSET + start);
                std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().cast::<u8>(), run.len());
                into.set_len(into.len() + run.len());
            }
        }
    }
}

/// Maps `len` bytes of a peer's memory read-only, after the checks that H1 rests on.
pub(crate) fn map_checked(descriptor: OwnedFd, len: usize) -> Result<MmapRaw, MapError> {
    check_memory(&descriptor, len as u64)
        .map_err(|what| MapError::Violation(Violation::SharedMemory(what)))?;
    let file = File::from(descriptor);
    MmapOptions::new().len(len).map_raw_read_only(&file).map_err(MapError::System)
}

/// The one or two runs of ring bytes at position `at`: where each starts, and which bytes it takes.
fn runs(
    ring_len: usize,
    at: u64,
    len: usize,
) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    assert!(len <= ring_len, "{len} bytes at once in a ring of {ring_len}");
    let start = (at & (ring_len as u64 - 1)) as usize;
    let first = len.min(ring_len - start);
    [(start, 0..first), (0, first..len)].into_iter().filter(|(_, run)| !run.is_empty())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A half and the peer's view of it.
    pub(crate) fn half(ring_len: usize) -> (OwnHalf, PeerHalf) {
        let own = OwnHalf::new(ring_len).unwrap();
        let descriptor = OwnedFd::from(own.file().try_clone().unwrap());
        let peer = PeerHalf::map(descriptor, ring_len as u64).unwrap();
        (own, peer)
    }

    #[test]
    fn words_and_bytes_cross_and_wrap() {
        let (own, peer) = half(RING_LEN_MIN);
        for (value, word) in
            [Word::Tail, Word::Head, Word::Sleeping, Word::WantsSpace].into_iter().enumerate()
        {
            own.store(word, value as u64 + 7, Ordering::Release);
            assert_eq!(peer.load(word), value as u64 + 7);
        }
        let bytes: Vec<u8> = (0..RING_LEN_MIN).map(|i| (i % 251) as u8).collect();
        for at in [0, 1, 4095, 4096, u64::MAX - 5] {
            own.write(at, &bytes);
            let mut read = BytesMut::new();
            peer.append(at, bytes.len(), &mut read);
            assert_eq!(read, bytes, "at {at}");
        }
    }

    #[test]
    fn ring_lengths_are_bounded() {
        for len in [0, 1, 4095, 4097, 2 * RING_LEN_MAX] {
            assert!(!valid_ring_len(len), "{len}");
        }
        let own = OwnHalf::new(RING_LEN_MIN).unwrap();
        for len in [0, 4097, 8 * RING_LEN_MIN as u64, u64::MAX] {
            let descriptor = OwnedFd::from(own.file().try_clone().unwrap());
            let refused = PeerHalf::map(descriptor, len);
            assert!(matches!(refused, Err(MapError::Violation(_))), "{len}");
        }
    }
}
