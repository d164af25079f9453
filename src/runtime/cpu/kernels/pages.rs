//! Where a sequence's keys or values lie, and how to get at them.

use std::ops::Range;

use blockwire::pool::Dtype;

use super::{element::Element, simd::Simd};

/// Some KV heads of one sequence, in the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages<'a> {
    /// The first head's first element in token 0 of block 0.
    pub(crate) start: *const u8,
    /// Bytes from a block to the next.
    pub(crate) block_stride: usize,
    /// Bytes from a token to the next.
    pub(crate) token_stride: usize,
    /// Tokens per block.
    pub(crate) block_tokens: usize,
    /// Block of every `block_tokens` positions.
    pub(crate) table: &'a [u32],
    /// Element type.
    pub(crate) dtype: Dtype,
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
    let mut offsets = pages.offsets(start);
    for row in rows.chunks_exact_mut(head_dim) {
        let offset = offsets.next();
        for at in (0..head_dim).step_by(S::LANES) {
            // SAFETY: the caller vouches for `head_dim` elements at this position; `LANES` divides
            // `head_dim`, the length of `row`.
            unsafe {
                let from = pages.start.add(offset).cast::<E>().add(at);
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
    let mut offsets = pages.offsets(positions.start);
    for _ in positions {
        let offset = offsets.next();
        for line in (0..bytes).step_by(CACHE_LINE) {
            simd.prefetch(pages.start.wrapping_add(offset + line));
        }
    }
}

impl<'a> Pages<'a> {
    #[inline(always)]
    fn offsets(self, position: usize) -> Offsets<'a> {
        let (block, token) = (position / self.block_tokens, position % self.block_tokens);
        Offsets { pages: self, block, token }
    }
}

/// Byte offsets of successive positions from [`Pages::start`].
struct Offsets<'a> {
    pages: Pages<'a>,
    block: usize,
    token: usize,
}

impl Offsets<'_> {
    /// # Panics
    /// When the position is beyond the table.
    #[inline(always)]
    fn next(&mut self) -> usize {
        let Pages { table, block_stride, token_stride, block_tokens, .. } = self.pages;
        if self.token == block_tokens {
            (self.block, self.token) = (self.block + 1, 0);
        }
        let offset = table[self.block] as usize * block_stride + self.token * token_stride;
        self.token += 1;
        offset
    }
}
