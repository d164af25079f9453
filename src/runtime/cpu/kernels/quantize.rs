//! Activations in eight bits: the left side of a quantised matrix product.

use super::{Kernel, simd::Simd};
use crate::cpu::shared::SharedMut;

/// Activations per scale.
pub(crate) const BLOCK: usize = 32;

/// Rows of activations, each block of 32 as signed bytes (-127..=127) times a scale.
#[derive(Debug, Default)]
pub(crate) struct QuantisedRows {
    cols: usize,
    rows: usize,
    quants: Vec<i8>,
    scales: Vec<f32>,
    /// Per block: its scale times the sum of its bytes.
    scaled_sums: Vec<f32>,
    /// Per block: the sums of its first and of its second 16 bytes.
    sums: Vec<[i32; 2]>,
}

impl QuantisedRows {
    /// Makes room for rows of `cols` activations; what was there is lost.
    ///
    /// # Panics
    /// When `cols` is no multiple of 32.
    pub(crate) fn reshape(&mut self, rows: usize, cols: usize) {
        assert!(cols.is_multiple_of(BLOCK), "{cols} columns");
        (self.rows, self.cols) = (rows, cols);
        let blocks = rows * (cols / BLOCK);
        self.quants.resize(self.quants.len().max(rows * cols), 0);
        self.scales.resize(self.scales.len().max(blocks), 0.0);
        self.scaled_sums.resize(self.scaled_sums.len().max(blocks), 0.0);
        self.sums.resize(self.sums.len().max(blocks), [0; 2]);
    }

    /// Activations per row.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// One row's blocks.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> RowBlocks {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let first = row * (self.cols / BLOCK);
        let quants = self.quants[first * BLOCK..].as_ptr().cast();
        RowBlocks {
            quants,
            scales: self.scales[first..].as_ptr(),
            scaled_sums: self.scaled_sums[first..].as_ptr(),
            sums: self.sums[first..].as_ptr(),
        }
    }

    /// The rows as cells that several threads fill.
    pub(crate) fn writer(&mut self) -> RowsWriter<'_> {
        RowsWriter {
            cols: self.cols,
            rows: self.rows,
            quants: SharedMut::new(&mut self.quants),
            scales: SharedMut::new(&mut self.scales),
            scaled_sums: SharedMut::new(&mut self.scaled_sums),
            sums: SharedMut::new(&mut self.sums),
        }
    }
}

/// Pointers to the `cols / 32` blocks of one row, in step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowBlocks {
    /// The bytes of each block, as eight words of four.
    pub(crate) quants: *const [[i8; 4]; BLOCK / 4],
    pub(crate) scales: *const f32,
    pub(crate) scaled_sums: *const f32,
    pub(crate) sums: *const [i32; 2],
}

/// Access of several threads to the rows, each to its own.
#[derive(Debug)]
pub(crate) struct RowsWriter<'a> {
    cols: usize,
    rows: usize,
    quants: SharedMut<'a, i8>,
    scales: SharedMut<'a, f32>,
    scaled_sums: SharedMut<'a, f32>,
    sums: SharedMut<'a, [i32; 2]>,
}

impl RowsWriter<'_> {
    /// The kernel that fills one row.
    ///
    /// # Panics
    /// When there is no such row, or `x` has another length.
    ///
    /// # Safety
    /// Until the kernel has run, nobody else uses the row.
    pub(crate) unsafe fn quantize<'k>(&'k self, row: usize, x: &'k [f32]) -> Quantize<'k> {
        assert!(row < self.rows && x.len() == self.cols, "row {row} of {}", x.len());
        let blocks = self.cols / BLOCK;
        let range = row * blocks..(row + 1) * blocks;
        // SAFETY: the ranges belong to this row alone, which the caller vouches for.
        unsafe {
            Quantize {
                x,
                quants: self.quants.range(row * self.cols..(row + 1) * self.cols),
                scales: self.scales.range(range.clone()),
                scaled_sums: self.scaled_sums.range(range.clone()),
                sums: self.sums.range(range),
            }
        }
    }
}

/// Quantises one row: `scale = largest / 127`, bytes rounded to nearest even.
pub(crate) struct Quantize<'a> {
    x: &'a [f32],
    quants: &'a mut [i8],
    scales: &'a mut [f32],
    scaled_sums: &'a mut [f32],
    sums: &'a mut [[i32; 2]],
}

impl Kernel for Quantize<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let blocks = self.x.chunks_exact(BLOCK).zip(self.quants.chunks_exact_mut(BLOCK));
        for (index, (x, quants)) in blocks.enumerate() {
            let largest = magnitude(simd, x);
            let inverse = if largest == 0.0 { 0.0 } else { 127.0 / largest };
            let factor = simd.splat(inverse);
            let mut sums = [0; 2];
            for at in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: `LANES` divides 32, the length of both slices.
                unsafe {
                    let x = simd.load(x.as_ptr().add(at));
                    let nearest = simd.nearest(simd.mul(x, factor));
                    simd.store_bytes(quants.as_mut_ptr().add(at), nearest);
                    sums[at / 16] += simd.total(nearest);
                }
            }
            let scale = largest / 127.0;
            self.scales[index] = scale;
            self.sums[index] = sums;
            self.scaled_sums[index] = scale * (sums[0] + sums[1]) as f32;
        }
    }
}

/// The largest magnitude of 32 floats.
#[inline(always)]
fn magnitude<S: Simd>(simd: S, x: &[f32]) -> f32 {
    let mut largest = simd.splat(0.0);
    for chunk in x.chunks_exact(S::LANES) {
        // SAFETY: the chunk holds `LANES` floats.
        largest = simd.max(simd.abs(unsafe { simd.load(chunk.as_ptr()) }), largest);
    }
    simd.largest(largest)
}
