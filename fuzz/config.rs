//! The small files of a checkpoint.
#![no_main]

mod contained;
#[path = "../src/runtime/tests/fuzz/folder.rs"]
mod folder;
#[path = "../src/runtime/tests/fuzz/model.rs"]
mod model;

libfuzzer_sys::fuzz_target!(
    init: contained::contained("tokenizers"),
    |bytes: &[u8]| folder::play_config(bytes)
);
