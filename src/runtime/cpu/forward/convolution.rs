//! The gated short convolution that some layers have in attention's place.
//!
//! ```text
//! normal ─in_proj─> [gate in, gate out, value]      input = gate in * value
//! mixed  = gate out * sum over taps(weight * input of the token so far back)      ─out_proj─> delta
//! ```
//! As `Lfm2ShortConv` in transformers. Inputs of earlier passes come from the sequence's state, as those of
//! before its first token, which are zeros. A sum starts from zero and goes from the oldest token to the
//! current one, so that it is the same wherever the inputs lie.

use super::{
    Pass, each_row,
    product::{Product, products},
};
use crate::cpu::{
    plan::Plan,
    shared::SharedMut,
    state::{self, StateShape},
    weights::{Convolution, Layer},
    workspace::Workspace,
};

impl Pass<'_> {
    pub(super) fn convolution_half(&mut self, layer: &Layer, convolution: &Convolution) {
        let (rows, hidden) = (self.plan.rows().len(), self.config.hidden);
        let Some(shape) = StateShape::new(self.config) else { return };
        self.add_and_normalise(&[], &layer.mixer_norm, &[&convolution.input]);
        let Workspace { normal, quantised, heads, .. } = &mut *self.workspace;
        let cells = SharedMut::new(heads);
        let list = [Product::new(&convolution.input, &cells, 3 * hidden, 0)];
        products(self.threads, self.level, (normal, quantised), rows, &list);
        each_row(self.threads, rows, &|row| {
            // SAFETY: each row is handled once, by one thread.
            let cells = unsafe { cells.range(3 * row * hidden..3 * (row + 1) * hidden) };
            let (gates, value) = cells.split_at_mut(2 * hidden);
            value.iter_mut().zip(&gates[..hidden]).for_each(|(value, gate)| *value *= gate);
        });
        self.convolve(convolution, shape);
        self.keep_states(convolution, shape);
        self.mixed(&convolution.output, hidden);
    }

    fn convolve(&mut self, convolution: &Convolution, shape: StateShape) {
        let (plan, hidden) = (self.plan, self.config.hidden);
        let Workspace { heads, attended, .. } = &mut *self.workspace;
        let inputs = Inputs { plan, shape, layer: convolution.index, hidden, cells: heads };
        let mixed = SharedMut::new(attended);
        each_row(self.threads, plan.rows().len(), &|row| {
            // SAFETY: each row is handled once, by one thread.
            let out = unsafe { mixed.range(row * hidden..(row + 1) * hidden) };
            out.fill(0.0);
            let taps = convolution.taps.chunks_exact(hidden).rev().enumerate().rev();
            for (back, weights) in taps {
                let Some(input) = inputs.before(row, back) else { continue };
                let cells = out.iter_mut().zip(weights).zip(input);
                cells.for_each(|((out, weight), input)| *out += weight * input);
            }
            out.iter_mut().zip(inputs.gate(row)).for_each(|(out, gate)| *out *= gate);
        });
    }

    /// Copies the inputs that the next tokens will need.
    fn keep_states(&mut self, convolution: &Convolution, shape: StateShape) {
        let (plan, hidden, layer) = (self.plan, self.config.hidden, convolution.index);
        let Workspace { heads, states, .. } = &mut *self.workspace;
        states.resize(plan.last_rows().len() * shape.len(), 0.0);
        let inputs = Inputs { plan, shape, layer, hidden, cells: heads };
        for (state, last) in states.chunks_exact_mut(shape.len()).zip(plan.last_rows()) {
            let Some(last) = *last else { continue };
            for tap in 0..shape.taps() {
                let kept = &mut state[shape.at(layer, tap)..][..hidden];
                match inputs.before(last, shape.taps() - 1 - tap) {
                    Some(input) => kept.copy_from_slice(input),
                    None => kept.fill(0.0),
                }
            }
        }
    }
}

/// The inputs of one layer's convolution, wherever they lie.
struct Inputs<'a> {
    plan: &'a Plan<'a>,
    shape: StateShape,
    /// Among the layers with a convolution.
    layer: usize,
    hidden: usize,
    /// `[row][gate in, gate out, input]`.
    cells: &'a [f32],
}

impl Inputs<'_> {
    fn gate(&self, row: usize) -> &[f32] {
        &self.cells[(3 * row + 1) * self.hidden..][..self.hidden]
    }

    /// The input of the token `back` tokens before a row's; none before the sequence's first token.
    fn before(&self, mut row: usize, back: usize) -> Option<&[f32]> {
        for left in (1..=back).rev() {
            let Some(previous) = self.plan.previous(row) else {
                return self.in_state(row, left);
            };
            row = previous;
        }
        Some(&self.cells[(3 * row + 2) * self.hidden..][..self.hidden])
    }

    /// The same for a sequence's first row of this pass.
    fn in_state(&self, row: usize, back: usize) -> Option<&[f32]> {
        if self.plan.rows()[row].position < back {
            return None;
        }
        let (_, state) = state::of(self.plan.sequence(row), self.shape)?;
        Some(&state[self.shape.at(self.layer, self.shape.taps() - back)..][..self.hidden])
    }
}
