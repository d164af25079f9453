//! A model's weights, regrouped for the kernels.

use crate::{
    cpu::{CpuLoadError, matrix::Matrix},
    files::{self, Family, ModelConfig, ModelFiles, WeightType},
    model::Progress,
};

/// All weights of a model.
#[derive(Debug)]
pub(crate) struct Weights {
    /// `[vocab][hidden]`; also the head when that is tied.
    pub(crate) embedding: Matrix,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Vec<f32>,
    head: Option<Matrix>,
}

/// Weights of one layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) mixer_norm: Vec<f32>,
    pub(crate) mixer: Mixer,
    /// Of what the mixer gives; empty when the family has none.
    pub(crate) mixer_post_norm: Vec<f32>,
    pub(crate) ffn_norm: Vec<f32>,
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
    /// Of what `down` gives; empty when the family has none.
    pub(crate) ffn_post_norm: Vec<f32>,
}

/// Weights of what lets the tokens of a sequence tell each other.
#[derive(Debug)]
pub(crate) enum Mixer {
    Attention(Box<Attention>),
    Convolution(Box<Convolution>),
}

impl Mixer {
    /// Added to what the mixer gives; empty when it has none.
    pub(crate) fn output_bias(&self) -> &[f32] {
        match self {
            Self::Attention(attention) => &attention.output_bias,
            Self::Convolution(_) => &[],
        }
    }
}

/// Weights of an attention layer.
#[derive(Debug)]
pub(crate) struct Attention {
    /// Which of the pool's layers has its keys and values.
    pub(crate) kv_layer: usize,
    /// Tokens that it attends to at most; all where there is none.
    pub(crate) window: Option<usize>,
    pub(crate) query: Matrix,
    pub(crate) key: Matrix,
    pub(crate) value: Matrix,
    /// Added to queries, keys and values, side by side; empty when the model has none.
    pub(crate) biases: Vec<f32>,
    pub(crate) head_norms: Option<HeadNorms>,
    pub(crate) output: Matrix,
    /// Empty when the model has none.
    pub(crate) output_bias: Vec<f32>,
}

/// Weights of a gated short convolution.
#[derive(Debug)]
pub(crate) struct Convolution {
    /// Among the layers with a convolution.
    pub(crate) index: usize,
    /// `[gate in, gate out, value][hidden]`.
    pub(crate) input: Matrix,
    /// `[tap][hidden]`, the oldest token's first.
    pub(crate) taps: Vec<f32>,
    pub(crate) output: Matrix,
}

/// Norms of every single query and key head.
#[derive(Debug)]
pub(crate) struct HeadNorms {
    pub(crate) query: Vec<f32>,
    pub(crate) key: Vec<f32>,
}

impl Weights {
    /// Reads and regroups everything, one layer after the other.
    pub(crate) fn load(
        files: &ModelFiles,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, CpuLoadError> {
        let loader = Loader { files, config: files.config() };
        let total = loader.config.layers.len() + 1;
        let mut layers = Vec::with_capacity(loader.config.layers.len());
        for index in 0..loader.config.layers.len() {
            progress(Progress { done: index, total });
            layers.push(loader.layer(index)?);
        }
        progress(Progress { done: total - 1, total });
        let &ModelConfig { vocab, hidden, tied_head, .. } = loader.config;
        let embedding = loader.matrix("model.embed_tokens.weight", vocab, hidden)?;
        let head = match tied_head {
            true => None,
            false => Some(loader.matrix("lm_head.weight", vocab, hidden)?),
        };
        let norm = loader.norm("model.norm.weight", hidden)?;
        progress(Progress { done: total, total });
        Ok(Self { embedding, layers, norm, head })
    }

    /// The matrix that makes logits.
    pub(crate) fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

struct Loader<'a> {
    files: &'a ModelFiles,
    config: &'a ModelConfig,
}

impl Loader<'_> {
    fn layer(&self, index: usize) -> Result<Layer, CpuLoadError> {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let &ModelConfig { hidden, ffn, .. } = self.config;
        let matrix = |part: &str, rows, cols| self.matrix(&name(part), rows, cols);
        let norm = |part: &str| self.norm(&name(&format!("{part}.weight")), hidden);
        for part in ["gate_proj", "up_proj", "down_proj"] {
            self.refuse(name(&format!("mlp.{part}.bias")))?;
        }
        if self.config.family == Family::Gemma3 {
            // It would have to come before the norm of what attention gives.
            self.refuse(name("self_attn.o_proj.bias"))?;
        }
        let before = self.config.layers[..index].iter();
        let convolutions = before.filter(|mixer| **mixer == files::Mixer::Convolution).count();
        let attention = |window| self.attention(index, index - convolutions, window);
        let mixer = match self.config.layers[index] {
            files::Mixer::Attention => Mixer::Attention(Box::new(attention(None)?)),
            files::Mixer::Window => {
                Mixer::Attention(Box::new(attention(Some(self.config.window))?))
            }
            files::Mixer::Convolution => {
                Mixer::Convolution(Box::new(self.convolution(index, convolutions)?))
            }
        };
        let [mixer_post_norm, ffn_norm, ffn_post_norm] = match self.config.family {
            Family::Gemma3 => [
                norm("post_attention_layernorm")?,
                norm("pre_feedforward_layernorm")?,
                norm("post_feedforward_layernorm")?,
            ],
            Family::Llama | Family::Qwen3 | Family::Lfm2 => {
                [Vec::new(), norm("post_attention_layernorm")?, Vec::new()]
            }
        };
        Ok(Layer {
            mixer_norm: norm("input_layernorm")?,
            mixer,
            mixer_post_norm,
            ffn_norm,
            ffn_post_norm,
            gate: matrix("mlp.gate_proj.weight", ffn, hidden)?,
            up: matrix("mlp.up_proj.weight", ffn, hidden)?,
            down: matrix("mlp.down_proj.weight", hidden, ffn)?,
        })
    }

