//! Quantised weights times quantised activations.
//!
//! For each output: over the blocks of 32 in order, `sum = fma(dot, weight_scale * scale, sum)`, where
//! `dot` is an exact integer, then `sum = fma(minimum, scaled_sum, sum)` where there are minima.

use std::ops::Range;

use super::{
    Kernel,
    element::Element,
    output::Output,
    quantize::{QuantisedRows, RowBlocks},
    simd::Simd,
};
use crate::cpu::matrix::{
    format::Format,
    tiles::{QuantisedTiles, TILE, TileBlocks},
};

/// `output[row][16 * tile..] = input[row] * weights[16 * tile..]` for all `rows` and `tiles`.
pub(crate) struct Multiply<'a, T: Format> {
    weights: &'a QuantisedTiles<T>,
    input: &'a QuantisedRows,
    rows: Range<usize>,
    tiles: Range<usize>,
    output: &'a Output<'a>,
}

impl<'a, T: Format> Multiply<'a, T> {
    /// # Panics
    /// When rows and matrix have different numbers of columns.
    ///
    /// # Safety
    /// Until the kernel has run, nobody else uses the cells of these rows and tiles.
    pub(crate) unsafe fn new(
        weights: &'a QuantisedTiles<T>,
        input: &'a QuantisedRows,
        rows: Range<usize>,
        tiles: Range<usize>,
        output: &'a Output<'a>,
    ) -> Self {
        assert_eq!(weights.cols(), input.cols(), "columns of weights and activations");
        Self { weights, input, rows, tiles, output }
    }

    #[inline(always)]
    fn tile<S: Simd, const M: usize>(&self, simd: S, tile: usize, first_row: usize) {
        let mut rows = [self.input.row(first_row); M];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = self.input.row(first_row + i);
        }
        let weights = self.weights.tile(tile);
        let mut results = [[0.0; TILE]; M];
        for lane in (0..TILE).step_by(S::LANES) {
            // SAFETY: `tile` and `row` gave pointers to `cols / 32` blocks each, of the same `cols`,
            // as `new` checked; `lane + LANES` is at most 16.
            let sums =
                unsafe { dot::<S, T, M>(simd, &weights, &rows, self.input.cols() / 32, lane) };
            for (results, sum) in results.iter_mut().zip(sums) {
                // SAFETY: `results` has 16 floats, and `lane + LANES` is at most 16.
                unsafe { simd.store(results.as_mut_ptr().add(lane), sum) }
            }
        }
        for (i, results) in results.iter().enumerate() {
            // SAFETY: the caller of `new` vouches for exclusive use.
            unsafe { self.output.put(first_row + i, tile, results) }
        }
    }
}

impl<T: Format> Kernel for Multiply<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for tile in self.tiles.clone() {
            let mut row = self.rows.start;
            while row < self.rows.end {
                let left = self.rows.end - row;
                row += if left >= 8 && S::ROWS >= 8 {
                    self.tile::<S, 8>(simd, tile, row);
                    8
                } else if left >= 4 && S::ROWS >= 4 {
                    self.tile::<S, 4>(simd, tile, row);
                    4
                } else if left >= 2 && S::ROWS >= 2 {
                    self.tile::<S, 2>(simd, tile, row);
                    2
                } else {
                    self.tile::<S, 1>(simd, tile, row);
                    1
                };
            }
        }
    }
}

