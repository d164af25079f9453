//! Memory of a forward pass, kept from one to the next.

use super::{
    kernels::{attention::Scratch, quantize::QuantisedRows},
    rope::Rotations,
};
use crate::files::ModelConfig;

/// Activations of all rows of a batch, row-major.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// `[row][hidden]`: the residual stream.
    pub(crate) residual: Vec<f32>,
    /// `[row][hidden]`: the residual stream normalised.
    pub(crate) normal: Vec<f32>,
    /// `[row][hidden]`: what a half layer adds to the residual stream.
    pub(crate) delta: Vec<f32>,
    /// `[row][queries, keys, values]`, or `[row][gate, gate, value]` of a convolution.
    pub(crate) heads: Vec<f32>,
    /// `[row][queries]`, or `[row][hidden]` of a convolution.
    pub(crate) attended: Vec<f32>,
    /// `[row][ffn]`.
    pub(crate) gate: Vec<f32>,
    /// `[row][ffn]`.
    pub(crate) up: Vec<f32>,
    /// The input of the next product, quantised.
    pub(crate) quantised: QuantisedRows,
    pub(crate) rotations: Rotations,
    /// Of layers with a window.
    pub(crate) local_rotations: Rotations,
    /// `[sequence][layer][tap][hidden]`: the states that convolutions leave behind.
    pub(crate) states: Vec<f32>,
    /// One per thread.
    pub(crate) attention: Vec<Scratch>,
}

impl Workspace {
    /// Makes room for a batch.
    pub(crate) fn reshape(&mut self, config: &ModelConfig, rows: usize, threads: usize) {
        let queries = config.heads * config.head_dim;
        let keys = config.kv_heads * config.head_dim;
        self.residual.resize(rows * config.hidden, 0.0);
        self.normal.resize(rows * config.hidden, 0.0);
        self.delta.resize(rows * config.hidden, 0.0);
        let mixed = if config.convolution_taps == 0 { 0 } else { config.hidden };
        self.heads.resize(rows * (queries + 2 * keys).max(3 * mixed), 0.0);
        self.attended.resize(rows * queries.max(mixed), 0.0);
        self.gate.resize(rows * config.ffn, 0.0);
        self.up.resize(rows * config.ffn, 0.0);
        self.attention.resize_with(threads, Scratch::default);
    }
}
