//! The control memory of a link: two halves, each written by one side only.
//!
//! ```text
//! offset   my half (I write, the peer maps it read-only)
//!      0   tail         bytes that I ever put into my ring
//!    128   head         bytes that I ever took out of the peer's ring
//!    256   sleeping     odd while I sleep and want to be rung for new bytes
//!    384   wants_space  odd while I sleep and want to be rung for space in my ring
//!    512   the same four words for the second ring
//!  16384   my rings     first the one for control, whose frames begin on lines of 64 bytes, then the
//!                       one for payload; each a power of two
//! ```
//! Every word has one writer, and lies on a pair of cache lines of its own (128 bytes: Apple's line,
//! and the pair that x86 fetches together).
//!
//! Invariants, named by the SAFETY comments of this file:
//! - H1: both halves stay mapped over their whole length for as long as their value lives:
//!   mine for reads and writes ([`Region`], R1), the peer's for reads. The peer's descriptor passed
//!   [`check_memory`], so no access inside that range faults.
//! - H2: the words are accessed by atomics only, on both sides of the link.
//! - H3: a mapping is page-aligned and a word's offset is a multiple of 128, so words are aligned.
//! - H4: ring positions are masked by `ring_len - 1`, and a run is cut where the ring ends, so every
//!   access lies inside the ring.
//! - H5: bytes of the peer's rings are reached through raw pointers only. No reference to them ever
//!   exists, so a peer that scribbles changes what is read, never what the compiler may assume.
//! - H6: nobody but the producer of a ring writes to it, in whichever process: the peer's mapping is
//!   read-only. What the producer has not published, no consumer that keeps the rules reads.
//! - H7: a mark ([`PeerHalf::mark`]) starts a line of a ring, so it is aligned and does not wrap. Where a
//!   consumer that keeps the rules may look at one, its producer writes it by atomics only.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use std::sync::atomic::fence;

use blockwire::pool::{Backing, REGION_ALIGN, Region};
use blockwire::transport::Violation;
use bytes::BytesMut;
use memmap2::{MmapOptions, MmapRaw};

use crate::sys::descriptors::check_memory;

/// Where the ring starts: the words have a page of their own on every system.
pub(crate) const RING_OFFSET: usize = REGION_ALIGN;
/// Where frames of the control ring may begin: cache lines.
pub(crate) const LINE: usize = 64;
/// Bytes of a mark, the first word of a line.
pub(crate) const MARK_LEN: usize = size_of::<u64>();
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

/// One of the two rings of a half, with its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Control,
    Payload,
}

/// Lengths of the rings of a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingLens {
    pub(crate) control: usize,
    pub(crate) payload: usize,
}

impl RingLens {
    fn of(self, lane: Lane) -> usize {
        match lane {
            Lane::Control => self.control,
            Lane::Payload => self.payload,
        }
    }

    fn start(self, lane: Lane) -> usize {
        match lane {
            Lane::Control => RING_OFFSET,
            Lane::Payload => RING_OFFSET + self.control,
        }
    }

    fn total(self) -> usize {
        RING_OFFSET + self.control + self.payload
    }
}

/// Where a word lies: every one has its own pair of cache lines.
fn word_offset(lane: Lane, word: Word) -> usize {
    match lane {
        Lane::Control => word as usize,
        Lane::Payload => 512 + word as usize,
    }
}

/// Whether a ring of this length is one.
pub(crate) fn valid_ring_len(len: usize) -> bool {
    len.is_power_of_two() && (RING_LEN_MIN..=RING_LEN_MAX).contains(&len)
}

/// The half that this side writes.
#[derive(Debug)]
pub(crate) struct OwnHalf {
    region: Region,
    lens: RingLens,
}

impl OwnHalf {
    /// Fresh, zeroed memory.
    ///
    /// # Panics
    /// When a length is not [`valid_ring_len`].
    pub(crate) fn new(lens: RingLens) -> io::Result<Self> {
        assert!(valid_ring_len(lens.control) && valid_ring_len(lens.payload), "{lens:?}");
        Ok(Self { region: Region::new(lens.total(), Backing::Shared)?, lens })
    }

    /// The descriptor for the peer.
    pub(crate) fn file(&self) -> &File {
        self.region.shared_file().expect("the memory was asked to be shared")
    }

    pub(crate) fn ring_len(&self, lane: Lane) -> usize {
        self.lens.of(lane)
    }

    pub(crate) fn store(&self, lane: Lane, word: Word, value: u64, order: Ordering) {
        let at = word_offset(lane, word);
        // SAFETY: mapped for writes over the words' page (H1), aligned (H3), atomics only (H2).
        let word =
            unsafe { AtomicU64::from_ptr(self.region.base().as_ptr().add(at).cast::<u64>()) };
        word.store(value, order);
    }

