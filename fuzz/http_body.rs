//! The body of a request to the OpenAI API.
#![no_main]

#[path = "../src/serving/tests/fuzz/bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::play(bytes));
