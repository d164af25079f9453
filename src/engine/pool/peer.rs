//! A peer's pool, read in place: the borrower's side of a lease.
//!
//! Invariants, named by the SAFETY comments of this crate:
//! - B1: a [`PeerPool`]'s memory is mapped and readable over its shape's whole region for as long as
//!   the value lives; ids of [`AdoptedBlocks`] are below its number of blocks. So reading an adopted
//!   block never faults, also after the peer is dead.
//! - B2: the memory is the peer's: it may change at any time. It is reached through raw pointers only,
//!   no reference to it ever exists, and what was read counts only if the lease
//!   [is in force](Lease::is_in_force) afterwards.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use super::copy::{Stores, TransferStats, copy_payload_from_peer};
use super::layout::PoolShape;
use super::lease::{LEASES_MAX, LeaseId};
use super::list::ScatterList;
use super::payload::{PayloadOrder, Span};
use super::pull::Pull;
use super::region::Region;

/// Memory of a peer's, mapped here.
///
/// # Safety
/// `base..base + len` is mapped and readable without a fault for as long as the value lives, and
/// aligned to a page.
pub unsafe trait PeerMemory: fmt::Debug + Send + Sync {
    /// First byte.
    fn base(&self) -> NonNull<u8>;

    /// Bytes mapped.
    fn len(&self) -> usize;

    /// Whether nothing is mapped.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

// SAFETY: invariant R1 of regions; a mapping starts on a page.
unsafe impl PeerMemory for Region {
    fn base(&self) -> NonNull<u8> {
        Region::base(self)
    }

    fn len(&self) -> usize {
        Region::len(self)
    }
}

/// A peer's pool, mapped here.
#[derive(Debug)]
pub struct PeerPool {
    memory: Arc<dyn PeerMemory>,
    shape: PoolShape,
}

impl PeerPool {
    /// A pool of that shape in that memory; none when the memory is too short for it.
    pub fn new(memory: Arc<dyn PeerMemory>, shape: PoolShape) -> Option<Self> {
        (memory.len() >= shape.region_len()).then_some(Self { memory, shape })
    }

    /// Where its bytes lie.
    pub fn shape(&self) -> &PoolShape {
        &self.shape
    }

    /// First byte of its memory, readable over `shape().region_len()` bytes (B1).
    pub fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    fn lease_word(&self, slot: u32) -> u64 {
        let offset = self.shape.leases_offset() + slot as usize * size_of::<u64>();
        // SAFETY: the word lies in the shape's region (B1; `Lease::new` bounds the slot) and is
        // aligned; both sides access it by atomics only.
        let word =
            unsafe { AtomicU64::from_ptr(self.memory.base().as_ptr().add(offset).cast::<u64>()) };
        word.load(Ordering::Relaxed)
    }
}

/// The right to read blocks of a peer's, until the peer ends it.
#[derive(Debug)]
pub struct Lease {
    peer: Arc<PeerPool>,
    id: LeaseId,
    recalled: AtomicBool,
}

impl Lease {
    /// A lease that the peer told of; none when it names no word.
    pub fn new(peer: Arc<PeerPool>, id: LeaseId) -> Option<Self> {
        let named = (id.slot as usize) < LEASES_MAX;
        named.then(|| Self { peer, id, recalled: AtomicBool::new(false) })
    }

    /// Whether everything read under the lease up to now was what the peer lent.
    pub fn is_in_force(&self) -> bool {
        // What was read before is read before the word is: see `lease.rs`.
        fence(Ordering::Acquire);
        self.peer.lease_word(self.id.slot) == self.id.generation
    }

    /// Notes that the peer asks for its blocks.
    pub fn set_recalled(&self) {
        self.recalled.store(true, Ordering::Relaxed);
    }

    /// Whether the peer asks for its blocks: copy them home, and let go.
    pub fn is_recalled(&self) -> bool {
        self.recalled.load(Ordering::Relaxed)
    }
}

/// The peer ended the lease: what was read under it is worth nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer took its blocks back")]
pub struct LeaseLost;

type OnRelease = Box<dyn FnOnce() + Send + Sync>;

/// The first blocks of a sequence, all full, in a peer's pool. Dropping them gives the lease back.
pub struct AdoptedBlocks {
    lease: Arc<Lease>,
    ids: Vec<u32>,
    on_release: Option<OnRelease>,
}

impl AdoptedBlocks {
    /// Blocks under a lease, in token order; none when the peer has no such blocks.
    pub fn new(lease: Arc<Lease>, ids: Vec<u32>) -> Option<Self> {
        let blocks = lease.peer.shape.blocks();
        let known = ids.iter().all(|id| (*id as usize) < blocks);
        known.then_some(Self { lease, ids, on_release: None })
    }

    /// Tells the peer, once they are dropped.
    #[must_use]
    pub fn on_release(mut self, tell: impl FnOnce() + Send + Sync + 'static) -> Self {
        self.on_release = Some(Box::new(tell));
        self
    }

    /// The pool that they lie in.
    pub fn peer(&self) -> &PeerPool {
        &self.lease.peer
    }

    /// What allows to read them.
    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Their ids in the peer's pool, in token order.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Copies some of them, of which `room` has the place.
    ///
    /// # Errors
    /// [`LeaseLost`]; the blocks of the room are freed.
    ///
    /// # Panics
    /// When the room has another length.
    pub(super) fn copy(
        &self,
        blocks: Range<usize>,
        room: ScatterList,
        stats: &TransferStats,
    ) -> Result<ScatterList, LeaseLost> {
        let shape = &self.lease.peer.shape;
        let order = PayloadOrder { block_tokens: shape.spec().block_tokens };
        let tokens = blocks.len() * shape.spec().block_tokens as usize;
        let mut extents = Vec::new();
        let span = Span::whole(shape.spec(), 0..tokens);
        order.extents(shape, &self.ids[blocks], 0, &span, &mut extents);
        let memory = self.lease.peer.memory.clone();
        let mut pull = Pull::new(memory, extents, room).expect("whole blocks on both sides");
        pull.copy(usize::MAX, stats);
        if self.lease.is_in_force() { Ok(pull.into_room()) } else { Err(LeaseLost) }
    }

    /// Appends a copy of the bytes of one token of the `index`-th block.
    pub(super) fn read_token(&self, index: usize, token: u32, bytes: &mut Vec<u8>) {
        let shape = &self.lease.peer.shape;
        for plane in (0..shape.spec().layers.len()).flat_map(|layer| shape.layer(layer)) {
            let (start, len) = (bytes.len(), plane.token_stride);
            bytes.resize(start + len, 0);
            let offset = plane.offset
                + self.ids[index] as usize * plane.block_stride
                + token as usize * plane.token_stride;
            // SAFETY: a token of a block of the shape lies in its region, which is mapped (B1).
            let piece = unsafe { self.lease.peer.base().as_ptr().add(offset).cast_const() };
            let to = &mut bytes[start..];
            // SAFETY: as above; the peer may write there at any time, which the caller is told of (B2).
            unsafe {
                copy_payload_from_peer(
                    [(piece, to)],
                    Stores::Cached,
                    None,
                    &TransferStats::default(),
                )
            };
        }
    }

    /// Forgets the blocks from the `len`-th on.
    pub(super) fn truncate(&mut self, len: usize) {
        self.ids.truncate(len);
    }
}

impl Drop for AdoptedBlocks {
    fn drop(&mut self) {
        if let Some(tell) = self.on_release.take() {
            tell();
        }
    }
}

impl fmt::Debug for AdoptedBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdoptedBlocks({} of {:?})", self.ids.len(), self.lease.id)
    }
}
