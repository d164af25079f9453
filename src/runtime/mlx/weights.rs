//! A model's weights as evaluated arrays of one element type.

use blockwire::pool::Dtype;
use half::{bf16, f16};
use mlx_rs::{Array, error::Result, ops};

use super::{MlxLoadError, platform, pool::mlx_dtype};
use crate::{
    cpu,
    files::{Family, GroupedTensor, Mixer, ModelConfig, ModelFiles, Tensor, WeightType},
    model::Progress,
};

/// Name of the embedding.
const EMBEDDING: &str = "model.embed_tokens.weight";

/// All weights of a model.
#[derive(Debug)]
pub(super) struct Weights {
    /// `[vocab][hidden]`; also the head when that is tied.
    pub(super) embedding: Matrix,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Array,
    head: Option<Matrix>,
    /// Of the weights, and of what layers pass on.
    pub(super) dtype: mlx_rs::Dtype,
}

/// Weights of one layer.
#[derive(Debug)]
pub(super) struct Layer {
    /// Whether it attends to a window only.
    pub(super) windowed: bool,
    pub(super) attention_norm: Array,
    pub(super) query: Linear,
    pub(super) key: Linear,
    pub(super) value: Linear,
    /// Of every single query and key head; none when the family has none.
    pub(super) head_norms: Option<[Array; 2]>,
    pub(super) output: Linear,
    /// Of what attention gives; none when the family has none.
    pub(super) attention_post_norm: Option<Array>,
    pub(super) ffn_norm: Array,
    pub(super) gate: Matrix,
    pub(super) up: Matrix,
    pub(super) down: Matrix,
    /// Of what `down` gives; none when the family has none.
    pub(super) ffn_post_norm: Option<Array>,
}

/// `[outputs][inputs]`.
#[derive(Debug)]
pub(super) enum Matrix {
    Plain(Array),
    Grouped { words: Array, scales: Array, biases: Array, group_len: i32, bits: i32 },
}

impl Matrix {
    /// Of rows of inputs the rows of outputs.
    pub(super) fn multiply(&self, rows: &Array) -> Result<Array> {
        match self {
            Self::Plain(matrix) => rows.matmul(matrix.t()),
            Self::Grouped { words, scales, biases, group_len, bits } => {
                ops::quantized_matmul(rows, words, scales, biases, true, *group_len, *bits)
            }
        }
    }

    /// Some of its rows.
    pub(super) fn rows(&self, indices: &Array) -> Result<Array> {
        match self {
            Self::Plain(matrix) => matrix.take_axis(indices, 0),
            Self::Grouped { words, scales, biases, group_len, bits } => {
                let words = words.take_axis(indices, 0)?;
                let scales = scales.take_axis(indices, 0)?;
                let biases = biases.take_axis(indices, 0)?;
                ops::dequantize(&words, &scales, &biases, *group_len, *bits)
            }
        }
    }
}

/// A matrix, and what is added to its outputs.
#[derive(Debug)]
pub(super) struct Linear {
    matrix: Matrix,
    bias: Option<Array>,
}

impl Linear {
    /// Of rows of inputs the rows of outputs.
    pub(super) fn apply(&self, rows: &Array) -> Result<Array> {
        let outputs = self.matrix.multiply(rows)?;
        match &self.bias {
            Some(bias) => outputs.add(bias),
            None => Ok(outputs),
        }
    }
}

impl Weights {
    /// Reads everything, one layer after the other.
    pub(super) fn load(
        files: &ModelFiles,
        dtype: Option<Dtype>,
        progress: &mut dyn FnMut(Progress),
    ) -> std::result::Result<Self, MlxLoadError> {
        let config = files.config();
        let stored = match files.grouped_tensor(EMBEDDING)? {
            Some(grouped) => grouped.scales.ty,
            None => files.tensor(EMBEDDING)?.ty,
        };
        let stored = match stored {
            WeightType::F32 => Dtype::F32,
            WeightType::Bf16 => Dtype::Bf16,
            _ => Dtype::F16,
        };
        let dtype = mlx_dtype(dtype.or(platform::COMPUTE_DTYPE).unwrap_or(stored));
        let loader = Loader { files, config, dtype };
        let total = config.layers.len() + 1;
        let mut layers = Vec::with_capacity(config.layers.len());
        for index in 0..config.layers.len() {
            progress(Progress { done: index, total });
            layers.push(loader.layer(index)?);
        }
        progress(Progress { done: total - 1, total });
        let embedding = loader.matrix(EMBEDDING)?;
        let head = match config.tied_head {
            true => None,
            false => Some(loader.matrix("lm_head.weight")?),
        };
        let norm = loader.norm("model.norm.weight")?;
        progress(Progress { done: total, total });
        Ok(Self { embedding, layers, norm, head, dtype })
    }

    /// The matrix that makes logits.
    pub(super) fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

struct Loader<'a> {
    files: &'a ModelFiles,
    config: &'a ModelConfig,
    dtype: mlx_rs::Dtype,
}

