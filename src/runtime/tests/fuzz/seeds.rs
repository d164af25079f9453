//! Where the corpus comes from: the smallest files of every kind that open.

use serde_json::{Value, json};

use super::tiny_gguf::TinyGguf;

type Seeds = Vec<(&'static str, Vec<u8>)>;

/// A template with what checkpoints use: loops, conditions, filters, Python's methods, refusals.
const TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}{% if loop.first and \
    message.role != 'system' %}{{ '<|im_start|>system\\n' }}{% endif %}{{ '<|im_start|>' + \
    message['role'] + '\\n' + message['content'].strip() | trim + eos_token }}{% endfor %}\
    {% if add_generation_prompt %}{{ 'assistant\\n' }}{% endif %}";

pub(crate) fn ggufs() -> Seeds {
    let mut pieces = TinyGguf::default();
    pieces.set_text("tokenizer.ggml.model", "llama");
    pieces.unset("tokenizer.ggml.pre");
    let tokens = ["<unk>", "<s>", "</s>", "\u{2581}", "h", "i", "hi", "<0xC3>"];
    pieces.set_texts("tokenizer.ggml.tokens", &tokens);
    pieces.set_types(&[2, 3, 3, 1, 1, 1, 1, 6]);
    pieces.set_scores(&[0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -0.5, 0.0]);
    pieces.set_flag("tokenizer.ggml.add_bos_token", true);
    pieces.set_text("tokenizer.chat_template", TEMPLATE);
    let mut stretched = TinyGguf::default();
    stretched.add_tensor("rope_freqs.weight", &[2], 0, [1f32, 4.0].map(f32::to_le_bytes).concat());
    stretched.set_text("llama.rope.scaling.type", "linear");
    stretched.set("llama.rope.scaling.factor", 6, 2f32.to_le_bytes().to_vec());
    stretched.set("nested", 9, nested());
    let whole = TinyGguf::default().bytes();
    let cut = whole[..whole.len() - 1].to_vec();
    vec![
        ("byte_level", whole),
        ("pieces", pieces.bytes()),
        ("stretched", stretched.bytes()),
        ("cut", cut),
        ("magic", b"GGUF\x03\0\0\0".to_vec()),
    ]
}

/// An array of two arrays of two bytes.
fn nested() -> Vec<u8> {
    let array =
        |element: u32, count: u64| [&element.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let inner = [array(0, 2), vec![1, 2]].concat();
    [array(9, 2), inner.clone(), inner].concat()
}

/// One layer of hidden size 8, two heads of 4, one KV head, ffn 16, 8 tokens, a tied head.
pub(crate) fn weights() -> Seeds {
    let mut tensors = vec![("embed_tokens.weight", vec![8, 8]), ("norm.weight", vec![8])];
    let layer = [
        ("layers.0.input_layernorm.weight", vec![8]),
        ("layers.0.post_attention_layernorm.weight", vec![8]),
        ("layers.0.self_attn.q_proj.weight", vec![8, 8]),
        ("layers.0.self_attn.k_proj.weight", vec![4, 8]),
        ("layers.0.self_attn.v_proj.weight", vec![4, 8]),
        ("layers.0.self_attn.o_proj.weight", vec![8, 8]),
        ("layers.0.mlp.gate_proj.weight", vec![16, 8]),
        ("layers.0.mlp.up_proj.weight", vec![16, 8]),
        ("layers.0.mlp.down_proj.weight", vec![8, 16]),
    ];
    tensors.extend(layer);
    let whole = safetensors(&tensors, "BF16");
    let cut = whole[..whole.len() - 1].to_vec();
    let header_only = whole[..100].to_vec();
    vec![
        ("tiny", whole),
        ("cut", cut),
        ("header_only", header_only),
        ("other_type", safetensors(&tensors, "I16")),
    ]
}

fn safetensors(tensors: &[(&str, Vec<usize>)], dtype: &str) -> Vec<u8> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    for (name, shape) in tensors {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]});
        header.insert(format!("model.{name}"), entry);
    }
    let header = Value::Object(header).to_string();
    let len = (header.len() as u64).to_le_bytes();
    [&len[..], header.as_bytes(), &vec![0x3c; end]].concat()
}

