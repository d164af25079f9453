//! The readers against the tiny checkpoints, a handmade GGUF, damage of every kind, and the real
//! default model.

use std::{fs, path::PathBuf};

use proptest::prelude::*;

use super::*;
use crate::testing::{default_model, fixture, tiny_gguf::TinyGguf};

fn write(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn open_error(bytes: &[u8]) -> LoadError {
    let (_folder, path) = write(bytes);
    ModelFiles::open(&path).unwrap_err()
}

/// A folder with links to a fixture's files, to be changed one by one.
fn copy_fixture(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(fixture(name).join(file), folder.path().join(file)).unwrap();
    }
    folder
}

fn edit_config(folder: &tempfile::TempDir, from: &str, to: &str) {
    let path = folder.path().join("config.json");
    let old = fs::read_to_string(&path).unwrap();
    assert!(old.contains(from));
    fs::write(&path, old.replace(from, to)).unwrap();
}

#[test]
fn llama_fixture() {
    let files = ModelFiles::open(fixture("llama")).unwrap();
    let config = files.config();
    assert_eq!(config.family, Family::Llama);
    assert_eq!((config.hidden, config.layers.len(), config.vocab), (128, 4, 512));
    assert_eq!((config.heads, config.kv_heads, config.head_dim), (8, 2, 16));
    assert_eq!((config.ffn, config.context, config.norm_eps), (256, 512, 1e-5));
    assert!(!config.tied_head && !config.rope_interleaved && !config.add_bos);
    assert_eq!((config.bos, &config.eos[..]), (Some(1), &[2][..]));
    assert_eq!(config.rope_inverse_frequencies.len(), 8);
    assert_eq!(config.rope_inverse_frequencies[..3], [1.0, 0.316_227_77, 0.1]);
    assert_eq!((files.id(), files.name()), ("llama", "llama"));

    let key = files.tensor("model.layers.3.self_attn.k_proj.weight").unwrap();
    assert_eq!((key.shape, key.ty, key.bytes.len()), (vec![32, 128], WeightType::Bf16, 8192));
    assert!(matches!(files.tensor("nothing"), Err(LoadError::MissingTensor { .. })));
}

#[test]
fn qwen3_fixture() {
    let files = ModelFiles::open(fixture("qwen3")).unwrap();
    let config = files.config();
    assert_eq!(config.family, Family::Qwen3);
    assert!(config.tied_head && !files.has("lm_head.weight"));
    assert_eq!((config.heads * config.head_dim, config.hidden), (256, 128));
    assert_eq!(files.tensor("model.layers.0.self_attn.q_norm.weight").unwrap().shape, [32]);
}

