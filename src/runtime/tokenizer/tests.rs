//! Encoding against recorded ids, decoding against its definition, and the BOS token.

use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::{
    chat::Message,
    files::{LoadError, ModelFiles},
    testing::{default_model, fixture, tiny_gguf::TinyGguf},
};

/// Built once for all cases of a property.
static DEFAULT: std::sync::OnceLock<Tokenizer> = std::sync::OnceLock::new();

#[derive(Deserialize)]
struct Recorded {
    t: String,
    ids: Vec<u32>,
}

fn recorded() -> Vec<Recorded> {
    let json = std::fs::read(fixture("smollm2_token_ids.json")).unwrap();
    serde_json::from_slice(&json).unwrap()
}

fn tokenizer_of(tiny: &TinyGguf) -> Result<Tokenizer, LoadError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, tiny.bytes()).unwrap();
    ModelFiles::open(&path).unwrap().tokenizer()
}

/// A SentencePiece vocabulary that fits the tiny model's eight rows or more.
fn pieces(tokens: &[&str], types: &[i32], scores: &[f32]) -> TinyGguf {
    let mut tiny = TinyGguf::default();
    tiny.set_text("tokenizer.ggml.model", "llama");
    tiny.set_texts("tokenizer.ggml.tokens", tokens);
    tiny.set_types(types);
    tiny.set_scores(scores);
    tiny.unset("tokenizer.ggml.merges");
    tiny
}

/// `<unk> <s> ▁ a b ab ▁ab <0xC3> <0xA9>`.
fn small_pieces() -> TinyGguf {
    let tokens = ["<unk>", "<s>", "▁", "a", "b", "ab", "▁ab", "<0xC3>", "<0xA9>"];
    let scores = [0.0, 0.0, -3.0, -4.0, -5.0, -1.0, -2.0, 0.0, 0.0];
    let mut tiny = pieces(&tokens, &[2, 3, 1, 1, 1, 1, 1, 6, 6], &scores);
    tiny.set_u32("tokenizer.ggml.bos_token_id", 1);
    tiny
}

#[test]
fn default_model_encodes_as_recorded() {
    let tokenizer = ModelFiles::open(default_model()).unwrap().tokenizer().unwrap();
    assert_eq!(tokenizer.vocab_size(), 49152);
    let recorded = recorded();
    assert_eq!(recorded.len(), 12);
    for Recorded { t, ids } in recorded {
        assert_eq!(tokenizer.encode(&t, true).unwrap(), ids, "{t:?}");
        assert_eq!(tokenizer.decode(&ids, false), t);
        assert_eq!(tokenizer.shared.inner.decode(&ids, false).unwrap(), t);
    }
}

#[test]
fn default_model_knows_its_tokens() {
    let tokenizer = ModelFiles::open(default_model()).unwrap().tokenizer().unwrap();
    assert_eq!(tokenizer.token_id("<|im_end|>"), Some(2));
    assert!(tokenizer.is_special(2) && !tokenizer.is_special(905));
    assert_eq!(tokenizer.token_bytes(905), Some(&b" world"[..]));
    assert_eq!(tokenizer.token_bytes(49152), None);
    assert_eq!(tokenizer.decode(&[1, 19556, 905, 2, 60_000], true), "Hello world");
}

#[test]
fn default_model_renders_its_chat() {
    let files = ModelFiles::open(default_model()).unwrap();
    let template = files.chat_template().unwrap().unwrap();
    let text = template.render(&[Message::new("user", "Hi, 1893!")], true).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging \
         Face<|im_end|>\n<|im_start|>user\nHi, 1893!<|im_end|>\n<|im_start|>assistant\n"
    );
    let ids = files.tokenizer().unwrap().encode(&text, true).unwrap();
    assert_eq!((ids[0], ids[1] == 1), (1, false));
}

