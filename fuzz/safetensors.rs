//! A safetensors file.
#![no_main]

#[path = "../src/runtime/tests/fuzz/folder.rs"]
mod folder;
#[path = "../src/runtime/tests/fuzz/model.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| folder::play_safetensors(bytes));
