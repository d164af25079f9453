//! What can go wrong while a model is opened, said so that a person can act on it.

use std::{io, path::PathBuf};

/// Why a model could not be opened, or why one of its parts could not be read.
///
/// Every message names the file, what was expected, what was found and what helps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Nothing lies at the given path.
    #[error("{}: no such file or folder; give a .gguf file, or a folder with config.json and *.safetensors", path.display())]
    NotFound {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The path exists but holds no model that we read.
    #[error("{}: not a model: expected {expected}, found {found}", path.display())]
    NotAModel {
        /// The file or folder.
        path: PathBuf,
        /// What makes a model.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// The operating system refused to open, read or map a file.
    #[error("{}: cannot be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The file does not begin as its format demands.
    #[error("{}: expected the four bytes \"GGUF\" at the start, found {found:02x?}; is the download complete?", path.display())]
    BadMagic {
        /// The file.
        path: PathBuf,
        /// Its first bytes (fewer than four when the file is shorter).
        found: Vec<u8>,
    },
    /// The file's format version is not one we read.
    #[error("{}: expected GGUF version 2 or 3 (little endian), found {found}; convert the model with a current tool", path.display())]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// The version number in the file.
        found: u32,
    },
    /// The file ends before something it announces.
    #[error("{}: {what} needs {needed} bytes of file, there are {found}; download or copy the file again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What was being read: a field, or `tensor NAME`.
        what: String,
        /// File length that would hold it, in bytes.
        needed: u64,
        /// Actual file length, in bytes.
        found: u64,
    },
    /// A count or a length is beyond anything a real model has.
    #[error("{}: {what} is {found}, more than the limit of {limit}; the file is damaged or hostile", path.display())]
    LimitExceeded {
        /// The file.
        path: PathBuf,
        /// What is counted.
        what: &'static str,
        /// The number in the file.
        found: u64,
        /// Our bound.
        limit: u64,
    },
    /// A part of the file breaks its own format.
    #[error("{}: {what}: expected {expected}, found {found}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The part.
        what: String,
        /// What the format wants there.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// A needed setting is absent.
    #[error("{}: the setting `{key}` is missing; convert the model with a current tool", path.display())]
    MissingSetting {
        /// The file.
        path: PathBuf,
        /// Name of the setting in the file's own words.
        key: String,
    },
    /// A setting has a value that no model can have.
    #[error("{}: setting `{key}`: expected {expected}, found {found}", path.display())]
    InvalidSetting {
        /// The file.
        path: PathBuf,
        /// Name of the setting in the file's own words.
        key: String,
        /// What is allowed.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// A tensor that the model's family needs is absent.
    #[error("{}: tensor `{name}` is missing; are all files of the checkpoint there?", path.display())]
    MissingTensor {
        /// The file or folder.
        path: PathBuf,
        /// Canonical name of the tensor.
        name: String,
    },
    /// A tensor does not have the shape that the configuration implies.
    #[error("{}: tensor `{name}`: expected shape {expected:?}, found {found:?}; do config and weights belong together?", path.display())]
    WrongShape {
        /// The file or folder.
        path: PathBuf,
        /// Canonical name of the tensor.
        name: String,
        /// Row-major shape from the configuration.
        expected: Vec<usize>,
        /// Row-major shape in the file.
        found: Vec<usize>,
    },
    /// The model is of a family that this runtime does not compute.
    #[error("{}: model family `{family}` is not supported in this format; supported are {supported}", path.display())]
    UnsupportedFamily {
        /// The file.
        path: PathBuf,
        /// The family's name in the file.
        family: String,
        /// Those that are.
        supported: &'static str,
    },
    /// The family is supported, but not in this variation.
    #[error("{}: `{feature}` = {found} is not supported; expected {expected}", path.display())]
    UnsupportedFeature {
        /// The file.
        path: PathBuf,
        /// Name of the setting in the file's own words.
        feature: String,
        /// What is there.
        found: String,
        /// What we compute.
        expected: &'static str,
    },
    /// A tensor is stored in a number format that we do not read.
    #[error("{}: tensor `{name}` is stored as {found}; supported are F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q5_K and Q6_K", path.display())]
    UnsupportedTensorType {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// Name or number of its type.
        found: String,
    },
    /// The model brings no tokenizer; token ids can still be used directly.
    #[error("{}: no tokenizer: expected {expected}; add it, or work with token ids", path.display())]
    MissingTokenizer {
        /// The file or folder.
        path: PathBuf,
        /// Where a tokenizer would be.
        expected: &'static str,
    },
    /// The tokenizer is of a kind that we do not rebuild.
    #[error("{}: tokenizer kind `{kind}` is not supported; a folder with tokenizer.json may be", path.display())]
    UnsupportedTokenizer {
        /// The file.
        path: PathBuf,
        /// Its kind in the file's own words.
        kind: String,
    },
    /// The tokenizer's data contradict themselves.
    #[error("{}: the tokenizer cannot be built: {reason}", path.display())]
    InvalidTokenizer {
        /// The file.
        path: PathBuf,
        /// What the builder says.
        reason: String,
    },
    /// The chat template does not compile.
    #[error("{}: the chat template does not compile", path.display())]
    InvalidChatTemplate {
        /// The file.
        path: PathBuf,
        /// The template engine's reason.
        #[source]
        source: crate::chat::ChatError,
    },
}
