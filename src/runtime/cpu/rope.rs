//! Rotary position embedding, as in "RoFormer" (Su et al. 2021).

/// Sines and cosines of one batch: `[row][pair]`.
#[derive(Debug, Default)]
pub(crate) struct Rotations {
    pairs: usize,
    cells: Vec<(f32, f32)>,
}

impl Rotations {
    /// Computes all rows' angles. The product is rounded to `f32` as the reference does; the sine and
    /// cosine are taken in `f64`, so that a difference between mathematical libraries rounds away.
    pub(crate) fn fill(&mut self, frequencies: &[f32], positions: impl Iterator<Item = usize>) {
        self.pairs = frequencies.len();
        self.cells.clear();
        for position in positions {
            self.cells.extend(frequencies.iter().map(|frequency| {
                let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
                (sin as f32, cos as f32)
            }));
        }
    }

    /// Rotates all heads of a row. Pairs are `(2i, 2i + 1)` when `interleaved`, else
    /// `(i, i + head_dim / 2)`.
    pub(crate) fn rotate(&self, row: usize, heads: &mut [f32], interleaved: bool) {
        let cells = &self.cells[row * self.pairs..][..self.pairs];
        for head in heads.chunks_exact_mut(2 * self.pairs) {
            if interleaved {
                for (pair, (sin, cos)) in head.chunks_exact_mut(2).zip(cells) {
                    let (a, b) = (pair[0], pair[1]);
                    (pair[0], pair[1]) = (a * cos - b * sin, a * sin + b * cos);
                }
            } else {
                let (low, high) = head.split_at_mut(self.pairs);
                for ((low, high), (sin, cos)) in low.iter_mut().zip(high).zip(cells) {
                    let (a, b) = (*low, *high);
                    (*low, *high) = (a * cos - b * sin, a * sin + b * cos);
                }
            }
        }
    }
}
