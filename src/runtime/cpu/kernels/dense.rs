//! Plain weights times plain activations: for each output, one fused multiply-add per column, in
//! column order.

use std::ops::Range;

use super::{Kernel, element::Element, output::Output, simd::Simd};
use crate::cpu::matrix::tiles::{DenseTiles, TILE};

/// `output[row][16 * tile..] = input[row] * weights[16 * tile..]` for all `rows` and `tiles`.
pub(crate) struct Multiply<'a, E> {
    weights: &'a DenseTiles<E>,
    /// `[row][cols]`.
    input: &'a [f32],
    rows: Range<usize>,
    tiles: Range<usize>,
    output: &'a Output<'a>,
}

impl<'a, E: Element> Multiply<'a, E> {
    /// # Safety
    /// Until the kernel has run, nobody else uses the cells of these rows and tiles.
    pub(crate) unsafe fn new(
        weights: &'a DenseTiles<E>,
        input: &'a [f32],
        rows: Range<usize>,
        tiles: Range<usize>,
        output: &'a Output<'a>,
    ) -> Self {
        Self { weights, input, rows, tiles, output }
    }

    #[inline(always)]
    fn tile<S: Simd, const M: usize>(&self, simd: S, tile: usize, first_row: usize) {
        let cols = self.weights.cols;
        let weights = &self.weights.weights[tile * TILE * cols..][..TILE * cols];
        let input = &self.input[first_row * cols..][..M * cols];
        // Only the first `16 / LANES` vectors of a row are used: the rest folds away.
        let mut sums = [[simd.splat(0.0); TILE]; M];
        for col in 0..cols {
            for part in 0..TILE / S::LANES {
                // SAFETY: column `col` of the tile has 16 weights, `part * LANES + LANES` is at most
                // 16, and `input` has `M` rows of `cols`.
                unsafe {
                    let at = weights.as_ptr().add(col * TILE + part * S::LANES);
                    let weights = E::load(simd, at);
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let x = simd.splat(*input.get_unchecked(r * cols + col));
                        sums[part] = simd.fma(x, weights, sums[part]);
                    }
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            let mut results = [0.0; TILE];
            for (part, sum) in sums.iter().enumerate().take(TILE / S::LANES) {
                // SAFETY: `part * LANES + LANES` is at most 16, the length of `results`.
                unsafe { simd.store(results.as_mut_ptr().add(part * S::LANES), *sum) }
            }
            // SAFETY: the caller of `new` vouches for exclusive use.
            unsafe { self.output.put(first_row + r, tile, &results) }
        }
    }
}

impl<E: Element> Kernel for Multiply<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for tile in self.tiles.clone() {
            let mut row = self.rows.start;
            while row < self.rows.end {
                row += if self.rows.end - row >= 4 {
                    self.tile::<S, 4>(simd, tile, row);
                    4
                } else {
                    self.tile::<S, 1>(simd, tile, row);
                    1
                };
            }
        }
    }
}
