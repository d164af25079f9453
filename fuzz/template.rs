//! A chat template and what it is given.
#![no_main]

#[path = "../src/runtime/tests/fuzz/template.rs"]
mod template;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| template::play(bytes));
