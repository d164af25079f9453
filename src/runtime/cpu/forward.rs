//! One pass through all layers.
//!
//! ```text
//! per layer   residual ─norm─> normal ─q,k,v─> heads ─rope─> cache ─hook─> attention ─> attended
//!             attended ─output─> delta ─+─> residual ─norm─> normal ─gate,up─> gate ─down─> delta
//! ```
//! A layer may have a [`convolution`] in attention's place, and some families normalise `delta` too.
//!
//! Steps over rows are split among the threads by row, products by tiles of 16 output columns, and
//! attention by (rows, KV head); no step is split in a way that changes the order of a sum.

mod attention;
mod cache;
mod convolution;
mod product;

use super::{
    kernels::{
        Level,
        elementwise::{Gate, Normalise, NormaliseHeads},
        quantize::QuantisedRows,
    },
    matrix::Matrix,
    plan::Plan,
    shared::SharedMut,
    threads::{Threads, share},
    weights::{Attention, Layer, Mixer, Weights},
    workspace::Workspace,
};
use crate::{files::ModelConfig, model::LayerHook};
use product::{Product, products};

/// Everything that one pass needs.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) weights: &'a Weights,
    pub(crate) level: Level,
    pub(crate) threads: &'a mut Threads,
    pub(crate) workspace: &'a mut Workspace,
    pub(crate) plan: &'a Plan<'a>,
}

