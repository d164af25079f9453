//! A model whose cache is large and whose weights are not: 2 MiB of KV a token in `f32`.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::models::written_once;

const LAYERS: usize = 64;
const HIDDEN: usize = 64;
const HEADS: usize = 32;
const HEAD_DIM: usize = 128;
const VOCAB: usize = 512;

/// The folder with its files, written once.
pub(crate) fn path() -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    written_once(&FOLDER, write)
}

fn write(folder: &Path) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD_DIM,
        "hidden_act": "silu", "attention_bias": false, "mlp_bias": false, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1024, "vocab_size": VOCAB, "bos_token_id": 1,
        "eos_token_id": 2, "tie_word_embeddings": false,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let tensors = tensors();
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in &tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]});
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::new(File::create(folder.join("model.safetensors")).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for (name, shape) in &tensors {
        for _ in 0..shape.iter().product() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let unit = (random >> 40) as f32 / (1 << 23) as f32 - 1.0;
            let weight = if name.contains("norm") { 1.0 } else { unit / 8.0 };
            file.write_all(&((weight.to_bits() >> 16) as u16).to_le_bytes()).unwrap();
        }
    }
    file.flush().unwrap();
}

/// Names and shapes, in file order.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let wide = HEADS * HEAD_DIM;
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        ("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]),
    ];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![wide, HIDDEN]),
            ("self_attn.k_proj", vec![wide, HIDDEN]),
            ("self_attn.v_proj", vec![wide, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, wide]),
            ("mlp.gate_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.up_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, HIDDEN]),
        ] {
            all.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    all
}
