//! Matrix products of all rows, split among the threads by output columns.

use crate::cpu::{
    kernels::{Level, output::Output, quantize::QuantisedRows},
    matrix::{Input, Matrix, tiles::tiles_of},
    shared::SharedMut,
    threads::{Threads, share},
};

/// Rows that go through all of a thread's columns before the next ones do: their activations fit the
/// second-level cache.
const ROWS: usize = 256;

/// One matrix, and where its results go.
#[derive(Debug)]
pub(super) struct Product<'a> {
    matrix: &'a Matrix,
    output: Output<'a>,
}

impl<'a> Product<'a> {
    /// Results go to the columns from `first` on, of rows that are `stride` cells apart.
    pub(super) fn new(
        matrix: &'a Matrix,
        cells: &'a SharedMut<'a, f32>,
        stride: usize,
        first: usize,
    ) -> Self {
        Self { matrix, output: Output::new(cells, stride, first..first + matrix.rows()) }
    }
}

/// Computes products of the same input, whose outputs do not overlap.
pub(super) fn products(
    threads: &mut Threads,
    level: Level,
    (plain, quantised): (&[f32], &QuantisedRows),
    rows: usize,
    products: &[Product<'_>],
) {
    let tiles = |product: &Product<'_>| tiles_of(product.matrix.rows()).len();
    let total: usize = products.iter().map(tiles).sum();
    let count = threads.count();
    threads.run(&|number| {
        let mine = share(total, number, count);
        for first in (0..rows).step_by(ROWS) {
            let mut before = 0;
            for product in products {
                let tiles = tiles(product);
                let start = mine.start.clamp(before, before + tiles) - before;
                let end = mine.end.clamp(before, before + tiles) - before;
                let rows = first..rows.min(first + ROWS);
                let input = Input { plain, quantised };
                // SAFETY: shares are disjoint, so that no tile is computed by two threads; outputs
                // of different products do not overlap, and are borrowed for this call alone.
                unsafe { product.matrix.multiply(level, input, rows, start..end, &product.output) }
                before += tiles;
            }
        }
    });
}