#[test]
fn models_without_a_tokenizer_say_so() {
    let files = ModelFiles::open(fixture("llama")).unwrap();
    assert!(matches!(files.tokenizer(), Err(LoadError::MissingTokenizer { .. })));
    assert!(files.chat_template().unwrap().is_none());
    let mut tiny = TinyGguf::default();
    tiny.unset("tokenizer.ggml.tokens");
    assert!(matches!(tokenizer_of(&tiny), Err(LoadError::MissingTokenizer { .. })));
    let mut tiny = TinyGguf::default();
    tiny.set_text("tokenizer.ggml.pre", "unheard-of");
    let error = tokenizer_of(&tiny).unwrap_err();
    assert!(
        matches!(&error, LoadError::UnsupportedTokenizer { kind, .. } if kind.contains("unheard-of")),
        "{error}"
    );
}

#[test]
fn fault_b49_exactly_one_bos() {
    let mut tiny = TinyGguf::default();
    tiny.set_flag("tokenizer.ggml.add_bos_token", true);
    let tokenizer = tokenizer_of(&tiny).unwrap();
    assert_eq!(tokenizer.encode("hi", true).unwrap(), [0, 4]);
    assert_eq!(tokenizer.encode("<|a|>hi", true).unwrap(), [0, 4]);
    assert_eq!(tokenizer.encode("<|a|><|a|>hi", true).unwrap(), [0, 4]);
    assert_eq!(tokenizer.encode("", true).unwrap(), [0]);
    assert_eq!(tokenizer.encode("hi", false).unwrap(), [4]);
    let silent = tokenizer_of(&TinyGguf::default()).unwrap();
    assert_eq!(silent.encode("hi", true).unwrap(), [4]);
}

#[test]
fn pieces_merge_by_score_and_fall_back_to_bytes() {
    let mut tiny = small_pieces();
    let tokenizer = tokenizer_of(&tiny).unwrap();
    assert_eq!(tokenizer.encode("ab ab", true).unwrap(), [1, 6, 6]);
    assert_eq!(tokenizer.encode("abé", false).unwrap(), [6, 7, 8]);
    assert_eq!(tokenizer.decode(&[1, 6, 6, 7, 8], true), "ab abé");
    let mut later = tokenizer.detokenizer(true).continuing();
    assert_eq!(later.push(6), " ab");

    tiny.set_flag("tokenizer.ggml.add_space_prefix", false);
    let plain = tokenizer_of(&tiny).unwrap();
    assert_eq!(plain.encode("ab ab", false).unwrap(), [5, 6]);
    assert_eq!(plain.decode(&[6], true), " ab");
}

#[test]
fn splits_of_other_families() {
    let words = |pre: &str, text: &str| -> Vec<String> {
        use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};
        let vocabulary = gguf::Vocabulary {
            model: "gpt2".to_owned(),
            pre: pre.to_owned(),
            ..Default::default()
        };
        let tokenizer = vocabulary.build().unwrap_or_else(|e| panic!("{e:?}"));
        let mut split = PreTokenizedString::from(text);
        tokenizer.shared.inner.get_pre_tokenizer().unwrap().pre_tokenize(&mut split).unwrap();
        let parts = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
        parts.into_iter().map(|(part, ..)| part.to_owned()).collect()
    };
    let text = "It'S 12345\n\n x";
    assert_eq!(words("llama-bpe", text), ["It", "'S", "Ġ", "123", "45", "ĊĊ", "Ġx"]);
    assert_eq!(words("qwen2", text), ["It", "'S", "Ġ", "1", "2", "3", "4", "5", "ĊĊ", "Ġx"]);
    assert_eq!(words("gpt-2", text), ["It", "'", "S", "Ġ12345", "ĊĊ", "Ġx"]);
    assert_eq!(words("smollm", "a 12"), ["a", "Ġ", "1", "2"]);
}