    fn attention(
        &self,
        index: usize,
        kv_layer: usize,
        window: Option<usize>,
    ) -> Result<Attention, CpuLoadError> {
        let name = |part: &str| format!("model.layers.{index}.self_attn.{part}.weight");
        let &ModelConfig { hidden, heads, kv_heads, head_dim, .. } = self.config;
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        let head_norms = match self.config.family {
            Family::Llama => None,
            Family::Qwen3 | Family::Gemma3 | Family::Lfm2 => Some(HeadNorms {
                query: self.norm(&name("q_norm"), head_dim)?,
                key: self.norm(&name("k_norm"), head_dim)?,
            }),
        };
        Ok(Attention {
            kv_layer,
            window,
            query: self.matrix(&name("q_proj"), queries, hidden)?,
            key: self.matrix(&name("k_proj"), keys, hidden)?,
            value: self.matrix(&name("v_proj"), keys, hidden)?,
            biases: self.biases(index, [("q", queries), ("k", keys), ("v", keys)])?,
            head_norms,
            output: self.matrix(&name("o_proj"), hidden, queries)?,
            output_bias: self.biases(index, [("o", hidden)])?,
        })
    }

    fn convolution(&self, layer: usize, index: usize) -> Result<Convolution, CpuLoadError> {
        let name = |part: &str| format!("model.layers.{layer}.conv.{part}");
        let &ModelConfig { hidden, convolution_taps: taps, .. } = self.config;
        for part in ["in_proj", "conv", "out_proj"] {
            self.refuse(name(&format!("{part}.bias")))?;
        }
        // Stored `[hidden][tap]`.
        let stored = self.vector(&name("conv.weight"), &[hidden, 1, taps])?;
        let tap = |tap: usize| stored.iter().skip(tap).step_by(taps).copied();
        Ok(Convolution {
            index,
            input: self.matrix(&name("in_proj.weight"), 3 * hidden, hidden)?,
            taps: (0..taps).flat_map(tap).collect(),
            output: self.matrix(&name("out_proj.weight"), hidden, hidden)?,
        })
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix, CpuLoadError> {
        let tensor = self.files.tensor(name)?;
        if tensor.shape != [rows, cols] {
            return Err(CpuLoadError::Shape { name: name.to_owned(), shape: tensor.shape });
        }
        Ok(Matrix::new(tensor.ty, rows, cols, tensor.bytes))
    }

    fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, CpuLoadError> {
        let tensor = self.files.tensor(name)?;
        let plain = matches!(tensor.ty, WeightType::F32 | WeightType::F16 | WeightType::Bf16);
        if tensor.shape != shape || !plain {
            return Err(CpuLoadError::Shape { name: name.to_owned(), shape: tensor.shape });
        }
        let len = shape.iter().product();
        let mut values = vec![0.0; len];
        Matrix::new(tensor.ty, 1, len, tensor.bytes).row(0, &mut values);
        Ok(values)
    }

    /// The weights of a norm, as they are to be multiplied with.
    fn norm(&self, name: &str, len: usize) -> Result<Vec<f32>, CpuLoadError> {
        let mut weights = self.vector(name, &[len])?;
        weights.iter_mut().for_each(|weight| *weight += self.config.norm_offset);
        Ok(weights)
    }

    /// The biases of some projections side by side, zeros for those without; empty if none has one.
    fn biases<const N: usize>(
        &self,
        layer: usize,
        parts: [(&str, usize); N],
    ) -> Result<Vec<f32>, CpuLoadError> {
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}_proj.bias");
        let mut biases = Vec::new();
        if !parts.iter().any(|(part, _)| self.files.has(&name(part))) {
            return Ok(biases);
        }
        for (part, len) in parts {
            match self.files.has(&name(part)) {
                true => biases.extend(self.vector(&name(part), &[len])?),
                false => biases.resize(biases.len() + len, 0.0),
            }
        }
        Ok(biases)
    }

    fn refuse(&self, name: String) -> Result<(), CpuLoadError> {
        if self.files.has(&name) { Err(CpuLoadError::UnsupportedTensor { name }) } else { Ok(()) }
    }
}
