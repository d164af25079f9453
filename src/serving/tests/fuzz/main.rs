//! The fuzz bodies of the serving protocol and of the OpenAI API, over their corpus and mutations of it:
//! the same functions that `fuzz/` gives to libFuzzer. See `blockwire_conformance::mutate`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bodies;
mod frames;
mod seeds;

use std::path::{Path, PathBuf};

use blockwire_conformance::mutate::{check_seeds, play_corpus};

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target)
}

#[test]
fn frames_of_nodes_are_read_or_refused() {
    check_seeds(corpus("serving_frames"), &seeds::frames());
    play_corpus(corpus("serving_frames"), frames::play);
}

#[test]
fn bodies_are_answered_or_refused() {
    check_seeds(corpus("http_body"), &seeds::bodies());
    play_corpus(corpus("http_body"), bodies::play);
}
