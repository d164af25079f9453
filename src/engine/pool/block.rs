//! The pool and the typestate of its blocks.
//!
//! Invariants, named by the SAFETY comments of this crate:
//! - P1: a block id has at most one [`ReservedBlock`], and then no [`SealedBlock`] but those that a
//!   [`FillingBlock`](super::FillingBlock) holds it with.
//! - P2: a [`SealedBlock`]'s bytes are written by nobody until the last one of its id is dropped, and while
//!   the [prefix index](super::prefix) knows the block, not even then.
//! - P3: every block is in exactly one of the states that [`Accounting`] counts.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::layout::{KvPlane, Layout, PoolShape};
use super::limit::{self, Available, MemoryLimit};
use super::list::Extent;
use super::region::{Backing, Region};
use super::spec::{KvSpec, Part};
use super::state::{Accounting, BlockState, State};

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The geometry is empty, or too large to address.
    #[error("a pool of {blocks} blocks of [{spec}] is not possible: {reason}")]
    Shape {
        /// Geometry asked for.
        spec: Box<KvSpec>,
        /// Blocks asked for.
        blocks: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// There is not so much memory.
    #[error(
        "a pool of {} MiB does not fit: {limit} leaves {} MiB; ask for fewer blocks",
        needed.div_ceil(1 << 20),
        available >> 20
    )]
    Insufficient {
        /// Bytes asked for.
        needed: usize,
        /// Bytes that can be had.
        available: u64,
        /// What the tightest limit is.
        limit: MemoryLimit,
    },
    /// The operating system refused the memory.
    #[error("no memory for a pool of {needed} bytes ({backing:?} pages): {source}")]
    Memory {
        /// Bytes asked for.
        needed: usize,
        /// Kind of pages asked for.
        backing: Backing,
        /// What the system said.
        source: io::Error,
    },
}

/// What a pool is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Geometry of a block.
    pub spec: KvSpec,
    /// Order of the dimensions.
    pub layout: Layout,
    /// Blocks: a hard size.
    pub blocks: usize,
    /// Kind of pages.
    pub backing: Backing,
}

impl PoolOptions {
    /// Block-major, private pages.
    pub fn new(spec: KvSpec, blocks: usize) -> Self {
        Self { spec, layout: Layout::default(), blocks, backing: Backing::default() }
    }
}

#[derive(Debug)]
struct Inner {
    options: PoolOptions,
    shape: PoolShape,
    region: Arc<Region>,
    state: Mutex<State>,
}

/// A fixed number of equal blocks in one [`Region`]. Cloning gives another handle to the same pool.
#[derive(Clone)]
pub struct BlockPool(Arc<Inner>);

impl BlockPool {
    /// Maps the memory of `options.blocks` blocks.
    ///
    /// # Errors
    /// [`PoolError`] for an impossible shape, when there is less memory than that, or when the system
    /// refuses it.
    pub fn new(options: PoolOptions) -> Result<Self, PoolError> {
        Self::over(options, Region::new)
    }

    /// Like [`new`](Self::new), with every page touched and in the largest pages that can be had; see
    /// [`Region::faulted_in`]. Calls `progress` with the bytes done and in all.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn faulted_in(
        options: PoolOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, PoolError> {
        Self::over(options, |len, backing| Region::faulted_in(len, backing, progress))
    }

    fn over(
        options: PoolOptions,
        make: impl FnOnce(usize, Backing) -> io::Result<Region>,
    ) -> Result<Self, PoolError> {
        let PoolOptions { spec, layout, blocks, backing } = options.clone();
        let refuse = |reason| PoolError::Shape { spec: Box::new(spec.clone()), blocks, reason };
        let shape = PoolShape::new(spec.clone(), layout, blocks).map_err(refuse)?;
        let needed = shape.region_len();
        limit::check(needed).map_err(|Available { bytes, limit }| PoolError::Insufficient {
            needed,
            available: bytes,
            limit,
        })?;
        let region = make(needed, backing).map_err(|source| PoolError::Memory {
            needed,
            backing,
            source,
        })?;
        let state = Mutex::new(State::new(options.blocks));
        let region = Arc::new(region);
        Ok(Self(Arc::new(Inner { options, shape, region, state })))
    }

    /// Geometry of a block.
    pub fn spec(&self) -> &KvSpec {
        &self.0.options.spec
    }

    /// Order of the dimensions.
    pub fn layout(&self) -> Layout {
        self.0.options.layout
    }

    /// Where the bytes lie.
    pub fn shape(&self) -> &PoolShape {
        &self.0.shape
    }

    /// What the pool was made of.
    pub fn options(&self) -> &PoolOptions {
        &self.0.options
    }

    /// The memory.
    pub fn region(&self) -> &Arc<Region> {
        &self.0.region
    }

