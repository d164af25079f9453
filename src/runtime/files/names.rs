//! Names of tensors: the checkpoint's own words, and ours.

/// The canonical (Hugging Face) name of a GGUF tensor, or the name unchanged when it has none.
///
/// GGUF names as in llama.cpp's `gguf-py/gguf/constants.py`.
pub(super) fn canonical(gguf: &str) -> String {
    let (stem, kind) = match gguf.rsplit_once('.') {
        Some((stem, kind @ ("weight" | "bias"))) => (stem, kind),
        _ => return gguf.to_owned(),
    };
    match stem {
        "token_embd" => return format!("model.embed_tokens.{kind}"),
        "output_norm" => return format!("model.norm.{kind}"),
        "output" => return format!("lm_head.{kind}"),
        _ => {}
    }
    let layer = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let Some((index, part)) = layer.and_then(|(i, p)| Some((i, layer_part(p)?))) else {
        return gguf.to_owned();
    };
    format!("model.layers.{index}.{part}.{kind}")
}

fn layer_part(gguf: &str) -> Option<&'static str> {
    Some(match gguf {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gguf_names_become_canonical() {
        for (gguf, ours) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.12.attn_output.weight", "model.layers.12.self_attn.o_proj.weight"),
            ("blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"),
            ("rope_freqs.weight", "rope_freqs.weight"),
            ("blk.0.ffn_gate_exps.weight", "blk.0.ffn_gate_exps.weight"),
            ("odd", "odd"),
        ] {
            assert_eq!(canonical(gguf), ours);
        }
    }
}
