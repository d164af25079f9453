//! What a model really writes into a block, found by running one token.
//!
//! A model's configuration tells head counts, but not what the runtime stores: a 4-bit checkpoint may
//! keep a bf16 cache. The probe fills a throwaway block with two patterns in turn, lets the model run
//! one token, and compares what changed with the shape that the model declares.

use std::fmt;

use crate::pool::{BlockPool, KvSequence, KvSpec, ReserveError, SegmentSpec};

/// What runs the probe's token: the runtime's side.
pub trait ProbeTarget {
    /// Why the token could not be run.
    type Error: fmt::Display;

    /// Runs one token at position 0 of an empty sequence that has room for it, and returns the shape
    /// of what it wrote: for each layer its segments, in the order of the pool's spec.
    ///
    /// # Errors
    /// Whatever the runtime says.
    fn run_probe_token(
        &mut self,
        sequence: &mut KvSequence,
    ) -> Result<Vec<Vec<SegmentSpec>>, Self::Error>;
}

/// The exact geometry of a block, as it was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockGeometry(KvSpec);

impl BlockGeometry {
    /// The geometry.
    pub fn spec(&self) -> &KvSpec {
        &self.0
    }
}

/// Why the probe failed. The throwaway block is free again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// No block to probe with.
    #[error("no block for the probe: {0}")]
    Reserve(#[from] ReserveError),
    /// The model could not run the token.
    #[error("the model could not run a probe token: {0}")]
    Run(String),
    /// The model writes another shape than the pool has.
    #[error("the pool holds [{pool}], the model writes [{model}]")]
    Geometry {
        /// What the pool holds.
        pool: Box<KvSpec>,
        /// What the model wrote.
        model: Box<KvSpec>,
    },
    /// The bytes that changed are not those of the declared shape.
    #[error("the probe token wrote {written} bytes of layer {layer}, its shape takes {expected}")]
    Footprint {
        /// Layer.
        layer: usize,
        /// Bytes that the token wrote.
        written: usize,
        /// Bytes that one token takes there.
        expected: usize,
    },
}

/// Runs one token through a throwaway sequence of `pool` and returns the geometry that it showed.
///
/// # Errors
/// [`ProbeError`]: the pool and the model do not fit, or no token could be run.
pub fn probe_block_geometry<T: ProbeTarget>(
    pool: &BlockPool,
    target: &mut T,
) -> Result<BlockGeometry, ProbeError> {
    let mut written = Vec::new();
    let mut shape = Vec::new();
    // A byte that happens to equal one pattern cannot equal both.
    for pattern in [0x00, 0xff] {
        let mut blocks = pool.try_reserve(1)?;
        for block in &mut blocks {
            block.fill(pattern);
        }
        let mut sequence = KvSequence::new(pool);
        sequence.push(blocks).expect("blocks of this pool");
        let ran = target.run_probe_token(&mut sequence);
        shape = ran.map_err(|error| ProbeError::Run(error.to_string()))?;
        sequence.set_len(1);
        let sealed = &sequence.finish()[0];
        written.push(changed_bytes(&sealed.token_bytes(0), pattern));
        check_rest(pool, sealed, pattern)?;
    }
    let model = KvSpec {
        block_tokens: pool.spec().block_tokens,
        layers: shape.into_iter().map(|segments| crate::pool::LayerSpec { segments }).collect(),
    };
    if model != *pool.spec() {
        let pool = Box::new(pool.spec().clone());
        return Err(ProbeError::Geometry { pool, model: Box::new(model) });
    }
    check_footprint(&model, &written)?;
    Ok(BlockGeometry(model))
}

/// For each layer, which bytes of a token differ from the pattern.
fn changed_bytes(layers: &[Vec<&[u8]>], pattern: u8) -> Vec<Vec<bool>> {
    let changed = |segments: &Vec<&[u8]>| {
        segments.iter().flat_map(|bytes| bytes.iter()).map(|byte| *byte != pattern).collect()
    };
    layers.iter().map(changed).collect()
}

/// Every byte of the token was written: it differs from at least one of the two patterns.
fn check_footprint(spec: &KvSpec, runs: &[Vec<Vec<bool>>]) -> Result<(), ProbeError> {
    for (layer, layer_spec) in spec.layers.iter().enumerate() {
        let (first, second) = (&runs[0][layer], &runs[1][layer]);
        let written = first.iter().zip(second).filter(|(a, b)| **a || **b).count();
        let expected = layer_spec.token_bytes();
        if written != expected {
            return Err(ProbeError::Footprint { layer, written, expected });
        }
    }
    Ok(())
}

/// No byte of the block's other tokens was written.
fn check_rest(
    pool: &BlockPool,
    sealed: &crate::pool::SealedBlock,
    pattern: u8,
) -> Result<(), ProbeError> {
    for token in 1..pool.spec().block_tokens {
        for (layer, segments) in sealed.token_bytes(token).iter().enumerate() {
            let stray = segments.iter().flat_map(|b| b.iter()).filter(|b| **b != pattern).count();
            if stray > 0 {
                return Err(ProbeError::Footprint { layer, written: stray, expected: 0 });
            }
        }
    }
    Ok(())
}
