//! Arbitrary bytes as one of the files of a folder in Hugging Face form; the others are good.

use super::model::{open, with_files};

const CONFIG: &[u8] = include_bytes!("corpus/config/llama");
const WEIGHTS: &[u8] = include_bytes!("corpus/safetensors/tiny");
const TOKENIZER: &[u8] = include_bytes!("corpus/tokenizer/byte_level");

/// The bytes are the weights.
///
/// # Panics
/// When what was taken is not as it should be.
pub(crate) fn play_safetensors(bytes: &[u8]) {
    with_files(&[("config.json", CONFIG), ("model.safetensors", bytes)], open);
}

/// The bytes are the small files, with a zero byte between two: configuration, generation configuration,
/// tokenizer configuration, index of the weights.
///
/// # Panics
/// When what was taken is not as it should be.
pub(crate) fn play_config(bytes: &[u8]) {
    let names = [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "model.safetensors.index.json",
    ];
    let mut files = vec![("model.safetensors", WEIGHTS), ("tokenizer.json", TOKENIZER)];
    files.extend(names.into_iter().zip(bytes.split(|byte| *byte == 0)));
    with_files(&files, open);
}

/// The bytes are the tokenizer.
///
/// # Panics
/// When what was taken is not as it should be.
pub(crate) fn play_tokenizer(bytes: &[u8]) {
    let files =
        [("config.json", CONFIG), ("model.safetensors", WEIGHTS), ("tokenizer.json", bytes)];
    with_files(&files, open);
}
