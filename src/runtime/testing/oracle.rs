//! What `transformers` computed in f32, of the tiny checkpoints.

use safetensors::{SafeTensors, tensor::TensorView};

use super::fixture;

/// What `transformers` computed.
pub(crate) struct Oracle {
    pub(crate) prompt: Vec<u32>,
    pub(crate) logits: Vec<f32>,
    pub(crate) continuation: Vec<u32>,
}

impl Oracle {
    pub(crate) fn read(family: &str) -> Self {
        let bytes = std::fs::read(fixture(family).join("oracle.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let ids = |name: &str| -> Vec<u32> {
            numbers(tensors.tensor(name).unwrap(), |bytes| i64::from_le_bytes(bytes) as u32)
        };
        let prompt = ids("ids");
        let continuation = ids("greedy").split_off(prompt.len());
        let logits = numbers(tensors.tensor("logits").unwrap(), f32::from_le_bytes);
        Self { prompt, logits, continuation }
    }
}

fn numbers<T, const N: usize>(tensor: TensorView<'_>, number: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (chunks, rest) = tensor.data().as_chunks();
    assert!(rest.is_empty());
    chunks.iter().map(|bytes| number(*bytes)).collect()
}