#[test]
fn gemma3_fixture() {
    let files = ModelFiles::open(fixture("gemma3")).unwrap();
    let config = files.config();
    use Mixer::{Attention, Window};
    let layers = [Window, Window, Window, Window, Window, Attention, Window];
    assert_eq!((config.family, &config.layers[..]), (Family::Gemma3, &layers[..]));
    assert_eq!((config.window, config.norm_offset, config.head_dim), (16, 1.0, 32));
    assert_eq!(config.rope_inverse_frequencies[0], config.rope_local_inverse_frequencies[0]);
    assert!(config.rope_inverse_frequencies[1] < config.rope_local_inverse_frequencies[1]);
    let name = "model.layers.6.post_feedforward_layernorm.weight";
    assert_eq!(files.tensor(name).unwrap().shape, [128]);
    let folder = copy_fixture("gemma3");
    let original = files.fingerprint();
    edit_config(&folder, r#""sliding_window": 16"#, r#""sliding_window": 17"#);
    assert_ne!(ModelFiles::open(folder.path()).unwrap().fingerprint(), original);
}

#[test]
fn lfm2_fixture() {
    let files = ModelFiles::open(fixture("lfm2")).unwrap();
    let config = files.config();
    assert_eq!(
        (config.family, config.layers.len(), config.attention_layers()),
        (Family::Lfm2, 6, 2)
    );
    assert_eq!((config.convolution_taps, config.ffn, config.norm_eps), (3, 256, 1e-5));
    assert!(config.tied_head && files.has("model.norm.weight"));
    let name = "model.layers.0.conv.conv.weight";
    assert_eq!(files.tensor(name).unwrap().shape, [128, 1, 3]);
    assert!(!files.has("model.layers.0.self_attn.q_proj.weight"));
    let folder = copy_fixture("lfm2");
    edit_config(&folder, r#""conv_L_cache": 3"#, r#""conv_L_cache": 4"#);
    let error = ModelFiles::open(folder.path()).unwrap_err();
    assert!(
        matches!(&error, LoadError::WrongShape { name: wrong, .. } if wrong == name),
        "{error}"
    );
}

#[test]
fn default_model_is_read() {
    let files = ModelFiles::open(default_model()).unwrap();
    let config = files.config();
    assert_eq!((config.hidden, config.layers.len(), config.vocab), (576, 30, 49152));
    assert_eq!((config.heads, config.kv_heads, config.head_dim), (9, 3, 64));
    assert!(config.rope_interleaved && config.tied_head && !config.add_bos);
    assert_eq!((config.bos, &config.eos[..]), (Some(1), &[0, 2][..]));
    let embedding = files.tensor("model.embed_tokens.weight").unwrap();
    assert_eq!((embedding.shape, embedding.ty), (vec![49152, 576], WeightType::Q8_0));
}

#[test]
fn a_folder_with_one_gguf_is_that_file() {
    let (folder, path) = write(&TinyGguf::default().bytes());
    let (by_folder, by_file) = (ModelFiles::open(folder.path()), ModelFiles::open(&path));
    assert_eq!(by_folder.unwrap().fingerprint(), by_file.unwrap().fingerprint());
    fs::copy(&path, folder.path().join("second.gguf")).unwrap();
    let error = ModelFiles::open(folder.path()).unwrap_err();
    assert!(matches!(&error, LoadError::NotAModel { .. }), "{error}");
    assert!(error.to_string().contains("2 .gguf files"));
}

#[test]
fn gguf_reads_back_what_was_written() {
    let tiny = TinyGguf::default();
    let (_folder, path) = write(&tiny.bytes());
    let files = ModelFiles::open(&path).unwrap();
    assert_eq!(files.config().head_dim, 4);
    assert_eq!(files.config().rope_inverse_frequencies, [1.0, 0.01]);
    assert_eq!((files.id(), files.name()), ("tiny", "Tiny"));
    let up = files.tensor("model.layers.0.mlp.up_proj.weight").unwrap();
    assert_eq!((up.shape, up.ty), (vec![16, 8], WeightType::F32));
    assert_eq!(up.bytes, tiny.tensor_bytes("blk.0.ffn_up.weight"));
}

#[test]
fn stored_divisors_scale_the_rotation() {
    let mut tiny = TinyGguf::default();
    tiny.add_tensor("rope_freqs.weight", &[2], 0, [1.0f32, 4.0].map(f32::to_le_bytes).concat());
    let (_folder, path) = write(&tiny.bytes());
    let files = ModelFiles::open(&path).unwrap();
    assert_eq!(files.config().rope_inverse_frequencies, [1.0, 0.0025]);
}

#[test]
fn shards_are_one_model() {
    let folder = copy_fixture("llama");
    let whole = ModelFiles::open(folder.path()).unwrap().fingerprint();
    fs::rename(folder.path().join("model.safetensors"), folder.path().join("a.safetensors"))
        .unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(&index, r#"{"metadata": {}, "weight_map": {"any": "a.safetensors"}}"#).unwrap();
    assert_eq!(ModelFiles::open(folder.path()).unwrap().fingerprint(), whole);

    fs::write(&index, r#"{"weight_map": {"any": "../a.safetensors"}}"#).unwrap();
    assert!(matches!(ModelFiles::open(folder.path()), Err(LoadError::Malformed { .. })));
    fs::write(&index, r#"{"weight_map": {"any": "b.safetensors"}}"#).unwrap();
    let error = ModelFiles::open(folder.path()).unwrap_err();
    assert!(matches!(&error, LoadError::NotFound { path } if path.ends_with("b.safetensors")));
}

#[test]
fn fingerprint_follows_content_not_place() {
    let folder = copy_fixture("llama");
    let original = ModelFiles::open(fixture("llama")).unwrap().fingerprint();
    assert_eq!(ModelFiles::open(folder.path()).unwrap().fingerprint(), original);
    assert_eq!(original.to_string().len(), 16);

    let weights = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::remove_file(&weights).unwrap();
    fs::write(&weights, bytes).unwrap();
    assert_ne!(ModelFiles::open(folder.path()).unwrap().fingerprint(), original);

    let other = copy_fixture("llama");
    edit_config(&other, "10000.0", "10001.0");
    assert_ne!(ModelFiles::open(other.path()).unwrap().fingerprint(), original);
}

#[test]
fn errors_name_the_fault() {
    let missing = ModelFiles::open("/nowhere/at/all").unwrap_err();
    assert!(matches!(missing, LoadError::NotFound { .. }));
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(ModelFiles::open(empty.path()), Err(LoadError::NotAModel { .. })));
    assert!(matches!(open_error(b"GG"), LoadError::BadMagic { .. }));
    assert!(matches!(open_error(b"PK\x03\x04rest"), LoadError::BadMagic { .. }));
    let version = open_error(b"GGUF\x09\0\0\0");
    assert!(matches!(version, LoadError::UnsupportedVersion { found: 9, .. }));
    let count = open_error(b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff");
    assert!(matches!(count, LoadError::LimitExceeded { .. }));
}

#[test]
fn other_families_are_refused_by_name() {
    let folder = copy_fixture("llama");
    edit_config(&folder, r#""model_type": "llama""#, r#""model_type": "gemma4_text""#);
    let error = ModelFiles::open(folder.path()).unwrap_err();
    assert!(
        matches!(&error, LoadError::UnsupportedFamily { family, .. } if family == "gemma4_text")
    );

    let mut tiny = TinyGguf::default();
    tiny.set_text("general.architecture", "lfm2");
    let error = open_error(&tiny.bytes());
    assert!(matches!(&error, LoadError::UnsupportedFamily { family, .. } if family == "lfm2"));
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let mut tiny = TinyGguf::default();
    tiny.remove_tensor("blk.0.attn_v.weight");
    let error = open_error(&tiny.bytes()).to_string();
    assert!(error.contains("`model.layers.0.self_attn.v_proj.weight` is missing"), "{error}");

    tiny.add_tensor("blk.0.attn_v.weight", &[8, 3], 0, vec![0; 96]);
    let error = open_error(&tiny.bytes());
    assert!(
        matches!(&error, LoadError::WrongShape { expected, found, .. }
            if expected == &[4, 8] && found == &[3, 8]),
        "{error}"
    );

    tiny.remove_tensor("blk.0.attn_v.weight");
    tiny.add_tensor("blk.0.attn_v.weight", &[8, 4], 20, vec![0; 64]);
    let error = open_error(&tiny.bytes());
    assert!(
        matches!(&error, LoadError::UnsupportedTensorType { found, .. } if found == "IQ4_NL"),
        "{error}"
    );
}

#[test]
fn a_cut_file_names_the_tensor() {
    let bytes = TinyGguf::default().bytes();
    let (path_len, cut) = (bytes.len() as u64, &bytes[..bytes.len() - 1]);
    let error = open_error(cut);
    assert!(
        matches!(&error, LoadError::Truncated { what, needed, found, .. }
            if what.starts_with("tensor ") && *needed == path_len && *found == path_len - 1),
        "{error}"
    );

    let folder = copy_fixture("llama");
    let weights = folder.path().join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::remove_file(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() - 1]).unwrap();
    let error = ModelFiles::open(folder.path()).unwrap_err();
    assert!(
        matches!(&error, LoadError::Truncated { what, .. } if what.starts_with("tensor ")),
        "{error}"
    );
}

/// Opens damaged bytes and touches all that opening yields; only panics count.
fn survive(bytes: &[u8], name: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(name), bytes).unwrap();
    let path = match name {
        "tiny.gguf" => folder.path().join(name),
        _ => {
            fs::copy(fixture("llama").join("config.json"), folder.path().join("config.json"))
                .unwrap();
            folder.path().to_owned()
        }
    };
    if let Ok(files) = ModelFiles::open(path) {
        files.fingerprint();
        drop((files.tokenizer(), files.chat_template()));
        for name in files.tensor_names() {
            if let Ok(tensor) = files.tensor(name) {
                assert_eq!(Some(tensor.bytes.len()), tensor.ty.tensor_bytes(&tensor.shape));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_gguf_never_panics(
        cut in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        whole in any::<bool>(),
    ) {
        let mut bytes = TinyGguf::default().bytes();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if !whole {
            bytes.truncate(cut.index(bytes.len()));
        }
        survive(&bytes, "tiny.gguf");
    }

    #[test]
    fn damaged_safetensors_never_panics(
        flips in prop::collection::vec((0usize..4096, any::<u8>()), 1..6),
        cut in prop::option::of(0usize..8192),
    ) {
        let mut bytes = fs::read(fixture("llama").join("model.safetensors")).unwrap();
        for (at, value) in flips {
            bytes[at] = value;
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        survive(&bytes, "model.safetensors");
    }
}
