//! The pool's pages as MLX arrays: one a layer, flat, written in place.

use std::{ptr::NonNull, sync::Arc};

use blockwire::pool::{
    AdoptedBlocks, BlockPool, Dtype, KvPlane, Layout, Part, PoolShape, REGION_ALIGN, Region,
};
use mlx_rs::{
    Array,
    ops::{
        concatenate,
        indexing::{gather_single, scatter_single},
    },
};

use super::platform::{self, Owner};
use crate::model::ForwardError;

/// The type of MLX's that is the same as ours.
pub(super) fn mlx_dtype(dtype: Dtype) -> mlx_rs::Dtype {
    match dtype {
        Dtype::F16 => mlx_rs::Dtype::Float16,
        Dtype::Bf16 => mlx_rs::Dtype::Bfloat16,
        Dtype::F32 => mlx_rs::Dtype::Float32,
    }
}

/// Where tokens lie in each layer of a pool, in elements from the first one of a plane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strides {
    block: usize,
    token: usize,
    block_tokens: usize,
}

impl Strides {
    /// Where the token at this position of a sequence lies, whose blocks are `table`. It fits: whole
    /// layers do.
    pub(super) fn at(self, table: &[u32], position: usize) -> i32 {
        let (block, token) = (position / self.block_tokens, position % self.block_tokens);
        (table[block] as usize * self.block + token * self.token) as i32
    }
}

/// The pool of this process.
#[derive(Debug)]
pub(super) struct Pool {
    region: Arc<Region>,
    layers: Layers,
}

/// The layers of a pool, as arrays.
#[derive(Debug)]
pub(super) struct Layers {
    strides: Strides,
    width: i32,
    slabs: Vec<Slab>,
}

/// Memory of one layer.
#[derive(Debug)]
struct Slab {
    array: Array,
    /// Where it must lie.
    address: usize,
    /// The first element of the keys, and of the values.
    planes: [i32; 2],
}

impl Pool {
    /// The arrays of a pool, which has one layer behind the other.
    pub(super) fn new(pool: &BlockPool) -> Result<Self, ForwardError> {
        if pool.layout() != Layout::LayerMajor {
            return Err(ForwardError::Pool { reason: "its blocks are not apart by layer" });
        }
        let region = pool.region().clone();
        // SAFETY: the region keeps the memory mapped and writable (R1). Graphs write to positions of
        // `Pool::write`, which are exclusively the batch's, and read those that the batch's sequences
        // hold (`Plan`, invariant 1).
        let layers = unsafe { Layers::new(pool.shape(), pool.base(), region.clone()) }?;
        Ok(Self { region, layers })
    }

    /// Whether these are the pages of that pool.
    pub(super) fn is(&self, pool: &BlockPool) -> bool {
        Arc::ptr_eq(&self.region, pool.region())
    }

    /// The layers, to read.
    pub(super) fn layers(&self) -> &Layers {
        &self.layers
    }

    /// Writes keys and values, of a row of elements each, to tokens of a layer that lie `at` indices. When
    /// this is over they are in the pool.
    ///
    /// The tokens must be exclusively the caller's.
    pub(super) fn write(
        &mut self,
        layer: usize,
        at: &Array,
        [keys, values]: [&Array; 2],
    ) -> Result<(), ForwardError> {
        let slab = &mut self.layers.slabs[layer];
        let [first_key, first_value] = slab.planes.map(Array::from_int);
        let at = concatenate(&[at.add(first_key)?, at.add(first_value)?], 0)?;
        let rows = concatenate(&[keys, values], 0)?.as_dtype(slab.array.dtype())?;
        // X1: the graph has the only handle to the old array once this one is stored.
        slab.array = scatter_single(&slab.array, &at, &rows, 0)?;
        slab.array.eval()?;
        match slab.is_in_place() {
            true => Ok(()),
            false => Err(ForwardError::PoolCopied { layer }),
        }
    }
}

