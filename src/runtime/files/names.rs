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

/// The canonical name of a tensor of a Gemma 3 in a GGUF, whose [`canonical`] name is given.
///
/// What GGUF calls `ffn_norm` everywhere, Hugging Face names differently where a layer has four norms.
pub(super) fn canonical_gemma3(name: &str) -> String {
    let Some((stem, kind)) = name.rsplit_once('.') else { return name.to_owned() };
    if let Some(layer) = stem.strip_suffix(".post_attention_layernorm") {
        return format!("{layer}.pre_feedforward_layernorm.{kind}");
    }
    let layer = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    match layer {
        Some((index, "post_attention_norm")) => {
            format!("model.layers.{index}.post_attention_layernorm.{kind}")
        }
        Some((index, "post_ffw_norm")) => {
            format!("model.layers.{index}.post_feedforward_layernorm.{kind}")
        }
        _ => name.to_owned(),
    }
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
    fn gemma3_names_become_canonical() {
        for (gguf, ours) in [
            ("blk.4.ffn_norm.weight", "model.layers.4.pre_feedforward_layernorm.weight"),
            ("blk.4.post_attention_norm.weight", "model.layers.4.post_attention_layernorm.weight"),
            ("blk.4.post_ffw_norm.weight", "model.layers.4.post_feedforward_layernorm.weight"),
            ("blk.4.attn_norm.weight", "model.layers.4.input_layernorm.weight"),
            ("token_embd.weight", "model.embed_tokens.weight"),
        ] {
            assert_eq!(canonical_gemma3(&canonical(gguf)), ours);
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
