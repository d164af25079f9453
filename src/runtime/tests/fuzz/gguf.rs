//! Arbitrary bytes as a GGUF file: header, settings, tensors, vocabulary and chat template.

use super::model::{open, with_files};

/// Opens the bytes as a model.
///
/// # Panics
/// When what was taken is not as it should be.
pub(crate) fn play(bytes: &[u8]) {
    with_files(&[("tiny.gguf", bytes)], |folder| open(&folder.join("tiny.gguf")));
}
