//! One pass through all layers.
//!
//! ```text
//! per layer   x ─norm─> q,k,v ─norms,rope─> pool ─hook─> attention ─output─(norm)─+─> x
//!             x ─norm─> gate,up ─> down ─(norm)─+─> x
//! ```

use blockwire::pool::Part;
use mlx_rs::{
    Array, Dtype,
    error::Result,
    fast::{self, ScaledDotProductAttentionMask},
    ops::{self, concatenate, indexing::IndexOp},
};

use super::{
    pool::Pool,
    rows::{Rows, RunRows},
    weights::{Layer, Weights},
};
use crate::{
    cpu::plan::Plan,
    files::{Activation, ModelConfig},
    model::{ForwardError, LayerHook},
};

/// Everything that one pass needs.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) weights: &'a Weights,
    pub(super) plan: &'a Plan<'a>,
    pub(super) pool: &'a mut Pool,
}

impl Pass<'_> {
    /// Runs the rows, of which there are some; gives the logits of those that want them.
    pub(super) fn run(
        mut self,
        hook: &mut dyn LayerHook,
    ) -> std::result::Result<Vec<f32>, ForwardError> {
        let weights = self.weights;
        let rows = Rows::new(self.plan, self.pool, self.config.window)?;
        let full = Rotation::new(&rows.positions, &self.config.rope_inverse_frequencies)?;
        let local = Rotation::new(&rows.positions, &self.config.rope_local_inverse_frequencies)?;
        let scale = Array::from_f32(self.config.embedding_scale).as_dtype(weights.dtype)?;
        let mut x = weights.embedding.rows(&rows.tokens)?.multiply(scale)?;
        for (index, layer) in weights.layers.iter().enumerate() {
            let rotation = if layer.windowed { &local } else { &full };
            let mixed = self.attend(index, layer, &rows, rotation, &x, hook)?;
            x = x.add(self.normalise_if(&mixed, layer.attention_post_norm.as_ref())?)?;
            let mixed = self.feed_forward(layer, &x)?;
            x = x.add(self.normalise_if(&mixed, layer.ffn_post_norm.as_ref())?)?;
        }
        self.logits(&x, &rows.wanted)
    }

    fn attend(
        &mut self,
        index: usize,
        layer: &Layer,
        rows: &Rows,
        rotation: &Rotation,
        x: &Array,
        hook: &mut dyn LayerHook,
    ) -> std::result::Result<Array, ForwardError> {
        let x = self.normalise(x, &layer.attention_norm)?;
        let ModelConfig { heads, kv_heads, head_dim, rope_interleaved, .. } = *self.config;
        let [heads, kv_heads, head_dim] = [heads, kv_heads, head_dim].map(|n| n as i32);
        let [query_norm, key_norm] = match &layer.head_norms {
            Some([query, key]) => [Some(query), Some(key)],
            None => [None, None],
        };
        let finish = |outputs: Array, heads, norm| {
            let outputs = outputs.reshape(&[-1, heads, head_dim])?;
            let outputs = self.normalise_if(&outputs, norm)?;
            rotation.rotate(&outputs, rope_interleaved)?.as_dtype(self.weights.dtype)
        };
        let queries = finish(layer.query.apply(&x)?, heads, query_norm)?;
        let keys = finish(layer.key.apply(&x)?, kv_heads, key_norm)?;
        let keys = keys.reshape(&[-1, kv_heads * head_dim])?;
        let values = layer.value.apply(&x)?;
        self.pool.write(index, &rows.at, [&keys, &values])?;
        self.plan.layer_written(index, hook);
        let place = (index, layer.windowed);
        let runs = rows.runs.iter().map(|run| self.attend_run(run, place, &queries));
        let attended = runs.collect::<std::result::Result<Vec<_>, ForwardError>>()?;
        Ok(layer.output.apply(&concatenate(&attended, 0)?)?)
    }

    /// Attention of the rows of one run: `[row][heads * head_dim]`.
    fn attend_run(
        &self,
        run: &RunRows,
        (layer, windowed): (usize, bool),
        queries: &Array,
    ) -> std::result::Result<Array, ForwardError> {
        let &ModelConfig { kv_heads, head_dim, attention_scale, .. } = self.config;
        let shape = [kv_heads as i32, head_dim as i32];
        let read = |part| run.read(self.pool, (layer, windowed), part, shape, self.weights.dtype);
        let (keys, values) = (read(Part::Key)?, read(Part::Value)?);
        let queries = queries.index((run.rows.clone(), .., ..));
        let queries = queries.transpose_axes(&[1, 0, 2])?.expand_dims(0)?;
        let mask = run.mask(windowed).map(ScaledDotProductAttentionMask::Array);
        let attended = fast::scaled_dot_product_attention(
            &queries,
            &keys,
            &values,
            attention_scale,
            mask,
            None,
        )?;
        let rows = run.rows.end - run.rows.start;
        Ok(attended.transpose_axes(&[0, 2, 1, 3])?.reshape(&[rows, -1])?)
    }

    fn feed_forward(&self, layer: &Layer, x: &Array) -> Result<Array> {
        let x = self.normalise(x, &layer.ffn_norm)?;
        let gate = activate(self.config.activation, &layer.gate.multiply(&x)?)?;
        layer.down.multiply(&gate.multiply(layer.up.multiply(&x)?)?)
    }

    fn normalise(&self, x: &Array, weight: &Array) -> Result<Array> {
        fast::rms_norm(x, Some(weight), self.config.norm_eps)
    }

    fn normalise_if(&self, x: &Array, weight: Option<&Array>) -> Result<Array> {
        weight.map_or_else(|| Ok(x.clone()), |weight| self.normalise(x, weight))
    }

    fn logits(&self, x: &Array, wanted: &Array) -> std::result::Result<Vec<f32>, ForwardError> {
        if wanted.size() == 0 {
            return Ok(Vec::new());
        }
        let x = self.normalise(&x.take_axis(wanted, 0)?, &self.weights.norm)?;
        let logits = self.weights.head().multiply(&x)?.as_dtype(Dtype::Float32)?;
        let rows = logits.try_as_slice::<f32>();
        Ok(rows.map_err(|error| ForwardError::Library { what: error.to_string() })?.to_vec())
    }
}