#[test]
fn a_tokenizer_json_is_read() {
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [{"id": 3, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "vocab": {"h": 0, "i": 1, "hi": 2}, "merges": ["h i"]}
    });
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("llama").join(file), folder.path().join(file)).unwrap();
    }
    let plain = ModelFiles::open(folder.path()).unwrap().fingerprint();
    std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    let settings = r#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>",
        "chat_template": [{"name": "default", "template": "{{ bos_token }}hi{{ eos_token }}"}]}"#;
    std::fs::write(folder.path().join("tokenizer_config.json"), settings).unwrap();
    let config = folder.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace(r#""bos_token_id": 1"#, r#""bos_token_id": 3"#)).unwrap();

    let files = ModelFiles::open(folder.path()).unwrap();
    assert!(files.config().add_bos);
    assert_ne!(files.fingerprint(), plain);
    let tokenizer = files.tokenizer().unwrap();
    assert_eq!(tokenizer.encode("hi", true).unwrap(), [3, 2]);
    assert_eq!(tokenizer.encode("<s>hi", true).unwrap(), [3, 2]);
    assert_eq!(tokenizer.decode(&[3, 2], true), "hi");
    let template = files.chat_template().unwrap().unwrap();
    assert_eq!(template.render(&[], true).unwrap(), "<s>hi</s>");
}

proptest! {
    #[test]
    fn piecewise_equals_at_once(ids in prop::collection::vec(0u32..12, 0..24), skip: bool) {
        for tiny in [TinyGguf::default(), small_pieces()] {
            let tokenizer = tokenizer_of(&tiny).unwrap();
            let mut detokenizer = tokenizer.detokenizer(skip);
            let parts: Vec<String> = ids.iter().map(|id| detokenizer.push(*id)).collect();
            let text = parts.concat() + &detokenizer.flush();
            prop_assert_eq!(&text, &tokenizer.decode(&ids, skip));

            let kept = ids.iter().filter(|id| !(skip && tokenizer.is_special(**id)));
            let bytes = kept.filter_map(|id| tokenizer.token_bytes(*id)).collect::<Vec<_>>();
            let bytes = bytes.concat();
            let strip = tokenizer.strips_first_space();
            let bytes = bytes.strip_prefix(b" ").filter(|_| strip).unwrap_or(&bytes);
            prop_assert_eq!(text, String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn characters_come_out_whole(text in "\\PC{0,40}") {
        let model = DEFAULT.get_or_init(|| {
            ModelFiles::open(default_model()).unwrap().tokenizer().unwrap()
        });
        let ids = model.encode(&text, false).unwrap();
        let mut detokenizer = model.detokenizer(false);
        let mut whole = String::new();
        for id in ids {
            let part = detokenizer.push(id);
            prop_assert!(text[whole.len()..].starts_with(&part));
            whole.push_str(&part);
        }
        prop_assert_eq!(detokenizer.flush(), "");
        prop_assert_eq!(whole, text);
    }
}

/// What a small checkpoint's `tokenizer.json` says, with cutting at 4 tokens and padding to 16.
const BOUNDED: &str = include_str!("../tests/fuzz/corpus/tokenizer/bounded");

#[test]
fn a_tokenizer_json_neither_cuts_nor_pads_a_prompt() {
    let tokenizer = Tokenizer::from_json(BOUNDED.as_bytes(), None).unwrap();
    assert_eq!(tokenizer.encode("hihihihihihi", false).unwrap(), [4; 6]);
    assert_eq!(tokenizer.encode("hi", false).unwrap(), [4]);
    // Nor does one that would pad to more than there is memory.
    let padded = BOUNDED.replace(r#"{"Fixed":16}"#, r#"{"Fixed":1000000000000000}"#);
    assert_ne!(padded, BOUNDED);
    let tokenizer = Tokenizer::from_json(padded.as_bytes(), None).unwrap();
    assert_eq!(tokenizer.encode("hi", false).unwrap(), [4]);
}

#[test]
fn a_tokenizer_json_that_the_library_panics_at_is_an_error() {
    let broken = BOUNDED.replace(r#""decoder":{"#, r#""decoder":{,"#);
    assert_ne!(broken, BOUNDED);
    let error = Tokenizer::from_json(broken.as_bytes(), None).unwrap_err();
    assert!(matches!(error, BuildError::Invalid(_)), "{error:?}");
}
