//! Model files: GGUF and safetensors checkpoints behind one view.
//!
//! [`ModelFiles::open`] maps the weights into memory, reads the configuration into a
//! [`ModelConfig`] and checks that every tensor the family needs is there, whole, and of the
//! right shape. Tensors go by the names that Llama has at Hugging Face, whatever the format:
//!
//! ```text
//! model.embed_tokens.weight    [vocab, hidden]          model.norm.weight  [hidden]
//! lm_head.weight               [vocab, hidden]          absent when the head is tied
//! model.layers.{i}.input_layernorm.weight               [hidden]
//! model.layers.{i}.post_attention_layernorm.weight      [hidden]
//! model.layers.{i}.self_attn.q_proj.weight              [heads * head_dim, hidden]
//! model.layers.{i}.self_attn.{k,v}_proj.weight          [kv_heads * head_dim, hidden]
//! model.layers.{i}.self_attn.o_proj.weight              [hidden, heads * head_dim]
//! model.layers.{i}.self_attn.{q,k}_norm.weight          [head_dim], not Llama
//! model.layers.{i}.conv.in_proj.weight                  [3 * hidden, hidden], in a layer of LFM2
//! model.layers.{i}.conv.conv.weight                     [hidden, 1, taps]     that has no self_attn
//! model.layers.{i}.conv.out_proj.weight                 [hidden, hidden]
//! model.layers.{i}.{pre,post}_feedforward_layernorm.weight  [hidden], Gemma 3 only
//! model.layers.{i}.mlp.{gate,up}_proj.weight            [ffn, hidden]
//! model.layers.{i}.mlp.down_proj.weight                 [hidden, ffn]
//! ```
//!
//! A projection may have a `.bias` beside its `.weight`. Where MLX quantised a matrix, it has `.scales` and
//! `.biases` beside its `.weight` ([`ModelFiles::grouped_tensor`]). Invariant: a tensor handed out lies
//! within its mapped file and has exactly `ty.tensor_bytes(&shape)` bytes.

mod config;
mod cursor;
mod error;
mod fingerprint;
mod folder;
mod gguf;
mod gguf_config;
mod grouped;
mod hf_config;
mod map;
mod names;
mod safetensors;
#[cfg(test)]
mod tests;
mod text;
mod weight;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::OnceLock,
};

pub use config::{Activation, Family, Mixer, ModelConfig};
pub use error::LoadError;
pub use fingerprint::ModelFingerprint;
pub use grouped::GroupedTensor;
pub use weight::{Tensor, WeightType};

use folder::Folder;
use gguf::Gguf;
use grouped::Grouping;
use map::MappedFile;
use weight::Entry;

/// What makes a model, for the error about a folder without one.
const EXPECTED: &str = "a .gguf file, or a folder with either config.json and *.safetensors or \
                        exactly one .gguf file";

/// An opened model: mapped weights, configuration, and access to tokenizer and chat template.
///
/// The files must not be changed while this is alive: tensors are views of the mapped files, so a
/// writer would change weights under a running model, and shortening a file ends the process with
/// `SIGBUS`. Replace a model by renaming a new file over the old one.
#[derive(Debug)]
pub struct ModelFiles {
    path: PathBuf,
    id: String,
    maps: Vec<MappedFile>,
    entries: BTreeMap<String, Entry>,
    config: ModelConfig,
    /// How MLX quantised the matrices; none where it did not.
    grouping: Option<Grouping>,
    source: Source,
    fingerprint: OnceLock<ModelFingerprint>,
}

/// Where configuration and tokenizer come from.
#[derive(Debug)]
enum Source {
    Gguf(Gguf),
    Folder(Box<Folder>),
}

impl ModelFiles {
    /// Opens the model at `path`: a `.gguf` file, a folder with `config.json` and `*.safetensors`,
    /// or a folder with exactly one `.gguf` file.
    ///
    /// Reads headers only; the weights are mapped, and come into memory as they are touched.
    ///
    /// # Errors
    ///
    /// Any [`LoadError`] but those about tokenizers and chat templates.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let kind = path.metadata().map_err(|e| map::io_error(path, e))?;
        let files = match kind.is_dir() {
            true => Self::open_folder(path)?,
            false => Self::open_gguf(path, path)?,
        };
        files.check_tensors()?;
        Ok(files)
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A short identifier for APIs: the file's name without `.gguf`, or the folder's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The name that the checkpoint gives itself, else [`id`](Self::id).
    pub fn name(&self) -> &str {
        let own = match &self.source {
            Source::Gguf(file) => file.text("general.name").ok().flatten(),
            Source::Folder(folder) => folder.name(),
        };
        own.filter(|name| !name.trim().is_empty()).unwrap_or(&self.id)
    }

