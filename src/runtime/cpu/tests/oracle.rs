//! Against `transformers` in f32, on the same tiny checkpoints.

use safetensors::{SafeTensors, tensor::TensorView};

use super::{Setup, greedy, likeliest, prefill, sequences};
use crate::testing::fixture;

/// What `transformers` computed.
struct Oracle {
    prompt: Vec<u32>,
    logits: Vec<f32>,
    continuation: Vec<u32>,
}

impl Oracle {
    fn read(family: &str) -> Self {
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

fn agrees(family: &'static str) {
    let oracle = Oracle::read(family);
    let setup = Setup::new(family);
    let mut model = setup.model();
    let pool = setup.pool(&model, 8);
    let sequence = &mut sequences(&pool, &[100]).remove(0);
    let logits = prefill(&mut model, sequence, &oracle.prompt, usize::MAX);
    let pairs = logits.iter().flatten().zip(&oracle.logits);
    let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference < 1e-3, "logits differ by {difference}");
    assert_eq!(logits.iter().flatten().count(), oracle.logits.len());
    let first = likeliest(logits.last().unwrap());
    let tokens = greedy(&mut model, sequence, first, oracle.continuation.len());
    assert_eq!(tokens, oracle.continuation);
}

#[test]
fn llama_agrees_with_transformers() {
    agrees("llama");
}

#[test]
fn gemma3_agrees_with_transformers() {
    agrees("gemma3");
}

#[test]
fn lfm2_agrees_with_transformers() {
    agrees("lfm2");
}

#[test]
fn qwen3_agrees_with_transformers() {
    agrees("qwen3");
}
