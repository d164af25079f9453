//! Splits a layer's attention among the threads.

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{Pass, cache::Plane};
use crate::cpu::{
    kernels::{
        Level,
        attention::{Attend, Scratch, Shape},
        pages::{Pages, Slab},
    },
    plan::{Plan, Run},
    shared::SharedMut,
    workspace::Workspace,
};
use crate::{cpu::weights::Attention, files::ModelConfig};

impl Pass<'_> {
    /// Fills `attended` from the queries and the cache of one layer.
    pub(super) fn attend(&mut self, layer: &Attention) {
        let Some((keys, values)) = self.planes(layer.kv_layer) else { return };
        let window = layer.window.unwrap_or(usize::MAX);
        let Workspace { heads, attended, attention, .. } = &mut *self.workspace;
        let (attended, attention) = (SharedMut::new(attended), SharedMut::new(attention));
        let work = Work { config: self.config, plan: self.plan, keys, values, window, heads };
        let (level, runs, kv_heads) = (self.level, self.plan.runs(), self.config.kv_heads);
        // All heads at once read memory best, but few rows must do for all threads.
        let count = self.threads.count();
        let together = if runs.len() < 4 * count { kv_heads.div_ceil(count) } else { kv_heads };
        let parts = kv_heads.div_ceil(together);
        let items = runs.len() * parts;
        let next = AtomicUsize::new(0);
        self.threads.run(&|number| {
            // SAFETY: every thread has its own number.
            let scratch = unsafe { &mut attention.range(number..number + 1)[0] };
            loop {
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= items {
                    return;
                }
                // Late rows see most, so they go first.
                let item = items - 1 - item;
                let first = item % parts * together;
                let heads = first..kv_heads.min(first + together);
                work.run(level, runs[item / parts], heads, scratch, &attended);
            }
        });
    }
}

struct Work<'a> {
    config: &'a ModelConfig,
    plan: &'a Plan<'a>,
    keys: Plane,
    values: Plane,
    window: usize,
    /// `[row][queries, keys, values]`.
    heads: &'a [f32],
}

impl Work<'_> {
    /// Some rows' query heads of some KV heads.
    fn run(
        &self,
        level: Level,
        Run { first_row, rows }: Run,
        kv_heads: Range<usize>,
        scratch: &mut Scratch,
        attended: &SharedMut<'_, f32>,
    ) {
        let &ModelConfig { heads, head_dim, .. } = self.config;
        let group = heads / self.config.kv_heads;
        let width = group * head_dim;
        let stride = (heads + 2 * self.config.kv_heads) * head_dim;
        let shape = Shape { kv_heads: kv_heads.len(), rows, group, head_dim };
        // Queries and results lie `[KV head][row][head]` in the scratch.
        let place = |index: usize| (first_row + index % rows, kv_heads.start + index / rows);
        scratch.reshape(shape);
        for (index, queries) in scratch.queries.chunks_exact_mut(width).enumerate() {
            let (row, kv_head) = place(index);
            queries.copy_from_slice(&self.heads[row * stride + kv_head * width..][..width]);
        }
        let keys = self.keys.pages(self.plan, first_row, kv_heads.start * head_dim);
        let values = self.values.pages(self.plan, first_row, kv_heads.start * head_dim);
        let first_position = self.plan.rows()[first_row].position;
        // SAFETY: the plan's invariant 1: all positions up to the last row's lie in blocks of the
        // sequence, hence inside the pool's region or a peer's mapped memory, and are written, by
        // earlier passes or by `write_cache` of this layer, which is over. Nobody of this process writes
        // there while the batch borrows the sequences: their blocks are sealed or exclusively theirs. A
        // peer that takes adopted blocks back spoils numbers only, and whoever wants the result looks
        // whether the sequence is still intact.
        let attend =
            unsafe { Attend::new(keys, values, shape, first_position, self.window, scratch) };
        level.run(attend);
        for (index, out) in scratch.out.chunks_exact(width).enumerate() {
            let (row, kv_head) = place(index);
            let to = row * heads * head_dim + kv_head * width;
            // SAFETY: every (row, KV head) is handled once, by one thread.
            unsafe { attended.range(to..to + width) }.copy_from_slice(out);
        }
    }
}

impl Plane {
    /// The view of a row's sequence, from element `first` of every token on.
    fn pages<'a>(&self, plan: &Plan<'a>, row: usize, first: usize) -> Pages<'a> {
        let own = Slab { start: self.start, block_stride: self.block_stride };
        let (layer, part) = self.place;
        let adopted = plan.adopted(row).and_then(|adopted| {
            let plane = adopted.peer().shape().plane(layer, part)?;
            let start = adopted.peer().base().as_ptr().wrapping_add(plane.offset);
            Some((adopted.ids().len(), Slab { start, block_stride: plane.block_stride }))
        });
        let (adopted, peer) = adopted.unwrap_or((0, own));
        Pages {
            own: own.from(first, self.dtype),
            peer: peer.from(first, self.dtype),
            adopted,
            token_stride: self.token_stride,
            block_tokens: self.block_tokens,
            table: plan.table(row),
            dtype: self.dtype,
        }
    }
}
