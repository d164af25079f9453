//! What is special in a `config.json` of the Gemma 3 family.

use std::path::Path;

use serde::Deserialize;

use super::{HfConfig, Rope, layer_types, scaling, unsupported};
use crate::files::{
    LoadError,
    config::{Activation, Mixer, ModelConfig},
};

/// Fields that only this family has. Defaults are those of transformers' `Gemma3TextConfig`.
#[derive(Debug, Deserialize)]
pub(super) struct Gemma3 {
    hidden_activation: Option<String>,
    query_pre_attn_scalar: Option<f64>,
    sliding_window: Option<usize>,
    /// Before `layer_types`: of so many layers, the last one attends to all tokens.
    sliding_window_pattern: Option<usize>,
    #[serde(rename = "_sliding_window_pattern")]
    private_sliding_window_pattern: Option<usize>,
    /// Before transformers 5, beside `rope_theta`.
    rope_local_base_freq: Option<f64>,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    attention_bias: Option<bool>,
    use_bidirectional_attention: Option<bool>,
}

impl Gemma3 {
    /// Makes a configuration that was read as another family's one of this; without the rotations.
    pub(super) fn adjust(
        &self,
        path: &Path,
        types: Option<&[String]>,
        config: &mut ModelConfig,
    ) -> Result<(), LoadError> {
        self.refuse_variations(path)?;
        config.layers = self.mixers(path, types, config.layers.len())?;
        config.window = self.sliding_window.unwrap_or(4096);
        config.activation = Activation::GeluTanh;
        config.norm_offset = 1.0;
        config.embedding_scale = (config.hidden as f32).sqrt();
        let scalar = self.query_pre_attn_scalar.unwrap_or(256.0);
        config.attention_scale = scalar.sqrt().recip() as f32;
        Ok(())
    }

    /// The base of the rotation in layers with a window.
    pub(super) fn local_theta(&self) -> f64 {
        self.rope_local_base_freq.unwrap_or(10_000.0)
    }

    fn refuse_variations(&self, path: &Path) -> Result<(), LoadError> {
        let tanh = "gelu_pytorch_tanh";
        if let Some(other) = self.hidden_activation.as_deref().filter(|found| *found != tanh) {
            return Err(unsupported(path, "hidden_activation", other, tanh));
        }
        for (feature, cap) in [
            ("attn_logit_softcapping", self.attn_logit_softcapping),
            ("final_logit_softcapping", self.final_logit_softcapping),
        ] {
            if let Some(cap) = cap {
                return Err(unsupported(path, feature, &cap.to_string(), "null"));
            }
        }
        for (feature, flag) in [
            ("attention_bias", self.attention_bias),
            ("use_bidirectional_attention", self.use_bidirectional_attention),
        ] {
            if flag == Some(true) {
                return Err(unsupported(path, feature, "true", "false"));
            }
        }
        Ok(())
    }

    fn mixers(
        &self,
        path: &Path,
        types: Option<&[String]>,
        layers: usize,
    ) -> Result<Vec<Mixer>, LoadError> {
        let pattern = self.sliding_window_pattern.or(self.private_sliding_window_pattern);
        let pattern = pattern.unwrap_or(6);
        let is_full = |layer: usize| pattern != 0 && (layer + 1).is_multiple_of(pattern);
        let untyped = |layer| if is_full(layer) { Mixer::Attention } else { Mixer::Window };
        layer_types(path, types, layers, untyped, |ty| match ty {
            "full_attention" => Some(Mixer::Attention),
            "sliding_attention" => Some(Mixer::Window),
            _ => None,
        })
    }
}

impl HfConfig {
    /// The rotations of a Gemma 3: of layers without a window, and with one.
    pub(super) fn gemma3_rotations(
        &self,
        path: &Path,
        head_dim: usize,
    ) -> Result<[Vec<f32>; 2], LoadError> {
        let (full, window) = match &self.rope_parameters {
            Some(rope) => (rope.full_attention.as_deref(), rope.sliding_attention.as_deref()),
            None => (self.rope_scaling.as_ref(), None),
        };
        let theta = full.and_then(|rope| rope.rope_theta).or(self.rope_theta).unwrap_or(1e6);
        let local = window.and_then(|rope| rope.rope_theta);
        let local = local.unwrap_or_else(|| self.gemma3.local_theta());
        let frequencies = |rope: Option<&Rope>, theta| {
            Ok(scaling(path, rope)?.inverse_frequencies(theta, head_dim))
        };
        Ok([frequencies(full, theta)?, frequencies(window, local)?])
    }
}

#[cfg(test)]
mod tests {
    use super::super::GenerationConfig;
    use super::*;

    fn convert(extra: &str) -> Result<ModelConfig, LoadError> {
        let json = format!(
            r#"{{"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 7,
                "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8,
                "intermediate_size": 96, "vocab_size": 100 {extra}}}"#
        );
        let config: HfConfig = serde_json::from_str(&json).unwrap();
        config.convert(Path::new("config.json"), &GenerationConfig::default(), false)
    }

    #[test]
    fn older_and_newer_names_are_understood() {
        let old = convert(
            r#", "sliding_window_pattern": 3, "sliding_window": 32, "rope_theta": 10000.0,
                "rope_local_base_freq": 100.0, "query_pre_attn_scalar": 16,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0}"#,
        );
        let old = old.unwrap();
        use Mixer::{Attention, Window};
        let layers = [Window, Window, Attention, Window, Window, Attention, Window];
        assert_eq!((&old.layers[..], old.window), (&layers[..], 32));
        assert_eq!((old.attention_scale, old.embedding_scale, old.norm_offset), (0.25, 8.0, 1.0));
        assert!(old.tied_head);
        let new = convert(
            r#", "layer_types": ["sliding_attention", "sliding_attention", "full_attention",
                "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
                "sliding_window": 32, "query_pre_attn_scalar": 16, "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}"#,
        );
        assert_eq!(new.unwrap(), old);
        let expected: Vec<f32> = [1.25e-1, 1.25e-2, 1.25e-3, 1.25e-4].into();
        assert_eq!(old.rope_inverse_frequencies, expected);
        assert_eq!(old.rope_local_inverse_frequencies[2], 0.1);
        let plain = convert("").unwrap();
        assert_eq!(plain.layers.iter().filter(|mixer| **mixer == Attention).count(), 1);
        assert_eq!((plain.window, plain.attention_scale), (4096, 0.0625));
    }

    #[test]
    fn variations_are_refused_by_name() {
        for (extra, word) in [
            (r#", "hidden_activation": "silu""#, "hidden_activation"),
            (r#", "final_logit_softcapping": 30.0"#, "final_logit_softcapping"),
            (r#", "attn_logit_softcapping": 50.0"#, "attn_logit_softcapping"),
            (r#", "use_bidirectional_attention": true"#, "use_bidirectional_attention"),
            (r#", "attention_bias": true"#, "attention_bias"),
            (r#", "layer_types": ["conv"]"#, "1 types for 7 layers"),
            (r#", "sliding_window": 0"#, "window"),
            (r#", "query_pre_attn_scalar": 0"#, "scale"),
            (r#", "query_pre_attn_scalar": -1"#, "scale"),
        ] {
            let error = convert(extra).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
