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

/// Most bytes that a pool may ask for; more is a mistake, not a machine.
const POOL_BYTES_MAX: u128 = 1 << 46;

/// A pool's size and where its bytes lie: what a peer must know to read it. Behind the blocks lies one
/// more page, of the words by which [leases](super::Grant) end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolShape {
    spec: KvSpec,
    layout: Layout,
    blocks: usize,
    planes: Vec<Vec<KvPlane>>,
    leases: usize,
    /// Stride of whole blocks, where a block is one extent without gaps.
    whole_block_stride: Option<usize>,
}

impl PoolShape {
    /// The shape of a pool of `blocks` blocks.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn new(spec: KvSpec, layout: Layout, blocks: usize) -> Result<Self, &'static str> {
        check(&spec, blocks)?;
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
        let blocks_len = match layout {
            Layout::BlockMajor => stride * blocks,
            Layout::LayerMajor => offset,
        };
        let leases = blocks_len.next_multiple_of(REGION_ALIGN);
        let whole_block_stride = (layout == Layout::BlockMajor).then_some(stride);
        Ok(Self { spec, layout, blocks, planes: layers, leases, whole_block_stride })
    }

    /// Geometry of a block.
    pub fn spec(&self) -> &KvSpec {
        &self.spec
    }

    /// Order of the dimensions.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Blocks of the pool.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes of the region that holds it all.
    pub fn region_len(&self) -> usize {
        self.leases + REGION_ALIGN
    }

    /// How to reach the tokens of a (layer, part); none where the spec has no such segment.
    pub fn plane(&self, layer: usize, part: Part) -> Option<KvPlane> {
        self.planes.get(layer)?.iter().find(|plane| plane.segment.part == part).copied()
    }

    /// The planes of a layer, in wire order.
    pub(super) fn layer(&self, layer: usize) -> &[KvPlane] {
        &self.planes[layer]
    }

    pub(super) fn whole_block_stride(&self) -> Option<usize> {
        self.whole_block_stride
    }

    /// Where the words of the leases lie.
    pub(super) fn leases_offset(&self) -> usize {
        self.leases
    }
}

fn check(spec: &KvSpec, blocks: usize) -> Result<(), &'static str> {
    let per_token: u128 = spec
        .layers
        .iter()
        .flat_map(|layer| &layer.segments)
        .map(|s| u128::from(s.heads) * u128::from(s.head_dim) * s.dtype.size() as u128)
        .sum();
    // Alignment adds at most a page a layer and a cache line a block.
    let per_block = per_token * u128::from(spec.block_tokens) + 64;
    let around = (spec.layers.len() as u128 + 2) * REGION_ALIGN as u128;
    // Peers say these numbers too, and 146 bits are possible.
    let bytes = per_block.saturating_mul(blocks as u128).saturating_add(around);
    if spec.block_tokens == 0 || blocks == 0 || per_token == 0 {
        return Err("it holds nothing");
    }
    if blocks > u32::MAX as usize {
        return Err("block ids have 32 bits");
    }
    if bytes > POOL_BYTES_MAX {
        return Err("it would take more than 64 TiB");
    }
    Ok(())
}
