//! Against `transformers` in f32, on the same tiny checkpoints.

use super::Setup;
use crate::testing::{
    oracle::Oracle,
    sequences::{greedy, likeliest, prefill, sequences},
};

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
