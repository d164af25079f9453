//! `config.json` and its companions, as transformers writes them (version 5 and older).

mod gemma3;
mod lfm2;

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{
    LoadError,
    config::{Activation, Family, Mixer, ModelConfig, RopeScaling, all_attention},
    grouped::Grouping,
};
use gemma3::Gemma3;
use lfm2::Lfm2;

/// The fields that we read; older and newer names side by side.
#[derive(Debug, Deserialize)]
pub(super) struct HfConfig {
    model_type: String,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    intermediate_size: Option<usize>,
    vocab_size: usize,
    rms_norm_eps: Option<f64>,
    max_position_embeddings: Option<usize>,
    tie_word_embeddings: Option<bool>,
    hidden_act: Option<String>,
    use_sliding_window: Option<bool>,
    partial_rotary_factor: Option<f64>,
    bos_token_id: Option<Value>,
    eos_token_id: Option<Value>,
    /// Since transformers 5; holds `rope_theta`, `rope_type` and the scaling's numbers.
    rope_parameters: Option<Rope>,
    /// Before transformers 5, beside `rope_theta`.
    rope_scaling: Option<Rope>,
    rope_theta: Option<f64>,
    layer_types: Option<Vec<String>>,
    /// Of checkpoints that MLX quantised.
    quantization: Option<Value>,
    #[serde(rename = "_name_or_path")]
    name: Option<String>,
    #[serde(flatten)]
    gemma3: Gemma3,
    #[serde(flatten)]
    lfm2: Lfm2,
}

#[derive(Debug, Deserialize)]
struct Rope {
    rope_theta: Option<f64>,
    /// `type` before transformers 4.43.
    #[serde(alias = "type")]
    rope_type: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
    /// Of Gemma 3, which has a rotation for each type of layers.
    full_attention: Option<Box<Rope>>,
    sliding_attention: Option<Box<Rope>>,
}

/// What MLX says of all layers. Where it treats some otherwise it names them here too.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quantization {
    group_size: usize,
    bits: usize,
    mode: Option<String>,
}

/// What `generation_config.json` adds.
#[derive(Debug, Default, Deserialize)]
pub(super) struct GenerationConfig {
    eos_token_id: Option<Value>,
}

impl HfConfig {
    /// The checkpoint's own name, when it has one that is no path.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| !name.is_empty() && !name.starts_with(['/', '.']))
    }

    /// How MLX quantised the checkpoint; none where it did not.
    pub(super) fn grouping(&self, path: &Path) -> Result<Option<Grouping>, LoadError> {
        let Some(found) = &self.quantization else { return Ok(None) };
        let expected = "group_size, bits, and no other mode than affine";
        let refused = || unsupported(path, "quantization", &found.to_string(), expected);
        let said: Quantization = serde_json::from_value(found.clone()).map_err(|_| refused())?;
        if said.mode.as_deref().is_some_and(|mode| mode != "affine") {
            return Err(refused());
        }
        Grouping::new(said.group_size, said.bits).ok_or_else(refused).map(Some)
    }

    /// The common form. `path` is the file, for errors; `add_bos` comes from the tokenizer.
    pub(super) fn convert(
        &self,
        path: &Path,
        generation: &GenerationConfig,
        add_bos: bool,
    ) -> Result<ModelConfig, LoadError> {
        let family = self.family(path)?;
        self.refuse_variations(path)?;
        let ffn = self.intermediate_size.or(self.lfm2.ffn_setting());
        let ffn = ffn.ok_or_else(|| {
            let key = "intermediate_size".to_owned();
            LoadError::MissingSetting { path: path.to_owned(), key }
        })?;
        let ties = matches!(family, Family::Gemma3 | Family::Lfm2);
        let head_dim = match self.head_dim {
            Some(head_dim) => head_dim,
            None if family == Family::Gemma3 => 256,
            None => self.hidden_size.checked_div(self.num_attention_heads).unwrap_or(0),
        };
        let mut config = ModelConfig {
            family,
            hidden: self.hidden_size,
            layers: all_attention(path, self.num_hidden_layers)?,
            window: 0,
            convolution_taps: 0,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            head_dim,
            ffn,
            vocab: self.vocab_size,
            norm_eps: self.rms_norm_eps.unwrap_or(1e-6) as f32,
            norm_offset: 0.0,
            embedding_scale: 1.0,
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            activation: Activation::Silu,
            rope_inverse_frequencies: Vec::new(),
            rope_local_inverse_frequencies: Vec::new(),
            rope_interleaved: false,
            tied_head: self.tie_word_embeddings.unwrap_or(ties),
            context: self.max_position_embeddings.unwrap_or(2048),
            bos: self.bos_token_id.as_ref().and_then(|v| token_ids(v).first().copied()),
            add_bos,
            eos: self.ends(generation),
        };
        let types = self.layer_types.as_deref();
        match family {
            Family::Gemma3 => self.gemma3.adjust(path, types, &mut config)?,
            Family::Lfm2 => self.lfm2.adjust(path, types, &mut config)?,
            Family::Llama | Family::Qwen3 => {}
        }
        config.validate(path)?;
        let [full, local] = match family {
            Family::Gemma3 => self.gemma3_rotations(path, head_dim)?,
            _ => [self.rotation(path, family, head_dim)?, Vec::new()],
        };
        config.rope_inverse_frequencies = full;
        config.rope_local_inverse_frequencies = local;
        config.validate(path)?;
        Ok(config)
    }

    fn family(&self, path: &Path) -> Result<Family, LoadError> {
        match self.model_type.as_str() {
            "llama" => Ok(Family::Llama),
            "qwen3" => Ok(Family::Qwen3),
            "gemma3_text" => Ok(Family::Gemma3),
            "lfm2" => Ok(Family::Lfm2),
            other => Err(LoadError::UnsupportedFamily {
                path: path.to_owned(),
                family: other.to_owned(),
                supported: "llama, qwen3, gemma3_text and lfm2",
            }),
        }
    }

    /// Refuses what would silently compute something else.
    fn refuse_variations(&self, path: &Path) -> Result<(), LoadError> {
        if let Some(act) = self.hidden_act.as_deref().filter(|act| *act != "silu") {
            return Err(unsupported(path, "hidden_act", act, "silu"));
        }
        if self.use_sliding_window == Some(true) {
            return Err(unsupported(path, "use_sliding_window", "true", "false"));
        }
        let nested = self.rope_parameters.as_ref().and_then(|r| r.partial_rotary_factor);
        if let Some(part) = self.partial_rotary_factor.or(nested).filter(|part| *part != 1.0) {
            return Err(unsupported(path, "partial_rotary_factor", &part.to_string(), "1"));
        }
        Ok(())
    }

    fn ends(&self, generation: &GenerationConfig) -> Vec<u32> {
        let named = [&self.eos_token_id, &generation.eos_token_id];
        let mut ends: Vec<u32> = named.into_iter().flatten().flat_map(token_ids).collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    fn rotation(
        &self,
        path: &Path,
        family: Family,
        head_dim: usize,
    ) -> Result<Vec<f32>, LoadError> {
        let rope = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        // 10,000 is the default of the rotary embedding paper; both are those of transformers.
        let default = if family == Family::Lfm2 { 1e6 } else { 10_000.0 };
        let theta = rope.and_then(|r| r.rope_theta).or(self.rope_theta).unwrap_or(default);
        Ok(scaling(path, rope)?.inverse_frequencies(theta, head_dim))
    }
}