    /// Copies `bytes` into a ring from position `at` on, where nothing is published.
    ///
    /// # Panics
    /// When there are more bytes than the ring has.
    #[expect(clippy::disallowed_methods, reason = "control bytes are not payload")]
    pub(crate) fn write(&self, lane: Lane, at: u64, bytes: &[u8]) {
        for (start, run) in runs(self.lens.of(lane), at, bytes.len()) {
            let from = &bytes[run];
            // SAFETY: `start..start + from.len()` lies in the ring (H4), which is mapped for writes
            // (H1); `from` is this process's private memory, so the two do not overlap.
            unsafe {
                let to = self.region.base().as_ptr().add(self.lens.start(lane) + start);
                std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
            }
        }
    }

    /// Writes a mark.
    ///
    /// # Panics
    /// When `at` is inside a line.
    pub(crate) fn set_mark(&self, lane: Lane, at: u64, mark: [u8; MARK_LEN], order: Ordering) {
        let at = mark_offset(self.lens, lane, at);
        // SAFETY: in the ring (H4), mapped for writes (H1), aligned (H7), atomics only (H7).
        let word =
            unsafe { AtomicU64::from_ptr(self.region.base().as_ptr().add(at).cast::<u64>()) };
        word.store(u64::from_ne_bytes(mark), order);
    }

    /// Hands out `len` bytes of a ring from position `at` on, to be written, in one or two runs.
    ///
    /// # Safety
    /// They are free: not published, and not handed out or written by anyone else meanwhile.
    ///
    /// # Panics
    /// When there are more bytes than the ring has.
    pub(crate) unsafe fn fill(
        &self,
        lane: Lane,
        at: u64,
        len: usize,
        mut write: impl FnMut(&mut [u8]),
    ) {
        for (start, run) in runs(self.lens.of(lane), at, len) {
            // SAFETY: `start..start + run.len()` lies in the ring (H4), which is mapped for writes
            // (H1); nobody else writes to it (H6, caller), so the borrow is exclusive.
            write(unsafe {
                let to = self.region.base().as_ptr().add(self.lens.start(lane) + start);
                std::slice::from_raw_parts_mut(to, run.len())
            });
        }
    }
}

/// The half that the peer writes.
#[derive(Debug)]
pub(crate) struct PeerHalf {
    map: MmapRaw,
    lens: RingLens,
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
    /// Maps what a peer handed over and announced as so many bytes of control and payload ring.
    pub(crate) fn map(descriptor: OwnedFd, lens: [u64; 2]) -> Result<Self, MapError> {
        let valid = |len| {
            let len = usize::try_from(len).ok().filter(|len| valid_ring_len(*len));
            len.ok_or(MapError::Violation(Violation::Greeting("ring length out of bounds")))
        };
        let lens = RingLens { control: valid(lens[0])?, payload: valid(lens[1])? };
        Ok(Self { map: map_checked(descriptor, lens.total())?, lens })
    }

    pub(crate) fn ring_len(&self, lane: Lane) -> usize {
        self.lens.of(lane)
    }

    /// Loads a word, relaxed: only such loads are defined on pages that are mapped read-only
    /// (`std::sync::atomic`, "Atomic accesses to read-only memory"). Callers add the fence.
    pub(crate) fn load(&self, lane: Lane, word: Word) -> u64 {
        let at = word_offset(lane, word);
        // SAFETY: mapped for reads over the words' page (H1), aligned (H3), atomics only (H2).
        let word = unsafe { &*self.map.as_ptr().add(at).cast::<AtomicU64>() };
        word.load(Ordering::Relaxed)
    }

    /// Loads a mark, relaxed as [`load`](Self::load) does.
    ///
    /// # Panics
    /// When `at` is inside a line.
    pub(crate) fn mark(&self, lane: Lane, at: u64) -> u64 {
        let at = mark_offset(self.lens, lane, at);
        // SAFETY: in the ring (H4), mapped for reads (H1), aligned (H7), atomics only (H7).
        let word = unsafe { &*self.map.as_ptr().add(at).cast::<AtomicU64>() };
        word.load(Ordering::Relaxed)
    }

    /// Reads bytes of a ring from position `at` on.
    ///
    /// # Panics
    /// When there are more bytes than the ring has.
    #[expect(clippy::disallowed_methods, reason = "control bytes are not payload")]
    pub(crate) fn read(&self, lane: Lane, at: u64, into: &mut [u8]) {
        let mut rest = &mut into[..];
        self.runs(lane, at, rest.len(), |from, len| {
            let (to, later) = std::mem::take(&mut rest).split_at_mut(len);
            // SAFETY: `from` is readable for `len` bytes (`runs`); `to` is private memory of that length.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), len) };
            rest = later;
        });
    }

