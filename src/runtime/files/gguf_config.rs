//! The model's configuration from a GGUF file's settings.

use std::collections::BTreeMap;

use super::{
    LoadError,
    config::{Activation, Family, Mixer, ModelConfig, RopeScaling, all_attention},
    gguf::{Gguf, Value},
    weight::{Entry, WeightType},
};

/// Control tokens that end a turn although no setting names them; llama.cpp recognises these by
/// their text too (`llama-vocab.cpp`, special end-of-generation tokens).
const END_TEXTS: [&str; 8] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "</s>",
];

/// `LLAMA_TOKEN_TYPE_CONTROL`.
const CONTROL: f64 = 3.0;

/// The configuration of a parsed file; `bytes` is the whole file.
pub(super) fn convert(
    file: &Gguf,
    entries: &BTreeMap<String, Entry>,
    bytes: &[u8],
) -> Result<ModelConfig, LoadError> {
    let reader = Reader::new(file)?;
    reader.refuse_variations()?;
    let embedding = entries.get("model.embed_tokens.weight");
    let rows = embedding.and_then(|entry| entry.shape.first().copied());
    let heads = reader.size("attention.head_count")?;
    let hidden = reader.size("embedding_length")?;
    let head_dim = match reader.optional("attention.key_length")? {
        Some(head_dim) => head_dim,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    let mut config = ModelConfig {
        family: reader.family,
        hidden,
        layers: all_attention(file.path(), reader.size("block_count")?)?,
        window: 0,
        convolution_taps: 0,
        heads,
        kv_heads: reader.optional("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        ffn: reader.size("feed_forward_length")?,
        vocab: match rows {
            Some(rows) => rows,
            None => reader.size("vocab_size")?,
        },
        norm_eps: reader.float("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5) as f32,
        norm_offset: 0.0,
        embedding_scale: 1.0,
        attention_scale: 1.0 / (head_dim as f32).sqrt(),
        activation: Activation::Silu,
        rope_inverse_frequencies: Vec::new(),
        rope_local_inverse_frequencies: Vec::new(),
        rope_interleaved: reader.family == Family::Llama,
        tied_head: !entries.contains_key("lm_head.weight"),
        context: reader.size("context_length")?,
        bos: token(file, "tokenizer.ggml.bos_token_id")?,
        add_bos: add_bos(file)?,
        eos: ends(file, bytes)?,
    };
    if reader.family == Family::Gemma3 {
        reader.adjust_gemma3(&mut config)?;
    }
    config.validate(file.path())?;
    reader.refuse_partial_heads(head_dim)?;
    config.rope_inverse_frequencies = reader.frequencies(head_dim, entries, bytes)?;
    config.validate(file.path())?;
    Ok(config)
}

/// Whether the tokenizer begins texts with the BOS token: as the file says, else as llama.cpp
/// defaults, by the tokenizer's kind.
fn add_bos(file: &Gguf) -> Result<bool, LoadError> {
    if let Some(add) = file.flag("tokenizer.ggml.add_bos_token")? {
        return Ok(add);
    }
    let sentence_piece = file.text("tokenizer.ggml.model")? == Some("llama");
    let pre = file.text("tokenizer.ggml.pre")?;
    Ok(sentence_piece || matches!(pre, Some("llama-bpe" | "llama3" | "llama-v3")))
}

/// A token id among the settings.
pub(super) fn token(file: &Gguf, key: &str) -> Result<Option<u32>, LoadError> {
    let Some(id) = file.integer(key)? else { return Ok(None) };
    let id = u32::try_from(id)
        .map_err(|_| file.invalid(key, "a token id below 2^32", &Value::Unsigned(id)))?;
    // Converters write all ones for "none".
    Ok(Some(id).filter(|id| *id != u32::MAX))
}

fn ends(file: &Gguf, bytes: &[u8]) -> Result<Vec<u32>, LoadError> {
    let mut ends = Vec::new();
    for key in ["eos", "eot", "eom"] {
        ends.extend(token(file, &format!("tokenizer.ggml.{key}_token_id"))?);
    }
    let tokens = file.texts("tokenizer.ggml.tokens", bytes)?.unwrap_or_default();
    let types = file.numbers("tokenizer.ggml.token_type", bytes)?.unwrap_or_default();
    let marked = (0u32..).zip(tokens.iter().zip(&types));
    ends.extend(
        marked
            .filter(|(_, (text, ty))| **ty == CONTROL && END_TEXTS.contains(&text.as_str()))
            .map(|(id, _)| id),
    );
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}

/// Reads settings below the architecture's name.
struct Reader<'a> {
    file: &'a Gguf,
    architecture: &'a str,
    family: Family,
}

impl<'a> Reader<'a> {
    fn new(file: &'a Gguf) -> Result<Self, LoadError> {
        let key = "general.architecture";
        let architecture = file.text(key)?.ok_or_else(|| missing(file, key.to_owned()))?;
        let family = match architecture {
            "llama" => Family::Llama,
            "qwen3" => Family::Qwen3,
            "gemma3" => Family::Gemma3,
            other => {
                let (path, family) = (file.path().to_owned(), other.to_owned());
                let supported = "llama, qwen3 and gemma3";
                return Err(LoadError::UnsupportedFamily { path, family, supported });
            }
        };
        Ok(Self { file, architecture, family })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn optional(&self, name: &str) -> Result<Option<usize>, LoadError> {
        Ok(self.file.integer(&self.key(name))?.map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
    }

    fn size(&self, name: &str) -> Result<usize, LoadError> {
        self.optional(name)?.ok_or_else(|| missing(self.file, self.key(name)))
    }

    fn float(&self, name: &str) -> Result<Option<f64>, LoadError> {
        self.file.float(&self.key(name))
    }

    fn refuse_variations(&self) -> Result<(), LoadError> {
        match self.optional("expert_count")? {
            None | Some(0) => Ok(()),
            Some(n) => Err(self.unsupported("expert_count", n.to_string(), "0")),
        }
    }

    /// Makes a configuration that was read as another family's one of Gemma 3, as llama.cpp does
    /// (`models/gemma3.cpp`). The offset of the norms is in the file's weights already.
    fn adjust_gemma3(&self, config: &mut ModelConfig) -> Result<(), LoadError> {
        let name = "final_logit_softcapping";
        if let Some(cap) = self.float(name)?.filter(|cap| *cap != 0.0) {
            return Err(self.unsupported(name, cap.to_string(), "none"));
        }
        let pattern = self.optional("attention.sliding_window_pattern")?.unwrap_or(6);
        for (layer, mixer) in (1..).zip(&mut config.layers) {
            if pattern == 0 || !usize::is_multiple_of(layer, pattern) {
                *mixer = Mixer::Window;
            }
        }
        config.window = self.size("attention.sliding_window")?;
        config.activation = Activation::GeluTanh;
        config.embedding_scale = (config.hidden as f32).sqrt();
        // The model of 27 billion parameters, which no setting tells from the others.
        if config.layers.len() == 62 {
            let width = config.hidden.checked_div(config.heads).unwrap_or(0);
            config.attention_scale = 1.0 / (width as f32).sqrt();
        }
        let theta = self.float("rope.freq_base_swa")?.unwrap_or(10_000.0);
        config.rope_local_inverse_frequencies =
            RopeScaling::None.inverse_frequencies(theta, config.head_dim);
        Ok(())
    }

    fn refuse_partial_heads(&self, head_dim: usize) -> Result<(), LoadError> {
        for name in ["rope.dimension_count", "attention.value_length"] {
            if let Some(found) = self.optional(name)?.filter(|n| *n != head_dim) {
                let expected = "the head size";
                return Err(self.unsupported(name, found.to_string(), expected));
            }
        }
        Ok(())
    }

    /// Base, scaling setting and the per-pair divisors that Llama 3 conversions store.
    fn frequencies(
        &self,
        head_dim: usize,
        entries: &BTreeMap<String, Entry>,
        bytes: &[u8],
    ) -> Result<Vec<f32>, LoadError> {
        let theta = self.float("rope.freq_base")?.unwrap_or(10_000.0);
        let mut frequencies = self.scaling()?.inverse_frequencies(theta, head_dim);
        let name = "rope_freqs.weight";
        let Some(entry) = entries.get(name) else { return Ok(frequencies) };
        let path = || self.file.path().to_owned();
        if entry.shape != [head_dim / 2] {
            let (expected, found) = (vec![head_dim / 2], entry.shape.clone());
            let (path, name) = (path(), name.to_owned());
            return Err(LoadError::WrongShape { path, name, expected, found });
        }
        if entry.ty != Ok(WeightType::F32) {
            let (name, found) = (name.to_owned(), format!("{:?}", entry.ty));
            return Err(LoadError::UnsupportedTensorType { path: path(), name, found });
        }
        let (divisors, _) = bytes[entry.range.clone()].as_chunks::<4>();
        for (frequency, divisor) in frequencies.iter_mut().zip(divisors) {
            *frequency /= f32::from_le_bytes(*divisor);
        }
        Ok(frequencies)
    }

    fn scaling(&self) -> Result<RopeScaling, LoadError> {
        let key = self.key("rope.scaling.type");
        let factor = self.float("rope.scaling.factor")?;
        // Files from before `rope.scaling.type` carry only this.
        let legacy = self.float("rope.scale_linear")?;
        match (self.file.text(&key)?, factor, legacy) {
            (None | Some("none"), _, None) => Ok(RopeScaling::None),
            (Some("linear"), Some(factor), _) | (None, _, Some(factor)) if factor > 0.0 => {
                Ok(RopeScaling::Linear(factor))
            }
            (found, ..) => {
                let found = found.unwrap_or("a factor that is not positive").to_owned();
                Err(self.unsupported("rope.scaling.type", found, "none, or linear with a factor"))
            }
        }
    }

    fn unsupported(&self, name: &str, found: String, expected: &'static str) -> LoadError {
        let (path, feature) = (self.file.path().to_owned(), self.key(name));
        LoadError::UnsupportedFeature { path, feature, found, expected }
    }
}

fn missing(file: &Gguf, key: String) -> LoadError {
    LoadError::MissingSetting { path: file.path().to_owned(), key }
}
