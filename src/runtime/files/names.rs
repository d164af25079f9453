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

/// The canonical name of a tensor of an LFM2 checkpoint in Hugging Face form, or the name unchanged.
pub(super) fn canonical_lfm2(name: &str) -> String {
    let Some((stem, kind)) = name.rsplit_once('.') else { return name.to_owned() };
    if stem == "model.embedding_norm" {
        return format!("model.norm.{kind}");
    }
    let layer = stem.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let Some((index, part)) = layer else { return name.to_owned() };
    let part = match part {
        "operator_norm" => "input_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "self_attn.out_proj" => "self_attn.o_proj",
        "self_attn.q_layernorm" => "self_attn.q_norm",
        "self_attn.k_layernorm" => "self_attn.k_norm",
        "feed_forward.w1" => "mlp.gate_proj",
        "feed_forward.w2" => "mlp.down_proj",
        "feed_forward.w3" => "mlp.up_proj",
        other => other,
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

    #[test]
    fn lfm2_names_become_canonical() {
        for (theirs, ours) in [
            ("model.embed_tokens.weight", "model.embed_tokens.weight"),
            ("model.embedding_norm.weight", "model.norm.weight"),
            ("model.layers.3.operator_norm.weight", "model.layers.3.input_layernorm.weight"),
            ("model.layers.0.feed_forward.w2.weight", "model.layers.0.mlp.down_proj.weight"),
            ("model.layers.0.conv.in_proj.weight", "model.layers.0.conv.in_proj.weight"),
            ("odd", "odd"),
        ] {
            assert_eq!(canonical_lfm2(theirs), ours);
        }
    }
}