type Loaded<T> = std::result::Result<T, MlxLoadError>;

/// Shapes were checked when the files were opened.
impl Loader<'_> {
    fn layer(&self, index: usize) -> Loaded<Layer> {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let weight = |part: &str| name(&format!("{part}.weight"));
        let norm = |part: &str| self.norm(&weight(part));
        let family = self.config.family;
        for part in ["gate_proj", "up_proj", "down_proj"] {
            self.refuse(name(&format!("mlp.{part}.bias")))?;
        }
        let head_norms = match family {
            Family::Llama => None,
            _ => Some([norm("self_attn.q_norm")?, norm("self_attn.k_norm")?]),
        };
        let (ffn_norm, [attention_post_norm, ffn_post_norm]) = match family {
            Family::Gemma3 => (
                norm("pre_feedforward_layernorm")?,
                [norm("post_attention_layernorm")?, norm("post_feedforward_layernorm")?].map(Some),
            ),
            _ => (norm("post_attention_layernorm")?, [None, None]),
        };
        let linear = |part: &str| self.linear(&name(&format!("self_attn.{part}")));
        let matrix = |part: &str| self.matrix(&weight(&format!("mlp.{part}")));
        Ok(Layer {
            windowed: self.config.layers[index] == Mixer::Window,
            attention_norm: norm("input_layernorm")?,
            query: linear("q_proj")?,
            key: linear("k_proj")?,
            value: linear("v_proj")?,
            head_norms,
            output: linear("o_proj")?,
            attention_post_norm,
            ffn_norm,
            gate: matrix("gate_proj")?,
            up: matrix("up_proj")?,
            down: matrix("down_proj")?,
            ffn_post_norm,
        })
    }

    fn linear(&self, name: &str) -> Loaded<Linear> {
        let matrix = self.matrix(&format!("{name}.weight"))?;
        let bias = format!("{name}.bias");
        let bias = self.files.has(&bias).then(|| self.vector(&bias, 0.0)).transpose()?;
        Ok(Linear { matrix, bias })
    }

    fn matrix(&self, name: &str) -> Loaded<Matrix> {
        let Some(grouped) = self.files.grouped_tensor(name)? else {
            return Ok(Matrix::Plain(self.evaluated(array(&self.files.tensor(name)?))?));
        };
        let GroupedTensor { shape: [rows, cols], bits, group_len, words, scales, biases } = grouped;
        let words = numbers(words, u32::from_le_bytes);
        Ok(Matrix::Grouped {
            words: Array::from_slice(&words, &[rows as i32, (cols * bits / 32) as i32]),
            scales: self.evaluated(array(&scales))?,
            biases: self.evaluated(array(&biases))?,
            group_len: group_len as i32,
            bits: bits as i32,
        })
    }

    /// The weights of a norm, as they are to be multiplied with.
    fn norm(&self, name: &str) -> Loaded<Array> {
        self.vector(name, self.config.norm_offset)
    }

    /// A vector with `offset` added to each number, at full precision.
    fn vector(&self, name: &str, offset: f32) -> Loaded<Array> {
        let tensor = self.files.tensor(name)?;
        if !matches!(tensor.ty, WeightType::F32 | WeightType::F16 | WeightType::Bf16) {
            return Err(MlxLoadError::Quantised { name: name.to_owned() });
        }
        let numbers = array(&tensor).as_dtype(mlx_rs::Dtype::Float32)?;
        self.evaluated(numbers.add(Array::from_f32(offset))?)
    }

    fn evaluated(&self, array: Array) -> Loaded<Array> {
        let array = array.as_dtype(self.dtype)?;
        array.eval()?;
        Ok(array)
    }

    fn refuse(&self, name: String) -> Loaded<()> {
        if self.files.has(&name) { Err(MlxLoadError::UnsupportedTensor { name }) } else { Ok(()) }
    }
}

/// A copy of a tensor; one in blocks of quantised numbers as plain ones.
fn array(tensor: &Tensor<'_>) -> Array {
    let shape: Vec<_> = tensor.shape.iter().map(|len| *len as i32).collect();
    match tensor.ty {
        WeightType::F32 => Array::from_slice(&numbers(tensor.bytes, f32::from_le_bytes), &shape),
        WeightType::F16 => Array::from_slice(&numbers(tensor.bytes, f16::from_le_bytes), &shape),
        WeightType::Bf16 => Array::from_slice(&numbers(tensor.bytes, bf16::from_le_bytes), &shape),
        ty => {
            let cols = tensor.shape.last().copied().unwrap_or(1);
            let rows = tensor.shape.iter().product::<usize>() / cols.max(1);
            let matrix = cpu::matrix::Matrix::new(ty, rows, cols, tensor.bytes);
            let mut plain = vec![0.0; rows * cols];
            plain.chunks_mut(cols).enumerate().for_each(|(row, out)| matrix.row(row, out));
            Array::from_slice(&plain, &shape)
        }
    }
}

fn numbers<T, const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|bytes| number(*bytes)).collect()
}
