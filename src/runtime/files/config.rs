//! The geometry and constants of a model, in one form for every file format.

use std::path::Path;

use blockwire::pool::{Dtype, KvSpec};

use super::LoadError;

/// A model family: which operations a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// Llama and what shares its layers (SmolLM2 among them): RMS norm, rotary attention with
    /// grouped KV heads, gated SiLU.
    Llama,
    /// Llama's layer with an RMS norm over each query and key head before the rotation.
    Qwen3,
    /// Qwen3's layer with four norms instead of two and a gated GELU, most of them with a window.
    Gemma3,
    /// Qwen3's layer between others that have a gated short convolution in attention's place.
    Lfm2,
}

impl Family {
    /// Its name in checkpoints.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
            Self::Gemma3 => "gemma3",
            Self::Lfm2 => "lfm2",
        }
    }
}

/// How a layer lets the tokens of a sequence tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mixer {
    /// Attention to the token and all before it.
    Attention,
    /// Attention to a [window](ModelConfig::window) of tokens that ends with the token.
    Window,
    /// A convolution over the token and few before it, between two gates.
    Convolution,
}

/// What a feed-forward layer does to its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU's approximation by the hyperbolic tangent.
    GeluTanh,
}

/// More layers than any model has.
const LAYERS_MAX: usize = 1 << 12;

/// More tokens than any convolution spans.
const TAPS_MAX: usize = 64;

/// Attention in each of `count` layers.
///
/// # Errors
/// When no model has so many.
pub(super) fn all_attention(path: &Path, count: usize) -> Result<Vec<Mixer>, LoadError> {
    match count {
        1..=LAYERS_MAX => Ok(vec![Mixer::Attention; count]),
        _ => Err(impossible(path, "layers", count)),
    }
}

/// What the files say about a model. Every number has been checked: none is zero, and none is
/// large enough to overflow a product of two.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Which operations a layer has.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden: usize,
    /// How each layer mixes tokens, in order.
    pub layers: Vec<Mixer>,
    /// Tokens that a layer with a window attends to, the current one included; 0 where none has one.
    pub window: usize,
    /// Tokens that a convolution spans, the current one included; none where no layer has one.
    pub convolution_taps: usize,
    /// Query heads; a multiple of [`kv_heads`](Self::kv_heads).
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers in one head; even. `heads * head_dim` may differ from `hidden`.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Rows of the embedding and of the head: token ids are below this.
    pub vocab: usize,
    /// Added to the mean square in every RMS norm.
    pub norm_eps: f32,
    /// Added to the weights of every RMS norm.
    pub norm_offset: f32,
    /// What embeddings are multiplied by.
    pub embedding_scale: f32,
    /// What products of queries and keys are multiplied by.
    pub attention_scale: f32,
    /// What a feed-forward layer does to its gate.
    pub activation: Activation,
    /// Radians per position for each of the `head_dim / 2` rotated pairs, with the checkpoint's
    /// scaling already applied.
    pub rope_inverse_frequencies: Vec<f32>,
    /// The same for layers with a window; empty where none has one.
    pub rope_local_inverse_frequencies: Vec<f32>,
    /// How pairs lie in a head: `true`, pair i is elements (2i, 2i + 1), as GGUF stores the llama
    /// family; `false`, (i, i + head_dim / 2).
    pub rope_interleaved: bool,
    /// Whether the head's matrix is the embedding; then there is no `lm_head.weight`.
    pub tied_head: bool,
    /// Longest context the model was trained for, in tokens.
    pub context: usize,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// Whether the tokenizer puts [`bos`](Self::bos) before a text.
    pub add_bos: bool,
    /// Tokens that end a generated text, ascending.
    pub eos: Vec<u32>,
}

/// How a checkpoint stretches its rotation to longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RopeScaling {
    /// As trained.
    None,
    /// All frequencies divided by this.
    Linear(f64),
    /// Llama 3's: low frequencies divided, high ones kept, a ramp between.
    Llama3 { factor: f64, low: f64, high: f64, original_context: f64 },
}

