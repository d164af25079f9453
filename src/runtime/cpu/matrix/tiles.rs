//! Weights regrouped so that one vector load serves 16 output columns.
//!
//! ```text
//! file     row 0: k0 k1 k2 ...        row 1: k0 k1 k2 ...
//! dense    tile 0: [k0: rows 0..16] [k1: rows 0..16] ...
//! quants   tile 0: [k0..k4 of row 0, of row 1, ... of row 15] [k4..k8 of row 0, ...] ...
//! nibbles  tile 0: the same, with k + 16 of each block of 32 in the high nibble
//! ```
//! Rows beyond the last are zeros.

use std::ops::Range;

use super::format::Format;
use crate::cpu::kernels::element::Element;

/// Output columns per tile.
pub(crate) const TILE: usize = 16;

/// A cache line of quants: four weights of each of 16 rows.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line(pub(crate) [u8; 64]);

/// Weights that are plain numbers.
#[derive(Debug)]
pub(crate) struct DenseTiles<E> {
    pub(crate) cols: usize,
    /// `[tile][column][16 rows]`.
    pub(crate) weights: Vec<E>,
}

/// Quantised weights.
///
/// Invariant 1: with `tiles = rows.div_ceil(16)` and `blocks = cols / 32`, `quants` has
/// `tiles * blocks * LINES` lines, `scales` has `tiles * blocks * (32 / GROUP) * 16` numbers, and
/// `minima`, with `MINIMA`, `tiles * blocks * 16`.
#[derive(Debug)]
pub(crate) struct QuantisedTiles<T: Format> {
    rows: usize,
    cols: usize,
    /// `[tile][block][LINES]`.
    quants: Vec<Line>,
    /// `[tile][block][group][16 rows]`.
    scales: Vec<T::Scale>,
    /// `[tile][block][16 rows]`.
    minima: Vec<T::Scale>,
}

/// Pointers to the blocks of one tile.
#[derive(Debug)]
pub(crate) struct TileBlocks<E> {
    pub(crate) quants: *const Line,
    pub(crate) scales: *const E,
    pub(crate) minima: *const E,
}

impl<E: Element> DenseTiles<E> {
    /// Regroups rows of `cols` little-endian numbers.
    ///
    /// # Panics
    /// When `bytes` does not hold `rows * cols` numbers.
    pub(crate) fn new(rows: usize, cols: usize, bytes: &[u8]) -> Self {
        let size = size_of::<E>();
        assert_eq!(bytes.len(), rows * cols * size, "{rows} rows of {cols} columns");
        let mut weights = vec![E::default(); rows.div_ceil(TILE) * TILE * cols];
        for (row, bytes) in bytes.chunks_exact((cols * size).max(1)).enumerate() {
            let tile = &mut weights[row / TILE * TILE * cols..];
            for (col, number) in bytes.chunks_exact(size).enumerate() {
                tile[col * TILE + row % TILE] = E::from_bytes(number);
            }
        }
        Self { cols, weights }
    }

    /// Widens one row.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        let tile = &self.weights[row / TILE * TILE * self.cols..];
        for (col, out) in out.iter_mut().enumerate().take(self.cols) {
            *out = tile[col * TILE + row % TILE].value();
        }
    }
}

impl<T: Format> QuantisedTiles<T> {
    /// Lines per block of 32.
    pub(crate) const LINES: usize = if T::NIBBLES { 4 } else { 8 };
    /// Scales per block of 32 and row.
    pub(crate) const GROUPS: usize = 32 / T::GROUP;

