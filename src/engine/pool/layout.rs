//! Where the bytes of a block lie: a property of the pool, never of the protocol.
//!
//! ```text
//! BlockMajor   [block][layer][K|V][token][head][dim]     a whole block is one extent
//! LayerMajor   [layer][block][K|V][token][head][dim]     one slab a layer
//! ```
//! In both, the tokens of one (block, layer, part) lie side by side, so that any token range of it is
//! one extent. A block id means the same in both.

use super::region::REGION_ALIGN;
use super::spec::{KvSpec, Part, SegmentSpec};

/// Blocks and slabs start on a cache line, as vector loads like it.
const BLOCK_ALIGN: usize = 64;

/// Order of a pool's dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// A block's layers lie together: the cheapest to hand over.
    #[default]
    BlockMajor,
    /// A layer's blocks lie together: for runtimes that own one array a layer.
    LayerMajor,
}

/// How to reach every token of one (layer, part):
/// `offset + block * block_stride + token * token_stride`, in bytes from the region's base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlane {
    /// Byte offset of token 0 of block 0.
    pub offset: usize,
    /// Bytes from a block to the next.
    pub block_stride: usize,
    /// Bytes from a token to the next inside a block: `[head][dim]` elements, no gaps.
    pub token_stride: usize,
    /// What the plane holds.
    pub segment: SegmentSpec,
}

/// All planes of a pool, computed once.
#[derive(Debug)]
pub(super) struct Planes {
    layers: Vec<Vec<KvPlane>>,
    pub(super) region_len: usize,
    /// Stride of whole blocks, where a block is one extent without gaps.
    pub(super) whole_block_stride: Option<usize>,
}

impl Planes {
    /// # Panics
    /// On arithmetic overflow; the pool bounds its inputs first.
    pub(super) fn new(spec: &KvSpec, layout: Layout, blocks: usize) -> Self {
        let tokens = spec.block_tokens as usize;
        let stride = spec.block_bytes().next_multiple_of(BLOCK_ALIGN);
        let mut layers = Vec::with_capacity(spec.layers.len());
        let mut offset = 0;
        for layer in &spec.layers {
            let slab_stride = (layer.token_bytes() * tokens).next_multiple_of(BLOCK_ALIGN);
            let block_stride = match layout {
                Layout::BlockMajor => stride,
                Layout::LayerMajor => slab_stride,
            };
            let start = offset;
            let planes = layer.segments.iter().map(|segment| {
                let token_stride = segment.token_bytes();
                let plane = KvPlane { offset, block_stride, token_stride, segment: *segment };
                offset += token_stride * tokens;
                plane
            });
            layers.push(planes.collect());
            if layout == Layout::LayerMajor {
                offset = (start + slab_stride * blocks).next_multiple_of(REGION_ALIGN);
            }
        }
        let region_len = match layout {
            Layout::BlockMajor => stride * blocks,
            Layout::LayerMajor => offset,
        };
        let whole_block_stride = (layout == Layout::BlockMajor).then_some(stride);
        Self { layers, region_len, whole_block_stride }
    }

    pub(super) fn plane(&self, layer: usize, part: Part) -> Option<KvPlane> {
        self.layers.get(layer)?.iter().find(|plane| plane.segment.part == part).copied()
    }

    pub(super) fn layer(&self, layer: usize) -> &[KvPlane] {
        &self.layers[layer]
    }
}
