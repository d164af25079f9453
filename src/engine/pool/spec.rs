//! What a family's KV cache looks like: layers of typed segments, in blocks of tokens.
//!
//! A [`KvSpec`] is pure geometry. Where the bytes lie is the pool's [`Layout`](super::Layout).

use std::fmt;

/// Element type of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of an `f32`.
    Bf16,
    /// IEEE 754 binary32.
    F32,
}

impl Dtype {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        })
    }
}

/// Which part of a layer's cache a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Attention keys, after RoPE.
    Key,
    /// Attention values.
    Value,
}

/// One typed segment of a layer: `[token][heads][head_dim]` elements of `dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentSpec {
    /// What the segment holds.
    pub part: Part,
    /// KV heads.
    pub heads: u32,
    /// Elements per head.
    pub head_dim: u32,
    /// Element type.
    pub dtype: Dtype,
}

impl SegmentSpec {
    /// Bytes that one token takes in this segment.
    pub const fn token_bytes(&self) -> usize {
        self.heads as usize * self.head_dim as usize * self.dtype.size()
    }
}

impl fmt::Display for SegmentSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self.part {
            Part::Key => "K",
            Part::Value => "V",
        };
        write!(f, "{part} {}x{} {}", self.heads, self.head_dim, self.dtype)
    }
}

/// One layer: its segments, in wire order. K and V may differ; layers may differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayerSpec {
    /// Segments of the layer.
    pub segments: Vec<SegmentSpec>,
}

impl LayerSpec {
    /// The common layer: K and V of one shape.
    pub fn attention(heads: u32, head_dim: u32, dtype: Dtype) -> Self {
        let segment = |part| SegmentSpec { part, heads, head_dim, dtype };
        Self { segments: vec![segment(Part::Key), segment(Part::Value)] }
    }

    /// Bytes that one token takes in this layer.
    pub fn token_bytes(&self) -> usize {
        self.segments.iter().map(SegmentSpec::token_bytes).sum()
    }
}

/// Geometry of one family's KV cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KvSpec {
    /// Tokens per block.
    pub block_tokens: u32,
    /// Layers in model order.
    pub layers: Vec<LayerSpec>,
}

impl KvSpec {
    /// `layers` equal attention layers.
    pub fn uniform(
        block_tokens: u32,
        layers: usize,
        heads: u32,
        head_dim: u32,
        dtype: Dtype,
    ) -> Self {
        Self { block_tokens, layers: vec![LayerSpec::attention(heads, head_dim, dtype); layers] }
    }

    /// Bytes that one token takes over all layers.
    pub fn token_bytes(&self) -> usize {
        self.layers.iter().map(LayerSpec::token_bytes).sum()
    }

    /// Bytes of payload in one block.
    pub fn block_bytes(&self) -> usize {
        self.token_bytes() * self.block_tokens as usize
    }

    /// Blocks that `tokens` tokens need.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_tokens as usize)
    }

    /// Whether two pools hold the same data per token, whatever their block length and layout.
    pub fn same_geometry(&self, other: &Self) -> bool {
        self.layers == other.layers
    }
}

impl fmt::Display for KvSpec {
    /// Runs of equal layers print once: `4 layers [K 2x16 f16, V 2x16 f16], 16-token blocks`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, run) in self.layers.chunk_by(|a, b| a == b).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let noun = if run.len() == 1 { "layer" } else { "layers" };
            write!(f, "{comma}{} {noun} [", run.len())?;
            for (index, segment) in run[0].segments.iter().enumerate() {
                write!(f, "{}{segment}", if index == 0 { "" } else { ", " })?;
            }
            f.write_str("]")?;
        }
        write!(f, ", {}-token blocks", self.block_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_shape() {
        let spec = KvSpec::uniform(16, 30, 3, 64, Dtype::F16);
        assert_eq!(spec.token_bytes(), 23_040);
        assert_eq!(spec.block_bytes(), 368_640);
        assert_eq!((spec.blocks_for(0), spec.blocks_for(16), spec.blocks_for(17)), (0, 1, 2));
    }

    #[test]
    fn geometry_ignores_block_length_only() {
        let spec = KvSpec::uniform(16, 2, 2, 16, Dtype::F16);
        assert!(spec.same_geometry(&KvSpec { block_tokens: 64, ..spec.clone() }));
        assert!(!spec.same_geometry(&KvSpec::uniform(16, 2, 2, 16, Dtype::Bf16)));
    }

    #[test]
    fn display_names_every_run_of_layers() {
        let mut spec = KvSpec::uniform(16, 2, 2, 16, Dtype::F16);
        spec.layers.push(LayerSpec::attention(1, 16, Dtype::F32));
        assert_eq!(
            spec.to_string(),
            "2 layers [K 2x16 f16, V 2x16 f16], 1 layer [K 1x16 f32, V 1x16 f32], 16-token blocks"
        );
    }
}