pub(crate) fn configs() -> Seeds {
    let llama = json!({
        "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16,
        "vocab_size": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
        "tie_word_embeddings": true, "hidden_act": "silu", "bos_token_id": 0,
        "eos_token_id": [1, 2], "rope_theta": 10000.0,
    });
    let mut stretched = llama.clone();
    stretched["rope_parameters"] = json!({
        "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    });
    let mut qwen3 = llama.clone();
    qwen3["model_type"] = "qwen3".into();
    qwen3["head_dim"] = 4.into();
    let mut gemma3 = llama.clone();
    gemma3["model_type"] = "gemma3_text".into();
    gemma3["head_dim"] = 4.into();
    gemma3["hidden_act"] = Value::Null;
    gemma3["sliding_window_pattern"] = 2.into();
    let mut lfm2 = llama.clone();
    lfm2["model_type"] = "lfm2".into();
    lfm2["full_attn_idxs"] = json!([0]);
    lfm2["block_multiple_of"] = 16.into();
    let tokens = json!({
        "add_bos_token": true, "bos_token": {"content": "<|a|>"}, "eos_token": "<|b|>",
        "chat_template": [{"name": "default", "template": TEMPLATE}],
    });
    let index = json!({"weight_map": {"any": "model.safetensors"}});
    let outside = json!({"weight_map": {"any": "../model.safetensors"}});
    let joined = |files: &[&Value]| {
        let texts: Vec<String> = files.iter().map(ToString::to_string).collect();
        texts.join("\0").into_bytes()
    };
    let generation = json!({"eos_token_id": 2});
    vec![
        ("llama", joined(&[&llama])),
        ("stretched", joined(&[&stretched, &generation])),
        ("qwen3", joined(&[&qwen3, &generation, &tokens])),
        ("gemma3", joined(&[&gemma3, &generation])),
        ("lfm2", joined(&[&lfm2, &generation])),
        ("all", joined(&[&llama, &generation, &tokens, &index])),
        ("outside", joined(&[&llama, &generation, &tokens, &outside])),
    ]
}

pub(crate) fn tokenizers() -> Seeds {
    let added = json!([
        {"id": 0, "content": "<|a|>", "single_word": false, "lstrip": false, "rstrip": false,
         "normalized": false, "special": true},
        {"id": 9, "content": "hi!", "single_word": true, "lstrip": true, "rstrip": true,
         "normalized": true, "special": false},
    ]);
    let bpe = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
        "ignore_merges": false, "merges": [["h", "i"]],
        "vocab": {"<|a|>": 0, "<|b|>": 1, "h": 2, "i": 3, "hi": 4, "Ġ": 5, "Ã": 6, "©": 7},
    });
    let split = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?\\p{L}+|\\s+(?!\\S)"},
         "behavior": "Isolated", "invert": false},
        {"type": "Digits", "individual_digits": true},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    ]});
    let byte_level = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": {"type": "NFC"}, "pre_tokenizer": split, "model": bpe,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|a|>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<|a|>": {"id": "<|a|>", "ids": [0], "tokens": ["<|a|>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                    "use_regex": true},
    });
    let mut pieces = byte_level.clone();
    pieces["model"] = json!({
        "type": "Unigram", "unk_id": 0, "byte_fallback": true,
        "vocab": [["<unk>", 0.0], ["\u{2581}", -1.0], ["h", -2.0], ["i", -2.5], ["<0xC3>", -9.0]],
    });
    pieces["normalizer"] = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u{2581}"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        {"type": "Strip", "strip_left": true, "strip_right": false},
    ]});
    pieces["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true});
    pieces["decoder"] = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]});
    let mut words = byte_level.clone();
    words["model"] = json!({
        "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "hi": 1, "##i": 2},
    });
    let mut bounded = byte_level.clone();
    bounded["truncation"] = json!({
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 1,
    });
    bounded["padding"] = json!({
        "strategy": {"Fixed": 16}, "direction": "Left", "pad_to_multiple_of": 8, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "<|a|>",
    });
    let named =
        [("byte_level", byte_level), ("pieces", pieces), ("words", words), ("bounded", bounded)];
    named.into_iter().map(|(name, json)| (name, json.to_string().into_bytes())).collect()
}

pub(crate) fn templates() -> Seeds {
    let text = |text: &str| text.as_bytes().to_vec();
    vec![
        ("chatml", [TEMPLATE.as_bytes(), b"\0 Hi "].concat()),
        ("refuses", text("{{ raise_exception('roles must alternate') }}")),
        ("date", text("{{ strftime_now('%d %B %Y') }}{{ messages[0] | tojson }}")),
        (
            "macro",
            text("{% macro m(a, b=2) %}{{ a * b }}{% endmacro %}{{ m(3) }}{{ m('ab', b=4) }}"),
        ),
        (
            "namespace",
            text(
                "{% set ns = namespace(n=0) %}{% for i in range(9) %}{% set ns.n = ns.n + i %}\
                  {% endfor %}{{ ns.n }}{{ messages[1:][::-1] | length }}",
            ),
        ),
    ]
}