    /// Shows where `len` bytes of a ring from position `at` on lie: one or two runs, each readable for
    /// as long as `self` lives. The peer may change them at any time (H5).
    ///
    /// # Panics
    /// When there are more bytes than the ring has.
    pub(crate) fn runs(
        &self,
        lane: Lane,
        at: u64,
        len: usize,
        mut read: impl FnMut(*const u8, usize),
    ) {
        for (start, run) in runs(self.lens.of(lane), at, len) {
            // SAFETY: `start..start + run.len()` lies in the ring (H4), which is mapped for reads (H1).
            let from = unsafe { self.map.as_ptr().add(self.lens.start(lane) + start) };
            read(from, run.len());
        }
    }

    /// Appends `len` bytes of a ring from position `at` on.
    ///
    /// # Panics
    /// When `len` is more than the ring has.
    #[expect(clippy::disallowed_methods, reason = "control bytes are not payload")]
    pub(crate) fn append(&self, lane: Lane, at: u64, len: usize, into: &mut BytesMut) {
        into.reserve(len);
        self.runs(lane, at, len, |from, len| {
            let to = &mut into.spare_capacity_mut()[..len];
            // SAFETY: `from` is readable for `len` bytes (`runs`); `to` is private memory of at least
            // that length, every byte of which is written before the length grows over it.
            unsafe {
                std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().cast::<u8>(), len);
                into.set_len(into.len() + len);
            }
        });
    }
}

/// Where the mark at a position of a ring lies.
fn mark_offset(lens: RingLens, lane: Lane, at: u64) -> usize {
    assert!(at.is_multiple_of(LINE as u64), "a mark at {at}");
    lens.start(lane) + (at & (lens.of(lane) as u64 - 1)) as usize
}

/// Maps `len` bytes of a peer's memory read-only, after the checks that H1 rests on.
fn map_checked(descriptor: OwnedFd, len: usize) -> Result<MmapRaw, MapError> {
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
        let lens = RingLens { control: ring_len, payload: 2 * ring_len };
        let own = OwnHalf::new(lens).unwrap();
        let descriptor = OwnedFd::from(own.file().try_clone().unwrap());
        let peer = PeerHalf::map(descriptor, [lens.control as u64, lens.payload as u64]).unwrap();
        (own, peer)
    }

    #[test]
    fn words_and_bytes_cross_and_wrap() {
        let (own, peer) = half(RING_LEN_MIN);
        let words = [Word::Tail, Word::Head, Word::Sleeping, Word::WantsSpace];
        let lanes = [Lane::Control, Lane::Payload];
        let all = || lanes.into_iter().flat_map(|lane| words.map(|word| (lane, word)));
        for (value, (lane, word)) in (7..).zip(all()) {
            own.store(lane, word, value, Ordering::Release);
        }
        for (value, (lane, word)) in (7..).zip(all()) {
            assert_eq!(peer.load(lane, word), value);
        }
        let bytes: Vec<u8> = (0..RING_LEN_MIN).map(|i| (i % 251) as u8).collect();
        own.write(Lane::Payload, 0, &[9; 2 * RING_LEN_MIN]);
        for at in [0, 1, 4095, 4096, u64::MAX - 5] {
            own.write(Lane::Control, at, &bytes);
            let mut read = BytesMut::new();
            peer.append(Lane::Control, at, bytes.len(), &mut read);
            assert_eq!(read, bytes, "at {at}");
        }
        let mut payload = [0; 2 * RING_LEN_MIN];
        peer.read(Lane::Payload, 5, &mut payload);
        assert_eq!(payload, [9; 2 * RING_LEN_MIN]);
    }

    #[test]
    fn ring_lengths_are_bounded() {
        for len in [0, 1, 4095, 4097, 2 * RING_LEN_MAX] {
            assert!(!valid_ring_len(len), "{len}");
        }
        let (own, _) = half(RING_LEN_MIN);
        for len in [0, 4097, 16 * RING_LEN_MIN as u64, u64::MAX] {
            for lens in [[len, RING_LEN_MIN as u64], [RING_LEN_MIN as u64, len]] {
                let descriptor = OwnedFd::from(own.file().try_clone().unwrap());
                let refused = PeerHalf::map(descriptor, lens);
                assert!(matches!(refused, Err(MapError::Violation(_))), "{lens:?}");
            }
        }
    }
}