/// How a rotation is stretched.
fn scaling(path: &Path, rope: Option<&Rope>) -> Result<RopeScaling, LoadError> {
    let Some(rope) = rope else { return Ok(RopeScaling::None) };
    let need = |value: Option<f64>, key: &str| {
        let found = value.filter(|x| x.is_finite() && *x > 0.0);
        let key = format!("rope_parameters.{key}");
        found.ok_or_else(|| LoadError::MissingSetting { path: path.to_owned(), key })
    };
    match rope.rope_type.as_deref().unwrap_or("default") {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear(need(rope.factor, "factor")?)),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: need(rope.factor, "factor")?,
            low: need(rope.low_freq_factor, "low_freq_factor")?,
            high: need(rope.high_freq_factor, "high_freq_factor")?,
            original_context: need(
                rope.original_max_position_embeddings,
                "original_max_position_embeddings",
            )?,
        }),
        other => Err(unsupported(path, "rope_type", other, "default, linear or llama3")),
    }
}

/// What each layer is, from its type in the file, or from its number where the file has no types.
fn layer_types(
    path: &Path,
    types: Option<&[String]>,
    layers: usize,
    untyped: impl Fn(usize) -> Mixer,
    mixer: impl Fn(&str) -> Option<Mixer>,
) -> Result<Vec<Mixer>, LoadError> {
    let Some(types) = types else { return Ok((0..layers).map(untyped).collect()) };
    if types.len() != layers {
        return Err(LoadError::InvalidSetting {
            path: path.to_owned(),
            key: "layer_types".to_owned(),
            expected: "one type for each layer",
            found: format!("{} types for {layers} layers", types.len()),
        });
    }
    let expected = "a type that layers of this family have";
    let known =
        |ty: &String| mixer(ty).ok_or_else(|| unsupported(path, "layer_types", ty, expected));
    types.iter().map(known).collect()
}

fn unsupported(path: &Path, feature: &str, found: &str, expected: &'static str) -> LoadError {
    let (path, feature, found) = (path.to_owned(), feature.to_owned(), found.to_owned());
    LoadError::UnsupportedFeature { path, feature, found, expected }
}

/// One token id or a list of them; anything else is none.
fn token_ids(value: &Value) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Value::Array(ids) => ids.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(extra: &str) -> Result<ModelConfig, LoadError> {
        let json = format!(
            r#"{{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
                "num_attention_heads": 8, "intermediate_size": 96, "vocab_size": 100,
                "eos_token_id": [7, 5] {extra}}}"#
        );
        let config: HfConfig = serde_json::from_str(&json).unwrap();
        config.convert(Path::new("config.json"), &GenerationConfig::default(), false)
    }

    #[test]
    fn old_names_are_understood() {
        let old = convert(
            r#", "torch_dtype": "bfloat16", "rope_theta": 10000.0,
               "rope_scaling": {"type": "linear", "factor": 2.0}"#,
        )
        .unwrap();
        assert_eq!(old.rope_inverse_frequencies[0], 0.5);
        assert_eq!((old.head_dim, old.kv_heads), (8, 8));
        assert_eq!(old.eos, [5, 7]);
    }

    #[test]
    fn new_names_are_understood() {
        let new = convert(
            r#", "dtype": "bfloat16", "num_key_value_heads": 2, "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192}"#,
        )
        .unwrap();
        assert_eq!(new.kv_heads, 2);
        assert_eq!(new.rope_inverse_frequencies[0], 1.0);
    }

    #[test]
    fn variations_are_refused_by_name() {
        for (extra, word) in [
            (r#", "hidden_act": "gelu""#, "hidden_act"),
            (r#", "rope_scaling": {"rope_type": "yarn", "factor": 4.0}"#, "yarn"),
            (r#", "use_sliding_window": true"#, "sliding"),
            (r#", "num_key_value_heads": 3"#, "multiple"),
            (r#", "num_key_value_heads": 0"#, "key and value heads"),
            (r#", "head_dim": 7"#, "even"),
        ] {
            let error = convert(extra).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
