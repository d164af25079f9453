//! The small JSON files around a folder's weights.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::{
    LoadError, ModelConfig,
    grouped::Grouping,
    hf_config::{GenerationConfig, HfConfig},
    map::read_companion,
};

/// Largest configuration that is read, in bytes; real ones are some KB, and
/// `tokenizer_config.json` with thousands of added tokens some 100 KB.
const MAX_JSON: u64 = 16 << 20;
/// Largest tokenizer that is read, in bytes; those of 256 k tokens are some 35 MB.
const MAX_TOKENIZER: u64 = 256 << 20;

/// A folder in Hugging Face form, its small files read.
#[derive(Debug)]
pub(super) struct Folder {
    config: HfConfigFile,
    generation: GenerationConfig,
    tokenizer: Option<Vec<u8>>,
    tokenizer_config: TokenizerConfig,
    template: Option<String>,
}

/// `config.json` with its path, for errors.
#[derive(Debug)]
struct HfConfigFile {
    path: PathBuf,
    config: HfConfig,
}

/// What we read of `tokenizer_config.json`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct TokenizerConfig {
    add_bos_token: Option<bool>,
    bos_token: Option<Value>,
    eos_token: Option<Value>,
    chat_template: Option<Value>,
}

impl TokenizerConfig {
    /// Text of the BOS token.
    pub(super) fn bos(&self) -> Option<&str> {
        token_text(self.bos_token.as_ref()?)
    }

    /// Text of the EOS token.
    pub(super) fn eos(&self) -> Option<&str> {
        token_text(self.eos_token.as_ref()?)
    }
}

impl Folder {
    /// Reads the small files; `None` when there is no `config.json`.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, LoadError> {
        let Some(config) = read_json(&path.join("config.json"))? else { return Ok(None) };
        let template_path = path.join("chat_template.jinja");
        let template = read_companion(&template_path, MAX_JSON)?;
        Ok(Some(Self {
            config: HfConfigFile { path: path.join("config.json"), config },
            generation: read_json(&path.join("generation_config.json"))?.unwrap_or_default(),
            tokenizer: read_companion(&path.join("tokenizer.json"), MAX_TOKENIZER)?,
            tokenizer_config: read_json(&path.join("tokenizer_config.json"))?.unwrap_or_default(),
            template: template.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        }))
    }

    /// The common form of the configuration.
    pub(super) fn config(&self) -> Result<ModelConfig, LoadError> {
        let HfConfigFile { path, config } = &self.config;
        config.convert(path, &self.generation, self.add_bos())
    }

    /// How MLX quantised the checkpoint; none where it did not.
    pub(super) fn grouping(&self) -> Result<Option<Grouping>, LoadError> {
        let HfConfigFile { path, config } = &self.config;
        config.grouping(path)
    }

    /// The checkpoint's own name.
    pub(super) fn name(&self) -> Option<&str> {
        self.config.config.name()
    }

    /// `tokenizer.json`, empty when there is none.
    pub(super) fn tokenizer_bytes(&self) -> &[u8] {
        self.tokenizer.as_deref().unwrap_or_default()
    }

    /// What `tokenizer_config.json` says.
    pub(super) fn tokenizer_config(&self) -> &TokenizerConfig {
        &self.tokenizer_config
    }

    /// The chat template: `chat_template.jinja`, else the one in `tokenizer_config.json`, where
    /// of several the one named `default` counts.
    pub(super) fn chat_template(&self) -> Option<&str> {
        if let Some(template) = &self.template {
            return Some(template);
        }
        match self.tokenizer_config.chat_template.as_ref()? {
            Value::String(template) => Some(template),
            Value::Array(named) => {
                let default = named.iter().find(|t| t["name"] == "default")?;
                default["template"].as_str()
            }
            _ => None,
        }
    }

    /// Whether texts begin with BOS: what the tokenizer's post-processor does, else what
    /// `tokenizer_config.json` says.
    fn add_bos(&self) -> bool {
        let tokenizer = self.tokenizer_bytes();
        let processor = serde_json::from_slice::<PostProcessor>(tokenizer).ok();
        let first = processor.as_ref().and_then(|p| first_special(&p.post_processor));
        match (first, self.tokenizer_config.bos()) {
            (Some(first), Some(bos)) => first == bos,
            (Some(_), None) => true,
            (None, _) => self.tokenizer_config.add_bos_token.unwrap_or(false),
        }
    }
}

#[derive(Deserialize)]
struct PostProcessor {
    post_processor: Value,
}

/// The special token that a template post-processor puts before a single text.
fn first_special(processor: &Value) -> Option<&str> {
    match processor["type"].as_str()? {
        "TemplateProcessing" => processor["single"][0]["SpecialToken"]["id"].as_str(),
        "Sequence" => processor["processors"].as_array()?.iter().find_map(first_special),
        _ => None,
    }
}

/// A token's text, written as a string or as `{"content": ...}`.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Option<T>, LoadError> {
    let bytes = read_companion(path, MAX_JSON)?;
    bytes.map(|json| super::parse_json(path, &json)).transpose()
}
