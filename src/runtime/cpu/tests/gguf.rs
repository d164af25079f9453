//! A checkpoint gives the same bits in both file formats.

use std::num::NonZeroUsize;

use blockwire::pool::Dtype;
use half::bf16;

use super::Setup;
use crate::{
    cpu::{CpuModel, CpuOptions},
    files::{ModelFiles, WeightType},
    testing::{
        fixture,
        sequences::{bits, prefill, sequences},
        tiny_gguf::TinyGguf,
    },
};

/// The tiny Gemma 3 as llama.cpp's converter writes it: other names, and norms with their offset.
fn gemma3() -> TinyGguf {
    let files = ModelFiles::open(fixture("gemma3")).unwrap();
    let mut gguf = TinyGguf::empty();
    gguf.set_text("general.architecture", "gemma3");
    for (key, value) in [
        ("block_count", 7),
        ("context_length", 512),
        ("embedding_length", 128),
        ("feed_forward_length", 256),
        ("attention.head_count", 8),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 32),
        ("attention.value_length", 32),
        ("attention.sliding_window", 16),
    ] {
        gguf.set_u32(&format!("gemma3.{key}"), value);
    }
    gguf.set_f32("gemma3.attention.layer_norm_rms_epsilon", 1e-6);
    gguf.set_f32("gemma3.rope.freq_base", 1e6);
    gguf.set_text("tokenizer.ggml.model", "llama");
    for name in files.tensor_names() {
        let tensor = files.tensor(name).unwrap();
        assert_eq!(tensor.ty, WeightType::Bf16);
        let shape: Vec<u64> = tensor.shape.iter().rev().map(|size| *size as u64).collect();
        if shape.len() == 1 {
            let weights =
                tensor.bytes.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes));
            let bytes = weights.flat_map(|weight| (weight.to_f32() + 1.0).to_le_bytes()).collect();
            gguf.add_tensor(&gguf_name(name), &shape, 0, bytes);
        } else {
            gguf.add_tensor(&gguf_name(name), &shape, 30, tensor.bytes.to_vec());
        }
    }
    gguf
}

/// As in llama.cpp's `gguf-py/gguf/tensor_mapping.py`.
fn gguf_name(name: &str) -> String {
    let stem = name.strip_suffix(".weight").unwrap();
    let Some((layer, part)) = stem.strip_prefix("model.layers.").and_then(|s| s.split_once('.'))
    else {
        let global = if stem == "model.norm" { "output_norm" } else { "token_embd" };
        return format!("{global}.weight");
    };
    let part = match part {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "post_attention_norm",
        "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        other => panic!("{other}"),
    };
    format!("blk.{layer}.{part}.weight")
}

fn logits(model: &mut CpuModel) -> Vec<u32> {
    let setup = Setup::new("gemma3");
    let pool = setup.pool(model, 8);
    let prompt: Vec<u32> = (0..83).map(|i| (i * i * 31 + i * 7) % 512).collect();
    bits(&prefill(model, &mut sequences(&pool, &[83])[0], &prompt, usize::MAX))
}

#[test]
fn gemma3_in_a_gguf_gives_the_same_bits() {
    let expected = logits(&mut Setup::new("gemma3").model());
    let gguf = gemma3();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gemma3.gguf");
    std::fs::write(&path, gguf.bytes()).unwrap();
    let load = || {
        let files = ModelFiles::open(&path).unwrap();
        let options =
            CpuOptions { threads: NonZeroUsize::MIN, kv_dtype: Dtype::F32, ..CpuOptions::new() };
        CpuModel::load(&files, options).unwrap()
    };
    assert_eq!(logits(&mut load()), expected);
    let mut narrower = gguf;
    narrower.set_u32("gemma3.attention.sliding_window", 15);
    std::fs::write(&path, narrower.bytes()).unwrap();
    assert_ne!(logits(&mut load()), expected);
}