    /// Regroups rows of the file.
    ///
    /// # Panics
    /// When `bytes` does not hold `rows` rows of `cols` weights in whole blocks.
    pub(crate) fn new(rows: usize, cols: usize, bytes: &[u8]) -> Self {
        assert!(cols.is_multiple_of(T::LEN), "{cols} columns in blocks of {}", T::LEN);
        let row_bytes = cols / T::LEN * T::BYTES;
        assert_eq!(bytes.len(), rows * row_bytes, "{rows} rows of {cols} columns");
        let (tiles, blocks) = (rows.div_ceil(TILE), cols / 32);
        let minima = if T::MINIMA { tiles * blocks * TILE } else { 0 };
        let mut new = Self {
            rows,
            cols,
            quants: vec![Line([0; 64]); tiles * blocks * Self::LINES],
            scales: vec![T::Scale::default(); tiles * blocks * Self::GROUPS * TILE],
            minima: vec![T::Scale::default(); minima],
        };
        for (row, bytes) in bytes.chunks_exact(row_bytes.max(1)).enumerate() {
            for (index, block) in bytes.chunks_exact(T::BYTES).enumerate() {
                for part in 0..T::LEN / 32 {
                    new.put(row, index * (T::LEN / 32) + part, block, part);
                }
            }
        }
        new
    }

    /// Columns of the matrix.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// One tile's blocks: `cols / 32` times [`LINES`](Self::LINES) lines, 16 scales per group, and
    /// with `MINIMA` 16 minima.
    ///
    /// # Panics
    /// When there is no such tile.
    #[inline(always)]
    pub(crate) fn tile(&self, tile: usize) -> TileBlocks<T::Scale> {
        assert!(tile < self.rows.div_ceil(TILE), "tile {tile} of {} rows", self.rows);
        let block = tile * (self.cols / 32);
        let minima = if T::MINIMA { block * TILE } else { 0 };
        TileBlocks {
            quants: self.quants[block * Self::LINES..].as_ptr(),
            scales: self.scales[block * Self::GROUPS * TILE..].as_ptr(),
            minima: self.minima[minima..].as_ptr(),
        }
    }

    /// Computes the weights of one row.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        for (block, out) in out.chunks_mut(32).enumerate().take(self.cols / 32) {
            let at = row / TILE * (self.cols / 32) + block;
            let minimum = if T::MINIMA { self.minima[at * TILE + row % TILE].value() } else { 0.0 };
            for (k, out) in out.iter_mut().enumerate() {
                let group = at * Self::GROUPS + k / T::GROUP;
                let scale = self.scales[group * TILE + row % TILE].value();
                *out = scale.mul_add(self.quant(at, row, k) as f32, minimum);
            }
        }
    }

    fn quant(&self, block: usize, row: usize, k: usize) -> i32 {
        let (line, shift) = if T::NIBBLES { (k % 16 / 4, k / 16 * 4) } else { (k / 4, 0) };
        let byte = self.quants[block * Self::LINES + line].0[row % TILE * 4 + k % 4];
        if T::NIBBLES { i32::from(byte >> shift & 15) - T::ZERO } else { i32::from(byte as i8) }
    }

    fn put(&mut self, row: usize, block: usize, bytes: &[u8], part: usize) {
        let decoded = T::decode(bytes, part);
        let at = row / TILE * (self.cols / 32) + block;
        let lane = row % TILE;
        let lines = &mut self.quants[at * Self::LINES..][..Self::LINES];
        for (i, line) in lines.iter_mut().enumerate() {
            let cell = &mut line.0[lane * 4..][..4];
            cell.copy_from_slice(&decoded.quants[i * 4..][..4]);
            if T::NIBBLES {
                let high = &decoded.quants[16 + i * 4..][..4];
                cell.iter_mut().zip(high).for_each(|(cell, high)| *cell |= high << 4);
            }
        }
        for (group, scale) in decoded.scales.iter().enumerate().take(Self::GROUPS) {
            self.scales[(at * Self::GROUPS + group) * TILE + lane] = *scale;
        }
        if T::MINIMA {
            self.minima[at * TILE + lane] = decoded.minimum;
        }
    }
}

/// The tiles that hold some rows.
pub(crate) fn tiles_of(rows: usize) -> Range<usize> {
    0..rows.div_ceil(TILE)
}
