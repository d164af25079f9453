//! The models that the tests serve, and prompts for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use blockwire_runtime::files::ModelFiles;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{byte_fallback, wide};

/// Text from which prompts are cut.
const TEXT: &str = include_str!("../../src/engine/manual/wire.md");

/// What the test serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// The real one, with a tokenizer and a chat template.
    SmolLm2,
    /// A tiny llama: token ids only, context 512.
    Llama,
    /// The same with a context of 8192.
    LongLlama,
    /// A tiny qwen3: token ids only, context 512.
    Qwen3,
    /// A tiny gemma3, most of whose layers have a window of 16: token ids only, context 512.
    Gemma3,
    /// A tiny lfm2, whose state is not all in the pool: token ids only, context 512.
    Lfm2,
    /// The tiny llama with a tokenizer that falls back to bytes, and a chat template; context 512.
    ByteFallback,
    /// A llama with a large cache: token ids only, context 1024.
    Wide,
}

impl Model {
    /// Where it lies.
    pub(crate) fn path(self) -> PathBuf {
        let fixture = |name: &str| {
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../runtime/fixtures").join(name)
        };
        match self {
            Self::SmolLm2 => smollm2(),
            Self::Llama => fixture("llama"),
            Self::LongLlama => long_llama(&fixture("llama")),
            Self::Qwen3 => fixture("qwen3"),
            Self::Gemma3 => fixture("gemma3"),
            Self::Lfm2 => fixture("lfm2"),
            Self::ByteFallback => byte_fallback::path(),
            Self::Wide => wide::path(),
        }
    }

    /// A prompt of so many tokens; another `number` gives another one.
    pub(crate) fn prompt(self, tokens: usize, number: usize) -> Vec<u32> {
        if self == Self::SmolLm2 {
            let ids = text_ids();
            return ids.iter().cycle().skip(number * 97).take(tokens).copied().collect();
        }
        // Any ids will do for weights that mean nothing; 0 to 2 are special.
        let mut state = number as u64 * 0x9e37 + 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            3 + (state >> 33) as u32 % 509
        };
        (0..tokens).map(|_| next()).collect()
    }
}

/// The body of a completion request that goes on to its budget.
pub(crate) fn completion(prompt: &[u32], max_tokens: u32) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "temperature": 0})
}

/// The same with its tokens drawn.
pub(crate) fn sampled(mut body: Value, seed: u64) -> Value {
    body["temperature"] = json!(0.8);
    body["seed"] = json!(seed);
    body
}

/// The same as a stream.
pub(crate) fn streamed(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body
}

/// A copy whose configuration promises more, written once.
fn long_llama(llama: &Path) -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    written_once(&FOLDER, |folder| {
        let weights = "model.safetensors";
        fs::copy(llama.join(weights), folder.join(weights)).unwrap();
        let config = fs::read(llama.join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        config["max_position_embeddings"] = json!(8192);
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
    })
}

fn text_ids() -> &'static [u32] {
    static IDS: OnceLock<Vec<u32>> = OnceLock::new();
    IDS.get_or_init(|| {
        let tokenizer = ModelFiles::open(smollm2()).unwrap().tokenizer().unwrap();
        tokenizer.encode(TEXT, false).unwrap()
    })
}

/// A folder whose files are written when it is asked for first.
pub(crate) fn written_once(folder: &OnceLock<TempDir>, write: impl FnOnce(&Path)) -> PathBuf {
    let folder = folder.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
        folder
    });
    folder.path().to_owned()
}

fn smollm2() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        if let Some(path) = std::env::var_os("BLOCKWIRE_MODEL") {
            return path.into();
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/fetch-model");
        let output = Command::new("python3").arg(script).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().into()
    });
    path.clone()
}
