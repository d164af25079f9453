//! Finishes queries, keys and values, and writes the latter two to the cache.

use blockwire::pool::{Dtype, KvPlane, Part};
use half::{bf16, f16};

use super::{Pass, each_row};
use crate::cpu::{
    kernels::{
        Level,
        elementwise::{Narrow, NormaliseHeads},
    },
    shared::SharedMut,
    weights::Attention,
    workspace::Workspace,
};

impl Pass<'_> {
    /// Adds biases, normalises heads, rotates, scales queries, and writes keys and values.
    pub(super) fn write_cache(&mut self, attention: &Attention) {
        let (config, level, plan) = (self.config, self.level, self.plan);
        let Some((keys, values)) = self.planes(attention.kv_layer) else { return };
        let rows = plan.rows();
        let (queries, cached) = (config.heads * config.head_dim, keys.width());
        let stride = queries + 2 * cached;
        let scale = config.attention_scale;
        let Workspace { heads, rotations, local_rotations, .. } = &mut *self.workspace;
        let cells = SharedMut::new(heads);
        let rotations = match attention.window {
            None => &*rotations,
            Some(_) => &*local_rotations,
        };
        each_row(self.threads, rows.len(), &|row| {
            // SAFETY: each row is handled once, by one thread.
            let cells = unsafe { cells.range(row * stride..(row + 1) * stride) };
            cells.iter_mut().zip(&attention.biases).for_each(|(x, bias)| *x += bias);
            let (query, rest) = cells.split_at_mut(queries);
            let (key, value) = rest.split_at_mut(cached);
            if let Some(norms) = &attention.head_norms {
                let epsilon = config.norm_eps;
                level.run(NormaliseHeads { heads: query, weight: &norms.query, epsilon });
                level.run(NormaliseHeads { heads: key, weight: &norms.key, epsilon });
            }
            rotations.rotate(row, query, config.rope_interleaved);
            rotations.rotate(row, key, config.rope_interleaved);
            query.iter_mut().for_each(|x| *x *= scale);
            let (table, position) = (plan.table(row), rows[row].position);
            // SAFETY: the plan's invariant 1: the position lies in a block that its sequence alone writes, and
            // the sequence is mutably borrowed; no two rows are at one position, and nobody reads this layer
            // of the blocks before the sequence is told that all rows are written.
            unsafe {
                keys.write(level, table, position, key);
                values.write(level, table, position, value);
            }
        });
    }

    /// The planes of a layer of the pool; `None` when the batch is empty.
    pub(super) fn planes(&self, layer: usize) -> Option<(Plane, Plane)> {
        let pool = self.plan.pool()?;
        let plane = |part| {
            let KvPlane { offset, block_stride, token_stride, segment } =
                pool.plane(layer, part)?;
            // The plane lies inside the region, so that this stays inside it.
            let start = pool.base().as_ptr().wrapping_add(offset);
            let block_tokens = pool.spec().block_tokens as usize;
            let (width, dtype) = ((segment.heads * segment.head_dim) as usize, segment.dtype);
            let place = (layer, part);
            Some(Plane { place, start, block_stride, token_stride, block_tokens, width, dtype })
        };
        Some((plane(Part::Key)?, plane(Part::Value)?))
    }
}

/// The keys or the values of one layer, in the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plane {
    /// Layer and part.
    pub(super) place: (usize, Part),
    pub(super) start: *mut u8,
    pub(super) block_stride: usize,
    pub(super) token_stride: usize,
    pub(super) block_tokens: usize,
    width: usize,
    pub(super) dtype: Dtype,
}

// SAFETY: a plane is an address and numbers; whoever uses the address vouches for the access.
unsafe impl Sync for Plane {}

impl Plane {
    /// Elements per token.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Writes one token's elements.
    ///
    /// # Panics
    /// When there are not [`width`](Self::width) of them, or the table is too short.
    ///
    /// # Safety
    /// The table's blocks lie in the pool that the plane is of; nobody else uses this token's
    /// elements meanwhile.
    unsafe fn write(&self, level: Level, table: &[u32], position: usize, elements: &[f32]) {
        assert_eq!(elements.len(), self.width, "elements of a token");
        let (block, token) = (position / self.block_tokens, position % self.block_tokens);
        let offset = table[block] as usize * self.block_stride + token * self.token_stride;
        // SAFETY: a block of the table lies inside the pool's region, and a token inside its block,
        // so that `offset` stays inside the plane and `width` elements lie there; the caller vouches
        // for exclusive use.
        unsafe {
            let to = self.start.add(offset);
            match self.dtype {
                Dtype::F16 => level.run(Narrow::<f16>::new(elements, to.cast())),
                Dtype::Bf16 => level.run(Narrow::<bf16>::new(elements, to.cast())),
                Dtype::F32 => level.run(Narrow::<f32>::new(elements, to.cast())),
            }
        }
    }
}
