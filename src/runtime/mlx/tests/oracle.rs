//! Against `transformers` in f32, and against the CPU backend.

use blockwire::pool::Dtype;

use super::{FAMILIES, model, pool};
use crate::{
    cpu::{CpuModel, CpuOptions},
    files::ModelFiles,
    mlx::{MlxLoadError, MlxModel, MlxOptions},
    model::Model,
    testing::{
        default_model, fixture,
        oracle::Oracle,
        sequences::{greedy, likeliest, prefill, sequences},
    },
};

fn agrees(family: &str, kv_dtype: Dtype, tolerance: f32) {
    let oracle = Oracle::read(family);
    let mut model = model(family, kv_dtype);
    let pool = pool(&model, 16, 8);
    let sequence = &mut sequences(&pool, &[100]).remove(0);
    let logits = prefill(&mut model, sequence, &oracle.prompt, usize::MAX);
    let pairs = logits.iter().flatten().zip(&oracle.logits);
    let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference < tolerance, "logits differ by {difference}");
    assert_eq!(logits.iter().flatten().count(), oracle.logits.len());
    let first = likeliest(logits.last().unwrap());
    let tokens = greedy(&mut model, sequence, first, oracle.continuation.len());
    assert_eq!(tokens, oracle.continuation);
}

#[test]
fn llama_agrees_with_transformers() {
    agrees("llama", Dtype::F32, 1e-3);
}

#[test]
fn qwen3_agrees_with_transformers() {
    agrees("qwen3", Dtype::F32, 1e-3);
}

#[test]
fn gemma3_agrees_with_transformers() {
    agrees("gemma3", Dtype::F32, 1e-3);
}

#[test]
fn a_cache_of_16_bits_changes_little() {
    agrees("llama", Dtype::F16, 1e-2);
    agrees("gemma3", Dtype::Bf16, 1e-1);
}

/// As on a GPU, which takes the checkpoint's type.
#[test]
fn computing_with_16_bits_changes_logits_by_few_steps_of_theirs() {
    for (dtype, part) in [(Dtype::Bf16, 1.0 / 16.0), (Dtype::F16, 1.0 / 128.0)] {
        for family in FAMILIES {
            let oracle = Oracle::read(family);
            let files = ModelFiles::open(fixture(family)).unwrap();
            let options =
                MlxOptions { kv_dtype: dtype, compute_dtype: Some(dtype), ..MlxOptions::new() };
            let mut model = MlxModel::load(&files, options).unwrap();
            let pool = pool(&model, 16, 8);
            let sequence = &mut sequences(&pool, &[100]).remove(0);
            let logits = prefill(&mut model, sequence, &oracle.prompt, usize::MAX);
            let pairs = logits.iter().flatten().zip(&oracle.logits);
            let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let largest = oracle.logits.iter().fold(0.0, |max: f32, logit| max.max(logit.abs()));
            assert!(difference < largest * part, "{family}, {dtype}: {difference} of {largest}");
            assert!(difference > 0.0, "{family} was not computed with {dtype}");
            assert_eq!(likeliest(logits.last().unwrap()), oracle.continuation[0]);
        }
    }
}

#[test]
fn a_real_model_in_quantised_blocks_says_what_it_says_on_the_cpu() {
    let files = ModelFiles::open(default_model()).unwrap();
    let tokenizer = files.tokenizer().unwrap();
    let prompt = tokenizer.encode("one, two, three, four, five, six,", true).unwrap();
    let mut said = Vec::new();
    let options = MlxOptions { kv_dtype: Dtype::F32, ..MlxOptions::new() };
    let mut mlx = MlxModel::load(&files, options).unwrap();
    let options = CpuOptions { kv_dtype: Dtype::F32, ..CpuOptions::new() };
    let mut cpu = CpuModel::load(&files, options).unwrap();
    let models: [&mut dyn Model; 2] = [&mut mlx, &mut cpu];
    for model in models {
        let pool = pool(model, 16, 2);
        let sequence = &mut sequences(&pool, &[32]).remove(0);
        let logits = prefill(model, sequence, &prompt, usize::MAX);
        let first = likeliest(logits.last().unwrap());
        said.push(greedy(model, sequence, first, 4));
    }
    assert_eq!(said[0], said[1]);
    assert_eq!(tokenizer.decode(&said[0], true), " seven, eight,");
}

#[test]
fn a_family_with_other_layers_is_refused_by_name() {
    let files = ModelFiles::open(fixture("lfm2")).unwrap();
    let refused = MlxModel::load(&files, MlxOptions::new()).unwrap_err();
    assert!(matches!(refused, MlxLoadError::Family { family: "lfm2" }), "{refused}");
}