/// `LANES` columns, from `lane` on, of one tile, for `M` rows.
///
/// # Safety
/// Weights and rows have `blocks` blocks; `lane + LANES` is at most 16.
#[inline(always)]
unsafe fn dot<S: Simd, T: Format, const M: usize>(
    simd: S,
    weights: &TileBlocks<T::Scale>,
    rows: &[RowBlocks; M],
    blocks: usize,
    lane: usize,
) -> [S::F; M] {
    let mut sums = [simd.splat(0.0); M];
    for block in 0..blocks {
        // SAFETY: `block` is one of the blocks that the caller vouches for: every pointer below stays
        // inside it, and reads `LANES` of its 16 columns from `lane` on.
        unsafe {
            let quants = weights.quants.add(block * QuantisedTiles::<T>::LINES);
            let quants = quants.cast::<u8>().add(lane * 4);
            for group in 0..QuantisedTiles::<T>::GROUPS {
                let dots = if T::NIBBLES {
                    nibble_dots::<S, T, M>(simd, quants, rows, block)
                } else {
                    signed_dots::<S, T, M>(simd, quants, rows, block, group)
                };
                let scale = (block * QuantisedTiles::<T>::GROUPS + group) * TILE + lane;
                let scale = T::Scale::load(simd, weights.scales.add(scale));
                for r in 0..M {
                    let factor = simd.mul(scale, simd.splat(*rows[r].scales.add(block)));
                    sums[r] = simd.fma(simd.to_float(dots[r]), factor, sums[r]);
                }
            }
            if T::MINIMA {
                let minimum = T::Scale::load(simd, weights.minima.add(block * TILE + lane));
                for r in 0..M {
                    let scaled_sum = simd.splat(*rows[r].scaled_sums.add(block));
                    sums[r] = simd.fma(minimum, scaled_sum, sums[r]);
                }
            }
        }
    }
    sums
}

/// # Safety
/// The four lines of the block lie from `quants - 4 * lane` on; rows have block `block`.
#[inline(always)]
unsafe fn nibble_dots<S: Simd, T: Format, const M: usize>(
    simd: S,
    quants: *const u8,
    rows: &[RowBlocks; M],
    block: usize,
) -> [S::I; M] {
    let mut dots = [simd.dot_start(); M];
    // SAFETY: line `i` of four, words `i` and `4 + i` of eight, of the block that the caller vouches
    // for. Each accumulator gets eight products.
    unsafe {
        for i in 0..4 {
            let bytes = simd.load_columns(quants.add(i * 64));
            let (low, high) = (simd.low_nibbles(bytes), simd.high_nibbles(bytes));
            for r in 0..M {
                let x = rows[r].quants.add(block).cast::<i32>();
                dots[r] = simd.dot_nibbles(dots[r], low, x.add(i).read_unaligned());
                dots[r] = simd.dot_nibbles(dots[r], high, x.add(4 + i).read_unaligned());
            }
        }
        let mut results = [simd.splat_int(0); M];
        for r in 0..M {
            results[r] = simd.dot_finish(dots[r]);
            if T::ZERO != 0 {
                let [first, second] = *rows[r].sums.add(block);
                let zeros = simd.splat_int(T::ZERO * (first + second));
                results[r] = simd.sub_int(results[r], zeros);
            }
        }
        results
    }
}

/// # Safety
/// The eight lines of the block lie from `quants - 4 * lane` on; rows have block `block`.
#[inline(always)]
unsafe fn signed_dots<S: Simd, T: Format, const M: usize>(
    simd: S,
    quants: *const u8,
    rows: &[RowBlocks; M],
    block: usize,
    group: usize,
) -> [S::I; M] {
    let mut dots = [simd.splat_int(0); M];
    let words = group * T::GROUP / 4..(group + 1) * T::GROUP / 4;
    // SAFETY: line and word `i` of eight of the block that the caller vouches for.
    unsafe {
        if S::SIGNED_BIAS != 0 {
            for r in 0..M {
                let sums = *rows[r].sums.add(block);
                let sum = if T::GROUP == 16 { sums[group] } else { sums[0] + sums[1] };
                dots[r] = simd.splat_int(-S::SIGNED_BIAS * sum);
            }
        }
        for i in words {
            let weights = simd.signed(simd.load_columns(quants.add(i * 64)));
            for r in 0..M {
                let x = rows[r].quants.add(block).cast::<i32>();
                dots[r] = simd.dot_signed(dots[r], weights, x.add(i).read_unaligned());
            }
        }
    }
    dots
}