impl Pass<'_> {
    /// Runs the rows; gives the logits of those that want them.
    pub(crate) fn run(mut self, hook: &mut dyn LayerHook) -> Vec<f32> {
        let rows = self.plan.rows();
        self.workspace.reshape(self.config, rows.len(), self.threads.count());
        let positions = rows.iter().map(|row| row.position);
        let Workspace { rotations, local_rotations, .. } = &mut *self.workspace;
        rotations.fill(&self.config.rope_inverse_frequencies, positions.clone());
        local_rotations.fill(&self.config.rope_local_inverse_frequencies, positions);
        let (hidden, scale) = (self.config.hidden, self.config.embedding_scale);
        for (row, out) in rows.iter().zip(self.workspace.residual.chunks_exact_mut(hidden)) {
            self.weights.embedding.row(row.token as usize, out);
            out.iter_mut().for_each(|x| *x *= scale);
        }
        let weights = self.weights;
        self.workspace.delta.fill(0.0);
        for layer in &weights.layers {
            match &layer.mixer {
                Mixer::Attention(attention) => self.attention_half(layer, attention, hook),
                Mixer::Convolution(convolution) => self.convolution_half(layer, convolution),
            }
            self.feed_forward_half(layer);
        }
        self.logits()
    }

    fn attention_half(&mut self, layer: &Layer, attention: &Attention, hook: &mut dyn LayerHook) {
        let rows = self.plan.rows().len();
        let config = self.config;
        let queries = config.heads * config.head_dim;
        let keys = config.kv_heads * config.head_dim;
        let stride = queries + 2 * keys;
        self.add_and_normalise(
            &[],
            &layer.mixer_norm,
            &[&attention.query, &attention.key, &attention.value],
        );
        let Workspace { normal, quantised, heads, .. } = &mut *self.workspace;
        let cells = SharedMut::new(heads);
        let list = [
            Product::new(&attention.query, &cells, stride, 0),
            Product::new(&attention.key, &cells, stride, queries),
            Product::new(&attention.value, &cells, stride, queries + keys),
        ];
        products(self.threads, self.level, (normal, quantised), rows, &list);
        self.write_cache(attention);
        self.plan.layer_written(attention.kv_layer, hook);
        self.attend(attention);
        self.mixed(&attention.output, queries);
        self.normalise_delta(&layer.mixer_post_norm);
    }

    /// Makes `delta` of rows of `attended`, of `width` numbers each.
    fn mixed(&mut self, output: &Matrix, width: usize) {
        let rows = self.plan.rows().len();
        let Workspace { attended, quantised, delta, .. } = &mut *self.workspace;
        let attended = &attended[..rows * width];
        if output.is_quantised() {
            quantise(self.threads, self.level, attended, quantised, rows);
        }
        let cells = SharedMut::new(delta);
        let list = [Product::new(output, &cells, self.config.hidden, 0)];
        products(self.threads, self.level, (attended, quantised), rows, &list);
    }

    fn feed_forward_half(&mut self, layer: &Layer) {
        let rows = self.plan.rows().len();
        let &ModelConfig { hidden, ffn, .. } = self.config;
        self.add_and_normalise(
            layer.mixer.output_bias(),
            &layer.ffn_norm,
            &[&layer.gate, &layer.up],
        );
        let Workspace { normal, quantised, gate, up, delta, .. } = &mut *self.workspace;
        {
            let (gate, up) = (SharedMut::new(gate), SharedMut::new(up));
            let list =
                [Product::new(&layer.gate, &gate, ffn, 0), Product::new(&layer.up, &up, ffn, 0)];
            products(self.threads, self.level, (normal, quantised), rows, &list);
        }
        let (level, activation) = (self.level, self.config.activation);
        let cells = SharedMut::new(gate);
        each_row(self.threads, rows, &|row| {
            // SAFETY: each row is handled once, by one thread.
            let gate = unsafe { cells.range(row * ffn..(row + 1) * ffn) };
            level.run(Gate { gate, up: &up[row * ffn..][..ffn], activation });
        });
        if layer.down.is_quantised() {
            quantise(self.threads, level, gate, quantised, rows);
        }
        let cells = SharedMut::new(delta);
        let list = [Product::new(&layer.down, &cells, hidden, 0)];
        products(self.threads, level, (gate, quantised), rows, &list);
        self.normalise_delta(&layer.ffn_post_norm);
    }

    /// Normalises what a half layer gave, where the family does; there is no weight where it does not.
    fn normalise_delta(&mut self, weight: &[f32]) {
        if weight.is_empty() {
            return;
        }
        let &ModelConfig { hidden, norm_eps: epsilon, .. } = self.config;
        let (level, rows) = (self.level, self.plan.rows().len());
        let delta = SharedMut::new(&mut self.workspace.delta);
        each_row(self.threads, rows, &|row| {
            // SAFETY: each row is handled once, by one thread.
            let heads = unsafe { delta.range(row * hidden..(row + 1) * hidden) };
            level.run(NormaliseHeads { heads, weight, epsilon });
        });
    }

    /// Adds what the last half layer gave, and an optional bias, to the residual stream; then
    /// prepares the input of `matrices`.
    fn add_and_normalise(&mut self, bias: &[f32], weight: &[f32], matrices: &[&Matrix]) {
        let rows = self.plan.rows().len();
        let &ModelConfig { hidden, norm_eps: epsilon, .. } = self.config;
        let Workspace { residual, normal, delta, quantised, .. } = &mut *self.workspace;
        let quantise = matrices.iter().any(|matrix| matrix.is_quantised());
        if quantise {
            quantised.reshape(rows, hidden);
        }
        let (level, writer) = (self.level, quantised.writer());
        let (residual, normal) = (SharedMut::new(residual), SharedMut::new(normal));
        each_row(self.threads, rows, &|row| {
            let range = row * hidden..(row + 1) * hidden;
            // SAFETY: each row is handled once, by one thread.
            let (x, out) = unsafe { (residual.range(range.clone()), normal.range(range.clone())) };
            x.iter_mut().zip(&delta[range]).for_each(|(x, delta)| *x += delta);
            x.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
            level.run(Normalise { x, weight, epsilon, out });
            if quantise {
                // SAFETY: as above.
                level.run(unsafe { writer.quantize(row, out) });
            }
        });
    }

    fn logits(mut self) -> Vec<f32> {
        let &ModelConfig { hidden, vocab, .. } = self.config;
        let (weights, head) = (self.weights, self.weights.head());
        let wanted: Vec<usize> = self.plan.wanted().collect();
        let mut logits = vec![0.0; wanted.len() * vocab];
        if wanted.is_empty() {
            return logits;
        }
        // All rows are normalised, although few are wanted: it is little next to a layer.
        self.add_and_normalise(&[], &weights.norm, &[]);
        let Workspace { normal, attended, quantised, .. } = &mut *self.workspace;
        attended.clear();
        for row in &wanted {
            attended.extend_from_slice(&normal[row * hidden..][..hidden]);
        }
        if head.is_quantised() {
            quantise_cols(self.threads, self.level, attended, quantised, (wanted.len(), hidden));
        }
        let cells = SharedMut::new(&mut logits);
        let list = [Product::new(head, &cells, vocab, 0)];
        products(self.threads, self.level, (attended, quantised), wanted.len(), &list);
        logits
    }
}

/// Calls `work` for every row, each on one thread.
fn each_row(threads: &mut Threads, rows: usize, work: &(dyn Fn(usize) + Sync)) {
    let count = threads.count();
    if rows < 2 * count {
        return (0..rows).for_each(work);
    }
    threads.run(&|number| share(rows, number, count).for_each(work));
}

/// Quantises whole rows that lie side by side.
fn quantise(
    threads: &mut Threads,
    level: Level,
    x: &[f32],
    quantised: &mut QuantisedRows,
    rows: usize,
) {
    quantise_cols(threads, level, x, quantised, (rows, x.len() / rows.max(1)));
}

fn quantise_cols(
    threads: &mut Threads,
    level: Level,
    x: &[f32],
    quantised: &mut QuantisedRows,
    (rows, cols): (usize, usize),
) {
    quantised.reshape(rows, cols);
    let writer = quantised.writer();
    each_row(threads, rows, &|row| {
        // SAFETY: each row is handled once, by one thread.
        level.run(unsafe { writer.quantize(row, &x[row * cols..][..cols]) });
    });
}
