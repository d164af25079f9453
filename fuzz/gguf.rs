//! A GGUF file.
#![no_main]

mod contained;
#[path = "../src/runtime/tests/fuzz/gguf.rs"]
mod gguf;
#[path = "../src/runtime/tests/fuzz/model.rs"]
mod model;

libfuzzer_sys::fuzz_target!(
    init: contained::contained("tokenizers"),
    |bytes: &[u8]| gguf::play(bytes)
);