    /// First byte of the memory, with the provenance of the whole mapping.
    pub fn base(&self) -> NonNull<u8> {
        self.0.region.base()
    }

    /// How to reach the tokens of a (layer, part); none where the spec has no such segment.
    pub fn plane(&self, layer: usize, part: Part) -> Option<KvPlane> {
        self.0.shape.plane(layer, part)
    }

    /// The exact state of all blocks, now.
    pub fn accounting(&self) -> Accounting {
        self.state().counts()
    }

    /// Whether both handles name one pool.
    pub fn same_pool(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent between statements, so a panic elsewhere does not spoil it.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `count` of the available blocks out of a locked state.
    pub(super) fn take(&self, state: &mut State, count: usize) -> Vec<ReservedBlock> {
        let ids = state.take(count);
        self.notice_pressure(state);
        ids.map(|id| ReservedBlock(Hold { pool: self.clone(), id })).collect()
    }

    /// One more owner of a block, in a locked state.
    pub(super) fn share(&self, state: &mut State, id: u32) -> SealedBlock {
        state.hold(id);
        SealedBlock::new(Hold { pool: self.clone(), id })
    }

    /// Where the bytes of one token of a block lie: for each layer, its segments.
    fn token_extents(&self, id: u32, token: u32) -> Vec<Vec<Extent>> {
        assert!(token < self.spec().block_tokens, "token {token} of a block");
        let extent = |plane: &KvPlane| Extent {
            offset: plane.offset
                + id as usize * plane.block_stride
                + token as usize * plane.token_stride,
            len: plane.token_stride,
        };
        let layers = 0..self.spec().layers.len();
        layers.map(|layer| self.shape().layer(layer).iter().map(extent).collect()).collect()
    }

    fn release(&self, id: u32) {
        let mut state = self.state();
        if state.release(id) {
            self.serve_waiters(state);
        }
    }
}

impl fmt::Debug for BlockPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockPool")
            .field("spec", &format_args!("{}", self.spec()))
            .field("layout", &self.layout())
            .field("accounting", &self.accounting())
            .finish_non_exhaustive()
    }
}

/// One of those for whom a block is not free.
struct Hold {
    pool: BlockPool,
    id: u32,
}

impl Hold {
    fn token_extents(&self, token: u32) -> impl Iterator<Item = Extent> + use<> {
        self.pool.token_extents(self.id, token).into_iter().flatten()
    }

    fn read_token(&self, token: u32, bytes: &mut Vec<u8>) {
        for extent in self.token_extents(token) {
            // SAFETY: the extent lies in this block, which nobody writes: it is sealed (P2), or borrowed
            // by its only owner (P1).
            bytes.extend_from_slice(unsafe { self.pool.region().bytes(extent) });
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.pool.release(self.id);
    }
}

/// Exclusive ownership of a block: writable. Dropping it frees the block.
pub struct ReservedBlock(Hold);

impl ReservedBlock {
    /// Index of the block in its pool.
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// The pool that the block belongs to.
    pub fn pool(&self) -> &BlockPool {
        &self.0.pool
    }

    /// Writes `byte` to every byte of every token of the block.
    pub fn fill(&mut self, byte: u8) {
        for token in 0..self.pool().spec().block_tokens {
            self.fill_token(token, byte);
        }
    }

    /// Writes `byte` to every byte of one token.
    ///
    /// # Panics
    /// When the block does not have so many tokens.
    pub fn fill_token(&mut self, token: u32, byte: u8) {
        for extent in self.0.token_extents(token) {
            // SAFETY: the extent lies in this block, which nobody else reads or writes (P1; of what its sequence
            // has shared, it gives nobody the block, F1), and `self` is borrowed exclusively.
            unsafe { self.pool().region().bytes_mut(extent) }.fill(byte);
        }
    }

    /// Appends a copy of the bytes of one token.
    pub(super) fn read_token(&self, token: u32, bytes: &mut Vec<u8>) {
        self.0.read_token(token, bytes);
    }

    /// Gives up writing, for ever: the block can now be shared.
    pub fn seal(self) -> SealedBlock {
        self.set_state(BlockState::Sealed);
        SealedBlock::new(self.0)
    }

    /// Keeps the block from being freed, also when `self` is.
    pub(super) fn held(&self) -> SealedBlock {
        self.pool().share(&mut self.pool().state(), self.id())
    }

    pub(super) fn set_state(&self, to: BlockState) {
        self.pool().state().set(self.id(), to);
    }
}

impl fmt::Debug for ReservedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReservedBlock({})", self.id())
    }
}

/// Shared, read-only ownership of a block. The last owner's drop frees the block, or leaves it to the
/// cache.
#[derive(Clone)]
pub struct SealedBlock {
    /// The same as the hold's, at hand: lists of thousands are asked for nothing else.
    id: u32,
    /// Clones share one; the prefix index makes new ones.
    hold: Arc<Hold>,
}

