//! Where a sequence's keys or values lie, and how to get at them.

use std::ops::Range;

use blockwire::pool::Dtype;

use super::{element::Element, simd::Simd};

/// Some KV heads of one sequence: the first blocks in a peer's pool, the others in this one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages<'a> {
    /// Where the table's blocks lie from the `adopted`-th on.
    pub(crate) own: Slab,
    /// Where those before it lie.
    pub(crate) peer: Slab,
    /// How many of the first blocks are the peer's.
    pub(crate) adopted: usize,
    /// Bytes from a token to the next.
    pub(crate) token_stride: usize,
    /// Tokens per block.
    pub(crate) block_tokens: usize,
    /// Block of every `block_tokens` positions.
    pub(crate) table: &'a [u32],
    /// Element type.
    pub(crate) dtype: Dtype,
}

/// The blocks of one pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slab {
    /// The first head's first element in token 0 of block 0.
    pub(crate) start: *const u8,
    /// Bytes from a block to the next.
    pub(crate) block_stride: usize,
}

impl Slab {
    /// The same from another element on.
    pub(crate) fn from(self, element: usize, dtype: Dtype) -> Self {
        Self { start: self.start.wrapping_add(element * dtype.size()), ..self }
    }
}

/// Widens the `rows.len() / head_dim` positions from `start` on.
///
/// # Safety
/// They are readable through the pages.
#[inline(always)]
pub(super) unsafe fn gather<S: Simd, E: Element>(
    simd: S,
    pages: Pages<'_>,
    start: usize,
    rows: &mut [f32],
    head_dim: usize,
) {
    let mut positions = pages.positions(start);
    for row in rows.chunks_exact_mut(head_dim) {
        let token = positions.next();
        for at in (0..head_dim).step_by(S::LANES) {
            // SAFETY: the caller vouches for `head_dim` elements at this position; `LANES` divides
            // `head_dim`, the length of `row`.
            unsafe {
                let from = token.cast::<E>().add(at);
                simd.store(row.as_mut_ptr().add(at), E::load(simd, from));
            }
        }
    }
}

/// Asks for the cache lines of some positions, of so many elements each.
#[inline(always)]
pub(super) fn prefetch<S: Simd>(
    simd: S,
    pages: Pages<'_>,
    positions: Range<usize>,
    elements: usize,
) {
    const CACHE_LINE: usize = 64;
    let bytes = elements * pages.dtype.size();
    let mut tokens = pages.positions(positions.start);
    for _ in positions {
        let token = tokens.next();
        for line in (0..bytes).step_by(CACHE_LINE) {
            simd.prefetch(token.wrapping_add(line));
        }
    }
}

impl<'a> Pages<'a> {
    #[inline(always)]
    fn positions(self, position: usize) -> Positions<'a> {
        let (block, token) = (position / self.block_tokens, position % self.block_tokens);
        let mut positions = Positions { pages: self, block, at: std::ptr::null(), left: 0 };
        if token > 0 {
            positions.next();
            positions.at = positions.at.wrapping_add((token - 1) * self.token_stride);
            positions.left -= token - 1;
        }
        positions
    }

    /// Token 0 of a block.
    ///
    /// # Panics
    /// When the table is shorter.
    #[inline(always)]
    fn block(&self, index: usize) -> *const u8 {
        let slab = if index < self.adopted { self.peer } else { self.own };
        slab.start.wrapping_add(self.table[index] as usize * slab.block_stride)
    }
}

/// Addresses of successive positions. Which pool a block lies in is asked once a block.
struct Positions<'a> {
    pages: Pages<'a>,
    /// The next block to look up.
    block: usize,
    /// The next position.
    at: *const u8,
    /// Positions of this block from `at` on.
    left: usize,
}

impl Positions<'_> {
    /// # Panics
    /// When the position is beyond the table.
    #[inline(always)]
    fn next(&mut self) -> *const u8 {
        if self.left == 0 {
            self.at = self.pages.block(self.block);
            self.left = self.pages.block_tokens;
            self.block += 1;
        }
        let at = self.at;
        self.at = at.wrapping_add(self.pages.token_stride);
        self.left -= 1;
        at
    }
}
