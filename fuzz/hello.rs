//! The body of a hello.
#![no_main]

#[path = "../src/engine/tests/fuzz/hello.rs"]
mod hello;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hello::play(bytes));
