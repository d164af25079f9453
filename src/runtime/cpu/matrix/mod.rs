//! Weight matrices in the form the kernels read, made once at load time.

pub(crate) mod format;
pub(crate) mod tiles;

use std::ops::Range;

use half::{bf16, f16};

use self::{
    format::{Q4_0, Q4_1, Q4K, Q5_0, Q5K, Q6K, Q8_0},
    tiles::{DenseTiles, QuantisedTiles},
};
use super::kernels::{Level, dense, output::Output, quantised, quantize::QuantisedRows};
use crate::files::WeightType;

/// A matrix of `rows` output and `cols` input columns, in any weight type.
#[derive(Debug)]
pub(crate) struct Matrix {
    rows: usize,
    cols: usize,
    tiles: Tiles,
}

#[derive(Debug)]
enum Tiles {
    F32(DenseTiles<f32>),
    F16(DenseTiles<f16>),
    Bf16(DenseTiles<bf16>),
    Q4_0(QuantisedTiles<Q4_0>),
    Q4_1(QuantisedTiles<Q4_1>),
    Q5_0(QuantisedTiles<Q5_0>),
    Q8_0(QuantisedTiles<Q8_0>),
    Q4K(QuantisedTiles<Q4K>),
    Q5K(QuantisedTiles<Q5K>),
    Q6K(QuantisedTiles<Q6K>),
}

/// Rows of activations, in both forms that matrices take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    /// `[row][cols]`.
    pub(crate) plain: &'a [f32],
    /// The same rows quantised; needed when [`Matrix::is_quantised`].
    pub(crate) quantised: &'a QuantisedRows,
}

impl Matrix {
    /// Regroups a stored matrix.
    ///
    /// # Panics
    /// When `bytes` is not `rows` rows of `cols` weights of this type.
    pub(crate) fn new(ty: WeightType, rows: usize, cols: usize, bytes: &[u8]) -> Self {
        let tiles = match ty {
            WeightType::F32 => Tiles::F32(DenseTiles::new(rows, cols, bytes)),
            WeightType::F16 => Tiles::F16(DenseTiles::new(rows, cols, bytes)),
            WeightType::Bf16 => Tiles::Bf16(DenseTiles::new(rows, cols, bytes)),
            WeightType::Q4_0 => Tiles::Q4_0(QuantisedTiles::new(rows, cols, bytes)),
            WeightType::Q4_1 => Tiles::Q4_1(QuantisedTiles::new(rows, cols, bytes)),
            WeightType::Q5_0 => Tiles::Q5_0(QuantisedTiles::new(rows, cols, bytes)),
            WeightType::Q8_0 => Tiles::Q8_0(QuantisedTiles::new(rows, cols, bytes)),
            WeightType::Q4K => Tiles::Q4K(QuantisedTiles::new(rows, cols, bytes)),
            WeightType::Q5K => Tiles::Q5K(QuantisedTiles::new(rows, cols, bytes)),
            WeightType::Q6K => Tiles::Q6K(QuantisedTiles::new(rows, cols, bytes)),
        };
        Self { rows, cols, tiles }
    }

    /// Output columns.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Input columns.
    #[cfg(test)]
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Whether activations must be quantised for it.
    pub(crate) fn is_quantised(&self) -> bool {
        !matches!(self.tiles, Tiles::F32(_) | Tiles::F16(_) | Tiles::Bf16(_))
    }

    /// Computes one row of weights.
    ///
    /// # Panics
    /// When there is no such row.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "row {row} of {}", self.rows);
        match &self.tiles {
            Tiles::F32(tiles) => tiles.row(row, out),
            Tiles::F16(tiles) => tiles.row(row, out),
            Tiles::Bf16(tiles) => tiles.row(row, out),
            Tiles::Q4_0(tiles) => tiles.row(row, out),
            Tiles::Q4_1(tiles) => tiles.row(row, out),
            Tiles::Q5_0(tiles) => tiles.row(row, out),
            Tiles::Q8_0(tiles) => tiles.row(row, out),
            Tiles::Q4K(tiles) => tiles.row(row, out),
            Tiles::Q5K(tiles) => tiles.row(row, out),
            Tiles::Q6K(tiles) => tiles.row(row, out),
        }
    }

    /// Multiplies some rows of activations with some tiles of 16 output columns.
    ///
    /// # Panics
    /// When the shapes disagree.
    ///
    /// # Safety
    /// Nobody else uses the output's cells of these rows and tiles meanwhile.
    pub(crate) unsafe fn multiply(
        &self,
        level: Level,
        input: Input<'_>,
        rows: Range<usize>,
        columns: Range<usize>,
        output: &Output<'_>,
    ) {
        let Input { plain, quantised } = input;
        macro_rules! run {
            ($kind:ident, $tiles:expr, $input:expr) => {
                // SAFETY: passed on from the caller.
                level.run(unsafe { $kind::Multiply::new($tiles, $input, rows, columns, output) })
            };
        }
        match &self.tiles {
            Tiles::F32(tiles) => run!(dense, tiles, plain),
            Tiles::F16(tiles) => run!(dense, tiles, plain),
            Tiles::Bf16(tiles) => run!(dense, tiles, plain),
            Tiles::Q4_0(tiles) => run!(quantised, tiles, quantised),
            Tiles::Q4_1(tiles) => run!(quantised, tiles, quantised),
            Tiles::Q5_0(tiles) => run!(quantised, tiles, quantised),
            Tiles::Q8_0(tiles) => run!(quantised, tiles, quantised),
            Tiles::Q4K(tiles) => run!(quantised, tiles, quantised),
            Tiles::Q5K(tiles) => run!(quantised, tiles, quantised),
            Tiles::Q6K(tiles) => run!(quantised, tiles, quantised),
        }
    }
}