impl RopeScaling {
    /// The frequencies of a head of `head_dim` numbers for the base `theta`.
    ///
    /// Computed in f64 and rounded once, so that every machine gets the same f32. The Llama 3
    /// ramp follows `_compute_llama3_parameters` in transformers' `modeling_rope_utils.py`.
    pub(super) fn inverse_frequencies(self, theta: f64, head_dim: usize) -> Vec<f32> {
        let plain = |i: usize| theta.powf(-2.0 * i as f64 / head_dim as f64);
        (0..head_dim / 2).map(|i| self.apply(plain(i)) as f32).collect()
    }

    fn apply(self, frequency: f64) -> f64 {
        match self {
            Self::None => frequency,
            Self::Linear(factor) => frequency / factor,
            Self::Llama3 { factor, low, high, original_context } => {
                let turns = original_context * frequency / std::f64::consts::TAU;
                if turns > high {
                    return frequency;
                }
                if turns < low {
                    return frequency / factor;
                }
                let smooth = (turns - low) / (high - low);
                (1.0 - smooth) * frequency / factor + smooth * frequency
            }
        }
    }
}

/// A dimension with its name and its largest believable value.
type Bound = (&'static str, usize, usize);

impl ModelConfig {
    /// Refuses geometries that no model has, so that later arithmetic cannot overflow.
    pub(super) fn validate(&self, path: &Path) -> Result<(), LoadError> {
        let invalid = |key: &str, expected, found: String| LoadError::InvalidSetting {
            path: path.to_owned(),
            key: key.to_owned(),
            expected,
            found,
        };
        let bounds: [Bound; 9] = [
            ("hidden size", self.hidden, 1 << 20),
            ("layers", self.layers.len(), LAYERS_MAX),
            ("attention heads", self.heads, 1 << 12),
            ("key and value heads", self.kv_heads, 1 << 12),
            ("head size", self.head_dim, 1 << 12),
            ("feed-forward size", self.ffn, 1 << 22),
            ("vocabulary size", self.vocab, 1 << 24),
            ("context length", self.context, u32::MAX as usize),
            ("sliding window", if self.windows() { self.window } else { 1 }, u32::MAX as usize),
        ];
        for (key, value, limit) in bounds {
            if value == 0 || value > limit {
                return Err(impossible(path, key, value));
            }
        }
        // Sequences are counted by the blocks of their caches.
        if self.attention_layers() == 0 {
            return Err(impossible(path, "attention layers", 0));
        }
        let convolves = self.layers.contains(&Mixer::Convolution);
        if convolves != (2..=TAPS_MAX).contains(&self.convolution_taps) {
            return Err(impossible(path, "convolution length", self.convolution_taps));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let found = format!("{} and {}", self.heads, self.kv_heads);
            return Err(invalid("attention heads", "a multiple of the KV heads", found));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(invalid("head size", "an even number", self.head_dim.to_string()));
        }
        if !(self.norm_eps.is_finite() && self.norm_eps >= 0.0) {
            return Err(invalid("norm epsilon", "a number from 0", self.norm_eps.to_string()));
        }
        if !(self.attention_scale.is_finite() && self.attention_scale > 0.0) {
            let found = self.attention_scale.to_string();
            return Err(invalid("attention scale", "a positive number", found));
        }
        let rotations = [&self.rope_inverse_frequencies, &self.rope_local_inverse_frequencies];
        if rotations.into_iter().flatten().any(|f| !f.is_finite()) {
            return Err(invalid("rotary base", "finite frequencies", "others".to_owned()));
        }
        Ok(())
    }

    /// Canonical names and shapes of the tensors that must exist.
    pub(super) fn required_tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut required = vec![
            ("model.embed_tokens.weight".to_owned(), vec![self.vocab, self.hidden]),
            ("model.norm.weight".to_owned(), vec![self.hidden]),
        ];
        if !self.tied_head {
            required.push(("lm_head.weight".to_owned(), vec![self.vocab, self.hidden]));
        }
        for (layer, mixer) in self.layers.iter().enumerate() {
            let named = |(part, shape)| (format!("model.layers.{layer}.{part}.weight"), shape);
            required.extend(self.layer_tensors(*mixer).into_iter().map(named));
        }
        required
    }

    /// Canonical names and shapes of the tensors that may exist: the projections' biases.
    pub(super) fn optional_tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut optional = Vec::new();
        for (layer, mixer) in self.layers.iter().enumerate() {
            for (part, shape) in self.layer_tensors(*mixer) {
                if part.ends_with("_proj") {
                    optional.push((format!("model.layers.{layer}.{part}.bias"), vec![shape[0]]));
                }
            }
        }
        optional
    }

    /// Layers whose keys and values are cached.
    pub fn attention_layers(&self) -> usize {
        self.layers.iter().filter(|mixer| **mixer != Mixer::Convolution).count()
    }

    /// Geometry of the cache, in blocks of `block_tokens` tokens.
    pub fn kv_spec(&self, dtype: Dtype, block_tokens: u32) -> KvSpec {
        // Sizes fit: `validate` bounds them.
        let (heads, head_dim) = (self.kv_heads as u32, self.head_dim as u32);
        KvSpec::uniform(block_tokens, self.attention_layers(), heads, head_dim, dtype)
    }

    fn windows(&self) -> bool {
        self.layers.contains(&Mixer::Window)
    }

    fn layer_tensors(&self, mixer: Mixer) -> Vec<(&'static str, Vec<usize>)> {
        let (hidden, ffn) = (self.hidden, self.ffn);
        let mut tensors = match mixer {
            Mixer::Attention | Mixer::Window => self.attention_tensors(),
            Mixer::Convolution => vec![
                ("conv.in_proj", vec![3 * hidden, hidden]),
                ("conv.conv", vec![hidden, 1, self.convolution_taps]),
                ("conv.out_proj", vec![hidden, hidden]),
            ],
        };
        tensors.extend([
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![ffn, hidden]),
            ("mlp.up_proj", vec![ffn, hidden]),
            ("mlp.down_proj", vec![hidden, ffn]),
        ]);
        if self.family == Family::Gemma3 {
            tensors.push(("pre_feedforward_layernorm", vec![hidden]));
            tensors.push(("post_feedforward_layernorm", vec![hidden]));
        }
        tensors
    }

    fn attention_tensors(&self) -> Vec<(&'static str, Vec<usize>)> {
        let hidden = self.hidden;
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut tensors = vec![
            ("self_attn.q_proj", vec![q, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.o_proj", vec![hidden, q]),
        ];
        if self.family != Family::Llama {
            tensors.push(("self_attn.q_norm", vec![self.head_dim]));
            tensors.push(("self_attn.k_norm", vec![self.head_dim]));
        }
        tensors
    }
}

fn impossible(path: &Path, key: &str, found: usize) -> LoadError {
    LoadError::InvalidSetting {
        path: path.to_owned(),
        key: key.to_owned(),
        expected: "a number that a model can have",
        found: found.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_and_linear_frequencies() {
        let plain = RopeScaling::None.inverse_frequencies(10_000.0, 8);
        assert_eq!(plain, [1.0, 0.1, 0.01, 0.001]);
        let half = RopeScaling::Linear(2.0).inverse_frequencies(10_000.0, 8);
        assert_eq!(half, [0.5, 0.05, 0.005, 0.0005]);
    }

    #[test]
    fn llama3_keeps_high_divides_low_and_ramps_between() {
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_context: 8192.0 };
        let plain = RopeScaling::None.inverse_frequencies(500_000.0, 128);
        let scaled = scaling.inverse_frequencies(500_000.0, 128);
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[63], plain[63] / 8.0);
        let ramped = (0..64).filter(|&i| scaled[i] < plain[i] && scaled[i] > plain[i] / 8.0);
        assert!(ramped.count() > 3);
    }
}