    /// Bytes of all tensors as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.entries.values().map(|entry| entry.range.len() as u64).sum()
    }

    /// Whether the model has a tensor of this canonical name.
    pub fn has(&self, canonical_name: &str) -> bool {
        self.entries.contains_key(canonical_name)
    }

    /// Canonical names of all tensors, in order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// A view of the tensor with this canonical name; nothing is copied.
    ///
    /// # Errors
    ///
    /// [`LoadError::MissingTensor`], or [`LoadError::UnsupportedTensorType`].
    pub fn tensor(&self, canonical_name: &str) -> Result<Tensor<'_>, LoadError> {
        let Some((name, entry)) = self.entries.get_key_value(canonical_name) else {
            let (path, name) = (self.path.clone(), canonical_name.to_owned());
            return Err(LoadError::MissingTensor { path, name });
        };
        let ty = entry.ty.clone().map_err(|found| LoadError::UnsupportedTensorType {
            path: self.maps[entry.file].path().to_owned(),
            name: name.clone(),
            found: match self.grouping {
                Some(_) if found == grouped::GROUPED => {
                    format!("{found}, as MLX quantises, which --runtime mlx reads")
                }
                _ => found,
            },
        })?;
        Ok(Tensor { name, shape: entry.shape.clone(), ty, bytes: self.entry_bytes(entry) })
    }

    /// The model's identity.
    ///
    /// The first call reads and hashes every tensor: some 20 ms per 100 MB in the page cache,
    /// and the disk's time where they are not. Later calls return the remembered value.
    pub fn fingerprint(&self) -> ModelFingerprint {
        *self.fingerprint.get_or_init(|| {
            let tokenizer = self.tokenizer_bytes();
            let bytes_of = |entry: &Entry| self.entry_bytes(entry);
            ModelFingerprint::compute(&self.config, &tokenizer, &self.entries, bytes_of)
        })
    }

    fn open_gguf(path: &Path, file: &Path) -> Result<Self, LoadError> {
        let map = MappedFile::open(file)?;
        let (gguf, mut entries) = Gguf::parse(file, map.bytes())?;
        let config = gguf_config::convert(&gguf, &entries, map.bytes())?;
        if config.family == Family::Gemma3 {
            entries = renamed(entries, names::canonical_gemma3);
        }
        let id = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self {
            path: path.to_owned(),
            id,
            maps: vec![map],
            entries,
            config,
            grouping: None,
            source: Source::Gguf(gguf),
            fingerprint: OnceLock::new(),
        })
    }

    fn open_folder(path: &Path) -> Result<Self, LoadError> {
        let not_a_model =
            |found| LoadError::NotAModel { path: path.to_owned(), expected: EXPECTED, found };
        let Some(folder) = Folder::open(path)? else {
            let ggufs = safetensors::files_with_extension(path, "gguf")?;
            return match ggufs.as_slice() {
                [one] => Self::open_gguf(path, one),
                several => {
                    Err(not_a_model(format!("no config.json and {} .gguf files", several.len())))
                }
            };
        };
        let shards = safetensors::shards(path)?;
        if shards.is_empty() {
            return Err(not_a_model("config.json without *.safetensors".to_owned()));
        }
        let (mut maps, mut entries) = (Vec::new(), BTreeMap::new());
        for (file, shard) in shards.iter().enumerate() {
            let map = MappedFile::open(shard)?;
            safetensors::parse(shard, map.bytes(), file, &mut entries)?;
            maps.push(map);
        }
        let config = folder.config()?;
        if config.family == Family::Lfm2 {
            entries = renamed(entries, names::canonical_lfm2);
        }
        let full = path.canonicalize().map_err(|e| map::io_error(path, e))?;
        Ok(Self {
            path: path.to_owned(),
            id: full.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            maps,
            entries,
            config,
            grouping: folder.grouping()?,
            source: Source::Folder(Box::new(folder)),
            fingerprint: OnceLock::new(),
        })
    }

    /// Every needed tensor exists, is readable and has the configured shape.
    fn check_tensors(&self) -> Result<(), LoadError> {
        let mut tensors = self.config.required_tensors();
        let optional = self.config.optional_tensors();
        tensors.extend(optional.into_iter().filter(|(name, _)| self.has(name)));
        for (name, expected) in tensors {
            let found = match self.grouped_tensor(&name)? {
                Some(grouped) => grouped.shape.to_vec(),
                None => self.tensor(&name)?.shape,
            };
            if found != expected {
                let path = self.path.clone();
                return Err(LoadError::WrongShape { path, name, expected, found });
            }
        }
        Ok(())
    }

    fn entry_bytes(&self, entry: &Entry) -> &[u8] {
        &self.maps[entry.file].bytes()[entry.range.clone()]
    }

    /// What the fingerprint takes from the tokenizer; empty when there is none.
    fn tokenizer_bytes(&self) -> Vec<u8> {
        match &self.source {
            Source::Gguf(file) => {
                let of_tokenizer = |key: &str| key.starts_with("tokenizer.ggml.");
                let mut bytes = Vec::new();
                for (key, value) in file.settings().filter(|(key, _)| of_tokenizer(key)) {
                    bytes.extend(key.as_bytes());
                    match value {
                        gguf::Value::Array { range, .. } => {
                            bytes.extend(&self.maps[0].bytes()[range.clone()]);
                        }
                        scalar => bytes.extend(format!("{scalar:?}").as_bytes()),
                    }
                }
                bytes
            }
            Source::Folder(folder) => folder.tokenizer_bytes().to_vec(),
        }
    }
}

/// The same tensors under other names.
fn renamed(
    entries: BTreeMap<String, Entry>,
    name: impl Fn(&str) -> String,
) -> BTreeMap<String, Entry> {
    entries.into_iter().map(|(old, entry)| (name(&old), entry)).collect()
}

/// Parses a JSON file's bytes.
fn parse_json<'a, T: serde::Deserialize<'a>>(path: &Path, json: &'a [u8]) -> Result<T, LoadError> {
    serde_json::from_slice(json).map_err(|e| LoadError::Malformed {
        path: path.to_owned(),
        what: "JSON".to_owned(),
        expected: "the fields of its kind",
        found: e.to_string(),
    })
}