impl Layers {
    /// The layers of a peer's pool in which the first blocks of a sequence lie: to be read only, and for
    /// one pass, in which they count if the sequence is intact afterwards.
    pub(super) fn of_peer(blocks: &AdoptedBlocks) -> Result<Self, ForwardError> {
        let (lease, peer) = (blocks.lease().clone(), blocks.peer());
        // SAFETY: the lease keeps the memory mapped and readable (B1). The peer may write there, which
        // spoils numbers only (B2); nobody else does, and no graph, as there is no pool of it.
        unsafe { Self::new(peer.shape(), peer.base(), lease) }
    }

    /// # Safety
    /// As [`platform::adopt`] says, of a region of that shape.
    unsafe fn new(
        shape: &PoolShape,
        base: NonNull<u8>,
        owner: Owner,
    ) -> Result<Self, ForwardError> {
        let refuse = |reason| ForwardError::Pool { reason };
        let plane =
            |layer, part| shape.plane(layer, part).ok_or(refuse("it has no keys or values"));
        let KvPlane { block_stride, token_stride, segment, .. } = plane(0, Part::Key)?;
        let size = segment.dtype.size();
        let count = shape.spec().layers.len();
        let mut slabs = Vec::with_capacity(count);
        for layer in 0..count {
            let [keys, values] = [plane(layer, Part::Key)?, plane(layer, Part::Value)?];
            let (start, len) = match shape.layout() {
                // Slabs are whole pages, as no-copy buffers of a GPU must be.
                Layout::LayerMajor => (
                    keys.offset,
                    (keys.block_stride * shape.blocks()).next_multiple_of(REGION_ALIGN),
                ),
                Layout::BlockMajor => (0, shape.region_len()),
            };
            let too_large = || refuse("a layer has more elements than an array");
            let elements = i32::try_from(len / size).map_err(|_| too_large())?;
            // SAFETY: `start` is inside the region.
            let address = unsafe { base.add(start) };
            let dtype = mlx_dtype(segment.dtype);
            // SAFETY: the caller's promise, for a part of the region: a slab ends before the next one.
            let array = unsafe { platform::adopt(address, elements, dtype, owner.clone()) };
            let array = array.ok_or(refuse("MLX has no memory for a layer's array"))?;
            let planes = [keys, values].map(|plane| ((plane.offset - start) / size) as i32);
            let slab = Slab { array, address: address.addr().get(), planes };
            if !slab.is_in_place() {
                return Err(ForwardError::PoolCopied { layer });
            }
            slabs.push(slab);
        }
        let strides = Strides {
            block: block_stride / size,
            token: token_stride / size,
            block_tokens: shape.spec().block_tokens as usize,
        };
        Ok(Self { strides, width: (token_stride / size) as i32, slabs })
    }

    /// Where tokens lie in each of them.
    pub(super) fn strides(&self) -> Strides {
        self.strides
    }

    /// Where the arrays begin.
    #[cfg(test)]
    pub(super) fn addresses(&self) -> Vec<usize> {
        self.slabs.iter().map(|slab| slab.found().addr()).collect()
    }

    /// The array of a layer.
    #[cfg(test)]
    pub(super) fn array(&self, layer: usize) -> &Array {
        &self.slabs[layer].array
    }

    /// The keys or the values of tokens that lie `at` indices: `[token][heads * head_dim]`.
    pub(super) fn read(&self, layer: usize, part: Part, at: &Array) -> Result<Array, ForwardError> {
        let slab = &self.slabs[layer];
        let [keys, values] = slab.planes;
        let first = Array::from_int(if part == Part::Key { keys } else { values });
        Ok(gather_single(&slab.array, at.add(first)?, 0, &[self.width])?)
    }
}

impl Slab {
    /// Whether the array still lies where the pool does.
    fn is_in_place(&self) -> bool {
        self.found().addr() == self.address
    }

    /// Where the array lies, which has been evaluated.
    fn found(&self) -> *const u8 {
        // SAFETY: the array is alive, and has been evaluated.
        unsafe { mlx_sys::mlx_array_data_uint8(self.array.as_ptr()) }
    }
}
