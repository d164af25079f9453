//! The fuzz bodies of the file readers, over their corpus and mutations of it: the same functions that
//! `fuzz/` gives to libFuzzer. See `blockwire_conformance::mutate`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod folder;
mod gguf;
mod model;
mod seeds;
mod template;
#[path = "../../testing/tiny_gguf.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod tiny_gguf;

use std::path::{Path, PathBuf};

use blockwire_conformance::mutate::{check_seeds, play_corpus};

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target)
}

#[test]
fn gguf_files_are_read_or_refused() {
    check_seeds(corpus("gguf"), &seeds::ggufs());
    play_corpus(corpus("gguf"), gguf::play);
}

#[test]
fn safetensors_files_are_read_or_refused() {
    check_seeds(corpus("safetensors"), &seeds::weights());
    play_corpus(corpus("safetensors"), folder::play_safetensors);
}

#[test]
fn configurations_are_read_or_refused() {
    check_seeds(corpus("config"), &seeds::configs());
    play_corpus(corpus("config"), folder::play_config);
}

#[test]
fn tokenizers_are_read_or_refused() {
    check_seeds(corpus("tokenizer"), &seeds::tokenizers());
    play_corpus(corpus("tokenizer"), folder::play_tokenizer);
}

#[test]
fn chat_templates_are_rendered_or_refused() {
    check_seeds(corpus("template"), &seeds::templates());
    play_corpus(corpus("template"), template::play);
}