/// Rotary position embedding, as in "RoFormer" (Su et al. 2021): sines and cosines of a batch,
/// `[row][1][pair]`.
#[derive(Debug)]
struct Rotation {
    cos: Array,
    sin: Array,
}

impl Rotation {
    fn new(positions: &Array, frequencies: &[f32]) -> Result<Self> {
        let frequencies = Array::from_slice(frequencies, &[1, frequencies.len() as i32]);
        let angles = positions.multiply(frequencies)?.expand_dims(1)?;
        Ok(Self { cos: angles.cos()?, sin: angles.sin()? })
    }

    /// Rotates `[row][head][head_dim]`. Pairs are `(2i, 2i + 1)` when `interleaved`, else
    /// `(i, i + head_dim / 2)`.
    fn rotate(&self, x: &Array, interleaved: bool) -> Result<Array> {
        let (shape, pairs) = (x.shape().to_vec(), x.dim(-1) / 2);
        // The two of a pair lie along the last axis but one, or the last.
        let (split, axis) = match interleaved {
            true => (vec![shape[0], shape[1], pairs, 2], 3),
            false => (vec![shape[0], shape[1], 2, pairs], 2),
        };
        let x = x.reshape(&split)?;
        let [a, b] = [0, 1].map(|half| x.take_axis(Array::from_int(half), axis));
        let (a, b) = (a?, b?);
        let low = a.multiply(&self.cos)?.subtract(b.multiply(&self.sin)?)?;
        let high = a.multiply(&self.sin)?.add(b.multiply(&self.cos)?)?;
        let halves = [low.expand_dims(axis)?, high.expand_dims(axis)?];
        concatenate(&halves, axis)?.reshape(&shape)
    }
}

/// Of plain operations: MLX would compile its own activations at run time.
fn activate(activation: Activation, x: &Array) -> Result<Array> {
    match activation {
        Activation::Silu => x.multiply(ops::sigmoid(x)?),
        Activation::GeluTanh => {
            let number = |number: f32| Array::from_f32(number).as_dtype(x.dtype());
            let cube = x.multiply(x)?.multiply(x)?;
            let inner = x.add(cube.multiply(number(0.044715)?)?)?;
            let factor = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
            let tanh = ops::tanh(inner.multiply(number(factor)?)?)?;
            x.multiply(number(0.5)?)?.multiply(tanh.add(number(1.0)?)?)
        }
    }
}