impl SealedBlock {
    fn new(hold: Hold) -> Self {
        Self { id: hold.id, hold: Arc::new(hold) }
    }

    /// Index of the block in its pool.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The pool that the block belongs to.
    pub fn pool(&self) -> &BlockPool {
        &self.hold.pool
    }

    /// The bytes of one token: for each layer, its segments.
    ///
    /// # Panics
    /// When the block does not have so many tokens.
    pub fn token_bytes(&self, token: u32) -> Vec<Vec<&[u8]>> {
        let layers = self.pool().token_extents(self.id(), token).into_iter();
        // SAFETY: the extents lie in this block, which nobody writes while it is sealed (P2).
        let bytes = |extent| unsafe { self.pool().region().bytes(extent) };
        layers.map(|segments| segments.into_iter().map(bytes).collect()).collect()
    }
}

impl SealedBlock {
    /// Appends a copy of the bytes of one token.
    pub(super) fn read_token(&self, token: u32, bytes: &mut Vec<u8>) {
        self.hold.read_token(token, bytes);
    }
}

impl fmt::Debug for SealedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedBlock({})", self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Dtype;
    use super::*;

    fn pool(blocks: usize) -> BlockPool {
        BlockPool::new(PoolOptions::new(KvSpec::uniform(4, 2, 1, 8, Dtype::F16), blocks)).unwrap()
    }

    #[test]
    fn the_last_clone_of_a_sealed_block_frees_it() {
        let pool = pool(2);
        let block = pool.try_reserve(1).unwrap().pop().unwrap();
        assert_eq!(pool.accounting().reserved, 1);
        let sealed = block.seal();
        let clone = sealed.clone();
        drop(sealed);
        assert_eq!((pool.accounting().sealed, pool.accounting().free), (1, 1));
        drop(clone);
        assert_eq!(pool.accounting(), Accounting { total: 2, free: 2, ..Default::default() });
    }

    #[test]
    fn impossible_shapes_are_refused_before_any_memory_is_asked_for() {
        let shape = |tokens, heads, blocks| {
            let spec = KvSpec::uniform(tokens, 2, heads, 64, Dtype::F16);
            BlockPool::new(PoolOptions::new(spec, blocks))
        };
        for (tokens, heads, blocks) in
            [(0, 1, 1), (16, 0, 1), (16, 1, 0), (u32::MAX, u32::MAX, 1 << 30), (16, 1, 1 << 40)]
        {
            let refused = shape(tokens, heads, blocks).unwrap_err();
            assert!(matches!(refused, PoolError::Shape { .. }), "{refused}");
        }
    }

    #[cfg_attr(miri, ignore = "it has no shared mappings")]
    #[test]
    fn fault_b40_more_memory_than_there_is_is_refused_with_numbers() {
        // 16 TiB of blocks of 1 MiB, and the page of the leases.
        let spec = KvSpec::uniform(1024, 1, 1, 256, Dtype::F16);
        for backing in [Backing::Private, Backing::Shared] {
            let options = PoolOptions { backing, ..PoolOptions::new(spec.clone(), 16 << 20) };
            let refused = BlockPool::new(options.clone()).unwrap_err();
            assert!(matches!(refused, PoolError::Insufficient { .. }), "{refused}");
            assert!(
                refused.to_string().contains("a pool of 16777217 MiB does not fit"),
                "{refused}"
            );
            let refused = BlockPool::faulted_in(options, &mut |_, _| {}).unwrap_err();
            assert!(matches!(refused, PoolError::Insufficient { .. }), "{refused}");
        }
    }

    #[test]
    fn both_layouts_place_every_byte_once() {
        for layout in [Layout::BlockMajor, Layout::LayerMajor] {
            let spec = KvSpec::uniform(5, 3, 2, 8, Dtype::F32);
            let options = PoolOptions { layout, ..PoolOptions::new(spec.clone(), 4) };
            let pool = BlockPool::new(options).unwrap();
            let mut seen = vec![0u8; pool.region().len()];
            let mut placed = 0;
            for layer in 0..3 {
                for part in [Part::Key, Part::Value] {
                    let plane = pool.plane(layer, part).unwrap();
                    for (block, token) in (0..4).flat_map(|b| (0..5).map(move |t| (b, t))) {
                        let at =
                            plane.offset + block * plane.block_stride + token * plane.token_stride;
                        let bytes = &mut seen[at..at + plane.token_stride];
                        assert_eq!(bytes, vec![0; plane.token_stride], "{layout:?} overlaps");
                        bytes.fill(1);
                        placed += bytes.len();
                    }
                }
            }
            assert_eq!(placed, 4 * spec.block_bytes());
            assert!(pool.plane(3, Part::Key).is_none());
        }
    }
}
