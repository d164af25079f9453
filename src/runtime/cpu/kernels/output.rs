//! Where matrix kernels put their results.

use std::ops::Range;

use crate::cpu::shared::SharedMut;

/// Columns of a row-major matrix of floats, filled tile by tile by several threads.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    cells: &'a SharedMut<'a, f32>,
    stride: usize,
    columns: Range<usize>,
}

impl<'a> Output<'a> {
    /// `columns` of rows that are `stride` cells apart.
    ///
    /// # Panics
    /// When the columns leave the row.
    pub(crate) fn new(cells: &'a SharedMut<'a, f32>, stride: usize, columns: Range<usize>) -> Self {
        assert!(columns.start <= columns.end && columns.end <= stride, "columns {columns:?}");
        Self { cells, stride, columns }
    }

    /// Stores up to 16 results of one row, from column `16 * tile` on; what lies beyond the last
    /// column is dropped.
    ///
    /// # Safety
    /// Nobody else uses these cells meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, row: usize, tile: usize, results: &[f32; 16]) {
        let first = self.columns.start + tile * 16;
        let count = self.columns.end.saturating_sub(first).min(16);
        let start = row * self.stride + first;
        // SAFETY: passed on from the caller.
        let cells = unsafe { self.cells.range(start..start + count) };
        match cells.first_chunk_mut::<16>() {
            Some(cells) => *cells = *results,
            None => cells.copy_from_slice(&results[..count]),
        }
    }
}
