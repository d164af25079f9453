//! What is special in a `config.json` of the LFM2 family.

use std::path::Path;

use serde::Deserialize;

use super::{layer_types, unsupported};
use crate::files::{
    LoadError,
    config::{Mixer, ModelConfig},
};

/// Fields that only this family has, or has with another meaning. Defaults are those of transformers'
/// `Lfm2Config`.
#[derive(Debug, Deserialize)]
pub(super) struct Lfm2 {
    norm_eps: Option<f64>,
    /// Before `layer_types`: the layers with attention.
    full_attn_idxs: Option<Vec<usize>>,
    #[serde(rename = "conv_L_cache")]
    conv_taps: Option<usize>,
    conv_bias: Option<bool>,
    /// Before `intermediate_size`.
    block_ff_dim: Option<usize>,
    block_auto_adjust_ff_dim: Option<bool>,
    block_ffn_dim_multiplier: Option<f64>,
    block_multiple_of: Option<usize>,
    /// Before `tie_word_embeddings`.
    tie_embedding: Option<bool>,
}

impl Lfm2 {
    /// The width that the feed-forward layers follow from, under its older name.
    pub(super) fn ffn_setting(&self) -> Option<usize> {
        self.block_ff_dim
    }

    /// Makes a configuration that was read as another family's one of this.
    pub(super) fn adjust(
        &self,
        path: &Path,
        types: Option<&[String]>,
        config: &mut ModelConfig,
    ) -> Result<(), LoadError> {
        if self.conv_bias == Some(true) {
            return Err(unsupported(path, "conv_bias", "true", "false"));
        }
        config.layers = self.mixers(path, types, config.layers.len())?;
        if config.layers.contains(&Mixer::Convolution) {
            config.convolution_taps = self.conv_taps.unwrap_or(3);
        }
        config.ffn = self.ffn(self.ffn_setting().unwrap_or(config.ffn));
        config.norm_eps = self.norm_eps.unwrap_or(1e-5) as f32;
        config.tied_head = self.tie_embedding.unwrap_or(config.tied_head);
        Ok(())
    }

    fn mixers(
        &self,
        path: &Path,
        types: Option<&[String]>,
        layers: usize,
    ) -> Result<Vec<Mixer>, LoadError> {
        let untyped = |layer| match &self.full_attn_idxs {
            Some(indices) if !indices.contains(&layer) => Mixer::Convolution,
            _ => Mixer::Attention,
        };
        layer_types(path, types, layers, untyped, |ty| match ty {
            "full_attention" => Some(Mixer::Attention),
            "conv" => Some(Mixer::Convolution),
            _ => None,
        })
    }

    /// The width of the feed-forward layers, as `Lfm2MLP` in transformers takes it from the setting.
    fn ffn(&self, setting: usize) -> usize {
        if self.block_auto_adjust_ff_dim == Some(false) {
            return setting;
        }
        let multiplier = self.block_ffn_dim_multiplier.unwrap_or(1.0);
        let width = (multiplier * (setting.saturating_mul(2) / 3) as f64) as usize;
        let multiple = self.block_multiple_of.unwrap_or(256);
        // What cannot be rounded up is no width, and refused as such.
        width.checked_next_multiple_of(multiple).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GenerationConfig, HfConfig};
    use super::*;

    fn convert(extra: &str) -> Result<ModelConfig, LoadError> {
        convert_with(&format!(r#", "intermediate_size": 384 {extra}"#))
    }

    fn convert_with(extra: &str) -> Result<ModelConfig, LoadError> {
        let json = format!(
            r#"{{"model_type": "lfm2", "hidden_size": 64, "num_hidden_layers": 3,
                "num_attention_heads": 4, "vocab_size": 100 {extra}}}"#
        );
        let config: HfConfig = serde_json::from_str(&json).unwrap();
        config.convert(Path::new("config.json"), &GenerationConfig::default(), false)
    }

    #[test]
    fn older_and_newer_names_are_understood() {
        use Mixer::{Attention, Convolution};
        let old = r#", "full_attn_idxs": [1], "tie_embedding": false, "block_ff_dim": 768"#;
        assert_eq!(convert_with(old).unwrap(), convert(old).unwrap());
        let old = convert(old).unwrap();
        assert_eq!(old.layers, [Convolution, Attention, Convolution]);
        assert_eq!((old.convolution_taps, old.ffn, old.tied_head), (3, 512, false));
        let new = r#", "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 4,
            "block_multiple_of": 100, "block_ffn_dim_multiplier": 1.5, "norm_eps": 0.25"#;
        let new = convert(new).unwrap();
        assert_eq!((new.layers, new.convolution_taps), (old.layers, 4));
        assert_eq!((new.ffn, new.norm_eps, new.tied_head), (400, 0.25, true));
        let plain = convert(r#", "block_auto_adjust_ff_dim": false"#).unwrap();
        assert_eq!((plain.ffn, plain.convolution_taps), (384, 0));
        assert_eq!(plain.layers, [Attention; 3]);
        assert_eq!(plain.rope_inverse_frequencies[1], 1e6f64.powf(-0.125) as f32);
    }

    #[test]
    fn variations_are_refused_by_name() {
        let missing = convert_with("").unwrap_err().to_string();
        assert!(missing.contains("`intermediate_size` is missing"), "{missing}");
        let one = r#", "full_attn_idxs": [0]"#;
        for (extra, word) in [
            (r#", "layer_types": ["conv"]"#, "1 types for 3 layers"),
            (r#", "layer_types": ["conv", "mamba", "conv"]"#, "mamba"),
            (r#", "conv_bias": true"#, "conv_bias"),
            (&format!(r#"{one}, "conv_L_cache": 0"#), "convolution length"),
            (&format!(r#"{one}, "conv_L_cache": 65"#), "convolution length"),
            (r#", "block_multiple_of": 0"#, "feed-forward size"),
            (r#", "block_ffn_dim_multiplier": 1e300"#, "feed-forward size"),
        ] {
            let error = convert(extra).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
